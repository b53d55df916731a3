//! Turns the objects of a bucket into the rows of a tree.
//!
//! ```text
//!   listing ──► sorted by path ─┐
//!                               ├─► one pass: a stack of open folders ──► rows ──► sorted by key ──► the
//! tree
//!   last tree's objects, sorted ┘
//! ```
//!
//! Memory holds the open folders, and the buffers of the three sorts. Nothing depends on the number of
//! objects.
//!
//! **The order of paths** is that of their bytes with `/` before all others. So the objects of a folder come
//! right after the key that is the folder's own name, and the pass sees such a pair side by side.
//!
//! **Numbers** of inodes and packs are those that the last tree gave to the same key and, for packs, to the
//! same version. New ones follow in the order of paths. So the same listing gives the same rows, and a small
//! change changes few.
//!
//! **A listing is not one moment.** What a bucket gains or loses meanwhile may be in it or not. Sorted, each
//! key counts once, and every name that is in the tree has a folder. So the tree is consistent in any case.

use std::io;
use std::path::Path;

use base::size::FILE_MAX;
use base::{BlobId, Ino, PackNo, Timestamp};
use blob::ExtentPage;
use blob::extent::Extent;
use meta::key::tags;
use meta::record::{Dentry, ForeignRow, InodeRecord, encode_i64, encode_u64, mode};
use meta::{Key, PackRow, Value};
use origin::foreign::{PART, parts, range_of};
use origin::{Bucket, Object};
use tree::rows::{Pack, Push};
use tree::{Content, Source, Tree, TreeError};

use super::sort::{Reader, Sorted, Sorter};

/// The attribute in which a file shows the ETag of its object.
const ETAG: &[u8] = b"user.covey.etag";

/// What files and folders get that objects do not have.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The file mode mask.
    pub umask: u32,
}

/// Called with the key of an object that cannot be a file, and why.
pub type Skip<'a> = dyn FnMut(&str, &str) + 'a;

/// Why a key cannot be the path of a file or a folder, or its object cannot be read as one.
pub fn problem(object: &Object) -> Option<String> {
    let folder = object.key.strip_suffix('/');
    if folder.is_some() && object.size > 0 {
        return Some("its key ends with / and it has bytes: it is neither a file nor a folder".to_owned());
    }
    if object.key.is_empty() {
        return Some("its key is that of the folder itself, and it has bytes".to_owned());
    }
    let problem = |part: &str| match part {
        "" => Some("its key has an empty part, which no path has".to_owned()),
        "." | ".." => Some(format!("its key has the part {part}, which leads elsewhere in a path")),
        _ if part.len() > base::size::NAME_MAX => {
            Some(format!("its key has a part of {} bytes; a name has at most 255", part.len()))
        }
        _ => None,
    };
    let others = || {
        if object.key.contains(|c: char| c.is_ascii_control()) {
            return Some("its key has control characters, with which it cannot be asked for".to_owned());
        }
        if object.key.len() > ForeignRow::TEXT_MAX || object.etag.len() > ForeignRow::TEXT_MAX {
            return Some("its key or its ETag is longer than any store allows".to_owned());
        }
        if object.etag.is_empty() {
            return Some("the store lists no ETag for it, so its versions cannot be told apart".to_owned());
        }
        let too_large = object.size > FILE_MAX || parts(object.size).is_none();
        too_large.then(|| "it is larger than a file can be".to_owned())
    };
    folder.unwrap_or(&object.key).split('/').find_map(problem).or_else(others)
}

/// A key in the form in which keys are sorted. No key that is sorted has a NUL.
fn order_key(key: &str) -> Vec<u8> {
    key.bytes().map(|byte| if byte == b'/' { 0 } else { byte }).collect()
}

/// The listed objects of a bucket, sorted.
pub struct Listed {
    sorted: Sorted,
    /// How many there are. An object that was listed twice counts twice.
    pub objects: u64,
}

/// Takes the objects of a listing.
pub struct Listing {
    sorter: Sorter,
    objects: u64,
}

impl Listing {
    /// `folder` gets the file of what does not fit into memory.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(folder: &Path) -> io::Result<Listing> {
        Ok(Listing { sorter: Sorter::new(folder)?, objects: 0 })
    }

    /// Adds an object, unless there is a [`problem`] with it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, object: &Object, skip: &mut Skip<'_>) -> io::Result<()> {
        // The object that some programs make for the folder itself.
        if object.key.is_empty() && object.size == 0 {
            return Ok(());
        }
        if let Some(problem) = problem(object) {
            skip(&object.key, &problem);
            return Ok(());
        }
        self.objects += 1;
        let mut value = object.size.to_le_bytes().to_vec();
        value.extend_from_slice(&object.modified.0.to_le_bytes());
        value.extend_from_slice(object.etag.as_bytes());
        self.sorter.push(&order_key(&object.key), &value)
    }

    /// How many were added.
    pub fn objects(&self) -> u64 {
        self.objects
    }

    /// Sorts them.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> io::Result<Listed> {
        Ok(Listed { sorted: self.sorter.finish()?, objects: self.objects })
    }
}

/// One listed object.
struct Entry {
    order: Vec<u8>,
    size: u64,
    modified: Timestamp,
    etag: String,
}

impl Entry {
    fn next(reader: &mut Reader) -> io::Result<Option<Entry>> {
        let Some((order, value)) = reader.read()? else { return Ok(None) };
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "the sorted listing is damaged");
        let (size, rest) = value.split_first_chunk().ok_or_else(bad)?;
        let (modified, etag) = rest.split_first_chunk().ok_or_else(bad)?;
        let etag = String::from_utf8(etag.to_vec()).map_err(|_| bad())?;
        let (size, modified) = (u64::from_le_bytes(*size), Timestamp(i128::from_le_bytes(*modified)));
        Ok(Some(Entry { order, size, modified, etag }))
    }

    fn is_folder(&self) -> bool {
        self.order.last() == Some(&0)
    }

    /// The folders of its path, and the name of the file; empty for a folder.
    fn path(&self) -> (Vec<&[u8]>, &[u8]) {
        let mut parts: Vec<&[u8]> = self.order.split(|byte| *byte == 0).collect();
        let name = parts.pop().unwrap_or_default();
        (parts, name)
    }

    fn key(&self) -> String {
        let bytes = self.order.iter().map(|byte| if *byte == 0 { b'/' } else { *byte }).collect();
        String::from_utf8(bytes).unwrap_or_default()
    }
}

/// The objects of the last tree, in the order of paths.
struct Before {
    reader: Reader,
    at: Option<(Vec<u8>, ForeignRow)>,
}

impl Before {
    fn of(tree: Option<&Tree>, folder: &Path) -> Result<Before, TreeError> {
        let mut sorter = Sorter::new(folder).map_err(no_room)?;
        let mut failed = None;
        if let Some(tree) = tree {
            tree.rows(&Key::kind(tags::FOREIGN), &mut |_, row| {
                let mut push = |row: &[u8]| match ForeignRow::decode(row) {
                    Ok(decoded) => sorter.push(&order_key(&decoded.key), row).map_err(no_room),
                    Err(bad) => Err(TreeError::Damaged(bad.to_string())),
                };
                failed = push(row).err();
                failed.is_none()
            })?;
            tree.trim();
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let reader = sorter.finish().and_then(|sorted| sorted.reader()).map_err(no_room)?;
        let mut before = Before { reader, at: None };
        before.step()?;
        Ok(before)
    }

    fn step(&mut self) -> Result<(), TreeError> {
        let next = self.reader.read().map_err(no_room)?;
        let decode = |(order, row): (Vec<u8>, &[u8])| Some((order, ForeignRow::decode(row).ok()?));
        self.at = next.and_then(decode);
        Ok(())
    }

    /// Goes on to an object. Returns what the last tree had under its key, and the numbers of its folders as
    /// far as the last tree had them.
    fn find(
        &mut self,
        order: &[u8],
        folders: &[&[u8]],
    ) -> Result<(Option<ForeignRow>, Vec<Option<Ino>>), TreeError> {
        let mut known = vec![None; folders.len()];
        while let Some((at, row)) = &self.at {
            let shared = at.split(|byte| *byte == 0).zip(folders).zip(&row.folders);
            let shared = shared.take_while(|((one, other), _)| one == *other).map(|(_, ino)| *ino);
            known.iter_mut().zip(shared).for_each(|(known, ino)| *known = Some(ino));
            match (**at).cmp(order) {
                std::cmp::Ordering::Less => self.step()?,
                std::cmp::Ordering::Equal => return Ok((Some(row.clone()), known)),
                std::cmp::Ordering::Greater => break,
            }
        }
        Ok((None, known))
    }
}

/// A folder whose objects are being passed.
struct Folder {
    name: Vec<u8>,
    ino: Ino,
    parent: Ino,
    modified: Timestamp,
    folders: u64,
}

/// The rows of a tree, and what they add up to.
pub struct Rows {
    sorted: Sorted,
    source: Source,
    /// Files and folders.
    pub inodes: u64,
    /// Files.
    pub files: u64,
    /// Bytes of files.
    pub bytes: u64,
}

impl Content for Rows {
    fn each(&self, push: &mut Push<'_>) -> Result<(), TreeError> {
        let mut reader = self.sorted.reader().map_err(no_room)?;
        while let Some((key, value)) = reader.read().map_err(no_room)? {
            push(&key, value)?;
        }
        Ok(())
    }

    fn totals(&self) -> (u64, u64) {
        (self.inodes, self.bytes)
    }

    /// None: no byte of a file is in the origin.
    fn packs(&self) -> &[Pack] {
        &[]
    }

    fn source(&self) -> Option<&Source> {
        Some(&self.source)
    }
}

/// What rows are made for.
pub struct Plan<'a> {
    /// The folder for the files of the sorts.
    pub folder: &'a Path,
    /// The bucket that was listed.
    pub bucket: &'a Bucket,
    /// The bucket's name in the tree.
    pub source: Source,
    /// The owner of files and folders.
    pub owner: Owner,
    /// The volume's own rows: what a store of names needs to be one.
    pub volume: Vec<(Key, Value)>,
    /// The last tree of the bucket.
    pub before: Option<&'a Tree>,
}

/// One pass over the objects.
struct Pass<'a> {
    plan: &'a Plan<'a>,
    out: Sorter,
    open: Vec<Folder>,
    next_ino: u64,
    next_pack: u64,
    inodes: u64,
    files: u64,
    bytes: u64,
}

/// Makes the rows of a tree from a listing. `tick` is called for each object with how many are done. If it
/// returns false, this stops.
///
/// # Errors
/// See [`TreeError`].
pub fn rows(
    plan: &Plan<'_>,
    listed: &Listed,
    skip: &mut Skip<'_>,
    tick: &mut dyn FnMut(u64) -> bool,
) -> Result<Rows, TreeError> {
    let mut before = Before::of(plan.before, plan.folder)?;
    let next = |name: &str, least: u64| match plan.before {
        None => Ok(least),
        Some(tree) => {
            let row = meta::MetaStore::get(tree, &Key::volume(name))?;
            let number = row.and_then(|row| Some(u64::from_be_bytes((*row).try_into().ok()?)));
            Ok::<u64, TreeError>(number.unwrap_or(least).max(least))
        }
    };
    let (next_ino, next_pack) = (next("next-ino", Ino::ROOT.0 + 1)?, next("next-pack", 1)?);
    let out = Sorter::new(plan.folder).map_err(no_room)?;
    let root =
        Folder { name: Vec::new(), ino: Ino::ROOT, parent: Ino::ROOT, modified: Timestamp(0), folders: 0 };
    let mut pass = Pass { plan, out, open: vec![root], next_ino, next_pack, inodes: 1, files: 0, bytes: 0 };
    let mut reader = listed.sorted.reader().map_err(no_room)?;
    let mut done = 0;
    let mut at = Entry::next(&mut reader).map_err(no_room)?;
    while let Some(entry) = at {
        let mut next = Entry::next(&mut reader).map_err(no_room)?;
        done += 1;
        if !tick(done) {
            return Err(TreeError::Stopped);
        }
        let is_again = next.as_ref().is_some_and(|next| next.order == entry.order);
        let below = next.as_ref().and_then(|next| next.order.strip_prefix(&*entry.order));
        if is_again {
            // The listing had it twice: it changed meanwhile. The later one is nearer to what is there.
        } else if !entry.is_folder() && below.is_some_and(|below| below.first() == Some(&0)) {
            skip(&entry.key(), "other keys are below it: it would be a file and a folder");
        } else {
            pass.object(&entry, &mut before)?;
        }
        at = next.take();
    }
    pass.finish()
}

impl Pass<'_> {
    fn put(&mut self, key: &Key, value: &[u8]) -> Result<(), TreeError> {
        self.out.push(key.as_bytes(), value).map_err(no_room)
    }

    fn object(&mut self, entry: &Entry, before: &mut Before) -> Result<(), TreeError> {
        let (folders, name) = entry.path();
        let (same, known) = before.find(&entry.order, &folders)?;
        self.enter(&folders, &known)?;
        let object =
            Object { key: entry.key(), size: entry.size, etag: entry.etag.clone(), modified: entry.modified };
        let mut row = ForeignRow {
            key: entry.key(),
            etag: entry.etag.clone(),
            size: entry.size,
            ino: Ino(0),
            change: 0,
            pack: PackNo(0),
            folders: self.open.iter().skip(1).map(|folder| folder.ino).collect(),
        };
        let folder = self.open.last_mut();
        let parent = folder.map_or(Ino::ROOT, |folder| {
            folder.modified = folder.modified.max(entry.modified);
            folder.ino
        });
        let id = self.plan.bucket.identity(&object);
        if !entry.is_folder() {
            let same = same.filter(|same| same.ino.0 != 0);
            let is_unchanged =
                same.as_ref().is_some_and(|same| (&same.etag, same.size) == (&row.etag, row.size));
            row.ino = same.as_ref().map_or_else(|| self.take_ino(), |same| same.ino);
            row.change = match &same {
                None => 1,
                Some(same) if is_unchanged => same.change,
                Some(same) => InodeRecord::next_change(same.change, true),
            };
            row.pack = match same.filter(|_| is_unchanged) {
                Some(same) => same.pack,
                None => self.take_packs(entry.size),
            };
            self.file(parent, name, entry.modified, &row)?;
            self.parts(&row, |part| BlobId::foreign(id, part))?;
        }
        self.put(&Key::foreign(id), &row.encode())
    }

    fn take_ino(&mut self) -> Ino {
        self.next_ino += 1;
        Ino(self.next_ino - 1)
    }

    /// A number for each part of an object.
    fn take_packs(&mut self, size: u64) -> PackNo {
        let count = u64::from(parts(size).unwrap_or(0));
        if count == 0 {
            return PackNo(0);
        }
        self.next_pack += count;
        PackNo(self.next_pack - count)
    }

    fn record(&self, kind: u32, parent: Ino, modified: Timestamp) -> InodeRecord {
        let Owner { uid, gid, umask } = self.plan.owner;
        let rights = if kind == mode::S_IFDIR { 0o777 } else { 0o666 };
        InodeRecord {
            mode: kind | rights & !umask,
            flags: 0,
            uid,
            gid,
            nlink: 1,
            rdev: 0,
            size: 0,
            stored: 0,
            parent,
            atime: modified,
            mtime: modified,
            ctime: modified,
            btime: modified,
            change: 0,
            xattr_list: 0,
            xattr_bytes: 0,
            quota: Ino(0),
        }
    }

    fn file(
        &mut self,
        parent: Ino,
        name: &[u8],
        modified: Timestamp,
        row: &ForeignRow,
    ) -> Result<(), TreeError> {
        let record = InodeRecord {
            size: row.size,
            stored: row.size,
            change: row.change,
            flags: InodeRecord::HAS_XATTRS,
            xattr_list: ETAG.len() as u32 + 1,
            xattr_bytes: row.etag.len() as u32,
            ..self.record(mode::S_IFREG, parent, modified)
        };
        self.put(&Key::inode(row.ino), &record.encode())?;
        self.put(&Key::xattr(row.ino, ETAG), row.etag.as_bytes())?;
        self.put(&Key::dentry(parent, name), &Dentry { ino: row.ino, kind: mode::S_IFREG }.encode())?;
        (self.inodes, self.files, self.bytes) = (self.inodes + 1, self.files + 1, self.bytes + row.size);
        Ok(())
    }

    /// The packs of a file, and its extents.
    fn parts(&mut self, row: &ForeignRow, blob: impl Fn(u32) -> BlobId) -> Result<(), TreeError> {
        const A_PAGE: u32 = ExtentPage::SPAN / PART;
        let count = parts(row.size).unwrap_or(0);
        let mut page = ExtentPage::new();
        for part in 0..count {
            let size = range_of(part, row.size).map_or(0, |range| range.end - range.start) as u32;
            let pack = PackNo(row.pack.0 + u64::from(part));
            self.put(&Key::pack(pack), &PackRow::Sealed { blob: blob(part), size }.encode())?;
            page.insert(Extent { at: part % A_PAGE * PART, len: size, pack, offset: 0 });
            if part % A_PAGE == A_PAGE - 1 || part + 1 == count {
                let extents = std::mem::take(&mut page);
                self.put(&Key::extents(row.ino, part / A_PAGE), &extents.encode())?;
            }
        }
        Ok(())
    }

    /// Opens the folders of a path, and closes those that do not lead there.
    fn enter(&mut self, folders: &[&[u8]], known: &[Option<Ino>]) -> Result<(), TreeError> {
        let open = self.open.iter().skip(1).zip(folders);
        let shared = open.take_while(|(open, folder)| open.name == **folder).count();
        while self.open.len() > shared + 1 {
            self.leave()?;
        }
        for (folder, known) in folders.iter().zip(known).skip(shared) {
            let ino = known.unwrap_or_else(|| self.take_ino());
            let parent = self.open.last_mut().map_or(Ino::ROOT, |parent| {
                parent.folders += 1;
                parent.ino
            });
            self.put(&Key::dentry(parent, folder), &Dentry { ino, kind: mode::S_IFDIR }.encode())?;
            self.inodes += 1;
            let name = folder.to_vec();
            self.open.push(Folder { name, ino, parent, modified: Timestamp(0), folders: 0 });
        }
        Ok(())
    }

    /// Closes the innermost folder. Its time is that of its newest object, or of its newest folder.
    fn leave(&mut self) -> Result<(), TreeError> {
        let Some(folder) = self.open.pop() else { return Ok(()) };
        if let Some(parent) = self.open.last_mut() {
            parent.modified = parent.modified.max(folder.modified);
        }
        let record = self.record(mode::S_IFDIR, folder.parent, folder.modified);
        self.put(&Key::inode(folder.ino), &record.encode())?;
        if folder.folders > 0 {
            self.put(&Key::subdirs(folder.ino), &encode_i64(folder.folders as i64))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Rows, TreeError> {
        while !self.open.is_empty() {
            self.leave()?;
        }
        for (key, value) in self.plan.volume.clone() {
            self.put(&key, &value)?;
        }
        self.put(&Key::volume("inodes"), &encode_i64(self.inodes as i64))?;
        if self.bytes > 0 {
            self.put(&Key::volume("bytes"), &encode_i64(self.bytes as i64))?;
        }
        self.put(&Key::volume("next-ino"), &encode_u64(self.next_ino))?;
        self.put(&Key::volume("next-pack"), &encode_u64(self.next_pack))?;
        let sorted = self.out.finish().map_err(no_room)?;
        let Pass { plan, inodes, files, bytes, .. } = self;
        Ok(Rows { sorted, source: plan.source.clone(), inodes, files, bytes })
    }
}

/// The error of a file of a sort.
fn no_room(error: io::Error) -> TreeError {
    TreeError::Blob(error.into())
}

#[cfg(test)]
mod tests;
