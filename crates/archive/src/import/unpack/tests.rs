//! Members, padding, and what else may follow compressed data.

use std::io::Write;

use super::*;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

/// An archive with nothing in it.
const EMPTY: &[u8] = &[0; 1024];

/// What comes out, or the sentence that says why not.
fn unpacked(bytes: Vec<u8>) -> std::result::Result<Vec<u8>, String> {
    let bounds = Bounds::new("x", 1 << 20, None, None);
    let bytes = unpack("x", Box::new(Cursor::new(bytes)), &bounds).map_err(|failure| failure.why.join("; "));
    let mut out = Vec::new();
    bytes?.read_to_end(&mut out).map_err(|error| error.to_string())?;
    Ok(out)
}

/// gzip(1) and tar(1) take a file that dd(1) or a tape has padded. The import ended with an error.
#[test]
fn regression_zeros_behind_compressed_data_are_padding() {
    for pack in [gzip, zstd] {
        for zeros in [1, 511, 512, 10_240, 100_000] {
            let bytes = [pack(EMPTY), vec![0; zeros]].concat();
            assert_eq!(unpacked(bytes).unwrap(), EMPTY, "{zeros}");
        }
        assert_eq!(unpacked(pack(EMPTY)).unwrap(), EMPTY);
    }
}

#[test]
fn members_one_after_the_other_are_one_archive() {
    for pack in [gzip, zstd] {
        let parts = [pack(&EMPTY[..700]), pack(&EMPTY[700..]), pack(b""), vec![0; 300]];
        assert_eq!(unpacked(parts.concat()).unwrap(), EMPTY);
    }
    // Frames that are skipped, which parallel compressors write, also before the first one.
    let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0][..], b"skip"].concat();
    let parts = [skipped.clone(), zstd(&EMPTY[..700]), skipped.clone(), zstd(&EMPTY[700..]), skipped];
    assert_eq!(unpacked(parts.concat()).unwrap(), EMPTY);
}

/// The rest of a damaged archive must not be taken for padding.
#[test]
fn anything_else_behind_compressed_data_is_an_error() {
    for pack in [gzip, zstd] {
        for rest in [&b"text"[..], b"\0\0\0text", &[vec![0; 100_000], vec![1]].concat()] {
            let why = unpacked([pack(EMPTY), rest.to_vec()].concat()).unwrap_err();
            assert!(why.contains("other than zeros follows"), "{why}");
        }
        // A member behind padding is none, as for gzip.
        let why = unpacked([pack(EMPTY), vec![0; 9], pack(EMPTY)].concat()).unwrap_err();
        assert!(why.contains("other than zeros follows"), "{why}");
        let mut cut = [pack(EMPTY), pack(EMPTY)].concat();
        cut.truncate(cut.len() - 3);
        assert!(unpacked(cut).is_err(), "a member that is cut short");
    }
}

#[test]
fn what_is_no_archive_is_named() {
    let open = |bytes: &[u8]| {
        let bounds = Bounds::new("x", 1 << 20, None, None);
        unpack("x", Box::new(Cursor::new(bytes.to_vec())), &bounds).map(|_| ()).unwrap_err()
    };
    assert!(open(b"\xfd7zXZ\0....").next[0].starts_with("decompress it on the way: xz -dc"));
    assert!(open(b"just a text").why[0].contains("neither a folder nor a tar archive"));
    assert!(open(b"PK\x03\x04").why[0].contains("zip"));
    assert_eq!(open(b"").code, "not-an-archive");
}
