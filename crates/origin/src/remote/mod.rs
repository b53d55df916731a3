//! `s3://`, `gs://`, `az://`: an origin in an object store.
//!
//! [`RemoteSpec`] names the place; [`Remote`] is the origin there. Calls block and may come from any thread;
//! a private runtime of two threads does the waiting. It is private because commands such as `covey fsck` use
//! an origin without a node, and because requests must not wait behind data from other nodes. Every call ends
//! by its deadline, and every user mistake is named in one line ([`Mistake`]).
//!
//! - `spec`: URLs. `environment`, `keys`, `roles`, `later`: where keys and places come from, and when.
//!   `store`: the store of the `object_store` crate.
//! - `wire`: HTTP; `forms`: of requests for keys; `connections`: those that died; `fault`: what went wrong,
//!   and what that means.
//! - `engine`: tries, deadlines, hedges; `refusals`: what is not asked again at once; `pace`: budgets;
//!   `latency`, `stats`: measurements.
//! - `layout`: keys, and the header before a blob's bytes; `blobs`: the operations on blobs; `doubts`:
//!   removals that may come late; `beside`: records and the marker.
//! - `answers`: what callers see of a store's answers.
//! - `bucket`: objects of others, read as they are; `listing`: pages of their keys; `contents`: what the
//!   store says of their bytes.
//!
//! **Nothing is trusted.** Bytes are compared with the blob's name before they are returned. If they differ,
//! they are fetched again past any proxy's cache, and then the blob is called damaged. An answer that a blob
//! is missing counts only while the marker exists: a bucket that was emptied or swapped is an unavailable
//! origin, not an origin without blobs.

mod answers;
mod beside;
mod blobs;
mod bucket;
mod connections;
mod contents;
mod doubts;
mod engine;
mod environment;
mod fault;
mod forms;
mod forward;
mod keys;
mod latency;
mod later;
mod layout;
mod limits;
mod lines;
mod listing;
mod pace;
mod recent;
mod refusals;
mod roles;
mod spec;
mod stats;
mod store;
#[cfg(test)]
pub(crate) mod tests;
mod wire;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use base::Deadline;
use blob::BlobError;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use crate::{Access, OriginError};
use doubts::Doubts;
use engine::{Call, Engine, Failed, What};
use fault::{About, Explained, Fault, explain, mistake_of};
use keys::Keys;
use layout::Layout;
use pace::Pace;
use recent::Recent;
use refusals::{Refusals, Shown, is_refusal};
use spec::is_loopback;
use stats::Stats;
use wire::Wire;

pub use answers::{ACTS, Mistake, Object, Refusal, Right, Unread};
pub use bucket::Bucket;
pub use contents::Check;
pub use environment::Environment;
pub use forward::{Forward, NotPassed, Passed};
pub use limits::Limits;
pub use spec::{RemoteSpec, Store, is_in_the_clear};
pub use stats::{KINDS, Kind, RemoteStats, Times};

/// Threads for requests.
const THREADS: usize = 2;
/// The most threads beside them. They look names up and read keys.
const HELPERS: usize = 64;
/// Time limit of one try that moves few bytes.
const TRY_SMALL: Duration = Duration::from_secs(15);
/// Time limit of one try that moves a whole blob.
const TRY_LARGE: Duration = Duration::from_secs(45);
/// Time limit of one try that stores: many of them may share a slow line.
const TRY_STORE: Duration = Duration::from_secs(120);
/// Time limit of opening an origin: a person waits for it.
const OPENING: Duration = Duration::from_secs(15);
/// How many tries opening makes.
const OPENING_TRIES: u32 = 4;
/// For this long after it was seen, the marker is assumed to exist.
const MARKER_HOLDS: Duration = Duration::from_secs(10);

/// When keys have to be there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// Without them there is no origin.
    Now,
    /// Requests fail until they are found.
    Later,
}

/// An origin in an object store. See the [module](self).
pub struct Remote {
    spec: RemoteSpec,
    layout: Layout,
    engine: Arc<Engine>,
    wire: Wire,
    limits: Limits,
    access: Access,
    /// Where the keys came from, for messages.
    keys_from: String,
    /// The volume that the marker names, or will have to name.
    volume: String,
    /// The marker has not been read yet.
    unseen: AtomicBool,
    recent: Recent,
    doubts: Doubts,
    marker_seen: Mutex<Option<Instant>>,
    /// Some until it is dropped.
    runtime: Option<Runtime>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({})", self.spec)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Remote {
    /// Makes the place an origin of the volume called `volume` and opens it. Of several concurrent callers,
    /// one succeeds.
    ///
    /// # Errors
    /// [`OriginError::Remote`]: what is wrong, or that the place is in use already.
    pub fn format(
        spec: &RemoteSpec,
        environment: &Environment,
        limits: Limits,
        volume: &str,
    ) -> Result<Remote, OriginError> {
        let mut remote = Remote::connect(spec, environment, limits, Access::ReadWrite, Wanted::Now)?;
        remote.make_marker(volume)?;
        volume.clone_into(&mut remote.volume);
        Ok(remote)
    }

    /// Opens an origin created by [`Remote::format`].
    ///
    /// # Errors
    /// [`OriginError::Remote`].
    pub fn open(
        spec: &RemoteSpec,
        environment: &Environment,
        limits: Limits,
        access: Access,
    ) -> Result<Remote, OriginError> {
        let mut remote = Remote::connect(spec, environment, limits, access, Wanted::Now)?;
        remote.volume = remote.read_marker()?;
        Ok(remote)
    }

    /// Opens an origin that is unreachable now, and whose volume is known. Sends no request yet.
    ///
    /// # Errors
    /// [`OriginError::Remote`]: what is wrong with the keys or the place, as far as that is known without a
    /// request.
    pub fn open_unseen(
        spec: &RemoteSpec,
        environment: &Environment,
        limits: Limits,
        access: Access,
        volume: &str,
    ) -> Result<Remote, OriginError> {
        let mut remote = Remote::connect(spec, environment, limits, access, Wanted::Later)?;
        volume.clone_into(&mut remote.volume);
        *remote.unseen.get_mut() = true;
        Ok(remote)
    }

    /// Reads the marker of an origin that was opened unseen, if that has not been done since: it must name
    /// the volume. Nothing is stored or removed before that.
    ///
    /// # Errors
    /// [`OriginError::Remote`]; [`Mistake::Taken`] when the place is another volume's.
    pub fn see(&self) -> Result<(), OriginError> {
        if !self.unseen.load(Ordering::Acquire) {
            return Ok(());
        }
        let found = self.read_marker()?;
        if found != self.volume {
            let what = format!(
                "the place belongs to another volume (it was made for the volume {found}, and this is {}); nothing is stored or deleted there",
                self.volume
            );
            let (origin, next) = (self.spec.to_string(), Some("correct the origin in covey.json".to_owned()));
            return Err(OriginError::Remote { origin, mistake: Mistake::Taken, what, next });
        }
        self.unseen.store(false, Ordering::Release);
        Ok(())
    }

    /// Everything but the first request.
    fn connect(
        spec: &RemoteSpec,
        environment: &Environment,
        limits: Limits,
        access: Access,
        wanted: Wanted,
    ) -> Result<Remote, OriginError> {
        let named = spec;
        let failed = |fault: Fault| {
            let (what, next) = match &fault {
                Fault::NoKeys { what, next } => (what.clone(), Some(next.clone())),
                other => (other.to_string(), None),
            };
            OriginError::Remote { origin: named.to_string(), mistake: mistake_of(&fault), what, next }
        };
        let spec = store::resolve(spec, environment).map_err(failed)?;
        let keys = match (spec.store, wanted) {
            _ if environment.is_unsigned() => None,
            (Store::S3, Wanted::Now) => Some(Arc::new(Keys::find(environment).map_err(failed)?)),
            (Store::S3, Wanted::Later) => Some(Arc::new(Keys::find_or_later(environment))),
            _ => None,
        };
        let keys_from = match &keys {
            Some(keys) => keys.source.to_string(),
            None if environment.is_unsigned() => "nowhere: requests to it are not signed".to_owned(),
            None => "the environment".to_owned(),
        };
        let stats = Arc::new(Stats::new());
        let plain = spec.endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http://"));
        let fixed = keys.as_ref().is_some_and(|keys| !keys.are_of_role());
        let direct = spec.endpoint.as_deref().is_some_and(is_loopback);
        let wire = Wire::new(!(plain && fixed), direct, Arc::clone(&stats), keys.clone()).map_err(failed)?;
        let stores = match wanted {
            Wanted::Now => store::build(&spec, environment, keys.as_ref(), &wire),
            Wanted::Later => store::build_or_later(&spec, environment, keys.as_ref(), &wire),
        };
        let stores = stores.map_err(failed)?;
        let pace = Pace::new(limits.in_flight, limits.max_requests, limits.max_bandwidth);
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(HELPERS)
            .thread_name("covey-origin")
            .enable_all()
            .build()
            .map_err(|error| failed(Fault::Odd(format!("no threads for it: {error}"))))?;
        Ok(Remote {
            layout: Layout::new(&spec),
            engine: Arc::new(Engine {
                marker: Some(Layout::new(&spec).marker()),
                stores,
                stats,
                pace,
                keys,
                refusals: Refusals::default(),
            }),
            wire,
            spec,
            limits,
            access,
            keys_from,
            volume: String::new(),
            unseen: AtomicBool::new(false),
            recent: Recent::default(),
            doubts: Doubts::default(),
            marker_seen: Mutex::new(None),
            runtime: Some(runtime),
        })
    }

    /// The place, with the endpoint and region in use: what a volume stores.
    pub fn spec(&self) -> &RemoteSpec {
        &self.spec
    }

    /// The volume that the origin was created for.
    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// The counters so far.
    pub fn stats(&self) -> RemoteStats {
        self.engine.stats.snapshot()
    }

    /// What the store refuses while it answers: because of the credentials, the clock, or a missing right.
    /// Empty while it serves.
    pub fn refusals(&self) -> Vec<Refusal> {
        let now = self.engine.refusals.now(base::time::monotonic()).into_iter();
        let refusal = |Shown { act, failed, since, objects }| {
            let objects = objects.map(|(count, key)| match count {
                1 => format!("; only {key}"),
                _ => format!("; {count} objects, one is {key}"),
            });
            let why = self.line(&failed) + &objects.unwrap_or_default();
            Refusal { act, mistake: mistake_of(&failed.fault), why, since }
        };
        now.map(refusal).collect()
    }

    /// By how many seconds this machine's clock is ahead of the store's (negative: behind), by the header of
    /// an answer; none if the store sends no time. Needs no rights to the place: an answer that refuses also
    /// has a time.
    ///
    /// # Errors
    /// [`OriginError::Remote`]: nothing answers, or no request can be made.
    pub fn clock_ahead(spec: &RemoteSpec, environment: &Environment) -> Result<Option<i64>, OriginError> {
        let remote = Remote::connect(spec, environment, Limits::default(), Access::ReadOnly, Wanted::Now)?;
        let asked = remote.read_marker();
        match (remote.engine.stats.clock_ahead(), asked) {
            (None, Err(error)) => Err(error),
            (ahead, _) => Ok(ahead),
        }
    }

    /// Runs `work` on the runtime and waits for it, from any thread.
    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Failed>> + Send + 'static,
    ) -> Result<T, Failed> {
        let ended = || Failed { fault: Fault::Ended, tries: 0 };
        let Some(runtime) = &self.runtime else { return Err(ended()) };
        let (done, result) = mpsc::sync_channel(1);
        runtime.spawn(async move {
            // It fails if the caller no longer waits. Then the result is not needed.
            let _ = done.send(work.await);
        });
        result.recv().unwrap_or_else(|_| Err(ended()))
    }

    fn call(&self, what: What) -> Call {
        let Limits { read_deadline, write_deadline, hedge, .. } = self.limits;
        let for_whole = |limit| self.limits.for_whole(limit);
        let (limit, one, hedge) = match what {
            What::Small => (read_deadline, TRY_SMALL, hedge),
            What::Large => (for_whole(read_deadline), TRY_LARGE, hedge),
            What::Store => (for_whole(write_deadline), TRY_STORE, false),
            What::Remove | What::List => (write_deadline, TRY_LARGE, false),
        };
        // With a budget of bytes, a try may take as long as the budget requires.
        let one = if self.limits.max_bandwidth.is_some() { limit } else { one };
        // The deadline starts now, and is no later than that of the calling work.
        Call { what, deadline: Deadline::current().within(limit), one, tries: u32::MAX, hedge }
    }

    fn opening(&self, what: What) -> Call {
        let deadline = Deadline::current().within(OPENING);
        Call { deadline, one: OPENING, tries: OPENING_TRIES, hedge: false, ..self.call(what) }
    }

    fn line(&self, failed: &Failed) -> String {
        let explained = self.explained(failed);
        format!("{}: {explained}", self.spec)
    }

    fn explained(&self, failed: &Failed) -> Explained {
        let mut explained =
            explain(&failed.fault, &About { spec: &self.spec, keys: &self.keys_from, rights: self.rights() });
        if failed.tries > 1 {
            explained.what += &format!(" (tried {} times)", failed.tries);
        }
        explained
    }

    /// What the keys must be allowed to do with objects.
    fn rights(&self) -> &'static str {
        if self.access == Access::ReadOnly { "get and list" } else { "get, put, delete and list" }
    }

    /// The error of a call that is not about a blob, or about one that exists.
    fn unavailable(&self, failed: &Failed) -> BlobError {
        match mistake_of(&failed.fault) {
            Mistake::Full => BlobError::Full,
            mistake if is_refusal(mistake) || failed.fault.is_about_object() => {
                BlobError::Refused(self.line(failed))
            }
            _ => BlobError::Unavailable(self.line(failed)),
        }
    }

    fn origin_error(&self, failed: &Failed) -> OriginError {
        let Explained { what, next } = self.explained(failed);
        OriginError::Remote { origin: self.spec.to_string(), mistake: mistake_of(&failed.fault), what, next }
    }

    /// Whether the place may be changed. The marker of an origin that was opened unseen is read first.
    fn writable(&self) -> Result<(), BlobError> {
        if self.access == Access::ReadOnly {
            return Err(BlobError::Io(std::io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        self.see().map_err(|error| match error {
            OriginError::Remote { mistake, .. } if is_refusal(mistake) || mistake == Mistake::Taken => {
                BlobError::Refused(error.to_string())
            }
            _ => BlobError::Unavailable(error.to_string()),
        })
    }
}
