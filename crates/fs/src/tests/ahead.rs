//! Which blobs are said to be wanted next, where they come from far away.

use std::collections::HashSet;

use base::BlobId;
use base::size::{BLOB_MAX, KIB, MIB};
use blob::{BlobError, BlobSource};

use super::*;

/// A source of which a test says what is near, and which remembers what it was told will be needed.
struct Watched {
    inner: Arc<dyn BlobSource>,
    near: Mutex<HashSet<BlobId>>,
    read: Mutex<Vec<BlobId>>,
    needed: Mutex<Vec<BlobId>>,
}

impl BlobSource for Watched {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.read.lock().push(*id);
        self.inner.read_at(id, offset, buf)
    }

    fn is_near(&self, id: &BlobId) -> bool {
        self.near.lock().contains(id)
    }

    fn will_need(&self, id: &BlobId) {
        self.needed.lock().push(*id);
    }
}

#[test]
fn a_stream_of_far_blobs_is_looked_ahead_of_and_single_reads_are_not() {
    const PAGES: u64 = 16;
    let mut world = World::new();
    let v = world.open();
    let ino = v.file(Ino::ROOT, "large");
    // A mebibyte of each page, which gets a pack of its own.
    (0..PAGES).for_each(|n| v.put(ino, n * u64::from(BLOB_MAX), &noise(n, MIB as usize)));
    v.close().unwrap();
    let watched = Arc::new(Watched {
        inner: world.parts.source.clone(),
        near: Mutex::default(),
        read: Mutex::default(),
        needed: Mutex::default(),
    });
    world.parts.source = watched.clone();
    let v = Volume::open(world.parts.clone(), Options { near: false, ..world.options() }).unwrap();
    let ino = v.find(Ino::ROOT, "large").unwrap().ino;
    let mut buf = vec![0; 128 * KIB as usize];
    let blobs: Vec<BlobId> = (0..PAGES)
        .map(|n| {
            // Not at the beginning of the page: that is no stream.
            let at = n * u64::from(BLOB_MAX) + 512 * KIB;
            v.read(ino, at, &mut buf).unwrap();
            watched.read.lock().pop().unwrap()
        })
        .collect();
    assert!(watched.needed.lock().is_empty());
    let mut wanted_after = |page: u64| {
        v.read(ino, page * u64::from(BLOB_MAX), &mut buf).unwrap();
        std::mem::take(&mut *watched.needed.lock())
    };
    assert_eq!(wanted_after(0), blobs[1..4], "the beginning of a file may be that of a stream");
    assert_eq!(wanted_after(5), [], "one read in the middle");
    watched.near.lock().insert(blobs[4]);
    assert_eq!(wanted_after(5), blobs[6..], "the page before was brought here");
    watched.near.lock().extend(&blobs[6..13]);
    assert_eq!(wanted_after(5), [&blobs[6..9], &blobs[13..]].concat(), "what is here is not fetched");
    assert_eq!(wanted_after(12), blobs[13..]);
    v.close().unwrap();
}

/// A reader who is as quick as the network begins a page while the one before it is still on its way to the disk. The look ahead used to take
/// that for a lone read and stopped, again and again.
#[test]
fn regression_a_stream_is_looked_ahead_of_before_anything_has_arrived() {
    const PAGES: u64 = 16;
    let mut world = World::new();
    let v = world.open();
    let ino = v.file(Ino::ROOT, "large");
    (0..PAGES).for_each(|n| v.put(ino, n * u64::from(BLOB_MAX), &noise(n, MIB as usize)));
    v.close().unwrap();
    let watched = Arc::new(Watched {
        inner: world.parts.source.clone(),
        near: Mutex::default(),
        read: Mutex::default(),
        needed: Mutex::default(),
    });
    world.parts.source = watched.clone();
    let v = Volume::open(world.parts.clone(), Options { near: false, ..world.options() }).unwrap();
    let ino = v.find(Ino::ROOT, "large").unwrap().ino;
    let mut buf = vec![0; 128 * KIB as usize];
    let mut wanted_after = |page: u64| {
        v.read(ino, page * u64::from(BLOB_MAX), &mut buf).unwrap();
        std::mem::take(&mut *watched.needed.lock()).len()
    };
    assert_eq!(
        [0, 1, 2, 4, 3].map(&mut wanted_after),
        [3, 6, 9, 11, 12],
        "further with each page, in any order"
    );
    assert_eq!(wanted_after(9), 0, "and not after a leap");
    v.close().unwrap();
}
