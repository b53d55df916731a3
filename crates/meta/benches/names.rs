//! The cost of names: planning an operation, committing it to the journal, and one record of the log.
//!
//! The planner is pure, so it is timed over a store in memory, including reads of rows. The journal is on a
//! disk, and its own thread drains meanwhile, as in a mount.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

extern crate covey_meta as meta;

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{Ino, Timestamp};
use criterion::{Criterion, criterion_group, criterion_main};
use meta::journal::{Journal, Options, format};
use meta::plan::op::{Make, RenameMode, SetAttrs};
use meta::plan::{Ctx, Op};
use meta::record::mode;
use meta::{Commit, Key, Memory, MetaStore, Names, Value};
use support::FolderPacks;

const CTX: Ctx = Ctx { now: Timestamp(1), uid: 0, gid: 0 };
static NEXT: AtomicU64 = AtomicU64::new(100);

fn next() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn make(ino: u64) -> Make<'static> {
    Make { ino: Ino(ino), mode: mode::S_IFREG | 0o644, umask: 0o022, rdev: 0, target: b"" }
}

fn create(names: &Names, name: &[u8]) -> u64 {
    let ino = next();
    names.run(&Op::Create { parent: Ino::ROOT, name, make: make(ino) }, &CTX).unwrap();
    ino
}

/// Operations through [`Names::run`]: plan, show rows, plan, commit.
fn operations(c: &mut Criterion, title: &str, store: Arc<dyn MetaStore>) {
    let names = Names::new(store);
    names.run(&Op::Format { rows: &[] }, &CTX).unwrap();
    let file = create(&names, b"file");
    let mut group = c.benchmark_group(title);
    group.bench_function("lookup", |b| {
        b.iter(|| black_box(names.lookup(Ino::ROOT, b"file").unwrap().unwrap()));
    });
    group.bench_function("attr", |b| b.iter(|| black_box(names.attr(Ino(file)).unwrap().unwrap())));
    group.bench_function("create", |b| {
        b.iter(|| create(&names, format!("made-{:08}", next()).as_bytes()));
    });
    group.bench_function("create and unlink", |b| {
        b.iter(|| {
            create(&names, b"short-lived");
            names.run(&Op::Unlink { parent: Ino::ROOT, name: b"short-lived" }, &CTX).unwrap();
        });
    });
    create(&names, b"a");
    let mut there = true;
    group.bench_function("rename", |b| {
        b.iter(|| {
            let (name, to_name) = if there { (&b"a"[..], &b"b"[..]) } else { (&b"b"[..], &b"a"[..]) };
            there = !there;
            let (parent, to, mode) = (Ino::ROOT, Ino::ROOT, RenameMode::Replace);
            names.run(&Op::Rename { parent, name, to, to_name, mode }, &CTX).unwrap();
        });
    });
    let mut time = 0;
    group.bench_function("setattr", |b| {
        b.iter(|| {
            time += 1;
            let set = SetAttrs { mtime: Some(Timestamp(time)), ..SetAttrs::default() };
            names.run(&Op::SetAttr { ino: Ino(file), set }, &CTX).unwrap();
        });
    });
    group.finish();
}

fn value(len: usize) -> Value {
    vec![7; len].into()
}

/// The journal's share: one commit of the rows that a create has, planned in advance; and encoding and
/// checksumming its record.
fn journal(c: &mut Criterion) {
    let folder = tempfile::tempdir().unwrap();
    let packs = Arc::new(FolderPacks::new(&folder.path().join("open")));
    let (journal, _) = Journal::open(folder.path(), packs, Options::default()).unwrap();
    let journal = Arc::new(journal);
    let mut group = c.benchmark_group("journal");
    let rows = |n: u64| {
        let name = format!("made-{n:08}");
        vec![(Key::inode(Ino(n)), value(96)), (Key::dentry(Ino::ROOT, name.as_bytes()), value(9))]
    };
    group.bench_function("commit of two rows and two counters", |b| {
        b.iter_batched(
            || Commit {
                puts: rows(next()),
                adds: vec![(Key::volume("inodes"), 1)],
                maxs: vec![(Key::dir_changed(Ino::ROOT), next())],
                ..Commit::default()
            },
            |commit| journal.commit(commit).unwrap(),
            criterion::BatchSize::SmallInput,
        );
    });
    let finals: Vec<_> = rows(7).into_iter().map(|(key, value)| (key, Some(value))).collect();
    let mut buf = Vec::new();
    let place = format::Place { segment: 1, seq: 1, key: 0 };
    group.bench_function("encode and checksum its record", |b| {
        b.iter(|| {
            format::begin(&mut buf);
            format::put_commit(&mut buf, &finals, &[]);
            format::finish(&mut buf, format::Kind::Commit, place);
            black_box(buf.len())
        });
    });
    let file = std::fs::File::create(folder.path().join("plain")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 8 << 20], 0).unwrap();
    let (mut at, record) = (0, vec![5; buf.len()]);
    group.bench_function("write(2) of so many bytes, for comparison", |b| {
        b.iter(|| {
            std::os::unix::fs::FileExt::write_all_at(&file, &record, at).unwrap();
            at = (at + record.len() as u64) % (8 << 20);
        });
    });
    group.finish();
    operations(c, "names over the journal", journal.clone());
    journal.close().unwrap();
}

fn planner(c: &mut Criterion) {
    operations(c, "names over memory", Arc::new(Memory::new()));
}

fn brief() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .without_plots()
}

criterion_group!(name = benches; config = brief(); targets = planner, journal);
criterion_main!(benches);
