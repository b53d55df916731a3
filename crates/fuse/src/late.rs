//! Reads whose deadline passed, for a moment: when the kernel asks for the same bytes again, they have their answer already.
//!
//! **The kernel asks a failed read twice**: once when it reads ahead, and then, because the page is not there, for the page itself. To the
//! program both are one read(2), and it would wait for two deadlines. So a read that failed by waiting is remembered for a moment, and
//! reads in its range are answered with the same error instead of waiting again: also those of others that waited for the same pages. After that
//! moment every read is a new one and waits for what it may. A read that need not wait never comes here.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use base::Ino;
use base::time::monotonic;
use parking_lot::Mutex;

/// The moment, at most: the kernel asks again at once, but the thread that does may stand in a queue for a processor.
const MOMENT_MAX: Duration = Duration::from_secs(1);
/// And this part of the deadline, where that is short.
const MOMENT_PART: u32 = 8;
/// So many are remembered: more readers than that do not fail at the same time.
const MOST: usize = 1024;

struct Late {
    ino: Ino,
    from: u64,
    to: u64,
    until: Instant,
}

/// See the [module](self).
pub struct LateReads {
    deadline: Duration,
    all: Mutex<VecDeque<Late>>,
}

impl LateReads {
    /// Of a mount with this deadline.
    pub fn new(deadline: Duration) -> LateReads {
        LateReads { deadline, all: Mutex::default() }
    }

    /// A read is about to be answered EIO that came at `since`. One that failed early is not remembered: it and its second try end in time.
    pub fn failed(&self, ino: Ino, offset: u64, len: u32, since: Instant) {
        let now = monotonic();
        if now.saturating_duration_since(since) < self.deadline / 2 {
            return;
        }
        let until = now + MOMENT_MAX.min(self.deadline / MOMENT_PART);
        let mut all = self.all.lock();
        all.retain(|late| now < late.until);
        if all.len() == MOST {
            all.pop_front();
        }
        all.push_back(Late { ino, from: offset, to: offset.saturating_add(u64::from(len)), until });
    }

    /// Whether this read has just failed by waiting.
    pub fn has(&self, ino: Ino, offset: u64) -> bool {
        let mut all = self.all.lock();
        if all.is_empty() {
            return false;
        }
        let now = monotonic();
        all.retain(|late| now < late.until);
        all.iter().any(|late| late.ino == ino && (late.from..late.to).contains(&offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_read_is_remembered_for_a_moment() {
        let late = LateReads::new(Duration::from_secs(60));
        let long_ago = monotonic().checked_sub(Duration::from_secs(50)).unwrap();
        late.failed(Ino(7), 8192, 4096, long_ago);
        assert!(late.has(Ino(7), 8192) && late.has(Ino(7), 12_287));
        assert!(!late.has(Ino(7), 12_288) && !late.has(Ino(7), 8191) && !late.has(Ino(8), 8192));
        late.failed(Ino(9), 0, 4096, monotonic());
        assert!(!late.has(Ino(9), 0), "it failed at once, and did not wait");
        let short = LateReads::new(Duration::from_millis(8));
        short.failed(Ino(7), 0, 10, long_ago);
        std::thread::sleep(Duration::from_millis(2));
        assert!(!short.has(Ino(7), 0), "the moment is over");
        (0..2000).for_each(|n| late.failed(Ino(n), 0, 1, long_ago));
        assert!(late.all.lock().len() <= MOST);
    }
}
