//! The cost of operations in requests: an exact budget for each, on a real volume and a real mount.
//!
//! A request is a round trip between the kernel and the daemon. The speed of a FUSE filesystem depends most
//! on how few there are. So every operation of [`table::LINES`] has a budget by kind of request, one for `-o
//! writeback=on` and one for `off`, and is run over both transports. **The test fails when an operation costs
//! more, and also when it costs less**: then the table is out of date and must be lowered.
//! docs/PERFORMANCE.md has the same table, and another test compares the two.
//!
//! One thing is left to chance. With the writeback cache, the time of a write that follows a creation is sent
//! to the daemon only if the kernel's clock ticked between the two. Such lines give a range.
//!
//! FORGETs are not counted: the kernel sends them at any time, nothing waits for them, and they have no
//! reply.

mod rig;
mod table;
mod works;

use std::collections::BTreeMap;

use covey_tests::{Need, requires};
use fuse::Transport;
use rig::{Rig, Switch};
use table::{LINES, Line, ROUNDS, TICKING};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/PERFORMANCE.md");

/// Runs all lines. Returns those that exceed or undercut their budget, and why.
fn failures(transport: Transport, writeback: bool) -> BTreeMap<&'static str, String> {
    let lines: Vec<&Line> = LINES.iter().filter(|line| line.lacks().is_none()).collect();
    for lack in LINES.iter().filter_map(|line| line.lacks()) {
        println!("skipped: {lack}");
    }
    let rig = Rig::new();
    let mount = rig.mount(transport, writeback);
    for (place, line) in lines.iter().enumerate() {
        let root = mount.folder(place);
        std::fs::create_dir(&root).unwrap();
        (0..=ROUNDS).for_each(|round| (line.prepare)(&root, round));
    }
    mount.end();
    // The kernel has cached nothing of what was prepared: what is not warmed is cold.
    let mount = rig.mount(transport, writeback);
    mount.greet();
    let mut failures = BTreeMap::new();
    for (place, line) in lines.iter().enumerate() {
        let root = mount.folder(place);
        std::fs::metadata(&root).unwrap();
        (0..=ROUNDS).for_each(|round| (line.warm)(&root, round));
        // Not counted: each later round finds the folder as the round before left it.
        (line.work)(&root, 0);
        let came = mount.during(|| (1..=ROUNDS).for_each(|round| (line.work)(&root, round)));
        let budget = if writeback { line.cached } else { line.plain };
        let mut wanted: BTreeMap<&str, u64> = budget.iter().map(|(kind, n)| (*kind, n * ROUNDS)).collect();
        if writeback && line.tick > 0 {
            // Any number in the range is accepted.
            let most = wanted.remove(TICKING).unwrap_or(0);
            let got = came.get(TICKING).copied().unwrap_or(0);
            wanted.insert(TICKING, got.clamp(most - line.tick * ROUNDS, most));
            wanted.retain(|_, n| *n > 0);
        }
        if came != wanted {
            failures.insert(line.what, format!("budget {wanted:?}, came {came:?} in {ROUNDS} rounds"));
        }
    }
    mount.end();
    rig.end();
    failures
}

/// A machine that runs out of memory, or whose caches are dropped, loses pages and names that were warm. Then
/// there are requests that the operation does not cost. So a line fails only if it fails in each attempt.
const ATTEMPTS: usize = 3;

fn every_line_keeps_its_budget(transport: Transport) {
    let mut failed = String::new();
    for writeback in [true, false] {
        let mut failing = failures(transport, writeback);
        for _ in 1..ATTEMPTS {
            if !failing.is_empty() {
                let again = failures(transport, writeback);
                failing.retain(|what, _| again.contains_key(what));
            }
        }
        for (what, why) in failing {
            failed += &format!("writeback {writeback}: {what}: {why}\n");
        }
    }
    assert!(failed.is_empty(), "over {transport:?}:\n{failed}");
}

#[test]
fn every_operation_keeps_its_budget_of_requests() {
    requires!(Need::Root, Need::Mount);
    every_line_keeps_its_budget(Transport::Classic);
}

#[test]
fn every_operation_keeps_its_budget_over_io_uring() {
    requires!(Need::Root, Need::Mount);
    let Some(_switch) = Switch::on() else { return };
    every_line_keeps_its_budget(Transport::Uring);
}

/// The section of the document between its marks is [`table::markdown`], line by line.
#[test]
fn the_table_of_requests_is_in_the_document() {
    let text = std::fs::read_to_string(DOCUMENT).unwrap();
    let there = text.split("<!-- requests -->").nth(1).unwrap_or_default().trim();
    let wanted = table::markdown();
    assert!(there == wanted.trim(), "docs/PERFORMANCE.md, \"Requests per operation\", should say:\n{wanted}");
}
