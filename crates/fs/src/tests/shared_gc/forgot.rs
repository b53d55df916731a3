//! A database that may have forgotten what it confirmed: nothing is given up by what it says.

use std::sync::atomic::Ordering;

use base::PackNo;
use meta::record::encode_u64;

use super::*;

/// The database lacked the names that refer to a pack. Its node took it for dead, and deleted the bytes.
#[test]
fn regression_a_pack_that_seems_dead_stays_until_the_database_has_all() {
    let cluster = Cluster::new(SOON);
    let node = cluster.join_sealing_late();
    let file = node.file(Ino::ROOT, "f");
    node.put(file, 0, &noise(1, 100_000));
    node.place.lacks.store(true, Ordering::SeqCst);
    node.cut(file, 0);
    // Another thread may be at it already.
    let _ = node.core.seal_all();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(node.parts().packs.open_packs().unwrap().len(), 1, "its file is there");
    node.place.lacks.store(false, Ordering::SeqCst);
    eventually("it is given up", || node.parts().packs.open_packs().unwrap().is_empty());
}

/// The database had forgotten the row of a pack. Its node deleted the bytes instead of sealing them.
#[test]
fn regression_a_pack_whose_row_was_forgotten_is_sealed() {
    let cluster = Cluster::new(SOON);
    let (node, other) = (cluster.join_sealing_late(), cluster.join());
    let file = node.file(Ino::ROOT, "f");
    node.put(file, 0, &noise(1, 100_000));
    node.sync().unwrap();
    let packs: Vec<PackNo> =
        node.parts().packs.open_packs().unwrap().into_iter().map(|(pack, _)| pack).collect();
    let dels = packs.iter().map(|pack| Key::pack(*pack)).collect();
    cluster.rows.commit(Commit { dels, ..Commit::default() }).unwrap();
    node.core.packs.close_all();
    eventually("it is sealed", || cluster.count(tags::BLOB_PACK) == 1);
    assert!(other.get(file) == noise(1, 100_000) && node.get(file) == noise(1, 100_000));
}

/// A database that was put back gave two nodes the same numbers of inodes.
#[test]
fn regression_no_inode_gets_a_number_that_the_database_forgot() {
    let cluster = Cluster::new(SOON);
    let (one, two) = (cluster.join(), cluster.join());
    let first = one.file(Ino::ROOT, "first");
    let puts = vec![(Key::volume("next-ino"), encode_u64(2))];
    cluster.rows.commit(Commit { puts, ..Commit::default() }).unwrap();
    // A standby takes longer than that to be promoted.
    std::thread::sleep(Duration::from_millis(1100));
    let second = two.file(Ino::ROOT, "second");
    assert!(second.0 - first.0 >= 64 << 10, "{first:?} and {second:?} are of one range");
}
