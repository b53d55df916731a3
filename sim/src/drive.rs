//! What a node does with its plans: asks what they want asked, starts what they want started, tells what they want told.

use std::time::Duration;

use peer::id::NodeId;
use peer::message::{Answer, Ask, NOTES_MAX, Note, What};
use peer::plan::{Action, Event as Happened, Failure, Pace, Plan, Setup, Source, Why};

use crate::model::{BLOB, GATHER, GATHER_GONE, HALF_TRIP, blob_id, blob_no, node_id, node_no};
use crate::world::{Event, Job, Question, World};

/// A reader's patience.
const DEADLINE: Duration = Duration::from_secs(60);
/// The summary of latencies is good for so many plans.
const PLANS: u32 = 32;
/// As many depots as are tried for a blob.
const DEPOTS: usize = 2;
/// A reader that got an error tries again after so long.
const AGAIN: u64 = 100_000;

impl World {
    /// A node wants a blob that it does not have.
    pub fn begin(&mut self, no: u32, blob: u32) {
        let (mut trackers, depots) = self.whom(no, blob);
        let now = self.now;
        let node = &mut self.nodes[no as usize];
        if !node.alive || node.jobs.contains_key(&blob) || node.cache.has(blob) {
            return;
        }
        if node.pace.1 == 0 {
            node.pace = (Pace::from(&node.latencies), PLANS);
        }
        node.pace.1 -= 1;
        let pace = node.pace.0;
        node.silence.order(now, &mut trackers);
        let sender = node.sender().map(node_id);
        let setup = Setup { own: node_id(no), trackers, depots, sender, pace, deadline: DEADLINE };
        let (plan, actions) = Plan::new(now, setup);
        let job = Job { plan, begun: now, flows: Vec::new(), waiters: Vec::new(), children: Vec::new() };
        node.jobs.insert(blob, job);
        self.table_begins(no, blob);
        self.act(no, blob, actions);
    }

    /// The trackers and the depots that a node has for a blob. What a depot does not have it gets from the origin and nowhere else. With
    /// a table of its own a node has itself for a tracker.
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

    /// Something happened to a plan.
    pub fn tell_plan(&mut self, no: u32, blob: u32, happened: Happened) {
        let now = self.now;
        let Some(job) = self.nodes[no as usize].jobs.get_mut(&blob) else { return };
        let mut actions = Vec::new();
        if matches!(happened, Happened::Tick) {
            let coming = job.flows.iter().enumerate().find_map(|(no, flow)| {
                flow.line.filter(|(first, _)| flow.open && *first <= now).map(|line| (no as u32, line))
            });
            if let Some((fetch, (first, last))) = coming {
                let came = BLOB * (now - first).max(1) / (last - first).max(1);
                actions.extend(job.plan.handle(now, Happened::Progress { fetch, came: came.clamp(1, BLOB) }));
            }
        }
        actions.extend(job.plan.handle(now, happened));
        self.act(no, blob, actions);
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
                    // A lease that is given back, or a node that did not give: the sooner known the better, but it waits like all.
                    self.note(no, tracker, blob, what);
                }
                Action::Silent { tracker } => {
                    let now = self.now;
                    self.nodes[no as usize].silence.silent(now, tracker);
                }
                Action::Done { .. } => self.done(no, blob),
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

    /// The plans whose time has come.
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

    /// The blob is here and kept.
    fn done(&mut self, no: u32, blob: u32) {
        let (now, counted) = (self.now, self.now >= self.counted_from);
        let node = &mut self.nodes[no as usize];
        let Some(job) = node.jobs.remove(&blob) else { return };
        let evicted = node.cache.keep(blob, now);
        let depot = self.is_depot(no);
        if counted && !depot {
            self.tally.took.push(u32::try_from(now - job.begun).unwrap_or(u32::MAX));
        }
        for waiter in job.waiters {
            self.at(now, Event::Flow(waiter));
        }
        // A depot tells nobody: it is found by its name.
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

    /// A new tracker is told of what is here.
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

    /// What was gathered goes out, a message for each tracker.
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

    /// A tracker hears what became of blobs.
    pub fn noted(&mut self, from: u32, to: u32, notes: &[Note]) {
        if !self.nodes[to as usize].alive {
            return;
        }
        let now = self.now;
        let tracker = self.tracker(to);
        notes.iter().for_each(|note| tracker.note(now, node_id(from), note));
    }

    /// The questions of all plans that wanted to ask within this event: one message for each tracker, group and 16 blobs.
    pub fn send_questions(&mut self) {
        let mut open: Vec<Question> = Vec::new();
        for (from, rank, to, blob, not) in std::mem::take(&mut self.questions) {
            let group = self.group(blob);
            let fits = |other: &&mut Question| {
                (other.from, other.to, other.rank, other.group) == (from, to, rank, group)
                    && other.not == not
                    && other.blobs.len() < peer::message::ASK_MAX
            };
            match open.iter_mut().find(fits) {
                Some(question) => question.blobs.push(blob),
                None => open.push(Question { from, to, rank, group, blobs: vec![blob], not }),
            }
        }
        for question in open {
            let sender = if self.nodes[question.from as usize].sender().is_some() { 16 } else { 0 };
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
        let asker = &self.nodes[question.from as usize];
        let queued = asker.egress.saturating_sub(now) as f64 * asker.rate;
        let ask = Ask {
            group: question.group,
            blobs: question.blobs.iter().map(|blob| blob_id(*blob)).collect(),
            backlog: (queued / BLOB as f64 * 4.0).min(65_535.0) as u16,
            not: question.not.iter().map(|no| node_id(*no)).collect(),
            sender: asker.sender().map(node_id),
            part: false,
        };
        self.tracker(to);
        let node = &mut self.nodes[to as usize];
        let cache = &node.cache;
        let Some(tracker) = &mut node.tracker else { return };
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
        self.nodes[question.from as usize].silence.answered(&node_id(question.to));
        for (blob, answer) in question.blobs.iter().zip(answers) {
            self.tell_plan(question.from, *blob, Happened::Answered { rank: question.rank, answer: *answer });
        }
    }

    /// The tracker's machine says that nobody listens there.
    pub fn bounced(&mut self, question: &Question) {
        for blob in &question.blobs {
            self.tell_plan(question.from, *blob, Happened::Unreachable { rank: question.rank });
        }
    }
}
