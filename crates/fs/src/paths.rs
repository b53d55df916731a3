//! Paths within a volume, for code that works on it without a kernel: the command line and `fsck`.

use base::Ino;

use crate::api::{Attr, FileKind};
use crate::errno::{Errno, Error};
use crate::ops::lookup::attr_of;
use crate::volume::{Core, Volume};

/// The number of symbolic links that a path may contain, as in the kernel.
const LINKS_MAX: u32 = 40;

impl Volume {
    /// Resolves a path from the volume's root, with or without a leading `/`. Symbolic links on the way are
    /// followed within the volume, the last one only if `follow`. The inode is not counted as held.
    ///
    /// # Errors
    /// As stat(2).
    pub fn resolve(&self, path: &[u8], follow: bool) -> Result<Attr, Errno> {
        let found = self.core.resolve(path, follow);
        found.map_err(|error| self.core.answer("look-up", Ino::ROOT, error))
    }

    /// The inode called `name` in a directory, if any. It is not counted as held.
    ///
    /// # Errors
    /// `ENOTDIR`, `ENAMETOOLONG`, or the names could not be read.
    pub fn child(&self, dir: Ino, name: &[u8]) -> Result<Option<Attr>, Errno> {
        let found =
            self.core.find(dir, name).and_then(|found| found.map(|(ino, r)| attr_of(ino, &r)).transpose());
        found.map_err(|error| self.core.answer("look-up", dir, error))
    }
}

impl Core {
    pub(crate) fn resolve(&self, path: &[u8], follow: bool) -> Result<Attr, Error> {
        let mut at = self.getattr(Ino::ROOT)?;
        let mut links = 0;
        // The rest of the path, its next component last.
        let mut todo: Vec<Vec<u8>> = parts_of(path);
        while let Some(name) = todo.pop() {
            if at.kind != FileKind::Dir {
                return Err(Errno::ENOTDIR.into());
            }
            let dir = at.ino;
            let (ino, record) = self.find(dir, &name)?.ok_or(Errno::ENOENT)?;
            at = attr_of(ino, &record)?;
            self.hints.named(&name, ino);
            if at.kind == FileKind::Symlink && (follow || !todo.is_empty()) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::ELOOP.into());
                }
                let target = self.readlink(ino)?;
                at = self.getattr(if target.starts_with(b"/") { Ino::ROOT } else { dir })?;
                todo.extend(parts_of(&target));
            }
        }
        Ok(at)
    }
}

/// The components of a path, in reverse order.
fn parts_of(path: &[u8]) -> Vec<Vec<u8>> {
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
    parts.rev().map(<[u8]>::to_vec).collect()
}
