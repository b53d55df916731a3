//! Many threads that lead, follow, fail and give up at once: each read ends, with the right bytes or the
//! error of its leader.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// One read as the cache does it. Returns whether it got its bytes.
fn read(table: &Arc<Table>, blob: &Blob, range: Range<u32>, mut turn: usize, fetches: &AtomicUsize) -> bool {
    let mut buf = vec![0; range.len()];
    loop {
        turn += 1;
        let join = match turn % 3 {
            0 => match table.join_whole(&blob.id, Purpose::Read) {
                Join::Leader(mut lead) => {
                    fetches.fetch_add(1, Ordering::Relaxed);
                    lead.reserve(300_000).unwrap();
                    let buffer = lead.buffer();
                    buffer.begin(blob.sums.clone()).unwrap();
                    buffer.append(&blob.bytes[..150_000]).unwrap();
                    std::thread::yield_now();
                    match turn % 7 {
                        0 => drop(lead),
                        1 => return lead.finish(Err(unavailable())).is_ok(),
                        _ => drop(lead.finish(Ok(blob.whole())).unwrap()),
                    }
                    continue;
                }
                Join::Follower(fetch) => fetch,
            },
            _ => match table.join_part(&blob.id, range.start / GROUP..range.end.div_ceil(GROUP)) {
                Join::Leader(lead) => {
                    fetches.fetch_add(1, Ordering::Relaxed);
                    let announcement = lead.announce();
                    std::thread::yield_now();
                    if turn.is_multiple_of(5)
                        && let Some(whole) = announcement.begin_whole()
                    {
                        whole.finish(Ok(blob.whole())).unwrap();
                    }
                    drop(announcement);
                    let (from, to) =
                        (range.start - range.start % GROUP, lead.end().min(blob.bytes.len() as u32));
                    lead.finish(Ok(blob.part(from..to)), |_| {}).unwrap();
                    if to >= range.end {
                        return true;
                    }
                    continue;
                }
                Join::Follower(fetch) => fetch,
            },
        };
        if !join.covers(&range) {
            let _ = join.wait();
            continue;
        }
        match join.read(range.start, &mut buf) {
            Ok(()) => {
                assert_eq!(buf, blob.bytes[range.start as usize..range.end as usize]);
                return true;
            }
            Err(Ended::Failed(_)) => return false,
            Err(Ended::GivenUp) => {}
        }
    }
}

#[test]
fn threads_in_any_order_end_with_right_bytes() {
    let (table, blob) = (table(), Blob::new(300_000, 1));
    let fetches = AtomicUsize::new(0);
    let served = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let (table, blob, fetches, served) = (&table, &blob, &fetches, &served);
            scope.spawn(move || {
                for n in 0..300usize {
                    let turn = n * 31 + thread * 17;
                    let from = (turn * 7919 % 250_000) as u32;
                    let got = read(table, blob, from..from + 40_000, turn, fetches);
                    served.fetch_add(usize::from(got), Ordering::Relaxed);
                }
            });
        }
    });
    assert!(served.load(Ordering::Relaxed) > 1000, "{served:?} of 2400");
    assert!(table.is_empty() && table.is_forgotten() && table.budget().used() == 0);
}
