//! A shared mapping of a file, in a process of its own.
//!
//! The filesystem of these tests is served by the test's own process. munmap(2) of changed pages waits for
//! its replies while it holds the lock of the process's address space. The server may need that lock too,
//! for instance to make its heap larger. Then both would wait for ever.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);

/// A process that has mapped a file. Dropping it kills it.
pub struct Mapped {
    process: libc::pid_t,
    is_over: bool,
}

impl Mapped {
    /// Maps so many bytes of a file in a new process, which calls `first` with them and stops. The test fails
    /// if that returns false. When it is told to end, it calls `last`, and unmaps them.
    ///
    /// Both run after fork(2) in a program with threads, so they must neither allocate nor panic.
    pub fn new(
        file: &File,
        len: usize,
        first: impl FnOnce(&mut [u8]) -> bool,
        last: impl FnOnce(&mut [u8]),
    ) -> Mapped {
        // SAFETY: the new process makes system calls only, and ends without running anything of the test's.
        let process = unsafe { libc::fork() };
        assert!(process >= 0, "{}", std::io::Error::last_os_error());
        if process == 0 {
            let is_right = map_and_work(file, len, first, last);
            // SAFETY: it ends this process and nothing else.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mapped = Mapped { process, is_over: false };
        let status = mapped.wait();
        assert!(libc::WIFSTOPPED(status), "the mapping cannot be made, or is wrong");
        mapped
    }

    /// Lets it do the last of its work, and waits for its end.
    pub fn end(mut self) {
        // SAFETY: it is a child that was not waited for.
        unsafe { libc::kill(self.process, libc::SIGCONT) };
        let status = self.wait();
        self.is_over = true;
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    }

    /// Waits until it stops or ends. Returns its status.
    fn wait(&self) -> i32 {
        let end = Instant::now() + LIMIT;
        let mut status = 0;
        loop {
            let flags = libc::WUNTRACED | libc::WNOHANG;
            // SAFETY: `status` is a number that may be written.
            let changed = unsafe { libc::waitpid(self.process, &mut status, flags) };
            assert!(changed >= 0, "{}", std::io::Error::last_os_error());
            if changed > 0 {
                return status;
            }
            assert!(Instant::now() < end, "the process with the mapping goes on for {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if !self.is_over {
            // SAFETY: it is a child that was not waited for. If it has ended, its number is still its own.
            unsafe {
                libc::kill(self.process, libc::SIGKILL);
                libc::waitpid(self.process, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// What the new process does. False if the mapping cannot be made, or `first` says so.
fn map_and_work(
    file: &File,
    len: usize,
    first: impl FnOnce(&mut [u8]) -> bool,
    last: impl FnOnce(&mut [u8]),
) -> bool {
    // SAFETY: it takes numbers. Otherwise a test that is killed would leave this process, and its mount.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    // SAFETY: this makes a new mapping of an open file, at an address that the kernel chooses.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
    if map == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: the mapping has this length, is readable and writable, and is unmapped only below.
    let bytes = unsafe { std::slice::from_raw_parts_mut(map.cast::<u8>(), len) };
    if !first(bytes) {
        return false;
    }
    // SAFETY: it stops this process.
    unsafe { libc::raise(libc::SIGSTOP) };
    last(bytes);
    // SAFETY: this unmaps exactly what was mapped, and nothing uses it any more.
    unsafe { libc::munmap(map, len) == 0 }
}
