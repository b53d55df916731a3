//! Which nodes of the fleet have the blobs of a file.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use api::error::{Failure, Result};
use api::status::fleet::HolderRow;
use base::BlobId;
use fleet::directory::QUESTIONS_MAX;

use crate::errno::errno_failure;
use crate::fleet::shown;
use crate::opened::Node;
use crate::refused::no_fleet;

impl Node {
    /// Asks the nodes of the fleet what they have of a file, by its path below the root.
    ///
    /// # Errors
    /// The node is in no fleet, the file does not exist, or nothing of it is in a blob.
    pub fn holders(&self, path: &Path) -> Result<Vec<HolderRow>> {
        let joined = self.joined().ok_or_else(|| no_fleet(&self.name()))?;
        let blobs = spread(&self.blobs_of(path)?, QUESTIONS_MAX);
        let said =
            joined.fleet.holders(&blobs).map_err(|error| Failure::io("cannot ask other nodes", &error))?;
        let own = joined.fleet.holds(&blobs);
        let held = |node| match said.iter().find(|holder| holder.node == node) {
            Some(holder) => holder.held,
            None => Some(own),
        };
        let row = |seen: &net::id::Seen| HolderRow {
            peer: shown::peer(seen),
            asked: blobs.len() as u64,
            held: held(seen.member.node).map(|held| held as u64),
        };
        // A node that came meanwhile was not asked.
        let seen = joined.fleet.seen();
        let asked =
            |seen: &&net::id::Seen| seen.is_own || said.iter().any(|holder| holder.node == seen.member.node);
        Ok(seen.iter().filter(asked).map(row).collect())
    }

    /// The blobs of a file, each once, in the order of the file.
    fn blobs_of(&self, path: &Path) -> Result<Vec<BlobId>> {
        let what = |errno| errno_failure(format!("cannot look at /{}", path.display()), errno);
        let volume = self.volume();
        let file = volume.resolve(path.as_os_str().as_bytes(), true).map_err(what)?;
        let mut blobs = volume.blobs_of(file.ino, 0, u64::MAX).map_err(what)?;
        let mut known = HashSet::new();
        blobs.retain(|blob| known.insert(*blob));
        if blobs.is_empty() {
            return Err(Failure::usage(format!("no bytes of /{} are in a blob", path.display()))
                .why("small files are kept with the names, and a file can be empty"));
        }
        Ok(blobs)
    }
}

/// At most `most` of them, at equal distances.
fn spread(blobs: &[BlobId], most: usize) -> Vec<BlobId> {
    let taken = blobs.len().min(most);
    (0..taken).filter_map(|n| blobs.get(n * blobs.len() / taken)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_spread_over_the_file() {
        let blobs: Vec<BlobId> = (0..100).map(|n| BlobId([n; 32])).collect();
        let first = |most| spread(&blobs, most).iter().map(|blob| blob.0[0]).collect::<Vec<_>>();
        assert_eq!(first(4), [0, 25, 50, 75]);
        assert_eq!((first(100).len(), first(1000).len(), spread(&[], 9).len()), (100, 100, 0));
    }
}
