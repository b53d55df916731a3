//! Members as GNU tar writes them, if it is installed, and as nobody should.

use std::process::Command;

use super::records::RANGES_MAX;
use super::*;
use crate::acl;

/// A hand-made header.
fn header(name: &[u8], kind: u8, size: u64) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block[..name.len()].copy_from_slice(name);
    block[100..107].copy_from_slice(b"0000644");
    for field in [108..115, 116..123] {
        block[field].copy_from_slice(b"0000000");
    }
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[136..147].copy_from_slice(b"00000000000");
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

fn archive(members: &[(&[u8], u8, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, kind, data) in members {
        bytes.extend_from_slice(&header(name, *kind, data.len() as u64));
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    }
    bytes.resize(bytes.len() + 2 * BLOCK, 0);
    bytes
}

type Read = Vec<(Entry, Vec<u8>)>;

fn read(bytes: &[u8]) -> io::Result<Read> {
    let mut reader = Reader::new(bytes);
    let mut all = Vec::new();
    while let Some(entry) = reader.next_member()? {
        let mut contents = vec![0; entry.size as usize];
        reader.data(&entry, &mut |at, piece| {
            contents[at as usize..at as usize + piece.len()].copy_from_slice(&piece);
            true
        })?;
        all.push((entry, contents));
    }
    Ok(all)
}

#[test]
fn members_and_long_names_are_read() {
    let long = [b'n'; 300];
    let bytes = archive(&[
        (b"a", b'0', b"hello"),
        (b"././@LongLink", b'L', &long),
        (b"nnn", b'0', &[9; 1000]),
        (b"d/", 0, b""),
        (b"x", b'x', b"21 path=odd \xff\n name\n16 mtime=-1.25x\n"),
        (b"short", b'0', b""),
    ]);
    let all = read(&bytes).unwrap_err();
    assert!(all.to_string().contains("pax"), "a length that is wrong is seen: {all}");
    let bytes = archive(&[
        (b"a", b'0', b"hello"),
        (b"././@LongLink", b'L', &long),
        (b"nnn", b'0', &[9; 1000]),
        (b"d/", 0, b""),
        (b"x", b'x', b"20 path=odd \xff\n name\n15 mtime=-1.25\n"),
        (b"short", b'0', b""),
    ]);
    let all = read(&bytes).unwrap();
    let names: Vec<&[u8]> = all.iter().map(|(entry, _)| entry.path.as_slice()).collect();
    assert_eq!(names, [b"a".as_slice(), &long, b"d/", b"odd \xff\n name"]);
    assert_eq!((all[0].1.as_slice(), all[1].1.len(), all[2].0.kind), (b"hello".as_slice(), 1000, b'5'));
    assert_eq!(all[3].0.mtime, Timestamp(-1_250_000_000));
}

#[test]
fn numbers_have_two_forms() {
    assert_eq!(field(b"0000644\0").unwrap(), 0o644);
    assert_eq!(field(b"   17 \0\0").unwrap(), 0o17);
    assert_eq!(field(b"\x80\0\0\0\0\0\0\x01\0\0\0\0").unwrap(), 1 << 32);
    assert_eq!(field(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe").unwrap(), -2);
    assert!(field(b"12x4567\0").is_err());
}

#[test]
fn damage_is_an_error_never_a_panic() {
    let bytes = archive(&[
        (b"a", b'0', b"hello"),
        (b"x", b'x', b"20 path=odd \xff\n name\n"),
        (b"b", b'0', &[1; 2000]),
    ]);
    for cut in 0..bytes.len() - 2 * BLOCK {
        assert!(read(&bytes[..cut]).is_err(), "cut to {cut}");
    }
    assert!(read(&bytes[..bytes.len() - BLOCK]).is_ok(), "one zero block is an end");
    for at in 0..bytes.len() {
        for value in [0, 0xff, b'9', bytes[at] ^ 1] {
            let mut spoilt = bytes.clone();
            spoilt[at] = value;
            // Any result is right, as long as it returns.
            drop(read(&spoilt));
        }
    }
}

#[test]
fn gnu_tar_is_understood_in_all_its_dialects() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("sparse");
    let mut wanted = vec![0u8; 3 << 20];
    // More ranges than an old header holds.
    for part in 0..40 {
        wanted[part * 65_536..][..4096].fill(part as u8 + 1);
    }
    let out = std::fs::File::create(&file).unwrap();
    for part in 0..40u64 {
        std::os::unix::fs::FileExt::write_all_at(&out, &[part as u8 + 1; 4096], part * 65_536).unwrap();
    }
    out.set_len(3 << 20).unwrap();
    let path = temp.path().join("a.tar");
    let dialects: [&[&str]; 5] = [
        &["--format=gnu", "--sparse"],
        &["--posix", "--sparse", "--sparse-version=0.0"],
        &["--posix", "--sparse", "--sparse-version=0.1"],
        &["--posix", "--sparse", "--sparse-version=1.0"],
        &["--format=ustar"],
    ];
    for dialect in dialects {
        let made = Command::new("tar")
            .args(dialect)
            .arg("-C")
            .args([temp.path(), "-cf".as_ref(), &path, "sparse".as_ref()])
            .output();
        if !made.is_ok_and(|output| output.status.success()) {
            println!("tar {dialect:?} does not work here: skipped");
            continue;
        }
        let all = read(&std::fs::read(&path).unwrap()).unwrap();
        let (entry, contents) = &all[0];
        assert_eq!((entry.path.as_slice(), all.len()), (b"sparse".as_slice(), 1), "{dialect:?}");
        assert!(*contents == wanted, "{dialect:?}");
        let stored: u64 = entry.data.iter().map(|(_, len)| len).sum();
        assert!(dialect.len() == 1 || stored < 1 << 20, "{dialect:?} holds {stored} bytes of data");
    }
}

/// `LENGTH KEY=VALUE\n`
fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let len = (rest..).find(|len| *len == rest + len.to_string().len()).unwrap();
    [len.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

fn refused(bytes: &[u8]) -> String {
    let mut reader = Reader::new(bytes);
    loop {
        match reader.next_member() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it was read to its end"),
            Err(error) => return error.to_string(),
        }
    }
}

/// Global records of a forty-kilobyte compressed archive added up to two gigabytes.
#[test]
fn regression_records_do_not_add_up() {
    // The same key repeated, and keys that are not used: only what counts is held.
    let value = vec![b'v'; 100_000];
    let again: Vec<u8> = (0..100).flat_map(|_| record(b"SCHILY.xattr.user.a", &value)).collect();
    let unused: Vec<u8> = (0..100).flat_map(|n| record(format!("comment.{n}").as_bytes(), &value)).collect();
    let mut members: Vec<(&[u8], u8, &[u8])> = vec![(b"g", b'g', &again), (b"g", b'g', &unused)];
    members.push((b"a", b'0', b""));
    let all = read(&archive(&members)).unwrap();
    assert_eq!(all[0].0.xattrs, [(b"user.a".to_vec(), value.clone())]);
    // More and more different attributes end the reading, in one header or in many.
    let many = |from: usize| -> Vec<u8> {
        (from..from + 8).flat_map(|n| record(format!("SCHILY.xattr.user.{n}").as_bytes(), &value)).collect()
    };
    for kind in [b'g', b'x'] {
        let headers: Vec<Vec<u8>> = (0..2).map(|n| many(n * 8)).collect();
        let mut members: Vec<(&[u8], u8, &[u8])> =
            headers.iter().map(|text| (&b"h"[..], kind, &text[..])).collect();
        members.push((b"a", b'0', b""));
        assert!(refused(&archive(&members)).contains("1 MiB"), "{}", char::from(kind));
    }
    let endless = vec![(&b"h"[..], b'x', &b""[..]); 1000];
    assert!(refused(&archive(&endless)).contains("too many headers"));
}

#[test]
fn regression_a_record_without_a_value_takes_back_what_was_said_of_all() {
    let all = read(&archive(&[
        (b"g", b'g', &record(b"path", b"other")),
        (b"a", b'0', b""),
        (b"x", b'x', &record(b"path", b"")),
        (b"b", b'0', b""),
    ]));
    let all = all.unwrap();
    assert_eq!((all[0].0.path.as_slice(), all[1].0.path.as_slice()), (&b"other"[..], &b"b"[..]));
}

/// For a size near 2^64 the padding was computed as zero, or the program ended.
#[test]
fn regression_a_size_that_no_file_can_have_is_refused() {
    for size in ["18446744073709551615", "18446744073709551105", "9223372036854775808", "1x", "-1"] {
        let bytes = archive(&[(b"x", b'x', &record(b"size", size.as_bytes())), (b"a", b'0', b"")]);
        assert!(refused(&bytes).contains("size"), "{size}");
        let sparse =
            [record(b"GNU.sparse.size", size.as_bytes()), record(b"GNU.sparse.map", b"0,0")].concat();
        refused(&archive(&[(b"x", b'x', &sparse), (b"a", b'0', b"")]));
    }
    let mut block = header(b"a", b'0', 0);
    block[124..136].copy_from_slice(b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff");
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    assert!(!refused(&block).is_empty());
}

#[test]
fn regression_names_and_maps_have_a_bound_before_they_are_read() {
    let long = vec![b'n'; 70_000];
    for kind in [b'L', b'K'] {
        assert!(refused(&archive(&[(b"l", kind, &long), (b"a", b'0', b"")])).contains("longer"));
    }
    assert!(
        refused(&archive(&[(b"x", b'x', &record(b"path", &long)), (b"a", b'0', b"")])).contains("16 KiB")
    );
    // Each name may be a folder that has to be made. A map of holes names the file, too.
    let deep = b"d/".repeat(DEPTH_MAX + 1);
    let map = [record(b"GNU.sparse.major", b"1"), record(b"GNU.sparse.realsize", b"9")];
    for records in [record(b"path", &deep), [&map.concat()[..], &record(b"GNU.sparse.name", &deep)].concat()]
    {
        let archive = archive(&[(b"x", b'x', &records), (b"a", b'0', &[&b"0\n"[..], &[0; 510]].concat())]);
        assert!(refused(&archive).contains("2,048 folders"));
    }
    // A size that is claimed but not there takes no memory.
    assert!(!refused(&header(b"x", b'x', 16 << 20)).is_empty());
    let major = [
        record(b"GNU.sparse.major", b"1"),
        record(b"GNU.sparse.name", b"a"),
        record(b"GNU.sparse.realsize", b"9"),
    ];
    let count = format!("{}\n", RANGES_MAX + 1).into_bytes();
    assert!(refused(&archive(&[(b"x", b'x', &major.concat()), (b"a", b'0', &count)])).contains("holes"));
    let pair = [record(b"GNU.sparse.offset", b"0"), record(b"GNU.sparse.numbytes", b"0")].concat();
    let map = [record(b"GNU.sparse.size", b"9"), pair.repeat(200_000)].concat();
    let headers = vec![(&b"x"[..], b'x', &map[..]); 3];
    let mut members: Vec<(&[u8], u8, &[u8])> = headers;
    members.push((b"a", b'0', b""));
    assert!(refused(&archive(&members)).contains("holes"));
}

/// A map in GNU's old form that continues without ranges and never ends.
#[test]
fn regression_an_old_map_ends() {
    struct Endless(Vec<u8>, usize);
    impl io::Read for Endless {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            for byte in buf.iter_mut() {
                *byte = if self.1 < BLOCK { self.0[self.1] } else { u8::from(self.1 % BLOCK == 504) };
                self.1 += 1;
            }
            Ok(buf.len())
        }
    }
    let mut block = header(b"a", b'S', 0);
    block[482] = 1;
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let error = Reader::new(Endless(block.to_vec(), 0)).next_member().unwrap_err();
    assert!(error.to_string().contains("holes"), "{error}");
}

#[test]
fn regression_acls_in_text_are_handed_on() {
    let text = [record(b"SCHILY.acl.access", b"user::rw-"), record(b"SCHILY.acl.ace", b"x")].concat();
    let all = read(&archive(&[(b"x", b'x', &text), (b"a", b'0', b"")])).unwrap();
    assert_eq!(all[0].0.acls, [(acl::ACCESS, b"user::rw-".to_vec())]);
    assert_eq!(all[0].0.unknown.len(), 1);
}

#[test]
fn regression_labels_are_passed_over_and_parts_of_volumes_refused() {
    let all = read(&archive(&[(b"a volume's name", b'V', b""), (b"a", b'0', b"x")])).unwrap();
    assert_eq!((all.len(), all[0].0.path.as_slice()), (1, &b"a"[..]));
    assert!(refused(&archive(&[(b"a", b'M', b"x")])).contains("several volumes"));
    // A folder with the list of its contents.
    let all = read(&archive(&[(b"d/", b'D', b"Yname\0\0"), (b"d/name", b'0', b"x")])).unwrap();
    assert_eq!((all[0].0.kind, all[1].0.path.as_slice()), (b'5', &b"d/name"[..]));
}

#[test]
fn regression_odd_times_and_owners_are_taken_as_far_as_they_go() {
    assert_eq!(seconds(b"-0.5"), Some(Timestamp::from_parts(-1, 500_000_000)));
    assert_eq!(seconds(b"-1"), Some(Timestamp::from_parts(-1, 0)));
    assert_eq!(seconds(b"1.1234567899"), Some(Timestamp::from_parts(1, 123_456_789)));
    assert!(seconds(b"99999999999999").is_some(), "a far future is cut to what can be kept");
    assert_eq!((seconds(b"x"), seconds(b"1.x"), seconds(b"")), (None, None, None));
    assert_eq!(owner(b"\xff\xff\xff\xff\xff\xff\xff\xfe").unwrap(), u64::MAX);
}
