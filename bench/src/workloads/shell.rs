//! Programs that must succeed, within a limit. Their output is saved.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use base::time::monotonic;
use rustix::process::{Pid, Signal, kill_process_group};

use super::recipes::PRELUDE;
use crate::Result;

/// The time limit of a step: a step that hangs must not block the whole run. A build on a slow and busy
/// machine takes half an hour.
const LIMIT_S: u32 = 2 * 3600;
/// How many lines of a failed step's output go into the report.
const TAIL_LINES: usize = 12;

/// Runs a short program. Returns its output.
///
/// # Errors
/// It cannot be started, or fails.
pub fn quiet(command: &mut Command) -> Result<String> {
    let done = command.stdin(Stdio::null()).output().map_err(|error| format!("{command:?}: {error}"))?;
    if !done.status.success() {
        return Err(format!(
            "{command:?}: {}: {}",
            done.status,
            tail(&String::from_utf8_lossy(&done.stderr))
        )
        .into());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// The circumstances in which a step's lines run.
pub struct Shell<'a> {
    /// The working folder.
    pub folder: &'a Path,
    /// The file for their output.
    pub log: &'a Path,
    /// More environment.
    pub env: &'a [(&'static str, String)],
}

impl Shell<'_> {
    /// Runs lines of bash that must succeed. Returns how long they took.
    ///
    /// # Errors
    /// One failed, or the time limit was reached. The message has the end of their output.
    pub fn run(&self, lines: &str) -> Result<Duration> {
        let log = File::create(self.log)?;
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", &LIMIT_S.to_string(), "bash", "-euo", "pipefail", "-c"]);
        command.arg(format!("{PRELUDE}\n{lines}")).current_dir(self.folder);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        // No settings of the host or user, no pager, no prompts, and no job server of a make above.
        command.env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("MAKELEVEL").env("LC_ALL", "C");
        for (name, value) in
            [("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_PAGER", "cat")]
        {
            command.env(name, value);
        }
        command.envs(self.env.iter().map(|(name, value)| (*name, value)));
        let begun = monotonic();
        let mut child = command.spawn().map_err(|error| format!("timeout, of coreutils: {error}"))?;
        let status = child.wait()?;
        let spent = begun.elapsed();
        // timeout leads a process group of its own. Processes that a failed step left running would keep its
        // place busy.
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            kill_process_group(group, Signal::KILL).ok();
        }
        if status.success() {
            return Ok(spent);
        }
        let said = tail(&String::from_utf8_lossy(&fs::read(self.log)?));
        let why = if status.code() == Some(124) {
            format!("took more than {LIMIT_S} s")
        } else {
            status.to_string()
        };
        Err(format!("{why}: {said}").into())
    }

    /// The output of the last lines.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn said(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&fs::read(self.log)?).into_owned())
    }
}

/// The last lines of a text.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_fails_says_what_it_printed_last() {
        let scratch = tempfile::tempdir().unwrap();
        let (log, env) = (scratch.path().join("log"), [("WORD", "spoken".to_owned())]);
        let shell = Shell { folder: scratch.path(), log: &log, env: &env };
        shell.run("echo $WORD; true").unwrap();
        assert_eq!(shell.said().unwrap().trim(), "spoken");
        let error = shell.run("seq 50; false; echo not reached").unwrap_err().to_string();
        assert!(
            error.contains("exit status: 1") && error.ends_with("49\n50") && !error.contains("\n30\n"),
            "{error}"
        );
    }
    #[test]
    fn regression_what_a_step_leaves_running_ends_with_it() {
        let scratch = tempfile::tempdir().unwrap();
        let log = scratch.path().join("log");
        let shell = Shell { folder: scratch.path(), log: &log, env: &[] };
        shell.run("sleep 100 & echo $!").unwrap();
        let process = std::path::PathBuf::from("/proc").join(shell.said().unwrap().trim());
        // A server that outlived its check used to keep the place from being unmounted. A zombie has no
        // executable any more.
        let begun = monotonic();
        while fs::read_link(process.join("exe")).is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{} still runs", process.display());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
