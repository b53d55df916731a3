//! Runs programs: covey itself, and the clients that work on its mounts. Every wait has a limit.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A program that ended.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Finished {
    /// The exit status, or -1 if a signal ended it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// Its standard output, as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }
}

/// Runs a program to its end. After `limit` it is killed and the test fails.
pub fn run(command: &mut Command, limit: Duration) -> Finished {
    let mut files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    command.stdin(Stdio::null());
    command.stdout(files[0].try_clone().unwrap()).stderr(files[1].try_clone().unwrap());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let status = wait(&mut child, limit);
    let [stdout, stderr] = [text(&mut files[0]), text(&mut files[1])];
    let Some(status) = status else {
        let stands = crate::proc::stands(child.id());
        child.kill().ok();
        panic!("{command:?} did not end within {limit:?}\n{stdout}\n{stderr}\n{stands}");
    };
    Finished { status, stdout, stderr }
}

/// The same for a program that must succeed.
pub fn run_ok(command: &mut Command, limit: Duration) -> Finished {
    let finished = run(command, limit);
    assert!(
        finished.status.success(),
        "{command:?}: {}\n{}\n{}",
        finished.status,
        finished.stdout,
        finished.stderr
    );
    finished
}

/// Copies a file to where it will be executed. Another process writes the copy. If this one did, a program
/// that another thread starts would have it open for writing for a moment, and executing it would fail with
/// ETXTBSY.
pub fn install(from: &Path, to: &Path) {
    run_ok(Command::new("install").args(["-m", "755"]).args([from, to]), Duration::from_secs(60));
}

/// Waits for a child, at most `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > end {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

static BUILT: OnceLock<PathBuf> = OnceLock::new();

/// Makes `covey` mean this program from now on, unless one was started already.
pub fn use_program(path: PathBuf) {
    BUILT.get_or_init(|| path);
}

/// The `covey` under test.
pub fn covey() -> Command {
    let built = BUILT.get_or_init(|| std::env::var_os("COVEY_BIN").map_or_else(build, PathBuf::from));
    let mut command = Command::new(built);
    command.envs(ENVIRONMENT.get().into_iter().flatten().cloned());
    command
}

static ENVIRONMENT: OnceLock<Vec<(String, String)>> = OnceLock::new();

/// Sets variables for every later `covey` of this process; only the first call counts. A test cannot change
/// its own environment while others run.
pub fn environment(variables: Vec<(String, String)>) {
    ENVIRONMENT.get_or_init(|| variables);
}

/// Runs covey with these arguments. It must end within two minutes.
pub fn covey_run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Finished {
    run(covey().args(args), Duration::from_secs(120))
}

/// The same for a command that must succeed, within ten minutes.
pub fn covey_ok<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Finished {
    run_ok(covey().args(args), Duration::from_secs(600))
}

/// Builds the program with the cargo that runs these tests. Cargo's lock lets several test binaries do so at
/// once.
fn build() -> PathBuf {
    let release = std::env::var_os("COVEY_RELEASE").is_some_and(|value| value != "0");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.args(["build", "--quiet", "--locked", "--package", "covey-cli", "--bin", "covey"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    if release {
        cargo.arg("--release");
    }
    let built = run_ok(&mut cargo, Duration::from_secs(3600));
    let executable = built.stdout.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    executable.expect("cargo names the program it built")
}
