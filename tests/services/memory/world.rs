//! Servers and VMMs, with their clean-up.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use covey_tests::Rng;
use covey_tests::program::{covey, wait};
use memory::vmm::Memory;
use tempfile::TempDir;

use super::vmm::JOB;

pub const MIB: usize = 1 << 20;
/// How long anything that must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "this never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether userfaultfd is allowed here. If not, the test says so and ends.
pub fn may() -> bool {
    let made = Memory::new(4096, false);
    made.inspect_err(|error| covey_tests::say(format_args!("skipped: lacks userfaultfd ({error})"))).is_ok()
}

/// Bytes with holes, as a machine's memory has them.
pub fn bytes(len: usize) -> Vec<u8> {
    let mut bytes = Rng::new(77).bytes(len);
    for hole in bytes.chunks_mut(MIB).skip(1).step_by(3) {
        let len = hole.len() / 2;
        hole[..len].fill(0);
    }
    bytes
}

/// A folder with a snapshot in it, and places for sockets.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { dir: covey_tests::scratch() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Creates the file `memory`. A VMM compares its memory with it.
    pub fn snapshot(&self, len: usize) {
        std::fs::write(self.path("memory"), bytes(len)).unwrap();
    }

    /// Serves a source at the socket `s`.
    pub fn serve(&self, source: &str, more: &[&str]) -> Server {
        let log = self.path(&format!("serve-{}.log", base::random::u64()));
        let file = std::fs::File::create(&log).unwrap();
        let mut command = covey();
        command.args(["memory-server", source, "--on", &format!("unix:{}", self.text("s"))]).args(more);
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let mut server = Server { child: command.spawn().unwrap(), log };
        until("the server listens", || {
            assert!(server.child.try_wait().unwrap().is_none(), "{}", server.log());
            server.log().contains("Ctrl-C")
        });
        server
    }

    /// Starts a VMM. It compares its memory with the file `memory`. See [`super::vmm::run`] for the jobs.
    pub fn vmm(&self, job: &str) -> Vmm {
        let name = format!("vmm-{}", base::random::u64());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "memory::the_vmm", "--nocapture", "--test-threads=1"]);
        command.env(JOB, job).env("COVEY_VMM_NAME", &name).current_dir(self.dir.path());
        let log = std::fs::File::create(self.path(&name).with_extension("log")).unwrap();
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        Vmm { child: command.spawn().unwrap(), path: self.path(&name) }
    }
}

/// `covey memory-server`.
pub struct Server {
    child: Child,
    log: PathBuf,
}

impl Server {
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and has not been waited for, so its number is its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Ends by itself after SIGTERM, with status 0.
    pub fn end_well(mut self) {
        self.signal(libc::SIGTERM);
        let ended = wait(&mut self.child, PATIENCE);
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {}", self.log());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A VMM.
pub struct Vmm {
    child: Child,
    path: PathBuf,
}

impl Vmm {
    /// What it printed.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path.with_extension("log")).unwrap_or_default()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has come to a step.
    pub fn at(&mut self, step: &str) {
        until(step, || {
            assert!(self.child.try_wait().unwrap().is_none(), "the VMM ended: {}", self.log());
            self.path.with_extension(step).exists()
        });
    }

    /// Lets it go on.
    pub fn go(&self) {
        std::fs::write(self.path.with_extension("go"), "").unwrap();
    }

    pub fn must_succeed(mut self) {
        let ended = wait(&mut self.child, PATIENCE);
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}: {}", self.log());
    }

    /// The signal that ended it.
    pub fn died_of(mut self) -> i32 {
        let ended = wait(&mut self.child, PATIENCE).expect("the VMM ends");
        ended.signal().unwrap_or_else(|| panic!("{ended:?}: {}", self.log()))
    }

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
