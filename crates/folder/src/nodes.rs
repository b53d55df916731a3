//! The inodes that the mount's kernel holds.
//!
//! The kernel knows each by the number of a node, which is given once and never again: not in this run, and
//! not in the next one, because a run begins at a random number. The filesystem below may give the inode
//! number of a file that was removed to another. So a number that a kernel still holds, and this table does
//! not, is the number of nothing.

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
/// Nodes are numbered from here on, or from a later number. Few filesystems have inodes with such numbers.
const FIRST: u64 = 1 << 62;

/// An inode.
pub struct Node {
    /// A descriptor that pins it, and gives no access to its data (`O_PATH`).
    pub fd: OwnedFd,
    /// What it is.
    pub kind: FileKind,
}

struct Held {
    node: Arc<Node>,
    /// Its inode number, which means the same file as long as the node is held.
    ino: Ino,
    count: u64,
}

struct Table {
    held: HashMap<Ino, Held>,
    /// The node of each inode number.
    nodes: HashMap<Ino, Ino>,
    next: u64,
}

struct Opened {
    number: Ino,
    writable: bool,
    file: Arc<OwnedFd>,
}

/// The table of inodes.
pub struct Nodes {
    table: Mutex<Table>,
    open: [Mutex<Option<Opened>>; OPEN],
}

impl Nodes {
    /// A table that holds the root, for ever.
    pub fn new(root: OwnedFd) -> Nodes {
        let root = Held { node: Arc::new(Node { fd: root, kind: FileKind::Dir }), ino: Ino::ROOT, count: 1 };
        let table = Table {
            held: HashMap::from([(Ino::ROOT, root)]),
            nodes: HashMap::from([(Ino::ROOT, Ino::ROOT)]),
            // No two runs come near each other, and none reaches the end.
            next: FIRST | (base::random::u64() >> 2),
        };
        Nodes { table: Mutex::new(table), open: std::array::from_fn(|_| Mutex::new(None)) }
    }

    /// An inode that is held.
    pub fn get(&self, node: Ino) -> Option<Arc<Node>> {
        self.table.lock().held.get(&node).map(|held| Arc::clone(&held.node))
    }

    /// Counts one more reference to an inode, by its inode number. Returns the number of its node, and
    /// whether it was held before.
    pub fn hold(&self, ino: Ino, fd: OwnedFd, kind: FileKind) -> (Ino, bool) {
        let mut table = self.table.lock();
        if let Some(&node) = table.nodes.get(&ino)
            && let Some(held) = table.held.get_mut(&node)
        {
            held.count += 1;
            return (node, true);
        }
        let node = Ino(table.next);
        table.next += 1;
        table.nodes.insert(ino, node);
        table.held.insert(node, Held { node: Arc::new(Node { fd, kind }), ino, count: 1 });
        (node, false)
    }

    /// Counts fewer. The root stays.
    pub fn forget(&self, node: Ino, count: u64) {
        let mut table = self.table.lock();
        let Some(held) = table.held.get_mut(&node).filter(|_| node != Ino::ROOT) else { return };
        held.count = held.count.saturating_sub(count);
        if held.count > 0 {
            return;
        }
        // The inode number may mean another file as soon as the descriptor is closed.
        let ino = held.ino;
        table.nodes.remove(&ino);
        let gone = table.held.remove(&node);
        drop(table);
        drop(gone);
        self.close(node);
    }

    fn place(&self, number: Ino) -> &Mutex<Option<Opened>> {
        &self.open[(number.0 % OPEN as u64) as usize]
    }

    /// Closes the file of a node, which may have lost its last name.
    pub fn close(&self, number: Ino) {
        self.place(number).lock().take_if(|opened| opened.number == number);
    }

    /// Keeps the open file of something new, for what is written to it.
    pub fn opened(&self, number: Ino, file: OwnedFd) {
        *self.place(number).lock() = Some(Opened { number, writable: true, file: Arc::new(file) });
    }

    /// A file, open for reading, or for reading and writing.
    ///
    /// # Errors
    /// The system's error.
    pub fn file(&self, number: Ino, node: &Node, writable: bool) -> Result<Arc<OwnedFd>> {
        let mut place = self.place(number).lock();
        if let Some(opened) = &*place
            && opened.number == number
            && (opened.writable || !writable)
        {
            return Ok(Arc::clone(&opened.file));
        }
        let flags = if writable { OFlags::RDWR } else { OFlags::RDONLY };
        // A FIFO would wait for another program.
        let file = Arc::new(reopen(&node.fd, flags | OFlags::NONBLOCK)?);
        *place = Some(Opened { number, writable, file: Arc::clone(&file) });
        Ok(file)
    }
}
