//! A commit as the arguments of the server's function, and its answer.
//!
//! Sorting and classifying happen here, because a core of a node is cheaper than one of the server.

use std::collections::BTreeMap;

use meta::key::Key;
use meta::record::{encode_i64, encode_u64};
use meta::store::{Commit, CommitError, Expect, StoreError, Value};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::session::Place;

/// The longest key, in bytes: what an index row of PostgreSQL holds, whatever its page size is.
const KEY_MAX: usize = 2_600;

/// The call.
const CALL: &str = "select state, failed, fresh, not_empty from covey_commit_2($1, $2, $3, $4, $5, $6, $7, \
    $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30)";

/// How strongly a row is locked, and what the server's function calls it.
const UPDATE: i32 = 3;
const SHARE: i32 = 2;
const KEY_SHARE: i32 = 1;

/// What a commit says about one row.
#[derive(Default)]
struct About {
    lock: i32,
    absent: bool,
    present: bool,
    write: Option<Write>,
}

enum Write {
    Put(Value),
    Del,
    Add(i64),
    Max(u64),
}

/// A list of rows with values.
#[derive(Default)]
struct Pairs<'a>(Vec<&'a [u8]>, Vec<Value>);

impl<'a> Pairs<'a> {
    fn push(&mut self, key: &'a [u8], value: Value) {
        self.0.push(key);
        self.1.push(value);
    }

    /// The values as an argument.
    fn values(&self) -> Vec<&[u8]> {
        self.1.iter().map(|value| &**value).collect()
    }
}

/// The arguments. The names are those of `commit.sql`.
#[derive(Default)]
pub(super) struct Request<'a> {
    keys: Vec<&'a [u8]>,
    run_end: Vec<i32>,
    run_mode: Vec<i32>,
    c_k: Vec<&'a [u8]>,
    c_kind: Vec<i32>,
    c_v: Vec<&'a [u8]>,
    e_from: Vec<&'a [u8]>,
    e_to: Vec<&'a [u8]>,
    insert: Pairs<'a>,
    n_k: Vec<&'a [u8]>,
    hold: Vec<&'a [u8]>,
    blind: Pairs<'a>,
    update: Pairs<'a>,
    d_k: Vec<&'a [u8]>,
    a_k: Vec<&'a [u8]>,
    a_by: Vec<i64>,
    max: Pairs<'a>,
    g_k: Vec<&'a [u8]>,
}

/// Which attempt of which operation a call is.
#[derive(Clone, Copy)]
pub(super) struct Id {
    /// The volume.
    pub(super) volume: i32,
    /// The session, if the store has joined.
    pub(super) place: Option<Place>,
    /// The session's number, or the store's own.
    pub(super) owner: i64,
    /// The lane.
    pub(super) lane: i32,
    /// The operation.
    pub(super) op: i64,
    /// The attempt, from 1.
    pub(super) attempt: i32,
}

impl<'a> Request<'a> {
    /// The arguments of a commit. Counters are rarely absent, so they are inserted only if the server asked
    /// for it (`grow`).
    ///
    /// # Errors
    /// A key is too long for the server's index.
    pub(super) fn new(commit: &'a Commit, grow: bool) -> Result<Request<'a>, StoreError> {
        let mut request = Request::default();
        for (key, about) in about(commit)? {
            request.row(key, about, grow);
        }
        for (key, expect) in &commit.checks {
            let (kind, value): (i32, &[u8]) = match expect {
                Expect::Absent => (0, &[]),
                Expect::Exists => (1, &[]),
                Expect::Is(value) => (2, value),
            };
            request.c_k.push(key.as_bytes());
            request.c_kind.push(kind);
            request.c_v.push(value);
        }
        for range in &commit.empty {
            request.e_from.push(range.start.as_bytes());
            request.e_to.push(range.end.as_bytes());
        }
        Ok(request)
    }

    /// Adds a row. Rows come in key order.
    fn row(&mut self, key: &'a [u8], about: About, grow: bool) {
        let About { lock, absent, present, write } = about;
        if absent && !present {
            // Inserted first, so that nobody else inserts it. If that fails, the check fails too.
            self.n_k.push(key);
            match write {
                Some(Write::Put(value)) => self.insert.push(key, value),
                Some(Write::Add(by)) if by != 0 => self.insert.push(key, encode_i64(by)),
                Some(Write::Max(to)) if to != 0 => self.insert.push(key, encode_u64(to)),
                _ => {
                    self.insert.push(key, Value::from(&[][..]));
                    self.hold.push(key);
                }
            }
            return;
        }
        self.keys.push(key);
        let end = self.keys.len() as i32;
        match (self.run_mode.last(), self.run_end.last_mut()) {
            (Some(mode), Some(last)) if *mode == lock => *last = end,
            _ => {
                self.run_mode.push(lock);
                self.run_end.push(end);
            }
        }
        match write {
            Some(Write::Put(value)) if present => self.update.push(key, value),
            Some(Write::Put(value)) => {
                self.insert.push(key, value.clone());
                self.blind.push(key, value);
            }
            Some(Write::Del) => self.d_k.push(key),
            Some(Write::Add(by)) => {
                self.a_k.push(key);
                self.a_by.push(by);
                if by != 0 {
                    self.g_k.push(key);
                    if grow {
                        self.insert.push(key, encode_i64(by));
                    }
                }
            }
            Some(Write::Max(to)) => {
                self.max.push(key, encode_u64(to));
                if to != 0 {
                    self.g_k.push(key);
                    if grow {
                        self.insert.push(key, encode_u64(to));
                    }
                }
            }
            None => {}
        }
    }

    /// Calls the server's function.
    pub(super) async fn call(&self, client: &Client, id: Id) -> Result<Row, Error> {
        let number = id.place.map(|place| place.number);
        let epoch = id.place.map(|place| place.epoch);
        let token = id.place.as_ref().map(|place| &place.token[..]);
        let (insert, blind, update) = (self.insert.values(), self.blind.values(), self.update.values());
        let max = self.max.values();
        let args: [(&(dyn ToSql + Sync), Type); 30] = [
            (&id.volume, Type::INT4),
            (&number, Type::INT8),
            (&epoch, Type::INT8),
            (&token, Type::BYTEA),
            (&id.owner, Type::INT8),
            (&id.lane, Type::INT4),
            (&id.op, Type::INT8),
            (&id.attempt, Type::INT4),
            (&self.keys, Type::BYTEA_ARRAY),
            (&self.run_end, Type::INT4_ARRAY),
            (&self.run_mode, Type::INT4_ARRAY),
            (&self.c_k, Type::BYTEA_ARRAY),
            (&self.c_kind, Type::INT4_ARRAY),
            (&self.c_v, Type::BYTEA_ARRAY),
            (&self.e_from, Type::BYTEA_ARRAY),
            (&self.e_to, Type::BYTEA_ARRAY),
            (&self.insert.0, Type::BYTEA_ARRAY),
            (&insert, Type::BYTEA_ARRAY),
            (&self.n_k, Type::BYTEA_ARRAY),
            (&self.hold, Type::BYTEA_ARRAY),
            (&self.blind.0, Type::BYTEA_ARRAY),
            (&blind, Type::BYTEA_ARRAY),
            (&self.update.0, Type::BYTEA_ARRAY),
            (&update, Type::BYTEA_ARRAY),
            (&self.d_k, Type::BYTEA_ARRAY),
            (&self.a_k, Type::BYTEA_ARRAY),
            (&self.a_by, Type::INT8_ARRAY),
            (&self.max.0, Type::BYTEA_ARRAY),
            (&max, Type::BYTEA_ARRAY),
            (&self.g_k, Type::BYTEA_ARRAY),
        ];
        client.query_typed_one(CALL, &args).await
    }
}

/// What a commit says about each row, by key.
fn about(commit: &Commit) -> Result<BTreeMap<&[u8], About>, StoreError> {
    let mut rows: BTreeMap<&[u8], About> = BTreeMap::new();
    for (key, expect) in &commit.checks {
        let about = entry(&mut rows, key)?;
        match expect {
            Expect::Absent => about.absent = true,
            Expect::Exists => (about.present, about.lock) = (true, about.lock.max(KEY_SHARE)),
            Expect::Is(_) => (about.present, about.lock) = (true, about.lock.max(SHARE)),
        }
    }
    let puts = commit.puts.iter().map(|(key, value)| (key, Write::Put(value.clone())));
    let dels = commit.dels.iter().map(|key| (key, Write::Del));
    let adds = commit.adds.iter().map(|(key, by)| (key, Write::Add(*by)));
    let maxs = commit.maxs.iter().map(|(key, to)| (key, Write::Max(*to)));
    for (key, write) in puts.chain(dels).chain(adds).chain(maxs) {
        let about = entry(&mut rows, key)?;
        about.lock = UPDATE;
        about.write = Some(write);
    }
    Ok(rows)
}

fn entry<'a, 'b>(rows: &'b mut BTreeMap<&'a [u8], About>, key: &'a Key) -> Result<&'b mut About, StoreError> {
    let len = key.as_bytes().len();
    if len > KEY_MAX {
        return Err(StoreError::Unavailable(format!("a key of {len} bytes is longer than PostgreSQL takes")));
    }
    Ok(rows.entry(key.as_bytes()).or_default())
}

/// What the server's answer means.
pub(super) fn outcome(commit: &Commit, row: &Row) -> Result<(), CommitError> {
    match row.try_get::<_, i32>(0).map_err(unread)? {
        0 | 3 => Ok(()),
        1 => {
            let failed: Vec<i32> = row.try_get(1).map_err(unread)?;
            let fresh: Vec<Option<&[u8]>> = row.try_get(2).map_err(unread)?;
            let not_empty = row.try_get(3).map_err(unread)?;
            let checked = |number: i32| commit.checks.get(usize::try_from(number - 1).ok()?);
            let rows = failed
                .into_iter()
                .zip(fresh)
                .filter_map(|(number, value)| Some((checked(number)?.0.clone(), value.map(Value::from))));
            Err(CommitError::Conflict { rows: rows.collect(), not_empty })
        }
        2 => Err(StoreError::Fenced(
            "this node's session ended, or another process took its place; mount again".to_owned(),
        )
        .into()),
        _ => Err(StoreError::Unavailable("a commit was overtaken by its own repetition".to_owned()).into()),
    }
}

/// An attempt may have been applied, and its answer never came.
pub(super) fn unknown() -> StoreError {
    let what =
        "the answer of the database was lost, and it is unknown whether the change was made; look at it";
    StoreError::Unavailable(what.to_owned())
}

/// An answer of an unexpected form.
pub(super) fn unread(error: Error) -> StoreError {
    StoreError::Unavailable(format!("the database answers in an unexpected form: {error}"))
}
