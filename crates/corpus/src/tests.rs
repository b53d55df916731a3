//! The derivation is a format and does not change. A corpus serves what was derived, and refuses impossible
//! parameters.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use base::Ino;
use fs::Errno;
use fs::api::{Caller, Coherence, Filesystem, Seek, SetAttr};

use crate::spec::{COUNT_MAX, SIZE_MAX, SIZE_MIN};
use crate::{Corpus, MakeError, Spec, SpecError, content};

const OWNER: (u32, u32) = (12, 34);

fn spec(text: &str) -> Spec {
    text.parse().unwrap()
}

fn corpus(text: &str) -> Corpus {
    Corpus::make(spec(text), OWNER, u64::MAX, &|| false).unwrap()
}

/// Programs that derive by these numbers elsewhere, or kept names of an earlier day, must find the same.
#[test]
fn version_1_of_the_derivation_stays_as_it_is() {
    let derived: Vec<_> = GOLDEN
        .iter()
        .map(|(text, index, _)| {
            let spec = spec(text);
            (*text, *index, content::derive(&spec, *index, &mut vec![0; spec.size as usize]))
        })
        .collect();
    let kept: Vec<_> = GOLDEN.iter().map(|(text, index, name)| (*text, *index, (*name).to_owned())).collect();
    assert_eq!(derived, kept);
}

/// Spec, index, name.
const GOLDEN: &[(&str, u64, &str)] = &[
    ("0,1,16", 0, "f231ab21d236835a38f20e54284d32a0266fe6f1c3d342f1e782f60770b465c9"),
    ("7,1000,4K", 0, "496d3c821c4b431b706f7d24f1f55992a896b2c086d0ea0fed8d82c63f4c0421"),
    ("7,1000,64K", 999, "331032f0163f7d55210cad129b6b2ccd659a5990d987106401407da6f3a816e2"),
    ("18446744073709551615,1,100", 0, "6f62b6e9db83bad30e01b528a1ebdfec2ca9858783de976fcdba10f5895f123f"),
];

#[test]
fn a_prefix_of_a_file_is_derived_as_the_file() {
    let spec = spec("3,2,1000");
    let (mut whole, mut part) = ([0; 1000], [0; 70]);
    content::fill(&spec, 1, &mut whole);
    content::fill(&spec, 1, &mut part);
    assert_eq!(whole[..70], part);
    content::fill(&Spec { size: 70, ..spec }, 1, &mut part);
    assert_ne!(whole[..70], part, "another size, other bytes");
}

#[test]
fn names_are_read_as_they_are_written() {
    let name = content::name(b"abc");
    let text = content::hex(&name);
    assert_eq!(&text, b"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_eq!(content::unhex(&text), Some(name));
    assert_eq!(content::unhex(&text[1..]), None);
    assert_eq!(content::unhex(&text.map(|byte| byte.to_ascii_uppercase())), None, "one name, one spelling");
    assert_eq!(content::unhex(&[b'g'; 64]), None);
}

#[test]
fn a_spec_is_read_as_it_is_written() {
    for text in
        ["corpus:7,1000,64K", "corpus:0,1,16", "corpus:18446744073709551615,10000000,4G", "corpus:1,2,1025"]
    {
        assert_eq!(spec(text).to_string(), text);
    }
    assert_eq!(spec("7,10,65536"), spec("corpus:7,10,64k"));
    assert_eq!(spec("7,10,1M").bytes(), 10 << 20);
}

#[test]
fn a_bad_spec_is_refused_by_its_part() {
    for text in ["", "corpus:", "7", "7,10", "7,10,64K,1", "7;10;64K"] {
        assert_eq!(text.parse::<Spec>(), Err(SpecError::Form), "{text}");
    }
    for seed in ["", "-1", "+1", "x", "18446744073709551616", " 1"] {
        assert_eq!(format!("{seed},1,1K").parse::<Spec>(), Err(SpecError::Seed(seed.into())));
    }
    for count in ["", "0", "-1", "1e3", "10000001", "99999999999999999999"] {
        assert_eq!(format!("1,{count},1K").parse::<Spec>(), Err(SpecError::Count(count.into())));
    }
    for size in ["", "0", "15", "K", "1T", "5G", "18446744073709551615G", "1KK", "4294967297"] {
        assert_eq!(format!("1,1,{size}").parse::<Spec>(), Err(SpecError::Size(size.into())));
    }
    assert!(Spec::new(0, COUNT_MAX, SIZE_MAX).is_ok() && Spec::new(0, 1, SIZE_MIN).is_ok());
}

#[test]
fn every_file_is_found_by_its_name_and_holds_what_was_derived() {
    for text in ["7,100,1000", "7,3,200000", "1,1,16"] {
        let (spec, corpus) = (spec(text), corpus(text));
        let mut wanted = vec![0; spec.size as usize];
        for index in 0..spec.count {
            let name = content::derive(&spec, index, &mut wanted);
            let found = corpus.lookup(Ino::ROOT, name.as_bytes()).unwrap().attr;
            assert_eq!((found.size, found.uid, found.gid, found.perm), (spec.size, 12, 34, 0o444));
            assert_eq!(corpus.getattr(found.ino), Ok(found));
            let mut read = vec![0; wanted.len() + 10];
            assert_eq!(corpus.read(found.ino, 0, &mut read), Ok(wanted.len()));
            assert_eq!(read[..wanted.len()], wanted);
            let from = spec.size / 2;
            assert_eq!(corpus.read(found.ino, from, &mut read[..3]), Ok(3));
            assert_eq!(read[..3], wanted[from as usize..][..3]);
        }
    }
}

#[test]
fn a_listing_can_be_resumed_at_every_position() {
    let corpus = corpus("5,40,32");
    let list = |position| {
        let mut names = Vec::new();
        corpus
            .readdir(Ino::ROOT, position, &mut |line| {
                names.push((line.name.to_vec(), line.next));
                ControlFlow::Continue(())
            })
            .unwrap();
        names
    };
    let all = list(0);
    assert_eq!(all.len(), 42);
    assert_eq!(all.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len(), 42);
    for (at, (_, next)) in all.iter().enumerate() {
        assert_eq!(list(*next), all[at + 1..], "after {at}");
    }
    assert_eq!(list(u64::MAX), []);
    let mut plus = 0;
    let count = &mut |line: fs::api::DirEntry<'_>, found: Option<&fs::api::Entry>| {
        assert_eq!(found.is_none(), line.name.starts_with(b"."));
        plus += 1;
        ControlFlow::Continue(())
    };
    corpus.readdir_plus(Ino::ROOT, 0, count).unwrap();
    assert_eq!(plus, 42);
}

#[test]
fn missing_names_and_changes_are_refused() {
    let corpus = corpus("5,4,32");
    let (file, none) = (Ino(2), Ino(6));
    assert_eq!(corpus.coherence(), Coherence::Frozen);
    for name in [&b"a"[..], &[b'0'; 64], b"\xff", b""] {
        assert_eq!(corpus.lookup(Ino::ROOT, name).unwrap_err(), Errno::ENOENT);
    }
    assert_eq!(corpus.lookup(Ino::ROOT, &[b'a'; 256]).unwrap_err(), Errno::ENAMETOOLONG);
    assert_eq!(corpus.lookup(file, b"a").unwrap_err(), Errno::ENOTDIR);
    assert_eq!(corpus.lookup(file, b".").unwrap().attr.ino, file);
    for ino in [none, Ino(0), Ino(u64::MAX)] {
        assert_eq!(corpus.getattr(ino).unwrap_err(), Errno::ENOENT);
        assert_eq!(corpus.read(ino, 0, &mut [0]).unwrap_err(), Errno::ENOENT);
    }
    assert_eq!(corpus.read(Ino::ROOT, 0, &mut [0]).unwrap_err(), Errno::EISDIR);
    assert_eq!(corpus.read(file, u64::MAX, &mut [0]), Ok(0));
    assert_eq!(corpus.readdir(file, 0, &mut |_| ControlFlow::Continue(())).unwrap_err(), Errno::ENOTDIR);
    assert_eq!([0, 31, 32].map(|at| corpus.seek(file, at, Seek::Hole)), [Ok(32), Ok(32), Err(Errno::ENXIO)]);
    assert_eq!(corpus.seek(file, 7, Seek::Data), Ok(7));
    let (caller, erofs) = (Caller::default(), Some(Errno::EROFS));
    assert_eq!(corpus.write(file, 0, b"x", None, false).err(), erofs);
    assert_eq!(corpus.setattr(&caller, file, &SetAttr::default()).err(), erofs);
    assert_eq!(corpus.unlink(Ino::ROOT, b"a").err(), erofs);
    assert_eq!(corpus.mkdir(&caller, Ino::ROOT, b"a", 0o755, 0).err(), erofs);
    let room = corpus.statfs(Ino::ROOT).unwrap();
    assert_eq!((room.total, room.free, room.inodes, room.inodes_free), (128, 0, 5, 0));
}

#[test]
fn a_corpus_that_does_not_fit_is_refused_before_it_is_made() {
    let spec = spec("1,10000000,4G");
    let refused = Corpus::make(spec, OWNER, 1 << 40, &|| false).err().unwrap();
    assert!(matches!(refused, MakeError::NoRoom { available: 0x100_0000_0000, .. }), "{refused}");
    // Even if the caller claims unlimited memory, the system may refuse it.
    let refused = Corpus::make(spec, OWNER, u64::MAX, &|| false).err().unwrap();
    assert!(matches!(refused, MakeError::Refused(_)), "{refused}");
}

#[test]
fn it_can_be_stopped_while_it_is_made() {
    let asked = std::sync::atomic::AtomicU32::new(0);
    let stop = || asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 5;
    let stopped = Corpus::make(spec("1,2000,64K"), OWNER, u64::MAX, &stop).err().unwrap();
    assert!(matches!(stopped, MakeError::Stopped), "{stopped}");
    assert!(asked.into_inner() < 100, "the other threads stop soon after");
}
