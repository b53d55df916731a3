//! Publishing a shared volume, from any node that has it mounted.
//!
//! ```text
//!   turn       a row in the database: one publication at a time, on all nodes
//!   flush      every node stores what it has acknowledged
//!   snapshot   the rows of this moment; all nodes keep writing
//!   packs      each becomes a blob in the origin (packs.rs)
//!   hold, tree, root   as for every volume
//! ```
//!
//! While a node has the turn, no node begins to delete a blob (`fs::gc::shared`). When a node's session
//! ends, its turn is taken away.
//!
//! **One identity for all nodes.** The key that signs is a row in the database. So the trees of all nodes
//! have one owner, and a node that is lost takes no key with it.

mod packs;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::fs::shared::SessionId;
use api::answers::PublishSummary;
use api::control::Tick;
use api::error::{Failure, Result};
use blob::{BlobError, Origin};
use meta::engine::moment::Moment;
use meta::store::{CommitError, StoreError, Value};
use meta::{Commit, Expect, Key, MetaStore};
use packs::Failed;
use tree::rows::{Pack, Selection};
use tree::{Owner, Selected, TreeError};

use super::{PATIENCE, Wanted, no_folder, say, tree_error};
use crate::opened::Node;
use crate::publisher::{Publisher, check_is, failure};
use crate::refused::read_only;
use crate::shared::Shared;

/// The row with the identity by which the volume signs.
pub(crate) const ROW_PUBLISHER: &str = "publisher";
/// How often a node that waits for its turn looks.
const LOOK: Duration = Duration::from_millis(250);
/// The most snapshots for one publication. A pack whose files are all removed after the snapshot is dropped
/// before it is a blob, and then another snapshot is taken.
const SNAPSHOTS: u32 = 20;

impl Node {
    /// Publishes a folder of the shared volume.
    pub(super) fn publish_shared(
        &self,
        shared: &Shared,
        wanted: &Wanted,
        tick: &mut dyn FnMut(Tick) -> bool,
    ) -> Result<PublishSummary> {
        let started = base::time::monotonic();
        if !self.mode().writes() {
            return Err(read_only("publish"));
        }
        let Wanted { path, name, afresh, keep } = wanted;
        let scope = self.scope(path)?;
        let store = self.store();
        let failed = |error: TreeError| failure(format!("cannot publish {}", self.name()), error);
        let turn = Turn::take(&store, shared, tick)?;
        let signed = self.as_publisher(name, *keep)?;
        let (rows, packs) = self.moment(&store, shared, name, tick).map_err(failed)?;
        let selection = Selection::of(&rows, scope, &packs).map_err(|error| match error {
            TreeError::NotAFolder => no_folder(path),
            other => failed(other),
        })?;
        let held = self.volume().hold(name, &mut selection.packs().iter().map(|pack| pack.blob));
        held.map_err(|error| failed(tree_error(error)))?;
        let content = Selected::new(&rows, &selection);
        self.put_root(name, *afresh, &signed, &content, started, &|| turn.check(), tick)
    }

    /// Waits until no node publishes. From then on none does, until the returned value is dropped.
    pub(super) fn turn(&self, shared: &Shared) -> Result<impl Drop + use<>> {
        if !self.mode().writes() {
            return Err(read_only("unpublish"));
        }
        // The words are those of a publication.
        let renamed = |failure: Failure| match failure.what.as_str() {
            "cannot publish" => Failure { what: "cannot unpublish".to_owned(), ..failure },
            _ => failure,
        };
        Turn::take(&self.store(), shared, &mut |_| true).map_err(renamed)
    }

    /// Fails if another volume owns the origin by now. A published tree of this volume was restored then.
    pub(crate) fn check_shared_owner(&self) -> Result<()> {
        let Some(dir) = self.dir() else { return Ok(()) };
        let found = match Owner::read(&*self.volume().parts().origin) {
            Ok(Some(found)) => found,
            // Nothing is published, or the origin cannot be asked now.
            Ok(None) | Err(TreeError::Blob(_)) => return Ok(()),
            Err(error) => return Err(failure("it cannot be seen whose the origin is", error)),
        };
        check_is(&found, owner(&*self.store())?, dir)
    }

    /// The rows of now, and the packs that they refer to, whose blobs are in the origin.
    fn moment(
        &self,
        store: &Arc<dyn MetaStore>,
        shared: &Shared,
        tree: &str,
        tick: &mut dyn FnMut(Tick) -> bool,
    ) -> std::result::Result<(Moment, Vec<Pack>), TreeError> {
        for _ in 0..SNAPSHOTS {
            say(tick, 0, "waiting until every node has stored its changes".to_owned());
            shared.flush_everywhere()?;
            say(tick, 0, "sealing what is open".to_owned());
            let mut rows = Moment::of(store.snapshot()?)?;
            self.volume().seal_now(PATIENCE).map_err(tree_error)?;
            match packs::in_origin(self.volume(), shared, &rows, tree) {
                Ok(packs) => {
                    rows.raise_next_pack(packs.iter().map(|pack| pack.no.0 + 1).max().unwrap_or(0))?;
                    return Ok((rows, packs));
                }
                Err(Failed::Dropped) => {}
                Err(Failed::Tree(error)) => return Err(error),
            }
        }
        let what = "files are created and removed faster than their bytes become blobs".to_owned();
        Err(TreeError::Blob(BlobError::Unavailable(what)))
    }
}

/// The identity by which the volume signs, made at its first publication. It remembers how many publications
/// are kept.
pub(super) fn identity(store: &dyn MetaStore, name: &str, keep: Option<u32>) -> Result<Publisher> {
    let key = Key::volume(ROW_PUBLISHER);
    loop {
        let row = store.get(&key).map_err(no_identity)?;
        let mut me = match &row {
            Some(row) => read(row)?,
            None => Publisher::fresh(),
        };
        let changed = keep.is_some_and(|keep| me.set_keep(name, keep));
        if row.is_some() && !changed {
            return Ok(me);
        }
        let expect = row.map_or(Expect::Absent, Expect::Is);
        let puts = vec![(key.clone(), Value::from(me.to_text().as_bytes()))];
        match store.commit(Commit { checks: vec![(key.clone(), expect)], puts, ..Commit::default() }) {
            // The origin's record of its owner must not outlive this row.
            Ok(()) => return store.flush().map(|()| me).map_err(no_identity),
            // Another node did the same.
            Err(CommitError::Conflict { .. }) => {}
            Err(CommitError::Store(error)) => return Err(no_identity(error)),
        }
    }
}

/// Makes a volume the owner of its origin whose rows are from before its first publication. An owner that has
/// taken the origin over from another one stays: a tree was restored there. `note`: where the volume is.
pub(crate) fn stay_owner(
    store: &dyn MetaStore,
    origin: &dyn Origin,
    volume: [u8; 16],
    note: String,
) -> Result<()> {
    let failed = |error: TreeError| failure("the volume cannot publish to its origin", error);
    let Some(found) = Owner::read(origin).map_err(failed)? else { return Ok(()) };
    if found.generation > 1 || found.volume != volume || owner(store)? == Some(found.owner) {
        return Ok(());
    }
    let me = identity(store, "", None)?;
    let (owner, key) = (me.owner().unwrap_or_default(), me.signer()?.key());
    found.hand_over(origin, owner, note, key).map(drop).map_err(failed)
}

/// The owner id of the volume, if it has ever published.
pub(crate) fn owner(store: &dyn MetaStore) -> Result<Option<[u8; 16]>> {
    let row = store.get(&Key::volume(ROW_PUBLISHER)).map_err(no_identity)?;
    Ok(row.map(|row| read(&row)).transpose()?.and_then(|me| me.owner()))
}

fn read(row: &[u8]) -> Result<Publisher> {
    crate::secrets::keep_from_dumps();
    // The row holds a secret, so no part of it is shown.
    Publisher::from_text(row).ok_or_else(|| {
        Failure::new("damaged", "the row `publisher` of the volume cannot be understood")
            .why("it holds the key by which the volume signs what it publishes")
            .next("restore the database from a backup")
    })
}

fn no_identity(error: StoreError) -> Failure {
    failure("the volume's key cannot be read", error.into())
}

/// The right to publish, which one node has at a time. It ends when this is dropped, and with the session in
/// which it was taken.
struct Turn {
    store: Arc<dyn MetaStore>,
    row: Value,
}

impl Turn {
    /// Waits for the publication of another node, as long as a publication may take.
    fn take(store: &Arc<dyn MetaStore>, shared: &Shared, tick: &mut dyn FnMut(Tick) -> bool) -> Result<Turn> {
        let until = base::time::monotonic() + PATIENCE;
        let others = shared.others();
        let failed = |error: StoreError| failure("cannot publish", error.into());
        let epoch =
            others.epoch().ok_or_else(|| failed(StoreError::Fenced("it has no session".to_owned())))?;
        let mut row = shared.number().to_be_bytes().to_vec();
        row.extend(epoch.to_be_bytes());
        // Two publications of one session differ.
        row.extend(base::random::u64().to_be_bytes());
        let turn = Turn { store: store.clone(), row: row.as_slice().into() };
        loop {
            let before = store.get(&Key::publishing()).map_err(failed)?;
            let holder = before.as_deref().and_then(holder);
            // The sessions are read after the row: a session that is not among them has ended for ever.
            let waits = match holder {
                Some(holder) => others.alive().map_err(failed)?.contains(&holder),
                None => false,
            };
            if !waits && turn.write(before).map_err(failed)? {
                return Ok(turn);
            }
            if let Some(holder) = holder.filter(|_| waits) {
                turn.wait(holder, until, tick)?;
            }
        }
    }

    fn write(&self, before: Option<Value>) -> std::result::Result<bool, StoreError> {
        let key = Key::publishing();
        let checks = vec![(key.clone(), before.map_or(Expect::Absent, Expect::Is))];
        let puts = vec![(key, self.row.clone())];
        match self.store.commit(Commit { checks, puts, ..Commit::default() }) {
            Ok(()) => self.store.flush().map(|()| true),
            Err(CommitError::Conflict { .. }) => Ok(false),
            Err(CommitError::Store(error)) => Err(error),
        }
    }

    fn wait(&self, holder: SessionId, until: Instant, tick: &mut dyn FnMut(Tick) -> bool) -> Result<()> {
        let what = format!("waiting for the publication of the node {}", holder.node);
        if base::time::monotonic() >= until || !say(tick, 0, what) {
            return Err(Failure::new("busy", format!("the node {} publishes this volume", holder.node))
                .why("one publication of a volume runs at a time")
                .next("try again when it has ended; covey sessions MOUNT says which machine that is"));
        }
        std::thread::sleep(LOOK);
        Ok(())
    }

    /// Fails if the right was lost, because the session ended meanwhile.
    fn check(&self) -> Result<()> {
        let row = self.store.get(&Key::publishing());
        let row = row.map_err(|error| failure("cannot publish", error.into()))?;
        if row.as_ref() == Some(&self.row) {
            return Ok(());
        }
        Err(Failure::new("stopped", "the publication was given up: this node's session ended meanwhile")
            .next("what was published before is as it was; try again"))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let key = Key::publishing();
        let checks = vec![(key.clone(), Expect::Is(self.row.clone()))];
        // If it fails, the right ends with the session.
        let _ = self.store.commit(Commit { checks, dels: vec![key], ..Commit::default() });
    }
}

/// The session that has the turn.
fn holder(row: &[u8]) -> Option<SessionId> {
    let (node, rest) = row.split_first_chunk::<4>()?;
    let (epoch, _) = rest.split_first_chunk::<8>()?;
    Some(SessionId { node: u32::from_be_bytes(*node), epoch: u64::from_be_bytes(*epoch) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_identity_is_made_and_kept() {
        let store = meta::Memory::new();
        assert_eq!(owner(&store).unwrap(), None);
        let first = identity(&store, "a", None).unwrap();
        assert_eq!(identity(&store, "a", Some(7)).unwrap().owner(), first.owner());
        assert_eq!(identity(&store, "b", None).unwrap().kept("a"), 7);
        assert_eq!(owner(&store).unwrap(), first.owner());
        let puts = vec![(Key::volume(ROW_PUBLISHER), b"{}".as_slice().into())];
        store.commit(Commit { puts, ..Commit::default() }).unwrap();
        assert_eq!(owner(&store).unwrap_err().code, "damaged");
    }

    #[test]
    fn a_turn_names_its_session() {
        let row = [&7u32.to_be_bytes()[..], &9u64.to_be_bytes(), &[1; 8]].concat();
        assert_eq!(holder(&row), Some(SessionId { node: 7, epoch: 9 }));
        assert_eq!(holder(b"short"), None, "a row that cannot be read keeps nobody from publishing");
    }
}
