//! What a connection is to send: small frames as bytes, and between them parts of blobs that leave from where they lie.
//!
//! ```text
//!   bytes:  [frame][frame][header]        [header]        [frame]
//!   lent:                         4 KiB            8 KiB              one sendmsg(2) for as many as there are
//! ```
//!
//! Frames are only ever put at the end, and what is before it leaves in that order. A loan keeps its blob open and mapped until it has gone.

use std::collections::VecDeque;
use std::io;

use base::BlobId;

use super::link::Link;
use super::opened::Lent;
use super::socket;

/// So many places are told to the kernel at once; it would take 1,024.
const PARTS: usize = 128;
/// Bytes that have gone are taken out when they are so many.
const GONE: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
    /// So many of them have gone.
    gone: usize,
    loans: VecDeque<Loan>,
    /// Bytes that are lent and have not gone.
    lent: usize,
}

struct Loan {
    /// It goes when so many of the bytes have.
    after: usize,
    lent: Lent,
}

/// What one call sent.
pub(super) struct Sent {
    pub(super) bytes: usize,
    /// Something lent was not in memory, and was waited for.
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

    /// The bytes, to put more behind them.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Puts a part of a blob behind all that is here.
    pub(super) fn lend(&mut self, lent: Lent) {
        self.lent += lent.len();
        self.loans.push_back(Loan { after: self.bytes.len(), lent });
    }

    /// The blob of what is lent next.
    pub(super) fn lent(&self) -> Option<BlobId> {
        self.loans.front().map(|loan| loan.lent.blob())
    }

    /// Sends what there is room for. What is lent goes in the clear only.
    ///
    /// # Errors
    /// What the socket says; [`libc::EFAULT`] where something that was lent cannot be had any more. Its header has gone then, so the connection has to end.
    pub(super) fn send(&mut self, stream: &Link) -> io::Result<Sent> {
        let sent = if self.loans.is_empty() {
            Sent { bytes: stream.try_write(&self.bytes[self.gone..])?, waited: false }
        } else {
            let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
            let mut parts = [none; PARTS];
            let count = self.places(&mut parts);
            let before = socket::waits_for_disk();
            // SAFETY: the places are in `bytes`, and in mappings that the loans hold; neither is touched before this returns.
            let bytes = unsafe { stream.send_parts(&mut parts[..count]) }?;
            Sent { bytes, waited: socket::waits_for_disk() != before }
        };
        self.went(sent.bytes);
        Ok(sent)
    }

    /// Where what is sent next lies; how many places these are.
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

    fn went(&mut self, mut sent: usize) {
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
