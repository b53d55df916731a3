//! Membership as a machine without a socket and without a clock: it is told what arrived and how late it is, and says what to send.
//!
//! ```text
//!   receive(now, bytes) ─┐                              ┌─► sends(): where to, what
//!   tick(now) ───────────┼─► foca (SWIM) + this file ───┼─► events(): the fleet has changed, nobody answers, ...
//!   leave(now) ──────────┘                              └─► next(): when to tick
//! ```
//!
//! `now` is the time since some start, of a clock that only goes forward. foca does what SWIM does: it asks one member a second, lets
//! others ask before it suspects, and spreads what it learns with the messages that it sends anyway. This file adds what a fleet needs
//! around it:
//!
//! - **Finding somebody.** Who knows addresses only *knocks* there; a node that hears it answers *here*, with its identity, and only then
//!   foca can announce itself. Alone, everybody in mind is knocked at, with longer and longer pauses; in company, now and then one who is not
//!   there: halves of a fleet that was cut find each other so, also when foca has forgotten the other half.
//! - **The whole list.** foca's answer to an announcement holds some thirty members. A newcomer *asks* one member for the rest, page by page
//!   in the order of ids.
//! - **Loads** ([`super::vitals`]).
//!
//! An answer goes to the address in the (sealed) question, never to where the packet claims to come from: nobody can be flooded by way of
//! a fleet. What is said by one who bears this node's own id and listens elsewhere is an [`Event::Twin`].

mod found;
mod world;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;
use foca::{Codec, Config, Error, Foca, NoCustomBroadcast, PeriodicParams};

use super::codec::{Compact, put_who, take_who};
use super::dice::Dice;
use super::roster::{Change, Roster};
use super::seal::PLAIN_MAX;
use super::vitals::{VITALS_MAX, Vitals};
use super::who::{Who, run_of};
use crate::id::{Member, NodeId};
use base::Must;
use found::{Found, KNOCKS};
use world::World;

const GOSSIP: u8 = 0;
const KNOCK: u8 = 1;
const HERE: u8 = 2;
const LIST: u8 = 3;
const LISTED: u8 = 4;

/// What foca may say in one datagram: the rest is the kind, and loads.
const FOCA_MAX: usize = PLAIN_MAX - 1 - VITALS_MAX;
/// Changes of the fleet that come at once are told at once.
const TOGETHER: Duration = Duration::from_millis(20);
/// Changes of loads can wait.
const LOADS: Duration = Duration::from_secs(1);
/// How long a newcomer waits for a page of the list, and from how many it asks one in vain.
const PAGE: Duration = Duration::from_secs(1);
const PAGE_TRIES: u8 = 8;
/// A line about a twin is enough every so often.
const TWIN: Duration = Duration::from_secs(60);

/// What the machine has to tell.
#[derive(Clone, Debug)]
pub enum Event {
    /// Somebody came, went, or is another run of itself.
    Changed(Change),
    /// Nobody has answered for some seconds, at so many addresses. Told once until it is over; the knocking goes on.
    Alone {
        /// How many addresses were tried.
        addresses: usize,
    },
    /// There is somebody after all.
    Found,
    /// Another node has this node's id: its folder was copied.
    Twin {
        /// Where it listens.
        address: SocketAddr,
    },
}

/// One node's membership.
pub struct Machine {
    foca: Foca<Who, Compact, Dice, NoCustomBroadcast>,
    world: World,
    dice: Dice,
    found: Found,
    vitals: Vitals,
    free: u32,
    load: u16,
    roster: Arc<Roster>,
    publish: Option<Duration>,
    page: Option<(Duration, NodeId, u8)>,
    twin: Option<Duration>,
    sized: usize,
    events: Vec<Event>,
    malformed: u64,
    left: bool,
}

/// foca's settings for a fleet of about this size.
fn config(nodes: usize) -> Config {
    let nodes = NonZeroU32::new(nodes.next_power_of_two().clamp(8, 1 << 16) as u32);
    let mut config = Config::new_lan(nodes.unwrap_or(NonZeroU32::MIN));
    config.max_packet_size = FOCA_MAX.try_into().must("a datagram has room");
    config.periodic_announce_to_down_members =
        Some(PeriodicParams { frequency: Duration::from_secs(15), num_members: 2.try_into().must("2 is not 0") });
    config.remove_down_after = Some(Duration::from_secs(6 * 3600));
    config
}

impl Machine {
    /// A node that is alone; `contacts` are whom it knocks at, `seed` is its chance.
    pub fn new(me: &Member, contacts: Vec<SocketAddr>, seed: u64, now: Duration) -> Machine {
        let who = Who::from(me);
        let foca = Foca::new(who, config(1), Dice::new(seed), Compact);
        let mut vitals = Vitals::default();
        vitals.own(me.node, run_of(me.generation), me.free, me.load);
        Machine {
            foca,
            world: World::default(),
            dice: Dice::new(seed ^ 0x5bd1_e995),
            found: Found::new(contacts, now),
            vitals,
            free: me.free,
            load: me.load,
            roster: Arc::new(Roster::new(0, vec![me.clone()])),
            publish: None,
            page: None,
            twin: None,
            sized: 1,
            events: Vec::new(),
            malformed: 0,
            left: false,
        }
    }

    /// Who is there, this node included.
    pub fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.roster)
    }

    /// How many opened datagrams held what they cannot.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// How often this node was declared down while it lived, and came back.
    pub fn returns(&self) -> u64 {
        self.world.returns
    }

    /// What was to be told since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// What is to be sent since the last call, unsealed, each at most [`PLAIN_MAX`] bytes.
    pub fn sends(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.world.sends)
    }

    /// When [`Machine::tick`] has something to do.
    pub fn next(&self) -> Duration {
        let own = [self.publish, self.page.map(|(at, ..)| at), Some(self.found.next()), self.world.next()];
        own.into_iter().flatten().min().unwrap_or(Duration::MAX)
    }

    /// The addresses to knock at, anew: a name can mean others after a while.
    pub fn contacts(&mut self, contacts: Vec<SocketAddr>) {
        self.found.contacts(contacts);
    }

    /// The addresses of others seen lately: worth keeping, for a start when no contact answers.
    pub fn remembered(&self) -> Vec<SocketAddr> {
        self.found.remembered()
    }

    /// Addresses that an earlier run of this node kept.
    pub fn remember(&mut self, addresses: Vec<SocketAddr>) {
        addresses.into_iter().for_each(|address| self.found.saw(address));
    }

    /// What this node's cache could still take, and what it is about to send, in MiB.
    pub fn vitals(&mut self, free: u32, load: u16) {
        (self.free, self.load) = (free, load);
    }

    /// A datagram of the fleet, opened.
    pub fn receive(&mut self, now: Duration, plain: &[u8]) {
        if self.left {
            return;
        }
        self.world.now = now;
        if self.read(now, plain).is_none() {
            self.malformed += 1;
        }
        self.settle(now);
    }

    fn read(&mut self, now: Duration, plain: &[u8]) -> Option<()> {
        let (&kind, mut rest) = plain.split_first()?;
        if kind == GOSSIP {
            let me = self.foca.identity().node;
            if self.vitals.take(&mut rest, me)? {
                self.publish.get_or_insert(now + LOADS);
            }
            let from = Compact.decode_header(rest).ok().map(|header| header.src);
            let heard = self.foca.handle_data(rest, &mut self.world);
            self.flush();
            return match heard {
                Err(Error::DataFromOurselves) => {
                    self.suspect_twin(now, &from?);
                    Some(())
                }
                Err(Error::NotConnected | Error::IncompleteProbeCycle) | Ok(()) => Some(()),
                Err(_) => None,
            };
        }
        let who = take_who(&mut rest).ok()?;
        if who.node == self.foca.identity().node {
            self.suspect_twin(now, &who);
            return Some(());
        }
        match kind {
            KNOCK => self.say(HERE, who.address, &[]),
            HERE => {
                self.found.saw(who.address);
                self.foca.announce(who, &mut self.world).ok();
                self.flush();
            }
            LIST => {
                let after = NodeId(rest.try_into().ok()?);
                let page = self.list(after);
                self.say(LISTED, who.address, &page);
            }
            LISTED => self.listed(now, &who, rest)?,
            _ => return None,
        }
        Some(())
    }

    /// One with this node's id that listens elsewhere. What this node itself said, or its run before, is none.
    fn suspect_twin(&mut self, now: Duration, who: &Who) {
        let me = self.foca.identity();
        let elsewhere = who.address != me.address && run_of(who.generation) >= run_of(me.generation);
        if elsewhere && self.twin.is_none_or(|told| now >= told + TWIN) {
            self.twin = Some(now);
            self.events.push(Event::Twin { address: who.address });
        }
    }

    /// Says something that is not foca's: a kind, this node's identity, and what the kind needs.
    fn say(&mut self, kind: u8, to: SocketAddr, what: &[u8]) {
        let mut plain = Vec::with_capacity(128 + what.len());
        plain.put_u8(kind);
        if put_who(self.foca.identity(), &mut plain).is_ok() {
            plain.extend_from_slice(what);
            self.world.sends.push((to, plain));
        }
    }

    /// The members after a node in the order of ids, as many as fit.
    fn list(&mut self, after: NodeId) -> Vec<u8> {
        let mut members: Vec<_> = self.foca.iter_members().filter(|member| member.id().node > after).collect();
        members.sort_unstable_by_key(|member| member.id().node);
        let mut page = Vec::new().limit(PLAIN_MAX - 1 - super::codec::WHO_MAX);
        for member in members {
            if Compact.encode_member(member, &mut page).is_err() {
                break;
            }
        }
        page.into_inner()
    }

    fn listed(&mut self, now: Duration, by: &Who, mut page: &[u8]) -> Option<()> {
        let mut members = Vec::new();
        while !page.is_empty() {
            members.push(Compact.decode_member(&mut page).ok()?);
        }
        let last = members.last().map(|member| member.id().node);
        self.foca.apply_many(members.into_iter(), false, &mut self.world).ok();
        self.flush();
        let (_, after, _) = self.page?;
        match last {
            // Only what goes on from here: a page that comes twice does not lead back.
            Some(last) if last > after => {
                self.page = Some((now + PAGE, last, 0));
                self.say(LIST, by.address, &last.0);
            }
            Some(_) => {}
            None => self.page = None,
        }
        Some(())
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration) {
        self.world.now = now;
        while !self.left && let Some(timer) = self.world.due(now) {
            // What it says about its own state it has put right by itself.
            self.foca.handle_timer(timer, &mut self.world).ok();
            self.flush();
        }
        if self.left {
            return;
        }
        let alone = self.foca.num_members() == 0;
        let present = |address: &SocketAddr| self.roster.members.iter().any(|member| member.address == *address);
        let knocks = self.found.due(now, alone, &mut self.dice, present);
        knocks.into_iter().for_each(|address| self.say(KNOCK, address, &[]));
        if let Some(addresses) = self.found.in_vain(now, alone) {
            self.events.push(Event::Alone { addresses });
        }
        if self.vitals.is_due(now, self.roster.members.len()) {
            let who = self.foca.identity();
            self.vitals.own(who.node, run_of(who.generation), self.free, self.load);
            self.publish.get_or_insert(now + LOADS);
        }
        self.next_page(now);
        self.settle(now);
    }

    /// Asks somebody else for the list when a page does not come.
    fn next_page(&mut self, now: Duration) {
        let Some((at, after, tries)) = self.page.filter(|(at, ..)| now >= *at) else {
            return;
        };
        let members: Vec<SocketAddr> = self.foca.iter_members().map(|member| member.id().address).collect();
        match self.dice.one_of(&members) {
            Some(&address) if tries < PAGE_TRIES => {
                self.page = Some((at.max(now) + PAGE, after, tries + 1));
                self.say(LIST, address, &after.0);
            }
            _ => self.page = None,
        }
    }

    /// What foca wants to send gets its head.
    fn flush(&mut self) {
        let foca = std::mem::take(&mut self.world.said);
        for (to, said) in foca {
            let mut plain = Vec::with_capacity(1 + VITALS_MAX + said.len());
            plain.put_u8(GOSSIP);
            self.vitals.put(&mut plain);
            plain.extend_from_slice(&said);
            self.world.sends.push((to, plain));
        }
    }

    /// After everything: company, a new roster, settings that fit.
    fn settle(&mut self, now: Duration) {
        if std::mem::take(&mut self.world.active) {
            self.page = Some((now, NodeId([0; 16]), 0));
            if self.found.company() {
                self.events.push(Event::Found);
            }
        }
        if std::mem::take(&mut self.world.changed) {
            let at = now + TOGETHER;
            self.publish = Some(self.publish.map_or(at, |earlier| earlier.min(at)));
        }
        if self.publish.is_some_and(|at| now >= at) {
            self.publish = None;
            self.publish(now);
        }
    }

    fn publish(&mut self, now: Duration) {
        let me = self.foca.identity().member(self.free, self.load);
        let others = self.foca.iter_members().map(|member| member.id());
        let known = |who: &Who| self.vitals.of(who.node, run_of(who.generation)).unwrap_or((0, 0));
        let members = others.map(|who| {
            let (free, load) = known(who);
            who.member(free, load)
        });
        let members: Vec<Member> = members.chain([me]).collect();
        let (roster, change) = Roster::follow(&self.roster, members);
        self.roster = Arc::new(roster);
        let Some(change) = change else {
            return;
        };
        change.joined.iter().for_each(|member| self.found.saw(member.address));
        self.vitals.keep(self.roster.members.iter().map(|member| member.node));
        self.events.push(Event::Changed(change));
        let size = self.roster.members.len().next_power_of_two();
        if size != self.sized && self.foca.set_config(config(size)).is_ok() {
            self.sized = size;
        }
        self.world.now = now;
    }

    /// Says farewell to a few, who tell the others. After it nothing is heard or said any more, but [`Machine::sends`] has the farewells.
    pub fn leave(&mut self, now: Duration) {
        if !std::mem::replace(&mut self.left, true) {
            self.world.now = now;
            self.foca.leave_cluster(&mut self.world).ok();
            // Each goes to others, by chance: one that gets lost does no harm.
            for _ in 0..2 {
                self.foca.gossip(&mut self.world).ok();
            }
            self.flush();
        }
    }

    /// How many are knocked at in one go, at most.
    pub const KNOCKS: usize = KNOCKS;
}

#[cfg(test)]
mod tests;
