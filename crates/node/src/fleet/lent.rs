//! What a command learns of a node without a mount, by its folder: a depot, or a lender.

use std::path::{Path, PathBuf};

use api::control::{Ear, Request};
use api::error::{Failure, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::shown::FleetStatus;
use crate::control;
use crate::far::FarStatus;

/// The file by which such a folder is known.
pub const LOCK: &str = "depot.lock";

/// A depot's or lender's figures. Field names are stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LentStatus {
    /// The folder of its cache.
    #[serde(with = "api::raw_path")]
    pub folder: PathBuf,
    /// Whose blobs it keeps.
    pub origin: String,
    /// `depot` or `lender`.
    pub role: String,
    /// Where it is.
    pub zone: String,
    /// Its process.
    pub pid: u32,
    /// Since when it serves.
    pub uptime_seconds: u64,
    /// Blobs that it fetched because a node asked for their bytes.
    pub filled_blobs: u64,
    /// Blobs that it fetched because somebody warmed it.
    pub warmed_blobs: u64,
    /// Copies that it made of what it tracks.
    pub kept_blobs: u64,
    /// Bytes of memory that the process holds.
    pub memory_bytes: u64,
    /// The most it ever held.
    pub memory_peak_bytes: u64,
    /// Its cache, and what it asked of the origin.
    pub far: FarStatus,
    /// Who is there, and where bytes came from.
    pub fleet: FleetStatus,
}

/// Whether it is such a folder.
pub fn is_one(place: &Path) -> bool {
    // A path on a mount is none, and on one that does not answer nothing can be looked at.
    crate::mounts::entered(place).is_none() && place.join(LOCK).is_file()
}

/// Asks the node that has the folder.
pub fn ask<T: DeserializeOwned>(place: &Path, request: &Request) -> Result<T> {
    control::ask(&Ear::of_source(place), request, &mut |_| ()).map_err(|failure| match &*failure.code {
        "no-answer" => {
            let place = place.display();
            Failure::new("no-answer", format!("{place} is the folder of a depot or lender that does not run"))
                .next(format!("start it: covey depot --cache {place} ..., or covey lend --cache {place} ..."))
        }
        _ => failure,
    })
}
