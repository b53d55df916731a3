//! What the database certainly does not hold, so that it need not be asked.
//!
//! Creating a file mostly asks for rows that do *not* exist: the name, its content, its extents, its
//! attributes. Asking SQLite for an absent row costs more than all the rest of creating the file. Two
//! structures answer instead:
//!
//! - **The highest number of each kind.** Inodes and packs are numbered upwards. So the database holds no row
//!   about a number beyond the highest that ever reached it.
//! - **A filter of names and contents**, which are not numbered: a Bloom filter (B. H. Bloom, 1970) in blocks
//!   of one cache line (F. Putze and others, 2007). It says "certainly not" or "perhaps".
//!
//! Both err only towards "perhaps". Rows are added to them before the database gets the rows, under the
//! journal's drain lock. A removed row is not taken out. When the filter holds more keys than it was made
//! for, a new one is built from the database. The first filter of a database that had rows when it was opened
//! needs a scan. Until that is complete, names are looked up in the database.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use hashbrown::DefaultHashBuilder;
use parking_lot::RwLock;

use super::Shared;
use super::overlay::RowMap;
use crate::engine::Sqlite;
use crate::key::{Key, KeyRange, tags};
use crate::record::decode_i64;
use crate::store::StoreError;

/// Number of row kinds: one more than the highest tag.
const KINDS: usize = tags::HELD as usize + 1;
/// Kinds whose keys continue with a number.
const NUMBERED: [u8; 11] = [
    tags::INODE,
    tags::DENTRY,
    tags::TRASH,
    tags::EXTENTS,
    tags::INLINE,
    tags::XATTR,
    tags::DIR_CHANGED,
    tags::SUBDIRS,
    tags::ORPHAN,
    tags::PACK,
    tags::PACK_LIVE,
];
/// Kinds that the filter holds.
const FILTERED: [u8; 2] = [tags::DENTRY, tags::CONTENT];
/// A filter is made for at least this many keys.
const KEYS_MIN: usize = 32 << 10;
/// A filter never takes more memory than this, in bytes. With more keys than fit it says "perhaps" more
/// often.
const BYTES_MAX: usize = 32 << 20;
/// Bits for each key. With four probes in a block, about one absent key in thirty is looked up needlessly.
const BITS_PER_KEY: usize = 8;
const BLOCK_WORDS: usize = 8;
/// Rows read in one go while a filter is built, so that SQLite can checkpoint its log in between.
const SCAN_ROWS: usize = 4096;

/// One cache line.
#[repr(align(64))]
#[derive(Default)]
struct Block([AtomicU64; BLOCK_WORDS]);

/// See the module.
struct Filter {
    blocks: Box<[Block]>,
    /// Keys put in; a key that was there before counts again.
    keys: AtomicUsize,
    room: usize,
}

impl Filter {
    fn for_keys(keys: usize) -> Filter {
        let room = keys.max(KEYS_MIN);
        let bytes = (room * BITS_PER_KEY / 8).min(BYTES_MAX);
        let blocks = (bytes / size_of::<Block>()).max(1);
        Filter { blocks: (0..blocks).map(|_| Block::default()).collect(), keys: AtomicUsize::new(0), room }
    }

    /// The block of a hash and four bits in it, each chosen by nine bits of the hash.
    fn probes(&self, hash: u64) -> (&Block, [(usize, u64); 4]) {
        let at = ((hash >> 36).wrapping_mul(self.blocks.len() as u64) >> 28) as usize;
        let bit = |n: u32| {
            let bit = (hash >> (9 * n)) as usize % (64 * BLOCK_WORDS);
            (bit / 64, 1u64 << (bit % 64))
        };
        (&self.blocks[at], [bit(0), bit(1), bit(2), bit(3)])
    }

    fn put(&self, key: &[u8]) {
        let (block, bits) = self.probes(hash(key));
        for (word, bit) in bits {
            block.0[word].fetch_or(bit, Ordering::Relaxed);
        }
        self.keys.fetch_add(1, Ordering::Relaxed);
    }

    fn may_have(&self, key: &[u8]) -> bool {
        let (block, bits) = self.probes(hash(key));
        bits.iter().all(|(word, bit)| block.0[*word].load(Ordering::Relaxed) & bit != 0)
    }

    fn is_full(&self) -> bool {
        self.keys.load(Ordering::Relaxed) > self.room
    }
}

/// Constant for a key within this process only: filters are never stored.
fn hash(key: &[u8]) -> u64 {
    static SEED: LazyLock<DefaultHashBuilder> = LazyLock::new(DefaultHashBuilder::default);
    SEED.hash_one(key)
}

/// See the module.
pub(super) struct Absent {
    highest: [AtomicU64; KINDS],
    /// Every row that reaches the database is added to both. The second exists while it is being built.
    filters: RwLock<(Arc<Filter>, Option<Arc<Filter>>)>,
    /// The first filter covers every row of the database.
    complete: AtomicBool,
}

impl Absent {
    /// The state of the database as it is now.
    pub(super) fn of(sqlite: &Sqlite) -> Result<Absent, StoreError> {
        let highest = [const { AtomicU64::new(0) }; KINDS];
        for tag in NUMBERED {
            let last = sqlite.last_key(&Key::kind(tag))?.and_then(|key| key.number());
            highest[tag as usize].store(last.unwrap_or(0), Ordering::Relaxed);
        }
        let mut is_empty = true;
        for tag in FILTERED {
            is_empty &= sqlite.last_key(&Key::kind(tag))?.is_none();
        }
        let filters = RwLock::new((Arc::new(Filter::for_keys(0)), None));
        Ok(Absent { highest, filters, complete: AtomicBool::new(is_empty) })
    }

    /// Whether the database certainly does not hold this row. The caller is inside the gate, and the overlay
    /// does not have it.
    pub(super) fn is_absent(&self, key: &Key) -> bool {
        let tag = key.tag();
        if NUMBERED.contains(&tag) && key.number().is_some_and(|number| number > self.highest_of(tag)) {
            return true;
        }
        FILTERED.contains(&tag)
            && self.complete.load(Ordering::Acquire)
            && !self.filters.read().0.may_have(key.as_bytes())
    }

    /// Whether the database certainly holds no row of this range.
    pub(super) fn is_empty(&self, range: &KeyRange) -> bool {
        let tag = range.start.tag();
        NUMBERED.contains(&tag)
            && range.end <= Key::kind(tag).end
            && range.start.number().is_some_and(|number| number > self.highest_of(tag))
    }

    fn highest_of(&self, tag: u8) -> u64 {
        self.highest.get(usize::from(tag)).map_or(u64::MAX, |highest| highest.load(Ordering::Acquire))
    }

    /// Notes rows that are about to be written to the database.
    pub(super) fn announce(&self, rows: &RowMap) {
        let filters = self.filters.read();
        for key in rows.iter().filter(|(_, value)| value.is_some()).map(|(key, _)| key) {
            let tag = key.tag();
            if NUMBERED.contains(&tag)
                && let Some(number) = key.number()
            {
                self.highest[usize::from(tag)].fetch_max(number, Ordering::AcqRel);
            }
            if FILTERED.contains(&tag) {
                filters.0.put(key.as_bytes());
                filters.1.iter().for_each(|filter| filter.put(key.as_bytes()));
            }
        }
    }

    /// Whether a new filter should be built from the database.
    pub(super) fn wants_scan(&self) -> bool {
        !self.complete.load(Ordering::Acquire) || self.filters.read().0.is_full()
    }

    /// From now on, rows that are about to reach the database also go into a new filter. No drain may run
    /// during this call.
    fn begin(&self, keys: usize) -> Arc<Filter> {
        let made = Arc::new(Filter::for_keys(keys));
        self.filters.write().1 = Some(made.clone());
        made
    }

    /// The new filter now also covers what the database held when it was begun. Without one, the old filter
    /// stays.
    fn end(&self, made: Option<Arc<Filter>>) {
        let mut filters = self.filters.write();
        filters.1 = None;
        if let Some(made) = made {
            filters.0 = made;
            self.complete.store(true, Ordering::Release);
        }
    }
}

impl Shared {
    /// Starts to build a filter if one is wanted, on its own thread: it takes about a second for a million
    /// files.
    pub(super) fn renew_filter(self: &Arc<Self>) {
        let Some(mut scanner) = self.scanner.try_lock() else { return };
        if !self.absent.wants_scan() || scanner.as_ref().is_some_and(|scanner| !scanner.is_finished()) {
            return;
        }
        let work = self.clone();
        // Without a thread, or with an unreadable database, only speed is lost. The next reader of the
        // database gets the error.
        *scanner = base::thread::spawn("covey-filter", move || drop(work.make_filter())).ok();
    }

    fn make_filter(&self) -> Result<(), StoreError> {
        let inodes = self.sqlite.read_rows(&[&Key::volume("inodes")])?.pop().flatten();
        let inodes = decode_i64(inodes.as_deref()).unwrap_or(0).max(0) as usize;
        let made = {
            let _none_on_its_way = self.draining.lock();
            // A name and a content for each inode, and the same number again for growth.
            self.absent.begin(inodes.saturating_mul(4))
        };
        let done = FILTERED.into_iter().try_for_each(|tag| self.scan_into(&made, Key::kind(tag)));
        self.absent.end(done.is_ok().then_some(made));
        done
    }

    fn scan_into(&self, filter: &Filter, mut rest: KeyRange) -> Result<(), StoreError> {
        while rest.start < rest.end {
            self.alive()?;
            if self.wake.lock().stop {
                return Err(StoreError::Unavailable("the volume is being unmounted".to_owned()));
            }
            let (mut rows, mut last) = (0, None);
            self.sqlite.each(&rest, |key, _| {
                filter.put(key);
                rows += 1;
                if rows == SCAN_ROWS {
                    last = Some(Key::from_bytes(key));
                }
                rows < SCAN_ROWS
            })?;
            rest.start = last.map_or_else(|| rest.end.clone(), |key| key.successor());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
