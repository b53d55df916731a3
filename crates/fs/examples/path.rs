//! Runs one operation of the volume many times and nothing else, as the target of a profiler.
//!
//! ```text
//! cargo build --profile bench -p covey-fs --example path
//! valgrind --tool=callgrind --toggle-collect='*::measured' target/release/examples/path create 2000
//! ```
//!
//! `scripts/profile-daemon` does this for all operations and prints where the instructions went.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

extern crate covey_fs as fs;

#[path = "../benches/world/mod.rs"]
mod world;

use std::hint::black_box;
use std::time::Instant;

use base::Ino;
use fs::api::{FileKind, Filesystem, NewNode, RenameMode, SetAttr};
use world::{MANY, PAGE, ROOT, World, noise};

/// The number of files used in turn. All of them are looked up before counting begins.
const WARM: usize = 100;

/// The part that a profiler collects: only code below this function counts.
#[inline(never)]
fn measured(work: &mut dyn FnMut(usize), n: usize) {
    work(n);
}

fn names(world: &World, count: usize) -> Vec<(Ino, Vec<u8>)> {
    (0..count).map(|_| world.fresh()).collect()
}

/// The loop's body for an operation. What it needs is created in advance.
fn body<'a>(world: &'a World, what: &str, count: usize) -> Box<dyn FnMut(usize) + 'a> {
    let volume = &world.volume;
    let file = move |n: usize| world.files[n % WARM];
    let mut page = vec![0; PAGE];
    match what {
        "lookup" => Box::new(move |n| {
            let name = (n % WARM).to_string();
            black_box(volume.lookup(world.many, name.as_bytes()).unwrap());
        }),
        "getattr" => Box::new(move |n| {
            black_box(volume.getattr(file(n)).unwrap());
        }),
        "read-open" => Box::new(move |n| {
            black_box(volume.read(file(n), 0, &mut page).unwrap());
        }),
        "read-blob" => Box::new(move |n| {
            let offset = (n % 256 * PAGE) as u64;
            black_box(volume.read(world.sealed, offset, &mut page).unwrap());
        }),
        "readdir" => Box::new(move |_| {
            let mut seen = 0;
            let mut each = |_: fs::api::DirEntry<'_>| {
                seen += 1;
                std::ops::ControlFlow::Continue(())
            };
            volume.readdir(world.many, 0, &mut each).unwrap();
            assert!(seen >= MANY);
        }),
        _ => changing(world, what, count),
    }
}

/// The same for operations that change something.
fn changing<'a>(world: &'a World, what: &str, count: usize) -> Box<dyn FnMut(usize) + 'a> {
    let volume = &world.volume;
    let file = move |n: usize| world.files[n % WARM];
    match what {
        "create" => {
            let node = NewNode { kind: FileKind::File, perm: 0o644, umask: 0o22, rdev: 0 };
            let names: Vec<_> = (0..count).map(|n| format!("created-{n:08}").into_bytes()).collect();
            Box::new(move |n| {
                black_box(volume.mknod(&ROOT, world.scratch, &names[n], &node).unwrap());
            })
        }
        "write" => {
            let files = names(world, count);
            let data: Vec<_> = (0..count).map(|n| noise(1 << 40 | n as u64, PAGE)).collect();
            Box::new(move |n| {
                black_box(volume.write(files[n].0, 0, &data[n], None, true).unwrap());
            })
        }
        "append" => {
            let ino = world.fresh().0;
            let data = noise(9, PAGE);
            Box::new(move |n| {
                black_box(volume.write(ino, (n * PAGE) as u64, &data, None, true).unwrap());
            })
        }
        "unlink" => {
            let files = names(world, count);
            files.iter().for_each(|(ino, _)| volume.forget(*ino, 1));
            Box::new(move |n| {
                let _ = volume.unlink(world.scratch, &files[n].1).unwrap();
            })
        }
        "rename" => {
            let files = names(world, count);
            let to: Vec<_> = (0..count).map(|n| format!("renamed-{n:08}").into_bytes()).collect();
            Box::new(move |n| {
                let (from, to) = (&files[n].1, &to[n]);
                volume.rename(world.scratch, from, world.scratch, to, RenameMode::Replace).unwrap();
            })
        }
        "setattr" => Box::new(move |n| {
            let set = SetAttr { perm: Some(0o600 + (n / WARM % 8) as u16), ..SetAttr::default() };
            black_box(volume.setattr(&ROOT, file(n), &set).unwrap());
        }),
        other => {
            eprintln!(
                "path: no operation {other}: one of lookup getattr read-open read-blob create write append \
                 unlink rename setattr readdir"
            );
            std::process::exit(2);
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "lookup".to_owned());
    let count: usize = args.next().map_or(1000, |n| n.parse().expect("how often, a number"));
    let world = World::new();
    let warm = 2 * WARM;
    let mut work = body(&world, &what, count + warm);
    (0..warm).for_each(&mut work);
    let began = Instant::now();
    (warm..warm + count).for_each(|n| measured(&mut *work, n));
    println!("{what}: {:.2} us", began.elapsed().as_secs_f64() * 1e6 / count as f64);
    drop(work);
    world.close();
}
