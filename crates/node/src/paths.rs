//! The name of an inode, for people.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use base::Ino;
use meta::Names;

/// A folder with more names than this is not searched.
const NAMES_MAX: usize = 4096;
/// Folders from a file to the root.
const DEPTH_MAX: usize = 64;

/// The folder of an inode, and its name there, as far as they can be found quickly.
pub fn parent_and_name(names: &Names, ino: Ino) -> Option<(Ino, Vec<u8>)> {
    let parent = names.inode(ino).ok()??.parent;
    let listed = names.readdir(parent, 0, NAMES_MAX).ok()?;
    let found = listed.into_iter().find(|listed| listed.dentry.ino == ino)?;
    Some((parent, found.name.to_vec()))
}

/// A file's path below the root, if it has one that is found quickly.
pub fn path_of(names: &Names, ino: Ino) -> Option<PathBuf> {
    let (mut parts, mut at) = (Vec::new(), ino);
    while at != Ino::ROOT {
        if parts.len() >= DEPTH_MAX {
            return None;
        }
        let (parent, name) = parent_and_name(names, at)?;
        parts.push(OsString::from_vec(name));
        at = parent;
    }
    Some(parts.iter().rev().collect())
}
