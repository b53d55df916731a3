//! The inodes that the mount's kernel holds.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use base::Ino;
use fs::api::{FileKind, Result};
use parking_lot::Mutex;
use rustix::fs::OFlags;

use crate::reopen;

/// How many files stay open for reading and writing. Two that share a place are opened by turns.
const OPEN: usize = 128;

/// An inode.
pub struct Node {
    /// A descriptor that pins it, and gives no access to its data (`O_PATH`).
    pub fd: OwnedFd,
    /// What it is.
    pub kind: FileKind,
}

struct Held {
    node: Arc<Node>,
    count: u64,
}

struct Opened {
    ino: Ino,
    writable: bool,
    file: Arc<OwnedFd>,
}

/// The table of inodes.
pub struct Nodes {
    held: Mutex<HashMap<Ino, Held>>,
    open: [Mutex<Option<Opened>>; OPEN],
}

impl Nodes {
    /// A table that holds the root, for ever.
    pub fn new(root: OwnedFd) -> Nodes {
        let root = Held { node: Arc::new(Node { fd: root, kind: FileKind::Dir }), count: 1 };
        let held = Mutex::new(HashMap::from([(Ino::ROOT, root)]));
        Nodes { held, open: std::array::from_fn(|_| Mutex::new(None)) }
    }

    /// An inode that is held.
    pub fn get(&self, ino: Ino) -> Option<Arc<Node>> {
        self.held.lock().get(&ino).map(|held| Arc::clone(&held.node))
    }

    /// Counts one more reference.
    pub fn hold(&self, ino: Ino, fd: OwnedFd, kind: FileKind) {
        let mut held = self.held.lock();
        let place = held.entry(ino).or_insert_with(|| Held { node: Arc::new(Node { fd, kind }), count: 0 });
        place.count += 1;
    }

    /// Counts fewer. The root stays.
    pub fn forget(&self, ino: Ino, count: u64) {
        let mut held = self.held.lock();
        let Some(place) = held.get_mut(&ino).filter(|_| ino != Ino::ROOT) else { return };
        place.count = place.count.saturating_sub(count);
        if place.count == 0 {
            held.remove(&ino);
            drop(held);
            self.close(ino);
        }
    }

    fn place(&self, ino: Ino) -> &Mutex<Option<Opened>> {
        &self.open[(ino.0 % OPEN as u64) as usize]
    }

    /// Closes the file of an inode, which may have lost its last name.
    pub fn close(&self, ino: Ino) {
        self.place(ino).lock().take_if(|opened| opened.ino == ino);
    }

    /// A file, open for reading, or for reading and writing.
    ///
    /// # Errors
    /// The system's error.
    pub fn file(&self, ino: Ino, node: &Node, writable: bool) -> Result<Arc<OwnedFd>> {
        let mut place = self.place(ino).lock();
        if let Some(opened) = &*place
            && opened.ino == ino
            && (opened.writable || !writable)
        {
            return Ok(Arc::clone(&opened.file));
        }
        let flags = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        // A FIFO would wait for another program.
        let file = Arc::new(reopen(&node.fd, flags | OFlags::NONBLOCK)?);
        *place = Some(Opened { ino, writable, file: Arc::clone(&file) });
        Ok(file)
    }
}
