//! Answers that come from other threads, until the loop that serves the connection takes them.

#[derive(Default)]
pub(super) struct Late {
    pub(super) frames: Vec<u8>,
    /// So many helpers' work is in there. It counts as under way until it is taken: else helpers that are quick would put more and more here.
    pub(super) ended: usize,
}

impl Late {
    /// Puts a helper's work here.
    pub(super) fn end(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        put(&mut self.frames);
        self.ended += 1;
    }
}
