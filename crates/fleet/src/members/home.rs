//! What a node keeps on its disk to have the same identity after a restart: its id, and how many times it was
//! started.
//!
//! ```text
//! FOLDER/node         covey node 1 | id 32 hexadecimal digits | run N      the file
//! FOLDER/node.lock    locked while a process is this node
//! FOLDER/node.peers   an address a line: others that were seen last, for a start when no contact answers
//! ```
//!
//! The number of the run is increased and on the disk before any other node sees it. So a node never
//! announces a lower number than before. If the folder was copied, the lock keeps each copy from being used
//! twice. The gossip detects that two copies are in use ([`super::Event::Twin`]).

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base::lock::{self, FileLock};
use net::id::NodeId;

use super::incarnation::first_generation;

const HEAD: &str = "covey node 1";
/// Longer files are not ours.
const LONGEST: u64 = 64 << 10;

/// Why a folder cannot be a node's home.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Another process is this node.
    #[error(
        "{} belongs to a node that is running: stop it, or give this one a cache folder of its own", folder.display()
    )]
    Taken {
        /// The folder.
        folder: PathBuf,
    },
    /// The file does not hold what it should.
    #[error(
        "{} is damaged: remove it, and the node begins with a new id and keeps its cache", path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The disk reports an error.
    #[error("{}: {error}", path.display())]
    Io {
        /// What should be read or written.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
}

/// A node's folder on the disk. This process owns it while the value lives.
#[derive(Debug)]
pub struct NodeHome {
    node: NodeId,
    run: u64,
    folder: PathBuf,
    _lock: FileLock,
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> HomeError {
    move |error| HomeError::Io { path: path.to_owned(), error }
}

impl NodeHome {
    /// Locks the folder, which is created if necessary, and begins a new run.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn open(folder: &Path) -> Result<NodeHome, HomeError> {
        std::fs::create_dir_all(folder).map_err(io_error(folder))?;
        let path = folder.join("node.lock");
        let file = File::options().create(true).append(true).open(&path).map_err(io_error(&path))?;
        let mut lock = FileLock::new(file);
        if !lock.exclusive(lock::moment()).map_err(io_error(&path))? {
            return Err(HomeError::Taken { folder: folder.to_owned() });
        }
        let path = folder.join("node");
        let (node, run) = match read(&path) {
            Ok(text) => parse(&text).ok_or_else(|| HomeError::Damaged { path: path.clone() })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => (NodeId::random(), 0),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(HomeError::Damaged { path });
            }
            Err(error) => return Err(HomeError::Io { path, error }),
        };
        let run = run + 1;
        replace(folder, "node", &format!("{HEAD}\nid {node}\nrun {run}\n"), true).map_err(io_error(&path))?;
        Ok(NodeHome { node, run, folder: folder.to_owned(), _lock: lock })
    }

    /// The node's id.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The first generation of this run.
    pub fn generation(&self) -> u64 {
        first_generation(self.run)
    }

    /// The other nodes that were seen last. None if the file is invalid in any way.
    pub fn peers(&self) -> Vec<SocketAddr> {
        let text = read(&self.folder.join("node.peers")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).take(64).collect()
    }

    /// Writes them, without syncing: they are a hint.
    ///
    /// # Errors
    /// The disk reports an error.
    pub fn keep_peers(&self, peers: &[SocketAddr]) -> io::Result<()> {
        let text: String = peers.iter().map(|peer| format!("{peer}\n")).collect();
        replace(&self.folder, "node.peers", &text, false)
    }
}

fn read(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    if file.metadata()?.len() > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    io::read_to_string(file)
}

/// The id and the last run. A run so high that later ones would not fit is invalid.
fn parse(text: &str) -> Option<(NodeId, u64)> {
    let mut lines = text.lines();
    if lines.next()? != HEAD {
        return None;
    }
    let id = digits(lines.next()?.strip_prefix("id ")?)?;
    let run: u64 = lines.next()?.strip_prefix("run ")?.parse().ok()?;
    (run < 1 << 47).then_some((NodeId(id), run))
}

/// 32 hexadecimal digits.
fn digits(text: &str) -> Option<[u8; 16]> {
    let plain = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)).flatten()
}

/// Writes a new file and renames it into place.
fn replace(folder: &Path, name: &str, text: &str, synced: bool) -> io::Result<()> {
    let new = folder.join(format!("{name}.new"));
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    if synced {
        file.sync_all()?;
    }
    std::fs::rename(&new, folder.join(name))?;
    if synced { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_node_comes_back_as_itself_in_the_next_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/cache");
        let first = NodeHome::open(&path).unwrap();
        let (node, generation) = (first.node(), first.generation());
        assert_eq!((generation, first.peers()), (first_generation(1), vec![]));
        let peers: Vec<SocketAddr> = vec!["10.0.0.1:7".parse().unwrap(), "[::1]:9".parse().unwrap()];
        first.keep_peers(&peers).unwrap();
        drop(first);
        let second = NodeHome::open(&path).unwrap();
        assert_eq!((second.node(), second.generation(), second.peers()), (node, first_generation(2), peers));
    }

    #[test]
    fn a_folder_is_one_nodes_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = NodeHome::open(folder.path()).unwrap();
        let error = NodeHome::open(folder.path()).unwrap_err();
        assert!(
            matches!(error, HomeError::Taken { .. }) && error.to_string().contains("of its own"),
            "{error}"
        );
        // The lock ends also if a process was just forked.
        let _child = base::trial::Forked::new().unwrap();
        drop(first);
        NodeHome::open(folder.path()).unwrap();
    }

    #[test]
    fn a_damaged_file_is_said_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node");
        let id = "0".repeat(32);
        for text in [
            String::new(),
            format!("{HEAD}\n"),
            format!("{HEAD}\nid {id}\nrun -1\n"),
            format!("{HEAD}\nid +{}\nrun 1\n", &id[1..]),
            format!("{HEAD}\nid {id}\nrun {}\n", u64::MAX),
            format!("covey node 2\nid {id}\nrun 1\n"),
            "x".repeat(100_000),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = NodeHome::open(folder.path()).unwrap_err();
            assert!(matches!(error, HomeError::Damaged { .. }), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::write(&path, [0xff; 40]).unwrap();
        assert!(matches!(NodeHome::open(folder.path()), Err(HomeError::Damaged { .. })));
        std::fs::write(&path, format!("{HEAD}\nid {id}\nrun 1\n")).unwrap();
        std::fs::write(folder.path().join("node.peers"), "no address\n10.0.0.1:1\n").unwrap();
        assert_eq!(NodeHome::open(folder.path()).unwrap().peers().len(), 1);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,100}", head: bool) {
            parse(&if head { format!("{HEAD}\n{text}") } else { text });
        }
    }
}
