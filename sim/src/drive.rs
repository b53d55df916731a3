//! What a node does with its plans: it sends their questions, starts their fetches, and sends their notes.

use std::time::Duration;

use cache::residency::Cost;
use fleet::plan::{Action, Event as Happened, Failure, Pace, Plan, Setup, Source, Tier, Why};
use net::id::NodeId;
use net::message::{Answer, Ask, NOTES_MAX, Note, What};

use crate::model::{BLOB, GATHER, GATHER_GONE, HALF_TRIP, blob_id, blob_no, node_id, node_no};
use crate::world::{Event, Job, Question, World};

/// How long a reader waits.
const DEADLINE: Duration = Duration::from_secs(60);
/// How many depots are tried for a blob.
const DEPOTS: usize = 2;
/// A reader that got an error tries again after this time.
const AGAIN: u64 = 100_000;

/// The cost of fetching a blob again, as a node records it. A blob from a neighbour can come from a neighbour
/// again. If a blob came from the origin although a node here has it and was slow, this node need not keep it
/// for the zone.
fn cost(from: Source, others: bool) -> Cost {
    match from.tier() {
        Tier::Peer | Tier::Stream => Cost::Peer,
        Tier::Depot => Cost::Depot,
        Tier::Origin if others => Cost::Peer,
        Tier::Origin => Cost::Origin,
    }
}

impl World {
    /// A node wants a blob that it does not have.
    pub fn begin(&mut self, no: u32, blob: u32) {
        let (mut trackers, depots) = self.whom(no, blob);
        let now = self.now;
        let node = &mut self.nodes[no as usize];
        if !node.alive || node.jobs.contains_key(&blob) || node.cache.has(blob) {
            return;
        }
        node.silence.order(now, &mut trackers);
        let under_way = node.jobs.len() + 1;
        let mut pace = Pace::of(&node.latencies, under_way).with_link_rate(node.capacity.rate(), under_way);
        let sends = |id: &NodeId| node.activity.is_fresh(now, *id) || node.receives_from(now, node_no(id));
        if trackers.first().is_some_and(sends) {
            pace = pace.with_busy_tracker();
        }
        let upstream = node.upstream(now);
        let setup = Setup { own: node_id(no), trackers, depots, upstream, pace, deadline: DEADLINE };
        let (plan, actions) = Plan::new(now, setup);
        let (flows, waiters, children) = (Vec::new(), Vec::new(), Vec::new());
        let job = Job { plan, begun: now, flows, waiters, children, others: false };
        node.jobs.insert(blob, job);
        self.table_begins(no, blob);
        self.act(no, blob, actions);
    }

    /// The trackers and the depots that a node has for a blob. A depot fetches what it lacks only from the
    /// origin. With a table of its own, a node is its own tracker.
    fn whom(&mut self, no: u32, blob: u32) -> (Vec<NodeId>, Vec<NodeId>) {
        if self.is_depot(no) {
            return (Vec::new(), Vec::new());
        }
        let trackers = match self.gossips() {
            true => vec![node_id(no)],
            false => {
                let group = self.group(blob);
                self.trackers(group).into_iter().map(node_id).collect()
            }
        };
        (trackers, self.placed.placement().depots(&blob_id(blob), DEPOTS))
    }

    /// Passes an event to a plan.
    pub fn tell_plan(&mut self, no: u32, blob: u32, happened: Happened) {
        let now = self.now;
        let seen = if matches!(happened, Happened::Tick) { self.look(no, blob) } else { Vec::new() };
        let Some(job) = self.nodes[no as usize].jobs.get_mut(&blob) else { return };
        if let Happened::Answered { answer, .. } = happened {
            // As in a node: LEASE says that no node has it, or that no holder can be reached.
            job.others = matches!(answer, Answer::Serve | Answer::Go { .. } | Answer::Wait { .. })
                || job.others && !matches!(answer, Answer::Lease { .. });
        }
        let mut actions = Vec::new();
        for event in seen.into_iter().chain([happened]) {
            actions.extend(job.plan.handle(now, event));
        }
        self.act(no, blob, actions);
    }

    /// The events about bytes for a plan whose time has come: which fetches deliver some, whose nodes send
    /// other blobs, and whether the link has room for more.
    fn look(&self, no: u32, blob: u32) -> Vec<Happened> {
        let (now, node) = (self.now, &self.nodes[no as usize]);
        let Some(job) = node.jobs.get(&blob) else { return Vec::new() };
        let mut events = Vec::new();
        for (fetch, flow) in job.flows.iter().enumerate().filter(|(_, flow)| flow.open) {
            let fetch = fetch as u32;
            if let Some((first, last)) = flow.line.filter(|(first, _)| *first <= now) {
                let came = BLOB * (now - first).max(1) / (last - first).max(1);
                events.push(Happened::Progress { fetch, came: came.clamp(1, BLOB) });
            } else if flow.source.node().is_some_and(|server| node.receives_from(now, node_no(&server))) {
                events.push(Happened::Alive { fetch });
            }
        }
        if node.capacity.is_slack() {
            events.push(Happened::Slack);
        }
        events
    }

    fn act(&mut self, no: u32, blob: u32, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Ask { rank, tracker, not } => {
                    let not = not.iter().map(node_no).collect();
                    match self.gossips() {
                        true => self.at(self.now, Event::LookUp(no, rank, blob, not)),
                        false => self.questions.push((no, rank, node_no(&tracker), blob, not)),
                    }
                }
                Action::Fetch { fetch, from, why } => {
                    self.count(no, from, why);
                    self.start(no, blob, fetch, from);
                }
                Action::Cancel { fetch } => self.cancel(no, blob, fetch),
                Action::Note { tracker, what } => {
                    let tracker = node_no(&tracker);
                    // A lease that is given back, or a node that did not deliver. It is urgent, but waits
                    // like all notes.
                    self.note(no, tracker, blob, what);
                }
                Action::Silent { tracker } => {
                    let now = self.now;
                    self.nodes[no as usize].silence.silent(now, tracker);
                }
                Action::Done { fetch } => self.done(no, blob, fetch),
                Action::Fail(failure) => self.gave_up(no, blob, failure),
            }
        }
        self.set_timer(no, blob);
    }

    fn count(&mut self, no: u32, from: Source, why: Why) {
        let depot = self.is_depot(no);
        let count = match (from, why) {
            (Source::Origin, _) if depot => &mut self.tally.filled,
            (Source::Origin, Why::Told) => &mut self.tally.told,
            (Source::Origin, Why::Alone) => &mut self.tally.alone,
            (Source::Origin, Why::Hedge) => &mut self.tally.hedged,
            (_, Why::Hedge) => &mut self.tally.peer_hedges,
            _ => return,
        };
        *count += 1;
    }

    fn set_timer(&mut self, no: u32, blob: u32) {
        let node = &mut self.nodes[no as usize];
        let wake = node.jobs.get(&blob).and_then(|job| job.plan.wake());
        if let Some(wake) = wake.filter(|wake| *wake < node.timer) {
            node.timer = wake;
            self.at(wake, Event::Timer(no));
        }
    }

    /// Calls the plans whose time has come.
    pub fn timer(&mut self, no: u32) {
        let now = self.now;
        let node = &mut self.nodes[no as usize];
        if node.timer != now {
            return;
        }
        node.timer = u64::MAX;
        let wakes: Vec<(u32, u64)> =
            node.jobs.iter().filter_map(|(blob, job)| Some((*blob, job.plan.wake()?))).collect();
        for (blob, wake) in &wakes {
            if *wake <= now {
                self.tell_plan(no, *blob, Happened::Tick);
            } else {
                self.set_timer(no, *blob);
            }
        }
    }

    /// The blob is here and stored.
    fn done(&mut self, no: u32, blob: u32, fetch: u32) {
        let (now, counted, same) = (self.now, self.now >= self.counted_from, self.model.same_cost);
        let node = &mut self.nodes[no as usize];
        let Some(job) = node.jobs.remove(&blob) else { return };
        let from = job.flows.get(fetch as usize).map_or(Source::Origin, |flow| flow.source);
        let cost = if same { Cost::Origin } else { cost(from, job.others) };
        let evicted = node.cache.keep(blob, cost, now);
        let depot = self.is_depot(no);
        if counted && !depot {
            self.tally.took.push(u32::try_from(now - job.begun).unwrap_or(u32::MAX));
        }
        for waiter in job.waiters {
            self.at(now, Event::Flow(waiter));
        }
        // A depot notifies no tracker: nodes find it by the blob's id.
        if depot {
            return;
        }
        if self.gossips() {
            self.table_has(no, blob, true);
            evicted.into_iter().for_each(|gone| self.table_has(no, gone, false));
        } else if let Some(gone) = evicted {
            let group = self.group(gone);
            if let Some(tracker) = self.trackers(group).first().copied() {
                self.note(no, tracker, gone, What::Gone);
            }
        }
        self.got(no);
    }

    fn gave_up(&mut self, no: u32, blob: u32, _: Failure) {
        self.tally.errors += 1;
        let Some(job) = self.nodes[no as usize].jobs.remove(&blob) else { return };
        for key in job.waiters.into_iter().chain(job.children) {
            self.at(self.now + HALF_TRIP, Event::Failed(key));
        }
        self.at(self.now + AGAIN, Event::Retry(no, blob));
    }

    /// Tells a new tracker of a blob here.
    pub fn note_have(&mut self, no: u32, blob: u32) {
        let group = self.group(blob);
        if let Some(tracker) = self.trackers(group).first().copied() {
            self.note(no, tracker, blob, What::Have);
        }
    }

    fn note(&mut self, no: u32, tracker: u32, blob: u32, what: What) {
        if self.gossips() {
            return;
        }
        let note = Note { group: self.group(blob), blob: blob_id(blob), what };
        let node = &mut self.nodes[no as usize];
        node.notes.push((tracker, note));
        let at = self.now + if what == What::Gone { GATHER_GONE } else { GATHER };
        if at < node.flush {
            node.flush = at;
            self.at(at, Event::Flush(no));
        }
    }

    /// Sends the collected notes, a message for each tracker.
    pub fn flush(&mut self, no: u32) {
        let (now, node) = (self.now, &mut self.nodes[no as usize]);
        if node.flush != now || !node.alive {
            return;
        }
        node.flush = u64::MAX;
        let mut notes = std::mem::take(&mut node.notes);
        notes.sort_by_key(|(tracker, _)| *tracker);
        for batch in notes.chunk_by(|a, b| a.0 == b.0) {
            for part in batch.chunks(NOTES_MAX) {
                let to = part[0].0;
                let sized = |what: &What| match what {
                    What::Have | What::Fetching | What::Gone => 41,
                    What::Failed { .. } => 49,
                    What::Refused { .. } | What::Silent { .. } => 57,
                };
                let bytes = part.iter().map(|(_, note)| sized(&note.what)).sum();
                let at = self.message(no, to, bytes);
                self.at(at, Event::Notes(no, to, part.iter().map(|(_, note)| *note).collect()));
            }
        }
    }

    /// A tracker receives notes.
    pub fn noted(&mut self, from: u32, to: u32, notes: &[Note]) {
        if !self.nodes[to as usize].alive {
            return;
        }
        let now = self.now;
        let tracker = self.tracker(to);
        notes.iter().for_each(|note| tracker.note(now, node_id(from), note));
    }

    /// Sends the questions of all plans that wanted to ask within this event: one message for each tracker,
    /// group and 16 blobs.
    pub fn send_questions(&mut self) {
        let mut open: Vec<Question> = Vec::new();
        for (from, rank, to, blob, not) in std::mem::take(&mut self.questions) {
            let group = self.group(blob);
            let fits = |other: &&mut Question| {
                (other.from, other.to, other.rank, other.group) == (from, to, rank, group)
                    && other.not == not
                    && other.blobs.len() < net::message::ASK_MAX
            };
            match open.iter_mut().find(fits) {
                Some(question) => question.blobs.push(blob),
                None => open.push(Question { from, to, rank, group, blobs: vec![blob], not }),
            }
        }
        for question in open {
            let sender = self.nodes[question.from as usize].upstream(self.now);
            let sender = if sender.is_some() { 16 } else { 0 };
            let nodes = 16 * question.not.len() as u64 + sender;
            let bytes = 13 + 32 * question.blobs.len() as u64 + nodes;
            let at = self.message(question.from, question.to, bytes);
            self.at(at, Event::Ask(Box::new(question)));
        }
    }

    /// A question arrives.
    pub fn asked(&mut self, question: Box<Question>) {
        let (now, to) = (self.now, question.to);
        let node = &self.nodes[to as usize];
        if !node.alive {
            if !node.mute {
                self.at(now + HALF_TRIP, Event::Bounced(question));
            }
            return;
        }
        let own = node.backlog(now);
        let requester = &self.nodes[question.from as usize];
        let ask = Ask {
            group: question.group,
            blobs: question.blobs.iter().map(|blob| blob_id(*blob)).collect(),
            backlog: requester.backlog(now),
            not: question.not.iter().map(|no| node_id(*no)).collect(),
            sender: requester.upstream(now),
            part: false,
        };
        self.tracker(to);
        let node = &mut self.nodes[to as usize];
        let cache = &node.cache;
        let Some(tracker) = &mut node.tracker else { return };
        tracker.raise_load(node_id(to), own);
        let answers = tracker.ask(now, node_id(question.from), &ask, &|id| cache.has(blob_no(id)));
        let sized = |answer: &Answer| match answer {
            Answer::Serve | Answer::NotMine => 1,
            Answer::Go { .. } => 33,
            Answer::Lease { .. } => 13,
            Answer::Wait { .. } => 21,
        };
        let bytes = answers.iter().map(sized).sum();
        let at = self.message(to, question.from, bytes);
        self.at(at, Event::Answered(question, answers));
    }

    /// An answer arrives.
    pub fn answered(&mut self, question: &Question, answers: &[Answer]) {
        let node = &mut self.nodes[question.from as usize];
        node.silence.answered(&node_id(question.to));
        if question.from != question.to {
            node.latencies.answered(Duration::from_micros(2 * HALF_TRIP));
        }
        for (blob, answer) in question.blobs.iter().zip(answers) {
            self.tell_plan(question.from, *blob, Happened::Answered { rank: question.rank, answer: *answer });
        }
    }

    /// The tracker's machine says that the port is closed.
    pub fn bounced(&mut self, question: &Question) {
        for blob in &question.blobs {
            self.tell_plan(question.from, *blob, Happened::Unreachable { rank: question.rank });
        }
    }
}
