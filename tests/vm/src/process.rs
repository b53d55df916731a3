//! Child processes that end with the test, also if the test is killed.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use covey_tests::program::wait;

/// How long anything that must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "this never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A child process with its output in a file.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts it. It is killed when the thread that starts it ends.
    pub fn start(command: &mut Command, log: &Path) -> Process {
        let file = File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        // SAFETY: prctl is safe to call between fork and exec, and takes numbers only.
        let command = unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Process { child, log: log.to_owned() }
    }

    /// What it printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and has not been waited for, so its number is its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Whether it runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Kills it, and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends it in good order, and returns its exit status, or -1.
    pub fn end(&mut self) -> i32 {
        self.signal(libc::SIGTERM);
        match wait(&mut self.child, PATIENCE) {
            Some(status) => status.code().unwrap_or(-1),
            None => {
                self.kill();
                -1
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.log.display(), self.log());
        }
    }
}
