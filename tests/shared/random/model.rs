//! What the workers change, and the history of it.
//!
//! A *cell* is one name, or two names between which something moves. One worker owns it and makes all its
//! changes, one after the other. So its states have an order, and each is a *version* with a number. Anybody
//! reads a cell, on any node. A history has each change and each observation with its begin and end, and
//! [`super::check`] judges it when a round is over.

use std::sync::Mutex;
use std::time::Instant;

/// What may be behind a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Missing,
    Folder,
    /// A file or a symbolic link, by the numbers of what was written there.
    Holds(Vec<u32>),
}

/// What was seen of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Is(Content),
    /// A listing has the name, or has it not.
    Listed(bool),
    /// These bytes were never there.
    Torn(String),
}

impl Seen {
    pub fn fits(&self, content: &Content) -> bool {
        match self {
            Seen::Is(seen) => seen == content,
            Seen::Listed(is_there) => *is_there == (*content != Content::Missing),
            Seen::Torn(_) => false,
        }
    }
}

/// How a cell is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file that a new one of this length replaces by rename(2).
    Replaced(usize),
    /// A file of this length that is written over with one write(2).
    Written(usize),
    /// A file with records, which is appended to and cut.
    Log,
    /// A symbolic link that is made, moved, moved over another one, and removed.
    Link,
    /// The same with an empty folder.
    Folder,
}

/// What is behind each name of a cell.
pub type State = Vec<Content>;

#[derive(Clone, Debug)]
pub enum What {
    /// The state after it, and how it was made.
    Change { did: &'static str, state: State },
    /// What was behind a name.
    Saw { place: usize, seen: Seen },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has not ended.
    Open,
    /// It was acknowledged. `synced`: by fsync(2), too.
    Done { synced: bool },
    /// It is unknown whether it happened.
    Failed(String),
}

#[derive(Clone, Debug)]
pub struct Event {
    pub began: Instant,
    pub ended: Option<Instant>,
    pub worker: usize,
    pub node: usize,
    pub what: What,
    pub outcome: Outcome,
}

impl Event {
    pub fn state(&self) -> Option<&State> {
        match &self.what {
            What::Change { state, .. } => Some(state),
            What::Saw { .. } => None,
        }
    }
}

/// One name or two, and what happened to it in this round.
pub struct Cell {
    pub number: usize,
    pub kind: Kind,
    /// Paths from the root of the volume.
    pub places: Vec<String>,
    pub owner: usize,
    /// The state when the round began.
    pub base: State,
    pub events: Mutex<Vec<Event>>,
}

impl Cell {
    /// Notes what begins. Returns where it is in the history.
    pub fn begin(&self, worker: usize, node: usize, what: What) -> usize {
        let mut events = self.events.lock().unwrap();
        let outcome = Outcome::Open;
        events.push(Event { began: Instant::now(), ended: None, worker, node, what, outcome });
        events.len() - 1
    }

    pub fn end(&self, at: usize, outcome: Outcome) {
        let mut events = self.events.lock().unwrap();
        events[at].ended = Some(Instant::now());
        events[at].outcome = outcome;
    }

    /// Notes what was seen of a name since then.
    pub fn saw(&self, began: Instant, worker: usize, node: usize, place: usize, seen: Seen) {
        let what = What::Saw { place, seen };
        let (ended, outcome) = (Some(Instant::now()), Outcome::Done { synced: false });
        self.events.lock().unwrap().push(Event { began, ended, worker, node, what, outcome });
    }

    /// The nodes that may have written this state, the newest first. None: it was never this.
    pub fn writers_of(&self, state: &State) -> Option<Vec<Option<usize>>> {
        let events = self.events.lock().unwrap();
        let made = events.iter().rev().filter(|event| event.state() == Some(state));
        let of_base = (self.base == *state).then_some(None);
        let all: Vec<Option<usize>> = made.map(|event| Some(event.node)).chain(of_base).collect();
        (!all.is_empty()).then_some(all)
    }

    /// Whether a name may have this content after the database has forgotten some changes. A file of records
    /// then lacks those that were forgotten. A worker that does not know of that moves what it does not
    /// expect at a name.
    pub fn may_be(&self, place: usize, content: &Content) -> bool {
        let events = self.events.lock().unwrap();
        let mut states = events.iter().filter_map(Event::state).chain([&self.base]);
        match (self.kind, content) {
            (Kind::Log, Content::Holds(numbers)) => {
                let has = |state: &State, number| matches!(&state[place], Content::Holds(all) if all.contains(number));
                numbers.iter().all(|number| states.clone().any(|state| has(state, number)))
            }
            _ => states.any(|state| state.contains(content)),
        }
    }

    /// The state after the last change.
    pub fn last(&self) -> State {
        let events = self.events.lock().unwrap();
        events.iter().rev().find_map(|event| event.state().cloned()).unwrap_or_else(|| self.base.clone())
    }

    /// Begins a round with a state that all nodes have seen.
    pub fn settle(&mut self, state: State) {
        self.base = state;
        self.events.get_mut().unwrap().clear();
    }

    /// The history as lines, with times since `zero`.
    pub fn told(&self, zero: Instant) -> String {
        let mut text =
            format!("cell {} {:?} {:?}\n  base {:?}\n", self.number, self.kind, self.places, self.base);
        let mut events = self.events.lock().unwrap().clone();
        events.sort_by_key(|event| event.began);
        for Event { began, ended, worker, node, what, outcome } in &events {
            let from = began.saturating_duration_since(zero).as_secs_f64();
            let to = ended.map_or("...".to_owned(), |at| {
                format!("{:.3}", at.saturating_duration_since(zero).as_secs_f64())
            });
            text.push_str(&format!(
                "  {from:8.3} to {to:>8} worker {worker} node {node} {what:?} {outcome:?}\n"
            ));
        }
        text
    }
}

/// An increment of a counter under a lock, or a look at it.
#[derive(Clone, Debug)]
pub struct Step {
    pub began: Instant,
    pub ended: Instant,
    pub worker: usize,
    pub node: usize,
    /// What was found; none for an increment that failed before.
    pub found: Option<u64>,
    /// Whether one more was written and acknowledged. None: it was not tried.
    pub wrote: Option<Outcome>,
}

/// A file with a number, which workers of all nodes add to under flock(2).
pub struct Counter {
    pub path: String,
    pub base: u64,
    pub steps: Mutex<Vec<Step>>,
}

impl Counter {
    pub fn told(&self, zero: Instant) -> String {
        let mut text = format!("{}: base {}\n", self.path, self.base);
        let mut steps = self.steps.lock().unwrap().clone();
        steps.sort_by_key(|step| step.began);
        for Step { began, ended, worker, node, found, wrote } in &steps {
            let [from, to] = [began, ended].map(|at| at.saturating_duration_since(zero).as_secs_f64());
            text.push_str(&format!(
                "  {from:8.3} to {to:8.3} worker {worker} node {node} {found:?} {wrote:?}\n"
            ));
        }
        text
    }
}

/// What the nodes were allowed to lose in a round.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// Nodes that have said that they lost something, or that their session ended.
    pub weak: Vec<bool>,
    /// The database may lack everything of this round.
    pub all: bool,
}
