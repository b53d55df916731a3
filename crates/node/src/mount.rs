//! What a mount serves, as the daemon and the commands see it: a volume, a published tree, or a corpus.
//!
//! A transport needs only a [`Filesystem`]. A daemon must also name the mount, report its state and close it
//! in good order. Operations that only a volume supports return a failure with an explanation for other
//! mounts.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::answers::{Evicted, GcSummary, PublishSummary, Settled, WarmSummary};
use api::control::Tick;
use api::error::Result;
use api::info::Info;
use api::status::fleet::PeerRow;
use api::status::{Mode, Status};
use fs::api::Filesystem;
use fuse::Notifier;

use crate::follow::Watching;
use crate::opened::{Cloned, Node};
use crate::publish::Wanted;
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

/// Something that can be mounted and managed.
pub trait Mount: Send + Sync {
    /// The source of its mount: a folder, or a word, a colon, and a part that no other mount has.
    fn name(&self) -> String;

    /// What its mount guarantees about changes.
    fn mode(&self) -> Mode;

    /// The filesystem for a transport.
    fn filesystem(&self) -> Arc<dyn Filesystem>;

    /// How long it has been open.
    fn age(&self) -> Duration;

    /// The few figures that are available at once. `None` if they cannot be read.
    fn in_short(&self) -> Option<Short>;

    /// The volume behind the mount, if there is one: metadata and packs that can be examined.
    fn node(&self) -> Option<&Node> {
        None
    }

    /// Follows the published name, if that was asked for, until the returned value is dropped.
    fn follow(&self, _: Notifier) -> Result<Option<Watching>> {
        Ok(None)
    }

    /// The nodes of its fleet.
    fn peers(&self) -> Result<Vec<PeerRow>> {
        Err(no_fleet(&self.name()))
    }

    /// All figures.
    fn status(&self) -> Result<Status>;

    /// Closes it in good order. A second call does nothing.
    fn close(&self) -> Result<()> {
        Ok(())
    }

    /// Makes everything written so far survive a power cut.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// Waits until everything written so far is in the origin.
    fn settle(&self, _: Option<Duration>, _: &mut dyn FnMut(Tick)) -> Result<Settled> {
        Err(not_a_volume(&self.name()))
    }

    /// Evicts cached blobs.
    fn evict(&self, _: Option<u64>) -> Result<Evicted> {
        Err(not_a_volume(&self.name()))
    }

    /// Fetches the data of files and trees.
    fn warm(&self, _: &[PathBuf], _: bool, _: &mut dyn FnMut(Tick)) -> Result<WarmSummary> {
        Err(not_a_volume(&self.name()))
    }

    /// What a file consists of. Lists every extent if that is asked for.
    fn info(&self, _: &Path, _: bool) -> Result<Info> {
        Err(not_a_volume(&self.name()))
    }

    /// Publishes a folder under a name. `tick` returns whether to continue.
    fn publish(&self, _: &Wanted, _: &mut dyn FnMut(Tick) -> bool) -> Result<PublishSummary> {
        Err(not_a_volume(&self.name()))
    }

    /// Deletes a published tree.
    fn unpublish(&self, _: &str) -> Result<()> {
        Err(not_a_volume(&self.name()))
    }

    /// Removes the data that nothing refers to.
    fn gc(&self, _: &mut dyn FnMut(Tick)) -> Result<GcSummary> {
        Err(not_a_volume(&self.name()))
    }

    /// Clones a file or folder. Only metadata is copied.
    fn clone_tree(&self, _: &Path, _: &Path, _: &mut dyn FnMut(Tick)) -> Result<Cloned> {
        Err(not_a_volume(&self.name()))
    }
}

impl Mount for Node {
    fn name(&self) -> String {
        Node::name(self)
    }

    fn mode(&self) -> Mode {
        Node::mode(self)
    }

    fn filesystem(&self) -> Arc<dyn Filesystem> {
        Node::filesystem(self)
    }

    fn age(&self) -> Duration {
        Node::age(self)
    }

    fn in_short(&self) -> Option<Short> {
        let stats = self.shown().stats().ok()?;
        let stored_bytes = stats.stored_bytes + stats.open_bytes;
        Some(Short { files: stats.inodes, bytes: stats.logical_bytes, stored_bytes })
    }

    fn node(&self) -> Option<&Node> {
        Some(self)
    }

    fn peers(&self) -> Result<Vec<PeerRow>> {
        Node::peers(self)
    }

    fn follow(&self, kernel: Notifier) -> Result<Option<Watching>> {
        Node::start_following(self, kernel)
    }

    fn status(&self) -> Result<Status> {
        Node::status(self)
    }

    fn close(&self) -> Result<()> {
        Node::close(self)
    }

    fn flush(&self) -> Result<()> {
        Node::flush(self)
    }

    fn settle(&self, patience: Option<Duration>, tick: &mut dyn FnMut(Tick)) -> Result<Settled> {
        Node::settle(self, patience, tick)
    }

    fn evict(&self, to: Option<u64>) -> Result<Evicted> {
        Node::evict(self, to)
    }

    fn warm(&self, paths: &[PathBuf], depot: bool, tick: &mut dyn FnMut(Tick)) -> Result<WarmSummary> {
        Node::warm(self, paths, depot, tick)
    }

    fn info(&self, path: &Path, list: bool) -> Result<Info> {
        Node::info(self, path, list)
    }

    fn publish(&self, wanted: &Wanted, tick: &mut dyn FnMut(Tick) -> bool) -> Result<PublishSummary> {
        Node::publish(self, wanted, tick)
    }

    fn unpublish(&self, name: &str) -> Result<()> {
        Node::unpublish(self, name)
    }

    fn gc(&self, tick: &mut dyn FnMut(Tick)) -> Result<GcSummary> {
        Node::gc(self, tick)
    }

    fn clone_tree(&self, from: &Path, to: &Path, tick: &mut dyn FnMut(Tick)) -> Result<Cloned> {
        Node::clone_tree(self, from, to, tick)
    }
}
