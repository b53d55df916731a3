//! The cost of planning, without a store: `cargo run --release -p covey-meta --example plan_cost`.
//!
//! Each operation is planned as `Names::run` does it: with nothing shown, then with the rows it asked for,
//! until there is a change. Rows come from a map. The figures include the time for that, so they are upper
//! bounds.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::collections::BTreeMap;
use std::time::Instant;

use base::{Ino, PackNo, Timestamp};
use covey_meta as meta;
use meta::plan::op::{Body, Make, Piece, RenameMode, SetAttrs};
use meta::plan::{Ctx, Op, Plan, View, plan};
use meta::record::{Dentry, mode};
use meta::{Key, Value};

type Rows = BTreeMap<Key, Value>;

fn plan_fully(op: &Op<'_>, ctx: &Ctx, rows: &Rows) -> Box<meta::plan::Change> {
    let mut view = View::new();
    loop {
        match plan(op, ctx, &view) {
            Plan::Need { keys, ranges } => {
                for key in keys {
                    let value = rows.get(&key).cloned();
                    view.show(key, value);
                }
                for (range, limit) in ranges {
                    let found = rows.range(range.start.clone()..range.end.clone()).take(limit);
                    let found = found.map(|(key, value)| (key.clone(), value.clone())).collect();
                    view.show_range(range, limit, found);
                }
            }
            Plan::Change(change) => return change,
            Plan::Refused(refusal) => panic!("{refusal}"),
        }
    }
}

fn apply(rows: &mut Rows, op: &Op<'_>, ctx: &Ctx) {
    let change = plan_fully(op, ctx, rows);
    rows.extend(change.commit.puts);
    for key in change.commit.dels {
        rows.remove(&key);
    }
}

fn measure(what: &str, rows: &Rows, ctx: &Ctx, op: &Op<'_>) {
    let rounds = 200_000u32;
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..rounds {
            std::hint::black_box(plan_fully(std::hint::black_box(op), ctx, rows));
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(rounds));
    }
    println!("{what:<44} {:>7.2} us", best * 1e6);
}

fn main() {
    let ctx = Ctx { now: Timestamp(1), uid: 0, gid: 0 };
    let make = |ino, kind| Make { ino: Ino(ino), mode: kind | 0o644, umask: 0o022, rdev: 0, target: b"" };
    let mut rows = Rows::new();
    apply(&mut rows, &Op::Format { rows: &[] }, &ctx);
    let piece = |at, len| Piece { at, len, pack: PackNo(3), offset: at as u32, fresh: Some(7) };
    for (ino, name) in [(2, &b"file"[..]), (3, b"scattered")] {
        apply(&mut rows, &Op::Create { parent: Ino::ROOT, name, make: make(ino, mode::S_IFREG) }, &ctx);
    }
    let write = |ino, pieces| Op::Write {
        ino: Ino(ino),
        body: Body::Packed(pieces),
        unprivileged: None,
        cached: true,
        intern: None,
        over: None,
    };
    let first = [piece(0, 4096)];
    apply(&mut rows, &write(2, &first), &ctx);
    let many: Vec<Piece> = (0..64).map(|i| Piece { offset: 1 << 20, ..piece(i * 8192, 4096) }).collect();
    apply(&mut rows, &write(3, &many), &ctx);
    assert!(rows.contains_key(&Key::dentry(Ino::ROOT, b"file")));
    assert!(Dentry::decode(&rows[&Key::dentry(Ino::ROOT, b"file")]).is_ok());

    let parent = Ino::ROOT;
    measure("create", &rows, &ctx, &Op::Create { parent, name: b"new", make: make(9, mode::S_IFREG) });
    measure("unlink", &rows, &ctx, &Op::Unlink { parent, name: b"file" });
    let op = Op::Rename { parent, name: b"file", to: parent, to_name: b"to", mode: RenameMode::Replace };
    measure("rename in a directory", &rows, &ctx, &op);
    let (end, same, within) =
        ([piece(4096, 4096)], [Piece { pack: PackNo(4), ..piece(0, 4096) }], [piece(9000, 4096)]);
    measure("write 4 KiB at the end", &rows, &ctx, &write(2, &end));
    measure("write 4 KiB over the same range", &rows, &ctx, &write(2, &same));
    measure("write 4 KiB into a page of 64 extents", &rows, &ctx, &write(3, &within));
    let op = Op::Write {
        ino: Ino(2),
        body: Body::Inline(&[1; 300]),
        unprivileged: None,
        cached: false,
        intern: None,
        over: None,
    };
    measure("write 300 B inline", &rows, &ctx, &op);
    let set = SetAttrs { mtime: Some(Timestamp(5)), ..SetAttrs::default() };
    measure("utimens", &rows, &ctx, &Op::SetAttr { ino: Ino(2), set });
}
