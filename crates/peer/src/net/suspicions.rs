//! Blobs whose copies here are suspected: compared with their names one after the other, by one thread, and none twice within a while.
//!
//! A comparison reads and hashes up to 4 MiB, and anybody in the fleet can ask for it with 64 bytes. So what waits is bounded, a blob waits
//! once, one that was found sound is not looked at again for [`REMEMBERED`], and a node that suspects sound blobs again and again is not
//! listened to any more ([`super::guests`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::BlobId;
use parking_lot::Mutex;

use super::guests::Guest;
use super::service::CopyState;
use super::{Counters, Shared};

/// So many blobs wait at most. Later ones are left out: a reader of wrong bytes finds them again.
pub(super) const WAITING: usize = 64;
/// So long a blob that was found sound counts as sound.
const REMEMBERED: Duration = Duration::from_secs(10);
/// So many of these are remembered.
const SOUND: usize = 1024;

#[derive(Default)]
struct State {
    /// The first is being looked at, if the worker is there.
    waiting: VecDeque<(BlobId, Option<Arc<Guest>>)>,
    working: bool,
    sound: VecDeque<(BlobId, Instant)>,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Suspicions(Mutex<State>);

impl Suspicions {
    /// How many wait, with the one that is looked at.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().waiting.len()
    }

    /// Whether a worker has to be started: one more waits, and there is none.
    fn push(&self, blob: BlobId, by: Option<&Arc<Guest>>, now: Instant) -> bool {
        let mut state = self.0.lock();
        while state.sound.front().is_some_and(|(_, since)| now.duration_since(*since) >= REMEMBERED) {
            state.sound.pop_front();
        }
        // What this node itself has found wrong is looked at in any case.
        if let Some(guest) = by
            && state.sound.iter().any(|(sound, _)| *sound == blob)
        {
            guest.was_wrong();
            return false;
        }
        if state.waiting.len() >= WAITING || state.waiting.iter().any(|(waits, _)| *waits == blob) {
            return false;
        }
        state.waiting.push_back((blob, by.cloned()));
        !std::mem::replace(&mut state.working, true)
    }

    /// The next one to be looked at; none: the worker ends.
    fn next(&self) -> Option<(BlobId, Option<Arc<Guest>>)> {
        let mut state = self.0.lock();
        let first = state.waiting.front().cloned();
        state.working = first.is_some();
        first
    }

    fn ended(&self, sound: bool, now: Instant) {
        let mut state = self.0.lock();
        let Some((blob, by)) = state.waiting.pop_front() else { return };
        if sound {
            by.iter().for_each(|guest| guest.was_wrong());
            state.sound.push_back((blob, now));
            if state.sound.len() > SOUND {
                state.sound.pop_front();
            }
        }
    }
}

/// A blob is suspected: by another node, or because this one met wrong bytes. Inside a runtime only.
pub(super) fn suspect(shared: &Arc<Shared>, blob: BlobId, by: Option<&Arc<Guest>>) {
    Counters::one(&shared.counters.suspected);
    if !shared.suspicions.push(blob, by, base::time::monotonic()) {
        return;
    }
    let shared = Arc::clone(shared);
    tokio::task::spawn_blocking(move || work(&shared));
}

fn work(shared: &Shared) {
    while let Some((blob, by)) = shared.suspicions.next() {
        let believed = by.is_none_or(|guest| !guest.is_wrong_too_often());
        let mut sound = false;
        if believed {
            shared.opened.remove(&blob);
            Counters::one(&shared.counters.compared);
            sound = shared.service.suspect(&blob) == CopyState::Sound;
        }
        shared.suspicions.ended(sound, base::time::monotonic());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(n: usize) -> BlobId {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&n.to_le_bytes());
        BlobId(id)
    }

    #[test]
    fn what_waits_is_bounded_and_waits_once() {
        let (suspicions, now) = (Suspicions::default(), base::time::monotonic());
        let guest = Arc::new(Guest::default());
        assert!(suspicions.push(blob(0), Some(&guest), now), "a worker is to begin");
        for n in 0..10_000 {
            assert!(!suspicions.push(blob(n % 500), Some(&guest), now));
        }
        assert_eq!(suspicions.len(), WAITING);
        let mut done = 0;
        while suspicions.next().is_some() {
            suspicions.ended(true, now);
            done += 1;
        }
        assert_eq!((done, suspicions.len()), (WAITING, 0));
        assert!(guest.is_wrong_too_often());
        assert!(!suspicions.push(blob(0), Some(&guest), now), "it is known to be sound");
        assert!(suspicions.push(blob(0), None, now), "but not where this node met wrong bytes");
        suspicions.ended(false, now);
        assert!(suspicions.next().is_none());
        assert!(suspicions.push(blob(1), Some(&guest), now + REMEMBERED), "nor for ever");
    }
}
