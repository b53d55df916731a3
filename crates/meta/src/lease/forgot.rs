//! The engine has forgotten what it had confirmed: a standby that lagged took the place of its primary, or a
//! server crashed that does not wait for its disk.
//!
//! The row of the session counts its batches. If it counts fewer than were confirmed, the engine has lost the
//! last ones. This node keeps these for a while, and sends them once more, in their order. Each holds only if
//! its leases do, as when it was sent first, and if the names that it changes are what they were: a commit
//! that the engine decided alone ([`super::foreign`]) leaves nothing in leases, and is not sent again. The
//! first batch that the engine refuses, and those after it, are lost: the log names them, and fsync(2) of
//! their files fails once. Before them, the rows of this node's packs are put back ([`super::own_packs`]),
//! and its leases are taken again ([`super::retake`]).
//!
//! A lease that the engine has forgotten may have been given to another node. So nothing is remembered after
//! that, and nothing is answered from memory until then.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use super::promise::KeptByKernel;
use super::queue::Batch;
use super::row::Holder;
use super::{Core, Leases};
use crate::key::Key;
use crate::record::{PackRow, decode_u64};
use crate::store::{CommitError, Expect, StoreError, Value};

/// The pause before a batch is sent again.
pub(super) const AGAIN: Duration = Duration::from_millis(50);
/// How many lost inodes are told to fsync.
const LOST_MAX: usize = 1 << 16;
/// Confirmed batches are kept for so long, and no more bytes of them than this.
const KEEP: Duration = Duration::from_secs(600);
const KEEP_BYTES: usize = 16 << 20;
/// How many names the log tells of what was lost.
const NAMES: usize = 10;

/// What became of a batch.
pub(super) enum Sent {
    Done,
    /// The session of the batch, or one of its leases, has ended.
    Lost,
}

/// What the engine has confirmed to this node.
#[derive(Default)]
pub(super) struct Confirmed {
    /// The session, and its last batch.
    pub last: Option<(Holder, u64)>,
    /// How often this node had joined again. A database that was put back to an earlier state may give a
    /// session the number and epoch of one that it has forgotten.
    joins: u64,
    /// The last batches. Their numbers follow one another, and the last one is `last`.
    kept: VecDeque<(Instant, Arc<Batch>)>,
    bytes: usize,
}

impl Confirmed {
    /// The last batch of a session that the engine has confirmed. 0: none.
    pub fn last_of(&self, me: Holder) -> u64 {
        self.last.filter(|(holder, _)| *holder == me).map_or(0, |(_, last)| last)
    }

    /// Forgets what was confirmed to an earlier session. `joins`: how often this node has joined again.
    pub fn of_session(&mut self, joins: u64) {
        if self.joins != joins {
            *self = Confirmed { joins, ..Confirmed::default() };
        }
    }

    /// The engine has confirmed the next batch of the session.
    pub fn add(&mut self, me: Holder, batch: &Arc<Batch>) {
        let number = self.last_of(me) + 1;
        if number == 1 {
            self.cut(me, 0);
        }
        let now = base::time::monotonic();
        self.last = Some((me, number));
        self.bytes += batch.bytes();
        self.kept.push_back((now, batch.clone()));
        let is_old = |at: Instant| now.saturating_duration_since(at) > KEEP;
        while self.kept.front().is_some_and(|(at, _)| self.bytes > KEEP_BYTES || is_old(*at)) {
            self.bytes -= self.kept.pop_front().map_or(0, |(_, batch)| batch.bytes());
        }
    }

    /// The batches after this one. `None`: they are not kept any more.
    fn after(&self, me: Holder, number: u64) -> Option<Vec<Arc<Batch>>> {
        let count = usize::try_from(self.last_of(me).checked_sub(number)?).ok()?;
        let first = self.kept.len().checked_sub(count)?;
        Some(self.kept.range(first..).map(|(_, batch)| batch.clone()).collect())
    }

    /// The engine has no batch after this one.
    fn cut(&mut self, me: Holder, number: u64) {
        self.last = Some((me, number));
        self.kept.clear();
        self.bytes = 0;
    }
}

impl Leases {
    /// The engine may have lost what it confirmed last: its server began anew, or another one took its place.
    /// Nothing is answered from memory until that is known.
    pub fn engine_began_anew(&self) {
        self.core.suspect();
    }

    /// Waits until the engine has what it confirmed to this node, as far as that is possible, for at most so
    /// long. Until then this node's session is not renewed: other nodes take leases when it is.
    pub fn wait_until_stored_again(&self, most: Duration) {
        let until = base::time::monotonic() + most;
        let mut state = self.core.state.lock();
        while state.is_suspect
            && !state.stopping
            && !self.core.changed.wait_until(&mut state, until).timed_out()
        {}
    }

    /// Whether the engine may lack what it confirmed to this node.
    pub fn engine_may_lack(&self) -> bool {
        self.core.state.lock().is_suspect
    }
}

impl Core {
    /// The engine may have forgotten what it had confirmed, and leases too. Nothing is answered from memory
    /// until that is known.
    pub(super) fn suspect(&self) {
        self.state.lock().is_suspect = true;
        self.work.notify_all();
    }

    /// Looks whether the engine has all that it had confirmed, sends what it lacks, and forgets the rest.
    /// Nothing waits to be sent.
    pub(super) fn clear_suspicion(&self, confirmed: &mut Confirmed) {
        let (me, sessions) = {
            let state = self.state.lock();
            confirmed.of_session(state.joins);
            (self.nodes.me(), state.sessions)
        };
        let checked = me.map_or(Ok(()), |me| {
            let row = self.inner.get(&Key::batch(me.node, me.epoch))?;
            let has = decode_u64(row.as_deref()).map_err(|error| StoreError::Damaged(error.to_string()))?;
            let is_short = has < confirmed.last_of(me);
            if !is_short {
                self.state.lock().lacking = Some(HashMap::new());
                return self.put_packs_back();
            }
            if let Some(Sent::Lost) = self.give_again(me, has, sessions, confirmed) {
                self.lose(None);
            }
            Ok(())
        });
        let mut state = self.state.lock();
        state.stored = confirmed.last;
        if matches!(checked, Err(StoreError::Unavailable(_))) && !state.stopping {
            self.changed.wait_for(&mut state, AGAIN);
            return;
        }
        if !state.queue.is_empty() {
            return;
        }
        let kept = KeptByKernel::of(state.units.values());
        state.forget_all();
        state.letting_go += 1;
        (state.is_suspect, state.lacking) = (false, None);
        self.changed.notify_all();
        drop(state);
        self.kernel_lets_go_of_the_forgotten(&kept);
    }

    /// Sends the confirmed batches after number `has` once more. `Done`: the engine has all of them. `None`:
    /// this node is being closed.
    pub(super) fn give_again(
        &self,
        me: Holder,
        has: u64,
        sessions: u64,
        confirmed: &mut Confirmed,
    ) -> Option<Sent> {
        let count = confirmed.last_of(me) - has;
        let Some(batches) = confirmed.after(me, has) else {
            confirmed.cut(me, has);
            self.nodes.report(&format!(
                "the database has lost the last {count} batches of changes that it had confirmed to this node, and they are not known here any more"
            ));
            return Some(Sent::Lost);
        };
        self.note_lacking(&batches);
        let resend = || {
            while self.put_packs_back().is_err() {
                self.pause(sessions)?;
            }
            for (at, batch) in batches.iter().enumerate() {
                while self.retake(me, batch).is_err() {
                    self.pause(sessions)?;
                }
                if !self.send_again(me, batch, has + 1 + at as u64, sessions)? {
                    return Ok(Some(at));
                }
                self.note_sent_again(batch);
            }
            Ok(None)
        };
        let sent = resend();
        self.state.lock().lacking = None;
        match sent {
            Ok(None) => {
                self.nodes.report(&format!(
                    "the database had lost the last {count} batches of changes that it had confirmed to this node; it has them again"
                ));
                Some(Sent::Done)
            }
            Ok(Some(at)) => {
                self.is_refused(&batches[at..], count);
                confirmed.cut(me, has + at as u64);
                Some(Sent::Lost)
            }
            Err(ended) => ended,
        }
    }

    /// Notes which units have changes that the engine lacks. Their leases are not given back before it has
    /// them.
    fn note_lacking(&self, batches: &[Arc<Batch>]) {
        let mut lacking = HashMap::new();
        for (unit, _) in batches.iter().flat_map(|batch| batch.needed()) {
            *lacking.entry(unit).or_default() += 1;
        }
        self.state.lock().lacking = Some(lacking);
    }

    fn note_sent_again(&self, batch: &Batch) {
        let mut state = self.state.lock();
        let lacking = state.lacking.get_or_insert_default();
        for (unit, _) in batch.needed() {
            if let Some(count) = lacking.get_mut(&unit) {
                *count -= 1;
            }
        }
        lacking.retain(|_, count| *count > 0);
        self.changed.notify_all();
    }

    /// Waits a moment.
    ///
    /// # Errors
    /// There is nothing to wait for: see [`Core::give_again`] for what it is.
    fn pause(&self, sessions: u64) -> Result<(), Option<Sent>> {
        let mut state = self.state.lock();
        if state.stopping {
            return Err(None);
        }
        if state.sessions != sessions {
            return Err(Some(Sent::Lost));
        }
        self.changed.wait_for(&mut state, AGAIN);
        Ok(())
    }

    /// Sends a batch once more. False: it is refused.
    fn send_again(
        &self,
        me: Holder,
        batch: &Batch,
        number: u64,
        sessions: u64,
    ) -> Result<bool, Option<Sent>> {
        let mut commit = batch.numbered(me, number - 1);
        commit.checks.extend(batch.names_before());
        // Their bytes were made durable when it was sent first.
        let fresh = std::mem::take(&mut commit.fresh);
        let packs: BTreeSet<Key> = fresh.iter().map(|fresh| Key::pack(fresh.pack)).collect();
        let packs: Vec<Key> = packs.into_iter().collect();
        let key = Key::batch(me.node, me.epoch);
        let is_condemned = |row: &Value| matches!(PackRow::decode(row), Ok(PackRow::Condemned { .. }));
        loop {
            let done = match self.inner.get_many(&packs) {
                // The blob will be deleted.
                Ok(rows) if rows.iter().flatten().any(is_condemned) => return Ok(false),
                Ok(rows) => {
                    let mut checked = commit.clone();
                    let rows = packs.iter().cloned().zip(rows);
                    checked.checks.extend(rows.filter_map(|(key, row)| Some((key, Expect::Is(row?)))));
                    self.inner.commit(checked)
                }
                Err(error) => Err(error.into()),
            };
            match done {
                Ok(()) => return Ok(true),
                Err(CommitError::Conflict { rows, .. }) if counted_in(&rows, &key) == Some(number) => {
                    return Ok(true);
                }
                // It was sealed meanwhile.
                Err(CommitError::Conflict { rows, .. })
                    if rows.iter().any(|(key, _)| packs.contains(key)) => {}
                Err(CommitError::Conflict { .. } | CommitError::Store(StoreError::Fenced(_))) => {
                    return Ok(false);
                }
                Err(CommitError::Store(_)) => self.pause(sessions)?,
            }
        }
    }

    /// Says what is lost of what the engine had confirmed.
    fn is_refused(&self, batches: &[Arc<Batch>], count: u64) {
        let mut state = self.state.lock();
        batches.iter().for_each(|batch| note_lost(&mut state.lost, batch));
        drop(state);
        let mut names: Vec<String> = batches.iter().flat_map(|batch| batch.names()).collect();
        names.sort_unstable();
        names.dedup();
        let more = names.len().saturating_sub(NAMES);
        names.truncate(NAMES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let such = if names.is_empty() {
            String::new()
        } else {
            format!(", with the names {}{more}", names.join(", "))
        };
        self.nodes.report(&format!(
            "the database had lost the last {count} batches of changes that it had confirmed to this node, and other nodes have gone on without them; {} are lost{such}",
            batches.len()
        ));
    }
}

/// How many batches of a session the engine has, by the rows of a conflict. `None`: as many as was thought.
pub(super) fn counted_in(rows: &[(Key, Option<Value>)], key: &Key) -> Option<u64> {
    let row = rows.iter().find(|(other, _)| other == key);
    row.and_then(|(_, value)| decode_u64(value.as_deref()).ok())
}

pub(super) fn note_lost(lost: &mut hashbrown::HashSet<base::Ino>, batch: &Batch) {
    for ino in batch.inodes() {
        if lost.len() < LOST_MAX {
            lost.insert(ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(epoch: u64) -> Holder {
        Holder { node: 1, epoch }
    }

    #[test]
    fn the_last_batches_of_a_session_are_kept() {
        let (me, mut confirmed) = (holder(3), Confirmed::default());
        assert_eq!(confirmed.last_of(me), 0);
        for _ in 0..5 {
            confirmed.add(me, &Arc::default());
        }
        assert_eq!(confirmed.last_of(me), 5);
        assert_eq!(confirmed.after(me, 2).map(|batches| batches.len()), Some(3));
        assert_eq!(confirmed.after(me, 5).map(|batches| batches.len()), Some(0));
        assert!(confirmed.after(me, 6).is_none());
        confirmed.cut(me, 2);
        assert_eq!(confirmed.last_of(me), 2);
        assert!(confirmed.after(me, 1).is_none(), "it is not known any more");
        confirmed.add(me, &Arc::default());
        assert_eq!(confirmed.after(me, 2).map(|batches| batches.len()), Some(1));
        confirmed.add(holder(4), &Arc::default());
        assert_eq!((confirmed.last_of(holder(4)), confirmed.last_of(me), confirmed.kept.len()), (1, 0, 1));
    }

    /// A database that forgot a session gave its number and epoch to the next one. What the first had
    /// confirmed was sent again in the name of the second.
    #[test]
    fn regression_nothing_is_kept_of_a_session_with_the_same_epoch() {
        let (me, mut confirmed) = (holder(3), Confirmed::default());
        confirmed.add(me, &Arc::default());
        confirmed.of_session(0);
        assert_eq!(confirmed.last_of(me), 1);
        confirmed.of_session(1);
        assert_eq!((confirmed.last_of(me), confirmed.after(me, 0).map(|kept| kept.len())), (0, Some(0)));
    }
}
