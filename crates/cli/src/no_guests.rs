//! In place of [`guest_status`](crate::guest_status), in a program without guests: no mount is a guest's.

use std::path::Path;
use std::time::Duration;

use api::error::Result;
use fuse::mount::Mounted;
use serde::Serialize;

use crate::term::Term;

/// No value exists.
#[derive(Clone, Debug, Serialize)]
pub enum Shown {}

/// Returns nothing.
pub fn of(_: &Path) -> Option<Shown> {
    None
}

/// Accepts every mount.
///
/// # Errors
/// None.
pub fn no_guests_mount(_: &Mounted) -> Result<()> {
    Ok(())
}

/// See `guest_status`.
pub fn text(shown: &Shown) -> String {
    match *shown {}
}

/// See `guest_status`. It is called for a guest's mount only.
pub fn stats(_: &Path, _: Duration, _: Option<u64>, _: Term) -> Result<u8> {
    Err(crate::parts::lacking("guests"))
}
