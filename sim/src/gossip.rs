//! A fleet with a table of all holders on every node, spread by gossip, instead of trackers. Only the
//! simulation has it.
//!
//! ```text
//!   node 7 has blob 12 ──► its recent facts ──every period──► three random nodes: tables and facts
//! ```
//!
//! No node is asked. A node looks into its own copy of the table and goes to a random holder, or to the
//! origin if it knows none. All else is the same world with the same plan: hedges, streams, a second holder.
//! The cost is that every node hears of every copy of every blob, and hears of it late.
//!
//! The numbers are those with which widely used libraries gossip lists of members: three nodes each round,
//! and every node passes on a fact 4 x log10(nodes) times. A fact takes as many bytes as a note to a tracker.
//! In favour of the table, messages have unlimited size, nothing is lost, the messages of a round arrive at
//! once, and no node ever compares whole tables.

use std::collections::HashMap;

use fleet::plan::Event as Happened;
use net::message::Answer;

use crate::model::{Holders, node_id};
use crate::world::{Event, World};

/// Nodes that each node sends to in a round.
const TOLD: usize = 3;
/// A fact is passed on this many times the logarithm of the number of nodes.
const ZEAL: f64 = 4.0;
/// Bytes of a fact: a node, a blob, and its state.
const FACT: u64 = 41;
/// How long a node that waits for a fetch does not go to the origin.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

/// A statement about a copy.
#[derive(Clone, Copy, Debug)]
struct Fact {
    node: u32,
    blob: u32,
    says: Says,
    /// The later fact about the same copy.
    outdated_by: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Fetching,
    Has,
    Gone,
}

/// A node's copy of the table.
#[derive(Debug, Default)]
struct Copy {
    /// By blob: the facts that name its holders.
    holders: HashMap<u32, Vec<u32>>,
    /// A bit for each known fact.
    heard: Vec<u64>,
    /// Facts to be passed on, how many times more, and the round in which they arrived.
    hot: Vec<(u32, u16, u32)>,
}

/// All copies of the table.
#[derive(Debug, Default)]
pub struct Gossip {
    facts: Vec<Fact>,
    /// The last fact about a node's copy of a blob.
    last: HashMap<(u32, u32), u32>,
    copies: Vec<Copy>,
    round: u32,
    begun: bool,
}

impl Gossip {
    fn heard(&mut self, node: u32, no: u32, zeal: u16) {
        let fact = self.facts[no as usize];
        let copy = &mut self.copies[node as usize];
        let (word, bit) = (no as usize / 64, 1u64 << (no % 64));
        if copy.heard.len() <= word {
            copy.heard.resize(word + 1, 0);
        }
        if copy.heard[word] & bit != 0 {
            return;
        }
        copy.heard[word] |= bit;
        copy.hot.push((no, zeal, self.round));
        if fact.says != Says::Gone {
            copy.holders.entry(fact.blob).or_default().push(no);
        }
    }

    /// The holders of a blob as a node knows them. Facts that it knows to be outdated are removed.
    fn known(&mut self, node: u32, blob: u32) -> Vec<Fact> {
        let Some(copy) = self.copies.get_mut(node as usize) else { return Vec::new() };
        let Copy { holders, heard, .. } = copy;
        let Some(holders) = holders.get_mut(&blob) else { return Vec::new() };
        let has_heard = |no: u32| heard.get(no as usize / 64).is_some_and(|word| word >> (no % 64) & 1 == 1);
        let facts = &self.facts;
        // A later fact may have arrived earlier.
        holders.retain(|no| !facts[*no as usize].outdated_by.is_some_and(has_heard));
        holders.iter().map(|no| facts[*no as usize]).collect()
    }
}

impl World {
    fn period(&self) -> Option<(u64, bool)> {
        match self.model.holders {
            Holders::Tracker => None,
            Holders::Gossip { period, early } => Some((period, early)),
        }
    }

    /// Whether tables are used instead of trackers.
    pub fn gossips(&self) -> bool {
        self.period().is_some()
    }

    fn zeal(&self) -> u16 {
        (ZEAL * (self.nodes.len() as f64 + 1.0).log10().ceil()) as u16
    }

    fn fact(&mut self, node: u32, blob: u32, says: Says) {
        let (nodes, zeal) = (self.nodes.len(), self.zeal());
        let Some((period, _)) = self.period() else { return };
        let table = &mut self.gossip;
        table.copies.resize_with(nodes, Copy::default);
        let no = table.facts.len() as u32;
        table.facts.push(Fact { node, blob, says, outdated_by: None });
        if let Some(before) = table.last.insert((node, blob), no) {
            table.facts[before as usize].outdated_by = Some(no);
        }
        table.heard(node, no, zeal);
        if !std::mem::replace(&mut table.begun, true) {
            self.at(self.now + period, Event::Gossip);
        }
    }

    /// A node begins to fetch a blob.
    pub fn table_begins(&mut self, node: u32, blob: u32) {
        if self.period().is_some_and(|(_, early)| early) {
            self.fact(node, blob, Says::Fetching);
        }
    }

    /// A node has a blob, or no longer has it.
    pub fn table_has(&mut self, node: u32, blob: u32, has: bool) {
        self.fact(node, blob, if has { Says::Has } else { Says::Gone });
    }

    /// The answer of a node's own copy, instead of a tracker's.
    pub fn look_up(&mut self, node: u32, rank: usize, blob: u32, not: &[u32]) {
        let mut known = self.gossip.known(node, blob);
        known.retain(|fact| fact.node != node && !not.contains(&fact.node));
        let who = |says| {
            known.iter().filter(move |fact| fact.says == says).map(|fact| fact.node).collect::<Vec<u32>>()
        };
        let (have, fetch) = (who(Says::Has), who(Says::Fetching));
        let answer = if !have.is_empty() {
            let first = self.dice.below(have.len());
            let second = have.get((first + 1) % have.len()).filter(|second| **second != have[first]);
            Answer::Go { first: node_id(have[first]), second: second.map(|second| node_id(*second)) }
        } else if !fetch.is_empty() {
            let parent = fetch[self.dice.below(fetch.len())];
            Answer::Wait { parent: node_id(parent), time: PATIENCE }
        } else {
            Answer::Lease { lease: 0, time: PATIENCE * 30 }
        };
        self.tell_plan(node, blob, Happened::Answered { rank, answer });
    }

    /// A round: every node passes on its recent facts.
    pub fn gossip_round(&mut self) {
        let Some((period, _)) = self.period() else { return };
        let (nodes, zeal) = (self.nodes.len(), self.zeal());
        self.gossip.round += 1;
        let round = self.gossip.round;
        for from in 0..nodes {
            if !self.nodes[from].alive {
                continue;
            }
            for _ in 0..TOLD.min(nodes - 1) {
                let to = (from + 1 + self.dice.below(nodes - 1)) % nodes;
                let copy = &mut self.gossip.copies[from];
                let old = |hot: &&mut (u32, u16, u32)| hot.1 > 0 && hot.2 < round;
                let some: Vec<u32> = copy
                    .hot
                    .iter_mut()
                    .filter(old)
                    .map(|hot| {
                        hot.1 -= 1;
                        hot.0
                    })
                    .collect();
                if some.is_empty() || !self.nodes[to].alive {
                    continue;
                }
                let bytes = FACT * some.len() as u64;
                self.message(from as u32, to as u32, bytes);
                some.into_iter().for_each(|no| self.gossip.heard(to as u32, no, zeal));
            }
            self.gossip.copies[from].hot.retain(|hot| hot.1 > 0);
        }
        self.at(self.now + period, Event::Gossip);
    }
}
