//! In place of [`guest_status`](crate::guest_status), in a program without guests: it can show none of their
//! mounts, which another program has made.

use std::path::Path;
use std::time::Duration;

use api::error::{Failure, Result};
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

/// Fails for a guest's mount, whose source is the address of a server.
///
/// # Errors
/// It is one.
pub fn no_guests_mount(mount: &Mounted) -> Result<()> {
    if !["unix:", "tcp:", "vsock:"].iter().any(|kind| mount.source.starts_with(kind)) {
        return Ok(());
    }
    let lacking = crate::parts::lacking("guests");
    let failure = Failure::new("guest-mount", format!("{} is a guest's mount", mount.path.display()));
    Err(lacking.next.into_iter().fold(failure.why(lacking.what), |failure, next| failure.next(next)))
}

/// See `guest_status`.
pub fn text(shown: &Shown) -> String {
    match *shown {}
}

/// See `guest_status`. It is called for a guest's mount only.
pub fn stats(_: &Path, _: Duration, _: Option<u64>, _: Term) -> Result<u8> {
    Err(crate::parts::lacking("guests"))
}
