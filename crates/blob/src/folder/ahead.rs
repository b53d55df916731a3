//! Blobs that will be read soon are brought into memory meanwhile.
//!
//! A large file is a row of blobs, each a file of its own with its sums in another: a reader that goes through them one after the other
//! would wait at every 4 MiB for two names, two inodes and the first bytes. One thread goes before it; it only advises the kernel: it
//! keeps nothing, and nobody waits for it.
//!
//! What was read through lies in memory twice then, in the pages of the blob and in those of the mount, until the kernel wants the former
//! for something else. To let go of them at once was tried (`POSIX_FADV_DONTNEED` some blobs behind the reader): a third slower. Blobs
//! read past the page cache (`O_DIRECT`), one by one, take 2.5 times as long as through it.

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

/// Blobs that wait to be looked at; a hint that finds the queue full is dropped.
const QUEUE: usize = 16;
/// A blob among the last so many, less than [`AGAIN`] ago, is not looked at again.
const RECENT: usize = 16;
const AGAIN: Duration = Duration::from_secs(1);

/// See the module. The thread begins with the first hint and ends with this.
#[derive(Default)]
pub(super) struct Ahead(Mutex<State>);

#[derive(Default)]
struct State {
    thread: Option<(SyncSender<PathBuf>, JoinHandle<()>)>,
    recent: VecDeque<(BlobId, Instant)>,
}

impl Ahead {
    /// All of the blob will be read.
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
    /// False if it cannot be taken now.
    fn send(&mut self, path: impl FnOnce() -> PathBuf) -> bool {
        if self.thread.is_none() {
            let (sender, hints) = mpsc::sync_channel::<PathBuf>(QUEUE);
            let work = move || hints.iter().for_each(|path| fetch(&path));
            // Without a thread there is no looking ahead.
            let Ok(thread) = base::thread::spawn("covey-ahead", work) else { return false };
            self.thread = Some((sender, thread));
        }
        self.thread.as_ref().is_some_and(|(sender, _)| sender.try_send(path()).is_ok())
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.0.get_mut().thread.take() {
            drop(sender);
            // It ends only by returning.
            let _ = thread.join();
        }
    }
}

/// What is wrong with a file, its reader will find out.
fn fetch(path: &Path) {
    let Ok(file) = File::open(path) else { return };
    // SAFETY: only advice about an open descriptor; nothing of this process's memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_WILLNEED) };
    let _ = fs::read(sums_path(path));
}
