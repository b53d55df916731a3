//! Random steps in any order, with kills, power cuts and outages. A stored blob reads back unchanged, or
//! gives an error with its cause. A blob that the origin lacks is here.

use std::collections::HashMap;
use std::sync::OnceLock;

use super::*;
use crate::residency::charge;

const BLOBS: u64 = 12;

fn all() -> &'static [(BlobId, Vec<u8>)] {
    static ALL: OnceLock<Vec<(BlobId, Vec<u8>)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let sizes = [0, 10, 5000, 70_000, 200_000, 130_000].iter().cycle();
        let bytes = (0..BLOBS).zip(sizes).map(|(n, size)| noise(size + n as usize, n + 1));
        bytes.map(|bytes| (Sums::of(&bytes).id(), bytes)).collect()
    })
}

fn bytes_of(n: u64) -> &'static [u8] {
    &all()[n as usize].1
}

#[derive(Clone, Debug)]
enum Step {
    Put(u64),
    Remove(u64),
    Read(u64, prop::sample::Index, usize),
    Fetch(u64),
    Hint(u64),
    Upload(u64),
    Sync,
    Evict(u64),
    Away(bool),
    Trouble(bool),
    Kill,
    /// The index ends somewhere behind its durable part, and some copies are torn.
    PowerCut(prop::sample::Index, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let n = || 0..BLOBS;
    let at = any::<prop::sample::Index>;
    prop_oneof![
        4 => n().prop_map(Step::Put),
        2 => n().prop_map(Step::Remove),
        6 => (n(), at(), 1..200_000usize).prop_map(|(n, at, len)| Step::Read(n, at, len)),
        2 => n().prop_map(Step::Fetch),
        2 => n().prop_map(Step::Hint),
        4 => n().prop_map(Step::Upload),
        2 => Just(Step::Sync),
        1 => (0..10u64).prop_map(Step::Evict),
        1 => any::<bool>().prop_map(Step::Away),
        1 => any::<bool>().prop_map(Step::Trouble),
        1 => Just(Step::Kill),
        1 => (at(), 0..100u64).prop_map(|(at, which)| Step::PowerCut(at, which)),
    ]
}

/// The state of a blob in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    Stored,
    /// Stored since the last sync, before a power cut. The pack would be sealed again.
    Unsure,
}

struct World {
    home: Home,
    model: HashMap<u64, Is>,
    unsynced: Vec<u64>,
    durable_index: u64,
    away: bool,
}

impl World {
    fn id(n: u64) -> BlobId {
        all()[n as usize].0
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Put(n) => {
                let bytes = bytes_of(*n);
                let sums = Sums::of(bytes);
                if self.home.cache().put(&sums.id(), &sums, bytes).is_ok() {
                    self.model.insert(*n, Is::Stored);
                    self.unsynced.push(*n);
                } else {
                    // The blob's state is unchanged. Its deletion may have been cancelled.
                    assert!(self.home.disk.trouble.lock().is_some());
                }
            }
            Step::Remove(n) => {
                if self.home.cache().remove(&World::id(*n)).is_ok() {
                    self.model.remove(n);
                }
            }
            Step::Read(n, at, len) => {
                let bytes = bytes_of(*n);
                let from = at.index(bytes.len() + 1);
                let to = bytes.len().min(from + len);
                let got = self.home.read(&World::id(*n), from, to - from);
                self.judge(*n, got, &bytes[from..to]);
            }
            Step::Fetch(n) => {
                let got = self.home.cache().fetch(&World::id(*n)).map(|(_, bytes)| bytes.to_vec());
                self.judge(*n, got, bytes_of(*n));
            }
            Step::Hint(n) => self.home.cache().will_need(&World::id(*n)),
            Step::Upload(n) => {
                if self.home.noted.is_pending(&World::id(*n)) {
                    self.home.noted.upload(&self.home.far, &World::id(*n));
                }
            }
            Step::Sync => {
                if self.home.cache().sync().is_ok() {
                    self.unsynced.clear();
                }
            }
            Step::Evict(n) => {
                self.home.cache().evict(Evict::To(n * charge(50_000)));
            }
            Step::Away(away) => {
                self.away = *away;
                self.home.far.away.store(*away, Ordering::SeqCst);
            }
            Step::Trouble(on) => *self.home.disk.trouble.lock() = on.then_some(Trouble::Full),
            Step::Kill => {
                self.note_durable();
                self.home.reopen();
            }
            Step::PowerCut(at, which) => self.power_cut(at, *which),
        }
    }

    fn judge(&self, n: u64, got: Result<Vec<u8>, BlobError>, want: &[u8]) {
        match (self.model.get(&n), got) {
            (Some(_), Ok(got)) => assert!(got == want, "blob {n} has other bytes"),
            (Some(Is::Unsure), Err(BlobError::Missing(_))) => {}
            (Some(_), Err(BlobError::Unavailable(_))) if self.away => {}
            (Some(is), Err(error)) => panic!("blob {n}, {is:?}: {error}"),
            // The bytes are correct, but the blob is no longer wanted.
            (None, Ok(got)) => assert!(got == want),
            (None, Err(BlobError::Missing(_) | BlobError::Unavailable(_))) => {}
            (None, Err(error)) => panic!("blob {n}, which is not stored: {error}"),
        }
    }

    /// Records how much of the index a power cut spares. A new process does not know it yet.
    fn note_durable(&mut self) {
        match self.home.cache().core.ledger.durable_len() {
            0 => {}
            durable => self.durable_index = durable,
        }
    }

    fn power_cut(&mut self, at: &prop::sample::Index, which: u64) {
        self.note_durable();
        self.home.cache = None;
        for n in self.unsynced.drain(..) {
            if let Some(is) = self.model.get_mut(&n) {
                *is = Is::Unsure;
            }
        }
        if let Ok(index) = fs::read(self.home.index()) {
            let durable = (self.durable_index as usize).min(index.len());
            let keep = durable + at.index(index.len() - durable + 1);
            fs::write(self.home.index(), &index[..keep]).unwrap();
        }
        for n in (0..BLOBS).filter(|n| (which >> (n % 7)) & 1 == 1) {
            let file = self.home.file(&World::id(n));
            if !self.home.noted.is_pending(&World::id(n)) && file.exists() {
                // A new file, because the old one may be shared with the origin by a link.
                fs::remove_file(&file).unwrap();
                fs::write(&file, &bytes_of(n)[..bytes_of(n).len() / 2]).unwrap();
            }
        }
        self.home.reopen();
    }

    /// Every stored blob is in the origin or pinned here.
    fn nothing_is_lost(&self) {
        for (n, is) in &self.model {
            let id = World::id(*n);
            if *is == Is::Stored && self.home.noted.is_pending(&id) {
                assert_eq!(fs::read(self.home.noted.file(&id).unwrap()).unwrap(), bytes_of(*n));
            } else if *is == Is::Stored {
                assert!(self.home.far.has(&id), "blob {n} is nowhere");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn nothing_stored_is_lost_or_wrong(steps in prop::collection::vec(step(), 1..80)) {
        let home = Home::with(CacheOptions { budget: Some(8 * charge(60_000)), ..options() });
        let mut world = World { home, model: HashMap::new(), unsynced: Vec::new(), durable_index: 0, away: false };
        for step in &steps {
            world.run(step);
            world.nothing_is_lost();
        }
        // After all trouble is over, every stored blob is there.
        world.run(&Step::Away(false));
        world.run(&Step::Trouble(false));
        world.home.reopen();
        for n in 0..BLOBS {
            world.run(&Step::Fetch(n));
        }
        let stats = world.home.stats();
        prop_assert!(stats.in_flight_bytes <= world.home.options.in_flight);
    }
}

/// All operations run concurrently, with little room. Each thread stores and removes its own blobs, so it
/// knows which must exist, and reads the blobs of all threads.
#[test]
fn threads_that_store_remove_read_upload_and_evict_lose_nothing() {
    const EACH: u64 = 3;
    let home = Home::with(CacheOptions { budget: Some(4 * charge(60_000)), ..options() });
    let done = std::sync::atomic::AtomicU64::new(0);
    let worker = |thread: u64| {
        let mut mine = [false; EACH as usize];
        let mut random = thread + 1;
        for _ in 0..250 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (what, own) = (random >> 33, random >> 40 & 0xff);
            let n = thread + BLOBS / EACH * (own % EACH);
            let (id, bytes) = &all()[n as usize];
            match what % 8 {
                0 | 1 => {
                    home.cache().put(id, &Sums::of(bytes), bytes).unwrap();
                    mine[(own % EACH) as usize] = true;
                }
                2 => {
                    home.cache().remove(id).unwrap();
                    mine[(own % EACH) as usize] = false;
                }
                3 => home.cache().will_need(id),
                4 | 5 => match home.cache().fetch(id) {
                    Ok((_, got)) => assert!(got == *bytes),
                    Err(BlobError::Missing(_)) if !mine[(own % EACH) as usize] => {}
                    Err(error) => panic!("blob {n}: {error}"),
                },
                _ => {
                    let (id, bytes) = &all()[(what / 8 % BLOBS) as usize];
                    let mut buf = vec![0; bytes.len() / 2];
                    match home.cache().read_at(id, 3.min(bytes.len() as u32 / 2), &mut buf) {
                        Ok(()) => assert!(buf == bytes[3.min(bytes.len() / 2)..][..buf.len()]),
                        Err(BlobError::Missing(_)) => {}
                        Err(error) => panic!("blob {id}: {error}"),
                    }
                }
            }
        }
        done.fetch_add(1, Ordering::SeqCst);
        mine
    };
    let stored: Vec<[bool; EACH as usize]> = std::thread::scope(|scope| {
        let worker = &worker;
        let threads: Vec<_> = (0..BLOBS / EACH).map(|thread| scope.spawn(move || worker(thread))).collect();
        scope.spawn(|| {
            while done.load(Ordering::SeqCst) < BLOBS / EACH {
                home.noted.upload_all(&home.far);
                home.cache().evict(Evict::To(charge(60_000)));
            }
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    home.noted.upload_all(&home.far);
    home.until("all is deleted", |stats| stats.removing == 0);
    home.rest();
    home.cache().evict(Evict::All);
    for (thread, mine) in stored.iter().enumerate() {
        for (own, stored) in mine.iter().enumerate() {
            let (id, bytes) = &all()[thread + (BLOBS / EACH) as usize * own];
            match home.cache().fetch(id) {
                Ok((_, got)) => {
                    assert!(*stored && got == *bytes, "{:?} far: {}", home.stats(), home.far.has(id))
                }
                Err(error) => assert!(!stored, "{error}"),
            }
        }
    }
    let stats = home.stats();
    assert_eq!((stats.damaged, stats.failed_fetches > 1000), (0, false), "{stats:?}");
}
