//! Runs this program's own commands, such as `covey mount`, as processes with a time limit. Their output is
//! JSON; what fails becomes a status without secrets.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

use api::error::Failure;
use base::Deadline;
use serde_json::Value;
use tonic::{Code, Status};

use crate::refuse;
use crate::secrets::Secrets;

/// This program. After an upgrade of the file, it is still the one that runs.
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
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let what = format!("covey {name}");
    let cannot = |error: io::Error| Failed {
        code: String::new(),
        status: refuse::io(format!("cannot run {what}"), &error),
    };
    let mut child = command.spawn().map_err(cannot)?;
    let deadline = Deadline::after(limit);
    let ended = loop {
        if let Some(ended) = child.try_wait().map_err(cannot)? {
            break ended;
        }
        if deadline.is_over() {
            let _ = child.kill();
            let _ = child.wait();
            let text = format!("{what} took more than {} s; next: send the call again", limit.as_secs());
            return Err(Failed {
                code: "timeout".to_owned(),
                status: Status::new(Code::DeadlineExceeded, text),
            });
        }
        deadline.sleep(Duration::from_millis(5));
    };
    // The pipes hold all of the few lines that a command prints, and a daemon has none of them.
    let (mut output, mut said) = (Vec::new(), Vec::new());
    child.stdout.take().map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut output)).map_err(cannot)?;
    child.stderr.take().map_or(Ok(0), |mut pipe| pipe.read_to_end(&mut said)).map_err(cannot)?;
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
