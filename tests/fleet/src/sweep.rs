//! Cleans up after this process, however it ends.
//!
//! There are two mechanisms. A shell waits on a pipe that is never written to: when the process ends, by
//! return, panic or kill -9, the pipe closes, and the shell cleans up. And the next process cleans up what a
//! shell did not (both were killed, the machine was out of memory): folders and namespaces are named by the
//! process id of their creator, and those of dead processes are removed.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::tool;

/// The prefix of everything that is created. Process id and a number follow.
const PREFIX: &str = "covey-";
/// The suffix of folders.
const FOLDER: &str = "-fleet";

/// Ends every process in the namespaces that begin with `$1-`, then removes the mounts below the folder `$0`,
/// the namespaces and the folder. Mounts die with their daemons first, so that no unmount blocks.
const SWEEP: &str = r#"
for ns in $(ls /run/netns 2>/dev/null | grep "^$1-"); do
    for pid in $(ip netns pids "$ns" 2>/dev/null); do kill -9 "$pid" 2>/dev/null; done
done
awk -v at="$0/" 'index($5, at) == 1 { print $5 }' /proc/self/mountinfo | sort -r | while read -r mnt; do umount -l "$mnt" 2>/dev/null; done
for ns in $(ls /run/netns 2>/dev/null | grep "^$1-"); do ip netns del "$ns" 2>/dev/null; done
grep -qF " $0/" /proc/self/mountinfo || rm -rf --one-file-system "$0"
"#;

/// The name and the folder of one network, with the shell that removes them.
pub struct Sweep {
    tag: String,
    folder: PathBuf,
    shell: Option<Child>,
}

impl Sweep {
    /// A new name and folder.
    pub fn new() -> Sweep {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        if number == 0 {
            stale();
        }
        let tag = format!("{PREFIX}{}-{number}", std::process::id());
        let folder = below().join(format!("{tag}{FOLDER}"));
        std::fs::create_dir(&folder).unwrap();
        let shell = shell(&format!("read -r _; {SWEEP}"), &tag, &folder, Stdio::piped());
        Sweep { tag, folder, shell: Some(shell) }
    }

    /// The prefix of its namespaces' names.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The folder for all files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Default for Sweep {
    fn default() -> Self {
        Sweep::new()
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("COVEY_KEEP").is_some() {
            let kept = below().join(format!("covey-kept-{}", self.tag.trim_start_matches(PREFIX)));
            let logs = std::process::Command::new("sh")
                .arg("-c")
                .arg("mkdir -p \"$1\" && cp \"$0\"/*.log \"$1\"")
                .args([&self.folder, &kept])
                .status();
            eprintln!("what its programs said is kept in {} ({logs:?})", kept.display());
        }
        if let Some(mut shell) = self.shell.take() {
            drop(shell.stdin.take());
            let _ = shell.wait();
        }
    }
}

fn below() -> PathBuf {
    std::env::var_os("COVEY_TEST_TMP").map_or_else(std::env::temp_dir, PathBuf::from)
}

fn shell(script: &str, tag: &str, folder: &Path, stdin: Stdio) -> Child {
    let mut shell = tool("sh");
    shell.arg("-c").arg(script).arg(folder).arg(tag).stdin(stdin).current_dir("/");
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    // In a process group of its own, so that Ctrl-C, which ends this program, does not end the shell before
    // it has cleaned up.
    std::os::unix::process::CommandExt::process_group(&mut shell, 0);
    shell.spawn().unwrap()
}

/// Cleans up after processes that do not exist any more. Names that another program might have chosen are
/// left alone.
fn stale() {
    let mut tags = std::collections::BTreeSet::new();
    let names = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    for name in names(Path::new("/run/netns")).iter().chain(&names(&below())) {
        let mut parts = name.strip_prefix(PREFIX).unwrap_or("").splitn(3, '-');
        let (Some(pid), Some(number), Some(_)) = (parts.next(), parts.next(), parts.next()) else { continue };
        let (Ok(pid), Ok(number)) = (pid.parse::<u32>(), number.parse::<u32>()) else { continue };
        if !Path::new(&format!("/proc/{pid}")).exists() {
            tags.insert(format!("{PREFIX}{pid}-{number}"));
        }
    }
    for tag in tags {
        let folder = below().join(format!("{tag}{FOLDER}"));
        let _ = shell(SWEEP, &tag, &folder, Stdio::null()).wait();
    }
}
