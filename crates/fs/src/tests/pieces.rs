//! Where the bytes of a file are.

use std::time::Duration;

use base::size::BLOB_MAX;
use blob::BlobSource;

use super::*;
use crate::pieces::Piece;

#[test]
fn pieces_are_what_a_read_returns() {
    let world = World::new();
    let volume = world.open();
    let page = u64::from(BLOB_MAX);
    let big = volume.file(Ino::ROOT, "big");
    let (first, last) = (noise(1, BLOB_MAX as usize), noise(2, 100_000));
    volume.put(big, 0, &first);
    volume.put(big, 2 * page, &last);
    let small = volume.file(Ino::ROOT, "small");
    volume.put(small, 0, b"small");
    assert_eq!(volume.pieces(small, 0, 5), Ok(None), "in the names");
    volume.seal_now(Duration::from_secs(60)).unwrap();
    for (offset, len) in
        [(0, u64::MAX), (5, 10), (page - 1, 2), (page + 7, page), (2 * page + 50_000, 1 << 40)]
    {
        let pieces = volume.pieces(big, offset, len).unwrap().unwrap();
        let mut read = Vec::new();
        for piece in &pieces {
            let mut bytes = vec![0; piece.len() as usize];
            if let Piece::Stored { blob, offset, .. } = piece {
                world.origin.read_at(blob, *offset, &mut bytes).unwrap();
            }
            assert!(!piece.is_empty());
            read.extend(bytes);
        }
        let whole = volume.get(big);
        let end = offset.saturating_add(len).min(whole.len() as u64);
        assert!(read == whole[offset as usize..end as usize], "{offset} {len}");
    }
    assert_eq!(volume.pieces(big, 1 << 40, 1), Ok(Some(Vec::new())), "behind the end");
    assert_eq!(volume.pieces(Ino::ROOT, 0, 1), Err(Errno::EISDIR));
}
