//! The processes of a demo: `make` and all that it starts, in a process group of their own.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, test_kill_process_group, waitid,
};
use tokio::net::UnixListener;
use tokio::net::unix::pipe::Receiver;

use super::Demo;

/// The variable that tells a demo where to report.
const EVENTS: &str = "COVEY_DEMO_EVENTS";
/// How often it is checked whether a process has ended.
const CHECK: Duration = Duration::from_millis(20);
/// Kept of the output: bytes, lines, and letters of each line.
const TAIL: usize = 8 << 10;
const LINES: usize = 20;
const LETTERS: usize = 300;

/// A folder that only this user can enter, with the socket. It is removed at the end.
struct Private(PathBuf);

impl Private {
    fn new() -> io::Result<Private> {
        let id: String = base::random::id16().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let folder = std::env::temp_dir().join(format!("covey-ui-{id}"));
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Private(folder))
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process group. What is left of it is killed when this is dropped.
pub struct Group {
    child: Child,
    id: Pid,
    ended: bool,
}

/// A demo that was started.
pub struct Started {
    /// The demo's processes.
    pub group: Group,
    /// Where it reports.
    pub listener: UnixListener,
    /// What it prints.
    pub output: Receiver,
    _folder: Private,
}

/// Starts a demo of the project in this folder. Must be called on the runtime.
///
/// # Errors
/// The socket cannot be made, or `make` cannot be started.
pub fn start(project: &Path, demo: Demo, small: bool) -> io::Result<Started> {
    let folder = Private::new()?;
    let socket = folder.0.join("events");
    let listener = UnixListener::bind(&socket)?;
    let (read, write) = io::pipe()?;
    let output = Receiver::from_owned_fd(read.into())?;
    let mut command = Command::new("make");
    command.arg("-s").arg("-C").arg(project).arg(format!("demo-{}", demo.name()));
    command.args(small.then_some("BENCH_ARGS=--small"));
    // This process may itself have been started by a make.
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "GNUMAKEFLAGS"] {
        command.env_remove(name);
    }
    command.env(EVENTS, &socket).stdin(Stdio::null()).stdout(write.try_clone()?).stderr(write);
    let child = command.process_group(0).spawn()?;
    let group = Group { id: Pid::from_child(&child), child, ended: false };
    Ok(Started { group, listener, output, _folder: folder })
}

impl Group {
    /// Waits for the first process. The others may still run.
    pub async fn exited(&self) {
        // It is not reaped yet, so that its id remains that of the group.
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while matches!(waitid(WaitId::Pid(self.id), how), Ok(None) | Err(Errno::INTR)) {
            tokio::time::sleep(CHECK).await;
        }
    }

    /// Asks the first process to end. `make` passes that on and waits. Were all processes asked, a demo would
    /// be asked twice, the second time while it removes what it made.
    pub fn ask_to_end(&self) {
        let _ = kill_process(self.id, Signal::TERM);
    }

    /// Waits until no process is left, after the first one has exited. Those that stay are asked to end, and
    /// killed after `grace`.
    ///
    /// # Errors
    /// The status of the first process is not known.
    pub async fn finish(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        let status = self.child.wait()?;
        let is_left = || test_kill_process_group(self.id) != Err(Errno::SRCH);
        if is_left() {
            let _ = kill_process_group(self.id, Signal::TERM);
            let until = base::time::monotonic() + grace;
            while is_left() && base::time::monotonic() < until {
                tokio::time::sleep(CHECK).await;
            }
            if is_left() {
                self.kill();
            }
        }
        self.ended = true;
        Ok(status)
    }

    /// Kills all processes.
    pub fn kill(&self) {
        let _ = kill_process_group(self.id, Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

/// The end of what a demo printed.
#[derive(Default)]
pub struct Tail(Vec<u8>);

impl Tail {
    /// Takes more of it.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        let over = self.0.len().saturating_sub(TAIL);
        self.0.drain(..over);
    }

    /// The last lines that are not empty, without control characters.
    pub fn lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.0);
        let clean = |line: &str| -> String {
            line.chars().filter(|letter| !letter.is_control()).take(LETTERS).collect()
        };
        let lines = text.split(['\n', '\r']).map(clean).filter(|line| !line.trim().is_empty());
        let lines: Vec<String> = lines.collect();
        lines[lines.len().saturating_sub(LINES)..].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_an_output_has_bounds() {
        let mut tail = Tail::default();
        assert_eq!(tail.lines(), Vec::<String>::new());
        tail.push(b"one\n\n\x1b[31mtwo\rthree");
        assert_eq!(tail.lines(), ["one", "[31mtwo", "three"]);
        (0..9_999).for_each(|n| tail.push(format!("line {n}\n").as_bytes()));
        tail.push("x".repeat(2_000).as_bytes());
        let lines = tail.lines();
        assert_eq!((lines.len(), lines[LINES - 1].len(), &*lines[LINES - 2]), (LINES, LETTERS, "line 9998"));
        assert!(tail.0.len() <= TAIL);
    }
}
