//! A volume of one node becomes a shared one: its names move into a database, its blobs stay where they are.
//!
//! ```text
//!   seal, upload          every byte is in the origin
//!   check                 the names agree with one another, and the origin has every blob that they need
//!   copy, read back       all rows, into a volume that no node mounts: it lacks the row `origin`
//!   row `promoting`       from here on only this folder decides what becomes of that volume
//!   claim `promoted`      no other copy of the folder may write any more
//!   rename covey.json     THE SWITCH: the folder is a node's
//!   row `origin`          the volume is complete, and nodes mount it ([`unfinished`])
//!   remains               the old names, the claim and the key are removed
//! ```
//!
//! A kill before the switch leaves the volume as it was. The next attempt goes on with what is in the
//! database. A kill after it leaves a node's folder, whose next mount or promotion does the rest.

pub mod handover;
mod moving;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use api::control::Tick;
use api::error::{Context, Failure, Result};
use api::text::count;
use base::BlobId;
use engines::Address;
use meta::audit::{self, Listener};
use meta::engine::database::{Database, SetupError};
use meta::engine::moment::Moment;
use meta::store::{CommitError, StoreError, Value};
use meta::{Commit, Expect, Key, MetaStore, Snapshot};
use net::secret::Secret;
use origin::Access;
use tree::TreeError;

use super::making::{self, Made, write_durably};
use super::rows::{ROW_COPYING, ROW_ORIGIN, ROW_PROMOTING, ROW_REMOVING, ROW_SECRET};
use super::{setup_failure, unfinished};
use crate::claim::Writer;
use crate::claim::memory::is_within;
use crate::opened::{self, Bare, Node};
use crate::origins::{origin_failure, spec};
use crate::publish::shared::ROW_PUBLISHER;
use crate::publisher::{self, Publisher, volume_id};
use crate::refused::{not_a_volume, not_shared, open_failure, read_only};
use crate::volume_dir::{Holder, VolumeDir};
use moving::{Moving, Rows};

/// Rows about condemned packs that are written at a time.
const MARKS: usize = 1000;

/// What a promotion did.
#[derive(Clone, Debug)]
pub struct Promoted {
    /// The shared volume.
    pub made: Made,
    /// Rows that were copied.
    pub rows: u64,
    /// Rows that a shared volume does not have.
    pub left_out: u64,
    /// Blobs that the names need, all of which are in the origin.
    pub blobs: u64,
    /// Bytes of the needed blobs, as far as packs say them.
    pub blob_bytes: u64,
    /// An earlier promotion had been interrupted after its switch, and was finished.
    pub was_finished: bool,
}

/// Makes a shared volume at this address of the volume in a folder, which is not in use. The folder becomes
/// that of the first node. `live`: a daemon has programs that wait, and completes the shared volume when it
/// opens the folder.
pub fn promote(dir: &VolumeDir, text: &Path, live: bool, tick: &mut dyn FnMut(Tick)) -> Result<Promoted> {
    let target = making::target_of(text)?;
    if dir.is_shared() {
        return finish_earlier(dir, &target);
    }
    let life = unfinished::life_of(dir);
    check_origin(dir)?;
    check_name(&target)?;
    let bare = opened::open_bare(dir, "promote", false, None)?;
    let writer = bare.writer.clone().ok_or_else(|| no_origin(dir))?;
    writer.verify()?;
    writer.hold_published(&*bare.parts.store)?;
    bare.settle(dir, !live, tick)?;
    let (blobs, blob_bytes) = check(dir, &bare, &writer, tick)?;
    let promotion = Promotion::begin(dir, &target, life.as_deref())?;
    let moved = promotion.fill(&bare, tick).and_then(|moved| {
        bare.journal.close().map_err(|error| open_failure(dir.path(), ::fs::OpenError::Store(error)))?;
        writer.promote().map(|()| moved)
    });
    let moved = moved.map_err(|failure| promotion.undone(failure))?;
    let node = promotion.switch()?;
    if !live {
        tick(Tick { done: 0, of: 0, what: "completing the shared volume".to_owned() });
        finish(&node, &target)?;
    }
    let made = made(&node, &target);
    let (rows, left_out) = (moved.rows, moved.left_out);
    Ok(Promoted { made, rows, left_out, blobs, blob_bytes, was_finished: false })
}

fn made(dir: &VolumeDir, target: &Address) -> Made {
    Made { id: dir.format().id.clone(), origin: dir.origin(), names: target.to_string() }
}

/// Other machines must reach the blobs.
fn check_origin(dir: &VolumeDir) -> Result<()> {
    let spec = spec(dir)?;
    match spec.folder() {
        Some(folder) if is_within(folder, dir.path()) => Err(no_origin(dir)),
        _ => Ok(()),
    }
}

fn no_origin(dir: &VolumeDir) -> Failure {
    let shown = dir.path().display();
    Failure::new("no-origin", format!("the blobs of {shown} are in its own folder, which other machines do not reach"))
        .why("a shared volume needs an origin that all its nodes reach")
        .next(format!(
            "for an object store, copy it into a new volume: covey format NEW --origin s3://BUCKET/PREFIX, covey export {shown} - | covey import - NEW:/"
        ))
        .next(format!(
            "for a filesystem that all nodes have, move the folder {shown}/blobs there, and name its new place in covey.json: \"origin\": \"file:DIR\""
        ))
}

/// Fails early if the database cannot be used, or has a volume of this name.
fn check_name(target: &Address) -> Result<()> {
    let names = match target.open() {
        Ok(names) => names,
        Err(SetupError::Missing(_)) => return Ok(()),
        Err(error) => return Err(setup_failure(error)),
    };
    let names: Arc<dyn MetaStore> = names;
    match making::is_complete(&names)? {
        false => Ok(()),
        true => Err(Failure::new("exists", format!("the database has a volume {} already", target.volume()))
            .why("a volume is promoted under a name that is free")
            .next("choose another name: ...?volume=NAME")),
    }
}

/// Checks that the names agree with one another, and that the origin has all blobs that they need. Returns
/// how many, and their bytes.
fn check(dir: &VolumeDir, bare: &Bare, writer: &Writer, tick: &mut dyn FnMut(Tick)) -> Result<(u64, u64)> {
    let damaged = |what: String| {
        Failure::new("damaged", format!("{what}, so nothing was changed")).next(format!(
            "covey fsck {0} says more; covey fsck --repair {0} mends what can be mended",
            dir.path().display()
        ))
    };
    let failed = |error: StoreError| open_failure(dir.path(), ::fs::OpenError::Store(error));
    let mut serious = 0u64;
    let mut listener = Listener {
        found: &mut |finding| serious += u64::from(!finding.is_harmless()),
        progress: &mut |rows| {
            tick(Tick { done: rows, of: 0, what: format!("checking names: {} rows", count(rows)) })
        },
    };
    audit::audit(&*bare.parts.store, &mut listener).map_err(failed)?;
    if serious > 0 {
        return Err(damaged(format!("the names of the volume have {} errors", count(serious))));
    }
    let rows = bare.parts.store.snapshot().map_err(failed)?;
    let needed = moving::needed(&*rows).map_err(failed)?;
    let (blobs, bytes) = (needed.len() as u64, needed.values().flatten().map(|size| u64::from(*size)).sum());
    tick(Tick { done: 0, of: 0, what: format!("looking for {} blobs in the origin", count(blobs)) });
    let missing = missing(writer, needed)?;
    if missing > 0 {
        return Err(damaged(format!("the origin lacks {} blobs of the volume", count(missing))));
    }
    Ok((blobs, bytes))
}

/// The number of blobs that the origin does not have, or has with another size.
fn missing(writer: &Writer, mut needed: HashMap<BlobId, Option<u32>>) -> Result<u64> {
    let origin = writer.origin();
    let failed = |error: blob::BlobError| {
        Failure::new("origin-away", "it cannot be seen whether the origin has all blobs")
            .why(error.to_string())
            .next("nothing was changed; try again when the origin answers")
    };
    let is_that = |wanted: &Option<u32>, size: u64| wanted.is_none_or(|wanted| u64::from(wanted) == size);
    let mut wrong = 0;
    let listed = origin.list(&mut |id, size| {
        wrong += u64::from(needed.remove(&id).is_some_and(|wanted| !is_that(&wanted, size)));
        true
    });
    listed.map_err(failed)?;
    // A listing may lag behind.
    for (id, wanted) in &needed {
        let found = origin.size(id).map_err(failed)?;
        wrong += u64::from(!found.is_some_and(|size| is_that(wanted, size)));
    }
    Ok(wrong)
}

impl Node {
    /// Copies the names of a volume that is in use, as they are now. Programs go on using it. A promotion
    /// under this address then copies only what has changed since. Returns the number of rows.
    pub fn copy_names(&self, address: &Path, tick: &mut dyn FnMut(Tick)) -> Result<u64> {
        let target = making::target_of(address)?;
        let dir = self.dir().ok_or_else(|| not_a_volume(&self.name()))?;
        not_shared(dir, "promote")?;
        if !self.mode().writes() {
            return Err(read_only("promote"));
        }
        check_origin(dir)?;
        check_name(&target)?;
        let promotion = Promotion::begin(dir, &target, unfinished::life_of(dir).as_deref())?;
        let source = self.store().snapshot().map_err(|error| promotion.of_source(error))?;
        promotion.copy(&*promotion.open()?, &Moving::in_use(&*source), tick).map(|copied| copied.rows)
    }
}

/// A failure of the database, while the volume is still the folder's.
fn database(error: StoreError) -> Failure {
    let failure = match error {
        StoreError::NoSpace(why) => Failure::new("database-full", "the database has no space left").why(why),
        error => setup_failure(error.into()),
    };
    failure.next("the volume is as it was; run the same command again")
}

struct Promotion<'a> {
    dir: &'a VolumeDir,
    target: &'a Address,
    /// The row `copying` of this attempt.
    token: Value,
}

impl<'a> Promotion<'a> {
    /// Makes the volume in the database, or goes on with the half-made one of an earlier attempt.
    fn begin(dir: &'a VolumeDir, target: &'a Address, own: Option<&str>) -> Result<Promotion<'a>> {
        let promotion = Promotion { dir, target, token: Value::from(&base::random::id16()[..]) };
        if !promotion.take_up(own)? {
            making::free(target, "a volume is promoted under a name that is free", own)?;
            target.create(volume_id(dir)).map_err(setup_failure)?;
            if !promotion.take_up(own)? {
                return Err(taken());
            }
        }
        Ok(promotion)
    }

    /// From here on, nothing that earlier attempts sent and that arrives late counts. False if the database
    /// has no volume that can be gone on with.
    fn take_up(&self, own: Option<&str>) -> Result<bool> {
        let names = match self.target.open() {
            Ok(names) if names.uuid() == volume_id(self.dir) => names,
            Ok(_) | Err(SetupError::Missing(_)) => return Ok(false),
            Err(error) => return Err(setup_failure(error)),
        };
        let promoting = Key::volume(ROW_PROMOTING);
        let row = names.get(&promoting).map_err(database)?;
        let own_row = row.clone().filter(|row| own == Some(unfinished::life_in(row).as_str()));
        if row.is_some() && own_row.is_none() {
            return Ok(false);
        }
        let checks = vec![
            (Key::volume(ROW_ORIGIN), Expect::Absent),
            (Key::volume(ROW_REMOVING), Expect::Absent),
            (promoting.clone(), own_row.clone().map_or(Expect::Absent, Expect::Is)),
        ];
        let puts = vec![(Key::volume(ROW_COPYING), self.token.clone())];
        let dels = own_row.map(|_| promoting).into_iter().collect();
        match names.commit(Commit { checks, puts, dels, ..Commit::default() }) {
            Ok(()) => Ok(true),
            Err(CommitError::Conflict { .. }) => Ok(false),
            Err(CommitError::Store(error)) => Err(database(error)),
        }
    }

    fn of_source(&self, error: StoreError) -> Failure {
        open_failure(self.dir.path(), ::fs::OpenError::Store(error))
    }

    /// Brings the rows in the database up to date.
    fn copy(&self, names: &dyn Database, moving: &Moving<'_>, tick: &mut dyn FnMut(Tick)) -> Result<Rows> {
        let fence = (Key::volume(ROW_COPYING), self.token.clone());
        let copied = moving.copy(names, fence, &mut |done| {
            tick(Tick { done, of: 0, what: format!("copying names: {} rows", count(done)) });
        });
        copied.map_err(|error| match error {
            TreeError::Store(StoreError::Fenced(_)) => taken(),
            TreeError::Store(error) => database(error),
            error => publisher::failure("the names cannot be copied", error),
        })
    }

    /// Copies the rows into the new volume, reads them back, and says whose they are.
    fn fill(&self, bare: &Bare, tick: &mut dyn FnMut(Tick)) -> Result<Rows> {
        let source = bare.parts.store.snapshot().map_err(|error| self.of_source(error))?;
        let moving = Moving::of(&*source).map_err(|error| self.of_source(error))?;
        let names = self.open()?;
        let copied = self.copy(&*names, &moving, tick)?;
        let secret = Secret::generate_text();
        let life = making::life(&secret);
        let mut puts = vec![(Key::volume(ROW_SECRET), Value::from(secret.into_bytes()))];
        if let Some(me) = Publisher::of(self.dir)? {
            puts.push((Key::volume(ROW_PUBLISHER), Value::from(me.to_text().into_bytes())));
        }
        commit(&*names, Commit { checks: vec![self.is_ours()], puts, ..Commit::default() })?;
        drop(names);
        self.read_back(copied, tick)?;
        self.mark_condemned(&*source)?;
        let file = self.dir.path().join(unfinished::LIFE);
        write_durably(&file, &format!("{life}\n")).at("write", &file)?;
        self.say_whose(&life)?;
        Ok(copied)
    }

    /// Nodes find condemned packs by rows that a volume of one node does not have.
    fn mark_condemned(&self, source: &dyn Snapshot) -> Result<()> {
        let marks = moving::marks(source, base::time::now()).map_err(|error| self.of_source(error))?;
        let names = self.open()?;
        for part in marks.chunks(MARKS) {
            commit(
                &*names,
                Commit { checks: vec![self.is_ours()], puts: part.to_vec(), ..Commit::default() },
            )?;
        }
        Ok(())
    }

    /// No other attempt has begun since.
    fn is_ours(&self) -> (Key, Expect) {
        (Key::volume(ROW_COPYING), Expect::Is(self.token.clone()))
    }

    fn open(&self) -> Result<Arc<dyn Database>> {
        self.target.open().map_err(setup_failure)
    }

    /// Compares all rows that the database has now with those that were copied, and checks them as `covey
    /// fsck` does.
    fn read_back(&self, copied: Rows, tick: &mut dyn FnMut(Tick)) -> Result<()> {
        let names = self.open()?;
        let of = copied.rows;
        let rows = names.snapshot().map_err(database)?;
        let found = moving::read_back(&*rows, &mut |done| {
            tick(Tick { done, of, what: format!("reading back: {} rows", count(done)) });
        });
        if found.map_err(database)? != copied.read_back() {
            return Err(differs("the rows that were read back are not those that were written"));
        }
        let mut serious = 0u64;
        let mut listener = Listener {
            found: &mut |finding| serious += u64::from(!finding.is_harmless()),
            progress: &mut |done| {
                tick(Tick { done, of: 0, what: format!("checking the copy: {} rows", count(done)) });
            },
        };
        let moment = Moment::of(rows).map_err(database)?;
        audit::audit(&moment, &mut listener).map_err(database)?;
        match serious {
            0 => Ok(()),
            _ => Err(differs("the names do not agree with one another in the database")),
        }
    }

    /// From here on only this folder decides what becomes of the volume in the database.
    fn say_whose(&self, life: &str) -> Result<()> {
        let key = Key::volume(ROW_PROMOTING);
        let row = unfinished::row_of(self.dir, life);
        let removing = (Key::volume(ROW_REMOVING), Expect::Absent);
        let checks = vec![removing, self.is_ours(), (key.clone(), Expect::Absent)];
        let (puts, dels) = (vec![(key.clone(), row.clone())], vec![Key::volume(ROW_COPYING)]);
        commit(&*self.open()?, Commit { checks, puts, dels, ..Commit::default() })?;
        // Another command may have removed the volume meanwhile, and made one of the same name.
        let names = self.open()?;
        let found = names.get(&key).map_err(database)?;
        if found != Some(row) || names.uuid() != volume_id(self.dir) {
            return Err(taken());
        }
        Ok(())
    }

    /// The folder becomes a node's.
    fn switch(&self) -> Result<VolumeDir> {
        let address = self.target.to_string();
        self.dir.become_node(&address).map_err(|failure| match VolumeDir::open(self.dir.path()) {
            Ok(now) if !now.is_shared() => self.undone(failure),
            // It is done, or is not known. The database keeps the names.
            _ => failure.next("run the same command again, to finish or to repeat it"),
        })
    }

    /// Removes what was made in the database.
    fn undone(&self, failure: Failure) -> Failure {
        let own = unfinished::life_of(self.dir);
        match self.open() {
            Ok(names) if names.uuid() != volume_id(self.dir) => return failure,
            _ => {}
        }
        match making::free(self.target, "", own.as_deref()) {
            Ok(()) => failure,
            // The next attempt removes it.
            Err(_) => {
                failure.why("what was copied is still in the database, as a volume that no node mounts")
            }
        }
    }
}

fn commit(names: &dyn Database, commit: Commit) -> Result<()> {
    match names.commit(commit) {
        Ok(()) => Ok(()),
        Err(CommitError::Conflict { .. }) => Err(taken()),
        Err(CommitError::Store(error)) => Err(database(error)),
    }
}

fn taken() -> Failure {
    Failure::new("changed", "another command used the new volume in the database meanwhile, or removed it")
        .next("the volume is as it was; run the same command again, and nothing else under that name")
}

fn differs(what: &str) -> Failure {
    Failure::new("damaged", what)
        .why("another program changed the tables, or the server does not keep what it stores")
        .next("the volume is as it was; check the database, then run the same command again")
}

/// Finishes a promotion that was interrupted after its switch.
fn finish_earlier(dir: &VolumeDir, target: &Address) -> Result<Promoted> {
    let shown = dir.path().display();
    let address = dir.format().names.clone().unwrap_or_default();
    let is_here = address == target.to_string();
    let lock = Holder { pid: std::process::id(), does: "promote".to_owned(), mountpoint: None };
    if is_here {
        let _lock = dir.lock(&lock)?;
        if finish(dir, target)? {
            let made = made(dir, target);
            return Ok(Promoted { made, rows: 0, left_out: 0, blobs: 0, blob_bytes: 0, was_finished: true });
        }
    }
    Err(Failure::new("shared", format!("{shown} is the folder of a node of a shared volume already"))
        .why(format!("its names are at {address}"))
        .next(format!(
            "mount it: covey mount {shown} MOUNTPOINT, or covey mount '{address}' MOUNTPOINT on any machine"
        )))
}

/// Completes the volume and removes the remains of the folder. Returns whether there was anything to do.
fn finish(dir: &VolumeDir, target: &Address) -> Result<bool> {
    let again = |failure: Failure| {
        failure
            .why("the folder is a node's already; the next mount of it finishes the rest")
            .next("run the same command again")
    };
    let names: Arc<dyn MetaStore> = target.open().map_err(|error| again(setup_failure(error)))?;
    let completed = unfinished::complete(dir, &names).map_err(again)?;
    unfinished::check_complete(target, &names).map_err(again)?;
    let remains = unfinished::has_remains(dir);
    if remains {
        let origin = spec(dir)?.open(Access::ReadWrite).map_err(|error| again(origin_failure(error)))?;
        unfinished::remove_remains(dir, &*origin).map_err(again)?;
    }
    Ok(completed || remains)
}
