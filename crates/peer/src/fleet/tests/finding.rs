//! A table on every node instead of trackers.

use super::*;
use crate::fleet::Finding;

fn with_table(store: &Arc<Store>, join: Option<&Node>) -> Node {
    Node::changed(store, Role::Node, join, |parts| parts.finding = Finding::Table)
}

#[test]
fn nodes_with_tables_find_what_the_others_have() {
    let (store, ids) = Store::with(8, 200_000);
    let mut nodes = vec![with_table(&store, None)];
    while nodes.len() < 3 {
        nodes.push(with_table(&store, nodes.first()));
    }
    see_each_other(&nodes);
    for id in &ids {
        nodes[0].read(id).unwrap();
    }
    assert_eq!(store.fetches(), 8);
    let knows = |node: &Node, count: u64| node.fleet.tracker_counts().copies == count;
    soon("all heard of all", || nodes.iter().all(|node| knows(node, 8)));
    for id in &ids {
        assert_eq!(nodes[1].read(id).unwrap(), store.blobs.lock()[id]);
    }
    assert_eq!(store.fetches(), 8, "{:?}", nodes[1].fleet.counts());
    assert_eq!(nodes[1].fleet.counts().asks, 0, "it asks no tracker");
    // A node that joins later is told as well, and so are evictions.
    nodes.push(with_table(&store, nodes.first()));
    see_each_other(&nodes);
    soon("the last has heard of all", || knows(&nodes[3], 16));
    ids.iter().for_each(|id| nodes[0].evict(id));
    soon("all heard that they went", || nodes.iter().all(|node| knows(node, 8)));
    for id in &ids {
        nodes[3].read(id).unwrap();
    }
    assert_eq!(store.fetches(), 8, "{:?}", nodes[3].fleet.counts());
}
