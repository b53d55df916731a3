//! The transport's own cost: decode a request, call a filesystem that does nothing, encode the reply, without
//! a kernel.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

extern crate covey_fuse as fuse;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use fuse::abi::header::IN_HEADER;
use fuse::abi::init::{Agreed, flag};
use fuse::abi::opcodes::op;
use fuse::buffer::PageBuf;
use fuse::channel::Sink;
use fuse::counts::Counts;
use fuse::defer::{PendingTable, Pool};
use fuse::dispatch::{Dispatcher, Parts};
use fuse::notify::Notifier;
use fuse::null::Null;
use fuse::swap::Swap;
use fuse::watch::Watch;

/// Takes replies and drops them.
struct Nowhere;

impl Sink for Nowhere {
    fn reply(&self, _: u64, error: i32, body: &[u8]) -> io::Result<()> {
        assert_eq!(error, 0);
        std::hint::black_box(body);
        Ok(())
    }

    fn notify(&self, _: i32, _: &[&[u8]]) -> io::Result<()> {
        Ok(())
    }
}

/// A request for inode `ino` with these arguments, as the kernel sends it.
fn request(opcode: u32, ino: u64, arguments: &[u8]) -> Vec<u8> {
    let mut request = ((IN_HEADER + arguments.len()) as u32).to_ne_bytes().to_vec();
    request.extend(opcode.to_ne_bytes());
    request.extend(1_u64.to_ne_bytes());
    request.extend(ino.to_ne_bytes());
    request.extend([0; 16]);
    request.extend(arguments);
    request
}

/// Arguments of READ and WRITE: handle, offset, length, and flags.
fn range(len: u32, data: &[u8]) -> Vec<u8> {
    let mut arguments = [0; 40];
    arguments[16..20].copy_from_slice(&len.to_ne_bytes());
    [&arguments, data].concat()
}

fn dispatch(c: &mut Criterion) {
    let sink: Arc<dyn Sink> = Arc::new(Nowhere);
    let pending_table = PendingTable::start(Duration::from_secs(5), |_| ()).unwrap();
    let notifier = Notifier::start(Arc::clone(&sink)).unwrap();
    let dispatcher = Dispatcher::new(Parts {
        fs: Arc::new(Swap::fixed(Arc::new(Null::new()))),
        agreed: Agreed { flags: flag::POSIX_ACL, ..Agreed::default() },
        pending_table: Arc::clone(&pending_table),
        workers: Pool::new("bench", 1),
        writers: Pool::new("bench", 1),
        seeker: Pool::new("bench", 1),
        unlockers: Pool::new("test", 1),
        shared: None,
        untold: None,
        dirty: None,
        flushes: None,
        notifier,
        counts: Arc::new(Counts::new(1)),
        watch: Watch::new(2),
        log: Arc::new(|line| eprintln!("{line}")),
    });
    let mut room = PageBuf::for_reply();
    let mknod = [&0o100_644_u32.to_ne_bytes()[..], &[0; 12], b"a-new-file\0"].concat();
    let requests = [
        ("LOOKUP", request(op::LOOKUP, 1, b"77\0")),
        ("GETATTR", request(op::GETATTR, 7, &[0; 16])),
        ("SETATTR", request(op::SETATTR, 7, &[0; 88])),
        ("MKNOD", request(op::MKNOD, 1, &mknod)),
        ("UNLINK", request(op::UNLINK, 1, b"a-new-file\0")),
        ("READ of 4 KiB", request(op::READ, 7, &range(4096, &[]))),
        ("WRITE of 4 KiB", request(op::WRITE, 7, &range(4096, &[7; 4096]))),
    ];
    let mut group = c.benchmark_group("dispatch");
    for (what, request) in &requests {
        group.bench_function(*what, |b| {
            b.iter(|| dispatcher.serve(0, request, room.bytes(), &sink));
        });
    }
    group.finish();
    pending_table.close();
}

fn brief() -> Criterion {
    Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .without_plots()
}

criterion_group!(name = benches; config = brief(); targets = dispatch);
criterion_main!(benches);
