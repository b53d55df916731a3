//! Local data can be read while the store is unreachable or refuses requests: a published tree that was
//! mounted before, and volumes without usable keys.
//!
//! The store is an S3 server in this process, behind a proxy that goes down, hangs and refuses. The program
//! is the real one, on real mounts.

mod keys;
mod trees;

use std::time::{Duration, Instant};

/// Waits until a condition holds.
fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(90);
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within 90 s");
        std::thread::sleep(Duration::from_millis(50));
    }
}
