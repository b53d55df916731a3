//! A folder tree as a program sees it, for comparison with another.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Everything below a folder, by relative path.
pub type Tree = BTreeMap<PathBuf, Node>;

/// One node of a tree, without what differs between filesystems (inode numbers, sizes of folders, block
/// counts).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Type and permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size; 0 for folders.
    pub size: u64,
    /// Device number of a device node.
    pub rdev: u64,
    /// Modification time, or `None` if it is within the last day: two filesystems are not changed at the same
    /// instant.
    pub mtime: Option<(i64, i64)>,
    /// Extended attributes.
    pub xattrs: BTreeMap<OsString, Vec<u8>>,
    /// A file's bytes, hashed; a symlink's target.
    pub content: Content,
}

/// A node's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A folder, or something without bytes.
    None,
    /// A regular file's bytes, by their hash.
    Hash(u64),
    /// A symlink's target.
    Target(PathBuf),
    /// It could not be read.
    Error(i32),
}

/// Reads a whole tree. A file that cannot be read becomes [`Content::Error`], so that it differs from one
/// that can.
pub fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(root.join(&folder)) else {
            tree.get_mut(&folder).unwrap_or_else(|| panic!("{} cannot be listed", root.display())).content =
                Content::Error(0);
            continue;
        };
        for entry in entries {
            let path = folder.join(entry.unwrap().file_name());
            let node = node(&root.join(&path));
            if node.mode & libc::S_IFMT == libc::S_IFDIR {
                folders.push(path.clone());
            }
            assert!(tree.insert(path.clone(), node).is_none(), "{} is listed twice", path.display());
        }
    }
    tree
}

/// Reads one node; symlinks are not followed.
pub fn node(path: &Path) -> Node {
    let meta = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let kind = meta.file_type();
    let content = if kind.is_file() {
        match fs::read(path) {
            Ok(bytes) => Content::Hash(hash(&bytes)),
            Err(error) => Content::Error(error.raw_os_error().unwrap_or(0)),
        }
    } else if kind.is_symlink() {
        fs::read_link(path).map_or_else(|e| Content::Error(e.raw_os_error().unwrap_or(0)), Content::Target)
    } else {
        Content::None
    };
    let device = kind.is_block_device() || kind.is_char_device();
    Node {
        mode: meta.mode(),
        nlink: meta.nlink(),
        uid: meta.uid(),
        gid: meta.gid(),
        size: if kind.is_dir() { 0 } else { meta.size() },
        rdev: if device { meta.rdev() } else { 0 },
        mtime: old(meta.mtime(), meta.mtime_nsec()),
        xattrs: xattrs(path),
        content,
    }
}

/// A time, unless it is within the last day.
pub fn old(seconds: i64, nanos: i64) -> Option<(i64, i64)> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    (!(now - 86_400..=now + 10).contains(&seconds)).then_some((seconds, nanos))
}

fn xattrs(path: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let mut names = vec![0u8; 65_536];
    let Ok(length) = rustix::fs::llistxattr(path, &mut names) else {
        return BTreeMap::new();
    };
    let mut found = BTreeMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0u8; 65_536];
        let got = rustix::fs::lgetxattr(path, name, &mut value);
        value.truncate(got.unwrap_or(0));
        found.insert(OsString::from_vec(name.to_vec()), value);
    }
    found
}

/// The differences between two trees, one line each, at most twenty. `left` and `right` name the sides.
pub fn differences(left: &str, a: &Tree, right: &str, b: &Tree) -> Vec<String> {
    let mut lines = Vec::new();
    for path in a.keys().chain(b.keys().filter(|path| !a.contains_key(*path))) {
        let line = match (a.get(path), b.get(path)) {
            (Some(x), Some(y)) if x == y => continue,
            (Some(x), Some(y)) => format!("{}\n  {left}: {x:x?}\n  {right}: {y:x?}", path.display()),
            (Some(x), None) => format!("{} is missing on {right}; {left}: {x:x?}", path.display()),
            (None, Some(y)) => format!("{} is missing on {left}; {right}: {y:x?}", path.display()),
            (None, None) => continue,
        };
        lines.push(line);
        if lines.len() == 20 {
            break;
        }
    }
    lines
}

/// A hash that is good enough to distinguish two contents in a test (FNV-1a over words, mixed).
pub fn hash(bytes: &[u8]) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325u64 ^ bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0u8; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = (state ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        state ^= state >> 29;
    }
    state
}

/// Disk space used by everything below a folder, in bytes.
pub fn disk_bytes(root: &Path) -> u64 {
    let mut total = 0;
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        // Files are created and removed while a daemon works. A removed file takes no space.
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            total += meta.blocks() * 512;
            if meta.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    total
}

/// Whether two paths lead to the same file.
pub fn same_file(a: &Path, b: &Path) -> bool {
    let ino = |path: &Path| fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    ino(a).is_some() && ino(a) == ino(b)
}

/// A name for printing: bytes that are not UTF-8 are shown in hexadecimal.
pub fn shown(name: &std::ffi::OsStr) -> String {
    name.to_str().map_or_else(|| format!("{:02x?}", name.as_bytes()), str::to_owned)
}
