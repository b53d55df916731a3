//! A second, minimal implementation of POSIX: whole files as bytes, directories as maps. It knows nothing of
//! rows, extents or commits.

use std::collections::BTreeMap;

use crate::plan::Refusal;
use crate::plan::op::{RenameMode, SetAttrs, XattrMode};
use crate::record::mode::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFLNK, S_IFREG};

type R = Result<(), Refusal>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub kind: u32,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub nlink: u32,
    pub atime: i128,
    pub mtime: i128,
    pub ctime: i128,
    pub btime: i128,
    pub bytes: Vec<u8>,
    pub entries: BTreeMap<Vec<u8>, u64>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// A directory that has lost its name.
    pub removed: bool,
    /// The parent of a directory.
    pub up: u64,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        self.kind == S_IFDIR
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub nodes: BTreeMap<u64, Node>,
}

pub(super) struct New<'a> {
    pub ino: u64,
    pub kind: u32,
    pub perm: u32,
    pub umask: u32,
    pub rdev: u32,
    pub target: &'a [u8],
}

impl Model {
    pub fn new(now: i128) -> Model {
        let root = Node { perm: 0o755, nlink: 2, up: 1, ..fresh(S_IFDIR, now) };
        Model { nodes: BTreeMap::from([(1, root)]) }
    }

    fn node(&mut self, ino: u64) -> Result<&mut Node, Refusal> {
        self.nodes.get_mut(&ino).ok_or(Refusal::NotFound)
    }

    fn live_dir(&mut self, ino: u64) -> Result<&mut Node, Refusal> {
        let node = self.nodes.get_mut(&ino).filter(|node| !node.removed).ok_or(Refusal::NotFound)?;
        if node.is_dir() { Ok(node) } else { Err(Refusal::NotDir) }
    }

    fn entry(&mut self, parent: u64, name: &[u8]) -> Result<u64, Refusal> {
        self.live_dir(parent)?.entries.get(name).copied().ok_or(Refusal::NotFound)
    }

    fn stamp(&mut self, dir: u64, now: i128) {
        let node = self.nodes.get_mut(&dir).unwrap();
        (node.mtime, node.ctime) = (now, now);
    }

    fn put(&mut self, parent: u64, name: &[u8], ino: u64, now: i128) {
        let is_dir = self.nodes[&ino].is_dir();
        let dir = self.nodes.get_mut(&parent).unwrap();
        dir.entries.insert(name.to_vec(), ino);
        dir.nlink += u32::from(is_dir);
        self.stamp(parent, now);
    }

    fn take(&mut self, parent: u64, name: &[u8], now: i128) -> u64 {
        let dir = self.nodes.get_mut(&parent).unwrap();
        let ino = dir.entries.remove(name).unwrap();
        let is_dir = self.nodes[&ino].is_dir();
        self.nodes.get_mut(&parent).unwrap().nlink -= u32::from(is_dir);
        self.stamp(parent, now);
        ino
    }

    pub fn create(
        &mut self,
        parent: u64,
        name: Option<&[u8]>,
        new: &New<'_>,
        uid: u32,
        gid: u32,
        now: i128,
    ) -> R {
        let dir = self.live_dir(parent)?;
        if name.is_some_and(|name| dir.entries.contains_key(name)) {
            return Err(Refusal::Exists);
        }
        let mut node = Node { uid, gid, ..fresh(new.kind, now) };
        node.perm = match new.kind {
            S_IFLNK => 0o777,
            _ => new.perm & !new.umask,
        };
        if dir.perm & 0o2000 != 0 {
            node.gid = dir.gid;
            if new.kind == S_IFDIR {
                node.perm |= 0o2000;
            }
        }
        if new.kind == S_IFCHR || new.kind == S_IFBLK {
            node.rdev = new.rdev;
        }
        node.bytes = new.target.to_vec();
        node.nlink = u32::from(name.is_some()) * if new.kind == S_IFDIR { 2 } else { 1 };
        node.up = parent;
        self.nodes.insert(new.ino, node);
        if let Some(name) = name {
            self.put(parent, name, new.ino, now);
        }
        Ok(())
    }

    pub fn link(&mut self, ino: u64, parent: u64, name: &[u8], now: i128) -> R {
        self.live_dir(parent)?;
        if self.node(ino)?.is_dir() {
            return Err(Refusal::NotPermitted);
        }
        if self.entry(parent, name).is_ok() {
            return Err(Refusal::Exists);
        }
        let node = self.node(ino)?;
        node.nlink += 1;
        node.ctime = now;
        self.put(parent, name, ino, now);
        Ok(())
    }

    fn drop_name(&mut self, ino: u64, now: i128) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.ctime = now;
        if node.is_dir() {
            node.nlink = 0;
            node.removed = true;
        } else {
            node.nlink -= 1;
        }
    }

    pub fn unlink(&mut self, parent: u64, name: &[u8], now: i128) -> R {
        let ino = self.entry(parent, name)?;
        if self.node(ino)?.is_dir() {
            return Err(Refusal::IsDir);
        }
        self.take(parent, name, now);
        self.drop_name(ino, now);
        Ok(())
    }

    pub fn rmdir(&mut self, parent: u64, name: &[u8], now: i128) -> R {
        let ino = self.entry(parent, name)?;
        let node = self.node(ino)?;
        if !node.is_dir() {
            return Err(Refusal::NotDir);
        }
        if !node.entries.is_empty() {
            return Err(Refusal::NotEmpty);
        }
        self.take(parent, name, now);
        self.drop_name(ino, now);
        Ok(())
    }

    fn is_within(&self, dir: u64, top: u64) -> bool {
        let mut at = dir;
        while at != top {
            if at == 1 {
                return false;
            }
            at = self.nodes[&at].up;
        }
        true
    }

    pub fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), how: RenameMode, now: i128) -> R {
        self.live_dir(from.0)?;
        self.live_dir(to.0)?;
        let source = self.entry(from.0, from.1)?;
        let target = self.entry(to.0, to.1).ok();
        let is_dir = self.nodes[&source].is_dir();
        match (how, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Refusal::Exists),
            (RenameMode::Exchange, None) => return Err(Refusal::NotFound),
            (RenameMode::Replace, Some(target)) => match (is_dir, self.nodes[&target].is_dir()) {
                (true, false) => return Err(Refusal::NotDir),
                (false, true) => return Err(Refusal::IsDir),
                _ => {}
            },
            _ => {}
        }
        if target == Some(source) {
            return Ok(());
        }
        if is_dir && self.is_within(to.0, source) {
            return Err(Refusal::Invalid);
        }
        if let Some(target) = target {
            if how == RenameMode::Exchange {
                if self.nodes[&target].is_dir() && self.is_within(from.0, target) {
                    return Err(Refusal::Invalid);
                }
            } else if !self.nodes[&target].entries.is_empty() {
                return Err(Refusal::NotEmpty);
            }
        }
        self.take(from.0, from.1, now);
        if let Some(target) = target {
            self.take(to.0, to.1, now);
            if how == RenameMode::Exchange {
                self.put(from.0, from.1, target, now);
                self.move_to(target, from.0, now);
            } else {
                self.drop_name(target, now);
            }
        }
        self.put(to.0, to.1, source, now);
        self.move_to(source, to.0, now);
        Ok(())
    }

    fn move_to(&mut self, ino: u64, dir: u64, now: i128) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.up = dir;
        node.ctime = now;
    }

    pub fn set_attr(&mut self, ino: u64, set: &SetAttrs, now: i128) -> R {
        let node = self.node(ino)?;
        if *set == SetAttrs::default() {
            return Ok(());
        }
        if let Some(size) = set.size {
            match node.kind {
                S_IFREG => node.bytes.resize(size as usize, 0),
                S_IFDIR => return Err(Refusal::IsDir),
                _ => return Err(Refusal::Invalid),
            }
            node.mtime = now;
            node.xattrs.remove(&b"security.capability"[..]);
        }
        let chown = set.uid.is_some() || set.gid.is_some();
        if (chown || set.unprivileged.is_some()) && !node.is_dir() {
            node.perm = without_set_ids(node.perm, set.unprivileged.is_none_or(|gid| gid == node.gid));
            node.xattrs.remove(&b"security.capability"[..]);
        }
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        node.perm = set.perm.unwrap_or(node.perm);
        node.atime = set.atime.map_or(node.atime, |t| t.0);
        node.mtime = set.mtime.map_or(node.mtime, |t| t.0);
        node.ctime = now;
        Ok(())
    }

    fn file(&mut self, ino: u64) -> Result<&mut Node, Refusal> {
        let node = self.node(ino)?;
        match node.kind {
            S_IFREG => Ok(node),
            S_IFDIR => Err(Refusal::IsDir),
            _ => Err(Refusal::Invalid),
        }
    }

    fn written(node: &mut Node, now: i128) {
        (node.mtime, node.ctime) = (now, now);
        node.xattrs.remove(&b"security.capability"[..]);
    }

    pub fn write(&mut self, ino: u64, at: u64, data: &[u8], now: i128) -> R {
        let node = self.file(ino)?;
        let (at, end) = (at as usize, at as usize + data.len());
        node.bytes.resize(node.bytes.len().max(end), 0);
        node.bytes[at..end].copy_from_slice(data);
        Self::written(node, now);
        Ok(())
    }

    pub fn punch(&mut self, ino: u64, offset: u64, len: u64, grow_to: Option<u64>, now: i128) -> R {
        let node = self.file(ino)?;
        let size = node.bytes.len();
        let (from, to) = ((offset as usize).min(size), ((offset + len) as usize).min(size));
        node.bytes[from..to].fill(0);
        node.bytes.resize(size.max(grow_to.unwrap_or(0) as usize), 0);
        Self::written(node, now);
        Ok(())
    }

    pub fn copy(&mut self, from: (u64, u64), to: (u64, u64), len: u64, now: i128) -> Result<u64, Refusal> {
        if !self.nodes.contains_key(&from.0) || !self.nodes.contains_key(&to.0) {
            return Err(Refusal::NotFound);
        }
        let source = self.file(from.0)?;
        let size = source.bytes.len() as u64;
        let len = len.min(size.saturating_sub(from.1));
        let data = source.bytes[from.1.min(size) as usize..][..len as usize].to_vec();
        self.file(to.0)?;
        let overlap = from.0 == to.0 && from.1 < to.1 + len && to.1 < from.1 + len;
        if len > 0 && overlap {
            return Err(Refusal::Invalid);
        }
        if len > 0 {
            self.write(to.0, to.1, &data, now)?;
        }
        Ok(len)
    }

    pub fn set_xattr(&mut self, ino: u64, name: &[u8], value: &[u8], how: XattrMode, now: i128) -> R {
        let node = self.node(ino)?;
        match (how, node.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Refusal::Exists),
            (XattrMode::Replace, false) => return Err(Refusal::NoAttribute),
            _ => {}
        }
        node.xattrs.insert(name.to_vec(), value.to_vec());
        node.ctime = now;
        Ok(())
    }

    pub fn remove_xattr(&mut self, ino: u64, name: &[u8], now: i128) -> R {
        let node = self.node(ino)?;
        node.xattrs.remove(name).ok_or(Refusal::NoAttribute)?;
        node.ctime = now;
        Ok(())
    }

    /// A copy that gets its name at once.
    pub fn clone_as(&mut self, from: u64, ino: u64, parent: u64, name: &[u8], made: i128, now: i128) -> R {
        let mut copy = self.node(from)?.clone();
        copy.entries.clear();
        copy.removed = false;
        copy.nlink = if copy.is_dir() { 2 } else { 1 };
        copy.up = parent;
        (copy.btime, copy.ctime) = (made, now);
        self.nodes.insert(ino, copy);
        self.put(parent, name, ino, now);
        Ok(())
    }

    pub fn reap(&mut self, ino: u64) {
        if self.nodes.get(&ino).is_some_and(|node| node.nlink == 0) {
            self.nodes.remove(&ino);
        }
    }
}

fn fresh(kind: u32, now: i128) -> Node {
    Node { kind, uid: 1000, gid: 100, atime: now, mtime: now, ctime: now, btime: now, ..Node::default() }
}

fn without_set_ids(perm: u32, member: bool) -> u32 {
    let perm = perm & !0o4000;
    if perm & 0o010 != 0 || !member { perm & !0o2000 } else { perm }
}
