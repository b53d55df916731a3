//! Makes system calls on the daemon's own mount in a child process.
//!
//! Nothing interrupts a thread that waits for a request which the daemon has taken. If the daemon is killed
//! meanwhile, a thread of its own that waits so never ends. The connection never ends either, because that
//! thread shares its descriptor: all programs on the mount hang. A child has none of the daemon's descriptors
//! and mappings of rings. So the kernel ends the connection, and with it what the child waits for.
//!
//! The child has a copy of the daemon's memory. Sharing it, as after vfork(2), would keep the rings.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};

/// A child that works. It is killed with the daemon.
pub(crate) struct Child {
    pid: libc::pid_t,
    answers: PipeReader,
    /// Closed when the child may end.
    asks: Option<PipeWriter>,
}

/// The child's side.
pub(crate) struct Parent {
    answers: RawFd,
    asks: RawFd,
}

impl Child {
    /// Starts `work` in a child. It may only make system calls, on memory of which it has a copy: another
    /// thread may have held the allocator's lock at that moment.
    ///
    /// # Errors
    /// The system cannot start the child.
    pub(crate) fn start(mut work: impl FnMut(&Parent)) -> io::Result<Child> {
        let ((answers, to_daemon), (from_daemon, asks)) = (io::pipe()?, io::pipe()?);
        let daemon = std::process::id();
        // SAFETY: the child makes a few system calls, all async-signal-safe. _exit ends it without running
        // the daemon's exit handlers.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let parent = Parent { answers: to_daemon.as_raw_fd(), asks: from_daemon.as_raw_fd() };
                if parent.is_alone_with(daemon) {
                    work(&parent);
                }
                // SAFETY: see above.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(Child { pid, answers, asks: Some(asks) }),
        }
    }

    /// Sends the child a number ([`Parent::next`]).
    pub(crate) fn send(&mut self, number: u64) {
        // If the child has ended, there is no answer.
        self.asks.iter_mut().for_each(|asks| _ = asks.write_all(&number.to_ne_bytes()));
    }

    /// Waits for the child's next answer. False, too, if it ended without one.
    pub(crate) fn answer(&self) -> bool {
        let mut byte = [0];
        (&self.answers).read_exact(&mut byte).is_ok() && byte == [1]
    }
}

impl Drop for Child {
    /// Waits for its end.
    fn drop(&mut self) {
        self.asks = None;
        let is_interrupted = || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        // SAFETY: the child is ours, and is reaped here only. No status is stored.
        let wait = || unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        while wait() < 0 && is_interrupted() {}
    }
}

impl Parent {
    /// Closes what belongs to the daemon. False: it has been killed, or the kernel cannot do that.
    fn is_alone_with(&self, daemon: u32) -> bool {
        let (low, high) = (self.answers.min(self.asks), self.answers.max(self.asks));
        let ranges = [(0, low - 1), (low + 1, high - 1), (high + 1, RawFd::MAX)];
        let mut ranges = ranges.into_iter().filter(|(first, last)| first <= last);
        // SAFETY: the calls take numbers only. The copies of the daemon's descriptors are used no more.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            let is_closed = ranges
                .all(|(first, last)| libc::close_range(first.cast_unsigned(), last.cast_unsigned(), 0) == 0);
            is_closed && libc::getppid().cast_unsigned() == daemon
        }
    }

    /// Answers the daemon.
    pub(crate) fn answer(&self, is_done: bool) {
        let byte = u8::from(is_done);
        // SAFETY: the descriptor is open, and the byte lives through the call.
        unsafe { libc::write(self.answers, (&raw const byte).cast(), 1) };
    }

    /// Waits for the next number. `None`: the daemon has dropped the [`Child`].
    pub(crate) fn next(&self) -> Option<u64> {
        let mut number = 0_u64;
        let room = (&raw mut number).cast();
        // SAFETY: the descriptor is open, and the number lives through the call. It arrives whole.
        let read = unsafe { libc::read(self.asks, room, size_of::<u64>()) };
        (read == size_of::<u64>().cast_signed()).then_some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_child_has_no_descriptor_of_its_parent_and_ends_with_it() {
        let (reads, _writes) = io::pipe().unwrap();
        let fd = reads.as_raw_fd();
        let mut child = Child::start(|parent| {
            while let Some(number) = parent.next() {
                // SAFETY: the call takes numbers only.
                let has_it = unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1;
                parent.answer(number == 7 && !has_it);
            }
        })
        .unwrap();
        for (number, is_done) in [(7, true), (8, false), (7, true)] {
            child.send(number);
            assert_eq!(child.answer(), is_done, "{number}");
        }
    }

    #[test]
    fn a_child_that_has_ended_does_not_answer() {
        let mut child = Child::start(|_| {}).unwrap();
        assert!(!child.answer());
        child.send(7);
        assert!(!child.answer());
    }

    #[test]
    fn many_threads_start_children_at_once() {
        let many = || (0..50).all(|_| Child::start(|parent| parent.answer(true)).unwrap().answer());
        let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(many)).collect();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
    }
}
