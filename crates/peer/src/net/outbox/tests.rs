use std::io::{Read, Write};
use std::sync::Arc;

use blob::Sums;
use proptest::prelude::*;
use tokio::net::TcpStream;

use super::super::opened::Open;
use super::*;
use crate::seam::Held;

const SIZE: usize = 200_000;

/// A blob whose segments have all been compared, behind bytes of the file that are not the blob's.
fn open(bytes: &[u8]) -> Arc<Open> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"before").unwrap();
    file.write_all(bytes).unwrap();
    let held = Held { file: Arc::new(file), offset: 6, sums: Arc::new(Sums::of(bytes)) };
    let open = Arc::new(Open::new(held));
    open.later(0, bytes.len() as u32).unwrap();
    open
}

/// Sends all of it to a reader that may be slow, and returns what arrived.
fn through_a_socket(mut out: Outbox, slowly: bool) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let reader = base::thread::spawn("reader", move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut got = Vec::new();
        let mut piece = vec![0; if slowly { 999 } else { 1 << 20 }];
        loop {
            match stream.read(&mut piece).unwrap() {
                0 => return got,
                count => got.extend_from_slice(&piece[..count]),
            }
        }
    })
    .unwrap();
    runtime.block_on(async {
        let link = Link::plain(TcpStream::connect(address).await.unwrap());
        while !out.is_empty() {
            match out.send(&link) {
                Ok(sent) => assert!(sent.bytes > 0),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    link.ready(tokio::io::Interest::WRITABLE).await.unwrap();
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
    reader.join().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn all_of_it_arrives_in_order(
        parts in prop::collection::vec((0usize..300, prop::option::of((0u32..49, 1u32..17))), 1..400),
        slowly: bool,
    ) {
        let bytes: Vec<u8> = (0..SIZE).map(|n| (n / 3) as u8 ^ (n >> 12) as u8).collect();
        let (open, mut out, mut right) = (open(&bytes), Outbox::default(), Vec::new());
        for (number, (frame, lent)) in parts.into_iter().enumerate() {
            let frame = vec![number as u8; frame];
            out.end().extend_from_slice(&frame);
            right.extend_from_slice(&frame);
            if let Some((block, count)) = lent {
                let (start, end) = (block * 4096, ((block + count) * 4096).min(SIZE as u32));
                let lent = open.lend(start, end).unwrap();
                let part = &bytes[start as usize..end as usize];
                prop_assert_eq!(lent.crc, blob::sums::crc32c(part));
                out.lend(lent);
                right.extend_from_slice(part);
            }
            prop_assert_eq!(out.len(), right.len());
        }
        prop_assert!(through_a_socket(out, slowly) == right);
    }
}

#[test]
fn a_buffer_that_is_always_filled_does_not_grow() {
    let mut out = Outbox::default();
    for _ in 0..1000 {
        out.end().extend_from_slice(&[1; 1000]);
        let sent = out.len().min(999);
        out.count_sent(sent);
        assert!(out.bytes.len() <= GONE + 4000);
    }
    assert_eq!(out.len(), 1000);
}
