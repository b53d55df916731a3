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
//! - **Nobody missing for long.** Gossip reaches nearly everybody, soon. Each message carries a digest of the sender's roster; whoever's own
//!   is another one, and has been for seconds, asks for the list.
//! - **Loads** ([`super::vitals`]).
//!
//! An answer goes to the address in the (sealed) question, never to where the packet claims to come from, and is no longer than
//! the question: questions for lists and foca's announcements are filled up to the longest datagram, a node answers *here* with as much
//! as it was knocked with, and counts only what bears the number of its last knocks. So nobody can be flooded by way of a fleet, also not
//! with questions that were recorded. Neither can a fleet's members be made up without end ([`MEMBERS_MAX`]). What is said by one who bears this node's own id and listens elsewhere is an [`Event::Twin`].

mod found;
mod world;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut};
use foca::{Codec, Config, Error, Foca, Message, NoCustomBroadcast, PeriodicParams, State, Timer};

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

// The first byte of what is said, and what follows it:
/// The sender's digest 4, vitals, and foca's own.
const GOSSIP: u8 = 0;
/// The one that knocks, and a number 8.
const KNOCK: u8 = 1;
/// The one that answers, and the number of the knock.
const HERE: u8 = 2;
/// The one that asks, the id after which the list shall go on, and zeros up to [`PLAIN_MAX`].
const LIST: u8 = 3;
/// Who answers, and members; none: that was all. Also unasked, to one who is suspected.
const LISTED: u8 = 4;

/// What foca may say in one datagram: the rest is the kind, and loads.
const FOCA_MAX: usize = PLAIN_MAX - 1 - 4 - VITALS_MAX;
/// Changes of the fleet that come at once are told at once.
const TOGETHER: Duration = Duration::from_millis(20);
/// Changes of loads can wait.
const LOADS: Duration = Duration::from_secs(1);
/// How long a newcomer waits for a page of the list, and from how many it asks one in vain.
const PAGE: Duration = Duration::from_secs(1);
const PAGE_TRIES: u8 = 8;
/// Rosters are compared when one's own has not changed for so long,
const CALM: Duration = Duration::from_secs(4);
/// and at most so often; where it never is calm, now and then all the same.
const COMPARE: Duration = Duration::from_secs(8);
const COMPARE_ANYWAY: Duration = Duration::from_secs(60);
/// Who is suspected is told so often.
const WARN: Duration = Duration::from_secs(1);
/// So many nodes are known at most, those that are gone included; others are not let in.
pub const MEMBERS_MAX: usize = 16 << 10;
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
    /// The numbers of the last knocks, and of those before.
    knocks: [u64; 2],
    /// How many nodes are known at most.
    most: usize,
    twin: Option<Duration>,
    calm_at: Duration,
    warn_at: Duration,
    compare_at: Duration,
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
    // The digest finds what is missing; this is only foca's own way to it, and a feed is as large as seconds of the rest.
    config.periodic_announce = Some(PeriodicParams {
        frequency: Duration::from_secs(300),
        num_members: 1.try_into().must("1 is not 0"),
    });
    // A fleet that starts all at once is larger than each thinks. Where nothing happens, nothing is sent more often.
    config.max_transmissions = config.max_transmissions.max(8.try_into().must("8 is not 0"));
    config.periodic_announce_to_down_members = Some(PeriodicParams {
        frequency: Duration::from_secs(15),
        num_members: 2.try_into().must("2 is not 0"),
    });
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
            knocks: [0; 2],
            most: MEMBERS_MAX,
            twin: None,
            calm_at: now,
            warn_at: now,
            compare_at: now,
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
            let digest = rest.try_get_u32().ok()?;
            if self.vitals.take(&mut rest, me)? {
                self.publish.get_or_insert(now + LOADS);
            }
            let mut updates = rest;
            let header = Compact.decode_header(&mut updates).ok();
            if header.as_ref().is_some_and(|header| header.message == Message::Announce) {
                // Its answer is as long as a datagram can be.
                if plain.len() < PLAIN_MAX {
                    return None;
                }
                rest = rest.get(..rest.len() - updates.len())?;
                updates = &[];
            }
            let from = header.map(|header| header.src);
            if from.as_ref().is_some_and(|from| !self.has_room_for(from, updates)) {
                return Some(());
            }
            let heard = self.foca.handle_data(rest, &mut self.world);
            self.flush();
            return match heard {
                Err(Error::DataFromOurselves) => {
                    self.suspect_twin(now, &from?);
                    Some(())
                }
                Err(Error::NotConnected | Error::IncompleteProbeCycle) => Some(()),
                Ok(()) => {
                    self.compare(now, digest, &from?);
                    Some(())
                }
                Err(_) => None,
            };
        }
        let who = take_who(&mut rest).ok()?;
        if who.node == self.foca.identity().node {
            self.suspect_twin(now, &who);
            return Some(());
        }
        match kind {
            KNOCK => {
                let number: [u8; 8] = rest.try_into().ok()?;
                self.say(HERE, who.address, &number);
            }
            HERE => {
                let number = u64::from_be_bytes(rest.try_into().ok()?);
                if !self.knocks.contains(&number) || number == 0 {
                    // Recorded, or too late to be worth anything.
                    return Some(());
                }
                self.found.saw(who.address);
                self.foca.announce(who, &mut self.world).ok();
                self.flush();
            }
            LIST => {
                let after = NodeId(*rest.first_chunk()?);
                if plain.len() < PLAIN_MAX {
                    return None;
                }
                let page = self.list(after, who.node);
                self.say(LISTED, who.address, &page);
            }
            LISTED => self.listed(now, &who, rest)?,
            _ => return None,
        }
        Some(())
    }

    /// Tells those whom this node itself suspects, and goes on telling. What it said of the suspicion may have been lost with the rest:
    /// whoever was cut off for some seconds says "suspect" to nobody, and would declare a healthy node down seconds after the cut.
    fn warn(&mut self, now: Duration) {
        if now < self.warn_at || self.world.suspected.is_empty() {
            return;
        }
        self.warn_at = now + WARN;
        self.world.suspected.retain(|(_, _, until)| *until > now);
        let mut suspected = std::mem::take(&mut self.world.suspected);
        suspected.retain(|(who, incarnation, _)| self.is_suspected(who, *incarnation));
        for (who, incarnation, _) in &suspected {
            let member = foca::Member::new(who.clone(), *incarnation, State::Suspect);
            let mut told = Vec::new();
            if Compact.encode_member(&member, &mut told).is_ok() {
                self.say(LISTED, who.address, &told);
            }
        }
        self.world.suspected = suspected;
    }

    /// Asks for the list who sees another fleet than this node does.
    fn compare(&mut self, now: Duration, digest: u32, who: &Who) {
        let calm = now >= self.calm_at || now >= self.compare_at + COMPARE_ANYWAY;
        if digest != self.roster.digest() && calm && now >= self.compare_at && self.page.is_none() {
            self.compare_at = now + COMPARE;
            self.page = Some((now + PAGE, NodeId([0; 16]), 0));
            self.ask_list(who.address, NodeId([0; 16]));
        }
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

    /// Asks for the list after a node, with as many bytes as the answer may have.
    fn ask_list(&mut self, to: SocketAddr, after: NodeId) {
        self.say(LIST, to, &after.0);
        if let Some((_, plain)) = self.world.sends.last_mut() {
            plain.resize(PLAIN_MAX, 0);
        }
    }

    /// Whether the nodes that a datagram speaks of are known, or there is room for more. `updates`: what follows foca's header.
    fn has_room_for(&self, from: &Who, mut updates: &[u8]) -> bool {
        if self.foca.iter_membership_state().len() < self.most {
            return true;
        }
        let count = updates.try_get_u16().unwrap_or(0);
        let all = (0..count).map_while(|_| Compact.decode_member(&mut updates).ok());
        let mut ids = all.map(|member| member.id().node).chain([from.node]);
        ids.all(|node| self.is_known(node))
    }

    /// Whether a node is a member, or was one lately.
    fn is_known(&self, node: NodeId) -> bool {
        node == self.foca.identity().node
            || self.foca.iter_membership_state().any(|member| member.id().node == node)
    }

    /// The members after a node in the order of ids, as many as fit, without the one who asks.
    fn list(&mut self, after: NodeId, but: NodeId) -> Vec<u8> {
        let wanted = |member: &&foca::Member<Who>| member.id().node > after && member.id().node != but;
        let mut members: Vec<_> = self.foca.iter_members().filter(wanted).collect();
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
        let me = self.foca.identity().node;
        let of_me = members.iter().any(|member| member.id().node == me);
        if self.foca.iter_membership_state().len() >= self.most {
            members.retain(|member| self.is_known(member.id().node));
        }
        self.foca.apply_many(members.into_iter(), false, &mut self.world).ok();
        if of_me {
            // Whoever suspects this node, or has an old record of it, hears the newest from itself.
            self.foca.announce(by.clone(), &mut self.world).ok();
        }
        self.flush();
        let Some((_, after, _)) = self.page else {
            return Some(());
        };
        match last {
            // Only what goes on from here: a page that comes twice does not lead back.
            Some(last) if last > after => {
                self.page = Some((now + PAGE, last, 0));
                self.ask_list(by.address, last);
            }
            Some(_) => {}
            None => self.page = None,
        }
        Some(())
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Duration) {
        self.world.now = now;
        while !self.left
            && let Some(timer) = self.world.due(now)
        {
            if self.is_refuted(&timer) {
                continue;
            }
            // What it says about its own state it has put right by itself.
            self.foca.handle_timer(timer, &mut self.world).ok();
            self.flush();
        }
        if self.left {
            return;
        }
        let alone = self.foca.num_members() == 0;
        let present =
            |address: &SocketAddr| self.roster.members.iter().any(|member| member.address == *address);
        let knocks = self.found.due(now, alone, &mut self.dice, present);
        if !knocks.is_empty() {
            self.knocks = [self.dice.throw().max(1), self.knocks[0]];
        }
        let number = self.knocks[0].to_be_bytes();
        knocks.into_iter().for_each(|address| self.say(KNOCK, address, &number));
        if let Some(addresses) = self.found.in_vain(now, alone) {
            self.events.push(Event::Alone { addresses });
        }
        if self.vitals.is_due(now, self.roster.members.len()) {
            let who = self.foca.identity();
            self.vitals.own(who.node, run_of(who.generation), self.free, self.load);
            self.publish.get_or_insert(now + LOADS);
        }
        self.next_page(now);
        self.warn(now);
        self.settle(now);
    }

    /// Whether a suspicion's time is up that is none any more. foca 2.0 does not declare that node down, but tells it that it is, whereupon
    /// the node comes back as another generation: each refuted suspicion would look like a death.
    fn is_refuted(&self, timer: &Timer<Who>) -> bool {
        let Timer::ChangeSuspectToDown { member_id, incarnation, .. } = timer else {
            return false;
        };
        !self.is_suspected(member_id, *incarnation)
    }

    fn is_suspected(&self, who: &Who, incarnation: u16) -> bool {
        let same = |member: &foca::Member<Who>| {
            member.id() == who && member.incarnation() == incarnation && member.state() == State::Suspect
        };
        self.foca.iter_members().any(same)
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
                self.ask_list(address, after);
            }
            _ => self.page = None,
        }
    }

    /// What foca wants to send gets its head.
    fn flush(&mut self) {
        let foca = std::mem::take(&mut self.world.said);
        for (to, said) in foca {
            let mut plain = Vec::with_capacity(1 + 4 + VITALS_MAX + said.len());
            plain.put_u8(GOSSIP);
            plain.put_u32(self.roster.digest());
            self.vitals.put(&mut plain);
            plain.extend_from_slice(&said);
            if Compact.decode_header(&said[..]).is_ok_and(|header| header.message == Message::Announce) {
                plain.resize(PLAIN_MAX, 0);
            }
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
        self.calm_at = now + CALM;
        change.joined.iter().for_each(|member| self.found.saw(member.address));
        self.vitals.keep(self.roster.members.iter().map(|member| member.node));
        self.events.push(Event::Changed(change));
        let size = self.roster.members.len().next_power_of_two();
        if size != self.sized && self.foca.set_config(config(size)).is_ok() {
            self.sized = size;
        }
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
