//! What an import remembers until its end, within bounds: which paths it has made (an archive may have a name more than once, and the last
//! member counts), and how much the folders hold that wait for their owners and times.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};

use crate::import::Item;

/// Paths, held as eight bytes each: a hash whose key nobody knows beforehand, so that no archive can make two paths look like one.
#[derive(Debug, Default)]
pub struct Paths {
    hasher: RandomState,
    met: HashSet<u64>,
}

impl Paths {
    /// Adds a path; false if it was there already.
    pub fn add(&mut self, path: &Path) -> bool {
        self.met.insert(self.hasher.hash_one(path.as_os_str()))
    }
}

/// Bytes of items that may wait; an archive with more is no copy of anything.
const HELD_MAX: usize = 512 << 20;

/// How much waits.
#[derive(Debug, Default)]
pub struct Held(usize);

impl Held {
    /// Counts a folder.
    ///
    /// # Errors
    /// There are too many, or their names are too long.
    pub fn add(&mut self, item: &Item) -> Result<()> {
        let lists: usize = item.xattrs.iter().map(|(_, value)| value.len()).sum();
        self.count(size_of::<Item>() + item.path.as_os_str().len() + lists)
    }

    /// Counts the path of a folder that no member speaks of.
    ///
    /// # Errors
    /// As [`Held::add`].
    pub fn add_path(&mut self, path: &Path) -> Result<()> {
        self.count(path.as_os_str().len() + size_of::<PathBuf>())
    }

    fn count(&mut self, bytes: usize) -> Result<()> {
        self.0 += bytes;
        if self.0 <= HELD_MAX {
            return Ok(());
        }
        Err(Failure::new(
            "too-large",
            "there are more folders, or they have longer names, than fit in memory",
        )
        .why(format!("what has to be kept of them until the end is more than {} MiB", HELD_MAX >> 20))
        .next("import it in parts"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_met_once() {
        let mut paths = Paths::default();
        assert!(paths.add(Path::new("a/b")) && paths.add(Path::new("a/c")));
        assert!(!paths.add(Path::new("a/b")));
    }
}
