use std::io;

use parking_lot::Mutex;

use super::*;
use crate::abi::header::IN_HEADER;
use crate::abi::init::flag;
use crate::abi::opcodes::{OPCODES, op};
use crate::buffer::PageBuf;
use crate::counts::Counts;
use crate::null::Null;
use crate::swap::Swap;

/// Records the answers.
#[derive(Default)]
struct Kept(Mutex<Vec<(u64, i32, Vec<u8>)>>);

impl Sink for Kept {
    fn reply(&self, unique: u64, error: i32, body: &[u8]) -> io::Result<()> {
        self.0.lock().push((unique, error, body.to_vec()));
        Ok(())
    }

    fn notify(&self, _: i32, _: &[&[u8]]) -> io::Result<()> {
        Ok(())
    }
}

fn dispatcher(sink: &Arc<Kept>) -> Dispatcher {
    dispatcher_of(sink, None)
}

fn dispatcher_of(sink: &Arc<Kept>, shared: Option<Arc<SharedMount>>) -> Dispatcher {
    Dispatcher::new(Parts {
        fs: Arc::new(Swap::fixed(Arc::new(Null::new()))),
        agreed: Agreed { flags: flag::POSIX_ACL, ..Agreed::default() },
        pending_table: PendingTable::start(Duration::from_secs(5), |_| ()).unwrap(),
        workers: Pool::new("test", 1),
        writers: Pool::new("test", 1),
        seeker: Pool::new("test", 1),
        unlockers: Pool::new("test", 1),
        shared,
        untold: None,
        dirty: None,
        flushes: None,
        notifier: Notifier::start(Arc::clone(sink) as _).unwrap(),
        counts: Arc::new(Counts::new(1)),
        watch: Watch::new(2),
        log: Arc::new(|_| ()),
    })
}

/// The answers to one request of this kind with these arguments.
fn answers(opcode: u32, arguments: &[u8]) -> Vec<(u64, i32, Vec<u8>)> {
    answers_of(None, opcode, arguments)
}

/// Returns the answers to one request of this kind, of a shared mount if `shared` is given.
fn answers_of(shared: Option<Arc<SharedMount>>, opcode: u32, arguments: &[u8]) -> Vec<(u64, i32, Vec<u8>)> {
    let mut request = ((IN_HEADER + arguments.len()) as u32).to_ne_bytes().to_vec();
    request.extend(opcode.to_ne_bytes());
    request.extend(99_u64.to_ne_bytes());
    request.extend(2_u64.to_ne_bytes());
    request.extend([0; 16]);
    request.extend(arguments);
    raw_of(shared, &request)
}

/// The time of one GETATTR in the dispatcher, for a filesystem that does nothing, in nanoseconds: the best of
/// many rounds.
fn cost(dispatcher: &Dispatcher, sink: &Arc<dyn Sink>) -> f64 {
    let mut request = (IN_HEADER as u32 + 16).to_ne_bytes().to_vec();
    request.extend(opcodes::op::GETATTR.to_ne_bytes());
    request.extend(99_u64.to_ne_bytes());
    request.extend(1_u64.to_ne_bytes());
    request.extend([0; 32]);
    let mut room = PageBuf::for_reply();
    let round = |room: &mut PageBuf| {
        let begun = std::time::Instant::now();
        (0..10_000).for_each(|_| dispatcher.serve(0, &request, room.bytes(), sink));
        begun.elapsed().as_secs_f64() * 1e9 / 10_000.0
    };
    (0..50).map(|_| round(&mut room)).fold(f64::MAX, f64::min)
}

#[test]
#[ignore = "a measurement, for a quiet machine and --release"]
fn what_looking_on_costs() {
    struct Nobody;
    impl Sink for Nobody {
        fn reply(&self, _: u64, _: i32, _: &[u8]) -> io::Result<()> {
            Ok(())
        }
        fn notify(&self, _: i32, _: &[&[u8]]) -> io::Result<()> {
            Ok(())
        }
    }
    let dispatcher = dispatcher(&Arc::new(Kept::default()));
    let sink: Arc<dyn Sink> = Arc::new(Nobody);
    let watch = Arc::clone(&dispatcher.0.watch);
    let off = cost(&dispatcher, &sink);
    let times = {
        let _hold = watch.measure();
        cost(&dispatcher, &sink) - off
    };
    let records = {
        let _hold = watch.record(1);
        cost(&dispatcher, &sink) - off
    };
    println!(
        "a request through the dispatcher {off:.1} ns; durations add {times:.1} ns, records {records:.1} ns"
    );
    let marks = |on: bool| {
        if on {
            base::phase::start(0);
        }
        let begun = std::time::Instant::now();
        (0..1_000_000)
            .for_each(|_| drop(std::hint::black_box(base::phase::enter(base::phase::Phase::Names))));
        base::phase::stop(0);
        begun.elapsed().as_secs_f64() * 1e9 / 1e6
    };
    println!("a mark: {:.1} ns off, {:.1} ns on", marks(false), marks(true));
    dispatcher.0.pending_table.close();
    dispatcher.0.notifier.close();
}

fn raw(request: &[u8]) -> Vec<(u64, i32, Vec<u8>)> {
    raw_of(None, request)
}

fn raw_of(shared: Option<Arc<SharedMount>>, request: &[u8]) -> Vec<(u64, i32, Vec<u8>)> {
    let kept = Arc::new(Kept::default());
    let sink: Arc<dyn Sink> = Arc::clone(&kept) as _;
    let dispatcher = dispatcher_of(&kept, shared);
    dispatcher.serve(0, request, PageBuf::for_reply().bytes(), &sink);
    dispatcher.0.pending_table.close();
    dispatcher.0.notifier.close();
    std::mem::take(&mut *kept.0.lock())
}

/// Plausible arguments: zeros first, a small length, then names.
fn arguments(opcode: u32) -> Vec<u8> {
    let fixed = match opcode {
        op::SETATTR => 88,
        op::RENAME | op::LINK | op::FORGET | op::INTERRUPT | op::MKDIR | op::GETXATTR | op::BATCH_FORGET => 8,
        op::MKNOD | op::CREATE | op::TMPFILE | op::RENAME2 | op::SETXATTR => 16,
        op::READ | op::READDIR | op::READDIRPLUS | op::WRITE => 40,
        op::LOOKUP | op::UNLINK | op::RMDIR | op::SYMLINK | op::REMOVEXATTR => 0,
        op::LSEEK => {
            let mut all = vec![0; 24];
            all[16] = libc::SEEK_DATA as u8;
            return all;
        }
        _ => 64,
    };
    [vec![0; fixed], b"one\0two\0".to_vec()].concat()
}

#[test]
fn the_table_says_what_the_dispatcher_does() {
    for line in OPCODES {
        let answers = answers(line.number, &arguments(line.number));
        let quiet = !wants_reply(line.number);
        assert_eq!(answers.len(), usize::from(!quiet), "{}", line.name);
        let Some((unique, error, _)) = answers.first() else { continue };
        assert_eq!(*unique, 99);
        match line.policy {
            Policy::Refused(number) => assert_eq!(*error, -number, "{}", line.name),
            Policy::Kernel => assert_eq!(*error, -libc::ENOSYS, "{}", line.name),
            // INIT is answered before there is a dispatcher.
            Policy::Served if line.number == op::INIT => {}
            Policy::Served => assert_ne!(*error, -libc::ENOSYS, "{}", line.name),
        }
    }
}

#[test]
fn a_shared_mount_does_what_its_tables_say() {
    for locks in [false, true] {
        let answer = |line: &opcodes::Opcode| {
            let shared = Some(Arc::new(SharedMount::new(locks, None)));
            let answers = answers_of(shared, line.number, &arguments(line.number));
            assert_eq!(answers.len(), 1, "{}", line.name);
            answers[0].1
        };
        for line in opcodes::SHARED {
            assert_eq!(answer(line) == -libc::ENOSYS, line.policy == Policy::Kernel, "{}", line.name);
        }
        // The null filesystem refuses locks itself.
        let flush = opcodes::SHARED_LOCKS.iter().find(|line| line.number == op::FLUSH).unwrap();
        assert_eq!(answer(flush) == -libc::ENOSYS, !locks);
    }
    let lines = opcodes::SHARED.len() + opcodes::SHARED_LOCKS.len();
    assert_eq!(opcodes::markdown_shared().lines().count(), lines + 2);
}

/// The kernel remembers it, and asks no more.
#[test]
fn a_mount_without_attributes_answers_no_request_for_one() {
    let attributes = [op::SETXATTR, op::GETXATTR, op::LISTXATTR, op::REMOVEXATTR];
    for line in OPCODES.iter().filter(|line| line.policy == Policy::Served && line.number != op::INIT) {
        let header =
            Header { opcode: line.number, unique: 99, ino: Ino(2), caller: fs::api::Caller::default() };
        let read = Op::read(&header, &arguments(line.number), &Agreed::default()).map(drop);
        let is_refused = read == Err(Errno(libc::ENOSYS));
        assert_eq!(is_refused, attributes.contains(&line.number), "{}", line.name);
    }
}

#[test]
fn unknown_opcodes_are_enosys() {
    for opcode in [0, 7, 54, 1000, u32::MAX] {
        assert_eq!(answers(opcode, &[0; 64]), [(99, -libc::ENOSYS, vec![])]);
    }
}

#[test]
fn truncated_requests_are_eio_and_not_silence() {
    assert_eq!(answers(op::READ, &[0; 5]), [(99, -libc::EIO, vec![])]);
    let mut lying = vec![0; 40];
    lying[..4].copy_from_slice(&500_u32.to_ne_bytes());
    lying[8] = 7;
    assert_eq!(raw(&lying), [(7, -libc::EIO, vec![])]);
    assert_eq!(raw(&lying[..10]), [], "without a number no reply is possible");
}

#[test]
fn a_missing_name_is_answered_so_that_it_is_remembered() {
    let answers = answers(op::LOOKUP, b"absent\0");
    let (_, error, body) = &answers[0];
    assert_eq!((*error, body.len()), (0, 128));
    assert_eq!(body[..8], [0; 8], "inode 0: none");
    assert_ne!(body[16..24], [0; 8], "the lifetime is long");
}

#[test]
fn a_read_is_answered_with_its_bytes_only() {
    let mut arguments = vec![0; 40];
    arguments[16..20].copy_from_slice(&100_000_u32.to_ne_bytes());
    assert_eq!(answers(op::READ, &arguments)[0].2.len(), 65_536);
    arguments[16..20].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert_eq!(
        answers(op::READ, &arguments)[0].2.len(),
        65_536,
        "the request asks for more than the buffer holds"
    );
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(300))]
    #[test]
    fn every_request_is_answered_once_and_none_panics(
        opcode in 0..60_u32,
        bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200),
    ) {
        let expected = usize::from(wants_reply(opcode));
        proptest::prop_assert_eq!(answers(opcode, &bytes).len(), expected);
    }
}

/// What a panic outside of the filesystem did: its thread ended, and the request had no reply.
#[test]
fn regression_a_panic_of_the_dispatcher_itself_is_eio() {
    /// Panics at the first reply.
    #[derive(Default)]
    struct Trips(Mutex<Vec<(u64, i32)>>);
    impl Sink for Trips {
        fn reply(&self, unique: u64, error: i32, _: &[u8]) -> io::Result<()> {
            let mut replies = self.0.lock();
            replies.push((unique, error));
            let count = replies.len();
            drop(replies);
            assert!(count > 1, "on purpose");
            Ok(())
        }

        fn notify(&self, _: i32, _: &[&[u8]]) -> io::Result<()> {
            Ok(())
        }
    }
    let trips = Arc::new(Trips::default());
    let dispatcher = dispatcher(&Arc::new(Kept::default()));
    let mut request = (IN_HEADER as u32 + 16).to_ne_bytes().to_vec();
    request.extend(op::GETATTR.to_ne_bytes());
    request.extend(99_u64.to_ne_bytes());
    request.extend(1_u64.to_ne_bytes());
    request.extend([0; 32]);
    dispatcher.serve(0, &request, PageBuf::for_reply().bytes(), &(Arc::clone(&trips) as Arc<dyn Sink>));
    assert_eq!(*trips.0.lock(), [(99, 0), (99, -libc::EIO)]);
    dispatcher.0.pending_table.close();
    dispatcher.0.notifier.close();
}
