//! What a command learns about a node without a mount (a depot or a lender) from its folder.

use std::path::Path;

use api::control::{ControlAddress, Request};
use api::error::{Failure, Result};
use serde::de::DeserializeOwned;

use crate::control;

/// The file that identifies such a folder.
pub const LOCK: &str = "depot.lock";

/// Whether this is such a folder.
pub fn is_one(place: &Path) -> bool {
    // A path on a mount is not one. A path on a mount that does not answer must not be touched.
    crate::mounts::entered(place).is_none() && place.join(LOCK).is_file()
}

/// Sends a request to the node that uses the folder.
pub fn ask<T: DeserializeOwned>(place: &Path, request: &Request) -> Result<T> {
    control::ask(&ControlAddress::of_source(place), request, &mut |_| ()).map_err(|failure| {
        match &*failure.code {
            "no-answer" => {
                let place = place.display();
                Failure::new(
                    "no-answer",
                    format!("{place} is the folder of a depot or lender that does not run"),
                )
                .next(format!("start it: covey depot --cache {place} ..., or covey lend --cache {place} ..."))
            }
            _ => failure,
        }
    })
}
