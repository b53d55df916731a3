//! What is cached of trees: a folder for each volume that publishes, and one more for each mount at the same
//! time. One that no mount has used for long is removed, so that its room is there for others.
//!
//! The folders of shared volumes are never removed: there may be bytes in them that are nowhere else.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use node::log;
use node::remote_side::tree::hold;

/// How long a folder stays without use.
pub const UNUSED: Duration = Duration::from_secs(2 * 24 * 3600);

/// Removes the folders of caches that no mount has used for some time.
pub fn tidy(trees: &Path, unused: Duration) {
    for entry in fs::read_dir(trees).into_iter().flatten().flatten() {
        let folder = entry.path();
        // A mount locks its folder as long as it lasts.
        let lock = folder.join("lock");
        if !folder.join("blobs").is_dir() || is_newer(&folder, unused) {
            continue;
        }
        let Ok(Some(_held)) = hold(&lock) else { continue };
        // It gets another name first: a mount that begins meanwhile finds a lock that is held, or no folder.
        let gone = folder.with_extension("removed");
        match fs::rename(&folder, &gone).and_then(|()| fs::remove_dir_all(&gone)) {
            Ok(()) => log::line(&format!("removed the cache {}, which nothing used", folder.display())),
            Err(error) => {
                log::warn(&format!("the cache {} cannot be removed: {error}", folder.display()));
            }
        }
    }
}

/// Whether a cache was made or closed in this time: its index is written at the end.
fn is_newer(folder: &Path, unused: Duration) -> bool {
    let changed = |path: &Path| fs::metadata(path).map_or(0, |about| about.mtime());
    let last = changed(folder).max(changed(&folder.join("cache.idx")));
    base::time::now().seconds().saturating_sub(last) < i64::try_from(unused.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The caches of trees stayed for ever.
    #[test]
    fn regression_caches_that_nothing_uses_are_removed() {
        let temp = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let folder = temp.path().join(name);
            fs::create_dir_all(folder.join("blobs")).unwrap();
            fs::write(folder.join("blobs/a"), b"1").unwrap();
            fs::write(folder.join("lock"), b"").unwrap();
            folder
        };
        let (old, used, other) = (make("ab"), make("ab-2"), temp.path().join("log"));
        fs::create_dir(&other).unwrap();
        let lock = hold(&used.join("lock")).unwrap().unwrap();
        tidy(temp.path(), UNUSED);
        assert!(old.exists(), "it was used just now");
        tidy(temp.path(), Duration::ZERO);
        assert!(!old.exists() && used.join("blobs/a").exists() && other.exists());
        drop(lock);
        tidy(temp.path(), Duration::ZERO);
        assert!(!used.exists());
    }
}
