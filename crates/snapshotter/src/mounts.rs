//! The mounts that a snapshot is. containerd makes them.

use std::path::{Path, PathBuf};

use crate::proto::Mount;
use crate::record::Kind;

/// The folders of a snapshot.
#[derive(Debug)]
pub struct Folders<'a> {
    /// The folder of the snapshot's own files.
    pub files: &'a Path,
    /// What overlayfs needs beside them.
    pub work: &'a Path,
    /// The folders of the snapshots below it, the highest first.
    pub lower: &'a [PathBuf],
    /// An empty folder.
    pub empty: &'a Path,
}

/// The mounts of an active snapshot or of a view.
pub fn of(kind: Kind, folders: &Folders<'_>) -> Vec<Mount> {
    let Folders { files, work, lower, empty } = folders;
    let writes = kind == Kind::Active;
    if lower.is_empty() {
        let access = if writes { "rw" } else { "ro" };
        let options = vec![access.to_owned(), "rbind".to_owned()];
        return vec![Mount { kind: "bind".to_owned(), source: text(files), options }];
    }
    let mut lower: Vec<String> = lower.iter().map(|folder| text(folder)).collect();
    // Whiteouts and the like mean something in an overlay only, and one without an upper folder has at least
    // two folders.
    if !writes && lower.len() == 1 {
        lower.push(text(empty));
    }
    let mut options = vec!["index=off".to_owned()];
    if writes {
        options.extend([format!("workdir={}", text(work)), format!("upperdir={}", text(files))]);
    }
    options.push(format!("lowerdir={}", lower.join(":")));
    vec![Mount { kind: "overlay".to_owned(), source: "overlay".to_owned(), options }]
}

/// The paths were checked when the store was opened.
fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
