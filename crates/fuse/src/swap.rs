//! The filesystem below a mount, which can be replaced by another one while programs use the mount.
//!
//! ```text
//!   serving ──pause──► no new request begins, those that have begun end ──resume──► serving another one
//! ```
//!
//! A mount that may be replaced ([`Swap::replaceable`]) begins with a filesystem that changes only through
//! this mount, and may go on with one that other machines change too. Its connection is that of a shared
//! mount from the beginning, because the kernel takes the flags of a connection once:
//!
//! - With the writeback cache the kernel believes its own sizes for ever, and so its own ends of files for
//!   O_APPEND. It would overwrite what another machine has appended, in whole pages.
//! - A kernel whose OPEN was refused never sends OPEN again. It keeps a file's pages, and a directory's
//!   listing, from one open to the next.
//! - Locks that the kernel keeps to itself cannot be handed over.
//!
//! **A request takes a [`Pass`]** before it touches the filesystem, and drops it after its reply. While the
//! mount is paused, no pass is given, so requests wait in the thread that received them, without a deadline.
//! What waits for something that has no end has no pass: a request for a lock that another owner holds.
//!
//! **The kernel keeps what it was told for [`KEEP`]** before the first pause. A mount is paused for longer
//! than that, so nothing of it is left when other machines may change something.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::Ino;
use fs::api::Filesystem;
use parking_lot::{Condvar, Mutex};

/// How long the kernel may keep names and attributes of a filesystem that may be replaced, while it changes
/// only through this mount.
pub const KEEP: Duration = Duration::from_secs(1);
/// How long after a reply something may still be in use: the kernel counts in ticks, from when it reads the
/// reply.
const KEEP_END: Duration = Duration::from_millis(1_200);

/// What the dispatcher serves.
pub struct Swap(Kind);

enum Kind {
    Fixed(Arc<dyn Filesystem>),
    Replaceable(Arc<Gate>),
}

struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    fs: Arc<dyn Filesystem>,
    /// Passes that were given.
    inside: usize,
    /// Since when no passes are given.
    paused: Option<Instant>,
    /// Requests that arrive are answered with an error.
    fails: bool,
    /// What the kernel forgot meanwhile.
    forgotten: Vec<(Ino, u64)>,
}

/// The right to use the filesystem. The filesystem is not replaced before it is dropped.
#[derive(Clone)]
pub struct Pass(#[expect(dead_code, reason = "it counts while it lives")] Option<Arc<Inside>>);

struct Inside(Arc<Gate>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.state.lock().inside -= 1;
        self.0.changed.notify_all();
    }
}

/// The filesystem, as it is now.
pub enum Now<'a> {
    /// A filesystem that is never replaced.
    Fixed(&'a Arc<dyn Filesystem>),
    /// A filesystem that may be replaced.
    Held(Arc<dyn Filesystem>),
}

impl Deref for Now<'_> {
    type Target = dyn Filesystem + 'static;

    fn deref(&self) -> &(dyn Filesystem + 'static) {
        match self {
            Now::Fixed(fs) => &***fs,
            Now::Held(fs) => &**fs,
        }
    }
}

impl Swap {
    /// A filesystem that stays.
    pub fn fixed(fs: Arc<dyn Filesystem>) -> Swap {
        Swap(Kind::Fixed(fs))
    }

    /// One that may be replaced. Until then it changes only through this mount.
    pub fn replaceable(fs: Arc<dyn Filesystem>) -> Swap {
        let state = State { fs, inside: 0, paused: None, fails: false, forgotten: Vec::new() };
        Swap(Kind::Replaceable(Arc::new(Gate { state: Mutex::new(state), changed: Condvar::new() })))
    }

    /// The right to use the filesystem, as soon as it is served. `None`: the request must fail.
    pub fn enter(&self) -> Option<Pass> {
        let Kind::Replaceable(gate) = &self.0 else { return Some(Pass(None)) };
        let mut state = gate.state.lock();
        while state.paused.is_some() && !state.fails {
            gate.changed.wait(&mut state);
        }
        if state.fails {
            return None;
        }
        state.inside += 1;
        drop(state);
        Some(Pass(Some(Arc::new(Inside(Arc::clone(gate))))))
    }

    /// The filesystem. The caller has a pass, or needs none.
    pub fn now(&self) -> Now<'_> {
        match &self.0 {
            Kind::Fixed(fs) => Now::Fixed(fs),
            Kind::Replaceable(gate) => Now::Held(Arc::clone(&gate.state.lock().fs)),
        }
    }

    /// Returns the filesystem, to keep.
    pub fn to_keep(&self) -> Arc<dyn Filesystem> {
        match &self.0 {
            Kind::Fixed(fs) => Arc::clone(fs),
            Kind::Replaceable(gate) => Arc::clone(&gate.state.lock().fs),
        }
    }

    /// Whether no request is served now.
    pub fn is_paused(&self) -> bool {
        matches!(&self.0, Kind::Replaceable(gate) if gate.state.lock().paused.is_some())
    }

    /// Lets no further request begin, and waits for those that have begun. False: they have not ended within
    /// `at_most`, or the filesystem cannot be replaced, and it is served as before.
    pub fn pause(&self, at_most: Duration) -> bool {
        let Kind::Replaceable(gate) = &self.0 else { return false };
        let until = base::time::monotonic() + at_most;
        let mut state = gate.state.lock();
        if state.paused.is_some() {
            return false;
        }
        state.paused = Some(base::time::monotonic());
        while state.inside > 0 {
            if gate.changed.wait_until(&mut state, until).timed_out() && state.inside > 0 {
                state.paused = None;
                gate.changed.notify_all();
                return false;
            }
        }
        state.paused = Some(base::time::monotonic());
        true
    }

    /// Waits, while it is paused, until the kernel has dropped what it was told before.
    pub fn wait_until_dropped(&self) {
        let Kind::Replaceable(gate) = &self.0 else { return };
        let since = gate.state.lock().paused;
        let left = since.map(|since| KEEP_END.saturating_sub(since.elapsed()));
        std::thread::sleep(left.unwrap_or_default());
    }

    /// Answers the requests that wait, and those that will, with an error, until [`Swap::resume`].
    pub fn fail(&self) {
        let Kind::Replaceable(gate) = &self.0 else { return };
        gate.state.lock().fails = true;
        gate.changed.notify_all();
    }

    /// The kernel has forgotten an inode while requests fail. The next filesystem hears of it.
    pub fn forget_later(&self, ino: Ino, count: u64) {
        let Kind::Replaceable(gate) = &self.0 else { return };
        let mut state = gate.state.lock();
        match state.fails {
            true => state.forgotten.push((ino, count)),
            // It was resumed since.
            false => state.fs.forget(ino, count),
        }
    }

    /// Serves this filesystem from now on.
    pub fn resume(&self, fs: Arc<dyn Filesystem>) {
        let Kind::Replaceable(gate) = &self.0 else { return };
        let mut state = gate.state.lock();
        let forgotten = std::mem::take(&mut state.forgotten);
        forgotten.into_iter().for_each(|(ino, count)| fs.forget(ino, count));
        (state.fs, state.paused, state.fails) = (fs, None, false);
        drop(state);
        gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::null::Null;

    fn null() -> Arc<dyn Filesystem> {
        Arc::new(Null::new())
    }

    #[test]
    fn a_pause_waits_for_requests_that_have_begun_and_holds_back_new_ones() {
        let swap = Arc::new(Swap::replaceable(null()));
        let pass = swap.enter().unwrap();
        assert!(!swap.pause(Duration::from_millis(20)), "a request has not ended");
        assert!(!swap.is_paused() && swap.enter().is_some(), "it goes on as before");
        let copy = pass.clone();
        drop(pass);
        assert!(!swap.pause(Duration::from_millis(20)), "a copy of the pass counts");
        drop(copy);
        assert!(swap.pause(Duration::ZERO));
        let (sender, entered) = channel();
        let other = Arc::clone(&swap);
        let waits = std::thread::spawn(move || sender.send(other.enter().is_some()).unwrap());
        assert!(entered.recv_timeout(Duration::from_millis(100)).is_err(), "a new request waits");
        swap.resume(null());
        assert!(entered.recv().unwrap());
        waits.join().unwrap();
    }

    #[test]
    fn requests_fail_only_until_it_is_resumed() {
        let swap = Arc::new(Swap::replaceable(null()));
        assert!(swap.pause(Duration::ZERO));
        let other = Arc::clone(&swap);
        let waits = std::thread::spawn(move || other.enter().is_none());
        swap.fail();
        assert!(waits.join().unwrap() && swap.enter().is_none());
        swap.resume(null());
        assert!(swap.enter().is_some());
        assert!(!Swap::fixed(null()).pause(Duration::ZERO));
    }
}
