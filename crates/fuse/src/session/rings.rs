//! A session whose requests arrive over io_uring.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Options, Session, Shared};
use crate::channel::{Device, Sink};
use crate::kernel::OnTheWay;
use crate::mount::Unmount;
use crate::uring::{self, Fallback, Host, Rings};

/// A request that has a deadline is overdue when a quarter of it has passed after it, and at least this time.
const OVERDUE_MIN: Duration = Duration::from_secs(5);

/// Starts the rings. Returns a warning if there are none.
pub(super) fn start_rings(
    shared: &Arc<Shared>,
    device: &Arc<Device>,
    fallback: Fallback,
    options: &Options,
) -> Option<String> {
    let limit = options.deadline + (options.deadline / 4).max(OVERDUE_MIN);
    match Rings::start(device, shared, fallback, options.yields, limit) {
        Ok(rings) => {
            shared.dispatcher.limit_lock_waits(uring::lock_waits_per_ring());
            drop(shared.rings.set(rings));
            None
        }
        Err(why) => Some(uring::fallback_line(&why)),
    }
}

impl Session {
    /// How many requests over io_uring were answered EIO because their replies were lost. Any such request
    /// shows a fault in this program.
    pub fn replies_lost(&self) -> u64 {
        self.shared.rings.get().map_or(0, Rings::replies_lost)
    }
}

impl Host for Shared {
    fn serve(&self, queue: usize, request: &[u8], room: &mut [u8], sink: &Arc<dyn Sink>) {
        self.dispatcher.serve(1 + queue, request, room, sink);
    }

    fn begins(&self) {
        self.threads_left.fetch_add(1, Ordering::AcqRel);
    }

    fn ended(&self, end: std::io::Result<()>) {
        if let Err(error) = end {
            // The kernel never moves a queue's requests to another queue, so programs on that CPU would wait
            // for ever.
            (self.log)(&format!("fuse: a ring failed, so the mount is removed by force: {error}"));
            let mount = Arc::clone(&self.mount);
            let cut = move || mount.unmount(Unmount::Force);
            let _ = base::thread::spawn("fuse-cut", cut);
        }
        self.leave();
    }

    fn log(&self, line: &str) {
        (self.log)(line);
    }
}

impl OnTheWay for Shared {
    fn settle(&self, at_most: Duration) -> bool {
        self.rings.get().is_none_or(|rings| rings.settle(at_most))
    }
}

impl Shared {
    /// With rings, only FORGET and INTERRUPT reach a reader. The kernel batches FORGETs while nobody reads.
    /// Because of this pause, a program that removes a tree does not wake this thread for every inode.
    pub(super) fn let_forgets_batch(&self) {
        const GATHER: Duration = Duration::from_millis(5);
        if self.rings.get().is_some() {
            std::thread::sleep(GATHER);
        }
    }
}
