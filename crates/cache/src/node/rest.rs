//! Completing a blob: if all of it is wanted and parts of it are here, only the missing bytes are fetched.
//!
//! The parts in memory are used, and in-flight fetches of other parts are awaited. The gaps are fetched as
//! parts: one request for each run of missing groups, a few requests at a time. Then the hash of the whole is
//! compared with the blob's name, as for a blob that was fetched at once. If the hash differs, the sums show
//! which groups are wrong. Those are fetched again, once. If that fails too, the whole blob is fetched.
//!
//! In a fleet, a blob that other nodes also want is fetched whole by the fleet's plan: see
//! [`Tier::rest_by_parts`].
//!
//! [`Tier::rest_by_parts`]: fetch::Tier::rest_by_parts

use std::sync::Arc;

use base::BlobId;
use base::size::GROUP;
use blob::{BlobError, Buffer, Part, Sums};
use fetch::WholeLead;
use parking_lot::Mutex;

use super::Core;
use super::memory::end_of;
use super::partial::groups;
use super::read::is_no_range;
use super::refused::Asked;

/// How many requests for one blob run at a time.
const AT_ONCE: usize = 4;
/// How often missing groups are fetched. The second round replaces wrong groups.
const ROUNDS: usize = 2;

/// A blob that is being assembled.
struct Puzzle {
    /// The blob's sums. They hash to its name, so each group can be verified. Those of a foreign blob came
    /// with its first part.
    sums: Sums,
    bytes: Buffer,
    /// The groups that are present, the first in the lowest bit.
    here: u64,
}

impl Puzzle {
    fn new(sums: Sums) -> Puzzle {
        let bytes = Buffer::with_len(sums.size() as usize);
        Puzzle { sums, bytes, here: 0 }
    }

    /// Takes from a part the groups that are missing here and complete there.
    fn take(&mut self, part: &Part) {
        let size = self.sums.size();
        let within = part.offset.is_multiple_of(GROUP) && end_of(part) <= u64::from(size);
        if part.sums.size() != size || !within {
            return;
        }
        for (n, bytes) in (part.offset / GROUP..).zip(part.bytes.chunks(GROUP as usize)) {
            let from = n * GROUP;
            let to = (from + GROUP).min(size);
            let mask = groups(from, to);
            if self.here & mask == 0 && bytes.len() == (to - from) as usize {
                self.bytes[from as usize..to as usize].copy_from_slice(bytes);
                self.here |= mask;
            }
        }
    }

    /// The missing groups as runs: start and end offset.
    fn missing(&self) -> Vec<(u32, u32)> {
        let size = self.sums.size();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for from in (0..size).step_by(GROUP as usize).filter(|from| !self.has(*from, from + 1)) {
            let to = (from + GROUP).min(size);
            match runs.last_mut().filter(|run| run.1 == from) {
                Some(run) => run.1 = to,
                None => runs.push((from, to)),
            }
        }
        runs
    }

    fn has(&self, from: u32, to: u32) -> bool {
        let mask = groups(from, to);
        self.here & mask == mask
    }

    /// The sums of the assembled blob, if it has the right hash. Otherwise marks the wrong groups as missing.
    fn judge(&mut self, id: &BlobId) -> Option<Sums> {
        let found = Sums::of(&self.bytes);
        // The name of a foreign blob follows from no bytes. So the sums that came with its first part decide.
        let right = if id.is_foreign() { found == self.sums } else { found.id() == *id };
        if right {
            return Some(found);
        }
        let pairs = found.groups().iter().zip(self.sums.groups());
        self.here =
            (0..).zip(pairs).filter(|(_, (one, other))| one == other).fold(0, |here, (n, _)| here | 1 << n);
        None
    }
}

impl Core {
    /// The parts of a blob that are here, for a fetch of the whole blob. Waits for parts in flight. Empty if
    /// fetching the whole at once is better. Must be called before room is taken, because a fetch of a part
    /// may wait for room.
    pub(super) fn parts_here(&self, id: &BlobId) -> Vec<Arc<Part>> {
        let in_flight = {
            // A read that takes this lock later finds the fetch of the whole blob.
            let _partial = self.partial.lock();
            self.table.parts(id)
        };
        let came: Vec<_> = in_flight.iter().filter_map(|fetch| fetch.wait().ok()).collect();
        let mut parts = self.memory.lock().all(id);
        parts.extend(came);
        if parts.is_empty() || self.tier.rest_by_parts(id) { parts } else { Vec::new() }
    }

    /// Forgets the parts of a blob, and its size: they are damaged or disagree.
    pub(super) fn forget_parts(&self, id: &BlobId) {
        self.counters.damaged.add(1);
        self.partial.lock().doubt_size(id);
        let gone = self.memory.lock().forget(id);
        drop(gone);
    }

    /// Assembles a blob from these parts and the missing bytes. `None` if it must be fetched at once.
    pub(super) fn complete(&self, lead: &WholeLead, parts: &[Arc<Part>]) -> Option<Result<Part, BlobError>> {
        let id = lead.id();
        let sums = parts.first()?.sums.clone();
        if parts.iter().any(|part| part.sums.size() != sums.size()) {
            self.forget_parts(id);
            return None;
        }
        let mut puzzle = Puzzle::new(sums);
        parts.iter().for_each(|part| puzzle.take(part));
        for _ in 0..ROUNDS {
            puzzle = match self.fill(lead, puzzle) {
                Ok(puzzle) => puzzle,
                // The name of a blob proves its groups, but not its size within the last group. If the first
                // part came with a wrong size, the missing bytes do not fit.
                Err(error) if matches!(error, BlobError::Damaged { .. }) || is_no_range(&error) => {
                    self.forget_parts(id);
                    return None;
                }
                Err(error) => return Some(Err(error)),
            };
            if let Some(sums) = puzzle.judge(id) {
                return Some(Ok(Part { sums, offset: 0, bytes: puzzle.bytes }));
            }
            // The damaged part in memory must not serve any more reads.
            self.forget_parts(id);
        }
        None
    }

    /// Fetches the missing groups.
    fn fill(&self, lead: &WholeLead, puzzle: Puzzle) -> Result<Puzzle, BlobError> {
        let (id, lead) = (lead.id(), lead.part());
        let missing = puzzle.missing();
        let puzzle = Mutex::new(puzzle);
        base::thread::for_each("covey-rest", AT_ONCE, &missing, |(from, to): &(u32, u32)| {
            // An origin may return more than was asked for.
            if puzzle.lock().has(*from, *to) {
                return Ok(());
            }
            self.counters.part_fetches.add(1);
            let fetched = self.tier.part(&lead, *from, to - from);
            self.refused.came(Asked::Reads, &self.health, &fetched);
            let part = self.arrived(id, fetched?)?;
            let mut puzzle = puzzle.lock();
            puzzle.take(&part);
            match puzzle.has(*from, *to) {
                true => Ok(()),
                false => {
                    Err(BlobError::Damaged { id: *id, what: "the origin gave less than a part".to_owned() })
                }
            }
        })?;
        Ok(puzzle.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(sums: &Sums, bytes: &[u8], from: u32, to: u32) -> Part {
        Part { sums: sums.clone(), offset: from, bytes: bytes[from as usize..to as usize].into() }
    }

    #[test]
    fn what_is_missing_is_asked_for_in_runs() {
        let bytes: Vec<u8> = (0..5 * GROUP + 100).map(|n| (n / 7) as u8).collect();
        let (sums, end) = (Sums::of(&bytes), bytes.len() as u32);
        let mut puzzle = Puzzle::new(sums.clone());
        assert_eq!(puzzle.missing(), [(0, end)]);
        puzzle.take(&part(&sums, &bytes, GROUP, 2 * GROUP));
        assert_eq!(puzzle.missing(), [(0, GROUP), (2 * GROUP, end)]);
        puzzle.take(&part(&sums, &bytes, 3 * GROUP, end));
        assert_eq!(puzzle.missing(), [(0, GROUP), (2 * GROUP, 3 * GROUP)]);
        // Half of a group does not count.
        puzzle.take(&part(&sums, &bytes, 0, GROUP / 2));
        assert_eq!(puzzle.missing(), [(0, GROUP), (2 * GROUP, 3 * GROUP)]);
        puzzle.take(&part(&sums, &bytes, 0, 3 * GROUP));
        assert!(puzzle.missing().is_empty() && puzzle.judge(&sums.id()) == Some(sums));
    }

    #[test]
    fn a_group_that_is_wrong_is_missing() {
        let bytes: Vec<u8> = (0..4 * GROUP).map(|n| (n / 5) as u8).collect();
        let sums = Sums::of(&bytes);
        let mut wrong = bytes.clone();
        wrong[2 * GROUP as usize + 9] ^= 1;
        let mut puzzle = Puzzle::new(sums.clone());
        puzzle.take(&part(&sums, &wrong, 0, 4 * GROUP));
        assert_eq!(puzzle.judge(&sums.id()), None);
        assert_eq!(puzzle.missing(), [(2 * GROUP, 3 * GROUP)]);
        puzzle.take(&part(&sums, &bytes, 0, 4 * GROUP));
        assert_eq!(puzzle.judge(&sums.id()), Some(sums));
    }

    #[test]
    fn a_foreign_blob_is_judged_by_the_sums_of_its_first_part() {
        let id = BlobId::foreign(base::ForeignObject([1; 20]), 0);
        let bytes: Vec<u8> = (0..4 * GROUP).map(|n| (n / 5) as u8).collect();
        let sums = Sums::of(&bytes);
        let mut wrong = bytes.clone();
        wrong[2 * GROUP as usize + 9] ^= 1;
        let mut puzzle = Puzzle::new(sums.clone());
        puzzle.take(&part(&sums, &wrong, 0, 4 * GROUP));
        assert_eq!(puzzle.judge(&id), None);
        assert_eq!(puzzle.missing(), [(2 * GROUP, 3 * GROUP)]);
        puzzle.take(&part(&sums, &bytes, 0, 4 * GROUP));
        assert_eq!(puzzle.judge(&id), Some(sums));
    }
}
