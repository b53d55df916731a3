//! In place of a program in the driver of an interface where the program is built without eBPF: the daemon
//! answers all questions about blobs.

use api::status::fleet::InDriver as Status;
use fleet::node::Fleet;

use crate::log;

/// No value exists.
pub enum InDriver {}

impl InDriver {
    /// Says that the daemon answers.
    pub fn start(_: &Fleet, _: &str) -> Option<InDriver> {
        log::warn(
            "fleet: only the daemon answers questions about blobs: this program was built without eBPF; \
             `make build` makes the one that has it",
        );
        None
    }

    /// See `in_driver`.
    pub fn status(&self) -> Status {
        match *self {}
    }
}
