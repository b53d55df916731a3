//! Garbage collection, and what follows a restart, while the origin or the disk fails.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use base::size::MIB;
use base::{BlobId, Deadline};
use blob::{BlobError, BlobSource};

use super::*;

/// A source behind a network. While it is away, a read waits as long as it may.
struct Far {
    inner: Arc<dyn BlobSource>,
    away: AtomicBool,
    refused: AtomicU64,
}

impl BlobSource for Far {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        if !self.away.load(Ordering::SeqCst) {
            return self.inner.read_at(id, offset, buf);
        }
        std::thread::sleep(Deadline::current().left().min(Duration::from_secs(60)));
        self.refused.fetch_add(1, Ordering::SeqCst);
        Err(BlobError::Unavailable("it does not answer".to_owned()))
    }

    fn is_local(&self, _: &BlobId) -> bool {
        false
    }
}

fn sealed(v: &Volume, name: &str, seed: u64, len: usize) -> Ino {
    let file = v.file(Ino::ROOT, name);
    v.put(file, 0, &noise(seed, len));
    v.seal_now(Duration::from_secs(60)).unwrap();
    file
}

fn remove(v: &Volume, name: &str, file: Ino) {
    v.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    v.forget(file, 1);
}

/// Small packs that could not be read because the origin did not answer were called damaged, and never merged
/// again. Each was waited for, and nothing was deleted meanwhile.
#[test]
fn regression_an_origin_that_is_away_is_no_damage_and_holds_no_deletion_up() {
    let mut world = World::new();
    let far =
        Arc::new(Far { inner: world.parts.source.clone(), away: true.into(), refused: AtomicU64::new(0) });
    world.parts.source = far.clone();
    let v = world.open();
    let doomed = sealed(&v, "doomed", 100, MIB as usize);
    let files: Vec<Ino> = (0..20).map(|n| sealed(&v, &format!("f{n}"), n, 10_000)).collect();
    let began = Instant::now();
    eventually("a pack could not be read", || far.refused.load(Ordering::SeqCst) > 0);
    remove(&v, "doomed", doomed);
    eventually("its blob is gone", || world.origin.bytes() == 200_000);
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    far.away.store(false, Ordering::SeqCst);
    v.core.sweep.copy_now();
    eventually("few are left", || {
        v.core.packs.close_all();
        v.stats().unwrap().sealed_packs <= 8
    });
    for (n, file) in files.iter().enumerate() {
        assert!(v.get(*file) == noise(n as u64, 10_000));
    }
    v.close().unwrap();
    assert_eq!(*world.lines.lock(), [""; 0]);
}
