//! Flushes a file's dirty pages before SEEK_DATA or SEEK_HOLE is answered.
//!
//! The kernel may hold written bytes that the filesystem has not seen (writeback cache, shared mappings). It
//! asks about data and holes all the same. So a child of the daemon opens the file once more, by its handle
//! on the mount, and writes its dirty pages back with sync_file_range(2). A program may seek thousands of
//! times, so a child serves for a second.
//!
//! **Why this cannot deadlock.** The program that seeks holds the inode's lock until it is answered. Opening
//! by handle, opening without OPEN, and writing pages back take no inode lock. Reader threads answer the
//! resulting WRITEs, and they never wait for this thread. Closing does take the lock in some kernels, so the
//! child closes its descriptor only after the reply. Without the privilege to open by handle, a notification
//! drops the pages instead. It writes dirty pages back one by one, and it takes no inode lock either. A
//! daemon that is killed during such a notification may leave its mount hung, until `umount -f`.

use std::any::Any;
use std::ffi::c_int;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use base::Ino;
use parking_lot::Mutex;

use crate::apart::{Child, Parent};
use crate::channel::Sink;
use crate::dispatch::PushDirty;
use crate::notify;
use crate::through::ThroughMount;

/// How long a child serves: while it lives, the memory that the daemon changes is there twice.
const SERVES: Duration = Duration::from_secs(1);

/// What a thread with a child is asked.
enum Ask {
    /// To write a file's pages back, and to say whether that was done. The file stays open.
    Push(Ino, Sender<bool>),
    /// To close the file: the program has its answer.
    Answered,
}

/// Flushes dirty pages through descriptors of children.
pub(crate) struct Pushers {
    through: ThroughMount,
    /// Threads that wait, each with a child.
    idle: Arc<Mutex<Vec<Sender<Ask>>>>,
}

/// A file whose pages are written back. It is closed when this is dropped.
struct Pushed {
    thread: Sender<Ask>,
    idle: Arc<Mutex<Vec<Sender<Ask>>>>,
}

impl Drop for Pushed {
    fn drop(&mut self) {
        if self.thread.send(Ask::Answered).is_ok() {
            self.idle.lock().push(self.thread.clone());
        }
    }
}

impl PushDirty for Pushers {
    fn push(&self, sink: &dyn Sink, ino: Ino) -> Box<dyn Any> {
        match self.try_push(ino) {
            Ok(pushed) => Box::new(pushed),
            Err(_) => {
                // If the kernel does not hold the inode, there is nothing to flush.
                let _ = notify::inval_inode(sink, ino, 0, 0);
                Box::new(())
            }
        }
    }
}

impl Pushers {
    pub(crate) fn over(through: &ThroughMount) -> Arc<dyn PushDirty> {
        Arc::new(Pushers { through: through.clone(), idle: Arc::default() })
    }

    fn try_push(&self, ino: Ino) -> io::Result<Pushed> {
        loop {
            let idle = self.idle.lock().pop();
            let is_new = idle.is_none();
            let thread = idle.map_or_else(|| self.start_child(), Ok)?;
            let (done, is_done) = mpsc::channel();
            let answer = thread.send(Ask::Push(ino, done)).ok().and_then(|()| is_done.recv().ok());
            let pushed = Pushed { thread, idle: Arc::clone(&self.idle) };
            match answer {
                Some(true) => return Ok(pushed),
                // It had served its time.
                None if !is_new => {}
                _ => return Err(io::ErrorKind::NotFound.into()),
            }
        }
    }

    /// Starts a child, and the thread that is its parent.
    fn start_child(&self) -> io::Result<Sender<Ask>> {
        let (asks, asked) = mpsc::channel();
        let through = self.through.clone();
        base::thread::spawn("fuse-seek-push", move || {
            // Without a child, the answer is that nothing was done.
            let _ = Child::start(|parent| serve(&through, parent)).map(|child| answer(child, &asked));
        })?;
        Ok(asks)
    }
}

/// The child writes pages back until its parent ends. After each file it waits until that may be closed.
fn serve(through: &ThroughMount, parent: &Parent) {
    while let Some(ino) = parent.next() {
        let mut is_open = false;
        through.with(Ino(ino), |fd: c_int| {
            let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
                | libc::SYNC_FILE_RANGE_WRITE
                | libc::SYNC_FILE_RANGE_WAIT_AFTER;
            // SAFETY: the descriptor is open. The call takes numbers only.
            parent.answer(unsafe { libc::sync_file_range(fd, 0, 0, flags) } == 0);
            is_open = true;
            let _ = parent.next();
        });
        if !is_open {
            parent.answer(false);
            let _ = parent.next();
        }
    }
}

/// Has the child do what is asked, until it has served for long enough.
fn answer(mut child: Child, asked: &Receiver<Ask>) {
    let until = base::time::monotonic() + SERVES;
    let left = || until.saturating_duration_since(base::time::monotonic());
    while let Ok(Ask::Push(ino, done)) = asked.recv_timeout(left()) {
        child.send(ino.0);
        let _ = done.send(child.answer());
        let Ok(Ask::Answered) = asked.recv() else { return };
        child.send(0);
    }
}
