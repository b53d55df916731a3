use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{Cursor, Write};
use std::path::PathBuf;

use api::answers::Skipped;
use api::error::Result;
use archive::Entry;
use archive::import::bounds::Bounds;
use archive::import::seen::{HELD_MAX, Held};
use archive::import::{Item, Kind, Sink};
use archive::transfer::{self, Watch};
use archive::write::Writer;

use crate::digest::Digest;
use crate::layer::{Ended, OPAQUE, Sender};
use crate::manifest::{Descriptor, Layer};
use crate::transfer::Send;
use crate::{Blobs, Bytes};

/// A member of an archive: its type flag, its path, and the target of a link or the bytes of a file.
type Member<'a> = (u8, &'a str, &'a str);

fn archive_of(members: &[Member<'_>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for &(kind, path, text) in members {
        let is_file = kind == b'0';
        let size = if is_file { text.len() as u64 } else { 0 };
        let entry = Entry {
            kind,
            path: path.as_bytes().to_vec(),
            link: if is_file { Vec::new() } else { text.as_bytes().to_vec() },
            mode: 0o640,
            uid: 7,
            gid: 8,
            size,
            data: if size > 0 { vec![(0, size)] } else { Vec::new() },
            ..Entry::default()
        };
        writer.begin(&entry).unwrap();
        writer.data(&text.as_bytes()[..size as usize]).unwrap();
        writer.end().unwrap();
    }
    writer.finish().unwrap()
}

/// Keeps what arrives, as a sink does: the last item of a path counts.
#[derive(Default)]
struct Kept {
    items: BTreeMap<PathBuf, (Item, Vec<u8>)>,
    open: Option<PathBuf>,
}

impl Sink for Kept {
    fn item(&mut self, item: Item) -> Result<()> {
        self.open = Some(item.path.clone());
        self.items.insert(item.path.clone(), (item, Vec::new()));
        Ok(())
    }

    fn piece(&mut self, _: u64, bytes: Vec<u8>) -> Result<()> {
        let open = self.open.as_ref().unwrap();
        self.items.get_mut(open).unwrap().1.extend(bytes);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn left_out(&mut self) -> Vec<Skipped> {
        Vec::new()
    }
}

struct One(Vec<u8>);

impl Blobs for One {
    fn open(&self, _: &Descriptor) -> Result<Bytes> {
        Ok(Box::new(Cursor::new(self.0.clone())))
    }
}

/// Sends a layer whose blob and archive have these digests.
fn sent(blob: Vec<u8>, described: Descriptor, diff_id: Digest) -> Result<Kept> {
    let layers = vec![Layer { blob: described, diff_id, chain: diff_id }];
    let source = Send {
        blobs: Box::new(One(blob)),
        layers,
        files: Vec::new(),
        below: "new".into(),
        implied: crate::transfer::Implied::default(),
        bounds: Bounds::new("x", 1 << 30, None, None),
    };
    let mut kept = Kept::default();
    transfer::run(Box::new(source), &mut kept, Watch { stop: None, event: &mut |_| () })?;
    Ok(kept)
}

/// Sends an archive, correctly described.
fn layer(members: &[Member<'_>]) -> Result<Kept> {
    let archive = archive_of(members);
    let diff_id = Digest::of(&archive);
    sent(archive.clone(), Descriptor::of("", &archive), diff_id)
}

/// What a layer becomes, as text: each path with what it is.
fn shape(members: &[Member<'_>]) -> Vec<String> {
    let kept = layer(members).unwrap();
    let layers = PathBuf::from("new/layers");
    let line = |(path, (item, bytes)): (&PathBuf, &(Item, Vec<u8>))| {
        // The layer's folder is called by its digest.
        let inside: PathBuf = path.strip_prefix(&layers).unwrap().components().skip(1).collect();
        let opaque = item.xattrs.iter().any(|(name, value)| name == OPAQUE && value == b"y");
        let what = match &item.kind {
            Kind::Dir if opaque => "opaque".to_owned(),
            Kind::Dir => "dir".to_owned(),
            Kind::File { .. } => String::from_utf8_lossy(bytes).into_owned(),
            Kind::Symlink(target) => format!("-> {}", target.display()),
            Kind::HardLink(first) => {
                format!("= {}", first.components().skip(3).collect::<PathBuf>().display())
            }
            Kind::Node { format: libc::S_IFCHR, rdev: 0 } => "whiteout".to_owned(),
            Kind::Node { .. } => "node".to_owned(),
        };
        format!("{} {what}", inside.display())
    };
    kept.items.iter().map(line).collect()
}

#[test]
fn whiteouts_become_what_overlayfs_knows() {
    let shaped = shape(&[
        (b'5', "./", ""),
        (b'5', "./a/", ""),
        (b'0', "./a/.wh.gone", ""),
        (b'0', "./a/kept", "x"),
        (b'5', "b", ""),
        (b'0', "b/.wh..wh..opq", ""),
        (b'0', "b/.wh..wh.plnk", ""),
        (b'2', "l", "../../etc"),
        (b'1', "h", "a/kept"),
        (b'0', ".wh.top", ""),
    ]);
    let expected = [
        " dir",
        "a dir",
        "a/gone whiteout",
        "a/kept x",
        "b opaque",
        "h = a/kept",
        "l -> ../../etc",
        "top whiteout",
    ];
    assert_eq!(shaped, expected);
}

/// A whiteout hides what is lower, wherever in the archive it is.
#[test]
fn a_whiteout_hides_nothing_of_its_own_layer() {
    let both_orders = [
        shape(&[
            (b'0', ".wh.d", ""),
            (b'5', "d", ""),
            (b'0', "d/x", "1"),
            (b'0', "f", "2"),
            (b'0', ".wh.f", ""),
        ]),
        shape(&[
            (b'5', "d", ""),
            (b'0', "d/x", "1"),
            (b'0', ".wh.d", ""),
            (b'0', ".wh.f", ""),
            (b'0', "f", "2"),
        ]),
        // The folder is not listed.
        shape(&[(b'0', ".wh.d", ""), (b'0', "d/x", "1"), (b'0', "f", "2")]),
    ];
    for shaped in both_orders {
        assert_eq!(shaped, [" dir", "d opaque", "d/x 1", "f 2"]);
    }
    assert_eq!(shape(&[(b'5', "/", ""), (b'0', "f", "2")]), [" dir", "f 2"], "the layer's own folder");
    // It stays opaque when it is listed again.
    let again = shape(&[(b'0', "d/.wh..wh..opq", ""), (b'5', "d", ""), (b'5', "d", "")]);
    assert_eq!(again, [" dir", "d opaque"]);
}

#[test]
fn owners_and_modes_arrive() {
    let kept = layer(&[(b'0', "f", "x"), (b'0', "not/listed", "y")]).unwrap();
    let item = |name: &str| {
        let found = kept.items.iter().find(|(path, _)| path.ends_with(name)).unwrap();
        let Item { perm, uid, gid, .. } = found.1.0;
        (perm, uid, gid)
    };
    assert_eq!(item("f"), (0o640, 7, 8));
    assert_eq!(item("not"), (0o755, 0, 0), "a folder that the archive leaves out");
}

#[test]
fn names_that_lead_out_of_the_layer_are_refused() {
    let cases: [(&[Member<'_>], &str); 12] = [
        (&[(b'0', "../x", "1")], "leads out of the layer"),
        (&[(b'0', "a/../../x", "1")], "leads out of the layer"),
        (&[(b'0', "/etc/passwd", "1")], "absolute"),
        (&[(b'2', "l", "/etc"), (b'0', "l/passwd", "1")], "through a symbolic link"),
        (&[(b'2', "l", "/etc"), (b'0', "l/.wh.passwd", "")], "through a symbolic link"),
        (&[(b'0', "f", "1"), (b'0', "f/x", "1")], "through a file"),
        (&[(b'1', "h", "../../etc/shadow")], "not in the archive"),
        (&[(b'1', "h", "missing")], "no file of the layer"),
        (&[(b'0', ".wh..wh..opq", "")], "hides the whole image"),
        (&[(b'0', ".wh.", "")], "whiteout of the root"),
        (&[(b'0', ".wh...", "")], "whiteout of the root"),
        (&[(b'5', "d", ""), (b'0', "d/x", ""), (b'2', "d", "/etc")], "the place of a folder"),
    ];
    for (members, why) in cases {
        let failure = layer(members).err().unwrap_or_else(|| panic!("{members:?} was taken"));
        assert_eq!(failure.code, "refused", "{members:?}: {failure}");
        assert!(failure.in_one_line().contains(why), "{members:?}: {failure}");
    }
}

#[test]
fn attributes_of_overlayfs_itself_are_refused() {
    let mut writer = Writer::new(Vec::new());
    let xattrs = vec![(b"trusted.overlay.redirect".to_vec(), b"/etc".to_vec())];
    writer.begin(&Entry { kind: b'5', path: b"d".to_vec(), xattrs, ..Entry::default() }).unwrap();
    writer.end().unwrap();
    let archive = writer.finish().unwrap();
    let described = Descriptor::of("", &archive);
    let diff_id = described.digest;
    assert_eq!(sent(archive, described, diff_id).err().unwrap().code, "refused");
}

#[test]
fn gzip_and_zstd_and_plain_layers_are_read_and_verified() {
    let archive = archive_of(&[(b'0', "f", "hello")]);
    let diff_id = Digest::of(&archive);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&archive).unwrap();
    for blob in [archive.clone(), gzip.finish().unwrap(), zstd::encode_all(&archive[..], 3).unwrap()] {
        let described = Descriptor::of("", &blob);
        sent(blob.clone(), described.clone(), diff_id).unwrap();
        let why = |result: Result<Kept>| result.err().unwrap().in_one_line();
        // Of the right form, but another archive than the config says.
        let other = sent(blob.clone(), described.clone(), Digest::of(b"other"));
        assert!(why(other).contains("the layer's archive"), "diff id");
        // Other bytes than the manifest says, with the right archive.
        let mut wrong = described.clone();
        wrong.digest = Digest::of(b"other");
        assert!(why(sent(blob.clone(), wrong, diff_id)).contains("not what its digest says"));
        for size in [described.size - 1, described.size + 1] {
            let wrong = Descriptor { size, ..described.clone() };
            assert!(sent(blob.clone(), wrong, diff_id).is_err(), "{size}");
        }
        // A bit that flips, at each of some places.
        for at in (0..blob.len()).step_by(blob.len() / 7) {
            let mut damaged = blob.clone();
            damaged[at] ^= 0x10;
            let failure = sent(damaged, described.clone(), diff_id).err().unwrap();
            assert!(failure.what.contains("not what its digest says"), "{at}: {failure}");
        }
    }
}

/// A blob that is what its digest says, and no archive, is the builder's mistake.
#[test]
fn a_layer_that_is_no_archive_is_named() {
    let blob = b"this is no archive".to_vec();
    let described = Descriptor::of("", &blob);
    let diff_id = described.digest;
    let failure = sent(blob, described, diff_id).err().unwrap();
    assert!(failure.next.iter().any(|next| next.contains("its digest matches")), "{failure}");
    let whole = archive_of(&[(b'0', "f", "hello"), (b'0', "g", "x")]);
    let mut unmarked = whole.clone();
    // Up to the last byte of the last member, without its padding.
    unmarked.truncate(whole.iter().rposition(|&byte| byte != 0).unwrap() + 1);
    let described = Descriptor::of("", &unmarked);
    let diff_id = described.digest;
    assert_eq!(sent(unmarked, described, diff_id).unwrap().items.len(), 3, "without an end mark");
    let mut cut = whole;
    cut.truncate(cut.windows(5).position(|five| five == b"hello").unwrap() + 2);
    let described = Descriptor::of("", &cut);
    let diff_id = described.digest;
    let failure = sent(cut, described, diff_id).err().unwrap();
    assert!(failure.in_one_line().contains("cut short"), "{failure}");
}

/// A record for all members gave each folder its attributes, and only the folders' names were counted.
#[test]
fn regression_attributes_of_folders_are_counted() {
    struct Many;
    impl transfer::Source for Many {
        fn run(&mut self, feed: &transfer::Feed) -> Result<()> {
            let below = PathBuf::from("new");
            // Room for some 16 folders.
            let held = Held::with(HELD_MAX - (1 << 20));
            let (met, implied) = (HashMap::new(), BTreeSet::new());
            let bounds = &Bounds::new("x", 1 << 30, None, None);
            let mut sender = Sender { feed, below: &below, met, implied, held, name: "the layer", bounds };
            let xattrs = vec![(b"user.a".to_vec(), vec![b'x'; 64 << 10])];
            for at in 0..100 {
                let item = Item {
                    xattrs: xattrs.clone(),
                    ..super::folder(PathBuf::from(format!("d{at}")), base::Timestamp::from_parts(0, 0))
                };
                if let Err(Ended::Refused(failure)) = sender.dir(item) {
                    assert!((10..20).contains(&at), "{at} folders");
                    return Err(failure);
                }
            }
            Ok(())
        }
    }
    let mut kept = Kept::default();
    let watch = Watch { stop: None, event: &mut |_| () };
    let failure = transfer::run(Box::new(Many), &mut kept, watch).unwrap_err();
    assert_eq!(failure.code, "too-large", "{failure}");
}

/// The folder of a layer that does not list `./` belonged to root, mode 0755, whatever is below.
#[test]
fn regression_the_folder_of_a_layer_that_is_not_listed_is_left_out() {
    for (members, is_implied) in
        [(&[(b'0', "f", "1")][..], true), (&[(b'5', "./", ""), (b'0', "f", "1")], false)]
    {
        let archive = archive_of(members);
        let described = Descriptor::of("", &archive);
        let implied = crate::transfer::Implied::default();
        let source = Send {
            layers: crate::manifest::layers([(described.clone(), described.digest)]),
            blobs: Box::new(One(archive)),
            files: Vec::new(),
            below: "new".into(),
            implied: implied.clone(),
            bounds: Bounds::new("x", 1 << 30, None, None),
        };
        let watch = Watch { stop: None, event: &mut |_| () };
        transfer::run(Box::new(source), &mut Kept::default(), watch).unwrap();
        let paths: Vec<PathBuf> = implied.lock().iter().flat_map(|(_, paths)| paths.clone()).collect();
        assert_eq!(paths == [PathBuf::new()], is_implied, "{paths:?}");
        assert!(is_implied || paths.is_empty(), "{paths:?}");
    }
}
