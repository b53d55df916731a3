//! Creating, opening and removing volumes.

use std::sync::Arc;
use std::time::Duration;

use meta::store::StoreError;
use parking_lot::RwLock;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use super::errors::{Failure, READ_ONLY, is_missing};
use super::incarnation;
use super::link::{Door, Link};
use super::pool::Pool;
use super::{Options, Postgres, SERVER_MIN, SetupError, Target, VERSION, upgrade};

/// The tables, and the functions. Sent together, so that they are one transaction.
const SCHEMA: &str =
    concat!(include_str!("schema.sql"), include_str!("join.sql"), include_str!("commit.sql"));

const SERVER: &str = "select current_setting('server_version_num')::int, pg_is_in_recovery(), \
    to_regclass('covey_schema') is not null, current_setting('transaction_read_only')::bool";
const VOLUME: &str = "select v.id, v.uuid, s.version from covey_schema s \
    left join covey_volume v on v.name = $1 and s.version = $2";
/// Attempts to create the tables, if another node creates them at the same time.
const RACES_MAX: u32 = 5;
/// How long the end of a store may take.
const LAST: Duration = Duration::from_millis(500);

/// What a server is.
pub(super) struct Server {
    /// As in `server_version_num`.
    pub(super) version: i32,
    /// Whether it only follows another server.
    pub(super) is_standby: bool,
    /// Whether the database has Covey's tables.
    pub(super) has_tables: bool,
    /// Whether it refuses changes. A standby does, and a server on which they are turned off.
    pub(super) is_read_only: bool,
}

impl Server {
    pub(super) async fn ask(client: &Client) -> Result<Server, Error> {
        let row = client.query_typed_one(SERVER, &[]).await?;
        Ok(Server {
            version: row.try_get(0)?,
            is_standby: row.try_get(1)?,
            has_tables: row.try_get(2)?,
            is_read_only: row.try_get(3)?,
        })
    }

    /// The lines about a server that cannot be used.
    pub(super) fn mistake(&self, target: &Target) -> Option<String> {
        let server = target.server();
        if self.version < SERVER_MIN {
            return Some(format!(
                "the server {server} is PostgreSQL {}; version {} or newer is needed",
                self.version / 10_000,
                SERVER_MIN / 10_000
            ));
        }
        if self.is_standby {
            return Some(format!(
                "the server {server} is a read-only standby; name the server that accepts writes"
            ));
        }
        self.is_read_only.then(|| format!("the server {server} refuses changes; {READ_ONLY}"))
    }
}

/// A row of `covey_volume`.
pub(super) struct Volume {
    pub(super) id: i32,
    pub(super) uuid: [u8; 16],
}

/// Finds the volume of an address.
pub(super) async fn find(client: &Client, target: &Target) -> Result<Result<Volume, SetupError>, Error> {
    let Target { database, volume, .. } = target;
    let server = target.server();
    let none = || {
        Err(SetupError::Missing(format!(
            "the database {database} on {server} has no volume {volume}; create it with `covey format`, or name another one"
        )))
    };
    let args: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(volume, Type::TEXT), (&VERSION, Type::INT4)];
    let row = match client.query_typed_opt(VOLUME, &args).await {
        Err(error) if is_missing(&error) => return Ok(none()),
        row => row?,
    };
    let Some(row) = row else { return Ok(none()) };
    let version: i32 = row.try_get(2)?;
    if version != VERSION {
        return Ok(Err(upgrade::other_version(target, version)));
    }
    let (Some(id), Some(uuid)) = (row.try_get::<_, Option<i32>>(0)?, row.try_get::<_, Option<&[u8]>>(1)?)
    else {
        return Ok(none());
    };
    Ok(Ok(Volume { id, uuid: uuid.try_into().unwrap_or_default() }))
}

impl Postgres {
    /// Opens a volume. A server that cannot be reached is not tried again.
    ///
    /// # Errors
    /// `Missing` without such a volume. Otherwise one line that names the mistake and says what to do.
    pub fn open(target: &Target, options: Options) -> Result<Postgres, SetupError> {
        let door = door(target, &options)?;
        let (mut link, _) = connect(&door, options.patience)?;
        let found = run(&mut link, options.patience, async |client| find(client, target).await)??;
        let stale = "delete from covey_done where volume = $1 and number < 0 \
            and at < clock_timestamp() - interval '1 day'";
        run(&mut link, options.patience, async |client| {
            client.execute_typed(stale, &[(&found.id, Type::INT4)]).await
        })?;
        let opened = run(&mut link, options.patience, async |client| incarnation::ask(client).await)?;
        door.opened.set(opened);
        let own = -1 - (base::random::u64() >> 2) as i64;
        let pool = Pool::new(Arc::new(door), options.lanes, options.patience);
        pool.give(link);
        Ok(Postgres { pool, volume: found.id, uuid: found.uuid, own, place: RwLock::new(None) })
    }

    /// Registers a volume, and creates the tables if the database has none. A repeated call with the same
    /// id succeeds.
    ///
    /// # Errors
    /// `Exists` if the name is in use. Otherwise as [`Postgres::open`].
    pub fn create(target: &Target, uuid: [u8; 16], options: &Options) -> Result<(), SetupError> {
        let (door, limit) = (door(target, options)?, options.patience);
        let (mut link, server) = connect(&door, limit)?;
        if !server.has_tables {
            make_tables(&mut link, limit)?;
        }
        match run(&mut link, limit, async |client| find(client, target).await)? {
            Ok(volume) if volume.uuid == uuid => return Ok(()),
            Ok(_) => return Err(exists(target)),
            Err(error @ SetupError::Version(_)) => return Err(error),
            Err(_) => {}
        }
        let add = "insert into covey_volume(name, uuid) values($1, $2) on conflict do nothing";
        let (name, id): (&str, &[u8]) = (&target.volume, &uuid);
        let added = run(&mut link, limit, async |client| {
            client.execute_typed(add, &[(&name, Type::TEXT), (&id, Type::BYTEA)]).await
        })?;
        if added == 0 { Err(exists(target)) } else { Ok(()) }
    }

    /// Removes a volume with all its rows. Nodes that use it meet errors.
    ///
    /// # Errors
    /// As [`Postgres::open`].
    pub fn remove(target: &Target, options: &Options) -> Result<(), SetupError> {
        let (door, limit) = (door(target, options)?, options.patience);
        let (mut link, _) = connect(&door, limit)?;
        let volume = run(&mut link, limit, async |client| find(client, target).await)??;
        // The number is the server's, so it may stand in the text.
        let id = volume.id;
        let all = format!(
            "delete from covey_volume where id = {id}; delete from covey_session where volume = {id}; \
             delete from covey_done where volume = {id}; delete from covey_kv where volume = {id}"
        );
        run(&mut link, Duration::from_secs(3600), async |client| client.batch_execute(&all).await)
    }
}

/// Removes what the server remembers of a store that ends. It may fail: another store removes it after a day.
pub(super) fn forget(pool: &Pool, volume: i32, own: i64) {
    let forget = "delete from covey_done where volume = $1 and number = $2";
    pool.last(LAST, async |client| {
        client.execute_typed(forget, &[(&volume, Type::INT4), (&own, Type::INT8)]).await
    });
}

pub(super) fn door(target: &Target, options: &Options) -> Result<Door, SetupError> {
    Ok(Door::new(target.clone(), options.secrets.clone()).map_err(Failure::into_store)?)
}

/// Connects to a server that can be used.
pub(super) fn connect(door: &Door, limit: Duration) -> Result<(Link, Server), SetupError> {
    let mut link = Link::open(door, limit).map_err(Failure::into_store)?;
    let server = run(&mut link, limit, async |client| Server::ask(client).await)?;
    match server.mistake(&link.target) {
        None => Ok((link, server)),
        Some(line) => Err(StoreError::Unavailable(line).into()),
    }
}

pub(super) fn run<T>(
    link: &mut Link,
    limit: Duration,
    work: impl AsyncFnOnce(&Client) -> Result<T, Error>,
) -> Result<T, SetupError> {
    Ok(link.run(limit, work).map_err(Failure::into_store)?)
}

/// Creates the tables. If another node does so at the same time, one of the two fails and finds them.
fn make_tables(link: &mut Link, limit: Duration) -> Result<(), SetupError> {
    let mut race = 0;
    loop {
        race += 1;
        let made = link.run(limit, async |client| client.batch_execute(SCHEMA).await);
        let Err(failure) = made else { return Ok(()) };
        let found = run(link, limit, async |client| Server::ask(client).await)?;
        if found.has_tables {
            return Ok(());
        }
        if race == RACES_MAX || !failure.is_race() {
            return Err(failure.into_store().into());
        }
    }
}

fn exists(target: &Target) -> SetupError {
    SetupError::Exists(format!(
        "the database {} on {} has a volume {} already; choose another name",
        target.database,
        target.server(),
        target.volume
    ))
}
