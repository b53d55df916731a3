//! Access to threads. Every thread has a name, so that `top -H` and a backtrace can be read.

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(true) };
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
    Builder::new().name(name.to_owned()).spawn(work)
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
