//! An image as the source of a transfer: its missing layers, and its small blobs, below a temporary folder.
//!
//! Nothing has its final name before everything has arrived and matches its digest ([`crate::folder`] gives
//! the names at the end). A layer is read once: its blob is hashed as it is read, and its archive behind the
//! decompression.

use std::collections::HashSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::error::Result;
use archive::PIECE;
use archive::import::bounds::Bounds;
use archive::import::unpack::unpack;
use archive::import::{Item, Kind, Step};
use archive::transfer::{Feed, Source};
use parking_lot::Mutex;

use crate::Blobs;
use crate::digest::{Checked, Digest, differs, unread};
use crate::folder;
use crate::layer::{Ended, Sender};
use crate::manifest::{Descriptor, Layer};

/// Sends an image.
pub struct Send {
    /// Where its blobs come from.
    pub blobs: Box<dyn Blobs>,
    /// The layers to send. Each chain id is there once.
    pub layers: Vec<Layer>,
    /// The small files to send, by their paths in the folder of images.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// The temporary folder, below the folder of images.
    pub below: PathBuf,
    /// Gets the folders that layers leave out.
    pub implied: Implied,
    /// What the layers may ask for, all together.
    pub bounds: Bounds,
}

/// Folders that archives leave out, in order, with the layer's chain id.
pub type Implied = Arc<Mutex<Vec<(Digest, Vec<PathBuf>)>>>;

impl Source for Send {
    fn run(&mut self, feed: &Feed) -> Result<()> {
        let total = self.layers.iter().map(|layer| layer.blob.size).sum();
        feed.counters.expected.store(total, Ordering::Relaxed);
        let read = Arc::new(AtomicU64::new(0));
        for (layer, at) in self.layers.iter().zip(1..) {
            let name = format!("layer {at} of {} ({})", self.layers.len(), layer.blob.digest);
            let below = self.below.join(folder::layer(&layer.chain));
            match self.layer(layer, &below, &name, feed, &read) {
                Ok(()) => {}
                Err(Ended::Hangup) => return Ok(()),
                Err(Ended::Refused(failure) | Ended::Unreadable(failure)) => return Err(failure),
            }
        }
        for (path, bytes) in &self.files {
            if file(&self.below.join(path), bytes, feed).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Send {
    fn layer(
        &self,
        layer: &Layer,
        below: &Path,
        name: &str,
        feed: &Feed,
        read: &Arc<AtomicU64>,
    ) -> std::result::Result<(), Ended> {
        let refused = Ended::Refused;
        let Layer { blob, diff_id, chain } = layer;
        let raw = Checked::new(self.blobs.open(blob).map_err(refused)?, blob.size, Some(read.clone()));
        let (counters, bounds) = (feed.counters.clone(), self.bounds.clone());
        let seen = Watched { inner: raw.clone(), feed: counters, read: read.clone(), bounds };
        let sent =
            unpack(name, Box::new(seen), &self.bounds).map_err(Ended::Unreadable).and_then(|archive| {
                let archive = Checked::new(archive, u64::MAX, None);
                let implied = Sender::send(archive.clone(), below, name, feed, &self.bounds)?;
                self.implied.lock().push((*chain, implied));
                Ok(archive)
            });
        if let Some(refused) = self.bounds.refusal() {
            return Err(Ended::Refused(refused));
        }
        // A blob that differs explains everything else that is wrong with it.
        let archive = match sent {
            Err(Ended::Unreadable(failure)) => {
                check(&raw, blob).map_err(refused)?;
                return Err(Ended::Refused(failure.next("build the image again: its digest matches")));
            }
            Err(other) => return Err(other),
            Ok(archive) => archive,
        };
        check(&raw, blob).map_err(refused)?;
        let found = archive.finish().map_err(|error| refused(unread(name, &blob.digest, &error)))?;
        if found.0 != *diff_id {
            let wanted = Descriptor::new("", *diff_id, found.1);
            return Err(refused(differs("the layer's archive", &wanted, found)));
        }
        Ok(())
    }
}

fn check(raw: &Checked, blob: &Descriptor) -> Result<()> {
    let (found, len) = raw.finish().map_err(|error| unread("the layer", &blob.digest, &error))?;
    if (found, len) == (blob.digest, blob.size) {
        return Ok(());
    }
    Err(differs("the layer", blob, (found, len)))
}

/// Tells the progress.
struct Watched {
    inner: Checked,
    feed: Arc<archive::transfer::Counters>,
    read: Arc<AtomicU64>,
    bounds: Bounds,
}

impl Read for Watched {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buf)?;
        // Not the size that the manifest claims, which is compared only at the end.
        self.bounds.packed(got as u64);
        self.feed.at.store(self.read.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(got)
    }
}

/// Sends a small file.
fn file(path: &Path, bytes: &[u8], feed: &Feed) -> std::result::Result<(), archive::transfer::Hangup> {
    let now = base::time::now();
    let kind = Kind::File { size: bytes.len() as u64 };
    let item = Item {
        path: path.to_owned(),
        kind,
        perm: 0o644,
        uid: 0,
        gid: 0,
        atime: now,
        mtime: now,
        xattrs: Vec::new(),
    };
    feed.send(Step::Item(item))?;
    for (piece, at) in bytes.chunks(PIECE).zip((0..).step_by(PIECE)) {
        feed.send(Step::Piece(at, piece.to_vec()))?;
    }
    feed.send(Step::End)
}

/// The layers that are not in `there`, each once.
pub fn missing(layers: &[Layer], there: &HashSet<Digest>) -> Vec<Layer> {
    let mut met = there.clone();
    layers.iter().filter(|layer| met.insert(layer.chain)).cloned().collect()
}
