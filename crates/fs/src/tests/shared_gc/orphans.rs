//! Inodes without a name that another node has open.

use hashbrown::{HashMap, HashSet};

use super::*;
use crate::shared::Sharing;

/// A node that reads a file takes the lease away from the node that removed it. When it let the file go, no
/// node had the lease, so the inode stayed until the first node gave up waiting: two minutes with real
/// sessions.
#[test]
fn regression_the_last_node_that_held_an_inode_deletes_it() {
    const LEASE: Duration = Duration::from_secs(10);
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join_without_reaper(), cluster.join_without_reaper());
    let file = uploaded(&one, "f", 1, 100_000);
    two.lookup(Ino::ROOT, b"f").unwrap();
    remove(&one, "f", file);
    assert!(two.get(file) == noise(1, 100_000));
    one.sync().unwrap();
    // It has had no name for as long as the rule demands, and not for as long as the first node waits.
    let long_ago = base::time::monotonic().checked_sub(3 * LEASE).unwrap();
    let round = |node: &Node, mine: &mut HashSet<Ino>| {
        mine.extend(node.core.reaper.take_let_go());
        let sharing = Sharing { lease: LEASE, ..node.core.options.shared.clone().unwrap() };
        node.core.reap_round(&sharing, &mut HashMap::from([(file, long_ago)]), mine).unwrap();
        node.sync().unwrap();
        cluster.count(tags::INODE) - 1
    };
    let (mut of_one, mut of_two) = (HashSet::new(), HashSet::new());
    two.note_held_orphans().unwrap();
    assert_eq!(cluster.count(tags::HOLD), 1);
    assert_eq!((round(&one, &mut of_one), round(&two, &mut of_two)), (1, 1), "it is open");
    two.forget(file, 1);
    two.note_held_orphans().unwrap();
    assert_eq!(cluster.count(tags::HOLD), 0);
    assert_eq!(round(&two, &mut of_two), 0, "the node that held it deletes it at once");
    assert_eq!(round(&one, &mut of_one), 0);
    assert_eq!(*cluster.lines.lock(), [""; 0]);
}

/// The first node read which sessions last, and then the rows of batches. It took a session that began in
/// between for one that has ended. Without its row, that node lost all that it acknowledged from then on.
#[test]
fn regression_a_session_that_begins_now_keeps_the_row_of_its_batches() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let (begun, done) = (Arc::new(std::sync::Barrier::new(2)), Arc::new(std::sync::Barrier::new(2)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (begun, done) = (begun.clone(), done.clone());
            let hook = Box::new(move || {
                begun.wait();
                done.wait();
            });
            *one.place.after_alive.lock() = Some((std::thread::current().id(), hook));
            one.core.remove_batches(one.core.options.shared.as_ref().unwrap()).unwrap();
        });
        begun.wait();
        two.join_again();
        two.file(Ino::ROOT, "first");
        two.core.parts.store.flush().unwrap();
        done.wait();
    });
    let row = meta::Key::batch(2, 2);
    assert!(meta::MetaStore::get(&*cluster.rows, &row).unwrap().is_some());
    two.file(Ino::ROOT, "second");
    two.core.parts.store.flush().unwrap();
    assert!(two.find(Ino::ROOT, "second").is_some() && one.find(Ino::ROOT, "second").is_some());
}
