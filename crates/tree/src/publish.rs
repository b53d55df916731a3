//! Publishing: the rows of one moment become a tree, and finally a root names it.
//!
//! The order makes it safe. Each blob is held before it is stored ([`Order::hold`]). Everything is
//! permanently in the origin before the root is replaced. Blobs that only the previous tree needed are
//! released after that. A publication that is interrupted leaves the previous tree as it was.

use std::sync::Arc;
use std::time::Duration;

use base::{BlobId, Timestamp};
use blob::{BlobSource, Origin};
use hashbrown::HashSet;
use meta::Snapshot;

use crate::build::{Builder, Built, Known, Written};
use crate::history;
use crate::read::Tree;
use crate::root::{Root, Signer, Source};
use crate::rows::{Pack, Push, Selection};
use crate::{Owner, TreeError};

/// `progress` is called after this many rows.
const PROGRESS_EVERY: u64 = 4096;

/// What to publish, and how.
pub struct Order<'a> {
    /// The name of the tree.
    pub name: &'a str,
    /// The volume's id.
    pub volume: [u8; 16],
    /// The key that signs.
    pub signer: &'a Signer,
    /// The moment of publication. If the previous record has a later moment, the new record gets one after
    /// that.
    pub moment: Timestamp,
    /// How long the origin may take until it has everything.
    pub patience: Duration,
    /// Write every node again, including those that the previous tree has. This repairs a tree whose nodes
    /// were lost.
    pub afresh: bool,
    /// Keep the record of the publication that this one replaces ([`crate::history`]).
    pub keep: bool,
    /// Called for each blob of nodes before it is stored or referred to. From then on the blob must not be
    /// removed.
    pub hold: &'a mut dyn FnMut(BlobId) -> Result<(), TreeError>,
    /// Called when everything is permanently in the origin, right before the root is replaced. An error keeps
    /// the previous tree.
    pub before_root: &'a mut dyn FnMut() -> Result<(), TreeError>,
    /// Called now and then with the number of rows scanned. Returning false stops the publication.
    pub progress: &'a mut dyn FnMut(u64) -> bool,
}

/// The result of a publication.
pub struct Published {
    /// The current root.
    pub root: Root,
    /// Nothing had changed, so the root is the previous one.
    pub unchanged: bool,
    /// How many nodes there are, and what was written.
    pub written: Written,
    /// Rows of the tree.
    pub rows: u64,
    /// Every blob that the tree needs.
    pub blobs: HashSet<BlobId>,
}

/// The rows that become a tree.
pub trait Content {
    /// Calls `push` with every row, in order.
    ///
    /// # Errors
    /// They could not be read, or the error of `push`.
    fn each(&self, push: &mut Push<'_>) -> Result<(), TreeError>;

    /// The number of inodes, and of bytes of files.
    fn totals(&self) -> (u64, u64);

    /// The packs whose blobs are in the origin.
    fn packs(&self) -> &[Pack];

    /// The bucket that holds the bytes of its files, if the origin does not.
    fn source(&self) -> Option<&Source> {
        None
    }
}

/// The selected rows of a volume.
pub struct Selected<'a> {
    rows: &'a dyn Snapshot,
    selection: &'a Selection,
}

impl<'a> Selected<'a> {
    /// The rows of `selection` among `rows`. Every blob of their packs must be held already.
    pub fn new(rows: &'a dyn Snapshot, selection: &'a Selection) -> Selected<'a> {
        Selected { rows, selection }
    }
}

impl Content for Selected<'_> {
    fn each(&self, push: &mut Push<'_>) -> Result<(), TreeError> {
        self.selection.each(self.rows, push)
    }

    fn totals(&self) -> (u64, u64) {
        self.selection.totals()
    }

    fn packs(&self) -> &[Pack] {
        self.selection.packs()
    }
}

/// Publishes the selected rows of a moment. Every blob of their packs must be held already.
///
/// # Errors
/// See [`TreeError`]. Until the root is replaced, which is the last step, the previous tree remains.
pub fn publish(
    rows: &dyn Snapshot,
    selection: &Selection,
    origin: &Arc<dyn Origin>,
    order: Order<'_>,
) -> Result<Published, TreeError> {
    publish_content(&Selected::new(rows, selection), origin, order)
}

/// Publishes rows from anywhere.
///
/// # Errors
/// As [`publish`].
pub fn publish_content(
    content: &dyn Content,
    origin: &Arc<dyn Origin>,
    order: Order<'_>,
) -> Result<Published, TreeError> {
    let before = match Root::read(&**origin, order.name, None) {
        Ok(root) => Some(root),
        Err(TreeError::NotPublished(_)) => None,
        // A root that cannot be read is replaced all the same: this is how to repair it.
        Err(TreeError::Damaged(_) | TreeError::Untrusted(_)) => None,
        Err(error) => return Err(error),
    };
    let source: Arc<dyn BlobSource> = origin.clone();
    let Order { name, volume, signer, moment, patience, afresh, keep, hold, before_root, progress } = order;
    let highest = match &before {
        Some(root) => root.sequence,
        // The name may have kept publications all the same. Their numbers are not given twice.
        None => history::sequences(&**origin, name)?.last().copied().unwrap_or(0),
    };
    let known = before.as_ref().filter(|_| !afresh).map(|root| Tree::new(source, root).known());
    // A previous tree that cannot be read does not prevent a new one.
    let known = known.and_then(Result::ok).unwrap_or_default();
    let built = build(content, &**origin, &known, hold, progress)?;
    let mut blobs = built.blobs;
    blobs.extend(content.packs().iter().map(|pack| pack.blob));
    origin.settle(patience)?;
    let (inodes, bytes) = content.totals();
    let root = Root {
        name: name.to_owned(),
        volume,
        sequence: highest + 1,
        moment: later(moment, before.as_ref()),
        inodes,
        bytes,
        top: built.top,
        level: built.level,
        nodes: built.written.nodes,
        before: before.as_ref().map(|root| root.top.hash),
        source: content.source().cloned(),
        key: signer.key(),
    };
    // The same nodes in the same places: the old root already describes this tree.
    let same = |old: &Root| {
        built.written.new_nodes == 0
            && old.top == root.top
            && old.volume == volume
            && old.source == root.source
    };
    let unchanged = before.filter(same);
    let is_unchanged = unchanged.is_some();
    let root = match unchanged {
        Some(old) => old,
        None => {
            before_root()?;
            if keep && root.before.is_some() {
                history::keep(&**origin, name)?;
            }
            root.write(&**origin, signer)?;
            root
        }
    };
    Ok(Published { rows: root.top.rows, root, unchanged: is_unchanged, written: built.written, blobs })
}

/// `now`, but later than the previous record, even if this machine's clock is behind. Readers recognise an
/// older record by its moment ([`crate::known`]).
fn later(now: Timestamp, before: Option<&Root>) -> Timestamp {
    before.map_or(now, |before| now.max(Timestamp(before.moment.0.saturating_add(1))))
}

fn build(
    content: &dyn Content,
    origin: &dyn Origin,
    known: &Known,
    hold: &mut dyn FnMut(BlobId) -> Result<(), TreeError>,
    progress: &mut dyn FnMut(u64) -> bool,
) -> Result<Built, TreeError> {
    let mut hold = |blob| hold(blob);
    let mut builder = Builder::new(origin, known, &mut hold)?;
    let mut count = 0;
    content.each(&mut |key, row| {
        count += 1;
        if count % PROGRESS_EVERY == 0 && !progress(count) {
            return Err(TreeError::Stopped);
        }
        builder.push(key, row)
    })?;
    progress(count);
    builder.finish()
}

/// Makes sure that this owner may publish in the origin: it is the first owner, or already the current one.
///
/// # Errors
/// `NotOwner`, or the origin's error.
pub fn claim(origin: &dyn Origin, me: Owner) -> Result<Owner, TreeError> {
    let (volume, owner) = (me.volume, me.owner);
    let found = me.claim(origin)?;
    if found.owner == owner && found.volume == volume {
        return Ok(found);
    }
    Err(TreeError::NotOwner(not_owner(&found, volume)))
}

/// The message that names the owner of an origin to a volume that does not own it.
pub fn not_owner(found: &Owner, volume: [u8; 16]) -> String {
    let Owner { note, generation, .. } = found;
    if found.volume == volume {
        return format!(
            "the volume was restored elsewhere ({note}, generation {generation}), and the origin is that volume's now"
        );
    }
    format!("the origin is another volume's ({note})")
}
