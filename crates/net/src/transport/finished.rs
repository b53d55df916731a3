//! Answers from other threads, until the loop that serves the connection takes them.

use super::clients::SlowWork;

#[derive(Default)]
pub(super) struct Finished {
    pub(super) frames: Vec<u8>,
    /// The work whose results are in it. It counts as in progress until they are taken. Otherwise fast
    /// helpers would add more and more here.
    work: Vec<SlowWork>,
    closed: bool,
}

impl Finished {
    /// Adds a helper's result.
    pub(super) fn end(&mut self, work: SlowWork, put: impl FnOnce(&mut Vec<u8>)) {
        if !self.closed {
            put(&mut self.frames);
            self.work.push(work);
        }
    }

    /// Takes the results.
    pub(super) fn take(&mut self) -> Finished {
        std::mem::take(self)
    }

    /// The connection has ended: results are dropped.
    pub(super) fn close(&mut self) -> Finished {
        std::mem::replace(self, Finished { closed: true, ..Finished::default() })
    }
}
