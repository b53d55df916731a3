//! Nodes that only lend their disk.

use super::*;

/// A node that keeps copies.
fn lender(store: &Arc<Store>, join: &Node) -> Node {
    let lender = Node::changed(store, Role::Node, Some(join), |parts| parts.keeps = true);
    lender.fleet.set_free(1000);
    lender
}

/// How many of these the lender tracks.
fn tracked(lender: &Node, ids: &[BlobId]) -> u64 {
    let mut placed = lender.fleet.inner.placed.lock();
    let mut first = |id: &BlobId| placed.trackers(Group::alone(id)).first().copied();
    ids.iter().filter(|id| first(id) == Some(lender.fleet.node())).count() as u64
}

#[test]
fn a_lender_copies_only_what_it_tracks() {
    let start = || {
        let (store, ids) = Store::with(12, 50_000);
        let node = Node::start(&store, Role::Node, None);
        let lender = lender(&store, &node);
        let nodes = vec![node, lender];
        see_each_other(&nodes);
        (store, ids, nodes)
    };
    undisturbed(start, |store, ids, nodes| {
        let [node, lender] = nodes else { panic!("two nodes") };
        lender.fleet.keep_copies().unwrap();
        ids.iter().for_each(|id| drop(node.read(id).unwrap()));
        let share = tracked(lender, ids);
        soon("it has its share", || lender.fleet.counts().kept >= share);
        // It already has what it is told again, and ignores what others track.
        node.fleet.inner.report_all();
        std::thread::sleep(Duration::from_millis(400));
        let counts = lender.fleet.counts();
        assert_eq!(counts.kept, share);
        assert_eq!((store.fetches(), counts.origin_blobs), (12, 0), "copies come from the node");
    });
}

/// The lender knew no groups. So it asked a tracker that knew nothing, fetched each copy from the origin, and
/// reported it to a tracker that no reader asks.
#[test]
fn regression_a_lender_learns_groups_from_notes() {
    let start = || {
        let (store, ids, mut nodes) = fleet_with(2, 12, 50_000);
        nodes.push(lender(&store, &nodes[0]));
        see_each_other(&nodes);
        (store, ids, nodes)
    };
    undisturbed(start, |store, ids, nodes| {
        let (readers, lender) = (&nodes[..2], &nodes[2]);
        lender.fleet.keep_copies().unwrap();
        // Each blob is in a group of its own, which only nodes that mount the tree know.
        for (number, id) in ids.iter().enumerate() {
            readers.iter().for_each(|node| assert!(node.fleet.inner.groups.learn(id, number as u64 * 16)));
        }
        ids.iter().for_each(|id| drop(readers[0].read(id).unwrap()));
        let group = |id: &BlobId| readers[0].fleet.inner.groups.of(id);
        let first = |id: &BlobId| lender.fleet.inner.placed.lock().trackers(group(id)).first().copied();
        let share: Vec<&BlobId> = ids.iter().filter(|id| first(id) == Some(lender.fleet.node())).collect();
        soon("it has its share", || lender.fleet.counts().kept >= share.len() as u64);
        assert!(share.iter().all(|id| lender.fleet.inner.groups.of(id) == group(id)));
        let counts = lender.fleet.counts();
        assert_eq!((store.fetches(), counts.origin_blobs), (12, 0), "copies come from the node");
    });
}

/// Opening its cache takes a lender a while. Other nodes already know it then, and report their blobs once.
#[test]
fn regression_what_a_lender_is_told_before_its_cache_is_open_is_copied() {
    let (store, ids) = Store::with(12, 50_000);
    let node = Node::start(&store, Role::Node, None);
    ids[..6].iter().for_each(|id| drop(node.read(id).unwrap()));
    let lender = lender(&store, &node);
    let nodes = [node, lender];
    see_each_other(&nodes);
    let [node, lender] = &nodes;
    ids[6..].iter().for_each(|id| drop(node.read(id).unwrap()));
    let share = tracked(lender, &ids);
    soon("it knows of its share", || lender.fleet.tracker_counts().blobs >= share);
    assert_eq!(lender.fleet.counts().kept, 0, "it has no cache yet");
    lender.fleet.keep_copies().unwrap();
    soon("it has its share", || lender.fleet.counts().kept >= share);
}

#[test]
fn a_node_that_does_not_keep_says_so() {
    let (store, _) = Store::with(1, 1_000);
    let node = Node::start(&store, Role::Node, None);
    assert!(node.fleet.keep_copies().unwrap_err().to_string().contains("does not keep"));
}
