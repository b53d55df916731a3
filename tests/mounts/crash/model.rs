//! The contents that a folder may have after a crash, given which system calls returned.
//!
//! A file's bytes are *settled* once close, fsync or msync returned after they were written. Until then they
//! are *loose*: each loose byte may be there or not, and the size may be anything between the settled size
//! and the end of the loose bytes. Names are never loose: a call that returned has taken effect, and the call
//! in progress has taken effect completely or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One system call that changes something. Names are relative to the worker's folder.
#[derive(Clone)]
pub enum Call {
    /// open(2) with `O_CREAT | O_EXCL`
    Create(String),
    /// pwrite(2), or a store through a shared mapping
    Write { name: String, at: usize, data: Arc<Vec<u8>> },
    /// fsync(2) or msync(2), or the last close(2)
    Settle { name: String, durable: bool },
    /// truncate(2)
    Truncate(String, usize),
    /// rename(2)
    Rename(String, String),
    /// renameat2(2) with `RENAME_EXCHANGE`
    Exchange(String, String),
    /// link(2)
    Link(String, String),
    /// unlink(2)
    Unlink(String),
    /// symlink(2): target, name
    Symlink(String, String),
    /// fsync(2) of the folder
    SyncFolder,
}

impl Call {
    /// Whether everything before the call survives a power cut once the call has returned.
    pub fn is_durable(&self) -> bool {
        matches!(self, Call::Settle { durable: true, .. } | Call::SyncFolder)
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Call::Create(name) => write!(out, "create {name}"),
            Call::Write { name, at, data } => write!(out, "write {name} {at:#x}+{:#x}", data.len()),
            Call::Settle { name, durable } => {
                write!(out, "{} {name}", if *durable { "fsync" } else { "close" })
            }
            Call::Truncate(name, len) => write!(out, "truncate {name} {len:#x}"),
            Call::Rename(a, b) => write!(out, "rename {a} {b}"),
            Call::Exchange(a, b) => write!(out, "exchange {a} {b}"),
            Call::Link(a, b) => write!(out, "link {a} {b}"),
            Call::Unlink(name) => write!(out, "unlink {name}"),
            Call::Symlink(target, name) => write!(out, "symlink {target} {name}"),
            Call::SyncFolder => write!(out, "fsync of the folder"),
        }
    }
}

/// What a name refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thing {
    /// A regular file, by its number in [`Model::files`].
    File(u64),
    /// A symlink's target.
    Symlink(String),
}

/// A regular file.
#[derive(Clone, Default)]
pub struct FileState {
    settled: Arc<Vec<u8>>,
    loose: Vec<(usize, Arc<Vec<u8>>)>,
}

impl FileState {
    /// Whether everything that was written is settled.
    pub fn is_settled(&self) -> bool {
        self.loose.is_empty()
    }

    /// The size if all loose bytes are there.
    pub fn len(&self) -> usize {
        self.loose.iter().map(|(at, data)| at + data.len()).fold(self.settled.len(), usize::max)
    }

    fn settle(&mut self) {
        if self.loose.is_empty() {
            return;
        }
        let len = self.len();
        let bytes = Arc::make_mut(&mut self.settled);
        bytes.resize(len, 0);
        for (at, data) in self.loose.drain(..) {
            bytes[at..at + data.len()].copy_from_slice(&data);
        }
    }

    /// Why these bytes cannot be this file's, if they cannot.
    fn refuses(&self, actual: &[u8]) -> Option<String> {
        if actual.len() < self.settled.len() || actual.len() > self.len() {
            return Some(format!(
                "{:#x} bytes, not {:#x} to {:#x}",
                actual.len(),
                self.settled.len(),
                self.len()
            ));
        }
        if self.loose.is_empty() && actual == &self.settled[..] {
            return None;
        }
        let may = |at: usize, byte: u8| {
            byte == self.settled.get(at).copied().unwrap_or(0)
                || self
                    .loose
                    .iter()
                    .any(|(from, data)| at.checked_sub(*from).and_then(|i| data.get(i)) == Some(&byte))
        };
        let wrong = (0..actual.len()).find(|&at| !may(at, actual[at]))?;
        let count = (0..actual.len()).filter(|&at| !may(at, actual[at])).count();
        let zero = if actual[wrong..].iter().take(64).all(|byte| *byte == 0) { " (zeros)" } else { "" };
        Some(format!("{count} bytes were never written there, the first at {wrong:#x}{zero}"))
    }
}

/// The contents of a folder.
#[derive(Clone, Default)]
pub struct Model {
    /// Names.
    pub names: BTreeMap<String, Thing>,
    /// Files that have a name.
    pub files: BTreeMap<u64, FileState>,
    next: u64,
}

impl Model {
    /// The state of the file that a name refers to.
    pub fn file(&self, name: &str) -> Option<(u64, &FileState)> {
        match self.names.get(name)? {
            Thing::File(id) => Some((*id, &self.files[id])),
            Thing::Symlink(_) => None,
        }
    }

    /// Applies a call.
    pub fn apply(&mut self, call: &Call) {
        match call {
            Call::Create(name) => {
                self.next += 1;
                self.files.insert(self.next, FileState::default());
                self.names.insert(name.clone(), Thing::File(self.next));
            }
            Call::Write { name, at, data } => self.change(name, |file| file.loose.push((*at, data.clone()))),
            Call::Settle { name, .. } => self.change(name, FileState::settle),
            Call::Truncate(name, len) => self.change(name, |file| {
                assert!(file.is_settled(), "only settled files are truncated");
                Arc::make_mut(&mut file.settled).resize(*len, 0);
            }),
            Call::Rename(from, to) => {
                // If both are names of the same file, rename(2) does nothing.
                if self.names.get(from) != self.names.get(to)
                    || matches!(self.names.get(from), Some(Thing::Symlink(_)))
                {
                    let thing = self.names.remove(from).unwrap();
                    self.names.insert(to.clone(), thing);
                }
            }
            Call::Exchange(a, b) => {
                let (x, y) = (self.names[a].clone(), self.names[b].clone());
                self.names.insert(a.clone(), y);
                self.names.insert(b.clone(), x);
            }
            Call::Link(from, to) => drop(self.names.insert(to.clone(), self.names[from].clone())),
            Call::Unlink(name) => drop(self.names.remove(name)),
            Call::Symlink(target, name) => {
                drop(self.names.insert(name.clone(), Thing::Symlink(target.clone())))
            }
            Call::SyncFolder => {}
        }
        let named: BTreeSet<u64> = self
            .names
            .values()
            .filter_map(|thing| if let Thing::File(id) = thing { Some(*id) } else { None })
            .collect();
        self.files.retain(|id, _| named.contains(id));
    }

    fn change(&mut self, name: &str, change: impl FnOnce(&mut FileState)) {
        if let Some(Thing::File(id)) = self.names.get(name) {
            change(self.files.get_mut(id).unwrap());
        }
    }

    /// Why a folder's contents do not match the model, if they do not.
    pub fn refuses(&self, actual: &Actual) -> Option<String> {
        if let Some(name) = self.names.keys().find(|name| !actual.0.contains_key(*name)) {
            return Some(format!("{name} is missing"));
        }
        let mut inodes: BTreeMap<u64, u64> = BTreeMap::new();
        for (name, node) in &actual.0 {
            let why = match (self.names.get(name), node) {
                (None, _) => Some("should not be there".to_owned()),
                (Some(Thing::Symlink(wanted)), Node::Symlink(target)) if wanted == target => None,
                (Some(Thing::File(id)), Node::File { ino, bytes, .. }) => {
                    let same = *inodes.entry(*id).or_insert(*ino) == *ino;
                    if same {
                        self.files[id].refuses(bytes)
                    } else {
                        Some("is a different file from its other name".into())
                    }
                }
                (Some(thing), node) => Some(format!("is {node:?}, not {thing:?}")),
            };
            if let Some(why) = why {
                return Some(format!("{name}: {why}"));
            }
        }
        None
    }

    /// A model of the current contents, all settled: the start of the next round.
    pub fn of(actual: &Actual) -> Model {
        let mut model = Model::default();
        let mut known: BTreeMap<u64, u64> = BTreeMap::new();
        for (name, node) in &actual.0 {
            let thing = match node {
                Node::Symlink(target) => Thing::Symlink(target.clone()),
                Node::File { ino, bytes } => {
                    let id = *known.entry(*ino).or_insert_with(|| {
                        model.next += 1;
                        model.files.insert(
                            model.next,
                            FileState { settled: Arc::new(bytes.clone()), loose: Vec::new() },
                        );
                        model.next
                    });
                    Thing::File(id)
                }
            };
            model.names.insert(name.clone(), thing);
        }
        model
    }
}

/// The actual contents of a folder.
pub struct Actual(BTreeMap<String, Node>);

enum Node {
    File { ino: u64, bytes: Vec<u8> },
    Symlink(String),
}

impl fmt::Debug for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::File { bytes, .. } => write!(out, "a file of {:#x} bytes", bytes.len()),
            Node::Symlink(target) => write!(out, "a symlink to {target}"),
        }
    }
}

impl Actual {
    /// Reads a folder: every name must refer to something, and every byte must be readable.
    pub fn read(root: &Path) -> Result<Actual, String> {
        let mut found = BTreeMap::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let failed = |what: &Path, error: std::io::Error| format!("{}: {error}", what.display());
            for entry in std::fs::read_dir(root.join(&folder)).map_err(|e| failed(&folder, e))? {
                let entry = entry.map_err(|e| failed(&folder, e))?;
                let name = folder.join(entry.file_name());
                let path = root.join(&name);
                let meta = std::fs::symlink_metadata(&path).map_err(|e| failed(&name, e))?;
                if meta.is_dir() {
                    folders.push(name);
                    continue;
                }
                let node = if meta.is_symlink() {
                    let target = std::fs::read_link(&path).map_err(|e| failed(&name, e))?;
                    Node::Symlink(target.to_string_lossy().into_owned())
                } else {
                    let bytes = std::fs::read(&path).map_err(|e| failed(&name, e))?;
                    if bytes.len() as u64 != meta.len() {
                        return Err(format!(
                            "{}: stat says {:#x} bytes, {:#x} were read",
                            name.display(),
                            meta.len(),
                            bytes.len()
                        ));
                    }
                    Node::File { ino: meta.ino(), bytes }
                };
                found.insert(name.to_string_lossy().into_owned(), node);
            }
        }
        Ok(Actual(found))
    }
}
