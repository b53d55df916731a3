//! When the trash is looked through.

use std::time::Instant;

use parking_lot::Mutex;

/// A count of what is there.
#[derive(Clone, Copy)]
pub(crate) struct Counted {
    pub(crate) until: Instant,
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

/// See the module above.
#[derive(Default)]
pub(crate) struct Trash {
    /// The next scan is due then. None: now.
    pub(crate) next: Mutex<Option<Instant>>,
    /// How much there was at the last count, and until when that is good enough.
    pub(crate) counted: Mutex<Option<Counted>>,
    /// One thread at a time gives up entries for space.
    pub(crate) giving_up: Mutex<()>,
}
