//! The requester's side: which tracker to ask for one blob, where to fetch it, and when to hedge.
//!
//! A [`Plan`] is a value without I/O. Its driver passes it what happened ([`Event`]) and when, and does what
//! it says ([`Action`]). Between events the driver must call again by [`Plan::wake`]. A plan holds only what
//! was tried and when, so that the simulation runs the same code.
//!
//! ```text
//!              ask rank 1 ──silent──► ask rank 2 ──► ask rank 3 ──► no answer: depot, origin
//!                 │
//!      ┌──────────┼───────────────┬────────────┐
//!    SERVE, GO   WAIT           LEASE        NotMine ─► the next rank
//!      │          │               │
//!    peer       stream          depot ─fails or p99─► origin
//!      │ p99      │ p99
//!    second     ask again
//!      │ 2 x p99  │ + 2 x p99
//!    depot      depot
//!      │ 4 x p99  │ + 4 x p99, not before the time of the WAIT
//!    ask again, silent nodes excluded; the answer is another node, or the lease
//!      │ twice as long each time, until no questions are left
//!    origin
//! ```
//!
//! - Arriving bytes postpone every step. So does another node's lease: a node that waits for a node that
//!   fetches from the origin goes to the origin only when the tracker gives it the lease. If it hedged to the
//!   origin on its own, thousands of nodes would do the same, because a slow origin is slow for all of them.
//!
//! - If WAIT names a node other than the current upstream (the node that sends the most to this one), the
//!   tracker is asked again shortly after ([`Pace::soon`]), at most [`PATIENCE`] times. Nodes in a chain want
//!   the same blob at almost the same time. It is better to take it from the upstream than from the head of
//!   the chain.
//! - A peer that fails is reported to the trackers and not asked again. If no other fetch is in flight, the
//!   tracker is asked again, at most [`ASKS_MAX`] times. Then come the depot and the origin.
//! - A peer that has sent no byte when the next one is tried is reported as silent. Otherwise a node that
//!   died without notice would be named to every requester until the membership notices. The peer may only be
//!   busy, so the tracker does not conclude that it lacks the blob.
//! - A peer that sends other blobs to this node in the meantime is neither silent nor stalled
//!   ([`Event::Alive`]). Its link is full, and this blob is in its queue. A second fetch would bring the blob
//!   twice over a link that is also full.
//! - Bytes postpone nothing if they come so slowly that the rest would take far too long (`CRAWL`). Their
//!   sender is reported and excluded, and the tracker is asked for another at once. All blobs are taken to be
//!   of the largest size.
//! - If this node's link has room ([`Event::Slack`]) and a holder would need seconds for the rest, the holder
//!   has too many receivers. The tracker is asked for another holder. The slow one is not excluded, so the
//!   answer cannot be a lease. All fetches fill one buffer, so what the slow one delivered is not fetched
//!   again.
//! - When one tracker has answered, later answers of other trackers are ignored. The exception is an answer
//!   that names the current upstream, if the node that the first answer named has sent nothing yet.
//! - When a peer sends its first byte, the other peers that have sent nothing are cancelled. Otherwise they
//!   would send the same bytes over one link.
//! - No hedging step is longer than [`STEPS`] allows, however long fetches take on this link. Otherwise a
//!   reader with a short deadline would see an error although another source has the blob.
//! - Once [`RESCUE`] says so, and nothing in flight will be here by the deadline, the origin is asked. The
//!   exception is a blob that another node is fetching from there.
//! - If many blobs share a link, one of them may stall although its sender is well. The sender is excluded
//!   only after the time that all of them need on the link ([`Pace::share`]).
//! - A plan starts **at most one** fetch from the origin, and says why ([`Why`]): the tracker said so, no
//!   other source was left, or it is a hedge. The origin retries and has deadlines on its own.
//! - A plan always ends, with exactly one [`Action::Done`] or [`Action::Fail`], by the deadline at the
//!   latest. Later events are ignored.

mod latencies;
mod silence;
mod steps;
#[cfg(test)]
mod tests;

use std::time::Duration;

use base::size::BLOB_MAX;
use net::id::NodeId;
use net::message::{Answer, What};

pub use latencies::{Latencies, Tier, Window};
pub use silence::Silence;

/// A tracker that has not answered after [`Pace::answer`], which lies between these bounds, is silent, and
/// the next one is asked as well. On a full link [`Pace::answer`] is as long as answers take there. The next
/// tracker may not know that a node is already fetching, and would give a second lease.
const SILENT_LEAST: Duration = Duration::from_millis(50);
const SILENT_MOST: Duration = Duration::from_secs(2);
/// A tracker that sends blobs to this node has at least this long. It is alive, and its answer is queued
/// behind the blobs.
const SILENT_BUSY: Duration = Duration::from_secs(1);
/// Upper bound on questions to trackers for one blob. Renewals of a lease do not count.
pub const ASKS_MAX: u32 = 6;
/// Upper bound on the nodes that one question excludes.
pub const NOT_MAX: usize = 8;

/// The input of a plan.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The node that the plan belongs to. It is never a source for itself.
    pub own: NodeId,
    /// The trackers of the blob's group, rank 1 first. Trackers that are silent now come last
    /// ([`Silence::order`]).
    pub trackers: Vec<NodeId>,
    /// The depots that should have the blob, the first choice first. Empty if there are none.
    pub depots: Vec<NodeId>,
    /// The upstream: the node that sends the most to this node now, if any. It is preferred ([`Pace::soon`]).
    pub upstream: Option<NodeId>,
    /// How long fetches take now.
    pub pace: Pace,
    /// The plan must have ended this long after it began.
    pub deadline: Duration,
}

/// How long fetches take that are not unusually slow: their p99, by tier.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// From a node that has the blob.
    pub peer: Duration,
    /// From a node that is fetching it.
    pub stream: Duration,
    /// From the depot.
    pub depot: Duration,
    /// From the origin.
    pub origin: Duration,
    /// A tracker that has not answered in this time is silent.
    pub answer: Duration,
    /// The time that everything in flight to this node needs on this node's own link. One blob of many may
    /// stall for this long although its sender is well.
    pub share: Duration,
    /// Expected lag behind our upstream: if it wants the same blob, it asks for it within this time. Zero:
    /// practically at once.
    pub soon: Duration,
}

/// A hedging step takes at most this fraction of the deadline.
const STEPS: u32 = 8;
/// The origin is the last resort when less than this fraction of the deadline is left.
const RESCUE: u32 = 3;
/// The origin is considered again after this fraction of the deadline.
const RESCUES: u32 = 30;

/// Lower bound for hedging. Less is within a scheduling delay, or a queue of a dozen blobs.
const PACE_LEAST: Duration = Duration::from_millis(25);
const PACE_MOST: Duration = Duration::from_secs(10);

/// The time per blob when a dozen share a narrow link. Used before anything is known about the link.
const SHARED: Duration = Duration::from_millis(100);

/// How long each blob in flight to this node delays a question and its answer: the time a blob needs on a
/// link of 1 Gbit/s. A queue of 100 ms on both links is common. A requester that asks the next tracker
/// because of it may get a second lease.
const BEHIND: Duration = Duration::from_millis(33);

/// Nodes in a chain are no further behind one another than this fraction of the time a blob needs on their
/// links.
const SOON: u64 = 8;
/// Waiting for less is not worthwhile, nor for more.
const SOON_LEAST: Duration = Duration::from_millis(1);
const SOON_MOST: Duration = Duration::from_millis(100);
/// How many times a plan asks again for the upstream's sake.
const PATIENCE: u32 = 3;

/// Upper bound on the blobs in flight to this node, in any calculation.
const MANY: usize = 32;

impl Pace {
    /// From measurements, while `under_way` blobs are in flight to this node.
    pub fn of(latencies: &Latencies, under_way: usize) -> Pace {
        let under_way = under_way.min(MANY) as u32;
        let least = SHARED * under_way;
        let of = |tier| latencies.of(tier).p99_or(least).clamp(PACE_LEAST, PACE_MOST);
        Pace {
            peer: of(Tier::Peer),
            stream: of(Tier::Stream),
            depot: of(Tier::Depot),
            origin: of(Tier::Origin),
            // Half as much again. Otherwise one answer in a hundred would count as late.
            answer: (latencies.answers().p99() * 3 / 2)
                .max(BEHIND * under_way)
                .clamp(SILENT_LEAST, SILENT_MOST),
            share: Duration::ZERO,
            soon: Duration::ZERO,
        }
    }

    /// Adapts the pace to a link that carries `rate` bytes a second. Everything in flight to this node shares
    /// it, whatever the sender.
    pub fn with_link_rate(self, rate: u64, under_way: usize) -> Pace {
        let shared = under_way.min(MANY) as u64 * u64::from(BLOB_MAX) * 1_000_000;
        let share = shared.checked_div(rate).map_or(Duration::ZERO, Duration::from_micros);
        let blob = u64::from(BLOB_MAX) * 1_000_000;
        let soon = blob.checked_div(rate).map_or(Duration::ZERO, |time| Duration::from_micros(time / SOON));
        let soon = if soon < SOON_LEAST { Duration::ZERO } else { soon.min(SOON_MOST) };
        Pace { share: share.min(PACE_MOST), soon, ..self }
    }

    /// Limits the pace, so that no fetch is expected to take longer than `most`.
    #[must_use]
    pub fn at_most(self, most: Duration) -> Pace {
        let of = |step: Duration| step.min(most.max(PACE_LEAST));
        let (peer, stream) = (of(self.peer), of(self.stream));
        Pace { peer, stream, depot: of(self.depot), origin: of(self.origin), ..self }
    }

    /// Adapts the pace to a first tracker that is sending blobs to this node.
    pub fn with_busy_tracker(self) -> Pace {
        Pace { answer: self.answer.max(SILENT_BUSY), ..self }
    }
}

impl From<&Latencies> for Pace {
    fn from(latencies: &Latencies) -> Pace {
        Pace::of(latencies, 0)
    }
}

/// The number of a fetch within its plan, counted from 0.
pub type FetchNo = u32;

/// Where a fetch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A node that has it.
    Peer(NodeId),
    /// A node that is fetching it. It passes the bytes on as they arrive there.
    Stream(NodeId),
    /// A depot, which may have to fetch it itself.
    Depot(NodeId),
    /// The origin.
    Origin,
}

impl Source {
    /// The node, if it is one.
    pub fn node(self) -> Option<NodeId> {
        match self {
            Source::Peer(node) | Source::Stream(node) | Source::Depot(node) => Some(node),
            Source::Origin => None,
        }
    }

    /// For [`Latencies`].
    pub fn tier(self) -> Tier {
        match self {
            Source::Peer(_) => Tier::Peer,
            Source::Stream(_) => Tier::Stream,
            Source::Depot(_) => Tier::Depot,
            Source::Origin => Tier::Origin,
        }
    }
}

/// Why a fetch was started. Fetches from the origin are counted by this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The tracker said so.
    Told,
    /// What was in flight took too long. It continues.
    Hedge,
    /// No other source was left: no tracker answered, or all named nodes failed.
    Alone,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The time of [`Plan::wake`] has come. Harmless at any other time.
    Tick,
    /// The tracker of this rank (from 0) answered.
    Answered {
        /// Which of [`Setup::trackers`].
        rank: usize,
        /// What it said about the blob.
        answer: Answer,
    },
    /// The tracker of this rank cannot be reached. There is no need to wait for it.
    Unreachable {
        /// Which.
        rank: usize,
    },
    /// Bytes of a fetch arrived.
    Progress {
        /// Which.
        fetch: FetchNo,
        /// How many of the blob's bytes it has delivered until now.
        came: u64,
    },
    /// A fetch got no bytes, but another blob from the same node did.
    Alive {
        /// Which.
        fetch: FetchNo,
    },
    /// Less than half of this node's link is in use. A slow sender is slow for a reason of its own.
    Slack,
    /// A fetch has all bytes, and they are verified.
    Arrived {
        /// Which.
        fetch: FetchNo,
    },
    /// A fetch ended without the blob: refused, cut off, wrong bytes, not there.
    Failed {
        /// Which.
        fetch: FetchNo,
    },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a tracker. Questions of several plans to the same tracker and group may be merged into one.
    Ask {
        /// Index into [`Setup::trackers`]. It comes back with the answer.
        rank: usize,
        /// The node id of that tracker.
        tracker: NodeId,
        /// For [`net::message::Ask::not`].
        not: Vec<NodeId>,
    },
    /// Start a fetch.
    Fetch {
        /// The number that its events must carry.
        fetch: FetchNo,
        /// Where.
        from: Source,
        /// For the counters.
        why: Why,
    },
    /// Stop a fetch. Nothing it brings is needed any more.
    Cancel {
        /// Which.
        fetch: FetchNo,
    },
    /// Notify a tracker soon.
    Note {
        /// Which.
        tracker: NodeId,
        /// What.
        what: What,
    },
    /// A tracker has not answered in time. For [`Silence`].
    Silent {
        /// Which.
        tracker: NodeId,
    },
    /// The bytes of this fetch are the result.
    Done {
        /// Which.
        fetch: FetchNo,
    },
    /// There is no result.
    Fail(Failure),
}

/// Why a plan ended without the blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The reader should see the origin's error.
    #[error("neither the fleet nor the origin gave the blob: the origin's own error says why")]
    Origin,
    /// The deadline has passed.
    #[error("the blob did not arrive within the deadline, from {peers} other nodes and {origin}; see `covey status` for which nodes are slow", origin = if *.origin { "the origin" } else { "not yet the origin" })]
    Deadline {
        /// Nodes that were tried.
        peers: u32,
        /// Whether the origin was.
        origin: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Failed,
}

/// A fetch that was started.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    from: Source,
    state: State,
    /// When its first byte arrived. Before that, when it was started.
    began: u64,
    /// How many bytes of the blob have arrived.
    came: u64,
    /// When its last byte arrived, or when it was started.
    heard: u64,
    /// When its node last sent anything, for this blob or another. If it never did: when the fetch was
    /// started.
    alive: u64,
    /// No byte has arrived.
    silent: bool,
    /// Whether the fetch was already stalled when the tracker was asked for another source.
    stalled: bool,
}

impl Fetch {
    /// How many microseconds the rest will take, judged by the bytes of at least `judged`.
    fn needs(&self, now: u64, judged: Duration) -> Option<u64> {
        let took = now.saturating_sub(self.began);
        let missing = u64::from(BLOB_MAX).saturating_sub(self.came);
        (took >= micros(judged)).then(|| (missing * took).checked_div(self.came)).flatten()
    }
}

/// The next hedging step, if nothing happens until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hedge {
    /// Another holder, or the tracker again.
    Peer,
    Depot,
    /// The tracker again, silent nodes excluded.
    Tracker,
    Origin,
    /// Everything has been tried.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    rank: usize,
    id: u64,
    /// When it should be renewed, if bytes arrive.
    renew: u64,
    /// When it ends unless it is renewed.
    end: u64,
    /// Whether the lease was due for renewal, but no bytes had arrived. The next bytes trigger the renewal,
    /// not the clock.
    is_quiet: bool,
}

/// A sender that would need longer than this for the rest of a blob is given up, ...
const CRAWL: Duration = Duration::from_secs(15);
/// ... or longer than this many times the link's share ([`Pace::share`]). If streams share a full link, one
/// of them may get an eighteenth of it for seconds.
const SHARES: u32 = 8;
/// A rate is known only after this time.
const JUDGED: Duration = Duration::from_secs(4);

/// If the link has room and a holder would need longer than this for the rest of a blob, the tracker is asked
/// for another ...
const LAGS: Duration = Duration::from_secs(2);
/// ... judged by what arrived in at least this time ...
const LAGGED: Duration = Duration::from_secs(1);
/// ... at most this many times.
const NUDGES: u32 = 2;

/// What is known about a tracker.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    asked: bool,
    /// Waiting for its answer until this time.
    until: Option<u64>,
    /// Whether the tracker could not be reached, or does not track the group.
    useless: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Plan {
    setup: Setup,
    end: u64,
    ranks: Vec<Rank>,
    asks: u32,
    fetches: Vec<Fetch>,
    leases: Vec<Lease>,
    /// The second holder that the tracker named.
    spare: Option<NodeId>,
    not: Vec<NodeId>,
    hedge: Hedge,
    /// When the next hedging step is due, and the p99 in which the steps are counted.
    due: u64,
    step: u64,
    /// How many hedges led to another node. The longer the plan takes, the slower the next hedge.
    rounds: u32,
    /// Until then another node has the right to fetch the blob from the origin. No hedge goes there before.
    leased: u64,
    /// When the origin is next considered as the last resort.
    rescue: u64,
    /// How many times the plan was told to wait for a node other than the upstream and asks again; when, and
    /// which rank.
    patient: u32,
    again: Option<(u64, usize)>,
    /// The tracker was asked although a fetch is in flight. Its answer counts.
    more: bool,
    /// How many times the tracker was asked because a holder lags, and when it may be asked again for that.
    nudges: u32,
    nudge: u64,
    /// The answer to that question is pending.
    nudged: bool,
    over: bool,
}

impl Plan {
    /// Begins at `now` (microseconds from any starting point) and returns the first actions.
    pub fn new(now: u64, setup: Setup) -> (Plan, Vec<Action>) {
        let setup = Setup { pace: setup.pace.at_most(setup.deadline / STEPS), ..setup };
        let ranks = vec![Rank::default(); setup.trackers.len()];
        let mut plan = Plan {
            end: now.saturating_add(micros(setup.deadline)),
            ranks,
            asks: 0,
            fetches: Vec::new(),
            leases: Vec::new(),
            spare: None,
            not: Vec::new(),
            hedge: Hedge::Nothing,
            due: u64::MAX,
            step: 0,
            rounds: 0,
            leased: 0,
            rescue: now.saturating_add(micros(setup.deadline - setup.deadline / RESCUE)),
            patient: 0,
            again: None,
            more: false,
            nudges: 0,
            nudge: 0,
            nudged: false,
            over: false,
            setup,
        };
        let mut out = Vec::new();
        plan.ask_next(now, &mut out);
        (plan, out)
    }

    /// Processes an event. `now` never goes backwards.
    pub fn handle(&mut self, now: u64, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        if self.over {
            return out;
        }
        match event {
            Event::Tick => {}
            Event::Answered { rank, answer } => self.answered(now, rank, answer, &mut out),
            Event::Unreachable { rank } => self.unreachable(now, rank, &mut out),
            Event::Progress { fetch, came } => self.progress(now, fetch, came, &mut out),
            Event::Alive { fetch } => {
                if let Some(fetch) = self.fetches.get_mut(fetch as usize) {
                    fetch.alive = now;
                }
            }
            Event::Slack => self.slack(now, &mut out),
            Event::Arrived { fetch } => self.arrived(fetch, &mut out),
            Event::Failed { fetch } => self.failed(now, fetch, &mut out),
        }
        if !self.over {
            self.tick(now, &mut out);
        }
        out
    }

    /// When [`Event::Tick`] is due at the latest. None once the plan has ended.
    pub fn wake(&self) -> Option<u64> {
        if self.over {
            return None;
        }
        let silent = self.ranks.iter().filter_map(|rank| rank.until).min();
        let renew = self.leases.iter().filter(|lease| !lease.is_quiet).map(|lease| lease.renew).min();
        let again = self.again.map(|(at, _)| at);
        let times = [Some(self.end), silent, renew, again, Some(self.due), Some(self.rescue)];
        times.into_iter().flatten().min()
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.over
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 16)
}
