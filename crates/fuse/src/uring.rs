//! FUSE over io_uring: requests and replies travel through one ring per CPU instead of read(2) and write(2).
//!
//! ```text
//!  program on CPU 1 ─► kernel's queue 1 ─► ring 1: its thread serves ─► commit, which fetches the next
//!                                              │ must wait          ▲ mailbox, eventfd
//!                                              └─► worker, answers ─┘
//!  FORGET (most), INTERRUPT ─► /dev/fuse ─► one reader thread   notifications ─► /dev/fuse
//! ```
//!
//! The kernel puts a request into the queue of the CPU that its program runs on, and never moves it to
//! another queue. So there is a ring for every CPU that could ever exist, and a ring's thread never waits. A
//! pending request keeps its entry until it is answered. The depth is the number of requests per CPU that may
//! be pending before others queue behind them, for the deadline at most. Depth times 1 MiB times CPUs stays
//! below [`MEMORY`], but a ring has at least [`LEAST`] entries. Only pages that were written to take memory.
//! The kernel uses the entry that came back last, so few of them ever do.
//!
//! [`switch`] decides whether a mount asks for rings.
//!
//! **An entry must come back.** No signal ends the wait for a request that is in an entry. So a request that
//! gets no reply is committed all the same, and [`overdue`] answers a request whose reply was lost.
//!
//! **The order.** Once INIT has negotiated rings, the kernel lets no request through until every queue has an
//! entry. Rings are therefore registered one after another. Until the first entry of the last ring is
//! accepted, rings can be given up: if a registration fails, on purpose if need be ([`Fallback`]), the kernel
//! serves everything through /dev/fuse.

mod entry;
mod overdue;
mod ring;
mod switch;
mod yielding;

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use self::overdue::{Check, Watched};
pub(crate) use self::ring::Fallback;
use self::ring::{Mailbox, Ring};
use self::switch::{Lack, Switch};
pub use self::switch::{SWITCH, switched_on};
use self::yielding::Keeper;
use crate::channel::{Device, Sink};
use crate::mount::MountError;

/// The most memory for the payloads of all entries of a mount, in bytes.
const MEMORY: usize = 64 << 20;
/// The fewest entries per ring. With a single entry, a pending request would stop its CPU.
const LEAST: usize = 2;
/// The most entries per ring. More pending requests per CPU than this gain nothing.
const MOST: usize = 16;

/// How requests arrive and replies leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// io_uring where it can be had, otherwise classic. Turns the switch on, as root. Classic for a shared
    /// mount whose locks are decided for all machines: a request that waits for a lock holds a ring entry.
    #[default]
    Auto,
    /// io_uring or no mount. Turns the switch on, as root.
    Uring,
    /// read(2) and write(2) on /dev/fuse. Leaves the switch as it is.
    Classic,
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Transport, String> {
        match text {
            "auto" => Ok(Transport::Auto),
            "uring" => Ok(Transport::Uring),
            "classic" => Ok(Transport::Classic),
            _ => Err(format!("there is no transport {text}: choose auto, uring or classic")),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Auto => "auto",
            Transport::Uring => "uring",
            Transport::Classic => "classic",
        })
    }
}

/// Whether to ask the kernel for rings. Messages for the user are added to `remarks`.
///
/// # Errors
/// [`MountError::NoUring`] if rings were demanded and cannot be had. Its text says what to do.
pub(crate) fn decide(wanted: Transport, remarks: &mut Vec<String>) -> Result<bool, MountError> {
    // Loads the kernel's module, if that has not happened yet.
    switched_on();
    switch::decide(wanted, &Switch::of_kernel(), ring::allowed, remarks)
}

/// Makes sure that rings can be given up again, before INIT promises them. `None`: there can be no rings.
///
/// # Errors
/// [`MountError::NoUring`] if rings were demanded.
pub(crate) fn prepare(
    wanted: Transport,
    device: &Device,
    remarks: &mut Vec<String>,
) -> Result<Option<Fallback>, MountError> {
    match Fallback::prepare(device) {
        Ok(fallback) => Ok(Some(fallback)),
        Err(error) if wanted == Transport::Uring => Err(Lack::forbidden(&error).refusal()),
        Err(error) => {
            remarks.push(Lack::forbidden(&error).line());
            Ok(None)
        }
    }
}

/// The line that says that io_uring is not used although the kernel's switch is on.
pub(crate) fn fallback_line(why: &str) -> String {
    let next = "covey doctor looks for the cause".to_owned();
    Lack { why: why.to_owned(), next }.line()
}

/// Serves the requests that arrive through rings.
pub(crate) trait Host: Send + Sync + 'static {
    /// Serves one request of this queue.
    fn serve(&self, queue: usize, request: &[u8], room: &mut [u8], sink: &Arc<dyn Sink>);

    /// A ring is about to begin; [`Host::ended`] will be called for it.
    fn begins(&self);

    /// A ring has ended. An error means that its queue is no longer served although the mount still exists.
    fn ended(&self, end: io::Result<()>);

    /// Writes a line of the log.
    fn log(&self, line: &str);
}

/// All rings of a mount.
pub(crate) struct Rings {
    mailboxes: Vec<Arc<Mailbox>>,
    check: Option<Check>,
    /// Dropped with the rings. A ring that is still ending then does without it.
    _keeper: Option<Arc<Keeper>>,
}

impl Rings {
    /// Starts a thread per possible CPU and registers all queues. `yields`: ring threads yield the CPU to the
    /// programs that they answer, if the system allows it. `limit`: a request that has no reply after this
    /// time is overdue.
    ///
    /// # Errors
    /// The reason as text. The kernel has then been told to use /dev/fuse.
    pub(crate) fn start(
        device: &Arc<Device>,
        host: &Arc<impl Host>,
        fallback: Fallback,
        yields: bool,
        limit: Duration,
    ) -> Result<Rings, String> {
        let queues = possible_cpus();
        let depth = depth(queues);
        let (ready, started) = mpsc::channel();
        let keeper = yields.then(Keeper::start).flatten().map(Arc::new);
        let mut rings = Rings { mailboxes: Vec::new(), check: None, _keeper: keeper.clone() };
        let mut watched = Vec::with_capacity(queues);
        for queue in 0..queues {
            host.begins();
            let (thread_device, thread_host, ready) = (Arc::clone(device), Arc::clone(host), ready.clone());
            let keeper = keeper.as_ref().map(Arc::downgrade);
            let spawned = base::thread::spawn(&format!("fuse-ring-{queue}"), move || {
                run_ring(queue, depth, &thread_device, &*thread_host, keeper, &ready);
            });
            let registered = match spawned {
                Ok(_) => started.recv().map_err(io::Error::other).flatten(),
                Err(error) => {
                    host.ended(Ok(()));
                    Err(error)
                }
            };
            match registered {
                Ok(ring) => {
                    rings.mailboxes.push(Arc::clone(&ring.mailbox));
                    watched.push(ring);
                }
                Err(error) => {
                    rings.mailboxes.iter().for_each(|mailbox| mailbox.give_up());
                    fallback.take();
                    return Err(format!("registering queue {queue} of {queues} failed: {error}"));
                }
            }
        }
        rings.check = Check::start(watched, limit, host);
        Ok(rings)
    }

    /// How many requests were answered EIO because their replies were lost.
    pub(crate) fn replies_lost(&self) -> u64 {
        self.check.as_ref().map_or(0, Check::lost)
    }

    /// Waits until the kernel has all replies that were given to the rings so far.
    pub(crate) fn settle(&self, at_most: Duration) -> bool {
        self.mailboxes.iter().all(|mailbox| mailbox.settle(at_most))
    }

    /// Ends all rings, because the mount is gone.
    pub(crate) fn stop(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.close());
        self.check.iter().for_each(Check::stop);
    }
}

/// The body of a ring thread.
fn run_ring(
    queue: usize,
    depth: usize,
    device: &Arc<Device>,
    host: &impl Host,
    keeper: Option<Weak<Keeper>>,
    ready: &mpsc::Sender<io::Result<Watched>>,
) {
    // Woken on the CPU whose requests it serves, the thread runs as soon as the program waits, on a warm
    // cache. No other CPU has to be woken, which on an idle machine costs more than the request. If pinning
    // is not allowed, the thread runs anywhere.
    let _ = base::thread::pin(queue);
    let ring = match Ring::register(queue as u16, depth, device) {
        Ok(ring) => ring,
        Err(error) => {
            host.ended(Ok(()));
            let _ = ready.send(Err(error));
            return;
        }
    };
    base::thread::must_not_wait();
    let yielder = keeper.and_then(|keeper| keeper.upgrade()).map(|keeper| keeper.yielder());
    let _ = ready.send(Ok(Watched { queue, mailbox: ring.mailbox(), entries: ring.entries() }));
    let run = || ring.run(yielder, |request, room, sink| host.serve(queue, request, room, sink));
    let end = catch_unwind(AssertUnwindSafe(run));
    host.ended(end.unwrap_or_else(|_| Err(io::Error::other("its thread panicked"))));
}

/// Entries per ring.
fn depth(queues: usize) -> usize {
    (MEMORY / entry::PAYLOAD / queues.max(1)).clamp(LEAST, MOST)
}

/// The most requests per ring that may wait for locks: see [`crate::locks`].
pub(crate) fn lock_waits_per_ring() -> usize {
    (depth(possible_cpus()) / 2).max(1)
}

/// How many CPUs this machine could ever have. The kernel has a queue for each.
pub(crate) fn possible_cpus() -> usize {
    let counted =
        std::fs::read_to_string("/sys/devices/system/cpu/possible").ok().and_then(|text| count(&text));
    counted.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Counts the CPUs in a list of ranges: "0-3,8" is five.
fn count(ranges: &str) -> Option<usize> {
    let number = |text: &str| text.trim().parse::<usize>().ok();
    ranges.split(',').try_fold(0, |all, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(all + (number(last)? + 1).checked_sub(number(first)?)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted() {
        assert_eq!(count("0\n"), Some(1));
        assert_eq!(count("0-127\n"), Some(128));
        assert_eq!(count("0-3,8,10-11\n"), Some(7));
        for bad in ["", "x", "3-1", "1-"] {
            assert_eq!(count(bad), None, "{bad}");
        }
    }

    #[test]
    fn memory_is_bounded_and_no_ring_is_too_shallow() {
        assert_eq!([1, 2, 4, 16, 64, 1024].map(depth), [16, 16, 16, 4, 2, 2]);
        for queues in 2..=32 {
            assert!(queues * depth(queues) * entry::PAYLOAD <= MEMORY);
        }
    }

    #[test]
    fn transports_are_named_as_they_are_shown() {
        for transport in [Transport::Auto, Transport::Uring, Transport::Classic] {
            assert_eq!(transport.to_string().parse(), Ok(transport));
        }
        assert!("iouring".parse::<Transport>().unwrap_err().contains("auto, uring or classic"));
    }
}
