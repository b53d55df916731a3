//! Looks for mistakes in how a database is reached and set up, for `covey doctor`.

use std::time::Duration;

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row};

use super::admin::{Server, door, find, run};
use super::errors::Failure;
use super::link::{Door, Link};
use super::{Checked, Level, Options, Postgres, SetupError, Target, VERSION};
use crate::check::latency;

/// A larger difference of the clocks is worth a warning.
const CLOCK_MAX_MS: i64 = 1_000;
/// A larger share of used connections is worth a warning, in percent.
const USED_MAX: i64 = 80;
/// A larger share of dead rows is worth a warning, in percent.
const DEAD_MAX: i64 = 40;

const LOAD: &str = "select (select count(*) from pg_stat_activity where backend_type = 'client backend'), \
    current_setting('max_connections')::bigint, \
    coalesce((select n_dead_tup from pg_stat_user_tables where relid = to_regclass('covey_kv')), 0), \
    coalesce((select n_live_tup from pg_stat_user_tables where relid = to_regclass('covey_kv')), 0)";

/// The rights on the tables that are there and that the user lacks, in one text.
const RIGHTS: &str = "select coalesce(string_agg(p || ' ' || t, ', ' order by t, p), '') \
    from (values ('covey_schema', 'select'), ('covey_volume', 'select'), ('covey_volume', 'update') \
    union all select t, p from unnest(array['covey_kv', 'covey_session', 'covey_done']) t, \
    unnest(array['select', 'insert', 'update', 'delete']) p) needed(t, p) \
    where to_regclass(t) is not null and not has_table_privilege(to_regclass(t), p)";

const SETTINGS: &str = "select name, setting from pg_settings \
    where name in ('fsync', 'full_page_writes', 'synchronous_commit') and setting = 'off' order by name";

/// Settings by which the server may lose what it has confirmed: a line for each.
pub(super) async fn weaknesses(client: &Client) -> Result<Vec<String>, Error> {
    let rows = client.query_typed(SETTINGS, &[] as &[(&(dyn ToSql + Sync), Type)]).await?;
    let line = |row: &Row| {
        let name: &str = row.try_get(0)?;
        let what = match name {
            "synchronous_commit" => {
                "other clients' commits may be lost in a crash; this program waits for its own all the same"
            }
            "fsync" => "a crash of the machine may damage the database and lose what fsync(2) has confirmed",
            _ => "a crash of the machine may damage the database",
        };
        Ok(format!("the server has {name} = off: {what}; set it to on"))
    };
    rows.iter().map(line).collect()
}

impl Postgres {
    /// Checks a database and the volume in it, in an order in which a mistake explains the ones behind it.
    /// After a bad finding about the connection, nothing more can be checked.
    pub fn check(target: &Target, options: &Options) -> Vec<Checked> {
        let limit = options.patience;
        let door = match door(target, options) {
            Ok(door) => door,
            Err(error) => return vec![Checked::bad("address", &error)],
        };
        let mut link = match Link::open(&door, limit).map_err(Failure::into_store) {
            Ok(link) => link,
            Err(error) => return vec![Checked::bad("connection", &error.into())],
        };
        let mut found = vec![Checked::good("connection", format!("connected to {}", link.target.server()))];
        found.extend(standbys(&door, &link, limit));
        let mut note = |what: &'static str, result: Result<Checked, SetupError>| match result {
            Ok(checked) => found.push(checked),
            Err(error) => found.push(Checked::bad(what, &error)),
        };
        note("server", server(&mut link, limit));
        match run(&mut link, limit, async |client| weaknesses(client).await) {
            Ok(lines) => lines
                .into_iter()
                .for_each(|line| note("server", Ok(Checked { what: "server", level: Level::Warning, line }))),
            Err(error) => note("server", Err(error)),
        }
        note("volume", volume(&mut link, target, limit));
        note("rights", rights(&mut link, limit));
        note("latency", latency("a nearer server", || ping(&mut link, limit)));
        note("clock", clock(&mut link, limit));
        match load(&mut link, limit) {
            Ok(load) => load.into_iter().for_each(|checked| note(checked.what, Ok(checked))),
            Err(error) => note("connections", Err(error)),
        }
        found
    }
}

/// The servers of the address that are not in use: each must be there to take over.
fn standbys(door: &Door, used: &Link, limit: Duration) -> Vec<Checked> {
    let mut found = Vec::new();
    for (index, target) in door.servers().iter().enumerate().filter(|(_, target)| **target != used.target) {
        let asked = Link::open_at(door, index, limit).map_err(Failure::into_store).map_err(SetupError::from);
        let asked =
            asked.and_then(|mut link| run(&mut link, limit, async |client| Server::ask(client).await));
        let (level, says) = match asked {
            Ok(server) if server.is_standby => (Level::Good, "follows, and can take over".to_owned()),
            Ok(server) if server.is_read_only => {
                (Level::Bad, format!("refuses changes, and is no standby; {}", super::errors::READ_ONLY))
            }
            Ok(_) => (
                Level::Bad,
                "accepts writes too; only one server may: stop the one that does not follow".to_owned(),
            ),
            Err(error) => (Level::Warning, format!("cannot take over: {error}")),
        };
        found.push(Checked { what: "connection", level, line: format!("{}: {says}", target.server()) });
    }
    found
}

fn server(link: &mut Link, limit: Duration) -> Result<Checked, SetupError> {
    let server = run(link, limit, async |client| Server::ask(client).await)?;
    Ok(match server.mistake(&link.target) {
        Some(line) => Checked { what: "server", level: Level::Bad, line },
        None => Checked::good("server", format!("PostgreSQL {}, accepts writes", server.version / 10_000)),
    })
}

fn volume(link: &mut Link, target: &Target, limit: Duration) -> Result<Checked, SetupError> {
    run(link, limit, async |client| find(client, target).await)??;
    Ok(Checked::good("volume", format!("the volume {} is there, tables of version {VERSION}", target.volume)))
}

/// Whether the user may do all that a node does.
fn rights(link: &mut Link, limit: Duration) -> Result<Checked, SetupError> {
    let missing: String = run(link, limit, async |client| {
        let row = client.query_typed_one(RIGHTS, &[] as &[(&(dyn ToSql + Sync), Type)]).await?;
        row.try_get(0)
    })?;
    let user = &link.target.user;
    Ok(match missing.as_str() {
        "" => Checked::good("rights", format!("user {user} may read and change the rows")),
        missing => {
            let line = format!("user {user} may not {missing}; grant it to the user");
            Checked { what: "rights", level: Level::Bad, line }
        }
    })
}

fn ping(link: &mut Link, limit: Duration) -> Result<(), SetupError> {
    run(link, limit, async |client| client.query_typed("select 1", &[]).await).map(drop)
}

fn clock(link: &mut Link, limit: Duration) -> Result<Checked, SetupError> {
    let text = "select (extract(epoch from clock_timestamp()) * 1000)::bigint";
    let before = base::time::now();
    let theirs: i64 = run(link, limit, async |client| {
        client.query_typed_one(text, &[] as &[(&(dyn ToSql + Sync), Type)]).await?.try_get(0)
    })?;
    let ours = (before.as_nanos() / 2 + base::time::now().as_nanos() / 2) / 1_000_000;
    let apart = theirs - ours;
    let line = format!("the server's clock differs from this machine's by {apart} ms");
    Ok(Checked::judged("clock", apart.abs() <= CLOCK_MAX_MS, line, "synchronize both clocks (NTP)"))
}

fn load(link: &mut Link, limit: Duration) -> Result<Vec<Checked>, SetupError> {
    let [used, most, dead, live]: [i64; 4] = run(link, limit, async |client| {
        let row = client.query_typed_one(LOAD, &[]).await?;
        Ok([row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?])
    })?;
    let line = format!("{used} of {most} connections are in use");
    let connections = Checked::judged(
        "connections",
        used * 100 <= most * USED_MAX,
        line,
        "raise max_connections, put pgbouncer in between, or use fewer connections per node",
    );
    let percent = dead * 100 / (dead + live).max(1);
    let line = format!("{percent} % of the rows of covey_kv are dead");
    // A small table is cleaned late, and it does not matter.
    let is_good = percent <= DEAD_MAX || dead < 100_000;
    let advice = "let autovacuum run more often, and look for long transactions in pg_stat_activity";
    Ok(vec![connections, Checked::judged("dead rows", is_good, line, advice)])
}
