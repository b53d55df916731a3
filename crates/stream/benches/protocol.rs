//! What the wire between a guest and its server costs, without sockets: a frame is made of a FUSE message,
//! and read again at the other end.
//!
//! - `request`: a request without data is made into a frame, read, and looked at.
//! - `turn`: the same for a request and its reply.
//! - `payload`: a frame with so many bytes of data, made and read, beside a plain copy of the same bytes.
//!   Making a frame copies nothing: the data is sent from where it is. Both ends compute its checksum.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

extern crate covey_stream as stream;

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use stream::frame::{self, HEADER, Head, Kind};
use stream::request::{self, Asked, IN_HEADER, OUT_HEADER, op};

/// A FUSE request with these arguments.
fn request(opcode: u32, arguments: &[u8]) -> Vec<u8> {
    let mut request = ((IN_HEADER + arguments.len()) as u32).to_ne_bytes().to_vec();
    request.extend(opcode.to_ne_bytes());
    request.extend(7_u64.to_ne_bytes());
    request.extend(1_u64.to_ne_bytes());
    request.extend([0; 16]);
    request.extend(arguments);
    request
}

/// A FUSE reply with this body.
fn reply(body: usize) -> Vec<u8> {
    let mut reply = ((OUT_HEADER + body) as u32).to_ne_bytes().to_vec();
    reply.extend(0_u32.to_ne_bytes());
    reply.extend(7_u64.to_ne_bytes());
    reply.resize(OUT_HEADER + body, 3);
    reply
}

/// The sender's part: the header for a message that stays where it is.
fn make(kind: Kind, message: &[u8]) -> [u8; HEADER] {
    frame::encode(&Head::of_slot(kind, 3, 9), &[black_box(message)])
}

/// The receiver's part: the header is read, and the checksum compared.
fn read(header: &[u8; HEADER], message: &[u8]) -> Head {
    let head = frame::decode(black_box(header)).unwrap();
    frame::verify(header, message).unwrap();
    head
}

/// A request, both ends.
fn one_way(asked: &[u8]) -> Asked {
    let header = make(Kind::Request, asked);
    read(&header, asked);
    let known = Asked::read(asked).unwrap();
    black_box(request::cost(&known, asked));
    known
}

/// A request and its reply, both ends, as guest and server do it.
fn turn(asked: &[u8], answer: &[u8]) {
    let known = one_way(asked);
    let header = make(Kind::Reply, answer);
    read(&header, answer);
    assert!(request::is_reply(known.unique, answer));
    black_box(request::references(&known, answer));
}

fn fixed(c: &mut Criterion) {
    let cases = [
        ("lookup", request(op::LOOKUP, b"name-of-a-file\0"), reply(128)),
        ("getattr", request(op::GETATTR, &[0; 16]), reply(104)),
        ("open", request(op::OPEN, &[0; 8]), reply(16)),
        ("read", request(op::READ, &[0; 40]), reply(0)),
        ("statfs", request(op::STATFS, &[]), reply(80)),
    ];
    for (name, asked, answer) in &cases {
        c.bench_function(&format!("request/{name}"), |b| b.iter(|| one_way(black_box(asked))));
        c.bench_function(&format!("turn/{name}"), |b| b.iter(|| turn(asked, answer)));
    }
}

fn payload(c: &mut Criterion) {
    let mut group = c.benchmark_group("payload");
    for kib in [4, 64, 128, 1024] {
        let len = kib << 10;
        let answer = reply(len);
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(format!("frame/{kib}K"), |b| {
            b.iter(|| {
                let header = make(Kind::Reply, &answer);
                read(&header, &answer)
            });
        });
        let mut room = vec![0; answer.len()];
        group.bench_function(format!("copy/{kib}K"), |b| {
            b.iter(|| black_box(&mut room).copy_from_slice(black_box(&answer)));
        });
    }
    group.finish();
}

fn settings() -> Criterion {
    Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1))
}

criterion_group!(name = all; config = settings(); targets = fixed, payload);
criterion_main!(all);
