//! What is mounted, from /proc/self/mountinfo.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::time;

/// One mount of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// Where.
    pub path: PathBuf,
    /// Device number, as `st_dev` shows it.
    pub dev: u64,
    /// Filesystem type.
    pub kind: String,
    /// What is mounted. Whoever mounts by FUSE says what he likes here, and as the type.
    pub source: String,
    /// Of a FUSE mount: the user whose daemon serves it, which the kernel and fusermount3 see to.
    pub user: Option<u32>,
}

impl Mounted {
    /// Whether it is a FUSE mount of any kind.
    pub fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind == "fuseblk" || self.kind.starts_with("fuse.")
    }

    /// Whether its daemon answers within ten seconds. Asked by statfs(2), the one question that the kernel never
    /// answers from memory. A process that asks a daemon which is stuck cannot be killed until that daemon is, so the
    /// question is put by a child, which is left behind if it gets no answer.
    pub fn answers(&self) -> bool {
        let Ok(path) = CString::new(self.path.as_os_str().as_bytes()) else {
            return false;
        };
        // SAFETY: the child makes three system calls, all async-signal-safe, on memory it has a copy of.
        match unsafe { libc::fork() } {
            // Without room for a process nothing is known: it is taken to live, as most mounts do.
            -1 => true,
            0 => {
                // SAFETY: statfs is plain numbers, for which all zero bytes are a value; `path` is NUL-terminated.
                // Every descriptor is closed first, or a child left behind would keep the parent's pipes and locks open.
                // _exit ends the child without running what belongs to the parent.
                unsafe {
                    libc::close_range(0, libc::c_uint::MAX, 0);
                    let mut found: libc::statfs = std::mem::zeroed();
                    let dead = libc::statfs(path.as_ptr(), &raw mut found) != 0
                        && matches!(*libc::__errno_location(), libc::ENOTCONN | libc::ECONNABORTED);
                    libc::_exit(i32::from(dead))
                }
            }
            child => ends_well(child, ANSWER_WITHIN),
        }
    }
}

/// How long a daemon may take to answer before it is called dead.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Whether the child ends with status 0 in time. One that does not is told to end, and left to whoever collects orphans.
fn ends_well(child: libc::pid_t, within: Duration) -> bool {
    let until = time::monotonic() + within;
    let mut pause = Duration::from_micros(50);
    loop {
        let mut status = 0;
        // SAFETY: `status` is room for the answer, and the child is ours and not yet collected.
        match unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } {
            0 if time::monotonic() < until => std::thread::sleep(pause),
            0 => {
                // SAFETY: the child is ours and not yet collected, so the number is still its own.
                unsafe { libc::kill(child, libc::SIGKILL) };
                return false;
            }
            _ => return libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// The topmost mount whose mountpoint is this path.
pub fn find(path: &Path) -> Option<Mounted> {
    all().into_iter().rev().find(|mounted| mounted.path == path)
}

/// Whether a mount with this device number is at this path, covered or not.
pub(super) fn holds(path: &Path, dev: u64) -> bool {
    all().iter().any(|mounted| mounted.path == path && mounted.dev == dev)
}

/// All mounts, oldest first.
pub fn all() -> Vec<Mounted> {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|&byte| byte == b'\n').filter_map(line).collect()
}

/// One line: `36 35 98:0 /root /where rw,... optional... - type source rw,...`
pub(super) fn line(line: &[u8]) -> Option<Mounted> {
    let mut words = line.split(|&byte| byte == b' ');
    let dev = words.nth(2)?;
    let path = PathBuf::from(OsString::from_vec(unescape(words.nth(1)?)));
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    let kind = String::from_utf8_lossy(words.next()?).into_owned();
    let source = String::from_utf8_lossy(&unescape(words.next()?)).into_owned();
    let dev = std::str::from_utf8(dev).ok()?;
    let (major, minor) = dev.split_once(':')?;
    let dev = libc::makedev(major.parse().ok()?, minor.parse().ok()?);
    debug_assert!(!path.as_os_str().as_bytes().is_empty());
    let options = words.next().unwrap_or_default();
    let user = options.split(|&byte| byte == b',').find_map(|option| option.strip_prefix(b"user_id="));
    let user = user.and_then(|user| std::str::from_utf8(user).ok()?.parse().ok());
    Some(Mounted { path, dev, kind, source, user })
}

/// Spaces, tabs, newlines and backslashes are written as a backslash and three octal digits.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = || -> Option<u8> {
            let digits = std::str::from_utf8(after.get(..3)?).ok()?;
            u8::from_str_radix(digits, 8).ok()
        };
        match (byte, octal()) {
            (b'\\', Some(value)) => {
                plain.push(value);
                rest = &after[3..];
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}
