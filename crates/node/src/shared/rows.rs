//! The volume's own rows that only a shared volume has.

use meta::key::ROW_PUBLISHING;

use crate::publish::shared::ROW_PUBLISHER;
use crate::volume_dir::Home;

/// Rows with the place of the volume's blobs. A volume without the first one is not complete.
pub(super) const ROW_ORIGIN: &str = "origin";
pub(super) const ROW_ENDPOINT: &str = "endpoint";
pub(super) const ROW_REGION: &str = "region";
/// The row with the secret by which nodes of the volume know one another.
pub(super) const ROW_SECRET: &str = "secret";
/// The volume holds the names of a folder that is about to become its first node ([`super::unfinished`]).
pub(super) const ROW_PROMOTING: &str = "promoting";
/// The promotion that copies names into the volume: a random number, which each attempt replaces. What an
/// earlier one sent and arrives late does not count any more.
pub(super) const ROW_COPYING: &str = "copying";
/// The session that repairs the volume ([`super::repairing`]).
pub(super) const ROW_REPAIRING: &str = "repairing";
/// A copy that becomes a volume of its own ([`super::detaching`]).
pub(super) const ROW_DETACHING: &str = "detaching";
/// What an interrupted command left, and the next one removes.
pub(super) const ROW_REMOVING: &str = "removing";

/// Where locks on files hold ([`super::locking`]).
pub(super) const ROW_LOCKS: &str = "locks";

/// The claim that the database has on the origin ([`super::claiming`]).
pub(super) const ROW_CLAIM: &str = "claim";

/// The server of the database that all nodes have had the time to notice ([`super::engine_seen`]).
pub(super) const ROW_SERVER: &str = "server";

/// All of them.
pub(super) const ROWS_SHARED: [&str; 14] = [
    ROW_ORIGIN,
    ROW_ENDPOINT,
    ROW_REGION,
    ROW_SECRET,
    ROW_COPYING,
    ROW_PROMOTING,
    ROW_REMOVING,
    ROW_REPAIRING,
    ROW_DETACHING,
    ROW_CLAIM,
    ROW_LOCKS,
    ROW_SERVER,
    ROW_PUBLISHER,
    ROW_PUBLISHING,
];

/// The rows that say where the blobs are.
pub(super) fn place_rows(home: &Home) -> Vec<(String, Vec<u8>)> {
    let mut rows = vec![(ROW_ORIGIN.to_owned(), home.origin.clone().into_bytes())];
    rows.extend(home.endpoint.clone().map(|text| (ROW_ENDPOINT.to_owned(), text.into_bytes())));
    rows.extend(home.region.clone().map(|text| (ROW_REGION.to_owned(), text.into_bytes())));
    rows
}
