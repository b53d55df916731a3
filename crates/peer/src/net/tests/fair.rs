//! What waits for what on one connection.

use super::*;

/// One client that has many requests under way all the time, on one connection.
struct Greedy<T, F: Fn() -> Call<T>> {
    ask: F,
    under_way: Vec<Call<T>>,
}

/// Many more than take turns.
const UNDER_WAY: usize = 64;
/// As many as may come before what has its turn soon.
const FEW: usize = UNDER_WAY / 4;

impl<T, F: Fn() -> Call<T>> Greedy<T, F> {
    fn new(ask: F) -> Greedy<T, F> {
        let under_way = (0..UNDER_WAY).map(|_| ask()).collect();
        Greedy { ask, under_way }
    }

    /// Lets go of what has come, and asks for as many more; how many had come.
    fn go_on(&mut self) -> usize {
        self.under_way.retain(|call| !call.is_over());
        let came = UNDER_WAY - self.under_way.len();
        self.under_way.extend((0..came).map(|_| (self.ask)()));
        came
    }

    /// How many of them come while `other` does: in the middle of some rounds, so that one in which this thread was not let run says nothing.
    fn beside(&mut self, what: &str, mut other: impl FnMut()) -> usize {
        let mut rounds: Vec<_> = (0..9)
            .map(|_| {
                // In the middle of it.
                until("the stream goes on", || self.go_on() > 0);
                other();
                self.go_on()
            })
            .collect();
        println!("{what}: {rounds:?} of {UNDER_WAY} came before it");
        rounds.sort_unstable();
        rounds[rounds.len() / 2]
    }
}

/// One bulk connection, so that how several of them share the machine says nothing.
fn one() -> (Net, Net, Arc<Shelf>, Peer) {
    pair(|options| options.without.growth = true)
}

/// A part waited for all blobs that had been asked for before it, but the last three.
#[test]
pub(super) fn regression_small_reads_do_not_wait_for_a_stream_of_whole_blobs() {
    let (here, _there, shelf, peer) = one();
    let bytes = noise(4 << 20, 1);
    let id = shelf.keep(&bytes);
    let mut greedy = Greedy::new(|| here.fetch_into(peer, &Arriving::new(id, Verify::Crc), 3 * TIME));
    let came = greedy.beside("a small range", || {
        assert_eq!(here.read_range(peer, &id, 8192, 4096, TIME).wait().unwrap(), bytes[8192..12_288]);
    });
    assert!(came <= FEW, "a small range: {came} of {UNDER_WAY} blobs came first");
    let came = greedy.beside("a part", || {
        let (_, groups) = here.read_groups(peer, &id, 1 << 20, 4096, TIME).wait().unwrap();
        assert_eq!(groups, bytes[1 << 20..(1 << 20) + (64 << 10)]);
    });
    assert!(came <= FEW, "a part: {came} of {UNDER_WAY} blobs came first");
}

#[test]
fn whole_blobs_do_not_wait_for_a_stream_of_parts() {
    let (here, _there, shelf, peer) = one();
    let id = shelf.keep(&noise(4 << 20, 2));
    let mut greedy = Greedy::new(|| here.read_groups(peer, &id, 1 << 20, 1 << 20, 3 * TIME));
    let came = greedy.beside("a whole blob", || {
        here.fetch_into(peer, &Arriving::new(id, Verify::Crc), TIME).wait().unwrap();
    });
    assert!(came <= FEW, "{came} of {UNDER_WAY} parts came first");
}
