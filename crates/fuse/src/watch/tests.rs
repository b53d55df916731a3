//! What observers see, and that nothing is kept without observers.

use base::Ino;
use base::phase::Phase;
use fs::api::Caller;

use super::*;
use crate::abi::opcodes::op;

fn header(unique: u64) -> Header {
    let caller = Caller { uid: 0, gid: 0, pid: 77 };
    Header { opcode: op::READ, unique, ino: Ino(5), caller }
}

fn serve(watch: &Watch, lane: usize, unique: u64) -> bool {
    let span = watch.begin(lane);
    let seen = span.is_some();
    {
        let _names = phase::enter(Phase::Names);
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
    let answered = watch.answering(span);
    watch.end(lane, answered, &header(unique), Outcome { bytes: 4096, error: 0 });
    seen
}

fn records(watch: &Watch, cursor: &mut Cursor) -> Vec<Record> {
    let mut all = Vec::new();
    watch.read(cursor, &mut |record| all.push(record));
    all
}

#[test]
fn without_observers_nothing_is_kept() {
    let watch = Watch::new(2);
    assert!(!serve(&watch, 0, 1));
    assert!(watch.times().is_empty());
    drop(watch.measure());
    assert!(!serve(&watch, 0, 2), "off again after the last hold");
    assert!(watch.times().is_empty());
}

#[test]
fn durations_are_measured_while_a_hold_lives() {
    let watch = Watch::new(2);
    let (one, other) = (watch.measure(), watch.measure());
    assert!(serve(&watch, 0, 1) && serve(&watch, 1, 2));
    drop(one);
    assert!(serve(&watch, 0, 3));
    drop(other);
    let times = watch.times();
    let (name, hist) = &times[0];
    assert_eq!((times.len(), *name, hist.count()), (1, "READ", 3));
    assert!(hist.quantile(0.5) >= 250_000 && hist.sum() >= 900_000, "{hist:?}");
}

#[test]
fn records_show_phases_and_only_those_wanted() {
    let watch = Watch::new(1);
    let hold = watch.record(1);
    let mut cursor = watch.now();
    serve(&watch, 0, 10);
    let seen = records(&watch, &mut cursor);
    let [record] = seen[..] else { panic!("{seen:?}") };
    assert_eq!((record.unique, record.pid, record.bytes, record.ino), (10, 77, 4096, 5));
    assert!(record.spent[Phase::Names as usize] >= 300_000, "{record:?}");
    assert_eq!(record.spent.iter().sum::<u64>(), record.served);
    drop(hold);
    let (_six, _four) = (watch.record(6), watch.record(4));
    assert!((0..13).all(|unique| serve(&watch, 0, unique)));
    let seqs: Vec<_> = records(&watch, &mut cursor).iter().map(|record| record.seq).collect();
    assert!(seqs.iter().all(|seq| seq % 2 == 0) && (6..=7).contains(&seqs.len()), "{seqs:?}");
}

#[test]
fn a_request_that_changes_threads_shows_how_long_it_waited() {
    let watch = Watch::new(2);
    let _hold = watch.record(1);
    let mut cursor = watch.now();
    let span = watch.begin(0);
    watch.suspend(span);
    assert_eq!(phase::stop(monotonic_ns()), [0; base::phase::PHASES], "this thread's clock is off");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(3));
            let span = watch.resume(span);
            drop(phase::enter(Phase::Origin));
            let answered = watch.answering(span);
            watch.end(1, answered, &header(1), Outcome { bytes: 0, error: 5 });
        });
    });
    let seen = records(&watch, &mut cursor);
    assert!(seen[0].wait >= 3_000_000 && seen[0].error == 5 && seen[0].served >= seen[0].wait, "{seen:?}");
}
