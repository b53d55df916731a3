//! Decides a commit: in memory under this node's leases, or by the engine.

use super::behind::Upto;
use super::change::{Failed, Survey, conflict};
use super::row::Holder;
use super::space::removes;
use super::state::{Need, State};
use super::{Core, PATIENCE, not_joined, pinned};
use crate::shared::outage::{add_changes, counted};
use crate::store::{Commit, CommitError, StoreError, in_time};

/// What became of a commit.
enum Decided {
    Done,
    /// The commit is done, and not in the journal: it is acknowledged when the engine has this batch.
    Unsafe(Upto),
    Refused(Failed),
    ByEngine(Survey),
}

impl Core {
    /// Decides a commit in memory, or by the engine if leases do not cover all that it rests on.
    pub(super) fn commit(&self, commit: &Commit) -> Result<(), CommitError> {
        let began = base::time::monotonic();
        loop {
            self.term.check()?;
            self.admit(commit)?;
            let mut state = self.state.lock();
            // It may have waited for long.
            in_time()?;
            // Under the lock: nothing that is remembered then is of another session.
            let me = self.nodes.me().ok_or_else(not_joined)?;
            pinned::check(|| Some(me))?;
            let need = match self.decide(&mut state, commit, me) {
                Ok(Decided::Done) => return counted(Ok(())),
                Ok(Decided::Unsafe(batch)) => {
                    drop(state);
                    add_changes(1);
                    return Ok(self.drain(batch, base::time::monotonic() + PATIENCE)?);
                }
                Ok(Decided::Refused(failed)) => return Err(conflict(failed)),
                Ok(Decided::ByEngine(_)) if !base::thread::may_wait() => return Err(StoreError::Waits.into()),
                Ok(Decided::ByEngine(survey)) => match self.commit_foreign(state, commit, &survey, me) {
                    Ok(true) => return Ok(()),
                    Ok(false) => continue,
                    Err(error) => return Err(error),
                },
                Err(need) => need,
            };
            drop(state);
            self.meet(need, began)?;
        }
    }

    fn decide(&self, state: &mut State, commit: &Commit, me: Holder) -> Result<Decided, Need> {
        if state.is_suspect {
            return Err(Need::Turn);
        }
        let survey = state.survey(commit)?;
        state.know_counters(commit, &survey)?;
        let bypasses = state.no_space.is_some() && removes(commit);
        if survey.is_foreign || bypasses {
            return Ok(Decided::ByEngine(survey));
        }
        if let Err(failed) = state.verify(commit, &survey)? {
            return Ok(Decided::Refused(failed));
        }
        let (leases, checks) = (state.leases_of(&survey.writes), state.checks_of_read(commit));
        let made = state.apply(commit, &survey, me);
        let now = base::time::monotonic();
        let is_safe = state.enqueue(commit, (leases, made, checks), me, now);
        let batch = state.queue.current;
        state.note_moved(&survey, batch);
        let is_wanted = state.note_changes(commit, &survey, now);
        for unit in survey.writes.iter().chain(&survey.reads).chain(survey.born.values()) {
            state.units.get_mut(unit).into_iter().for_each(|unit| (unit.batch, unit.last) = (batch, now));
        }
        if state.queue.oldest.is_none() {
            state.queue.oldest = Some(now);
            self.work.notify_one();
        }
        if is_wanted {
            state.queue.hurry = true;
            self.work.notify_one();
        }
        let upto = Upto { batch, sessions: state.sessions };
        Ok(if is_safe { Decided::Done } else { Decided::Unsafe(upto) })
    }
}
