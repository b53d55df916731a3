//! Which files refer to the bytes of a pack.

use base::{Ino, PackNo};
use meta::Names;

use super::finding::{FileRange, RANGES_MAX};
use super::lost::path_of;
use crate::errno::Error;
use crate::volume::OpenError;

/// The ranges of files that a pack holds; at most [`RANGES_MAX`].
///
/// # Errors
/// The names cannot be read.
pub fn users(names: &Names, pack: PackNo) -> Result<Vec<FileRange>, OpenError> {
    of(names, pack).map_err(OpenError::from)
}

pub(super) fn of(names: &Names, pack: PackNo) -> Result<Vec<FileRange>, Error> {
    let mut files: Vec<FileRange> = Vec::new();
    each_extent(names, pack, &mut |ino, page, extent| {
        files.push(range_of(ino, page, extent));
        files.len() < RANGES_MAX
    })?;
    for at in 0..files.len() {
        let known = at > 0 && files[at - 1].ino == files[at].ino;
        files[at].path = if known { files[at - 1].path.clone() } else { path_of(names, files[at].ino)? };
    }
    Ok(files)
}

pub(super) fn each_extent(
    names: &Names,
    pack: PackNo,
    each: &mut dyn FnMut(Ino, u32, &blob::Extent) -> bool,
) -> Result<(), Error> {
    let mut from = (Ino(0), 0);
    loop {
        let users = names.pack_users(pack, from, 256)?;
        for (ino, page) in &users {
            let extents = names.extents(*ino, *page)?;
            for extent in extents.extents().iter().filter(|extent| extent.pack == pack) {
                if !each(*ino, *page, extent) {
                    return Ok(());
                }
            }
        }
        match users.last() {
            Some((ino, u32::MAX)) => from = (Ino(ino.0 + 1), 0),
            Some((ino, page)) => from = (*ino, page + 1),
            None => return Ok(()),
        }
    }
}

pub(super) fn range_of(ino: Ino, page: u32, extent: &blob::Extent) -> FileRange {
    let offset = u64::from(page) * u64::from(blob::ExtentPage::SPAN) + u64::from(extent.at);
    FileRange { ino, path: None, offset, len: u64::from(extent.len) }
}
