//! What this driver has to know after a restart: a file of JSON for each volume, in the state folder.
//!
//! ```text
//!   STATE/staged/HASH.json     a volume that is staged on this node
//!   STATE/volumes/HASH.json    a volume that this controller has made
//!   STATE/mounts/KEY/          the mount of a source; STATE/secrets/KEY.*: its secrets
//! ```
//!
//! A record is written before what it describes is made, and removed after that is gone. So whatever a driver
//! that was killed has left is named by a record.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use base::Must;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::mount::Source;
use crate::names;
use crate::proto::Texts;
use crate::refuse::{self, Answer};
use crate::secrets::write;

/// Why records become JSON.
pub const TEXT: &str = "all of it is text, as it came over gRPC";

/// How the ending of a file begins that is being written.
pub const HALF: &str = "new-";

/// A volume that is staged on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staged {
    /// The volume's id.
    pub id: String,
    /// Where it is staged.
    pub staging: PathBuf,
    /// What is mounted for it.
    pub source: Source,
    /// The folder in it. Empty for the whole.
    pub inner: PathBuf,
    /// Whether all its uses only read.
    pub read_only: bool,
    /// Where it is published.
    pub targets: Vec<Target>,
}

/// A place where a volume is published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The path.
    pub path: PathBuf,
    /// Whether it refuses changes.
    pub read_only: bool,
}

/// A volume that this controller has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// The name that the orchestrator gave.
    pub name: String,
    /// The volume's id.
    pub id: String,
    /// The volume's limit in bytes; 0 without a limit.
    pub capacity: i64,
    /// What the nodes are told of it.
    pub context: Texts,
    /// The parameters that it was made with.
    pub parameters: Texts,
    /// What it began as a copy of.
    #[serde(default)]
    pub from: Option<String>,
}

/// Records of one kind, by the text that names them.
#[derive(Debug)]
pub struct Records {
    folder: PathBuf,
}

impl Records {
    /// The records in a folder.
    pub fn new(folder: PathBuf) -> Records {
        Records { folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{}.json", names::hash(name)))
    }

    /// The record of a name.
    pub fn find<T: DeserializeOwned>(&self, name: &str) -> Answer<Option<T>> {
        read_json(&self.file(name))
    }

    /// Writes a record.
    pub fn put<T: Serialize>(&self, name: &str, record: &T) -> Answer<()> {
        write(&self.file(name), &serde_json::to_vec_pretty(record).must(TEXT))
    }

    /// Removes a record, if it is there.
    pub fn remove(&self, name: &str) -> Answer<()> {
        let file = self.file(name);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(refuse::io(format!("cannot remove {}", file.display()), &error))
            }
            _ => Ok(()),
        }
    }

    /// All records, with the hashes of their names, in the order of the hashes.
    pub fn all<T: DeserializeOwned>(&self) -> Answer<Vec<(String, T)>> {
        let cannot =
            |error: std::io::Error| refuse::io(format!("cannot read {}", self.folder.display()), &error);
        let mut all = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(cannot)? {
            let path = entry.map_err(cannot)?.path();
            let is_record = path.extension().is_some_and(|ending| ending == "json");
            let hash = path.file_stem().and_then(|stem| stem.to_str()).map(str::to_owned);
            // Without the record: it was removed meanwhile.
            if let (true, Some(hash), Some(record)) = (is_record, hash, read_json(&path)?) {
                all.push((hash, record));
            }
        }
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(all)
    }
}

/// Removes the halves of files that a killed driver was writing.
pub fn tidy(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending.to_string_lossy().starts_with(HALF)) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// What a file of JSON says. None if there is no such file.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Answer<Option<T>> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|error| refuse::io(format!("cannot read {}", path.display()), &error))?,
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        let what = format!("the record {} cannot be read (line {})", path.display(), error.line());
        refuse::precondition(what, "unmount what is below the state folder, and remove that record")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_by_any_name_and_listed() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::new(folder.path().to_owned());
        for name in ["../../etc/passwd", "a", ""] {
            records.put(name, &name.to_owned()).unwrap();
            assert_eq!(records.find::<String>(name).unwrap().as_deref(), Some(name));
        }
        assert_eq!(records.all::<String>().unwrap().len(), 3);
        records.remove("a").unwrap();
        records.remove("a").unwrap();
        assert_eq!(records.find::<String>("a").unwrap(), None);
        assert_eq!(records.all::<String>().unwrap().len(), 2);
    }

    #[test]
    fn a_damaged_record_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records::new(folder.path().to_owned());
        records.put("a", &1).unwrap();
        let file = records.file("a");
        fs::write(&file, b"{").unwrap();
        let status = records.find::<u32>("a").unwrap_err();
        assert!(status.message().contains(&*file.to_string_lossy()), "{}", status.message());
    }
}
