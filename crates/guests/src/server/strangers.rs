//! Connections that have not greeted yet.
//!
//! Anything that reaches the address can make them, also without the secret. So they have few places of their
//! own, and one deadline for all of a greeting. When the places are used up, a new connection takes the place
//! of the oldest. A guest greets at once, so it gets in while others only hold places.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use base::Deadline;
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
}

#[derive(Default)]
struct List {
    /// The oldest first.
    waiting: VecDeque<Stranger>,
    last: u64,
    said: Option<Instant>,
}

/// See the [module](self).
#[derive(Default)]
pub struct Strangers(Mutex<List>);

/// A place.
pub struct Entered {
    /// The number of the connection.
    pub number: u64,
    /// A line for the log.
    pub news: Option<String>,
}

impl Strangers {
    /// Takes a place for a new connection, and cuts the oldest one if there is no other place.
    ///
    /// # Errors
    /// The system's error: the connection cannot be kept.
    pub fn enter(&self, socket: &Socket, time: Duration) -> io::Result<Entered> {
        let socket = socket.cloned()?;
        let mut list = self.0.lock();
        let mut news = None;
        if list.waiting.len() >= STRANGERS_MOST
            && let Some(oldest) = list.waiting.pop_front()
        {
            oldest.socket.cut();
            let now = base::time::monotonic();
            if list.said.is_none_or(|said| now.duration_since(said) >= SAY_EVERY) {
                list.said = Some(now);
                news = Some(format!(
                    "{STRANGERS_MOST} connections have not greeted: each further one ends the oldest of them"
                ));
            }
        }
        list.last += 1;
        let number = list.last;
        list.waiting.push_back(Stranger { number, socket, until: Deadline::after(time) });
        Ok(Entered { number, news })
    }

    /// Gives the place back. Returns false if the connection was cut, or has given it back before.
    pub fn leave(&self, number: u64) -> bool {
        let mut list = self.0.lock();
        let at = list.waiting.iter().position(|stranger| stranger.number == number);
        at.and_then(|at| list.waiting.remove(at)).is_some()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.lock().waiting.len()
    }

    /// Cuts those that take too long. Returns how many.
    pub fn cut_late(&self) -> usize {
        let mut list = self.0.lock();
        let late = list.waiting.iter().take_while(|stranger| stranger.until.is_over()).count();
        list.waiting.drain(..late).for_each(|stranger| stranger.socket.cut());
        late
    }

    /// Cuts all.
    pub fn cut_all(&self) {
        self.0.lock().waiting.drain(..).for_each(|stranger| stranger.socket.cut());
    }
}
