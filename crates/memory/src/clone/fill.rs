//! Brings what the list says, or all of the memory, before the clone asks for it.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::time::monotonic;

use super::install::RUN;
use super::{Clone, Over};
use crate::list::Span;

/// Ranges that are brought at a time, if they have to be waited for. What is on this machine comes one after
/// the other: more threads would only take the processors from the clones.
const FILLERS: usize = 4;
/// So many ranges are brought in this way before it is looked again.
const SOON: usize = 32;
/// A range that takes longer comes from another machine.
const SLOW: Duration = Duration::from_millis(5);

impl Clone {
    /// Brings these ranges of the snapshot, in this order. Returns when they are there, or the clone is over.
    pub fn fill(&self, spans: &[Span]) {
        let ranges = spans.iter().flat_map(|span| self.layout.of_file(span.offset, span.len));
        self.bring_all(ranges);
    }

    /// Brings everything that is missing. Returns whether the clone needs the server no more.
    pub fn complete(&self) -> bool {
        self.bring_all(self.layout.all().into_iter());
        let done = |block: usize| self.states[block].load(Ordering::Acquire) == super::DONE;
        // Blocks of other threads may be in flight. Those of a clone that was given up stay so.
        while self.end().is_none() && !(0..self.layout.blocks()).all(done) {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.end().is_none()
    }

    fn bring_all(&self, ranges: impl Iterator<Item = Range<usize>>) {
        let mut parts = Vec::new();
        for range in ranges {
            let most = self.most(range.start);
            parts.extend(range.clone().step_by(most).map(|start| start..(start + most).min(range.end)));
        }
        let mut parts = &parts[..];
        // A failure has ended the clone, and is in its end.
        while let Some((first, rest)) = parts.split_first() {
            let began = monotonic();
            if self.fill_part(first.clone()).is_err() {
                return;
            }
            parts = rest;
            if began.elapsed() > SLOW {
                let (soon, later) = parts.split_at(parts.len().min(SOON));
                let _ =
                    base::thread::for_each("memory-fill", FILLERS, soon, |part| self.fill_part(part.clone()));
                parts = later;
            }
        }
    }

    /// Blocks that are brought at a time.
    fn most(&self, block: usize) -> usize {
        (RUN / self.layout.block_len(block)).max(1) as usize
    }

    fn fill_part(&self, mut part: Range<usize>) -> Result<(), Over> {
        while part.start < part.end {
            if self.end().is_some() {
                return Err(Over);
            }
            let mine = self.claim_missing(&part, part.len());
            part.start = mine.end.max(part.start + usize::from(mine.is_empty()));
            if !mine.is_empty() {
                let len = self.load(&self.layout.run(mine))?;
                self.counters.ahead.fetch_add(len, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
