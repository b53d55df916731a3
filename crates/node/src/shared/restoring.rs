//! A new shared volume of a published tree: for when the database is lost.
//!
//! The rows of the tree are written into the database, the origin gets a new owner, and last comes the row
//! that says where the origin is. A node refuses a volume without that row. So what a kill leaves behind is
//! never mounted, and the next restore removes it.

use std::path::Path;
use std::sync::Arc;

use api::control::Tick;
use api::error::{Failure, Result};
use api::text::count;
use base::PackNo;
use blob::{BlobSource, Origin};
use engines::Address;
use meta::engine::database::{Database, SetupError};
use meta::key::KeyRange;
use meta::store::{CommitError, Limit, Rows, StoreError, Value};
use meta::{Commit, Expect, Key, MetaStore, Names};
use net::secret::Secret;
use origin::claim::{Kind, SETTLE};
use tree::root::{Root, hex};
use tree::{Owner, Tree, TreeError};

use super::claiming;
use super::making::{self, Made, taken};
use super::rows::{ROW_COPYING, ROW_ORIGIN, ROW_PROMOTING, ROW_REMOVING, ROW_SECRET, place_rows};
use super::setup_failure;
use crate::claim::{Writer, hold_published};
use crate::frozen::Named;
use crate::publish::shared::ROW_PUBLISHER;
use crate::publisher::Publisher;
use crate::volume_dir::VolumeDir;

/// The next numbers of a restored volume are multiples of this, as in published trees.
const NUMBERS: u64 = 1 << 24;
/// The bits of a pack's number that are not its node's.
const OWN: u64 = (1 << 40) - 1;
const BATCH: usize = 1024;

/// A restored volume.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The volume.
    pub made: Made,
    /// Rows of the volume.
    pub rows: u64,
    /// The number of owners that the origin has had.
    pub generation: u64,
}

/// A published tree, and what became of its volume.
pub struct Restore<'a> {
    /// The tree.
    pub named: &'a Named,
    /// The tree's record.
    pub root: &'a Root,
    /// The tree's origin.
    pub origin: &'a Arc<dyn Origin>,
    /// The owner of the origin.
    pub owner: Owner,
    /// The old owner may still be running.
    pub wait: bool,
}

/// Whether the shared volume that an origin's owner names is gone for certain: its database answers and does
/// not have it. None if the owner is no shared volume. If nodes use the volume, this is an error.
pub fn is_gone(owner: &Owner) -> Result<Option<bool>> {
    if !Address::is_meant(&owner.note) {
        return Ok(None);
    }
    // A long address is cut in the record.
    let Ok(target) = Address::parse(&owner.note) else { return Ok(Some(false)) };
    let names = match target.open() {
        Ok(names) => names,
        Err(SetupError::Missing(_)) => return Ok(Some(true)),
        Err(_) => return Ok(Some(false)),
    };
    let is_this = crate::publish::shared::owner(&*names)? == Some(owner.owner);
    let alive = names.sessions().map_err(|error| setup_failure(error.into()))?;
    match alive.iter().filter(|row| row.alive).count() {
        nodes if is_this && nodes > 0 => {
            Err(Failure::new("in-use", format!("the volume {} is in use by {nodes} nodes", target.volume()))
                .why("two volumes that store to one origin would delete each other's blobs")
                .next(format!("unmount it everywhere: covey sessions '{target}' lists the nodes")))
        }
        _ => Ok(Some(!is_this)),
    }
}

impl Restore<'_> {
    /// Makes the volume at this address. If that fails, nothing of it is left in the database.
    pub fn make(&self, text: &Path, tick: &mut dyn FnMut(Tick)) -> Result<Restored> {
        let target = making::target_of(text)?;
        free(&target)?;
        let id = self.root.volume;
        target.create(id).map_err(setup_failure)?;
        let store = Arc::new(Own::of(&target)?);
        let done = self.fill(&target, store.clone(), tick).inspect_err(|_| store.remove(&target));
        let (rows, generation) = done?;
        let made = Made { id: hex(&id), origin: self.named.home.origin.clone(), names: target.to_string() };
        Ok(Restored { made, rows, generation })
    }

    fn fill(&self, target: &Address, own: Arc<Own>, tick: &mut dyn FnMut(Tick)) -> Result<(u64, u64)> {
        let names = own.names.clone();
        let store: Arc<dyn MetaStore> = own;
        let failed = |error: TreeError| match error {
            TreeError::Store(StoreError::Fenced(_)) => taken(target),
            error => self.named.failure(error),
        };
        let source: Arc<dyn BlobSource> = self.origin.clone();
        let of = self.root.top.rows;
        let rows = tree::restore::restore(&Tree::new(source, self.root), &*store, &mut |done| {
            tick(Tick { done, of, what: format!("{} rows of names", count(done)) });
            true
        });
        let rows = rows.map_err(failed)?;
        let me = Publisher::fresh();
        let mut puts = vec![
            (Key::volume("next-pack"), meta::record::encode_u64(next_pack(&store).map_err(failed)?)),
            (Key::volume(ROW_SECRET), row(&Secret::generate_text())),
            (Key::volume(ROW_PUBLISHER), row(&me.to_text())),
        ];
        commit(&*store, std::mem::take(&mut puts), Vec::new()).map_err(failed)?;
        hold_published(&*store, self.origin)?;
        let before = self.claim(target)?;
        let (note, key) = (target.to_string(), me.signer()?.key());
        let owner = self.owner.clone();
        let owner = owner.hand_over(&**self.origin, me.owner().unwrap_or_default(), note, key);
        let owner = owner.map_err(failed)?;
        if before.unwrap_or(self.wait) {
            tick(Tick { done: of, of, what: "waiting until the old volume has noticed".to_owned() });
            std::thread::sleep(SETTLE);
        }
        // Until it noticed, the old volume could have published again.
        self.named.is_still(self.root, &**self.origin)?;
        hold_published(&*store, self.origin)?;
        claiming::restored(names, target.to_string(), &**self.origin).map_err(|why| {
            Failure::new("origin-away", format!("{} cannot be claimed", self.named.home.origin)).why(why)
        })?;
        let place = place_rows(&self.named.home).into_iter();
        let place = place.map(|(name, text)| (Key::volume(&name), Value::from(text))).collect();
        commit(&*store, place, vec![Key::volume(ROW_COPYING)]).map_err(failed)?;
        Ok((rows, owner.generation))
    }

    /// Claims the origin, so that a volume of one node that owned it notices. Returns whether that volume may
    /// still be running. None: it made no claims.
    fn claim(&self, target: &Address) -> Result<Option<bool>> {
        if Address::is_meant(&self.owner.note) {
            return Ok(None);
        }
        // A claim is made for a folder. This one exists only for that: no folder may write there any more.
        let folder = format!("covey-restore-{:016x}", base::random::u64());
        let folder = std::env::temp_dir().join(folder);
        let mut before = None;
        let made = VolumeDir::create_as(&folder, &hex(&self.root.volume), self.named.home.clone(), |dir| {
            let writer = Writer::restored(dir, self.origin.clone());
            before = writer.restore()?.map(|claim| claim.kind != Kind::Closed);
            writer.close();
            Ok(())
        });
        let _ = std::fs::remove_dir_all(&folder);
        made.map_err(|failure| failure.next(format!("nothing is left at {target}")))?;
        Ok(before)
    }
}

/// The half-made volume of this command. It writes nothing when another command has made a volume under that
/// name since.
struct Own {
    names: Arc<dyn Database>,
    /// The row `copying` of this command.
    token: Value,
}

impl Own {
    /// The volume that this command has just made.
    fn of(target: &Address) -> Result<Own> {
        let own = Own {
            names: target.open().map_err(setup_failure)?,
            token: Value::from(&base::random::id16()[..]),
        };
        let absent = [ROW_ORIGIN, ROW_COPYING, ROW_REMOVING, ROW_PROMOTING];
        let checks = absent.map(|row| (Key::volume(row), Expect::Absent)).into();
        let puts = vec![(Key::volume(ROW_COPYING), own.token.clone())];
        match own.names.commit(Commit { checks, puts, ..Commit::default() }) {
            Ok(()) => Ok(own),
            Err(CommitError::Conflict { .. }) => Err(taken(target)),
            Err(CommitError::Store(error)) => Err(setup_failure(error.into())),
        }
    }

    /// Removes the volume, unless it is another command's.
    fn remove(&self, target: &Address) {
        let puts = vec![(Key::volume(ROW_REMOVING), Value::from(&[][..]))];
        if self.commit(Commit { puts, ..Commit::default() }).is_ok() {
            let _ = target.remove();
        }
    }
}

impl MetaStore for Own {
    fn get(&self, key: &Key) -> std::result::Result<Option<Value>, StoreError> {
        self.names.get(key)
    }

    fn is_at_hand(&self, key: &Key) -> bool {
        self.names.is_at_hand(key)
    }

    fn get_many(&self, keys: &[Key]) -> std::result::Result<Vec<Option<Value>>, StoreError> {
        self.names.get_many(keys)
    }

    fn scan(&self, range: &KeyRange, limit: usize) -> std::result::Result<Rows, StoreError> {
        self.names.scan(range, limit)
    }

    fn commit(&self, mut commit: Commit) -> std::result::Result<(), CommitError> {
        let row = Key::volume(ROW_COPYING);
        commit.checks.push((row.clone(), Expect::Is(self.token.clone())));
        match self.names.commit(commit) {
            Err(CommitError::Conflict { rows, .. }) if rows.iter().any(|(key, _)| *key == row) => {
                Err(StoreError::Fenced("another command writes to it".to_owned()).into())
            }
            done => done,
        }
    }

    fn commit_limit(&self) -> Limit {
        self.names.commit_limit()
    }

    fn flush(&self) -> std::result::Result<(), StoreError> {
        self.names.flush()
    }
}

/// Makes sure that the name is free. What an interrupted restore or format left is removed.
fn free(target: &Address) -> Result<()> {
    making::free(target, "a volume is restored under a name that is free", None)
}

/// A number for packs that is above all that the volume has. Packs of all nodes share the counter, below the
/// number of the node.
fn next_pack(store: &Arc<dyn MetaStore>) -> std::result::Result<u64, TreeError> {
    let names = Names::new(store.clone());
    let (mut from, mut highest) = (PackNo(0), 0);
    loop {
        let packs = names.packs(from, BATCH)?;
        let Some((last, _)) = packs.last() else { break };
        from = PackNo(last.0 + 1);
        highest = packs.iter().map(|(pack, _)| pack.0 & OWN).fold(highest, u64::max);
    }
    Ok((highest + 1).next_multiple_of(NUMBERS))
}

fn row(text: &str) -> Value {
    Value::from(text.as_bytes())
}

fn commit(
    store: &dyn MetaStore,
    puts: Vec<(Key, Value)>,
    dels: Vec<Key>,
) -> std::result::Result<(), TreeError> {
    match store.commit(Commit { puts, dels, ..Commit::default() }) {
        Ok(()) => Ok(()),
        Err(CommitError::Store(error)) => Err(error.into()),
        Err(CommitError::Conflict { .. }) => {
            Err(StoreError::Damaged("rows without checks met a conflict".to_owned()).into())
        }
    }
}
