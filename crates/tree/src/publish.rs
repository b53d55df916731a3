//! Publishing: rows of one moment become a tree, and at last a root names it.
//!
//! The order is what makes it safe: each blob is held before it is stored ([`Order::hold`]), everything is in the origin for good before the
//! root is replaced, and what only the tree before needed is let go of after that. A publication that ends in the middle leaves the tree
//! before as it was.

use std::sync::Arc;
use std::time::Duration;

use base::{BlobId, Timestamp};
use blob::{BlobSource, Origin};
use hashbrown::HashSet;
use meta::Snapshot;

use crate::build::{Builder, Built, Known, Written};
use crate::read::Tree;
use crate::root::{Root, Signer};
use crate::rows::Selection;
use crate::{Owner, TreeError};

/// Progress is told after so many rows.
const TELL: u64 = 4096;

/// What is to be published, and how.
pub struct Order<'a> {
    /// Under which name.
    pub name: &'a str,
    /// Of which volume.
    pub volume: [u8; 16],
    /// Whose key signs.
    pub signer: &'a Signer,
    /// When; the record gets a later moment where the one before was published after this.
    pub moment: Timestamp,
    /// How long the origin may take to have everything.
    pub patience: Duration,
    /// Write every node anew, also those that the tree before has: what mends a tree of which nodes were lost.
    pub afresh: bool,
    /// Called for each blob of nodes before it is stored or referred to; from then on it must not be removed.
    pub hold: &'a mut dyn FnMut(BlobId) -> Result<(), TreeError>,
    /// Called when everything is in the origin for good, right before the root is replaced; an error leaves the tree before.
    pub before_root: &'a mut dyn FnMut() -> Result<(), TreeError>,
    /// Called now and then with how many rows were gone through; false ends it.
    pub progress: &'a mut dyn FnMut(u64) -> bool,
}

/// What a publication came to.
pub struct Published {
    /// The root as it is now.
    pub root: Root,
    /// Nothing had changed, so the root is the one that was there.
    pub unchanged: bool,
    /// Nodes and what was written of them.
    pub written: Written,
    /// Rows of the tree.
    pub rows: u64,
    /// Every blob that the tree needs.
    pub blobs: HashSet<BlobId>,
}

/// Publishes the selected rows of a moment. Every blob of their packs is held already.
///
/// # Errors
/// See [`TreeError`]. Until the root is replaced, which is the last step, the tree before is there.
pub fn publish(
    rows: &dyn Snapshot,
    selection: &Selection,
    origin: &Arc<dyn Origin>,
    order: Order<'_>,
) -> Result<Published, TreeError> {
    let before = match Root::read(&**origin, order.name, None) {
        Ok(root) => Some(root),
        Err(TreeError::NotPublished(_)) => None,
        // One that cannot be read is replaced all the same: this is the way to mend it.
        Err(TreeError::Damaged(_) | TreeError::Untrusted(_)) => None,
        Err(error) => return Err(error),
    };
    let source: Arc<dyn BlobSource> = origin.clone();
    let Order { name, volume, signer, moment, patience, afresh, hold, before_root, progress } = order;
    let known = before.as_ref().filter(|_| !afresh).map(|root| Tree::new(source, root).known());
    // A tree that cannot be read is no reason not to publish another.
    let known = known.and_then(Result::ok).unwrap_or_default();
    let built = build(rows, selection, &**origin, &known, hold, progress)?;
    let mut blobs = built.blobs;
    blobs.extend(selection.packs().iter().map(|pack| pack.blob));
    origin.settle(patience)?;
    let (inodes, bytes) = selection.totals();
    let root = Root {
        name: name.to_owned(),
        volume,
        sequence: before.as_ref().map_or(0, |root| root.sequence) + 1,
        moment: later(moment, before.as_ref()),
        inodes,
        bytes,
        top: built.top,
        level: built.level,
        nodes: built.written.nodes,
        before: before.as_ref().map(|root| root.top.hash),
        key: signer.key(),
    };
    // The same nodes in the same places: the old root says all there is to say.
    let same = |old: &Root| built.written.new_nodes == 0 && old.top == root.top && old.volume == volume;
    let unchanged = before.filter(same);
    let is_unchanged = unchanged.is_some();
    let root = match unchanged {
        Some(old) => old,
        None => {
            before_root()?;
            root.write(&**origin, signer)?;
            root
        }
    };
    Ok(Published { rows: root.top.rows, root, unchanged: is_unchanged, written: built.written, blobs })
}

/// `now`, but after the record before, also where this machine's clock is behind: readers tell an older record by its moment ([`crate::known`]).
fn later(now: Timestamp, before: Option<&Root>) -> Timestamp {
    before.map_or(now, |before| now.max(Timestamp(before.moment.0.saturating_add(1))))
}

fn build(
    rows: &dyn Snapshot,
    selection: &Selection,
    origin: &dyn Origin,
    known: &Known,
    hold: &mut dyn FnMut(BlobId) -> Result<(), TreeError>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Built, TreeError> {
    let mut hold = |blob| hold(blob);
    let mut builder = Builder::new(origin, known, &mut hold)?;
    let mut count = 0;
    selection.each(rows, &mut |key, row| {
        count += 1;
        if count % TELL == 0 && !progress(count) {
            return Err(TreeError::Stopped);
        }
        builder.push(key, row)
    })?;
    progress(count);
    builder.finish()
}

/// Makes sure that this owner may publish in the origin: he is the first, or it is his already.
///
/// # Errors
/// `NotOwner`, and what the origin said.
pub fn claim(origin: &dyn Origin, me: Owner) -> Result<Owner, TreeError> {
    let (volume, owner) = (me.volume, me.owner);
    let found = me.claim(origin)?;
    if found.owner == owner && found.volume == volume {
        return Ok(found);
    }
    Err(TreeError::NotOwner(not_owner(&found, volume)))
}

/// Says who owns an origin, to somebody who does not.
pub fn not_owner(found: &Owner, volume: [u8; 16]) -> String {
    let Owner { note, generation, .. } = found;
    if found.volume == volume {
        return format!(
            "the volume was restored elsewhere ({note}, generation {generation}), and the origin is that volume's now"
        );
    }
    format!("the origin is another volume's ({note})")
}
