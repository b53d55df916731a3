//! Tables of an older version in PostgreSQL, and their upgrade while nodes use them.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use engines::postgres::{Join, Options, Postgres, Session, SetupError, Target};
use meta::MetaStore;
use meta::engine::database::Upgraded;

use crate::support::{key, put};
use crate::volumes::PostgresVolumes;
use servers::Server;

/// The tables as the first version made them.
const FIRST: &str = concat!(include_str!("../data/schema_1.sql"), include_str!("../data/commit_1.sql"));
/// All that a schema consists of, but the functions that upgrades leave for older programs.
const CATALOG: &str = "select string_agg(line, E'\\n' order by line) from (\
    select table_name || '.' || column_name || ' ' || ordinal_position || ' ' || data_type || ' ' || is_nullable || ' ' \
    || coalesce(column_default, '') as line from information_schema.columns where table_schema = 'public' \
    union all select indexdef from pg_indexes where schemaname = 'public' \
    union all select relname || ' ' || coalesce(reloptions::text, '') from pg_class where relname like 'covey_%' \
    union all select pg_get_functiondef(oid) from pg_proc where proname like 'covey_%' \
    and proname not in ('covey_join_1', 'covey_commit_1')) x";

/// A database with tables of the first version and one volume, in which a node of an older program works.
fn first(server: &Server, database: &str) -> Target {
    server.sql_in("postgres", &format!("create database {database}"));
    server.script_in(database, FIRST);
    server.sql_in(
        database,
        "insert into covey_volume(name, uuid) values('v', decode(repeat('07', 16), 'hex'))",
    );
    server.sql_in(database, &join(9));
    server.sql_in(database, "insert into covey_kv values(1, 'a', 'old')");
    server.address("covey", server.port(), database, "v")
}

/// A node of the first version joins.
fn join(node: u8) -> String {
    format!(
        "select state, number_, epoch_ from covey_join_1(1, decode(repeat('{node:02x}', 16), 'hex'), \
         'old', '10.0.0.9:7', 60000, true, random()::text::bytea)"
    )
}

fn node(id: u8) -> Join<'static> {
    let ttl = Duration::from_secs(60);
    Join { node: [id; 16], host: "new", address: "10.0.0.1:7", ttl, take_over: false, program: "1.2" }
}

fn from_to(from: &str, to: &str) -> Upgraded {
    Upgraded { from: from.to_owned(), to: to.to_owned() }
}

#[test]
fn older_tables_are_upgraded_while_nodes_use_them() {
    let Some(server) = Server::shared() else { return };
    let target = first(server, "older");
    let refused = Postgres::open(&target, Options::default()).err().expect("it is older").to_string();
    assert!(refused.contains("tables of version 1") && refused.contains("run: covey upgrade 'postgres://"));
    let upgrade = || Postgres::upgrade(&target, &Options::default()).unwrap();
    assert_eq!(upgrade(), from_to("1", "3"));
    assert_eq!(upgrade(), from_to("3", "3"));
    let store = Postgres::open(&target, Options::default()).unwrap();
    assert_eq!(store.get(&key("a")).unwrap().as_deref(), Some(&b"old"[..]));
    assert_eq!(store.join(&node(1)).unwrap(), Session { number: 2, epoch: 1 });
    store.commit(put("b", "new")).unwrap();
    // A node that was mounted before goes on.
    let commit = "select state from covey_commit_1(1, 1, 1, 1, 0, 1, 1, '{a}', '{1}', '{3}', '{}', '{}', '{}', \
        '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{a}', '{older}', '{}', '{}', '{}', '{}', '{}', '{}')";
    assert_eq!(server.sql_in("older", commit), "0");
    assert_eq!(store.get(&key("a")).unwrap().as_deref(), Some(&b"older"[..]));
    // It may lose its session, and joins again as it knows.
    assert_eq!(server.sql_in("older", &join(9)), "0|1|2");
    let rows = store.sessions().unwrap();
    let programs: Vec<&str> = rows.iter().map(|row| row.program.as_str()).collect();
    assert_eq!(programs, ["", "1.2"]);
    assert!(rows.iter().all(|row| row.alive), "{rows:?}");
}

#[test]
fn upgraded_tables_are_those_of_a_new_database() {
    let Some(server) = Server::shared() else { return };
    let target = first(server, "raised");
    Postgres::upgrade(&target, &Options::default()).unwrap();
    server.sql_in("postgres", "create database made_new");
    let fresh = server.address("covey", server.port(), "made_new", "v");
    Postgres::create(&fresh, [1; 16], &Options::default()).unwrap();
    let (raised, fresh) = (server.sql_in("raised", CATALOG), server.sql_in("made_new", CATALOG));
    assert!(raised.lines().count() > 100, "{raised}");
    assert_eq!(raised, fresh);
}

#[test]
fn upgrades_at_the_same_time_do_it_once() {
    let Some(server) = Server::shared() else { return };
    let target = first(server, "together");
    let start = Barrier::new(4);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                start.wait();
                let done = Postgres::upgrade(&target, &Options::default()).unwrap();
                assert_eq!(done.to, "3");
            });
        }
    });
    assert_eq!(server.sql_in("together", "select version from covey_schema"), "3");
}

#[test]
fn an_upgrade_that_cannot_be_done_changes_nothing() {
    let Some(server) = Server::shared() else { return };
    let target = first(server, "kept");
    server.sql_in("kept", "grant all on all tables in schema public to poor");
    let poor = server.address("poor", server.port(), "kept", "v");
    let error = Postgres::upgrade(&poor, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("must be owner of table covey_session"), "{error}");
    assert_eq!(server.sql_in("kept", "select version from covey_schema"), "1");
    server.sql_in("kept", "update covey_schema set version = 4");
    let error = Postgres::upgrade(&target, &Options::default()).unwrap_err();
    assert!(matches!(&error, SetupError::Version(why) if why.contains("use a newer covey")), "{error}");
    server.sql_in("postgres", "create database bare");
    let bare = server.address("covey", server.port(), "bare", "v");
    let error = Postgres::upgrade(&bare, &Options::default()).unwrap_err();
    assert!(matches!(&error, SetupError::Missing(why) if why.contains("covey format")), "{error}");
}
