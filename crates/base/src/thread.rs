//! The door to threads: every thread has a name, so that `top -H` and a backtrace can be read.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread called `name` (at most 15 bytes are shown by the kernel).
///
/// # Errors
/// The system has no room for another thread.
pub fn spawn<T, F>(name: &str, work: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().name(name.to_owned()).spawn(work)
}
