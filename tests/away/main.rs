//! What is on a node can be read while its store is away, or refuses: a published tree that was mounted
//! before, and volumes whose keys are gone.
//!
//! The store is an S3 server in this process, behind a proxy that goes away, hangs and refuses; the program
//! is the real one, on real mounts.

mod keys;
mod trees;

use std::time::{Duration, Instant};

/// Waits until something is so.
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(90);
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within 90 s");
        std::thread::sleep(Duration::from_millis(50));
    }
}
