//! Makes the kernel look again at files that programs have open and another machine may have changed.
//!
//! read(2) asks for the attributes first, but sendfile(2), splice(2) and mappings do not. So a thread opens
//! such a file once more, by its handle: at each open the kernel drops the file's pages. Then it asks for the
//! attributes, which gives the kernel the file's end. Both are what a program could do, so they are safe at
//! any time.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use base::Ino;
use parking_lot::{Condvar, Mutex};

use crate::shared::SharedMount;
use crate::through::ThroughMount;

/// How long after a file may have changed it is looked at. What comes until then is one look.
const SOON: Duration = Duration::from_millis(250);

#[derive(Default)]
struct Queue {
    files: HashSet<Ino>,
    closed: bool,
}

/// The thread, and the files that it is about to look at.
pub(crate) struct Refresher {
    queue: Mutex<Queue>,
    changed: Condvar,
    mount: Arc<SharedMount>,
    through: ThroughMount,
}

impl Refresher {
    /// Starts the thread.
    pub(crate) fn start(mount: Arc<SharedMount>, through: ThroughMount) -> io::Result<Arc<Refresher>> {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        let refresher = Arc::new(Refresher { queue, changed, mount, through });
        let worker = Arc::clone(&refresher);
        base::thread::spawn("fuse-refresh", move || worker.run())?;
        Ok(refresher)
    }

    /// Looks at these files soon.
    pub(crate) fn push(&self, files: &[Ino]) {
        let mut queue = self.queue.lock();
        queue.files.extend(files);
        self.changed.notify_all();
    }

    /// Ends the thread.
    pub(crate) fn close(&self) {
        self.queue.lock().closed = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            while queue.files.is_empty() && !queue.closed {
                self.changed.wait(&mut queue);
            }
            let until = base::time::monotonic() + SOON;
            while !queue.closed && !self.changed.wait_until(&mut queue, until).timed_out() {}
            if queue.closed {
                return;
            }
            let files = std::mem::take(&mut queue.files);
            parking_lot::MutexGuard::unlocked(&mut queue, || {
                // The mount is busy as long as a file is open. So none is opened that programs closed.
                let open: Vec<Ino> = files.into_iter().filter(|ino| self.mount.is_open(*ino)).collect();
                if !open.is_empty() {
                    self.through.look_again(&open);
                }
            });
        }
    }
}
