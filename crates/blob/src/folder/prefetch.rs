//! Reads blobs into memory before they are needed.
//!
//! A large file is a sequence of blobs, each a file with its sums in another file. A sequential reader would
//! wait at every 4 MiB for two names, two inodes and the first bytes. One thread runs ahead of it. It only
//! advises the kernel: it keeps nothing, and nothing waits for it.
//!
//! Data that was read is then in memory twice, in the pages of the blob and in those of the mount, until the
//! kernel reuses the former. Dropping them at once was tried (`POSIX_FADV_DONTNEED` some blobs behind the
//! reader): it was a third slower. Reading blobs one by one past the page cache (`O_DIRECT`) takes 2.5 times
//! as long as reading through it.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::BlobId;
use base::time::monotonic;
use parking_lot::Mutex;

use super::sums_path;

/// Queued blobs; a hint that finds the queue full is dropped.
const QUEUE: usize = 16;
/// A blob that was among the last few hints, less than [`AGAIN`] ago, is skipped.
const RECENT: usize = 16;
const AGAIN: Duration = Duration::from_secs(1);

/// See the module. The thread starts with the first hint and ends when this is dropped.
#[derive(Default)]
pub(super) struct Prefetcher(Mutex<State>);

#[derive(Default)]
struct State {
    thread: Option<(SyncSender<PathBuf>, JoinHandle<()>)>,
    recent: VecDeque<(BlobId, Instant)>,
}

impl Prefetcher {
    /// A hint that all of the blob will be read.
    pub(super) fn fetch(&self, id: &BlobId, path: impl FnOnce() -> PathBuf) {
        let now = monotonic();
        let mut state = self.0.lock();
        if state.recent.iter().any(|(seen, at)| seen == id && now.duration_since(*at) < AGAIN) {
            return;
        }
        if state.send(path) {
            state.recent.push_back((*id, now));
            if state.recent.len() > RECENT {
                state.recent.pop_front();
            }
        }
    }
}

impl State {
    /// False if the hint was dropped.
    fn send(&mut self, path: impl FnOnce() -> PathBuf) -> bool {
        if self.thread.is_none() {
            let (sender, hints) = mpsc::sync_channel::<PathBuf>(QUEUE);
            let work = move || hints.iter().for_each(|path| fetch(&path));
            // Without a thread there is no prefetching.
            let Ok(thread) = base::thread::spawn("covey-prefetch", work) else { return false };
            self.thread = Some((sender, thread));
        }
        self.thread.as_ref().is_some_and(|(sender, _)| sender.try_send(path()).is_ok())
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.0.get_mut().thread.take() {
            drop(sender);
            // It does not panic, so a join cannot fail.
            let _ = thread.join();
        }
    }
}

/// Errors are left to the reader of the file.
fn fetch(path: &Path) {
    let Ok(file) = File::open(path) else { return };
    // SAFETY: only advice about an open descriptor; nothing of this process's memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_WILLNEED) };
    let _ = fs::read(sums_path(path));
}
