//! The name of an inode, for people.

use base::Ino;
use meta::Names;

/// A folder with more names than this is not searched.
const NAMES_MAX: usize = 4096;

/// The folder of an inode, and its name there, as far as they can be found quickly.
pub fn parent_and_name(names: &Names, ino: Ino) -> Option<(Ino, Vec<u8>)> {
    let parent = names.inode(ino).ok()??.parent;
    let listed = names.readdir(parent, 0, NAMES_MAX).ok()?;
    let found = listed.into_iter().find(|listed| listed.dentry.ino == ino)?;
    Some((parent, found.name.to_vec()))
}
