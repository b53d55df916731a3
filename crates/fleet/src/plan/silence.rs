//! Which trackers have not answered recently. All plans of a node share this knowledge.
//!
//! A plan waits [`super::Pace::answer`] for a tracker before it asks the next. If a tracker has died, every
//! blob pays this time until the membership knows. So plans begin with the trackers that do answer, for
//! [`LAST`] after the last silence.
//!
//! A node that asks another tracker than all other nodes may be told to fetch what a node already fetches. So
//! a single silence means nothing. After [`TIMES`] in a row, without an answer in between, a tracker counts
//! as silent. One answer, however late, ends that.

use std::collections::HashMap;
use std::time::Duration;

use net::id::NodeId;

use super::micros;

/// The number of silences in a row after which a tracker counts as silent.
const TIMES: u32 = 3;
/// A silence is remembered for this long.
const LAST: Duration = Duration::from_secs(2);
/// Upper bound on the nodes. Beyond it nothing more is learned until some have been forgotten.
const MOST: usize = 1_024;

#[derive(Clone, Copy, Debug)]
struct Heard {
    times: u32,
    until: u64,
}

/// See the module. Times are those of the plans, in microseconds.
#[derive(Clone, Debug, Default)]
pub struct Silence {
    nodes: HashMap<NodeId, Heard>,
}

impl Silence {
    /// A plan had no answer from it in time ([`super::Action::Silent`]).
    pub fn silent(&mut self, now: u64, tracker: NodeId) {
        self.nodes.retain(|_, heard| heard.until > now);
        if self.nodes.len() < MOST {
            let heard = self.nodes.entry(tracker).or_insert(Heard { times: 0, until: 0 });
            *heard = Heard { times: heard.times.saturating_add(1), until: now.saturating_add(micros(LAST)) };
        }
    }

    /// Forgets the silences of a tracker that has answered.
    pub fn answered(&mut self, tracker: &NodeId) {
        if !self.nodes.is_empty() {
            self.nodes.remove(tracker);
        }
    }

    /// Moves silent trackers to the end and otherwise keeps the order.
    pub fn order(&self, now: u64, trackers: &mut [NodeId]) {
        let silent = |heard: &Heard| heard.times >= TIMES && heard.until > now;
        if !self.nodes.is_empty() {
            trackers.sort_by_key(|tracker| self.nodes.get(tracker).is_some_and(silent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tracker_is_silent_after_three_times_until_it_answers_or_time_is_over() {
        let [a, b, c] = [1, 2, 3].map(|i| NodeId([i; 16]));
        let order = |silence: &Silence, now| {
            let mut trackers = [a, b, c];
            silence.order(now, &mut trackers);
            trackers
        };
        let mut silence = Silence::default();
        silence.silent(0, a);
        silence.silent(1, a);
        assert_eq!(order(&silence, 2), [a, b, c], "a node that was silent twice should keep its place");
        silence.silent(2, a);
        assert_eq!(order(&silence, 3), [b, c, a]);
        assert_eq!(order(&silence, 3 + micros(LAST)), [a, b, c]);
        silence.answered(&a);
        assert_eq!(order(&silence, 3), [a, b, c]);
        (0..3).for_each(|now| silence.silent(now, b));
        assert_eq!(order(&silence, 3), [a, c, b]);
    }

    #[test]
    fn it_does_not_grow_without_end() {
        let mut silence = Silence::default();
        for i in 0..3_000u32 {
            let mut id = [0; 16];
            id[..4].copy_from_slice(&i.to_be_bytes());
            silence.silent(0, NodeId(id));
        }
        assert_eq!(silence.nodes.len(), MOST);
        silence.silent(micros(LAST), NodeId([9; 16]));
        assert_eq!(silence.nodes.len(), 1);
    }
}
