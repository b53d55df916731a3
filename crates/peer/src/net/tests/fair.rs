//! What waits for what on one connection.

use super::*;

/// One client that has many requests under way all the time, on one connection.
struct Greedy<T, F: Fn() -> Call<T>> {
    ask: F,
    many: usize,
    under_way: Vec<Call<T>>,
}

/// Many more blobs than take turns, and than are in the kernel's buffers.
const BLOBS: usize = 64;
/// The same of parts of 1 MiB.
const PARTS: usize = 160;

impl<T, F: Fn() -> Call<T>> Greedy<T, F> {
    fn new(many: usize, ask: F) -> Greedy<T, F> {
        let under_way = (0..many).map(|_| ask()).collect();
        Greedy { ask, many, under_way }
    }

    /// Lets go of what has come, and asks for as many more; how many had come.
    fn go_on(&mut self) -> usize {
        self.under_way.retain(|call| !call.is_over());
        let came = self.many - self.under_way.len();
        self.under_way.extend((0..came).map(|_| (self.ask)()));
        came
    }

    /// Whether few of them come while `other` does, not nearly all: in the middle of some rounds, so that one in which this thread was not let run says nothing.
    fn beside(&mut self, what: &str, mut other: impl FnMut()) {
        let mut rounds: Vec<_> = (0..9)
            .map(|_| {
                // In the middle of it.
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
    let mut greedy = Greedy::new(BLOBS, || here.fetch_into(peer, &Arriving::new(id, Verify::Crc), 3 * TIME));
    greedy.beside("a small range", || {
        assert_eq!(here.read_range(peer, &id, 8192, 4096, TIME).wait().unwrap(), bytes[8192..12_288]);
    });
    greedy.beside("a part", || {
        let (_, groups) = here.read_groups(peer, &id, 1 << 20, 4096, TIME).wait().unwrap();
        assert_eq!(groups, bytes[1 << 20..(1 << 20) + (64 << 10)]);
    });
}

#[test]
fn whole_blobs_do_not_wait_for_a_stream_of_parts() {
    let (here, _there, shelf, peer) = one();
    let id = shelf.keep(&noise(4 << 20, 2));
    let mut greedy = Greedy::new(PARTS, || here.read_groups(peer, &id, 1 << 20, 1 << 20, 3 * TIME));
    greedy.beside("a whole blob", || {
        here.fetch_into(peer, &Arriving::new(id, Verify::Crc), TIME).wait().unwrap();
    });
}
