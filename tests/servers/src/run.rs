//! What all tests of one run share. cargo-nextest runs each test in a process of its own, and a server takes
//! seconds to start. So the first test that wants one starts it, and all others find it.
//!
//! A shell waits for the end of the run, however it ends, then stops the servers and removes the folder.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const KEEPER: &str = r#"trap "" INT TERM HUP
while kill -0 "$2" 2>/dev/null; do sleep 0.5; done
sleep 1
for file in "$1"/*/*.pid "$1"/*/data/postmaster.pid; do
    pid=$(head -n 1 "$file" 2>/dev/null) || continue
    case $(cat "/proc/$pid/comm" 2>/dev/null) in etcd) kill -KILL "$pid" ;; postgres) kill -QUIT "$pid" ;; esac
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.05; done
done
rm -rf "$1""#;

/// The folder of the run. None outside of cargo-nextest: then each program starts its own servers.
#[allow(clippy::zombie_processes, reason = "the shell outlives this process")]
fn folder() -> Option<PathBuf> {
    let run = std::env::var("NEXTEST_RUN_ID").ok()?;
    let folder = std::env::temp_dir().join(format!("covey-run-{run}"));
    if fs::create_dir(&folder).is_ok() {
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let runner = std::os::unix::process::parent_id().to_string();
        let mut keeper = Command::new("setsid");
        keeper.args(["sh", "-c", KEEPER, "keeper"]).arg(&folder).arg(runner).current_dir("/");
        keeper.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    }
    Some(folder)
}

/// Returns what `make` left in the folder of this name, which it is called for once in a run.
///
/// It returns a text that later callers get, too. None: there is nothing to share, in this run or at all.
pub(crate) fn once(name: &str, make: impl FnOnce(&Path) -> Option<String>) -> Option<(PathBuf, String)> {
    let run = folder()?;
    let lock = File::create(run.join(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    let (place, said) = (run.join(name), run.join(format!("{name}.said")));
    if !said.exists() {
        fs::create_dir_all(&place).unwrap();
        let text = make(&place).unwrap_or_default();
        fs::write(&said, text).unwrap();
    }
    let text = fs::read_to_string(&said).unwrap();
    // A child that is about to be another program may hold the file, too.
    lock.unlock().unwrap();
    (!text.is_empty()).then_some((place, text))
}
