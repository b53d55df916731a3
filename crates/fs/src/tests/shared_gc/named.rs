//! Reads of another node's packs whose blobs this machine has.

use std::sync::atomic::Ordering;

use super::*;

/// Each read looked at the pack's row in the database.
#[test]
fn regression_the_row_of_a_pack_that_is_here_is_read_once() {
    const FILES: u64 = 50;
    let cluster = Cluster::new(SOON);
    let (node, other) = (cluster.join_sealing_late(), cluster.join());
    let files: Vec<Ino> = (0..FILES).map(|n| node.file(Ino::ROOT, &format!("f{n}"))).collect();
    files.iter().enumerate().for_each(|(n, file)| node.put(*file, 0, &noise(n as u64, 10_000)));
    node.upload();
    assert_eq!(cluster.count(tags::PACK), 1, "all are in one");
    for (n, file) in files.iter().enumerate() {
        assert!(other.get(*file) == noise(n as u64, 10_000));
    }
    let looks = other.place.pack_looks.load(Ordering::SeqCst);
    assert!(looks <= 2, "{looks} looks at the row of a pack for {FILES} files");
}
