//! `covey fsck --repair` of a shared volume, while no node uses it.
//!
//! A repair changes rows that nodes remember under their leases. So there must be none. The command takes a
//! session of its own and writes the row `repairing`. Then it looks whether other sessions last. A node looks
//! for that row after it has joined. So either the node sees the row and leaves, or the command sees the node
//! and gives up. The row counts as long as the command's session lasts: a command that was killed keeps
//! nodes out for 15 seconds.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ::fs::volume::Volume;
use api::error::{Failure, Result};
use engines::Address;
use meta::audit::{self, Finding, Listener, Summary};
use meta::engine::database::{Database, Join, SessionRow};
use meta::engine::moment::Moment;
use meta::record::decode_i64;
use meta::store::{CommitError, StoreError, Value};
use meta::{Commit, Expect, Key, MetaStore};

use super::living::Living;
use super::rows::ROW_REPAIRING;
use super::{EVERY, LEASE, setup_failure, unfinished};
use crate::refused::open_failure;

/// A repair may reveal further findings, but only a few.
const PASSES: usize = 8;

/// What a repair came to.
#[derive(Clone, Copy, Debug)]
pub struct Repaired {
    /// What the last check read.
    pub summary: Summary,
    /// Findings that are left, and not harmless.
    pub left: u64,
}

/// The callbacks of a repair.
pub struct Callbacks<'a> {
    /// Called with each finding, and whether it was repaired.
    pub found: &'a mut dyn FnMut(&Finding, bool),
    /// Called now and then, with how many rows were read.
    pub progress: &'a mut dyn FnMut(u64),
}

/// Checks the names of a volume and repairs them, until a check finds nothing more to repair.
///
/// # Errors
/// `in-use` if a node has the volume mounted. Otherwise the address is wrong, the database cannot be used, or
/// it holds no volume of this format. What was repaired until then stays.
pub fn repair(address: &str, callbacks: &mut Callbacks<'_>) -> Result<Repaired> {
    let target = Address::parse(address).map_err(setup_failure)?;
    let names = target.open().map_err(setup_failure)?;
    let rows: Arc<dyn MetaStore> = names.clone();
    unfinished::check_complete(&target, &rows)?;
    let hold = Hold::take(names)?;
    hold.wait_until_alone()?;
    let mut reported: Vec<Finding> = Vec::new();
    let mut pass = 1;
    loop {
        let (summary, findings) = hold.audit(&target, callbacks.progress)?;
        let (mut repaired, mut left) = (0, 0);
        for finding in &findings {
            let done = pass < PASSES && hold.repair(finding)?;
            repaired += u64::from(done);
            left += u64::from(!finding.is_harmless() && !done);
            if done || !reported.contains(finding) {
                (callbacks.found)(finding, done);
            }
        }
        if repaired == 0 {
            return Ok(Repaired { summary, left });
        }
        reported.extend(findings);
        pass += 1;
    }
}

/// Fails if the volume is being repaired. A node calls it after it has joined.
pub(super) fn check_none(names: &dyn Database) -> std::result::Result<(), StoreError> {
    let Some(row) = names.get(&Key::volume(ROW_REPAIRING))? else { return Ok(()) };
    match owner(names, &row)? {
        Some(session) if !is_over(names, &session)? => Err(StoreError::Unavailable(format!(
            "the volume is being repaired or detached on {}: mount it when that has ended",
            session.host
        ))),
        _ => Ok(()),
    }
}

/// The session that a row `repairing` names: a number, a space, and an epoch.
fn owner(names: &dyn Database, row: &[u8]) -> std::result::Result<Option<SessionRow>, StoreError> {
    let text = String::from_utf8_lossy(row).into_owned();
    let is_it = |session: &SessionRow| text == format!("{} {}", session.number, session.epoch);
    Ok(names.sessions()?.into_iter().find(is_it))
}

/// Whether a session is over. One that has expired is ended, so that the database's clock cannot bring it
/// back.
fn is_over(names: &dyn Database, session: &SessionRow) -> std::result::Result<bool, StoreError> {
    if session.ended {
        Ok(true)
    } else if session.alive {
        Ok(false)
    } else {
        names.end(session)
    }
}

/// The volume, without nodes.
pub(super) struct Hold {
    names: Arc<dyn Database>,
    number: i64,
    row: Value,
    renewed: Cell<Instant>,
}

impl Hold {
    pub(super) fn take(names: Arc<dyn Database>) -> Result<Hold> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let join = Join {
            node: base::random::id16(),
            host: host.trim(),
            address: "",
            ttl: LEASE,
            take_over: false,
            program: env!("CARGO_PKG_VERSION"),
        };
        let renewed = Cell::new(base::time::monotonic());
        let session = names.join(&join).map_err(failed)?;
        let row = Value::from(format!("{} {}", session.number, session.epoch).into_bytes());
        let hold = Hold { names, number: session.number, row, renewed };
        hold.write_row()?;
        Ok(hold)
    }

    fn write_row(&self) -> Result<()> {
        let key = Key::volume(ROW_REPAIRING);
        let before = self.names.get(&key).map_err(failed)?;
        if let Some(before) = &before
            && let Some(other) = owner(&*self.names, before).map_err(failed)?
            && !is_over(&*self.names, &other).map_err(failed)?
        {
            return Err(repaired_elsewhere(&other.host));
        }
        let check = before.map_or(Expect::Absent, Expect::Is);
        let commit = Commit {
            checks: vec![(key.clone(), check)],
            puts: vec![(key, self.row.clone())],
            ..Commit::default()
        };
        match self.names.commit(commit) {
            Ok(()) => Ok(()),
            Err(CommitError::Conflict { .. }) => Err(repaired_elsewhere("another machine")),
            Err(CommitError::Store(error)) => Err(failed(error)),
        }
    }

    /// Waits until the sessions of nodes that are gone are over. A session that is renewed is in use.
    pub(super) fn wait_until_alone(&self) -> Result<()> {
        let living = Living::default();
        let (began, mut first) = (base::time::monotonic(), HashMap::new());
        loop {
            let asked = base::time::monotonic();
            let rows = self.names.sessions().map_err(failed)?;
            let others = rows.into_iter().filter(|row| row.number != self.number && !row.ended).collect();
            let mut left = None;
            for (row, lasts) in living.judge(others, asked, base::time::monotonic()) {
                let seen = (row.epoch, row.renewal);
                if *first.entry(row.number).or_insert(seen) != seen {
                    return Err(in_use(&row));
                }
                if lasts || !self.names.end(&row).map_err(failed)? {
                    left = Some(row);
                }
            }
            match left {
                None => return Ok(()),
                Some(row) if began.elapsed() > 2 * LEASE => return Err(in_use(&row)),
                Some(_) => self.keep()?,
            }
            sleep(Duration::from_millis(500));
        }
    }

    /// Holds as long as no other command has taken the volume since.
    pub(super) fn check(&self) -> (Key, Expect) {
        (Key::volume(ROW_REPAIRING), Expect::Is(self.row.clone()))
    }

    /// Makes the session last.
    pub(super) fn keep(&self) -> Result<()> {
        let now = base::time::monotonic();
        if now.saturating_duration_since(self.renewed.get()) >= EVERY {
            self.names.renew().map_err(failed)?;
            self.renewed.set(now);
        }
        Ok(())
    }

    fn audit(&self, target: &Address, progress: &mut dyn FnMut(u64)) -> Result<(Summary, Vec<Finding>)> {
        let moment = self.names.snapshot().and_then(Moment::of).map_err(failed)?;
        let shown = target.to_string();
        Volume::probe(&moment).map_err(|error| open_failure(shown.as_ref(), error))?;
        let (mut findings, mut lost) = (Vec::new(), None);
        let mut listener = Listener {
            found: &mut |finding| findings.push(finding),
            progress: &mut |rows| {
                lost = lost.take().or_else(|| self.keep().err());
                progress(rows);
            },
        };
        let summary = audit::audit(&moment, &mut listener).map_err(failed)?;
        lost.map_or(Ok((summary, findings)), Err)
    }

    /// Repairs a finding. False: it cannot be repaired.
    fn repair(&self, finding: &Finding) -> Result<bool> {
        self.keep()?;
        let Some(commit) = commit_of(finding) else { return Ok(false) };
        match self.names.commit(commit) {
            Ok(()) => Ok(true),
            Err(CommitError::Conflict { .. }) => Ok(false),
            Err(CommitError::Store(error)) => Err(failed(error)),
        }
    }
}

impl Drop for Hold {
    /// Without an answer, the row counts until the session has ended.
    fn drop(&mut self) {
        let key = Key::volume(ROW_REPAIRING);
        let commit = Commit {
            checks: vec![(key.clone(), Expect::Is(self.row.clone()))],
            dels: vec![key],
            ..Commit::default()
        };
        let _ = self.names.commit(commit);
        let _ = self.names.leave();
    }
}

/// The commit that repairs a finding. A sum that is spread over several rows is repaired in one of them.
fn commit_of(finding: &Finding) -> Option<Commit> {
    if let Finding::WrongCount { key, found, expected } = finding
        && let Some(part) = key.spread_part()
    {
        let by = expected.checked_sub(decode_i64(found.as_deref()).ok()?)?;
        return Some(Commit { adds: vec![(part, by)], ..Commit::default() });
    }
    audit::repair(finding)
}

fn in_use(row: &SessionRow) -> Failure {
    Failure::new("in-use", format!("the volume is mounted on {}", row.host))
        .why("a volume cannot be repaired while nodes use it")
        .next("unmount it on every node that this lists: covey sessions ADDRESS")
}

fn repaired_elsewhere(host: &str) -> Failure {
    Failure::new("in-use", format!("the volume is being repaired or detached on {host}"))
        .next("wait until that has ended")
}

fn failed(error: StoreError) -> Failure {
    setup_failure(error.into())
}
