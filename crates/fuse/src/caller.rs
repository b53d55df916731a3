//! Whether the thread that sent a request still lives, as /proc shows it.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The thread runs or waits.
    Lives,
    /// SIGKILL is pending, which is what any fatal signal becomes.
    BeingKilled,
    /// The thread has ended.
    Gone,
    /// The thread is not visible to this process: it is in another PID namespace.
    Unknown,
}

impl Fate {
    /// The state of this thread. `thread` is its number in this process's PID namespace, or 0 if it cannot be
    /// seen.
    pub fn of(thread: u32) -> Fate {
        if thread == 0 {
            return Fate::Unknown;
        }
        fs::read_to_string(format!("/proc/{thread}/status")).map_or(Fate::Gone, |status| read(&status))
    }
}

/// The most threads that are watched at the same time. Each costs a descriptor.
const WATCHED_MOST: usize = 64;
/// A descriptor of a thread instead of its whole process (Linux 6.9; see pidfd_open(2)).
const PIDFD_THREAD: u32 = libc::O_EXCL as u32;

/// Waits for the end of some threads. A thread that cannot be watched is left out.
#[derive(Default)]
pub struct Ends(Vec<(u32, OwnedFd)>);

impl Ends {
    /// Watches this thread too, unless there are too many.
    pub fn watch(&mut self, thread: u32) {
        if self.0.len() >= WATCHED_MOST || self.0.iter().any(|(watched, _)| *watched == thread) {
            return;
        }
        let Some(pid) = i32::try_from(thread).ok().and_then(Pid::from_raw) else { return };
        let open = |flags| pidfd_open(pid, flags).ok();
        // An older kernel knows only processes. Then the end of a process with several threads is seen only
        // when all of them have ended.
        let fd = open(PidfdFlags::from_bits_retain(PIDFD_THREAD)).or_else(|| open(PidfdFlags::empty()));
        self.0.extend(fd.map(|fd| (thread, fd)));
    }

    /// Stops watching the threads for which `keep` is false.
    pub fn keep_only(&mut self, keep: impl Fn(u32) -> bool) {
        self.0.retain(|(thread, _)| keep(*thread));
    }

    /// Whether no thread is watched.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until a thread ends, but no longer than `patience`. Returns the threads that have ended, and
    /// stops watching them.
    pub fn wait(&mut self, patience: Duration) -> Vec<u32> {
        let poll =
            |(_, fd): &(u32, OwnedFd)| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut fds: Vec<libc::pollfd> = self.0.iter().map(poll).collect();
        let patience = libc::timespec {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(patience.subsec_nanos()),
        };
        // SAFETY: `fds` is an array with as many entries as its length says. It and `patience` live through
        // the call. A null mask changes no signals.
        unsafe {
            libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, &raw const patience, std::ptr::null())
        };
        let (mut ended, mut at) = (Vec::new(), 0);
        self.0.retain(|(thread, _)| {
            let has_ended = fds[at].revents != 0;
            at += 1;
            if has_ended {
                ended.push(*thread);
            }
            !has_ended
        });
        ended
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
    fn the_end_of_a_thread_ends_the_wait() {
        let mut ends = Ends::default();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let lives = std::process::id();
        [child.id(), lives, lives].into_iter().for_each(|thread| ends.watch(thread));
        assert_eq!(ends.0.len(), 2);
        assert!(ends.wait(Duration::from_millis(1)).is_empty());
        child.kill().unwrap();
        assert_eq!(ends.wait(Duration::from_secs(20)), [child.id()]);
        child.wait().unwrap();
        ends.keep_only(|thread| thread != lives);
        assert!(ends.is_empty());
    }

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
