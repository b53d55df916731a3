//! What waits for what on one connection.

use super::*;

/// A client that always has many requests in flight, on one connection.
struct Greedy<T, F: Fn() -> Call<T>> {
    ask: F,
    many: usize,
    under_way: Vec<Call<T>>,
}

/// Many more blobs than take turns, and more than fit into the kernel's buffers.
const BLOBS: usize = 64;
/// Many more parts of 1 MiB than take turns, and more than fit into the kernel's buffers.
const PARTS: usize = 160;

impl<T, F: Fn() -> Call<T>> Greedy<T, F> {
    fn new(many: usize, ask: F) -> Greedy<T, F> {
        let under_way = (0..many).map(|_| ask()).collect();
        Greedy { ask, many, under_way }
    }

    /// Drops the finished requests, and makes as many new ones. Returns how many had finished.
    fn go_on(&mut self) -> usize {
        self.under_way.retain(|call| !call.is_over());
        let came = self.many - self.under_way.len();
        self.under_way.extend((0..came).map(|_| (self.ask)()));
        came
    }

    /// Checks that few of them finish while `other` does, not nearly all. It runs in the middle of several
    /// rounds, so that a round in which this thread was not scheduled does not matter.
    fn beside(&mut self, what: &str, mut other: impl FnMut()) {
        let mut rounds: Vec<_> = (0..9)
            .map(|_| {
                // In the middle of a round.
                until("the stream goes on", || self.go_on() > 0);
                other();
                self.go_on()
            })
            .collect();
        println!("{what}: {rounds:?} of {} came before it", self.many);
        rounds.sort_unstable();
        let came = rounds[rounds.len() / 2];
        assert!(came <= self.many / 2, "{what}: {came} of {} came before it", self.many);
    }
}

/// One bulk connection, so that how several of them share the machine does not matter.
fn one() -> (Net, Net, Arc<Store>, Peer) {
    pair(|options| options.limits.bulk = 1)
}

/// A part waited for all but the last three of the blobs that had been requested before it.
#[test]
pub(super) fn regression_small_reads_do_not_wait_for_a_stream_of_whole_blobs() {
    let (here, _there, store, peer) = one();
    let bytes = noise(4 << 20, 1);
    let id = store.keep(&bytes);
    let mut greedy = Greedy::new(BLOBS, || here.fetch_into(peer, &Arriving::new(id, Verify::Crc), 3 * TIME));
    greedy.beside("a part", || {
        let (_, groups) = here.read_groups(peer, &id, 1 << 20, 4096, TIME).wait().unwrap();
        assert_eq!(groups, bytes[1 << 20..(1 << 20) + (64 << 10)]);
    });
}

#[test]
fn whole_blobs_do_not_wait_for_a_stream_of_parts() {
    let (here, _there, store, peer) = one();
    let id = store.keep(&noise(4 << 20, 2));
    let mut greedy = Greedy::new(PARTS, || here.read_groups(peer, &id, 1 << 20, 1 << 20, 3 * TIME));
    greedy.beside("a whole blob", || {
        here.fetch_into(peer, &Arriving::new(id, Verify::Crc), TIME).wait().unwrap();
    });
}
