//! Quotas of directories: how many bytes and inodes a directory may hold, and how many it holds.
//!
//! An inode names the directory whose quota it counts for ([`crate::InodeRecord::quota`]): the nearest one
//! above it. What is made in a directory inherits this, as with project quotas of other filesystems. So no
//! operation walks up a path, and nothing is moved or linked from one quota into another: rename(2) and
//! link(2) return EXDEV. Each commit that adds or frees bytes or inodes also adds to the counters of that
//! quota. So the counters are exact, also after a crash. What has lost its last name counts for no quota.
//!
//! The directory itself counts for the quota around it. So quotas nest: what counts for the inner one uses up
//! the outer one too. Only the inner counters are stored, and [`Quotas`] sums them up.
//!
//! [`Quotas`] is the copy in memory that decides. On a volume of one node it is exact. On a shared volume it
//! misses what other nodes did since it was read, and what this node did while it was read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use base::Ino;
use hashbrown::HashMap;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::key::{Key, Used, tags};
use crate::plan::Refusal;
use crate::record::{BadRecord, decode_i64};
use crate::store::{MetaStore, StoreError, Value};

/// More quotas around a directory than this are damage.
const DEPTH_MAX: usize = 4096;
/// The most quotas that a volume takes. All of them are in memory.
pub const QUOTAS_MAX: usize = 1 << 20;
/// The most rows over which the uses of all quotas are spread.
const USES_MAX: usize = QUOTAS_MAX * 64;

/// What a directory may hold. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Stored bytes.
    pub bytes: Option<u64>,
    /// Inodes, without the directory itself.
    pub inodes: Option<u64>,
}

/// What is known of what counts for a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// What was in the directory before is being counted.
    Counting,
    /// All of it counts.
    Set,
    /// The quota is being removed. Nothing new counts for it.
    Removing,
}

/// The quota of a directory, as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaRow {
    /// What the directory may hold.
    pub limits: Limits,
    /// How far counting is.
    pub state: State,
    /// The quota around it, which the directory itself counts for; 0 if there is none.
    pub outer: Ino,
}

impl QuotaRow {
    const VERSION: u8 = 1;
    const LEN: usize = 26;
    const NO_LIMIT: u64 = u64::MAX;

    /// The row.
    pub fn encode(&self) -> Value {
        let mut out = [0u8; Self::LEN];
        out[0] = Self::VERSION;
        out[1] = match self.state {
            State::Counting => 1,
            State::Set => 2,
            State::Removing => 3,
        };
        let limit = |limit: Option<u64>| limit.unwrap_or(Self::NO_LIMIT);
        let numbers = [limit(self.limits.bytes), limit(self.limits.inodes), self.outer.0];
        for (to, number) in out[2..].chunks_exact_mut(8).zip(numbers) {
            to.copy_from_slice(&number.to_be_bytes());
        }
        out.as_slice().into()
    }

    /// Reads a row.
    ///
    /// # Errors
    /// The row is not one that [`QuotaRow::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<QuotaRow, BadRecord> {
        let bad = || BadRecord { what: "quota" };
        let (head, rest) = bytes.split_at_checked(2).ok_or_else(bad)?;
        let state = match head {
            [Self::VERSION, 1] => State::Counting,
            [Self::VERSION, 2] => State::Set,
            [Self::VERSION, 3] => State::Removing,
            _ => return Err(bad()),
        };
        let (numbers, []) = rest.as_chunks::<8>() else { return Err(bad()) };
        let [bytes, inodes, outer] = numbers else { return Err(bad()) };
        let limit =
            |bytes: &[u8; 8]| Some(u64::from_be_bytes(*bytes)).filter(|limit| *limit != Self::NO_LIMIT);
        let limits = Limits { bytes: limit(bytes), inodes: limit(inodes) };
        Ok(QuotaRow { limits, state, outer: Ino(u64::from_be_bytes(*outer)) })
    }
}

/// What a change adds to a quota, or takes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The directory with the quota.
    pub quota: Ino,
    /// Stored bytes.
    pub bytes: i64,
    /// Inodes.
    pub inodes: i64,
}

/// A quota, and how much of it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The directory with the quota.
    pub dir: Ino,
    /// The quota's row.
    pub row: QuotaRow,
    /// Stored bytes below the directory.
    pub bytes: u64,
    /// Inodes below the directory.
    pub inodes: u64,
}

/// What is left of the quotas around an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The limit of the innermost quota that has one, and how much may still be used by all quotas around.
    pub bytes: Option<(u64, u64)>,
    /// The limit on inodes of the innermost quota that has one, and how many may still be used by all quotas
    /// around.
    pub inodes: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Domain {
    row: QuotaRow,
    /// What counts for it and for the quotas within it.
    bytes: AtomicI64,
    inodes: AtomicI64,
}

type Domains = HashMap<Ino, Domain>;

/// All quotas of a volume. See the [module](self).
#[derive(Debug, Default)]
pub struct Quotas {
    any: AtomicBool,
    /// On a volume of one node, operations hold this while they are committed and counted, and a read of the
    /// table excludes them. On a shared volume they may wait for other nodes, so they do not hold it.
    gate: RwLock<()>,
    domains: RwLock<Arc<Domains>>,
}

/// The table, for one operation.
pub(crate) struct Held<'a> {
    domains: Option<Arc<Domains>>,
    _gate: Option<RwLockReadGuard<'a, ()>>,
}

impl Quotas {
    /// Whether the volume has quotas.
    pub fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// The volume is about to get a quota: from now on operations hold the table.
    pub fn expect_some(&self) {
        self.any.store(true, Ordering::Release);
    }

    /// The table, for the commit of one operation. `exact`: until this is dropped, [`Quotas::read`] waits. An
    /// operation that has charges was planned after [`Quotas::expect_some`], so it never misses the table.
    pub(crate) fn hold(&self, exact: bool) -> Held<'_> {
        if !self.any() {
            return Held { domains: None, _gate: None };
        }
        let gate = exact.then(|| self.gate.read());
        Held { domains: Some(self.domains.read().clone()), _gate: gate }
    }

    /// Reads everything from the store. `exact`: operations wait meanwhile, so that no charge is counted
    /// twice or not at all.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(crate) fn read(&self, store: &dyn MetaStore, exact: bool) -> Result<(), StoreError> {
        let _gate = exact.then(|| self.gate.write());
        let domains = read(store)?;
        if !domains.is_empty() {
            self.expect_some();
        }
        *self.domains.write() = Arc::new(domains);
        Ok(())
    }

    /// All quotas, by directory.
    pub fn list(&self) -> Vec<Quota> {
        let domains = self.domains.read().clone();
        let mut list: Vec<Quota> = domains
            .iter()
            .map(|(dir, domain)| Quota {
                dir: *dir,
                row: domain.row,
                bytes: domain.bytes.load(Ordering::Relaxed).max(0).unsigned_abs(),
                inodes: domain.inodes.load(Ordering::Relaxed).max(0).unsigned_abs(),
            })
            .collect();
        list.sort_unstable_by_key(|quota| quota.dir);
        list
    }

    /// What is left for an inode that counts for this quota.
    pub fn room(&self, quota: Ino) -> Room {
        let mut room = Room { bytes: None, inodes: None };
        let domains = self.domains.read().clone();
        for domain in around(&domains, quota) {
            let limits = domain.row.limits;
            narrow(&mut room.bytes, limits.bytes, &domain.bytes);
            narrow(&mut room.inodes, limits.inodes, &domain.inodes);
        }
        room
    }
}

fn narrow(room: &mut Option<(u64, u64)>, limit: Option<u64>, used: &AtomicI64) {
    let Some(limit) = limit else { return };
    let left = limit.saturating_sub(used.load(Ordering::Relaxed).max(0).unsigned_abs());
    *room = Some(room.map_or((limit, left), |(inner, before)| (inner, before.min(left))));
}

/// The quotas that something counts for, from the innermost.
fn around(domains: &Domains, quota: Ino) -> impl Iterator<Item = &Domain> {
    let first = domains.get(&quota);
    std::iter::successors(first, |domain| domains.get(&domain.row.outer)).take(DEPTH_MAX)
}

impl Held<'_> {
    /// Counts charges. If `limited`, and one of them grows beyond a limit, none is counted.
    pub(crate) fn add(&self, charges: &[Charge], limited: bool) -> Result<(), Refusal> {
        let Some(domains) = &self.domains else { return Ok(()) };
        let mut over = false;
        for charge in charges {
            for domain in around(domains, charge.quota) {
                let Limits { bytes, inodes } = domain.row.limits;
                over |=
                    grow(&domain.bytes, charge.bytes, bytes) | grow(&domain.inodes, charge.inodes, inodes);
            }
        }
        if over && limited {
            self.take_back(charges);
            return Err(Refusal::OverQuota);
        }
        Ok(())
    }

    /// Takes back what was counted for a change that was not made.
    pub(crate) fn take_back(&self, charges: &[Charge]) {
        let Some(domains) = &self.domains else { return };
        for charge in charges {
            for domain in around(domains, charge.quota) {
                domain.bytes.fetch_sub(charge.bytes, Ordering::Relaxed);
                domain.inodes.fetch_sub(charge.inodes, Ordering::Relaxed);
            }
        }
    }
}

/// Adds to a sum. Returns whether it grew beyond its limit.
fn grow(sum: &AtomicI64, by: i64, limit: Option<u64>) -> bool {
    let after = sum.fetch_add(by, Ordering::Relaxed).saturating_add(by).max(0).unsigned_abs();
    by > 0 && limit.is_some_and(|limit| after > limit)
}

fn read(store: &dyn MetaStore) -> Result<Domains, StoreError> {
    let damaged = |error: BadRecord| StoreError::Damaged(error.to_string());
    let rows = store.scan(&Key::kind(tags::QUOTA), QUOTAS_MAX)?;
    let mut domains = Domains::new();
    if rows.is_empty() {
        return Ok(domains);
    }
    for (key, row) in &rows {
        let row = QuotaRow::decode(row).map_err(damaged)?;
        let dir = Ino(key.number().unwrap_or_default());
        domains.insert(dir, Domain { row, bytes: AtomicI64::new(0), inodes: AtomicI64::new(0) });
    }
    for (key, row) in store.scan(&Key::kind(tags::QUOTA_USED), USES_MAX)? {
        let Some((dir, what)) = key.as_quota_used() else { continue };
        let by = decode_i64(Some(&row)).map_err(damaged)?;
        for domain in around(&domains, dir) {
            let sum = match what {
                Used::Bytes => &domain.bytes,
                Used::Inodes => &domain.inodes,
            };
            sum.fetch_add(by, Ordering::Relaxed);
        }
    }
    Ok(domains)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_it_was_written() {
        for state in [State::Counting, State::Set, State::Removing] {
            for (bytes, inodes) in [(None, None), (Some(0), Some(7)), (Some(1 << 40), None)] {
                let row = QuotaRow { limits: Limits { bytes, inodes }, state, outer: Ino(3) };
                assert_eq!(QuotaRow::decode(&row.encode()), Ok(row));
            }
        }
        let good = QuotaRow { limits: Limits::default(), state: State::Set, outer: Ino(0) }.encode();
        for len in 0..good.len() {
            assert!(QuotaRow::decode(&good[..len]).is_err(), "{len} bytes");
        }
        assert!(QuotaRow::decode(&[&good[..], &[0]].concat()).is_err());
        assert!(QuotaRow::decode(&[&[1, 4], &good[2..]].concat()).is_err());
    }
}
