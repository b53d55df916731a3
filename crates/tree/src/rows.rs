//! Which rows of a volume make up a tree.
//!
//! Of the whole volume: every row, except rows that follow from others (`11`, `12`), rows that only save
//! space (`0E`), rows that concern the volume alone (`13`), what is in the trash (`03`, and all rows of those
//! inodes), and packs that nothing else refers to. So it is of the format of a volume without trash.
//!
//! Of a subtree: the same rows of the inodes below a folder. The folder becomes inode 1, the root. A file's
//! link count covers only names below the folder, and totals and packs' live bytes are counted again. So it
//! is a consistent volume, and can be restored as one.

use base::{BlobId, Ino, PackNo};
use blob::ExtentPage;
use hashbrown::{HashMap, HashSet};
use meta::key::{KeyRange, tags};
use meta::record::{Dentry, InodeRecord, decode_u64, encode_i64, encode_u64};
use meta::store::StoreError;
use meta::trash::{FORMAT, FORMAT_TRASH, ROW_FORMAT, ROW_TRASH, TrashRow};
use meta::{Key, PackRow, Snapshot};

use crate::TreeError;

/// The published part of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of it.
    Whole,
    /// One folder and what is below.
    Folder(Ino),
}

/// A pack that the rows refer to, and its blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pack {
    /// The pack's number.
    pub no: PackNo,
    /// The blob.
    pub blob: BlobId,
    /// The blob's size in bytes.
    pub size: u32,
    /// The bytes referred to. Each reference counts.
    pub live: u64,
}

/// The rows that will make up a tree.
pub struct Selection {
    /// The inodes, sorted, but a folder's own inode first. `None`: all inodes.
    inos: Option<Vec<Ino>>,
    /// Inodes in the trash, where `inos` is `None`.
    trash: HashSet<Ino>,
    /// The link counts of the files in `inos` that are not 1.
    names: HashMap<Ino, u32>,
    /// The packs, sorted by number.
    packs: Vec<Pack>,
    /// The number of inodes and of bytes.
    totals: (u64, u64),
}

/// Takes rows in order. An error ends the walk.
pub type Push<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), TreeError> + 'a;

/// The next numbers to be given out are published as multiples of this.
const NUMBERS: u64 = 1 << 24;

/// The kinds of rows that are copied, in order, unchanged but for quotas. `ORPHAN` only for a whole volume:
/// below a folder every inode has a name.
const KINDS: [u8; 9] = [
    tags::VOLUME,
    tags::INODE,
    tags::DENTRY,
    tags::EXTENTS,
    tags::INLINE,
    tags::XATTR,
    tags::DIR_CHANGED,
    tags::SUBDIRS,
    tags::ORPHAN,
];

impl Selection {
    /// Finds out what belongs to a tree. `packs`: every pack with live bytes, sorted by number.
    ///
    /// # Errors
    /// The names could not be read, or `NotAFolder`.
    pub fn of(rows: &dyn Snapshot, scope: Scope, packs: &[Pack]) -> Result<Selection, TreeError> {
        match scope {
            Scope::Whole | Scope::Folder(Ino::ROOT) => {
                let total = |name| Ok::<u64, TreeError>(counter(rows, name)?.max(0).unsigned_abs());
                let totals = (total("inodes")?, total("bytes")?);
                let (inos, names, trash) = (None, HashMap::new(), HashSet::new());
                let mut selection = Selection { inos, trash, names, packs: packs.to_vec(), totals };
                selection.leave_trash(rows)?;
                Ok(selection)
            }
            Scope::Folder(top) => {
                let (inos, names, trash) = (None, HashMap::new(), HashSet::new());
                let mut selection = Selection { inos, trash, names, packs: Vec::new(), totals: (0, 0) };
                selection.walk(rows, top)?;
                selection.count(rows, packs)?;
                Ok(selection)
            }
        }
    }

    /// The packs that the tree refers to.
    pub fn packs(&self) -> &[Pack] {
        &self.packs
    }

    /// The number of inodes, and of bytes of files.
    pub fn totals(&self) -> (u64, u64) {
        self.totals
    }

    fn walk(&mut self, rows: &dyn Snapshot, top: Ino) -> Result<(), TreeError> {
        let record = rows.get(&Key::inode(top))?.and_then(|row| InodeRecord::decode(&row).ok());
        if !record.is_some_and(|record| record.is_dir()) {
            return Err(TreeError::NotAFolder);
        }
        let mut inos = Vec::new();
        let mut todo = vec![top];
        // If a directory were contained in itself, the walk would never end. So a directory that is met twice
        // is an error.
        let mut met: HashSet<Ino> = [top].into_iter().collect();
        while let Some(dir) = todo.pop() {
            let mut bad = None;
            rows.each(&Key::dentries(dir, 0), &mut |key, row| {
                let key = Key::from_bytes(key);
                let (Ok(dentry), Some(_)) = (Dentry::decode(row), key.as_dentry()) else {
                    bad = Some(key);
                    return false;
                };
                if dentry.is_dir() {
                    if !met.insert(dentry.ino) {
                        bad = Some(key);
                        return false;
                    }
                    todo.push(dentry.ino);
                    inos.push(dentry.ino);
                } else {
                    let names = self.names.entry(dentry.ino).or_insert(0);
                    *names += 1;
                    if *names == 1 {
                        inos.push(dentry.ino);
                    }
                }
                true
            })?;
            if let Some(key) = bad {
                return Err(damaged(&key));
            }
        }
        self.names.retain(|_, names| *names > 1);
        inos.sort_unstable();
        inos.insert(0, top);
        self.inos = Some(inos);
        Ok(())
    }

    /// Leaves out what is in the trash of a whole volume.
    fn leave_trash(&mut self, rows: &dyn Snapshot) -> Result<(), TreeError> {
        let (mut all, mut bad) = (Vec::new(), None);
        rows.each(&Key::kind(tags::TRASH), &mut |key, row| {
            let key = Key::from_bytes(key);
            match (key.number(), TrashRow::decode(row)) {
                (Some(ino), Ok(row)) => all.push((Ino(ino), row.dir)),
                _ => bad = Some(key),
            }
            bad.is_none()
        })?;
        if let Some(key) = bad {
            return Err(damaged(&key));
        }
        let mut live = HashMap::new();
        for (ino, dir) in all {
            let key = Key::inode(ino);
            let record = match (rows.get(&key)?, dir) {
                (Some(row), None) => InodeRecord::decode(&row).map_err(|_| damaged(&key))?,
                (None, Some(dir)) => dir,
                _ => return Err(damaged(&Key::trash(ino))),
            };
            self.totals.0 = self.totals.0.saturating_sub(1);
            self.totals.1 = self.totals.1.saturating_sub(record.stored);
            add_live(rows, ino, &record, &mut live)?;
            self.trash.insert(ino);
        }
        for pack in &mut self.packs {
            pack.live = pack.live.saturating_sub(live.get(&pack.no).copied().unwrap_or(0));
        }
        self.packs.retain(|pack| pack.live > 0);
        Ok(())
    }

    /// Counts the totals, and how much of which packs is used.
    fn count(&mut self, rows: &dyn Snapshot, packs: &[Pack]) -> Result<(), TreeError> {
        let inos = self.inos.take().unwrap_or_default();
        let mut live: HashMap<PackNo, u64> = HashMap::new();
        for ino in &inos {
            let key = Key::inode(*ino);
            let row = rows.get(&key)?.ok_or_else(|| damaged(&key))?;
            let record = InodeRecord::decode(&row).map_err(|_| damaged(&key))?;
            self.totals.0 += 1;
            self.totals.1 += record.stored;
            add_live(rows, *ino, &record, &mut live)?;
        }
        self.inos = Some(inos);
        for pack in packs {
            if let Some(live) = live.remove(&pack.no) {
                self.packs.push(Pack { live, ..*pack });
            }
        }
        match live.keys().next() {
            None => Ok(()),
            Some(pack) => Err(damaged(&Key::pack(*pack))),
        }
    }

    /// Calls `push` with every row, in order.
    ///
    /// # Errors
    /// The names could not be read, or the error of `push`.
    pub fn each(&self, rows: &dyn Snapshot, push: &mut Push<'_>) -> Result<(), TreeError> {
        for tag in KINDS {
            match &self.inos {
                _ if tag == tags::VOLUME => self.volume_rows(rows, push)?,
                None if self.trash.is_empty() => all_of(rows, tag, push)?,
                None => all_of(rows, tag, &mut |key, row| {
                    let ino = Key::from_bytes(key).number().map(Ino);
                    if ino.is_some_and(|ino| self.trash.contains(&ino)) { Ok(()) } else { push(key, row) }
                })?,
                Some(_) if tag == tags::ORPHAN => {}
                Some(inos) => self.below(rows, tag, inos, push)?,
            }
        }
        for Pack { no, blob, size, .. } in &self.packs {
            let row = PackRow::Sealed { blob: *blob, size: *size };
            push(Key::pack(*no).as_bytes(), &row.encode())?;
        }
        for Pack { no, live, .. } in &self.packs {
            push(Key::pack_live(*no).as_bytes(), &encode_i64(*live as i64))?;
        }
        Ok(())
    }

    /// The volume's own rows, with the totals of what is selected. The next numbers to be given out are
    /// rounded up. A volume takes many numbers whenever it is opened, and this alone is no change worth
    /// publishing.
    fn volume_rows(&self, rows: &dyn Snapshot, push: &mut Push<'_>) -> Result<(), TreeError> {
        let (inodes, bytes) = (Key::volume("inodes"), Key::volume("bytes"));
        let (next_ino, next_pack) = (Key::volume("next-ino"), Key::volume("next-pack"));
        let (format, trash) = (Key::volume(ROW_FORMAT), Key::volume(ROW_TRASH));
        let mut out: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        pass_on(rows, &Key::kind(tags::VOLUME), &mut |key, row| {
            if key == next_ino.as_bytes() || key == next_pack.as_bytes() {
                let next = decode_u64(Some(row)).map_err(|_| damaged(&Key::from_bytes(key)))?;
                let next = next.checked_next_multiple_of(NUMBERS).unwrap_or(next);
                out.push((key.to_vec(), encode_u64(next).to_vec()));
            } else if key == format.as_bytes() && row == FORMAT_TRASH.to_be_bytes() {
                out.push((key.to_vec(), FORMAT.to_be_bytes().to_vec()));
            } else if ![&inodes, &bytes, &trash].iter().any(|own| own.as_bytes() == key) {
                out.push((key.to_vec(), row.to_vec()));
            }
            Ok(())
        })?;
        for (key, total) in [(inodes, self.totals.0), (bytes, self.totals.1)] {
            // A counter of 0 has no row.
            if total > 0 {
                out.push((key.as_bytes().to_vec(), encode_i64(total as i64).to_vec()));
            }
        }
        out.sort();
        out.iter().try_for_each(|(key, row)| push(key, row))
    }

    fn below(
        &self,
        rows: &dyn Snapshot,
        tag: u8,
        inos: &[Ino],
        push: &mut Push<'_>,
    ) -> Result<(), TreeError> {
        let Some(top) = inos.first().copied() else { return Ok(()) };
        for ino in inos {
            let root = (*ino == top).then_some(Ino::ROOT.0.to_be_bytes());
            pass_on(rows, &of(tag, *ino), &mut |key, row| {
                let mut renamed;
                let mut key = key;
                if let Some(number) = root {
                    renamed = key.to_vec();
                    renamed.iter_mut().skip(1).zip(number).for_each(|(to, from)| *to = from);
                    key = &renamed;
                }
                if tag == tags::INODE {
                    let record = InodeRecord::decode(row).map_err(|_| damaged(&Key::from_bytes(key)))?;
                    return push(key, &self.record(top, *ino, record).encode());
                }
                push(key, row)
            })?;
        }
        Ok(())
    }

    /// An inode as it is in the tree.
    fn record(&self, top: Ino, ino: Ino, mut record: InodeRecord) -> InodeRecord {
        if ino == top || record.parent == top {
            record.parent = Ino::ROOT;
        }
        record.quota = Ino(0);
        record.set(InodeRecord::QUOTA_ROOT, false);
        if !record.is_dir() {
            record.nlink = self.names.get(&ino).copied().unwrap_or(1);
        }
        record
    }
}

/// The rows of one kind of one inode.
fn of(tag: u8, ino: Ino) -> KeyRange {
    let key = |number: u64| {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&number.to_be_bytes());
        Key::from_bytes(&bytes)
    };
    KeyRange { start: key(ino.0), end: key(ino.0.saturating_add(1)) }
}

/// Adds how much of which packs an inode refers to.
fn add_live(
    rows: &dyn Snapshot,
    ino: Ino,
    record: &InodeRecord,
    live: &mut HashMap<PackNo, u64>,
) -> Result<(), TreeError> {
    if !record.is_file() || record.has(InodeRecord::INLINE) {
        return Ok(());
    }
    let mut bad = None;
    rows.each(&of(tags::EXTENTS, ino), &mut |key, row| {
        match ExtentPage::decode(row) {
            Ok(page) => {
                for extent in page.extents() {
                    *live.entry(extent.pack).or_default() += u64::from(extent.len);
                }
            }
            Err(_) => bad = Some(Key::from_bytes(key)),
        }
        bad.is_none()
    })?;
    bad.map_or(Ok(()), |key| Err(damaged(&key)))
}

/// All rows of a kind.
fn all_of(rows: &dyn Snapshot, tag: u8, push: &mut Push<'_>) -> Result<(), TreeError> {
    match tag {
        tags::INODE | tags::ORPHAN => inodes(rows, tag, push),
        _ => pass_on(rows, &Key::kind(tag), push),
    }
}

/// All inodes. Quotas are the volume's, and not the tree's.
fn inodes(rows: &dyn Snapshot, tag: u8, push: &mut Push<'_>) -> Result<(), TreeError> {
    pass_on(rows, &Key::kind(tag), &mut |key, row| {
        let plain = InodeRecord::without_quota(row).map_err(|_| damaged(&Key::from_bytes(key)))?;
        push(key, plain.as_deref().unwrap_or(row))
    })
}

fn pass_on(rows: &dyn Snapshot, range: &KeyRange, push: &mut Push<'_>) -> Result<(), TreeError> {
    let mut failed = None;
    rows.each(range, &mut |key, row| match push(key, row) {
        Ok(()) => true,
        Err(error) => {
            failed = Some(error);
            false
        }
    })?;
    failed.map_or(Ok(()), Err)
}

fn counter(rows: &dyn Snapshot, name: &str) -> Result<i64, TreeError> {
    let key = Key::volume(name);
    let row = rows.get(&key)?;
    meta::record::decode_i64(row.as_deref()).map_err(|_| damaged(&key))
}

fn damaged(key: &Key) -> TreeError {
    TreeError::Store(StoreError::Damaged(format!("the row {key:?} is damaged or missing; run `covey fsck`")))
}
