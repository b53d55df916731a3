//! The steps of a [`Plan`]: ask, fetch, hedge, end. After every step either something is pending that ends by
//! itself or by a time in [`Plan::wake`], or the plan has ended.

use net::id::NodeId;
use net::message::{Answer, What};

use super::*;

/// An answer is quick if it comes within this many times [`Pace::soon`], the time that a node waits for its
/// upstream. That is half of a blob's time. On full links an answer waits in two queues.
const QUICK: u32 = 4;

/// The hedging steps double at most this many times.
const ROUNDS: u32 = 3;

impl Plan {
    /// Asks the best tracker that was not asked yet. If none is left and nothing is pending, continues
    /// without trackers.
    pub(super) fn ask_next(&mut self, now: u64, out: &mut Vec<Action>) {
        let next = self.ranks.iter().position(|rank| !rank.asked && !rank.useless);
        match next {
            Some(rank) if self.asks < ASKS_MAX => self.ask(now, rank, out),
            _ if self.waiting() || self.running() => {}
            _ => self.alone(now, Why::Alone, out),
        }
    }

    fn ask(&mut self, now: u64, rank: usize, out: &mut Vec<Action>) {
        self.asks += 1;
        self.ranks[rank] =
            Rank { asked: true, until: Some(now + micros(self.setup.pace.answer)), useless: false };
        out.push(Action::Ask { rank, tracker: self.setup.trackers[rank], not: self.ruled_out() });
    }

    /// Asks the first usable tracker again, and any answer counts. False if there is none, or no questions
    /// are left.
    fn ask_again(&mut self, now: u64, out: &mut Vec<Action>) -> bool {
        self.nudged = false;
        let useful = self.ranks.iter().position(|rank| !rank.useless);
        match useful.filter(|_| self.asks < ASKS_MAX) {
            Some(rank) => {
                self.ask(now, rank, out);
                self.more = self.running();
                true
            }
            None => false,
        }
    }

    /// The nodes that failed last, at most as many as a question may exclude.
    fn ruled_out(&self) -> Vec<NodeId> {
        self.not[self.not.len().saturating_sub(NOT_MAX)..].to_vec()
    }

    /// Whether a tracker's answer may still arrive.
    fn waiting(&self) -> bool {
        self.again.is_some() || self.ranks.iter().any(|rank| rank.until.is_some())
    }

    /// Whether a fetch is in flight.
    fn running(&self) -> bool {
        self.fetches.iter().any(|fetch| fetch.state == State::Running)
    }

    pub(super) fn unreachable(&mut self, now: u64, rank: usize, out: &mut Vec<Action>) {
        if let Some(known) = self.ranks.get_mut(rank).filter(|known| known.asked) {
            (known.until, known.useless) = (None, true);
            if !self.running() {
                self.ask_next(now, out);
            }
        }
    }

    pub(super) fn answered(&mut self, now: u64, rank: usize, answer: Answer, out: &mut Vec<Action>) {
        let Some(known) = self.ranks.get_mut(rank).filter(|known| known.asked) else { return };
        let asked = known.until.map(|until| until.saturating_sub(micros(self.setup.pace.answer)));
        let quick =
            asked.is_some_and(|asked| now.saturating_sub(asked) <= micros(QUICK * self.setup.pace.soon));
        (known.until, known.useless) = (None, false);
        if let Answer::Lease { lease, time } = answer {
            let renew = now.saturating_add(micros(time) / 3);
            let before = self.leases.len();
            self.leases.retain(|other| other.rank != rank);
            if self.leases.len() == before {
                self.notify_other_trackers(out);
            }
            let end = now.saturating_add(micros(time));
            self.leases.push(Lease { rank, id: lease, renew, end, is_quiet: false });
        }
        let (more, nudged) = (std::mem::take(&mut self.more), std::mem::take(&mut self.nudged));
        self.rounds += u32::from(more && self.running());
        match answer {
            Answer::NotMine => self.unreachable(now, rank, out),
            // A slow sender is better than the origin.
            Answer::Lease { .. } if nudged && self.running() => {}
            // A tracker was slow to answer, and a fetch is in flight: its answer is ignored. But if the fetch
            // itself is slow (`more`), another source helps.
            _ if self.running() && !more && !self.is_better(rank, &answer) => {}
            Answer::Wait { parent, .. } if quick && self.is_patient(parent) => {
                self.patient += 1;
                self.again = Some((now + micros(self.setup.pace.soon), rank));
            }
            Answer::Serve => self.peer(now, Source::Peer(self.setup.trackers[rank]), None, out),
            Answer::Go { first, second } => self.peer(now, Source::Peer(first), second, out),
            Answer::Wait { parent, time } => {
                self.peer(now, Source::Stream(parent), None, out);
                self.leased = now + micros(time.min(PACE_MOST));
            }
            Answer::Lease { .. } => self.alone(now, Why::Told, out),
        }
    }

    /// The answer names the upstream, while the first tracker to answer named another node, and that node has
    /// sent nothing yet. The second tracker, which is asked because the first is slow, knows less.
    fn is_better(&self, rank: usize, answer: &Answer) -> bool {
        let named = match answer {
            Answer::Serve => self.setup.trackers.get(rank).copied(),
            Answer::Go { first, .. } => Some(*first),
            _ => None,
        };
        let running = |fetch: &&Fetch| fetch.state == State::Running;
        let begun = self.fetches.iter().filter(running).any(|fetch| !fetch.silent);
        named.is_some_and(|node| self.setup.upstream == Some(node) && self.is_fresh(node)) && !begun
    }

    /// The link has room, and a holder sends the blob slowly. Another holder may have more capacity.
    pub(super) fn slack(&mut self, now: u64, out: &mut Vec<Action>) {
        let lags = |fetch: &Fetch| {
            let holds = matches!(fetch.from, Source::Peer(_)) && fetch.state == State::Running;
            holds && fetch.needs(now, LAGGED).is_some_and(|needs| needs > micros(LAGS))
        };
        if self.nudges < NUDGES && now >= self.nudge && !self.waiting() && self.fetches.iter().any(lags) {
            self.nudges += 1;
            self.nudge = now.saturating_add(micros(LAGS));
            self.nudged = self.ask_again(now, out);
        }
    }

    /// Whether to ask again shortly. A node other than the current upstream is fetching the blob. If the
    /// upstream wants it too, it will be fetching it in a moment. Then the chain stays one chain, and no node
    /// sends the blob twice. Otherwise a node that asks just before its upstream would be sent to the head of
    /// the chain. It would take half of the head's link, be in front of the others from then on, and be sent
    /// to the head every time. If a tracker's answers take much longer than that moment, it is not asked
    /// again for this.
    fn is_patient(&self, parent: NodeId) -> bool {
        let other = self.setup.upstream.is_some_and(|node| node != parent && !self.not.contains(&node));
        other && !self.setup.pace.soon.is_zero() && self.patient < PATIENCE && !self.running()
    }

    /// Fetches from a node that a tracker named.
    fn peer(&mut self, now: u64, from: Source, second: Option<NodeId>, out: &mut Vec<Action>) {
        self.spare = second.filter(|node| self.is_fresh(*node));
        match from.node().filter(|node| self.is_fresh(*node)) {
            Some(_) => {
                self.fetch(now, from, Why::Told, out);
                let streams = matches!(from, Source::Stream(_));
                let pace = if streams { self.setup.pace.stream } else { self.setup.pace.peer };
                self.hedge_from(now, Hedge::Peer, micros(pace));
            }
            // The tracker named a node that was excluded, or this node. Treat it like a failed source.
            None => self.next_source(now, out),
        }
    }

    /// Not this node, not failed, and no fetch from it in flight.
    fn is_fresh(&self, node: NodeId) -> bool {
        let tried = |fetch: &Fetch| fetch.from.node() == Some(node) && fetch.state == State::Running;
        node != self.setup.own && !self.not.contains(&node) && !self.fetches.iter().any(tried)
    }

    fn hedge_from(&mut self, now: u64, hedge: Hedge, step: u64) {
        (self.hedge, self.step) = (hedge, step.max(1) << self.rounds.min(ROUNDS));
        self.due = if hedge == Hedge::Nothing { u64::MAX } else { now.saturating_add(self.step) };
    }

    /// Fetches from the depot or the origin.
    fn alone(&mut self, now: u64, why: Why, out: &mut Vec<Action>) {
        if self.depot(now, why, out) {
            self.hedge_from(now, Hedge::Origin, micros(self.setup.pace.depot));
        } else if self.origin(now, why, out) {
            self.hedge_from(now, Hedge::Nothing, 0);
        } else if !self.running() && !self.waiting() {
            self.end(Action::Fail(Failure::Origin), out);
        }
    }

    /// Fetches from the first depot that was not tried. False if there is none.
    fn depot(&mut self, now: u64, why: Why, out: &mut Vec<Action>) -> bool {
        let tried = |node: &NodeId| self.fetches.iter().any(|fetch| fetch.from == Source::Depot(*node));
        let next = self.setup.depots.iter().copied().find(|node| self.is_fresh(*node) && !tried(node));
        next.inspect(|node| self.fetch(now, Source::Depot(*node), why, out)).is_some()
    }

    /// Fetches from the origin, once. False if it was tried.
    fn origin(&mut self, now: u64, why: Why, out: &mut Vec<Action>) -> bool {
        let fresh = !self.fetches.iter().any(|fetch| fetch.from == Source::Origin);
        if fresh {
            self.fetch(now, Source::Origin, why, out);
            self.rescue = u64::MAX;
        }
        fresh
    }

    fn fetch(&mut self, now: u64, from: Source, why: Why, out: &mut Vec<Action>) {
        self.again = None;
        out.push(Action::Fetch { fetch: self.fetches.len() as FetchNo, from, why });
        self.fetches.push(Fetch {
            from,
            state: State::Running,
            began: now,
            came: 0,
            heard: now,
            alive: now,
            silent: true,
            stalled: false,
        });
    }

    /// Bytes arrived. Other peers that were asked for the same blob and have sent nothing are cancelled: they
    /// have other receivers.
    pub(super) fn progress(&mut self, now: u64, no: FetchNo, came: u64, out: &mut Vec<Action>) {
        let fetch = self.fetches.get_mut(no as usize).filter(|fetch| fetch.state == State::Running);
        let Some(fetch) = fetch else { return };
        (fetch.heard, fetch.alive, fetch.came) = (now, now, came);
        if !std::mem::replace(&mut fetch.silent, false) {
            return;
        }
        fetch.began = now;
        for (other, fetch) in self.fetches.iter_mut().enumerate() {
            if fetch.state == State::Running && fetch.silent && matches!(fetch.from, Source::Peer(_)) {
                fetch.state = State::Failed;
                out.push(Action::Cancel { fetch: other as FetchNo });
            }
        }
    }

    pub(super) fn arrived(&mut self, no: FetchNo, out: &mut Vec<Action>) {
        let known = self.fetches.get(no as usize);
        if known.is_none_or(|fetch| fetch.state != State::Running) {
            return;
        }
        self.notify_asked(What::Have, out);
        self.leases.clear();
        self.fetches[no as usize].state = State::Failed;
        self.end(Action::Done { fetch: no }, out);
    }

    /// Only this node gets what it fetches under a lease, and only the tracker that gave the lease knows. The
    /// trackers after it are informed as well. If the first one dies, a requester that asks the next is sent
    /// here, and not to the origin once more.
    fn notify_other_trackers(&self, out: &mut Vec<Action>) {
        let others = self.ranks.iter().zip(&self.setup.trackers).filter(|(rank, _)| !rank.asked);
        out.extend(others.map(|(_, tracker)| Action::Note { tracker: *tracker, what: What::Fetching }));
    }

    pub(super) fn failed(&mut self, now: u64, no: FetchNo, out: &mut Vec<Action>) {
        let Some(fetch) = self.fetches.get_mut(no as usize).filter(|fetch| fetch.state == State::Running)
        else {
            return;
        };
        fetch.state = State::Failed;
        let from = fetch.from;
        if let Some(node) = from.node().filter(|node| !self.not.contains(node)) {
            self.not.push(node);
        }
        if let Source::Peer(by) | Source::Stream(by) = from {
            self.notify_asked(What::Refused { by }, out);
        }
        if !self.running() {
            self.next_source(now, out);
        }
    }

    /// No fetch is in flight: the spare holder, the tracker again, the depot, the origin, in this order.
    fn next_source(&mut self, now: u64, out: &mut Vec<Action>) {
        if let Some(node) = self.spare.take().filter(|node| self.is_fresh(*node)) {
            self.fetch(now, Source::Peer(node), Why::Told, out);
            return self.hedge_from(now, Hedge::Peer, micros(self.setup.pace.peer));
        }
        let origin_failed = self.fetches.iter().any(|fetch| fetch.from == Source::Origin);
        // With a lease, or after the origin failed, there is nothing to learn from a tracker.
        if self.waiting() || self.running() {
            return;
        }
        if self.leases.is_empty() && !origin_failed && self.ask_again(now, out) {
            return;
        }
        let why = if self.leases.is_empty() { Why::Alone } else { Why::Told };
        self.alone(now, why, out);
    }

    /// Does what is due at `now`.
    pub(super) fn tick(&mut self, now: u64, out: &mut Vec<Action>) {
        if now >= self.end {
            let peers = self.fetches.iter().filter(|fetch| fetch.from.node().is_some()).count() as u32;
            let origin = self.fetches.iter().any(|fetch| fetch.from == Source::Origin);
            return self.end(Action::Fail(Failure::Deadline { peers, origin }), out);
        }
        let mut silent = false;
        for (rank, tracker) in self.ranks.iter_mut().zip(&self.setup.trackers) {
            if rank.until.is_some_and(|until| until <= now) {
                (rank.until, rank.useless, silent) = (None, true, true);
                out.push(Action::Silent { tracker: *tracker });
            }
        }
        if silent && !self.running() {
            self.ask_next(now, out);
        }
        if let Some((_, rank)) = self.again.take_if(|(at, _)| *at <= now) {
            // This is the same question a moment later. It does not count against the questions that failures
            // may cause.
            self.asks = self.asks.saturating_sub(1);
            self.ask(now, rank, out);
        }
        self.renew(now, out);
        if self.hedge != Hedge::Nothing && !self.waiting() && self.rule_out_crawling(now, out) {
            (self.hedge, self.due) = (Hedge::Peer, now);
        }
        if now >= self.due && !self.over {
            self.hedge(now, out);
        }
        if now >= self.rescue && !self.over {
            self.rescue(now, out);
        }
    }

    /// The deadline is near. The origin is the last resort, and is considered a few times.
    fn rescue(&mut self, now: u64, out: &mut Vec<Action>) {
        self.rescue = now.saturating_add(micros(self.setup.deadline / RESCUES).max(1));
        if now >= self.leased && self.could_rescue() && !self.will_arrive(now) {
            self.origin(now, Why::Hedge, out);
        }
    }

    /// Whether the origin was not asked, and no other node is fetching the blob from there.
    fn could_rescue(&self) -> bool {
        let far = |fetch: &Fetch| {
            let passes_on = matches!(fetch.from, Source::Stream(_)) && fetch.state == State::Running;
            fetch.from == Source::Origin || passes_on
        };
        !self.fetches.iter().any(far)
    }

    /// Whether a fetch in flight will bring the rest by the deadline.
    fn will_arrive(&self, now: u64) -> bool {
        let left = self.end.saturating_sub(now);
        let in_time = |fetch: &Fetch| fetch.needs(now, Duration::ZERO).is_some_and(|needs| needs <= left);
        self.fetches.iter().any(|fetch| fetch.state == State::Running && in_time(fetch))
    }

    /// If the bytes of a lease are arriving, the lease is requested again before it ends. If not, it may go
    /// to another node.
    fn renew(&mut self, now: u64, out: &mut Vec<Action>) {
        let heard =
            self.fetches.iter().filter(|fetch| fetch.state == State::Running).map(|fetch| fetch.heard).max();
        let arriving = heard.is_some_and(|heard| now.saturating_sub(heard) < micros(self.setup.pace.origin));
        let not = self.ruled_out();
        for lease in self.leases.iter_mut().filter(|lease| lease.renew <= now) {
            // Bytes may still arrive, from a store whose connections took a second to begin. Only then is
            // this checked again.
            let holds = now < lease.end;
            lease.is_quiet = holds && !arriving;
            if !lease.is_quiet {
                // The answer sets the next time.
                lease.renew = u64::MAX;
            }
            if holds && arriving {
                out.push(Action::Ask {
                    rank: lease.rank,
                    tracker: self.setup.trackers[lease.rank],
                    not: not.clone(),
                });
            }
        }
    }

    /// The next hedging step is due.
    fn hedge(&mut self, now: u64, out: &mut Vec<Action>) {
        if let Some(later) = self.held_back(now) {
            self.due = later;
            return;
        }
        let step = self.step;
        let (next, after) = match self.hedge {
            Hedge::Peer => {
                self.report_silent(now, out);
                match self.spare.take().filter(|node| self.is_fresh(*node)) {
                    Some(node) => self.fetch(now, Source::Peer(node), Why::Hedge, out),
                    // The node that we wait for may have lost its lease. The next node to ask gets it.
                    None => _ = self.ask_again(now, out),
                }
                (Hedge::Depot, step)
            }
            Hedge::Depot => {
                self.depot(now, Why::Hedge, out);
                (Hedge::Tracker, 2 * step)
            }
            // One question at a time. A tracker that does not answer is soon known as silent.
            Hedge::Tracker if self.waiting() => (Hedge::Tracker, micros(self.setup.pace.answer)),
            Hedge::Tracker => {
                self.rule_out_stalled(now);
                match self.ask_again(now, out) {
                    true => {
                        self.step = step.saturating_mul(2).min(micros(PACE_MOST));
                        (Hedge::Tracker, self.step)
                    }
                    false => (Hedge::Origin, step),
                }
            }
            Hedge::Origin => {
                self.origin(now, Why::Hedge, out);
                (Hedge::Nothing, u64::MAX)
            }
            Hedge::Nothing => (Hedge::Nothing, u64::MAX),
        };
        self.hedge = next;
        self.due = now.saturating_add(after);
    }

    /// Until when the next step has to wait, if it has to.
    fn held_back(&self, now: u64) -> Option<u64> {
        // Another node has the lease. Going to the origin now would fetch what is already being fetched.
        if matches!(self.hedge, Hedge::Tracker | Hedge::Origin) && now < self.leased {
            return Some(self.leased);
        }
        // Bytes are arriving. As long as there is time, it is better to be a little late than to fetch twice.
        let is_arriving =
            |fetch: &&Fetch| fetch.state == State::Running && !fetch.silent && !self.crawls(now, fetch);
        let arriving = self.fetches.iter().filter(is_arriving);
        let heard = arriving.map(|fetch| fetch.heard).max()?;
        let in_time = self.end - now > micros(self.setup.deadline) / 2;
        let later = heard.saturating_add(self.step);
        Some(later).filter(|later| *later > now && in_time)
    }

    /// Reports the peers that have not sent a byte, of this blob or another.
    fn report_silent(&self, now: u64, out: &mut Vec<Action>) {
        let silent =
            |fetch: &&Fetch| fetch.silent && fetch.state == State::Running && !self.is_active(now, fetch);
        for fetch in self.fetches.iter().filter(silent) {
            // A node that itself waits for a fetch has no bytes to send yet. That is not its fault.
            if let Source::Peer(by) = fetch.from {
                self.notify_asked(What::Silent { by }, out);
            }
        }
    }

    /// Returns whether the fetch's node has sent something within one hedging step, or the fetch began within
    /// it.
    fn is_active(&self, now: u64, fetch: &Fetch) -> bool {
        now - fetch.alive < self.step
    }

    /// Excludes the sources that send nothing now, so that they are not named again. What they still send is
    /// used. A source that itself waits for a fetch is excluded only when it stalls for the second time. When
    /// the first node of a chain has lost its parent, the whole chain stalls. The others should then take the
    /// blob from that first node, as soon as a tracker has given it the lease.
    fn rule_out_stalled(&mut self, now: u64) {
        let patience = self.step.max(micros(self.setup.pace.share));
        let stalled = |fetch: &&mut Fetch| fetch.state == State::Running && now - fetch.alive >= patience;
        for fetch in self.fetches.iter_mut().filter(stalled) {
            let before = std::mem::replace(&mut fetch.stalled, true);
            let blamed = before || !matches!(fetch.from, Source::Stream(_));
            if let Some(node) = fetch.from.node().filter(|node| blamed && !self.not.contains(node)) {
                self.not.push(node);
            }
        }
    }

    /// Whether a fetch delivers bytes, but the rest would take too long. A source that passes on what it
    /// receives is not to blame, and a requester that asks the tracker because of it may get a second lease.
    /// For such a source the only reason is the reader's deadline, once half of it is over.
    fn crawls(&self, now: u64, fetch: &Fetch) -> bool {
        let left = self.end - now;
        let share = micros(self.setup.pace.share);
        let judged = micros(JUDGED).min(left / 8).max(share.min(left / 4));
        let running = fetch.state == State::Running;
        let needs = fetch.needs(now, Duration::from_micros(judged)).filter(|_| running);
        let Some(needs) = needs else { return false };
        match fetch.from {
            Source::Peer(_) => needs > micros(CRAWL).max(share * u64::from(SHARES)).min(left / 2),
            Source::Stream(_) | Source::Depot(_) => needs > left && left < micros(self.setup.deadline) / 2,
            Source::Origin => false,
        }
    }

    /// Reports the senders that are too slow, so that the tracker sends others elsewhere, and excludes them
    /// here. What they still send is used. Returns whether there were any.
    fn rule_out_crawling(&mut self, now: u64, out: &mut Vec<Action>) -> bool {
        let slow: Vec<NodeId> = self
            .fetches
            .iter()
            .filter(|fetch| self.crawls(now, fetch))
            .filter_map(|fetch| fetch.from.node().filter(|node| !self.not.contains(node)))
            .collect();
        for by in &slow {
            self.notify_asked(What::Silent { by: *by }, out);
        }
        self.not.extend(&slow);
        !slow.is_empty()
    }

    /// Notifies every tracker that was asked.
    fn notify_asked(&self, what: What, out: &mut Vec<Action>) {
        for (rank, tracker) in self.ranks.iter().zip(&self.setup.trackers) {
            if rank.asked {
                out.push(Action::Note { tracker: *tracker, what });
            }
        }
    }

    /// Cancels what is in flight, gives back leases, and emits the last action.
    fn end(&mut self, last: Action, out: &mut Vec<Action>) {
        self.over = true;
        for (no, fetch) in self.fetches.iter().enumerate() {
            if fetch.state == State::Running {
                out.push(Action::Cancel { fetch: no as FetchNo });
            }
        }
        for lease in &self.leases {
            let tracker = self.setup.trackers[lease.rank];
            out.push(Action::Note { tracker, what: What::Failed { lease: lease.id } });
        }
        out.push(last);
    }
}
