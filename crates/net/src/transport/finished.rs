//! Answers from other threads, until the loop that serves the connection takes them.

#[derive(Default)]
pub(super) struct Finished {
    pub(super) frames: Vec<u8>,
    /// How many helpers' results are in it. They count as in progress until they are taken. Otherwise fast
    /// helpers would add more and more here.
    pub(super) ended: usize,
}

impl Finished {
    /// Adds a helper's result.
    pub(super) fn end(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        put(&mut self.frames);
        self.ended += 1;
    }
}
