//! The tracker: one node knows who has the blobs of a group and who is fetching them, and tells whoever asks where to go.
//!
//! It is a value without I/O: it is told the time, what the others say, and who is gone, and answers. The same lines run in a node and in
//! the simulation.
//!
//! For each blob asked about, the first of these that applies:
//!
//! 1. The asker has the live lease already (its answer was lost, or it takes longer): the same **lease**, and more time.
//! 2. The tracker has the blob itself, a slot free and not much else to send, nobody else follows it, and whoever the asker follows does not have it: **serve**.
//! 3. Others have it, or are fetching it and will have it: of up to four random ones with a free slot the least busy, where who is still fetching
//!    counts as a little busier than it is, and so does who sends it to somebody already, whom the asker does not follow, and whom somebody else follows. If it has it: **go** there (and to the second holder of the four, if the first is slow). If it is fetching: **wait** there.
//! 4. All slots are taken: the same with the least busy of all, over the number of slots.
//! 5. Nobody has it or fetches it, or the asker has had errors from all who do: a **lease**. Whoever had one before has it no more.
//!
//! Who wants only **a part** of a blob gets the same answers, and nothing is written down of it: it takes no slot, and nobody is sent to it, for it
//! will not have the blob. Of a blob that nobody has, the first node that wants a part is told nothing (NOT MINE) and has the part from
//! elsewhere: that one node reads a little of it is no reason to fetch the whole. A second node that wants a part of it gets the lease, which is one
//! like all others: it fetches the whole for everybody.
//!
//! A node **follows** the one that sends it most, and says so in each question; of several who follow the same node the first counts, until it follows
//! another or has not said so for a while. Nodes that read the same in the same order so come to stand in a row, those that begin at different places in a ring,
//! and each line carries one stream in and one out: that is all that there is to be had. Two that are sent by one node have half a line each, with all who
//! stand behind them.
//!
//! What is always true:
//!
//! - Every blob asked about gets an answer, at once.
//! - A blob has at most one live lease. A lease ends when its node has the blob, has failed, is refused twice, is gone, or is late.
//! - Nobody is sent to himself, to one that he ruled out, to one that is gone, or to one that waits for him ([`book`]).
//! - Memory is bounded ([`Limits`]): what was asked about longest ago is forgotten. That costs at most another fetch.
//!
//! A slot is taken when a node is named and freed by what the asker tells next of that blob (it has it, was refused, asks again), or by time.
//! How busy a node is it says in its own questions; between two of them the tracker adds what it has given it to do,
//! and much more if somebody got nothing there: so a node that died is hardly named any more before the membership knows of it. All of it
//! fades within seconds. That nothing came *yet* does not count as a refusal: whoever alone has a blob, and is slow, has it still.

mod book;
mod names;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use base::BlobId;

use crate::dice::Dice;
use crate::id::NodeId;
use crate::message::{Answer, Ask, Note, What};
use crate::plan::Window;
use book::{Asker, Book, FETCHING, Lease, Pick};
use names::{NOBODY, Names, No};

pub use book::SLOTS;

/// After so many refusals a node is not believed to have the blob, or to be fetching it.
pub const REFUSALS: u8 = 2;

/// MiB: who was refused is taken to be so much busier.
const PENALTY: i16 = 1_024;

/// A lease lasts at least so long: shorter, a hiccup of the network would cost a second fetch.
const LEASE_LEAST: Duration = Duration::from_millis(250);
/// And at most so long: who has heard nothing by then should try himself.
const LEASE_MOST: Duration = Duration::from_secs(30);
/// Who is sent somewhere is believed to be fetching for so many times the length of a lease.
const BELIEF: u64 = 4;
/// What a fetch from the origin is thought to take before one was seen.
const ASSUMED: Duration = Duration::from_millis(333);

/// How much a tracker may remember.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blobs.
    pub blobs: usize,
    /// Records of who has a blob or is fetching it, in all: 16 bytes each, 28 where a blob has many.
    pub copies: usize,
}

impl Default for Limits {
    /// About 150 MiB when full.
    fn default() -> Limits {
        Limits { blobs: 500_000, copies: 4_000_000 }
    }
}

/// What a tracker has done and knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Answers: from me.
    pub served: u64,
    /// Answers: from those.
    pub sent: u64,
    /// Answers: you fetch it.
    pub leased: u64,
    /// Of these, leases taken from one who had it still, because the asker could not reach him.
    pub overtaken: u64,
    /// Answers: wait there.
    pub waited: u64,
    /// Answers to nodes named although all slots were taken.
    pub crowded: u64,
    /// Blobs forgotten for want of room.
    pub forgotten: u64,
    /// Blobs known now.
    pub blobs: u64,
    /// Records now.
    pub copies: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Tracker {
    own: NodeId,
    limits: Limits,
    dice: Dice,
    names: Names,
    books: HashMap<BlobId, Book>,
    /// Blobs in the order in which they were asked about last.
    order: BTreeMap<u64, BlobId>,
    stamp: u64,
    /// When loads faded last, microseconds.
    faded: u64,
    /// Where the next tick goes on.
    cursor: u64,
    leases: u64,
    copies: usize,
    fetches: Window,
    counts: Counts,
}

impl Tracker {
    /// Knows nothing. `seed` decides its choices and the names of its leases: a random one in a node.
    pub fn new(own: NodeId, seed: u64, limits: Limits) -> Tracker {
        Tracker {
            own,
            limits,
            dice: Dice::new(seed),
            names: Names::default(),
            books: HashMap::new(),
            order: BTreeMap::new(),
            stamp: 0,
            faded: 0,
            cursor: 0,
            // A lease of an earlier run must not be taken for one of this run.
            leases: seed << 32,
            copies: 0,
            fetches: Window::new(ASSUMED),
            counts: Counts::default(),
        }
    }

    /// Answers a question: one answer for each of its blobs, in their order. `now` in microseconds from any beginning, never backwards;
    /// `held` says whether this node has a blob itself.
    pub fn ask(&mut self, now: u64, from: NodeId, ask: &Ask, held: &dyn Fn(&BlobId) -> bool) -> Vec<Answer> {
        let asker = self.names.number(from);
        self.names.set_load(asker, ask.backlog);
        // Known before it is looked for in `not`: it may be in there.
        self.names.number(self.own);
        let not: Vec<No> = ask.not.iter().filter_map(|node| self.names.find(node)).collect();
        let sender = ask.sender.and_then(|node| self.names.find(&node));
        // Whoever wants a part names nobody, and goes on to follow whom it follows.
        let follows = !ask.part && self.names.follows(asker, sender, now);
        let sender = sender.filter(|_| follows);
        let asker = Asker { node: asker, not: &not, sender, now, part: ask.part };
        ask.blobs.iter().map(|blob| self.answer(&asker, *blob, held(blob))).collect()
    }

    /// A node has at least so many MiB to send, by what is known of it otherwise: this one by itself, before each answer.
    pub fn raise_load(&mut self, node: NodeId, mib: u16) {
        let no = self.names.number(node);
        let load = self.names.load(no).max(mib);
        self.names.set_load(no, load);
    }

    fn answer(&mut self, asker: &Asker<'_>, blob: BlobId, held: bool) -> Answer {
        let own = self.names.number(self.own);
        self.touch(blob);
        let book = self.books.entry(blob).or_default();
        let before = book.len();
        book.sweep(asker.now, &mut self.names);
        if held {
            book.holds(own, &mut self.names);
        } else if book.get(own).is_some_and(|copy| copy.holds) {
            book.remove(own, &mut self.names);
        }
        let time = (self.fetches.p99() * 3).clamp(LEASE_LEAST, LEASE_MOST);
        let live = book.live_lease(asker.now, &self.names);
        let answer = match live.filter(|lease| lease.node == asker.node) {
            Some(lease) => {
                book.lease = Some(Lease { until: asker.now + micros(time), ..lease });
                self.counts.leased += 1;
                Answer::Lease { lease: lease.id, time }
            }
            None => {
                if !asker.part {
                    book.detach(asker.node, &mut self.names);
                }
                let pick = self.choose(asker, blob, own, held);
                match pick {
                    Some(pick) => self.send(asker, blob, pick, own, live, time),
                    None if asker.part && self.books.entry(blob).or_default().wants_alone(asker.node) => {
                        Answer::NotMine
                    }
                    None => self.lease(asker, blob, live, time),
                }
            }
        };
        let after = self.books.get(&blob).map_or(0, Book::len);
        self.copies = (self.copies + after).saturating_sub(before);
        self.make_room(blob);
        answer
    }

    /// Who is to be named: this node if it has the blob and a free slot, else the best of a few.
    fn choose(&mut self, asker: &Asker<'_>, blob: BlobId, own: No, held: bool) -> Option<Pick> {
        let book = self.books.get(&blob)?;
        let serves = held && asker.node != own && !asker.not.contains(&own);
        let idle = self.names.load(own) < FETCHING;
        let another = asker.sender.is_some_and(|sender| sender != own && book.get(sender).is_some());
        let followed = self.names.follower(own, asker.now).is_some_and(|other| other != asker.node);
        if serves
            && idle
            && !another
            && !followed
            && book.get(own).is_some_and(|copy| asker.part || copy.children < SLOTS)
        {
            return Some(Pick { node: own, holds: true, second: None });
        }
        book.pick(asker, &self.names, &mut self.dice)
    }

    fn send(
        &mut self,
        asker: &Asker<'_>,
        blob: BlobId,
        pick: Pick,
        own: No,
        live: Option<Lease>,
        time: Duration,
    ) -> Answer {
        let book = self.books.entry(blob).or_default();
        if !asker.part {
            let full = book.get(pick.node).is_some_and(|copy| copy.children >= SLOTS);
            self.counts.crowded += u64::from(full);
            book.fetches(asker.node, pick.node, asker.now + BELIEF * micros(time), &mut self.names);
        }
        if !pick.holds {
            self.counts.waited += 1;
            let left = live.map(|lease| Duration::from_micros(lease.until - asker.now));
            return Answer::Wait { parent: self.names.node(pick.node), time: left.unwrap_or(time) };
        }
        if pick.node == own {
            self.counts.served += 1;
            return Answer::Serve;
        }
        self.counts.sent += 1;
        let second = pick.second.map(|second| self.names.node(second));
        Answer::Go { first: self.names.node(pick.node), second }
    }

    fn lease(&mut self, asker: &Asker<'_>, blob: BlobId, live: Option<Lease>, time: Duration) -> Answer {
        self.counts.leased += 1;
        self.counts.overtaken += u64::from(live.is_some());
        self.leases = self.leases.wrapping_add(1);
        let book = self.books.entry(blob).or_default();
        book.fetches(asker.node, NOBODY, asker.now + BELIEF * micros(time), &mut self.names);
        let until = asker.now + micros(time);
        book.lease = Some(Lease { id: self.leases, node: asker.node, since: asker.now, until });
        Answer::Lease { lease: self.leases, time }
    }

    /// Takes in what a node tells without being asked. Also a blob that nobody asked about is remembered, if somebody has it: so a new
    /// tracker learns what is there.
    pub fn note(&mut self, now: u64, from: NodeId, note: &Note) {
        let has = matches!(note.what, What::Have | What::Fetching);
        if !self.books.contains_key(&note.blob) {
            if !has {
                return;
            }
            self.touch(note.blob);
        }
        let from = self.names.number(from);
        let Tracker { books, names, fetches, copies, .. } = self;
        let book = books.entry(note.blob).or_default();
        let before = book.len();
        match note.what {
            What::Have => {
                if let Some(lease) = book.lease.take_if(|lease| lease.node == from) {
                    fetches.record(Duration::from_micros(now.saturating_sub(lease.since)));
                }
                book.holds(from, names);
            }
            // It passes on what comes; should it fail, it refuses. Whose lease is known here is on its way to have it already.
            What::Fetching => {
                if book.lease.is_none_or(|lease| lease.node != from) {
                    book.holds(from, names);
                }
            }
            What::Gone => {
                if book.get(from).is_some_and(|copy| copy.holds) {
                    book.remove(from, names);
                }
            }
            What::Failed { lease: id } => {
                if book.lease.take_if(|lease| lease.node == from && lease.id == id).is_some() {
                    book.remove(from, names);
                }
            }
            What::Refused { by } => Self::refused(book, from, &by, names),
            What::Silent { by } => {
                // It keeps what it has and its lease: taken for dead by two who waited in its queue, a slow node that alone has
                // a blob would have everybody fetch it anew.
                if let Some(by) = names.find(&by).filter(|by| *by != from) {
                    names.add_load(by, PENALTY);
                }
            }
        }
        *copies = (*copies + book.len()).saturating_sub(before);
        self.make_room(note.blob);
    }

    fn refused(book: &mut Book, from: No, by: &NodeId, names: &mut Names) {
        let Some(by) = names.find(by).filter(|by| *by != from) else { return };
        // For all blobs, until it says itself how busy it is: who is dead says nothing any more.
        names.add_load(by, PENALTY);
        if book.get(from).is_some_and(|copy| copy.parent == by) {
            book.detach(from, names);
        }
        if book.refused(by) >= REFUSALS {
            book.remove(by, names);
            book.lease = book.lease.filter(|lease| lease.node != by);
        }
    }

    /// The membership says that a node is gone: nobody is sent there any more, and its leases are free. If it comes back it is known
    /// by what it tells and asks then.
    pub fn member_gone(&mut self, node: &NodeId) {
        if *node != self.own {
            self.names.forget(node);
        }
    }

    /// To be called about once a second, or more often: drops what is over, a part of the blobs each time.
    pub fn tick(&mut self, now: u64) {
        if now >= self.faded + FADING {
            self.faded = now;
            self.names.fade();
        }
        let part: Vec<(u64, BlobId)> =
            self.order.range(self.cursor..).take(TICK).map(|(stamp, blob)| (*stamp, *blob)).collect();
        self.cursor = part.last().filter(|_| part.len() == TICK).map_or(0, |(stamp, _)| stamp + 1);
        for (stamp, blob) in part {
            let Some(book) = self.books.get_mut(&blob) else { continue };
            let before = book.len();
            book.sweep(now, &mut self.names);
            self.copies = self.copies.saturating_sub(before - book.len());
            if book.is_empty() {
                self.books.remove(&blob);
                self.order.remove(&stamp);
            }
        }
    }

    /// What it has done so far and knows now.
    pub fn counts(&self) -> Counts {
        Counts { blobs: self.books.len() as u64, copies: self.copies as u64, ..self.counts }
    }

    /// How long a lease lasts now: three times what all but one in a hundred fetches took.
    pub fn lease_time(&self) -> Duration {
        (self.fetches.p99() * 3).clamp(LEASE_LEAST, LEASE_MOST)
    }

    /// The blob is the one spoken of last.
    fn touch(&mut self, blob: BlobId) {
        self.stamp += 1;
        let book = self.books.entry(blob).or_default();
        self.order.remove(&book.stamp);
        book.stamp = self.stamp;
        self.order.insert(self.stamp, blob);
    }

    /// Forgets the blobs that were spoken of longest ago, never `kept`, until the limits are kept.
    fn make_room(&mut self, kept: BlobId) {
        while self.books.len() > self.limits.blobs || self.copies > self.limits.copies {
            let Some((stamp, blob)) = self.order.iter().next().map(|(stamp, blob)| (*stamp, *blob)) else {
                return;
            };
            if blob == kept {
                return;
            }
            self.order.remove(&stamp);
            if let Some(mut book) = self.books.remove(&blob) {
                self.copies = self.copies.saturating_sub(book.len());
                book.clear(&mut self.names);
                self.counts.forgotten += 1;
            }
        }
    }
}

/// So often loads fade, in microseconds.
const FADING: u64 = 1_000_000;
/// So many blobs are looked at in one tick.
const TICK: usize = 1_024;

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 16)
}
