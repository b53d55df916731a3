//! What a killed program leaves behind for others.

use std::fs::File;
use std::io::Read;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fuse::Transport;

use crate::{Rig, rig};

const SOON: Duration = Duration::from_secs(120);

fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < SOON, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Kills a program while its request is being served, and then lets the request be answered.
fn kill_in_the_middle_of(rig: &Rig, doing: &str) {
    let before = rig.fs.hung.load(Ordering::SeqCst);
    rig.fs.changes_wait.store(true, Ordering::SeqCst);
    rig.fs.stall_changes.store(true, Ordering::SeqCst);
    rig.fs.stall(true);
    let mut python = Command::new("python3");
    python.args(["-S", "-E", "-c", &format!("import os\n{doing}")]);
    let mut child = python.arg(rig.root()).current_dir("/").stdin(Stdio::null()).spawn().unwrap();
    until(doing, || rig.fs.hung.load(Ordering::SeqCst) > before);
    child.kill().unwrap();
    rig.fs.stall_changes.store(false, Ordering::SeqCst);
    rig.fs.changes_wait.store(false, Ordering::SeqCst);
    rig.fs.stall(false);
    child.wait().unwrap();
}

/// close(2) of a reader: 0, or the error number.
fn close(file: File) -> i32 {
    // SAFETY: the descriptor was this file's, and nobody else has it.
    let done = unsafe { libc::close(file.into_raw_fd()) };
    if done == 0 { 0 } else { std::io::Error::last_os_error().raw_os_error().unwrap() }
}

fn opened(path: &Path) -> File {
    let mut file = File::open(path).unwrap();
    file.read_to_end(&mut Vec::new()).unwrap();
    file
}

/// The kernel flushes the change time in the system call that changed it. A thread that was being killed
/// withdrew that flush. The kernel stored EINTR as a writeback error of the file, and the next close(2) by
/// any program, a reader or `cp`, failed with EIO.
#[test]
fn regression_a_program_that_is_killed_leaves_no_error_to_others() {
    let Some(rig) = rig() else { return };
    let (a, b) = (rig.path("a"), rig.path("b"));
    let shown = (a.display(), b.display());
    for (doing, flushes) in [
        (format!("os.rename('{}', '{}')", shown.0, shown.1), 2),
        (format!("os.link('{}', '{}c')", shown.0, shown.1), 1),
        (format!("os.unlink('{}')", shown.0), 1),
        (format!("os.setxattr('{}', 'user.x', b'1')", shown.0), 1),
        (format!("os.removexattr('{}', 'user.x')", shown.0), 1),
    ] {
        std::fs::write(&a, b"whole").unwrap();
        std::fs::write(&b, b"other").unwrap();
        let _ = Command::new("python3")
            .args(["-c", &format!("import os; os.setxattr('{}', 'user.x', b'0')", shown.0)])
            .status();
        let files = [opened(&a), opened(&b)];
        let before = rig.session.errors_cleared();
        kill_in_the_middle_of(&rig, &doing);
        // Over io_uring the daemon has the request at once, and it cannot be withdrawn.
        if rig.session.transport() == Transport::Classic {
            until(&doing, || rig.session.errors_cleared() >= before + flushes);
        }
        // Wait until the program is gone, because the kernel may store the error only then.
        until(&doing, || rig.session.flushes_pending() == 0);
        for file in files {
            assert_eq!(close(file), 0, "{doing}");
        }
        let file = opened(&b);
        assert_eq!(close(file), 0, "{doing}");
        std::fs::read_dir(rig.root())
            .unwrap()
            .for_each(|entry| std::fs::remove_file(entry.unwrap().path()).unwrap());
    }
}
