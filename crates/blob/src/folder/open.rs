//! Open blobs: a bounded set of file descriptors with the sums of their files, and the verified read.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use base::BlobId;
use base::size::SEGMENT;
use parking_lot::Mutex;
use rustix::fs::{Advice, fadvise};

use crate::sums::{Crc32c, Mismatch, Sums};

const SHARDS: usize = 16;
const PER_SHARD: usize = 16;

/// An open file, and the sums of its bytes.
pub(super) struct OpenBlob {
    pub(super) file: File,
    pub(super) sums: Sums,
}

/// Why a read failed.
pub(super) enum Fault {
    /// A description for a person.
    Damaged(String),
    Io(io::Error),
}

thread_local! {
    /// Buffer for bytes that are read only to be checked: the rest of the first and of the last segment of a
    /// range.
    static EDGES: RefCell<Vec<u8>> = RefCell::new(vec![0; 2 * SEGMENT as usize]);
}

impl OpenBlob {
    /// Fills `buf` from `offset` on with bytes whose CRCs match. The range lies within the blob.
    pub(super) fn read(&self, offset: u32, buf: &mut [u8]) -> Result<(), Fault> {
        if buf.is_empty() {
            return Ok(());
        }
        let end = offset + buf.len() as u32;
        let (start, _) = self.sums.segment_around(offset);
        let (_, stop) = self.sums.segment_around(end - 1);
        EDGES.with_borrow_mut(|edges| {
            let (head, tail) = edges.split_at_mut(SEGMENT as usize);
            let head = &mut head[..(offset - start) as usize];
            let tail = &mut tail[..(stop - end) as usize];
            self.fill(start, head, buf, tail)?;
            self.check(start, head, buf, tail)
        })
    }

    /// Reads three neighbouring ranges with one system call.
    fn fill(&self, start: u32, head: &mut [u8], body: &mut [u8], tail: &mut [u8]) -> Result<(), Fault> {
        let total = head.len() + body.len() + tail.len();
        if head.is_empty() && tail.is_empty() {
            return read_exact(&self.file, body, u64::from(start));
        }
        let mut slices = [&mut *head, &mut *body, &mut *tail].map(IoSliceMut::new);
        if rustix::io::preadv(&self.file, &mut slices, u64::from(start)) == Ok(total) {
            return Ok(());
        }
        // Interrupted, short, or an error that the plain calls will meet again and report.
        let mut at = u64::from(start);
        for part in [head, body, tail] {
            read_exact(&self.file, part, at)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Compares the segments in `head`, `body` and `tail` together with their CRCs.
    fn check(&self, start: u32, head: &[u8], body: &[u8], tail: &[u8]) -> Result<(), Fault> {
        let damaged = |mismatch: Mismatch| Fault::Damaged(mismatch.to_string());
        let total = head.len() + body.len() + tail.len();
        let (mut head, mut body) = (head, body);
        let mut at = 0;
        while at < total {
            let len = (total - at).min(SEGMENT as usize);
            let offset = start + at as u32;
            let from_head = head.len();
            let from_body = body.len().min(len - from_head);
            let (now, later) = body.split_at(from_body);
            if from_body == len {
                self.sums.check(offset, now).map_err(damaged)?;
            } else {
                let mut crc = Crc32c::new();
                crc.update(head);
                crc.update(now);
                // Only the last segment has a tail, which holds all the rest of it.
                crc.update(&tail[..len - from_head - from_body]);
                if self.sums.segments().get((offset / SEGMENT) as usize) != Some(&crc.finish()) {
                    return Err(damaged(Mismatch::Segment { offset, len: len as u32 }));
                }
            }
            (head, body) = (&[], later);
            at += len;
        }
        Ok(())
    }

    /// Drops the file's pages from memory, so that the next read comes from the disk.
    pub(super) fn drop_cached_pages(&self) {
        // Only advice: a failure costs nothing.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
    }
}

fn read_exact(file: &File, buf: &mut [u8], at: u64) -> Result<(), Fault> {
    file.read_exact_at(buf, at).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Fault::Damaged("its file became shorter".to_owned()),
        _ => Fault::Io(error),
    })
}

/// At most 256 open blobs. Each shard evicts the entry that was not used since the clock hand last passed.
pub(super) struct OpenBlobs {
    shards: [Mutex<Shard>; SHARDS],
}

#[derive(Default)]
struct Shard {
    slots: Vec<Slot>,
    hand: usize,
}

struct Slot {
    id: BlobId,
    blob: Arc<OpenBlob>,
    used: bool,
}

impl OpenBlobs {
    pub(super) fn new() -> OpenBlobs {
        OpenBlobs { shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, id: &BlobId) -> &Mutex<Shard> {
        // Hashes are evenly distributed. The first byte already chose the folder.
        &self.shards[id.0[1] as usize % SHARDS]
    }

    pub(super) fn get(&self, id: &BlobId) -> Option<Arc<OpenBlob>> {
        let mut shard = self.shard(id).lock();
        let slot = shard.slots.iter_mut().find(|slot| slot.id == *id)?;
        slot.used = true;
        Some(Arc::clone(&slot.blob))
    }

    pub(super) fn has(&self, id: &BlobId) -> bool {
        self.shard(id).lock().slots.iter().any(|slot| slot.id == *id)
    }

    pub(super) fn insert(&self, id: BlobId, blob: Arc<OpenBlob>) {
        let slot = Slot { id, blob, used: false };
        // The replaced entry is dropped, and its file closed, after the lock is released.
        let _replaced = self.shard(&id).lock().insert(slot);
    }

    pub(super) fn forget(&self, id: &BlobId) {
        let mut shard = self.shard(id).lock();
        let index = shard.slots.iter().position(|slot| slot.id == *id);
        let _removed = index.map(|index| shard.slots.swap_remove(index));
        drop(shard);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().slots.len()).sum()
    }
}

impl Shard {
    fn insert(&mut self, slot: Slot) -> Option<Slot> {
        if let Some(same) = self.slots.iter_mut().find(|old| old.id == slot.id) {
            return Some(std::mem::replace(same, slot));
        }
        if self.slots.len() < PER_SHARD {
            self.slots.push(slot);
            return None;
        }
        loop {
            self.hand = (self.hand + 1) % self.slots.len();
            let candidate = &mut self.slots[self.hand];
            if !std::mem::take(&mut candidate.used) {
                return Some(std::mem::replace(candidate, slot));
            }
        }
    }
}
