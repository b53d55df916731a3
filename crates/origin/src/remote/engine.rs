//! Every request goes through this module: its slot in flight, its tries, its deadline, its hedge.
//!
//! A **call** is what the rest of the program asks for ("this range of that key"), with a deadline. It makes
//! **tries**, one after the other, with a wait between them that doubles and is randomized, so that callers
//! that failed together do not return together. A try of a GET may be hedged: it sends a **second request**
//! when the first takes longer than the p99 of recent requests. The first correct answer is taken and the
//! other request is dropped. While bytes arrive, no second request is sent: on a shared line each request is
//! slow, and one more makes all of them slower.
//!
//! A permanent error is not retried: a wrong key is wrong the second time too. Keys that a file or a service
//! gives may have been replaced. So if the store calls them wrong, they are asked for at once.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::Deadline;
use base::time::BootTime;
use blob::Buffer;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use tokio::time::timeout;

use super::answers::Mistake;
use super::answers::Right;
use super::fault::{Fault, mistake_of, page_instead};
use super::keys::Keys;
use super::latency::Latency;
use super::pace::{Pace, Size};
use super::refusals::{Refusals, Refused, concerns_all, is_refusal};
use super::stats::Stats;
use super::store::Stores;
use super::wire::Fresh;

/// The first wait; each later one is twice as long.
const WAIT_FIRST: Duration = Duration::from_millis(50);
const WAIT_MOST: Duration = Duration::from_secs(5);

/// How often one call goes on with other keys.
const RENEWALS: u32 = 3;
/// How many refused tries of a call may wait for a service to give other keys.
const UNTIL_KEYS: u32 = 5;
/// While the keys are refused, other ones are asked for at most so often.
const ASK_KEYS: Duration = Duration::from_secs(1);
/// Time limit of the look at whether the keys are refused as such.
const VOUCH: Duration = Duration::from_secs(5);

/// Bodies are charged to the budget of bytes in pieces of this size.
const PIECE: u64 = 64 << 10;

/// The name of the attribute that identifies a record's writer; Azure allows letters only.
pub(crate) const MAKER: &str = "coveymaker";

/// Bytes of bodies that have arrived for a call.
type Came = Arc<AtomicU64>;

/// Takes the body of a GET piece by piece as it arrives. Called with the object's size and the piece; returns
/// how much of the piece it took, from its front. The rest is collected.
pub(crate) type BodySink = Box<dyn FnMut(u64, &[u8]) -> usize + Send>;

/// Makes a [`BodySink`] for each GET.
pub(crate) type BodySinks = Arc<dyn Fn() -> BodySink + Send + Sync>;

tokio::task_local! {
    /// The counter of the call that this task makes.
    static CAME: Came;
    /// For GETs of this task whose bodies are used before they end.
    pub(crate) static TAKERS: BodySinks;
    /// No request of this task is sent after this moment.
    pub(crate) static UNTIL: BootTime;
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Reads few bytes.
    Small,
    /// Reads a whole blob.
    Large,
    /// Stores.
    Store,
    /// Removes.
    Remove,
    /// Lists.
    List,
}

impl What {
    /// The right that it needs.
    pub(crate) fn act(self) -> Right {
        match self {
            What::Small | What::Large => Right::Read,
            What::Store => Right::Write,
            What::Remove => Right::Remove,
            What::List => Right::List,
        }
    }
}

/// How a call is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) what: What,
    /// The time limit of the whole call, and of what follows from its answer.
    pub(crate) deadline: Deadline,
    /// The time limit of one try.
    pub(crate) one: Duration,
    /// The maximum number of tries.
    pub(crate) tries: u32,
    pub(crate) hedge: bool,
}

/// A call that failed.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) fault: Fault,
    pub(crate) tries: u32,
}

/// Bytes that arrived.
#[derive(Debug)]
pub(crate) struct Got {
    /// Bytes that no [`BodySink`] took.
    pub(crate) bytes: Buffer,
    /// How many arrived.
    pub(crate) len: u64,
    /// The offset of the first byte in the object.
    pub(crate) start: u64,
    /// The whole object's size.
    pub(crate) total: u64,
    /// The identity of the record's writer.
    pub(crate) maker: Option<String>,
}

/// What the calls share.
pub(crate) struct Engine {
    pub(crate) stores: Stores,
    pub(crate) stats: Arc<Stats>,
    pub(crate) pace: Pace,
    pub(crate) keys: Option<Arc<Keys>>,
    pub(crate) refusals: Refusals,
    /// An object that the keys may read if they may read anything.
    pub(crate) marker: Option<Path>,
}

impl Engine {
    /// Makes a call about an object, if it is about one. `one` makes one try; its argument is the number of
    /// tries before.
    pub(crate) async fn run<T, F>(
        &self,
        call: Call,
        key: Option<&Path>,
        one: impl Fn(u32) -> F,
    ) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let act = call.what.act();
        if let Some(refused) = self.refusals.meets(act, key, base::time::monotonic()) {
            if !self.has_other_keys(call, &refused.fault).await {
                self.stats.refusal();
                return Err(refused);
            }
            self.refusals.renewed();
        }
        let done = self.try_until(call, one).await;
        match &done {
            Ok(_) => self.refusals.answered(act, key),
            Err(failed) if failed.fault.is_missing() || failed.fault.is_taken() => {
                self.refusals.answered(act, key);
            }
            Err(failed) if is_refusal(mistake_of(&failed.fault)) => {
                self.stats.refusal();
                let what = match self.are_keys_refused(call, key, &failed.fault).await {
                    true => Refused::All,
                    false => Refused::One(act, key),
                };
                self.refusals.failed(what, failed, base::time::monotonic(), base::time::now());
            }
            Err(_) => {}
        }
        done
    }

    /// Whether there are other keys than those that were refused a moment ago.
    async fn has_other_keys(&self, call: Call, refused: &Fault) -> bool {
        let Some(keys) = &self.keys else { return false };
        if !refused.is_about_keys() {
            return keys.reload();
        }
        let now = base::time::monotonic();
        let began = now.checked_sub(ASK_KEYS).unwrap_or(now);
        let differ = keys.differ_from(keys.changes(), began);
        timeout(call.deadline.left(), differ).await.unwrap_or(false)
    }

    /// Whether a refusal is about all requests with these keys. A store may say so of one object, too, so
    /// the marker is asked for.
    async fn are_keys_refused(&self, call: Call, key: Option<&Path>, fault: &Fault) -> bool {
        if !concerns_all(mistake_of(fault)) {
            return false;
        }
        let Some(marker) = self.marker.as_ref().filter(|marker| key != Some(*marker)) else { return true };
        if self.refusals.are_of_all(base::time::monotonic()) {
            return true;
        }
        // Its body is not read. A HEAD would not say why it is refused.
        let look = async { self.one().get_opts(marker, GetOptions::new()).await.map(drop) };
        let looked = timeout(VOUCH.min(call.deadline.left()), look).await;
        matches!(looked, Ok(Err(error)) if concerns_all(mistake_of(&Fault::of(&error))))
    }

    /// Makes a call as [`Engine::run`], without regard to what the store refused before.
    pub(crate) async fn try_until<T, F>(&self, call: Call, one: impl Fn(u32) -> F) -> Result<T, Failed>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let begin = base::time::monotonic();
        let mut tries = 0;
        // Of these, those that may be permanent: an earlier outage says nothing about them.
        let mut doubtful = 0;
        let mut last = None;
        let mut renewals = 0;
        loop {
            let changes = self.keys.as_ref().map_or(0, |keys| keys.changes());
            let began = base::time::monotonic();
            let fault = match timeout(call.deadline.left(), self.try_once(call, || one(tries))).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(fault)) => fault,
                Err(_) => return Err(Failed { fault: last.unwrap_or(Fault::Slow(begin.elapsed())), tries }),
            };
            tries += 1;
            if fault.is_missing() || fault.is_taken() || fault.status() == Some(416) {
                return Err(Failed { fault, tries });
            }
            self.stats.error(fault.is_throttle());
            let (mut renew, mut may_come) = (false, false);
            if let Some(keys) = self.keys.as_ref().filter(|_| fault.is_about_keys()) {
                let differ = timeout(call.deadline.left(), keys.differ_from(changes, began));
                renew = renewals < RENEWALS && differ.await.unwrap_or(false);
                may_come = keys.are_of_role() && doubtful < UNTIL_KEYS;
            }
            if renew {
                renewals += 1;
                self.refusals.renewed();
            }
            doubtful += u32::from(!fault.may_pass(u32::MAX));
            if !renew && (!(may_come || fault.may_pass(doubtful)) || tries >= call.tries) {
                return Err(Failed { fault, tries });
            }
            // A store that asks for a longer pause than there is time for is asked once more before its end.
            let asked = fault.wait().map(|asked| asked.min(call.deadline.left().mul_f64(0.75)));
            let wait = if renew { Duration::ZERO } else { wait_before(tries, asked, base::random::u64()) };
            if wait >= call.deadline.left() {
                return Err(Failed { fault, tries });
            }
            tokio::time::sleep(wait).await;
            self.stats.retry();
            last = Some(fault);
        }
    }

    async fn try_once<T, F>(&self, call: Call, one: impl Fn() -> F) -> Result<T, Fault>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let size = if matches!(call.what, What::Large | What::Store) { Size::Large } else { Size::Small };
        let closed = || Fault::Ended;
        let _place = self.pace.enter(size).await.ok_or_else(closed)?;
        let _flight = self.stats.fly();
        let latency = match call.what {
            What::Small => &self.stats.small,
            What::Large => &self.stats.large,
            What::Store => &self.stats.put,
            What::Remove | What::List => return bounded(call.one, one()).await,
        };
        let begin = base::time::monotonic();
        if !call.hedge {
            let done = bounded(call.one, one()).await;
            return timed(latency, begin, done);
        }
        self.stats.extra.earn();
        let came = CAME.try_with(Arc::clone).unwrap_or_default();
        let mut first = pin!(CAME.scope(Arc::clone(&came), bounded(call.one, one())));
        let until = begin + call.one / 2;
        if let Some(done) = while_it_comes(first.as_mut(), latency.hedge_after(), until, &came).await {
            return timed(latency, begin, done);
        }
        let place = self.pace.try_enter(size);
        if place.is_none() || !self.stats.extra.spend() {
            let done = first.await;
            return timed(latency, begin, done);
        }
        self.stats.hedge();
        let second = pin!(CAME.scope(came, bounded(call.one, one())));
        match select(first, second).await {
            Either::Left((Ok(done), _)) => timed(latency, begin, Ok(done)),
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Ok(done), _)) => {
                // The first request is dropped; it took at least this long.
                self.stats.hedge_won();
                timed(latency, begin, Ok(done))
            }
            Either::Right((Err(_), first)) => {
                let done = first.await;
                timed(latency, begin, done)
            }
        }
    }

    /// The size of an object. The answer to a HEAD may not say it, or not why it is refused. Then one byte of
    /// the object is asked for.
    pub(crate) async fn size(&self, key: &Path) -> Result<u64, Fault> {
        let fault = match self.one().head(key).await {
            Ok(meta) => return Ok(meta.size),
            Err(error) => Fault::of(&error),
        };
        if !fault.says_little() {
            return Err(fault);
        }
        let options = GetOptions::new().with_range(Some(GetRange::Bounded(0..1)));
        let got = self.one().get_opts(key, options).await.map_err(|error| Fault::of(&error))?;
        Ok(got.meta.size)
    }

    /// One GET. If the object has more than `most` bytes, none are read.
    pub(crate) async fn get(
        &self,
        key: &Path,
        range: Option<GetRange>,
        fresh: bool,
        most: u64,
    ) -> Result<Got, Fault> {
        let mut options = GetOptions::new().with_range(range);
        if fresh {
            options.extensions.insert(Fresh);
        }
        let result = self.stores.one.get_opts(key, options).await.map_err(|error| Fault::of(&error))?;
        let (total, range) = (result.meta.size, result.range.clone());
        let name = object_store::Attribute::Metadata(MAKER.into());
        let maker = result.attributes.get(&name).map(|value| value.as_ref().to_owned());
        let expected = range.end.saturating_sub(range.start);
        let mut got = Got { bytes: Buffer::default(), len: 0, start: range.start, total, maker };
        if expected > most {
            return Ok(got);
        }
        let mut taker = TAKERS.try_with(|takers| takers()).ok();
        let mut pieces = result.into_stream();
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| Fault::of(&error))?;
            let len = piece.len() as u64;
            self.stats.receive(len);
            if got.len + got.start == 0
                && let Some(page) = page_instead(&piece)
            {
                return Err(page);
            }
            let _ = CAME.try_with(|came| came.fetch_add(len, Ordering::Relaxed));
            if got.len + len > expected {
                return Err(Fault::Odd(format!("more than the {expected} bytes that were announced")));
            }
            let taken = taker.as_mut().map_or(0, |taker| taker(total, &piece));
            if taken < piece.len() {
                if got.bytes.room() == 0 {
                    got.bytes = Buffer::with_room((expected - got.len) as usize - taken);
                }
                got.bytes.extend_from_slice(&piece[taken..]);
            }
            got.len += len;
            self.pace.bytes(len).await;
        }
        if got.len < expected {
            return Err(Fault::Cut(format!("{} of {expected} bytes came", got.len)));
        }
        Ok(got)
    }

    /// Waits for the budget of bytes before sending a body.
    pub(crate) async fn pay(&self, bytes: u64) {
        if !self.pace.limits_bytes() {
            return;
        }
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(PIECE);
            self.pace.bytes(piece).await;
            left -= piece;
        }
    }

    pub(crate) fn one(&self) -> &dyn ObjectStore {
        &*self.stores.one
    }
}

/// Waits for a request as long as bytes arrive at least this often. None if they do not, or at `until`.
async fn while_it_comes<F: Future>(
    mut first: Pin<&mut F>,
    often: Duration,
    until: Instant,
    came: &Came,
) -> Option<F::Output> {
    let mut before = came.load(Ordering::Relaxed);
    loop {
        if let Ok(done) = timeout(often, first.as_mut()).await {
            return Some(done);
        }
        let now = came.load(Ordering::Relaxed);
        if now == before || base::time::monotonic() >= until {
            return None;
        }
        before = now;
    }
}

async fn bounded<T>(time: Duration, one: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    timeout(time, one).await.unwrap_or(Err(Fault::Slow(time)))
}

/// Counts the time of an answer. "Not found" is an answer too.
fn timed<T>(latency: &Latency, begin: Instant, done: Result<T, Fault>) -> Result<T, Fault> {
    let answered = match &done {
        Ok(_) => true,
        Err(fault) => fault.status().is_some() && mistake_of(fault) != Mistake::Busy,
    };
    if answered {
        latency.add(begin.elapsed());
    }
    done
}

/// How long to wait before the next try: random between half and all of a span that doubles, and at least as
/// long as the store asks.
pub(super) fn wait_before(tries: u32, asked: Option<Duration>, lot: u64) -> Duration {
    let span = WAIT_FIRST.saturating_mul(1 << tries.saturating_sub(1).min(10)).min(WAIT_MOST);
    let part = 0.5 + (lot >> 11) as f64 / (1u64 << 54) as f64;
    span.mul_f64(part).max(asked.unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_and_have_an_end() {
        let spans: Vec<Duration> = (1..20).map(|tries| wait_before(tries, None, u64::MAX)).collect();
        assert!(spans[0] <= WAIT_FIRST && spans[0] > WAIT_FIRST.mul_f64(0.99));
        assert!(spans.windows(2).all(|pair| pair[0] <= pair[1]) && spans[18] <= WAIT_MOST);
        assert_eq!(wait_before(3, None, 0), WAIT_FIRST.mul_f64(2.0));
        assert_eq!(wait_before(1, Some(Duration::from_secs(7)), 5), Duration::from_secs(7));
    }
}
