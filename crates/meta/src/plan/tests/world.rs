//! A volume for tests: names over a test store, and packs in memory. It does what the `fs` crate does: packs
//! bytes, outlines inline files, and repeats operations that are done in steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base::size::{BLOB_MAX, INLINE_MAX};
use base::{BlobId, Ino, PackNo, Timestamp};
use blob::ExtentPage;

use crate::audit::{Finding, Listener, Summary, audit};
use crate::key::Key;
use crate::names::{Names, NamesError};
use crate::plan::op::{Body, Make, Piece, SetAttrs};
use crate::plan::{Change, Ctx, Op, Refusal};
use crate::record::{InodeRecord, PackRow, mode};
use crate::store::Value;

use super::store::TestStore;

const SPAN: u64 = ExtentPage::SPAN as u64;

pub(crate) struct World {
    pub store: Arc<TestStore>,
    pub names: Names,
    pub packs: BTreeMap<PackNo, Vec<u8>>,
    pub open: PackNo,
    pub now: AtomicU64,
}

pub(crate) fn file(ino: u64, perm: u32) -> Make<'static> {
    Make { ino: Ino(ino), mode: mode::S_IFREG | perm, umask: 0, rdev: 0, target: b"" }
}

pub(crate) fn dir(ino: u64, perm: u32) -> Make<'static> {
    Make { mode: mode::S_IFDIR | perm, ..file(ino, 0) }
}

impl World {
    pub fn new() -> World {
        let store = Arc::new(TestStore::default());
        let names = Names::new(store.clone());
        let mut world =
            World { store, names, packs: BTreeMap::new(), open: PackNo(0), now: AtomicU64::new(1000) };
        world.run(&Op::Format { rows: &[("format", b"1".to_vec())] }).unwrap();
        world.open_pack();
        world
    }

    /// A world of these rows, later than all that they hold. New bytes go to this open pack.
    pub fn over(rows: BTreeMap<Key, Value>, open: PackNo) -> World {
        let store = Arc::new(TestStore::default());
        *store.rows.lock().unwrap() = rows;
        let names = Names::new(store.clone());
        let packs = BTreeMap::from([(open, vec![0; 10_000])]);
        World { store, names, packs, open, now: AtomicU64::new(100_000) }
    }

    pub fn ctx(&self) -> Ctx {
        let now = self.now.fetch_add(10, Ordering::Relaxed) + 10;
        Ctx { now: Timestamp::from_nanos(now as i64), uid: 1000, gid: 100 }
    }

    pub fn run(&self, op: &Op<'_>) -> Result<Change, Refusal> {
        self.run_as(op, &self.ctx())
    }

    pub fn run_as(&self, op: &Op<'_>, ctx: &Ctx) -> Result<Change, Refusal> {
        match self.names.run(op, ctx) {
            Ok(change) => Ok(change),
            Err(NamesError::Refused(refusal)) => Err(refusal),
            Err(NamesError::Store(error)) => panic!("{error}"),
        }
    }

    /// Runs an operation until it is complete. Returns how many commits that took.
    pub fn run_all(&self, op: &Op<'_>) -> Result<u32, Refusal> {
        let ctx = self.ctx();
        let mut steps = 1;
        while self.run_as(op, &ctx)?.more {
            steps += 1;
        }
        Ok(steps)
    }

    pub fn create(&self, parent: u64, name: &str, make: Make<'_>) -> Result<Change, Refusal> {
        self.run(&Op::Create { parent: Ino(parent), name: name.as_bytes(), make })
    }

    pub fn attr(&self, ino: u64) -> InodeRecord {
        self.names.attr(Ino(ino)).unwrap().unwrap()
    }

    pub fn open_pack(&mut self) {
        let first = self.run(&Op::Allocate { counter: "next-pack", count: 1, from: 0 }).unwrap().first;
        self.open = PackNo(first);
        self.run(&Op::OpenPack { pack: self.open }).unwrap();
        self.packs.insert(self.open, Vec::new());
    }

    pub fn seal(&mut self) {
        let bytes = &self.packs[&self.open];
        let blob = BlobId(*blake3::hash(bytes).as_bytes());
        self.run(&Op::SealPack { pack: self.open, blob, size: bytes.len() as u32 }).unwrap();
        self.open_pack();
    }

    /// Appends bytes that belong at offset `at` of some file, cut at pages and packs.
    pub fn pack(&mut self, mut at: u64, mut data: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while !data.is_empty() {
            let room = BLOB_MAX as usize - self.packs[&self.open].len();
            if room == 0 {
                self.seal();
                continue;
            }
            let len = data.len().min(room).min((SPAN - at % SPAN) as usize);
            let (now, rest) = data.split_at(len);
            let pack = self.packs.get_mut(&self.open).unwrap();
            let offset = pack.len() as u32;
            pack.extend_from_slice(now);
            pieces.push(Piece { at, len: len as u32, pack: self.open, offset, fresh: Some(0) });
            (at, data) = (at + len as u64, rest);
        }
        pieces
    }

    pub fn read(&self, ino: u64) -> Vec<u8> {
        let record = self.names.inode(Ino(ino)).unwrap().unwrap();
        if record.has(InodeRecord::INLINE) {
            return self.names.inline(Ino(ino)).unwrap().unwrap().to_vec();
        }
        let mut bytes = vec![0; record.size as usize];
        for (number, page) in self.names.extent_pages(Ino(ino), 0, usize::MAX).unwrap() {
            for extent in page.extents() {
                let at = (u64::from(number) * SPAN) as usize + extent.at as usize;
                let from = &self.packs[&extent.pack][extent.offset as usize..][..extent.len as usize];
                bytes[at..at + extent.len as usize].copy_from_slice(from);
            }
        }
        bytes
    }

    pub fn write_packed(&mut self, ino: u64, at: u64, data: &[u8]) -> Result<Change, Refusal> {
        let pieces = self.pack(at, data);
        self.write_body(ino, &Body::Packed(&pieces))
    }

    pub fn write_body(&self, ino: u64, body: &Body<'_>) -> Result<Change, Refusal> {
        let op = Op::Write {
            ino: Ino(ino),
            body: body.clone(),
            unprivileged: None,
            cached: false,
            intern: None,
            over: None,
        };
        self.run(&op)
    }

    /// Writes as the `fs` crate would: small contents stay inline.
    pub fn write(&mut self, ino: u64, at: u64, data: &[u8]) -> Result<(), Refusal> {
        let record = self.names.inode(Ino(ino)).unwrap().ok_or(Refusal::NotFound)?;
        let end = at as usize + data.len();
        let is_inline = record.is_file() && (record.size == 0 || record.has(InodeRecord::INLINE));
        if is_inline && (end as u64).max(record.size) <= INLINE_MAX as u64 {
            let mut body = self.read(ino);
            body.resize(body.len().max(end), 0);
            body[at as usize..end].copy_from_slice(data);
            self.write_body(ino, &Body::Inline(&body))?;
            return Ok(());
        }
        match self.write_packed(ino, at, data) {
            Err(Refusal::MustOutline) => {
                let mut body = self.read(ino);
                body.resize(body.len().max(end), 0);
                body[at as usize..end].copy_from_slice(data);
                self.write_packed(ino, 0, &body).map(|_| ())
            }
            done => done.map(|_| ()),
        }
    }

    /// An operation that may need the file's bytes in packs first.
    pub fn outlining(&mut self, inos: &[u64], op: &Op<'_>) -> Result<u64, Refusal> {
        let ctx = self.ctx();
        let mut done = 0;
        loop {
            match self.run_as(op, &ctx) {
                Ok(change) if change.more => done += change.done,
                Ok(change) => return Ok(done + change.done),
                Err(Refusal::MustOutline) => {
                    for &ino in inos {
                        if self.attr(ino).has(InodeRecord::INLINE) {
                            let record = self.attr(ino);
                            let body = self.read(ino);
                            self.write_packed(ino, 0, &body).unwrap();
                            let times = SetAttrs {
                                atime: Some(record.atime),
                                mtime: Some(record.mtime),
                                ctime: Some(record.ctime),
                                ..SetAttrs::default()
                            };
                            self.run(&Op::SetAttr { ino: Ino(ino), set: times }).unwrap();
                        }
                    }
                }
                Err(refusal) => return Err(refusal),
            }
        }
    }

    pub fn audit(&self) -> (Summary, Vec<Finding>) {
        let mut findings = Vec::new();
        let mut found = |finding| findings.push(finding);
        let mut listener = Listener { found: &mut found, progress: &mut |_| {} };
        let summary = audit(&*self.store, &mut listener).unwrap();
        (summary, findings)
    }

    #[track_caller]
    pub fn assert_sound(&self) {
        let (_, findings) = self.audit();
        let bad: Vec<String> = findings.iter().filter(|f| !f.is_harmless()).map(|f| f.to_string()).collect();
        assert!(bad.is_empty(), "{bad:#?}");
    }

    pub fn pack_row(&self, pack: PackNo) -> Option<PackRow> {
        self.names.pack(pack).unwrap()
    }
}
