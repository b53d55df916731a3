//! Remembers reads that missed their deadline, for a moment. If the kernel repeats such a read, it gets its
//! error at once.
//!
//! **The kernel sends a failed read twice.** It sends it first for its read-ahead, and then, because the page
//! is missing, for the page itself. For the program both are one read(2), so it would wait for two deadlines.
//! Therefore a read that failed by waiting is remembered for a moment. The next read in its range is tried,
//! in case the data has arrived at last, but it may wait for that moment only. The reads after it, from other
//! programs that waited for the same pages, fail at once. After the moment every read is a new one with a
//! full deadline. Reads that need not wait never come here.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base::Ino;
use base::time::monotonic;
use parking_lot::Mutex;

/// The longest moment. The kernel repeats a read at once, but the thread that does so may have to wait for a
/// CPU.
const MOMENT_MAX: Duration = Duration::from_secs(1);
/// The moment as a fraction of the deadline, which counts if the deadline is short.
const MOMENT_PART: u32 = 8;
/// The most reads that are remembered. More readers than that do not fail at the same time.
const MOST: usize = 1024;

struct Late {
    ino: Ino,
    from: u64,
    to: u64,
    until: Instant,
    /// The second try has been made.
    tried: bool,
}

/// How long a read may wait if its data is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Until the mount's deadline.
    Long,
    /// For this long, because the read has waited before.
    Short(Duration),
    /// Not at all.
    Never,
}

/// See the [module](self).
pub struct LateReads {
    deadline: Duration,
    all: Mutex<VecDeque<Late>>,
}

impl LateReads {
    /// No reads yet. `deadline` is the mount's.
    pub fn new(deadline: Duration) -> LateReads {
        LateReads { deadline, all: Mutex::default() }
    }

    fn moment(&self) -> Duration {
        MOMENT_MAX.min(self.deadline / MOMENT_PART)
    }

    /// Call this before a read that arrived at `since` is answered EIO. A read that failed early is not
    /// remembered: it and its second try end in time. `again`: this was the second try.
    pub fn failed(&self, ino: Ino, offset: u64, len: u32, since: Instant, again: bool) {
        let now = monotonic();
        if !again && now.saturating_duration_since(since) < self.deadline / 2 {
            return;
        }
        let until = now + self.moment();
        let mut all = self.all.lock();
        all.retain(|late| now < late.until);
        if all.len() == MOST {
            all.pop_front();
        }
        let to = offset.saturating_add(u64::from(len));
        all.push_back(Late { ino, from: offset, to, until, tried: again });
    }

    /// How long a read may wait.
    pub fn wait(&self, ino: Ino, offset: u64) -> Wait {
        let mut all = self.all.lock();
        if all.is_empty() {
            return Wait::Long;
        }
        let now = monotonic();
        all.retain(|late| now < late.until);
        let mut same =
            all.iter_mut().filter(|late| late.ino == ino && (late.from..late.to).contains(&offset));
        match same.next() {
            None => Wait::Long,
            Some(late) if late.tried || same.any(|late| late.tried) => Wait::Never,
            Some(late) => {
                late.tried = true;
                Wait::Short(self.moment())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_read_is_remembered_for_a_moment() {
        let late = LateReads::new(Duration::from_secs(60));
        let long_ago = monotonic().checked_sub(Duration::from_secs(50)).unwrap();
        late.failed(Ino(7), 8192, 4096, long_ago, false);
        for (ino, offset) in [(7, 12_288), (7, 8191), (8, 8192)] {
            assert_eq!(late.wait(Ino(ino), offset), Wait::Long, "{ino} {offset}");
        }
        assert_eq!(
            late.wait(Ino(7), 12_287),
            Wait::Short(MOMENT_MAX),
            "the last block should be tried once more"
        );
        assert_eq!(late.wait(Ino(7), 8192), Wait::Never);
        late.failed(Ino(7), 8192, 4096, monotonic(), true);
        assert_eq!(late.wait(Ino(7), 8192), Wait::Never, "the second try counts as one that waited");
        late.failed(Ino(9), 0, 4096, monotonic(), false);
        assert_eq!(late.wait(Ino(9), 0), Wait::Long, "it failed at once, and did not wait");
        let short = LateReads::new(Duration::from_millis(8));
        short.failed(Ino(7), 0, 10, long_ago, false);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(short.wait(Ino(7), 0), Wait::Long, "the moment is over");
        (0..2000).for_each(|n| late.failed(Ino(n), 0, 1, long_ago, false));
        assert!(late.all.lock().len() <= MOST);
    }
}
