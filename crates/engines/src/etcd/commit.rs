//! A commit: one transaction of etcd, and what its answer means.
//!
//! A commit that was lost is sent again, and is not applied twice. Each lane has a key that holds the number
//! of its last operation. A transaction checks that the key still holds what the lane knows, and writes its
//! own number. So of several attempts at most one is applied, and the key says whether one was. If an attempt
//! meets a conflict after an earlier one was lost, the number is written with a mark first, so that the lost
//! one cannot be applied later.

use std::collections::HashMap;

use etcd_client::{Compare, CompareOp, KeyValue, PutOptions, Txn, TxnOp, TxnResponse};
use meta::engine::database::check_session;
use meta::engine::{Final, read_keys, resolve};
use meta::key::{Key, KeyRange};
use meta::record::encode_u64;
use meta::store::{Commit, CommitError, Expect, StoreError, Value};

use super::errors::{Failure, NoLease};
use super::pool::{Record, Taken};
use super::request::{Ask, absent, empty, exists, found, is, levels, look_with, packed, single};
use super::session::Place;
use super::{Etcd, gone};

/// The longest key, in bytes. etcd keeps all keys in memory.
const KEY_MAX: usize = 8_192;
/// So many counters are remembered.
const COUNTERS_MAX: usize = 4_096;
/// How long etcd remembers the operations of a store without a session, in seconds.
const OWN_TTL: i64 = 3_600;

/// Present values, by key.
pub(super) type Values = HashMap<Key, Option<Value>>;

/// What became of a commit.
pub(super) enum Outcome {
    Applied,
    Conflict { rows: Vec<(Key, Option<Value>)>, not_empty: bool },
}

/// What must hold for any commit of a store.
pub(super) enum Guard {
    /// The store's session lasts, with this epoch and this lease. The lease tells two nodes apart that got
    /// one number, because the cluster was put back to an earlier state in between.
    Session { alive: Vec<u8>, epoch: String, lease: i64 },
    /// The store's volume is there.
    Volume(Vec<u8>),
}

impl Guard {
    pub(super) fn checks(&self) -> Vec<Compare> {
        match self {
            Guard::Session { alive, epoch, lease } => {
                vec![
                    is(alive.clone(), epoch.as_bytes()),
                    Compare::lease(alive.clone(), CompareOp::Equal, *lease),
                ]
            }
            Guard::Volume(key) => vec![exists(key.clone())],
        }
    }

    pub(super) fn ask(&self) -> Ask {
        Ask::Key(match self {
            Guard::Session { alive, .. } => alive.clone(),
            Guard::Volume(key) => key.clone(),
        })
    }

    pub(super) fn holds(&self, row: Option<&KeyValue>) -> bool {
        match self {
            Guard::Session { epoch, lease, .. } => {
                row.is_some_and(|row| row.value() == epoch.as_bytes() && row.lease() == *lease)
            }
            Guard::Volume(_) => row.is_some(),
        }
    }
}

/// In whose name a store commits.
pub(super) struct Owner {
    pub(super) name: String,
    /// The lease that removes its keys.
    pub(super) lease: i64,
    pub(super) guard: Guard,
}

/// A commit over all its attempts.
pub(super) struct Run<'a> {
    pub(super) commit: &'a Commit,
    /// The session that the store had when the commit was begun.
    place: Option<Place>,
    /// The number of the operation, once it has one.
    op: Option<u64>,
    /// Whether it is unknown if an earlier attempt was, or will be, applied.
    pub(super) is_lost: bool,
    /// The operation is being given up after a conflict, and the answer to that may have been lost.
    is_settling: bool,
    /// The lock that an earlier attempt may have taken.
    pub(super) token: Option<String>,
}

/// The lane's key in the attempt that is made.
pub(super) struct Lane {
    pub(super) key: Vec<u8>,
    pub(super) record: Record,
}

impl Lane {
    /// The operation was applied.
    fn applied(&self) -> String {
        self.record.op.to_string()
    }

    /// The operation was given up.
    fn given_up(&self) -> String {
        format!("{}-", self.record.op)
    }

    /// Whether an earlier attempt was applied, by the lane's key.
    pub(super) fn was_applied(&self, row: Option<&KeyValue>) -> bool {
        row.is_some_and(|row| row.value() == self.applied().as_bytes())
    }

    /// Whether no attempt was applied.
    pub(super) fn is_as_seen(&self, row: Option<&KeyValue>) -> bool {
        row.map(KeyValue::value) == self.record.seen.as_deref().map(str::as_bytes)
    }

    pub(super) fn check(&self) -> Compare {
        match &self.record.seen {
            Some(seen) => is(self.key.clone(), seen.as_bytes()),
            None => absent(self.key.clone()),
        }
    }

    pub(super) fn ask(&self) -> Ask {
        Ask::Key(self.key.clone())
    }

    /// Notes that the operation was applied.
    pub(super) fn note(&self, lease: i64) -> TxnOp {
        TxnOp::put(self.key.clone(), self.applied(), Some(PutOptions::new().with_lease(lease)))
    }

    /// Remembers in the lane that the operation has ended.
    pub(super) fn close(&mut self, taken: &mut Taken<'_>, seen: String) {
        self.record.seen = Some(seen);
        self.record.is_open = false;
        taken.set_record(self.record.clone());
    }

    pub(super) fn close_applied(&mut self, taken: &mut Taken<'_>) {
        let seen = self.applied();
        self.close(taken, seen);
    }
}

impl Etcd {
    pub(super) fn apply(&self, commit: &Commit) -> Result<(), CommitError> {
        check_keys(commit)?;
        // Before all that waits.
        let place = *self.place.read();
        check_session(commit, place.map(|place| place.session()))?;
        let mut taken = self.pool.take()?;
        let mut run = Run { commit, place, op: None, is_lost: false, is_settling: false, token: None };
        let outcome = taken.attempts(|taken, _| self.attempt(taken, &mut run));
        let outcome = match outcome {
            // Only the last attempt is known to have changed nothing.
            Err(StoreError::NoSpace(_)) if run.is_lost => Err(unknown().into_store()),
            outcome => outcome,
        }?;
        match outcome {
            Outcome::Applied => Ok(()),
            Outcome::Conflict { rows, not_empty } => Err(CommitError::Conflict { rows, not_empty }),
        }
    }

    fn attempt(&self, taken: &mut Taken<'_>, run: &mut Run<'_>) -> Result<Outcome, Failure> {
        let owner = self.owner(taken, run)?;
        let mut lane = self.lane(taken, &owner, run)?;
        if run.is_settling {
            // Whether it was given up is not known. If it was, it goes on as a new operation.
            if self.settle(taken, &owner, &mut lane)? {
                return Ok(Outcome::Applied);
            }
            (run.is_settling, run.is_lost, run.op) = (false, false, None);
            lane = self.lane(taken, &owner, run)?;
        }
        match self.send(taken, &owner, &mut lane, run) {
            Err(Failure::Own(NoLease)) => self.forget_owner(&owner, run.is_lost),
            Err(failure) => Err(failure),
            Ok(Outcome::Applied) => {
                lane.close_applied(taken);
                Ok(Outcome::Applied)
            }
            Ok(conflict) if !run.is_lost => Ok(conflict),
            Ok(conflict) => {
                // An earlier attempt must not be applied after this answer.
                run.is_settling = true;
                Ok(if self.settle(taken, &owner, &mut lane)? { Outcome::Applied } else { conflict })
            }
        }
    }

    /// The owner of the lanes: the session in which the commit was begun, or the store itself.
    fn owner(&self, taken: &mut Taken<'_>, run: &Run<'_>) -> Result<Owner, Failure> {
        if let Some(place) = run.place {
            if *self.place.read() != run.place {
                // The node has joined again. What etcd knew of this session's operations may be gone.
                return Err(if run.is_lost { unknown() } else { Failure::Store(fenced()) });
            }
            let (alive, epoch) = (self.layout.alive(place.number), place.epoch.to_string());
            let guard = Guard::Session { alive, epoch, lease: place.lease };
            let process = place.resumed.map_or_else(String::new, |number| format!(".{number:016x}"));
            return Ok(Owner {
                name: format!("{}.{}{process}", place.number, place.epoch),
                lease: place.lease,
                guard,
            });
        }
        let mut own = self.own.lock();
        let (name, lease) = match &*own {
            Some(own) => own.clone(),
            None => {
                let granted = taken.once(async |mut wires| wires.lease.grant(OWN_TTL, None).await)?.id();
                own.insert((format!("r{:016x}", base::random::u64()), granted)).clone()
            }
        };
        Ok(Owner { name, lease, guard: Guard::Volume(self.volume_key()) })
    }

    /// The owner's lease has ended, and with it all that etcd knew of its operations.
    fn forget_owner(&self, owner: &Owner, is_lost: bool) -> Result<Outcome, Failure> {
        if let Guard::Session { .. } = owner.guard {
            return Err(if is_lost { unknown() } else { Failure::Store(fenced()) });
        }
        self.own.lock().take_if(|(name, _)| *name == owner.name);
        Err(if is_lost { unknown() } else { Failure::Again("etcd forgot this store".to_owned()) })
    }

    /// The lane's key for this owner, and a number for the operation.
    fn lane(&self, taken: &mut Taken<'_>, owner: &Owner, run: &mut Run<'_>) -> Result<Lane, Failure> {
        let mut lane = Lane { key: self.layout.op(&owner.name, taken.number()), record: taken.record() };
        if lane.record.owner != owner.name {
            if run.is_lost {
                return Err(unknown());
            }
            lane.record = Record { owner: owner.name.clone(), ..Record::default() };
            run.op = None;
        }
        if lane.record.is_open && run.op != Some(lane.record.op) {
            self.settle(taken, owner, &mut lane)?;
        }
        if run.op.is_none() {
            lane.record.op += 1;
            run.op = Some(lane.record.op);
        }
        taken.set_record(lane.record.clone());
        Ok(lane)
    }

    /// Makes certain that the lane's last operation is not applied from now on. Returns whether it was.
    fn settle(&self, taken: &mut Taken<'_>, owner: &Owner, lane: &mut Lane) -> Result<bool, Failure> {
        let given_up = lane.given_up();
        let put = PutOptions::new().with_lease(owner.lease);
        let txn = Txn::new()
            .when([lane.check()])
            .and_then([TxnOp::put(lane.key.clone(), given_up.as_bytes(), Some(put))])
            .or_else([lane.ask().op()]);
        let answer = taken.once(async |mut wires| wires.kv.txn(txn).await)?;
        if answer.succeeded() {
            lane.close(taken, given_up);
            return Ok(false);
        }
        let rows = found(&answer);
        let row = rows.first().and_then(|rows| single(rows));
        if lane.was_applied(row) {
            lane.close_applied(taken);
            return Ok(true);
        }
        if row.is_some_and(|row| row.value() == given_up.as_bytes()) {
            // An earlier attempt to settle was lost.
            lane.close(taken, given_up);
            return Ok(false);
        }
        taken.set_record(Record::default());
        Err(Failure::Own(NoLease))
    }

    /// Sends the commit once.
    fn send(
        &self,
        taken: &mut Taken<'_>,
        owner: &Owner,
        lane: &mut Lane,
        run: &mut Run<'_>,
    ) -> Result<Outcome, Failure> {
        let commit = run.commit;
        if levels(commit.checks.len() + commit.empty.len() + commit.adds.len(), 1).is_none() {
            return self.send_locked(taken, owner, lane, run);
        }
        let known = self.known(taken, commit)?;
        let counted = Commit { adds: commit.adds.clone(), ..Commit::default() };
        let finals = resolve(counted, |key| Ok(known.get(key).cloned().flatten()), |_| Ok(false));
        let Ok(finals) = finals else { return self.refuse(taken, commit) };
        let plan = Plan { etcd: self, commit, owner, known: &known, finals: &finals };
        let checks = plan.checks(lane);
        let (writes, asks) = (plan.writes(lane), plan.asks(lane));
        let Some(levels) = levels(checks.len(), writes.len().max(asks.len())) else {
            return self.send_locked(taken, owner, lane, run);
        };
        let reads = asks.iter().map(Ask::op).collect();
        let txn = Txn::new().when(checks).and_then(packed(writes, levels)).or_else(packed(reads, levels));
        let answer = self.send_txn(taken, lane, run, txn)?;
        if answer.succeeded() {
            self.remember(finals.into_iter());
            return Ok(Outcome::Applied);
        }
        plan.judge(lane, &answer)
    }

    /// Sends the transaction of a commit. If its answer is lost, the operation is open.
    pub(super) fn send_txn(
        &self,
        taken: &mut Taken<'_>,
        lane: &mut Lane,
        run: &mut Run<'_>,
        txn: Txn,
    ) -> Result<TxnResponse, Failure> {
        lane.record.is_open = true;
        taken.set_record(lane.record.clone());
        let opened = &self.pool.door.opened;
        let known = opened.known();
        let answer = taken.once(async |mut wires| wires.kv.txn(txn).await);
        let answer = answer.and_then(|answer| {
            // What it did then was done to another cluster.
            opened.meet(&self.pool.door.target, known, answer.header()).map(|()| answer)
        });
        match &answer {
            Err(Failure::Lost(_)) => run.is_lost = true,
            // The server says that it did nothing.
            _ if !run.is_lost => {
                lane.record.is_open = false;
                taken.set_record(lane.record.clone());
            }
            _ => {}
        }
        answer
    }

    /// The counters that a commit adds to, as remembered or read.
    fn known(&self, taken: &mut Taken<'_>, commit: &Commit) -> Result<Values, Failure> {
        let mut known = Values::new();
        let mut missing = Vec::new();
        {
            let counters = self.counters.lock();
            for (key, _) in &commit.adds {
                match counters.get(key) {
                    Some(value) => _ = known.insert(key.clone(), value.clone()),
                    None => missing.push(key.clone()),
                }
            }
        }
        if missing.is_empty() {
            return Ok(known);
        }
        let asks: Vec<Ask> = missing.iter().map(|key| Ask::Key(self.layout.row(key))).collect();
        let (_, rows) = look_with(taken, &asks, 0)?;
        for (key, rows) in missing.into_iter().zip(rows) {
            known.insert(key, single(&rows).map(|row| row.value().into()));
        }
        Ok(known)
    }

    /// Remembers the values of counters. Only a guess: every commit checks them.
    fn remember(&self, values: impl Iterator<Item = Final>) {
        let mut counters = self.counters.lock();
        if counters.len() > COUNTERS_MAX {
            counters.clear();
        }
        counters.extend(values);
    }

    /// A counter cannot be changed. If a check fails, that comes first.
    fn refuse(&self, taken: &mut Taken<'_>, commit: &Commit) -> Result<Outcome, Failure> {
        self.counters.lock().clear();
        let values = self.values(taken, commit)?;
        match values.resolve(commit) {
            Err(CommitError::Conflict { rows, not_empty }) => Ok(Outcome::Conflict { rows, not_empty }),
            Err(CommitError::Store(error)) => Err(Failure::Store(error)),
            Ok(_) => Err(Failure::Again("a counter was changed meanwhile".to_owned())),
        }
    }

    /// All that a commit rests on, as of one moment.
    pub(super) fn values(&self, taken: &mut Taken<'_>, commit: &Commit) -> Result<Seen, Failure> {
        let mut keys: Vec<&Key> = read_keys(commit).collect();
        keys.sort_unstable();
        keys.dedup();
        let mut asks: Vec<Ask> = keys.iter().map(|key| Ask::Key(self.layout.row(key))).collect();
        let spans: Vec<&KeyRange> = ranges(commit).collect();
        asks.extend(spans.iter().map(|range| Ask::Any(self.layout.span(range))));
        let (_, rows) = look_with(taken, &asks, 0)?;
        let (rows, occupied) = rows.split_at(keys.len());
        let value = |rows: &Vec<KeyValue>| single(rows).map(|row| Value::from(row.value()));
        let rows = keys.into_iter().cloned().zip(rows.iter().map(value)).collect();
        let full = spans.into_iter().zip(occupied).filter(|(_, rows)| !rows.is_empty());
        Ok(Seen { rows, full: full.map(|(range, _)| range.clone()).collect() })
    }
}

/// What a commit rests on.
pub(super) struct Seen {
    rows: Values,
    full: Vec<KeyRange>,
}

impl Seen {
    /// What the commit writes.
    pub(super) fn resolve(&self, commit: &Commit) -> Result<Vec<Final>, CommitError> {
        let read = |key: &Key| Ok(self.rows.get(key).cloned().flatten());
        resolve(commit.clone(), read, |range| Ok(self.full.contains(range)))
    }
}

/// A commit with all that one attempt knows.
struct Plan<'a> {
    etcd: &'a Etcd,
    commit: &'a Commit,
    owner: &'a Owner,
    /// The counters as they are believed to be.
    known: &'a Values,
    /// The counters as they are to become.
    finals: &'a [Final],
}

impl Plan<'_> {
    fn checks(&self, lane: &Lane) -> Vec<Compare> {
        let layout = &self.etcd.layout;
        let mut all = self.owner.guard.checks();
        all.extend([lane.check(), absent(layout.lock())]);
        all.extend(self.commit.checks.iter().map(|(key, expect)| match expect {
            Expect::Is(value) => is(layout.row(key), &**value),
            Expect::Absent => absent(layout.row(key)),
            Expect::Exists => exists(layout.row(key)),
        }));
        all.extend(ranges(self.commit).map(|range| empty(layout.span(range))));
        all.extend(self.known.iter().map(|(key, value)| match value {
            Some(value) => is(layout.row(key), &**value),
            None => absent(layout.row(key)),
        }));
        all
    }

    fn writes(&self, lane: &Lane) -> Vec<TxnOp> {
        let (layout, commit) = (&self.etcd.layout, self.commit);
        let mut all = vec![lane.note(self.owner.lease)];
        all.extend(commit.puts.iter().map(|(key, value)| TxnOp::put(layout.row(key), &**value, None)));
        all.extend(commit.dels.iter().map(|key| TxnOp::delete(layout.row(key), None)));
        // The order of their bytes is that of the numbers. So the server itself finds the higher one.
        let raised = commit.maxs.iter().filter(|(_, to)| *to > 0).map(|(key, to)| {
            let key = layout.row(key);
            let is_reached = Compare::value(key.clone(), CompareOp::Greater, &*encode_u64(to - 1));
            TxnOp::txn(Txn::new().when([is_reached]).or_else([TxnOp::put(key, &*encode_u64(*to), None)]))
        });
        all.extend(raised);
        all.extend(self.finals.iter().map(|(key, value)| final_op(layout.row(key), value.as_ref())));
        all
    }

    fn asks(&self, lane: &Lane) -> Vec<Ask> {
        let layout = &self.etcd.layout;
        let mut all = vec![lane.ask(), self.owner.guard.ask(), Ask::Key(layout.lock())];
        let row = |key: &Key| Ask::Key(layout.row(key));
        all.extend(self.commit.checks.iter().map(|(key, _)| row(key)));
        all.extend(ranges(self.commit).map(|range| Ask::Any(layout.span(range))));
        all.extend(self.commit.adds.iter().map(|(key, _)| row(key)));
        all
    }

    /// What an answer means by which nothing was changed.
    fn judge(&self, lane: &Lane, answer: &TxnResponse) -> Result<Outcome, Failure> {
        let rows = found(answer);
        let mut rows = rows.iter().map(|rows| single(rows));
        let mut next = || rows.next().flatten();
        let (at, guard, lock) = (next(), next(), next());
        if lane.was_applied(at) {
            return Ok(Outcome::Applied);
        }
        if !self.owner.guard.holds(guard) {
            return Err(Failure::Store(match self.owner.guard {
                Guard::Session { .. } => fenced(),
                Guard::Volume(_) => gone(&self.etcd.pool.door.target),
            }));
        }
        if !lane.is_as_seen(at) {
            return Err(Failure::Own(NoLease));
        }
        let mut failed = Vec::new();
        for (key, expect) in &self.commit.checks {
            let row = next().map(|row| Value::from(row.value()));
            let holds = match expect {
                Expect::Is(value) => row.as_deref() == Some(&**value),
                Expect::Absent => row.is_none(),
                Expect::Exists => row.is_some(),
            };
            if !holds {
                failed.push((key.clone(), row));
            }
        }
        let not_empty = ranges(self.commit).filter(|_| next().is_some()).count() > 0;
        if !failed.is_empty() || not_empty {
            return Ok(Outcome::Conflict { rows: failed, not_empty });
        }
        let counters = self.commit.adds.iter().map(|(key, _)| (key.clone(), next()));
        self.etcd.remember(counters.map(|(key, row)| (key, row.map(|row| row.value().into()))));
        Err(Failure::Again(match lock {
            Some(_) => "another node makes a very large change to the volume".to_owned(),
            None => "the same counters are changed all the time".to_owned(),
        }))
    }
}

/// The ranges that must be empty. One that ends before it begins is.
fn ranges(commit: &Commit) -> impl Iterator<Item = &KeyRange> {
    commit.empty.iter().filter(|range| range.start < range.end)
}

/// Writes the final value of a row.
pub(super) fn final_op(key: Vec<u8>, value: Option<&Value>) -> TxnOp {
    match value {
        Some(value) => TxnOp::put(key, &**value, None),
        None => TxnOp::delete(key, None),
    }
}

fn check_keys(commit: &Commit) -> Result<(), StoreError> {
    let written = commit.puts.iter().map(|(key, _)| key).chain(&commit.dels);
    let all = written.chain(read_keys(commit));
    match all.map(|key| key.as_bytes().len()).find(|len| *len > KEY_MAX) {
        Some(len) => {
            Err(StoreError::Unavailable(format!("a key of {len} bytes is longer than etcd should hold")))
        }
        None => Ok(()),
    }
}

pub(super) fn fenced() -> StoreError {
    StoreError::Fenced("this node's session ended, or another process took its place; mount again".to_owned())
}

fn unknown() -> Failure {
    Failure::refused("the answer of etcd was lost, and it is unknown whether the change was made; look at it")
}
