//! The resource limits that a process inherits (`ulimit`, `LimitFSIZE=` of a service), lifted or refused.
//!
//! A limit that a shell or a service manager set for other programs can end a daemon in the middle of its
//! work. Beyond `RLIMIT_FSIZE` the kernel sends SIGXFSZ, beyond `RLIMIT_CPU` SIGKILL, and beyond `RLIMIT_AS`
//! no memory is left. So each command first raises what it may ([`lift`]): the soft limits to the hard ones,
//! and as root the hard ones too. If a limit cannot be raised and is too low, the command reports that before
//! it opens anything ([`check`]). SIGXFSZ is ignored, so a write that is too long fails with an error.

use std::sync::atomic::{AtomicBool, Ordering};

use api::error::{Failure, Result};
use cache::CacheOptions;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// No limit.
const NONE: u64 = u64::MAX;

/// The purpose for which limits are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// A process that runs until it is told to end: a mount, a depot, a lender.
    Daemon,
    /// A command that changes a volume, and ends.
    Change,
}

/// One limit, and the smallest value that is enough.
struct Limit {
    resource: Resource,
    /// The name in `ulimit`, with the letter.
    name: &'static str,
    letter: char,
    /// The size of its unit, in bytes or seconds, for the message.
    unit: u64,
    /// The smallest value for a daemon, and for a command that changes a volume.
    least: [u64; 2],
    /// What happens beyond the limit.
    why: &'static str,
}

const LIMITS: [Limit; 5] = [
    Limit {
        resource: Resource::Fsize,
        name: "the size of files",
        letter: 'f',
        unit: 1024,
        // The metadata database is one file, with some 400 bytes for each file of the volume.
        least: [64 << 30, 64 << 30],
        why: "the volume's database and its packs are files, and a write beyond the limit fails",
    },
    Limit {
        resource: Resource::Cpu,
        name: "processor time",
        letter: 't',
        unit: 1,
        least: [NONE, 0],
        why: "the kernel would end the daemon when its time is used up, and with it the mount",
    },
    Limit {
        resource: Resource::As,
        name: "virtual memory",
        letter: 'v',
        unit: 1024,
        // This limits addresses, not memory. Each thread has a stack and a heap of its own.
        least: [4 << 30, 1 << 30],
        why: "each thread reserves addresses for its stack and its heap",
    },
    Limit {
        resource: Resource::Data,
        name: "a program's data",
        letter: 'd',
        unit: 1024,
        least: [4 << 30, 1 << 30],
        why: "each thread reserves addresses for its stack and its heap",
    },
    Limit {
        resource: Resource::Nofile,
        name: "open files",
        letter: 'n',
        unit: 1,
        least: [256, 64],
        why: "packs, the database and connections are open files",
    },
];

/// The most open files that a daemon can use.
const FILES: u64 = 65_536;

/// The soft and the hard limit.
fn get(resource: Resource) -> [u64; 2] {
    let Rlimit { current, maximum } = getrlimit(resource);
    [current, maximum].map(|limit| limit.unwrap_or(NONE))
}

fn set(resource: Resource, soft: u64, hard: u64) -> bool {
    let [current, maximum] = [soft, hard].map(|limit| (limit != NONE).then_some(limit));
    setrlimit(resource, Rlimit { current, maximum }).is_ok()
}

/// Raises the limits as far as possible. Every command calls this first.
pub fn lift() {
    // SAFETY: ignoring a signal installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    for limit in &LIMITS {
        let [soft, hard] = get(limit.resource);
        let wanted = if limit.resource == Resource::Nofile { FILES } else { NONE };
        if soft >= wanted {
            continue;
        }
        // Only a privileged process may raise a hard limit.
        if !set(limit.resource, wanted, hard.max(wanted)) {
            set(limit.resource, hard.min(wanted), hard);
        }
    }
}

/// Whether the remaining limits are high enough.
///
/// # Errors
/// The first limit that is too low, and how to raise it.
pub fn check(what: For) -> Result<()> {
    LIMITS.iter().try_for_each(|limit| limit.judge(get(limit.resource)[0], what))
}

impl Limit {
    fn judge(&self, now: u64, what: For) -> Result<()> {
        let least = self.least[usize::from(what == For::Change)];
        if now >= least {
            return Ok(());
        }
        let (name, letter) = (self.name, self.letter);
        let word = if least == NONE { "unlimited".to_owned() } else { (least / self.unit).to_string() };
        let who = if what == For::Daemon { "a daemon" } else { "a command that changes a volume" };
        Err(Failure::new("limit", format!("the limit of {name} is too low for {who}: {}", now / self.unit))
            .why(self.why)
            .next(format!(
                "raise it where this was started: ulimit -{letter} {word} (for a service: {}=infinity)",
                self.setting()
            )))
    }

    /// The name of the limit in a systemd unit.
    fn setting(&self) -> &'static str {
        match self.letter {
            'f' => "LimitFSIZE",
            't' => "LimitCPU",
            'v' => "LimitAS",
            'd' => "LimitDATA",
            _ => "LimitNOFILE",
        }
    }
}

/// The memory that this process may use, in bytes: the machine's, or the limit of its control group.
fn memory() -> u64 {
    cache::memory_room().map_or(u64::MAX, |room| room.total)
}

/// The memory for the cache of a remote origin, limited by the available memory. Spare buffers are limited,
/// too.
pub fn cache_options() -> CacheOptions {
    const EACH: u64 = 128 << 20;
    let memory = memory();
    blob::stock::keep_at_most(usize::try_from(memory / EACH).unwrap_or(usize::MAX).max(2));
    CacheOptions::within(memory)
}

/// The largest number of threads for pending requests. Each has a buffer of 1 MiB.
pub fn workers(usual: usize) -> usize {
    const EACH: u64 = 8 << 20;
    usize::try_from(memory() / EACH).unwrap_or(usize::MAX).clamp(4, usual)
}

/// The variable that lets a daemon leave a core dump.
pub const CORE_DUMPS: &str = "COVEY_CORE_DUMPS";

/// Keeps keys in a daemon's memory out of core dumps. No dump is written, and a dump that a handler receives
/// all the same holds no memory of the daemon. Does nothing if [`CORE_DUMPS`] is set to 1.
pub fn leave_no_core() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let wanted = std::env::var_os(CORE_DUMPS).is_some_and(|value| value == "1");
    if wanted || DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    set(Resource::Core, 0, get(Resource::Core)[1]);
    // The kernel pipes dumps to a handler (`kernel.core_pattern`) whatever the limit is. An error here is
    // harmless.
    let _ = std::fs::write("/proc/self/coredump_filter", "0");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(letter: char) -> &'static Limit {
        LIMITS.iter().find(|limit| limit.letter == letter).unwrap()
    }

    #[test]
    fn a_limit_that_is_too_low_is_refused_with_what_to_do() {
        let failure = limit('f').judge(2_000 << 10, For::Daemon).unwrap_err();
        assert_eq!(failure.code, "limit");
        let text = failure.to_string();
        assert!(text.contains("the size of files") && text.contains("2000"), "{text}");
        assert!(text.contains("ulimit -f 67108864") && text.contains("LimitFSIZE=infinity"), "{text}");
        let text = limit('t').judge(3_600, For::Daemon).unwrap_err().to_string();
        assert!(text.contains("ulimit -t unlimited"), "{text}");
    }

    #[test]
    fn what_is_enough_passes() {
        for what in [For::Daemon, For::Change] {
            LIMITS.iter().for_each(|limit| limit.judge(NONE, what).unwrap());
        }
        limit('t').judge(3_600, For::Change).unwrap();
        limit('f').judge(100 << 30, For::Daemon).unwrap();
        limit('n').judge(1024, For::Daemon).unwrap();
        assert!(limit('v').judge(512 << 20, For::Change).is_err());
    }

    #[test]
    fn soft_limits_are_raised() {
        lift();
        let [soft, hard] = get(Resource::Nofile);
        assert!(soft >= hard.min(FILES));
        check(For::Change).unwrap();
    }
}
