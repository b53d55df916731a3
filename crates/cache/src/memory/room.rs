//! How much memory a volume in memory may still take.
//!
//! This is the minimum of the machine's available memory and of what each control group of this program
//! leaves. Page cache that the kernel can reclaim counts as free. A sixteenth of the total is left to others.
//! Reading this takes tens of microseconds, so an answer is reused for 100 ms.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base::size::KIB;
use blob::{BlobError, Space};
use parking_lot::Mutex;

const GOOD_FOR: Duration = Duration::from_millis(100);
const GROUPS: &str = "/sys/fs/cgroup";

pub(super) struct Room {
    last: Mutex<Option<(Instant, Space)>>,
}

impl Room {
    pub(super) fn new() -> Room {
        Room { last: Mutex::new(None) }
    }

    pub(super) fn space(&self) -> Result<Space, BlobError> {
        let now = base::time::monotonic();
        let mut last = self.last.lock();
        match *last {
            Some((at, space)) if now.duration_since(at) < GOOD_FOR => Ok(space),
            _ => {
                let space = read()?;
                *last = Some((now, space));
                Ok(space)
            }
        }
    }
}

fn read() -> Result<Space, BlobError> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let machine = machine(&text).ok_or_else(|| {
        BlobError::Unavailable(
            "/proc/meminfo does not tell how much memory there is: is /proc mounted?".to_owned(),
        )
    })?;
    Ok(leave_a_reserve(groups().into_iter().fold(machine, least)))
}

fn least(a: Space, b: Space) -> Space {
    Space { total: a.total.min(b.total), available: a.available.min(b.available), reserve: 0 }
}

fn leave_a_reserve(space: Space) -> Space {
    Space { available: space.available.saturating_sub(space.total / 16), ..space }
}

fn machine(meminfo: &str) -> Option<Space> {
    let kib = |name: &str| number_after(meminfo, name).map(|kib| kib * KIB);
    Some(Space { total: kib("MemTotal:")?, available: kib("MemAvailable:")?, reserve: 0 })
}

/// The limits of the control group (version 2) and of its ancestors. Empty if there are no such groups.
fn groups() -> Vec<Space> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::/")) else {
        return Vec::new();
    };
    let top = Path::new(GROUPS);
    let path: PathBuf = top.join(own);
    path.ancestors().take_while(|dir| dir.starts_with(top)).filter_map(group).collect()
}

fn group(dir: &Path) -> Option<Space> {
    let read = |name: &str| fs::read_to_string(dir.join(name)).ok();
    let limit = read("memory.max")?.trim().parse().ok()?;
    let current = read("memory.current")?.trim().parse().ok()?;
    Some(within(limit, current, &read("memory.stat")?))
}

fn within(limit: u64, current: u64, stat: &str) -> Space {
    let cached: u64 =
        ["inactive_file", "active_file"].iter().filter_map(|name| number_after(stat, name)).sum();
    Space { total: limit, available: limit.saturating_sub(current.saturating_sub(cached)), reserve: 0 }
}

/// The number that follows a word at the start of a line.
fn number_after(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some(word)).then(|| words.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        let space = Room::new().space().unwrap();
        assert!(space.total > 0 && space.available < space.total, "{space:?}");
    }

    #[test]
    fn the_least_counts_and_page_cache_is_free() {
        let machine = machine("MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:    512 kB\n").unwrap();
        assert_eq!(machine, Space { total: 1 << 20, available: 1 << 19, reserve: 0 });
        let group = within(1000, 900, "anon 300\nactive_file 200\ninactive_file 400\nshmem 5\n");
        assert_eq!(group, Space { total: 1000, available: 700, reserve: 0 });
        let left = leave_a_reserve(least(machine, group));
        assert_eq!((left.total, left.available), (1000, 638));
        assert_eq!(within(10, 20, "").available, 0);
        assert_eq!(super::machine("MemTotal: 5 kB"), None);
    }
}
