//! Bytes of remote blobs in memory: parts that were read, and whole blobs if the disk cannot keep them.
//!
//! First in, first out, within a bound. Prefetched bytes take at most half of it, so that they do not push
//! out what is being read.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use base::BlobId;
use base::size::GROUP;
use blob::folder::past_end;
use blob::{BlobError, Buffer, Part};

/// Whether all of a blob is in this part.
pub(super) fn is_whole(part: &Part) -> bool {
    part.offset == 0 && part.bytes.len() as u64 == u64::from(part.sums.size())
}

/// The end of a part within its blob.
pub(super) fn end_of(part: &Part) -> u64 {
    u64::from(part.offset) + part.bytes.len() as u64
}

/// Copies a range out of a part. `None` if the part does not contain it.
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

/// The first missing range: from the start of a group to the next part or the end of a group. `None` if the
/// parts cover all of `from..to`.
pub(super) fn missing(parts: &[Arc<Part>], from: u32, to: u32) -> Option<(u32, u32)> {
    let mut at = u64::from(from);
    while let Some(end) =
        parts.iter().filter(|p| u64::from(p.offset) <= at && at < end_of(p)).map(|p| end_of(p)).max()
    {
        at = end;
    }
    // A part ends at the end of a group, or of its blob.
    let at = u32::try_from(at).ok().filter(|at| *at < to)?;
    let begin = at - at % GROUP;
    let next = parts.iter().map(|part| part.offset).filter(|offset| *offset > begin).min();
    let end = to.next_multiple_of(GROUP);
    Some((begin, next.map_or(end, |next| next.min(end))))
}

/// Copies a range out of several parts that together cover it.
///
/// # Errors
/// The blob has no such range.
pub(super) fn gather(id: &BlobId, parts: &[Arc<Part>], offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
    let end = u64::from(offset) + buf.len() as u64;
    if let Some(part) = parts.iter().find(|part| end > u64::from(part.sums.size())) {
        return Err(past_end(id, part.sums.size()));
    }
    for part in parts {
        let (from, to) = (u64::from(part.offset).max(u64::from(offset)), end_of(part).min(end));
        if from < to {
            let within = (from - u64::from(part.offset)) as usize;
            let (at, len) = ((from - u64::from(offset)) as usize, (to - from) as usize);
            buf[at..at + len].copy_from_slice(&part.bytes[within..within + len]);
        }
    }
    Ok(())
}

/// Joins several parts that cover a range into one part.
///
/// # Errors
/// The blob has no such range.
pub(super) fn joined(
    id: &BlobId,
    parts: &[Arc<Part>],
    offset: u32,
    len: u32,
) -> Result<Option<Part>, BlobError> {
    let Some(sums) = parts.first().map(|part| part.sums.clone()) else { return Ok(None) };
    let end =
        offset.checked_add(len).filter(|end| *end <= sums.size()).ok_or_else(|| past_end(id, sums.size()))?;
    let from = offset - offset % GROUP;
    let to = end.next_multiple_of(GROUP).min(sums.size());
    let mut bytes = Buffer::with_len((to - from) as usize);
    gather(id, parts, from, &mut bytes)?;
    Ok(Some(Part { sums, offset: from, bytes }))
}

struct Kept {
    part: Arc<Part>,
    number: u64,
    read: bool,
    /// Bytes that a stream has taken of it so far.
    passed: usize,
}

/// See the module.
pub(super) struct Memory {
    most: usize,
    bytes: usize,
    /// Bytes of the parts that were not read yet.
    unread: usize,
    /// The parts of each blob. A whole blob is one part.
    parts: HashMap<BlobId, Vec<Kept>>,
    /// Blobs in the order of insertion, each with its part's number. Some may be gone.
    order: VecDeque<(BlobId, u64)>,
    last: u64,
}

impl Memory {
    /// Creates a cache for this many bytes.
    pub(super) fn new(most: usize) -> Memory {
        Memory { most, bytes: 0, unread: 0, parts: HashMap::new(), order: VecDeque::new(), last: 0 }
    }

    /// The parts that overlap a range.
    pub(super) fn pieces(&mut self, id: &BlobId, offset: u32, len: usize) -> Vec<Arc<Part>> {
        let end = u64::from(offset) + len as u64;
        let Some(all) = self.parts.get_mut(id) else { return Vec::new() };
        let mut pieces = Vec::new();
        for kept in all.iter_mut() {
            if u64::from(kept.part.offset) < end && end_of(&kept.part) > u64::from(offset) {
                if !std::mem::replace(&mut kept.read, true) {
                    self.unread -= kept.part.bytes.len();
                }
                pieces.push(Arc::clone(&kept.part));
            }
        }
        pieces
    }

    /// All parts of a blob, for assembling the whole. This does not count as reading them.
    pub(super) fn all(&self, id: &BlobId) -> Vec<Arc<Part>> {
        let all = self.parts.get(id).map(Vec::as_slice).unwrap_or_default();
        all.iter().map(|kept| Arc::clone(&kept.part)).collect()
    }

    /// The whole blob, if it is here.
    pub(super) fn whole(&mut self, id: &BlobId) -> Option<Arc<Part>> {
        let kept = self.parts.get_mut(id)?.iter_mut().find(|kept| is_whole(&kept.part))?;
        if !std::mem::replace(&mut kept.read, true) {
            self.unread -= kept.part.bytes.len();
        }
        Some(Arc::clone(&kept.part))
    }

    /// The whole blob, for a reader that takes this many bytes of it.
    pub(super) fn pass(&mut self, id: &BlobId, bytes: usize) -> Option<Arc<Part>> {
        let kept = self.parts.get_mut(id)?.iter_mut().find(|kept| bytes > 0 && is_whole(&kept.part))?;
        kept.passed += bytes;
        self.whole(id)
    }

    /// Drops a blob once as many bytes were taken as it has.
    pub(super) fn forget_passed(&mut self, id: &BlobId) -> Vec<Arc<Part>> {
        let passed = |kept: &Kept| kept.passed >= kept.part.bytes.len();
        if self.parts.get(id).is_some_and(|all| all.iter().all(passed)) {
            self.forget(id)
        } else {
            Vec::new()
        }
    }

    /// Whether there is room for this many prefetched bytes.
    pub(super) fn has_room_ahead(&self, bytes: usize) -> bool {
        self.unread + bytes <= self.most / 2
    }

    pub(super) fn has_whole(&self, id: &BlobId) -> bool {
        self.parts.get(id).is_some_and(|all| all.iter().any(|kept| is_whole(&kept.part)))
    }

    /// Keeps a part. Returns the parts that it displaced, so that they are freed without a lock.
    pub(super) fn keep(&mut self, id: &BlobId, part: Arc<Part>) -> Vec<Arc<Part>> {
        let mut gone = if is_whole(&part) { self.forget(id) } else { self.forget_within(id, &part) };
        self.last += 1;
        self.bytes += part.bytes.len();
        self.unread += part.bytes.len();
        self.order.push_back((*id, self.last));
        let kept = Kept { part, number: self.last, read: false, passed: 0 };
        self.parts.entry(*id).or_default().push(kept);
        while self.bytes > self.most
            && let Some((oldest, number)) = self.order.pop_front()
        {
            gone.extend(self.remove(&oldest, |kept| kept.number == number));
        }
        let count: usize = self.order.len() / 2;
        if count > 32 && count > self.parts.values().map(Vec::len).sum::<usize>() {
            let parts = &self.parts;
            let is_kept = |(id, number): &(BlobId, u64)| {
                parts.get(id).is_some_and(|all| all.iter().any(|kept| kept.number == *number))
            };
            self.order.retain(is_kept);
        }
        gone
    }

    /// Keeps a whole blob of which this many bytes were taken before. Returns the same as `keep`.
    pub(super) fn keep_passed(&mut self, id: &BlobId, part: Arc<Part>, bytes: usize) -> Vec<Arc<Part>> {
        let gone = self.keep(id, part);
        let _ = self.pass(id, bytes);
        gone
    }

    pub(super) fn forget(&mut self, id: &BlobId) -> Vec<Arc<Part>> {
        self.remove(id, |_| true)
    }

    /// Drops the parts that lie within another one.
    fn forget_within(&mut self, id: &BlobId, part: &Part) -> Vec<Arc<Part>> {
        self.remove(id, |kept| kept.part.offset >= part.offset && end_of(&kept.part) <= end_of(part))
    }

    fn remove(&mut self, id: &BlobId, goes: impl Fn(&Kept) -> bool) -> Vec<Arc<Part>> {
        let Some(all) = self.parts.get_mut(id) else { return Vec::new() };
        let gone: Vec<Kept> = all.extract_if(.., |kept| goes(kept)).collect();
        if all.is_empty() {
            self.parts.remove(id);
        }
        for kept in &gone {
            self.bytes -= kept.part.bytes.len();
            self.unread -= if kept.read { 0 } else { kept.part.bytes.len() };
        }
        gone.into_iter().map(|kept| kept.part).collect()
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) -> Memory {
        std::mem::replace(self, Memory::new(self.most))
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
