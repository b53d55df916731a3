use super::*;

fn new(unique: u64, cost: u32) -> New {
    let asked = Asked { opcode: 1, unique, node: 1, pid: 1 };
    let request = Arc::new(vec![0; 8].into());
    New { asked, device: 0, request, cost, traced: None, ends_locks: false, signalled: false }
}

/// Enters a request, which must find a slot.
fn enter(flight: &Flight, unique: u64, cost: u32) -> Result<(u16, u64), NoSlot> {
    flight.enter(new(unique, cost)).map(|entered| entered.expect("a slot"))
}

#[test]
fn slots_and_bytes_are_waited_for() {
    let flight = Flight::default();
    flight.grant(2, 100, false);
    let first = enter(&flight, 1, 60).unwrap();
    assert_eq!(flight.enter(new(2, 60)), Ok(None), "there are too few bytes");
    assert_eq!(flight.enter(new(3, 1)), Ok(None), "it does not go before the other");
    assert!(flight.next().is_none() && flight.by_unique(2).is_none() && flight.figures() == (1, 0, 2));
    assert!(flight.end(first.0, first.1).is_some() && flight.end(first.0, first.1).is_none());
    let (second, entered) = flight.next().unwrap();
    let entered = entered.unwrap();
    assert_eq!(second.asked.unique, 2);
    assert!(flight.get(entered.0, entered.1).is_some() && flight.knows(first.0, first.1));
    assert!(!flight.knows(first.0, 99) && flight.all().len() == 1);
    assert_eq!(flight.enter(new(4, 60)), Ok(None));
    assert!(flight.next().is_some_and(|(third, entered)| third.asked.unique == 3 && entered.is_ok()));
    flight.set_failing(true);
    assert!(flight.next().is_some_and(|(_, refused)| refused == Err(NoSlot::Failing)));
    assert!(flight.next().is_none() && flight.figures() == (2, 0, 0));
    assert_eq!(flight.enter(new(5, 1)), Err(NoSlot::Failing));
    flight.set_failing(false);
    flight.close();
    assert_eq!(flight.enter(new(5, 1)), Err(NoSlot::Closed));
}

/// The line is in memory, so readers pause when it holds much.
#[test]
fn a_line_with_many_bytes_makes_readers_pause() {
    let (flight, moment) = (Flight::default(), Duration::from_millis(1));
    flight.grant(1, 10, false);
    enter(&flight, 1, 1).unwrap();
    let large: Arc<Kept> = Arc::new(vec![0; LINE_BYTES / 2 + 1].into());
    for unique in [2, 3] {
        assert!(!flight.is_crowded(moment));
        let request = Arc::clone(&large);
        assert_eq!(flight.enter(New { request, ..new(unique, 1) }), Ok(None));
    }
    assert!(flight.is_crowded(moment));
    assert!(flight.leave_line(3).is_some() && flight.leave_line(3).is_none());
    assert!(!flight.is_crowded(moment));
}

/// A request that no server had seen was given up, and its number was skipped. The server cut the guest
/// off when the next one came, again and again.
#[test]
fn regression_a_request_that_was_never_sent_takes_no_number() {
    let flight = Flight::default();
    flight.grant(1, 10, false);
    assert_eq!(enter(&flight, 1, 1), Ok((0, 1)));
    assert!(flight.withdraw(0, 1, 1) && !flight.withdraw(0, 1, 1) && !flight.knows(0, 1));
    assert_eq!(enter(&flight, 2, 1), Ok((0, 1)));
    flight.change(0, 1, |entry| entry.sent = Some(Sent { link: 1, session: 1 }));
    assert!(!flight.withdraw(0, 1, 2) && flight.end(0, 1).is_some());
    assert_eq!(enter(&flight, 3, 1), Ok((0, 2)));
}

#[test]
fn a_slot_counts_its_requests() {
    let flight = Flight::default();
    flight.grant(1, 10, false);
    for seq in 1..5 {
        assert_eq!(enter(&flight, seq, 1), Ok((0, seq)));
        flight.end(0, seq);
    }
    assert_eq!(enter(&flight, 9, 1000), Ok((0, 5)), "alone, a request may be of any size");
}

/// Requests that wait for a lock take no slot from those that release it.
#[test]
fn a_full_row_of_lock_requests_holds_nothing_up() {
    let flight = Flight::default();
    flight.grant(1, 10, true);
    let wait = |unique| {
        let asked = Asked { opcode: request::op::SETLKW, unique, node: 1, pid: 1 };
        let mut request = vec![0; request::IN_HEADER + 48];
        request[request::IN_HEADER + 32] = libc::F_WRLCK as u8;
        let request = Arc::new(request.into());
        flight.enter(New { asked, request, ..new(unique, 90) }).map(|entered| entered.expect("a slot"))
    };
    assert_eq!(wait(1).map(|(slot, _)| slot >= WAITS_AT), Ok(true));
    (1..WAITS).for_each(|unique| assert!(wait(unique.into()).is_ok()));
    assert_eq!(wait(9), Err(NoSlot::Locks));
    assert_eq!(enter(&flight, 10_000, 10), Ok((0, 1)));
    assert_eq!(flight.figures(), (usize::from(WAITS) + 1, WAITS.into(), 0));
    let first = flight.by_unique(1).unwrap();
    assert!(flight.end(first.slot, first.seq).is_some() && wait(9).is_ok());
}
