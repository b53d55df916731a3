use std::sync::Arc;
use std::time::Duration;

use base::Ino;

use super::super::{Leases, Nodes};
use super::*;
use crate::engine::Memory;
use crate::key::Key;
use crate::names::Names;
use crate::plan::op::Make;
use crate::plan::{Ctx, Op};
use crate::record::mode;
use crate::shared::Term;
use crate::store::{MetaStore, StoreError, Value};

const NODE: [u8; 16] = [3; 16];
const ME: Holder = Holder { node: 1, epoch: 1 };

struct Alone;

impl Nodes for Alone {
    fn me(&self) -> Option<Holder> {
        Some(ME)
    }

    fn alive(&self) -> Result<Vec<Holder>, StoreError> {
        Ok(vec![ME])
    }

    fn recall(&self, _: u32, _: Ino, _: u64) -> Result<(), String> {
        Err("there is no other".to_owned())
    }

    fn report(&self, _: &str) {}
}

fn add(journal: &mut Journal, batch: u64, done: u64, len: usize) -> bool {
    let value: Value = vec![batch as u8; len].into();
    let commit = Commit { puts: vec![(Key::subdirs(Ino(batch)), value)], ..Commit::default() };
    journal.prepare(ME, &commit, &Basis { leases: &[], made: &[], checks: &[] });
    journal.write(batch, batch, done)
}

fn batches(dir: &Path) -> Vec<u64> {
    let left = Left::read(dir, NODE).unwrap();
    assert!(left.behind == 0 && !left.is_headless);
    left.changes.iter().map(|change| change.batch).collect()
}

/// Whatever is done and added, what is found is what is outstanding.
#[test]
fn the_files_hold_what_is_outstanding() {
    for seed in 0..10 {
        let mut dice = base::dice::Dice::new(seed);
        let dir = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(dir.path(), NODE).unwrap();
        let (mut done, mut next, mut last) = (0u64, 1u64, 0);
        for _ in 0..400 {
            if dice.below(3) > 0 {
                assert!(add(&mut journal, next, done, dice.below(60_000)));
                last = next;
                next += dice.below(2) as u64;
            } else if done + 1 < next {
                done += 1 + dice.below((next - done - 1) as usize) as u64;
                journal.done(done, false);
            } else if last <= done {
                journal.done(done, true);
            }
            if dice.below(80) == 0 {
                let found = batches(dir.path());
                let first = found.first().copied().unwrap_or(done + 1);
                assert!(first > done && found.iter().all(|batch| *batch <= last), "seed {seed}");
                assert!(found.is_sorted(), "seed {seed}");
                let expected: Vec<u64> = (done + 1..next).collect();
                assert!(expected.iter().all(|batch| found.contains(batch)), "seed {seed}: {found:?}");
            }
        }
        drop(journal);
        Journal::open(dir.path(), NODE).unwrap();
        assert!(batches(dir.path()).is_empty(), "what is left is given up");
    }
}

/// A journal that cannot be written (its disk is full): what is acknowledged is in the engine.
#[test]
fn without_a_journal_the_engine_has_what_is_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = Journal::open(dir.path(), NODE).unwrap();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let good = std::mem::replace(&mut journal.files[0], full);
    let (engine, term) = (Arc::new(Memory::new()), Arc::new(Term::default()));
    term.extend(base::time::boot(), Duration::from_secs(3600));
    let leases = Leases::with_journal(engine.clone(), term, Arc::new(Alone), Some(journal)).unwrap();
    let names = Names::leased(leases.clone());
    let ctx = Ctx { now: base::Timestamp(1), uid: 0, gid: 0 };
    names.run(&Op::Format { rows: &[("format", vec![1])] }, &ctx).unwrap();
    let file = |n: u64| {
        let make = Make { ino: Ino(n), mode: mode::S_IFREG | 0o644, umask: 0, rdev: 0, target: b"" };
        names.run(&Op::Create { parent: Ino::ROOT, name: n.to_string().as_bytes(), make }, &ctx).unwrap();
        engine.get(&Key::dentry(Ino::ROOT, n.to_string().as_bytes())).unwrap().is_some()
    };
    assert!((2..6).all(file), "it was acknowledged, and the engine does not have it");
    leases.flush().unwrap();
    // There is space again.
    leases.core.state.lock().journal.as_mut().unwrap().files[0] = good;
    let is_broken = || leases.core.state.lock().journal.as_ref().unwrap().is_broken();
    assert!(is_broken());
    assert!(file(6));
    leases.flush().unwrap();
    assert!(!is_broken());
    file(7);
    assert!(!is_broken());
}
