//! The nodes that a tracker speaks of, by small numbers: 4 bytes in a record instead of 16, and one place for what is known of each.
//!
//! A node that is gone keeps its number until the last record with it has gone, but is found no more: who comes back under the same name gets
//! a new number, so that what was known of the one who went is not believed of the one who came.

use std::collections::HashMap;

use crate::id::NodeId;

/// A node's number in one tracker.
pub(super) type No = u32;

/// No node.
pub(super) const NOBODY: No = No::MAX;

#[derive(Debug)]
struct Name {
    node: NodeId,
    gone: bool,
    /// MiB that it has to send, as it said last, and what it was given since.
    load: u16,
    /// Records with this number.
    records: u32,
    /// Who sends it most, as it said last.
    sender: No,
    /// Who follows it: the first of those who said that it sends them most. And until when that is believed, microseconds.
    follower: No,
    follows_until: u64,
}

/// Who has not said again for so long that a node sends it most does not follow it any more, microseconds. A node that reads over a narrow line asks
/// one tracker every few seconds.
const FOLLOWS: u64 = 15_000_000;

#[derive(Debug, Default)]
pub(super) struct Names {
    names: Vec<Name>,
    numbers: HashMap<NodeId, No>,
    free: Vec<No>,
}

impl Names {
    /// Its number, a new one where it is not known.
    pub(super) fn number(&mut self, node: NodeId) -> No {
        if let Some(no) = self.numbers.get(&node) {
            return *no;
        }
        let name = Name {
            node,
            gone: false,
            load: 0,
            records: 0,
            sender: NOBODY,
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

    /// Its number, if it is known and not gone.
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

    /// It said how much it has to send.
    pub(super) fn set_load(&mut self, no: No, load: u16) {
        self.names[no as usize].load = load;
    }

    /// It was given more to send, or has done so.
    pub(super) fn add_load(&mut self, no: No, mib: i16) {
        let load = &mut self.names[no as usize].load;
        *load = load.saturating_add_signed(mib);
    }

    /// It said who sends it most. True if it is the one that follows that node: there was none, or it was the one.
    pub(super) fn follows(&mut self, no: No, sender: Option<No>, now: u64) -> bool {
        let sender = sender.filter(|sender| *sender != no).unwrap_or(NOBODY);
        let before = std::mem::replace(&mut self.names[no as usize].sender, sender);
        if before != sender && before != NOBODY && self.names[before as usize].follower == no {
            self.names[before as usize].follower = NOBODY;
        }
        if sender == NOBODY || self.follower(sender, now).is_some_and(|other| other != no) {
            return false;
        }
        let name = &mut self.names[sender as usize];
        (name.follower, name.follows_until) = (no, now.saturating_add(FOLLOWS));
        true
    }

    /// Who follows it.
    pub(super) fn follower(&self, no: No, now: u64) -> Option<No> {
        let name = &self.names[no as usize];
        let known = name.follower != NOBODY && now < name.follows_until;
        Some(name.follower).filter(|follower| known && !self.is_gone(*follower))
    }

    /// After each second: what was heard of loads fades, because who has nothing to ask does not say that it is idle.
    pub(super) fn fade(&mut self) {
        self.names.iter_mut().for_each(|name| name.load -= name.load / 4);
    }

    /// A record with this number was made.
    pub(super) fn hold(&mut self, no: No) {
        self.names[no as usize].records += 1;
    }

    /// A record with this number has gone.
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

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }
}
