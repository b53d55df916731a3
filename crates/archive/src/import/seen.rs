//! The state that an import keeps until its end, within bounds. It holds the paths created so far, because an
//! archive can repeat a name and the last member counts. It also counts the memory of folders that wait for
//! their owners and times.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};

use super::Item;

/// A set of paths, stored as hashes of eight bytes. The hash key is random, so no archive can be crafted to
/// make two paths collide.
#[derive(Debug, Default)]
pub struct Paths {
    hasher: RandomState,
    met: HashSet<u64>,
}

impl Paths {
    /// Adds a path. Returns false if it was there already.
    pub fn add(&mut self, path: &Path) -> bool {
        self.met.insert(self.hasher.hash_one(path.as_os_str()))
    }
}

/// The limit in bytes for waiting items. A larger archive is refused, because no real copy is like that.
pub const HELD_MAX: usize = 512 << 20;

/// The bytes that wait.
#[derive(Debug, Default)]
pub struct Held(usize);

impl Held {
    /// So many bytes wait already.
    pub fn with(bytes: usize) -> Held {
        Held(bytes)
    }

    /// Counts a folder.
    ///
    /// # Errors
    /// The folders are too many, or their names are too long.
    pub fn add(&mut self, item: &Item) -> Result<()> {
        let attribute =
            |(name, value): &(Vec<u8>, Vec<u8>)| name.len() + value.len() + 2 * size_of::<Vec<u8>>();
        let lists: usize = item.xattrs.iter().map(attribute).sum();
        self.count(size_of::<Item>() + item.path.as_os_str().len() + lists)
    }

    /// Counts the path of a folder that no member lists.
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
