//! One operation: calls the filesystem and writes the body of the reply.

use std::ops::ControlFlow;

use base::Ino;
use fs::api::{Attr, Entry, FileKind, Filesystem, Lock, LockKind, ReadPlan, Touched};
use fs::{Errno, api};

use crate::abi::header::Header;
use crate::abi::ops::{Op, forget_pairs};
use crate::abi::{Put, out};
use crate::positions;
use crate::promises::Keep;
use crate::shared::SharedMount;

/// The result of an operation, and what remains to be done for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Bytes of the reply's body.
    pub len: usize,
    /// The kernel takes one reference to this inode with the reply. If the reply is never delivered, the
    /// reference must be given back.
    pub referenced: Option<Ino>,
    /// The mode of this inode changed. The kernel must be told before the reply, because after a write it
    /// asks again for size and times only.
    pub mode_changed: Option<Ino>,
    /// The lock that was taken. If the reply is never delivered, it must be released.
    pub locked: Option<Lock>,
    /// Files whose change time the kernel sets when it has the reply. It then sends this time in a SETATTR.
    pub touched: Touched,
    /// What the kernel may keep of the reply, if leases permit it.
    pub keeps: Vec<Keep>,
    /// An open file whose bytes changed, although the attributes in the reply do not show it.
    pub other_bytes: Option<Ino>,
}

impl Client<'_> {
    /// Whether it is recorded where a reply says how long the kernel may keep things. Otherwise the times in
    /// the reply are final. `fleeting`: the filesystem says that the kernel must not keep this.
    fn records(self, fleeting: bool) -> bool {
        self.shared.is_some() || (self.limited && !fleeting)
    }
}

impl Done {
    /// The inodes to which the kernel takes a reference each with the reply. Those of a listing are here only
    /// on a shared or limited mount: on others no listing waits, so the kernel takes its reply.
    pub fn references(&self, op: &Op<'_>) -> impl Iterator<Item = Ino> {
        let listed = if matches!(op, Op::Readdir { .. }) { &self.keeps[..] } else { &[] };
        self.referenced.into_iter().chain(listed.iter().map(|keep| keep.promise.ino))
    }
}

fn read(
    fs: &dyn Filesystem,
    ino: Ino,
    offset: u64,
    plan: Option<&ReadPlan>,
    buf: &mut [u8],
) -> api::Result<usize> {
    match plan {
        Some(plan) => fs.read_planned(plan, buf),
        None => fs.read(ino, offset, buf),
    }
}

/// Writes the data of a WRITE. Returns whether set-id bits were cleared.
fn write(fs: &dyn Filesystem, shared: bool, header: &Header, op: &Op<'_>) -> api::Result<bool> {
    let Op::Write { offset, data, kill, cached, append } = *op else { return Err(Errno::ENOSYS) };
    let unprivileged = kill.then_some(&header.caller);
    match shared && append {
        true => fs.append(header.ino, data, unprivileged),
        false => fs.write(header.ino, offset, data, unprivileged, cached),
    }
}

/// For whom an operation is executed.
#[derive(Clone, Copy, Default)]
pub struct Client<'a> {
    /// The state of a shared mount.
    pub shared: Option<&'a SharedMount>,
    /// How long the kernel may keep things is decided when the reply is delivered, also on a mount that is
    /// not shared.
    pub limited: bool,
}

/// Runs one operation and writes the body of its reply to the start of `room`.
///
/// # Errors
/// The error number that the program shall see.
///
/// `plan`: what [`Filesystem::plan_read`] said, for a read that does not wait.
pub fn run(
    fs: &dyn Filesystem,
    client: Client<'_>,
    header: &Header,
    op: &Op<'_>,
    plan: Option<&ReadPlan>,
    room: &mut [u8],
) -> api::Result<Done> {
    let shared = client.shared;
    let mut put = Put::new(room);
    let (mut mode_changed, mut touched, mut keeps) = (None, Touched::default(), Vec::new());
    let mut other_bytes = None;
    let referenced = match *op {
        Op::Read { offset, len } => {
            let count = read(fs, header.ino, offset, plan, put.room(len as usize))?;
            put.advance(count)?;
            None
        }
        Op::Write { data, .. } => {
            mode_changed = write(fs, shared.is_some(), header, op)?.then_some(header.ino);
            out::written(&mut put, data.len() as u32)?;
            None
        }
        Op::Lookup { .. } | Op::Getattr | Op::Setattr(_) | Op::Readdir { .. } => {
            let (referenced, other) = show(fs, client, header, op, &mut put, &mut keeps)?;
            other_bytes = other;
            referenced
        }
        Op::Fallocate { .. } | Op::CopyRange { .. } => {
            let (changed, dropped) = change_data(fs, header, op, &mut put)?;
            (mode_changed, touched) = (dropped.then_some(changed), Touched::one(changed));
            None
        }
        Op::Open { .. } | Op::Opendir | Op::Getlk(_) | Op::Setlk { .. } => {
            let locked = on_open_file(fs, shared, header, op, &mut put)?;
            return Ok(Done { len: put.len(), locked, ..Done::default() });
        }
        _ => match create(fs, header, op)? {
            Some(found) => {
                if client.records(found.fleeting) {
                    let named = !matches!(op, Op::Tmpfile { .. });
                    keeps.push(Keep::entry(0, found.node, if named { header.ino } else { Ino(0) }));
                }
                let referenced = entry(&mut put, &found, shared)?;
                open_created(shared, found.node, op, &mut put)?;
                if let Op::Link { .. } = op
                    && found.attr.kind == FileKind::File
                {
                    touched = Touched::one(found.node);
                }
                Some(referenced)
            }
            None => {
                touched = without_entry(fs, shared.is_some(), header, op, &mut put)?;
                None
            }
        },
    };
    Ok(Done { len: put.len(), referenced, mode_changed, locked: None, touched, keeps, other_bytes })
}

/// The operations whose replies say what an inode, a name or a directory is. Returns the inode to which the
/// reply refers, and an open file whose bytes changed although the reply does not show it.
fn show(
    fs: &dyn Filesystem,
    client: Client<'_>,
    header: &Header,
    op: &Op<'_>,
    put: &mut Put<'_>,
    keeps: &mut Vec<Keep>,
) -> api::Result<(Option<Ino>, Option<Ino>)> {
    let shared = client.shared;
    let hides = |attr: &Attr| shared.is_some_and(|shared| shared.hides_a_change(attr)).then_some(attr.ino);
    let fleeting = || shared.is_some() || fs.fleeting();
    let mut keep = |keep: Keep, fleeting: bool| {
        if client.records(fleeting) {
            keeps.push(keep);
        }
    };
    match *op {
        Op::Lookup { name } => match fs.lookup(header.ino, name) {
            Ok(found) => {
                keep(Keep::entry(0, found.node, header.ino), found.fleeting);
                return Ok((Some(entry(put, &found, shared)?), hides(&found.attr)));
            }
            Err(Errno::ENOENT) => {
                keep(Keep::entry(0, Ino(0), header.ino), fs.fleeting());
                out::no_entry(put, fleeting())?;
            }
            Err(error) => return Err(error),
        },
        Op::Readdir { position, room, plus } => {
            let whole = Listing { ino: header.ino, position, room: room as usize, plus };
            listing(fs, shared.is_some(), &whole, put, &mut keep)?;
        }
        _ => {
            let attr = match op {
                Op::Setattr(set) => fs.setattr(&header.caller, header.ino, set)?,
                _ => fs.getattr(header.ino)?,
            };
            keep(Keep::attributes(0, header.ino), fs.fleeting());
            out::attributes(put, &attr, fleeting())?;
            return Ok((None, hides(&attr)));
        }
    }
    Ok((None, None))
}

/// The operations other than WRITE that change data. Returns which inode they changed, and whether its set-id
/// bits were dropped first.
fn change_data(
    fs: &dyn Filesystem,
    header: &Header,
    op: &Op<'_>,
    put: &mut Put<'_>,
) -> api::Result<(Ino, bool)> {
    match *op {
        Op::Fallocate { offset, len, how } => {
            let dropped = fs.drop_privileges(&header.caller, header.ino)?;
            fs.allocate(header.ino, offset, len, how)?;
            Ok((header.ino, dropped))
        }
        Op::CopyRange { from_offset, to, to_offset, len, wide } => {
            let dropped = fs.drop_privileges(&header.caller, to)?;
            // The older form has 32 bits for the count. A program continues from where the copy ended.
            let len = if wide { len } else { len.min(u64::from(u32::MAX) & !0xfff) };
            let copied = fs.copy_range(header.ino, from_offset, to, to_offset, len)?;
            if wide { put.u64(copied) } else { out::written(put, copied as u32) }?;
            Ok((to, dropped))
        }
        _ => Err(Errno::ENOSYS),
    }
}

fn entry(put: &mut Put<'_>, found: &Entry, shared: Option<&SharedMount>) -> api::Result<Ino> {
    out::entry(put, &Entry { fleeting: found.fleeting || shared.is_some(), ..*found })?;
    Ok(found.node)
}

/// What follows the entry in the replies to CREATE and TMPFILE: the open file.
fn open_created(shared: Option<&SharedMount>, ino: Ino, op: &Op<'_>, put: &mut Put<'_>) -> api::Result<()> {
    let (Op::Tmpfile { append, .. } | Op::Create { append, .. }) = *op else { return Ok(()) };
    let keep = || (0, out::open::KEEP_CACHE);
    let (handle, flags) = shared.map_or_else(keep, |shared| shared.open(ino, append));
    out::opened(put, handle, flags)
}

/// The operations on open files, which only a shared mount has. Returns the lock that was taken.
fn on_open_file(
    fs: &dyn Filesystem,
    shared: Option<&SharedMount>,
    header: &Header,
    op: &Op<'_>,
    put: &mut Put<'_>,
) -> api::Result<Option<Lock>> {
    let (shared, ino) = (shared.ok_or(Errno::ENOSYS)?, header.ino);
    let locks = || shared.locks().ok_or(Errno::ENOSYS);
    match *op {
        Op::Open { append } => {
            let (handle, flags) = shared.open(ino, append);
            out::opened(put, handle, flags)?;
        }
        // Without a flag that allows it, the kernel does not cache the listing.
        Op::Opendir => out::opened(put, 0, 0)?,
        Op::Getlk(ref request) => {
            let held = fs.test_lock(ino, &locks()?.question(ino, request))?;
            out::lock(put, held.as_ref())?;
        }
        Op::Setlk { lock: ref request, .. } if request.kind == LockKind::Unlock => {
            // An owner that never locked through this mount has nothing to release.
            if let Some(lock) = locks()?.known(ino, request) {
                fs.set_lock(ino, &lock)?;
            }
        }
        Op::Setlk { lock: ref request, .. } => {
            let lock = locks()?.lock(ino, request, fs.lock_session())?;
            let done = fs.set_lock(ino, &lock);
            if !locks()?.has(ino, request, lock.owner) {
                // The file was closed meanwhile, and nothing will end the lock of an owner that has ended.
                fs.release_locks(ino, lock.owner, lock.style)?;
            }
            done?;
            return Ok(Some(lock));
        }
        _ => return Err(Errno::ENOSYS),
    }
    Ok(None)
}

/// The operations that create something and reply with an entry. `None` for all others.
fn create(fs: &dyn Filesystem, header: &Header, op: &Op<'_>) -> api::Result<Option<Entry>> {
    let (caller, parent) = (&header.caller, header.ino);
    Ok(Some(match *op {
        Op::Mknod { name, ref node } => fs.mknod(caller, parent, name, node)?,
        Op::Mkdir { name, perm, umask } => fs.mkdir(caller, parent, name, perm, umask)?,
        Op::Symlink { name, target } => fs.symlink(caller, parent, name, target)?,
        Op::Create { name, ref node, exclusive, .. } => {
            let made = fs.mknod(caller, parent, name, node);
            // The kernel does not check permissions on a file that it believes it has created. After ESTALE
            // it looks the name up again.
            let raced = !exclusive && made == Err(Errno::EEXIST);
            if raced { return Err(Errno::ESTALE) } else { made? }
        }
        Op::Tmpfile { perm, umask, .. } => fs.tmpfile(caller, parent, perm, umask)?,
        Op::Link { ino, name } => fs.link(ino, parent, name)?,
        _ => return Ok(None),
    }))
}

/// The operations without an entry or attributes in their reply.
fn without_entry(
    fs: &dyn Filesystem,
    shared: bool,
    header: &Header,
    op: &Op<'_>,
    put: &mut Put<'_>,
) -> api::Result<Touched> {
    let ino = header.ino;
    match *op {
        Op::Unlink { name } => return fs.unlink(ino, name),
        Op::Rename { name, to, to_name, mode } => return fs.rename(ino, name, to, to_name, mode),
        _ => on_one_inode(fs, ino, op, put)?,
    }
    Ok(match *op {
        // The kernel of a shared mount keeps no times.
        Op::Setxattr { .. } | Op::Removexattr { .. } if !shared && is_file(fs, ino) => Touched::one(ino),
        _ => Touched::default(),
    })
}

fn is_file(fs: &dyn Filesystem, ino: Ino) -> bool {
    fs.getattr(ino).is_ok_and(|attr| attr.kind == FileKind::File)
}

/// The operations that change no inode other than their own.
fn on_one_inode(fs: &dyn Filesystem, ino: Ino, op: &Op<'_>, put: &mut Put<'_>) -> api::Result<()> {
    match *op {
        Op::Readlink => put.bytes(&fs.readlink(ino)?),
        Op::Rmdir { name } => fs.rmdir(ino, name),
        Op::Statfs => out::statfs(put, &fs.statfs(ino)?),
        Op::Fsync { data_only } => fs.fsync(ino, data_only),
        Op::Syncfs => fs.sync(),
        Op::Setxattr { name, value, mode, kill_sgid } => fs.setxattr(ino, name, value, mode, kill_sgid),
        Op::Getxattr { name, room } => sized(put, &fs.getxattr(ino, name)?, room),
        Op::Listxattr { room } => sized(put, &fs.listxattr(ino)?, room),
        Op::Removexattr { name } => fs.removexattr(ino, name),
        Op::Seek { offset, what } => put.u64(fs.seek(ino, offset, what)?),
        Op::Forget { count } => {
            fs.forget(ino, count);
            Ok(())
        }
        Op::BatchForget { pairs } => {
            forget_pairs(pairs).for_each(|(ino, count)| fs.forget(ino, count));
            Ok(())
        }
        Op::Release { .. } | Op::Releasedir | Op::Flush { .. } | Op::Destroy => Ok(()),
        _ => Err(Errno::ENOSYS),
    }
}

/// A value whose length the caller does not know. If it asks with no room, the reply is the length alone.
fn sized(put: &mut Put<'_>, value: &[u8], room: u32) -> api::Result<()> {
    match room as usize {
        0 => out::written(put, value.len() as u32),
        room if value.len() > room => Err(Errno::ERANGE),
        _ => put.bytes(value),
    }
}

/// The most bytes of a READDIRPLUS of a shared mount. The kernel counts how long it may keep names from when
/// it has come to them, so it must come to the last one soon.
const PLUS_MAX: usize = 32 << 10;

/// A READDIR or READDIRPLUS.
struct Listing {
    ino: Ino,
    position: u64,
    room: usize,
    plus: bool,
}

/// Whether an entry of a listing is passed on without attributes: a folder that the kernel holds.
///
/// It may hold the folder in another place, from before another machine moved it, and even as an ancestor of
/// the folder that is listed. The kernel then cannot link it here. A lookup reports that to its program
/// alone. In a listing it would cost a FORGET for which the program waits, and the entry would gain nothing:
/// what the kernel holds in this place it still has.
fn is_left_out(found: &Entry) -> bool {
    found.attr.kind == FileKind::Dir && (found.held || found.node == Ino::ROOT)
}

fn listing(
    fs: &dyn Filesystem,
    shared: bool,
    listing: &Listing,
    put: &mut Put<'_>,
    keep: &mut impl FnMut(Keep, bool),
) -> api::Result<()> {
    let Listing { ino, position, plus, .. } = *listing;
    let most = if shared && plus { PLUS_MAX } else { usize::MAX };
    let room = listing.room.min(put.left()).min(most);
    let mut failed = None;
    let mut verdict = |fits: api::Result<bool>| match fits {
        Ok(true) => ControlFlow::Continue(()),
        Ok(false) => ControlFlow::Break(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    };
    if plus {
        let mut left_out = Vec::new();
        let listed = positions::list(fs, ino, position, true, &mut |line, found| {
            let at = put.len();
            let shown = found.filter(|found| !is_left_out(found));
            let shown = shown.map(|found| Entry { fleeting: found.fleeting || shared, ..*found });
            let fits = out::dirent_plus(put, room, &line, shown.as_ref());
            match (&fits, found) {
                (Ok(true), Some(found)) if shown.is_none() => left_out.push(found.node),
                (Ok(true), Some(found)) => keep(Keep::entry(at, found.node, ino), found.fleeting),
                _ => {}
            }
            verdict(fits)
        });
        // The filesystem has counted what the kernel does not learn.
        left_out.into_iter().for_each(|node| fs.forget(node, 1));
        listed?;
    } else {
        positions::list(fs, ino, position, false, &mut |line, _| verdict(out::dirent(put, room, &line)))?;
    }
    failed.map_or(Ok(()), Err)
}
