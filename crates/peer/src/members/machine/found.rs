//! Whom to knock at, and when: the addresses that a person or a name gave, and those of members seen before.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use crate::members::dice::Dice;

/// How many are knocked at in one go.
pub const KNOCKS: usize = 16;
/// How many addresses of members are kept in mind.
const REMEMBERED: usize = 64;
/// The pause after the first knocks; it doubles.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause of one who is alone.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// In company one who is not there is knocked at about so often.
const RECONNECT: Duration = Duration::from_secs(30);
/// After so long alone a line is due.
const VAIN: Duration = Duration::from_secs(5);

/// Addresses and a pause.
pub struct Found {
    contacts: Vec<SocketAddr>,
    remembered: VecDeque<SocketAddr>,
    at: Duration,
    pause: Duration,
    alone_since: Option<Duration>,
    tried: usize,
    told: bool,
}

impl Found {
    /// Knocks at once.
    pub fn new(contacts: Vec<SocketAddr>, now: Duration) -> Found {
        Found {
            contacts,
            remembered: VecDeque::new(),
            at: now,
            pause: PAUSE_MIN,
            alone_since: None,
            tried: 0,
            told: false,
        }
    }

    /// Replaces the addresses that were given.
    pub fn contacts(&mut self, contacts: Vec<SocketAddr>) {
        if self.contacts.is_empty() {
            // The name has only now been found: nothing to wait for.
            self.at = Duration::ZERO;
        }
        self.contacts = contacts;
    }

    /// Somebody listens, or listened, there.
    pub fn saw(&mut self, address: SocketAddr) {
        self.remembered.retain(|known| *known != address);
        self.remembered.push_front(address);
        self.remembered.truncate(REMEMBERED);
    }

    /// The addresses of members, the one seen last first.
    pub fn remembered(&self) -> Vec<SocketAddr> {
        self.remembered.iter().copied().collect()
    }

    /// When [`Found::due`] has something to do.
    pub fn next(&self) -> Duration {
        self.at
    }

    /// Whom to knock at now. In company only one of those who are not `present`.
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
            // Whoever loses the last of the others begins to look at once.
            (self.alone_since, self.pause) = (Some(now), PAUSE_MIN);
            self.at = self.at.min(now + PAUSE_MIN);
        }
        if now < self.at {
            return Vec::new();
        }
        let mut to: Vec<SocketAddr> = self.contacts.iter().chain(&self.remembered).copied().collect();
        to.retain(|address| !present(address));
        let (pause, count) = if alone { (self.pause, KNOCKS) } else { (RECONNECT, 1) };
        // Nodes that were started together do not go on together.
        self.at = now + pause.mul_f64(0.75 + dice.below(512) as f64 / 1024.0);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        while to.len() > count {
            to.swap_remove(dice.below(to.len()));
        }
        self.tried = self.tried.max(to.len());
        to
    }

    /// To how many addresses nobody has answered, if that is to be told now.
    pub fn in_vain(&mut self, now: Duration, alone: bool) -> Option<usize> {
        let long = alone && self.alone_since.is_some_and(|since| now >= since + VAIN);
        if !long || self.told || self.tried == 0 {
            return None;
        }
        self.told = true;
        Some(self.tried)
    }

    /// There is somebody. True if it had been told that there was nobody.
    pub fn company(&mut self) -> bool {
        (self.alone_since, self.pause) = (None, PAUSE_MIN);
        std::mem::take(&mut self.told)
    }
}
