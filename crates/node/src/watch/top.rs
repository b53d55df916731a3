//! The busiest operations, callers and files of a mount, at intervals.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use api::control::{Heard, Wire};
use api::error::Result;
use api::watch::{Busy, TopTable};
use base::Ino;
use fuse::Session;
use fuse::watch::Record;
use meta::Names;
use serde_json::Value;

use super::{Callers, LOOK_EVERY, has_ended, op_name};
use crate::mount::Mount;
use crate::paths::parent_and_name;

/// Rows of each table.
const ROWS: usize = 10;
/// The largest number of different callers or files to count in an interval. Further ones are left out.
const APART: usize = 64 << 10;
/// The largest number of folders to climb from a file.
const DEPTH_MAX: usize = 40;

#[derive(Clone, Copy, Default)]
struct Sum {
    requests: u64,
    bytes: u64,
    ns: u64,
}

/// Sums by key.
struct Sums<K>(HashMap<K, Sum>);

impl<K: Copy + Eq + Hash + Ord> Sums<K> {
    fn add(&mut self, key: K, record: &Record) {
        if self.0.len() >= APART && !self.0.contains_key(&key) {
            return;
        }
        let sum = self.0.entry(key).or_default();
        sum.requests += 1;
        sum.bytes += u64::from(record.bytes);
        sum.ns += record.served;
    }

    fn busiest(&mut self, name: &mut dyn FnMut(K) -> String) -> Vec<Busy> {
        let mut all: Vec<_> = self.0.drain().collect();
        all.sort_by_key(|(key, sum)| (std::cmp::Reverse(sum.ns), *key));
        all.truncate(ROWS);
        all.into_iter()
            .map(|(key, Sum { requests, bytes, ns })| Busy { name: name(key), requests, bytes, ns })
            .collect()
    }
}

/// Sends a table for each interval until the command stops it.
pub(super) fn serve(node: &Mount, session: &Session, interval: Duration, wire: &Wire<'_>) -> Result<Value> {
    let watch = session.watch();
    let _hold = watch.record(1);
    let mut cursor = watch.now();
    let names = node.as_node().map(|node| Names::new(node.store()));
    let mut callers = Callers::default();
    let (mut ops, mut pids, mut files) = (Sums(HashMap::new()), Sums(HashMap::new()), Sums(HashMap::new()));
    let (mut begun, mut requests) = (base::time::monotonic(), 0);
    loop {
        let heard = wire.heard(LOOK_EVERY);
        watch.read(&mut cursor, &mut |record| {
            requests += 1;
            ops.add(record.opcode, &record);
            pids.add(record.pid, &record);
            files.add(record.ino, &record);
        });
        let ended = heard != Heard::Nothing || has_ended(session);
        if ended {
            return Ok(Value::Null);
        }
        if begun.elapsed() < interval {
            continue;
        }
        let table = TopTable {
            seconds: begun.elapsed().as_secs_f64(),
            requests: std::mem::take(&mut requests),
            lost: std::mem::take(&mut cursor.lost),
            operations: ops.busiest(&mut op_name),
            callers: pids.busiest(&mut |pid| match pid {
                0 => "kernel".to_owned(),
                pid => format!("{} {pid}", callers.name(pid)),
            }),
            files: files.busiest(&mut |ino| path_of(names.as_ref(), Ino(ino))),
        };
        if !wire.note(&table) {
            return Ok(Value::Null);
        }
        begun = base::time::monotonic();
    }
}

/// An inode's path, as far as it can be found quickly: `/a/b`, `.../b`, or its number.
fn path_of(names: Option<&Names>, ino: Ino) -> String {
    let mut parts = Vec::new();
    let mut at = ino;
    let mut whole = true;
    while at != Ino::ROOT && whole && parts.len() < DEPTH_MAX {
        match names.and_then(|names| parent_and_name(names, at)) {
            Some((parent, name)) => {
                parts.push(String::from_utf8_lossy(&name).escape_debug().to_string());
                at = parent;
            }
            None => whole = false,
        }
    }
    match (parts.is_empty(), whole && at == Ino::ROOT) {
        (true, true) => "/".to_owned(),
        (true, false) => format!("inode {}", ino.0),
        (false, whole) => {
            parts.reverse();
            format!("{}/{}", if whole { "" } else { "..." }, parts.join("/"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_come_first_and_there_are_never_many() {
        let mut sums = Sums(HashMap::new());
        for pid in 0..50_u64 {
            sums.add(pid, &Record { served: pid, bytes: 2, ..Record::default() });
            sums.add(pid, &Record { served: pid, bytes: 3, ..Record::default() });
        }
        let rows = sums.busiest(&mut |pid| pid.to_string());
        assert_eq!((rows.len(), rows[0].name.as_str(), rows[0].ns), (ROWS, "49", 98));
        assert_eq!((rows[0].requests, rows[0].bytes), (2, 5));
        assert!(sums.busiest(&mut |pid: u64| pid.to_string()).is_empty(), "the next interval begins empty");
    }
}
