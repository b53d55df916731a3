//! Rows in PostgreSQL: one table for all volumes of a database, shared by any number of nodes.
//!
//! ```text
//!   covey_schema(version)                                      the version of all of this
//!   covey_volume(id, name, uuid, sessions)                     the volumes
//!   covey_kv(volume, k, v)                                     the rows
//!   covey_session(volume, number, node, .. epoch, expires)     the nodes that use a volume
//!   covey_done(volume, number, lane, op, attempt, applied)     the last operation of each lane
//! ```
//!
//! **A read is one round trip, and so is a commit.** Statements are unnamed and outside of transactions, so a
//! proxy that gives each transaction another connection (pgbouncer) may stand in between. Only a snapshot
//! needs a connection of its own. A commit is on the server's disk when it returns, also where
//! `synchronous_commit` is off. It is on those of standbys too if that setting says so.
//!
//! **A store uses one database, the one that it has opened** ([`incarnation`]): each new connection and each
//! renewal of the session looks whether it is that one.
//!
//! **A commit is a call of a function of the server**, at READ COMMITTED. Its steps, in this order:
//!
//! 1. The session's row is locked `for key share`, and its epoch, token and time are checked ([`session`]).
//! 2. The lane's row is locked. It says whether an earlier attempt of the same operation was applied. So a
//!    commit whose answer was lost is not applied twice. If an attempt meets a conflict after an earlier one
//!    was lost, that is recorded too, so that the lost one cannot be applied later.
//! 3. Rows that are checked to be absent, and rows that are written without a check, are inserted if they are
//!    absent, in key order and with their final value. So two commits that create the same row exclude each
//!    other. A row that is only checked is removed at the end.
//! 4. All rows but those checked to be absent are locked in key order: those that are written `for update`,
//!    those that must have a value `for share`, those that must exist `for key share`. So commits that only
//!    check the same directory run concurrently, and a commit that removes it excludes them.
//! 5. Checks and empty ranges are evaluated by one statement. If a check fails, the inserted rows are removed
//!    and the fresh values returned. If the statement sees a row that is not locked, or misses one that is to
//!    be changed, the commit is rolled back and tried again with all its rows in step 3.
//! 6. The changes are applied, and the operation is recorded.
//!
//! **No deadlocks among commits.** In step 3 a commit holds only rows that others do not see yet, so only
//! others in step 3 wait for it, and all go in key order. It waits for these and for commits behind step 4.
//! In step 4 all go in key order too. Behind step 4 a commit waits for nothing. If the server finds a
//! deadlock with another program's transaction, the commit is tried again.
//!
//! **Counters** are rows that many commits change. A counter's row is locked until the commit is durable, so
//! commits that change the same counter follow one another.
//!
//! **Empty ranges.** Nothing locks a range, so the engine alone does not stop a concurrent commit from
//! inserting into a range that this one checked. The planner does: a commit that inserts into a range always
//! checks or changes a row that every commit that empties the range writes, or checks to be absent: the
//! directory's inode, or the counter of bytes that refer to a pack. That row makes one of them wait, and the
//! second sees what the first did. Commits without such a common row must not rely on an empty range.
//!
//! A key has at most 2,600 bytes, the limit of PostgreSQL's index.

mod admin;
mod check;
mod commit;
mod errors;
mod incarnation;
mod link;
mod pool;
mod secrets;
mod session;
mod snapshot;
mod target;
mod tls;
mod upgrade;

use std::collections::HashMap;

use meta::engine::database::check_session;
use meta::key::{Key, KeyRange};
use meta::store::{
    Commit, CommitError, Limit, Linked, Looked, MetaStore, Rows, Snapshot, StoreError, Value, linked_keys,
};
use parking_lot::RwLock;
use tokio_postgres::types::{ToSql, Type};

use commit::{Id, Request, outcome, unknown, unread};
use errors::Failure;
use pool::Pool;
use session::Place;

pub use crate::pool::Options;
pub use crate::secrets::Secrets;
pub use meta::engine::database::{
    Checked, Incarnation, Join, Level, Renewed, Session, SessionRow, SetupError,
};
pub use target::{Target, TlsMode};

/// The version of the tables and functions.
const VERSION: i32 = 3;
/// The oldest server, as in `server_version_num`.
const SERVER_MIN: i32 = 140_000;
/// Commits of this size are made within the patience of a store, also over a slow link.
const LIMIT: Limit = Limit { rows: 10_000, bytes: 4 << 20, checks: 10_000 };
/// A longer scan is read in pages, from a snapshot.
const SCAN_MAX: usize = 10_000;

const GET: &str = "select v from covey_kv where volume = $1 and k = $2";
const GET_MANY: &str = "select k, v from covey_kv where volume = $1 and k = any($2)";
const GET_LINKED: &str = "select k, v from covey_kv where volume = $1 and k = any($2) union all \
    select r.k, r.v from covey_kv e, unnest($4) t(tag), covey_kv r where e.volume = $1 and e.k = $3 \
    and r.volume = $1 and r.k = t.tag || substring(e.v from 1 for 8)";
const SCAN: &str = "select k, v from covey_kv where volume = $1 and k >= $2 and k < $3 order by k limit $4";

const LOOK: &str = "select 0::bigint, k, v from covey_kv where volume = $1 and k = any($2) union all \
    select r.n, t.k, t.v from unnest($3, $4) with ordinality r(f, u, n), lateral (\
    select k, v from covey_kv where volume = $1 and k >= r.f and k < r.u order by k limit $5) t";

/// Rows of a volume in PostgreSQL. See the [module](self). Not for use on threads of a tokio runtime.
pub struct Postgres {
    pool: Pool,
    volume: i32,
    uuid: [u8; 16],
    /// Identifies the operations of a store without a session, or with one that another process began:
    /// negative and random.
    own: i64,
    place: RwLock<Option<Place>>,
}

impl Postgres {
    /// The volume's id, as given to [`Postgres::create`].
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The address.
    pub fn target(&self) -> &Target {
        &self.pool.door.target
    }

    fn read_page(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        let limit = limit as i64;
        let (start, end) = (range.start.as_bytes(), range.end.as_bytes());
        let args: [(&(dyn ToSql + Sync), Type); 4] =
            [(&self.volume, Type::INT4), (&start, Type::BYTEA), (&end, Type::BYTEA), (&limit, Type::INT8)];
        let rows = self.pool.ask(async |client| client.query_typed(SCAN, &args).await)?;
        let read = |row: &tokio_postgres::Row| {
            Ok((Key::from_bytes(row.try_get(0)?), Value::from(row.try_get::<_, &[u8]>(1)?)))
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(unread)
    }
}

impl MetaStore for Postgres {
    fn get(&self, key: &Key) -> Result<Option<Value>, StoreError> {
        let key = key.as_bytes();
        let args: [(&(dyn ToSql + Sync), Type); 2] = [(&self.volume, Type::INT4), (&key, Type::BYTEA)];
        let row = self.pool.ask(async |client| client.query_typed_opt(GET, &args).await)?;
        row.map(|row| row.try_get::<_, &[u8]>(0).map(Value::from)).transpose().map_err(unread)
    }

    fn is_at_hand(&self, _: &Key) -> bool {
        false
    }

    fn get_many(&self, keys: &[Key]) -> Result<Vec<Option<Value>>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let list: Vec<&[u8]> = keys.iter().map(Key::as_bytes).collect();
        let args: [(&(dyn ToSql + Sync), Type); 2] = [(&self.volume, Type::INT4), (&list, Type::BYTEA_ARRAY)];
        let rows = self.pool.ask(async |client| client.query_typed(GET_MANY, &args).await)?;
        let read = |row: &tokio_postgres::Row| {
            Ok((row.try_get::<_, Vec<u8>>(0)?, Value::from(row.try_get::<_, &[u8]>(1)?)))
        };
        let found = rows.iter().map(read).collect::<Result<HashMap<_, _>, _>>().map_err(unread)?;
        Ok(keys.iter().map(|key| found.get(key.as_bytes()).cloned()).collect())
    }

    fn get_linked(&self, from: &Key, also: &[Key], tags: &[u8]) -> Result<Linked, StoreError> {
        let keys: Vec<&[u8]> = std::iter::once(from).chain(also).map(Key::as_bytes).collect();
        let (key, tags_): (&[u8], Vec<&[u8]>) = (from.as_bytes(), tags.chunks(1).collect());
        let args: [(&(dyn ToSql + Sync), Type); 4] = [
            (&self.volume, Type::INT4),
            (&keys, Type::BYTEA_ARRAY),
            (&key, Type::BYTEA),
            (&tags_, Type::BYTEA_ARRAY),
        ];
        let rows = self.pool.ask(async |client| client.query_typed(GET_LINKED, &args).await)?;
        let read = |row: &tokio_postgres::Row| {
            Ok((row.try_get::<_, Vec<u8>>(0)?, Value::from(row.try_get::<_, &[u8]>(1)?)))
        };
        let found = rows.iter().map(read).collect::<Result<HashMap<_, _>, _>>().map_err(unread)?;
        let of = |key: &Key| found.get(key.as_bytes()).cloned();
        let linked = found.get(from.as_bytes()).map(|value| linked_keys(value, tags));
        Ok(Linked {
            from: of(from),
            also: also.iter().map(of).collect(),
            linked: linked.map_or_else(|| vec![None; tags.len()], |keys| keys.iter().map(of).collect()),
        })
    }

    /// Up to 10,000 rows in one round trip. A longer result is read again, from a snapshot.
    fn scan(&self, range: &KeyRange, limit: usize) -> Result<Rows, StoreError> {
        if limit == 0 || range.start >= range.end {
            return Ok(Rows::new());
        }
        let mut rows = self.read_page(range, limit.min(SCAN_MAX + 1))?;
        if limit > SCAN_MAX && rows.len() > SCAN_MAX {
            rows.clear();
            self.snapshot()?.each(range, &mut |key, value| {
                rows.push((Key::from_bytes(key), value.into()));
                rows.len() < limit
            })?;
        }
        Ok(rows)
    }

    fn look(&self, keys: &[Key], ranges: &[KeyRange], limit: usize) -> Result<Looked, StoreError> {
        let list: Vec<&[u8]> = keys.iter().map(Key::as_bytes).collect();
        let starts: Vec<&[u8]> = ranges.iter().map(|range| range.start.as_bytes()).collect();
        let ends: Vec<&[u8]> = ranges.iter().map(|range| range.end.as_bytes()).collect();
        let limit = limit.min(SCAN_MAX) as i64;
        let args: [(&(dyn ToSql + Sync), Type); 5] = [
            (&self.volume, Type::INT4),
            (&list, Type::BYTEA_ARRAY),
            (&starts, Type::BYTEA_ARRAY),
            (&ends, Type::BYTEA_ARRAY),
            (&limit, Type::INT8),
        ];
        let rows = self.pool.ask(async |client| client.query_typed(LOOK, &args).await)?;
        let mut singles: HashMap<Key, Value> = HashMap::new();
        let mut found = vec![Rows::new(); ranges.len()];
        for row in &rows {
            let number: i64 = row.try_get(0).map_err(unread)?;
            let key = Key::from_bytes(row.try_get(1).map_err(unread)?);
            let value = Value::from(row.try_get::<_, &[u8]>(2).map_err(unread)?);
            match usize::try_from(number - 1).ok().and_then(|number| found.get_mut(number)) {
                Some(rows) => rows.push((key, value)),
                None => _ = singles.insert(key, value),
            }
        }
        found.iter_mut().for_each(|rows| rows.sort_unstable_by(|(a, _), (b, _)| a.cmp(b)));
        Ok(Looked { rows: keys.iter().map(|key| singles.get(key).cloned()).collect(), ranges: found })
    }

    fn current_session(&self) -> Option<Session> {
        self.session()
    }

    fn commit(&self, commit: Commit) -> Result<(), CommitError> {
        if commit.is_empty() && commit.checks.is_empty() && commit.empty.is_empty() {
            return Ok(());
        }
        // Before all that waits. The server refuses it if the node joins again meanwhile.
        let place = *self.place.read();
        check_session(&commit, place.map(|place| place.session()))?;
        let mut request = Request::new(&commit, false)?;
        let mut taken = self.pool.take()?;
        let (mut lane, mut op) = taken.next_op();
        let owner = place.filter(|place| !place.is_resumed).map_or(self.own, |place| place.number);
        let mut is_lost = false;
        let row = taken.attempts(|taken, attempt| {
            if lane != taken.number() {
                (lane, op) = taken.next_op();
            }
            let id = Id { volume: self.volume, place, owner, lane, op, attempt };
            let done = taken.once(async |client| request.call(client, id).await);
            is_lost |= matches!(done, Err(Failure::Lost(_)));
            if matches!(done, Err(Failure::Own(_))) {
                request = Request::new(&commit, true).map_err(Failure::Store)?;
            }
            done
        });
        let row = match row {
            // Only the last attempt is known to have changed nothing.
            Err(StoreError::NoSpace(_)) if is_lost => Err(unknown()),
            row => row,
        }?;
        match outcome(&commit, &row) {
            // The session may have ended after an earlier attempt.
            Err(CommitError::Store(StoreError::Fenced(_))) if is_lost => Err(unknown().into()),
            done => done,
        }
    }

    fn commit_limit(&self) -> Limit {
        LIMIT
    }

    /// Nothing: a commit is durable when it returns.
    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        let (door, patience) = (&self.pool.door, self.pool.patience);
        let mut taken = self.pool.take()?;
        let taken = taken.attempts(|_, _| snapshot::PgSnapshot::take(door, self.volume, patience))?;
        Ok(Box::new(taken))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // A session's rows are removed when the node joins again.
        if self.place.get_mut().is_none_or(|place| place.is_resumed) {
            admin::forget(&self.pool, self.volume, self.own);
        }
    }
}
