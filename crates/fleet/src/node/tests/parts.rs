//! Parts of blobs between real nodes: how many bytes move, and what is true of them.

use std::sync::Barrier;

use base::size::BLOB_MAX;
use net::message::Group;

use super::*;

/// Compares bytes of a part with the store's.
fn right(store: &Store, id: &BlobId, part: &Part, offset: u32, len: u32) {
    let bytes = store.blobs.lock()[id].clone();
    let from = part.offset as usize;
    assert_eq!(part.bytes, bytes[from..from + part.bytes.len()]);
    assert!(part.offset <= offset && from + part.bytes.len() >= (offset + len) as usize);
    assert_eq!(part.sums, Sums::of(&bytes));
}

#[test]
fn a_little_of_a_blob_moves_little_from_the_node_that_has_it() {
    undisturbed(
        || fleet_with(3, 4, BLOB_MAX as usize),
        |store, ids, nodes| {
            for (n, id) in ids.iter().enumerate() {
                nodes[0].read(id).unwrap();
                known(nodes, &[*id], 1);
                // The last bytes are in a group that ends with the blob.
                let offset = [0, 70_000, BLOB_MAX / 2 - 100, BLOB_MAX - 4096][n];
                let part = nodes[1].fetch_part(id, offset, 4096).unwrap();
                right(store, id, &part, offset, 4096);
            }
            // Bytes are counted after they were handed over.
            let is_counted = || nodes[1].fleet.net_counts().blob_bytes_in >= 5 << 16;
            soon("all bytes are counted", is_counted);
            let (counts, net) = (nodes[1].fleet.counts(), nodes[1].fleet.net_counts());
            assert_eq!((counts.peer_parts, counts.origin_parts, counts.peer_blobs), (4, 0, 0), "{counts:?}");
            // All of it: bytes that arrived together with a frame's header were not counted.
            assert_eq!(
                (counts.peer_part_bytes, net.blob_bytes_in),
                (5 << 16, 5 << 16),
                "one range crosses two groups"
            );
            let flow = |from: usize, to: usize| nodes[from].fleet.flows()[&nodes[to].fleet.node()];
            assert_eq!((flow(1, 0).received, flow(0, 1).sent, flow(1, 0).sent), (5 << 16, 5 << 16, 0));
            assert_eq!((store.fetches(), store.parts.lock().0), (4, 0));
            // No node is sent to a node that read only a part.
            for id in ids {
                assert_eq!(nodes[2].read(id).unwrap(), store.blobs.lock()[id]);
            }
            assert_eq!((nodes[2].fleet.counts().failed, nodes[1].fleet.net_counts().blob_bytes_out), (0, 0));
        },
    );
}

#[test]
fn regression_without_a_holder_one_node_gets_parts_and_the_rest_comes_once_for_all() {
    undisturbed(
        || fleet_with(3, 3, 1 << 20),
        |store, ids, nodes| {
            for (n, id) in (1..).zip(ids) {
                // One node that reads a little fetches parts only, however often.
                for offset in [500_000, 70_000] {
                    right(store, id, &nodes[2].fetch_part(id, offset, 4096).unwrap(), offset, 4096);
                }
                assert_eq!((store.fetches(), store.parts.lock().0), (n - 1, 3 * n - 1));
                let begun = base::time::monotonic();
                let part = nodes[1].fetch_part(id, 70_000, 4096).unwrap();
                // The store takes 30 ms for a blob and no time for a part.
                println!("a part after {:?}", begun.elapsed());
                right(store, id, &part, 70_000, 4096);
                soon("the rest follows", || nodes[1].disk.open(id).is_some());
                right(store, id, &nodes[0].fetch_part(id, 900_000, 100_000).unwrap(), 900_000, 100_000);
            }
            assert_eq!(*store.parts.lock(), (9, 9 << 16));
            assert_eq!((store.fetches(), store.most()), (3, 1), "each blob once");
            let parts = nodes.iter().map(|node| node.fleet.counts().origin_parts).collect::<Vec<_>>();
            assert_eq!((parts, nodes[0].fleet.counts().peer_parts), (vec![0, 3, 6], 3));
        },
    );
}

/// A node that has parts asks for the rest as parts only while it is the only one.
#[test]
fn the_rest_comes_by_parts_only_where_nobody_else_wants_the_blob() {
    undisturbed(
        || fleet_with(3, 2, 1 << 20),
        |store, ids, nodes| {
            let rest_by_parts = |node: usize, id: &BlobId| nodes[node].fleet.rest_by_parts(id);
            for id in ids {
                right(store, id, &nodes[2].fetch_part(id, 70_000, 4096).unwrap(), 70_000, 4096);
                assert!(rest_by_parts(2, id) && rest_by_parts(2, id), "however often it asks");
                right(store, id, &nodes[2].fetch_part(id, 0, 4096).unwrap(), 0, 4096);
            }
            assert_eq!(store.fetches(), 0, "asking fetches nothing");
            // Another that has a part fetches the whole for all, and who asked first has it from there.
            nodes[1].fetch_part(&ids[0], 70_000, 4096).unwrap();
            soon("the rest follows", || nodes[1].disk.open(&ids[0]).is_some());
            assert!(!rest_by_parts(2, &ids[0]) && !rest_by_parts(0, &ids[0]));
            assert_eq!(nodes[2].read(&ids[0]).unwrap(), store.blobs.lock()[&ids[0]]);
            // Another that only asks gets the lease with that, and by it fetches the whole.
            assert!(!rest_by_parts(1, &ids[1]));
            assert_eq!(nodes[1].read(&ids[1]).unwrap(), store.blobs.lock()[&ids[1]]);
            assert_eq!((store.fetches(), store.most()), (2, 1), "each blob once");
        },
    );
}

#[test]
fn regression_of_what_a_depot_has_each_gets_its_part_and_the_rest_does_not_follow() {
    let start = || {
        let (store, ids) = Store::with(3, BLOB_MAX as usize);
        let depot = Node::start(&store, Role::Depot, None);
        let nodes = [1, 2].map(|_| Node::start(&store, Role::Node, Some(&depot)));
        let nodes: Vec<Node> = [depot].into_iter().chain(nodes).collect();
        see_each_other(&nodes);
        (store, ids, nodes)
    };
    undisturbed(start, |store, ids, nodes| {
        for id in ids {
            let bytes = store.blobs.lock()[id].clone();
            nodes[0].disk.0.put(id, &Sums::of(&bytes), &bytes).unwrap();
            for node in &nodes[1..] {
                right(store, id, &node.fetch_part(id, 70_000, 4096).unwrap(), 70_000, 4096);
                // A note gives the lease back.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        for node in &nodes[1..] {
            let (counts, net) = (node.fleet.counts(), node.fleet.net_counts());
            assert_eq!(
                (counts.depot_parts, counts.peer_parts, net.blob_bytes_in, node.fleet.under_way()),
                (3, 0, 3 << 16, 0),
                "{counts:?}"
            );
            assert_eq!((counts.origin_told, counts.origin_parts, counts.failed), (0, 0, 0), "{counts:?}");
        }
        assert_eq!((store.fetches(), store.parts.lock().0), (0, 0));
    });
}

#[test]
fn regression_parts_have_longer_the_more_are_wanted_at_once() {
    undisturbed(
        || fleet_with(2, 1, BLOB_MAX as usize),
        |_, ids, nodes| {
            let inner = &nodes[1].fleet.inner;
            nodes[0].read(&ids[0]).unwrap();
            nodes[1].fetch_part(&ids[0], 0, 4096).unwrap();
            assert_eq!(inner.parts.load(Ordering::SeqCst), 0, "finished ones do not count");
            assert!(inner.pace().peer < Duration::from_millis(500), "{:?}", inner.pace());
            // 64 parts of 192 KiB take half a second on a link of 200 Mbit/s.
            inner.parts.store(64, Ordering::SeqCst);
            assert!(inner.pace().peer > Duration::from_secs(1), "{:?}", inner.pace());
            inner.parts.store(0, Ordering::SeqCst);
        },
    );
}

#[test]
fn a_part_that_many_want_at_once_is_fetched_once() {
    undisturbed(
        || fleet_with(6, 1, 1 << 20),
        |store, ids, nodes| {
            let begin = Barrier::new(nodes.len());
            std::thread::scope(|scope| {
                for node in nodes {
                    scope.spawn(|| {
                        begin.wait();
                        right(store, &ids[0], &node.fetch_part(&ids[0], 0, 100).unwrap(), 0, 100);
                    });
                }
            });
            soon("the rest is here", || nodes.iter().any(|node| node.disk.open(&ids[0]).is_some()));
            let troubles = troubles(nodes);
            assert!(store.fetches() <= 1 + troubles && store.parts.lock().0 <= 2, "{:?}", store.parts.lock());
        },
    );
}

#[test]
fn a_part_that_a_node_makes_up_is_had_from_elsewhere() {
    let (store, ids) = Store::with(2, 300_000);
    let nodes = Node::fleet_of(&store, 2);
    for (number, id) in ids.iter().enumerate() {
        let bytes = nodes[0].read(id).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        let mut sent = bytes.clone();
        let lie = match number {
            // Other bytes, with matching CRCs.
            0 => {
                sent[70_000] ^= 1;
                let fits = Sums::of(&sent);
                forged(&Sums::of(&bytes), |sums| {
                    let from = sums.len() - fits.segments().len() * 4;
                    let crcs: Vec<u8> = fits.segments().iter().flat_map(|crc| crc.to_le_bytes()).collect();
                    sums[from..].copy_from_slice(&crcs);
                })
            }
            // Right bytes, with a CRC that does not match. The cache would reject them.
            _ => forged(&Sums::of(&bytes), |sums| *sums.last_mut().unwrap() ^= 1),
        };
        std::io::Write::write_all(&mut file, &sent).unwrap();
        nodes[0].disk.1.lock().insert(*id, Held { file: Arc::new(file), offset: 0, sums: Arc::new(lie) });
        let offset = [65_536, 290_000][number];
        right(&store, id, &nodes[1].fetch_part(id, offset, 5_000).unwrap(), offset, 5_000);
    }
}

#[test]
fn a_part_that_is_not_in_the_blob_is_refused() {
    let (store, ids) = Store::with(1, 200_000);
    let nodes = Node::fleet_of(&store, 2);
    for (offset, len) in [(200_000, 1), (199_999, 2), (u32::MAX, 1), (0, BLOB_MAX + 1)] {
        let error = nodes[0].fetch_part(&ids[0], offset, len).err().unwrap();
        assert!(matches!(error, BlobError::Io(_)), "{error}");
    }
    right(&store, &ids[0], &nodes[1].fetch_part(&ids[0], 199_900, 100).unwrap(), 199_900, 100);
}

/// Questions about blobs of one group that are wanted at once are merged, and each blob arrives. Questions
/// are merged while another one has no answer yet. On a busy machine the readers may ask one after the
/// other, so the test has several attempts.
#[test]
fn neighbours_are_asked_about_together() {
    let fewest = (0..5).map(|_| questions_of_sixteen_readers()).find(|asks| *asks < 12);
    assert!(fewest.is_some(), "16 readers should ask fewer than 12 questions in one of five attempts");
}

fn questions_of_sixteen_readers() -> u64 {
    undisturbed(
        || fleet_with(2, 16, 50_000),
        |store, ids, nodes| {
            let own = nodes[0].fleet.node();
            let tracked = |group: &u64| nodes[1].fleet.inner.placed.lock().trackers(Group(*group))[0] == own;
            let group = (0..1000).find(tracked).unwrap();
            for node in nodes {
                for (n, id) in ids.iter().enumerate() {
                    node.fleet.inner.groups.learn(id, group * super::super::groups::TOGETHER + n as u64);
                }
            }
            ids.iter().for_each(|id| drop(nodes[0].read(id).unwrap()));
            let begin = Barrier::new(ids.len());
            std::thread::scope(|scope| {
                for id in ids {
                    scope.spawn(|| {
                        begin.wait();
                        assert_eq!(nodes[1].read(id).unwrap(), store.blobs.lock()[id]);
                    });
                }
            });
            let (counts, answered) = (nodes[1].fleet.counts(), nodes[0].fleet.counts().answered);
            println!("{} questions about {} blobs", counts.asks, ids.len());
            assert_eq!(answered, counts.asks, "each question should be answered: {counts:?}");
            assert_eq!((counts.peer_blobs, store.fetches()), (16, 16));
            counts.asks
        },
    )
}

/// A part is being requested, or the whole is being fetched behind it, and a reader on the same node wants
/// the whole. Each gets what it wants without waiting for the other, and the store is asked for the blob
/// once.
#[test]
fn a_part_and_the_whole_may_be_wanted_on_one_node_at_once() {
    let (store, ids) = Store::with(8, 1 << 20);
    let nodes = Node::fleet_of(&store, 2);
    let begun = base::time::monotonic();
    for id in &ids {
        let begin = Barrier::new(6);
        std::thread::scope(|scope| {
            for n in 0..6u32 {
                let (node, store, begin) = (&nodes[n as usize % 2], &store, &begin);
                scope.spawn(move || {
                    begin.wait();
                    match n / 2 {
                        0 => assert_eq!(node.read(id).unwrap(), store.blobs.lock()[id]),
                        _ => right(
                            store,
                            id,
                            &node.fetch_part(id, n * 70_000, 4096).unwrap(),
                            n * 70_000,
                            4096,
                        ),
                    }
                });
            }
        });
    }
    let troubles = troubles(&nodes);
    assert!(store.fetches() <= 8 + troubles, "{} fetches, {troubles} troubles", store.fetches());
    assert!(begun.elapsed() < Duration::from_secs(120), "a reader waited: {:?}", begun.elapsed());
}
