//! The state of a volume's prefetch: the access patterns within files and across them, and the queue.

use base::Ino;
use parking_lot::Mutex;

use super::files::Files;
use super::pattern::{Pattern, Read, Wanted};
use super::queue::Prefetches;

/// The number of files whose readers are remembered, of some 300 bytes each. With more files, some share a
/// slot, and their pattern starts anew now and then.
const FILES: usize = 64;

/// The access patterns of files. See the [module above](super).
pub(crate) struct Streams {
    within: [Mutex<(u64, Pattern)>; FILES],
    pub(super) across: Mutex<Files>,
    pub(crate) queue: Prefetches,
}

impl Streams {
    pub(crate) fn new() -> Streams {
        Streams {
            within: std::array::from_fn(|_| Mutex::default()),
            across: Mutex::default(),
            queue: Prefetches::default(),
        }
    }

    pub(super) fn read(&self, ino: Ino, read: &Read, stream: bool) -> Wanted {
        let mut file = self.within[ino.0 as usize % FILES].lock();
        if file.0 != ino.0 {
            *file = (ino.0, Pattern::default());
        }
        file.1.read(read, stream)
    }
}
