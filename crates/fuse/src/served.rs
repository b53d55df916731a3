//! A kernel elsewhere: its requests arrive over any channel, and nothing is mounted on this machine.
//!
//! This is a session without the mount ([`crate::session`]). Its owner receives requests, calls
//! [`Served::serve`] for each from its own threads, and passes replies and notifications on. What needs the
//! mount is left out: dirty pages of shared mappings are not flushed before SEEK_DATA, and callers cannot be
//! looked at. So the owner must zero the callers' thread ids and say itself which callers are being killed.
//!
//! A kernel that holds written bytes back (writeback cache) asks about data and holes that this filesystem
//! does not know yet. Its LSEEK is refused once, and then it answers by itself: all of a file is data.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use fs::Errno;
use fs::api::{Filesystem, Locks};

use crate::Log;
use crate::abi::header::Header;
use crate::abi::init::{Agreed, Wishes, flag};
use crate::abi::opcodes::op;
use crate::channel::Sink;
use crate::counts::Counts;
use crate::defer::{PendingTable, Pool};
use crate::dispatch::{Dispatcher, Parts, late_line};
use crate::notify::Notifier;
use crate::session::{negotiate, pools, serves_dot};
use crate::shared::SharedMount;
use crate::swap::Swap;
use crate::watch::Watch;

/// How to serve.
#[derive(Clone)]
pub struct Options {
    /// The number of threads that call [`Served::serve`].
    pub lanes: usize,
    /// The most worker threads for pending requests.
    pub workers: usize,
    /// A pending request is answered EIO after this time.
    pub deadline: Duration,
    /// Others change the tree too: the kernel keeps neither names nor attributes, or only as `keep` says.
    pub many: bool,
    /// Notifications do not reach the kernel. It may keep names and attributes for so long, and no longer.
    /// `None`: it can be told, or nothing ever changes.
    pub keep: Option<Duration>,
    /// Receives the lines of the log.
    pub log: Log,
}

/// What INIT is answered with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// Others change the tree too.
    pub many: bool,
    /// The kernel may hold written bytes back. Not with `many`.
    pub writeback: bool,
    /// With `many`: the kernel may keep names and attributes for a while.
    pub keeps: bool,
}

/// Answers INIT. Returns what was agreed, and the body of the reply. `request` is the whole request.
///
/// # Errors
/// An error number to reply with: `EPROTO` if the kernel is too old.
pub fn init(fs: &dyn Filesystem, terms: Terms, request: &[u8]) -> Result<(Agreed, Vec<u8>), Errno> {
    let Terms { many, writeback, keeps } = terms;
    let (export, locks) = (serves_dot(fs), many && fs.locks() == Locks::Fleet);
    let wishes = Wishes { writeback, export, shared: many, keeps, locks, ..Wishes::default() };
    negotiate(request, &wishes).map_err(|(error, _)| error)
}

/// Serves one kernel.
pub struct Served {
    dispatcher: Dispatcher,
    pending_table: Arc<PendingTable>,
    pools: [Arc<Pool>; 4],
    notifier: Notifier,
    counts: Arc<Counts>,
    watch: Arc<Watch>,
    /// The kernel holds written bytes back.
    writeback: bool,
}

impl Served {
    /// Starts the threads for requests that wait. `sink` takes notifications.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub fn start(
        fs: Arc<dyn Filesystem>,
        agreed: Agreed,
        sink: Arc<dyn Sink>,
        options: &Options,
    ) -> io::Result<Served> {
        let notifier = Notifier::start(sink)?;
        let log = Arc::clone(&options.log);
        let pending_table = PendingTable::start(options.deadline, move |waited| log(&late_line(waited)))?;
        let pools = pools(options.workers, options.many);
        let [workers, writers, seeker, unlockers] = pools.each_ref().map(Arc::clone);
        let (counts, watch) = (Arc::new(Counts::new(options.lanes)), Watch::new(options.lanes + 1));
        let locks = fs.locks() == Locks::Fleet && agreed.has(flag::POSIX_LOCKS | flag::FLOCK_LOCKS);
        // The kernel may have files open that another run of the server has numbered.
        let shared = || Arc::new(SharedMount::new(locks, None).numbered_from(base::random::u64()));
        let dispatcher = Dispatcher::new(Parts {
            fs: Arc::new(Swap::fixed(fs)),
            agreed,
            pending_table: Arc::clone(&pending_table),
            workers,
            writers,
            seeker,
            unlockers,
            shared: options.many.then(shared),
            untold: options.keep,
            dirty: None,
            flushes: None,
            notifier: notifier.clone(),
            counts: Arc::clone(&counts),
            watch: Arc::clone(&watch),
            log: Arc::clone(&options.log),
        });
        let writeback = agreed.has(flag::WRITEBACK_CACHE);
        Ok(Served { dispatcher, pending_table, pools, notifier, counts, watch, writeback })
    }

    /// Serves one request, as [`Dispatcher::serve`].
    pub fn serve(&self, lane: usize, request: &[u8], room: &mut [u8], sink: &Arc<dyn Sink>) {
        if self.writeback
            && let Ok((header, _)) = Header::split(request)
            && header.opcode == op::LSEEK
        {
            let _ = sink.reply(header.unique, -libc::ENOSYS, &[]);
            return;
        }
        self.dispatcher.serve(lane, request, room, sink);
    }

    /// A signal reached the caller of a request, as [`Dispatcher::interrupt`].
    pub fn interrupt(&self, unique: u64, killed: bool) {
        self.dispatcher.interrupt(unique, killed);
    }

    /// The number of requests so far, by kind.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.counts.totals()
    }

    /// The measurement of how long requests take.
    pub fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    /// The handle that sends invalidations.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// The number of requests that wait for a lock.
    pub fn lock_waits(&self) -> usize {
        self.dispatcher.lock_waits()
    }

    /// Ends the threads, and the requests that wait for a lock. Requests that are being served go on, and
    /// their replies lead nowhere. Locks that are held are the caller's concern.
    pub fn end(&self) {
        self.dispatcher.end_lock_waits();
        self.pending_table.close();
        self.pools.iter().for_each(|pool| pool.close());
        self.notifier.close();
    }
}
