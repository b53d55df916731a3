use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use blob::Origin;
use meta::MetaStore;
use origin::{Environment, Memory};
use proptest::prelude::*;
use tree::{Order, Owner as Publisher, Root, Signer};

use super::*;

const OWNER: Owner = Owner { uid: 7, gid: 8, umask: 0o022 };

fn bucket() -> Bucket {
    let keys = [("AWS_ACCESS_KEY_ID", "k"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_REGION", "us-east-1")];
    Bucket::open("s3://bucket/set", Some("http://127.0.0.1:9"), None, &Environment::of(keys)).unwrap()
}

/// Objects by key: ETag and size.
type Objects = BTreeMap<String, (String, u64)>;

struct Indexed {
    root: Root,
    tree: Tree,
    left_out: BTreeSet<String>,
    unchanged: bool,
}

fn index(origin: &Arc<dyn Origin>, objects: &Objects, before: Option<&Tree>) -> Indexed {
    let dir = tempfile::tempdir().unwrap();
    let mut left_out = BTreeSet::new();
    let mut skip = |key: &str, _: &str| assert!(left_out.insert(key.to_owned()), "{key} is named twice");
    let mut listing = Listing::new(dir.path()).unwrap();
    // The order of a listing does not matter.
    for (key, (etag, size)) in objects.iter().rev() {
        let modified = Timestamp(i128::from(*size) * 1_000_000_000);
        let object = Object { key: key.clone(), size: *size, etag: etag.clone(), modified };
        listing.add(&object, &mut skip).unwrap();
    }
    let listed = listing.finish().unwrap();
    let bucket = bucket();
    let source = Source { url: "s3://bucket/set".to_owned(), ..Source::default() };
    let plan = Plan { folder: dir.path(), bucket: &bucket, source, owner: OWNER, volume: Vec::new(), before };
    let rows = rows(&plan, &listed, &mut skip, &mut |_| true).unwrap();
    let signer = Signer::from_seed(&[9; 32]).unwrap();
    let keys = vec![signer.key()];
    let owner = Publisher { volume: [7; 16], owner: [1; 16], generation: 1, note: String::new(), keys };
    tree::publish::claim(&**origin, owner).unwrap();
    let order = Order {
        name: "data",
        volume: [7; 16],
        signer: &signer,
        moment: Timestamp(1),
        patience: Duration::from_secs(1),
        afresh: false,
        keep: false,
        hold: &mut |blob| {
            assert!(!blob.is_foreign());
            Ok(())
        },
        before_root: &mut || Ok(()),
        progress: &mut |_| true,
    };
    let done = tree::publish_content(&rows, origin, order).unwrap();
    let tree = Tree::new(origin.clone(), &done.root);
    Indexed { root: done.root, tree, left_out, unchanged: done.unchanged }
}

/// A name of a tree: its inode, and of a file its ETag, size and parts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    ino: Ino,
    is_dir: bool,
    change: u64,
    etag: String,
    blobs: Vec<BlobId>,
    packs: Vec<PackNo>,
}

/// Every name, checked against the other rows.
fn names(tree: &Tree) -> BTreeMap<String, Name> {
    let (mut all, mut todo) = (BTreeMap::new(), vec![(Ino::ROOT, String::new())]);
    let row = |key: &Key| tree.get(key).unwrap();
    while let Some((dir, path)) = todo.pop() {
        let mut folders = 0;
        for (key, value) in tree.scan(&Key::dentries(dir, 0), usize::MAX).unwrap() {
            let entry = key.as_dentry().unwrap();
            assert!(entry.is_placed());
            let dentry = Dentry::decode(&value).unwrap();
            let name = format!("{path}{}", std::str::from_utf8(entry.name).unwrap());
            let record = InodeRecord::decode(&row(&Key::inode(dentry.ino)).unwrap()).unwrap();
            assert_eq!((record.parent, record.kind(), record.uid), (dir, dentry.kind, 7), "{name}");
            let (mut blobs, mut packs, mut etag) = (Vec::new(), Vec::new(), String::new());
            if dentry.is_dir() {
                folders += 1;
                todo.push((dentry.ino, format!("{name}/")));
            } else {
                etag = String::from_utf8(row(&Key::xattr(dentry.ino, ETAG)).unwrap().to_vec()).unwrap();
                let mut at = 0;
                for (_, value) in tree.scan(&Key::extents_from(dentry.ino, 0), usize::MAX).unwrap() {
                    for extent in ExtentPage::decode(&value).unwrap().extents() {
                        let pack = PackRow::decode(&row(&Key::pack(extent.pack)).unwrap()).unwrap();
                        let PackRow::Sealed { blob, size } = pack else { panic!("{pack:?}") };
                        assert_eq!((extent.len, extent.offset), (size, 0));
                        let (object, part) = blob.as_foreign().unwrap();
                        assert_eq!(u64::from(part) * u64::from(PART), at);
                        let found = ForeignRow::decode(&row(&Key::foreign(object)).unwrap()).unwrap();
                        assert_eq!((&found.key, found.size, found.ino), (&name, record.size, dentry.ino));
                        at += u64::from(size);
                        blobs.push(blob);
                        packs.push(extent.pack);
                    }
                }
                assert_eq!(at, record.size, "{name}");
            }
            let (ino, is_dir, change) = (dentry.ino, dentry.is_dir(), record.change);
            all.insert(name, Name { ino, is_dir, change, etag, blobs, packs });
        }
        let counted = row(&Key::subdirs(dir)).map_or(0, |row| meta::record::decode_i64(Some(&row)).unwrap());
        assert_eq!(counted, folders, "{path}");
    }
    all
}

/// The names that these objects make, and the keys that are left out.
fn expected(objects: &Objects) -> (BTreeMap<String, bool>, BTreeSet<String>) {
    let (mut names, mut left) = (BTreeMap::new(), BTreeSet::new());
    let is_bad = |key: &str, (etag, size): &(String, u64)| {
        let object = Object { key: key.to_owned(), size: *size, etag: etag.clone(), modified: Timestamp(0) };
        problem(&object).is_some()
    };
    let good: Vec<&String> =
        objects.iter().filter(|(key, value)| !is_bad(key, value)).map(|(key, _)| key).collect();
    // An empty object whose key is the prefix itself marks the folder that becomes the root.
    let is_root = |key: &str, size: u64| key.is_empty() && size == 0;
    let bad = objects.iter().filter(|(key, (_, size))| !is_root(key, *size) && !good.contains(key));
    left.extend(bad.map(|(key, _)| key.clone()));
    for key in &good {
        for (at, _) in key.match_indices('/') {
            names.insert(key[..at].to_owned(), true);
        }
    }
    for key in good.into_iter().filter(|key| !key.ends_with('/')) {
        if names.contains_key(key) {
            left.insert(key.clone());
        } else {
            names.insert(key.clone(), false);
        }
    }
    (names, left)
}

fn check(indexed: &Indexed, objects: &Objects) -> BTreeMap<String, Name> {
    let (expected, left) = expected(objects);
    let found = names(&indexed.tree);
    let kinds: BTreeMap<String, bool> = found.iter().map(|(name, it)| (name.clone(), it.is_dir)).collect();
    assert_eq!(kinds, expected);
    assert_eq!(indexed.left_out, left);
    assert_eq!(indexed.root.inodes, found.len() as u64 + 1);
    let inos: BTreeSet<Ino> = found.values().map(|name| name.ino).collect();
    assert_eq!(inos.len(), found.len(), "each name has a number of its own");
    let packs: Vec<PackNo> = found.values().flat_map(|name| name.packs.clone()).collect();
    assert_eq!(packs.iter().collect::<BTreeSet<_>>().len(), packs.len());
    found
}

fn objects() -> impl Strategy<Value = Objects> {
    let part = prop::sample::select(vec!["a", "b", "a-b", "a.", ".", "", "c"]);
    let key = (prop::collection::vec(part, 1..4), any::<bool>());
    let key = key.prop_map(|(parts, folder)| parts.join("/") + if folder { "/" } else { "" });
    let size = prop::sample::select(vec![0, 0, 1, 1 << 20, (1 << 20) + 1, (9 << 20) + 5]);
    let etag = prop::sample::select(vec!["x", "y", ""]);
    let value = (etag, size).prop_map(|(etag, size): (&str, u64)| (etag.to_owned(), size));
    prop::collection::btree_map(key, value, 1..30)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever is listed, the tree is consistent, every key is a name or left out, and numbers stay.
    #[test]
    fn any_listing_makes_a_consistent_tree_and_numbers_stay(first in objects(), second in objects()) {
        let origin: Arc<dyn Origin> = Arc::new(Memory::new());
        let one = index(&origin, &first, None);
        let before = check(&one, &first);
        let same = index(&origin, &first, Some(&one.tree));
        prop_assert!(same.unchanged);
        let two = index(&origin, &second, Some(&one.tree));
        let after = check(&two, &second);
        for (name, was) in &before {
            let Some(is) = after.get(name).filter(|is| is.is_dir == was.is_dir) else { continue };
            prop_assert_eq!(is.ino, was.ino, "{}", name);
            let kept = first.get(name) == second.get(name);
            if !is.is_dir && kept {
                prop_assert_eq!(is, was);
            } else if !is.is_dir {
                prop_assert!(is.change > was.change);
                prop_assert!(is.blobs.iter().all(|blob| !was.blobs.contains(blob)));
            }
        }
        let numbers: BTreeSet<Ino> = before.values().map(|name| name.ino).collect();
        for (name, is) in &after {
            let was = before.get(name).filter(|was| was.is_dir == is.is_dir);
            prop_assert!(was.is_some() || !numbers.contains(&is.ino), "{} has a used number", name);
        }
    }
}
