//! The name of an inode, for people.

use std::collections::{BTreeMap, HashMap, HashSet};
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

/// The paths below the root of many files, as far as they are found quickly. Each folder is listed once, for
/// all of its files. Calls `going` after each folder, and stops if that is false.
pub fn paths_of(
    names: &Names,
    inos: impl Iterator<Item = Ino>,
    going: &mut dyn FnMut() -> bool,
) -> HashMap<Ino, PathBuf> {
    let mut below: BTreeMap<Ino, HashSet<Ino>> = BTreeMap::new();
    for ino in inos {
        if let Ok(Some(found)) = names.inode(ino) {
            below.entry(found.parent).or_default().insert(ino);
        }
        if !going() {
            return HashMap::new();
        }
    }
    let (mut folders, mut paths) = (Folders(HashMap::new()), HashMap::new());
    for (folder, files) in below {
        if let Some(path) = folders.path(names, folder)
            && let Ok(listed) = names.readdir(folder, 0, NAMES_MAX)
        {
            let wanted = listed.into_iter().filter(|listed| files.contains(&listed.dentry.ino));
            let named = |name: Box<[u8]>| path.join(OsString::from_vec(name.into_vec()));
            for listed in wanted {
                paths.entry(listed.dentry.ino).or_insert_with(|| named(listed.name));
            }
        }
        if !going() {
            break;
        }
    }
    paths
}

/// The paths of folders that were looked for.
struct Folders(HashMap<Ino, Option<PathBuf>>);

impl Folders {
    fn path(&mut self, names: &Names, folder: Ino) -> Option<PathBuf> {
        let (mut parts, mut at) = (Vec::new(), folder);
        let above = loop {
            if at == Ino::ROOT {
                break Some(PathBuf::new());
            }
            if let Some(known) = self.0.get(&at) {
                break known.clone();
            }
            if parts.len() >= DEPTH_MAX {
                break None;
            }
            match parent_and_name(names, at) {
                Some((parent, name)) => parts.push((std::mem::replace(&mut at, parent), name)),
                None => {
                    self.0.insert(at, None);
                    break None;
                }
            }
        };
        let mut path = above;
        for (ino, name) in parts.into_iter().rev() {
            path = path.map(|path| path.join(OsString::from_vec(name)));
            self.0.insert(ino, path.clone());
        }
        path
    }
}
