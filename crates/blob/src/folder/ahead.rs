//! Blobs that will be read soon are brought into memory meanwhile, and those that were read through are let go of.
//!
//! A large file is a row of blobs, each a file of its own with its sums in another: a reader that goes through them one after the other
//! would wait at every 4 MiB for two names, two inodes and the first bytes. One thread goes before it, and another time behind it: what
//! the reader has got lies in the pages of his mount, and need not lie in the blob's too. The thread only advises the kernel: it keeps nothing,
//! and nobody waits for it.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
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
    thread: Option<(SyncSender<Hint>, JoinHandle<()>)>,
    recent: VecDeque<(BlobId, Instant)>,
}

enum Hint {
    Fetch(PathBuf),
    LetGo(PathBuf),
}

impl Ahead {
    /// All of the blob will be read.
    pub(super) fn fetch(&self, id: &BlobId, path: impl FnOnce() -> PathBuf) {
        let now = monotonic();
        let mut state = self.0.lock();
        if state.recent.iter().any(|(seen, at)| seen == id && now.duration_since(*at) < AGAIN) {
            return;
        }
        if state.send(|| Hint::Fetch(path())) {
            state.recent.push_back((*id, now));
            if state.recent.len() > RECENT {
                state.recent.pop_front();
            }
        }
    }

    /// All of the blob has been read.
    pub(super) fn let_go(&self, path: impl FnOnce() -> PathBuf) {
        self.0.lock().send(|| Hint::LetGo(path()));
    }
}

impl State {
    /// False if it cannot be taken now.
    fn send(&mut self, hint: impl FnOnce() -> Hint) -> bool {
        if self.thread.is_none() {
            let (sender, hints) = mpsc::sync_channel::<Hint>(QUEUE);
            let work = move || hints.iter().for_each(|hint| follow(&hint));
            // Without a thread there is no looking ahead.
            let Ok(thread) = base::thread::spawn("covey-ahead", work) else { return false };
            self.thread = Some((sender, thread));
        }
        self.thread.as_ref().is_some_and(|(sender, _)| sender.try_send(hint()).is_ok())
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
fn follow(hint: &Hint) {
    let (path, advice) = match hint {
        Hint::Fetch(path) => (path, libc::POSIX_FADV_WILLNEED),
        Hint::LetGo(path) => (path, libc::POSIX_FADV_DONTNEED),
    };
    let Ok(file) = File::open(path) else { return };
    // SAFETY: only advice about an open descriptor; nothing of this process's memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) };
    if matches!(hint, Hint::Fetch(_)) {
        let _ = fs::read(sums_path(path));
    }
}
