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
//! In this crate a *node* is a node of such a tree.
//!
//! **The tree holds the volume's rows as they are** (`meta::key`, `meta::record`). It has no format of its
//! own for files. So it holds everything that a volume's names hold. A mount of it is the same filesystem
//! over a store that cannot change ([`read::Tree`] is a `meta::MetaStore`), and restoring a volume means
//! copying rows. Rows that follow from others are left out: which files use a pack, which pack is a blob,
//! where the content of a small file is. Packs keep their numbers. Every pack that the rows mention is a
//! blob, and the pack's row says which. Inode numbers are the volume's, and a volume never reuses one.
//!
//! **Publishing again writes what changed.** The end of a node follows only from the keys in it. So the same
//! rows make the same nodes, wherever they begin. A node is identified by the hash of its content, which does
//! not include where its children lie. A node that the previous tree had is not written again. New nodes are
//! stored together in pack blobs of up to 4 MiB, so a small change costs one PUT and the root's. Each
//! publication scans all rows: about a second for a million rows.
//!
//! **Reading is lazy.** Opening a tree reads its root. A lookup reads one node for each level, and some nodes
//! stay in memory. Everything read is compared with its hash, up to the signature of the root.
//!
//! - [`node`]: a node's bytes; [`build`]: rows become nodes; [`read`]: nodes become rows.
//! - [`diff`]: the differences of two trees.
//! - [`root`]: the record of a tree, the owner of an origin, and their signatures.
//! - [`history`]: older publications that are kept.
//! - [`known`]: which keys a reader accepts, and which record of a name it saw last.
//! - [`rows`]: which rows of a volume make up a tree, or a subtree.
//! - [`publish`], [`restore`]: from a volume and to one.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod build;
mod code;
pub mod diff;
pub mod history;
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

pub use publish::{Content, Order, Published, Selected, publish, publish_content};
pub use read::Tree;
pub use root::{Owner, Root, Signer, Source};

/// Why a tree could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Nothing is published under this name.
    #[error("no tree is published as {0}")]
    NotPublished(String),
    /// The data that was read is not what was published.
    #[error("{0}")]
    Damaged(String),
    /// The data was made by a newer program.
    #[error("{what} has version {found}, and this program reads version {known}")]
    Newer {
        /// The name of the format.
        what: &'static str,
        /// The version of the data.
        found: u32,
        /// The newest version that this program reads.
        known: u32,
    },
    /// The signature is not by the publisher of this origin.
    #[error("{0}")]
    Untrusted(String),
    /// The origin belongs to another owner by now.
    #[error("{0}")]
    NotOwner(String),
    /// The folder to publish no longer exists, or is not a folder.
    #[error("it is not a folder of the volume")]
    NotAFolder,
    /// The names could not be read or written.
    #[error(transparent)]
    Store(StoreError),
    /// Blobs or records could not be read or written.
    #[error(transparent)]
    Blob(BlobError),
    /// The caller stopped it through `progress`.
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
    /// The error as a mount of the tree sees it.
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
