//! Which database a connection leads to. After a restore, a fail-over or a mistake it may be another one.
//!
//! A dump that is restored has another server, database or table, and so other ids. A standby that took the
//! place of its primary has the same ids and a higher timeline. A server that was replaced in this way has a
//! lower one, should it answer again.

use meta::engine::database::{Incarnation, OnAnotherServer};
use parking_lot::Mutex;
use tokio_postgres::{Client, Error, Row};

use super::errors::Failure;
use super::target::Target;

/// The columns of an [`Incarnation`], for any statement.
pub(super) const COLUMNS: &str = "(select system_identifier from pg_control_system()), \
    (select oid::bigint from pg_database where datname = current_database()), \
    coalesce(to_regclass('covey_kv')::oid::bigint, 0), \
    case when pg_is_in_recovery() then 0 \
        else ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int end, \
    (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint";

/// Asks which database this is.
pub(super) async fn ask(client: &Client) -> Result<Incarnation, Error> {
    read(&client.query_typed_one(&format!("select {COLUMNS}"), &[]).await?, 0)
}

/// Reads [`COLUMNS`], the first of which is number `at`.
pub(super) fn read(row: &Row, at: usize) -> Result<Incarnation, Error> {
    let (server, database): (i64, i64) = (row.try_get(at)?, row.try_get(at + 1)?);
    let (table, timeline): (i64, i32) = (row.try_get(at + 2)?, row.try_get(at + 3)?);
    Ok(Incarnation {
        place: format!("postgres {:016x} {database} {table}", server.cast_unsigned()),
        timeline: timeline.cast_unsigned(),
        began: row.try_get(at + 4)?,
    })
}

#[derive(Default)]
struct Now {
    /// The server that answered last.
    last: Option<Incarnation>,
    on_another: Option<OnAnotherServer>,
}

/// The database that a store has opened.
#[derive(Default)]
pub(super) struct Opened(Mutex<Now>);

impl Opened {
    /// From now on, no other database is used.
    pub(super) fn set(&self, found: Incarnation) {
        self.0.lock().last = Some(found);
    }

    /// Whether a store has opened a database.
    pub(super) fn is_set(&self) -> bool {
        self.0.lock().last.is_some()
    }

    /// See [`meta::engine::database::Database::on_another_server`].
    pub(super) fn on_another(&self, call: OnAnotherServer) {
        self.0.lock().on_another = Some(call);
    }

    /// Takes note of the database that answers.
    ///
    /// # Errors
    /// It is not the one that was opened. Or it is a server of it that another one has replaced.
    pub(super) fn meet(&self, target: &Target, found: &Incarnation) -> Result<(), Failure> {
        let mut now = self.0.lock();
        let Some(before) = now.last.as_ref() else { return Ok(()) };
        let (database, server) = (&target.database, target.server());
        if found.timeline == 0 {
            return Err(Failure::Lost(format!("the server {server} is a read-only standby")));
        }
        if before.place != found.place {
            return Err(Failure::refused(format!(
                "the database {database} on {server} is not the one that this node has opened: it was restored there, or made anew; unmount this node and mount it again"
            )));
        }
        if before.timeline > found.timeline {
            return Err(Failure::Lost(format!(
                "the server {server} was replaced by another one, which is ahead of it (timeline {} after {}); stop it",
                before.timeline, found.timeline
            )));
        }
        // Under the lock: no other connection to that server is used before this is over.
        if before != found
            && let Some(call) = &now.on_another
        {
            call(found);
        }
        now.last = Some(found.clone());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn of(place: &str, timeline: u32) -> Incarnation {
        Incarnation { place: place.to_owned(), timeline, began: 1 }
    }

    #[test]
    fn only_the_opened_database_and_its_successors_are_used() {
        let target = Target::parse("postgres://u@h/d?volume=v").unwrap();
        let opened = Opened::default();
        opened.meet(&target, &of("a", 3)).unwrap();
        opened.set(of("a", 3));
        opened.meet(&target, &of("a", 3)).unwrap();
        opened.meet(&target, &of("a", 5)).unwrap();
        assert!(
            matches!(opened.meet(&target, &of("a", 4)), Err(Failure::Lost(why)) if why.contains("replaced"))
        );
        assert!(
            matches!(opened.meet(&target, &of("a", 0)), Err(Failure::Lost(why)) if why.contains("standby"))
        );
        let other = opened.meet(&target, &of("b", 5)).unwrap_err().into_store().to_string();
        assert!(other.contains("mount it again"), "{other}");
    }

    #[test]
    fn another_server_is_noticed_once() {
        let target = Target::parse("postgres://u@h/d?volume=v").unwrap();
        let (opened, noticed) = (Opened::default(), Arc::new(Mutex::new(Vec::new())));
        opened.set(of("a", 3));
        let notes = noticed.clone();
        opened.on_another(Box::new(move |found| notes.lock().push(found.clone())));
        let restarted = Incarnation { began: 2, ..of("a", 3) };
        for found in [of("a", 3), restarted.clone(), restarted.clone(), of("a", 5), of("a", 5)] {
            opened.meet(&target, &found).unwrap();
        }
        // These are refused.
        assert!(opened.meet(&target, &of("a", 4)).is_err() && opened.meet(&target, &of("b", 5)).is_err());
        assert_eq!(*noticed.lock(), [restarted, of("a", 5)]);
    }
}
