//! One origin, one database: the one that holds the names of a shared volume.
//!
//! ```text
//!   database:  V claim                              the last claim that it made, and which database made it
//!   origin:    records/claims/00000000000000000007  made once, and never changed
//! ```
//!
//! A copy of a database has the same rows. It comes from a dump that is restored to test the backup, from a
//! snapshot of the server's disk, or from a standby that somebody promotes beside its primary. Two databases
//! with one origin would delete each other's blobs. So a database claims the origin as a folder does
//! ([`origin::claim`]), and each row of a claim says which database made it ([`Incarnation`]). [`row`] has
//! the rules.
//!
//! - **A mount for writing needs the claim**, and so does every deletion in the origin. Without it the volume
//!   is mounted for reading only, and `covey origin claim` makes the database the one that holds the names.
//! - **While blobs are deleted, a new claim is made each [`RENEW`]**, so that a copy of the database that is
//!   older than this is known to be old.
//! - **A claim is written into the row before the origin has it.** So a node that is killed in between leaves
//!   a claim that the row knows.

mod row;

use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use base::Deadline;
use base::time::{BootTime, boot};
use blob::claim::{Claim, Kind, Token};
use blob::{BlobError, Origin};
use meta::engine::database::{Database, Incarnation};
use meta::store::{CommitError, StoreError, Value};
use meta::{Commit, Expect, Key, MetaStore};
use origin::Access;
use origin::claim::newest::{self, newest};
use origin::claim::{RENEW, SETTLE};
use parking_lot::Mutex;

use super::rows::{ROW_CLAIM, ROW_ORIGIN};
use super::{making, setup_failure};
use crate::claim::hold_published;
use crate::log;
use crate::origins::{origin_failure, spec};
use crate::publish::shared::stay_owner;
use crate::remote_side::ORIGIN_ASKED;
use crate::volume_dir::{Home, VolumeDir};
use row::{Refusal, Row, Standing, judge};

/// The code of the failure for a database that may only be read.
pub(crate) const UNCLAIMED: &str = "unclaimed";
/// Attempts, if other nodes claim at the same time.
const TRIES: u32 = 16;
/// The pause between two attempts.
const AGAIN: Duration = Duration::from_millis(200);
/// How long a mount waits for the nodes that saw a fail-over.
const MOVE: Duration = Duration::from_secs(15);
/// How many claims are kept, and how many older ones are removed with each new one.
const KEEP: u64 = 64;
const PRUNE: u64 = 4;
/// So many numbers of nodes are not given out after an earlier state of the database was claimed.
const SKIP: u32 = 1024;
/// The other numbers go on at a multiple of this, as those of a restored volume do.
const NUMBERS: u64 = 1 << 24;

/// Why a claim could not be looked at, or be made.
enum Trouble {
    /// The origin does not answer.
    Away(BlobError),
    /// The database does not.
    Store(StoreError),
    /// The database may only be read.
    Refused(Refusal),
}

impl From<BlobError> for Trouble {
    fn from(error: BlobError) -> Trouble {
        Trouble::Away(error)
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Trouble {
        Trouble::Store(error)
    }
}

impl std::fmt::Display for Trouble {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Trouble::Away(error) => error.fmt(f),
            Trouble::Store(error) => error.fmt(f),
            Trouble::Refused(refusal) => write!(f, "the database may only be read: {refusal}"),
        }
    }
}

/// The claim of a shared volume's database.
pub(crate) struct Claims {
    names: Arc<dyn Database>,
    volume: [u8; 16],
    /// The address, for a person.
    place: String,
    /// When this node last made a claim.
    made: Mutex<Option<BootTime>>,
}

/// What is known before a claim is made.
struct Seen {
    row: Option<Row>,
    /// The number of the newest claim, and its token.
    newest: Option<(u64, Token)>,
    oldest: Option<u64>,
    here: Incarnation,
    standing: Standing,
}

impl Claims {
    pub fn new(names: Arc<dyn Database>, place: String) -> Claims {
        Claims { volume: names.uuid(), names, place, made: Mutex::default() }
    }

    /// Claims the origin for a mount, if this database may. An origin that does not answer now is claimed
    /// later: until then, nothing is deleted. A mount for reading only looks.
    pub fn open(&self, dir: &VolumeDir, read_only: bool) -> Result<()> {
        let access = if read_only { Access::ReadOnly } else { Access::ReadWrite };
        let claimed = Deadline::after(ORIGIN_ASKED).scope(|| {
            let origin = spec(dir)?.open(access).map_err(origin_failure)?;
            Ok::<_, Failure>(match read_only {
                false => self.settle(&*origin, true),
                true => self.see(&*origin).and_then(|seen| match seen.standing {
                    Standing::Refused(refusal) => Err(Trouble::Refused(refusal)),
                    _ => Ok(()),
                }),
            })
        });
        match claimed {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Trouble::Refused(refusal))) => Err(self.unclaimed(&refusal.to_string())),
            Ok(Err(Trouble::Store(error))) => Err(setup_failure(error.into())),
            // The volume is opened with the same origin next, and then its failure is told.
            Ok(Err(Trouble::Away(_))) | Err(_) => self.open_alone(),
        }
    }

    /// Checks by the database's row alone, while the origin does not answer, whether this database may go on.
    fn open_alone(&self) -> Result<()> {
        let failed = |error: StoreError| setup_failure(error.into());
        let (row, here) = (self.row().map_err(failed)?, self.names.incarnation().map_err(failed)?);
        match row {
            Some(row) if !row.is_of(&here) => {
                Err(self.unclaimed("another database made its claim, and the origin cannot be asked now"))
            }
            _ => Ok(()),
        }
    }

    fn unclaimed(&self, why: &str) -> Failure {
        Failure::new(UNCLAIMED, format!("the database at {} may only be read", self.place))
            .why(why)
            .why("two databases with one origin would delete each other's blobs")
            .next("to look at what it holds, mount it with -o ro")
            .next(format!(
                "to go on with it, once no node uses the other one any more: covey origin claim '{}'",
                self.place
            ))
            .next(format!(
                "to make it a volume of its own, with its own blobs: covey detach '{}' --copy-blobs ORIGIN",
                self.place
            ))
    }

    /// Makes the claim if it is due. With `wait`, waits for the nodes that saw a fail-over.
    fn settle(&self, origin: &dyn Origin, wait: bool) -> std::result::Result<(), Trouble> {
        let until = base::time::monotonic() + MOVE;
        for _ in 0..TRIES {
            let seen = match self.holds(origin)? {
                true => return Ok(()),
                false => self.see(origin)?,
            };
            let done = match &seen.standing {
                Standing::Holds if seen.row.as_ref().is_some_and(|row| row.asked.is_empty()) => return Ok(()),
                Standing::Holds | Standing::First => self.make(origin, &seen)?,
                Standing::Moved if !wait || self.is_unused()? => self.make(origin, &seen)?,
                Standing::Moved if base::time::monotonic() < until => {
                    std::thread::sleep(AGAIN * 5);
                    continue;
                }
                Standing::Moved => {
                    return Err(Trouble::Refused(Refusal::Copy(base::time::now())));
                }
                Standing::Refused(refusal) => return Err(Trouble::Refused(refusal.clone())),
            };
            if done {
                return Ok(());
            }
            std::thread::sleep(AGAIN);
        }
        let why = "other nodes claim the origin again and again";
        Err(StoreError::Unavailable(why.to_owned()).into())
    }

    /// Whether all nodes have left the volume in order.
    fn is_unused(&self) -> std::result::Result<bool, StoreError> {
        Ok(self.names.sessions()?.iter().all(|row| row.ended))
    }

    /// Whether the row's claim is the newest one, without a listing.
    fn holds(&self, origin: &dyn Origin) -> std::result::Result<bool, Trouble> {
        let Some(row) = self.row()?.filter(|row| row.asked.is_empty()) else { return Ok(false) };
        if row.epoch == 0 || !row.is_of(&self.names.incarnation()?) {
            return Ok(false);
        }
        // The next number first: it is removed after this one.
        if newest::at(origin, row.epoch + 1)?.is_some() {
            return Ok(false);
        }
        let found = newest::at(origin, row.epoch)?;
        Ok(found.and_then(std::result::Result::ok).is_some_and(|claim| row.knows(&claim)))
    }

    fn row(&self) -> std::result::Result<Option<Row>, StoreError> {
        let Some(bytes) = self.names.get(&Key::volume(ROW_CLAIM))? else { return Ok(None) };
        let damaged = || StoreError::Damaged("the row of the database's claim cannot be read".to_owned());
        Row::decode(&bytes).map(Some).ok_or_else(damaged)
    }

    fn see(&self, origin: &dyn Origin) -> std::result::Result<Seen, Trouble> {
        // The row first. A claim that is made after it is one that the row asked for.
        let (row, here) = (self.row()?, self.names.incarnation()?);
        let found = newest(origin)?;
        let claim = found.newest.as_ref().map(|(_, claim)| claim.as_ref().map_err(|_| ()));
        let standing = judge(self.volume, row.as_ref(), claim, &here);
        let newest = found.newest.as_ref();
        let newest =
            newest.map(|(epoch, claim)| (*epoch, claim.as_ref().map_or([0; 16], |claim| claim.token)));
        Ok(Seen { row, newest, oldest: found.oldest, here, standing })
    }

    /// Makes the next claim. False: another node was faster.
    fn make(&self, origin: &dyn Origin, seen: &Seen) -> std::result::Result<bool, Trouble> {
        let (last, after) = seen.newest.map_or((0, None), |(epoch, token)| (epoch, Some(token)));
        let (epoch, token) = (last + 1, base::random::id16());
        let asking = seen.row.clone().unwrap_or_default().asking(token, &seen.here);
        if !self.replace(seen.row.as_ref(), &asking)? {
            return Ok(false);
        }
        let claim = Claim {
            epoch,
            volume: self.volume,
            token,
            after,
            folder: [0; 16],
            kind: Kind::Database,
            moment: base::time::now(),
            place: self.place.clone(),
        };
        if !origin.create_record(&Claim::name(epoch), &claim.encode())? {
            return Ok(false);
        }
        let made = self.replace(Some(&asking), &asking.clone().made(epoch, token))?;
        *self.made.lock() = Some(boot());
        let old = seen.oldest.filter(|oldest| oldest + KEEP <= epoch).map(|oldest| oldest..oldest + PRUNE);
        old.into_iter().flatten().for_each(|epoch| _ = origin.remove_record(&Claim::name(epoch)));
        Ok(made)
    }

    fn replace(&self, before: Option<&Row>, after: &Row) -> std::result::Result<bool, StoreError> {
        let key = Key::volume(ROW_CLAIM);
        let checks = vec![(key.clone(), before.map_or(Expect::Absent, |row| Expect::Is(row.encode())))];
        let commit = Commit { checks, puts: vec![(key, after.encode())], ..Commit::default() };
        match self.names.commit(commit) {
            Ok(()) => Ok(true),
            Err(CommitError::Conflict { .. }) => Ok(false),
            Err(CommitError::Store(error)) => Err(error),
        }
    }

    /// To be called right before blobs are deleted.
    pub fn may_delete(&self, origin: &dyn Origin) -> std::result::Result<(), String> {
        self.settle(origin, false).map_err(|trouble| trouble.to_string())?;
        let is_due = self.made.lock().is_none_or(|made| boot().since(made) >= RENEW);
        if is_due {
            let seen = self.see(origin).map_err(|trouble| trouble.to_string())?;
            // Another node may have made one just now.
            let _ = self.make(origin, &seen).map_err(|trouble| trouble.to_string())?;
            self.settle(origin, false).map_err(|trouble| trouble.to_string())?;
        }
        Ok(())
    }

    /// Looks, while the volume is used, whether the claim holds, and makes it if it could not be made before
    /// or the database moved. Returns why the database may only be read now.
    pub fn look(&self, origin: &dyn Origin) -> Option<String> {
        match self.settle(origin, false) {
            Err(Trouble::Refused(refusal)) => Some(refusal.to_string()),
            Ok(()) | Err(_) => None,
        }
    }

    /// Makes this database the one that holds the names, whatever was claimed before. Returns the number of
    /// the claim.
    fn take(&self, origin: &dyn Origin) -> std::result::Result<u64, Trouble> {
        for _ in 0..TRIES {
            let seen = self.see(origin)?;
            if let Standing::Refused(refusal @ (Refusal::OtherVolume | Refusal::Unread)) = seen.standing {
                return Err(Trouble::Refused(refusal));
            }
            if self.make(origin, &seen)? {
                return Ok(seen.newest.map_or(0, |(epoch, _)| epoch) + 1);
            }
            std::thread::sleep(AGAIN);
        }
        let why = "other nodes claim the origin again and again";
        Err(StoreError::Unavailable(why.to_owned()).into())
    }

    /// No number that a node got from the database since it was copied is given to another one.
    fn skip(&self) -> std::result::Result<(), StoreError> {
        self.names.skip_numbers(SKIP)?;
        let mut maxs = Vec::new();
        for name in ["next-ino", "next-pack"] {
            let row = self.names.get(&Key::volume(name))?;
            let next = meta::record::decode_u64(row.as_deref());
            let next = next.map_err(|error| StoreError::Damaged(error.to_string()))?;
            maxs.push((Key::volume(name), (next + 1).next_multiple_of(NUMBERS)));
        }
        match self.names.commit(Commit { maxs, ..Commit::default() }) {
            Ok(()) => Ok(()),
            Err(CommitError::Store(error)) => Err(error),
            Err(CommitError::Conflict { .. }) => {
                Err(StoreError::Damaged("rows without checks met a conflict".to_owned()))
            }
        }
    }
}

/// What `covey origin claim` did.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// The address, without a password.
    pub names: String,
    /// Where the blobs are.
    pub origin: String,
    /// The number of the claim.
    pub epoch: u64,
    /// Why the database could only be read before. None: it held the names already.
    pub before: Option<String>,
}

/// Makes the database at an address the one that holds the names of its volume.
pub fn claim(text: &std::path::Path) -> Result<Claimed> {
    let target = making::target_of(text)?;
    let names = target.open().map_err(super::setup_failure_at(&target))?;
    let rows: Arc<dyn MetaStore> = names.clone();
    super::unfinished::check_complete(&target, &rows)?;
    let failed = |error: StoreError| setup_failure(error.into());
    let alive = names.sessions().map_err(failed)?.iter().filter(|row| row.alive).count();
    let home = making::home_of(&rows)?;
    let home = home
        .ok_or_else(|| setup_failure(StoreError::Damaged(format!("there is no row {ROW_ORIGIN}")).into()))?;
    let origin = crate::origins::open_origin(&home, Access::ReadWrite)?;
    let claims = Claims::new(names, target.to_string());
    let troubled = |trouble: Trouble| troubled(&home, trouble);
    let done =
        |epoch, before| Claimed { names: target.to_string(), origin: home.origin.clone(), epoch, before };
    let standing = claims.see(&*origin).map_err(troubled)?;
    let volume = claims.names.uuid();
    // The rows may be from before something was published. They would delete its blobs.
    let keep_published = || {
        hold_published(&*rows, &origin)?;
        stay_owner(&*rows, &*origin, volume, target.to_string())
    };
    let before = match standing.standing {
        Standing::Holds => {
            // An earlier run may have been interrupted before its end.
            keep_published()?;
            return Ok(done(standing.newest.map_or(0, |(epoch, _)| epoch), None));
        }
        Standing::First => "it had made no claim".to_owned(),
        Standing::Moved => "another server has taken its place".to_owned(),
        Standing::Refused(refusal) => refusal.to_string(),
    };
    if alive > 0 {
        return Err(Failure::new("in-use", format!("{alive} nodes have joined the volume at {target}"))
            .why("what they remember may be from before the database was restored")
            .next(format!("unmount it on them: covey sessions '{target}' lists them"))
            .next("if they are gone, their sessions end within a minute; try again then"));
    }
    hold_published(&*rows, &origin)?;
    claims.skip().map_err(failed)?;
    let epoch = claims.take(&*origin).map_err(troubled)?;
    log::line(
        "waiting until nodes of the database before this one, which may still run, have noticed the new claim",
    );
    std::thread::sleep(SETTLE);
    // They could publish until then.
    keep_published()?;
    Ok(done(epoch, Some(before)))
}

fn troubled(home: &Home, trouble: Trouble) -> Failure {
    match trouble {
        Trouble::Store(error) => setup_failure(error.into()),
        Trouble::Away(error) => Failure::new("origin-away", format!("{} does not answer", home.origin))
            .why(error.to_string())
            .next("try again when it does"),
        Trouble::Refused(refusal) => {
            Failure::new("origin-taken", format!("{} cannot be claimed", home.origin))
                .why(refusal.to_string())
        }
    }
}

/// Whether a database holds the names of its volume. Then it is no copy.
pub(super) fn is_holder(
    names: Arc<dyn Database>,
    place: String,
    home: &Home,
    origin: &dyn Origin,
) -> Result<bool> {
    let seen = Claims::new(names, place).see(origin).map_err(|trouble| troubled(home, trouble))?;
    Ok(seen.standing == Standing::Holds)
}

/// Makes the first claim of a copy's own origin, with this token. False: the origin has another claim.
pub(super) fn first(
    origin: &dyn Origin,
    volume: [u8; 16],
    token: Token,
    place: String,
) -> std::result::Result<bool, BlobError> {
    let claim = Claim {
        epoch: 1,
        volume,
        token,
        after: None,
        folder: [0; 16],
        kind: Kind::Database,
        moment: base::time::now(),
        place,
    };
    let is_ours = |found: newest::Read| found.is_ok_and(|found| found.token == token);
    match newest(origin)?.newest {
        Some((epoch, found)) => Ok(epoch == 1 && is_ours(found)),
        None if origin.create_record(&Claim::name(1), &claim.encode())? => Ok(true),
        None => Ok(newest::at(origin, 1)?.is_some_and(is_ours)),
    }
}

/// The row of a database that made this claim.
pub(super) fn row_of(token: Token, here: &Incarnation) -> Value {
    Row::default().asking(token, here).made(1, token).encode()
}

/// Makes the first claim of a database that was restored from a published tree.
pub(super) fn restored(
    names: Arc<dyn Database>,
    place: String,
    origin: &dyn Origin,
) -> std::result::Result<(), String> {
    Claims::new(names, place).take(origin).map(drop).map_err(|trouble| trouble.to_string())
}
