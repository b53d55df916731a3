//! `covey origin mark`: recreates an origin's marker after it was lost. `covey origin claim`: makes a
//! database the one that holds the names of a shared volume.
//!
//! Covey refuses an origin without a marker, for good reason: the disk may not be mounted, or the bucket may
//! be another one. So this command first examines everything that shows which volume the place belongs to:
//! blobs, records, claims. It refuses a place that belongs to another volume.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::error::{Context, Failure, Result};
use api::text::{bytes, count};
use base::{BlobId, PackNo};
use blob::Origin;
use blob::claim::{Claim, FOLDER};
use meta::key::tags;
use meta::{Journal, Key, MetaStore, Names, PackRow};
use node::claim::memory::is_within;
use node::claim::{Writer, not_this_volume};
use node::origins::{origin_failure, spec};
use node::publisher;
use node::publisher::volume_id;
use node::volume_dir::{Holder, VolumeDir};
use node::{log, opened};
use origin::{Access, Environment, Folder, Limits, Remote, Spec};
use serde::Serialize;
use tree::Owner;
use tree::root::{self, Root};

use crate::target::{Target, resolve};
use crate::term::Term;

/// Mends what says whose an origin is: its marker, or which database holds the names of a shared volume
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey origin mark /srv/volume\n  covey origin claim 'postgres://covey@db/covey?volume=work'\n\n\
    For an origin whose object (or file) covey-origin is gone, or that was emptied, or put back from a backup, while the volume's folder is still here.\n\
    Blobs, records and claims there are looked at first; a place that belongs to another volume is refused. Blobs that the origin has lost\n\
    and this node still has are uploaded again at the next mount."
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Makes the marker of a volume's origin anew, after a look at what is there
    Mark {
        /// The volume's folder; it must not be mounted
        volume: PathBuf,
    },
    /// Makes a database the one that holds the names of a shared volume, after it was restored or moved
    Claim {
        /// The address of the volume; no node may have it mounted
        address: PathBuf,
    },
}

#[derive(Debug, Default, Serialize)]
struct Outcome {
    volume: PathBuf,
    origin: String,
    /// Whether the marker was missing and has been created.
    made: bool,
    /// Number of blobs that the volume's names or published trees need.
    needed: u64,
    /// Of these, the number that the origin does not have.
    missing: u64,
    /// Of the missing, the number that this node has and uploads again.
    again: u64,
    /// The bytes of the blobs that are uploaded again.
    again_bytes: u64,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    match &args.what {
        What::Mark { volume } => run_mark(volume, term),
        What::Claim { address } => run_claim(address, term),
    }
}

#[derive(Debug, Serialize)]
struct Claimed {
    /// The address of the volume, without a password.
    names: String,
    origin: String,
    /// The number of the claim.
    claim: u64,
    /// Why the database could only be read before. `null`: it held the names already.
    before: Option<String>,
}

fn run_claim(address: &Path, term: Term) -> Result<u8> {
    if !node::shared::making::is_address(address) {
        return Err(Failure::usage(format!("{} is not the address of a shared volume", address.display()))
            .next("name its database: postgres://USER@HOST/DATABASE?volume=NAME, or etcd://HOST/?volume=NAME")
            .next("a volume in a folder is claimed by its next mount: covey mount --take-over VOLUME MOUNTPOINT"));
    }
    let node::shared::claiming::Claimed { names, origin, epoch: claim, before } =
        node::shared::claiming::claim(address)?;
    let done = Claimed { names, origin, claim, before };
    term.result(&done, || match &done.before {
        None => format!("{} holds the names of {} already (claim {})", done.names, done.origin, done.claim),
        Some(_) => format!(
            "{} holds the names of {} from now on (claim {}); nodes of another database delete nothing any more",
            done.names, done.origin, done.claim
        ),
    });
    Ok(0)
}

fn run_mark(volume: &Path, term: Term) -> Result<u8> {
    let dir = match resolve(volume)? {
        Target::Closed { dir, .. } => dir,
        Target::Mounted(place) => {
            let point = place.mount.path.display();
            return Err(Failure::new("in-use", format!("{} is mounted", place.mount.source))
                .next(format!("unmount it first: covey umount {point}")));
        }
    };
    let _lock =
        dir.lock(&Holder { pid: std::process::id(), does: "origin mark".to_owned(), mountpoint: None })?;
    let outcome = mark(&dir)?;
    term.result(&outcome, || text(&outcome));
    Ok(u8::from(outcome.missing > outcome.again))
}

/// The origin, opened without requiring a marker.
enum Place {
    Local(Arc<Folder>),
    RemoteSide(Arc<Remote>),
}

impl Place {
    fn of(dir: &VolumeDir) -> Result<Place> {
        Ok(match spec(dir)? {
            Spec::Remote(spec) => {
                let (environment, limits) = (Environment::process(), Limits::default());
                let id = &dir.format().id;
                let remote = Remote::open_unseen(&spec, &environment, limits, Access::ReadWrite, id);
                Place::RemoteSide(Arc::new(remote.map_err(origin_failure)?))
            }
            spec => {
                let folder = spec.folder().map(Folder::unmarked).transpose().map_err(origin_failure)?;
                Place::Local(Arc::new(
                    folder.ok_or_else(|| Failure::usage("the volume has no origin to mark"))?,
                ))
            }
        })
    }

    fn origin(&self) -> Arc<dyn Origin> {
        match self {
            Place::Local(folder) => folder.clone(),
            Place::RemoteSide(remote) => remote.clone(),
        }
    }

    /// Creates the marker. Returns whether it was missing.
    fn mark(&self, id: &str) -> Result<bool> {
        let made = match self {
            Place::Local(folder) => folder.mark(id),
            Place::RemoteSide(remote) => remote.mark(),
        };
        made.map_err(origin_failure)
    }

    /// Opens the writer. The marker must exist.
    fn writer(&self, dir: &VolumeDir) -> Result<Writer> {
        Ok(match self {
            Place::Local(folder) => {
                let private = is_within(folder.dir(), dir.path());
                let marked = Folder::open(folder.dir(), Access::ReadWrite).map_err(origin_failure)?;
                Writer::mending(dir, Arc::new(marked), true, private)
            }
            Place::RemoteSide(remote) => Writer::mending(dir, remote.clone(), false, false),
        })
    }
}

fn mark(dir: &VolumeDir) -> Result<Outcome> {
    let place = Place::of(dir)?;
    let origin = place.origin();
    let is_ours = records_are_ours(dir, &*origin)?;
    let journal = opened::open_names(dir, origin.clone())?;
    let found = Found::look(&*origin, &journal)?;
    if !is_ours && found.blobs > 0 && found.known == 0 {
        return Err(Failure::new(
            "origin-taken",
            format!("what is in {} is not this volume's", dir.origin()),
        )
        .why(format!("it holds {} blobs, none of which this volume knows", count(found.blobs)))
        .next("check the origin in covey.json, and which disk is mounted there"));
    }
    let made = place.mark(&dir.format().id)?;
    let writer = place.writer(dir)?;
    writer.mend()?;
    let held = writer.hold_published(&*journal);
    let (again, again_bytes) = match &place {
        Place::Local(_) => (0, 0),
        Place::RemoteSide(_) => upload_again(dir, &found.missing)?,
    };
    let closed = journal.close();
    writer.close();
    held?;
    closed
        .map_err(|error| Failure::new("io", "the volume's names cannot be closed").why(error.to_string()))?;
    Ok(Outcome {
        volume: dir.path().to_owned(),
        origin: dir.origin(),
        made,
        needed: found.needed,
        missing: found.missing.len() as u64,
        again,
        again_bytes,
    })
}

/// Whether any record says that the origin belongs to this volume. An error if a record names another volume.
fn records_are_ours(dir: &VolumeDir, origin: &dyn Origin) -> Result<bool> {
    let mine = volume_id(dir);
    let failed = |error| publisher::failure(format!("cannot look at what is in {}", dir.origin()), error);
    let mut volumes = Vec::new();
    volumes.extend(Owner::read(origin).map_err(failed)?.map(|owner| owner.volume));
    for name in root::names(origin).map_err(failed)? {
        let record = origin.record(&format!("published/{name}")).map_err(|error| failed(error.into()))?;
        // A damaged root gives no information here. `covey published` reports it.
        volumes.extend(record.and_then(|record| Root::decode(&name, &record).ok()).map(|root| root.volume));
    }
    for name in origin.records(FOLDER).map_err(|error| failed(error.into()))? {
        let record = origin.record(&name).map_err(|error| failed(error.into()))?;
        volumes.extend(record.and_then(|record| Claim::decode(&record).ok()).map(|claim| claim.volume));
    }
    match volumes.iter().find(|volume| **volume != mine) {
        Some(other) => Err(not_this_volume(dir, &root::hex(other))),
        None => Ok(!volumes.is_empty()),
    }
}

/// What the origin holds, and what the volume needs from it.
#[derive(Default)]
struct Found {
    blobs: u64,
    /// Of these, the number that the volume knows.
    known: u64,
    needed: u64,
    missing: Vec<BlobId>,
}

impl Found {
    fn look(origin: &dyn Origin, journal: &Arc<Journal>) -> Result<Found> {
        let cannot = |why: String| Failure::new("origin", "cannot look at what is in the origin").why(why);
        let names =
            |error: meta::store::StoreError| cannot(error.to_string()).next("check the volume: covey fsck");
        let mut missing = needed(journal).map_err(names)?;
        let mut found = Found { needed: missing.len() as u64, ..Found::default() };
        let listed = origin.list(&mut |id, _| {
            found.blobs += 1;
            found.known += u64::from(missing.remove(&id));
            true
        });
        listed.map_err(|error| {
            cannot(error.to_string()).next("check that the origin answers, then try again")
        })?;
        found.missing = missing.into_iter().collect();
        Ok(found)
    }
}

/// All blobs that names or published trees need.
fn needed(journal: &Arc<Journal>) -> std::result::Result<HashSet<BlobId>, meta::store::StoreError> {
    let store: Arc<dyn MetaStore> = journal.clone();
    let names = Names::new(store.clone());
    let (mut all, mut from) = (HashSet::new(), PackNo(0));
    loop {
        let rows = names.packs(from, 1024)?;
        let Some((last, _)) = rows.last() else { break };
        from = PackNo(last.0 + 1);
        all.extend(rows.iter().filter_map(|(_, row)| match row {
            PackRow::Sealed { blob, .. } => Some(*blob),
            _ => None,
        }));
    }
    let mut range = Key::kind(tags::HELD);
    loop {
        let rows = store.scan(&range, 1024)?;
        let Some((last, _)) = rows.last() else { return Ok(all) };
        range.start = last.successor();
        all.extend(rows.iter().filter_map(|(key, _)| key.as_held().map(|(blob, _)| blob)));
    }
}

/// Notes the blobs that this node has and the origin lacks. The next mount uploads them.
fn upload_again(dir: &VolumeDir, missing: &[BlobId]) -> Result<(u64, u64)> {
    let (mut blobs, mut size) = (0, 0);
    for id in missing {
        let name = id.to_string();
        let (here, note) = (dir.blobs().join(&name[..2]).join(&name), dir.uploads().join(&name));
        let Ok(meta) = std::fs::metadata(&here) else { continue };
        match std::fs::hard_link(&here, &note) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                log::warn(&format!("{name} is on this node, but could not be queued for upload: {error}"));
                continue;
            }
            _ => {}
        }
        (blobs, size) = (blobs + 1, size + meta.len());
    }
    sync(&dir.uploads())?;
    Ok((blobs, size))
}

fn sync(folder: &Path) -> Result<()> {
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).at("write to", folder)
}

fn text(outcome: &Outcome) -> String {
    let origin = &outcome.origin;
    let mut text = match outcome.made {
        true => format!("{origin} has its marker again."),
        false => format!("{origin} has its marker."),
    };
    let (missing, again) = (outcome.missing, outcome.again);
    if missing == 0 {
        return text + &format!(" All {} blobs that the volume needs are there.", count(outcome.needed));
    }
    text += &format!(" It lacks {} of {} blobs", count(missing), count(outcome.needed));
    if again > 0 {
        text += &format!(
            "; {} ({}) are on this node and are uploaded at the next mount",
            count(again),
            bytes(outcome.again_bytes)
        );
    }
    if missing > again {
        text += &format!(
            "; {} are lost: covey fsck {} says which files they held",
            count(missing - again),
            outcome.volume.display()
        );
    }
    text + "."
}
