//! What a database says of a shared volume, without joining it.

use api::error::Result;
use engines::Address;
pub use meta::engine::database::{Checked, Level, Upgraded};
use serde::Serialize;

use super::{setup_failure, setup_failure_at};

/// A node of a shared volume.
#[derive(Clone, Debug, Serialize)]
pub struct SessionRow {
    /// The node's number in the volume.
    pub number: i64,
    /// The node's machine.
    pub host: String,
    /// Where other nodes reach it.
    pub address: String,
    /// How often it has joined.
    pub epoch: i64,
    /// Milliseconds until its session expires; negative: since then. etcd does not tell how long ago, so it
    /// is -1.
    pub expires_in_ms: i64,
    /// Whether its session has not expired.
    pub alive: bool,
    /// The version of the program with which it joined last. Empty: older than this field.
    pub program: String,
}

/// All nodes that ever joined the volume at this address.
///
/// # Errors
/// The address is wrong, or the database cannot be used.
pub fn sessions(address: &str) -> Result<Vec<SessionRow>> {
    let address = Address::parse(address).map_err(setup_failure)?;
    let failed = setup_failure_at(&address);
    let names = address.open().map_err(&failed)?;
    let rows = names.sessions().map_err(|error| failed(error.into()))?;
    let row = |row: meta::engine::database::SessionRow| SessionRow {
        number: row.number,
        host: row.host,
        address: row.address,
        epoch: row.epoch,
        expires_in_ms: row.expires_in_ms,
        alive: row.alive,
        program: row.program,
    };
    Ok(rows.into_iter().map(row).collect())
}

/// Raises the version of what the database at this address holds to the one that this program writes.
///
/// # Errors
/// The address is wrong, the database cannot be used, or it is newer than this program.
pub fn upgrade(address: &str) -> Result<Upgraded> {
    let address = Address::parse(address).map_err(setup_failure)?;
    address.upgrade().map_err(setup_failure_at(&address))
}

/// Checks a database and the volume in it.
///
/// # Errors
/// The address is wrong.
pub fn check(address: &str) -> Result<Vec<Checked>> {
    Ok(Address::parse(address).map_err(setup_failure)?.check())
}
