//! What an operation costs in the daemon, without a kernel: the volume on a disk, with its journal.
//!
//! `make bench-daemon` runs this and the benches of the lower crates. docs/PERFORMANCE.md, "Where a
//! microsecond goes", has a budget for each line. Some operations use something up (create, unlink, rename, a
//! write to a new file). They are timed over a number of prepared inputs, and the preparation is not timed.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

extern crate covey_fs as fs;

mod world;

use std::hint::black_box;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use base::Ino;
use criterion::{Criterion, criterion_group, criterion_main};
use fs::api::{FileKind, Filesystem, NewNode, RenameMode, SetAttr};
use world::{MANY, PAGE, ROOT, World, noise};

/// Prepares `n` times, then times `n` times.
fn used_up<T>(n: u64, prepare: impl FnMut(u64) -> T, work: impl Fn(&T)) -> Duration {
    let prepared: Vec<T> = (0..n).map(prepare).collect();
    let began = Instant::now();
    prepared.iter().for_each(work);
    began.elapsed()
}

fn looking(c: &mut Criterion, world: &World) {
    let volume = &world.volume;
    let mut group = c.benchmark_group("volume");
    group.bench_function("lookup", |b| {
        b.iter(|| {
            black_box(volume.lookup(world.many, b"77").unwrap());
        });
    });
    group.bench_function("lookup of a missing name", |b| {
        b.iter(|| assert!(black_box(volume.lookup(world.many, b"missing")).is_err()));
    });
    group.bench_function("getattr", |b| b.iter(|| black_box(volume.getattr(world.files[77]).unwrap())));
    group.bench_function("readdir of 1,000", |b| {
        b.iter(|| {
            let mut seen = 0;
            let mut each = |_: fs::api::DirEntry<'_>| {
                seen += 1;
                ControlFlow::Continue(())
            };
            volume.readdir(world.many, 0, &mut each).unwrap();
            assert!(seen >= MANY);
        });
    });
    group.finish();
}

fn reading(c: &mut Criterion, world: &World) {
    let volume = &world.volume;
    let mut group = c.benchmark_group("volume");
    let mut page = vec![0; PAGE];
    group.bench_function("read 4 KiB of an open pack", |b| {
        b.iter(|| assert_eq!(volume.read(world.files[77], 0, &mut page), Ok(PAGE)));
    });
    group.bench_function("read 4 KiB of a blob", |b| {
        b.iter(|| assert_eq!(volume.read(world.sealed, 40 << 10, &mut page), Ok(PAGE)));
    });
    let mut whole = vec![0; 1 << 20];
    group.bench_function("read 1 MiB of a blob", |b| {
        b.iter(|| assert_eq!(volume.read(world.sealed, 0, &mut whole), Ok(1 << 20)));
    });
    group.finish();
}

fn changing(c: &mut Criterion, world: &World) {
    let volume = &world.volume;
    let mut group = c.benchmark_group("volume");
    let node = NewNode { kind: FileKind::File, perm: 0o644, umask: 0o22, rdev: 0 };
    group.bench_function("create", |b| {
        b.iter_custom(|n| {
            let name = |_| format!("made-{:08}", world.number()).into_bytes();
            used_up(n, name, |name| {
                black_box(volume.mknod(&ROOT, world.scratch, name, &node).unwrap());
            })
        });
    });
    group.bench_function("unlink", |b| {
        b.iter_custom(|n| {
            let fresh = |_| {
                let (ino, name) = world.fresh();
                volume.forget(ino, 1);
                name
            };
            used_up(n, fresh, |name| {
                let _ = volume.unlink(world.scratch, name).unwrap();
            })
        });
    });
    group.bench_function("rename", |b| {
        b.iter_custom(|n| {
            let pair = |_| (world.fresh().1, format!("to-{:08}", world.number()).into_bytes());
            used_up(n, pair, |(from, to)| {
                volume.rename(world.scratch, from, world.scratch, to, RenameMode::Replace).unwrap();
            })
        });
    });
    group.bench_function("setattr", |b| {
        let mut perm = 0;
        b.iter(|| {
            perm = (perm + 1) % 0o777;
            let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
            black_box(volume.setattr(&ROOT, world.files[3], &set).unwrap())
        });
    });
    group.finish();
}

fn writing(c: &mut Criterion, world: &World) {
    let volume = &world.volume;
    let mut group = c.benchmark_group("volume");
    group.bench_function("write 4 KiB to a new file", |b| {
        b.iter_custom(|n| {
            let fresh = |_| -> (Ino, Vec<u8>) { (world.fresh().0, noise(world.number(), PAGE)) };
            used_up(n, fresh, |(ino, data)| {
                black_box(volume.write(*ino, 0, data, None, true).unwrap());
            })
        });
    });
    let (ino, data) = (world.fresh().0, noise(1 << 50, PAGE));
    let mut at = 0;
    group.bench_function("append 4 KiB", |b| {
        b.iter(|| {
            volume.write(ino, at, &data, None, true).unwrap();
            at += PAGE as u64;
        });
    });
    group.finish();
}

fn operations(c: &mut Criterion) {
    let world = World::new();
    looking(c, &world);
    reading(c, &world);
    changing(c, &world);
    writing(c, &world);
    world.close();
}

fn brief() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .without_plots()
}

criterion_group!(name = benches; config = brief(); targets = operations);
criterion_main!(benches);
