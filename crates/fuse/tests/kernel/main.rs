//! The transport under the real kernel. Every test mounts its own filesystem.
//!
//! If something is missing (root, /dev/fuse), the test prints it and is skipped. `COVEY_FUSE_TRANSPORT`
//! (`auto`, `uring`, `classic`) chooses how requests arrive. The default is `classic`, and [`transports`]
//! runs every test once more over io_uring.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

extern crate covey_fuse as fuse;

mod budgets;
mod files;
mod killed;
mod listings;
mod mapped;
mod memory;
mod shared;
mod shared_locks;
mod transports;
mod traps;
mod trouble;

use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use fuse::{Options, Session, Transport, Unmount};
use memory::Memory;
use tempfile::TempDir;

/// A mounted memory filesystem. Dropping it unmounts.
pub struct Rig {
    pub session: Session,
    pub fs: Arc<Memory>,
    dir: TempDir,
}

/// What is missing for a real mount, if anything.
pub fn lacking() -> Option<&'static str> {
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("root");
    }
    (!Path::new("/dev/fuse").exists()).then_some("/dev/fuse")
}

pub fn rig() -> Option<Rig> {
    rig_with(Memory::new(), options())
}

/// Chooses how requests arrive in these tests.
pub const TRANSPORT: &str = "COVEY_FUSE_TRANSPORT";

pub fn options() -> Options {
    let transport = std::env::var(TRANSPORT).map_or(Transport::Classic, |name| name.parse().unwrap());
    Options { readers: 2, transport, ..Options::default() }
}

pub fn rig_with(fs: Memory, options: Options) -> Option<Rig> {
    if let Some(lack) = lacking() {
        println!("no {lack}: skipped");
        return None;
    }
    let dir = tempfile::Builder::new().prefix("covey-fuse-").tempdir().unwrap();
    // Other users must be able to reach the mount.
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let fs = Arc::new(fs);
    let session = Session::mount(Arc::clone(&fs) as _, dir.path(), options).unwrap();
    Some(Rig { session, fs, dir })
}

impl Rig {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// The number of requests of one kind so far.
    pub fn count(&self, name: &str) -> u64 {
        self.session.counts().iter().find(|(kind, _)| *kind == name).map_or(0, |(_, count)| *count)
    }

    /// Writes until the kernel alone has what was written. Closing a file sends it, and so does a process
    /// that another test has just forked: it has this test's files for a moment, and closes them.
    pub fn dirty(&self, mut write: impl FnMut()) {
        let mut attempt = || {
            let before = self.count("WRITE");
            write();
            self.count("WRITE") - before
        };
        assert!((0..100).any(|_| attempt() == 0), "the kernel sends everything at once");
    }

    /// The requests that arrived while `work` ran. FORGETs are left out, because they may come at any time.
    pub fn during(&self, work: impl FnOnce()) -> Vec<(&'static str, u64)> {
        let before = self.session.counts();
        work();
        let mut requests = self.session.counts();
        for (name, count) in &mut requests {
            *count -= before.iter().find(|(kind, _)| kind == name).map_or(0, |(_, count)| *count);
        }
        requests.retain(|(name, count)| *count > 0 && !name.ends_with("FORGET"));
        requests
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.fs.stall(false);
        if self.session.unmount(Unmount::Polite).is_err() {
            let _ = self.session.unmount(Unmount::Force);
        }
    }
}

/// Runs a shell command as the user nobody.
pub fn as_nobody(script: &str) -> Output {
    Command::new("sh").arg("-c").arg(script).uid(65534).gid(65534).output().unwrap()
}

/// Runs `work` in a thread, and fails instead of hanging if it has not returned in time.
pub fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || done.send(work()));
    wait.recv_timeout(limit).expect("finished in time")
}

/// What a program printed. If it has not ended in time, it is killed, so that its mounts go with it, and the
/// test fails.
pub fn output_within(limit: Duration, command: &mut Command) -> std::io::Result<Output> {
    let mut files = [tempfile::tempfile()?, tempfile::tempfile()?];
    command.stdout(files[0].try_clone()?).stderr(files[1].try_clone()?);
    let mut child = command.spawn()?;
    let end = std::time::Instant::now() + limit;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if std::time::Instant::now() > end => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    let [stdout, stderr] = files.each_mut().map(|file| {
        let mut text = Vec::new();
        file.rewind().and_then(|()| file.read_to_end(&mut text)).map(|_| text)
    });
    let (stdout, stderr) = (stdout?, stderr?);
    let said = || format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    let status = status.unwrap_or_else(|| panic!("not finished after {limit:?}:\n{}", said()));
    Ok(Output { status, stdout, stderr })
}
