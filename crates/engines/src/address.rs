//! The address of a shared volume picks the engine that holds its names: `postgres://...` or `etcd://...`.
//!
//! An address of an engine that this program was built without is recognised, but cannot be used.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use meta::engine::database::{Checked, Database, SetupError, Upgraded};

#[cfg(feature = "etcd")]
use crate::etcd::{self, Etcd};
#[cfg(feature = "postgres")]
use crate::postgres::{self, Postgres};

/// How many connections to its database a node has, if nothing else is asked for.
pub const LANES: usize = 8;

/// The address of a shared volume. Its text form can be parsed again, and holds no password.
#[derive(Clone, Debug)]
pub struct Address(Arc<dyn Volume>);

/// What can be done with a shared volume by its address.
pub trait Volume: fmt::Debug + fmt::Display + Send + Sync {
    /// Returns the volume's name.
    fn volume(&self) -> &str;

    /// Returns its servers: name or address, and port. The name is a folder if it is a Unix socket.
    fn servers(&self) -> Vec<(String, u16)>;

    /// Opens the volume, with at most so many connections. The password comes from the environment.
    ///
    /// # Errors
    /// `Missing` without such a volume. Otherwise one line that names the mistake and says what to do.
    fn open_with(&self, lanes: usize) -> Result<Arc<dyn Database>, SetupError>;

    /// Opens the volume as [`Volume::open_with`] does, with at most [`LANES`] connections.
    ///
    /// # Errors
    /// As [`Volume::open_with`].
    fn open(&self) -> Result<Arc<dyn Database>, SetupError> {
        self.open_with(LANES)
    }

    /// Registers a volume. A repeated call with the same id succeeds.
    ///
    /// # Errors
    /// `Exists` if the name is in use. Otherwise as [`Volume::open`].
    fn create(&self, uuid: [u8; 16]) -> Result<(), SetupError>;

    /// Removes the volume with all its rows. Nodes that use it meet errors.
    ///
    /// # Errors
    /// As [`Volume::open`].
    fn remove(&self) -> Result<(), SetupError>;

    /// Raises the version of what the database holds to the one that this program writes. Nodes may be
    /// mounted.
    ///
    /// # Errors
    /// `Version` if it is newer than this program. Otherwise as [`Volume::open`].
    fn upgrade(&self) -> Result<Upgraded, SetupError>;

    /// Checks the database and the volume in it, in an order in which a mistake explains the ones behind it.
    fn check(&self) -> Vec<Checked>;
}

/// Reads an address of one engine.
type Parse = fn(&str) -> Result<Address, SetupError>;

/// An engine, whether this program has it or not.
struct Engine {
    name: &'static str,
    /// What its addresses begin with.
    begins: &'static [&'static str],
    /// None: this program was built without it.
    parse: Option<Parse>,
}

static ENGINES: [Engine; 2] = [
    Engine { name: "PostgreSQL", begins: &["postgres://", "postgresql://"], parse: IN_POSTGRES },
    Engine { name: "etcd", begins: &["etcd://"], parse: IN_ETCD },
];

impl Engine {
    fn of(text: &str) -> Option<&'static Engine> {
        ENGINES.iter().find(|engine| engine.begins.iter().any(|begin| text.starts_with(begin)))
    }

    fn parse(&self, text: &str) -> Result<Address, SetupError> {
        let parse = self.parse.ok_or_else(|| {
            let name = self.name;
            SetupError::Absent(format!(
                "this program was built without {name}; `make build` makes the one that has it"
            ))
        })?;
        parse(text)
    }
}

impl Address {
    /// Returns whether a text is meant as such an address.
    pub fn is_meant(text: &str) -> bool {
        Engine::of(text).is_some()
    }

    /// Reads an address.
    ///
    /// # Errors
    /// [`SetupError::Target`] says what is wrong with it. The message shows no password.
    /// [`SetupError::Absent`] if this program was built without its engine.
    pub fn parse(text: &str) -> Result<Address, SetupError> {
        let text = base::secret::line(text, &"it").map_err(|error| SetupError::Target(error.to_string()))?;
        let engine = Engine::of(text);
        let unknown = || SetupError::Target("it must begin with postgres:// or etcd://".to_owned());
        engine.ok_or_else(unknown)?.parse(text)
    }
}

impl Deref for Address {
    type Target = dyn Volume;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(not(feature = "postgres"))]
const IN_POSTGRES: Option<Parse> = None;
#[cfg(feature = "postgres")]
const IN_POSTGRES: Option<Parse> = Some(|text| Ok(Address(Arc::new(postgres::Target::parse(text)?))));

#[cfg(not(feature = "etcd"))]
const IN_ETCD: Option<Parse> = None;
#[cfg(feature = "etcd")]
const IN_ETCD: Option<Parse> = Some(|text| Ok(Address(Arc::new(etcd::Target::parse(text)?))));

#[cfg(feature = "postgres")]
impl Volume for postgres::Target {
    fn volume(&self) -> &str {
        &self.volume
    }

    fn servers(&self) -> Vec<(String, u16)> {
        self.servers().into_iter().map(|server| (server.host, server.port)).collect()
    }

    fn open_with(&self, lanes: usize) -> Result<Arc<dyn Database>, SetupError> {
        Ok(Arc::new(Postgres::open(self, postgres::Options { lanes, ..Default::default() })?))
    }

    fn create(&self, uuid: [u8; 16]) -> Result<(), SetupError> {
        Postgres::create(self, uuid, &Default::default())
    }

    fn remove(&self) -> Result<(), SetupError> {
        Postgres::remove(self, &Default::default())
    }

    fn upgrade(&self) -> Result<Upgraded, SetupError> {
        Postgres::upgrade(self, &Default::default())
    }

    fn check(&self) -> Vec<Checked> {
        Postgres::check(self, &Default::default())
    }
}

#[cfg(feature = "etcd")]
impl Volume for etcd::Target {
    fn volume(&self) -> &str {
        &self.volume
    }

    fn servers(&self) -> Vec<(String, u16)> {
        self.servers.clone()
    }

    fn open_with(&self, lanes: usize) -> Result<Arc<dyn Database>, SetupError> {
        Ok(Arc::new(Etcd::open(self, etcd::Options { lanes, ..Default::default() })?))
    }

    fn create(&self, uuid: [u8; 16]) -> Result<(), SetupError> {
        Etcd::create(self, uuid, &Default::default())
    }

    fn remove(&self) -> Result<(), SetupError> {
        Etcd::remove(self, &Default::default())
    }

    fn upgrade(&self) -> Result<Upgraded, SetupError> {
        // There has been one version so far.
        Etcd::open(self, Default::default())?;
        Ok(Upgraded { from: etcd::FORMAT.to_owned(), to: etcd::FORMAT.to_owned() })
    }

    fn check(&self) -> Vec<Checked> {
        Etcd::check(self, &Default::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_was_left_out_is_named() {
        for (engine, name) in ENGINES.iter().zip(["PostgreSQL", "etcd"]) {
            let begin = engine.begins[0];
            let absent = Engine { parse: None, ..*engine };
            assert!(Address::is_meant(begin) && !Address::is_meant("/folder"));
            assert_eq!(
                absent.parse(begin).unwrap_err().to_string(),
                format!("this program was built without {name}; `make build` makes the one that has it")
            );
        }
        assert!(Address::parse("/folder").unwrap_err().to_string().contains("postgres:// or etcd://"));
    }
}
