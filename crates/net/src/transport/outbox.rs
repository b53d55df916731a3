//! Small frames that a connection will send: appended at the end, and sent from the front, many in one write.

use std::io;

use super::link::Link;

/// Sent bytes are removed from the buffer when they are this many.
const GONE: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    /// How many of the bytes have been sent.
    gone: usize,
}

impl Outbox {
    /// How many bytes wait here.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.gone
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, to append to.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Sends as much as the socket takes, and returns how much that is.
    ///
    /// # Errors
    /// The socket's error.
    pub(super) fn send(&mut self, stream: &Link) -> io::Result<usize> {
        let sent = stream.try_write(&self.bytes[self.gone..])?;
        self.count_sent(sent);
        Ok(sent)
    }

    fn count_sent(&mut self, sent: usize) {
        self.gone += sent;
        if self.gone == self.bytes.len() {
            self.bytes.clear();
            self.gone = 0;
        } else if self.gone >= GONE {
            self.bytes.drain(..self.gone);
            self.gone = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_always_filled_does_not_grow() {
        let mut out = Outbox::default();
        for _ in 0..1000 {
            out.end().extend_from_slice(&[1; 1000]);
            let sent = out.len().min(999);
            out.count_sent(sent);
            assert!(out.bytes.len() <= GONE + 4000);
        }
        assert_eq!(out.len(), 1000);
    }
}
