//! Classes and contexts that are read, and those that are refused with what to do next.

use super::*;
use crate::proto::{AccessMode, BlockVolume, MountVolume};

fn texts(pairs: &[(&str, &str)]) -> Texts {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

const ADDRESS: (&str, &str) = ("volume", "postgres://covey@db/covey?volume=work");
const NAMED: (&str, &str) = ("tree", "s3://bucket/models@latest");

#[test]
fn each_kind_is_read() {
    let foreign = ("csi.storage.k8s.io/pvc/name", "x");
    let class = Class::of(&texts(&[ADDRESS, ("mode", "0750"), foreign])).unwrap();
    assert!(matches!(class, Class::Shared { folder, mode: 0o750, .. } if folder == "csi"));
    assert_eq!(Class::of(&texts(&[("exclusive", "true")])).unwrap(), Class::Exclusive { mode: 0o777 });
    let Ok(Class::Tree(tree)) = Class::of(&texts(&[
        NAMED,
        ("endpoint", "http://10.0.0.1:9000"),
        ("follow", "5"),
        ("join", "depot:7171"),
        ("zone", "a"),
    ])) else {
        panic!("no tree");
    };
    assert!(tree.in_fleet);
    let words = ["--endpoint", "http://10.0.0.1:9000", "--join", "depot:7171", "--zone", "a", "--follow=5"];
    assert_eq!(tree.args, words);
    let used = Use::of(&texts(&[ADDRESS, ("path", "/csi/./a")])).unwrap();
    assert!(matches!(used, Use::Shared { path, .. } if path == Path::new("csi/a")));
}

#[test]
fn what_makes_no_sense_is_refused_and_the_next_step_named() {
    let classes: &[&[(&str, &str)]] = &[
        &[],
        &[ADDRESS, NAMED],
        &[ADDRESS, ("foldr", "a")],
        &[ADDRESS, ("folder", "../a")],
        &[ADDRESS, ("mode", "rwx")],
        &[("volume", "/srv/volume")],
        &[("volume", "--help")],
        &[("volume", "postgres://covey:right-s3cret@db/covey?volume=work")],
        &[("tree", "s3://bucket")],
        &[("tree", "/srv/x")],
        &[NAMED, ("key", "xyz")],
        &[NAMED, ("follow", "soon")],
        &[NAMED, ("zone", "a")],
        &[NAMED, ("folder", "a")],
        &[NAMED, ("join", "--help")],
        &[NAMED, ("endpoint", "https://user:right-s3cret@host")],
        &[("exclusive", "yes")],
    ];
    for pairs in classes {
        let status = Class::of(&texts(pairs)).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{pairs:?}");
        assert!(!status.message().contains("s3cret"), "{}", status.message());
    }
    for path in ["..", "a/../../b"] {
        assert!(Use::of(&texts(&[ADDRESS, ("path", path)])).is_err(), "{path}");
    }
    assert!(Use::of(&texts(&[("exclusive", "../x")])).is_err());
}

fn capability(mode: i32, flags: &[&str]) -> VolumeCapability {
    let mount_flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    VolumeCapability {
        block: None,
        mount: Some(MountVolume { mount_flags, ..MountVolume::default() }),
        access_mode: Some(AccessMode { mode }),
    }
}

#[test]
fn capabilities_are_checked_for_each_kind() {
    let options = |mode, flags: &[&str], what| wanted(Some(&capability(mode, flags)), what);
    let many = mode::MULTI_NODE_MULTI_WRITER;
    assert!(!options(many, &["nosuid", "commit=5"], "volume").unwrap().read_only);
    assert!(options(many, &["ro"], "volume").unwrap().read_only);
    assert!(options(mode::MULTI_NODE_READER_ONLY, &[], "tree").unwrap().read_only);
    assert!(options(mode::SINGLE_NODE_WRITER, &[], "exclusive").is_ok());
    for (mode, flags, what) in [
        (many, vec![], "tree"),
        (many, vec![], "exclusive"),
        (0, vec![], "volume"),
        (99, vec![], "volume"),
        (many, vec!["compress=zstd"], "volume"),
        (many, vec!["remount"], "volume"),
    ] {
        assert!(options(mode, &flags, what).is_err(), "{mode} {flags:?} {what}");
    }
    let block = VolumeCapability { block: Some(BlockVolume {}), mount: None, access_mode: None };
    assert!(wanted(Some(&block), "volume").is_err() && wanted(None, "volume").is_err());
}
