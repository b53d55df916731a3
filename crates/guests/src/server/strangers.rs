//! Connections that have not greeted yet.
//!
//! Anything that reaches the address can make them, also without the secret. So they have few places of
//! their own ([`base::places`]), and one deadline for all of a greeting. A guest greets at once, so it gets
//! in while others only hold places.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use base::Deadline;
use base::places::{Limits, Peer, Place, Places};
use parking_lot::Mutex;
use stream::socket::Socket;

/// The most of them.
const STRANGERS_MOST: usize = 64;
/// How often the log tells that the places are used up.
const SAY_EVERY: Duration = Duration::from_secs(60);

struct Stranger {
    number: u64,
    socket: Socket,
    until: Deadline,
    place: Place,
}

#[derive(Default)]
struct List {
    /// The oldest first.
    waiting: VecDeque<Stranger>,
    last: u64,
    said: Option<Instant>,
}

/// See the [module](self).
pub struct Strangers {
    list: Mutex<List>,
    places: Places,
}

impl Default for Strangers {
    fn default() -> Strangers {
        Strangers { list: Mutex::default(), places: Places::new(Limits::of(STRANGERS_MOST)) }
    }
}

/// A place.
pub struct Entered {
    /// The number of the connection.
    pub number: u64,
    /// A line for the log.
    pub news: Option<String>,
}

/// Whether a peer is root or the user of this program, who may do more than connect.
pub fn is_trusted(peer: Peer) -> bool {
    matches!(peer, Peer::User(uid) if uid == 0 || uid == rustix::process::geteuid().as_raw())
}

impl Strangers {
    /// Takes a place for a new connection, and cuts another one if there is no other place.
    ///
    /// # Errors
    /// The system's error: the connection cannot be kept.
    pub fn enter(&self, socket: &Socket, time: Duration) -> io::Result<Entered> {
        let (socket, cut, peer) = (socket.cloned()?, socket.cloned()?, socket.peer());
        let place = self.places.enter(peer, is_trusted(peer), move || cut.cut()).map_err(io::Error::other)?;
        let mut list = self.list.lock();
        let mut news = None;
        if place.has_displaced() {
            let now = base::time::monotonic();
            if list.said.is_none_or(|said| now.duration_since(said) >= SAY_EVERY) {
                list.said = Some(now);
                news = Some(format!(
                    "{} connections have not greeted: each further one ends one of them",
                    self.places.count()
                ));
            }
        }
        list.last += 1;
        let number = list.last;
        list.waiting.push_back(Stranger { number, socket, until: Deadline::after(time), place });
        Ok(Entered { number, news })
    }

    /// Gives the place back. Returns false if the connection was cut, or has given it back before.
    pub fn leave(&self, number: u64) -> bool {
        let mut list = self.list.lock();
        let at = list.waiting.iter().position(|stranger| stranger.number == number);
        at.and_then(|at| list.waiting.remove(at)).is_some_and(|stranger| !stranger.place.is_over())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.places.count()
    }

    /// Cuts those that take too long. Returns how many.
    pub fn cut_late(&self) -> usize {
        let mut list = self.list.lock();
        let late = list.waiting.iter().take_while(|stranger| stranger.until.is_over()).count();
        let cut = |stranger: Stranger| {
            stranger.socket.cut();
            usize::from(!stranger.place.is_over())
        };
        list.waiting.drain(..late).map(cut).sum()
    }

    /// Cuts all.
    pub fn cut_all(&self) {
        self.list.lock().waiting.drain(..).for_each(|stranger| stranger.socket.cut());
    }
}
