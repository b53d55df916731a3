//! Says once that the origin refuses what is read, and once that it serves again: programs go on asking, and each of them gets its error.

use std::sync::atomic::{AtomicBool, Ordering};

use blob::BlobError;

use super::health::Health;

/// See the module.
#[derive(Default)]
pub(super) struct Refused(AtomicBool);

impl Refused {
    /// What became of a fetch.
    pub(super) fn came<T>(&self, health: &Health, outcome: &Result<T, BlobError>) {
        match outcome {
            Err(BlobError::Refused(why)) if !self.0.swap(true, Ordering::AcqRel) => health.report(&format!(
                "the origin refuses reads: {why}; what is on this node can still be read, and the origin is asked again now and then"
            )),
            // What is not there, too, was found out by asking.
            Ok(_) | Err(BlobError::Missing(_))
                if self.0.load(Ordering::Acquire) && self.0.swap(false, Ordering::AcqRel) =>
            {
                health.report("the origin serves reads again");
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
        refused.came(&health, &Ok(()));
        for _ in 0..3 {
            refused.came::<()>(&health, &Err(BlobError::Refused("the key k is not known".to_owned())));
            refused.came::<()>(&health, &Err(BlobError::Unavailable("no answer".to_owned())));
        }
        refused.came(&health, &Ok(()));
        refused.came(&health, &Ok(()));
        let said = said.lock();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("the key k is not known") && said[1].contains("again"), "{said:?}");
    }
}
