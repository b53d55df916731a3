//! What a test may lack, and how that is detected.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Ground;

/// Something a test needs.
#[derive(Clone, Debug)]
pub enum Need {
    /// Running as root.
    Root,
    /// The ability to mount: /dev/fuse, and root or fusermount3. Always satisfied when the tests run on a
    /// plain folder.
    Mount,
    /// A real mount of Covey's: the test shows nothing on a plain folder.
    Covey,
    /// A program on PATH.
    Program(&'static str),
    /// An environment variable.
    Env(&'static str),
    /// A free loop device, root, and mkfs.ext4.
    Ext4,
    /// Python with its sqlite3 module.
    PythonSqlite,
    /// PostgreSQL's server programs and a user named postgres.
    Postgres,
    /// Scratch folders on a real disk, not in memory.
    Disk,
    /// eBPF programs: a kernel with BTF, and root or its capabilities.
    Ebpf,
    /// This many free bytes where scratch folders are made.
    Free(u64),
}

impl Need {
    /// What is missing, if it is.
    pub fn lacking(&self) -> Option<String> {
        let here = match self {
            Need::Root => rustix::process::geteuid().is_root(),
            Need::Mount => return lacking_mount(),
            Need::Covey if crate::ground() != Ground::Covey => return Some("a mount of Covey's".into()),
            Need::Covey => return lacking_mount(),
            Need::Program(name) => which(name).is_some(),
            Need::Env(name) => std::env::var_os(name).is_some_and(|value| !value.is_empty()),
            Need::Ext4 => {
                let root = rustix::process::geteuid().is_root();
                root && Path::new("/dev/loop-control").exists() && which("mkfs.ext4").is_some()
            }
            Need::PythonSqlite => succeeds("python3", &["-c", "import sqlite3"]),
            Need::Postgres => crate::need::postgres_bin("initdb").is_some() && succeeds("id", &["postgres"]),
            Need::Disk => !is_in_memory(),
            Need::Ebpf => crate::program::covey_run(&["watch", "status"]).code() == 0,
            Need::Free(bytes) => free_bytes() >= *bytes,
        };
        (!here).then(|| self.name())
    }

    fn name(&self) -> String {
        match self {
            Need::Root => "root".into(),
            Need::Mount => "/dev/fuse".into(),
            Need::Covey => "a mount of Covey's".into(),
            Need::Program(name) => format!("the program {name}"),
            Need::Env(name) => format!("{name}= in the environment"),
            Need::Ext4 => "root with loop devices and mkfs.ext4".into(),
            Need::PythonSqlite => "python3 with sqlite3".into(),
            Need::Postgres => "PostgreSQL's programs and its user".into(),
            Need::Disk => "scratch folders (TMPDIR) on a disk, not in memory".into(),
            Need::Ebpf => "eBPF programs, as covey watch status shows them".into(),
            Need::Free(bytes) => format!("{} GiB of free disk", bytes >> 30),
        }
    }
}

fn lacking_mount() -> Option<String> {
    if crate::ground() != Ground::Covey {
        return None;
    }
    let device = rustix::fs::access("/dev/fuse", rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK);
    if device.is_err() {
        return Some("/dev/fuse".into());
    }
    let may = rustix::process::geteuid().is_root() || which("fusermount3").is_some();
    (!may).then(|| "root or fusermount3".into())
}

/// The path of a program, including the administrator's folders of distributions.
pub fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
    folders.map(|folder| Path::new(folder).join(name)).find(|file| file.is_file())
}

/// The path of one of PostgreSQL's programs. Debian keeps the server's programs off PATH.
pub fn postgres_bin(name: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        versions.map(|entry| entry.path().join("bin").join(name)).filter(|file| file.is_file()).collect();
    found.sort();
    found.pop().or_else(|| which(name))
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    let quiet = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    quiet.is_ok_and(|status| status.success())
}

fn is_in_memory() -> bool {
    const TMPFS: i128 = 0x0102_1994;
    rustix::fs::statfs(crate::scratch().path()).is_ok_and(|kind| i128::from(kind.f_type) == TMPFS)
}

fn free_bytes() -> u64 {
    let folder = crate::scratch();
    let room = rustix::fs::statvfs(folder.path()).unwrap();
    room.f_bavail * room.f_frsize
}
