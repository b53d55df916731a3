//! Which blob is uploaded next, and when: a decision without I/O, clock or random numbers.
//!
//! The oldest blob goes first. A blob whose attempt failed waits, longer after each failure, while others
//! continue. If nothing has succeeded since a failed attempt began, the origin is in doubt, not the blob.
//! From then on one attempt is made at a time, at growing intervals, until one succeeds. So an outage costs
//! an occasional request instead of a storm. Such a failure halves the number of parallel uploads, and each
//! success adds one. So a slow line carries a few blobs at a time, where many in parallel would all time out.
//!
//! **A refusal is about the refused blob.** The origin answers, so the others are sent as before. Of the
//! refused blobs, one is tried in each second at most, and when it is taken, all are due. Only if many blobs
//! in a row are refused and none is taken, the refusal is about more than these. Then one blob is sent at a
//! time, with pauses.
//!
//! ```text
//!   noted ──► waiting ──► under way ──► done    forgotten while under way ──► removed when the attempt ends
//!                ▲            │ failed           └── noted again ──► waiting when the attempt ends
//!                └────────────┘
//! ```

mod jobs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use base::{BlobId, Timestamp};

use crate::Pinned;
pub(super) use jobs::{Counts, Event, Fault, Job, Next};
pub use jobs::{Trouble, Waiting};

/// How long a failed attempt waits for the next one.
#[derive(Clone, Copy, Debug)]
struct Backoff {
    /// After the first failure.
    first: Duration,
    /// After many failures.
    longest: Duration,
}

/// The waits after the origin did not answer.
const AWAY: Backoff = Backoff { first: Duration::from_millis(500), longest: Duration::from_secs(30) };
/// The waits after the origin refused, or if a blob cannot be read here. Time alone fixes neither, but a
/// person may.
const REFUSED: Backoff = Backoff { first: Duration::from_secs(5), longest: Duration::from_secs(120) };
/// The pauses while all that is sent is refused.
const ALL_REFUSED: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(5) };
/// So many blobs in a row, of which each is refused for the first time, mean that all are.
const MANY: u32 = 32;
/// The minimum time between two attempts with refused blobs.
const RETRY_REFUSED: Duration = Duration::from_secs(1);
/// Once the origin answers again, no blob waits longer than this for its next attempt.
const AFTER_OUTAGE: Duration = Duration::from_secs(2);
/// How many of the last uploaded blobs are remembered. If one is stored again, the origin is asked for it
/// before it is sent again.
const REMEMBERED: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    UnderWay,
    /// In flight, and no longer wanted.
    Forgotten,
    /// In flight, forgotten, and then wanted again.
    WantedAgain,
}

#[derive(Debug)]
struct Entry {
    size: u64,
    turn: u64,
    since: Timestamp,
    state: State,
    attempts: u32,
    not_before: Option<Instant>,
    ask_first: bool,
    compare: bool,
    unreadable: bool,
    /// The origin refused it.
    refused: bool,
    /// When it last failed, and why.
    failed: Option<(Instant, String)>,
}

/// The queue. See the [module](self).
pub(super) struct Queue {
    /// Parallel attempts: the configured maximum, and (`allowed`) the current limit.
    most: usize,
    allowed: usize,
    entries: HashMap<BlobId, Entry>,
    /// The wanted blobs, oldest first.
    turns: BTreeMap<u64, BlobId>,
    next_turn: u64,
    pinned: Pinned,
    under_way: usize,
    unreadable: u64,
    /// How many wanted blobs the origin refused.
    refused: usize,
    /// Refusals of other blobs each since the last success.
    refused_in_a_row: u32,
    /// No attempt with a refused blob before this time.
    retry_at: Option<Instant>,
    /// Failures since the last success that cast doubt on the origin.
    doubts: u32,
    /// While the origin is in doubt or refuses all: no attempt before this time.
    hold_until: Option<Instant>,
    last_success: Option<Instant>,
    trouble: Option<Trouble>,
    recent: Recent,
    counts: Counts,
}

#[derive(Default)]
struct Recent {
    all: HashSet<BlobId>,
    order: VecDeque<BlobId>,
}

impl Recent {
    fn insert(&mut self, id: BlobId) {
        if self.all.insert(id) {
            self.order.push_back(id);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.all.remove(&oldest);
            }
        }
    }
}

/// The wait doubles with every attempt, up to the longest. A random part of up to half is taken off, so that
/// blobs that failed together are not retried together.
fn wait_after(attempts: u32, backoff: Backoff, chance: u64) -> Duration {
    let full = backoff.first.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(backoff.longest);
    full / 2 + full.mul_f64((chance % 1024) as f64 / 2048.0)
}

impl Queue {
    /// Creates an empty queue with at most this many parallel attempts.
    pub(super) fn new(most: usize) -> Queue {
        Queue {
            most,
            allowed: most,
            entries: HashMap::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
            pinned: Pinned::default(),
            under_way: 0,
            unreadable: 0,
            refused: 0,
            refused_in_a_row: 0,
            retry_at: None,
            doubts: 0,
            hold_until: None,
            last_success: None,
            trouble: None,
            recent: Recent::default(),
            counts: Counts::default(),
        }
    }

    /// Records a blob that the origin needs. `maybe_there`: the origin may have it. False if the blob already
    /// waits or is being sent.
    pub(super) fn note(&mut self, id: BlobId, size: u64, since: Timestamp, maybe_there: bool) -> bool {
        let turn = self.next_turn;
        let ask_first = maybe_there || self.recent.all.contains(&id);
        match self.entries.get_mut(&id) {
            Some(entry) if entry.state == State::Forgotten => {
                (entry.state, entry.turn, entry.since) = (State::WantedAgain, turn, since);
            }
            Some(_) => return false,
            None => {
                let entry = Entry {
                    size,
                    turn,
                    since,
                    state: State::Waiting,
                    attempts: 0,
                    not_before: None,
                    ask_first,
                    compare: maybe_there,
                    unreadable: false,
                    refused: false,
                    failed: None,
                };
                self.entries.insert(id, entry);
            }
        }
        self.next_turn += 1;
        self.turns.insert(turn, id);
        self.pinned.blobs += 1;
        self.pinned.bytes += size;
        true
    }

    /// Records that a blob is no longer wanted.
    pub(super) fn forget(&mut self, id: &BlobId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let state = entry.state;
        if state == State::Forgotten {
            return;
        }
        entry.state = State::Forgotten;
        self.unlist(id);
        if state == State::Waiting {
            self.remove(id);
        }
        self.recent.all.remove(id);
    }

    /// Drops the memory that the blob was uploaded.
    pub(super) fn doubt(&mut self, id: &BlobId) {
        self.recent.all.remove(id);
    }

    /// Records that the bytes of a wanted blob are readable. If they were not before, its next attempt is due
    /// now.
    pub(super) fn is_readable(&mut self, id: &BlobId) {
        if let Some(entry) = self.entries.get_mut(id).filter(|entry| entry.unreadable) {
            (entry.unreadable, entry.not_before) = (false, None);
            self.unreadable -= 1;
        }
    }

    /// Removes a blob from the list of wanted blobs.
    fn unlist(&mut self, id: &BlobId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        self.turns.remove(&entry.turn);
        self.pinned.blobs -= 1;
        self.pinned.bytes -= entry.size;
        if std::mem::take(&mut entry.unreadable) {
            self.unreadable -= 1;
        }
        if std::mem::take(&mut entry.refused) {
            self.refused -= 1;
        }
    }

    fn remove(&mut self, id: &BlobId) {
        self.entries.remove(id);
    }

    /// Whether the blob is wanted, or an attempt is in flight.
    pub(super) fn has(&self, id: &BlobId) -> bool {
        self.entries.contains_key(id)
    }

    /// Whether the blob is wanted.
    pub(super) fn wants(&self, id: &BlobId) -> bool {
        self.entries.get(id).is_some_and(|entry| entry.state != State::Forgotten)
    }

    fn in_doubt(&self) -> bool {
        self.doubts > 0
    }

    /// Whether the origin refuses all that is sent.
    fn all_refused(&self) -> bool {
        self.refused_in_a_row >= MANY
    }

    /// How many attempts could run at once.
    pub(super) fn hands(&self) -> usize {
        if self.in_doubt() || self.all_refused() {
            self.most.min(1)
        } else {
            self.turns.len().min(self.allowed)
        }
    }

    /// Whether there is nothing to do, now or later.
    pub(super) fn is_idle(&self) -> bool {
        self.turns.len() <= self.under_way
    }

    /// Takes the next thing to do.
    pub(super) fn take(&mut self, now: Instant) -> Next {
        if self.in_doubt() || self.all_refused() {
            if self.under_way > 0 {
                return Next::Nothing;
            }
            if let Some(at) = self.hold_until.filter(|at| *at > now) {
                return Next::At(at);
            }
        }
        if self.under_way >= self.allowed {
            return Next::Nothing;
        }
        let (found, soonest) = if self.in_doubt() { self.probe(now) } else { self.oldest_ready(now) };
        let entry = found.and_then(|id| Some((id, self.entries.get_mut(&id)?)));
        match (entry, soonest) {
            (Some((id, entry)), _) => {
                entry.state = State::UnderWay;
                if entry.refused {
                    self.retry_at = Some(now + RETRY_REFUSED);
                }
                self.under_way += 1;
                Next::Job(Job {
                    id,
                    size: entry.size,
                    ask_first: entry.ask_first,
                    compare: entry.compare,
                    begun: now,
                })
            }
            (None, Some(at)) => Next::At(at),
            (None, None) => Next::Nothing,
        }
    }

    fn waiting(&self) -> impl Iterator<Item = (BlobId, &Entry)> {
        let entries = self.turns.values().filter_map(|id| Some((*id, self.entries.get(id)?)));
        entries.filter(|(_, entry)| entry.state == State::Waiting)
    }

    /// The oldest blob that is due, or else the time when the first becomes due. A refused blob is due only
    /// when it may be tried.
    fn oldest_ready(&self, now: Instant) -> (Option<BlobId>, Option<Instant>) {
        let mut soonest: Option<Instant> = None;
        for (id, entry) in self.waiting() {
            let may = self.retry_at.filter(|_| entry.refused);
            match entry.not_before.max(may).filter(|at| *at > now) {
                Some(at) => soonest = Some(soonest.map_or(at, |other| other.min(at))),
                None => return (Some(id), None),
            }
        }
        (None, soonest)
    }

    /// The blob to try an origin in doubt with: the one with the fewest attempts, because the origin may
    /// refuse a particular blob.
    fn probe(&self, now: Instant) -> (Option<BlobId>, Option<Instant>) {
        let readable = self.waiting().filter(|(_, entry)| !entry.unreadable);
        match readable.min_by_key(|(_, entry)| (entry.attempts, entry.turn)) {
            Some((id, _)) => (Some(id), None),
            None => self.oldest_ready(now),
        }
    }

    /// Records a success. `sent`: the bytes were sent; otherwise the origin had them. Returns whether the
    /// note can be removed, and an event to report.
    pub(super) fn succeeded(&mut self, job: &Job, sent: bool, now: Instant) -> (bool, Option<Event>) {
        self.under_way -= 1;
        self.allowed = self.most.min(self.allowed + 1);
        self.doubts = 0;
        self.refused_in_a_row = 0;
        self.hold_until = None;
        self.last_success = Some(now);
        if sent {
            self.counts.sent_blobs += 1;
            self.counts.sent_bytes += job.size;
        } else {
            self.counts.found_blobs += 1;
        }
        // That another blob is taken says nothing of those that are refused.
        let was_refused = self.entries.get(&job.id).is_some_and(|entry| entry.refused);
        let is_over = |trouble: &mut Trouble| !trouble.refused || was_refused || self.refused == 0;
        let over = self.trouble.take_if(is_over).map(|trouble| {
            let latest = now + AFTER_OUTAGE;
            for entry in self.entries.values_mut().filter(|entry| was_refused || !entry.refused) {
                entry.not_before = entry.not_before.map(|at| at.min(latest));
                entry.refused = false;
            }
            Event::Over(trouble)
        });
        if was_refused {
            (self.refused, self.retry_at) = (0, None);
            self.entries.values_mut().for_each(|entry| entry.refused = false);
        }
        let done = match self.entries.get(&job.id).map(|entry| entry.state) {
            Some(State::UnderWay) => {
                self.unlist(&job.id);
                self.remove(&job.id);
                self.recent.insert(job.id);
                true
            }
            _ => {
                self.settle_forgotten(&job.id);
                false
            }
        };
        (done, over)
    }

    /// Records a failure. `chance` is a random number.
    pub(super) fn failed(
        &mut self,
        job: &Job,
        fault: Fault,
        now: Instant,
        today: Timestamp,
        chance: u64,
    ) -> Option<Event> {
        self.under_way -= 1;
        self.counts.failures += 1;
        let slow = !matches!(fault, Fault::Away(_));
        let (Fault::Away(said) | Fault::Refused(said) | Fault::Full(said) | Fault::Local(said)) = &fault;
        let succeeded_since = |at: Instant| self.last_success.is_some_and(|success| success >= at);
        // If another upload succeeded since this attempt began, or since this blob's last failure, the
        // failure says nothing about the origin.
        let mut alone = succeeded_since(job.begun);
        let mut event = None;
        if let Some(entry) = self.entries.get_mut(&job.id).filter(|entry| entry.state == State::UnderWay) {
            entry.state = State::Waiting;
            entry.attempts += 1;
            let before = entry.failed.replace((now, said.clone()));
            alone |= before.is_some_and(|(at, _)| succeeded_since(at));
            // The bytes may have arrived although the answer did not.
            entry.ask_first = true;
            let wait = wait_after(entry.attempts, if slow { REFUSED } else { AWAY }, chance);
            entry.not_before = Some(now + wait);
            let refused = matches!(fault, Fault::Refused(_));
            if refused && !std::mem::replace(&mut entry.refused, true) {
                self.refused += 1;
                self.refused_in_a_row += 1;
            }
            if let Fault::Local(why) = &fault
                && !std::mem::replace(&mut entry.unreadable, true)
            {
                self.unreadable += 1;
                event = Some(Event::Unreadable(job.id, why.clone()));
            }
        } else {
            self.settle_forgotten(&job.id);
        }
        let (refused, why) = match fault {
            Fault::Away(why) => (false, why),
            Fault::Refused(why) => {
                self.doubts = 0;
                let more = self.refused_in_a_row.checked_sub(MANY);
                self.hold_until = more.map(|more| now + wait_after(more + 1, ALL_REFUSED, chance));
                return self.in_trouble(true, why, today);
            }
            Fault::Full(why) => (true, why),
            Fault::Local(_) => return event,
        };
        self.allowed = self.most.min((self.allowed / 2).max(1));
        if alone {
            return None;
        }
        self.doubts = self.doubts.saturating_add(1);
        self.hold_until = Some(now + wait_after(self.doubts, if refused { REFUSED } else { AWAY }, chance));
        self.in_trouble(refused, why, today)
    }

    /// Uploads do not succeed. Returns what is new about that.
    fn in_trouble(&mut self, refused: bool, why: String, today: Timestamp) -> Option<Event> {
        match &mut self.trouble {
            Some(trouble) if trouble.refused == refused => {
                trouble.why = why;
                None
            }
            trouble => {
                let since = trouble.as_ref().map_or(today, |before| before.since);
                let new = Trouble { since, refused, why };
                *trouble = Some(new.clone());
                Some(Event::Trouble(new))
            }
        }
    }

    /// Handles the end of an attempt for a blob that was forgotten meanwhile.
    fn settle_forgotten(&mut self, id: &BlobId) {
        match self.entries.get_mut(id) {
            Some(entry) if entry.state == State::WantedAgain => {
                entry.state = State::Waiting;
                entry.attempts = 0;
                entry.not_before = None;
                // Asking is cheap, whatever the outcome of the attempt was.
                entry.ask_first = true;
            }
            Some(entry) if entry.state == State::Forgotten => self.remove(id),
            _ => {}
        }
    }

    /// Records that the attempt found nothing that refers to the blob.
    pub(super) fn is_nobodys(&mut self, job: &Job) {
        self.under_way -= 1;
        if self.entries.get(&job.id).is_some_and(|entry| entry.state == State::UnderWay) {
            self.unlist(&job.id);
            self.remove(&job.id);
        } else {
            self.settle_forgotten(&job.id);
        }
    }

    /// Makes every blob due now.
    pub(super) fn hurry(&mut self) {
        (self.hold_until, self.retry_at) = (None, None);
        self.entries.values_mut().for_each(|entry| entry.not_before = None);
    }

    /// A mark: everything noted so far has a smaller number.
    pub(super) fn mark(&self) -> u64 {
        self.next_turn
    }

    /// How much of what was noted before the mark is still wanted.
    pub(super) fn left(&self, mark: u64) -> Pinned {
        let before = self.turns.range(..mark).filter_map(|(_, id)| self.entries.get(id));
        before.fold(Pinned::default(), |sum, entry| Pinned {
            blobs: sum.blobs + 1,
            bytes: sum.bytes + entry.size,
        })
    }

    /// Whether nothing noted before the mark is still wanted.
    pub(super) fn is_settled(&self, mark: u64) -> bool {
        self.turns.first_key_value().is_none_or(|(turn, _)| *turn >= mark)
    }

    pub(super) fn pinned(&self) -> Pinned {
        self.pinned
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way
    }

    pub(super) fn unreadable(&self) -> u64 {
        self.unreadable
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn trouble(&self) -> Option<&Trouble> {
        self.trouble.as_ref()
    }

    pub(super) fn last_success(&self) -> Option<Instant> {
        self.last_success
    }

    /// The last error of the blob that has waited longest, if any.
    pub(super) fn oldest_failure(&self) -> Option<String> {
        let (_, id) = self.turns.first_key_value()?;
        Some(self.entries.get(id)?.failed.as_ref()?.1.clone())
    }

    /// When the blob that has waited longest was noted.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        let (_, id) = self.turns.first_key_value()?;
        self.entries.get(id).map(|entry| entry.since)
    }

    /// The oldest wanted blobs, at most `limit`.
    pub(super) fn first(&self, limit: usize) -> Vec<Waiting> {
        let told = |id: &BlobId| {
            let entry = self.entries.get(id)?;
            let under_way = matches!(entry.state, State::UnderWay | State::WantedAgain);
            let failure = entry.failed.as_ref().map(|(_, why)| why.clone());
            Some(Waiting {
                id: *id,
                size: entry.size,
                since: entry.since,
                under_way,
                attempts: entry.attempts,
                failure,
            })
        };
        self.turns.values().take(limit).filter_map(told).collect()
    }

    /// All wanted blobs with their sizes, oldest first.
    pub(super) fn list(&self) -> Vec<(BlobId, u64)> {
        let sized = |id: &BlobId| self.entries.get(id).map(|entry| (*id, entry.size));
        self.turns.values().filter_map(sized).collect()
    }
}
