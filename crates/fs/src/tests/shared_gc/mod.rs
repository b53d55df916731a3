//! Deletion in a shared volume: nothing that a node may name is deleted, whatever happens in between.

mod clones;
mod compaction;
mod copies;
mod forgot;
mod named;
mod nodes;
mod orphans;
mod random;
mod trash;

use base::BlobId;
use meta::key::tags;
use meta::record::{DoomedRow, HeldRow};
use meta::{Commit, Key};

use super::*;
use crate::gc::shared::HOLD;
use nodes::{Cluster, Node};

const SOON: Duration = Duration::from_millis(1);

/// A file with `len` bytes, in the origin.
fn uploaded(node: &Node, name: &str, seed: u64, len: usize) -> Ino {
    let file = node.file(Ino::ROOT, name);
    node.put(file, 0, &noise(seed, len));
    node.upload();
    file
}

fn remove(node: &Node, name: &str, file: Ino) {
    node.unlink(Ino::ROOT, name.as_bytes()).unwrap();
    node.forget(file, 1);
}

fn blob_of(bytes: &[u8]) -> BlobId {
    crate::bytes::content_id(bytes)
}

#[test]
fn what_nothing_refers_to_is_deleted_on_all_nodes() {
    let cluster = Cluster::new(SOON);
    let nodes = [cluster.join(), cluster.join()];
    let files: Vec<Ino> =
        (0..4).map(|n| uploaded(&nodes[n % 2], &format!("f{n}"), n as u64, 100_000)).collect();
    assert_eq!(cluster.blobs().len(), 4);
    // Each removes a file of each.
    for n in 0..4 {
        let node = &nodes[n / 2];
        let name = format!("f{n}");
        if n % 2 == n / 2 {
            remove(node, &name, files[n]);
        } else {
            node.cut(files[n], 0);
        }
    }
    eventually("all is deleted", || cluster.blobs().is_empty());
    eventually("nothing is left of it", || {
        [tags::PACK, tags::BLOB_PACK, tags::CONDEMNED, tags::DOOMED]
            .iter()
            .all(|tag| cluster.count(*tag) == 0)
    });
    assert_eq!(*cluster.lines.lock(), [""; 0]);
}

#[test]
fn a_blob_stays_for_a_while() {
    let cluster = Cluster::new(Duration::from_secs(3));
    let node = cluster.join();
    let file = uploaded(&node, "f", 1, 100_000);
    let began = Instant::now();
    node.cut(file, 0);
    eventually("it is condemned", || cluster.count(tags::CONDEMNED) == 1 || cluster.blobs().is_empty());
    node.round();
    let is_there = cluster.blobs().len() == 1;
    assert!(is_there || began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    eventually("it is deleted", || cluster.blobs().is_empty());
    assert!(began.elapsed() >= Duration::from_secs(3));
}

/// Packs of a node that is gone, and what it had not finished.
#[test]
fn another_node_deletes_what_a_node_left() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let files = [uploaded(&two, "a", 1, 100_000), uploaded(&two, "b", 2, 100_000)];
    two.faults.fail(blob::failing::Op::Remove, u64::MAX);
    two.cut(files[0], 0);
    eventually("it is doomed", || cluster.count(tags::DOOMED) == 1);
    assert_eq!(cluster.blobs().len(), 2);
    two.end_session();
    two.place.term.end();
    one.cut(files[1], 0);
    eventually("both are deleted", || cluster.blobs().is_empty());
    eventually("nothing is left of it", || cluster.count(tags::DOOMED) + cluster.count(tags::PACK) == 0);
}

/// A node stops between the decision and the deletion, for longer than its session lasts. Meanwhile others
/// delete the blob and store an equal one. `stop` and `is_stopped` say where it stops.
fn stopped(stop: impl Fn(&Node, bool), is_stopped: impl Fn(&Node) -> bool) {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let file = uploaded(&two, "f", 1, 100_000);
    let blob = blob_of(&noise(1, 100_000));
    assert_eq!(cluster.blobs(), [blob]);
    eventually("nothing else is to be done there", || !two.core.sweep.has_waiting());
    stop(&two, true);
    two.cut(file, 0);
    eventually("it is about to delete", || is_stopped(&two));
    two.end_session();
    let again = one.file(Ino::ROOT, "again");
    one.put(again, 0, &noise(1, 100_000));
    one.upload();
    assert_eq!(cluster.blobs(), [blob], "an equal blob is stored again");
    assert_eq!(cluster.count(tags::DOOMED), 0, "after the deletion was over");
    two.join_again();
    stop(&two, false);
    // A round that begins now ends after the one that was stopped.
    two.round();
    assert_eq!(cluster.blobs(), [blob], "the node that was stopped deleted it");
    assert!(one.get(again) == noise(1, 100_000) && two.get(again) == noise(1, 100_000));
}

#[test]
fn a_node_that_was_stopped_before_the_request_sends_none() {
    let removes = |node: &Node| node.faults.calls(blob::failing::Op::Remove) == 1;
    stopped(|node, on| node.faults.hold(on), removes);
}

#[test]
fn a_node_that_was_stopped_after_its_decision_asks_once_more() {
    use std::sync::atomic::Ordering::SeqCst;
    let stop = |node: &Node, on: bool| node.place.stops.store(on, SeqCst);
    stopped(stop, |node| node.place.stopped.load(SeqCst));
}

/// A deletion whose answer is late may still be carried out after the next one has succeeded.
#[test]
fn a_blob_is_stored_again_only_after_its_deletion_is_over() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let file = uploaded(&two, "f", 1, 100_000);
    let blob = blob_of(&noise(1, 100_000));
    // When it was there the last time: the time until it is seen that it is gone does not count.
    let mut last = Instant::now();
    two.cut(file, 0);
    eventually("it is deleted", || {
        let now = Instant::now();
        let is_there = !cluster.blobs().is_empty();
        last = if is_there { now } else { last };
        !is_there
    });
    let again = uploaded(&one, "again", 1, 100_000);
    // A deletion is sent a little after its time has begun.
    assert!(last.elapsed() > HOLD / 2, "{:?}", last.elapsed());
    assert_eq!(cluster.blobs(), [blob]);
    assert!(two.get(again) == noise(1, 100_000));
    cluster.assert_whole();
}

/// A copy on one node of a file that another removes, also while the copy is only in memory.
#[test]
fn a_copy_on_another_node_keeps_the_bytes() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let dir = two.dir(Ino::ROOT, "dir");
    for n in 0..20u64 {
        let len = 100_000;
        let file = uploaded(&one, &format!("f{n}"), n, len);
        let copy = two.file(dir, &format!("copy{n}"));
        let at = two.find(Ino::ROOT, &format!("f{n}")).unwrap().ino;
        assert_eq!(two.copy_range(at, 0, copy, 0, len as u64).unwrap(), len as u64);
        remove(&one, &format!("f{n}"), file);
        one.round();
        assert!(two.get(copy) == noise(n, len), "copy {n}");
        assert!(one.get(copy) == noise(n, len), "copy {n}");
    }
    std::thread::sleep(Duration::from_millis(500));
    cluster.assert_whole();
    assert_eq!(cluster.blobs().len(), 20);
}

#[test]
fn two_packs_with_one_blob_go_one_after_the_other() {
    let cluster = Cluster::new(SOON);
    let nodes = [cluster.join(), cluster.join()];
    let files = [0, 1].map(|n| uploaded(&nodes[n], &format!("f{n}"), 7, 100_000));
    assert_eq!((cluster.blobs().len(), cluster.count(tags::PACK)), (1, 2));
    nodes[0].cut(files[0], 0);
    eventually("one pack is gone", || cluster.count(tags::PACK) == 1);
    assert!(nodes[0].get(files[1]) == noise(7, 100_000));
    nodes[0].cut(files[1], 0);
    eventually("the blob is gone", || cluster.blobs().is_empty());
    assert_eq!(cluster.count(tags::BLOB_PACK), 0);
}

#[test]
fn what_is_published_stays_and_so_does_all_while_a_node_publishes() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let file = uploaded(&one, "f", 1, 100_000);
    let blob = blob_of(&noise(1, 100_000));
    let turn = |node: u32, epoch: u64| {
        let row = [&node.to_be_bytes()[..], &epoch.to_be_bytes(), &[0; 8]].concat();
        let puts = vec![(Key::publishing(), row.as_slice().into())];
        cluster.rows.commit(Commit { puts, ..Commit::default() }).unwrap();
    };
    turn(2, 1);
    one.cut(file, 0);
    eventually("it is condemned", || cluster.count(tags::CONDEMNED) == 1);
    [&one, &two].iter().for_each(|node| node.round());
    assert_eq!(cluster.blobs(), [blob], "a node publishes");
    two.hold("tree", &mut std::iter::once(blob)).unwrap();
    // The session of the node that publishes ended.
    turn(2, 0);
    eventually("the pack is forgotten", || cluster.count(tags::PACK) == 0);
    assert_eq!((cluster.blobs(), cluster.count(tags::HELD)), (vec![blob], 1));
    assert_eq!(cluster.rows.get(&Key::publishing()).unwrap(), None, "its turn was taken away");
    let began = Instant::now();
    two.let_go("tree").unwrap();
    two.round();
    // A round of the other node may have begun it.
    eventually("it is deleted", || cluster.blobs().is_empty() && cluster.count(tags::HELD) == 0);
    // A tree that needs the blob now waits until it may be stored again.
    one.hold("tree", &mut std::iter::once(blob)).unwrap();
    assert!(began.elapsed() > HOLD / 2, "{:?}", began.elapsed());
    let row = cluster.rows.get(&Key::held(&blob, "tree")).unwrap().unwrap();
    assert_eq!(HeldRow::decode(&row).unwrap(), HeldRow::Pending);
}

#[test]
fn a_request_finds_what_no_row_names() {
    let cluster = Cluster::new(Duration::from_millis(300));
    let node = cluster.join();
    let kept = uploaded(&node, "f", 1, 100_000);
    let stray = noise(2, 5000);
    let sums = blob::Sums::of(&stray);
    cluster.origin.put(&sums.id(), &sums, &stray).unwrap();
    let collect = || node.volume.as_ref().unwrap().collect(&mut |_| ()).unwrap();
    let first = collect();
    assert_eq!((first.freed_bytes, first.waiting_bytes, first.stored_bytes), (0, 5000, 100_000));
    assert_eq!(cluster.blobs().len(), 2, "a stray is not deleted when it is found first");
    std::thread::sleep(Duration::from_millis(400));
    let second = collect();
    assert_eq!((second.freed_bytes, second.waiting_bytes, second.packs), (5000, 0, 1));
    assert_eq!(cluster.blobs(), [blob_of(&noise(1, 100_000))]);
    assert!(node.get(kept) == noise(1, 100_000));
    assert_eq!(collect().waiting_bytes, 0, "a blob that is being deleted is no stray");
}

/// Without a right to the origin nothing is deleted, and what was decided is done later.
#[test]
fn an_origin_that_refuses_is_asked_again() {
    let cluster = Cluster::new(SOON);
    let node = cluster.join();
    let file = uploaded(&node, "f", 1, 100_000);
    node.faults.fail(blob::failing::Op::Remove, 3);
    node.cut(file, 0);
    eventually("it is deleted", || cluster.blobs().is_empty());
    assert!(node.faults.calls(blob::failing::Op::Remove) > 3);
    let row = cluster.rows.get(&Key::doomed(&blob_of(&noise(1, 100_000)))).unwrap().unwrap();
    assert_eq!(DoomedRow::decode(&row).unwrap(), DoomedRow { node: 1, epoch: 1 });
    eventually("nothing is left of it", || cluster.count(tags::DOOMED) == 0);
}

/// Until the origin has the blob, every node reads the pack from the node that wrote it.
#[test]
fn a_blob_is_named_before_it_is_stored() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    two.faults.fail(blob::failing::Op::Store, u64::MAX);
    let file = two.file(Ino::ROOT, "f");
    two.put(file, 0, &noise(1, 100_000));
    two.core.packs.close_all();
    eventually("it is named", || cluster.count(tags::BLOB_PACK) == 1);
    eventually("it cannot be stored", || two.faults.calls(blob::failing::Op::Store) > 0);
    assert!(cluster.blobs().is_empty());
    assert!(one.get(file) == noise(1, 100_000) && two.get(file) == noise(1, 100_000));
    two.faults.heal();
    two.upload();
    assert_eq!(cluster.blobs(), [blob_of(&noise(1, 100_000))]);
    assert!(one.get(file) == noise(1, 100_000));
    // Nothing of a blob that is being deleted is stored before it may be named.
    two.cut(file, 0);
    eventually("it is deleted", || cluster.blobs().is_empty());
    let before = one.faults.calls(blob::failing::Op::Store);
    let again = one.file(Ino::ROOT, "again");
    one.put(again, 0, &noise(1, 100_000));
    one.core.packs.close_all();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!((one.faults.calls(blob::failing::Op::Store), cluster.count(tags::DOOMED)), (before, 1));
    assert!(two.get(again) == noise(1, 100_000));
    // Removed before that.
    one.cut(again, 0);
    eventually("the pack is forgotten", || cluster.count(tags::PACK) == 0);
    assert_eq!(one.faults.calls(blob::failing::Op::Store), before);
}

/// A pack that was removed between two attempts to store its blob was forgotten, but not as one that has to
/// be stored. From then on no fsync to the origin and no publication ended.
#[test]
fn regression_what_is_removed_before_it_is_stored_holds_nothing_up() {
    let cluster = Cluster::new(SOON);
    let node = cluster.join();
    node.faults.fail(blob::failing::Op::Store, u64::MAX);
    let file = node.file(Ino::ROOT, "f");
    node.put(file, 0, &noise(1, 100_000));
    node.core.packs.close_all();
    eventually("it is named", || cluster.count(tags::BLOB_PACK) == 1);
    eventually("it cannot be stored", || node.faults.calls(blob::failing::Op::Store) > 0);
    node.cut(file, 0);
    eventually("the pack is forgotten", || cluster.count(tags::PACK) == 0);
    node.faults.heal();
    node.seal_now(Duration::from_secs(60)).unwrap();
    eventually("nothing is left of it", || {
        cluster.count(tags::BLOB_PACK) + cluster.count(tags::CONDEMNED) == 0
            && node.parts().packs.open_packs().unwrap().is_empty()
    });
}
