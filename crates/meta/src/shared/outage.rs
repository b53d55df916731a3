//! Whether the engine of a shared volume answers this node, for messages to people.
//!
//! A program that asks the mount gets an error number, which cannot say that a database is away. A command
//! asks the daemon, and gets a sentence from what is known here: since when the engine does not answer, why,
//! and whether the command has changed something before.
//!
//! Nothing is decided by it.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::store::{CommitError, StoreError};

thread_local! {
    static CHANGES: Cell<u64> = const { Cell::new(0) };
}

/// How many changes this thread has made, or may have made: those whose outcome is unknown count too.
pub fn changes() -> u64 {
    CHANGES.get()
}

/// Counts changes that another thread made for this one.
pub fn add_changes(more: u64) {
    CHANGES.set(changes() + more);
}

/// Counts a change of this thread by its outcome, and passes the outcome on.
pub(crate) fn counted(outcome: Result<(), CommitError>) -> Result<(), CommitError> {
    // These promise that nothing was changed.
    let is_none = matches!(
        outcome,
        Err(CommitError::Conflict { .. } | CommitError::Store(StoreError::Waits | StoreError::Fenced(_)))
    );
    add_changes(u64::from(!is_none));
    outcome
}

/// The engine takes no changes if it said so within this time and has taken none since.
const LACKS: Duration = Duration::from_secs(60);
/// A change that is taken so soon after another one was refused proves nothing: it may need no space.
const MIXED: Duration = Duration::from_secs(2);

/// What is known of the way to the engine. One for each node.
#[derive(Debug, Default)]
pub struct Outage {
    /// The engine may take no changes.
    refuses: AtomicBool,
    refusal: Mutex<Option<Refused>>,
    /// The last question had no answer. Nearly all have one, and these look at nothing else.
    is_on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The first question of the last outage.
    since: Option<Instant>,
    /// The last question without an answer.
    last: Option<Instant>,
    why: String,
}

/// The engine takes no changes, whether it answers reads or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Since when.
    pub since: Instant,
    last: Instant,
    /// The words of the engine.
    pub why: String,
    /// The engine has no space.
    pub is_full: bool,
}

/// An outage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Away {
    /// Since when there was no answer.
    pub since: Instant,
    /// Why, as far as it is known. A line that names the server.
    pub why: String,
    /// The engine has answered since.
    pub is_over: bool,
}

impl Outage {
    /// Notes whether a question was answered. An answer can be a refusal.
    pub fn note<T>(&self, answer: &Result<T, StoreError>) {
        match answer {
            Err(StoreError::Unavailable(why)) => {
                let mut state = self.state.lock();
                let now = base::time::monotonic();
                if !self.is_on.swap(true, Ordering::AcqRel) {
                    state.since = Some(now);
                }
                state.last = Some(now);
                state.why.clone_from(why);
            }
            Err(StoreError::Waits) => {}
            _ if self.is_on.load(Ordering::Acquire) => {
                let _state = self.state.lock();
                self.is_on.store(false, Ordering::Release);
            }
            _ => {}
        }
    }

    /// Notes whether a commit was answered, and whether the engine takes changes.
    pub fn note_commit(&self, answer: &Result<(), CommitError>) {
        match answer {
            Err(CommitError::Store(StoreError::Unavailable(why))) => {
                self.note::<()>(&Err(StoreError::Unavailable(why.clone())));
                self.note_refusal(why, false);
            }
            Err(CommitError::Store(StoreError::Waits)) => {}
            Err(CommitError::Store(StoreError::NoSpace(why))) => {
                self.note(&Ok(()));
                self.note_refusal(why, true);
            }
            _ => {
                self.note(&Ok(()));
                if answer.is_ok() && self.refuses.load(Ordering::Acquire) {
                    let mut refusal = self.refusal.lock();
                    refusal.take_if(|refusal| !refusal.is_full || refusal.last.elapsed() > MIXED);
                    self.refuses.store(refusal.is_some(), Ordering::Release);
                }
            }
        }
    }

    fn note_refusal(&self, why: &str, is_full: bool) {
        let (mut refusal, now) = (self.refusal.lock(), base::time::monotonic());
        let before = refusal.as_ref().filter(|refusal| refusal.last.elapsed() < LACKS);
        let since = before.map_or(now, |refusal| refusal.since);
        *refusal = Some(Refused { since, last: now, why: why.to_owned(), is_full });
        self.refuses.store(true, Ordering::Release);
    }

    /// Returns why the engine takes no changes now. `None`: it does, as far as is known.
    pub fn refused(&self) -> Option<Refused> {
        self.refusal.lock().clone().filter(|refusal| refusal.last.elapsed() < LACKS)
    }

    /// The outage that lasts, or that lasted at some time since `from`.
    pub fn seen(&self, from: Instant) -> Option<Away> {
        let state = self.state.lock();
        let is_over = !self.is_on.load(Ordering::Acquire);
        let (since, last) = (state.since?, state.last?);
        (!is_over || last >= from).then(|| Away { since, why: state.why.clone(), is_over })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away(why: &str) -> Result<(), StoreError> {
        Err(StoreError::Unavailable(why.to_owned()))
    }

    #[test]
    fn an_outage_lasts_until_an_answer_and_is_remembered_for_what_began_before() {
        let outage = Outage::default();
        let before = base::time::monotonic();
        outage.note(&Ok(()));
        assert_eq!(outage.seen(before), None);
        outage.note(&away("first"));
        outage.note(&away("second"));
        let seen = outage.seen(base::time::monotonic()).unwrap();
        assert!(seen.why == "second" && !seen.is_over && seen.since >= before);
        outage.note::<()>(&Err(StoreError::Waits));
        assert!(outage.seen(before).is_some_and(|seen| !seen.is_over), "nothing was asked");
        // A refusal is an answer.
        outage.note::<()>(&Err(StoreError::Fenced(String::new())));
        assert_eq!(outage.seen(before), Some(Away { is_over: true, ..seen.clone() }));
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert_eq!(outage.seen(base::time::monotonic()), None);
        outage.note_commit(&Err(CommitError::Store(StoreError::Unavailable("third".to_owned()))));
        let next = outage.seen(before).unwrap();
        assert!(next.since > seen.since && next.why == "third");
        outage.note_commit(&Err(CommitError::Conflict { rows: Vec::new(), not_empty: true }));
        assert!(outage.seen(before).unwrap().is_over);
    }

    #[test]
    fn changes_that_are_refused_are_noted_until_one_is_taken() {
        let outage = Outage::default();
        let refuse = |error| outage.note_commit(&Err(CommitError::Store(error)));
        refuse(StoreError::Unavailable("it may not".to_owned()));
        outage.note(&Ok(()));
        let refused = outage.refused().expect("a read proves nothing");
        assert!(refused.why == "it may not" && !refused.is_full);
        outage.note_commit(&Ok(()));
        assert_eq!(outage.refused(), None);
        refuse(StoreError::NoSpace("it is full".to_owned()));
        outage.note_commit(&Ok(()));
        assert!(outage.refused().is_some_and(|refused| refused.is_full), "that one may have needed no space");
        assert_eq!(outage.seen(base::time::monotonic()), None, "it answers");
    }

    #[test]
    fn changes_count_unless_nothing_can_have_changed() {
        let before = changes();
        let store = |error| Err(CommitError::Store(error));
        for outcome in [
            store(StoreError::Waits),
            store(StoreError::Fenced(String::new())),
            Err(CommitError::Conflict { rows: Vec::new(), not_empty: false }),
        ] {
            assert!(counted(outcome).is_err());
        }
        assert_eq!(changes(), before);
        assert!(counted(Ok(())).is_ok());
        assert!(counted(store(StoreError::Unavailable(String::new()))).is_err());
        assert_eq!(changes(), before + 2);
    }
}
