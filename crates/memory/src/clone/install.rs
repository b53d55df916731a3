//! Puts the bytes of blocks in their place, and answers faults.

use std::io::ErrorKind;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::Deadline;
use base::time::monotonic;
use rustix::io::Errno;

use super::{Clone, DONE, End, IN_FLIGHT, Level, MISSING, Over};
use crate::handshake::PAGE_MAX;
use crate::layout::Run;
use crate::list::Span;
use crate::removed::Removed;
use crate::uffd::Done;

/// The most bytes that are read and put in their place at a time, where pages are not larger.
pub(super) const RUN: u64 = 512 << 10;
/// So many pages of zeros in a row, between others, are not copied but mapped as zeros. Fewer are not worth a
/// call.
const ZEROS: usize = 4;
/// The first pause before a read is tried again, and the longest.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MOST: Duration = Duration::from_secs(1);

/// What a fault found.
enum Claim {
    /// Blocks that are this thread's now.
    Mine(Range<usize>),
    /// Another thread has the block, and answers this fault too.
    Theirs,
    /// The block is done.
    Done,
}

impl Clone {
    /// Answers the fault at an address.
    pub(super) fn fault(&self, address: u64) {
        if self.end().is_some() {
            return;
        }
        self.counters.faults.fetch_add(1, Ordering::Relaxed);
        let Some(block) = self.layout.at(address) else {
            return self
                .fail(&format!("it touched {address:#x}, which is in none of the regions that it named"));
        };
        // A failure has ended the clone, and is in its end.
        let _ = match self.claim(block, address) {
            Claim::Mine(blocks) => {
                let run = self.layout.run(blocks);
                self.note(Span { offset: run.offset, len: run.len });
                self.load(&run).map(drop)
            }
            Claim::Theirs => Ok(()),
            Claim::Done => self.again(block, address),
        };
    }

    fn claim(&self, block: usize, address: u64) -> Claim {
        let change = |block: usize| {
            self.states[block].compare_exchange(MISSING, IN_FLIGHT, Ordering::AcqRel, Ordering::Acquire)
        };
        match change(block) {
            Ok(_) => {}
            Err(DONE) => return Claim::Done,
            Err(_) => {
                let mut late = self.late.lock();
                if self.states[block].load(Ordering::Acquire) == DONE {
                    return Claim::Done;
                }
                late.push(address);
                return Claim::Theirs;
            }
        }
        let near = self.layout.neighbours(block);
        let most = (RUN / self.layout.block_len(block)).max(1) as usize;
        let is_there = |block: &usize| self.states[*block].load(Ordering::Acquire) != MISSING;
        let before = (near.start..block).rev().take(most).take_while(is_there).count();
        let mut end = block + 1;
        while end < near.end && end - block < before && change(end).is_ok() {
            end += 1;
        }
        Claim::Mine(block..end)
    }

    /// Claims the missing blocks at the beginning of a range, at most `most`. Returns none if the first is
    /// not missing.
    pub(super) fn claim_missing(&self, range: &Range<usize>, most: usize) -> Range<usize> {
        let change = |block: &usize| {
            let state = &self.states[*block];
            state.compare_exchange(MISSING, IN_FLIGHT, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        let count = range.clone().take(most).take_while(change).count();
        range.start..range.start + count
    }

    /// Reads claimed blocks and puts them in their place. Returns the number of bytes.
    pub(super) fn load(&self, run: &Run) -> Result<u64, Over> {
        self.bring(run)?;
        self.finish(run)?;
        Ok(run.len)
    }

    /// Makes blocks done whose bytes are in their place, and answers the faults that came meanwhile.
    pub(super) fn finish(&self, run: &Run) -> Result<(), Over> {
        let mut late = self.late.lock();
        for block in run.blocks.clone() {
            self.states[block].store(DONE, Ordering::Release);
        }
        let within =
            |address: &u64| self.layout.at(*address).is_some_and(|block| run.blocks.contains(&block));
        let ours: Vec<u64> = late.extract_if(.., |address| within(address)).collect();
        drop(late);
        // Most of these pages are there now. One may have been given back in between.
        for address in ours {
            if let Some(block) = self.layout.at(address) {
                self.again(block, address)?;
            }
        }
        Ok(())
    }

    /// Answers a fault in a block that is done, with its page.
    fn again(&self, block: usize, address: u64) -> Result<(), Over> {
        self.bring(&self.layout.page(block, address))
    }

    pub(super) fn bring(&self, run: &Run) -> Result<(), Over> {
        let mut buffer = self.common.buffers.take(run.len.max(RUN) as usize);
        let bytes = &mut buffer[..run.len as usize];
        let read = match self.is_given_back(run) {
            true => {
                bytes.fill(0);
                Ok(())
            }
            false => self.read(run.offset, bytes),
        };
        let done = read.and_then(|()| self.install(run, bytes));
        self.common.buffers.give_back(buffer);
        done
    }

    /// Reads from the snapshot. What fails is tried again until the deadline.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Over> {
        let deadline = Deadline::after(self.common.patience);
        let mut pause = PAUSE;
        loop {
            let begun = (monotonic(), offset);
            self.reading.lock().insert(begun);
            let read = deadline.scope(|| self.common.source.read(offset, bytes));
            self.reading.lock().remove(&begun);
            let Err(error) = read else { return Ok(()) };
            let range = format!("bytes {offset} to {} of the snapshot", offset + bytes.len() as u64);
            let for_ever = matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::NotFound);
            if for_ever || deadline.is_over() {
                self.fail(&format!("{range} cannot be read: {error}"));
                return Err(Over);
            }
            if self.is_over() {
                return Err(Over);
            }
            if pause == PAUSE {
                let (number, patience) = (self.number, self.common.patience.as_secs());
                let line = format!("clone {number} waits for {range}: {error}; tried again for {patience} s");
                (self.common.log)(Level::Warn, &line);
            }
            deadline.sleep(pause);
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    /// The bit of the first page of a run, in the map of pages.
    fn bit(&self, run: &Run) -> usize {
        self.layout.bits(run.address, run.address + run.len).first().map_or(0, |bits| bits.start)
    }

    /// Whether no byte of the snapshot is needed, because all pages were given back.
    fn is_given_back(&self, run: &Run) -> bool {
        let removed = self.removed.read();
        let bit = self.bit(run);
        !removed.is_empty() && (0..(run.len / 4096) as usize).all(|page| removed.has(bit + page))
    }

    fn install(&self, run: &Run, bytes: &[u8]) -> Result<(), Over> {
        let bit = self.bit(run);
        let mut at = 0;
        while at < run.len {
            if self.is_over() {
                return Err(Over);
            }
            let address = run.address + at;
            let removed = self.removed.read();
            let rest = &bytes[at as usize..];
            let (zeros, len) = piece(&removed, bit + (at / 4096) as usize, rest, run.page as usize);
            let done = match zeros {
                true => self.put_zeros(address, len as u64, run.page),
                false => self.uffd.copy(address, &rest[..len]),
            };
            drop(removed);
            at += match done {
                Done::Bytes(count) => {
                    let counters = &self.counters;
                    let counter = if zeros { &counters.zeros } else { &counters.copied };
                    counter.fetch_add(count, Ordering::Relaxed);
                    count
                }
                Done::Exists => {
                    self.uffd.wake(address, run.page);
                    run.page
                }
                other => self.trouble(other, address, bit + (at / 4096) as usize, run.page)?,
            };
        }
        Ok(())
    }

    /// Handles what is not success. Returns how many bytes to skip.
    fn trouble(&self, done: Done, address: u64, page: usize, len: u64) -> Result<u64, Over> {
        match done {
            Done::Again => {
                self.collect();
                std::thread::yield_now();
                return Ok(0);
            }
            Done::Gone => self.stop(End::Gone),
            Done::Failed(Errno::NOENT) => {
                // Memory that was unmapped in between needs nothing. Not every VMM has that told, and one
                // that ends unmaps its memory.
                self.collect();
                if self.removed.read().has(page) || self.was_unmapped(address, len) {
                    return Ok(len);
                }
                self.fail(&format!("the memory at {address:#x}, which it named, is not registered by it"));
            }
            Done::Failed(error) => self.fail(&format!("the kernel put nothing at {address:#x}: {error}")),
            Done::Bytes(_) | Done::Exists => return Ok(0),
        }
        Err(Over)
    }

    /// Whether a page has nothing mapped any more. Its region was registered, because bytes were put there.
    fn was_unmapped(&self, address: u64, len: u64) -> bool {
        let Some(block) = self.layout.at(address) else { return false };
        let is_done = |block: usize| self.states[block].load(Ordering::Acquire) == DONE;
        self.layout.neighbours(block).any(is_done) && !self.uffd.is_mapped(address, len)
    }

    fn put_zeros(&self, address: u64, len: u64, page: u64) -> Done {
        /// Huge pages have no page of zeros that can be shared.
        static ZEROS: OnceLock<Vec<u8>> = OnceLock::new();
        if page == 4096 {
            match self.uffd.zero(address, len) {
                // Some memory has none either.
                Done::Failed(Errno::INVAL) => {}
                done => return done,
            }
        }
        let zeros = ZEROS.get_or_init(|| vec![0; PAGE_MAX as usize]);
        self.uffd.copy(address, &zeros[..(len as usize).min(zeros.len())])
    }

    /// Makes everything that is not there SIGBUS. Returns whether the kernel can.
    pub(super) fn poison(&self) -> bool {
        let all = self.removed.read().is_empty();
        for area in self.layout.all() {
            for block in area {
                // A block that is done has no page that is missing, unless some were given back.
                if all && self.states[block].load(Ordering::Acquire) == DONE {
                    continue;
                }
                match self.poison_block(&self.layout.run(block..block + 1)) {
                    Done::Gone => return true,
                    Done::Failed(Errno::INVAL | Errno::NOTTY) => return false,
                    _ => {}
                }
            }
        }
        true
    }

    fn poison_block(&self, run: &Run) -> Done {
        let mut at = 0;
        // The kernel refuses while it waits for its events to be read.
        let mut tries = 0;
        while at < run.len && tries < 1000 {
            match self.uffd.poison(run.address + at, run.len - at) {
                Done::Bytes(count) => at += count,
                Done::Exists => at += run.page,
                Done::Again => {
                    let _removed = self.removed.write();
                    let _ = self.uffd.events(&mut |_| {});
                    tries += 1;
                }
                other => return other,
            }
        }
        Done::Bytes(at)
    }
}

/// The next piece to put in its place: whether it is of zeros, and its length. `bit`: of its first page.
fn piece(removed: &Removed, bit: usize, bytes: &[u8], page: usize) -> (bool, usize) {
    let given_back = |at: usize| !removed.is_empty() && removed.has(bit + at * (page / 4096));
    let empty = |at: usize| bytes[at * page..(at + 1) * page].chunks_exact(16).all(|part| part == [0; 16]);
    let pages = bytes.len() / page;
    let zero = |at: usize| given_back(at) || empty(at);
    if zero(0) {
        return (true, (1..pages).take_while(|&at| zero(at)).count() * page + page);
    }
    let ends = |at: &usize| given_back(*at) || (pages - at >= ZEROS && (*at..at + ZEROS).all(zero));
    (false, (1..pages).find(ends).unwrap_or(pages) * page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_of_zeros_where_zeros_are_many_or_given_back() {
        let mut bytes = vec![0_u8; 16 * 4096];
        for page in [0, 1, 3, 9, 15] {
            bytes[page * 4096 + 4095] = 1;
        }
        let pieces = |removed: &Removed| {
            let (mut at, mut all) = (0, Vec::new());
            while at < bytes.len() {
                let (zeros, len) = piece(removed, 100 + at / 4096, &bytes[at..], 4096);
                all.push((zeros, len / 4096));
                at += len;
            }
            all
        };
        let mut removed = Removed::default();
        let none = [(false, 4), (true, 5), (false, 1), (true, 5), (false, 1)];
        assert_eq!(pieces(&removed), none);
        removed.mark(103..104, 1000);
        removed.mark(115..116, 1000);
        assert_eq!(pieces(&removed), [(false, 2), (true, 7), (false, 1), (true, 6)]);
    }
}
