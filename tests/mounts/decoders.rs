//! Feeds every decoder of foreign data with valid input, with randomly changed input, and with noise. `make
//! fuzz` does the same for longer, guided by code coverage.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[path = "../../fuzz/src/targets.rs"]
mod targets;

/// One change: position, value, kind.
type Change = (prop::sample::Index, u8, u8);

fn change(bytes: &mut Vec<u8>, (at, value, how): &Change) {
    let at = at.index(bytes.len() + 1);
    let Some(byte) = bytes.get_mut(at) else {
        return bytes.push(*value);
    };
    match how % 6 {
        0 => *byte = *value,
        1 => *byte ^= 1 << (value % 8),
        2 => bytes.truncate(at),
        3 => bytes.insert(at, *value),
        4 => drop(bytes.remove(at)),
        // Repeats a part.
        _ => {
            let end = bytes.len().min(at + usize::from(*value));
            let part = bytes[at..end].to_vec();
            bytes.splice(at..at, part);
        }
    }
}

#[test]
fn decoders_read_or_refuse_whatever_comes() {
    for target in targets::TARGETS {
        let seeds = (target.seeds)();
        for seed in &seeds {
            (target.run)(seed);
        }
        let mut runner =
            TestRunner::new(Config { cases: 400, failure_persistence: None, ..Config::default() });
        let changes = proptest::collection::vec(any::<Change>(), 1..12);
        let changed = (any::<prop::sample::Index>(), changes);
        let result = runner.run(&changed, |(which, changes)| {
            let mut bytes = which.get(&seeds).clone();
            changes.iter().for_each(|one| change(&mut bytes, one));
            (target.run)(&bytes);
            Ok(())
        });
        assert!(result.is_ok(), "{}: {result:?}", target.name);
        let noise = proptest::collection::vec(any::<u8>(), 0..600);
        let result = runner.run(&noise, |bytes| {
            (target.run)(&bytes);
            Ok(())
        });
        assert!(result.is_ok(), "{}, noise: {result:?}", target.name);
    }
}
