//! Warming by a recorded list: fetches the ranges of files that a program will read, in that order.
//!
//! ```text
//!   ranges of files ─► names, in parallel ─► ranges of blobs, in order ─► merged by blob
//!                                                                          └─► fetched, in parallel
//! ```
//!
//! Ranges of one blob are fetched where the first of them stands in the list. Small gaps between them are
//! fetched too, because a request costs more than the gap. A blob of which half is wanted is fetched as a
//! whole, and kept on the disk. Parts are kept in memory, as they are when a program reads them.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use api::answers::{Missed, NAMED, WarmSummary};
use api::control::Tick;
use api::error::{Failure, Result};
use api::reads::ReadRange;
use api::text::{bytes, count};
use base::size::{BLOB_MAX, MIB};
use base::{BlobId, Ino};
use blob::{Access, BlobSource};
use cache::{NodeCache, Warmed};
use meta::store::StoreError;
use meta::{Names, PackRow};
use parking_lot::Mutex;

/// Bytes of a page of a file.
const PAGE: u64 = BLOB_MAX as u64;
/// The number of parallel fetches, and of files whose names are looked up in parallel.
const HANDS: usize = 16;
/// A gap of at most so many bytes is fetched with what is around it.
const GAP: u32 = 128 << 10;
/// How often to say how far it is.
const TICK: Duration = Duration::from_millis(250);
/// Bytes that are read at a time.
const PIECE: usize = MIB as usize;

/// A range of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    blob: BlobId,
    /// The blob's size in bytes.
    size: u32,
    from: u32,
    to: u32,
}

/// What is wanted of a blob: ranges in order, with no small gaps. One range is the whole of it.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    blob: BlobId,
    size: u32,
    ranges: Vec<(u32, u32)>,
    /// Where the first of them is in the list, for messages.
    first: usize,
}

impl Wanted {
    fn is_whole(&self) -> bool {
        self.ranges == [(0, self.size)]
    }

    fn bytes(&self) -> u64 {
        self.ranges.iter().map(|(from, to)| u64::from(to - from)).sum()
    }
}

/// Puts ranges together, blob by blob, in the order in which the blobs are needed first.
fn plan(pieces: &[(usize, Piece)]) -> Vec<Wanted> {
    let mut places: HashMap<BlobId, usize> = HashMap::new();
    let mut all: Vec<Wanted> = Vec::new();
    for (first, Piece { blob, size, from, to }) in pieces {
        let place = *places.entry(*blob).or_insert_with(|| {
            all.push(Wanted { blob: *blob, size: *size, ranges: Vec::new(), first: *first });
            all.len() - 1
        });
        all[place].ranges.push((*from, *to));
    }
    for wanted in &mut all {
        wanted.ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::new();
        for &(from, to) in &wanted.ranges {
            match merged.last_mut() {
                Some(last) if from <= last.1.saturating_add(GAP) => last.1 = last.1.max(to),
                _ => merged.push((from, to)),
            }
        }
        wanted.ranges = merged;
        if wanted.bytes() * 2 >= u64::from(wanted.size) {
            wanted.ranges = vec![(0, wanted.size)];
        }
    }
    all
}

/// What is known of the names.
#[derive(Default)]
struct Found {
    pieces: Vec<(usize, Piece)>,
    gone: u64,
    failed: Vec<Missed>,
    failed_count: u64,
}

impl Found {
    fn fail(&mut self, path: &Path, why: String) {
        self.failed_count += 1;
        if self.failed.len() < NAMED {
            self.failed.push(Missed { path: format!("/{}", path.display()), why });
        }
    }
}

fn find(names: &Names, path: &Path) -> std::result::Result<Option<Ino>, StoreError> {
    let mut ino = Ino::ROOT;
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        match names.lookup(ino, name.as_bytes())? {
            Some(found) => ino = found.ino,
            None => return Ok(None),
        }
    }
    Ok(Some(ino))
}

/// The ranges of blobs that hold a range of a file.
fn pieces_of(names: &Names, ino: Ino, read: &ReadRange) -> std::result::Result<Vec<Piece>, StoreError> {
    let mut pieces = Vec::new();
    let end = read.offset.saturating_add(read.len);
    let page_of = |offset: u64| u32::try_from(offset / PAGE).unwrap_or(u32::MAX);
    let (mut page, last) = (page_of(read.offset), page_of(end.saturating_sub(1)));
    loop {
        let found = names.extent_pages(ino, page, 64)?;
        for (number, extents) in found.iter().take_while(|(number, _)| *number <= last) {
            let base = u64::from(*number) * PAGE;
            for extent in extents.extents() {
                let start = base + u64::from(extent.at);
                let (from, to) = (read.offset.max(start), end.min(start + u64::from(extent.len)));
                if from >= to {
                    continue;
                }
                if let Some(PackRow::Sealed { blob, size }) = names.pack(extent.pack)? {
                    let at = extent.offset + (from - start) as u32;
                    pieces.push(Piece { blob, size, from: at, to: at + (to - from) as u32 });
                }
            }
        }
        match found.last().and_then(|(number, _)| number.checked_add(1)) {
            Some(next) if next <= last => page = next,
            _ => return Ok(pieces),
        }
    }
}

/// Looks up everything that the list names.
fn look_up(names: &Names, reads: &[ReadRange], so_far: &SoFar) -> Found {
    // A file stands for all its ranges: one lookup.
    let mut files: Vec<(&Path, Vec<usize>)> = Vec::new();
    let mut places: HashMap<&Path, usize> = HashMap::new();
    for (at, read) in reads.iter().enumerate() {
        let place = *places.entry(&read.path).or_insert_with(|| {
            files.push((&read.path, Vec::new()));
            files.len() - 1
        });
        files[place].1.push(at);
    }
    so_far.files.store(files.len() as u64, Ordering::Relaxed);
    let found = Mutex::new(Found::default());
    let work = |(path, ranges): &(&Path, Vec<usize>)| {
        let looked_up = find(names, path).and_then(|ino| {
            let Some(ino) = ino else { return Ok(None) };
            let pieces_at = |&at: &usize| Ok((at, pieces_of(names, ino, &reads[at])?));
            ranges.iter().map(pieces_at).collect::<std::result::Result<Vec<_>, StoreError>>().map(Some)
        });
        so_far.looked_up.fetch_add(1, Ordering::Relaxed);
        let mut found = found.lock();
        match looked_up {
            Ok(None) => found.gone += 1,
            Ok(Some(all)) => {
                let flat =
                    all.into_iter().flat_map(|(at, pieces)| pieces.into_iter().map(move |one| (at, one)));
                found.pieces.extend(flat);
            }
            Err(error) => found.fail(path, error.to_string()),
        }
        Ok::<(), ()>(())
    };
    let _ = base::thread::for_each("covey-warm", HANDS, &files, work);
    let mut found = found.into_inner();
    found.pieces.sort_by_key(|(at, _)| *at);
    found
}

/// Fetches one blob's ranges. Returns whether anything had to be fetched.
fn fetch(cache: &NodeCache, wanted: &Wanted) -> std::result::Result<bool, String> {
    if cache.is_local(&wanted.blob) {
        return Ok(false);
    }
    if wanted.is_whole() {
        let warmed = cache.warm(&wanted.blob).map_err(|error| error.to_string())?;
        return Ok(!matches!(warmed, Warmed::Here));
    }
    let mut buf = vec![0; PIECE];
    for &(from, to) in &wanted.ranges {
        for at in (from..to).step_by(PIECE) {
            let len = (to - at).min(PIECE as u32) as usize;
            let read = cache.read_as(&wanted.blob, at, &mut buf[..len], Access::Random);
            read.map_err(|error| error.to_string())?;
        }
    }
    Ok(true)
}

/// How far it is.
#[derive(Debug, Default)]
struct SoFar {
    files: AtomicU64,
    looked_up: AtomicU64,
    /// Bytes that are wanted. 0 until everything is looked up.
    total: AtomicU64,
    done: AtomicU64,
}

impl SoFar {
    fn tick(&self) -> Tick {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (done, of) = (get(&self.done), get(&self.total));
        let what = match of {
            0 => format!("looked up {} of {} files", count(get(&self.looked_up)), count(get(&self.files))),
            _ => format!("{} of {}", bytes(done), bytes(of)),
        };
        Tick { done, of, what }
    }
}

/// Does `work` on a thread of its own, and says every `pause` how far it is. The command takes a daemon that
/// says nothing for long for one that hangs.
fn told<T: Send + 'static>(
    work: impl FnOnce(&SoFar) -> T + Send + 'static,
    pause: Duration,
    tick: &mut dyn FnMut(Tick),
) -> Result<T> {
    let so_far = Arc::new(SoFar::default());
    let (theirs, (tell, told)) = (so_far.clone(), sync_channel(1));
    let worker = base::thread::spawn("covey-warm", move || drop(tell.send(work(&theirs))))
        .map_err(|error| Failure::io("cannot start a thread to fetch with", &error))?;
    let done = loop {
        match told.recv_timeout(pause) {
            Ok(done) => break Some(done),
            Err(RecvTimeoutError::Timeout) => tick(so_far.tick()),
            Err(RecvTimeoutError::Disconnected) => break None,
        }
    };
    let _ = worker.join();
    done.ok_or_else(|| Failure::new("io", "fetching ended by a panic").next("look at the log of the mount"))
}

/// Fetches the ranges of a list. Files that are gone are counted, and no failure.
pub fn warm(
    cache: &Arc<NodeCache>,
    names: &Names,
    reads: &[ReadRange],
    tick: &mut dyn FnMut(Tick),
) -> Result<WarmSummary> {
    let (cache, names, reads) = (cache.clone(), names.clone(), reads.to_vec());
    told(move |so_far| warm_all(&cache, &names, &reads, so_far), TICK, tick)
}

fn warm_all(cache: &NodeCache, names: &Names, reads: &[ReadRange], so_far: &SoFar) -> WarmSummary {
    let started = base::time::monotonic();
    let mut found = look_up(names, reads, so_far);
    let all = plan(&found.pieces);
    so_far.total.store(all.iter().map(Wanted::bytes).sum(), Ordering::Relaxed);
    let (here, fetched) = ([const { AtomicU64::new(0) }; 2], [const { AtomicU64::new(0) }; 2]);
    let failed = Mutex::new(&mut found);
    let work = |wanted: &Wanted| {
        let counts = match fetch(cache, wanted) {
            Ok(true) => Some(&fetched),
            Ok(false) => Some(&here),
            Err(why) => {
                failed.lock().fail(&reads[wanted.first].path, why);
                None
            }
        };
        so_far.done.fetch_add(wanted.bytes(), Ordering::Relaxed);
        if let Some(counts) = counts {
            counts[0].fetch_add(1, Ordering::Relaxed);
            counts[1].fetch_add(wanted.bytes(), Ordering::Relaxed);
        }
        Ok::<(), ()>(())
    };
    let _ = base::thread::for_each("covey-warm", HANDS, &all, work);
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let files: std::collections::HashSet<&Path> = reads.iter().map(|read| &*read.path).collect();
    WarmSummary {
        files: files.len() as u64 - found.gone,
        blobs: all.len() as u64,
        here_blobs: get(&here[0]),
        here_bytes: get(&here[1]),
        fetched_blobs: get(&fetched[0]),
        fetched_bytes: get(&fetched[1]),
        failed: std::mem::take(&mut found.failed),
        failed_count: found.failed_count,
        gone: found.gone,
        seconds: started.elapsed().as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(blob: u8, from: u32, to: u32) -> Piece {
        Piece { blob: BlobId([blob; 32]), size: 4 << 20, from, to }
    }

    #[test]
    fn ranges_are_merged_by_blob_in_the_order_of_need() {
        let far = GAP * 4;
        let pieces = [
            piece(2, 0, 100),
            piece(1, far, far + 10),
            piece(2, 90 + GAP, 200 + GAP),
            piece(1, 0, 10),
            piece(1, 5, 20),
        ];
        let numbered: Vec<_> = pieces.into_iter().enumerate().collect();
        let shaped: Vec<_> = plan(&numbered)
            .into_iter()
            .map(|wanted| (wanted.blob.0[0], wanted.ranges, wanted.first))
            .collect();
        assert_eq!(shaped, [(2, vec![(0, 200 + GAP)], 0), (1, vec![(0, 20), (far, far + 10)], 1)]);
    }

    #[test]
    fn half_of_a_blob_is_all_of_it() {
        let half = 2 << 20;
        assert!(plan(&[(0, piece(1, 0, half))])[0].is_whole());
        assert_eq!(plan(&[(0, piece(1, 0, half - 1))])[0].ranges, [(0, half - 1)]);
    }

    /// Nothing was said while names were looked up and ranges fetched, so the command gave up after two
    /// minutes.
    #[test]
    fn regression_a_long_fetch_says_how_far_it_is() {
        let (go, wait) = sync_channel(0);
        let work = move |so_far: &SoFar| {
            so_far.total.store(100, Ordering::Relaxed);
            so_far.done.store(40, Ordering::Relaxed);
            wait.recv().unwrap();
            7
        };
        let mut ticks = Vec::new();
        let mut tick = |tick: Tick| {
            ticks.push((tick.done, tick.of));
            if ticks.iter().filter(|tick| **tick == (40, 100)).count() == 3 {
                go.send(()).unwrap();
            }
        };
        assert_eq!(told(work, Duration::from_millis(20), &mut tick).unwrap(), 7);
        assert!(ticks.ends_with(&[(40, 100); 3]), "{ticks:?}");
        let failed = told(|_| -> u8 { panic!("as the test wants") }, Duration::from_millis(20), &mut |_| ());
        assert_eq!(failed.unwrap_err().code, "io");
    }
}
