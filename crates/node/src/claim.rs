//! A volume's claim on its origin, as a node holds it: where the folder stores it, when it is made, and what
//! happens when it is lost.
//!
//! [`origin::claim`] defines what a claim is and what it allows. This module holds the folder's file
//! ([`memory`]), the steps of opening for writing ([`Writer::open`]), and the thread that checks the claim
//! while the volume is open ([`watch`]).
//!
//! ```text
//!   marker ──► record `owner` ──► claim ──► (took over: wait, become the owner, hold what is published)
//!                                   │                                           ──► the volume is written to
//!                                   │
//!            every few seconds: still ours?  no ──► read-only, one line in the log, shown by `covey status`
//! ```

pub mod memory;
pub mod watch;

use std::sync::Arc;
use std::time::Duration;

use ::fs::volume::MayDelete;
use api::error::{Failure, Result};
use api::status::ClaimStatus;
use api::text::{seconds_since, utc};
use blob::{BlobError, BlobSource, Origin};
use meta::MetaStore;
use origin::claim::decide::Wish;
use origin::claim::keeper::{ClaimError, Claimant, Opened};
use origin::claim::{Claim, Guarded, Keeper, Kind, Refusal, SETTLE, Standing};
use tree::history;
use tree::root::{self, Root};
use tree::{Owner, Tree, TreeError};

use crate::log;
use crate::publisher;
use crate::publisher::Publisher;
use crate::volume_dir::VolumeDir;
use memory::ClaimFile;

/// The shortest time limit for an answer from the origin.
const LEAST: Duration = Duration::from_secs(1);
/// How long the origin may take to record the end of a mount.
const LAST_WORD: Duration = Duration::from_secs(3);

/// A volume's folder as a writer to its origin.
#[derive(Clone)]
pub struct Writer {
    dir: VolumeDir,
    /// The origin without the claim's protection.
    bare: Arc<dyn Origin>,
    keeper: Arc<Keeper>,
    take_over: bool,
    /// Whether the origin is in a folder.
    is_local: bool,
    /// Whether the origin lies within the volume's own folder.
    private: bool,
    /// The folder whose marker is completed after the origin is claimed.
    marker: Option<Arc<origin::Folder>>,
}

impl Writer {
    /// The writer to a remote origin.
    pub fn remote(dir: &VolumeDir, bare: Arc<dyn Origin>, take_over: bool) -> Writer {
        Writer::new(dir, bare, None, false, take_over)
    }

    /// The writer to an origin in a folder.
    pub fn local(dir: &VolumeDir, folder: origin::Folder, take_over: bool) -> Result<Writer> {
        let folder = Arc::new(folder);
        if let Some(owner) = folder.volume().filter(|owner| *owner != dir.format().id) {
            return Err(not_this_volume(dir, &owner));
        }
        let private = memory::is_within(folder.dir(), dir.path());
        Ok(Writer::new(dir, folder.clone(), Some(folder), private, take_over))
    }

    /// The writer to an origin whose marker and claims may be lost. The caller repairs them.
    pub fn mending(dir: &VolumeDir, bare: Arc<dyn Origin>, local: bool, private: bool) -> Writer {
        Writer { marker: None, ..Writer::with(dir, bare, local, private, false) }
    }

    /// Claims an origin whose marker exists again. If the origin lost its claims, or was restored to an
    /// earlier state, this makes new ones.
    pub fn mend(&self) -> Result<()> {
        match self.keeper.open(Wish::Open) {
            Err(ClaimError::Refused(Refusal::OriginOlder(_))) => self.keeper.open(Wish::TakeOver),
            done => done,
        }
        .map(drop)
        .map_err(|error| match error {
            ClaimError::Refused(refusal) => self.refused(&refusal),
            ClaimError::Gone(why) => gone(&self.dir, why),
            ClaimError::Origin(error) => self.failure(error),
            ClaimError::Memory(error) => memory::failure(&self.dir, &error),
        })
    }

    /// The writer of a volume that is being restored into a folder outside of its origin.
    pub fn restored(dir: &VolumeDir, bare: Arc<dyn Origin>) -> Writer {
        Writer::remote(dir, bare, true)
    }

    fn new(
        dir: &VolumeDir,
        bare: Arc<dyn Origin>,
        marker: Option<Arc<origin::Folder>>,
        private: bool,
        take_over: bool,
    ) -> Writer {
        let local = marker.is_some();
        Writer { marker, ..Writer::with(dir, bare, local, private, take_over) }
    }

    fn with(dir: &VolumeDir, bare: Arc<dyn Origin>, local: bool, private: bool, take_over: bool) -> Writer {
        let who = Claimant { volume: publisher::volume_id(dir), place: publisher::place_of(dir) };
        let file = Box::new(ClaimFile::new(&dir.claim(), private));
        let keeper = Keeper::new(bare.clone(), file, who, local);
        Writer {
            dir: dir.clone(),
            bare,
            keeper: Arc::new(keeper),
            take_over,
            is_local: local,
            private,
            marker: None,
        }
    }

    /// The origin for the volume. It accepts writes and deletions only while the claim holds.
    pub fn origin(&self) -> Arc<dyn Origin> {
        Arc::new(Guarded::new(self.bare.clone(), self.keeper.clone()))
    }

    /// Claims the origin. If the origin does not answer now, the volume opens all the same, except for a
    /// take-over.
    pub fn open(&self) -> Result<()> {
        let wish = if self.take_over { Wish::TakeOver } else { Wish::Open };
        match self.claim(wish) {
            Ok(_) => Ok(()),
            Err(Trouble::Away(what)) if !self.take_over => {
                log::line(&format!(
                    "the origin cannot be claimed now: {what}; until it can be, nothing is uploaded, deleted or published"
                ));
                Ok(())
            }
            Err(Trouble::Away(what)) => Err(not_now(&self.dir).why(what.to_string())),
            Err(Trouble::Gone(failure) | Trouble::Failed(failure)) => Err(failure),
        }
    }

    /// Claims the origin for a volume that was restored into this folder. Returns the previous claim.
    pub fn restore(&self) -> Result<Option<Claim>> {
        self.claim(Wish::Restore).map(|opened| opened.before).map_err(|trouble| match trouble {
            Trouble::Away(what) => not_now(&self.dir).why(what.to_string()),
            Trouble::Gone(failure) | Trouble::Failed(failure) => failure,
        })
    }

    fn claim(&self, wish: Wish) -> std::result::Result<Opened, Trouble> {
        if wish == Wish::Open {
            publisher::check_owner(&self.dir, &*self.bare)?;
        }
        let opened = self.keeper.open(wish).map_err(|error| match error {
            ClaimError::Refused(refusal) => Trouble::Failed(self.refused(&refusal)),
            ClaimError::Origin(error) => Trouble::Away(error),
            ClaimError::Gone(why) => Trouble::Gone(gone(&self.dir, why)),
            ClaimError::Memory(error) => Trouble::Failed(memory::failure(&self.dir, &error)),
        })?;
        if let Some(folder) = &self.marker {
            folder.adopt_by(&self.dir.format().id).map_err(crate::origins::origin_failure)?;
        }
        let before = opened.before.as_ref();
        // The folder's lock shows that a writer at the same place has ended, even by a crash. A writer at
        // another place may use a copy of the folder.
        let elsewhere =
            !self.private && before.is_some_and(|before| before.place != publisher::place_of(&self.dir));
        if wish == Wish::TakeOver || (wish == Wish::Open && elsewhere) {
            settle(before);
        }
        if wish == Wish::TakeOver {
            self.become_owner()?;
        }
        Ok(opened)
    }

    /// Makes this folder the signer of everything published from now on.
    fn become_owner(&self) -> Result<()> {
        let failed = |error: TreeError| publisher::failure("cannot take over what is published", error);
        let Some(owner) = Owner::read(&*self.bare).map_err(failed)? else { return Ok(()) };
        let me = match Publisher::of(&self.dir)? {
            Some(me) => me,
            None => Publisher::make(&self.dir)?,
        };
        let name = me.owner().unwrap_or_default();
        if owner.owner != name {
            let (place, key) = (publisher::place_of(&self.dir), me.signer()?.key());
            owner.hand_over(&*self.bare, name, place, key).map_err(failed)?;
        }
        Ok(())
    }

    /// Makes the folder's rows refer to all published blobs, if the rows may be older. Until that is done,
    /// nothing is deleted.
    pub fn hold_published(&self, store: &dyn MetaStore) -> Result<()> {
        if !self.keeper.must_hold() {
            return Ok(());
        }
        hold_published(store, &self.bare)?;
        self.keeper.holds_published().map_err(|error| memory::failure(&self.dir, &error))
    }

    /// Does what [`Writer::hold_published`] does, but only logs a failure. The next open tries again.
    pub fn try_to_hold_published(&self, store: &dyn MetaStore) {
        if let Err(failure) = self.hold_published(store) {
            log::warn(&format!("nothing is deleted in the origin for now: {}", failure.in_one_line()));
        }
    }

    /// Tells the origin that the writer has ended, if the origin answers soon.
    pub fn close(&self) {
        let keeper = self.keeper.clone();
        let Ok(telling) = base::thread::spawn("covey-claim", move || keeper.close()) else { return };
        let until = base::time::monotonic() + LAST_WORD;
        while !telling.is_finished() && base::time::monotonic() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The check that a volume makes before it deletes blobs.
    pub fn may_delete(&self) -> MayDelete {
        let keeper = self.keeper.clone();
        Arc::new(move || keeper.may_remove().map(drop).map_err(|error| error.to_string()))
    }

    /// The holder of the claim.
    pub fn keeper(&self) -> &Arc<Keeper> {
        &self.keeper
    }

    /// Checks now that the origin exists and belongs to this volume.
    pub fn verify(&self) -> Result<()> {
        self.keeper.verify().map_err(|error| self.failure(error))
    }

    /// Checks the origin as [`Writer::verify`] does, within a time limit if one is given.
    pub fn verify_within(&self, patience: Option<Duration>) -> Result<()> {
        let Some(patience) = patience else { return self.verify() };
        let asked = self.keeper.verify_within(patience.max(LEAST), Duration::ZERO);
        asked.map_err(|error| self.failure(error))
    }

    /// Whether another writer is known to have claimed the origin.
    pub fn is_lost(&self) -> bool {
        matches!(self.keeper.standing(), Standing::Lost { .. })
    }

    /// Why nothing can be stored any more, if that is known.
    pub fn lost(&self) -> Option<Failure> {
        match self.keeper.standing() {
            Standing::Lost { why, .. } => Some(taken(&self.dir, why)),
            Standing::Gone { why, .. } => Some(gone(&self.dir, why)),
            _ => None,
        }
    }

    /// Fails if the claim is lost. Reads an origin in a folder for that, which is cheap.
    pub fn not_lost(&self) -> Result<()> {
        if self.is_local {
            return self.verify();
        }
        match self.keeper.standing() {
            Standing::Lost { why, .. } => Err(taken(&self.dir, why)),
            _ => Ok(()),
        }
    }

    /// Makes a new claim after the last one. From then on older copies of the folder are recognized as old.
    pub fn renew(&self) -> Result<()> {
        self.keeper.renew(Kind::Renewed).map_err(|error| self.failure(error))
    }

    /// Makes the last claim of this folder: the names are in a database now, and no folder may write by a
    /// claim. Only this folder could go on from here, should the step after this one not be done.
    pub fn promote(&self) -> Result<()> {
        self.keeper.renew(Kind::Promoted).map_err(|error| self.failure(error))
    }

    fn failure(&self, error: BlobError) -> Failure {
        self.lost().unwrap_or_else(|| {
            Failure::new("origin-away", "the origin cannot be asked whether it is this volume's")
                .why(error.to_string())
                .next("nothing is lost: what was written is on this node; try again when the origin answers")
        })
    }

    fn refused(&self, refusal: &Refusal) -> Failure {
        let shown = self.dir.path().display();
        let take_over = format!(
            "to go on here, once the other is certainly not written to any more: covey mount --take-over {shown} MOUNTPOINT"
        );
        let read = "this folder can be read: mount it with -o ro";
        match refusal {
            Refusal::OtherVolume(_) => taken(&self.dir, refusal.to_string()),
            Refusal::Copy(_) | Refusal::Superseded(_) => taken(&self.dir, refusal.to_string()).next(take_over),
            Refusal::Promoted(_) => taken(&self.dir, refusal.to_string()).map_next(format!(
                "mount the shared volume: covey mount postgres://...; its folder names the address, and {read}"
            )),
            Refusal::OriginOlder(_) => Failure::new("origin-older", refusal.to_string())
                .why("what was written lately may not be in it")
                .next(read)
                .next(format!("to make its marker and its claims anew, after a look at what is there: covey origin mark {shown}")),
            Refusal::Damaged(_) => Failure::new("damaged", refusal.to_string())
                .why("it says whose the origin is, so nobody may write until that is known")
                .next(read)
                .next(take_over),
            Refusal::Newer(_) => Failure::new("newer-format", refusal.to_string())
                .next("use that version or a later one")
                .next(read),
        }
    }
}

/// Why the origin could not be claimed.
enum Trouble {
    /// The origin does not answer now, but may do so later.
    Away(BlobError),
    /// The place does not hold the origin now.
    Gone(Failure),
    /// The folder may not claim the origin.
    Failed(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        Trouble::Failed(failure)
    }
}

/// The failure for a take-over of an origin that does not answer.
pub fn not_now(dir: &VolumeDir) -> Failure {
    Failure::new("origin-away", format!("{} does not answer, so it cannot be taken over", dir.origin()))
        .next("try again when it does")
}

/// Waits until the last request of a writer whose end was not seen must have arrived.
pub fn settle(before: Option<&Claim>) {
    if before.is_some_and(|before| before.kind != Kind::Closed) {
        log::line("waiting until an earlier writer, which may still run, has noticed the new claim");
        std::thread::sleep(SETTLE);
    }
}

/// The failure for an origin that another writer has claimed.
fn taken(dir: &VolumeDir, what: String) -> Failure {
    Failure::new("origin-taken", format!("{} is not this folder's to write to", dir.origin()))
        .why(what)
        .why("two that write to one origin would delete each other's blobs")
        .next("use the other volume; this one can still be read: mount it with -o ro")
}

fn gone(dir: &VolumeDir, what: String) -> Failure {
    Failure::new("origin-gone", format!("{} is not there any more", dir.origin()))
        .why(what)
        .next("what is on this node can be read: mount the volume with -o ro, or covey export it")
        .next(format!(
            "if only the marker or the records were lost: covey origin mark {}",
            dir.path().display()
        ))
}

/// The failure for an origin of another volume. Two volumes in one origin would delete each other's blobs.
pub fn not_this_volume(dir: &VolumeDir, owner: &str) -> Failure {
    Failure::new("origin-taken", format!("{} belongs to another volume", dir.origin()))
        .why(format!("it was made for the volume {owner}, and this is {}", dir.format().id))
        .next("check the origin in covey.json; each volume has an origin of its own")
        .next("what another folder's volume holds can be read with -o ro and exported: covey export")
}

/// Makes rows refer to everything that is published. Otherwise rows that do not know a tree could delete
/// blobs that only the tree needs.
pub fn hold_published(store: &dyn MetaStore, origin: &Arc<dyn Origin>) -> Result<()> {
    let failed = |error| publisher::failure("cannot look at what is published", error);
    let hold = |name: &str, root: std::result::Result<Root, TreeError>| {
        let source: Arc<dyn BlobSource> = origin.clone();
        let blobs = root.and_then(|root| Tree::new(source, &root).blobs())?;
        tree::restore::hold(store, name, &blobs)
    };
    let not_kept = |name: &str, record: &str, error| {
        publisher::failure(format!("what is published as {name} cannot be kept"), error)
            .next(format!("if it is not wanted, remove its record, {record}, from the origin"))
    };
    for name in root::names(&**origin).map_err(failed)? {
        hold(&name, Root::read(&**origin, &name, None))
            .map_err(|error| not_kept(&name, &format!("published/{name}"), error))?;
        for sequence in history::sequences(&**origin, &name).map_err(failed)? {
            hold(&name, history::read(&**origin, &name, sequence, None))
                .map_err(|error| not_kept(&name, &history::record_name(&name, sequence), error))?;
        }
    }
    Ok(())
}

/// The claim in a status. None for a volume that is being closed.
pub fn status(standing: Standing) -> Option<ClaimStatus> {
    let plain = |state: &str, epoch| ClaimStatus {
        state: state.to_owned(),
        epoch,
        since: None,
        seconds: 0,
        why: None,
    };
    let bad = |state: &str, why, since: base::Timestamp| ClaimStatus {
        since: Some(utc(since.seconds())),
        seconds: seconds_since(since),
        why: Some(why),
        ..plain(state, None)
    };
    Some(match standing {
        Standing::Unclaimed => plain("waiting", None),
        Standing::Held { epoch } => plain("held", Some(epoch)),
        Standing::Gone { why, since } => bad("gone", why, since),
        Standing::Lost { why, since } => bad("lost", why, since),
        Standing::Closed => return None,
    })
}
