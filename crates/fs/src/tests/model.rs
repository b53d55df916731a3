//! Applies the same operations to a volume and to plain byte vectors.

use base::size::MIB;
use proptest::prelude::*;

use super::*;
use crate::api::{Allocate, Seek};

const FILES: usize = 3;
const PAGE: u64 = 4 * MIB;

#[derive(Clone, Debug)]
enum Step {
    Write { file: usize, at: u64, len: usize, seed: u64, cached: bool },
    Cut { file: usize, size: u64 },
    Punch { file: usize, at: u64, len: u64 },
    Zero { file: usize, at: u64, len: u64, keep_size: bool },
    Copy { from: usize, at: u64, to: usize, to_at: u64, len: u64 },
    Seal,
    Sweep,
    Reopen,
    Crash,
}

/// Offsets near the places that matter: the start, the inline bound, page boundaries.
fn place() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..600, (PAGE - 3000)..(PAGE + 3000), (2 * PAGE - 2000)..(2 * PAGE + 2000), 0u64..3 * PAGE,]
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 1u64..700, 6 => 1u64..20_000, 1 => 900_000u64..1_300_000]
}

fn step() -> impl Strategy<Value = Step> {
    let file = 0..FILES;
    prop_oneof![
        8 => (file.clone(), place(), length(), 0..6u64, any::<bool>()).prop_map(|(file, at, len, seed, cached)| {
            Step::Write { file, at, len: len as usize, seed, cached }
        }),
        2 => (file.clone(), length(), 0..3u64)
            .prop_map(|(file, len, seed)| Step::Write { file, at: 0, len: len as usize, seed, cached: false }),
        3 => (file.clone(), prop_oneof![Just(0), place()]).prop_map(|(file, size)| Step::Cut { file, size }),
        2 => (file.clone(), place(), length()).prop_map(|(file, at, len)| Step::Punch { file, at, len }),
        1 => (file.clone(), place(), length(), any::<bool>())
            .prop_map(|(file, at, len, keep_size)| Step::Zero { file, at, len, keep_size }),
        3 => (file.clone(), place(), file, place(), length())
            .prop_map(|(from, at, to, to_at, len)| Step::Copy { from, at, to, to_at, len }),
        1 => Just(Step::Seal),
        1 => Just(Step::Sweep),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ]
}

fn reach(model: &mut Vec<u8>, end: u64) {
    if (model.len() as u64) < end {
        model.resize(end as usize, 0);
    }
}

fn apply(v: &Volume, files: &[Ino], models: &mut [Vec<u8>], step: &Step) {
    match *step {
        Step::Write { file, at, len, seed, cached } => {
            let bytes = noise(seed, len);
            Filesystem::write(v, files[file], at, &bytes, None, cached).unwrap();
            let model = &mut models[file];
            reach(model, at + len as u64);
            model[at as usize..at as usize + len].copy_from_slice(&bytes);
        }
        Step::Cut { file, size } => {
            assert_eq!(v.cut(files[file], size).size, size);
            models[file].resize(size as usize, 0);
        }
        Step::Punch { file, at, len } => {
            v.allocate(files[file], at, len, Allocate::PunchHole).unwrap();
            zero(&mut models[file], at, len);
        }
        Step::Zero { file, at, len, keep_size } => {
            v.allocate(files[file], at, len, Allocate::Zero { keep_size }).unwrap();
            if !keep_size {
                reach(&mut models[file], at + len);
            }
            zero(&mut models[file], at, len);
        }
        Step::Copy { from, at, to, to_at, len } => {
            let have = (models[from].len() as u64).saturating_sub(at).min(len);
            let overlaps = from == to && at < to_at + have && to_at < at + have;
            let done = v.copy_range(files[from], at, files[to], to_at, len);
            if have > 0 && overlaps {
                assert_eq!(done, Err(Errno::EINVAL));
                return;
            }
            assert_eq!(done, Ok(have));
            if have > 0 {
                let bytes = models[from][at as usize..(at + have) as usize].to_vec();
                reach(&mut models[to], to_at + have);
                models[to][to_at as usize..(to_at + have) as usize].copy_from_slice(&bytes);
            }
        }
        Step::Seal => {
            v.core.packs.close_all();
            eventually("all is sealed", || v.core.packs.all_sealed());
        }
        Step::Sweep => {
            v.core.sweep_round(false).unwrap();
            for pack in v.core.garbage.emptiest(3, 100) {
                v.core.move_live(pack).unwrap();
            }
            for file in files {
                for page in 0..3 {
                    v.core.rewrite_page(*file, page).unwrap();
                }
            }
            v.core.sweep_round(false).unwrap();
        }
        Step::Reopen | Step::Crash => {}
    }
}

fn zero(model: &mut [u8], at: u64, len: u64) {
    let end = (at + len).min(model.len() as u64);
    if at < end {
        model[at as usize..end as usize].fill(0);
    }
}

fn check(v: &Volume, files: &[Ino], models: &[Vec<u8>]) {
    for (n, (file, model)) in files.iter().zip(models).enumerate() {
        let got = v.get(*file);
        if got != *model {
            let at = got.iter().zip(model).position(|(a, b)| a != b);
            panic!("file {n} differs: lengths {} and {}, first at {at:?}", got.len(), model.len());
        }
        // A hole found by seek reads as zeros, and data and holes alternate up to the end.
        let mut at = 0;
        while at < model.len() as u64 {
            let hole = v.seek(*file, at, Seek::Hole).unwrap();
            let data = v.seek(*file, hole, Seek::Data).unwrap_or(model.len() as u64);
            assert!(hole >= at && (data > hole || hole == model.len() as u64));
            assert!(model[hole as usize..data as usize].iter().all(|b| *b == 0));
            at = data;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_volume_holds_what_plain_vectors_hold(steps in prop::collection::vec(step(), 1..40)) {
        let world = World::new();
        let mut v = world.open();
        let files: Vec<Ino> = (0..FILES).map(|n| v.file(Ino::ROOT, &format!("f{n}"))).collect();
        let mut models = vec![Vec::new(); FILES];
        for step in &steps {
            apply(&v, &files, &mut models, step);
            if matches!(step, Step::Reopen) {
                v.close().unwrap();
            }
            if matches!(step, Step::Reopen | Step::Crash) {
                check(&v, &files, &models);
                drop(v);
                v = world.open();
            }
        }
        check(&v, &files, &models);
        v.close().unwrap();
        drop(v);
        let v = world.open();
        check(&v, &files, &models);
        assert_eq!(world.lines.lock().clone(), Vec::<String>::new());
        // Nothing is left when the files are removed.
        for n in 0..FILES {
            v.unlink(Ino::ROOT, format!("f{n}").as_bytes()).unwrap();
        }
        eventually("all is gone", || {
            v.core.packs.close_all();
            world.origin.bytes() == 0 && world.parts.packs.open_packs().unwrap().is_empty()
        });
        v.close().unwrap();
    }
}
