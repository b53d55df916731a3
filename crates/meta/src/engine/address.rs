//! The address of a shared volume picks the engine that holds its names: `postgres://...` or `etcd://...`.

use std::fmt;
use std::sync::Arc;

use super::database::{Checked, Database, SetupError, Upgraded};
use super::{etcd, postgres};

/// The address of a shared volume. Its text form can be parsed again, and holds no password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// In PostgreSQL.
    Postgres(postgres::Target),
    /// In etcd.
    Etcd(etcd::Target),
}

impl Address {
    /// Whether a text is meant as such an address.
    pub fn is_meant(text: &str) -> bool {
        postgres::Target::is_meant(text) || etcd::Target::is_meant(text)
    }

    /// Reads an address.
    ///
    /// # Errors
    /// [`SetupError::Target`] says what is wrong with it. The message shows no password.
    pub fn parse(text: &str) -> Result<Address, SetupError> {
        if etcd::Target::is_meant(text) {
            return etcd::Target::parse(text).map(Address::Etcd);
        }
        if !postgres::Target::is_meant(text) {
            return Err(SetupError::Target("it must begin with postgres:// or etcd://".to_owned()));
        }
        postgres::Target::parse(text).map(Address::Postgres)
    }

    /// The volume's name.
    pub fn volume(&self) -> &str {
        match self {
            Address::Postgres(target) => &target.volume,
            Address::Etcd(target) => &target.volume,
        }
    }

    /// Its servers: name or address, and port. The name is a folder if it is a Unix socket.
    pub fn servers(&self) -> Vec<(String, u16)> {
        match self {
            Address::Postgres(target) => {
                target.servers().into_iter().map(|server| (server.host, server.port)).collect()
            }
            Address::Etcd(target) => target.servers.clone(),
        }
    }

    /// Opens the volume. The password comes from the environment.
    ///
    /// # Errors
    /// `Missing` without such a volume. Otherwise one line that names the mistake and says what to do.
    pub fn open(&self) -> Result<Arc<dyn Database>, SetupError> {
        Ok(match self {
            Address::Postgres(target) => Arc::new(postgres::Postgres::open(target, Default::default())?),
            Address::Etcd(target) => Arc::new(etcd::Etcd::open(target, Default::default())?),
        })
    }

    /// Registers a volume. A repeated call with the same id succeeds.
    ///
    /// # Errors
    /// `Exists` if the name is in use. Otherwise as [`Address::open`].
    pub fn create(&self, uuid: [u8; 16]) -> Result<(), SetupError> {
        match self {
            Address::Postgres(target) => postgres::Postgres::create(target, uuid, &Default::default()),
            Address::Etcd(target) => etcd::Etcd::create(target, uuid, &Default::default()),
        }
    }

    /// Removes the volume with all its rows. Nodes that use it meet errors.
    ///
    /// # Errors
    /// As [`Address::open`].
    pub fn remove(&self) -> Result<(), SetupError> {
        match self {
            Address::Postgres(target) => postgres::Postgres::remove(target, &Default::default()),
            Address::Etcd(target) => etcd::Etcd::remove(target, &Default::default()),
        }
    }

    /// Raises the version of what the database holds to the one that this program writes. Nodes may be
    /// mounted.
    ///
    /// # Errors
    /// `Version` if it is newer than this program. Otherwise as [`Address::open`].
    pub fn upgrade(&self) -> Result<Upgraded, SetupError> {
        match self {
            Address::Postgres(target) => postgres::Postgres::upgrade(target, &Default::default()),
            Address::Etcd(target) => {
                // There has been one version so far.
                etcd::Etcd::open(target, Default::default())?;
                Ok(Upgraded { from: etcd::FORMAT.to_owned(), to: etcd::FORMAT.to_owned() })
            }
        }
    }

    /// Checks the database and the volume in it, in an order in which a mistake explains the ones behind it.
    pub fn check(&self) -> Vec<Checked> {
        match self {
            Address::Postgres(target) => postgres::Postgres::check(target, &Default::default()),
            Address::Etcd(target) => etcd::Etcd::check(target, &Default::default()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Postgres(target) => target.fmt(f),
            Address::Etcd(target) => target.fmt(f),
        }
    }
}
