//! The target of whole requests: what the kernel of a guest asks, served from a small volume in memory.
//!
//! The first byte of an input says how the volume is served ([`How`]). Requests follow, each preceded by its
//! length in two bytes. A request with any opcode and any arguments gets one reply, which fits, or none where
//! the protocol has none. Nothing panics, and everything ends.

use std::sync::Arc;
use std::time::Duration;

use base::time::monotonic;
use base::{Ino, Must};
use fs::api::{Caller, FileKind, Filesystem, NewNode, SetAttr, XattrMode};
use fs::volume::{self, FormatRequest, Parts, Volume};
use fuse::abi::header::{Header, IN_HEADER, OUT_HEADER};
use fuse::abi::init::flag;
use fuse::abi::opcodes::op;
use fuse::buffer::{PageBuf, RequestBuf};
use fuse::channel::Sink;
use guests::server::{Options, Server};
use parking_lot::{Condvar, Mutex};
use stream::hello::Sharing;
use virtio::session::Session;

/// Requests of an input that are served.
const MOST: usize = 64;
/// How long a request in memory may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(8);

/// How a volume is served, by the bits of a byte.
#[derive(Clone, Copy)]
struct How(u8);

impl How {
    const MANY: u8 = 1;
    const LOCKS: u8 = 1 << 1;
    const READ_ONLY: u8 = 1 << 2;
    const WRITEBACK: u8 = 1 << 3;
    const KEEP: u8 = 1 << 4;
    /// The guest has mounted before its first request of the input.
    const MOUNTED: u8 = 1 << 5;
    /// Each request gets the right length in its header.
    const LENGTHS: u8 = 1 << 6;

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

/// A volume with the file `a`, a folder `d` with the file `b` in it, and a link `l`.
fn volume(how: How) -> Arc<Volume> {
    let origin = Arc::new(origin::Memory::new());
    let packs = Arc::new(cache::MemoryPacks::new(origin.clone()));
    let store = Arc::new(meta::engine::memory::Memory::new());
    let parts = Parts { store, packs, source: origin.clone(), origin };
    Volume::format(&parts, &FormatRequest::default()).must("an empty volume in memory is made");
    let options = volume::Options {
        own_locks: how.has(How::LOCKS),
        many_kernels: how.has(How::MANY),
        report: Arc::new(|_| ()),
        ..volume::Options::default()
    };
    let volume = Volume::open(parts, options).must("a volume in memory is opened");
    let (root, file) = (Caller::default(), NewNode { kind: FileKind::File, perm: 0o644, umask: 0, rdev: 0 });
    let made = "a new volume takes all";
    let a = volume.mknod(&root, Ino::ROOT, b"a", &file).must(made).node;
    volume.write(a, 0, &[7; 5000], None, false).must(made);
    volume.setattr(&root, a, &SetAttr { size: Some(9000), ..SetAttr::default() }).must(made);
    volume.setxattr(a, b"user.x", b"value", XattrMode::Set, false).must(made);
    let d = volume.mkdir(&root, Ino::ROOT, b"d", 0o755, 0).must(made).node;
    let b = volume.mknod(&root, d, b"b", &file).must(made).node;
    let l = volume.symlink(&root, Ino::ROOT, b"l", b"a").must(made).node;
    [a, d, b, l].into_iter().for_each(|ino| volume.forget(ino, 1));
    Arc::new(volume)
}

/// What has become of the requests.
#[derive(Default)]
struct Seen {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Requests without an end, by whether they wait for a lock.
    open: [usize; 2],
    /// Requests that ended without a reply.
    silent: Vec<u32>,
    wrong: Vec<String>,
}

impl Seen {
    fn wrong(&self, text: String) {
        self.state.lock().wrong.push(text);
    }

    /// Waits until all requests have ended. `locks`: also those that wait for a lock.
    fn wait(&self, locks: bool) {
        let end = monotonic() + PATIENCE;
        let mut state = self.state.lock();
        while state.open[0] > 0 || (locks && state.open[1] > 0) {
            let over = self.changed.wait_until(&mut state, end).timed_out();
            assert!(!over, "{:?} requests have no reply", state.open);
        }
    }
}

/// Takes the reply to one request, and ends with it.
struct One {
    opcode: u32,
    unique: u64,
    /// The most bytes that the reply may have.
    room: usize,
    replied: Mutex<bool>,
    seen: Arc<Seen>,
}

impl One {
    fn new(request: &[u8], seen: &Arc<Seen>) -> Arc<One> {
        let number = |at: usize| {
            request.get(at..at + 4).and_then(|bytes| Some(u32::from_ne_bytes(bytes.try_into().ok()?)))
        };
        let opcode = number(4).unwrap_or_default();
        let unique = Header::unique_of(request).unwrap_or_default();
        let asked = |at: usize| number(IN_HEADER + at).unwrap_or_default() as usize;
        let room = match opcode {
            op::READ | op::READDIR | op::READDIRPLUS => asked(16),
            op::GETXATTR | op::LISTXATTR => asked(0).max(8),
            op::READLINK => 4096,
            op::CREATE | op::TMPFILE => 144,
            _ => 128,
        };
        seen.state.lock().open[usize::from(opcode == op::SETLKW)] += 1;
        Arc::new(One { opcode, unique, room, replied: Mutex::new(false), seen: Arc::clone(seen) })
    }
}

impl Sink for One {
    fn reply(&self, unique: u64, error: i32, body: &[u8]) -> std::io::Result<()> {
        let One { opcode, room, .. } = *self;
        if std::mem::replace(&mut *self.replied.lock(), true) {
            self.seen.wrong(format!("opcode {opcode}: a second reply"));
        }
        let is_right = unique == self.unique
            && (-4095..=0).contains(&error)
            && (error == 0 || body.is_empty())
            && body.len() <= room
            && OUT_HEADER + body.len() <= u32::MAX as usize;
        if !is_right {
            self.seen.wrong(format!("opcode {opcode}: error {error} and {} bytes, of {room}", body.len()));
        }
        if matches!(opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT) && error == 0 {
            self.seen.wrong(format!("opcode {opcode}: a reply that nothing waits for"));
        }
        Ok(())
    }

    fn notify(&self, _: i32, _: &[&[u8]]) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for One {
    fn drop(&mut self) {
        let mut state = self.seen.state.lock();
        state.open[usize::from(self.opcode == op::SETLKW)] -= 1;
        if !*self.replied.lock() {
            state.silent.push(self.opcode);
        }
        self.seen.changed.notify_all();
    }
}

/// The requests of an input.
fn parts(mut data: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = data.split_first_chunk::<2>()?;
        let (one, rest) = rest.split_at(rest.len().min(usize::from(u16::from_be_bytes(*len))));
        data = rest;
        Some(one)
    })
}

/// Serves the requests of an input.
pub fn requests(data: &[u8]) {
    let Some((&how, rest)) = data.split_first() else { return };
    let (how, seen) = (How(how), Arc::new(Seen::default()));
    let log = Arc::clone(&seen);
    let log: fuse::Log = Arc::new(move |line: &str| {
        if line.contains("panicked") {
            log.wrong(line.to_owned());
        }
    });
    let options = Options {
        sharing: if how.has(How::MANY) { Sharing::Many } else { Sharing::One },
        read_only: how.has(How::READ_ONLY),
        writeback: how.has(How::WRITEBACK),
        locks: how.has(How::LOCKS),
        threads: 1,
        connections: 1,
        workers: 2,
        ..Options::new("fuzz", b"fuzz", log)
    };
    let mut server = Server::start(volume(how), options).must("the root can be read");
    let door = server.door();
    let visit = door.admit().must("it is the first guest");
    let keep = Duration::from_secs(u64::from(how.has(How::KEEP)));
    let session = Session::new(door, visit, keep);
    let (mut buffer, mut room) = (RequestBuf::new(), PageBuf::for_reply());
    let mut serve = |request: &[u8]| {
        let bytes = &mut buffer.bytes()[..request.len()];
        bytes.copy_from_slice(request);
        if how.has(How::LENGTHS) && request.len() >= 4 {
            bytes[..4].copy_from_slice(&(request.len() as u32).to_ne_bytes());
        }
        let sink: Arc<dyn Sink> = One::new(bytes, &seen);
        session.serve(0, bytes, room.bytes(), &sink);
    };
    if how.has(How::MOUNTED) {
        serve(&init());
    }
    let (mut uniques, mut strict) = (Vec::new(), true);
    base::thread::must_not_wait();
    for request in parts(rest).take(MOST) {
        serve(request);
        let opcode =
            request.get(4..8).map(|bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        let unique = Header::unique_of(request);
        strict &= !uniques.contains(&unique) && !matches!(opcode, Some(op::INIT | op::DESTROY));
        uniques.push(unique);
    }
    base::thread::may_wait_again();
    seen.wait(false);
    // The end of a mount, and a number that is used twice, leave requests without a reply of the dispatcher.
    // Then the queue replies.
    let mute = |opcode: &u32| matches!(*opcode, op::FORGET | op::BATCH_FORGET | op::INTERRUPT);
    let silent = std::mem::take(&mut seen.state.lock().silent);
    session.leave();
    seen.wait(true);
    server.end();
    let state = seen.state.lock();
    assert!(state.wrong.is_empty(), "{:?}", state.wrong);
    let unanswered: Vec<&u32> = silent.iter().chain(&state.silent).filter(|opcode| !mute(opcode)).collect();
    let without_number = uniques.iter().filter(|unique| unique.is_none()).count();
    assert!(!strict || unanswered.len() <= without_number, "no reply to {unanswered:?}");
}

/// A request with the right length.
fn request(opcode: u32, unique: u64, ino: u64, arguments: &[u8]) -> Vec<u8> {
    let mut bytes = ((IN_HEADER + arguments.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(opcode.to_ne_bytes());
    bytes.extend(unique.to_ne_bytes());
    bytes.extend(ino.to_ne_bytes());
    bytes.extend([0; 16]);
    bytes.extend(arguments);
    bytes
}

/// The INIT of a kernel that has everything.
fn init() -> Vec<u8> {
    let flags = !flag::OVER_IO_URING;
    let words = [7, 45, 131_072, flags as u32, (flags >> 32) as u32];
    let mut arguments: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
    arguments.resize(64, 0);
    request(op::INIT, u64::MAX, 0, &arguments)
}

/// Numbers of four and of eight bytes, one after the other.
fn numbers(parts: &[(u64, usize)]) -> Vec<u8> {
    parts.iter().flat_map(|(value, len)| value.to_ne_bytes()[..*len].to_vec()).collect()
}

/// One request of each kind, on the volume's inodes.
fn all_kinds() -> Vec<Vec<u8>> {
    let found = volume(How(0));
    let ino = |parent: Ino, name: &[u8]| found.lookup(parent, name).must("it was made").node;
    let (a, d, l) = (ino(Ino::ROOT, b"a"), ino(Ino::ROOT, b"d"), ino(Ino::ROOT, b"l"));
    let b = ino(d, b"b");
    let with = |numbers: Vec<u8>, text: &[u8]| [&numbers[..], text].concat();
    let zeros = |count: usize| vec![0; count];
    let lock = |kind: i32, flags: u64| {
        numbers(&[(3, 8), (4, 8), (10, 8), (20, 8), (kind as u64, 4), (7, 4), (flags, 4), (0, 4)])
    };
    let setattr = numbers(&[(0xfff, 4), (0, 4), (0, 8), (70_000, 8), (0, 8), (1, 8), (2, 8), (3, 8)]);
    let setattr =
        with(setattr, &numbers(&[(4, 4), (5, 4), (6, 4), (0o644, 4), (0, 4), (1, 4), (2, 4), (0, 4)]));
    let write = numbers(&[(0, 8), (4090, 8), (9, 4), (0, 4), (0, 8), (2, 4), (0, 4)]);
    let copy = numbers(&[(0, 8), (0, 8), (b.0, 8), (0, 8), (100, 8), (5000, 8), (0, 8)]);
    let kinds: Vec<(u32, Ino, Vec<u8>)> = vec![
        (op::LOOKUP, Ino::ROOT, b"a\0".to_vec()),
        (op::LOOKUP, Ino::ROOT, b"absent\0".to_vec()),
        (op::GETATTR, a, zeros(16)),
        (op::SETATTR, a, setattr),
        (op::READLINK, l, Vec::new()),
        (op::SYMLINK, Ino::ROOT, b"new\0target\0".to_vec()),
        (op::MKNOD, d, with(numbers(&[(0o100_644, 4), (0, 4), (0, 4), (0, 4)]), b"n\0")),
        (op::MKDIR, d, with(numbers(&[(0o755, 4), (0, 4)]), b"m\0")),
        (op::CREATE, d, with(numbers(&[(0x42, 4), (0o100_644, 4), (0, 4), (0, 4)]), b"c\0")),
        (op::TMPFILE, d, with(numbers(&[(2, 4), (0o100_600, 4), (0, 4), (0, 4)]), b"")),
        (op::RENAME, Ino::ROOT, with(numbers(&[(d.0, 8)]), b"a\0e\0")),
        (op::RENAME2, d, with(numbers(&[(1, 8), (2, 4), (0, 4)]), b"e\0l\0")),
        (op::LINK, d, with(numbers(&[(b.0, 8)]), b"hard\0")),
        (op::OPEN, a, zeros(8)),
        (op::OPENDIR, d, zeros(8)),
        (op::READ, a, numbers(&[(0, 8), (4000, 8), (8000, 4), (0, 4), (0, 8), (0, 8)])),
        (op::WRITE, a, with(write, b"some data")),
        (op::READDIR, Ino::ROOT, numbers(&[(0, 8), (0, 8), (4096, 4), (0, 4), (0, 8), (0, 8)])),
        (op::READDIRPLUS, Ino::ROOT, numbers(&[(0, 8), (0, 8), (4096, 4), (0, 4), (0, 8), (0, 8)])),
        (op::STATFS, Ino::ROOT, Vec::new()),
        (op::FLUSH, a, numbers(&[(3, 8), (0, 8), (4, 8)])),
        (op::SETXATTR, a, with(numbers(&[(5, 4), (0, 4), (0, 8)]), b"user.y\0value")),
        (op::GETXATTR, a, with(numbers(&[(100, 4), (0, 4)]), b"user.x\0")),
        (op::LISTXATTR, a, numbers(&[(0, 4), (0, 4)])),
        (op::REMOVEXATTR, a, b"user.x\0".to_vec()),
        (op::FALLOCATE, a, numbers(&[(0, 8), (100, 8), (5000, 8), (3, 4), (0, 4)])),
        (op::LSEEK, a, numbers(&[(0, 8), (0, 8), (3, 4), (0, 4)])),
        (op::COPY_FILE_RANGE, a, copy.clone()),
        (op::COPY_FILE_RANGE_64, a, copy),
        (op::GETLK, a, lock(libc::F_WRLCK, 0)),
        (op::SETLK, a, lock(libc::F_WRLCK, 0)),
        (op::SETLKW, a, lock(libc::F_RDLCK, 1)),
        (op::RELEASE, a, numbers(&[(3, 8), (0, 8), (4, 8)])),
        (op::RELEASEDIR, d, zeros(24)),
        (op::FSYNC, a, zeros(16)),
        (op::FSYNCDIR, d, zeros(16)),
        (op::SYNCFS, Ino::ROOT, zeros(8)),
        (op::UNLINK, d, b"b\0".to_vec()),
        (op::RMDIR, d, b"m\0".to_vec()),
        (op::FORGET, a, numbers(&[(1, 8)])),
        (op::BATCH_FORGET, Ino(0), numbers(&[(2, 4), (0, 4), (a.0, 8), (1, 8), (d.0, 8), (9, 8)])),
        (op::INTERRUPT, Ino(0), numbers(&[(7, 8)])),
        (op::DESTROY, Ino(0), Vec::new()),
    ];
    let each = kinds
        .iter()
        .zip(100..)
        .map(|((opcode, ino, arguments), unique)| request(*opcode, unique, ino.0, arguments));
    each.collect()
}

/// Each kind of request by itself, all one after the other, and locks that exclude each other.
pub fn requests_seeds() -> Vec<Vec<u8>> {
    let input = |how: u8, requests: &[Vec<u8>]| {
        let framed = |one: &Vec<u8>| [&(one.len() as u16).to_be_bytes()[..], one].concat();
        [vec![how], requests.iter().flat_map(framed).collect()].concat()
    };
    let kinds = all_kinds();
    let usual = How::MOUNTED | How::LENGTHS;
    let mut seeds: Vec<Vec<u8>> =
        kinds.iter().zip(0_u8..).map(|(one, n)| input(usual | (n % 32), std::slice::from_ref(one))).collect();
    for how in [0, How::WRITEBACK, How::MANY, How::MANY | How::LOCKS | How::KEEP, How::READ_ONLY] {
        seeds.push(input(usual | how, &kinds));
    }
    let of =
        |opcode: u32| kinds.iter().find(|one| one[4..8] == opcode.to_ne_bytes()).cloned().unwrap_or_default();
    let mut waits = of(op::SETLKW);
    // Another owner, and a lock of a range.
    (waits[IN_HEADER + 8], waits[IN_HEADER + 40]) = (9, 0);
    let mut interrupt = of(op::INTERRUPT);
    interrupt[IN_HEADER..IN_HEADER + 8].copy_from_slice(&waits[8..16]);
    let locks = usual | How::MANY | How::LOCKS;
    seeds.push(input(locks, &[of(op::SETLK), waits.clone(), of(op::FLUSH)]));
    seeds.push(input(locks, &[of(op::SETLK), waits.clone(), interrupt]));
    seeds.push(input(locks, &[of(op::SETLK), waits]));
    seeds.push(input(
        How::MANY | How::LENGTHS,
        &[of(op::GETATTR), init(), of(op::GETATTR), of(op::DESTROY), init()],
    ));
    seeds
}
