//! Members as GNU tar writes them, where there is one, and as nobody should.

use std::process::Command;

use super::*;

/// A header by hand.
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
    while let Some(entry) = reader.next()? {
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
            // Whatever comes of it, it comes.
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
