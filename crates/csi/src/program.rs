//! Runs this program's own commands, such as `covey mount`, as processes with a time limit. Their output is
//! JSON; what fails becomes a status without secrets.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use api::error::Failure;
use base::Deadline;
use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value;
use tonic::{Code, Status};

use crate::refuse;
use crate::secrets::Secrets;

/// The path of the running program. After an upgrade of the file, the same program still runs.
const PROGRAM: &str = "/proc/self/exe";

/// Why a command failed.
#[derive(Debug)]
pub struct Failed {
    /// The stable word of the failure. Empty if the command did not say why it ended.
    pub code: String,
    /// For the orchestrator.
    pub status: Status,
}

/// Runs a command and returns its result.
pub fn run<S: AsRef<OsStr>>(args: &[S], secrets: &Secrets, limit: Duration) -> Result<Value, Failed> {
    let name = args.first().map_or("", |arg| arg.as_ref().to_str().unwrap_or_default()).to_owned();
    let mut command = Command::new(PROGRAM);
    secrets.give(&mut command);
    command.arg("--json").args(args).current_dir("/");
    let what = format!("covey {name}");
    let cannot = |error: io::Error| Failed {
        code: String::new(),
        status: refuse::io(format!("cannot run {what}"), &error),
    };
    let Some(Ended { status: ended, output, said }) = finish(&mut command, limit).map_err(cannot)? else {
        let text = format!("{what} took more than {} s; next: send the call again", limit.as_secs());
        return Err(Failed { code: "timeout".to_owned(), status: Status::new(Code::DeadlineExceeded, text) });
    };
    let result: Value = serde_json::from_slice(&output).unwrap_or_default();
    if ended.success() {
        return Ok(result);
    }
    let failure: Option<Failure> = serde_json::from_value(result["error"].clone()).ok();
    Err(match failure {
        Some(failure) => Failed {
            code: failure.code.to_string(),
            status: refuse::failed(&failure, secrets.clean(&format!("{what}: {}", failure.line()))),
        },
        None => {
            let said = secrets.clean(String::from_utf8_lossy(&said).trim());
            Failed {
                code: String::new(),
                status: Status::internal(format!("{what} ended with {ended}: {said}")),
            }
        }
    })
}

/// How a command ended.
struct Ended {
    status: ExitStatus,
    output: Vec<u8>,
    said: Vec<u8>,
}

/// Runs a command to its end. None if that took too long; then it is killed.
fn finish(command: &mut Command, limit: Duration) -> io::Result<Option<Ended>> {
    // Files in memory: a command never waits for them, as it does for full pipes.
    let memory = || memfd_create("covey-output", MemfdFlags::CLOEXEC).map(File::from);
    let (mut output, mut said) = (memory()?, memory()?);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(said.try_clone()?);
    let mut child = command.spawn()?;
    let deadline = Deadline::after(limit);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(Ended { status, output: whole(&mut output)?, said: whole(&mut said)? }));
        }
        if deadline.is_over() {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(None);
        }
        deadline.sleep(Duration::from_millis(5));
    }
}

fn whole(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that printed more than a pipe holds waited until its time was over.
    #[test]
    fn regression_a_command_may_print_more_than_a_pipe_holds() {
        let print = |script: &str| finish(Command::new("sh").args(["-c", script]), Duration::from_secs(20));
        let ended = print("head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2; exit 3").unwrap().unwrap();
        assert_eq!((ended.output.len(), ended.said.len()), (300_000, 200_000));
        assert_eq!(ended.status.code(), Some(3));
    }

    #[test]
    fn a_command_that_takes_too_long_is_killed() {
        let slow = finish(Command::new("sleep").arg("60"), Duration::from_millis(50));
        assert!(slow.unwrap().is_none());
    }
}
