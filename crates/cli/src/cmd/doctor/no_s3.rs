//! In place of the checks of an S3 endpoint, in a program without it.

use api::status::Status;

use super::Check;

/// No options.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct S3 {}

impl S3 {
    /// Returns nothing.
    pub fn checks(&self) -> Vec<Check> {
        Vec::new()
    }
}

/// Returns nothing: such a program serves no endpoint.
pub fn of_mount(_: &Status) -> Vec<Check> {
    Vec::new()
}
