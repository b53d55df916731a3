//! Records what is read of a mount, for `covey warm --from-list`.
//!
//! The reads come from the rings, and are put in order by their times. Only reads that come to the daemon are
//! seen: what the page cache has is not read again. So a list of everything that a program reads is recorded
//! on a fresh mount. The names are looked up at the end, so that the lookups do not disturb the program.

use std::collections::HashSet;

use api::control::{Heard, Wire};
use api::error::{Failure, Result};
use api::reads::{ReadRange, merged};
use api::watch::{RecordSummary, Recorded};
use base::Ino;
use fuse::Session;
use fuse::abi::opcodes::op;
use meta::Names;
use serde_json::Value;

use super::{LOOK_EVERY, SIGN_OF_LIFE, has_ended};
use crate::mount::Mount;
use crate::paths::paths_of;

/// The most reads that are kept: 40 MB.
const READS_MAX: usize = 1 << 20;
/// Ranges in one message.
const BATCH: usize = 500;

/// Records until the command stops it, and then sends the list.
pub(super) fn serve(node: &Mount, session: &Session, wire: &Wire<'_>) -> Result<Value> {
    let begun = base::time::monotonic();
    let names = Names::new(node.node()?.store());
    let watch = session.watch();
    let hold = watch.record(1);
    let mut cursor = watch.now();
    let (mut reads, mut lost) = (Vec::new(), 0);
    wire.note(&Recorded::default());
    let mut told = base::time::monotonic();
    loop {
        let heard = wire.heard(LOOK_EVERY);
        watch.read(&mut cursor, &mut |record| {
            if record.opcode != op::READ || record.error != 0 || record.bytes == 0 {
            } else if reads.len() < READS_MAX {
                reads.push((record.at, record.ino, record.offset, u64::from(record.bytes)));
            } else {
                lost += 1;
            }
        });
        if told.elapsed() >= SIGN_OF_LIFE {
            told = base::time::monotonic();
            if !wire.note(&Recorded::default()) {
                break;
            }
        }
        if heard != Heard::Nothing || has_ended(session) {
            break;
        }
    }
    drop(hold);
    lost += cursor.lost;
    // Requests that are served on different threads come out of order.
    reads.sort_unstable();
    let reads = merged(reads.into_iter().map(|(_, ino, offset, bytes)| (ino, offset, bytes)));
    let mut summary =
        RecordSummary { lost, seconds: begun.elapsed().as_secs_f64(), ..RecordSummary::default() };
    send(&names, reads, &mut summary, wire);
    serde_json::to_value(summary)
        .map_err(|error| Failure::new("io", "the answer cannot be written").why(error.to_string()))
}

fn send(names: &Names, reads: Vec<(u64, u64, u64)>, summary: &mut RecordSummary, wire: &Wire<'_>) {
    let files: HashSet<Ino> = reads.iter().map(|(ino, ..)| Ino(*ino)).collect();
    let mut told = base::time::monotonic();
    // The command ends if it hears nothing for some seconds.
    let mut going = || {
        told.elapsed() < SIGN_OF_LIFE || {
            told = base::time::monotonic();
            wire.note(&Recorded::default())
        }
    };
    let paths = paths_of(names, files.iter().copied(), &mut going);
    let mut batch = Recorded::default();
    for (ino, offset, len) in reads {
        let Some(path) = paths.get(&Ino(ino)).cloned() else { continue };
        batch.reads.push(ReadRange { path, offset, len });
        (summary.ranges, summary.bytes) = (summary.ranges + 1, summary.bytes + len);
        if batch.reads.len() == BATCH && !wire.note(&std::mem::take(&mut batch)) {
            return;
        }
    }
    wire.note(&batch);
    summary.files = paths.len() as u64;
    summary.unnamed = (files.len() - paths.len()) as u64;
}
