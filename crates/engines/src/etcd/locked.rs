//! A commit that rests on more rows than one transaction of etcd can check.
//!
//! It takes the volume's lock: a key that every other commit checks to be absent. While it is there, nothing
//! changes. So the rows are read first, and the transaction checks only that the lock is still held. The lock
//! has a lease of its own, so one that its owner left behind goes away by itself.
//!
//! Each time the lock is taken it has another value. So a transaction that was lost, and arrives after the
//! lock was taken again, changes nothing.

use std::time::Duration;

use etcd_client::{PutOptions, Txn, TxnOp, TxnResponse};
use meta::store::{CommitError, StoreError};

use super::commit::{Guard, Lane, Outcome, Owner, Run, fenced, final_op};
use super::errors::{Failure, NoLease};
use super::pool::Taken;
use super::request::{Ask, absent, found, is, levels, packed, single};
use super::{Etcd, gone};

/// How long the lock lasts.
const TTL: Duration = Duration::from_secs(15);

impl Etcd {
    pub(super) fn send_locked(
        &self,
        taken: &mut Taken<'_>,
        owner: &Owner,
        lane: &mut Lane,
        run: &mut Run<'_>,
    ) -> Result<Outcome, Failure> {
        self.unlock(taken, run)?;
        let token = self.lock(taken, owner, run)?;
        let done = self.send_under(taken, owner, lane, run, &token);
        if !matches!(done, Err(Failure::Lost(_))) {
            // If it fails, the next attempt or the lock's lease does it.
            let _ = self.unlock(taken, run);
        }
        done
    }

    /// Takes the lock.
    fn lock(&self, taken: &mut Taken<'_>, owner: &Owner, run: &mut Run<'_>) -> Result<String, Failure> {
        let seconds = i64::try_from(TTL.as_secs()).unwrap_or(i64::MAX);
        let lease = taken.once(async |mut wires| wires.lease.grant(seconds, None).await)?.id();
        let token = format!("{} {:016x}", owner.name, base::random::u64());
        run.token = Some(token.clone());
        let key = self.layout.lock();
        let put = TxnOp::put(key.clone(), token.as_bytes(), Some(PutOptions::new().with_lease(lease)));
        let mut checks = owner.guard.checks();
        checks.push(absent(key));
        let txn = Txn::new().when(checks).and_then([put]).or_else([owner.guard.ask().op()]);
        let answer = taken.once(async |mut wires| wires.kv.txn(txn).await)?;
        if answer.succeeded() {
            return Ok(token);
        }
        run.token = None;
        let _ = taken.once(async |mut wires| wires.lease.revoke(lease).await);
        self.check_guard(owner, &answer)?;
        Err(Failure::Again("another node makes a very large change to the volume".to_owned()))
    }

    /// Gives back the lock that an attempt took, or may have taken.
    fn unlock(&self, taken: &mut Taken<'_>, run: &mut Run<'_>) -> Result<(), Failure> {
        let Some(token) = &run.token else { return Ok(()) };
        let key = self.layout.lock();
        let txn = Txn::new().when([is(key.clone(), token.as_bytes())]).and_then([TxnOp::delete(key, None)]);
        taken.once(async |mut wires| wires.kv.txn(txn).await)?;
        run.token = None;
        Ok(())
    }

    fn send_under(
        &self,
        taken: &mut Taken<'_>,
        owner: &Owner,
        lane: &mut Lane,
        run: &mut Run<'_>,
        token: &str,
    ) -> Result<Outcome, Failure> {
        let finals = match self.values(taken, run.commit)?.resolve(run.commit) {
            Ok(finals) => finals,
            Err(CommitError::Conflict { rows, not_empty }) => {
                return Ok(Outcome::Conflict { rows, not_empty });
            }
            Err(CommitError::Store(error)) => return Err(Failure::Store(error)),
        };
        let lock = self.layout.lock();
        let mut checks = owner.guard.checks();
        checks.extend([lane.check(), is(lock.clone(), token.as_bytes())]);
        let mut writes = vec![lane.note(owner.lease), TxnOp::delete(lock.clone(), None)];
        writes.extend(finals.iter().map(|(key, value)| final_op(self.layout.row(key), value.as_ref())));
        let levels = levels(checks.len(), writes.len()).ok_or_else(|| {
            Failure::refused(format!("a change of {} rows is larger than etcd takes", writes.len()))
        })?;
        let reads = packed(vec![owner.guard.ask().op(), lane.ask().op(), Ask::Key(lock).op()], levels);
        let txn = Txn::new().when(checks).and_then(packed(writes, levels)).or_else(reads);
        let answer = self.send_txn(taken, lane, run, txn)?;
        if answer.succeeded() {
            run.token = None;
            self.counters.lock().clear();
            return Ok(Outcome::Applied);
        }
        let rows = found(&answer);
        let at = rows.get(1).and_then(|rows| single(rows));
        if lane.was_applied(at) {
            return Ok(Outcome::Applied);
        }
        self.check_guard(owner, &answer)?;
        if !lane.is_as_seen(at) {
            return Err(Failure::Own(NoLease));
        }
        Err(Failure::Again(format!(
            "a change of {} rows took longer than {} s; look at the load of etcd",
            finals.len(),
            TTL.as_secs()
        )))
    }

    /// The guard's row is the first that an answer has.
    fn check_guard(&self, owner: &Owner, answer: &TxnResponse) -> Result<(), Failure> {
        let rows = found(answer);
        if owner.guard.holds(rows.first().and_then(|rows| single(rows))) {
            return Ok(());
        }
        let error: StoreError = match owner.guard {
            Guard::Session { .. } => fenced(),
            Guard::Volume(_) => gone(&self.pool.door.target),
        };
        Err(Failure::Store(error))
    }
}
