//! The keys in use. Their file is looked at every second and read again when it has changed.
//!
//! A file is read when two looks in a row find it the same, so that nobody's half-written file counts. If it
//! cannot be used, the keys that were read before stay in use, and one line of the log says why.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use parking_lot::RwLock;
use tokio::sync::watch;

use crate::keyring::Keyring;

/// Receives the lines of the log.
pub type Log = Arc<dyn Fn(&str) + Send + Sync>;

/// The time between two looks at the file.
const EVERY: Duration = Duration::from_secs(1);

/// What a look at a file finds. Each change of a file changes one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    inode: (u64, u64),
    size: u64,
    mode: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Looks at a file. `None`: it is missing, or cannot be looked at.
fn look(path: &Path) -> Option<Look> {
    let meta = std::fs::metadata(path).ok()?;
    Some(Look {
        inode: (meta.dev(), meta.ino()),
        size: meta.size(),
        mode: meta.mode(),
        modified: (meta.mtime(), meta.mtime_nsec()),
        changed: (meta.ctime(), meta.ctime_nsec()),
    })
}

/// The keys that are in use.
pub struct Keys {
    path: PathBuf,
    /// No other lock is taken while this is held.
    current: RwLock<Arc<Keyring>>,
    first: Option<Look>,
}

impl Keys {
    /// Reads a file of keys.
    ///
    /// # Errors
    /// The file cannot be read, others may read it, or it is no file of keys.
    pub fn open(path: &Path) -> Result<Keys> {
        // Before the file is read: a change in between is seen by the next look.
        let first = look(path);
        let current = RwLock::new(Arc::new(Keyring::read(path)?));
        Ok(Keys { path: path.to_owned(), current, first })
    }

    /// Returns the path of the file of keys.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The keys in use now.
    pub fn now(&self) -> Arc<Keyring> {
        self.current.read().clone()
    }

    /// Reads the file again whenever it has changed, until `stop` changes.
    pub async fn follow(self: Arc<Keys>, log: Log, mut stop: watch::Receiver<bool>) {
        let mut watching = Watching { used: self.first, last: self.first };
        loop {
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                _ = stop.changed() => return,
            }
            let keys = self.clone();
            let looked = tokio::task::spawn_blocking(move || {
                let line = watching.look_again(&keys);
                (watching, line)
            });
            // The pool ends before this task does when the server ends.
            let Ok((next, line)) = looked.await else { return };
            watching = next;
            line.iter().for_each(|line| log(line));
        }
    }

    /// Reads the file again. Returns a line for the log.
    fn read_again(&self) -> String {
        let shown = self.path.display();
        match Keyring::read(&self.path) {
            Ok(keys) => {
                let count = keys.count();
                *self.current.write() = Arc::new(keys);
                format!("the file of keys {shown} has changed and was read again: {count} are in force")
            }
            Err(Failure { what, why, next, .. }) => {
                let said = std::iter::once(what).chain(why).chain(next).collect::<Vec<_>>().join("; ");
                format!(
                    "the file of keys {shown} has changed and cannot be used: {said}; the keys read before stay in force"
                )
            }
        }
    }
}

/// What was seen of the file.
#[derive(Clone, Copy)]
struct Watching {
    /// When it was read.
    used: Option<Look>,
    /// By the last look.
    last: Option<Look>,
}

impl Watching {
    /// Looks at the file, and reads it if it has changed and stands still. Returns a line for the log.
    fn look_again(&mut self, keys: &Keys) -> Option<String> {
        let now = look(&keys.path);
        let still = now == self.last;
        self.last = now;
        if now == self.used || !still {
            return None;
        }
        self.used = now;
        Some(keys.read_again())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn write(path: &Path, key: &str) {
        let next = path.with_extension("next");
        fs::write(
            &next,
            format!("[[key]]\naccess_key = \"{key}\"\nsecret_key = \"0123456789abcdef\"\nbuckets = {{ a = \"read\" }}\n"),
        )
        .unwrap();
        fs::set_permissions(&next, fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(&next, path).unwrap();
    }

    #[test]
    fn a_changed_file_is_read_once_it_stands_still_and_a_broken_one_changes_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("keys.toml");
        write(&path, "ONE");
        let keys = Keys::open(&path).unwrap();
        let mut watching = Watching { used: keys.first, last: keys.first };
        let has = |key: &str| keys.now().right(key, "a").is_some();
        assert_eq!(watching.look_again(&keys), None);
        write(&path, "TWO");
        assert_eq!(watching.look_again(&keys), None, "it may still be changing");
        assert!(watching.look_again(&keys).unwrap().contains("1 are in force"));
        assert!(has("TWO") && !has("ONE"));
        // Broken, readable by others, and gone: the keys in use stay.
        let broken: [(&dyn Fn(), &str); 3] = [
            (&|| fs::write(&path, "[[key]]\naccess_key = 1\n").unwrap(), "line 2"),
            (&|| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap(), "chmod 600"),
            (&|| fs::remove_file(&path).unwrap(), "cannot read"),
        ];
        for (damage, says) in broken {
            damage();
            assert_eq!(watching.look_again(&keys), None);
            let line = watching.look_again(&keys).unwrap();
            assert!(line.contains(says) && line.contains("stay in force"), "{line}");
            assert_eq!(watching.look_again(&keys), None, "said once");
            assert!(has("TWO"));
        }
        write(&path, "THREE");
        watching.look_again(&keys);
        watching.look_again(&keys);
        assert!(has("THREE") && !has("TWO"));
    }
}
