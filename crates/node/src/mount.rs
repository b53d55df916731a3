//! What is mounted, as the daemon and the commands see it: a volume, a published tree, or a corpus.
//!
//! A transport needs only a [`Filesystem`]. A daemon must also name the mount, report its state and close it
//! in good order. [`Mount`] does that for every kind. What only a volume or a tree can do is reached through
//! [`Mount::node`], which fails with an explanation for other mounts.

use std::sync::Arc;
use std::time::Duration;

use api::error::Result;
use api::status::fleet::PeerRow;
use api::status::{Mode, Status};
use fs::api::Filesystem;
use fuse::Notifier;
use parking_lot::RwLock;

use crate::corpus::Served;
use crate::follow::Watching;
use crate::opened::{Node, Source};
use crate::options::NodeOptions;
use crate::refused::{no_fleet, not_a_volume};

/// The few figures that are available at once.
pub struct Short {
    /// Inodes in use.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Bytes stored for them.
    pub stored_bytes: u64,
}

/// What a daemon has mounted. It is replaced when its volume becomes a shared one.
pub struct Slot(RwLock<Arc<Mount>>);

impl Slot {
    /// A slot with this mount.
    pub fn new(mount: Arc<Mount>) -> Slot {
        Slot(RwLock::new(mount))
    }

    /// The mount as it is now.
    pub fn get(&self) -> Arc<Mount> {
        self.0.read().clone()
    }

    /// Replaces it.
    pub(crate) fn set(&self, mount: Arc<Mount>) {
        *self.0.write() = mount;
    }
}

/// Something that is mounted and managed.
pub enum Mount {
    /// A volume or a published tree: names and blobs.
    Node(Box<Node>),
    /// Files that derive from a seed.
    Corpus(Served),
}

impl Mount {
    /// Opens the source of a mount.
    ///
    /// # Errors
    /// The source cannot be opened.
    pub fn open(source: &Source, options: &NodeOptions) -> Result<Mount> {
        Ok(match source {
            Source::Corpus(spec) => Mount::Corpus(Served::make(*spec)?),
            _ => Mount::Node(Box::new(Node::open_source(source, options)?)),
        })
    }

    /// The volume or the tree, if it is one.
    pub fn as_node(&self) -> Option<&Node> {
        match self {
            Mount::Node(node) => Some(node),
            Mount::Corpus(_) => None,
        }
    }

    /// The volume or the tree.
    ///
    /// # Errors
    /// It is neither.
    pub fn node(&self) -> Result<&Node> {
        self.as_node().ok_or_else(|| not_a_volume(&self.name()))
    }

    /// The source of its mount: a folder, or a word, a colon, and a part that no other mount has.
    pub fn name(&self) -> String {
        match self {
            Mount::Node(node) => node.name(),
            Mount::Corpus(corpus) => corpus.name(),
        }
    }

    /// What its mount guarantees about changes.
    pub fn mode(&self) -> Mode {
        match self {
            Mount::Node(node) => node.mode(),
            Mount::Corpus(_) => Mode::Frozen,
        }
    }

    /// The filesystem for a transport.
    pub fn filesystem(&self) -> Arc<dyn Filesystem> {
        match self {
            Mount::Node(node) => node.filesystem(),
            Mount::Corpus(corpus) => corpus.filesystem(),
        }
    }

    /// How long it has been open.
    pub fn age(&self) -> Duration {
        match self {
            Mount::Node(node) => node.age(),
            Mount::Corpus(corpus) => corpus.age(),
        }
    }

    /// The few figures that are available at once. `None` if they cannot be read.
    pub fn in_short(&self) -> Option<Short> {
        match self {
            Mount::Node(node) => {
                let stats = node.shown().stats().ok()?;
                let stored_bytes = stats.stored_bytes + stats.open_bytes;
                Some(Short { files: stats.inodes, bytes: stats.logical_bytes, stored_bytes })
            }
            Mount::Corpus(corpus) => {
                let spec = corpus.spec();
                Some(Short { files: spec.count + 1, bytes: spec.bytes(), stored_bytes: spec.bytes() })
            }
        }
    }

    /// All figures.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn status(&self) -> Result<Status> {
        match self {
            Mount::Node(node) => node.status(),
            Mount::Corpus(corpus) => Ok(corpus.status()),
        }
    }

    /// Follows the published name, if that was asked for, until the returned value is dropped.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn follow(&self, kernel: Notifier) -> Result<Option<Watching>> {
        self.as_node().map_or(Ok(None), |node| node.start_following(kernel))
    }

    /// The nodes of its fleet.
    ///
    /// # Errors
    /// It is in no fleet.
    pub fn peers(&self) -> Result<Vec<PeerRow>> {
        self.as_node().ok_or_else(|| no_fleet(&self.name()))?.peers()
    }

    /// Closes it in good order. A second call does nothing.
    ///
    /// # Errors
    /// Something could not be made durable.
    pub fn close(&self) -> Result<()> {
        self.as_node().map_or(Ok(()), Node::close)
    }

    /// Makes everything written so far survive a power cut.
    ///
    /// # Errors
    /// It could not be made durable.
    pub fn flush(&self) -> Result<()> {
        self.as_node().map_or(Ok(()), Node::flush)
    }
}
