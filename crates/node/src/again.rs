//! Publishing a mounted volume: once for a caller that waits, or repeatedly while it is mounted.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use api::answers::PublishSummary;
use api::control::Tick;
use api::error::{Failure, Result};
use api::text::{bytes, count};
use meta::shared::outage;

use crate::log;
use crate::mount::Mount;
use crate::publish::Wanted;
use crate::publisher::check_name;

/// How long to wait for data that programs wrote.
const HAND_OVER: Duration = Duration::from_secs(5);
/// How long a publication that was told to stop may take to do so at the end of a mount.
const LAST: Duration = Duration::from_secs(5);

/// Publishes for a caller that must receive a message at least once a second, also while the origin is slow.
pub fn for_caller(node: &Arc<Mount>, wanted: Wanted, tick: &mut dyn FnMut(Tick)) -> Result<PublishSummary> {
    let (say, hear) = mpsc::channel();
    let node = node.clone();
    let work = move || {
        let done = node.node().and_then(|node| node.publish(&wanted, &mut |now| say.send(now).is_ok()));
        (done, outage::changes())
    };
    let work = base::thread::spawn("covey-publish", work)
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    let mut last = Tick::default();
    loop {
        match hear.recv_timeout(Duration::from_secs(1)) {
            Ok(now) => last = now,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        tick(last.clone());
    }
    let broken =
        || Failure::new("io", "the publication ended by a panic").next("look at the log, and report it");
    let (done, changes) = work.join().unwrap_or_else(|_| (Err(broken()), 1));
    outage::add_changes(changes);
    done
}

/// The settings of repeated publication.
#[derive(Clone, Debug)]
pub struct Every {
    /// The interval between publications. Nothing is published if nothing has changed. None: never publish.
    pub publish_every: Option<Duration>,
    /// The name.
    pub publish_as: String,
    /// How long a clean unmount waits for a last publication. 0: no last publication.
    pub publish_last: Duration,
}

impl Every {
    /// No repeated publication.
    pub fn never() -> Every {
        Every { publish_every: None, publish_as: "latest".to_owned(), publish_last: Duration::ZERO }
    }

    /// Starts publishing, if it is wanted.
    pub fn start(&self, node: &Arc<Mount>, mountpoint: &Path) -> Result<Option<Publishing>> {
        let Some(every) = self.publish_every else { return Ok(None) };
        check_name(&self.publish_as)?;
        let stop = Arc::new(AtomicBool::new(false));
        let work = Again {
            node: node.clone(),
            mountpoint: mountpoint.to_owned(),
            name: self.publish_as.clone(),
            every,
            last: self.publish_last,
            stop: stop.clone(),
        };
        let thread = base::thread::spawn("covey-publish", move || work.run())
            .map_err(|error| Failure::io("cannot start a thread", &error))?;
        Ok(Some(Publishing { stop, last: self.publish_last, thread: Some(thread) }))
    }
}

struct Again {
    node: Arc<Mount>,
    mountpoint: PathBuf,
    name: String,
    every: Duration,
    last: Duration,
    stop: Arc<AtomicBool>,
}

impl Again {
    fn run(&self) {
        let mut complained = false;
        let mut next = base::time::monotonic() + self.every;
        while !self.stop.load(Ordering::Acquire) {
            if base::time::monotonic() < next {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            fuse::mount::hand_over(&self.mountpoint, HAND_OVER);
            match self.publish(&|| !self.stop.load(Ordering::Acquire)) {
                Ok(()) => complained = false,
                Err(failure) => {
                    if !complained && !self.stop.load(Ordering::Acquire) {
                        log::warn(&format!("not published, retrying: {}", failure.in_one_line()));
                    }
                    complained = true;
                }
            }
            next = base::time::monotonic() + self.every;
        }
        self.publish_last();
    }

    /// Publishes the final state, after the mount has ended and all data that programs wrote has arrived.
    fn publish_last(&self) {
        if self.last.is_zero() {
            return;
        }
        let until = base::time::monotonic() + self.last;
        if let Err(failure) = self.publish(&|| base::time::monotonic() < until) {
            log::warn(&format!(
                "not published at the end of the mount; what was published before is as it was: {failure}"
            ));
        }
    }

    fn publish(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        let wanted = Wanted { name: self.name.clone(), ..Wanted::default() };
        let done = self.node.node()?.publish(&wanted, &mut |_: Tick| go_on())?;
        if !done.unchanged {
            log::line(&format!(
                "published {} ({}): {} files, {} written in {:.1} s",
                done.name,
                done.sequence,
                count(done.files),
                bytes(done.written_bytes),
                done.seconds
            ));
        }
        Ok(())
    }
}

/// Repeated publication that continues until this is dropped.
pub struct Publishing {
    stop: Arc<AtomicBool>,
    last: Duration,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Publishing {
    /// Stops a publication that is under way, and starts the last one. The last one may wait for an origin
    /// that does not answer, so the wait for it is bounded.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        let until = base::time::monotonic() + self.last + LAST;
        while !thread.is_finished() && base::time::monotonic() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}
