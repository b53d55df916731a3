//! What a node needs of the database of a shared volume, beside its rows: the sessions of its nodes, and the
//! findings of a check. The databases themselves are in the crate `engines`.

use std::time::Duration;

use base::Timestamp;

use crate::store::{Commit, MetaStore, StoreError};

pub use crate::store::Session;

/// Why a volume in a database cannot be created, opened or checked.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The address is wrong.
    #[error("the address of the database cannot be used: {0}")]
    Target(String),
    /// A volume of this name exists.
    #[error("{0}")]
    Exists(String),
    /// The database is no Covey database, or has no volume of this name.
    #[error("{0}")]
    Missing(String),
    /// What the database holds has another version than this program knows.
    #[error("{0}")]
    Version(String),
    /// The program was built without the engine that the address names.
    #[error("{0}")]
    Absent(String),
    /// The database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Checks that a commit was decided in the session that the store has now, or in none.
///
/// # Errors
/// `Fenced` if it was decided in another one.
pub fn check_session(commit: &Commit, now: Option<Session>) -> Result<(), StoreError> {
    match commit.session {
        Some(session) if now != Some(session) => Err(StoreError::Fenced(
            "the session in which this change was made ended before it was stored".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// A node that wants a place.
#[derive(Clone, Debug)]
pub struct Join<'a> {
    /// The node's id.
    pub node: [u8; 16],
    /// The name of its machine, for messages.
    pub host: &'a str,
    /// Where other nodes reach it.
    pub address: &'a str,
    /// How long the session lasts without being renewed. At most a day. etcd counts whole seconds.
    pub ttl: Duration,
    /// Ends an unexpired session of the same node id. Only for a user who knows that the other process is
    /// gone.
    pub take_over: bool,
    /// The version of this program, for `covey sessions`.
    pub program: &'a str,
}

/// Which database this is, and which run of it. A copy of a database holds the same rows, and is another one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Incarnation {
    /// What a dump or a snapshot does not carry over: the ids of the server, the database and its tables.
    pub place: String,
    /// How often a copy of the server's files has taken its place: the timeline of PostgreSQL. etcd has none,
    /// so it is 0.
    pub timeline: u32,
    /// When the server began, in microseconds since 1970. 0: the engine does not tell. Another time means
    /// that the server may have lost what it had confirmed last.
    pub began: i64,
}

/// What is called with the server that answers from now on. See [`Database::on_another_server`].
pub type OnAnotherServer = Box<dyn Fn(&Incarnation) + Send + Sync>;

/// The answer to a renewal.
#[derive(Clone, Debug)]
pub struct Renewed {
    /// The database that answered.
    pub incarnation: Incarnation,
    /// How long the session lasts from when the server answered.
    pub remaining: Duration,
    /// The server's clock when it answered, if the server tells it.
    pub server_time: Option<Timestamp>,
}

/// A row of the list of sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// The node's number.
    pub number: i64,
    /// The node's id.
    pub node: [u8; 16],
    /// The node's machine.
    pub host: String,
    /// Where other nodes reach it.
    pub address: String,
    /// How often it has joined.
    pub epoch: i64,
    /// Milliseconds until it expires; negative: since then. etcd does not tell how long ago, so it is -1.
    pub expires_in_ms: i64,
    /// Whether it is unexpired, by the server's clock.
    pub alive: bool,
    /// Changes with every renewal. `None`: the engine ends sessions by a clock that does not jump.
    pub renewal: Option<i64>,
    /// Whether it is over for good: the node left, another node ended its session, or the engine did.
    pub ended: bool,
    /// The version of its program. Empty: it is older than this field.
    pub program: String,
}

/// What an upgrade did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgraded {
    /// The version that was found.
    pub from: String,
    /// The version now. The same: there was nothing to do.
    pub to: String,
}

/// How a finding is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// As it should be.
    Good,
    /// What was checked works; something should be changed.
    Warning,
    /// The volume cannot be used.
    Bad,
}

/// A finding: one line. A line that is not good says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// What was checked: `address`, `connection`, `server`, `volume`, `latency` and, by engine, `clock`,
    /// `connections`, `dead rows`, `space` or `old revisions`.
    pub what: &'static str,
    /// How it is meant.
    pub level: Level,
    /// The line.
    pub line: String,
}

impl Checked {
    /// Makes a finding about something that is as it should be.
    pub fn good(what: &'static str, line: String) -> Checked {
        Checked { what, level: Level::Good, line }
    }

    /// Makes a finding about something that cannot be used.
    pub fn bad(what: &'static str, error: &SetupError) -> Checked {
        Checked { what, level: Level::Bad, line: error.to_string() }
    }

    /// Makes a finding that is good, or a warning with advice.
    pub fn judged(what: &'static str, is_good: bool, line: String, advice: &str) -> Checked {
        let level = if is_good { Level::Good } else { Level::Warning };
        let line = if is_good { line } else { format!("{line}; {advice}") };
        Checked { what, level, line }
    }
}

/// The rows of one shared volume, and the sessions of its nodes. Not for use on threads of a tokio runtime.
pub trait Database: MetaStore {
    /// The volume's id, as given when it was created.
    fn uuid(&self) -> [u8; 16];

    /// Takes a place in the volume. Every commit that begins from now on carries it. A node id that joined
    /// before gets its number again, with the next epoch. When this returns, no commit of an earlier session
    /// of the node takes effect any more, not even one that waits in this store: it is refused with `Fenced`.
    ///
    /// # Errors
    /// `Unavailable` if the node id has an unexpired session: the message names its machine and says when it
    /// expires. See [`StoreError`] for others.
    fn join(&self, join: &Join<'_>) -> Result<Session, StoreError>;

    /// Continues a session of this node whose process is dead, so that what that process had acknowledged can
    /// be stored. The session lasts its whole length again. Commits that the process had sent may still take
    /// effect.
    ///
    /// # Errors
    /// `Fenced` if the session is over for good. See [`StoreError`] for others.
    fn resume(&self, node: &[u8; 16], session: Session, ttl: Duration) -> Result<(), StoreError>;

    /// Makes the session last its whole length again.
    ///
    /// # Errors
    /// `Fenced` if it has expired, or another process took its place. `Unavailable` if the store has not
    /// joined, and for a server that cannot be reached.
    fn renew(&self) -> Result<Renewed, StoreError>;

    /// Ends the session, so that the node can join again at once. Later commits of this store are refused
    /// with `Fenced`. The node keeps its number.
    ///
    /// # Errors
    /// See [`Database::renew`]; not `Fenced`.
    fn leave(&self) -> Result<(), StoreError>;

    /// Ends another node's session for good, unless it was renewed since `row` was read. Later commits of
    /// that session are refused. Returns whether it is over.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn end(&self, row: &SessionRow) -> Result<bool, StoreError>;

    /// The session, if the store has joined.
    fn session(&self) -> Option<Session>;

    /// Which database answers now. A store that has found another one than it had opened refuses everything.
    ///
    /// # Errors
    /// `Unavailable` for another database than the one that was opened. See [`StoreError`] for others.
    fn incarnation(&self) -> Result<Incarnation, StoreError>;

    /// From now on, calls this when another server of the database answers, or the same one that was started
    /// anew: before the first answer of that server is given to anybody. Such a server may lack what was
    /// confirmed last. The call must not wait for the database. An engine that never loses what it has
    /// confirmed calls it never.
    fn on_another_server(&self, _call: OnAnotherServer) {}

    /// Settings of the server by which it may lose what it has confirmed: one line for each, with advice.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn weaknesses(&self) -> Result<Vec<String>, StoreError>;

    /// Never gives the next numbers to a node: this database was put back from a copy, and nodes that joined
    /// after the copy was made may have them.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn skip_numbers(&self, count: u32) -> Result<(), StoreError>;

    /// All sessions of the volume, expired ones too, by number.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn sessions(&self) -> Result<Vec<SessionRow>, StoreError>;
}
