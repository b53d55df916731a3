//! Small numbers for the nodes that a tracker mentions: 4 bytes in a record instead of 16, and one place for
//! what is known about each node.
//!
//! A node that is gone keeps its number until the last record with it is removed, but it is no longer found.
//! If it returns with the same id it gets a new number. So nothing that was known about its previous run is
//! applied to the new one.
//!
//! A node without a record that has said nothing for minutes is forgotten too. It may be no member: each
//! program that knows the secret can ask, under any id.

use std::collections::{HashMap, HashSet};

use net::id::NodeId;

/// A node's number in one tracker.
pub(super) type No = u32;

/// Stands for no node.
pub(super) const NOBODY: No = No::MAX;

#[derive(Debug)]
struct Name {
    node: NodeId,
    gone: bool,
    /// MiB that it has to send: what it said last, plus the work that it was given since.
    load: u16,
    /// The number of records with this number.
    records: u32,
    /// When its last message came, in microseconds.
    heard: u64,
    /// The node's upstream, as it said last.
    upstream: No,
    /// The node that follows it: the first of those that named it as their upstream. And until when that
    /// holds, in microseconds.
    follower: No,
    follows_until: u64,
}

/// A node that has not named its upstream again for this long does not follow it any more, in microseconds. A
/// node that reads over a narrow link asks one tracker every few seconds.
const FOLLOWS: u64 = 15_000_000;

/// A node without a record is forgotten when it has said nothing for this long, in microseconds. Longer than
/// any lease, and than [`FOLLOWS`].
const IDLE: u64 = 300_000_000;

#[derive(Debug, Default)]
pub(super) struct Names {
    names: Vec<Name>,
    numbers: HashMap<NodeId, No>,
    free: Vec<No>,
}

impl Names {
    /// The node's number. An unknown node gets a new one.
    pub(super) fn number(&mut self, node: NodeId) -> No {
        if let Some(no) = self.numbers.get(&node) {
            return *no;
        }
        let name = Name {
            node,
            gone: false,
            load: 0,
            records: 0,
            heard: 0,
            upstream: NOBODY,
            follower: NOBODY,
            follows_until: 0,
        };
        let no = match self.free.pop() {
            Some(no) => {
                self.names[no as usize] = name;
                no
            }
            None => {
                self.names.push(name);
                (self.names.len() - 1) as No
            }
        };
        self.numbers.insert(node, no);
        no
    }

    /// The number of a node from which a message has come.
    pub(super) fn heard(&mut self, node: NodeId, now: u64) -> No {
        let no = self.number(node);
        self.names[no as usize].heard = now;
        no
    }

    /// The node's number, if it is known and not gone.
    pub(super) fn find(&self, node: &NodeId) -> Option<No> {
        self.numbers.get(node).copied()
    }

    pub(super) fn node(&self, no: No) -> NodeId {
        self.names[no as usize].node
    }

    pub(super) fn is_gone(&self, no: No) -> bool {
        self.names[no as usize].gone
    }

    pub(super) fn load(&self, no: No) -> u16 {
        self.names[no as usize].load
    }

    /// The node said how much it has to send.
    pub(super) fn set_load(&mut self, no: No, load: u16) {
        self.names[no as usize].load = load;
    }

    /// The node was given more to send, or has sent it.
    pub(super) fn add_load(&mut self, no: No, mib: i16) {
        let load = &mut self.names[no as usize].load;
        *load = load.saturating_add_signed(mib);
    }

    /// The node named its upstream. True if it is now the one that follows that node: there was no other, or
    /// it already was.
    pub(super) fn follows(&mut self, no: No, upstream: Option<No>, now: u64) -> bool {
        let upstream = upstream.filter(|upstream| *upstream != no).unwrap_or(NOBODY);
        let before = std::mem::replace(&mut self.names[no as usize].upstream, upstream);
        if before != upstream && before != NOBODY && self.names[before as usize].follower == no {
            self.names[before as usize].follower = NOBODY;
        }
        if upstream == NOBODY || self.follower(upstream, now).is_some_and(|other| other != no) {
            return false;
        }
        let name = &mut self.names[upstream as usize];
        (name.follower, name.follows_until) = (no, now.saturating_add(FOLLOWS));
        true
    }

    /// The node that follows it.
    pub(super) fn follower(&self, no: No, now: u64) -> Option<No> {
        let name = &self.names[no as usize];
        let known = name.follower != NOBODY && now < name.follows_until;
        Some(name.follower).filter(|follower| known && !self.is_gone(*follower))
    }

    /// Called every second. Known loads fade, because a node that has nothing to ask does not say that it is
    /// idle.
    pub(super) fn fade(&mut self) {
        self.names.iter_mut().for_each(|name| name.load -= name.load / 4);
    }

    /// A record with this number was created.
    pub(super) fn hold(&mut self, no: No) {
        self.names[no as usize].records += 1;
    }

    /// A record with this number was removed.
    pub(super) fn release(&mut self, no: No) {
        let name = &mut self.names[no as usize];
        name.records = name.records.saturating_sub(1);
        if name.gone && name.records == 0 {
            self.free.push(no);
        }
    }

    /// The node is gone.
    pub(super) fn forget(&mut self, node: &NodeId) {
        if let Some(no) = self.numbers.remove(node) {
            let name = &mut self.names[no as usize];
            name.gone = true;
            if name.records == 0 {
                self.free.push(no);
            }
        }
    }

    /// Called every second. Forgets nodes without records that have said nothing for long, except this one.
    pub(super) fn forget_idle(&mut self, now: u64, own: &NodeId) {
        let is_idle = |name: &&Name| {
            let silent = now >= name.heard.saturating_add(IDLE);
            silent && !name.gone && name.records == 0 && name.node != *own
        };
        let idle: Vec<NodeId> = self.names.iter().filter(is_idle).map(|name| name.node).collect();
        idle.iter().for_each(|node| self.forget(node));
        if self.free.len() > self.names.len() / 2 {
            self.shrink();
        }
    }

    /// Gives back the memory of free numbers at the end.
    fn shrink(&mut self) {
        let free: HashSet<No> = self.free.iter().copied().collect();
        let used = (0..self.names.len()).rev().find(|no| !free.contains(&(*no as No)));
        let len = used.map_or(0, |no| no + 1);
        let is_over = |no: No| no as usize >= len;
        self.names.truncate(len);
        for name in &mut self.names {
            if is_over(name.upstream) {
                name.upstream = NOBODY;
            }
            if is_over(name.follower) {
                name.follower = NOBODY;
            }
        }
        self.free.retain(|no| !is_over(*no));
        self.names.shrink_to_fit();
        self.free.shrink_to_fit();
        self.numbers.shrink_to_fit();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}
