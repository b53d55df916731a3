//! What foca is handed of the world: a place for what it wants to send, and for what it wants to be reminded of.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use foca::{Notification, Runtime, Timer};

use crate::members::who::Who;

/// It collects; the machine looks after each call.
#[derive(Default)]
pub struct World {
    /// What time it is.
    pub now: Duration,
    /// What foca wants to be sent.
    pub said: Vec<(SocketAddr, Vec<u8>)>,
    /// What leaves the machine.
    pub sends: Vec<(SocketAddr, Vec<u8>)>,
    /// Who is there may have changed.
    pub changed: bool,
    /// There is somebody, after there was nobody.
    pub active: bool,
    /// How often this node was declared down and came back.
    pub returns: u64,
    /// Whom this node itself suspects, in which incarnation, and until when.
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
