//! What is written is read back by our own reader, and by other programs if they are installed.

use std::process::Command;

use made::random_entry;

use super::*;
use crate::read::Reader;

/// Members made from a seed, without a library. Every field takes its extreme values.
mod made {
    use super::*;

    fn next(seed: &mut u64) -> u64 {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed
    }

    fn bytes(seed: &mut u64, most: u64) -> Vec<u8> {
        let len = 1 + next(seed) % most;
        (0..len)
            .map(|_| (1 + next(seed) % 255) as u8)
            .map(|byte| if byte == b'/' { b'_' } else { byte })
            .collect()
    }

    pub fn random_entry(seed: &mut u64) -> Entry {
        let parts = 1 + next(seed) % 4;
        let path = (0..parts).map(|_| bytes(seed, 200)).collect::<Vec<_>>().join(&b'/');
        let kind = *b"0000123456".get(next(seed) as usize % 10).unwrap();
        let pick = |seed: &mut u64, values: &[u64]| values[next(seed) as usize % values.len()];
        let mut entry = Entry {
            kind,
            path,
            mode: (next(seed) % 0o10000) as u32,
            uid: pick(seed, &[0, 1000, SHORT_MAX, SHORT_MAX + 1, u64::from(u32::MAX)]),
            gid: pick(seed, &[0, 65_534, SHORT_MAX + 7]),
            mtime: Timestamp(i128::from(next(seed) as i64) * 3),
            atime: Some(Timestamp(pick(seed, &[0, 1, 999_999_999, 1_500_000_000_123_456_789]).into())),
            ..Entry::default()
        };
        match kind {
            b'1' | b'2' => entry.link = bytes(seed, 300),
            b'3' | b'4' => entry.device = ((next(seed) % 4096) as u32, (next(seed) % (1 << 20)) as u32),
            b'5' => entry.path.push(b'/'),
            b'0' => {
                let mut at = 0;
                for _ in 0..next(seed) % 5 {
                    let (gap, len) = (next(seed) % 3000, 1 + next(seed) % 3000);
                    entry.data.push((at + gap, len));
                    at += gap + len;
                }
                entry.size = at + pick(seed, &[0, 0, 700, 1 << 40]);
            }
            _ => {}
        }
        for _ in 0..next(seed) % 3 {
            let name = [b"user.".to_vec(), bytes(seed, 40)].concat();
            let mut value = bytes(seed, 500);
            value.push(0);
            entry.xattrs.push((name, value));
        }
        entry
    }
}

fn contents(entry: &Entry) -> Vec<u8> {
    let total: u64 = entry.data.iter().map(|(_, len)| len).sum();
    (0..total).map(|at| (at % 251) as u8).collect()
}

fn write(entries: &[Entry]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for entry in entries {
        writer.begin(entry).unwrap();
        if entry.kind == b'0' {
            writer.data(&contents(entry)).unwrap();
        }
        writer.end().unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn whatever_is_written_is_read_back() {
    let mut seed = 0x1234_5678_9abc_def1;
    println!("seed {seed:#x}");
    let entries: Vec<Entry> = (0..400).map(|_| random_entry(&mut seed)).collect();
    let archive = write(&entries);
    assert_eq!(archive.len() as u64 % RECORD, 0);
    let mut reader = Reader::new(&archive[..]);
    for wanted in &entries {
        let found = reader.next_member().unwrap().unwrap();
        let mut wanted = wanted.clone();
        wanted.xattrs.sort();
        // Touching ranges may be merged, and both forms are right. Empty ranges hold no data.
        wanted.data.retain(|(_, len)| *len > 0);
        let mut found_plain = found.clone();
        found_plain.data.retain(|(_, len)| *len > 0);
        if wanted.data.iter().map(|(_, len)| len).sum::<u64>() == wanted.size {
            wanted.data = if wanted.size == 0 { vec![] } else { vec![(0, wanted.size)] };
        }
        assert_eq!(found_plain, wanted);
        let mut bytes = Vec::new();
        let each = &mut |_, piece: Vec<u8>| {
            bytes.extend_from_slice(&piece);
            true
        };
        reader.data(&found, each).unwrap();
        assert_eq!(bytes, if wanted.kind == b'0' { contents(&wanted) } else { vec![] });
    }
    assert_eq!(reader.next_member().unwrap(), None);
}

#[test]
fn numbers_are_written_as_pax_wants_them() {
    for (time, text) in [
        (0, "0"),
        (1_500_000_000, "1.5"),
        (-1_500_000_000, "-1.5"),
        (-1, "-0.000000001"),
        (7_000_000_001, "7.000000001"),
    ] {
        assert_eq!(seconds(Timestamp(time)), text);
        assert_eq!(crate::read::seconds(text.as_bytes()), Some(Timestamp(time)));
    }
    for len in [1, 5, 90, 93, 94, 95, 988, 990, 992, 9_980, 9_990] {
        let mut records = Vec::new();
        add(&mut records, b"k", &vec![b'v'; len]);
        let stated: usize =
            std::str::from_utf8(&records).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert_eq!(stated, records.len());
    }
}

#[test]
fn names_are_parted_where_a_header_has_room() {
    let long = |a: usize, b: usize| [vec![b'a'; a], vec![b'b'; b]].join(&b'/');
    assert_eq!(split(&long(155, 100)).map(|(a, b)| (a.len(), b.len())), Some((155, 100)));
    assert_eq!((split(&long(156, 100)), split(&long(20, 101)), split(&[b'x'; 101])), (None, None, None));
    let folder = [long(60, 60), b"/".to_vec()].concat();
    assert_eq!(split(&folder).map(|(a, b)| (a.len(), b.len())), Some((60, 61)));
}

#[test]
fn an_acl_is_text_for_others() {
    let mut acl = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [
        (1u16, 6u16, u32::MAX),
        (2, 5, 1000),
        (4, 4, u32::MAX),
        (8, 7, 20),
        (16, 7, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        acl.extend_from_slice(&tag.to_le_bytes());
        acl.extend_from_slice(&perm.to_le_bytes());
        acl.extend_from_slice(&id.to_le_bytes());
    }
    let text = "user::rw-,user:1000:r-x,group::r--,group:20:rwx,mask::rwx,other::---";
    assert_eq!(acl::text(&acl).as_deref(), Some(text));
    assert_eq!((acl::text(b""), acl::text(b"\x02\0\0\0abc"), acl::text(b"\x03\0\0\0")), (None, None, None));
}

#[test]
fn other_programs_read_it() {
    if Command::new("tar").arg("--version").output().is_err() {
        println!("no tar: skipped");
        return;
    }
    let mtime = Timestamp(1_600_000_000_123_456_789);
    let file = |path: Vec<u8>, size, data| Entry {
        kind: b'0',
        path,
        mode: 0o640,
        mtime,
        size,
        data,
        ..Entry::default()
    };
    let long = [vec![b'd'; 90], vec![b'e'; 90], vec![b'f'; 90]].join(&b'/');
    let entries = [
        Entry { kind: b'5', path: b"./".to_vec(), mode: 0o755, mtime, ..Entry::default() },
        file(b"plain".to_vec(), 5, vec![(0, 5)]),
        file(b"holes".to_vec(), 1 << 20, vec![(4096, 1024), (499_712, 600)]),
        file(long.clone(), 700, vec![(0, 700)]),
    ];
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("a.tar"), write(&entries)).unwrap();
    let tar = Command::new("tar").current_dir(temp.path()).args(["-xf", "a.tar"]).output().unwrap();
    assert!(tar.status.success() && tar.stderr.is_empty(), "{tar:?}");
    let read = |name: &[u8]| {
        let name = <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name);
        std::fs::read(temp.path().join(name)).unwrap()
    };
    assert_eq!(read(b"plain"), contents(&entries[1]));
    assert_eq!(read(&long), contents(&entries[3]));
    let holes = read(b"holes");
    let bytes = contents(&entries[2]);
    assert_eq!(holes.len(), 1 << 20);
    assert_eq!((&holes[4096..5120], &holes[499_712..500_312]), (&bytes[..1024], &bytes[1024..]));
    assert_eq!(
        holes.iter().map(|&byte| u64::from(byte)).sum::<u64>(),
        bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>()
    );
    let time = std::fs::metadata(temp.path().join("plain")).unwrap().modified().unwrap();
    assert_eq!(time.duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos(), 123_456_789);
}
