//! What is mounted, from /proc/self/mountinfo.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One mount of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The mountpoint.
    pub path: PathBuf,
    /// The path in the filesystem that is shown there: `/`, or another one of a bind mount.
    pub root: PathBuf,
    /// The mount's device number, as `st_dev` shows it.
    pub dev: u64,
    /// Whether changes are refused at this place, whatever the filesystem allows.
    pub read_only: bool,
    /// Filesystem type.
    pub kind: String,
    /// The source of the mount. A user who mounts a FUSE filesystem may choose this text freely, and the type
    /// too.
    pub source: String,
    /// Of a FUSE mount: the user whose daemon serves it. The kernel and fusermount3 guarantee it.
    pub user: Option<u32>,
}

impl Mounted {
    /// Whether it is a FUSE mount of any kind.
    pub fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind == "fuseblk" || self.kind.starts_with("fuse.")
    }
}

/// The topmost mount whose mountpoint is this path.
pub fn find(path: &Path) -> Option<Mounted> {
    all().into_iter().rev().find(|mounted| mounted.path == path)
}

/// How many mounts with this device number are at this path, covered or not.
pub(super) fn count(path: &Path, dev: u64) -> usize {
    all().iter().filter(|mounted| mounted.path == path && mounted.dev == dev).count()
}

/// All mounts, oldest first.
pub fn all() -> Vec<Mounted> {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    lines(&text).collect()
}

/// The mounts of such a table, oldest first.
pub(super) fn lines(text: &[u8]) -> impl DoubleEndedIterator<Item = Mounted> {
    text.split(|&byte| byte == b'\n').filter_map(line)
}

/// One line: `36 35 98:0 /root /where rw,... optional... - type source rw,...`
pub(super) fn line(line: &[u8]) -> Option<Mounted> {
    let mut words = line.split(|&byte| byte == b' ');
    let dev = words.nth(2)?;
    let root = PathBuf::from(OsString::from_vec(unescape(words.next()?)));
    let path = PathBuf::from(OsString::from_vec(unescape(words.next()?)));
    let read_only = words.next()?.split(|&byte| byte == b',').any(|word| word == b"ro");
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
    Some(Mounted { path, root, dev, read_only, kind, source, user })
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
