//! One request of a guest: a chain of descriptors in its memory.
//!
//! ```text
//!   device reads:  | header 40 | arguments ... | data |      device writes:  | header 16 | body ... |
//! ```
//!
//! The whole chain is checked before anything of it is used: it ends, all of it is in the guest's memory, and
//! what the device reads comes before what it writes. The guest may still change the bytes at any time. So a
//! request is copied once and then decoded from the copy, and what was written is never read again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fuse::abi::header::OUT_HEADER;
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT};
use vm_memory::{GuestAddress, GuestMemory};

use crate::memory::Memory;

/// Why a chain cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadChain {
    /// The chain has no descriptor, runs in a circle, or goes on where there is no descriptor.
    #[error("a chain of descriptors does not end")]
    Endless,
    /// A descriptor that is read follows one that is written.
    #[error("a chain reads after it writes")]
    Order,
    /// A buffer is not, or not whole, in the guest's memory.
    #[error("a descriptor is outside of the guest's memory")]
    Outside,
}

/// Why nothing can be taken from a ring.
#[derive(Debug, thiserror::Error)]
pub enum BadRing {
    /// The ring names a chain where there is none.
    #[error("{0}")]
    Chain(#[from] BadChain),
    /// The ring itself makes no sense.
    #[error("{0}")]
    Ring(#[from] virtio_queue::Error),
}

/// The descriptors of a chain, not read yet.
pub type Descriptors = DescriptorChain<Arc<Memory>>;

/// Takes the next chain that the driver has made available, if there is one, and says whether there are more.
/// What is made available from now on makes a kick, also while this chain is served.
///
/// # Errors
/// [`BadRing`]. A driver that works never makes such a ring.
pub fn take(queue: &mut Queue, memory: &Arc<Memory>) -> Result<(Option<Descriptors>, bool), BadRing> {
    let is_there = queue.avail_idx(&**memory, Ordering::Acquire)?.0 != queue.next_avail();
    let descriptors = queue.iter(Arc::clone(memory))?.next();
    if is_there && descriptors.is_none() {
        return Err(BadChain::Outside.into());
    }
    Ok((descriptors, queue.enable_notification(&**memory)?))
}

/// A buffer in the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    at: GuestAddress,
    len: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Chain {
    head: u16,
    memory: Arc<Memory>,
    request: Vec<Piece>,
    reply: Vec<Piece>,
}

impl Chain {
    /// Reads the descriptors.
    ///
    /// # Errors
    /// [`BadChain`]. A driver that works never makes such a chain.
    pub fn read(mut descriptors: Descriptors, memory: Arc<Memory>) -> Result<Chain, BadChain> {
        let (mut request, mut reply, mut ends) = (Vec::new(), Vec::new(), false);
        let head = descriptors.head_index();
        for descriptor in descriptors.by_ref() {
            let piece = Piece { at: descriptor.addr(), len: descriptor.len() as usize };
            ends = !descriptor.has_next();
            if piece.len == 0 {
                continue;
            }
            memory.get_slice(piece.at, piece.len).map_err(|_| BadChain::Outside)?;
            match descriptor.is_write_only() {
                true => reply.push(piece),
                false if reply.is_empty() => request.push(piece),
                false => return Err(BadChain::Order),
            }
        }
        // The iterator stops without a word where a chain is broken, and after as many descriptors as fit.
        if ends { Ok(Chain { head, memory, request, reply }) } else { Err(BadChain::Endless) }
    }

    /// The number by which the guest knows it.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Bytes of the request.
    pub fn asked(&self) -> usize {
        self.request.iter().map(|piece| piece.len).sum()
    }

    /// Bytes of this machine that the request takes until its reply: its copy, and what is kept of its
    /// descriptors. A chain can have tens of thousands of descriptors with hardly a byte each.
    pub fn cost(&self) -> usize {
        self.asked() + (self.request.len() + self.reply.len()) * size_of::<Piece>()
    }

    /// Bytes that a reply may have, with its header.
    pub fn room(&self) -> usize {
        self.reply.iter().map(|piece| piece.len).sum()
    }

    /// Whether the guest can be told an error.
    pub fn takes_reply(&self) -> bool {
        self.room() >= OUT_HEADER
    }

    /// Copies the request, or as much of it as fits. Returns how many bytes that is.
    pub fn gather(&self, into: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in &self.request {
            let Ok(slice) = self.memory.get_slice(piece.at, piece.len) else { break };
            done += slice.copy_to(&mut into[done..]);
        }
        done
    }

    /// Copies a reply, in parts, to the guest. Returns how many bytes were copied: all, if there is room.
    pub fn scatter(&self, parts: [&[u8]; 2]) -> usize {
        let [mut now, mut next] = parts;
        let mut done = 0;
        for piece in &self.reply {
            let mut at = 0;
            while at < piece.len {
                if now.is_empty() {
                    (now, next) = (next, &[]);
                }
                let count = now.len().min(piece.len - at);
                if count == 0 {
                    return done;
                }
                let place = GuestAddress(piece.at.0 + at as u64);
                let Ok(slice) = self.memory.get_slice(place, count) else { return done };
                slice.copy_from(&now[..count]);
                (now, at, done) = (&now[count..], at + count, done + count);
            }
        }
        done
    }
}

#[cfg(test)]
mod tests;
