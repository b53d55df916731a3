//! Removals that the store may still carry out.
//!
//! A try that was given up, or whose connection broke, can reach the store late, even when a later try has
//! succeeded. A blob that was stored in between would be removed then. So a store of such a blob waits until
//! the removal is some seconds old.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base::BlobId;
use parking_lot::Mutex;

use super::fault::Fault;

/// After this time, a try that was given up is not carried out any more.
const DOUBT: Duration = Duration::from_secs(5);

/// See the [module](self).
#[derive(Default)]
pub(super) struct Doubts(Mutex<HashMap<BlobId, Instant>>);

impl Doubts {
    /// The removal of these blobs has ended, and tries of it may still be carried out.
    pub(super) fn add(&self, ids: &[BlobId], now: Instant) {
        let mut all = self.0.lock();
        all.retain(|_, until| *until > now);
        all.extend(ids.iter().map(|id| (*id, now + DOUBT)));
    }

    /// How long a store of the blob has to wait.
    pub(super) fn left(&self, id: &BlobId, now: Instant) -> Duration {
        self.0.lock().get(id).map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

/// The tries of a removal: how many were sent, and of how many the outcome is known.
#[derive(Default)]
pub(super) struct Tries {
    sent: AtomicU32,
    known: AtomicU32,
}

impl Tries {
    /// Makes one try. If this is dropped before its end, the outcome stays unknown.
    pub(super) async fn one(&self, one: impl Future<Output = Result<(), Fault>>) -> Result<(), Fault> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let done = one.await;
        if done.as_ref().map_or_else(is_known, |()| true) {
            self.known.fetch_add(1, Ordering::Relaxed);
        }
        done
    }

    /// Whether one of them may still be carried out.
    pub(super) fn are_doubtful(&self) -> bool {
        self.known.load(Ordering::Relaxed) < self.sent.load(Ordering::Relaxed)
    }
}

/// Whether the store will do nothing more after this fault. What is between it and this node answers for it
/// with a status of 500 and more.
fn is_known(fault: &Fault) -> bool {
    let answered = fault.status().is_some_and(|status| status < 500) || fault.is_throttle();
    answered || matches!(fault, Fault::Unreached { .. } | Fault::NoKeys { .. })
}

#[cfg(test)]
mod tests {
    use base::time::monotonic;
    use blob::{Origin, Sums};
    use http::Method;
    use s3server::{Fault as Trouble, Proxy, Rule};

    use super::super::Limits;
    use super::super::tests::{fresh, server};
    use super::*;

    /// A removal succeeded with its second try. The store could carry out the first one later, and removed a
    /// blob that had been stored again meanwhile.
    #[test]
    fn regression_a_store_waits_until_no_removal_can_come_late() {
        let proxy = Proxy::start(server().address(), 71);
        let remote = fresh(&proxy.endpoint(), Limits::default());
        let bytes = b"these bytes are stored again";
        let (sums, id) = (Sums::of(bytes), Sums::of(bytes).id());
        let put = || remote.put(&id, &sums, bytes).unwrap();
        put();
        remote.remove(&id).unwrap();
        assert_eq!(remote.doubts.left(&id, monotonic()), Duration::ZERO, "its outcome is known");
        put();
        for method in [Method::DELETE, Method::POST] {
            proxy.add(Rule::new(Trouble::Lose).only(method).times(1));
        }
        remote.remove(&id).unwrap();
        proxy.faults().clear();
        let now = monotonic();
        let left = remote.doubts.left(&id, now);
        assert!(!left.is_zero());
        put();
        assert!(monotonic() >= now + left);
        assert_eq!(remote.size(&id).unwrap(), Some(bytes.len() as u64));
    }

    #[test]
    fn a_doubt_ends_after_a_while() {
        let (doubts, now) = (Doubts::default(), base::time::monotonic());
        let (one, other) = (BlobId([1; 32]), BlobId([2; 32]));
        doubts.add(&[one], now);
        assert_eq!((doubts.left(&one, now), doubts.left(&other, now)), (DOUBT, Duration::ZERO));
        assert_eq!(doubts.left(&one, now + DOUBT), Duration::ZERO);
        doubts.add(&[other], now + DOUBT);
        assert_eq!(doubts.0.lock().len(), 1);
    }
}
