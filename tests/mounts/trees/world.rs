//! A volume in memory, random work on it, and the visible contents of a filesystem.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use base::{Ino, Timestamp};
use blob::{BlobSource, Origin, PackStore};
use cache::MemoryPacks;
use covey_tests::Rng;
use fs::api::{Attr, Caller, FileKind, Filesystem, NewNode, RenameMode, SetAttr, SetTime, XattrMode};
use fs::fsck::{self, Callbacks, Depth};
use fs::publish::{GRACE, SealedPack};
use fs::volume::{FormatRequest, Options, Parts, Volume};
use meta::key::tags;
use meta::record::HeldRow;
use meta::{Commit, Key, MetaStore};
use tree::history;
use tree::root::{Owner, Root, Signer};
use tree::rows::{Pack, Scope, Selection};
use tree::{Order, Published, Tree, TreeError};

pub const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };
pub const VOLUME: [u8; 16] = [3; 16];

pub struct World {
    pub parts: Parts,
    pub origin: Arc<origin::Memory>,
    pub signer: Signer,
}

pub fn parts(store: Arc<dyn MetaStore>, origin: Arc<dyn Origin>) -> Parts {
    let packs: Arc<dyn PackStore> = Arc::new(MemoryPacks::new(origin.clone()));
    let source: Arc<dyn BlobSource> = origin.clone();
    Parts { store, packs, source, origin }
}

pub fn options() -> Options {
    Options { commit: Duration::from_millis(50), ..Options::default() }
}

impl World {
    pub fn new() -> World {
        let origin = Arc::new(origin::Memory::new());
        let parts = parts(Arc::new(meta::Memory::new()), origin.clone());
        let request = FormatRequest { id: Some(VOLUME), ..FormatRequest::default() };
        Volume::format(&parts, &request).unwrap();
        let signer = Signer::from_seed(&[5; 32]).unwrap();
        let keys = vec![signer.key()];
        let me = Owner { volume: VOLUME, owner: [1; 16], generation: 1, note: String::new(), keys };
        tree::publish::claim(&*origin, me).unwrap();
        World { parts, origin, signer }
    }

    pub fn open(&self) -> Volume {
        Volume::open(self.parts.clone(), options()).unwrap()
    }

    pub fn publish(&self, volume: &Volume, name: &str, scope: Scope) -> Result<Published, TreeError> {
        self.publish_keeping(volume, name, scope, 1)
    }

    /// Publishes and keeps so many publications of the name, the newest included.
    pub fn publish_keeping(
        &self,
        volume: &Volume,
        name: &str,
        scope: Scope,
        keep: usize,
    ) -> Result<Published, TreeError> {
        let mut publication = volume.publication(Duration::from_secs(20)).unwrap();
        let pack =
            |pack: &SealedPack| Pack { no: pack.no, blob: pack.blob, size: pack.size, live: pack.live };
        let packs: Vec<Pack> = publication.packs().iter().map(pack).collect();
        let selection = Selection::of(publication.rows(), scope, &packs)?;
        publication.hold(name, &mut selection.packs().iter().map(|pack| pack.blob)).unwrap();
        let origin: Arc<dyn Origin> = self.origin.clone();
        let order = Order {
            name,
            volume: VOLUME,
            signer: &self.signer,
            moment: base::time::now(),
            patience: Duration::from_secs(5),
            afresh: false,
            keep: keep > 1,
            hold: &mut |blob| {
                volume.hold(name, &mut std::iter::once(blob)).unwrap();
                Ok(())
            },
            before_root: &mut || Ok(()),
            progress: &mut |_| true,
        };
        let done = tree::publish(publication.rows(), &selection, &origin, order)?;
        let oldest = history::prune(&*self.origin, name, keep - 1)?;
        volume.hold_only(name, &done.blobs, oldest).unwrap();
        Ok(done)
    }

    pub fn tree(&self, name: &str) -> Tree {
        Tree::new(self.origin.clone(), &Root::read(&*self.origin, name, None).unwrap())
    }

    /// The tree published under a name, as a filesystem.
    pub fn frozen(&self, name: &str) -> Volume {
        let parts = parts(Arc::new(self.tree(name)), self.origin.clone());
        Volume::open(parts, Options { frozen: true, ..options() }).unwrap()
    }

    /// One publication of a name, as a filesystem.
    pub fn frozen_at(&self, name: &str, sequence: u64) -> Result<Volume, TreeError> {
        let root = history::read(&*self.origin, name, sequence, None)?;
        let parts = parts(Arc::new(Tree::new(self.origin.clone(), &root)), self.origin.clone());
        Ok(Volume::open(parts, Options { frozen: true, ..options() }).unwrap())
    }

    /// Makes all dropped holds so old that a collection releases them.
    pub fn age_holds(&self) {
        for (key, row) in self.parts.store.scan(&Key::kind(tags::HELD), usize::MAX).unwrap() {
            if let HeldRow::DroppedAt(at) = HeldRow::decode(&row).unwrap() {
                let old = Timestamp(at.0 - 2 * GRACE.as_nanos() as i128);
                let puts = vec![(key, HeldRow::DroppedAt(old).encode())];
                self.parts.store.commit(Commit { puts, ..Commit::default() }).unwrap();
            }
        }
    }

    /// The findings of a check, as text.
    pub fn findings(parts: &Parts) -> Vec<String> {
        let mut found = Vec::new();
        let mut callbacks =
            Callbacks { found: &mut |finding| found.push(finding.to_string()), progress: &mut |_| () };
        fsck::check(parts, Depth::Full, &mut callbacks).unwrap();
        found
    }
}

/// Everything that is visible of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub attr: Attr,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes of a file, hashed; a link's target.
    pub content: Vec<u8>,
    /// Where data begins and ends, as lseek(2) shows.
    pub edges: Vec<u64>,
}

/// Everything below a directory.
pub fn look(fs: &dyn Filesystem, dir: Ino) -> BTreeMap<Vec<u8>, Seen> {
    let mut all = BTreeMap::new();
    all.insert(Vec::new(), see(fs, dir));
    let mut todo = vec![(dir, Vec::new())];
    while let Some((dir, path)) = todo.pop() {
        let mut position = 0;
        loop {
            let mut batch: Vec<(Vec<u8>, Ino, FileKind)> = Vec::new();
            fs.readdir(dir, position, &mut |entry| {
                position = entry.next;
                batch.push((entry.name.to_vec(), entry.ino, entry.kind));
                ControlFlow::Continue(())
            })
            .unwrap();
            if batch.is_empty() {
                break;
            }
            for (name, ino, kind) in batch.into_iter().filter(|(name, ..)| name != b"." && name != b"..") {
                let path = [&path[..], b"/", &name[..]].concat();
                let entry = fs.lookup(dir, &name).unwrap();
                fs.forget(ino, 1);
                assert_eq!((entry.attr.ino, entry.attr.kind), (ino, kind));
                assert!(all.insert(path.clone(), see(fs, ino)).is_none());
                if kind == FileKind::Dir {
                    todo.push((ino, path));
                }
            }
        }
    }
    all
}

fn see(fs: &dyn Filesystem, ino: Ino) -> Seen {
    let attr = fs.getattr(ino).unwrap();
    let list = fs.listxattr(ino).unwrap();
    let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let xattrs = names.map(|name| (name.to_vec(), fs.getxattr(ino, name).unwrap())).collect();
    let (mut content, mut edges) = (Vec::new(), Vec::new());
    match attr.kind {
        FileKind::Symlink => content = fs.readlink(ino).unwrap(),
        FileKind::File => {
            let mut bytes = vec![0xEE; attr.size as usize];
            let mut done = 0;
            while done < bytes.len() {
                let end = bytes.len().min(done + (1 << 20));
                let got = fs.read(ino, done as u64, &mut bytes[done..end]).unwrap();
                assert!(got > 0);
                done += got;
            }
            content = blake3::hash(&bytes).as_bytes().to_vec();
            let mut at = 0;
            while let Ok(data) = fs.seek(ino, at, fs::api::Seek::Data) {
                at = fs.seek(ino, data, fs::api::Seek::Hole).unwrap();
                edges.extend([data, at]);
            }
        }
        _ => {}
    }
    Seen { attr, xattrs, content, edges }
}

/// Random operations below the root, like those of many programs.
pub struct Work {
    pub rng: Rng,
    dirs: Vec<Ino>,
    /// For each name: its folder, the inode and its kind.
    names: Vec<(Ino, Vec<u8>, Ino, FileKind)>,
    next: u64,
}

impl Work {
    pub fn new(seed: u64) -> Work {
        Work { rng: Rng::new(seed), dirs: vec![Ino::ROOT], names: Vec::new(), next: 0 }
    }

    /// All directories, including the root.
    pub fn dirs(&self) -> &[Ino] {
        &self.dirs
    }

    pub fn steps(&mut self, volume: &Volume, count: u64) {
        (0..count).for_each(|_| self.step(volume));
    }

    fn name(&mut self) -> Vec<u8> {
        self.next += 1;
        format!("n{}{}", self.next, "x".repeat(self.rng.below(30) as usize)).into_bytes()
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        blake3::Hasher::new().update(&self.rng.u64().to_be_bytes()).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn some_file(&mut self) -> Option<Ino> {
        let files: Vec<Ino> = self
            .names
            .iter()
            .filter(|(.., kind)| *kind == FileKind::File)
            .map(|(_, _, ino, _)| *ino)
            .collect();
        (!files.is_empty()).then(|| *self.rng.pick(&files))
    }

    fn step(&mut self, volume: &Volume) {
        let parent = *self.rng.pick(&self.dirs);
        match self.rng.below(16) {
            0 | 1 => {
                let name = self.name();
                let made = volume.mkdir(&ROOT, parent, &name, 0o755, 0).unwrap();
                volume.forget(made.attr.ino, 1);
                self.dirs.push(made.attr.ino);
            }
            2..=5 => self.make(volume, parent),
            6..=8 => self.write(volume),
            9 => self.link(volume, parent),
            10 | 11 => self.attributes(volume),
            12 => self.rename(volume, parent),
            13 | 14 if self.names.len() > 20 => {
                let at = self.rng.below(self.names.len() as u64) as usize;
                let (dir, name, ..) = self.names.swap_remove(at);
                volume.unlink(dir, &name).unwrap();
            }
            _ => {
                if let Some(file) = self.some_file() {
                    let size = self.rng.length(100_000);
                    volume.setattr(&ROOT, file, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
                }
            }
        }
    }

    fn make(&mut self, volume: &Volume, parent: Ino) {
        let name = self.name();
        let made = match self.rng.below(8) {
            0 => {
                let target = vec![b't'; self.rng.range(1, 300) as usize];
                volume.symlink(&ROOT, parent, &name, &target).unwrap()
            }
            other => {
                let kind = match other {
                    1 => *self.rng.pick(&[FileKind::Fifo, FileKind::Socket, FileKind::CharDevice]),
                    _ => FileKind::File,
                };
                let rdev = if kind == FileKind::CharDevice { 0x501 } else { 0 };
                let node = NewNode { kind, perm: self.rng.below(0o10000) as u16, umask: 0o022, rdev };
                volume.mknod(&ROOT, parent, &name, &node).unwrap()
            }
        };
        volume.forget(made.attr.ino, 1);
        self.names.push((parent, name, made.attr.ino, made.attr.kind));
        if made.attr.kind == FileKind::File {
            let len = self.rng.length(40_000);
            let bytes = self.bytes(len);
            volume.write(made.attr.ino, 0, &bytes, None, false).unwrap();
        }
    }

    fn write(&mut self, volume: &Volume) {
        let Some(file) = self.some_file() else { return };
        // Sometimes far into the file, so that there are holes and a second page.
        let at = if self.rng.one_in(6) { self.rng.below(6 << 20) } else { self.rng.below(60_000) };
        let len = if self.rng.one_in(12) { 1 << 20 } else { self.rng.length(20_000).max(1) };
        let bytes = self.bytes(len);
        volume.write(file, at, &bytes, None, false).unwrap();
    }

    fn link(&mut self, volume: &Volume, parent: Ino) {
        let Some(file) = self.some_file() else { return };
        let name = self.name();
        volume.link(file, parent, &name).unwrap();
        volume.forget(file, 1);
        self.names.push((parent, name, file, FileKind::File));
    }

    fn attributes(&mut self, volume: &Volume) {
        let dir = *self.rng.pick(&self.dirs);
        let ino = if self.rng.one_in(3) { Some(dir) } else { self.some_file() };
        let Some(ino) = ino else { return };
        if self.rng.one_in(2) {
            let name = format!("user.{}", self.rng.below(5));
            let len = self.rng.range(1, 400);
            let value = self.bytes(len);
            volume.setxattr(ino, name.as_bytes(), &value, XattrMode::Set, false).unwrap();
        } else {
            let set = SetAttr {
                perm: Some(self.rng.below(0o1000) as u16),
                uid: Some(self.rng.below(3) as u32),
                mtime: Some(SetTime::To(Timestamp(i128::from(self.rng.u64() as i64) * 3))),
                ..SetAttr::default()
            };
            volume.setattr(&ROOT, ino, &set).unwrap();
        }
    }

    fn rename(&mut self, volume: &Volume, to: Ino) {
        if self.names.is_empty() {
            return;
        }
        let at = self.rng.below(self.names.len() as u64) as usize;
        let new = self.name();
        let (dir, name, ..) = self.names[at].clone();
        volume.rename(dir, &name, to, &new, RenameMode::Replace).unwrap();
        (self.names[at].0, self.names[at].1) = (to, new);
    }
}
