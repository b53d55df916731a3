//! Sessions: which nodes use a volume.
//!
//! Each node that writes has a row with a number, an epoch, a random token and the time at which it expires,
//! by the server's clock. Every commit of a joined store names the number, the epoch and the token, and the
//! server refuses it if they are not the present ones or the time is over. The token tells two nodes apart
//! that got one number, because the database was put back to an earlier state in between. A commit holds the
//! row `for key share` until it ends. A call that gives the place to another process changes the row under
//! `for update`. So once that call returns, no commit of the earlier session takes effect.
//!
//! A number is small, belongs to one node for ever, and is never given to another.

use std::time::Duration;

use base::Timestamp;
use meta::engine::database::{Database, OnAnotherServer};
use meta::store::StoreError;
use tokio_postgres::types::Type;

use super::check::weaknesses;
use super::commit::unread;
use super::errors::Failure;
use super::incarnation::{self, COLUMNS};
use super::{Incarnation, Join, Postgres, Renewed, Session, SessionRow};

const JOIN: &str =
    "select state, number_, epoch_, other_host, left_ms from covey_join_2($1, $2, $3, $4, $5, $6, $7, $8)";
const RENEW: &str = "update covey_session set expires = clock_timestamp() + $4 * interval '1 millisecond' \
    where volume = $1 and number = $2 and epoch = $3 and token = $5 and expires > clock_timestamp() \
    returning (extract(epoch from expires - clock_timestamp()) * 1000)::bigint, \
    (extract(epoch from clock_timestamp()) * 1000000)::bigint, ";
/// A session that has expired, and was not ended, is continued: another node that waits for its end ends it
/// only if it was not renewed since. The new token refuses what the earlier process has sent.
const RESUME: &str = "update covey_session set token = $6, \
    expires = clock_timestamp() + $5 * interval '1 millisecond' \
    where volume = $1 and number = $2 and epoch = $3 and node = $4 and expires > to_timestamp(0)";
/// A session that was ended has expired in 1970, whatever the server's clock says.
const LEAVE: &str = "update covey_session set expires = to_timestamp(0) \
    where volume = $1 and number = $2 and epoch = $3";
const END: &str = "update covey_session set expires = to_timestamp(0) \
    where volume = $1 and number = $2 and epoch = $3 and (extract(epoch from expires) * 1000000)::bigint = $4";
const LIST: &str = "select number, node, host, address, epoch, \
    (extract(epoch from expires - clock_timestamp()) * 1000)::bigint, expires > clock_timestamp(), \
    (extract(epoch from expires) * 1000000)::bigint, expires <= to_timestamp(0), program \
    from covey_session where volume = $1 order by number";

/// The row of the volume has the last number that was given out.
const SKIP: &str = "update covey_volume set sessions = sessions + $2 where id = $1";

/// A session with its length.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) number: i64,
    pub(super) epoch: i64,
    pub(super) token: [u8; 16],
    ttl_ms: i64,
    /// Another process of the node began it. What the server remembers of that process's operations says
    /// nothing of this one's.
    pub(super) is_resumed: bool,
}

impl Place {
    pub(super) fn session(&self) -> Session {
        Session { number: self.number, epoch: self.epoch }
    }
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX).clamp(1, 86_400_000)
}

impl Postgres {
    /// Takes a place in the volume. Every commit that begins from now on carries it. A node id that joined
    /// before gets its number again, with the next epoch.
    ///
    /// # Errors
    /// `Unavailable` if the node id has an unexpired session: the message names its machine and says when it
    /// expires. See [`StoreError`] for others.
    pub fn join(&self, join: &Join<'_>) -> Result<Session, StoreError> {
        self.incarnation()?;
        let (ttl_ms, own) = (millis(join.ttl), base::random::id16());
        let (node, token): (&[u8], &[u8]) = (&join.node, &own);
        let row = self.pool.ask(async |client| {
            client
                .query_typed_one(
                    JOIN,
                    &[
                        (&self.volume, Type::INT4),
                        (&node, Type::BYTEA),
                        (&join.host, Type::TEXT),
                        (&join.address, Type::TEXT),
                        (&ttl_ms, Type::INT8),
                        (&join.take_over, Type::BOOL),
                        (&token, Type::BYTEA),
                        (&join.program, Type::TEXT),
                    ],
                )
                .await
        })?;
        match row.try_get::<_, i32>(0).map_err(unread)? {
            0 => {}
            1 => {
                let host: String = row.try_get(3).map_err(unread)?;
                let left: i64 = row.try_get(4).map_err(unread)?;
                return Err(StoreError::Unavailable(format!(
                    "this node already has the volume {} open on {host:?}: the same folder is used twice, or the node ended without leaving; close the other one, or wait {} s until its session expires",
                    self.target().volume,
                    left.max(1).unsigned_abs().div_ceil(1000)
                )));
            }
            _ => return Err(self.gone()),
        }
        let (number, epoch) = (row.try_get(1).map_err(unread)?, row.try_get(2).map_err(unread)?);
        let place = Place { number, epoch, token: own, ttl_ms, is_resumed: false };
        let before = self.place.write().replace(place);
        if before.is_some_and(|before| before.is_resumed) {
            super::admin::forget(&self.pool, self.volume, self.own);
        }
        Ok(place.session())
    }

    /// Continues the session of a process of this node that is dead.
    ///
    /// # Errors
    /// `Fenced` if the session is over for good: the node has joined again, it left, or another node ended
    /// the session. See [`StoreError`] for others.
    pub fn resume(&self, node: &[u8; 16], session: Session, ttl: Duration) -> Result<(), StoreError> {
        let (ttl_ms, node, own): (i64, &[u8], _) = (millis(ttl), node, base::random::id16());
        let (Session { number, epoch }, token): (_, &[u8]) = (session, &own);
        let found = self.pool.ask(async |client| {
            let args = [
                (&self.volume as &(dyn tokio_postgres::types::ToSql + Sync), Type::INT4),
                (&number, Type::INT8),
                (&epoch, Type::INT8),
                (&node, Type::BYTEA),
                (&ttl_ms, Type::INT8),
                (&token, Type::BYTEA),
            ];
            client.execute_typed(RESUME, &args).await
        })?;
        if found == 0 {
            return Err(StoreError::Fenced("the session was ended meanwhile".to_owned()));
        }
        *self.place.write() = Some(Place { number, epoch, token: own, ttl_ms, is_resumed: true });
        Ok(())
    }

    /// Makes the session last its whole length again, in one round trip.
    ///
    /// # Errors
    /// `Fenced` if it has expired, or another process took its place. `Unavailable` if the store has not
    /// joined, and for a server that cannot be reached.
    pub fn renew(&self) -> Result<Renewed, StoreError> {
        let place = self.joined()?;
        let (text, token): (_, &[u8]) = (format!("{RENEW}{COLUMNS}"), &place.token);
        let row = self.pool.ask(async |client| {
            let args = [
                (&self.volume as &(dyn tokio_postgres::types::ToSql + Sync), Type::INT4),
                (&place.number, Type::INT8),
                (&place.epoch, Type::INT8),
                (&place.ttl_ms, Type::INT8),
                (&token, Type::BYTEA),
            ];
            client.query_typed_opt(&text, &args).await
        })?;
        let row = row.ok_or_else(|| {
            StoreError::Fenced(
                "this node's session ended, or another process took its place; mount again".to_owned(),
            )
        })?;
        let remaining: i64 = row.try_get(0).map_err(unread)?;
        let micros: i64 = row.try_get(1).map_err(unread)?;
        let incarnation = self.met(incarnation::read(&row, 2).map_err(unread)?)?;
        Ok(Renewed {
            incarnation,
            remaining: Duration::from_millis(remaining.max(0).unsigned_abs()),
            server_time: Some(Timestamp(i128::from(micros) * 1000)),
        })
    }

    /// Ends the session, so that the node can join again at once. Later commits of this store are refused
    /// with `Fenced`. The row stays, and with it the node's number.
    ///
    /// # Errors
    /// See [`Postgres::renew`]; not `Fenced`.
    pub fn leave(&self) -> Result<(), StoreError> {
        let place = self.joined()?;
        self.pool.ask(async |client| {
            let args = [
                (&self.volume as &(dyn tokio_postgres::types::ToSql + Sync), Type::INT4),
                (&place.number, Type::INT8),
                (&place.epoch, Type::INT8),
            ];
            client.execute_typed(LEAVE, &args).await
        })?;
        Ok(())
    }

    /// Ends another node's session for good, unless it was renewed since `row` was read. Later commits of
    /// that session are refused. Returns whether it is over.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn end(&self, row: &SessionRow) -> Result<bool, StoreError> {
        let (volume, row) = (self.volume, row.clone());
        let ended = self.pool.ask(async |client| {
            let args = [
                (&volume as &(dyn tokio_postgres::types::ToSql + Sync), Type::INT4),
                (&row.number, Type::INT8),
                (&row.epoch, Type::INT8),
                (&row.renewal.unwrap_or_default(), Type::INT8),
            ];
            client.execute_typed(END, &args).await
        })?;
        Ok(ended > 0)
    }

    /// All sessions of the volume, expired ones too, by number.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        let volume = self.volume;
        let rows = self.pool.ask(async |client| client.query_typed(LIST, &[(&volume, Type::INT4)]).await)?;
        let read = |row: &tokio_postgres::Row| {
            let node: &[u8] = row.try_get(1)?;
            Ok(SessionRow {
                number: row.try_get(0)?,
                node: node.try_into().unwrap_or_default(),
                host: row.try_get(2)?,
                address: row.try_get(3)?,
                epoch: row.try_get(4)?,
                expires_in_ms: row.try_get(5)?,
                alive: row.try_get(6)?,
                renewal: Some(row.try_get(7)?),
                ended: row.try_get(8)?,
                program: row.try_get(9)?,
            })
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(unread)
    }

    /// The session, if the store has joined.
    pub fn session(&self) -> Option<Session> {
        self.place.read().map(|place| place.session())
    }

    /// Which database answers now.
    ///
    /// # Errors
    /// `Unavailable` for another one than the one that was opened. See [`StoreError`] for others.
    pub fn incarnation(&self) -> Result<Incarnation, StoreError> {
        self.met(self.pool.ask(async |client| incarnation::ask(client).await)?)
    }

    /// Takes note of the database that has answered.
    fn met(&self, found: Incarnation) -> Result<Incarnation, StoreError> {
        self.pool.door.opened.meet(self.target(), &found).map_err(Failure::into_store)?;
        Ok(found)
    }

    /// See [`Database::skip_numbers`].
    fn skip(&self, count: u32) -> Result<(), StoreError> {
        let args: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&self.volume, Type::INT4), (&i64::from(count), Type::INT8)];
        let done = self.pool.ask(async |client| client.execute_typed(SKIP, &args).await)?;
        if done == 0 { Err(self.gone()) } else { Ok(()) }
    }

    fn joined(&self) -> Result<Place, StoreError> {
        let place = *self.place.read();
        place.ok_or_else(|| StoreError::Unavailable("this store has no session; join first".to_owned()))
    }

    fn gone(&self) -> StoreError {
        StoreError::Unavailable(format!("the volume {} was removed from the database", self.target().volume))
    }
}

impl Database for Postgres {
    fn uuid(&self) -> [u8; 16] {
        Postgres::uuid(self)
    }

    fn join(&self, join: &Join<'_>) -> Result<Session, StoreError> {
        Postgres::join(self, join)
    }

    fn resume(&self, node: &[u8; 16], session: Session, ttl: Duration) -> Result<(), StoreError> {
        Postgres::resume(self, node, session, ttl)
    }

    fn renew(&self) -> Result<Renewed, StoreError> {
        Postgres::renew(self)
    }

    fn leave(&self) -> Result<(), StoreError> {
        Postgres::leave(self)
    }

    fn end(&self, row: &SessionRow) -> Result<bool, StoreError> {
        Postgres::end(self, row)
    }

    fn session(&self) -> Option<Session> {
        Postgres::session(self)
    }

    fn incarnation(&self) -> Result<Incarnation, StoreError> {
        Postgres::incarnation(self)
    }

    fn on_another_server(&self, call: OnAnotherServer) {
        self.pool.door.opened.on_another(call);
    }

    fn weaknesses(&self) -> Result<Vec<String>, StoreError> {
        self.pool.ask(async |client| weaknesses(client).await)
    }

    fn skip_numbers(&self, count: u32) -> Result<(), StoreError> {
        self.skip(count)
    }

    fn sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        Postgres::sessions(self)
    }
}
