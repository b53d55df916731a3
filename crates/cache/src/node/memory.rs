//! Bytes of far blobs that are kept in memory: parts that were asked for once, and whole blobs where there is no disk to keep them on.
//!
//! First in, first out, within a bound. What was fetched because it may be wanted takes half of that at most, so that it does not
//! push out what is being read. Also the names of the blobs of which a part was asked for lately: the second time is a reason to fetch
//! the whole.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use base::BlobId;
use blob::folder::past_end;
use blob::{BlobError, Part};

/// How many blobs are remembered of which a part was asked for.
const ASKED: usize = 1024;

/// Whether all of a blob is in this part.
pub(super) fn is_whole(part: &Part) -> bool {
    part.offset == 0 && part.bytes.len() as u64 == u64::from(part.sums.size())
}

/// Copies a range out of a part; `None` if it is not in it.
///
/// # Errors
/// The blob has no such range.
pub(super) fn copy(id: &BlobId, part: &Part, offset: u32, buf: &mut [u8]) -> Result<Option<()>, BlobError> {
    let end = u64::from(offset) + buf.len() as u64;
    if end > u64::from(part.sums.size()) {
        return Err(past_end(id, part.sums.size()));
    }
    let Some(from) = offset.checked_sub(part.offset).map(|from| from as usize) else { return Ok(None) };
    Ok(part.bytes.get(from..from + buf.len()).map(|bytes| buf.copy_from_slice(bytes)))
}

struct Kept {
    part: Arc<Part>,
    number: u64,
    read: bool,
    /// Bytes that a stream took of it so far.
    passed: usize,
}

/// See the module.
pub(super) struct Memory {
    most: usize,
    bytes: usize,
    /// Bytes of those that nobody read yet.
    unread: usize,
    parts: HashMap<BlobId, Kept>,
    /// In the order of their coming, with the number that each got; some may be gone.
    order: VecDeque<(BlobId, u64)>,
    last: u64,
    asked: VecDeque<BlobId>,
}

impl Memory {
    /// For so many bytes.
    pub(super) fn new(most: usize) -> Memory {
        Memory {
            most,
            bytes: 0,
            unread: 0,
            parts: HashMap::new(),
            order: VecDeque::new(),
            last: 0,
            asked: VecDeque::new(),
        }
    }

    pub(super) fn get(&mut self, id: &BlobId) -> Option<Arc<Part>> {
        let kept = self.parts.get_mut(id)?;
        if !kept.read {
            kept.read = true;
            self.unread -= kept.part.bytes.len();
        }
        Some(Arc::clone(&kept.part))
    }

    /// A whole blob, of which somebody takes so many bytes.
    pub(super) fn pass(&mut self, id: &BlobId, bytes: usize) -> Option<Arc<Part>> {
        let kept = self.parts.get_mut(id).filter(|kept| bytes > 0 && is_whole(&kept.part))?;
        kept.passed += bytes;
        self.get(id)
    }

    /// Lets go of a blob of which as many bytes were taken as it has.
    pub(super) fn forget_passed(&mut self, id: &BlobId) -> Option<Arc<Part>> {
        let kept = self.parts.get(id)?;
        if kept.passed < kept.part.bytes.len() { None } else { self.forget(id) }
    }

    /// Whether there is room for so many bytes of what may be wanted.
    pub(super) fn has_room_ahead(&self, bytes: usize) -> bool {
        self.unread + bytes <= self.most / 2
    }

    pub(super) fn has_whole(&self, id: &BlobId) -> bool {
        self.parts.get(id).is_some_and(|kept| is_whole(&kept.part))
    }

    /// What is let go of for it is given back, to be freed without a lock.
    pub(super) fn keep(&mut self, id: &BlobId, part: Arc<Part>) -> Vec<Arc<Part>> {
        let mut gone = Vec::new();
        gone.extend(self.forget(id));
        self.last += 1;
        self.bytes += part.bytes.len();
        self.unread += part.bytes.len();
        self.order.push_back((*id, self.last));
        self.parts.insert(*id, Kept { part, number: self.last, read: false, passed: 0 });
        while self.bytes > self.most
            && let Some((oldest, number)) = self.order.pop_front()
        {
            if self.parts.get(&oldest).is_some_and(|kept| kept.number == number) {
                gone.extend(self.forget(&oldest));
            }
        }
        if self.order.len() > 2 * self.parts.len() + 64 {
            let parts = &self.parts;
            self.order.retain(|(id, number)| parts.get(id).is_some_and(|kept| kept.number == *number));
        }
        gone
    }

    /// The same of a whole blob of which so many bytes were taken before.
    pub(super) fn keep_passed(&mut self, id: &BlobId, part: Arc<Part>, bytes: usize) -> Vec<Arc<Part>> {
        let gone = self.keep(id, part);
        let _ = self.pass(id, bytes);
        gone
    }

    pub(super) fn forget(&mut self, id: &BlobId) -> Option<Arc<Part>> {
        let Kept { part, read, .. } = self.parts.remove(id)?;
        self.bytes -= part.bytes.len();
        self.unread -= if read { 0 } else { part.bytes.len() };
        Some(part)
    }

    /// Lets go of everything, also of what was asked for.
    pub(super) fn clear(&mut self) -> Memory {
        std::mem::replace(self, Memory::new(self.most))
    }

    /// Notes that a part of the blob is asked for; whether one was before.
    pub(super) fn ask(&mut self, id: &BlobId) -> bool {
        if self.asked.contains(id) {
            return true;
        }
        if self.asked.len() == ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back(*id);
        false
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
