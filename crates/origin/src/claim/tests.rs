//! Examples of claims: their records, what a folder remembers, and a writer that loses its claim.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::time::{BootTime, boot};
use base::{BlobId, Timestamp};
use blob::failing::{FailingOrigin, Faults, Op};
use blob::{BlobError, Origin, Records, Sums};
use parking_lot::Mutex;

use super::decide::{Refusal, Wish};
use super::keeper::{ClaimError, Claimant, Keeper, Standing};
use super::memory::{Memory, Remember};
use super::*;
use crate::Memory as MemoryOrigin;
use blob::claim::{Claim, Kind, Wrong};

/// A folder: what it remembers, and what distinguishes it from a copy.
#[derive(Clone)]
pub(super) struct Folder {
    pub(super) memory: Arc<Mutex<Option<Memory>>>,
    pub(super) instance: String,
    pub(super) place: String,
    pub(super) private: bool,
}

impl Folder {
    pub(super) fn new(name: &str) -> Folder {
        Folder {
            memory: Arc::default(),
            instance: format!("{name},1,"),
            place: format!("host:/{name}"),
            private: false,
        }
    }

    /// A copy as `cp -a` makes it.
    pub(super) fn copied(&self, name: &str) -> Folder {
        let memory = Arc::new(Mutex::new(self.memory.lock().clone()));
        Folder { memory, ..Folder::new(name) }
    }

    fn keeper(&self, origin: &Arc<dyn Origin>) -> Keeper {
        let who = Claimant { volume: [1; 16], place: self.place.clone() };
        Keeper::new(origin.clone(), Box::new(self.clone()), who, true)
    }

    fn open(&self, origin: &Arc<dyn Origin>) -> Arc<Keeper> {
        let keeper = Arc::new(self.keeper(origin));
        let opened = keeper.open(Wish::Open).unwrap();
        if opened.hold {
            keeper.holds_published().unwrap();
        }
        keeper
    }

    fn refused(&self, origin: &Arc<dyn Origin>) -> Refusal {
        match self.keeper(origin).open(Wish::Open) {
            Err(ClaimError::Refused(refusal)) => refusal,
            other => panic!("not refused: {other:?}"),
        }
    }
}

impl Remember for Folder {
    fn load(&self) -> io::Result<Option<Memory>> {
        Ok(self.memory.lock().clone())
    }

    fn save(&self, memory: &Memory) -> io::Result<()> {
        *self.memory.lock() = Some(memory.clone());
        Ok(())
    }

    fn instance(&self) -> io::Result<String> {
        Ok(self.instance.clone())
    }

    fn is_private(&self) -> bool {
        self.private
    }
}

fn origin() -> Arc<dyn Origin> {
    Arc::new(MemoryOrigin::new())
}

fn put(origin: &dyn Origin, bytes: &[u8]) -> BlobId {
    let sums = Sums::of(bytes);
    origin.put(&sums.id(), &sums, bytes).unwrap();
    sums.id()
}

fn claim() -> Claim {
    Claim {
        epoch: 7,
        volume: [1; 16],
        token: [2; 16],
        after: Some([3; 16]),
        folder: [4; 16],
        kind: Kind::TakeOver,
        moment: Timestamp(-5),
        place: "host:/srv/v".to_owned(),
    }
}

#[test]
fn a_claims_record_comes_back_and_nothing_else_is_one() {
    let kinds = [
        Kind::Open,
        Kind::Renewed,
        Kind::TakeOver,
        Kind::Restore,
        Kind::Closed,
        Kind::Promoted,
        Kind::Database,
    ];
    for kind in kinds {
        let claim = Claim { kind, after: None, ..claim() };
        let record = claim.encode();
        // Programs that do not know the last kind read a version that is newer than theirs.
        let version = match kind {
            Kind::Promoted => 2,
            Kind::Database => 3,
            _ => 1,
        };
        assert_eq!(record[7], version);
        assert_eq!(Claim::decode(&record), Ok(claim));
    }
    let long = Claim { place: "ü".repeat(200), ..claim() };
    assert_eq!(Claim::decode(&long.encode()).unwrap().place, "ü".repeat(127));
    let sound = claim().encode();
    assert_eq!(Claim::decode(&sound), Ok(claim()));
    for at in 0..sound.len() {
        assert_eq!(Claim::decode(&sound[..at]).unwrap_err(), Wrong::Damaged);
        let mut bad = sound.clone();
        bad[at] ^= 1;
        assert!(Claim::decode(&bad).is_err(), "byte {at}");
    }
    let mut newer = sound;
    newer[7] = 9;
    assert_eq!(Claim::decode(&newer), Err(Wrong::Newer(9)));
    assert_eq!(Claim::epoch_of(&Claim::name(7)), Some(7));
    assert_eq!(
        ["claims/7", "claims/x0000000000000000007", "other/00000000000000000007"].map(Claim::epoch_of),
        [None; 3]
    );
}

#[test]
fn a_folder_opens_again_and_again_also_after_a_crash() {
    let (origin, folder) = (origin(), Folder::new("a"));
    for round in 0..5u64 {
        let keeper = folder.open(&origin);
        keeper.verify().unwrap();
        keeper.may_store().unwrap();
        if round % 2 == 0 {
            keeper.close();
            assert!(matches!(keeper.check(Duration::ZERO), Err(BlobError::Unavailable(_))));
        }
    }
    assert_eq!(origin.records("claims").unwrap().len(), 8);
    // A crash between asking for a claim and getting the answer.
    let was = folder.memory.lock().clone();
    folder.open(&origin);
    let next = folder.memory.lock().as_ref().and_then(|memory| memory.current).unwrap();
    *folder.memory.lock() = was.map(|was| Memory { next: vec![next], ..was });
    folder.open(&origin).verify().unwrap();
}

/// A folder copied with `cp -a` deleted the blobs of the first one.
#[test]
fn regression_a_copied_folder_is_known_whichever_opens_first() {
    let origin = origin();
    let first = Folder::new("a");
    first.open(&origin).close();
    let copy = first.copied("b");
    assert!(matches!(copy.refused(&origin), Refusal::Copy(_)));
    first.open(&origin).close();
    assert!(matches!(copy.refused(&origin), Refusal::Superseded(_)));
    // The clone of a disk is identical in everything. It is detected once the other folder has opened.
    let clone = Folder { instance: first.instance.clone(), ..first.copied("a") };
    clone.open(&origin);
    assert!(matches!(first.refused(&origin), Refusal::Superseded(_)));
    // A copy whose origin was copied with it is independent.
    let private = Folder { private: true, ..clone.copied("c") };
    private.open(&origin).verify().unwrap();
    // A folder without any memory has nothing to prove its claim with.
    assert!(matches!(Folder::new("d").refused(&origin), Refusal::Superseded(_)));
}

/// A folder that was put back from a backup deleted what was published since.
#[test]
fn regression_a_folder_put_back_from_a_backup_is_known_to_be_old() {
    let (origin, folder) = (origin(), Folder::new("a"));
    let keeper = folder.open(&origin);
    let backup = folder.memory.lock().clone();
    keeper.renew(Kind::Renewed).unwrap();
    drop(keeper);
    *folder.memory.lock() = backup;
    assert!(matches!(folder.refused(&origin), Refusal::Superseded(claim) if claim.kind == Kind::Renewed));
    let keeper = folder.keeper(&origin);
    let opened = keeper.open(Wish::TakeOver).unwrap();
    assert!(opened.hold && opened.before.is_some_and(|before| before.kind == Kind::Renewed));
    assert!(keeper.may_remove().is_err(), "what is published must be held first");
    keeper.holds_published().unwrap();
    keeper.may_remove().unwrap();
    folder.open(&origin).may_remove().unwrap();
}

/// A volume whose names moved into a database: no folder writes by a claim any more, except the one that made
/// the claim and came no further.
#[test]
fn a_promoted_volume_is_no_folders_to_write_to() {
    let (origin, folder) = (origin(), Folder::new("a"));
    let backup = {
        folder.open(&origin);
        folder.memory.lock().clone()
    };
    let copy = folder.copied("b");
    let keeper = folder.open(&origin);
    keeper.renew(Kind::Promoted).unwrap();
    keeper.close();
    let newest = || Claim::decode(&origin.record(&Claim::name(3)).unwrap().unwrap()).unwrap().kind;
    assert_eq!(newest(), Kind::Promoted, "closing it is no claim");
    let late = folder.copied("c");
    let clone = Folder { memory: Arc::new(Mutex::new(backup)), ..folder.clone() };
    let none = Folder { memory: Arc::default(), ..folder.clone() };
    for other in [&copy, &late, &clone, &none, &Folder::new("d")] {
        assert!(matches!(other.refused(&origin), Refusal::Promoted(_)));
        let taken = other.keeper(&origin).open(Wish::TakeOver);
        assert!(matches!(taken, Err(ClaimError::Refused(Refusal::Promoted(_)))));
    }
    assert_eq!(origin.records("claims").unwrap().len(), 3);
    // The folder that made the claim is asked to write only if it was killed before its last step.
    let keeper = folder.open(&origin);
    keeper.verify().unwrap();
    keeper.renew(Kind::Promoted).unwrap();
    // The database was lost, and what was published is restored.
    let restored = Folder::new("e");
    restored.keeper(&origin).open(Wish::Restore).unwrap();
    assert!(matches!(folder.refused(&origin), Refusal::Superseded(_)));
}

/// After a restore elsewhere the old mount continued, and `flush` reported that everything was in the origin.
#[test]
fn regression_a_writer_that_lost_its_claim_stores_and_deletes_nothing() {
    let (bare, old, new) = (origin(), Folder::new("a"), Folder::new("b"));
    let keeper = old.open(&bare);
    let guarded = Guarded::new(bare.clone(), keeper.clone());
    let (one, two) = (put(&guarded, b"one"), put(&guarded, b"two"));
    guarded.remove(&one).unwrap();
    guarded.settle(Duration::ZERO).unwrap();
    assert!(new.keeper(&bare).open(Wish::Restore).unwrap().hold);
    let refused =
        |done: Result<(), BlobError>| matches!(done, Err(BlobError::Refused(why)) if why.contains("host:/b"));
    assert!(refused(guarded.remove(&two)) && refused(guarded.settle(Duration::ZERO)));
    assert!(
        refused(guarded.put_record("published/x", b"x")) && refused(guarded.remove_record("published/x"))
    );
    let sums = Sums::of(b"three");
    assert!(refused(guarded.put(&sums.id(), &sums, b"three")));
    assert!(matches!(keeper.standing(), Standing::Lost { .. }));
    assert!(bare.size(&two).unwrap().is_some());
}

/// A `flush` to an emptied bucket succeeded.
#[test]
fn regression_an_origin_that_lost_its_claims_is_no_place_to_flush_to() {
    let (bare, folder) = (origin(), Folder::new("a"));
    let keeper = folder.open(&bare);
    let guarded = Guarded::new(bare.clone(), keeper.clone());
    let kept: Vec<(String, Vec<u8>)> = bare
        .records("")
        .unwrap()
        .into_iter()
        .map(|name| (name.clone(), bare.record(&name).unwrap().unwrap()))
        .collect();
    kept.iter().for_each(|(name, _)| bare.remove_record(name).unwrap());
    assert!(matches!(guarded.settle(Duration::ZERO), Err(BlobError::Unavailable(_))));
    assert!(matches!(keeper.standing(), Standing::Gone { .. }) && keeper.may_store().is_err());
    assert_eq!(folder.refused(&bare), Refusal::OriginOlder(None));
    // For a while, another place was mounted there.
    kept.iter().for_each(|(name, record)| bare.put_record(name, record).unwrap());
    guarded.settle(Duration::ZERO).unwrap();
    keeper.may_store().unwrap();
}

#[test]
fn what_is_damaged_or_newer_is_no_permission() {
    let (origin, folder) = (origin(), Folder::new("a"));
    folder.open(&origin);
    let name = Claim::name(2);
    origin.create_record(&name, b"covC").unwrap();
    assert_eq!(folder.refused(&origin), Refusal::Damaged(2));
    origin.put_record(&name, b"covC\0\0\0\x09more").unwrap();
    assert_eq!(folder.refused(&origin), Refusal::Newer(2));
    assert!(folder.keeper(&origin).open(Wish::TakeOver).is_err());
    origin.put_record(&name, b"covC").unwrap();
    folder.keeper(&origin).open(Wish::TakeOver).unwrap();
    let other = Claim { epoch: 4, volume: [9; 16], ..claim() };
    origin.create_record(&Claim::name(4), &other.encode()).unwrap();
    assert!(matches!(
        folder.keeper(&origin).open(Wish::TakeOver),
        Err(ClaimError::Refused(Refusal::OtherVolume(_)))
    ));
}

#[test]
fn old_claims_are_removed_and_a_late_writer_still_sees_it() {
    let origin = origin();
    let folder = Folder::new("a");
    let late = folder.open(&origin);
    let clone = Folder { instance: folder.instance.clone(), ..folder.copied("a") };
    let keeper = clone.open(&origin);
    for _ in 0..200 {
        keeper.renew(Kind::Renewed).unwrap();
    }
    let left = origin.records("claims").unwrap();
    assert!(left.len() <= 66 && left.contains(&Claim::name(202)), "{}", left.len());
    assert!(matches!(late.verify(), Err(BlobError::Refused(_))));
}

#[test]
fn an_answer_that_was_lost_costs_no_claim() {
    let faults = Faults::new();
    let origin: Arc<dyn Origin> = Arc::new(FailingOrigin::new(origin(), faults.clone()));
    let folder = Folder::new("a");
    faults.fail(Op::Store, 1);
    assert!(matches!(folder.keeper(&origin).open(Wish::Open), Err(ClaimError::Origin(_))));
    let keeper = folder.open(&origin);
    faults.fail(Op::Store, 1);
    keeper.renew(Kind::Renewed).unwrap_err();
    // The lost request arrives late.
    let asked = folder.memory.lock().as_ref().and_then(|memory| memory.next.last().copied()).unwrap();
    let late = Claim { epoch: asked.epoch, token: asked.token, ..claim() };
    assert!(origin.create_record(&Claim::name(asked.epoch), &late.encode()).unwrap());
    keeper.renew(Kind::Renewed).unwrap();
    keeper.verify().unwrap();
    folder.open(&origin).verify().unwrap();
}

#[test]
fn nothing_is_removed_after_its_time() {
    let origin = MemoryOrigin::new();
    let id = put(&origin, b"kept");
    assert!(matches!(origin.remove_many(&[id], boot()), Err(BlobError::Unavailable(_))));
    assert!(origin.size(&id).unwrap().is_some());
    origin.remove_many(&[id], BootTime::NEVER).unwrap();
    assert_eq!(origin.size(&id).unwrap(), None);
}
