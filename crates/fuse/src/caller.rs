//! What has become of the thread that asked, as /proc shows it.

use std::fs;

/// How a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It runs, or waits.
    Lives,
    /// SIGKILL is pending, which is what any fatal signal becomes.
    BeingKilled,
    /// It has ended.
    Gone,
    /// It cannot be seen from here: it is in another PID namespace.
    Unknown,
}

impl Fate {
    /// Of this thread, as this process numbers it; 0 where it cannot be seen from here.
    pub fn of(thread: u32) -> Fate {
        if thread == 0 {
            return Fate::Unknown;
        }
        fs::read_to_string(format!("/proc/{thread}/status")).map_or(Fate::Gone, |status| read(&status))
    }
}

fn read(status: &str) -> Fate {
    const SIGKILL: u64 = 1 << (libc::SIGKILL - 1);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim();
    let pending = |name: &str| u64::from_str_radix(field(name), 16).unwrap_or(0);
    match field("State:").chars().next() {
        Some('Z' | 'X') => Fate::Gone,
        _ if (pending("SigPnd:") | pending("ShdPnd:")) & SIGKILL != 0 => Fate::BeingKilled,
        _ => Fate::Lives,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_how_a_thread_is() {
        let status = |state: &str, own: &str, shared: &str| {
            read(&format!("Name:\tx\nState:\t{state}\nSigPnd:\t{own}\nShdPnd:\t{shared}\n"))
        };
        let (none, kill) = ("0000000000000000", "0000000000000100");
        assert_eq!(status("S (sleeping)", none, none), Fate::Lives);
        assert_eq!(status("S (sleeping)", "0000000000004000", none), Fate::Lives);
        assert_eq!(status("R (running)", kill, none), Fate::BeingKilled);
        assert_eq!(status("D (disk sleep)", none, kill), Fate::BeingKilled);
        assert_eq!(status("Z (zombie)", none, kill), Fate::Gone);
        assert_eq!(Fate::of(std::process::id()), Fate::Lives);
        assert_eq!(Fate::of(0), Fate::Unknown);
    }
}
