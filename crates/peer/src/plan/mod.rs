//! The asker's side: whom to ask for one blob, where to fetch it, and when to try elsewhere as well.
//!
//! A [`Plan`] is a value without I/O. Its driver hands it what happened ([`Event`]) and when, and does what it says ([`Action`]); between events it
//! must call again by [`Plan::wake`]. What was tried and when is all that it holds, so that the simulation runs the same lines.
//!
//! ```text
//!             ask rank 1 ──silent──► ask rank 2 ──► ask rank 3 ──► nobody answers: depot, origin
//!                │
//!     ┌──────────┼───────────────┬────────────┐
//!   SERVE, GO   WAIT           LEASE        NotMine ─► the next rank
//!     │          │               │
//!   peer       stream          depot ─fails or p99─► origin
//!     │ p99      │ p99
//!   second     ask again
//!     │ 2 x p99  │ + 2 x p99
//!   depot      depot
//!     │ 4 x p99  │ + 4 x p99, not before the time of the WAIT
//!   ask again: not those who are silent; the answer is another node to try, or the lease
//!     │ twice as long each time, until there are no more questions
//!   origin
//! ```
//!
//! - Bytes that come hold every step back. So does a lease: who waits for a node that fetches from the origin goes there himself only when the
//!   tracker gives him the lease. A hedge that went there by itself would be one of thousands, because what is slow is slow for all who wait for it.
//!
//! - Who is told to wait for another than the one who sends to it already asks again a moment later ([`Pace::soon`]), at most [`PATIENCE`] times: nodes that
//!   stand in a row want the same blob within a moment, and it is better taken from the one ahead than from the head.
//! - A peer that fails is told of to the trackers and not asked again. If nothing else is under way the tracker is asked again, at most
//!   [`ASKS_MAX`] times; then the depot, then the origin.
//! - A peer that has sent no byte when the next one is tried is told of as well, as silent: else a node that died without a word would be
//!   named to everybody until the membership knows. It may as well be busy, so it is not taken for one that does not have the blob.
//! - One that sends this node other blobs meanwhile is neither silent nor stalled ([`Event::Alive`]): its line is full, and this blob's turn comes. To
//!   fetch it from elsewhere would be to bring it twice over a line that is full as well.
//! - Bytes that come so slowly that the rest would take far too long (`CRAWL`) hold nothing back: their sender is told of and ruled out, and the tracker
//!   asked for another at once. All blobs are taken to be of the largest size.
//! - Where this node's line has room ([`Event::Slack`]), a holder that would take seconds for the rest is one with too many to send to: the tracker is asked for another.
//!   Nobody is ruled out for that, so that no lease comes of it. All fetches fill one buffer, and what the slow one brought is not fetched again.
//! - A tracker that answers when another has already is not listened to, unless it names who sends here already and the other one's node has sent nothing yet.
//! - Whoever has sent nothing when another begins is given up: both would send the same over one line.
//! - One blob of many may stand still on a line that they share. Its sender is ruled out only after what all of them take of the line ([`Pace::share`]).
//! - A plan starts **at most one** fetch from the origin, and says why ([`Why`]): because the tracker said so, because nobody else was left, or
//!   as a hedge. The origin has its own tries and deadlines below this.
//! - It always ends: with [`Action::Done`] once, or with [`Action::Fail`] once, by the deadline at the latest. Whatever comes afterwards is ignored.

mod latencies;
mod silence;
mod steps;
#[cfg(test)]
mod tests;

use std::time::Duration;

use base::size::BLOB_MAX;

use crate::id::NodeId;
use crate::message::{Answer, What};

pub use latencies::{Latencies, Tier, Window};
pub use silence::Silence;

/// Without an answer for so long the next tracker is asked as well, or for as long as answers take, where a link is full: the next may not know
/// that somebody fetches already, and give a second lease.
const SILENT_LEAST: Duration = Duration::from_millis(50);
const SILENT_MOST: Duration = Duration::from_secs(2);
/// One that sends blobs here meanwhile has at least so long: it is there, and its answer waits behind them.
const SILENT_BUSY: Duration = Duration::from_secs(1);
/// At most so many questions to trackers for one blob; renewals of a lease do not count.
pub const ASKS_MAX: u32 = 6;
/// At most so many nodes are ruled out in a question.
pub const NOT_MAX: usize = 8;

/// What a plan is made from.
#[derive(Clone, Debug)]
pub struct Setup {
    /// This node: never sent to itself.
    pub own: NodeId,
    /// The trackers of the blob's group, rank 1 first, but those that are silent now after the others ([`Silence::order`]).
    pub trackers: Vec<NodeId>,
    /// The depots that should have the blob, the first choice first; empty where there are none.
    pub depots: Vec<NodeId>,
    /// Who sends this node most now, if anybody: rather from there once more ([`Pace::soon`]).
    pub sender: Option<NodeId>,
    /// How long fetches take now.
    pub pace: Pace,
    /// When it must have ended, after its beginning.
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
    /// What all that is on its way here takes of this node's own line: one blob of many may stand still for so long although its sender is well.
    pub share: Duration,
    /// Whoever sends to this node has asked for what this one asks for after so long, if he wants it too; zero: as good as at once.
    pub soon: Duration,
}

/// Nobody hedges before this: it is within what a scheduler's hiccup takes, or a queue of a dozen blobs.
const PACE_LEAST: Duration = Duration::from_millis(25);
const PACE_MOST: Duration = Duration::from_secs(10);

/// What a blob takes when a dozen share a line that is not wide, of each of them: before anything is known of the line.
const SHARED: Duration = Duration::from_millis(100);

/// What a question and its answer wait behind, of each blob that is on its way here: as long as a blob takes of a line of a Gbit/s. A queue of 100 ms on
/// both lines is common, and whoever asks the next tracker because of it may be given a second lease.
const BEHIND: Duration = Duration::from_millis(33);

/// Nodes in a row are no further behind one another than such a part of the time a blob takes of their lines.
const SOON: u64 = 8;
/// It is not worth waiting for less, nor for more.
const SOON_LEAST: Duration = Duration::from_millis(1);
const SOON_MOST: Duration = Duration::from_millis(100);
/// So often.
const PATIENCE: u32 = 3;

/// More blobs than these are not on their way here at a time, in any reckoning.
const MANY: usize = 32;

impl Pace {
    /// From what was measured, while so many blobs are on their way to this node.
    pub fn of(latencies: &Latencies, under_way: usize) -> Pace {
        let under_way = under_way.min(MANY) as u32;
        let least = SHARED * under_way;
        let of = |tier| latencies.of(tier).p99_or(least).clamp(PACE_LEAST, PACE_MOST);
        Pace {
            peer: of(Tier::Peer),
            stream: of(Tier::Stream),
            depot: of(Tier::Depot),
            origin: of(Tier::Origin),
            // Half as much again: else one answer of a hundred would be too late for it.
            answer: (latencies.answers().p99() * 3 / 2)
                .max(BEHIND * under_way)
                .clamp(SILENT_LEAST, SILENT_MOST),
            share: Duration::ZERO,
            soon: Duration::ZERO,
        }
    }

    /// The same on a line that brings so many bytes a second: all that is on its way here shares it, whoever sends it.
    pub fn with_line(self, rate: u64, under_way: usize) -> Pace {
        let shared = under_way.min(MANY) as u64 * u64::from(BLOB_MAX) * 1_000_000;
        let share = shared.checked_div(rate).map_or(Duration::ZERO, Duration::from_micros);
        let blob = u64::from(BLOB_MAX) * 1_000_000;
        let soon = blob.checked_div(rate).map_or(Duration::ZERO, |time| Duration::from_micros(time / SOON));
        let soon = if soon < SOON_LEAST { Duration::ZERO } else { soon.min(SOON_MOST) };
        Pace { share: share.min(PACE_MOST), soon, ..self }
    }

    /// The same where the first tracker is sending blobs here.
    pub fn with_busy_tracker(self) -> Pace {
        Pace { answer: self.answer.max(SILENT_BUSY), ..self }
    }
}

impl From<&Latencies> for Pace {
    fn from(latencies: &Latencies) -> Pace {
        Pace::of(latencies, 0)
    }
}

/// Which fetch of a plan: counted from 0.
pub type FetchNo = u32;

/// Where a fetch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A node that has it.
    Peer(NodeId),
    /// A node that is fetching it: its bytes come as they arrive there.
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
    /// What was under way took too long; it goes on.
    Hedge,
    /// Nobody else was left: no tracker answered, or all who were named failed.
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
        /// What it said of the blob.
        answer: Answer,
    },
    /// The tracker of this rank cannot be reached: no need to wait for it.
    Unreachable {
        /// Which.
        rank: usize,
    },
    /// Bytes of a fetch arrived.
    Progress {
        /// Which.
        fetch: FetchNo,
        /// How many of the blob's, until now.
        came: u64,
    },
    /// None came of this fetch, but some of another blob from the same node.
    Alive {
        /// Which.
        fetch: FetchNo,
    },
    /// What comes here takes less than half of this node's line: who sends slowly is slow himself.
    Slack,
    /// A fetch has all bytes, and they are right.
    Arrived {
        /// Which.
        fetch: FetchNo,
    },
    /// A fetch ended without them: refused, cut, wrong bytes, not there.
    Failed {
        /// Which.
        fetch: FetchNo,
    },
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a tracker. Questions of several plans to the same tracker and group may travel as one.
    Ask {
        /// Which of [`Setup::trackers`]; given back with its answer.
        rank: usize,
        /// That one.
        tracker: NodeId,
        /// For [`crate::message::Ask::not`].
        not: Vec<NodeId>,
    },
    /// Start a fetch.
    Fetch {
        /// To be named in its events.
        fetch: FetchNo,
        /// Where.
        from: Source,
        /// For the counters.
        why: Why,
    },
    /// Stop a fetch: nothing of it is wanted any more.
    Cancel {
        /// Which.
        fetch: FetchNo,
    },
    /// Tell a tracker, soon.
    Note {
        /// Which.
        tracker: NodeId,
        /// What.
        what: What,
    },
    /// A tracker has not answered in time: something for [`Silence`].
    Silent {
        /// Which.
        tracker: NodeId,
    },
    /// The bytes of this fetch are the answer.
    Done {
        /// Which.
        fetch: FetchNo,
    },
    /// There are none.
    Fail(Failure),
}

/// Why a plan ended without the blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The origin's error is what the reader should see.
    #[error("neither the fleet nor the origin gave the blob: the origin's own error says why")]
    Origin,
    /// The time was over.
    #[error("the blob did not arrive within the deadline, from {peers} other nodes and {origin}; see `covey status` for who is slow", origin = if *.origin { "the origin" } else { "not yet the origin" })]
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
    /// When its first byte came.
    began: u64,
    /// So many bytes of the blob have come.
    came: u64,
    /// When its last byte came, or when it was started.
    heard: u64,
    /// When its node last sent anything, of this blob or another; when it was started, if it never did.
    alive: u64,
    /// No byte has come.
    silent: bool,
    /// It stood still already when the tracker was asked for another.
    stalled: bool,
}

impl Fetch {
    /// Microseconds that the rest will take, by what has come for at least `judged`.
    fn needs(&self, now: u64, judged: Duration) -> Option<u64> {
        let took = now.saturating_sub(self.began);
        let missing = u64::from(BLOB_MAX).saturating_sub(self.came);
        (took >= micros(judged)).then(|| (missing * took).checked_div(self.came)).flatten()
    }
}

/// What is next if nothing happens: a step of the hedge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hedge {
    /// Another holder, or the tracker once more.
    Peer,
    Depot,
    /// The tracker once more, without those who are silent.
    Tracker,
    Origin,
    /// All that could be tried is.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    rank: usize,
    id: u64,
    /// When it should be renewed, if bytes come.
    renew: u64,
    /// When it ends if it is not.
    end: u64,
    /// It should have been renewed, and no bytes came: the next ones do it, and no time.
    is_quiet: bool,
}

/// Who would need longer than this for the rest of a blob is not waited for ...
const CRAWL: Duration = Duration::from_secs(15);
/// ... nor than so many times what the line's share takes: where streams share a full link, one may have an eighteenth of it for seconds.
const SHARES: u32 = 8;
/// A rate is known only after so long.
const JUDGED: Duration = Duration::from_secs(4);

/// Where the line has room, the tracker is asked for another than who needs longer than this for the rest of a blob ...
const LAGS: Duration = Duration::from_secs(2);
/// ... by what came in so long at least ...
const LAGGED: Duration = Duration::from_secs(1);
/// ... so many times.
const NUDGES: u32 = 2;

/// What is known of a tracker.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    asked: bool,
    /// Waited for until then.
    until: Option<u64>,
    /// It could not be reached, or does not track the group.
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
    /// The second holder that was named.
    spare: Option<NodeId>,
    not: Vec<NodeId>,
    hedge: Hedge,
    /// When the next step of the hedge is due, and the p99 that its steps are counted in.
    due: u64,
    step: u64,
    /// So many hedges led to another node: the longer it takes, the slower the next.
    rounds: u32,
    /// Until then somebody else has the right to fetch it from the origin: no hedge goes there before.
    leased: u64,
    /// So often it was told to wait for somebody else than who sends to it, and asks again; when, and whom.
    patient: u32,
    again: Option<(u64, usize)>,
    /// The tracker was asked although something is under way: its answer counts.
    more: bool,
    /// So often it was asked because somebody lags, and when it may be again.
    nudges: u32,
    nudge: u64,
    /// Its answer to that is still to come.
    nudged: bool,
    over: bool,
}

impl Plan {
    /// Begins at `now` (microseconds from any beginning): what to do first.
    pub fn new(now: u64, setup: Setup) -> (Plan, Vec<Action>) {
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

    /// Takes in what happened; `now` never goes backwards.
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

    /// When [`Event::Tick`] is due at the latest; none once it has ended.
    pub fn wake(&self) -> Option<u64> {
        if self.over {
            return None;
        }
        let silent = self.ranks.iter().filter_map(|rank| rank.until).min();
        let renew = self.leases.iter().filter(|lease| !lease.is_quiet).map(|lease| lease.renew).min();
        let again = self.again.map(|(at, _)| at);
        [Some(self.end), silent, renew, again, Some(self.due)].into_iter().flatten().min()
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.over
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 16)
}
