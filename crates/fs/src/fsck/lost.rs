//! What a damaged log has lost, as paths that a person knows.

use std::collections::{BTreeMap, BTreeSet};

use base::Ino;
use meta::journal::damage::Damage;
use meta::key::tags;
use meta::{Dentry, Names};

use super::FileRange;
use crate::errno::Error;
use crate::volume::{OpenError, Parts};

/// At most so many names are listed.
const NAMES_MAX: usize = 100_000;
/// No path has more components than this.
const DEEPEST: usize = 4096;

/// What was lost. See the [module](self).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Paths, each with what was lost of it.
    pub names: Vec<String>,
    /// Ranges of files whose bytes are not what was written.
    pub files: Vec<FileRange>,
}

/// Lists what salvage could not recover, in a volume that was not used since.
///
/// # Errors
/// The store failed.
pub fn lost(parts: &Parts, damage: &Damage) -> Result<Lost, OpenError> {
    let names = Names::new(parts.store.clone());
    let mut report =
        Report { names: &names, made: BTreeMap::new(), removed: Vec::new(), touched: BTreeSet::new() };
    report.sort(damage);
    let lines = report.lines().map_err(OpenError::from)?;
    let files = ranges(&names, damage).map_err(OpenError::from)?;
    Ok(Lost { names: lines, files })
}

struct Report<'a> {
    names: &'a Names,
    /// Names that lost operations created, by their inode.
    made: BTreeMap<Ino, (Ino, Vec<u8>)>,
    /// Names that lost operations removed.
    removed: Vec<(Ino, Vec<u8>)>,
    /// Inodes that lost operations changed.
    touched: BTreeSet<Ino>,
}

impl Report<'_> {
    fn sort(&mut self, damage: &Damage) {
        for row in damage.rows.iter().take(NAMES_MAX) {
            if let Some(entry) = row.key.as_dentry() {
                let name = entry.name.to_vec();
                match row.value.as_deref().map(Dentry::decode) {
                    Some(Ok(dentry)) => _ = self.made.insert(dentry.ino, (entry.parent, name)),
                    Some(Err(_)) => {}
                    None => self.removed.push((entry.parent, name)),
                }
            } else if [tags::INODE, tags::EXTENTS, tags::INLINE, tags::XATTR].contains(&row.key.tag()) {
                self.touched.extend(row.key.number().map(Ino));
            }
        }
    }

    fn lines(&self) -> Result<Vec<String>, Error> {
        let mut lines = Vec::new();
        for (parent, name) in self.made.values() {
            lines.push(format!("{} (made or renamed)", self.path(*parent, name)?));
        }
        for (parent, name) in &self.removed {
            lines.push(format!("{} (removed: it may be there again)", self.path(*parent, name)?));
        }
        for ino in self.touched.iter().filter(|ino| !self.made.contains_key(*ino)) {
            let path = path_of(self.names, *ino)?;
            let shown = match path {
                Some(path) if path.is_empty() => "/".to_owned(),
                Some(path) => path,
                None => format!("inode {ino}"),
            };
            lines.push(format!("{shown} (changed)"));
        }
        lines.sort();
        Ok(lines)
    }

    /// The path of a name in a folder that may be lost itself.
    fn path(&self, parent: Ino, name: &[u8]) -> Result<String, Error> {
        let (mut path, mut at) = (format!("/{}", name.escape_ascii()), parent);
        for _ in 0..DEEPEST {
            let Some((up, name)) = self.made.get(&at) else { break };
            path = format!("/{}{path}", name.escape_ascii());
            at = *up;
        }
        Ok(match path_of(self.names, at)? {
            Some(above) => above + &path,
            None => format!("(inode {at}){path}"),
        })
    }
}

/// The ranges of files that refer to damaged data.
fn ranges(names: &Names, damage: &Damage) -> Result<Vec<FileRange>, Error> {
    let mut files = Vec::new();
    for data in &damage.ranges {
        let (start, end) = (u64::from(data.offset), u64::from(data.offset) + u64::from(data.len));
        let mut from = (Ino(0), 0);
        loop {
            let users = names.pack_users(data.pack, from, 256)?;
            for (ino, page) in &users {
                for extent in names.extents(*ino, *page)?.extents().iter().filter(|e| e.pack == data.pack) {
                    let (low, high) =
                        (u64::from(extent.offset), u64::from(extent.offset) + u64::from(extent.len));
                    let (low, high) = (low.max(start), high.min(end));
                    if low < high {
                        let in_page = u64::from(extent.at) + low - u64::from(extent.offset);
                        let offset = u64::from(*page) * u64::from(blob::ExtentPage::SPAN) + in_page;
                        let path = path_of(names, *ino)?;
                        files.push(FileRange { ino: *ino, path, offset, len: high - low });
                    }
                }
            }
            match users.last() {
                Some((ino, u32::MAX)) => from = (Ino(ino.0 + 1), 0),
                Some((ino, page)) => from = (*ino, page + 1),
                None => break,
            }
        }
    }
    Ok(files)
}

/// A path of an inode, as far up as its rows lead. The root's path is empty.
///
/// # Errors
/// The names cannot be read.
pub fn path_of(names: &Names, ino: Ino) -> Result<Option<String>, Error> {
    let (mut path, mut at) = (String::new(), ino);
    for _ in 0..DEEPEST {
        if at == Ino::ROOT {
            return Ok(Some(path));
        }
        let Some(record) = names.inode(at)? else { return Ok(None) };
        let Some(name) = name_in(names, record.parent, at)? else { return Ok(None) };
        path = format!("/{}{path}", name.escape_ascii());
        at = record.parent;
    }
    Ok(None)
}

/// The name of an inode in a directory.
pub(crate) fn name_in(names: &Names, dir: Ino, ino: Ino) -> Result<Option<Box<[u8]>>, Error> {
    let mut position = 0;
    loop {
        let batch = names.readdir(dir, position, 512)?;
        let Some(last) = batch.last() else { return Ok(None) };
        position = last.position + 1;
        if let Some(found) = batch.into_iter().find(|entry| entry.dentry.ino == ino) {
            return Ok(Some(found.name));
        }
    }
}
