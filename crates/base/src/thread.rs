//! Access to threads. Every thread has a name, so that `top -H` and a backtrace can be read.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
    /// The CPUs on which this thread might run before it was pinned to one.
    static UNPINNED: Cell<Option<CpuSet>> = const { Cell::new(None) };
}

/// Keeps the calling thread on one CPU. Threads that it starts with [`spawn`] may run where it might before.
///
/// # Errors
/// The CPU is not there, or the thread must not run on it. Then it runs where it did.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let before = sched_getaffinity(None)?;
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one)?;
    if UNPINNED.get().is_none() {
        UNPINNED.set(Some(before));
    }
    Ok(())
}

/// From now on this thread must not wait for another machine, because requests queue behind it.
pub fn must_not_wait() {
    MAY_WAIT.set(false);
}

/// No request queues behind this thread any more, so it may wait again.
pub fn may_wait_again() {
    MAY_WAIT.set(true);
}

/// Whether this thread may wait. Every thread may, unless it has called [`must_not_wait`].
pub fn may_wait() -> bool {
    MAY_WAIT.get()
}

/// Starts a thread called `name` (the kernel shows at most 15 bytes).
///
/// # Errors
/// The system cannot start another thread.
pub fn spawn<T, F>(name: &str, work: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let unpinned = UNPINNED.get();
    Builder::new().name(name.to_owned()).spawn(move || {
        // A new thread may run only where the one may that started it.
        if let Some(cpus) = unpinned {
            let _ = sched_setaffinity(None, &cpus);
        }
        work()
    })
}

/// Runs `work` for every item, on up to `threads` threads including this one, and waits for all. After an
/// error no further item is begun. The first error is returned.
///
/// # Errors
/// An error of `work`. A thread that cannot be started is no error: the others do its share.
pub fn for_each<T, E, F>(name: &str, threads: usize, items: &[T], work: F) -> Result<(), E>
where
    T: Sync,
    E: Send + Sync,
    F: Fn(&T) -> Result<(), E> + Sync,
{
    let next = AtomicUsize::new(0);
    let failed = OnceLock::new();
    let take = || {
        while failed.get().is_none()
            && let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed))
        {
            if let Err(error) = work(item) {
                let _ = failed.set(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            let _ = Builder::new().name(name.to_owned()).spawn_scoped(scope, take);
        }
        take();
    });
    failed.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_once() {
        for threads in [0, 1, 3, 50] {
            let done: Vec<AtomicUsize> = (0..20).map(|_| AtomicUsize::new(0)).collect();
            let items: Vec<usize> = (0..20).collect();
            let work = |item: &usize| {
                done[*item].fetch_add(1, Ordering::SeqCst);
                Ok::<(), ()>(())
            };
            assert_eq!(for_each("test", threads, &items, work), Ok(()));
            assert!(done.iter().all(|count| count.load(Ordering::SeqCst) == 1));
        }
    }

    #[test]
    fn must_not_wait_concerns_its_own_thread_only() {
        assert!(may_wait());
        let other = spawn("test", || {
            must_not_wait();
            may_wait()
        });
        assert!(!other.unwrap().join().unwrap() && may_wait());
    }

    #[test]
    fn regression_a_pinned_thread_starts_threads_that_run_anywhere() {
        let all = sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
        let pinned = spawn("test", move || {
            pin(cpu).unwrap();
            let me = sched_getaffinity(None).unwrap();
            (me, spawn("test", || sched_getaffinity(None).unwrap()).unwrap().join().unwrap())
        });
        let (pinned, started) = pinned.unwrap().join().unwrap();
        assert!(pinned.is_set(cpu) && pinned.count() == 1);
        assert!(started == all, "{started:?} and not {all:?}");
        assert!(pin(CpuSet::MAX_CPU).is_err());
    }

    #[test]
    fn an_error_stops_items_that_have_not_begun() {
        let begun = AtomicUsize::new(0);
        let work = |item: &usize| {
            begun.fetch_add(1, Ordering::SeqCst);
            if *item == 3 { Err(*item) } else { Ok(()) }
        };
        assert_eq!(for_each("test", 1, &(0..10).collect::<Vec<_>>(), work), Err(3));
        assert_eq!(begun.load(Ordering::SeqCst), 4);
        assert_eq!(for_each("test", 4, &(0..1000).collect::<Vec<_>>(), work), Err(3));
    }
}
