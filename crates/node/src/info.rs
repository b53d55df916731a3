//! What a file consists of: its inode, its extents, the packs that hold them, the blobs that these became,
//! and where each blob is.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::time::Duration;

use ::fs::shared::owner;
use api::error::{Failure, Result};
use api::info::{ExtentInfo, Info, PackInfo};
use api::text::utc;
use base::{BlobId, Deadline, Ino, PackNo};
use blob::Origin;
use blob::extent::ExtentPage;
use meta::store::StoreError;
use meta::{InodeRecord, Names, PackRow};

/// The places where a volume's blobs can be.
pub struct Places<'a> {
    /// The local or remote origin, which holds sealed blobs.
    pub origin: &'a dyn Origin,
    /// The volume's folder, if it has one.
    pub folder: Option<&'a Path>,
    /// Of a shared volume: this node's number, and those of all that have joined.
    pub nodes: Option<(u32, Vec<u32>)>,
}

/// At most this many blobs of a file are looked up in the origin. With a remote origin each is a request.
const ASKED: usize = 1_000;
/// The time limit for that. The place of the remaining blobs is then unknown.
const ASKING: Duration = Duration::from_secs(5);
/// At most this many extents are listed, because an answer is one line between programs.
const LISTED: usize = 100_000;

impl Places<'_> {
    fn of(&self, pack: PackNo, state: &str, blob: Option<&BlobId>, ask: bool) -> &'static str {
        let writer = owner(pack);
        let Some(id) = blob else {
            return match &self.nodes {
                _ if state != "open" => "lost",
                Some((me, alive)) if writer != *me && !alive.contains(&writer) => "absent node",
                Some((me, _)) if writer != *me => "another node",
                _ => "open here",
            };
        };
        // A link of its own pins a blob that the origin does not have yet.
        let is_pinned = self.folder.is_some_and(|folder| folder.join("upload").join(id.to_string()).exists());
        let is_local = self.origin.is_local(id);
        match if ask { self.origin.size(id).ok() } else { None } {
            _ if is_pinned => "here, not uploaded",
            Some(None) => "lost",
            _ if is_local => "here",
            Some(Some(_)) => "origin",
            None => "unknown",
        }
    }
}

/// Looks up a file by its path below the root, without following symbolic links. With `list`, lists every
/// extent.
pub fn of(names: &Names, places: &Places<'_>, path: &Path, list: bool) -> Result<Info> {
    let (ino, record) = find(names, path)?;
    let mut used: BTreeMap<PackNo, Used> = BTreeMap::new();
    let mut extent_list = Vec::new();
    let (mut pages, mut extents, mut from) = (0, 0, 0);
    loop {
        let some = names.extent_pages(ino, from, 256).map_err(store)?;
        let Some((last, _)) = some.last() else { break };
        from = last + 1;
        for (number, page) in &some {
            pages += 1;
            for extent in page.extents() {
                extents += 1;
                let entry = used.entry(extent.pack).or_default();
                entry.extents += 1;
                entry.bytes += u64::from(extent.len);
                if list && extent_list.len() < LISTED {
                    let at = u64::from(*number) * u64::from(ExtentPage::SPAN) + u64::from(extent.at);
                    let (len, pack, offset) = (extent.len, extent.pack.0, extent.offset);
                    extent_list.push(ExtentInfo { at, len, pack, offset });
                }
            }
        }
    }
    let packs = used.into_iter().enumerate();
    let deadline = Deadline::after(ASKING);
    let ask = |at: usize| at < ASKED && !deadline.is_over();
    let packs = deadline.scope(|| {
        packs.map(|(at, (pack, used))| pack_info(names, places, pack, used, ask(at))).collect::<Result<_>>()
    })?;
    Ok(Info {
        inode: ino.0,
        kind: kind(record.mode).to_owned(),
        mode: record.mode,
        uid: record.uid,
        gid: record.gid,
        links: record.nlink,
        size: record.size,
        stored_bytes: record.stored,
        inline: record.flags & InodeRecord::INLINE != 0,
        modified: utc(record.mtime.seconds()),
        pages,
        extents,
        packs,
        extent_list,
    })
}

/// What a file uses of a pack.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// Extents of the file in the pack.
    extents: u64,
    /// Bytes of the file in the pack.
    bytes: u64,
}

fn pack_info(names: &Names, places: &Places<'_>, pack: PackNo, used: Used, ask: bool) -> Result<PackInfo> {
    let (state, blob) = match names.pack(pack).map_err(store)? {
        Some(PackRow::Open) => ("open", None),
        Some(PackRow::Sealed { blob, size }) => ("sealed", Some((blob, size))),
        Some(PackRow::Condemned { blob, size }) => ("condemned", Some((blob, size))),
        None => ("missing", None),
    };
    Ok(PackInfo {
        pack: pack.0,
        state: state.to_owned(),
        blob: blob.map(|(id, _)| id.to_string()),
        size: blob.map(|(_, size)| u64::from(size)),
        place: places.of(pack, state, blob.as_ref().map(|(id, _)| id), ask).to_owned(),
        extents: used.extents,
        bytes: used.bytes,
    })
}

fn find(names: &Names, path: &Path) -> Result<(Ino, InodeRecord)> {
    let gone = || {
        Failure::new("not-found", format!("there is no /{} in the volume", path.display()))
            .next("check the path")
    };
    let mut ino = Ino::ROOT;
    for part in path.components() {
        if let Component::Normal(name) = part {
            ino = names.lookup(ino, name.as_bytes()).map_err(store)?.ok_or_else(gone)?.ino;
        }
    }
    let record = names.attr(ino).map_err(store)?.ok_or_else(gone)?;
    Ok((ino, record))
}

fn kind(mode: u32) -> &'static str {
    match mode & libc::S_IFMT {
        libc::S_IFREG => "file",
        libc::S_IFDIR => "folder",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        _ => "device",
    }
}

fn store(error: StoreError) -> Failure {
    let what = "the volume's names cannot be read";
    match error {
        StoreError::Unavailable(_) | StoreError::Fenced(_) => {
            Failure::new("io", what).why(error.to_string()).next("run the same command again")
        }
        error => {
            Failure::new("damaged", what).why(error.to_string()).next("check the volume: covey fsck VOLUME")
        }
    }
}
