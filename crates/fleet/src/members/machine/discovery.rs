//! Which addresses to knock at, and when: the given contacts, and addresses of earlier members.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use crate::members::dice::Dice;

/// How many addresses are knocked at in one round.
pub const KNOCKS: usize = 16;
/// How many addresses of members are remembered.
const REMEMBERED: usize = 64;
/// The pause after the first knocks. It doubles each time.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause while the node is alone.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// While there are other members, about this often one address is tried that is not a member's.
const RECONNECT: Duration = Duration::from_secs(30);
/// After this long alone, the operator is told.
const VAIN: Duration = Duration::from_secs(5);

/// Addresses and the state of the pauses.
pub struct Discovery {
    contacts: Vec<SocketAddr>,
    remembered: VecDeque<SocketAddr>,
    at: Duration,
    pause: Duration,
    alone_since: Option<Duration>,
    tried: usize,
    told: bool,
}

impl Discovery {
    /// Knocks at once.
    pub fn new(contacts: Vec<SocketAddr>, now: Duration) -> Discovery {
        Discovery {
            contacts,
            remembered: VecDeque::new(),
            at: now,
            pause: PAUSE_MIN,
            alone_since: None,
            tried: 0,
            told: false,
        }
    }

    /// Replaces the given contacts.
    pub fn contacts(&mut self, contacts: Vec<SocketAddr>) {
        if self.contacts.is_empty() {
            // The name has only now been resolved, so there is no reason to wait.
            self.at = Duration::ZERO;
        }
        self.contacts = contacts;
    }

    /// Records that a node listens, or listened, there.
    pub fn saw(&mut self, address: SocketAddr) {
        self.remembered.retain(|known| *known != address);
        self.remembered.push_front(address);
        self.remembered.truncate(REMEMBERED);
    }

    /// The addresses of members, the most recently seen first.
    pub fn remembered(&self) -> Vec<SocketAddr> {
        self.remembered.iter().copied().collect()
    }

    /// When [`Discovery::due`] has something to do.
    pub fn next(&self) -> Duration {
        self.at
    }

    /// The addresses to knock at now. While there are other members, only one that is not `present`.
    pub fn due(
        &mut self,
        now: Duration,
        alone: bool,
        dice: &mut Dice,
        present: impl Fn(&SocketAddr) -> bool,
    ) -> Vec<SocketAddr> {
        if !alone {
            self.alone_since = None;
        } else if self.alone_since.is_none() {
            // A node that loses its last other member begins to look for others at once.
            (self.alone_since, self.pause) = (Some(now), PAUSE_MIN);
            self.at = self.at.min(now + PAUSE_MIN);
        }
        if now < self.at {
            return Vec::new();
        }
        let mut to: Vec<SocketAddr> = self.contacts.iter().chain(&self.remembered).copied().collect();
        to.retain(|address| !present(address));
        let (pause, count) = if alone { (self.pause, KNOCKS) } else { (RECONNECT, 1) };
        // So that nodes that were started together do not stay synchronized.
        self.at = now + pause.mul_f64(0.75 + dice.below(512) as f64 / 1024.0);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        while to.len() > count {
            to.swap_remove(dice.below(to.len()));
        }
        self.tried = self.tried.max(to.len());
        to
    }

    /// How many addresses have not answered, if that must be reported now.
    pub fn in_vain(&mut self, now: Duration, alone: bool) -> Option<usize> {
        let long = alone && self.alone_since.is_some_and(|since| now >= since + VAIN);
        if !long || self.told || self.tried == 0 {
            return None;
        }
        self.told = true;
        Some(self.tried)
    }

    /// There is another member. True if it had been reported that there was none.
    pub fn company(&mut self) -> bool {
        (self.alone_since, self.pause) = (None, PAUSE_MIN);
        std::mem::take(&mut self.told)
    }
}
