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

use crate::pins::{Pin, Pins};
use crate::reopen;

/// How many files stay open for reading and writing. Two that share a place are opened by turns.
const OPEN: usize = 128;
/// Nodes are numbered from here on, or from a later number. Few filesystems have inodes with such numbers.
const FIRST: u64 = 1 << 62;

/// An inode.
pub struct Node {
    pin: Pin,
    /// What it is.
    pub kind: FileKind,
}

impl Node {
    /// A descriptor of it, which gives no access to its data (`O_PATH`).
    ///
    /// # Errors
    /// ESTALE: it was removed, and nothing has kept it. Or the system's error.
    pub fn fd(&self) -> Result<Arc<OwnedFd>> {
        self.pin.fd()
    }
}

struct Held {
    node: Arc<Node>,
    /// The node's inode number. It means the same file as long as a descriptor is open.
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
    pins: Arc<Pins>,
    open: [Mutex<Option<Opened>>; OPEN],
}

impl Nodes {
    /// A table that holds the root, for ever.
    pub fn new(root: OwnedFd) -> Nodes {
        let pins = Pins::new(&root);
        Nodes::with(root, pins)
    }

    pub(crate) fn with(root: OwnedFd, pins: Pins) -> Nodes {
        let pins = Arc::new(pins);
        // Its descriptor is none of those that are closed when others are used.
        let pin = pins.pin(root);
        let root = Held { node: Arc::new(Node { pin, kind: FileKind::Dir }), ino: Ino::ROOT, count: 1 };
        let table = Table {
            held: HashMap::from([(Ino::ROOT, root)]),
            nodes: HashMap::from([(Ino::ROOT, Ino::ROOT)]),
            // No two runs come near each other, and none reaches the end.
            next: FIRST | (base::random::u64() >> 2),
        };
        Nodes { table: Mutex::new(table), pins, open: std::array::from_fn(|_| Mutex::new(None)) }
    }

    /// Whether inodes need no descriptors.
    pub fn has_handles(&self) -> bool {
        self.pins.has_handles()
    }

    /// An inode that is held.
    pub fn get(&self, node: Ino) -> Option<Arc<Node>> {
        self.table.lock().held.get(&node).map(|held| Arc::clone(&held.node))
    }

    /// Counts one more reference to an open inode, by its inode number. Returns the number of its node, and
    /// whether it was held before. One without a name is kept alive.
    pub fn hold(&self, ino: Ino, fd: OwnedFd, kind: FileKind, has_name: bool) -> (Ino, bool) {
        let pin = self.pins.pin(fd);
        let mut table = self.table.lock();
        if let Some(&node) = table.nodes.get(&ino)
            && let Some(held) = table.held.get_mut(&node)
            // Another file may have got the number of one that was removed. The root has one descriptor.
            && (node == Ino::ROOT || held.node.pin.is(&pin))
        {
            held.count += 1;
            return (node, true);
        }
        let number = Ino(table.next);
        table.next += 1;
        table.nodes.insert(ino, number);
        let node = Arc::new(Node { pin, kind });
        table.held.insert(number, Held { node: Arc::clone(&node), ino, count: 1 });
        drop(table);
        node.pin.held();
        if !has_name {
            node.pin.keep();
        }
        (number, false)
    }

    /// Runs `remove`, which takes a name of an open inode away. If a kernel holds the inode, and it was the
    /// last name, the inode stays.
    pub fn without_name<T>(
        &self,
        named: impl FnOnce() -> Option<(Ino, OwnedFd)>,
        remove: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if !self.pins.has_handles() {
            return remove();
        }
        let held = named().and_then(|(ino, fd)| {
            let table = self.table.lock();
            let node = table.held.get(table.nodes.get(&ino)?).map(|held| Arc::clone(&held.node));
            drop(table);
            let pin = self.pins.pin(fd);
            node.filter(|node| node.pin.is(&pin))
        });
        let Some(node) = held else { return remove() };
        node.pin.keep();
        remove().inspect_err(|_| node.pin.release())
    }

    /// Counts fewer. The root stays.
    pub fn forget(&self, node: Ino, count: u64) {
        let mut table = self.table.lock();
        let Some(held) = table.held.get_mut(&node).filter(|_| node != Ino::ROOT) else { return };
        held.count = held.count.saturating_sub(count);
        if held.count > 0 {
            return;
        }
        // The inode number may mean another file as soon as the descriptor is closed, or does already.
        let ino = held.ino;
        if table.nodes.get(&ino) == Some(&node) {
            table.nodes.remove(&ino);
        }
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
        let file = Arc::new(reopen(&*node.fd()?, flags | OFlags::NONBLOCK)?);
        *place = Some(Opened { number, writable, file: Arc::clone(&file) });
        Ok(file)
    }
}
