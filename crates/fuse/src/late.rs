//! Reads whose deadline passed, for a moment: when the kernel asks for the same bytes again, they have their answer already.
//!
//! **The kernel asks a failed read twice**: once when it reads ahead, and then, because the page is not there, for the page itself. To the
//! program both are one read(2), and it would wait for two deadlines. So a read that failed by waiting is remembered for a moment. The next one in
//! its range is tried, in case the bytes have come at last, but has that moment only; those that follow, of others that waited for the same
//! pages, have the same error at once. After the moment every read is a new one and waits for what it may. A read that need not wait never comes here.

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
    /// It was tried once more.
    tried: bool,
}

/// What a read that would wait may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Wait by the mount's deadline.
    Long,
    /// Wait for so long: it has waited before.
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
    /// Of a mount with this deadline.
    pub fn new(deadline: Duration) -> LateReads {
        LateReads { deadline, all: Mutex::default() }
    }

    fn moment(&self) -> Duration {
        MOMENT_MAX.min(self.deadline / MOMENT_PART)
    }

    /// A read is about to be answered EIO that came at `since`. One that failed early is not remembered: it and its second try end in time.
    /// `again`: it was the second try.
    pub fn failed(&self, (ino, offset, len): (Ino, u64, u32), since: Instant, again: bool) {
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
        late.failed((Ino(7), 8192, 4096), long_ago, false);
        for (ino, offset) in [(7, 12_288), (7, 8191), (8, 8192)] {
            assert_eq!(late.wait(Ino(ino), offset), Wait::Long, "{ino} {offset}");
        }
        assert_eq!(late.wait(Ino(7), 12_287), Wait::Short(MOMENT_MAX), "it is tried once more");
        assert_eq!(late.wait(Ino(7), 8192), Wait::Never);
        late.failed((Ino(7), 8192, 4096), monotonic(), true);
        assert_eq!(late.wait(Ino(7), 8192), Wait::Never, "the second try counts as one that waited");
        late.failed((Ino(9), 0, 4096), monotonic(), false);
        assert_eq!(late.wait(Ino(9), 0), Wait::Long, "it failed at once, and did not wait");
        let short = LateReads::new(Duration::from_millis(8));
        short.failed((Ino(7), 0, 10), long_ago, false);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(short.wait(Ino(7), 0), Wait::Long, "the moment is over");
        (0..2000).for_each(|n| late.failed((Ino(n), 0, 1), long_ago, false));
        assert!(late.all.lock().len() <= MOST);
    }
}
