//! Judges histories: whether what was seen is what the volume promises.
//!
//! The versions of a cell have an order, and each observation fits one or more of them. Something that counts
//! as a *proof* of a version when it ends is a bound for each observation that begins later: that must fit
//! this version or a later one, and one that had begun before the observation ended. Proofs are an
//! acknowledged change and an observation. Some do not count if a node has lost something and has said so:
//!
//! - A change that was not synced, if the node that made it has lost something.
//! - An observation on the node that made the change, likewise. What another node has seen is stored.
//!
//! Each observation is taken as the earliest version that it fits. So what is found here is always a
//! violation, and some violations may not be found.

use std::time::Instant;

use super::model::{Allowed, Cell, Content, Counter, Event, Kind, Outcome, Seen, What};

/// What an operation may fail with while something is broken.
const TROUBLE: [i32; 6] =
    [libc::EIO, libc::ENOTCONN, libc::ECONNABORTED, libc::EINTR, libc::ETIMEDOUT, libc::ENODEV];

pub fn is_trouble(error: &std::io::Error) -> bool {
    error.raw_os_error().is_some_and(|number| TROUBLE.contains(&number))
}

/// The same for an operation on a cell. Linux moves what it remembers of a folder that another node has
/// moved, and gives ESTALE if it does not get a lock for that at once (`d_splice_alias`).
pub fn is_trouble_of(cell: &Cell, error: &std::io::Error) -> bool {
    is_trouble(error) || cell.kind == Kind::Folder && error.raw_os_error() == Some(libc::ESTALE)
}

/// How an outcome names an error that nothing explains but a loss.
pub const STRANGE: &str = "strange: ";

struct Version<'a> {
    event: Option<&'a Event>,
    state: &'a super::model::State,
}

impl Version<'_> {
    /// Whether it stays when this node has shown it.
    fn is_kept(&self, seen_by: usize, allowed: &Allowed) -> bool {
        let Some(event) = self.event else { return true };
        !allowed.all && (event.node != seen_by || !allowed.weak[event.node])
    }
}

/// Judges the history of a cell. What it returns is a violation.
pub fn judge(cell: &Cell, allowed: &Allowed) -> Result<(), String> {
    let events = cell.events.lock().unwrap().clone();
    let base = Version { event: None, state: &cell.base };
    let made = events.iter().filter_map(|event| Some(Version { event: Some(event), state: event.state()? }));
    let versions: Vec<Version> = std::iter::once(base).chain(made).collect();
    let number = |event: &Event| {
        versions
            .iter()
            .position(|version| version.event.is_some_and(|made| std::ptr::eq(made, event)))
            .unwrap()
    };
    let mut ended: Vec<&Event> = events.iter().filter(|event| event.ended.is_some()).collect();
    ended.sort_by_key(|event| event.ended);
    let mut proofs: Vec<(Instant, usize)> = Vec::new();
    for event in ended {
        let end = event.ended.unwrap();
        match (&event.what, &event.outcome) {
            (What::Change { .. }, Outcome::Done { synced }) => {
                let at = number(event);
                if !allowed.all && *synced || versions[at].is_kept(event.node, allowed) {
                    proofs.push((end, at));
                }
            }
            (What::Change { did, .. }, Outcome::Failed(error)) => {
                let is_explained = allowed.all || allowed.weak[event.node];
                if error.starts_with(STRANGE) && !is_explained {
                    return Err(format!("{did} by worker {} on node {}: {error}", event.worker, event.node));
                }
            }
            (What::Saw { place, seen }, _) => {
                let before = proofs.iter().filter(|(at, _)| *at < event.began);
                let floor = before.map(|(_, version)| *version).max().unwrap_or(0);
                let begun = |version: &Version| version.event.is_none_or(|made| made.began <= end);
                let fits = |version: &&Version| begun(version) && seen.fits(&version.state[*place]);
                let fitting: Vec<&Version> = versions[floor..].iter().filter(fits).collect();
                let Some(first) = fitting.first() else {
                    if allowed.all && matches!(seen, Seen::Is(content) if may_show(cell, *place, content)) {
                        continue;
                    }
                    let (name, worker, node) = (&cell.places[*place], event.worker, event.node);
                    return Err(format!(
                        "worker {worker} saw {seen:?} at {name} on node {node}; it must be version {floor} or later, {:?}",
                        versions[floor].state[*place]
                    ));
                };
                let at = first.event.map_or(0, number);
                if fitting.iter().all(|version| version.is_kept(event.node, allowed)) {
                    proofs.push((end, at));
                }
            }
            (What::Change { .. }, Outcome::Open) => {}
        }
    }
    Ok(())
}

/// Whether a name may show this while the database forgets changes: also nothing, if its file was found
/// before and looked at after that.
fn may_show(cell: &Cell, place: usize, content: &Content) -> bool {
    cell.may_be(place, content) || matches!((cell.kind, content), (Kind::Replaced(_), Content::Missing))
}

/// Judges a counter.
pub fn judge_counter(counter: &Counter, allowed: &Allowed) -> Result<(), String> {
    let steps = counter.steps.lock().unwrap().clone();
    let is_kept = |node: usize, outcome: &Option<Outcome>| match outcome {
        Some(Outcome::Done { synced }) => !allowed.all && (*synced || !allowed.weak[node]),
        _ => false,
    };
    let kept: Vec<_> = steps.iter().filter(|step| is_kept(step.node, &step.wrote)).collect();
    for (at, step) in kept.iter().enumerate() {
        if let Some(other) = kept[..at].iter().find(|other| other.found == step.found) {
            return Err(format!(
                "two increments of {:?}: by worker {} on node {}, and worker {} on node {}",
                step.found.unwrap(),
                other.worker,
                other.node,
                step.worker,
                step.node
            ));
        }
    }
    for step in &steps {
        let Some(found) = step.found else { continue };
        let before = kept.iter().filter(|other| other.ended < step.began);
        let least = before.filter_map(|other| other.found).map(|found| found + 1).max();
        let least = least.unwrap_or(0).max(counter.base);
        let tried = steps.iter().filter(|other| other.wrote.is_some() && other.began < step.ended);
        let most = counter.base + tried.count() as u64;
        if found < least || found > most {
            let Some(outcome) = &step.wrote else {
                return Err(format!(
                    "worker {} on node {} saw {found}, not {least} to {most}",
                    step.worker, step.node
                ));
            };
            return Err(format!(
                "{found} is not {least} to {most}: worker {}, node {}, {outcome:?}",
                step.worker, step.node
            ));
        }
    }
    Ok(())
}

mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::super::model::Step;
    use super::*;

    /// A history of a file: `(begin, end, node, number, synced)` for a change, by node, and without `synced`
    /// for an observation.
    fn judged(events: &[(u64, u64, usize, u32, Option<bool>)], weak: &[bool]) -> bool {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let event = |&(from, to, node, number, synced): &(u64, u64, usize, u32, Option<bool>)| {
            let content = Content::Holds(vec![number]);
            let what = match synced {
                Some(_) => What::Change { did: "write", state: vec![content] },
                None => What::Saw { place: 0, seen: Seen::Is(content) },
            };
            let outcome = Outcome::Done { synced: synced == Some(true) };
            Event { began: at(from), ended: Some(at(to)), worker: 0, node, what, outcome }
        };
        let cell = Cell {
            number: 0,
            kind: Kind::Written(10),
            places: vec!["a".into()],
            owner: 0,
            base: vec![Content::Holds(vec![0])],
            events: Mutex::new(events.iter().map(event).collect()),
        };
        judge(&cell, &Allowed { weak: weak.to_vec(), all: false }).is_ok()
    }

    #[test]
    fn what_no_history_may_have_is_found() {
        let (soft, synced, seen) = (Some(false), Some(true), None);
        let strong = [false, false];
        assert!(judged(&[(1, 2, 0, 1, soft), (3, 4, 1, 1, seen)], &strong));
        assert!(judged(&[(1, 5, 0, 1, soft), (3, 4, 1, 0, seen)], &strong), "at the same time");
        assert!(!judged(&[(1, 2, 0, 1, soft), (3, 4, 1, 0, seen)], &strong), "an old state");
        assert!(!judged(&[(1, 9, 0, 1, soft), (2, 3, 1, 1, seen), (4, 5, 0, 0, seen)], &strong), "back");
        assert!(!judged(&[(3, 4, 0, 1, soft), (1, 2, 0, 1, seen)], &strong), "before it was written");
        assert!(!judged(&[(1, 2, 0, 1, soft), (3, 4, 0, 7, seen)], &strong), "never written");
        let weak = [true, false];
        assert!(judged(&[(1, 2, 0, 1, soft), (3, 4, 1, 0, seen)], &weak), "lost with its node");
        assert!(!judged(&[(1, 2, 0, 1, synced), (3, 4, 1, 0, seen)], &weak), "it was synced");
        let another = [(1, 2, 0, 1, soft), (3, 4, 1, 1, seen), (5, 6, 0, 0, seen)];
        assert!(!judged(&another, &weak), "another node had seen it");
        let itself = [(1, 2, 0, 1, soft), (3, 4, 0, 1, seen), (5, 6, 1, 0, seen)];
        assert!(judged(&itself, &weak) && !judged(&itself, &strong), "only its own node had seen it");
    }

    #[test]
    fn an_increment_that_is_lost_is_found() {
        let zero = Instant::now();
        let judged = |steps: &[(u64, usize, u64, Option<bool>)], weak: bool| {
            let step = |&(ms, node, found, synced): &(u64, usize, u64, Option<bool>)| {
                let [began, ended] = [0, 1].map(|more| zero + Duration::from_millis(ms + more));
                let wrote = synced.map(|synced| Outcome::Done { synced });
                Step { began, ended, worker: node, node, found: Some(found), wrote }
            };
            let steps = Mutex::new(steps.iter().map(step).collect());
            let counter = Counter { path: "counter".into(), base: 0, steps };
            judge_counter(&counter, &Allowed { weak: vec![weak, false], all: false }).is_ok()
        };
        assert!(judged(&[(1, 0, 0, Some(false)), (3, 1, 1, Some(true)), (5, 0, 2, None)], false));
        let twice = [(1, 0, 0, Some(false)), (3, 1, 0, Some(true))];
        assert!(!judged(&twice, false) && judged(&twice, true));
        assert!(!judged(&[(1, 0, 0, Some(true)), (3, 1, 0, None)], true));
        assert!(!judged(&[(1, 0, 1, None)], false), "nobody has added");
    }
}
