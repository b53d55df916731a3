//! Crashes: the daemon killed at random moments, and the power cut.
//!
//! This proves two promises of docs/SEMANTICS.md. After kill -9 of the daemon, everything is there whose
//! close, fsync or msync returned, and every change of names that returned. After a power cut, the volume
//! equals a prefix of its operations that is never shorter than the last fsync. In both cases rename is
//! atomic, and no name leads to missing bytes: [`model::Model`] refuses each such state.

mod model;
mod worker;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use covey_tests::loopfs::LoopFs;
use covey_tests::{Need, Rng, Volume, requires, say, seeds};
use model::{Actual, Model};
use worker::{Shared, Worker};

const WORKERS: usize = 3;

fn start(root: &Path, seed: u64, model: Model, shared: &Arc<Shared>, options: &[&str]) -> JoinHandle<Worker> {
    let mut worker = Worker::new(root, seed, model, shared.clone());
    worker.writes_settle = options.contains(&"writeback=off");
    std::thread::spawn(move || worker.work())
}

/// One round: work, kill, mount again, check. The models continue from what was found.
fn kill_round(volume: &Volume, seed: u64, models: &mut Vec<Model>, options: &[&str]) -> usize {
    let mut rng = Rng::new(seed);
    let mounted = volume.mount_with(options);
    let shared = Arc::new(Shared::default());
    let folder = |number: usize| format!("worker{number}");
    for number in 0..WORKERS {
        std::fs::create_dir_all(mounted.join(folder(number)).join("d")).unwrap();
    }
    let starts = models.drain(..).enumerate();
    let workers: Vec<_> = starts
        .map(|(number, model)| {
            start(&mounted.join(folder(number)), seed * 100 + number as u64, model, &shared, options)
        })
        .collect();
    std::thread::sleep(Duration::from_millis(rng.length(1_500)));
    shared.ending.store(true, Ordering::SeqCst);
    mounted.kill();
    let workers: Vec<Worker> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
    for _ in 0..rng.below(3) {
        // Recovery is killed too, at random points.
        volume.mount_and_kill(Duration::from_millis(rng.length(60)));
    }
    let mounted = volume.mount();
    let mut calls = 0;
    for (number, worker) in workers.into_iter().enumerate() {
        let actual = Actual::read(&mounted.join(folder(number)))
            .unwrap_or_else(|why| panic!("COVEY_SEED={seed}: {why}"));
        let mut with_pending = worker.model.clone();
        worker.pending.iter().for_each(|call| with_pending.apply(call));
        if let (Some(why), Some(_)) = (worker.model.refuses(&actual), with_pending.refuses(&actual)) {
            let tail = &worker.history[worker.history.len().saturating_sub(25)..];
            panic!(
                "COVEY_SEED={seed}, worker {number}: {why}\npending {:?}\nlast calls {tail:#?}",
                worker.pending
            );
        }
        calls += worker.history.len();
        models.push(Model::of(&actual));
    }
    mounted.umount();
    volume.must_be_clean();
    calls
}

fn kill_rounds(first: u64, rounds: u64, options: &[&str]) {
    let volume = Volume::new();
    let mut models = vec![Model::default(); WORKERS];
    let mut calls = 0;
    for (round, seed) in seeds(first, rounds).enumerate() {
        calls += kill_round(&volume, seed, &mut models, options);
        if round % 20 == 19 {
            say(format_args!("{} rounds, {calls} calls", round + 1));
        }
    }
    assert!(calls as u64 > rounds, "only {calls} calls in {rounds} rounds");
    say(format_args!("{rounds} kills from seed {first}, {calls} calls that returned: nothing of them lost"));
}

/// After kill -9 of the daemon everything whose close, fsync or msync returned is there.
#[test]
fn what_returned_survives_kill_9() {
    requires!(Need::Mount);
    kill_rounds(1, 8, &[]);
}

/// Without the kernel's writeback cache every write(2) that returned is there, too.
#[test]
fn every_write_survives_kill_9_without_writeback() {
    requires!(Need::Mount);
    kill_rounds(100, 4, &["writeback=off"]);
}

#[test]
#[ignore = "minutes: make test-crash"]
fn long_what_returned_survives_kill_9() {
    requires!(Need::Mount);
    kill_rounds(1_000, 200, &[]);
    kill_rounds(5_000, 50, &["writeback=off"]);
}

/// One round: a volume on a disk of its own, work, a power cut, a check of what the disk holds.
fn power_round(seed: u64) -> (usize, usize) {
    let mut rng = Rng::new(seed);
    let disk = LoopFs::new(384);
    let volume = Volume::below(disk.path(), &[]);
    // Creating a volume is not under test, and is not durable by itself.
    rustix::fs::syncfs(std::fs::File::open(disk.path()).unwrap()).unwrap();
    let mounted = volume.mount();
    let root = mounted.join("work");
    std::fs::create_dir_all(root.join("d")).unwrap();
    std::fs::File::open(mounted.path()).unwrap().sync_all().unwrap();
    std::fs::File::open(&root).unwrap().sync_all().unwrap();
    let shared = Arc::new(Shared::default());
    let mut worker = Worker::new(&root, seed, Model::default(), shared.clone());
    worker.largest = *rng.pick(&[600, 20_000, 150_000, 900_000]);
    let worker = std::thread::spawn(move || worker.work());
    std::thread::sleep(Duration::from_millis(rng.length(2_500)));
    // Read before the daemon stops: more may become durable, never less.
    let durable = shared.durable.load(Ordering::SeqCst);
    mounted.signal(rustix::process::Signal::STOP);
    let after = disk.cut();
    shared.ending.store(true, Ordering::SeqCst);
    mounted.kill();
    let worker = worker.join().unwrap();
    drop(volume);
    drop(disk);
    let after = after.mount();

    let volume = Volume::existing(after.path());
    volume.must_be_recoverable();
    let mounted = volume.mount();
    let actual = Actual::read(&mounted.join("work")).unwrap_or_else(|why| panic!("COVEY_SEED={seed}: {why}"));
    let kept = prefix(&worker, durable, &actual).unwrap_or_else(|why| panic!("COVEY_SEED={seed}: {why}"));
    mounted.umount();
    volume.must_be_clean();
    (worker.history.len(), kept)
}

/// The length of the longest prefix of the calls that gives the folder's contents; at least `durable`.
fn prefix(worker: &Worker, durable: usize, actual: &Actual) -> Result<usize, String> {
    let calls: Vec<_> = worker.history.iter().chain(&worker.pending).collect();
    let mut model = Model::default();
    let mut longest = None;
    let mut reason = String::new();
    for count in 0..=calls.len() {
        match model.refuses(actual) {
            None => longest = Some(count),
            Some(why) if count == durable => reason = why,
            Some(_) => {}
        }
        if let Some(call) = calls.get(count) {
            model.apply(call);
        }
    }
    match longest {
        Some(count) if count >= durable => Ok(count),
        Some(count) => {
            Err(format!("lost what an fsync had promised: {durable} calls were durable, {count} are there"))
        }
        None => {
            let around = &calls[durable.saturating_sub(5)..calls.len().min(durable + 10)];
            Err(format!(
                "no prefix of the {} calls; at the durable one ({durable}): {reason}\n{around:#?}",
                calls.len()
            ))
        }
    }
}

fn power_rounds(first: u64, rounds: u64) {
    let (mut calls, mut kept) = (0, 0);
    for (round, seed) in seeds(first, rounds).enumerate() {
        let (more, of_them) = power_round(seed);
        (calls, kept) = (calls + more, kept + of_them);
        if round % 20 == 19 {
            say(format_args!("{} rounds, {calls} calls, {kept} kept", round + 1));
        }
    }
    say(format_args!(
        "{rounds} power cuts from seed {first}: {kept} of {calls} calls kept, always a prefix past the last fsync"
    ));
}

/// After a power cut the volume equals a prefix of its operations, never shorter than the last fsync.
#[test]
fn a_power_cut_leaves_a_prefix() {
    requires!(Need::Covey, Need::Ext4);
    power_rounds(1, 6);
}

#[test]
#[ignore = "minutes: make test-crash"]
fn long_a_power_cut_leaves_a_prefix() {
    requires!(Need::Covey, Need::Ext4);
    power_rounds(1_000, 100);
}

/// Tests of the model itself: it must refuse what the promises forbid.
mod of_the_model {
    use super::model::{Actual, Call, Model};
    use std::sync::Arc;

    fn write(name: &str, text: &str) -> Call {
        Call::Write { name: name.into(), at: 0, data: Arc::new(text.as_bytes().to_vec()) }
    }

    fn settle(name: &str) -> Call {
        Call::Settle { name: name.into(), durable: false }
    }

    fn model(calls: &[Call]) -> Model {
        let mut model = Model::default();
        calls.iter().for_each(|call| model.apply(call));
        model
    }

    fn folder(files: &[(&str, &str)]) -> Actual {
        let folder = covey_tests::scratch();
        files.iter().for_each(|(name, text)| std::fs::write(folder.path().join(name), text).unwrap());
        Actual::read(folder.path()).unwrap()
    }

    #[test]
    fn settled_bytes_must_be_there_and_loose_ones_may() {
        let loose = [Call::Create("a".into()), write("a", "new")];
        let settled = [loose[0].clone(), loose[1].clone(), settle("a")];
        for text in ["", "new", "ne", "n\0w"] {
            assert_eq!(model(&loose).refuses(&folder(&[("a", text)])), None, "{text:?}");
            assert_eq!(model(&settled).refuses(&folder(&[("a", text)])).is_some(), text != "new", "{text:?}");
        }
        assert!(model(&loose).refuses(&folder(&[("a", "bad")])).is_some());
        assert!(model(&loose).refuses(&folder(&[])).is_some());
    }

    #[test]
    fn a_rename_leaves_old_or_new() {
        let before = [
            Call::Create("a".into()),
            write("a", "old"),
            settle("a"),
            Call::Create("b".into()),
            write("b", "new"),
            settle("b"),
        ];
        let mut after = before.to_vec();
        after.push(Call::Rename("b".into(), "a".into()));
        let accepted = |files: &[(&str, &str)]| {
            let actual = folder(files);
            model(&before).refuses(&actual).is_none() || model(&after).refuses(&actual).is_none()
        };
        assert!(accepted(&[("a", "old"), ("b", "new")]) && accepted(&[("a", "new")]));
        assert!(
            !accepted(&[("a", "new"), ("b", "new")])
                && !accepted(&[("b", "new")])
                && !accepted(&[("a", "old")])
        );
    }
}
