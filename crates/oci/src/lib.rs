//! Container images: where they come from, and their layers as trees that overlayfs can stack.
//!
//! ```text
//!   oci:DIR, oci-archive:FILE ─► layout ───┐
//!   docker-archive:FILE ───────► docker ───┼─► Image: manifest, config, layers; and Blobs, their bytes
//!   docker://HOST/NAME ────────► registry ─┘       └─► layer ─► transfer::Send ─► a volume
//!
//!   digest     SHA-256 digests, and readers that compute them
//!   manifest   manifests, indexes, configs, platforms
//!   source     what a text on the command line names
//!   layer      one layer's archive as items in overlayfs form
//!   folder     the folder of a volume that holds images
//!   removal    what a removal of an image removes from it
//!   claim      keeps other processes, also of other machines, from changing that folder meanwhile
//!   place      that folder, on a mount or in a volume that this process has opened
//! ```
//!
//! Everything here is input from others. A blob is used only if its size and its digest match, everything
//! that is held in memory has a bound, and no name of a layer leads out of the layer.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

pub mod claim;
pub mod digest;
pub mod docker;
pub mod folder;
pub mod layer;
pub mod layout;
pub mod manifest;
pub mod members;
pub mod place;
pub mod registry;
pub mod removal;
pub mod source;
pub mod transfer;

use std::io::Read;

use api::error::Result;

use manifest::Descriptor;

/// The bytes of one blob.
pub type Bytes = Box<dyn Read + Send>;

/// Where the blobs of an image are.
pub trait Blobs: Send {
    /// Opens a blob. Its bytes are not verified yet.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    fn open(&self, blob: &Descriptor) -> Result<Bytes>;

    /// Opens a manifest or an index, which a registry keeps in another place than blobs.
    ///
    /// # Errors
    /// As [`Blobs::open`].
    fn open_manifest(&self, blob: &Descriptor) -> Result<Bytes> {
        self.open(blob)
    }
}
