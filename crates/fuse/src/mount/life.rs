//! Whether a mount's daemon answers: asked within a time limit, by a process that can be abandoned.
//!
//! The question is statfs(2), which the kernel never answers from its caches. A process that waits for a
//! stuck daemon cannot be killed before that daemon is. So a child process asks, and is abandoned if it gets
//! no answer.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use base::Deadline;

use super::Mounted;

/// How long a daemon may take to answer before it counts as silent.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The state of a mount's daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The daemon answers.
    Lives(Room),
    /// The kernel reports that the daemon is gone. The mount can only be removed.
    Dead,
    /// The daemon does not answer in time: it is stopped, or it hangs. It may answer again later.
    Silent,
}

/// The space of a filesystem in bytes, and its inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// The total.
    pub size: u64,
    /// The free space.
    pub free: u64,
    /// The free space for a user without privileges.
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
}

impl Mounted {
    /// Whether its daemon answers; see [`Life`]. Only call this for our own mounts: the daemons of other
    /// mounts are none of our business.
    pub fn life(&self, deadline: Deadline) -> Life {
        let Ok(path) = CString::new(self.path.as_os_str().as_bytes()) else {
            return Life::Dead;
        };
        let Some(pipe) = Pipe::new() else { return Life::Silent };
        // SAFETY: the child makes a few system calls, all async-signal-safe, on memory of which it has a
        // copy.
        match unsafe { libc::fork() } {
            // If no process can be started, nothing is known. Assume that it lives, as most mounts do.
            -1 => Life::Lives(Room::default()),
            0 => pipe.ask(&path),
            child => {
                let life = pipe.receive(deadline);
                // SAFETY: the child is ours and not yet reaped, so its number is still its own. A child that
                // has answered ends at once. A child that cannot be killed is left to the process that reaps
                // orphans.
                unsafe {
                    if life == Life::Silent {
                        libc::kill(child, libc::SIGKILL);
                        libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG);
                    } else {
                        libc::waitpid(child, std::ptr::null_mut(), 0);
                    }
                }
                life
            }
        }
    }

    /// Whether its daemon answers in time.
    pub fn answers(&self) -> bool {
        matches!(self.life(Deadline::after(ANSWER_WITHIN)), Life::Lives(_))
    }
}

/// What the child sends: an error number, and the space if that number is 0.
type Words = [u64; 5];

/// The pipe from the child to its parent.
struct Pipe {
    read: libc::c_int,
    write: libc::c_int,
}

impl Pipe {
    fn new() -> Option<Pipe> {
        let mut ends = [0; 2];
        // SAFETY: `ends` has space for two descriptors.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
        made.then_some(Pipe { read: ends[0], write: ends[1] })
    }

    /// The child's part: asks, writes the answer, ends.
    fn ask(&self, path: &CString) -> ! {
        // SAFETY: statfs is plain numbers, for which all zero bytes are a value. `path` is NUL-terminated.
        // `words` is as long as the length that is written. Every other descriptor is closed first. Otherwise
        // an abandoned child would keep the parent's pipes and locks open. _exit ends the child without
        // running the parent's exit handlers.
        unsafe {
            let write = self.write.cast_unsigned();
            if write > 0 {
                libc::close_range(0, write - 1, 0);
            }
            libc::close_range(write + 1, libc::c_uint::MAX, 0);
            let mut found: libc::statfs = std::mem::zeroed();
            let error = match libc::statfs(path.as_ptr(), &raw mut found) {
                0 => 0,
                _ => *libc::__errno_location() as u64,
            };
            let unit = found.f_frsize as u64;
            let words: Words = [
                error,
                found.f_blocks * unit,
                found.f_bfree * unit,
                found.f_bavail * unit,
                found.f_files.saturating_sub(found.f_ffree),
            ];
            libc::write(self.write, words.as_ptr().cast(), size_of::<Words>());
            libc::_exit(0)
        }
    }

    fn receive(&self, deadline: Deadline) -> Life {
        loop {
            let ms = i32::try_from(deadline.left().as_millis()).unwrap_or(i32::MAX);
            let mut poll = libc::pollfd { fd: self.read, events: libc::POLLIN, revents: 0 };
            // SAFETY: `poll` is one live entry, and the descriptor in it is open.
            match unsafe { libc::poll(&raw mut poll, 1, ms) } {
                1.. => break,
                _ if deadline.is_over() => return Life::Silent,
                _ => {}
            }
        }
        let mut words = Words::default();
        // SAFETY: `words` has space for this many bytes.
        let read = unsafe { libc::read(self.read, words.as_mut_ptr().cast(), size_of::<Words>()) };
        let [error, size, free, available, inodes] = words;
        // Over io_uring the kernel cancels the requests of a daemon that was killed.
        let gone = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED].contains(&(error as i32));
        match read == size_of::<Words>() as isize {
            true if gone => Life::Dead,
            // A statfs that fails for another reason, such as a missing permission, says nothing about the
            // daemon.
            true => Life::Lives(Room { size, free, available, inodes }),
            false => Life::Silent,
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // SAFETY: both descriptors are ours, and open until now.
        unsafe {
            libc::close(self.read);
            libc::close(self.write);
        }
    }
}
