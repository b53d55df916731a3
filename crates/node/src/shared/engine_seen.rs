//! Which database has answered last, and since when it is that one.
//!
//! A server that began anew, or took the place of another one, may lack what was confirmed last. A node
//! notices when it connects to that server, at the latest when it renews its session, and sends it again.
//! Until all nodes have done so, what no row refers to may be referred to again.
//!
//! What a node sends again holds only with its leases. So no node takes a lease until all others have renewed
//! their sessions with that server, which they do after they have sent it, or until they should have. And a
//! node that has not is asked for none.
//!
//! A node that joins does not know since when that server answers. So the nodes write down which one has
//! answered for a session's length. A node that finds another one there takes it that the server is new.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use meta::Key;
use meta::engine::database::{Database, Incarnation, SessionRow};
use meta::store::{Commit, CommitError, StoreError, Value};
use parking_lot::Mutex;

use super::rows::ROW_SERVER;
use super::{EVERY, LEASE};

/// How long leases are taken by none, unless all nodes have noticed before: somewhat longer than it takes
/// until a session is renewed.
const GRACE: Duration = EVERY.saturating_add(Duration::from_secs(1));

type Rows = Result<Vec<SessionRow>, StoreError>;
/// The epoch and the renewal of each session, by node.
type Renewals = HashMap<i64, (i64, Option<i64>)>;

#[derive(Default)]
struct Last {
    found: Option<Incarnation>,
    changed: Option<Instant>,
    /// The sessions when this node looked first after the change, but those that were seen to be renewed
    /// since.
    unaware: Option<Renewals>,
    /// The database says that all nodes have had the time to notice this server.
    is_written: bool,
}

/// What [`ROW_SERVER`] says when this server has answered for a session's length.
pub(super) fn row_of(server: &Incarnation) -> Value {
    let Incarnation { place, timeline, began } = server;
    Value::from(format!("{place} {timeline} {began}").into_bytes())
}

fn put(names: &dyn Database, server: &Incarnation) -> Result<(), StoreError> {
    let puts = vec![(Key::volume(ROW_SERVER), row_of(server))];
    match names.commit(Commit { puts, ..Commit::default() }) {
        Ok(()) | Err(CommitError::Conflict { .. }) => Ok(()),
        Err(CommitError::Store(error)) => Err(error),
    }
}

/// Whether no other node has a session. One whose session is over cannot send anything again.
fn is_alone(names: &dyn Database) -> Result<bool, StoreError> {
    let me = names.session().map(|session| session.number);
    Ok(names.sessions()?.iter().all(|row| row.ended || !row.alive || Some(row.number) == me))
}

/// See the [module](self).
pub(super) struct EngineSeen(Mutex<Last>);

impl EngineSeen {
    /// Begins with the database that answers now.
    pub(super) fn now(names: &dyn Database) -> EngineSeen {
        EngineSeen(Mutex::new(Last { found: names.incarnation().ok(), ..Last::default() }))
    }

    /// Takes note, at the begin of a session, of which server answers, and whether all nodes have had the
    /// time to notice it.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) fn begin(&self, names: &dyn Database) -> Result<(), StoreError> {
        let found = names.incarnation()?;
        // An engine that does not tell when it began does not lose what it has confirmed.
        let is_known = found.began == 0 || names.get(&Key::volume(ROW_SERVER))? == Some(row_of(&found));
        let is_alone = !is_known && is_alone(names)?;
        if is_alone {
            put(names, &found)?;
        }
        self.begin_with(found, is_known || is_alone);
        Ok(())
    }

    /// `is_known`: all nodes have had the time to notice the server.
    fn begin_with(&self, found: Incarnation, is_known: bool) {
        let mut last = self.0.lock();
        let is_written = is_known && last.found.as_ref() == Some(&found);
        if !is_written {
            *last = Last { changed: Some(base::time::monotonic()), ..Last::default() };
        }
        (last.found, last.is_written) = (Some(found), is_written);
    }

    /// Writes down that this server has answered for a session's length, unless that is done.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub(super) fn write(&self, names: &dyn Database) -> Result<(), StoreError> {
        let Some(server) = self.unwritten(LEASE) else { return Ok(()) };
        put(names, &server)?;
        let mut last = self.0.lock();
        last.is_written = last.found.as_ref() == Some(&server);
        Ok(())
    }

    /// The server that has answered for so long, and nobody has written that down.
    fn unwritten(&self, for_at_least: Duration) -> Option<Incarnation> {
        let last = self.0.lock();
        let is_due = last.changed.is_some_and(|changed| changed.elapsed() >= for_at_least);
        last.found.clone().filter(|_| is_due && !last.is_written)
    }

    /// Notes the database that has answered.
    pub(super) fn note(&self, found: &Incarnation) {
        let mut last = self.0.lock();
        if last.found.as_ref().is_some_and(|before| before != found) {
            *last = Last { changed: Some(base::time::monotonic()), ..Last::default() };
        }
        last.found = Some(found.clone());
    }

    /// The database that has answered last.
    pub(super) fn last(&self) -> Option<Incarnation> {
        self.0.lock().found.clone()
    }

    /// Whether nothing may be condemned or deleted: another database has answered for less than a session's
    /// length.
    pub(super) fn keeps_all(&self) -> bool {
        self.0.lock().changed.is_some_and(|changed| changed.elapsed() < LEASE)
    }

    /// Whether another database has answered for a few seconds only. Sessions are renewed more often then, so
    /// that other nodes see it.
    pub(super) fn is_new(&self) -> bool {
        self.0.lock().changed.is_some_and(|changed| changed.elapsed() < GRACE)
    }

    /// Whether a node has noticed the change too, if there was one lately. `sessions` reads their rows.
    ///
    /// # Errors
    /// The rows cannot be read.
    pub(super) fn is_noticed_by(
        &self,
        node: u32,
        sessions: impl FnOnce() -> Rows,
    ) -> Result<bool, StoreError> {
        self.is_noticed(LEASE, |unaware| !unaware.contains_key(&i64::from(node)), sessions)
    }

    /// Whether all nodes have noticed the change, if there was one lately, or should have.
    pub(super) fn is_noticed_by_all(&self, sessions: impl FnOnce() -> Rows) -> bool {
        self.is_noticed(GRACE, HashMap::is_empty, sessions).unwrap_or(false)
    }

    /// Whether this holds of the nodes that have not noticed yet, if the change is more recent than this.
    fn is_noticed(
        &self,
        within: Duration,
        holds: impl Fn(&Renewals) -> bool,
        sessions: impl FnOnce() -> Rows,
    ) -> Result<bool, StoreError> {
        {
            let last = self.0.lock();
            let is_new = last.changed.is_some_and(|changed| changed.elapsed() < within);
            if !is_new || last.unaware.as_ref().is_some_and(&holds) {
                return Ok(true);
            }
        }
        let rows = sessions()?;
        let mut last = self.0.lock();
        // Only an engine that tells renewals loses what it has confirmed.
        let rows = rows.iter().filter(|row| row.alive && row.renewal.is_some());
        let now: Renewals = rows.map(|row| (row.number, (row.epoch, row.renewal))).collect();
        let unaware = last.unaware.get_or_insert_with(|| now.clone());
        unaware.retain(|node, seen| now.get(node) == Some(seen));
        Ok(holds(unaware))
    }

    /// Asks the database which one it is.
    ///
    /// # Errors
    /// It does not answer. Or it is not the one that was noted last, or has been that one for a shorter time
    /// than this.
    pub(super) fn check(&self, names: &dyn Database, for_at_least: Duration) -> Result<(), StoreError> {
        let found = names.incarnation()?;
        let last = self.0.lock();
        let is_new = last.changed.is_some_and(|changed| changed.elapsed() < for_at_least);
        if last.found.as_ref() == Some(&found) && !is_new {
            return Ok(());
        }
        let why = "the database has begun anew, and may lack changes that nodes send to it again; try again in some seconds";
        Err(StoreError::Unavailable(why.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: i64, renewal: i64) -> SessionRow {
        SessionRow {
            number,
            node: [0; 16],
            host: String::new(),
            address: String::new(),
            epoch: 1,
            expires_in_ms: 1,
            alive: true,
            renewal: Some(renewal),
            ended: false,
            program: String::new(),
        }
    }

    #[test]
    fn a_node_has_noticed_when_it_was_seen_to_renew() {
        let seen = EngineSeen(Mutex::default());
        let database = |began| Incarnation { began, ..Incarnation::default() };
        let unasked = || -> Rows { panic!("nothing has changed") };
        seen.note(&database(1));
        seen.note(&database(1));
        assert!(!seen.is_new() && seen.is_noticed_by_all(unasked) && seen.is_noticed_by(2, unasked).unwrap());
        seen.note(&database(2));
        assert!(seen.is_new());
        let all = |renewals: [i64; 2]| move || Ok(vec![row(1, renewals[0]), row(2, renewals[1])]);
        assert!(!seen.is_noticed_by_all(all([10, 10])));
        assert!(
            seen.is_noticed_by(1, all([11, 10])).unwrap() && !seen.is_noticed_by(2, all([11, 10])).unwrap()
        );
        assert!(seen.is_noticed_by(1, unasked).unwrap(), "that is remembered");
        // A database that does not answer says nothing about a node.
        assert!(!seen.is_noticed_by_all(|| Err(StoreError::Unavailable(String::new()))));
        // One that is gone is not waited for.
        assert!(seen.is_noticed_by_all(|| Ok(vec![row(1, 12), SessionRow { alive: false, ..row(2, 10) }])));
        // Another change: all begin anew.
        seen.note(&database(3));
        assert!(!seen.is_noticed_by(1, all([12, 10])).unwrap());
    }

    #[test]
    fn a_server_is_new_to_a_node_that_joins_until_another_one_has_written_it_down() {
        let server = |timeline| Incarnation { place: "a".to_owned(), timeline, began: 5 };
        let begun = |is_known: bool| {
            let seen = EngineSeen(Mutex::new(Last { found: Some(server(2)), ..Last::default() }));
            seen.begin_with(server(2), is_known);
            seen
        };
        let known = begun(true);
        assert!(!known.is_new() && !known.keeps_all());
        assert!(known.unwritten(Duration::ZERO).is_none());
        known.note(&server(3));
        assert!(known.is_new() && known.keeps_all());
        assert!(known.unwritten(LEASE).is_none(), "not all have had the time");
        assert_eq!(known.unwritten(Duration::ZERO), Some(server(3)));
        let new = begun(false);
        assert!(new.is_new() && new.keeps_all());
        assert!(!new.is_noticed_by_all(|| Ok(vec![row(2, 10)])), "it was not seen to renew");
        assert!(new.is_noticed_by_all(|| Ok(vec![row(2, 11)])));
        assert_eq!(new.unwritten(Duration::ZERO), Some(server(2)));
        assert_ne!(row_of(&server(2)), row_of(&server(3)));
    }

    #[test]
    fn a_server_that_took_over_while_a_node_joined_is_new() {
        let server = |timeline| Incarnation { place: "a".to_owned(), timeline, began: 5 };
        let seen = EngineSeen(Mutex::new(Last { found: Some(server(3)), ..Last::default() }));
        seen.begin_with(server(2), true);
        assert!(seen.keeps_all());
    }

    #[test]
    fn an_engine_that_loses_nothing_is_never_new() {
        let seen = EngineSeen(Mutex::new(Last { found: Some(Incarnation::default()), ..Last::default() }));
        seen.begin_with(Incarnation::default(), true);
        assert!(!seen.is_new() && seen.unwritten(Duration::ZERO).is_none());
    }
}
