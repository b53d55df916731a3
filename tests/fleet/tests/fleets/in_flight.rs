//! In-flight data: a waiting reader is answered as the bytes arrive, also from several slow holders at once.

use std::time::Duration;

use nets::fleet::HANG;
use nets::{Fleet, How, Tree, requires_nets, say};

const DEADLINE: &str = "deadline=20";
const WITHIN: Duration = Duration::from_secs(40);
/// Bits per second: a blob takes about two seconds.
const THIN: u64 = 16_000_000;

/// A fleet of holders of everything behind slow links, and one more node that has only names.
fn fleet(holders: usize, seed: u64) -> Fleet {
    let mut fleet = Fleet::joined(Tree::of_tests(), holders + 1, seed, &How::default().with(DEADLINE));
    fleet.start();
    (0..holders).for_each(|node| fleet.warm(node));
    fleet.converge(holders as u64 + 1, HANG);
    fleet.names(holders);
    fleet.nodes[..holders].iter().for_each(|node| node.port.shape(Some(THIN)));
    fleet
}

/// A reader gets the beginning of a blob while the rest is still in flight, and no thread of the mount waits
/// for it.
#[test]
fn a_reader_is_answered_before_all_of_a_blob_has_arrived() {
    requires_nets!();
    let fleet = fleet(1, 301);
    let mnt = fleet.nodes[1].mnt();
    // Parts of blobs of which nothing else was read.
    for file in fleet.tree.large().skip(2) {
        let bytes = nets::readers::read(&mnt, file, 1 << 20, 4096).unwrap();
        assert_eq!(file.differs(1 << 20, &bytes), None, "{}", file.path.display());
    }
    let status = fleet.nodes[1].status();
    let parts = fleet.nodes[1].figure("/fleet/direct");
    assert!(parts > 0 && fleet.nodes[1].figure("/fleet/part/hits") >= parts, "{status:#}");
    for file in fleet.tree.large().take(2) {
        let bytes = nets::readers::read(&mnt, file, 0, file.size as usize).unwrap();
        assert_eq!(file.differs(0, &bytes), None, "{}", file.path.display());
    }
    let status = fleet.nodes[1].status();
    let direct = fleet.nodes[1].figure("/fleet/direct");
    say(format_args!("{direct} ranges, {parts} of them parts, were given by the loop that received them"));
    assert!(direct >= parts + 4, "peers sent them: {status:#}");
    assert_eq!(fleet.sum("/fleet/corrupt"), 0, "{status:#}");
}

/// Three nodes have everything, each behind a slow link of its own. One reads as fast as it can: all three
/// send to it.
#[test]
fn one_fast_reader_and_several_slow_holders() {
    requires_nets!();
    let mut fleet = fleet(3, 302);
    let sent = |fleet: &Fleet| -> Vec<u64> {
        fleet.nodes[..3].iter().map(|node| node.figure("/fleet/sent_bytes")).collect()
    };
    let before = sent(&fleet);
    fleet.must_read(&[3], 6, 20, 302, WITHIN);
    let more: Vec<u64> = sent(&fleet).iter().zip(&before).map(|(now, before)| now - before).collect();
    say(format_args!("they sent {more:?} bytes"));
    assert!(more.iter().all(|bytes| *bytes > 4 << 20), "not all of them send: {more:?}");
}
