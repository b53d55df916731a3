use super::*;

const PACK: PackNo = PackNo(1);
const NODE: SessionId = SessionId { node: 2, epoch: 5 };
const OTHER: SessionId = SessionId { node: 3, epoch: 6 };

fn named(keeping: &Keeping, offset: u32, len: u32) {
    keeping.named(&[FreshData { pack: PACK, offset, len, crc: 0 }]);
}

fn take(keeping: &Keeping) -> Vec<(u32, u32)> {
    keeping.kick();
    keeping.take().iter().flat_map(|(_, ranges)| ranges.iter().collect::<Vec<_>>()).collect()
}

#[test]
fn ranges_are_joined_and_cut() {
    let mut ranges = Ranges::default();
    for range in [(10, 20), (30, 40), (20, 25), (5, 5), (24, 31)] {
        ranges.add(range);
    }
    assert_eq!(ranges, Ranges(vec![(10, 40)]));
    ranges.remove((15, 20));
    ranges.remove((0, 11));
    ranges.remove((39, 50));
    assert_eq!(ranges, Ranges(vec![(11, 15), (20, 39)]));
    assert!(ranges.has_all(&Ranges(vec![(11, 12), (21, 39)])) && !ranges.has_all(&Ranges(vec![(14, 21)])));
}

#[test]
fn what_was_sent_is_there_and_what_is_named_later_is_not() {
    let keeping = Keeping::default();
    named(&keeping, 0, 10);
    let first = keeping.wanted();
    let keeper = keeping.choose(&[NODE]).unwrap();
    assert_eq!(take(&keeping), [(0, 10)]);
    named(&keeping, 10, 10);
    let second = keeping.wanted();
    assert!(!keeping.has(&first) && !keeping.has(&second));
    keeping.sent(keeper, 7);
    assert!(keeping.has(&first) && !keeping.has(&second));
    assert_eq!(keeping.stats(), KeepingStats { node: Some(2), bytes: 10 });
    assert_eq!(take(&keeping), [(10, 20)]);
    keeping.sent(keeper, 7);
    assert!(keeping.has(&second) && keeping.wanted().is_empty());
    keeping.forget(&[PACK]);
    let (keeper, copied) = keeping.take_dropped().unwrap();
    assert_eq!((keeper.run, copied), (Some(7), vec![PACK]));
    assert!(keeping.has(&first) && keeping.packs().is_empty());
}

#[test]
fn without_fsync_nothing_is_sent() {
    let keeping = Keeping::default();
    named(&keeping, 0, 10);
    assert!(keeping.choose(&[NODE]).is_some() && keeping.take().is_empty());
}

#[test]
fn a_range_that_is_named_while_it_is_sent_is_sent_again() {
    let keeping = Keeping::default();
    named(&keeping, 0, 10);
    let keeper = keeping.choose(&[NODE]).unwrap();
    assert_eq!(take(&keeping), [(0, 10)]);
    named(&keeping, 4, 2);
    let wanted = keeping.wanted();
    keeping.sent(keeper, 7);
    assert!(!keeping.has(&wanted));
    assert_eq!(take(&keeping), [(4, 6)]);
}

#[test]
fn everything_goes_to_another_node_when_the_keeper_fails_leaves_or_restarts() {
    let keeping = Keeping::default();
    named(&keeping, 0, 10);
    let wanted = keeping.wanted();
    let send = |keeper| {
        take(&keeping);
        keeping.sent(keeper, 7);
    };
    send(keeping.choose(&[NODE, OTHER]).unwrap());
    named(&keeping, 10, 10);
    let keeper = keeping.choose(&[NODE, OTHER]).unwrap();
    assert_eq!((keeper, take(&keeping)), (Keeper { node: NODE, run: Some(7) }, vec![(10, 20)]));
    keeping.failed(keeper, "it is full".to_owned());
    assert!(!keeping.has(&wanted));
    assert_eq!(keeping.choose(&[NODE]), None, "it has failed");
    assert_eq!(keeping.failures(), (2, "it is full".to_owned()));
    let keeper = keeping.choose(&[NODE, OTHER]).unwrap();
    assert_eq!((keeper.node, take(&keeping)), (OTHER, vec![(0, 20)]));
    keeping.sent(keeper, 9);
    assert!(keeping.has(&wanted));
    // It has joined again, and its program has not ended.
    let again = SessionId { epoch: 8, ..OTHER };
    assert_eq!(keeping.choose(&[again]), Some(Keeper { node: again, run: Some(9) }));
    keeping.restarted();
    assert!(!keeping.has(&wanted));
    send(keeping.choose(&[again]).unwrap());
    assert!(keeping.has(&wanted));
    // It has left. There is nothing to wait for before everything is sent again.
    assert_eq!(keeping.choose(&[]), None);
    assert!(!keeping.has(&wanted) && !keeping.failures().1.is_empty());
}

#[test]
fn an_unreadable_pack_is_left_to_the_origin() {
    let keeping = Keeping::default();
    named(&keeping, 0, 10);
    let wanted = keeping.wanted();
    take(&keeping);
    keeping.cannot_read(PACK, "it is damaged".to_owned());
    assert!(take(&keeping).is_empty() && !keeping.has(&wanted));
    keeping.forget(&[PACK]);
    assert!(keeping.has(&wanted));
}
