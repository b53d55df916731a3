//! The fetch driver: brings one blob here. It does what the [`Plan`] says, with threads, connections and the
//! clock.
//!
//! The thread that wants the blob runs the plan. Questions and fetches from nodes are futures of the
//! transport. A fetch from the origin has its own thread. All of them report to the plan's thread through one
//! channel. All fetches from nodes fill the same buffer, so what a slow one has delivered is not requested
//! again from the next.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use base::phase::{self, Phase};
use base::size::BLOB_MAX;
use base::{BlobId, Deadline};
use blob::source::Onto;
use blob::{BlobError, Buffer, Part, Sums};
use fetch::{Arriving, WholeLead};
use net::id::{NodeId, Role};
use net::message::{Answer, Ask, Group, Note};
use net::transport::{Fail, Peer};
use tokio::sync::oneshot;

use super::Inner;
use super::counters::Counters;
use super::inflow::Inflow;
use super::questions::{COMPANY, Key, Together};
use crate::plan::{Action, Event, Failure, FetchNo, Pace, Plan, Setup, Source, Tier};

/// The time limit of a question. The plan asks another tracker long before.
const ASKING: Duration = Duration::from_secs(2);
/// A node that a tracker names is known here within this time, or is gone. It is several rounds of gossip.
const INTRODUCED: Duration = Duration::from_secs(1);
/// While fetches run, the plan is told at this interval whether bytes arrive.
const LOOK: Duration = Duration::from_millis(20);
/// While only the origin is sending, the plan is told at this interval whether bytes arrive. Only leases
/// depend on it, and they are longer.
const LOOK_FAR: Duration = Duration::from_millis(100);
/// The time limit of a fetch from a node. A node that needs longer counts as gone.
const FETCHING: Duration = Duration::from_secs(30);
/// How many depots are tried for a blob.
const DEPOTS: usize = 2;

/// A blob's sums and bytes.
pub(super) type Whole = (Sums, Buffer);

/// The result of something that was started.
pub(super) enum News {
    Event(Event),
    /// None: `arriving` has all of it.
    Origin(FetchNo, Result<Option<Whole>, BlobError>),
}

/// A plan that waits for a tracker's answer.
pub(super) struct Asking {
    rank: usize,
    news: Sender<News>,
}

impl Asking {
    fn hears(&self, answer: Option<Answer>) {
        let rank = self.rank;
        let event = answer.map_or(Event::Unreachable { rank }, |answer| Event::Answered { rank, answer });
        // The receiver's plan may have ended.
        let _ = self.news.send(News::Event(event));
    }
}

/// A fetch that was started.
struct Begun {
    from: Source,
    at: Instant,
    running: bool,
    /// Dropping it ends the fetch.
    cancel: Option<oneshot::Sender<()>>,
    /// The bytes that have come from there, and how many of them the plan knows about.
    came: Arc<AtomicU64>,
    reported: u64,
    /// When its node last sent anything, as far as the plan knows.
    alive: u64,
}

/// The fetch of one blob.
pub(super) struct Run {
    inner: Arc<Inner>,
    id: BlobId,
    group: Group,
    arriving: Arc<Arriving>,
    news: (Sender<News>, Receiver<News>),
    fetches: HashMap<FetchNo, Begun>,
    origin_error: Option<BlobError>,
    /// The blob from the origin, if wrong sums from a node keep it out of `arriving`.
    origin_copy: Option<Whole>,
    /// A tracker named a node that has it or is about to.
    others: bool,
    /// What the time is spent on from now on, for tracing.
    phase: Option<phase::Scope>,
    end: Option<Result<Source, BlobError>>,
}

impl Inner {
    /// A tracker did not answer in time.
    pub(super) fn not_heard(&self, tracker: NodeId) {
        Counters::one(&self.counters.asks_late);
        self.silence.lock().silent(self.now(), tracker);
    }

    /// A node misbehaved. It is marked as suspect, so that it is not asked again at once.
    pub(super) fn doubt(&self, node: NodeId, fail: &Fail) {
        if fail.is_about_the_node()
            && let Some(members) = self.members.get()
        {
            members.suspect(node);
        }
    }

    /// The time that the caller's request still has. A prefetch has none, and gets the fleet's.
    pub(super) fn left(&self) -> Duration {
        Deadline::current().within(self.deadline).left()
    }

    /// The source as it is counted and recorded. A tracker that is a depot sends its blobs like any node, but
    /// counts as the depot.
    fn by_role(&self, from: Source) -> Source {
        match from.node() {
            Some(node) if self.is_depot(node) => Source::Depot(node),
            _ => from,
        }
    }

    pub(super) fn is_depot(&self, node: NodeId) -> bool {
        self.placed.lock().placement().is_depot(node)
    }

    /// Brings a whole blob here for the leader of its fetch, from whatever source the fleet names. Other
    /// nodes can be served from its buffer from before the first question on: as soon as this node has a
    /// lease, they are told to wait for it.
    pub(super) fn whole(self: &Arc<Inner>, lead: &WholeLead) -> Result<Whole, BlobError> {
        let _phase = phase::enter(Phase::Peer);
        let (id, arriving) = (lead.id(), lead.buffer());
        let end = Run::new(self, id, &arriving).drive();
        let (from, origin_copy, others) = end.inspect_err(|_| Counters::one(&self.counters.lost))?;
        let from = self.by_role(from);
        // If a blob came from the origin although a node here has it and was slow, this node need not keep it
        // for the zone.
        let tier = if from == Source::Origin && others { Tier::Peer } else { from.tier() };
        self.origins.lock().put(*id, tier);
        let here = || arriving.into_parts().map(|(sums, bytes)| ((*sums).clone(), bytes));
        let whole = origin_copy.or_else(here).ok_or_else(|| not_here(id))?;
        self.counters.came(from, whole.1.len() as u64);
        Ok(whole)
    }

    /// Brings a whole blob here from the origin, without asking other nodes. It is passed on as it arrives.
    fn whole_from_origin(&self, lead: &WholeLead) -> Result<Whole, BlobError> {
        let _phase = phase::enter(Phase::Origin);
        let (id, arriving) = (lead.id(), lead.buffer());
        let onto: Arc<dyn Onto> = Arc::new(Inflow::new(&arriving, &Arc::default()));
        match self.origin.fetch_onto(id, &onto)? {
            Some(whole) => Ok(whole),
            None => {
                let (sums, bytes) = arriving.into_parts().ok_or_else(|| not_here(id))?;
                Ok(((*sums).clone(), bytes))
            }
        }
    }

    /// Does a fetch that this node leads for other nodes, or to keep a copy. A depot asks the origin only:
    /// other nodes are asked before a depot is.
    pub(super) fn lead_for_others(self: &Arc<Inner>, mut lead: WholeLead) -> Result<Arc<Part>, BlobError> {
        lead.reserve(u64::from(BLOB_MAX))?;
        let whole = match self.role {
            Role::Depot => self.whole_from_origin(&lead),
            Role::Node => self.whole(&lead),
        };
        lead.finish(whole.map(|(sums, bytes)| Part { sums, offset: 0, bytes }))
    }
}

fn not_here(id: &BlobId) -> BlobError {
    BlobError::Unavailable(format!("{id} was said to be here and is not: this is a defect"))
}

impl Run {
    pub(super) fn new(inner: &Arc<Inner>, id: &BlobId, arriving: &Arc<Arriving>) -> Run {
        Run {
            inner: Arc::clone(inner),
            id: *id,
            group: inner.groups.of(id),
            arriving: Arc::clone(arriving),
            news: channel(),
            fetches: HashMap::new(),
            origin_error: None,
            origin_copy: None,
            others: false,
            phase: None,
            end: None,
        }
    }

    fn drive(mut self) -> Result<(Source, Option<Whole>, bool), BlobError> {
        let setup = {
            let mut trackers = self.inner.trackers(self.group);
            self.inner.silence.lock().order(self.inner.now(), &mut trackers);
            let mut depots = self.inner.placed.lock().placement().depots(&self.id, DEPOTS);
            depots.retain(|depot| *depot != self.inner.own);
            let under_way = self.inner.table.arriving();
            let mut pace = Pace::of(&self.inner.latencies.lock(), under_way)
                .with_link_rate(self.inner.capacity.rate(), under_way);
            if trackers
                .first()
                .is_some_and(|tracker| self.inner.activity.is_fresh(self.inner.now(), *tracker))
            {
                pace = pace.with_busy_tracker();
            }
            let upstream = self.inner.upstream();
            let deadline = self.inner.left();
            Setup { own: self.inner.own, trackers, depots, upstream, pace, deadline }
        };
        let trackers = setup.trackers.clone();
        let (mut plan, actions) = Plan::new(self.inner.now(), setup);
        self.act(actions, &trackers);
        loop {
            if let Some(end) = self.end.take() {
                return end.map(|from| (from, self.origin_copy.take(), self.others));
            }
            let news = self.next(&plan);
            for event in self.look() {
                let actions = plan.handle(self.inner.now(), event);
                self.act(actions, &trackers);
            }
            let event = match news {
                Some(News::Event(event)) => self.note(event),
                Some(News::Origin(fetch, result)) => self.origin_said(fetch, result),
                None => Event::Tick,
            };
            let actions = plan.handle(self.inner.now(), event);
            self.act(actions, &trackers);
        }
    }

    /// Waits for news, but no longer than until the plan's next step.
    fn next(&self, plan: &Plan) -> Option<News> {
        let now = self.inner.now();
        let wake = plan.wake().map_or(LOOK, |wake| Duration::from_micros(wake.saturating_sub(now)));
        let running = self.fetches.values().filter(|fetch| fetch.running);
        let look = running.map(|fetch| if fetch.from == Source::Origin { LOOK_FAR } else { LOOK }).min();
        let wait = look.map_or(wake, |look| wake.min(look));
        self.news.1.recv_timeout(wait).ok()
    }

    /// The events about received bytes: whether some have arrived, and whether this node's link has room for
    /// more.
    pub(super) fn look(&mut self) -> Vec<Event> {
        let now = self.inner.now();
        let mut events: Vec<Event> = Vec::new();
        for (&fetch, begun) in self.fetches.iter_mut().filter(|(_, begun)| begun.running) {
            let came = begun.came.load(Ordering::Relaxed);
            let before = std::mem::replace(&mut begun.reported, came);
            let more = before != came;
            if let Some(rate) = self.inner.capacity.came(now, came.saturating_sub(before)) {
                self.inner.net().inspect(|net| net.carries(rate));
            }
            if let Some(node) = begun.from.node().filter(|_| more) {
                self.inner.activity.heard(now, node, came.saturating_sub(before));
            }
            let heard = begun.from.node().and_then(|node| self.inner.activity.last(node)).unwrap_or(0);
            let alive = std::mem::replace(&mut begun.alive, heard) != heard;
            if more {
                events.push(Event::Progress { fetch, came });
            } else if alive {
                events.push(Event::Alive { fetch });
            }
        }
        if self.inner.capacity.is_slack() {
            events.push(Event::Slack);
        }
        events
    }

    fn note(&mut self, event: Event) -> Event {
        if let Event::Answered { answer, .. } = event {
            // LEASE says that no node has it, or that no holder can be reached.
            self.others = matches!(answer, Answer::Serve | Answer::Go { .. } | Answer::Wait { .. })
                || self.others && !matches!(answer, Answer::Lease { .. });
        }
        self.note_end(event)
    }

    /// Records the end of a fetch.
    fn note_end(&mut self, event: Event) -> Event {
        let (fetch, arrived) = match event {
            Event::Arrived { fetch } => (fetch, true),
            Event::Failed { fetch } => (fetch, false),
            _ => return event,
        };
        if let Some(begun) = self.fetches.get_mut(&fetch) {
            begun.running = false;
            match arrived {
                true => self.inner.latencies.lock().record(begun.from.tier(), begun.at.elapsed_now()),
                false => Counters::one(&self.inner.counters.failed),
            }
        }
        event
    }

    fn origin_said(&mut self, fetch: FetchNo, result: Result<Option<Whole>, BlobError>) -> Event {
        let complete = |whole: Option<Whole>| {
            let Some((_, bytes)) = whole else { return Ok(None) };
            let Err((fail, bytes)) = self.arriving.complete(bytes) else { return Ok(None) };
            // The origin is trusted only if the hash matches the id. Then the sums from the node must be
            // wrong.
            let sums = (bytes.len() <= BLOB_MAX as usize).then(|| Sums::of(&bytes));
            match sums.filter(|sums| sums.belong_to(&self.id)) {
                Some(sums) => Ok(Some((sums, bytes))),
                None => Err(BlobError::Damaged { id: self.id, what: fail.to_string() }),
            }
        };
        match result.and_then(complete) {
            Ok(origin_copy) => {
                self.origin_copy = origin_copy;
                self.note_end(Event::Arrived { fetch })
            }
            Err(error) => {
                self.origin_error = Some(error);
                self.note_end(Event::Failed { fetch })
            }
        }
    }

    fn act(&mut self, actions: Vec<Action>, trackers: &[NodeId]) {
        for action in actions {
            match action {
                Action::Ask { rank, tracker, not } => self.ask(rank, tracker, not),
                Action::Fetch { fetch, from, why } => {
                    self.inner.counters.begins(from, why);
                    self.fetch(fetch, from);
                }
                Action::Cancel { fetch } => {
                    if let Some(begun) = self.fetches.get_mut(&fetch) {
                        begun.running = false;
                        begun.cancel = None;
                    }
                }
                Action::Note { tracker, what } => {
                    self.inner.note(tracker, Note { group: self.group, blob: self.id, what });
                }
                Action::Silent { tracker } => self.inner.not_heard(tracker),
                Action::Done { fetch } => {
                    let from = self.fetches.get(&fetch).map_or(Source::Origin, |begun| begun.from);
                    self.end = Some(Ok(from));
                }
                Action::Fail(failure) => self.end = Some(Err(self.error(failure))),
            }
        }
        debug_assert!(trackers.len() <= crate::placement::TRACKERS);
    }

    fn error(&mut self, failure: Failure) -> BlobError {
        match self.origin_error.take() {
            Some(error) => error,
            None => BlobError::Unavailable(failure.to_string()),
        }
    }

    fn tell(&self, event: Event) {
        // The receiver lives as long as `self`.
        let _ = self.news.0.send(News::Event(event));
    }

    fn ask(&self, rank: usize, tracker: NodeId, not: Vec<NodeId>) {
        let inner = &self.inner;
        if tracker == inner.own {
            let (group, blobs, backlog) = (self.group, vec![self.id], inner.backlog());
            let upstream = inner.upstream();
            let ask = Ask { group, blobs, backlog, not, sender: upstream, part: false };
            // A node asks only for blobs that it does not have.
            let answers = inner.tracker.lock().ask(inner.now(), inner.own, &ask, &|_| false);
            return self.tell(match answers.first() {
                Some(answer) => Event::Answered { rank, answer: *answer },
                None => Event::Unreachable { rank },
            });
        }
        let key = Key { tracker, group: self.group, not };
        let who = Asking { rank, news: self.news.0.clone() };
        if let Some(together) = inner.questions.ask(&key, self.id, who) {
            inner.send_questions(key, together);
        }
    }

    fn fetch(&mut self, fetch: FetchNo, from: Source) {
        let at = base::time::monotonic();
        let alive = from.node().and_then(|node| self.inner.activity.last(node)).unwrap_or(0);
        let mut begun =
            Begun { from, at, running: true, cancel: None, came: Arc::default(), reported: 0, alive };
        match from.node() {
            None => {
                self.phase = Some(phase::enter(Phase::Origin));
                self.fetch_from_origin(fetch, &begun.came);
            }
            Some(node) => {
                let (cancel, cancelled) = oneshot::channel();
                begun.cancel = Some(cancel);
                self.fetch_from(fetch, node, &begun.came, cancelled);
            }
        }
        self.fetches.insert(fetch, begun);
    }

    fn fetch_from_origin(&self, fetch: FetchNo, came: &Arc<AtomicU64>) {
        let (sender, origin, id) = (self.news.0.clone(), Arc::clone(&self.inner.origin), self.id);
        let onto: Arc<dyn Onto> = Arc::new(Inflow::new(&self.arriving, came));
        let work = move || {
            let _ = sender.send(News::Origin(fetch, origin.fetch_onto(&id, &onto)));
        };
        if let Err(error) = base::thread::spawn("covey-fetch", work) {
            let _ = self.news.0.send(News::Origin(fetch, Err(error.into())));
        }
    }

    fn fetch_from(
        &self,
        fetch: FetchNo,
        node: NodeId,
        came: &Arc<AtomicU64>,
        cancelled: oneshot::Receiver<()>,
    ) {
        let inner = &self.inner;
        let Some(net) = inner.net() else {
            return self.tell(Event::Failed { fetch });
        };
        let (sender, inner, arriving) = (self.news.0.clone(), Arc::clone(inner), Arc::clone(&self.arriving));
        let (asked, came) = (net.clone(), Arc::clone(came));
        net.spawn(async move {
            let call = async {
                match inner.introduced(node).await {
                    Some(peer) => asked.fetch_counted(peer, &arriving, &came, FETCHING).await,
                    None => Err(Fail::Missing),
                }
            };
            let result = tokio::select! {
                result = call => result,
                _ = cancelled => return,
            };
            drop(arriving);
            let event = match result {
                Ok(()) => Event::Arrived { fetch },
                Err(fail) => {
                    inner.doubt(node, &fail);
                    Event::Failed { fetch }
                }
            };
            let _ = sender.send(News::Event(event));
        });
    }
}

impl Inner {
    /// Returns this node's upstream.
    fn upstream(&self) -> Option<NodeId> {
        self.activity.upstream(self.now(), self.capacity.rate())
    }

    /// The address of a node that a tracker has named. The node may have joined a moment ago, and the tracker
    /// may know it before this node does. If that counted as a failure, the named node would be excluded, and
    /// this node would get a second lease for a blob that is being fetched.
    async fn introduced(&self, node: NodeId) -> Option<Peer> {
        self.introduced_within(node, INTRODUCED).await
    }

    /// Returns the address of a node that a tracker has named, and waits for at most `limit` until it is
    /// known.
    pub(super) async fn introduced_within(&self, node: NodeId, limit: Duration) -> Option<Peer> {
        let until = base::time::monotonic() + limit;
        loop {
            let known = self.members.get().is_some_and(|members| members.roster().get(node).is_some());
            if known || base::time::monotonic() >= until {
                return self.peer(node);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    pub(super) fn backlog(&self) -> u16 {
        self.net().map_or(0, |net| net.backlog())
    }

    /// Sends a merged question, and afterwards those that waited for its end.
    fn send_questions(self: &Arc<Inner>, key: Key, together: Together<Asking>) {
        let (Some(net), Some(peer)) = (self.net(), self.peer(key.tracker)) else {
            let mut left = Some(together);
            while let Some(together) = left {
                together.iter().for_each(|(_, who)| who.hears(None));
                left = self.questions.ended(&key);
            }
            return;
        };
        Counters::one(&self.counters.asks);
        let blobs = together.iter().map(|(blob, _)| *blob).collect();
        let (backlog, upstream) = (self.backlog(), self.upstream());
        let ask =
            Ask { group: key.group, blobs, backlog, not: key.not.clone(), sender: upstream, part: false };
        let begun = base::time::monotonic();
        let call = net.ask(peer, &ask, ASKING);
        let inner = Arc::clone(self);
        net.spawn(async move {
            let mut call = std::pin::pin!(call);
            let result = match tokio::time::timeout(COMPANY, &mut call).await {
                Ok(result) => result,
                Err(_) => {
                    if let Some(others) = inner.questions.is_slow(&key) {
                        inner.send_questions(key.clone(), others);
                    }
                    call.await
                }
            };
            let answers = match result {
                Ok(answers) => {
                    inner.silence.lock().answered(&key.tracker);
                    inner.latencies.lock().answered(begun.elapsed_now());
                    answers
                }
                Err(fail) => {
                    inner.doubt(key.tracker, &fail);
                    Vec::new()
                }
            };
            for (at, (_, who)) in together.iter().enumerate() {
                who.hears(answers.get(at).copied());
            }
            if let Some(others) = inner.questions.ended(&key) {
                inner.send_questions(key, others);
            }
        });
    }
}

/// The time since an instant, by the clock of `base::time`.
trait ElapsedNow {
    fn elapsed_now(&self) -> Duration;
}

impl ElapsedNow for Instant {
    fn elapsed_now(&self) -> Duration {
        base::time::monotonic().saturating_duration_since(*self)
    }
}

/// The node to ask, with its address.
pub(super) fn peer(address: std::net::SocketAddr, node: NodeId) -> Peer {
    Peer { address, node: Some(node) }
}
