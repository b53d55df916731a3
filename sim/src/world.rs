//! The world: nodes, and events in the order of time.
//!
//! Events of the same microsecond happen in the order in which they were caused, so nothing depends on the
//! layout of a map.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use base::dice::Dice;
use fleet::node::activity::Activity;
use fleet::node::capacity::Capacity;
use fleet::placement::{Placed, Placement};
use fleet::plan::{Latencies, Plan, Silence, Source};
use fleet::tracker::{Limits, Tracker};
use net::id::{Member, NodeId, Role, Zone};
use net::message::{Answer, Group, Note};

use crate::cache::Cache;
use crate::gossip::Gossip;
use crate::model::{BLOB, FRAME, HALF_TRIP, KNOWN, Model, group_of, node_id, node_no};
use crate::outcome::Tally;

/// A fetch of a child in its current state. `turn` changes when the fetch is interrupted, which makes older
/// events void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The fetching node.
    pub child: u32,
    /// The blob.
    pub blob: u32,
    /// The number of the fetch within its plan.
    pub fetch: u32,
    /// Unique.
    pub turn: u32,
}

/// A question in flight.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question {
    /// The requester.
    pub from: u32,
    /// The tracker.
    pub to: u32,
    /// The tracker's rank for the requester.
    pub rank: usize,
    /// The group of the blobs.
    pub group: Group,
    /// The blobs.
    pub blobs: Vec<u32>,
    /// The excluded nodes.
    pub not: Vec<u32>,
}

/// Everything that can happen.
#[derive(Debug)]
pub enum Event {
    /// A node begins to read, or reads again.
    Read(u32),
    /// A read that failed is tried again.
    Retry(u32, u32),
    /// A question arrives.
    Ask(Box<Question>),
    /// The tracker is gone, and its kernel says so.
    Bounced(Box<Question>),
    /// An answer arrives.
    Answered(Box<Question>, Vec<Answer>),
    /// Notes arrive. The fields are the sender, the receiver and the notes.
    Notes(u32, u32, Vec<Note>),
    /// A request for bytes arrives at its source.
    Request(Key),
    /// The first bytes are ready to be sent.
    Flow(Key),
    /// The last byte arrived.
    Arrived(Key),
    /// The fetch is known to have failed.
    Failed(Key),
    /// A plan wants to be called.
    Timer(u32),
    /// Notes are sent.
    Flush(u32),
    /// A node stops.
    Crash(u32),
    /// All nodes are told of it.
    Known(u32),
    /// Trackers run their periodic work.
    Tick,
    /// A node looks into its table: node, rank, blob, excluded nodes.
    LookUp(u32, usize, u32, Vec<u32>),
    /// A round of gossip about the tables.
    Gossip,
}

/// One fetch of a plan.
#[derive(Debug)]
pub struct Flow {
    /// The source.
    pub source: Source,
    /// When it was started.
    pub started: u64,
    /// See [`Key::turn`].
    pub turn: u32,
    /// When the first and the last byte arrive, once that is decided.
    pub line: Option<(u64, u64)>,
    /// It is in flight.
    pub open: bool,
}

/// A blob that a node is fetching.
#[derive(Debug)]
pub struct Job {
    /// The plan.
    pub plan: Plan,
    /// When the reader began to wait.
    pub begun: u64,
    /// Its fetches, by their numbers.
    pub flows: Vec<Flow>,
    /// Fetches of other nodes that wait for our first byte.
    pub waiters: Vec<Key>,
    /// Fetches of other nodes that stream what we receive.
    pub children: Vec<Key>,
    /// A tracker named a node that has it or is about to.
    pub others: bool,
}

impl Job {
    /// When the bytes arrive, by the fetch that will be first.
    pub fn line(&self) -> Option<(u64, u64)> {
        self.flows.iter().filter(|flow| flow.open).filter_map(|flow| flow.line).min_by_key(|line| line.1)
    }
}

/// One machine.
#[derive(Debug)]
pub struct Node {
    /// It has not crashed.
    pub alive: bool,
    /// It crashed, and its kernel does not say that the port is closed.
    pub mute: bool,
    /// Its link, bytes per microsecond.
    pub rate: f64,
    /// When everything that it has to send is sent.
    pub egress: u64,
    /// When everything that it has to receive is received.
    pub ingress: u64,
    /// Bytes of blobs sent.
    pub sent: u64,
    /// Bytes of coordination received.
    pub heard: u64,
    /// Its tracker, once it was asked.
    pub tracker: Option<Box<Tracker>>,
    /// Its disk.
    pub cache: Cache,
    /// The blobs that it is fetching.
    pub jobs: BTreeMap<u32, Job>,
    /// How long its fetches took.
    pub latencies: Latencies,
    /// Which trackers do not answer it.
    pub silence: Silence,
    /// Notes that have not been sent.
    pub notes: Vec<(u32, Note)>,
    /// When they will be sent.
    pub flush: u64,
    /// The timer that is valid.
    pub timer: u64,
    /// Fetches that it may be sending to.
    pub serving: Vec<Key>,
    /// The next blob to read, in a flash crowd.
    pub next: u32,
    /// What its link can carry.
    pub capacity: Capacity,
    /// Which nodes send to it.
    pub activity: Activity,
    /// When it had all blobs.
    pub done: Option<u64>,
}

impl Node {
    /// A blob arrived, from a node or from the origin.
    pub fn came(&mut self, now: u64, from: Option<NodeId>) {
        self.capacity.came(now, BLOB);
        if let Some(from) = from {
            self.activity.heard(now, from, BLOB);
        }
    }

    /// Its upstream, if it has one.
    pub fn upstream(&self, now: u64) -> Option<NodeId> {
        self.activity.upstream(now, self.capacity.rate())
    }

    /// Whether bytes of any blob are arriving from there.
    pub fn receives_from(&self, now: u64, server: u32) -> bool {
        let comes = |flow: &Flow| {
            let begun = flow.line.is_some_and(|(first, _)| first <= now);
            flow.open && begun && flow.source.node().is_some_and(|node| node_no(&node) == server)
        };
        self.jobs.values().any(|job| job.flows.iter().any(comes))
    }

    /// What it has to send, in MiB.
    pub fn backlog(&self, now: u64) -> u16 {
        let queued = self.egress.saturating_sub(now) as f64 * self.rate;
        (queued / f64::from(1 << 20)).min(65_535.0) as u16
    }
}

/// See the module.
pub struct World {
    /// The chosen parameters.
    pub model: Model,
    /// Neighbouring blobs are not in one group but in random ones.
    pub scattered: bool,
    /// Microseconds since the start.
    pub now: u64,
    /// The source of all random choices.
    pub dice: Dice,
    /// All machines.
    pub nodes: Vec<Node>,
    /// The placement, as all nodes know it.
    pub placed: Placed,
    /// When the zone's link to the origin is free.
    pub origin_free: u64,
    /// The tables of holders, if there are no trackers.
    pub gossip: Gossip,
    /// The counters.
    pub tally: Tally,
    /// When counting began.
    pub counted_from: u64,
    /// Questions that plans want to ask, collected within one event: node, rank, tracker, blob, excluded
    /// nodes.
    pub questions: Vec<(u32, usize, u32, u32, Vec<u32>)>,
    queue: BinaryHeap<Reverse<(u64, u64, u32)>>,
    slab: Vec<Option<Event>>,
    free: Vec<u32>,
    caused: u64,
    turns: u32,
}

impl World {
    /// All nodes exist and have nothing.
    pub fn new(model: Model, cache: impl Fn() -> Cache) -> World {
        let mut dice = Dice::new(model.seed);
        let latencies = Latencies::default();
        let node = |rate| Node {
            alive: true,
            mute: false,
            rate,
            egress: 0,
            ingress: 0,
            sent: 0,
            heard: 0,
            tracker: None,
            cache: cache(),
            jobs: BTreeMap::new(),
            latencies: latencies.clone(),
            silence: Silence::default(),
            notes: Vec::new(),
            flush: u64::MAX,
            timer: u64::MAX,
            serving: Vec::new(),
            next: 0,
            capacity: Capacity::default(),
            activity: Activity::default(),
            done: None,
        };
        let (slow, link) = (model.slow_per_mille as usize, model.link);
        let rates =
            (0..model.nodes).map(|_| if dice.below(1_000) < slow { link / model.slowness } else { link });
        let mut nodes: Vec<Node> = rates.map(node).collect();
        let depot = |_| Node { cache: Cache::of(model.depots.room), ..node(link) };
        nodes.extend((0..model.depots.count).map(depot));
        let mut world = World {
            scattered: false,
            now: 0,
            dice,
            nodes,
            placed: Placed::default(),
            origin_free: 0,
            gossip: Gossip::default(),
            tally: Tally::default(),
            counted_from: 0,
            questions: Vec::new(),
            queue: BinaryHeap::new(),
            slab: Vec::new(),
            free: Vec::new(),
            caused: 0,
            turns: 0,
            model,
        };
        world.place(1);
        world.at(1_000_000, Event::Tick);
        world
    }

    fn place(&mut self, epoch: u64) {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        let alive = self.nodes.iter().enumerate().filter(|(_, node)| node.alive);
        let members: Vec<Member> = alive
            .map(|(no, _)| Member {
                node: node_id(no as u32),
                generation: 1,
                address,
                zone: Zone::default(),
                role: if self.is_depot(no as u32) { Role::Depot } else { Role::Node },
                weight: self.weight(no as u32),
                free: 0,
                load: 0,
            })
            .collect();
        self.placed.update(Placement::new(epoch, &Zone::default(), &members));
    }

    fn weight(&self, no: u32) -> u16 {
        let lot = Dice::new(self.model.seed << 32 ^ u64::from(no)).below(3);
        if self.model.mixed_weights { 50 << lot } else { 100 }
    }

    /// Whether it is one of the depots, whose numbers follow those of the nodes.
    pub fn is_depot(&self, no: u32) -> bool {
        no >= self.model.nodes
    }

    /// The group of a blob.
    pub fn group(&self, blob: u32) -> Group {
        if self.scattered {
            let any = Dice::new(u64::from(blob)).below(self.model.blobs as usize);
            return group_of(any as u32);
        }
        group_of(blob)
    }

    /// The trackers of a group, by their numbers.
    pub fn trackers(&mut self, group: Group) -> Vec<u32> {
        self.placed.trackers(group).iter().map(node_no).collect()
    }

    /// Schedules an event.
    pub fn at(&mut self, time: u64, event: Event) {
        self.caused += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slab.push(None);
            self.slab.len() as u32 - 1
        });
        self.slab[slot as usize] = Some(event);
        self.queue.push(Reverse((time.max(self.now), self.caused, slot)));
    }

    /// A number that was never used before.
    pub fn turn(&mut self) -> u32 {
        self.turns = self.turns.wrapping_add(1);
        self.turns
    }

    /// The next event, if it is before `end`.
    pub fn next(&mut self, end: u64) -> Option<Event> {
        let Reverse((time, _, slot)) = *self.queue.peek()?;
        if time > end {
            return None;
        }
        self.queue.pop();
        self.now = time;
        self.free.push(slot);
        self.slab[slot as usize].take()
    }

    /// Runs all events up to `end`, or until `until` is true. That is checked ten times a second of the
    /// world.
    pub fn run(&mut self, end: u64, until: impl Fn(&World) -> bool) {
        let mut look = 0;
        while let Some(event) = self.next(end) {
            self.happen(event);
            self.send_questions();
            if self.now >= look {
                if until(self) {
                    return;
                }
                look = self.now + 100_000;
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Read(node) => self.read(node),
            Event::Retry(node, blob) => self.begin(node, blob),
            Event::Ask(question) => self.asked(question),
            Event::Bounced(question) => self.bounced(&question),
            Event::Answered(question, answers) => self.answered(&question, &answers),
            Event::Notes(from, to, notes) => self.noted(from, to, &notes),
            Event::Request(key) => self.requested(key),
            Event::Flow(key) => self.flow(key),
            Event::Arrived(key) => self.arrived(key),
            Event::Failed(key) => self.failed(key),
            Event::Timer(node) => self.timer(node),
            Event::Flush(node) => self.flush(node),
            Event::LookUp(node, rank, blob, not) => self.look_up(node, rank, blob, &not),
            Event::Gossip => self.gossip_round(),
            Event::Crash(node) => self.crash(node),
            Event::Known(node) => self.known(node),
            Event::Tick => {
                let now = self.now;
                self.nodes
                    .iter_mut()
                    .filter_map(|node| node.tracker.as_mut())
                    .for_each(|tracker| tracker.tick(now));
                self.at(now + 1_000_000, Event::Tick);
            }
        }
    }

    /// Sends a message, and returns when it arrives. A message to the node itself needs no network.
    pub fn message(&mut self, from: u32, to: u32, bytes: u64) -> u64 {
        if from == to {
            return self.now;
        }
        self.tally.messages += 1;
        self.tally.bytes += bytes + FRAME;
        self.nodes[to as usize].heard += bytes + FRAME;
        self.now + HALF_TRIP
    }

    /// A node's tracker, created on first use.
    pub fn tracker(&mut self, node: u32) -> &mut Tracker {
        let seed = self.model.seed ^ u64::from(node) << 32;
        let made = || Box::new(Tracker::new(node_id(node), seed, Limits::default()));
        self.nodes[node as usize].tracker.get_or_insert_with(made)
    }

    fn crash(&mut self, no: u32) {
        let mute = self.dice.below(2) == 0;
        let node = &mut self.nodes[no as usize];
        if !node.alive || node.done.is_some() {
            return;
        }
        (node.alive, node.mute) = (false, mute);
        node.tracker = None;
        let jobs = std::mem::take(&mut node.jobs);
        let mut cut = std::mem::take(&mut node.serving);
        cut.extend(jobs.into_values().flat_map(|job| job.waiters));
        cut.sort_unstable();
        cut.dedup();
        for key in cut {
            self.cut(key);
        }
        self.at(self.now + KNOWN, Event::Known(no));
    }

    /// The membership tells all nodes. Holders of blobs whose groups the dead node tracked tell the new
    /// tracker.
    fn known(&mut self, gone: u32) {
        let groups =
            (0..self.model.blobs).map(|blob| self.group(blob)).collect::<std::collections::BTreeSet<_>>();
        let lost: std::collections::BTreeSet<Group> =
            groups.into_iter().filter(|group| self.trackers(*group).first() == Some(&gone)).collect();
        self.place(self.placed.placement().epoch() + 1);
        let id = node_id(gone);
        self.nodes
            .iter_mut()
            .filter_map(|node| node.tracker.as_mut())
            .for_each(|tracker| tracker.member_gone(&id));
        if lost.is_empty() {
            return;
        }
        for no in 0..self.model.nodes {
            if !self.nodes[no as usize].alive {
                continue;
            }
            let mut blobs = Vec::new();
            self.nodes[no as usize].cache.each(|blob| blobs.push(blob));
            blobs.retain(|blob| lost.contains(&self.group(*blob)));
            for blob in blobs {
                self.note_have(no, blob);
            }
        }
    }
}
