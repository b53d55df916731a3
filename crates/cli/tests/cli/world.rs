//! A scratch folder with a volume and a mountpoint, and helpers to run the program on them. Dropping it
//! unmounts whatever is left.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The time limit of one command. It is generous enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The result of a command.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Done {
    /// The output, parsed as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    /// Asserts that the command failed with this status and this error code, and said what to do next.
    pub fn fails(&self, status: i32, code: &str) -> &Done {
        let error = &self.json()["error"];
        assert_eq!((self.code, error["code"].as_str()), (status, Some(code)), "{self:?}");
        let next = error["next"].as_array().map_or(0, Vec::len);
        assert!(next > 0, "says nothing of what to do next: {self:?}");
        assert!(self.err.starts_with("covey: ") && self.err.contains("next: "), "{self:?}");
        self
    }

    /// Asserts that the command succeeded.
    pub fn ok(self) -> Done {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }
}

/// A covey command line.
pub fn covey<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_covey"));
    command.args(args).stdin(Stdio::null());
    // The configuration of this machine must not affect the tests.
    command.env("COVEY_CONFIG", "").env_remove("COVEY_MOUNT_OPTIONS").env_remove("COVEY_LOG");
    command
}

/// Runs the command to its end. A command that hangs fails the test.
pub fn run_command(command: &mut Command) -> Done {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (out, err) = (reader(child.stdout.take().unwrap()), reader(child.stderr.take().unwrap()));
    let status = end_of(&mut child, &format!("{command:?}"));
    Done { code: status, out: out.join().unwrap(), err: err.join().unwrap() }
}

fn reader(mut from: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        from.read_to_end(&mut text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    })
}

/// The exit status, or minus the signal number.
pub fn end_of(child: &mut Child, what: &str) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
        }
        if Instant::now() > end {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{what} hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs the command in its own mount namespace. Of the Covey mounts, only those below `kept` are left in it.
/// So a command that lists all mounts of the machine sees only those of its test. A user without that right
/// sees all mounts.
pub fn alone<'a>(command: &'a mut Command, kept: &Path) -> &'a mut Command {
    use std::ffi::CString;
    use std::os::unix::process::CommandExt;
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let others = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let others = others.filter(|line| line[2] == "fuse.covey" && !Path::new(line[1]).starts_with(kept));
    let others: Vec<CString> =
        others.map(|line| CString::new(line[1].replace("\\040", " ")).unwrap()).collect();
    let enter = move || {
        // SAFETY: these are system calls on strings that are alive as long as the closure. None of them
        // allocates.
        unsafe {
            if libc::unshare(libc::CLONE_NEWNS) == 0 {
                let (flags, none) = (libc::MS_REC | libc::MS_PRIVATE, std::ptr::null());
                libc::mount(none, c"/".as_ptr(), none, flags, none.cast());
                for other in &others {
                    libc::umount2(other.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW);
                }
            }
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls, on memory of its own.
    unsafe { command.pre_exec(enter) }
}

/// Runs covey with `--json`.
pub fn json<S: AsRef<OsStr>>(args: &[S]) -> Done {
    run_command(covey(args).arg("--json"))
}

/// The scratch folder.
pub struct World {
    folder: tempfile::TempDir,
}

impl World {
    pub fn new() -> World {
        let folder = tempfile::Builder::new().prefix("covey-cli-").tempdir().unwrap();
        std::fs::create_dir(folder.path().join("mnt")).unwrap();
        World { folder }
    }

    /// A scratch folder with a formatted volume.
    pub fn formatted() -> World {
        let world = World::new();
        json(&[Path::new("format"), &world.volume()]).ok();
        world
    }

    /// A scratch folder with a formatted volume, if this user can mount on this machine. Otherwise prints
    /// what is missing.
    pub fn mountable() -> Option<World> {
        let fuse = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
        // SAFETY: geteuid(2) takes nothing and cannot fail.
        let root = unsafe { libc::geteuid() } == 0;
        match (fuse, root) {
            (Ok(_), true) => Some(World::formatted()),
            (Err(error), _) => {
                println!("/dev/fuse: {error}: skipped");
                None
            }
            (_, false) => {
                println!("not root: skipped");
                None
            }
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The whole scratch folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn volume(&self) -> PathBuf {
        self.path("volume")
    }

    pub fn mnt(&self) -> PathBuf {
        self.path("mnt")
    }

    /// The text `VOLUME:/inner`.
    pub fn inner(&self, inner: &str) -> String {
        format!("{}:/{inner}", self.volume().display())
    }

    /// Mounts in the background. Returns the daemon's process id.
    pub fn mount(&self, options: &str) -> u32 {
        let (volume, mnt) = (self.volume(), self.mnt());
        let args = [
            OsStr::new("mount"),
            OsStr::new("-d"),
            OsStr::new("-o"),
            OsStr::new(options),
            volume.as_ref(),
            mnt.as_ref(),
        ];
        u32::try_from(json(&args).ok().json()["pid"].as_u64().unwrap()).unwrap()
    }

    pub fn umount(&self) -> Done {
        json(&[Path::new("umount"), &self.mnt()])
    }

    pub fn status(&self) -> Value {
        json(&[Path::new("status"), &self.mnt()]).ok().json()
    }

    /// The result of `covey fsck`. Its exit status must agree with the result.
    pub fn fsck(&self, flags: &[&str]) -> Value {
        let volume = self.volume();
        let mut args = vec![OsStr::new("fsck"), volume.as_ref()];
        args.extend(flags.iter().map(OsStr::new));
        let done = json(&args);
        let found = done.json();
        assert_eq!(done.code, i32::from(found["sound"] != true), "{done:?}");
        found
    }

    pub fn is_mounted(&self) -> bool {
        let mnt = self.mnt();
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
        table.lines().any(|line| line.split(' ').nth(1) == mnt.to_str())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for _ in 0..3 {
            if !self.is_mounted() {
                return;
            }
            let _ = run_command(&mut covey(&[Path::new("umount"), Path::new("--force"), &self.mnt()]));
        }
        println!("{} is left mounted", self.mnt().display());
    }
}

/// Waits until the condition holds, at most 30 s.
pub fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal.
pub fn kill(pid: u32, signal: i32) {
    // SAFETY: kill(2) is called with the process id of a process that the test started.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// Kills a process and waits until its files are closed and its locks released. A process that the kernel is
/// still taking apart has no program any more, but each of its threads can hold locks.
pub fn kill_and_wait(pid: u32) {
    kill(pid, libc::SIGKILL);
    let is_gone = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    soon("the killed process is gone", || tasks().all(is_gone));
}
