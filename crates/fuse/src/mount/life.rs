//! Whether a mount's daemon answers: asked with a bound, and by a process that can be left behind.
//!
//! The question is statfs(2), the one that the kernel never answers from memory. A process that asks a daemon which is stuck cannot be killed until
//! that daemon is, so a child asks, and is left behind if it gets no answer.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use base::Deadline;

use super::Mounted;

/// How long a daemon may take to answer before it is called silent.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How it stands with the daemon of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It answers.
    Lives(Room),
    /// It is gone: the kernel says so. The mount can only be taken away.
    Dead,
    /// It does not answer in time: it is stopped, or it hangs. It may go on.
    Silent,
}

/// The room of a filesystem, in bytes, and its inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// All of it.
    pub size: u64,
    /// What is free.
    pub free: u64,
    /// What is free for a user without privileges.
    pub available: u64,
    /// Inodes in use.
    pub inodes: u64,
}

impl Mounted {
    /// Whether its daemon answers; see [`Life`]. Asked of a mount of ours only: others' daemons are none of our business.
    pub fn life(&self, deadline: Deadline) -> Life {
        let Ok(path) = CString::new(self.path.as_os_str().as_bytes()) else {
            return Life::Dead;
        };
        let Some(pipe) = Pipe::new() else { return Life::Silent };
        // SAFETY: the child makes a few system calls, all async-signal-safe, on memory it has a copy of.
        match unsafe { libc::fork() } {
            // Without room for a process nothing is known: it is taken to live, as most mounts do.
            -1 => Life::Lives(Room::default()),
            0 => pipe.ask(&path),
            child => {
                let life = pipe.hear(deadline);
                // SAFETY: the child is ours and not yet collected, so the number is still its own. One that has answered ends at once; one that
                // cannot be ended is left to the process that collects orphans.
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

/// What the child says: an error number, and the room if that is 0.
type Words = [u64; 5];

/// How the child speaks to its parent.
struct Pipe {
    read: libc::c_int,
    write: libc::c_int,
}

impl Pipe {
    fn new() -> Option<Pipe> {
        let mut ends = [0; 2];
        // SAFETY: `ends` is room for two descriptors.
        let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } == 0;
        made.then_some(Pipe { read: ends[0], write: ends[1] })
    }

    /// The child: asks, writes the answer, ends.
    fn ask(&self, path: &CString) -> ! {
        // SAFETY: statfs is plain numbers, for which all zero bytes are a value; `path` is NUL-terminated, `words` is room for what is written.
        // Every other descriptor is closed first, or a child left behind would keep the parent's pipes and locks open.
        // _exit ends the child without running what belongs to the parent.
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

    fn hear(&self, deadline: Deadline) -> Life {
        loop {
            let ms = i32::try_from(deadline.left().as_millis()).unwrap_or(i32::MAX);
            let mut poll = libc::pollfd { fd: self.read, events: libc::POLLIN, revents: 0 };
            // SAFETY: `poll` is one living entry, and the descriptor in it is open.
            match unsafe { libc::poll(&raw mut poll, 1, ms) } {
                1.. => break,
                _ if deadline.is_over() => return Life::Silent,
                _ => {}
            }
        }
        let mut words = Words::default();
        // SAFETY: `words` is room for so many bytes.
        let read = unsafe { libc::read(self.read, words.as_mut_ptr().cast(), size_of::<Words>()) };
        let [error, size, free, available, inodes] = words;
        let gone = [libc::ENOTCONN, libc::ECONNABORTED].contains(&(error as i32));
        match read == size_of::<Words>() as isize {
            true if gone => Life::Dead,
            // What it cannot be asked for (a right that lacks) says nothing of its daemon.
            true => Life::Lives(Room { size, free, available, inodes }),
            false => Life::Silent,
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // SAFETY: both are ours, and open until now.
        unsafe {
            libc::close(self.read);
            libc::close(self.write);
        }
    }
}
