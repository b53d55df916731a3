//! Published trees: the names of a volume at one moment, as blobs in its origin below a small signed root.
//!
//! ```text
//!   record published/NAME      root: which volume, when, how much, where the top node is, who signs
//!            │
//!          inner               first key, hash and place of each child
//!         /  |  \
//!     leaf leaf leaf           the volume's own rows in the order of their keys, about 44 KiB together
//! ```
//!
//! **The tree holds the volume's rows as they are** (`meta::key`, `meta::record`), not a format of its own for files. So it holds all
//! that a volume's names hold, a mount of it is the same filesystem over a store that cannot change ([`read::Tree`] is a
//! `meta::MetaStore`), and to restore a volume is to copy rows. What is left out can be made again from the rest: who uses a pack, which
//! pack is a blob, where the content of a small file is. Packs keep their numbers; every pack that the rows mention is a blob, and
//! its row says which. The number of an inode is the volume's, and a volume never gives one out twice.
//!
//! **Publishing again writes what changed.** Where a node ends follows from the keys in it and from nothing else, so
//! the same rows make the same nodes, wherever they begin. A node is known by the hash of what it says, which does not include
//! where its children lie; one that the tree before had is not written again. New nodes ride together in pack blobs of up to 4 MiB: a
//! small change is one PUT and the root's. All rows are gone through each time: about a second for a million rows.
//!
//! **Reading is lazy**: to open a tree is to read its root; a lookup reads one node for each level, and a few of them stay in memory.
//! Everything read is compared with its hash, up to the signature of the root.
//!
//! - [`node`]: a node's bytes; [`build`]: rows become nodes; [`read`]: nodes become rows.
//! - [`diff`]: what two trees have otherwise.
//! - [`root`]: the record of a tree, the owner of an origin, and their signatures.
//! - [`known`]: which keys a reader accepts, and which record of a name it saw last.
//! - [`rows`]: which rows of a volume make up a tree, or a subtree.
//! - [`publish`], [`restore`]: from a volume and to one.

pub mod build;
mod code;
pub mod diff;
pub mod known;
pub mod node;
pub mod publish;
pub mod read;
pub mod restore;
pub mod root;
pub mod rows;
#[cfg(test)]
mod tests;

use blob::BlobError;
use meta::store::{CommitError, StoreError};

pub use publish::{Order, Published, publish};
pub use read::Tree;
pub use root::{Owner, Root, Signer};

/// Why a tree could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Nothing is published under this name.
    #[error("no tree is published as {0}")]
    NotPublished(String),
    /// What was read is not what was published.
    #[error("{0}")]
    Damaged(String),
    /// It was made by a newer program.
    #[error("{what} has version {found}, and this program reads version {known}")]
    Newer {
        /// What.
        what: &'static str,
        /// Its version.
        found: u32,
        /// The version that is known.
        known: u32,
    },
    /// It is not signed by whoever publishes in this origin.
    #[error("{0}")]
    Untrusted(String),
    /// The origin belongs to somebody else by now.
    #[error("{0}")]
    NotOwner(String),
    /// The folder that was to be published is not there any more, or is none.
    #[error("it is no folder of the volume")]
    NotAFolder,
    /// The names could not be read or written.
    #[error(transparent)]
    Store(StoreError),
    /// Blobs or records could not.
    #[error(transparent)]
    Blob(BlobError),
    /// Whoever watches the progress wanted no more.
    #[error("it was stopped")]
    Stopped,
}

impl From<StoreError> for TreeError {
    fn from(error: StoreError) -> TreeError {
        TreeError::Store(error)
    }
}

impl From<BlobError> for TreeError {
    fn from(error: BlobError) -> TreeError {
        TreeError::Blob(error)
    }
}

impl From<CommitError> for TreeError {
    fn from(error: CommitError) -> TreeError {
        match error {
            CommitError::Store(error) => TreeError::Store(error),
            CommitError::Conflict { .. } => {
                TreeError::Store(StoreError::Damaged("rows without checks met a conflict".to_owned()))
            }
        }
    }
}

impl From<TreeError> for StoreError {
    /// As a mount of the tree sees it.
    fn from(error: TreeError) -> StoreError {
        match error {
            TreeError::Store(error) => error,
            TreeError::Blob(error @ (BlobError::Missing(_) | BlobError::Damaged { .. })) => {
                StoreError::Damaged(format!("the published tree: {error}"))
            }
            TreeError::Blob(error) => StoreError::Unavailable(format!("the published tree: {error}")),
            other => StoreError::Damaged(format!("the published tree: {other}")),
        }
    }
}
