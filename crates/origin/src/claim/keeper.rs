//! Makes a folder's claims, and checks whether the last of them still holds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use base::Timestamp;
use base::time::{BootTime, boot};
use blob::{BlobError, Origin};
use parking_lot::Mutex;

use super::decide::{Refusal, Seen, Wish, decide, must_hold};
use super::memory::{Made, Memory, Remember};
use super::newest::{Read, at};
use super::{FRESH, HOLDS, RENEW};
use blob::claim::{Claim, Kind, Wrong};

/// How many numbers are tried when other writers are faster.
const TRIES: usize = 16;
/// How many claims are kept, so that a writer that returns late sees that it has lost, and to which folder.
const KEEP: u64 = 64;
/// How many older claims are removed with each new one.
const PRUNE: usize = 4;
/// How long an orderly close waits for deletions in progress.
const LAST_REMOVALS: Duration = Duration::from_secs(5);

/// The state of a folder's claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No claim was made yet: the origin has not answered since the volume was opened.
    Unclaimed,
    /// The claim holds.
    Held {
        /// The claim's epoch.
        epoch: u64,
    },
    /// The place is not the origin any more, or has lost its claims. It may come back.
    Gone {
        /// What was found.
        why: String,
        /// Since when.
        since: Timestamp,
    },
    /// Another folder has claimed the origin. This is final.
    Lost {
        /// Which folder.
        why: String,
        /// When that became known.
        since: Timestamp,
    },
    /// The volume was closed.
    Closed,
}

/// Why no claim could be made.
#[derive(Debug)]
pub enum ClaimError {
    /// The folder may not write.
    Refused(Refusal),
    /// The place is not the origin any more.
    Gone(String),
    /// The origin did not answer, or not correctly.
    Origin(BlobError),
    /// The folder cannot store its claim.
    Memory(io::Error),
}

impl From<BlobError> for ClaimError {
    fn from(error: BlobError) -> ClaimError {
        ClaimError::Origin(error)
    }
}

impl From<Refusal> for ClaimError {
    fn from(refusal: Refusal) -> ClaimError {
        ClaimError::Refused(refusal)
    }
}

/// The result of an open.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The newest claim before, if it could be read.
    pub before: Option<Claim>,
    /// What is published must be held before anything may be deleted; then call [`Keeper::holds_published`].
    pub hold: bool,
}

/// The volume and the place that claims are made for.
pub struct Claimant {
    /// The volume's id.
    pub volume: [u8; 16],
    /// Where its folder is, for a person.
    pub place: String,
}

struct Held {
    claim: Claim,
    record: Vec<u8>,
}

#[derive(Default)]
struct State {
    held: Option<Held>,
    /// Claims that this process asked for without getting an answer.
    asked: Vec<Made>,
    /// When the last check began that found the claim in force.
    looked: Option<BootTime>,
    /// When the last check began that also found the origin in its place.
    verified: Option<BootTime>,
    /// When the last claim was made.
    made: Option<BootTime>,
    /// What is published is not held yet.
    hold: bool,
    /// The oldest claim that may still exist.
    oldest: Option<u64>,
}

/// Keeps a folder's claim. See the [module](super).
pub struct Keeper {
    origin: Arc<dyn Origin>,
    remember: Box<dyn Remember>,
    who: Claimant,
    /// How old a check may be for a deletion to rely on it.
    fresh: Duration,
    /// Held while a request to the origin is made.
    state: Mutex<State>,
    /// What can be read without waiting.
    standing: Mutex<Standing>,
    closing: AtomicBool,
    removing: AtomicUsize,
    clock: Clock,
}

/// A clock that also runs while the machine sleeps.
type Clock = Arc<dyn Fn() -> BootTime + Send + Sync>;

impl Keeper {
    /// `origin` is the bare origin; other code stores through [`super::Guarded`]. `near`: a check is almost
    /// free, so each deletion makes one.
    pub fn new(origin: Arc<dyn Origin>, remember: Box<dyn Remember>, who: Claimant, near: bool) -> Keeper {
        Keeper::by_clock(origin, remember, who, near, Arc::new(boot))
    }

    pub(super) fn by_clock(
        origin: Arc<dyn Origin>,
        remember: Box<dyn Remember>,
        who: Claimant,
        near: bool,
        clock: Clock,
    ) -> Keeper {
        Keeper {
            origin,
            remember,
            who,
            fresh: if near { Duration::ZERO } else { FRESH },
            state: Mutex::default(),
            standing: Mutex::new(Standing::Unclaimed),
            closing: AtomicBool::new(false),
            removing: AtomicUsize::new(0),
            clock,
        }
    }

    /// The state of the claim, as far as it is known.
    pub fn standing(&self) -> Standing {
        if self.closing.load(Ordering::Acquire) { Standing::Closed } else { self.standing.lock().clone() }
    }

    /// Claims the origin for this folder.
    ///
    /// # Errors
    /// See [`ClaimError`]. After `Origin` it may be tried again; a refusal is final.
    pub fn open(&self, wish: Wish) -> Result<Opened, ClaimError> {
        let mut state = self.state.lock();
        let done = self.open_with(&mut state, wish);
        match &done {
            Ok(_) => {}
            Err(ClaimError::Refused(refusal)) => self.lose(&refusal.to_string()),
            Err(ClaimError::Gone(_) | ClaimError::Origin(_) | ClaimError::Memory(_)) => {}
        }
        done
    }

    fn open_with(&self, state: &mut State, wish: Wish) -> Result<Opened, ClaimError> {
        if let Some(why) = self.origin.look()? {
            return Err(ClaimError::Gone(why));
        }
        let mut newest = self.newest(state)?;
        for _ in 0..TRIES {
            let memory = match self.remember.load() {
                // An unreadable memory proves nothing. A take-over replaces it.
                Err(error) if error.kind() == io::ErrorKind::InvalidData && wish != Wish::Open => None,
                memory => memory.map_err(ClaimError::Memory)?,
            };
            let instance = self.remember.instance().map_err(ClaimError::Memory)?;
            let (number, claim) = match newest {
                None => (0, None),
                Some((epoch, Ok(claim))) => (epoch, Some(claim)),
                Some((epoch, Err(Wrong::Newer(_)))) => return Err(Refusal::Newer(epoch).into()),
                Some((epoch, Err(Wrong::Damaged))) if wish == Wish::Open => {
                    return Err(Refusal::Damaged(epoch).into());
                }
                Some((epoch, Err(Wrong::Damaged))) => (epoch, None),
            };
            let seen = Seen {
                volume: self.who.volume,
                memory: memory.as_ref(),
                instance: &instance,
                private: self.remember.is_private(),
                newest: claim.as_ref(),
            };
            let kind = decide(&seen, wish)?;
            let hold = must_hold(&seen, kind);
            let mut memory = memory.unwrap_or_else(|| Memory::new(instance.clone()));
            if memory.instance != instance {
                memory = Memory { folder: base::random::id16(), instance, ..memory };
            }
            memory.hold = hold;
            // In an origin that was put back from a backup, numbers used before are not used again.
            let used = memory.current.iter().chain(&memory.next).map(|made| made.epoch).max();
            let number = if wish == Wish::Open { number } else { number.max(used.unwrap_or(0)) };
            let after = claim.as_ref().map(|claim| claim.token);
            let began = (self.clock)();
            if let Some(held) = self.make(&mut memory, number + 1, after, kind)? {
                self.holds(state, held, began);
                state.hold = hold;
                return Ok(Opened { before: claim, hold });
            }
            newest = at(&*self.origin, number + 1)?.map(|found| (number + 1, found));
        }
        Err(BlobError::Unavailable("others claim the origin again and again".to_owned()).into())
    }

    /// Asks for a claim; none if another folder has the number.
    fn make(
        &self,
        memory: &mut Memory,
        epoch: u64,
        after: Option<[u8; 16]>,
        kind: Kind,
    ) -> Result<Option<Held>, ClaimError> {
        let made = Made { epoch, token: base::random::id16() };
        let claim = Claim {
            epoch,
            volume: self.who.volume,
            token: made.token,
            after,
            folder: memory.folder,
            kind,
            moment: base::time::now(),
            place: self.who.place.clone(),
        };
        memory.asks_for(made);
        self.remember.save(memory).map_err(ClaimError::Memory)?;
        let record = claim.encode();
        if !self.origin.create_record(&Claim::name(epoch), &record)? {
            return Ok(None);
        }
        memory.has_made(made);
        // If this fails, the folder still knows that it asked, which suffices.
        let _ = self.remember.save(memory);
        Ok(Some(Held { claim, record }))
    }

    fn holds(&self, state: &mut State, held: Held, began: BootTime) {
        let epoch = held.claim.epoch;
        state.held = Some(held);
        state.asked.clear();
        (state.looked, state.made) = (Some(began), Some(began));
        *self.standing.lock() = Standing::Held { epoch };
        self.prune(state, epoch);
    }

    /// Removes old claims, oldest first: the claim after a writer's own is never removed before the writer's
    /// own.
    fn prune(&self, state: &mut State, newest: u64) {
        for _ in 0..PRUNE {
            let Some(oldest) = state.oldest.filter(|oldest| oldest + KEEP <= newest) else { return };
            if self.origin.remove_record(&Claim::name(oldest)).is_err() {
                return;
            }
            state.oldest = Some(oldest + 1);
        }
    }

    fn newest(&self, state: &mut State) -> Result<Option<(u64, Read)>, BlobError> {
        let found = super::newest(&*self.origin)?;
        state.oldest = found.oldest;
        Ok(found.newest)
    }

    fn lose(&self, why: &str) {
        let mut standing = self.standing.lock();
        if !matches!(*standing, Standing::Lost { .. }) {
            *standing = Standing::Lost { why: why.to_owned(), since: base::time::now() };
        }
    }

    fn is_gone(&self, why: String) {
        let mut standing = self.standing.lock();
        match &mut *standing {
            Standing::Lost { .. } => {}
            Standing::Gone { why: was, .. } => *was = why,
            other => *other = Standing::Gone { why, since: base::time::now() },
        }
    }

    /// Makes this folder unable to write for another reason than a claim. Final.
    pub fn refuse(&self, why: &str) {
        self.lose(why);
    }

    /// An error unless this folder may store, as far as is known. It costs nothing, so it can be called
    /// often.
    ///
    /// # Errors
    /// `Refused` when the claim is lost, `Unavailable` while there is none.
    pub fn may_store(&self) -> Result<(), BlobError> {
        match self.standing() {
            Standing::Held { .. } => Ok(()),
            Standing::Lost { why, .. } => Err(BlobError::Refused(why)),
            Standing::Gone { why, .. } => Err(BlobError::Unavailable(why)),
            Standing::Unclaimed => Err(BlobError::Unavailable(
                "the origin has not answered since the volume was opened, so it is not known whether this volume may write to it".to_owned(),
            )),
            Standing::Closed => Err(BlobError::Unavailable("the volume is closed".to_owned())),
        }
    }

    /// Checks whether the claim holds, unless a check that began at most `fresh` ago found so. Returns when
    /// the check began.
    ///
    /// # Errors
    /// As [`Keeper::may_store`], and the origin's errors.
    pub fn check(&self, fresh: Duration) -> Result<BootTime, BlobError> {
        self.check_with(&mut self.state.lock(), fresh)
    }

    fn check_with(&self, state: &mut State, fresh: Duration) -> Result<BootTime, BlobError> {
        match self.standing() {
            Standing::Held { .. } | Standing::Gone { .. } => {}
            _ => self.may_store()?,
        }
        loop {
            let began = (self.clock)();
            let looked = state.looked.filter(|looked| began.since(*looked) < fresh);
            if let (Some(looked), Standing::Held { .. }) = (looked, self.standing()) {
                return Ok(looked);
            }
            let Some(held) = &state.held else { return self.may_store().map(|()| began) };
            let (epoch, record) = (held.claim.epoch, held.record.clone());
            // Reads the next number first. It is removed after this one, so in this order even a very late
            // writer sees it.
            if let Some(next) = self.origin.record(&Claim::name(epoch + 1))? {
                let claim = Claim::decode(&next);
                let ours =
                    |claim: &Claim| state.asked.contains(&Made { epoch: claim.epoch, token: claim.token });
                match claim {
                    Ok(claim) if ours(&claim) => {
                        self.holds(state, Held { claim, record: next }, began);
                        continue;
                    }
                    Ok(claim) => self.lose(&Refusal::Superseded(Box::new(claim)).to_string()),
                    Err(Wrong::Damaged) => self.lose(&Refusal::Damaged(epoch + 1).to_string()),
                    Err(Wrong::Newer(_)) => self.lose(&Refusal::Newer(epoch + 1).to_string()),
                }
                return self.may_store().map(|()| began);
            }
            let found = self.origin.record(&Claim::name(epoch))?;
            let sound = found.as_ref() == Some(&record);
            match found {
                Some(_) if sound => {}
                Some(_) => self.lose(&Refusal::Damaged(epoch).to_string()),
                None => self.missing(state, epoch)?,
            }
            if let Standing::Lost { .. } = self.standing() {
                return self.may_store().map(|()| began);
            }
            if let (true, Standing::Gone { .. }) = (sound, self.standing()) {
                match self.origin.look()? {
                    None => *self.standing.lock() = Standing::Held { epoch },
                    Some(why) => self.is_gone(why),
                }
            }
            self.may_store()?;
            state.looked = Some(began);
            return Ok(began);
        }
    }

    /// The folder's own claim is missing: the origin was emptied, or the claim was removed after many newer
    /// ones.
    fn missing(&self, state: &mut State, epoch: u64) -> Result<(), BlobError> {
        if let Some(why) = self.origin.look()? {
            self.is_gone(why);
            return Ok(());
        }
        match self.newest(state)? {
            Some((newest, Ok(claim))) if newest > epoch => {
                self.lose(&Refusal::Superseded(Box::new(claim)).to_string());
            }
            Some((newest, Err(_))) if newest > epoch => self.lose(&Refusal::Damaged(newest).to_string()),
            _ => self.is_gone(format!(
                "{}; unmount, and look at it: covey origin mark VOLUME",
                Refusal::OriginOlder(None)
            )),
        }
        Ok(())
    }

    /// Checks the claim and the origin itself anew. To be called before reporting that everything is stored.
    ///
    /// # Errors
    /// As [`Keeper::check`].
    pub fn verify(&self) -> Result<(), BlobError> {
        let began = (self.clock)();
        if let Some(why) = self.origin.look()? {
            self.is_gone(why.clone());
            return Err(BlobError::Unavailable(why));
        }
        let mut state = self.state.lock();
        self.check_with(&mut state, Duration::ZERO)?;
        state.verified = Some(began);
        Ok(())
    }

    /// Checks as [`Keeper::verify`] in a bounded time, or relies on a check that began at most `fresh` ago.
    ///
    /// # Errors
    /// As [`Keeper::check`]; `Unavailable` when it takes longer than `patience`.
    pub fn verify_within(self: &Arc<Keeper>, patience: Duration, fresh: Duration) -> Result<(), BlobError> {
        let lately = |state: &State| state.verified.is_some_and(|at| (self.clock)().since(at) < fresh);
        if self.may_store().is_ok() && self.state.try_lock().is_some_and(|state| lately(&state)) {
            return Ok(());
        }
        if self.fresh.is_zero() {
            return self.verify();
        }
        let (done, told) = mpsc::channel();
        let keeper = self.clone();
        base::thread::spawn("covey-claim", move || done.send(keeper.verify())).map_err(BlobError::Io)?;
        told.recv_timeout(patience).unwrap_or_else(|_| {
            let what = "the origin has not answered in time whether it is still this volume's";
            Err(BlobError::Unavailable(what.to_owned()))
        })
    }

    /// Makes a new claim after this folder's last. From then on, older copies of the folder are known to be
    /// old.
    ///
    /// # Errors
    /// As [`Keeper::check`].
    pub fn renew(&self, kind: Kind) -> Result<(), BlobError> {
        self.renew_with(&mut self.state.lock(), kind)
    }

    fn renew_with(&self, state: &mut State, kind: Kind) -> Result<(), BlobError> {
        for _ in 0..TRIES {
            // A claim that was asked for without an answer may exist by now.
            self.check_with(state, if state.asked.is_empty() { FRESH } else { Duration::ZERO })?;
            let Some(held) = &state.held else { return self.may_store() };
            let (epoch, after) = (held.claim.epoch + 1, Some(held.claim.token));
            let memory = self.remember.load().map_err(BlobError::Io)?;
            let Some(mut memory) = memory else {
                return Err(BlobError::Unavailable(
                    "the folder's own record of its claims is gone".to_owned(),
                ));
            };
            let began = (self.clock)();
            let done = self.make(&mut memory, epoch, after, kind);
            match done {
                Ok(Some(held)) => {
                    self.holds(state, held, began);
                    return Ok(());
                }
                Ok(None) => {}
                Err(error) => {
                    state.asked.extend(memory.next.iter().rev().take(1));
                    return Err(match error {
                        ClaimError::Memory(error) => BlobError::Io(error),
                        ClaimError::Origin(error) => error,
                        ClaimError::Gone(why) => BlobError::Unavailable(why),
                        ClaimError::Refused(refusal) => BlobError::Refused(refusal.to_string()),
                    });
                }
            }
            state.looked = None;
        }
        Err(BlobError::Unavailable("others claim the origin again and again".to_owned()))
    }

    /// To be called right before blobs or records are changed. Returns until when changes may be sent.
    ///
    /// # Errors
    /// As [`Keeper::check`]; `Unavailable` while what is published is not held.
    pub fn may_remove(&self) -> Result<BootTime, BlobError> {
        let mut state = self.state.lock();
        let began = self.check_with(&mut state, self.fresh)?;
        if state.hold {
            return Err(BlobError::Unavailable(
                "what is published has not been looked at since this folder claimed the origin, so nothing is deleted yet".to_owned(),
            ));
        }
        if state.made.is_none_or(|made| (self.clock)().since(made) >= RENEW) {
            self.renew_with(&mut state, Kind::Renewed)?;
        }
        Ok(began.plus(HOLDS))
    }

    /// Records that the folder's rows durably hold what is published. Deletions may begin.
    ///
    /// # Errors
    /// The folder cannot store that.
    pub fn holds_published(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if let Some(memory) = self.remember.load()? {
            self.remember.save(&Memory { hold: false, ..memory })?;
        }
        state.hold = false;
        Ok(())
    }

    /// Whether what is published must be held before anything is deleted.
    pub fn must_hold(&self) -> bool {
        self.state.lock().hold
    }

    /// Begins a removal, which ends when the returned value is dropped.
    pub(super) fn removal(&self) -> Removal<'_> {
        self.removing.fetch_add(1, Ordering::AcqRel);
        Removal(self)
    }

    /// Closes: nothing is stored or removed from now on. Also records in the origin that nothing writes any
    /// more, if possible.
    pub fn close(&self) {
        let held = matches!(self.standing(), Standing::Held { .. });
        // From here on no removal can begin.
        if self.closing.swap(true, Ordering::AcqRel) || !held {
            return;
        }
        let until = boot().plus(LAST_REMOVALS);
        while self.removing.load(Ordering::Acquire) > 0 {
            if boot() >= until {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let state = self.state.lock();
        // A promoted volume is not the folder's to close any more.
        let Some(held) = state.held.as_ref().filter(|held| held.claim.kind != Kind::Promoted) else { return };
        // If it arrives too late, no harm is done: the folder knows that it asked.
        if let Ok(Some(mut memory)) = self.remember.load() {
            let _ = self.make(&mut memory, held.claim.epoch + 1, Some(held.claim.token), Kind::Closed);
        }
    }
}

/// See [`Keeper::removal`].
pub(super) struct Removal<'a>(&'a Keeper);

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.0.removing.fetch_sub(1, Ordering::AcqRel);
    }
}
