//! Ports for servers that the tests start.

use std::net::TcpListener;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// A port that is free until the program that it is for listens, and while that is down. The kernel gives
/// none of this range to a connection, or to a server that leaves the choice to it.
pub fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU64::new(base::random::u64() >> 1));
    loop {
        // Each is given once, and another program begins elsewhere.
        let port = 10_000 + (next.fetch_add(1, Ordering::Relaxed) % 22_000) as u16;
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return base::trial::stop(listener).port();
        }
    }
}
