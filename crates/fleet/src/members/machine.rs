//! Membership as a state machine without a socket and without a clock. The caller passes what arrived and the
//! time, and the machine says what to send.
//!
//! ```text
//!   receive(now, bytes) ─┐                              ┌─► sends(): where to, what
//!   tick(now) ───────────┼─► foca (SWIM) + this file ───┼─► events(): the fleet changed, no answers, ...
//!   leave(now) ──────────┘                              └─► next(): when to tick
//! ```
//!
//! `now` is the time since some start, by a clock that only goes forward. foca implements SWIM: it probes one
//! member a second, lets others probe before it suspects one, and spreads news with the messages that it
//! sends anyway. This file adds what a fleet needs around it:
//!
//! - **Discovery.** A node that knows only addresses *knocks* there. A node that receives a KNOCK answers
//!   HERE with its identity, and only then foca can announce itself. A node that is alone knocks at all known
//!   addresses, with longer and longer pauses. A node with other members knocks from time to time at one
//!   address that is not a member. So the halves of a divided fleet find each other again, even when foca has
//!   forgotten the other half.
//! - **The whole list.** foca's answer to an announcement holds about thirty members. A new node requests the
//!   rest from one member, page by page in the order of ids.
//! - **Repair.** Gossip reaches almost every node quickly. Each message carries a digest of the sender's
//!   roster. A node whose own digest has been different for seconds requests the list.
//! - **Loads** ([`super::vitals`]).
//!
//! An answer goes to the address in the (authenticated) request, never to the packet's source address, and is
//! not longer than the request. Requests for lists and foca's announcements are padded to the longest
//! datagram. HERE carries as many bytes as the KNOCK, and counts only with the number of a recent KNOCK. So a
//! fleet cannot be used to flood another host, not even with recorded requests. Nor can members be invented
//! without end ([`MEMBERS_MAX`]). A message with this node's own id from another listening address is an
//! [`Event::Twin`].

mod discovery;
mod world;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut};
use foca::{Codec, Config, Error, Foca, Message, NoCustomBroadcast, PeriodicParams, State, Timer};

use super::codec::{Compact, put_who, take_who};
use super::dice::Dice;
use super::incarnation::{Incarnation, run_of};
use super::roster::{Change, Roster};
use super::seal::PLAIN_MAX;
use super::vitals::{VITALS_MAX, Vitals};
use base::Must;
use discovery::{Discovery, KNOCKS};
use net::id::{Member, NodeId};
use world::World;

// The first byte of a message, and what follows it:
/// The sender's digest 4, vitals, and foca's message.
const GOSSIP: u8 = 0;
/// The knocking node, and a number 8.
const KNOCK: u8 = 1;
/// The answering node, and the number of the KNOCK.
const HERE: u8 = 2;
/// The requesting node, the id after which the list continues, and zeros up to [`PLAIN_MAX`].
const LIST: u8 = 3;
/// The answering node, and members. No members: the list has ended. Also sent unasked, to a suspected node.
const LISTED: u8 = 4;

/// The longest message of foca in one datagram. The rest is the kind, and loads.
const FOCA_MAX: usize = PLAIN_MAX - 1 - 4 - VITALS_MAX;
/// Changes of the fleet within this time are reported together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Changes of loads, which are less urgent, are reported together within this time.
const LOADS: Duration = Duration::from_secs(1);
/// How long a new node waits for a page of the list, and how many nodes it asks for one before it gives up.
const PAGE: Duration = Duration::from_secs(1);
const PAGE_TRIES: u8 = 8;
/// Rosters are compared when the own one has not changed for this long,
const CALM: Duration = Duration::from_secs(4);
/// and at most this often. If the own roster keeps changing, they are compared at the longer interval.
const COMPARE: Duration = Duration::from_secs(8);
const COMPARE_ANYWAY: Duration = Duration::from_secs(60);
/// How often a suspected node is notified.
const WARN: Duration = Duration::from_secs(1);
/// Upper bound on known nodes, including those that are gone. Further ones are not admitted.
pub const MEMBERS_MAX: usize = 16 << 10;
/// The interval between reports about a twin.
const TWIN: Duration = Duration::from_secs(60);

/// What the machine reports.
#[derive(Clone, Debug)]
pub enum Event {
    /// A node joined, left, or was restarted.
    Changed(Change),
    /// No node has answered for some seconds. Reported once until another node is found. Knocking continues.
    Alone {
        /// How many addresses were tried.
        addresses: usize,
    },
    /// Another node has been found.
    Found,
    /// Another node has this node's id: its folder was copied.
    Twin {
        /// Where it listens.
        address: SocketAddr,
    },
}

/// One node's membership.
pub struct Machine {
    foca: Foca<Incarnation, Compact, Dice, NoCustomBroadcast>,
    world: World,
    dice: Dice,
    discovery: Discovery,
    vitals: Vitals,
    free: u32,
    load: u16,
    roster: Arc<Roster>,
    publish: Option<Duration>,
    page: Option<(Duration, NodeId, u8)>,
    /// The numbers of the last knocks, and of those before.
    knocks: [u64; 2],
    /// Upper bound on known nodes.
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
    // The digest finds what is missing. This is only foca's own way to do it, and its answer is as large as
    // seconds of other traffic.
    config.periodic_announce = Some(PeriodicParams {
        frequency: Duration::from_secs(300),
        num_members: 1.try_into().must("1 is not 0"),
    });
    // If a fleet starts all at once, it is larger than each node thinks. Without news, this sends nothing
    // more often.
    config.max_transmissions = config.max_transmissions.max(8.try_into().must("8 is not 0"));
    config.periodic_announce_to_down_members = Some(PeriodicParams {
        frequency: Duration::from_secs(15),
        num_members: 2.try_into().must("2 is not 0"),
    });
    config.remove_down_after = Some(Duration::from_secs(6 * 3600));
    config
}

impl Machine {
    /// A node that is alone. It knocks at `contacts`. `seed` determines its random choices.
    pub fn new(me: &Member, contacts: Vec<SocketAddr>, seed: u64, now: Duration) -> Machine {
        let who = Incarnation::from(me);
        let foca = Foca::new(who, config(1), Dice::new(seed), Compact);
        let mut vitals = Vitals::default();
        vitals.own(me.node, run_of(me.generation), me.free, me.load);
        Machine {
            foca,
            world: World::default(),
            dice: Dice::new(seed ^ 0x5bd1_e995),
            discovery: Discovery::new(contacts, now),
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

    /// The members, including this node.
    pub fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.roster)
    }

    /// How many authentic datagrams had invalid contents.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// How often this node was declared down while it was alive, and came back.
    pub fn returns(&self) -> u64 {
        self.world.returns
    }

    /// The events since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// What must be sent since the last call, not yet encrypted, at most [`PLAIN_MAX`] bytes each.
    pub fn sends(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        std::mem::take(&mut self.world.sends)
    }

    /// When [`Machine::tick`] has something to do.
    pub fn next(&self) -> Duration {
        let own =
            [self.publish, self.page.map(|(at, ..)| at), Some(self.discovery.next()), self.world.next()];
        own.into_iter().flatten().min().unwrap_or(Duration::MAX)
    }

    /// Sets the addresses to knock at again. A name can have other addresses after a while.
    pub fn contacts(&mut self, contacts: Vec<SocketAddr>) {
        self.discovery.contacts(contacts);
    }

    /// The addresses of other members seen recently. They are kept for a start at which no contact answers.
    pub fn remembered(&self) -> Vec<SocketAddr> {
        self.discovery.remembered()
    }

    /// Addresses that an earlier run of this node kept.
    pub fn remember(&mut self, addresses: Vec<SocketAddr>) {
        addresses.into_iter().for_each(|address| self.discovery.saw(address));
    }

    /// How much this node's cache could still store, and how much it is about to send, in MiB.
    pub fn vitals(&mut self, free: u32, load: u16) {
        (self.free, self.load) = (free, load);
    }

    /// Processes a datagram of the fleet, after decryption.
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
                // Its answer can be as long as the longest datagram.
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
                    // A recorded message, or one that is too late.
                    return Some(());
                }
                self.discovery.saw(who.address);
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

    /// Notifies the nodes that this node itself suspects, repeatedly. Its first message about the suspicion
    /// may have been lost. A node that was cut off for some seconds tells no other node of its suspicions,
    /// and would declare a healthy node down seconds after the cut.
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

    /// Requests the list if another node sees another fleet than this one.
    fn compare(&mut self, now: Duration, digest: u32, who: &Incarnation) {
        let calm = now >= self.calm_at || now >= self.compare_at + COMPARE_ANYWAY;
        if digest != self.roster.digest() && calm && now >= self.compare_at && self.page.is_none() {
            self.compare_at = now + COMPARE;
            self.page = Some((now + PAGE, NodeId([0; 16]), 0));
            self.ask_list(who.address, NodeId([0; 16]));
        }
    }

    /// A node with this node's id and another address. Messages of this node itself, or of its previous run,
    /// do not count.
    fn suspect_twin(&mut self, now: Duration, who: &Incarnation) {
        let me = self.foca.identity();
        let elsewhere = who.address != me.address && run_of(who.generation) >= run_of(me.generation);
        if elsewhere && self.twin.is_none_or(|told| now >= told + TWIN) {
            self.twin = Some(now);
            self.events.push(Event::Twin { address: who.address });
        }
    }

    /// Sends a message that is not foca's: a kind, this node's identity, and the kind's payload.
    fn say(&mut self, kind: u8, to: SocketAddr, what: &[u8]) {
        let mut plain = Vec::with_capacity(128 + what.len());
        plain.put_u8(kind);
        if put_who(self.foca.identity(), &mut plain).is_ok() {
            plain.extend_from_slice(what);
            self.world.sends.push((to, plain));
        }
    }

    /// Requests the list after a node, with as many bytes as the answer may have.
    fn ask_list(&mut self, to: SocketAddr, after: NodeId) {
        self.say(LIST, to, &after.0);
        if let Some((_, plain)) = self.world.sends.last_mut() {
            plain.resize(PLAIN_MAX, 0);
        }
    }

    /// Whether all nodes in a datagram are known, or there is room for more. `updates` is what follows foca's
    /// header.
    fn has_room_for(&self, from: &Incarnation, mut updates: &[u8]) -> bool {
        if self.foca.iter_membership_state().len() < self.most {
            return true;
        }
        let count = updates.try_get_u16().unwrap_or(0);
        let all = (0..count).map_while(|_| Compact.decode_member(&mut updates).ok());
        let mut ids = all.map(|member| member.id().node).chain([from.node]);
        ids.all(|node| self.is_known(node))
    }

    /// Whether a node is a member, or was one recently.
    fn is_known(&self, node: NodeId) -> bool {
        node == self.foca.identity().node
            || self.foca.iter_membership_state().any(|member| member.id().node == node)
    }

    /// The members after a node in the order of ids, as many as fit, without the requester.
    fn list(&mut self, after: NodeId, but: NodeId) -> Vec<u8> {
        let wanted =
            |member: &&foca::Member<Incarnation>| member.id().node > after && member.id().node != but;
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

    fn listed(&mut self, now: Duration, by: &Incarnation, mut page: &[u8]) -> Option<()> {
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
            // A node that suspects this one, or has an old record of it, gets the newest record from this
            // node.
            self.foca.announce(by.clone(), &mut self.world).ok();
        }
        self.flush();
        let Some((_, after, _)) = self.page else {
            return Some(());
        };
        match last {
            // Only a page that continues from here. A page that arrives twice does not lead back.
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
            // foca has already corrected the state that it reports as wrong.
            self.foca.handle_timer(timer, &mut self.world).ok();
            self.flush();
        }
        if self.left {
            return;
        }
        let alone = self.foca.num_members() == 0;
        let present =
            |address: &SocketAddr| self.roster.members.iter().any(|member| member.address == *address);
        let knocks = self.discovery.due(now, alone, &mut self.dice, present);
        if !knocks.is_empty() {
            self.knocks = [self.dice.throw().max(1), self.knocks[0]];
        }
        let number = self.knocks[0].to_be_bytes();
        knocks.into_iter().for_each(|address| self.say(KNOCK, address, &number));
        if let Some(addresses) = self.discovery.in_vain(now, alone) {
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

    /// Whether this timer belongs to a suspicion that was refuted. foca 2.0 does not declare such a node
    /// down, but tells it that it is down. The node would then come back as a new generation, so each refuted
    /// suspicion would look like a death.
    fn is_refuted(&self, timer: &Timer<Incarnation>) -> bool {
        let Timer::ChangeSuspectToDown { member_id, incarnation, .. } = timer else {
            return false;
        };
        !self.is_suspected(member_id, *incarnation)
    }

    fn is_suspected(&self, who: &Incarnation, incarnation: u16) -> bool {
        let same = |member: &foca::Member<Incarnation>| {
            member.id() == who && member.incarnation() == incarnation && member.state() == State::Suspect
        };
        self.foca.iter_members().any(same)
    }

    /// Requests the list from another node if a page does not arrive.
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

    /// Adds the header to what foca sends.
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

    /// Called after every input: handles new members, a changed roster, and the settings for the fleet's
    /// size.
    fn settle(&mut self, now: Duration) {
        if std::mem::take(&mut self.world.active) {
            self.page = Some((now, NodeId([0; 16]), 0));
            if self.discovery.company() {
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
        let known = |who: &Incarnation| self.vitals.of(who.node, run_of(who.generation)).unwrap_or((0, 0));
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
        change.joined.iter().for_each(|member| self.discovery.saw(member.address));
        self.vitals.keep(self.roster.members.iter().map(|member| member.node));
        self.events.push(Event::Changed(change));
        let size = self.roster.members.len().next_power_of_two();
        if size != self.sized && self.foca.set_config(config(size)).is_ok() {
            self.sized = size;
        }
    }

    /// Says farewell to a few members, which tell the others. Afterwards nothing is received or sent any
    /// more. The farewells are in [`Machine::sends`].
    pub fn leave(&mut self, now: Duration) {
        if !std::mem::replace(&mut self.left, true) {
            self.world.now = now;
            self.foca.leave_cluster(&mut self.world).ok();
            // Each goes to other random members. A lost one does no harm.
            for _ in 0..2 {
                self.foca.gossip(&mut self.world).ok();
            }
            self.flush();
        }
    }

    /// How many addresses are knocked at in one round, at most.
    pub const KNOCKS: usize = KNOCKS;
}

#[cfg(test)]
mod tests;
