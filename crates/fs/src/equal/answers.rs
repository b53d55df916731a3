//! A remote origin's answers to the question whether it has a blob, remembered for a while.

use std::time::{Duration, Instant};

use base::{BlobId, time};
use blob::BlobError;
use hashbrown::HashMap;
use parking_lot::Mutex;

/// How long an origin's answer that it has a blob is trusted.
const GOOD_FOR: Duration = Duration::from_secs(600);
/// How long an origin that did not answer is not asked again.
const SILENT_FOR: Duration = Duration::from_secs(30);
/// Answers remembered, of some 64 bytes each.
const ANSWERS_MAX: usize = 16 << 10;

/// The state of stored bytes that a name could refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The bytes exist and are equal.
    Sound,
    /// The bytes are missing or damaged.
    Lost,
    /// Other bytes are there, or none: the row that led here is out of date.
    Stale,
    /// The state cannot be told now.
    Unknown,
}

/// A remote origin's answers about blobs. Bounded: when it is full, it is cleared.
#[derive(Default)]
pub(crate) struct Answers(Mutex<HashMap<BlobId, (Instant, Target)>>, Mutex<Option<Instant>>);

impl Answers {
    pub(super) fn get(&self, blob: &BlobId) -> Option<Target> {
        let (at, answer) = *self.0.lock().get(blob)?;
        let is_old = time::monotonic().saturating_duration_since(at) >= GOOD_FOR;
        (answer == Target::Lost || !is_old).then_some(answer)
    }

    /// Records that the origin did not answer.
    pub(super) fn note_silence(&self) {
        *self.1.lock() = Some(time::monotonic());
    }

    /// Whether the origin failed to answer a moment ago: another question would wait in vain.
    pub(super) fn is_silent(&self) -> bool {
        self.1.lock().is_some_and(|at| time::monotonic().saturating_duration_since(at) < SILENT_FOR)
    }

    pub(super) fn put(&self, blob: &BlobId, answer: Target) {
        let mut all = self.0.lock();
        if all.len() >= ANSWERS_MAX {
            all.clear();
        }
        all.insert(*blob, (time::monotonic(), answer));
    }

    /// The blob was stored just now.
    pub(crate) fn stored(&self, blob: &BlobId) {
        self.put(blob, Target::Sound);
    }

    /// Records a failed read of the blob, if the error says that its bytes are lost.
    pub(crate) fn note_error(&self, error: &BlobError) {
        if let BlobError::Missing(blob) | BlobError::Damaged { id: blob, .. } = error {
            self.put(blob, Target::Lost);
        }
    }
}
