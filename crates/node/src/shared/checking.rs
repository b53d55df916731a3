//! What can be seen of a shared volume in its database, without joining it: whether its names agree with one
//! another, and which locks its nodes hold.

use std::sync::Arc;
use std::time::Duration;

use ::fs::api::{LockKind, LockRange, LockStyle};
use ::fs::fsck::path_of;
use ::fs::locks::row;
use ::fs::volume::Volume;
use api::error::{Failure, Result};
use engines::Address;
use meta::audit::{self, Listener, Summary};
use meta::engine::database::{Database, SessionRow};
use meta::engine::moment::Moment;
use meta::key::tags;
use meta::store::StoreError;
use meta::{Key, MetaStore, Names};
use serde::Serialize;

use super::{setup_failure, setup_failure_at};
use crate::refused::open_failure;

/// How long paths are looked for, in total. Directories may be large.
const PATHS: Duration = Duration::from_secs(10);
/// Rows of locks that are read at a time.
const BATCH: usize = 1024;

/// A lock on a file of a shared volume.
#[derive(Clone, Debug, Serialize)]
pub struct LockRow {
    /// The file.
    pub inode: u64,
    /// One of its paths, if it was found.
    pub path: Option<String>,
    /// `flock`, or `fcntl` for a lock on a range.
    pub style: &'static str,
    /// `read` or `write`.
    pub kind: &'static str,
    /// The first byte of the range.
    pub start: u64,
    /// The last byte of the range. None: to the end of the file, however long it becomes.
    pub end: Option<u64>,
    /// The number of the node.
    pub node: u32,
    /// The node's machine, if the node is known.
    pub host: Option<String>,
    /// The epoch of the session in which it was taken.
    pub session: u64,
    /// Whether that session lasts. If not, the next program that wants the lock gets it.
    pub alive: bool,
    /// The process that asked for it, on its machine.
    pub pid: u32,
}

fn open(address: &Address) -> Result<Arc<dyn Database>> {
    address.open().map_err(setup_failure_at(address))
}

/// Checks that the names of a volume agree with one another, as of one moment. Its nodes keep working.
///
/// # Errors
/// The address is wrong, the database cannot be used, or it holds no volume of this format.
pub fn check(address: &str, listener: &mut Listener<'_>) -> Result<Summary> {
    let target = Address::parse(address).map_err(setup_failure)?;
    let (names, unreached) = (open(&target)?, setup_failure_at(&target));
    let failed = |error: StoreError| match error {
        error @ StoreError::Unavailable(_) => unreached(error.into()),
        error => open_failure(address.as_ref(), ::fs::OpenError::Store(error)),
    };
    let moment = names.snapshot().and_then(Moment::of).map_err(failed)?;
    Volume::probe(&moment).map_err(|error| open_failure(address.as_ref(), error))?;
    audit::audit(&moment, listener).map_err(failed)
}

/// All locks that nodes of the volume hold, by file.
///
/// # Errors
/// The address is wrong, or the database cannot be used.
pub fn locks(address: &str) -> Result<Vec<LockRow>> {
    let address = Address::parse(address).map_err(setup_failure)?;
    let names = open(&address)?;
    let unreached = setup_failure_at(&address);
    let failed = |error: StoreError| unreached(error.into());
    let mut found = Vec::new();
    let mut range = Key::kind(tags::LOCK);
    loop {
        let rows = names.scan(&range, BATCH).map_err(failed)?;
        let Some((last, _)) = rows.last() else { break };
        range.start = last.successor();
        found.extend(rows);
    }
    // Read after the locks: a session that is not among them has ended.
    let sessions = names.sessions().map_err(failed)?;
    let store: Arc<dyn MetaStore> = names;
    let mut paths = Paths { names: Names::new(store), until: base::time::monotonic() + PATHS };
    let mut locks = Vec::new();
    for (key, value) in found {
        let table = row::decode(&value).ok();
        let (Some(ino), Some(table)) = (key.as_lock(), table) else {
            return Err(Failure::new("damaged", format!("the row {key:?} of locks is damaged"))
                .next("covey fsck ADDRESS checks the volume"));
        };
        let path = paths.of(ino);
        let all = [LockStyle::Range, LockStyle::Flock].into_iter().flat_map(|style| table.of(style).iter());
        locks.extend(all.map(|lock| shown(ino.0, path.clone(), lock, &sessions)));
    }
    Ok(locks)
}

fn shown(
    inode: u64,
    path: Option<String>,
    lock: &::fs::api::Lock<row::Owner>,
    sessions: &[SessionRow],
) -> LockRow {
    let session = sessions.iter().find(|session| session.number == i64::from(lock.owner.node));
    let is_alive =
        |session: &SessionRow| session.alive && u64::try_from(session.epoch) == Ok(lock.owner.epoch);
    LockRow {
        inode,
        path,
        style: if lock.style == LockStyle::Flock { "flock" } else { "fcntl" },
        kind: if lock.kind == LockKind::Read { "read" } else { "write" },
        start: lock.range.start,
        end: Some(lock.range.end).filter(|end| *end < LockRange::END),
        node: lock.owner.node,
        host: session.map(|session| session.host.clone()),
        session: lock.owner.epoch,
        alive: session.is_some_and(is_alive),
        pid: lock.pid,
    }
}

struct Paths {
    names: Names,
    until: std::time::Instant,
}

impl Paths {
    fn of(&mut self, ino: base::Ino) -> Option<String> {
        if base::time::monotonic() >= self.until {
            return None;
        }
        path_of(&self.names, ino).ok().flatten()
    }
}
