//! Blobs whose copies here are suspected of damage. One thread compares them with their ids, one after the
//! other, and none twice within a while.
//!
//! A comparison reads and hashes up to 4 MiB, and any node of the fleet can request it with 64 bytes. So the
//! queue is bounded, and a blob is in it once. A blob that was found sound is not compared again for
//! [`REMEMBERED`]. Suspicions of a node that often suspects sound blobs are no longer accepted
//! ([`super::clients`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::BlobId;
use parking_lot::Mutex;

use super::clients::Client;
use super::service::CopyState;
use super::{Counters, Shared};

/// Upper bound on waiting blobs. Later ones are skipped: a reader of wrong bytes will suspect them again.
pub(super) const WAITING: usize = 64;
/// How long a blob that was found sound counts as sound.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Upper bound on remembered sound blobs.
const SOUND: usize = 1024;

#[derive(Default)]
struct State {
    /// The first one is being compared, if a worker is running.
    waiting: VecDeque<(BlobId, Option<Arc<Client>>)>,
    working: bool,
    sound: VecDeque<(BlobId, Instant)>,
}

/// See the [module](self).
#[derive(Default)]
pub(super) struct Suspicions(Mutex<State>);

impl Suspicions {
    /// How many are waiting, including the one that is being compared.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().waiting.len()
    }

    /// Adds a suspicion. True if a worker must be started.
    fn push(&self, blob: BlobId, by: Option<&Arc<Client>>, now: Instant) -> bool {
        let mut state = self.0.lock();
        while state.sound.front().is_some_and(|(_, since)| now.duration_since(*since) >= REMEMBERED) {
            state.sound.pop_front();
        }
        // Wrong bytes that this node itself has found are checked in any case.
        if let Some(client) = by
            && state.sound.iter().any(|(sound, _)| *sound == blob)
        {
            client.was_wrong();
            return false;
        }
        if state.waiting.len() >= WAITING || state.waiting.iter().any(|(waits, _)| *waits == blob) {
            return false;
        }
        state.waiting.push_back((blob, by.cloned()));
        !std::mem::replace(&mut state.working, true)
    }

    /// The next blob to compare. None: the worker ends.
    fn next(&self) -> Option<(BlobId, Option<Arc<Client>>)> {
        let mut state = self.0.lock();
        let first = state.waiting.front().cloned();
        state.working = first.is_some();
        first
    }

    fn ended(&self, sound: bool, now: Instant) {
        let mut state = self.0.lock();
        let Some((blob, by)) = state.waiting.pop_front() else { return };
        if sound {
            by.iter().for_each(|client| client.was_wrong());
            state.sound.push_back((blob, now));
            if state.sound.len() > SOUND {
                state.sound.pop_front();
            }
        }
    }
}

/// Suspects a blob, on behalf of another node or because this one read wrong bytes. Must be called inside a
/// runtime.
pub(super) fn suspect(shared: &Arc<Shared>, blob: BlobId, by: Option<&Arc<Client>>) {
    Counters::one(&shared.counters.suspected);
    if !shared.suspicions.push(blob, by, base::time::monotonic()) {
        return;
    }
    let shared = Arc::clone(shared);
    tokio::task::spawn_blocking(move || work(&shared));
}

fn work(shared: &Shared) {
    while let Some((blob, by)) = shared.suspicions.next() {
        let believed = by.is_none_or(|client| !client.is_wrong_too_often());
        let mut sound = false;
        if believed {
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
        let client = Arc::new(Client::default());
        assert!(suspicions.push(blob(0), Some(&client), now), "a worker is to begin");
        for n in 0..10_000 {
            assert!(!suspicions.push(blob(n % 500), Some(&client), now));
        }
        assert_eq!(suspicions.len(), WAITING);
        let mut done = 0;
        while suspicions.next().is_some() {
            suspicions.ended(true, now);
            done += 1;
        }
        assert_eq!((done, suspicions.len()), (WAITING, 0));
        assert!(client.is_wrong_too_often());
        assert!(!suspicions.push(blob(0), Some(&client), now), "it is known to be sound");
        assert!(suspicions.push(blob(0), None, now), "but not where this node met wrong bytes");
        suspicions.ended(false, now);
        assert!(suspicions.next().is_none());
        assert!(
            suspicions.push(blob(1), Some(&client), now + REMEMBERED),
            "the blob should be accepted again after a time"
        );
    }
}
