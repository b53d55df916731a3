//! Clones in this process: one thread touches the memory, and the clone's threads answer.

use std::io;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::handshake::{check, decode};
use crate::uffd::Done;
use crate::vmm::Memory;

const MIB: usize = 1 << 20;

/// A snapshot in memory, which fails as long as it is told to.
struct Bytes {
    bytes: Vec<u8>,
    failures: AtomicUsize,
    for_ever: bool,
    reads: AtomicUsize,
    pause: Duration,
}

impl Source for Bytes {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.pause);
        if self.for_ever
            || self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok()
        {
            return Err(io::Error::other("the store is away"));
        }
        buf.copy_from_slice(&self.bytes[offset as usize..][..buf.len()]);
        Ok(())
    }
}

/// Bytes of which no two pages are equal, with holes of several sizes.
fn snapshot(len: usize) -> Bytes {
    let mut bytes: Vec<u8> =
        (0..len / 8).flat_map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect();
    for (from, pages) in [(0, 1), (5, 3), (40, 4), (64, 16), (100, 100)] {
        bytes.iter_mut().skip(from * 4096).take(pages * 4096).for_each(|byte| *byte = 0);
    }
    Bytes {
        bytes,
        failures: AtomicUsize::new(0),
        for_ever: false,
        reads: AtomicUsize::new(0),
        pause: Duration::ZERO,
    }
}

struct World {
    clone: Arc<Clone>,
    source: Arc<Bytes>,
    lines: Arc<Mutex<Vec<(Level, String)>>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// A clone of these regions: memory, and where it begins in the snapshot.
fn clone_of(source: Bytes, regions: &[(&Memory, u64)], uffd: &Memory, patience: Duration) -> World {
    let lines: Arc<Mutex<Vec<(Level, String)>>> = Arc::default();
    let log = Arc::clone(&lines);
    let source = Arc::new(source);
    let common = Arc::new(Common {
        source: Arc::clone(&source) as Arc<dyn Source>,
        patience,
        log: Arc::new(move |level, line: &str| log.lock().push((level, line.to_owned()))),
        buffers: Buffers::default(),
    });
    let said: Vec<_> = regions.iter().map(|(memory, offset)| memory.region(*offset)).collect();
    let said = serde_json::to_vec(&said).unwrap();
    let regions = check(decode(&said).unwrap().unwrap(), source.len()).unwrap();
    let uffd = Uffd::take(uffd.uffd().try_clone_to_owned().unwrap()).unwrap();
    let clone = Arc::new(Clone::new(1, &regions, uffd, common).unwrap());
    let work = |_| {
        let mine = Arc::clone(&clone);
        base::thread::spawn("test", move || mine.work()).unwrap()
    };
    let threads = (0..2).map(work).collect();
    World { clone, source, lines, threads }
}

impl World {
    /// Ends the clone and returns the figures, which are counted after a fault is answered.
    fn ended(&mut self) -> Counts {
        self.clone.stop(End::Stopped);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        self.clone.counts()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.ended();
    }
}

/// Memory, or nothing where userfaultfd is not allowed.
fn memory(len: usize) -> Option<Memory> {
    Memory::new(len as u64, false)
        .inspect_err(|error| eprintln!("skipped: lacks userfaultfd ({error}), which needs root"))
        .ok()
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn every_byte_is_the_snapshots_in_any_order_of_touches() {
    let Some(memory) = memory(4 * MIB) else { return };
    let source = snapshot(6 * MIB);
    let expected = source.bytes[MIB..5 * MIB].to_vec();
    let mut world = clone_of(source, &[(&memory, MIB as u64)], &memory, LONG);
    let bytes = memory.bytes();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let expected = &expected;
            scope.spawn(move || {
                for page in 0..1024 {
                    let page = (page * 389 + thread * 256) % 1024;
                    let range = page * 4096..(page + 1) * 4096;
                    assert!(bytes[range.clone()] == expected[range], "page {page}");
                }
            });
        }
    });
    assert_eq!(world.clone.end(), None);
    let counts = world.ended();
    assert_eq!(counts.copied + counts.zeros, 4 * MIB as u64, "{counts:?}");
    assert!(counts.faults >= 4 && counts.ahead == 0);
}

#[test]
fn zeros_of_the_snapshot_take_no_memory() {
    let Some(memory) = memory(4 * MIB) else { return };
    let source = Bytes { bytes: vec![0; 4 * MIB], ..snapshot(0) };
    let mut world = clone_of(source, &[(&memory, 0)], &memory, LONG);
    assert!(memory.bytes().iter().all(|byte| *byte == 0));
    let counts = world.ended();
    assert_eq!((counts.copied, counts.zeros), (0, 4 * MIB as u64));
}

#[test]
fn a_reader_that_goes_on_is_read_ahead_and_one_that_jumps_is_not() {
    let Some(memory) = memory(16 * MIB) else { return };
    let world = clone_of(snapshot(16 * MIB), &[(&memory, 0)], &memory, LONG);
    let touch = |at: usize| std::hint::black_box(memory.bytes()[at]);
    for at in (0..8 * MIB).step_by(4096) {
        touch(at);
    }
    // 64 KiB, 64, 128, 256, and then 512 each.
    let faults = world.clone.counts().faults;
    assert!(faults < 26, "{faults}");
    for at in [15 * MIB, 13 * MIB, 11 * MIB] {
        touch(at);
    }
    let (list, _) = world.clone.touched();
    let jumps: Vec<u64> = list.spans()[1..].iter().map(|span| span.len).collect();
    assert_eq!(jumps, [64 << 10; 3]);
    assert!(list.spans()[0].len >= 8 * MIB as u64);
}

/// Also while the same pages are being filled.
#[test]
fn pages_that_were_given_back_hold_zeros() {
    let Some(mut memory) = memory(8 * MIB) else { return };
    let source = Bytes { pause: Duration::from_micros(200), ..snapshot(8 * MIB) };
    let expected = source.bytes.clone();
    let world = clone_of(source, &[(&memory, 0)], &memory, LONG);
    let filler = Arc::clone(&world.clone);
    let filler = std::thread::spawn(move || filler.complete());
    let mut given = vec![false; 2048];
    for round in 0..200_usize {
        let (page, pages) = ((round * 977) % 2000, 1 + round % 40);
        memory.give_back(page as u64 * 4096, pages as u64 * 4096).unwrap();
        given[page..page + pages].fill(true);
        let at = (page + pages / 2) * 4096;
        assert!(memory.bytes()[at..at + 4096].iter().all(|byte| *byte == 0), "round {round}");
    }
    assert!(filler.join().unwrap());
    for (page, given) in given.into_iter().enumerate() {
        let range = page * 4096..(page + 1) * 4096;
        let is = &memory.bytes()[range.clone()];
        let right = if given { is.iter().all(|byte| *byte == 0) } else { is == &expected[range] };
        assert!(right, "page {page}, given back: {given}");
    }
    // What the clone writes stays, and can be given back again.
    memory.bytes_mut()[..4096].fill(7);
    assert!(memory.bytes()[..4096].iter().all(|byte| *byte == 7));
    memory.give_back(0, 4096).unwrap();
    assert_eq!(memory.bytes()[5], 0);
}

/// The only thread of a clone is refused a copy as long as an event waits, and must read the event itself.
#[test]
fn one_thread_serves_a_clone_that_touches_and_gives_back_at_once() {
    let Some(memory) = memory(32 * MIB) else { return };
    let source = snapshot(32 * MIB);
    let base = memory.bytes().as_ptr() as u64;
    let region = Region { base, size: 32 * MIB as u64, offset: 0, page: 4096 };
    let (clone, thread) = one_thread(source, &[region], &memory);
    std::thread::scope(|scope| {
        // The first half is touched, and pages of the second are given back.
        let touch = scope.spawn(|| {
            memory.bytes()[..16 * MIB].iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>()
        });
        let mut page = 4096;
        while !touch.is_finished() {
            memory.give_back(page * 4096, 4096).unwrap();
            page = 4096 + (page + 1) % 4096;
        }
        touch.join().unwrap();
    });
    clone.stop(End::Stopped);
    thread.join().unwrap();
}

/// The block is in flight, and its first page is there. It is given back and touched before the block is
/// done.
#[test]
fn a_page_that_is_given_back_while_its_block_is_in_flight_is_answered() {
    let Some(memory) = memory(MIB) else { return };
    let world = clone_of(snapshot(MIB), &[(&memory, 0)], &memory, LONG);
    let run = world.clone.layout.run(world.clone.claim_missing(&(1..2), 1));
    world.clone.bring(&run).unwrap();
    let page = 65_536 + 8192;
    assert_ne!(memory.bytes()[page..page + 4096], [0; 4096]);
    memory.give_back(page as u64, 4096).unwrap();
    std::thread::scope(|scope| {
        let touch = scope.spawn(|| memory.bytes()[page..page + 4096].iter().all(|byte| *byte == 0));
        let end = monotonic() + LONG;
        while world.clone.late.lock().is_empty() {
            assert!(monotonic() < end, "the fault never came");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!touch.is_finished());
        world.clone.finish(&run).unwrap();
        assert!(touch.join().unwrap());
    });
}

#[test]
fn what_the_list_says_is_there_before_it_is_touched() {
    let Some(memory) = memory(4 * MIB) else { return };
    let source = snapshot(4 * MIB);
    let expected = source.bytes.clone();
    let world = clone_of(source, &[(&memory, 0)], &memory, LONG);
    // A range that begins and ends within blocks brings these blocks whole.
    world.clone.fill(&[
        Span { offset: 3 * MIB as u64 + 5, len: 10 },
        Span { offset: MIB as u64 - 1, len: 2 },
        Span { offset: MIB as u64, len: 2 * MIB as u64 },
    ]);
    assert!(memory.bytes()[MIB - 65_536..3 * MIB + 65_536] == expected[MIB - 65_536..3 * MIB + 65_536]);
    let counts = world.clone.counts();
    assert_eq!((counts.faults, counts.ahead), (0, 2 * MIB as u64 + 2 * 65_536));
    assert_eq!(world.clone.touched().0, List::default());
    assert!(memory.bytes() == expected && world.clone.counts().faults > 0);
}

#[test]
fn a_source_that_fails_for_a_while_delays_the_clone_and_no_more() {
    let Some(memory) = memory(MIB) else { return };
    let source = Bytes { failures: AtomicUsize::new(3), ..snapshot(MIB) };
    let expected = source.bytes.clone();
    let world = clone_of(source, &[(&memory, 0)], &memory, LONG);
    assert!(memory.bytes() == expected);
    assert!(world.source.reads.load(Ordering::SeqCst) > 3 && world.clone.end().is_none());
    let lines = world.lines.lock();
    assert!(lines.iter().any(|(level, line)| *level == Level::Warn && line.contains("the store is away")));
}

#[test]
fn a_source_that_fails_for_too_long_ends_the_clone() {
    let Some(memory) = memory(MIB) else { return };
    let source = Bytes { for_ever: true, ..snapshot(MIB) };
    let world = clone_of(source, &[(&memory, 0)], &memory, Duration::from_millis(50));
    world.clone.fill(&[Span { offset: 0, len: 1 }]);
    let Some(End::Failed(why)) = world.clone.end() else { panic!("{:?}", world.clone.end()) };
    assert!(why.contains("bytes 0 to 65536") && why.contains("the store is away"), "{why}");
    assert!(world.lines.lock().iter().any(|(level, line)| *level == Level::Error && line.contains("SIGBUS")));
    // A touch would end this process. But a page is not poisoned twice.
    for at in [0, MIB / 2, MIB - 4096] {
        let address = memory.bytes().as_ptr() as u64 + at as u64;
        assert_eq!(world.clone.uffd.poison(address, 4096), Done::Exists, "{at}");
    }
}

#[test]
fn memory_that_was_not_registered_ends_the_clone() {
    let Some(memory) = memory(MIB) else { return };
    let plain = vec![0_u8; 2 * MIB];
    let base = (plain.as_ptr() as u64).next_multiple_of(4096);
    let (clone, thread) =
        one_thread(snapshot(MIB), &[Region { base, size: MIB as u64, offset: 0, page: 4096 }], &memory);
    clone.fill(&[Span { offset: 0, len: 1 }]);
    assert!(matches!(clone.end(), Some(End::Failed(why)) if why.contains("not registered")));
    thread.join().unwrap();
}

/// A VMM that ends may unmap its memory first. If something of it was still to be put there, the clone was
/// given up with two errors in the log, that its memory was not registered.
#[test]
fn regression_memory_that_is_unmapped_is_no_failure() {
    let Some(memory) = memory(4 * MIB) else { return };
    let source = snapshot(4 * MIB);
    let expected = source.bytes[..MIB].to_vec();
    let world = clone_of(source, &[(&memory, 0)], &memory, LONG);
    assert!(memory.bytes()[..MIB] == expected);
    let begin = memory.bytes().as_ptr() as usize + MIB;
    // SAFETY: nothing touches this part of the mapping any more.
    assert_eq!(unsafe { libc::munmap(begin as *mut libc::c_void, MIB) }, 0);
    assert!(world.clone.complete(), "{:?}", world.clone.end());
    assert_eq!(world.clone.end(), None);
    assert!(memory.bytes()[..MIB] == expected && memory.bytes()[3 * MIB] == world.source.bytes[3 * MIB]);
}

/// The second half is mapped, but was never registered: what is there would be other bytes than the
/// snapshot's.
#[test]
fn a_half_that_was_not_registered_ends_the_clone() {
    let Some(memory) = memory(2 * MIB) else { return };
    let base = memory.bytes().as_ptr() as u64;
    let begin = (base as usize + MIB) as *mut libc::c_void;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: it replaces a part of the mapping of the test, which nothing has touched.
    let again = unsafe { libc::mmap(begin, MIB, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_eq!(again, begin);
    let region = Region { base, size: 2 * MIB as u64, offset: 0, page: 4096 };
    let (clone, thread) = one_thread(snapshot(2 * MIB), &[region], &memory);
    clone.fill(&[Span { offset: 0, len: 2 * MIB as u64 }]);
    assert!(
        matches!(clone.end(), Some(End::Failed(why)) if why.contains("not registered")),
        "{:?}",
        clone.end()
    );
    thread.join().unwrap();
}

/// A descriptor on which UFFDIO_API was never called cannot be read, and pages cannot be poisoned by it. The
/// threads of its clone took turns to find that out, for ever.
#[test]
fn regression_a_descriptor_that_is_not_set_up_ends_the_clone() {
    let Ok(uffd) = Uffd::bare() else {
        return eprintln!("skipped: lacks userfaultfd, which needs root");
    };
    let (clone, thread) = served(snapshot(MIB), &[SOMEWHERE], uffd);
    must_end(thread);
    assert!(matches!(clone.end(), Some(End::Failed(why)) if why.contains("cannot be read")));
}

/// The VMM has the same open file, and can make it block. A thread would wait in a read for ever, also when
/// the VMM is gone.
#[test]
fn a_descriptor_that_blocks_ends_the_clone() {
    let Some(memory) = memory(MIB) else { return };
    let (clone, thread) = one_thread(snapshot(MIB), &[SOMEWHERE], &memory);
    rustix::fs::fcntl_setfl(memory.uffd(), rustix::fs::OFlags::empty()).unwrap();
    clone.notify();
    must_end(thread);
    assert!(matches!(clone.end(), Some(End::Failed(why)) if why.contains("cannot be read")));
}

/// A VMM that made its descriptor block after it was polled had a thread wait in a read, with both locks
/// held, until the next event or for ever. The memory of all clones after it was then not completed.
#[test]
fn regression_a_descriptor_that_blocks_after_it_was_polled_is_not_waited_for() {
    let Some(memory) = memory(MIB) else { return };
    let uffd = Uffd::take(memory.uffd().try_clone_to_owned().unwrap()).unwrap();
    let clone = unserved(snapshot(MIB), &[SOMEWHERE], uffd);
    rustix::fs::fcntl_setfl(memory.uffd(), rustix::fs::OFlags::empty()).unwrap();
    let mine = Arc::clone(&clone);
    must_end(std::thread::spawn(move || mine.collect()));
    assert!(clone.removed.try_read().is_some() && clone.pending.try_lock().is_some());
}

fn must_end<T>(thread: std::thread::JoinHandle<T>) -> T {
    let end = monotonic() + LONG;
    while !thread.is_finished() {
        assert!(monotonic() < end, "the thread goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    thread.join().unwrap()
}

/// On a kernel that cannot poison pages, a clone that was given up is not over. Its blocks that were in
/// flight stay so, and the end of the server waited for them.
#[test]
fn regression_the_rest_of_a_clone_that_was_given_up_is_not_waited_for() {
    let Some(memory) = memory(MIB) else { return };
    let source = Bytes { for_ever: true, ..snapshot(MIB) };
    let base = memory.bytes().as_ptr() as u64;
    let uffd = Uffd::take(memory.uffd().try_clone_to_owned().unwrap()).unwrap();
    let clone = unserved(source, &[Region { base, ..SOMEWHERE }], uffd);
    assert_eq!(clone.claim_missing(&(0..1), 1), 0..1);
    clone.end.set(End::Failed("the kernel cannot poison".to_owned())).unwrap();
    let mine = Arc::clone(&clone);
    let rest = std::thread::spawn(move || mine.complete());
    assert!(!must_end(rest));
}

/// A region of a MiB, for a clone whose memory is never touched.
const SOMEWHERE: Region = Region { base: 1 << 30, size: MIB as u64, offset: 0, page: 4096 };

/// A clone of regions by their numbers, without threads.
fn unserved(source: Bytes, regions: &[Region], uffd: Uffd) -> Arc<Clone> {
    let regions = check(regions.to_vec(), source.len()).unwrap();
    let (source, log) = (Arc::new(source), Arc::new(|_, _: &str| {}));
    let common = Common { source, patience: LONG, log, buffers: Buffers::default() };
    Arc::new(Clone::new(1, &regions, uffd, Arc::new(common)).unwrap())
}

/// Creates a clone of regions by their numbers, with one thread.
fn served(source: Bytes, regions: &[Region], uffd: Uffd) -> (Arc<Clone>, std::thread::JoinHandle<()>) {
    let clone = unserved(source, regions, uffd);
    let mine = Arc::clone(&clone);
    (clone, std::thread::spawn(move || mine.work()))
}

/// Creates a clone of a VMM's memory, with one thread.
fn one_thread(source: Bytes, regions: &[Region], uffd: &Memory) -> (Arc<Clone>, std::thread::JoinHandle<()>) {
    served(source, regions, Uffd::take(uffd.uffd().try_clone_to_owned().unwrap()).unwrap())
}

#[test]
fn two_regions_out_of_order_have_their_own_bytes() {
    // Two regions of one descriptor: halves of one mapping, which lie the other way round in the file.
    let Some(memory) = memory(2 * MIB) else { return };
    let source = snapshot(4 * MIB);
    let expected = source.bytes.clone();
    let base = memory.bytes().as_ptr() as u64;
    let half = MIB as u64;
    let regions = [
        Region { base: base + half, size: half, offset: 0, page: 4096 },
        Region { base, size: half, offset: 3 * half, page: 4096 },
    ];
    let (clone, thread) = one_thread(source, &regions, &memory);
    assert!(memory.bytes()[MIB..] == expected[..MIB] && memory.bytes()[..MIB] == expected[3 * MIB..]);
    clone.stop(End::Stopped);
    thread.join().unwrap();
}

#[test]
fn huge_pages_are_filled_whole() {
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    if free.ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0) < 4 {
        eprintln!("skipped: lacks 4 free huge pages (sysctl vm.nr_hugepages=4)");
        return;
    }
    let Ok(memory) = Memory::new(8 * MIB as u64, true) else {
        eprintln!("skipped: lacks userfaultfd, which needs root");
        return;
    };
    let mut source = snapshot(8 * MIB);
    source.bytes[2 * MIB..4 * MIB].fill(0);
    let expected = source.bytes.clone();
    let world = clone_of(source, &[(&memory, 0)], &memory, LONG);
    assert!(memory.bytes() == expected);
    memory.give_back(6 * MIB as u64, 2 * MIB as u64).unwrap();
    assert!(memory.bytes()[6 * MIB..].iter().all(|byte| *byte == 0));
    assert_eq!(world.clone.end(), None);
}
