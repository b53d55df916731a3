//! Servers in this process: VMMs that are honest, that lie, and that say nothing.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use serde_json::json;

use super::*;
use crate::source::Plain;
use crate::vmm::{self, Memory};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

struct World {
    server: Server,
    folder: tempfile::TempDir,
    bytes: Vec<u8>,
    lines: Arc<Mutex<Vec<String>>>,
}

impl World {
    fn new(change: impl FnOnce(&mut Options)) -> World {
        World::of(change, |plain| Arc::new(plain))
    }

    /// Starts a server with a source around the file.
    fn of(change: impl FnOnce(&mut Options), around: impl FnOnce(Plain) -> Arc<dyn Source>) -> World {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory");
        let bytes: Vec<u8> = (0..4 * MIB).map(|at| (at / 4096 * 7 + at % 251) as u8).collect();
        std::fs::write(&file, &bytes).unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&lines);
        let mut options = Options::new(Arc::new(move |_, line: &str| log.lock().push(line.to_owned())));
        change(&mut options);
        let mut server = Server::start(around(Plain::open(&file).unwrap()), options).unwrap();
        let path = folder.path().join("s");
        server.listen(UnixListener::bind(&path).unwrap(), path).unwrap();
        World { server, folder, bytes, lines }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("s")
    }

    fn must_serve(&self) {
        let (memory, _stream) = vmm::load(&self.socket(), 4 * MIB).unwrap();
        assert!(memory.bytes() == self.bytes);
    }

    fn saw(&self, text: &str) -> bool {
        self.lines.lock().iter().any(|line| line.contains(text))
    }
}

/// What the server says before it closes the connection.
fn answer(mut stream: UnixStream) -> String {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

fn may() -> bool {
    let made = Memory::new(4096, false);
    made.inspect_err(|error| eprintln!("skipped: lacks userfaultfd ({error}), which needs root")).is_ok()
}

fn until(what: &str, ready: impl Fn() -> bool) {
    let end = base::Deadline::after(LONG);
    while !ready() {
        assert!(!end.is_over(), "{what} did not happen within {LONG:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn liars_are_refused_with_a_reason_and_others_go_on() {
    if !may() {
        return;
    }
    let world = World::new(|options| options.greeting = LONG);
    let (honest, _stream) = vmm::load(&world.socket(), 4 * MIB).unwrap();
    assert!(honest.bytes()[0] == world.bytes[0]);
    let memory = Memory::new(4 * MIB, false).unwrap();
    let file = std::fs::File::open("/dev/null").unwrap();
    let good = json!([memory.region(0)]).to_string();
    let bare = vmm::bare().unwrap();
    let cases: Vec<(String, Vec<_>, &str)> = vec![
        ("garbage".into(), vec![memory.uffd()], "list of regions"),
        ("[]".into(), vec![memory.uffd()], "names no region"),
        (format!("{good} more"), vec![memory.uffd()], "list of regions"),
        (good.clone(), vec![], "0 descriptors"),
        (good.clone(), vec![memory.uffd(); 2], "2 descriptors"),
        (good.clone(), vec![memory.uffd(); 20], "9 descriptors"),
        (good.clone(), vec![file.as_fd()], "no userfaultfd: /dev/null"),
        (good.clone(), vec![bare.as_fd()], "not set up"),
        (json!([memory.region(1)]).to_string(), vec![memory.uffd()], "another snapshot's"),
        (json!([memory.region(0), memory.region(0)]).to_string(), vec![memory.uffd()], "two regions"),
    ];
    for (text, fds, why) in cases {
        let said = answer(vmm::send(&world.socket(), &text, &fds).unwrap());
        assert!(said.contains(why) && said.ends_with("}\n"), "{text}: {said}");
        assert!(world.saw(why) && world.saw("process"), "{why}");
    }
    assert_eq!(world.server.clones(), 1);
    // One closes in the middle.
    let mut half = UnixStream::connect(world.socket()).unwrap();
    half.write_all(b"[{").unwrap();
    half.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(answer(half).contains("closed the connection"));
    // A probe is no event.
    let before = world.lines.lock().len();
    drop(UnixStream::connect(world.socket()).unwrap());
    world.must_serve();
    assert!(honest.bytes() == world.bytes && world.server.clones() == 2);
    assert!(world.lines.lock()[before..].iter().all(|line| !line.contains("refused")));
}

#[test]
fn the_greeting_of_one_that_stops_or_says_nothing_is_not_waited_for() {
    if !may() {
        return;
    }
    let world = World::new(|options| options.greeting = Duration::from_millis(300));
    let memory = Memory::new(4 * MIB, false).unwrap();
    let good = json!([memory.region(0)]).to_string();
    let stops = vmm::send(&world.socket(), &good[..30], &[memory.uffd()]).unwrap();
    for stream in [stops, UnixStream::connect(world.socket()).unwrap()] {
        let said = answer(stream);
        assert!(said.contains("within 300ms") && said.ends_with("}\n"), "{said}");
    }
    assert!(world.saw("within 300ms") && world.saw("process"));
    assert_eq!(world.server.clones(), 0);
}

#[test]
fn the_number_of_clones_has_a_bound() {
    if !may() {
        return;
    }
    let world = World::new(|options| options.clones = 2);
    let clones: Vec<_> = (0..2).map(|_| vmm::load(&world.socket(), 4 * MIB).unwrap()).collect();
    until("two clones", || world.server.clones() == 2);
    let (_memory, stream) = vmm::load(&world.socket(), 4 * MIB).unwrap();
    assert!(answer(stream).contains("--clones"));
    assert!(clones.iter().all(|(memory, _)| memory.bytes() == world.bytes));
}

#[test]
fn the_second_clone_asks_for_nothing_that_the_first_touched() {
    if !may() {
        return;
    }
    let world = World::new(|_| {});
    let (first, _first) = vmm::load(&world.socket(), 4 * MIB).unwrap();
    for page in [700, 3, 300] {
        assert_eq!(first.bytes()[page * 4096], world.bytes[page * 4096]);
    }
    until("a list in memory", || world.server.list().0 == 3);
    let (second, _second) = vmm::load(&world.socket(), 4 * MIB).unwrap();
    until("the list's bytes", || {
        let clones = world.server.shared.clones.lock();
        clones.get(&2).is_some_and(|entry| entry.clone.counts().ahead == 3 * 65_536)
    });
    for page in [700, 3, 300] {
        assert_eq!(second.bytes()[page * 4096], world.bytes[page * 4096]);
    }
    let counts = world.server.shared.clones.lock()[&2].clone.counts();
    assert_eq!((counts.faults, counts.copied), (0, 3 * 65_536));
}

#[test]
fn a_list_is_stored_and_one_of_no_use_is_replaced() {
    if !may() {
        return;
    }
    let kept = tempfile::tempdir().unwrap();
    let file = ListFile { path: kept.path().join("list"), size: 4 * MIB, identity: "test".into() };
    std::fs::write(&file.path, "covey-memory-list 9\n").unwrap();
    let serve = |pages: &[usize]| {
        let mut world = World::new(|options| options.list = Some(file.clone()));
        let before = world.server.list();
        let (memory, _stream) = vmm::load(&world.socket(), 4 * MIB).unwrap();
        for page in pages {
            assert_eq!(memory.bytes()[page * 4096], world.bytes[page * 4096]);
        }
        world.server.end();
        (before, world.saw("another version"))
    };
    assert_eq!(serve(&[16, 512]), ((0, 0), true));
    assert_eq!(file.load().unwrap().unwrap().spans().len(), 2);
    assert_eq!(serve(&[16, 800]), ((2, 2 * 65_536), false));
    let offsets: Vec<u64> = file.load().unwrap().unwrap().spans().iter().map(|span| span.offset).collect();
    assert_eq!(offsets, [16 * 4096, 512 * 4096, 800 * 4096]);
}

#[test]
fn clones_that_have_all_their_memory_do_not_need_the_server() {
    if !may() {
        return;
    }
    let mut world = World::new(|_| {});
    let (memory, _stream) = vmm::load(&world.socket(), 4 * MIB).unwrap();
    until("a clone", || world.server.clones() == 1);
    world.server.close();
    assert!(!world.socket().exists());
    assert_eq!(world.server.complete().unwrap().join().unwrap(), 0);
    world.server.end();
    assert!(memory.bytes() == world.bytes);
}

#[test]
fn ranges_that_a_list_has_are_not_added() {
    let mut list = List::default();
    for (offset, len) in [(100, 50), (0, 20), (150, 10)] {
        list.push(Span { offset, len });
    }
    let mut touched = List::default();
    for (offset, len) in [(100, 10), (10, 11), (155, 5), (300, 1), (0, 20)] {
        touched.push(Span { offset, len });
    }
    assert_eq!(missing_of(&list, &touched), [Span { offset: 10, len: 11 }, Span { offset: 300, len: 1 }]);
}

/// What the clock had learned before a clone ended was not stored at its end, if the clone touched no more.
#[test]
fn regression_a_list_that_the_clock_has_learned_is_stored() {
    if !may() {
        return;
    }
    let kept = tempfile::tempdir().unwrap();
    let file = ListFile { path: kept.path().join("list"), size: 4 * MIB, identity: "test".into() };
    let mut world = World::new(|options| options.list = Some(file.clone()));
    let (memory, _stream) = vmm::load(&world.socket(), 4 * MIB).unwrap();
    assert!(memory.bytes() == world.bytes);
    until("the clock has learned it", || world.server.list().1 == 4 * MIB);
    assert!(!file.path.exists(), "it touches memory for a while");
    world.server.end();
    assert_eq!(file.load().unwrap().unwrap().bytes(), 4 * MIB);
}

/// A file of which the first read of its beginning hangs until it is let go.
struct Hanging {
    plain: Plain,
    reads: AtomicUsize,
    let_go: Arc<AtomicBool>,
}

impl Source for Hanging {
    fn len(&self) -> u64 {
        self.plain.len()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset == 0 && self.reads.fetch_add(1, Ordering::SeqCst) == 0 {
            while !self.let_go.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        self.plain.read(offset, buf)
    }
}

/// At the end of the server, the clones after one that could not be completed were not completed either.
#[test]
fn regression_a_clone_that_cannot_be_completed_holds_up_no_other() {
    if !may() {
        return;
    }
    let let_go: Arc<AtomicBool> = Arc::default();
    let hanging = Arc::clone(&let_go);
    let around = |plain| Arc::new(Hanging { plain, reads: AtomicUsize::new(0), let_go: hanging }) as _;
    let mut world = World::of(|_| {}, around);
    let (first, _first) = vmm::load(&world.socket(), 4 * MIB).unwrap();
    until("the first clone", || world.server.clones() == 1);
    let first = std::thread::spawn(move || first.bytes()[0]);
    until("its fault", || world.server.shared.entries()[0].clone.counts().faults == 1);
    let (_second, _stream) = vmm::load(&world.socket(), 4 * MIB).unwrap();
    until("the second clone", || world.server.clones() == 2);
    let second = Arc::clone(&world.server.shared.entries()[1].clone);
    world.server.close();
    let rest = world.server.complete().unwrap();
    let all = || second.counts().copied + second.counts().zeros == 4 * MIB;
    let end = base::Deadline::after(LONG);
    while !all() && !end.is_over() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let is_whole = all();
    let_go.store(true, Ordering::SeqCst);
    assert_eq!((first.join().unwrap(), rest.join().unwrap()), (world.bytes[0], 0));
    assert!(is_whole, "the second clone waited for the first");
}

/// A disk that hung under the list kept the places of clones that were gone, and the clock stood still.
#[test]
fn regression_a_disk_that_hangs_under_the_list_keeps_no_place() {
    if !may() {
        return;
    }
    let kept = tempfile::tempdir().unwrap();
    let path = kept.path().join("list");
    // Opening it waits for a reader.
    let disk = kept.path().join("list.new");
    rustix::fs::mknodat(rustix::fs::CWD, &disk, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let list = ListFile { path, size: 4 * MIB, identity: "test".into() };
    let mut world = World::new(|options| (options.clones, options.list) = (1, Some(list)));
    for _ in 0..2 {
        let (memory, _stream) = vmm::load(&world.socket(), 4 * MIB).unwrap();
        assert!(memory.bytes() == world.bytes);
        let entry = world.server.shared.entries().remove(0);
        entry.clone.stop(End::Gone);
        until("its place is free", || world.server.clones() == 0);
    }
    assert!(world.server.shared.storing.lock().runs);
    // It hangs no more.
    let _reader = std::fs::File::open(&disk).unwrap();
    world.server.end();
    assert!(!world.server.shared.storing.lock().runs);
}
