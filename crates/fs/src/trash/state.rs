//! When the trash is looked through.

use std::time::Instant;

use parking_lot::Mutex;

/// See the module above.
#[derive(Default)]
pub(crate) struct Trash {
    /// The next scan is due then. None: now.
    pub(crate) next: Mutex<Option<Instant>>,
    /// One thread at a time gives up entries for space.
    pub(crate) giving_up: Mutex<()>,
}
