//! Ranges of remote blobs that hold names, kept on this node's disk as they were read.
//!
//! A lookup in a published tree reads a tree node: a small part of a blob of up to 4 MiB. The blob cache
//! keeps whole blobs on disk, and such parts in memory only. Blobs of names are read seldom and are soon
//! evicted. Without this cache, a tree could not be opened after a restart without its store, even if it had
//! been read from end to end before. So each range that is read is kept here, in two files. Ranges in use are
//! appended to `names`. When `names` is full it replaces `names.old`.
//!
//! ```text
//!   file    magic 4 B "covN"  version 4 B   then entries
//!   entry   blob 32 B  offset 4 B  length 4 B  CRC32C 4 B (of the three before, and of the bytes)   bytes
//! ```
//!
//! An entry that ends too early, or whose length is invalid, ends its file. An entry with a wrong CRC counts
//! as absent. Nothing is synced: what a power cut takes is read from the origin again. The reader also
//! compares the bytes with the hash that the tree names.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::BlobId;
use base::size::BLOB_MAX;
use blob::completion::{Completion, Start};
use blob::sums::crc32c;
use blob::{Access, BlobError, BlobSource, Sums};
use hashbrown::HashMap;
use parking_lot::Mutex;

const HEAD: [u8; 8] = *b"covN\0\0\0\x01";
/// Length of an entry before its bytes.
const ENTRY: usize = 44;

type Place = (BlobId, u32, u32);

/// One of the two files.
struct Half {
    file: Arc<File>,
    len: u64,
    /// Where the bytes of each range begin, and their CRC.
    places: HashMap<Place, (u64, u32)>,
}

struct State {
    young: Half,
    old: Option<Half>,
    /// The disk failed, so nothing more is kept.
    off: bool,
}

/// A source of blobs that keeps the ranges it reads. See the [module](self).
pub struct NameCache {
    source: Arc<dyn BlobSource>,
    folder: PathBuf,
    /// Maximum bytes of each file.
    half: u64,
    state: Mutex<State>,
    report: Arc<dyn Fn(&str) + Send + Sync>,
}

impl NameCache {
    /// Opens a cache in front of `source`, in a folder that only this process uses. Keeps at most `budget`
    /// bytes.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub fn open(
        source: Arc<dyn BlobSource>,
        folder: &Path,
        budget: u64,
        report: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> io::Result<NameCache> {
        let young = Half::open(&folder.join("names"))?;
        let old = Half::look(&folder.join("names.old"))?;
        let state = Mutex::new(State { young, old, off: false });
        Ok(NameCache { source, folder: folder.to_owned(), half: budget / 2, state, report })
    }

    /// Drops all kept ranges.
    ///
    /// # Errors
    /// The system's error.
    pub fn clear(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.old = None;
        remove(&self.folder.join("names.old"))?;
        remove(&self.folder.join("names"))?;
        state.young = Half::open(&self.folder.join("names"))?;
        Ok(())
    }

    /// Reads a kept range. False if it is not kept or is damaged.
    fn find(&self, place: &Place, buf: &mut [u8]) -> bool {
        let (file, (at, crc), is_old) = {
            let state = self.state.lock();
            let look = |half: &Half| Some((half.file.clone(), *half.places.get(place)?));
            match (look(&state.young), state.old.as_ref().and_then(look)) {
                (Some((file, found)), _) => (file, found, false),
                (None, Some((file, found))) => (file, found, true),
                (None, None) => return false,
            }
        };
        if file.read_exact_at(buf, at).is_err() || crc_of(place, buf) != crc {
            let mut state = self.state.lock();
            state.young.places.remove(place);
            if let Some(old) = &mut state.old {
                old.places.remove(place);
            }
            return false;
        }
        if is_old {
            self.keep(place, buf, true);
        }
        true
    }

    /// Keeps a range. `makes_room`: may discard older ranges. A range whose blob is on the disk may not do
    /// so. It is kept only while there is room, in case its blob is evicted.
    fn keep(&self, place: &Place, bytes: &[u8], makes_room: bool) {
        let mut state = self.state.lock();
        let fits = state.young.len + (ENTRY + bytes.len()) as u64 <= self.half;
        let is_kept = state.young.places.contains_key(place);
        if state.off || is_kept || !(fits || makes_room) || bytes.len() as u64 > self.half / 2 {
            return;
        }
        if let Err(error) = self.append(&mut state, place, bytes) {
            state.off = true;
            drop(state);
            let folder = self.folder.display();
            (self.report)(&format!(
                "names are not kept in {folder} any more: {error}; reads go on from the origin"
            ));
        }
    }

    fn append(&self, state: &mut State, place: &Place, bytes: &[u8]) -> io::Result<()> {
        if state.young.len + (ENTRY + bytes.len()) as u64 > self.half {
            let (young, old) = (self.folder.join("names"), self.folder.join("names.old"));
            fs::rename(&young, &old)?;
            state.old = Some(std::mem::replace(&mut state.young, Half::open(&young)?));
        }
        state.young.append(place, bytes)
    }
}

impl Half {
    /// Opens a file. Creates it if it is absent, and starts it anew if it cannot be parsed.
    fn open(path: &Path) -> io::Result<Half> {
        if let Some(half) = Half::look(path)? {
            return Ok(half);
        }
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(&HEAD)?;
        Ok(Half { file: Arc::new(file), len: HEAD.len() as u64, places: HashMap::new() })
    }

    /// Opens a file. None if it is absent or cannot be parsed.
    fn look(path: &Path) -> io::Result<Option<Half>> {
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let size = file.metadata()?.len();
        let mut head = [0; HEAD.len()];
        if file.read_exact_at(&mut head, 0).is_err() || head != HEAD {
            return Ok(None);
        }
        let (mut at, mut places) = (HEAD.len() as u64, HashMap::new());
        let mut entry = [0; ENTRY];
        while file.read_exact_at(&mut entry, at).is_ok() {
            let Some((place, crc)) = decode(&entry) else { break };
            let end = at + (ENTRY as u64) + u64::from(place.2);
            if end > size {
                break;
            }
            places.insert(place, (at + ENTRY as u64, crc));
            at = end;
        }
        // Cut a partial entry off, so that the next one overwrites it.
        file.set_len(at)?;
        Ok(Some(Half { file: Arc::new(file), len: at, places }))
    }

    fn append(&mut self, place: &Place, bytes: &[u8]) -> io::Result<()> {
        let crc = crc_of(place, bytes);
        let mut entry = Vec::with_capacity(ENTRY + bytes.len());
        entry.extend_from_slice(&head_of(place));
        entry.extend_from_slice(&crc.to_be_bytes());
        entry.extend_from_slice(bytes);
        self.file.write_all_at(&entry, self.len)?;
        self.places.insert(*place, (self.len + ENTRY as u64, crc));
        self.len += entry.len() as u64;
        Ok(())
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn head_of((blob, offset, len): &Place) -> Vec<u8> {
    [&blob.0[..], &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

fn crc_of(place: &Place, bytes: &[u8]) -> u32 {
    crc32c(&[&head_of(place), bytes].concat())
}

/// Decodes the header of an entry. None if it is invalid.
fn decode(entry: &[u8; ENTRY]) -> Option<(Place, u32)> {
    let number = |from: usize| Some(u32::from_be_bytes(entry.get(from..from + 4)?.try_into().ok()?));
    let blob = BlobId(entry.get(..32)?.try_into().ok()?);
    let (offset, len, crc) = (number(32)?, number(36)?, number(40)?);
    (1..=BLOB_MAX).contains(&len).then_some(((blob, offset, len), crc))
}

impl BlobSource for NameCache {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.read_as(id, offset, buf, Access::Normal)
    }

    fn read_as(&self, id: &BlobId, offset: u32, buf: &mut [u8], access: Access) -> Result<(), BlobError> {
        let place = (*id, offset, u32::try_from(buf.len()).unwrap_or(u32::MAX));
        if buf.is_empty() || !self.find(&place, buf) {
            let was_local = self.source.is_local(id);
            self.source.read_as(id, offset, buf, access)?;
            if !buf.is_empty() {
                self.keep(&place, buf, !was_local);
            }
        }
        Ok(())
    }

    fn is_local(&self, id: &BlobId) -> bool {
        self.source.is_local(id)
    }

    fn will_need(&self, id: &BlobId) {
        self.source.will_need(id);
    }

    fn will_need_part(&self, id: &BlobId, offset: u32, len: u32) {
        self.source.will_need_part(id, offset, len);
    }

    fn evict_last(&self, id: &BlobId) {
        self.source.evict_last(id);
    }

    fn evict_as_usual(&self) {
        self.source.evict_as_usual();
    }

    fn in_use(&self, id: &BlobId) -> bool {
        self.source.in_use(id)
    }

    fn start_read(&self, id: &BlobId, range: Range<u32>, access: Access, completion: Completion) -> Start {
        self.source.start_read(id, range, access, completion)
    }

    fn file_of(&self, id: &BlobId) -> Option<(File, Sums)> {
        self.source.file_of(id)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A source whose bytes derive from blob and offset. It counts reads, and fails while it is `away`.
    #[derive(Default)]
    struct Far {
        asked: AtomicU64,
        away: std::sync::atomic::AtomicBool,
    }

    impl BlobSource for Far {
        fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            if self.away.load(Ordering::SeqCst) {
                return Err(BlobError::Unavailable("away".to_owned()));
            }
            buf.fill(id.0[0] ^ offset as u8);
            Ok(())
        }

        fn is_local(&self, _: &BlobId) -> bool {
            false
        }
    }

    fn open(far: &Arc<Far>, folder: &Path, budget: u64) -> NameCache {
        NameCache::open(far.clone(), folder, budget, Arc::new(|_| ())).unwrap()
    }

    fn read(cache: &NameCache, blob: u8, offset: u32) -> Option<Vec<u8>> {
        let mut buf = vec![0; 1000];
        cache.read_at(&BlobId([blob; 32]), offset, &mut buf).ok().map(|()| buf)
    }

    /// Names that were read were kept in memory only, and lost with the process.
    #[test]
    fn regression_names_that_were_read_are_there_after_a_restart() {
        let (temp, far) = (tempfile::tempdir().unwrap(), Arc::new(Far::default()));
        let cache = open(&far, temp.path(), 1 << 20);
        (0..50).for_each(|n| drop(read(&cache, 7, n * 1000).unwrap()));
        drop(cache);
        far.away.store(true, Ordering::SeqCst);
        let cache = open(&far, temp.path(), 1 << 20);
        for n in 0..50 {
            assert_eq!(read(&cache, 7, n * 1000).unwrap(), vec![7 ^ (n * 1000) as u8; 1000]);
        }
        assert_eq!(far.asked.load(Ordering::SeqCst), 50);
        assert!(read(&cache, 8, 0).is_none(), "what was not read is not here");
        cache.clear().unwrap();
        assert!(read(&cache, 7, 0).is_none());
    }

    #[test]
    fn the_two_files_keep_what_is_used_within_their_bound() {
        let (temp, far) = (tempfile::tempdir().unwrap(), Arc::new(Far::default()));
        let cache = open(&far, temp.path(), 40_000);
        for n in 0..200 {
            read(&cache, 1, n).unwrap();
            read(&cache, 9, 0).unwrap();
        }
        assert_eq!(far.asked.load(Ordering::SeqCst), 201, "what is used again stays");
        let size: u64 =
            fs::read_dir(temp.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
        assert!(size <= 40_000, "{size}");
    }

    #[test]
    fn what_is_damaged_or_cut_short_is_not_there() {
        let (temp, far) = (tempfile::tempdir().unwrap(), Arc::new(Far::default()));
        let cache = open(&far, temp.path(), 1 << 20);
        (0..3).for_each(|n| drop(read(&cache, 3, n).unwrap()));
        drop(cache);
        let path = temp.path().join("names");
        let mut bytes = fs::read(&path).unwrap();
        let len = bytes.len();
        bytes[HEAD.len() + ENTRY + 5] ^= 1;
        fs::write(&path, &bytes[..len - 1]).unwrap();
        far.away.store(true, Ordering::SeqCst);
        let cache = open(&far, temp.path(), 1 << 20);
        assert!(read(&cache, 3, 0).is_none() && read(&cache, 3, 1).is_some() && read(&cache, 3, 2).is_none());
        far.away.store(false, Ordering::SeqCst);
        assert!(read(&cache, 3, 2).is_some());
        drop(cache);
        fs::write(&path, b"something else").unwrap();
        assert!(read(&open(&far, temp.path(), 1 << 20), 3, 0).is_some());
    }
}
