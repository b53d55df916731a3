//! What a file is made of: its inode, its extents, the packs they lie in and the blobs those have become.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

use base::{Ino, PackNo};
use meta::store::StoreError;
use meta::{InodeRecord, Names, PackRow};
use serde::{Deserialize, Serialize};

use crate::error::{Failure, Result};
use crate::table::utc;

/// Everything known of one file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Info {
    /// Inode number.
    pub inode: u64,
    /// `file`, `folder`, `symlink`, `fifo`, `socket`, `device`.
    pub kind: String,
    /// `S_IFMT` and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Bytes that its extents or its inline row take.
    pub stored_bytes: u64,
    /// Whether its bytes are kept among the names.
    pub inline: bool,
    /// When its contents last changed, UTC.
    pub modified: String,
    /// Pages of 4 MiB that hold data.
    pub pages: u64,
    /// Extents.
    pub extents: u64,
    /// Where its bytes lie, by pack.
    pub packs: Vec<PackInfo>,
}

/// A pack, and what a file has in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PackInfo {
    /// Its number.
    pub pack: u64,
    /// `open`, `sealed`, `condemned`, or `missing`, which is damage.
    pub state: String,
    /// The blob it became.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob: Option<String>,
    /// The blob's size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Extents of the file in it.
    pub extents: u64,
    /// Bytes of the file in it.
    pub bytes: u64,
}

/// Looks a file up by its path below the root; symbolic links are not followed.
pub fn of(names: &Names, path: &Path) -> Result<Info> {
    let (ino, record) = find(names, path)?;
    let mut packs: BTreeMap<PackNo, (u64, u64)> = BTreeMap::new();
    let (mut pages, mut extents, mut from) = (0, 0, 0);
    loop {
        let some = names.extent_pages(ino, from, 256).map_err(store)?;
        let Some((last, _)) = some.last() else { break };
        from = last + 1;
        for (_, page) in &some {
            pages += 1;
            for extent in page.extents() {
                extents += 1;
                let entry = packs.entry(extent.pack).or_default();
                *entry = (entry.0 + 1, entry.1 + u64::from(extent.len));
            }
        }
    }
    let packs = packs.into_iter().map(|(pack, used)| pack_info(names, pack, used)).collect::<Result<_>>()?;
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
    })
}

fn pack_info(names: &Names, pack: PackNo, (extents, bytes): (u64, u64)) -> Result<PackInfo> {
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
        extents,
        bytes,
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
    let failure = Failure::new("damaged", "the volume's names cannot be read").why(error.to_string());
    failure.next("check the volume: covey fsck VOLUME")
}
