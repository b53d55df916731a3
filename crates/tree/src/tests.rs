//! Trees over an origin in memory. What is written is read back, is written again cheaply, and is refused if
//! it is damaged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::{BlobId, Timestamp};
use blob::{BlobError, BlobSource, Origin, Records};
use hashbrown::HashSet;
use meta::key::KeyRange;
use meta::store::StoreError;
use meta::{Commit, Dentry, InodeRecord, Key, MetaStore, Snapshot};
use parking_lot::Mutex;
use proptest::prelude::*;

use crate::build::{Builder, Built, Known};
use crate::node::{Inner, Leaf, Node, stored};
use crate::read::Tree;
use crate::root::{self, Owner, Root, Signer};
use crate::{Order, TreeError, publish, rows::Selection};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Counts the reads of an origin, and can corrupt or hide bytes of it.
struct Spy {
    origin: Arc<dyn Origin>,
    reads: AtomicU64,
    /// The blob, and the offset of the byte in it that is wrong.
    flipped: Mutex<Option<(BlobId, u32)>>,
    missing: Mutex<Option<BlobId>>,
}

impl Spy {
    fn on(origin: &Arc<dyn Origin>) -> Arc<Spy> {
        let (origin, reads) = (origin.clone(), AtomicU64::new(0));
        Arc::new(Spy { origin, reads, flipped: Mutex::new(None), missing: Mutex::new(None) })
    }
}

impl BlobSource for Spy {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if *self.missing.lock() == Some(*id) {
            return Err(BlobError::Missing(*id));
        }
        self.origin.read_at(id, offset, buf)?;
        if let Some((_, at)) = self.flipped.lock().filter(|(blob, _)| blob == id)
            && let Some(byte) = at.checked_sub(offset).and_then(|at| buf.get_mut(at as usize))
        {
            *byte ^= 0x10;
        }
        Ok(())
    }

    fn is_local(&self, _: &BlobId) -> bool {
        true
    }
}

fn origin() -> Arc<dyn Origin> {
    Arc::new(origin::Memory::new())
}

fn build(origin: &Arc<dyn Origin>, rows: &Rows, known: &Known) -> Built {
    let mut held = HashSet::new();
    let mut hold = |blob| {
        held.insert(blob);
        Ok(())
    };
    let mut builder = Builder::new(&**origin, known, &mut hold).unwrap();
    rows.iter().for_each(|(key, value)| builder.push(key, value).unwrap());
    let built = builder.finish().unwrap();
    assert_eq!(held, built.blobs, "every blob is held before it is referred to");
    built
}

fn root(built: &Built) -> Root {
    Root {
        name: "test".to_owned(),
        volume: [7; 16],
        sequence: 1,
        moment: Timestamp(5),
        inodes: 1,
        bytes: 2,
        top: built.top,
        level: built.level,
        nodes: built.written.nodes,
        before: None,
        source: None,
        key: signer().key(),
    }
}

fn signer() -> Signer {
    Signer::from_seed(&[9; 32]).unwrap()
}

fn open(origin: &Arc<dyn Origin>, built: &Built) -> Tree {
    Tree::new(origin.clone(), &root(built))
}

fn read_all(tree: &Tree) -> Result<Rows, TreeError> {
    let mut rows = Rows::new();
    tree.all(&mut |key, value| {
        assert!(rows.insert(key.to_vec(), value.to_vec()).is_none());
        true
    })?;
    Ok(rows)
}

/// The rows of this many files: an inode, a name and extents each.
fn files(count: u64) -> Rows {
    let mut rows = Rows::new();
    for ino in 2..2 + count {
        put_file(&mut rows, ino, 0);
    }
    rows
}

fn put_file(rows: &mut Rows, ino: u64, change: u8) {
    let ino = base::Ino(ino);
    let mut inode = [0; 96];
    blake3::Hasher::new()
        .update(&ino.0.to_be_bytes())
        .update(&[change])
        .finalize_xof()
        .fill(&mut inode[40..88]);
    rows.insert(Key::inode(ino).as_bytes().to_vec(), inode.to_vec());
    let name = format!("a file called {}", ino.0);
    let dir = base::Ino(1 + ino.0 / 100 * 100);
    rows.insert(Key::dentry(dir, name.as_bytes()).as_bytes().to_vec(), vec![8; 9]);
    rows.insert(Key::extents(ino, 0).as_bytes().to_vec(), vec![change; 12]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_is_written_is_read_back(
        rows in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 0..40),
            prop::collection::vec(any::<u8>(), 0..3000),
            0..400,
        ),
        bounds in (prop::collection::vec(any::<u8>(), 0..4), prop::collection::vec(any::<u8>(), 0..4)),
    ) {
        let rows: Rows = rows.into_iter().filter(|(key, _)| key.first() < Some(&0xFF)).collect();
        let origin = origin();
        let built = build(&origin, &rows, &Known::default());
        prop_assert_eq!(built.top.rows, rows.len() as u64);
        let tree = open(&origin, &built);
        prop_assert_eq!(&read_all(&tree).unwrap(), &rows);
        for (key, value) in &rows {
            let found = MetaStore::get(&tree, &Key::from_bytes(key)).unwrap();
            prop_assert_eq!(found.as_deref(), Some(&value[..]));
            let mut absent = key.clone();
            absent.push(0);
            let found = MetaStore::get(&tree, &Key::from_bytes(&absent)).unwrap();
            prop_assert_eq!(found.as_deref(), rows.get(&absent).map(|value| &value[..]));
        }
        let (start, end) = bounds;
        let range = KeyRange { start: Key::from_bytes(&start), end: Key::from_bytes(&end) };
        let found: Vec<_> = tree.scan(&range, 7).unwrap();
        let mut expected: Vec<(Key, Vec<u8>)> = Vec::new();
        if start < end {
            let within = rows.range(start..end).take(7);
            expected.extend(within.map(|(key, value)| (Key::from_bytes(key), value.clone())));
        }
        let found: Vec<(Key, Vec<u8>)> = found.into_iter().map(|(key, value)| (key, value.to_vec())).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(&tree.known().unwrap().0.len(), &(built.written.nodes as usize));
    }

    #[test]
    fn bytes_that_are_no_node_or_record_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = Node::decode(&bytes, BlobId([1; 32]));
        for level in 0..3 {
            let mut plain = vec![0, level];
            plain.extend_from_slice(&bytes);
            let _ = Node::decode(&plain, BlobId([1; 32]));
        }
        prop_assert!(Root::decode("test", &bytes).is_err());
        let _ = Owner::decode(&bytes);
        let mut with_head = b"covO\x00\x00\x00\x01".to_vec();
        with_head.extend_from_slice(&bytes);
        let _ = Owner::decode(&with_head);
    }

    #[test]
    fn a_node_with_a_changed_byte_is_another_node_or_none(at in any::<prop::sample::Index>(), bit in 0..8u8, packed: bool) {
        let mut leaf = Leaf::default();
        (0..200u32).for_each(|n| leaf.push(&n.to_be_bytes(), format!("the value {n}").as_bytes()));
        let content = leaf.encode();
        let mut zstd = zstd::bulk::Compressor::new(3).unwrap();
        let mut bytes = if packed { stored(&content, &mut zstd) } else { [&[0][..], &content].concat() };
        let (_, hash) = Node::decode(&bytes, BlobId([1; 32])).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok((node, other)) = Node::decode(&bytes, BlobId([1; 32])) {
            // zstd has bits that change nothing.
            let Node::Leaf(node) = node else { panic!("a leaf became an inner node") };
            prop_assert!(other != hash || node.encode() == content);
        }
    }
}

#[test]
fn a_change_in_a_large_tree_writes_a_handful_of_nodes() {
    let origin = origin();
    let mut rows = files(100_000);
    let first = build(&origin, &rows, &Known::default());
    assert!(first.written.nodes > 200 && first.level >= 2, "{:?} {}", first.written, first.level);
    assert!(first.written.blobs < 20, "nodes share blobs: {:?}", first.written);

    let again = build(&origin, &rows, &open(&origin, &first).known().unwrap());
    assert_eq!((again.written.new_nodes, again.written.blobs), (0, 0));
    assert_eq!((again.top, &again.blobs), (first.top, &first.blobs));

    // A file is written to, then one is added, then one is removed. Each changes a leaf of each kind of row,
    // and the nodes above.
    put_file(&mut rows, 50_000, 1);
    let changed = build(&origin, &rows, &open(&origin, &first).known().unwrap());
    assert!(changed.written.new_nodes <= 6 && changed.written.blobs == 1, "{:?}", changed.written);
    put_file(&mut rows, 100_002, 0);
    let grown = build(&origin, &rows, &open(&origin, &changed).known().unwrap());
    assert!(grown.written.new_nodes <= 10 && grown.written.blobs == 1, "{:?}", grown.written);
    let gone: Vec<Vec<u8>> =
        rows.keys().filter(|key| Key::from_bytes(key).number() == Some(777)).cloned().collect();
    gone.iter().for_each(|key| drop(rows.remove(key)));
    let shrunk = build(&origin, &rows, &open(&origin, &grown).known().unwrap());
    assert!(shrunk.written.new_nodes <= 10 && shrunk.written.blobs == 1, "{:?}", shrunk.written);
    assert_eq!(read_all(&open(&origin, &shrunk)).unwrap(), rows);
}

#[test]
fn blobs_of_which_little_is_used_are_not_kept_for_ever() {
    let origin = origin();
    let mut rows = files(5_000);
    let mut built = build(&origin, &rows, &Known::default());
    for round in 1..80u8 {
        (0..40).for_each(|n| put_file(&mut rows, 2 + (u64::from(round) * 997 + n * 125) % 5_000, round));
        let known = open(&origin, &built).known().unwrap();
        built = build(&origin, &rows, &known);
    }
    assert_eq!(read_all(&open(&origin, &built)).unwrap(), rows);
    let mut stored = 0;
    for blob in &built.blobs {
        stored += origin.size(blob).unwrap().unwrap();
    }
    let mut used = 0;
    open(&origin, &built).nodes(&mut |to| used += u64::from(to.len)).unwrap();
    assert!(stored <= 4 * used + (4 << 20), "{stored} bytes are kept for {used}");
}

#[test]
fn a_row_costs_one_node_a_level() {
    let origin = origin();
    let rows = files(100_000);
    let built = build(&origin, &rows, &Known::default());
    let spy = Spy::on(&origin);
    let tree = Tree::new(spy.clone(), &root(&built));
    assert_eq!(spy.reads.load(Ordering::Relaxed), 0, "opening reads nothing");
    let key = Key::inode(base::Ino(40_000));
    assert!(!tree.is_at_hand(&key) && spy.reads.load(Ordering::Relaxed) == 0, "asking reads nothing");
    assert!(MetaStore::get(&tree, &key).unwrap().is_some());
    assert_eq!(spy.reads.load(Ordering::Relaxed), u64::from(built.level) + 1);
    assert!(MetaStore::get(&tree, &key).unwrap().is_some());
    assert_eq!(
        spy.reads.load(Ordering::Relaxed),
        u64::from(built.level) + 1,
        "nodes that were read are kept"
    );
    assert!(tree.is_at_hand(&key) && !tree.is_at_hand(&Key::inode(base::Ino(90_000))));
    assert!(!tree.scan(&Key::dentries(base::Ino(4001), 0), 1000).unwrap().is_empty());
    assert!(spy.reads.load(Ordering::Relaxed) <= 3 * (u64::from(built.level) + 1));
}

#[test]
fn damage_is_an_error_and_never_a_row() {
    let origin = origin();
    let rows = files(3_000);
    let built = build(&origin, &rows, &Known::default());
    let spy = Spy::on(&origin);
    for blob in &built.blobs {
        let size = origin.size(blob).unwrap().unwrap() as u32;
        for at in (0..size).step_by((size as usize / 300).max(1)) {
            *spy.flipped.lock() = Some((*blob, at));
            match read_all(&Tree::new(spy.clone(), &root(&built))) {
                Ok(read) => assert_eq!(read, rows, "a byte that no node uses"),
                Err(TreeError::Blob(BlobError::Damaged { id, .. })) => assert_eq!(id, *blob),
                Err(other) => panic!("{other}"),
            }
        }
        *spy.flipped.lock() = None;
        *spy.missing.lock() = Some(*blob);
        let tree = Tree::new(spy.clone(), &root(&built));
        let missing = tree.scan(&Key::kind(meta::key::tags::INODE), usize::MAX);
        assert!(matches!(missing, Err(StoreError::Damaged(_))), "{missing:?}");
        *spy.missing.lock() = None;
    }
    // A root that points to a wrong place: past the end of the blob, to another node, to the wrong level.
    let mut wrong = root(&built);
    wrong.top.offset = (4 << 20) - wrong.top.len;
    assert!(read_all(&Tree::new(origin.clone(), &wrong)).is_err());
    let mut wrong = root(&built);
    wrong.level += 1;
    assert!(read_all(&Tree::new(origin.clone(), &wrong)).is_err());
    let mut wrong = root(&built);
    wrong.top.hash[0] ^= 1;
    assert!(read_all(&Tree::new(origin, &wrong)).is_err());
}

#[test]
fn a_child_must_fit_its_place() {
    // Two leaves whose parent names them in the wrong order of keys, all with right hashes. Only a holder of
    // the key could make this.
    let origin = origin();
    let rows = files(3_000);
    let built = build(&origin, &rows, &Known::default());
    let tree = open(&origin, &built);
    let mut children = Vec::new();
    tree.nodes(&mut |to| children.push(*to)).unwrap();
    let leaf = *children.last().unwrap();
    let child = crate::node::Child { first: b"\x01".as_slice().into(), to: leaf };
    let content = Inner::encode(1, std::slice::from_ref(&child), &|_| Some(leaf.blob));
    let bytes = [&[0][..], &content].concat();
    let sums = blob::Sums::of(&bytes);
    origin.put(&sums.id(), &sums, &bytes).unwrap();
    let top = crate::node::Pointer {
        hash: Inner::hash(1, &[child]),
        blob: sums.id(),
        offset: 0,
        len: bytes.len() as u32,
        rows: leaf.rows,
    };
    let lying = Tree::new(origin, &Root { top, level: 1, ..root(&built) });
    assert!(matches!(read_all(&lying), Err(TreeError::Blob(BlobError::Damaged { .. }))));
}

#[test]
fn a_record_is_believed_only_with_its_signature() {
    let built = build(&origin(), &files(10), &Known::default());
    let source = |region: Option<&str>| crate::Source {
        url: "s3://theirs/data".to_owned(),
        endpoint: Some("http://127.0.0.1:9".to_owned()),
        region: region.map(str::to_owned),
    };
    for source in [None, Some(source(None)), Some(source(Some("eu-1")))] {
        let root = Root { source, ..root(&built) };
        let record = root.encode(&signer());
        assert_eq!(record[7], if root.source.is_some() { 2 } else { 1 });
        assert_eq!(Root::decode("test", &record).unwrap(), root);
        for at in 0..record.len() {
            let mut changed = record.clone();
            changed[at] ^= 1;
            assert!(Root::decode("test", &changed).is_err(), "byte {at}");
            assert!(Root::decode("test", &record[..at]).is_err(), "{at} bytes");
        }
    }
    let record = root(&built).encode(&signer());
    assert!(matches!(Root::decode("other", &record), Err(TreeError::Untrusted(_))));
    let mut newer = record;
    newer[7] = 3;
    assert!(matches!(Root::decode("test", &newer), Err(TreeError::Newer { found: 3, .. })));
}

#[test]
fn only_the_owner_may_publish_and_only_owners_keys_are_accepted() {
    let origin = origin();
    let records: &dyn Records = &*origin;
    let built = build(&origin, &files(10), &Known::default());
    assert!(matches!(Root::read(records, "test", None), Err(TreeError::NotPublished(_))));
    root(&built).write(&*origin, &signer()).unwrap();
    assert!(matches!(Root::read(records, "test", None), Err(TreeError::Untrusted(_))), "no owner");
    let owner = |n: u8| Owner {
        volume: [7; 16],
        owner: [n; 16],
        generation: 1,
        note: format!("host:/{n}"),
        keys: vec![signer().key()],
    };
    let first = publish::claim(&*origin, owner(1)).unwrap();
    assert_eq!(publish::claim(&*origin, owner(1)).unwrap(), first);
    assert!(matches!(publish::claim(&*origin, owner(2)), Err(TreeError::NotOwner(_))));
    assert_eq!(Root::read(records, "test", None).unwrap(), root(&built));
    let other = Signer::from_seed(&[8; 32]).unwrap();
    assert!(matches!(Root::read(records, "test", Some(&other.key())), Err(TreeError::Untrusted(_))));

    let next = first.hand_over(records, [2; 16], "there".to_owned(), other.key()).unwrap();
    assert_eq!((next.generation, next.keys.len()), (2, 2));
    assert!(matches!(publish::claim(&*origin, owner(1)), Err(TreeError::NotOwner(_))));
    assert!(publish::claim(&*origin, owner(2)).is_ok());
    assert!(Root::read(records, "test", None).is_ok(), "the signature of an earlier owner stays valid");
    let forged = Root { key: Signer::from_seed(&[1; 32]).unwrap().key(), ..root(&built) };
    forged.write(&*origin, &Signer::from_seed(&[1; 32]).unwrap()).unwrap();
    assert!(matches!(Root::read(records, "test", None), Err(TreeError::Untrusted(_))));
    assert_eq!(root::names(records).unwrap(), ["test"]);
    assert!(root::remove(records, "test").unwrap() && !root::remove(records, "test").unwrap());
    assert!(!root::remove(records, "../owner").unwrap());
}

/// Makes the volume whose rows are published the owner of the origin.
fn claim(origin: &Arc<dyn Origin>) {
    let (volume, keys) = ([7; 16], vec![signer().key()]);
    let owner = Owner { volume, owner: [1; 16], generation: 1, note: String::new(), keys };
    publish::claim(&**origin, owner).unwrap();
}

fn publish_rows(origin: &Arc<dyn Origin>, store: &dyn MetaStore) -> Result<crate::Published, TreeError> {
    publish_rows_kept(origin, store, false)
}

fn publish_rows_kept(
    origin: &Arc<dyn Origin>,
    store: &dyn MetaStore,
    keep: bool,
) -> Result<crate::Published, TreeError> {
    let snapshot: Box<dyn Snapshot> = store.snapshot()?;
    let selection = Selection::of(&*snapshot, crate::rows::Scope::Whole, &[])?;
    let order = Order {
        name: "test",
        volume: [7; 16],
        signer: &signer(),
        moment: Timestamp(1),
        patience: Duration::from_secs(1),
        afresh: false,
        keep,
        hold: &mut |_| Ok(()),
        before_root: &mut || Ok(()),
        progress: &mut |_| true,
    };
    publish(&*snapshot, &selection, origin, order)
}

#[test]
fn the_root_is_replaced_last_and_only_when_something_changed() {
    let kept: Arc<dyn Origin> = origin();
    let faults = blob::failing::Faults::new();
    let origin: Arc<dyn Origin> = Arc::new(blob::failing::FailingOrigin::new(kept.clone(), faults.clone()));
    claim(&origin);
    let store = meta::Memory::new();
    let put = |rows: Rows| {
        let puts = rows.into_iter().map(|(key, value)| (Key::from_bytes(&key), value.as_slice().into()));
        store.commit(Commit { puts: puts.collect(), ..Commit::default() }).unwrap();
    };
    put(files(2_000));
    let first = publish_rows(&origin, &store).unwrap();
    assert_eq!((first.root.sequence, first.unchanged), (1, false));
    let again = publish_rows(&origin, &store).unwrap();
    assert_eq!((&again.root, again.unchanged, again.blobs), (&first.root, true, first.blobs));

    let mut more = Rows::new();
    put_file(&mut more, 5_000, 3);
    put(more);
    for op in [blob::failing::Op::Sync, blob::failing::Op::Store] {
        faults.fail(op, u64::MAX);
        assert!(publish_rows(&origin, &store).is_err(), "{op:?}");
        faults.heal();
        assert_eq!(Root::read(&*origin, "test", None).unwrap(), first.root, "the root is unchanged");
    }
    let next = publish_rows(&origin, &store).unwrap();
    assert!(
        next.root.moment > first.root.moment,
        "even with a stopped clock a record is newer than the previous one"
    );
    assert_eq!((next.root.sequence, next.root.before), (2, Some(first.root.top.hash)));
    assert!(next.written.new_nodes < next.written.nodes);
    // A previous tree whose nodes cannot be read does not prevent a new one.
    faults.fail(blob::failing::Op::Read, u64::MAX);
    let whole = publish_rows(&origin, &store).unwrap();
    assert_eq!((whole.written.new_nodes, whole.root.top.hash), (whole.written.nodes, next.root.top.hash));
}

/// Numbers began at 1 again, and readers of number 1 went on to get the kept publication of that number.
#[test]
fn regression_a_damaged_record_does_not_make_numbers_begin_again() {
    let origin = origin();
    claim(&origin);
    let store = meta::Memory::new();
    let publish = |ino| {
        let mut rows = Rows::new();
        put_file(&mut rows, ino, 1);
        let puts = rows.into_iter().map(|(key, value)| (Key::from_bytes(&key), value.as_slice().into()));
        store.commit(Commit { puts: puts.collect(), ..Commit::default() }).unwrap();
        publish_rows_kept(&origin, &store, true).unwrap().root
    };
    let [first, second] = [publish(2_000), publish(2_001)];
    assert_eq!((first.sequence, second.sequence), (1, 2));
    origin.put_record("published/test", b"damaged").unwrap();
    let third = publish(2_002);
    assert_ne!(third.top.hash, first.top.hash);
    assert_eq!(third.sequence, 2, "1 is kept; 2 was lost with its record");
    assert_eq!(crate::history::read(&*origin, "test", 1, None).unwrap(), first);
    assert_eq!(crate::history::read(&*origin, "test", third.sequence, None).unwrap(), third);
    let fourth = publish(2_003);
    assert_eq!(crate::history::read(&*origin, "test", 2, None).unwrap(), third);
    assert_eq!(fourth.sequence, 3);
}

/// The only node of such a tree is both top and leaf, and leaves are not read to learn what can be reused.
#[test]
fn regression_a_tree_of_one_node_that_was_lost_is_written_anew() {
    let origin = origin();
    claim(&origin);
    let store = meta::Memory::new();
    let puts = files(10).into_iter().map(|(key, value)| (Key::from_bytes(&key), value.as_slice().into()));
    store.commit(Commit { puts: puts.collect(), ..Commit::default() }).unwrap();
    let first = publish_rows(&origin, &store).unwrap();
    assert_eq!((first.root.level, first.root.nodes), (0, 1));
    let read = || read_all(&Tree::new(origin.clone(), &Root::read(&*origin, "test", None).unwrap()));
    origin.remove(&first.root.top.blob).unwrap();
    assert!(matches!(read(), Err(TreeError::Blob(BlobError::Missing(_)))));
    let again = publish_rows(&origin, &store).unwrap();
    assert_eq!((again.root.top, again.written.new_nodes), (first.root.top, 1));
    assert_eq!(read().unwrap(), files(10));
}

/// The result of a comparison row by row.
fn compared(old: &Rows, new: &Rows) -> crate::diff::Changes {
    let mut changes = crate::diff::Changes::default();
    let keys: std::collections::BTreeSet<&Vec<u8>> = old.keys().chain(new.keys()).collect();
    for key in keys.into_iter().filter(|key| old.get(*key) != new.get(*key)) {
        let (row, gone) = (Key::from_bytes(key), !new.contains_key(key));
        match (row.as_dentry(), row.tag()) {
            (Some(name), _) => changes.names.push((name.parent, name.name.to_vec())),
            (None, 0x01) => drop(changes.inodes.insert(base::Ino(row.number().unwrap()), gone)),
            (None, 0x08 | 0x09) => {
                let _ = *changes.inodes.entry(base::Ino(row.number().unwrap())).or_insert(false);
            }
            _ => {}
        }
    }
    changes
}

#[test]
fn differences_are_found_without_reading_what_both_trees_share() {
    let origin = origin();
    let old = files(20_000);
    let first = build(&origin, &old, &Known::default());
    let known = open(&origin, &first).known().unwrap();
    let mut few = old.clone();
    for ino in [2, 777, 778, 12_345, 20_001] {
        put_file(&mut few, ino, 1);
    }
    put_file(&mut few, 50_000, 0);
    few.insert([&[0x08][..], &701_u64.to_be_bytes()].concat(), vec![1; 8]);
    let gone = Key::inode(base::Ino(9_000)).as_bytes().to_vec();
    few.remove(&gone).unwrap();
    let every_other: Rows = old.iter().step_by(2).map(|(key, row)| (key.clone(), row.clone())).collect();
    let mut from_the_middle = old.clone();
    from_the_middle.retain(|key, _| key > &gone);
    let same = old.clone();
    for (case, new, most) in [
        ("few", few, 60),
        ("same", same, 0),
        ("every other", every_other, u64::MAX),
        ("half", from_the_middle, u64::MAX),
    ] {
        let second = build(&origin, &new, &known);
        let spy = Spy::on(&origin);
        let of = |built: &Built| Tree::new(spy.clone(), &root(built));
        let (before, after) = (of(&first), of(&second));
        assert_eq!(crate::diff::changes(&before, &after).unwrap(), compared(&old, &new), "{case}");
        let reads = spy.reads.load(Ordering::Relaxed);
        assert!(reads <= most, "{case}: {reads} nodes read");
        assert_eq!(crate::diff::changes(&after, &before).unwrap(), compared(&new, &old), "{case}, back");
    }
}

/// A tree that an attacker prepared must not become a volume whose names lead out of a folder.
#[test]
fn regression_a_tree_with_an_impossible_name_is_not_restored() {
    let origin = origin();
    for name in [&b"../x"[..], b"/etc/x", b"..", b"", b"a\0b"] {
        let mut rows = Rows::new();
        put_file(&mut rows, 2, 0);
        rows.insert(Key::dentry(base::Ino(1), name).as_bytes().to_vec(), vec![0; 12]);
        let built = build(&origin, &rows, &Known::default());
        let refused = crate::restore::restore(&open(&origin, &built), &meta::Memory::new(), &mut |_| true);
        assert!(matches!(refused, Err(TreeError::Store(_))), "{name:?}: {refused:?}");
    }
}

/// A walk of a folder that contains itself continued until there was no memory left.
#[test]
fn regression_a_folder_within_itself_is_damage_and_not_walked_for_ever() {
    let store = meta::Memory::new();
    let (top, within) = (base::Ino(5), base::Ino(6));
    let dir = |ino| Dentry { ino, kind: 0o040_000 }.encode();
    let time = Timestamp(0);
    let record = InodeRecord {
        mode: 0o040_755,
        flags: 0,
        uid: 0,
        gid: 0,
        nlink: 1,
        rdev: 0,
        size: 0,
        stored: 0,
        parent: base::Ino(1),
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        change: 0,
        xattr_list: 0,
        xattr_bytes: 0,
        quota: base::Ino(0),
    };
    let puts = vec![
        (Key::inode(top), record.encode()),
        (Key::dentry(top, b"within"), dir(within)),
        (Key::dentry(within, b"top"), dir(top)),
    ];
    store.commit(Commit { puts, ..Commit::default() }).unwrap();
    let rows = store.snapshot().unwrap();
    let walked = crate::rows::Selection::of(&*rows, crate::rows::Scope::Folder(top), &[]);
    assert!(matches!(walked, Err(TreeError::Store(_))));
}
