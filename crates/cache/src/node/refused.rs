//! Reports once that the origin refuses requests, and once that it serves them again. Programs keep asking,
//! and each of them gets its error. The origin may refuse some blobs and serve others. So such a pair of
//! lines comes at most once in [`SAY_AGAIN`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use blob::BlobError;
use parking_lot::Mutex;

use super::health::Health;

/// The minimum time between two reports that the origin refuses requests of a kind.
const SAY_AGAIN: Duration = Duration::from_secs(600);

/// The kind of request. The origin may refuse one kind and serve the other.
#[derive(Clone, Copy)]
pub(super) enum Asked {
    Reads,
    Deletes,
}

/// Whether a refusal was reported, for each kind. See the module.
#[derive(Default)]
pub(super) struct Refused([Kind; 2]);

#[derive(Default)]
struct Kind {
    said: AtomicBool,
    at: Mutex<Option<Instant>>,
}

impl Kind {
    /// Whether a refusal is to be reported.
    fn is_news(&self) -> bool {
        if self.said.load(Ordering::Acquire) {
            return false;
        }
        let (mut at, now) = (self.at.lock(), base::time::monotonic());
        if at.is_some_and(|at| now.saturating_duration_since(at) < SAY_AGAIN) {
            return false;
        }
        *at = Some(now);
        !self.said.swap(true, Ordering::AcqRel)
    }
}

impl Refused {
    /// Evaluates the outcome of a request.
    pub(super) fn came<T>(&self, asked: Asked, health: &Health, outcome: &Result<T, BlobError>) {
        let kind = &self.0[asked as usize];
        match outcome {
            Err(BlobError::Refused(why)) if kind.is_news() => health.report(&match asked {
                Asked::Reads => format!(
                    "the origin refuses reads: {why}; what is on this node can still be read, and the origin is asked again now and then"
                ),
                Asked::Deletes => format!(
                    "the origin refuses deletes: {why}; what is to be deleted there waits and is tried again, reads and uploads go on"
                ),
            }),
            // A missing blob also shows that the origin answered.
            Ok(_) | Err(BlobError::Missing(_))
                if kind.said.load(Ordering::Acquire) && kind.said.swap(false, Ordering::AcqRel) =>
            {
                health.report(match asked {
                    Asked::Reads => "the origin serves reads again",
                    Asked::Deletes => "the origin takes deletes again",
                });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn it_is_said_once_and_once_that_it_is_over() {
        let said = Arc::new(Mutex::new(Vec::<String>::new()));
        let lines = said.clone();
        let health =
            Health::new(Arc::new(move |line: &str| lines.lock().push(line.to_owned())), Duration::ZERO);
        let refused = Refused::default();
        refused.came(Asked::Reads, &health, &Ok(()));
        for _ in 0..3 {
            refused.came::<()>(
                Asked::Reads,
                &health,
                &Err(BlobError::Refused("the key k is not known".to_owned())),
            );
            refused.came::<()>(Asked::Reads, &health, &Err(BlobError::Unavailable("no answer".to_owned())));
        }
        refused.came(Asked::Reads, &health, &Ok(()));
        refused.came(Asked::Reads, &health, &Ok(()));
        let refused_deletes = Err(BlobError::Refused("access denied".to_owned()));
        (0..3).for_each(|_| refused.came::<()>(Asked::Deletes, &health, &refused_deletes));
        refused.came(Asked::Reads, &health, &Ok(()));
        // Some blobs are refused and others are served.
        for _ in 0..5 {
            refused.came::<()>(Asked::Reads, &health, &Err(BlobError::Refused("archived".to_owned())));
            refused.came(Asked::Reads, &health, &Ok(()));
        }
        let said = said.lock();
        assert_eq!(said.len(), 3, "{said:?}");
        assert!(said[2].contains("refuses deletes: access denied"), "{said:?}");
        assert!(said[0].contains("the key k is not known") && said[1].contains("again"), "{said:?}");
    }
}
