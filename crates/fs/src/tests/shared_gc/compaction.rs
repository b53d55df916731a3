//! Compaction in a shared volume: bytes in use move to another pack while other nodes work, and whatever
//! fails in between.

use std::sync::atomic::Ordering::SeqCst;

use blob::Extent;
use blob::failing::Op as Call;

use super::*;

const OLD: usize = 900_000;
/// What is written over the first bytes of a file, so that its pack is mostly dead.
const NEW: usize = 700_000;

/// A file of which most bytes were written over, and what it holds. Both packs are in the origin.
fn mostly_dead(node: &Node, dir: Ino, name: &str, seed: u64) -> (Ino, Vec<u8>) {
    let (file, mut bytes) = (node.file(dir, name), noise(seed, OLD));
    node.put(file, 0, &bytes);
    node.upload();
    node.put(file, 0, &noise(seed + 1000, NEW));
    node.upload();
    bytes[..NEW].copy_from_slice(&noise(seed + 1000, NEW));
    (file, bytes)
}

/// Where the bytes are that were not written over.
fn place(node: &Node, file: Ino) -> Vec<Extent> {
    let row = node.core.parts.store.peek(&[Key::extents(file, 0)]).unwrap().pop().flatten();
    let page = blob::ExtentPage::decode(&row.unwrap()).unwrap();
    page.extents().iter().filter(|extent| extent.end() > NEW as u32).copied().collect()
}

fn moved(node: &Node) -> u64 {
    node.stats().unwrap().moved_bytes
}

fn same(nodes: &[&Node], file: Ino, bytes: &[u8]) {
    for (n, node) in nodes.iter().enumerate() {
        assert!(node.get(file) == bytes, "node {n}");
    }
}

/// The new pack waits for its upload when this returns: no file refers to it.
fn on_its_way(cluster: &Cluster, node: &Node) -> (Ino, Vec<u8>, Vec<Extent>) {
    let (file, mut bytes) = (node.file(Ino::ROOT, "f"), noise(1, OLD));
    node.put(file, 0, &bytes);
    node.upload();
    let before = place(node, file);
    node.faults.late_uploads(true);
    node.put(file, 0, &noise(2, NEW));
    node.upload();
    bytes[..NEW].copy_from_slice(&noise(2, NEW));
    let blob = blob_of(&bytes[NEW..]);
    eventually("the bytes are copied", || cluster.blobs().contains(&blob) && moved(node) > 0);
    let rest = before[0].offset + NEW as u32;
    let before = vec![Extent { at: NEW as u32, len: (OLD - NEW) as u32, offset: rest, ..before[0] }];
    assert_eq!(place(node, file), before, "a file refers to bytes that the origin may not have");
    (file, bytes, before)
}

#[test]
fn bytes_in_use_move_and_the_old_blob_is_deleted() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let (file, bytes) = mostly_dead(&one, Ino::ROOT, "f", 1);
    let expected = || {
        let mut blobs = [blob_of(&bytes[..NEW]), blob_of(&bytes[NEW..])];
        blobs.sort();
        blobs
    };
    eventually("the old blob is deleted", || cluster.blobs() == expected());
    assert_eq!((moved(&one), moved(&two)), ((OLD - NEW) as u64, 0));
    same(&[&one, &two], file, &bytes);
    cluster.assert_whole();
    // The next rounds find nothing.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((cluster.blobs(), moved(&one)), (expected().to_vec(), (OLD - NEW) as u64));
    assert_eq!(*cluster.lines.lock(), [""; 0]);
}

#[test]
fn no_file_refers_to_what_the_origin_may_not_have() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let (file, bytes, before) = on_its_way(&cluster, &one);
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(place(&one, file), before);
    }
    let count = cluster.count(tags::PACK);
    assert_eq!(count, 3, "the new pack is not taken for a dead one");
    // Neither does a node that is asked to collect.
    one.faults.late_uploads(false);
    eventually("the file refers to the new place", || place(&one, file) != before);
    eventually("the old blob is deleted", || cluster.blobs().len() == 2);
    same(&[&one, &two], file, &bytes);
}

/// The node is lost before any file refers to the new place: nothing has changed.
#[test]
fn a_node_that_is_lost_before_the_commit_leaves_all_as_it_was() {
    let cluster = Cluster::new(SOON);
    let (mut one, two) = (cluster.join(), cluster.join());
    let (file, bytes, before) = on_its_way(&cluster, &one);
    one.volume.as_ref().unwrap().sync().unwrap();
    one.end_session();
    one.place.term.end();
    one.volume = None;
    drop(one);
    assert_eq!(place(&two, file), before);
    same(&[&two], file, &bytes);
    // As its search for packs of nodes that are gone does now and then.
    two.core.condemn_all().unwrap();
    eventually("the other node compacts", || moved(&two) > 0 && cluster.blobs().len() == 2);
    same(&[&two], file, &bytes);
    cluster.assert_whole();
}

/// The node is lost after the commit, with its disk: the origin has all.
#[test]
fn a_node_that_is_lost_after_the_commit_is_not_needed() {
    let cluster = Cluster::new(Duration::from_secs(60));
    let (mut one, two) = (cluster.join(), cluster.join());
    let (file, bytes, before) = on_its_way(&cluster, &one);
    one.faults.late_uploads(false);
    eventually("the file refers to the new place", || place(&one, file) != before);
    one.end_session();
    one.place.term.end();
    one.volume = None;
    drop(one);
    same(&[&two], file, &bytes);
    assert_eq!(cluster.blobs().len(), 3, "the old blob stays for a while");
}

#[test]
fn an_upload_that_fails_is_tried_again() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let (file, bytes) = (one.file(Ino::ROOT, "f"), noise(1, OLD));
    one.put(file, 0, &bytes);
    one.upload();
    let before = place(&one, file);
    one.put(file, 0, &noise(2, NEW));
    one.seal_now(Duration::from_secs(60)).unwrap();
    one.faults.fail(Call::Store, u64::MAX);
    let calls = one.faults.calls(Call::Store);
    eventually("it tries, or was faster", || {
        one.faults.calls(Call::Store) > calls + 3 || place(&one, file)[0].pack != before[0].pack
    });
    let all = [&noise(2, NEW)[..], &bytes[NEW..]].concat();
    same(&[&one, &two], file, &all);
    one.faults.heal();
    eventually("the old blob is deleted", || cluster.blobs().len() == 2);
    eventually("no pack is left of the attempts", || cluster.count(tags::PACK) == 2);
    same(&[&one, &two], file, &all);
    cluster.assert_whole();
}

/// What happens to files while their bytes are on their way.
#[test]
fn changes_meanwhile_are_kept() {
    let cluster = Cluster::new(SOON);
    // Nothing becomes a pack of its own because this thread stands still for a moment.
    let (one, two) = (cluster.join_sealing_late(), cluster.join());
    let dir = one.dir(Ino::ROOT, "dir");
    let files: Vec<Ino> = (0..4).map(|n| one.file(dir, &n.to_string())).collect();
    let part = |n: usize| noise(n as u64, 200_000);
    // All in one pack, and one file that dies.
    let dead = one.file(dir, "dead");
    files.iter().enumerate().for_each(|(n, file)| one.put(*file, 0, &part(n)));
    one.put(dead, 0, &noise(9, 900_000));
    one.upload();
    let pack = |file: Ino| one.core.names.extents(file, 0).unwrap().extents()[0].pack;
    assert!(files.iter().all(|file| pack(*file) == pack(dead)), "they are in one pack");
    one.faults.late_uploads(true);
    one.unlink(dir, b"dead").unwrap();
    one.forget(dead, 1);
    eventually("the bytes are copied", || moved(&one) > 0);
    let copy = two.file(dir, "copy");
    assert_eq!(two.copy_range(files[0], 0, copy, 0, 200_000).unwrap(), 200_000);
    two.put(files[1], 100_000, &noise(50, 1000));
    two.cut(files[2], 150_000);
    two.unlink(dir, b"3").unwrap();
    two.forget(files[3], 1);
    one.faults.late_uploads(false);
    let mut changed = part(1);
    changed[100_000..101_000].copy_from_slice(&noise(50, 1000));
    let check = |when: &str| {
        for (n, node) in [&one, &two].into_iter().enumerate() {
            assert!(node.get(files[0]) == part(0), "{when}: node {n}: the first");
            assert!(node.get(files[1]) == changed, "{when}: node {n}: written to");
            assert!(node.get(files[2]) == part(2)[..150_000], "{when}: node {n}: cut");
            assert!(node.get(copy) == part(0), "{when}: node {n}: the copy");
            assert!(node.find(dir, "3").is_none(), "{when}: node {n}: removed");
        }
    };
    check("right after");
    let first = one.core.names.extents(files[0], 0).unwrap().extents()[0].pack;
    eventually("the first file has moved", || {
        one.core.names.extents(files[0], 0).unwrap().extents()[0].pack != first
            || one.core.deletions.compaction.is_idle()
    });
    check("after the move");
    for node in [&one, &two] {
        node.upload();
        node.round();
    }
    check("collected");
    cluster.assert_whole();
}

/// A node that uses a directory keeps its lease. When it has not changed hands for a while, it is taken once.
#[test]
fn a_lease_that_another_node_has_just_taken_is_left_alone() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let dir = one.dir(Ino::ROOT, "dir");
    let (file, mut bytes) = (one.file(dir, "f"), noise(1, OLD));
    one.put(file, 0, &bytes);
    one.upload();
    let began = Instant::now();
    two.put(file, 0, &noise(2, NEW));
    bytes[..NEW].copy_from_slice(&noise(2, NEW));
    two.upload();
    one.core.condemn_all().unwrap();
    let taken = Instant::now();
    let before = one.place.recalls.load(SeqCst);
    while taken.elapsed() < Duration::from_secs(2) {
        // A lease is taken after 40 terms, of 100 ms here.
        let asked = one.place.recalls.load(SeqCst) - before;
        assert!(
            (moved(&one), asked) == (0, 0) || began.elapsed() > Duration::from_secs(3),
            "{asked} recalls"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    eventually("it is compacted", || moved(&one) > 0 && cluster.blobs().len() == 2);
    assert!(began.elapsed() > Duration::from_secs(4), "{:?}", began.elapsed());
    assert!(one.place.recalls.load(SeqCst) - before < 5, "it takes the lease once");
    same(&[&one, &two], file, &bytes);
}

/// A request does not wait for anything, and does it for all nodes.
#[test]
fn a_request_compacts_what_other_nodes_wrote() {
    let cluster = Cluster::new(Duration::from_secs(60));
    let (one, two) = (cluster.join(), cluster.join());
    let dir = one.dir(Ino::ROOT, "dir");
    // Too little for the background.
    let (file, mut bytes) = (one.file(dir, "f"), noise(1, 90_000));
    one.put(file, 0, &bytes);
    one.upload();
    one.put(file, 0, &noise(2, 70_000));
    bytes[..70_000].copy_from_slice(&noise(2, 70_000));
    one.upload();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(moved(&one) + moved(&two), 0);
    let done = two.volume.as_ref().unwrap().collect(&mut |_| ()).unwrap();
    assert_eq!((done.moved_bytes, done.waiting_bytes), (20_000, 90_000), "{done:?}");
    assert_eq!((done.stored_bytes, done.garbage_bytes, done.packs), (90_000, 0, 2), "{done:?}");
    let again = two.volume.as_ref().unwrap().collect(&mut |_| ()).unwrap();
    assert_eq!(again.moved_bytes, 0);
    same(&[&one, &two], file, &bytes);
    cluster.assert_whole();
}

/// A pack that cannot be read stays, and is reported once.
#[test]
fn a_damaged_pack_stays() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let file = one.file(Ino::ROOT, "f");
    one.put(file, 0, &noise(1, OLD));
    one.upload();
    one.faults.damage(true);
    one.cut(file, 100_000);
    eventually("it is reported", || !cluster.lines.lock().is_empty());
    std::thread::sleep(Duration::from_millis(500));
    let lines = cluster.lines.lock().clone();
    assert!(
        matches!(&lines[..], [line] if line.contains("cannot be read, so it is not compacted")),
        "{lines:?}"
    );
    assert_eq!((cluster.blobs().len(), moved(&one)), (1, 0));
    one.faults.heal();
    same(&[&one, &two], file, &noise(1, OLD)[..100_000]);
}

/// The origin is away when the new pack is to be looked for.
#[test]
fn an_origin_that_does_not_answer_is_waited_for() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let (file, bytes, before) = on_its_way(&cluster, &one);
    one.faults.fail(Call::Look, 3);
    one.faults.fail(Call::Sync, 3);
    one.faults.late_uploads(false);
    eventually("the file refers to the new place", || place(&one, file) != before);
    eventually("the old blob is deleted", || cluster.blobs().len() == 2);
    same(&[&one, &two], file, &bytes);
}
