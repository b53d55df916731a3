//! The runtime that foca calls: it collects what foca wants to send, and its timers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use foca::{Notification, Runtime, Timer};

use crate::members::who::Who;

/// Collects foca's output. The machine reads it after each call.
#[derive(Default)]
pub struct World {
    /// The current time.
    pub now: Duration,
    /// What foca wants to send.
    pub said: Vec<(SocketAddr, Vec<u8>)>,
    /// What the machine sends.
    pub sends: Vec<(SocketAddr, Vec<u8>)>,
    /// The members may have changed.
    pub changed: bool,
    /// There is another member, after there was none.
    pub active: bool,
    /// How often this node was declared down and came back.
    pub returns: u64,
    /// The nodes that this node itself suspects, with their incarnation, and until when.
    pub suspected: Vec<(Who, u16, Duration)>,
    timers: BinaryHeap<Reverse<(Duration, Timer<Who>, u64)>>,
    count: u64,
}

impl World {
    /// When the first of foca's timers is due.
    pub fn next(&self) -> Option<Duration> {
        self.timers.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next timer that is due.
    pub fn due(&mut self, now: Duration) -> Option<Timer<Who>> {
        if self.next()? > now {
            return None;
        }
        self.timers.pop().map(|Reverse((_, timer, _))| timer)
    }
}

impl Runtime<Who> for World {
    fn notify(&mut self, notification: Notification<'_, Who>) {
        match notification {
            Notification::Active => self.active = true,
            Notification::Rejoin(_) => self.returns += 1,
            _ => {}
        }
        self.changed = true;
    }

    fn send_to(&mut self, to: Who, data: &[u8]) {
        self.said.push((to.address, data.to_vec()));
    }

    fn submit_after(&mut self, event: Timer<Who>, after: Duration) {
        if let Timer::ChangeSuspectToDown { member_id, incarnation, .. } = &event {
            self.suspected.retain(|(who, ..)| who != member_id);
            self.suspected.push((member_id.clone(), *incarnation, self.now + after));
        }
        self.count += 1;
        self.timers.push(Reverse((self.now + after, event, self.count)));
    }
}
