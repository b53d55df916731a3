//! What a command learns of a node without a mount, by its folder: a depot, or a lender.

use std::path::Path;

use api::control::{Ear, Request};
use api::error::{Failure, Result};
use serde::de::DeserializeOwned;

use crate::control;

/// The file by which such a folder is known.
pub const LOCK: &str = "depot.lock";

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
