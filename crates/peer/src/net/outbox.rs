//! What a connection will send: small frames as bytes, and between them parts of blobs that are sent from
//! where they are.
//!
//! ```text
//!   bytes:  [frame][frame][header]        [header]        [frame]
//!   lent:                         4 KiB            8 KiB              one sendmsg(2) for all of them
//! ```
//!
//! Frames are only appended, and everything leaves in order. A loan keeps its blob open and mapped until it
//! has been sent.

use std::collections::VecDeque;
use std::io;

use base::BlobId;

use super::link::Link;
use super::opened::Lent;
use super::socket;

/// How many places are passed to the kernel at once. It would accept 1,024.
const PARTS: usize = 128;
/// Sent bytes are removed from the buffer when they are this many.
const GONE: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    /// How many of the bytes have been sent.
    gone: usize,
    loans: VecDeque<Loan>,
    /// Lent bytes that have not been sent.
    lent: usize,
}

struct Loan {
    /// The position in the bytes after which it is sent.
    after: usize,
    lent: Lent,
}

/// The result of one call.
pub(super) struct Sent {
    pub(super) bytes: usize,
    /// Something lent was not in memory, and the call waited for it.
    pub(super) waited: bool,
}

impl Outbox {
    /// How many bytes wait here.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.gone + self.lent
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, to append to.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a part of a blob.
    pub(super) fn lend(&mut self, lent: Lent) {
        self.lent += lent.len();
        self.loans.push_back(Loan { after: self.bytes.len(), lent });
    }

    /// The blob of what is lent next.
    pub(super) fn lent(&self) -> Option<BlobId> {
        self.loans.front().map(|loan| loan.lent.blob())
    }

    /// Sends as much as the socket takes. Lent parts are sent on plain connections only.
    ///
    /// # Errors
    /// The socket's error. [`libc::EFAULT`] if a lent part can no longer be read. Its header was already
    /// sent, so the connection must end.
    pub(super) fn send(&mut self, stream: &Link) -> io::Result<Sent> {
        let sent = if self.loans.is_empty() {
            Sent { bytes: stream.try_write(&self.bytes[self.gone..])?, waited: false }
        } else {
            let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
            let mut parts = [none; PARTS];
            let count = self.places(&mut parts);
            let before = socket::waits_for_disk();
            // SAFETY: the places are in `bytes`, and in mappings that the loans hold. Neither is touched
            // before this returns.
            let bytes = unsafe { stream.send_parts(&mut parts[..count]) }?;
            Sent { bytes, waited: socket::waits_for_disk() != before }
        };
        self.count_sent(sent.bytes);
        Ok(sent)
    }

    /// Fills in the places that are sent next, and returns how many there are.
    fn places(&self, parts: &mut [libc::iovec; PARTS]) -> usize {
        let (mut count, mut at) = (0, self.gone);
        let mut put = |place: libc::iovec| {
            if place.iov_len > 0 && count < PARTS {
                parts[count] = place;
                count += 1;
            }
        };
        let bytes = |from: usize, to: usize| {
            let bytes = &self.bytes[from..to];
            libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
        };
        for loan in self.loans.iter().take(PARTS) {
            put(bytes(at, loan.after));
            put(loan.lent.place());
            at = loan.after;
        }
        if self.loans.len() <= PARTS {
            put(bytes(at, self.bytes.len()));
        }
        count
    }

    fn count_sent(&mut self, mut sent: usize) {
        while let Some(loan) = self.loans.front_mut() {
            let own = sent.min(loan.after - self.gone);
            (self.gone, sent) = (self.gone + own, sent - own);
            let lent = sent.min(loan.lent.len());
            loan.lent.advance(lent);
            (self.lent, sent) = (self.lent - lent, sent - lent);
            if self.gone < loan.after || loan.lent.len() > 0 {
                break;
            }
            self.loans.pop_front();
        }
        self.gone += sent;
        if self.gone == self.bytes.len() && self.loans.is_empty() {
            self.bytes.clear();
            self.gone = 0;
        } else if self.gone >= GONE {
            self.bytes.drain(..self.gone);
            self.loans.iter_mut().for_each(|loan| loan.after -= self.gone);
            self.gone = 0;
        }
    }
}

#[cfg(test)]
mod tests;
