//! Blobs in the store: one object each, the sums and then the bytes.
//!
//! **A part** consists of whole 64 KiB groups and the object's head, which holds the sums: two parallel GETs,
//! or one if the groups are the blob's first. A reader of another part of the same blob has its sums already,
//! and sends one GET.
//!
//! **A whole blob** is one GET. Its sums are computed from its bytes and compared with the name. That costs
//! no more than comparing the groups with the head, and it trusts nothing in the head. A caller that uses the
//! blob while it arrives ([`Onto`]) compares it group by group with the head.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use base::phase::{self, Phase};
use base::size::{BLOB_MAX, GROUP};
use base::time::BootTime;
use base::{BlobId, Deadline};
use blob::folder::past_end;
use blob::source::{Onto, too_late};
use blob::{BlobError, BlobSource, Buffer, Origin, Part, Sums};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::try_join;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{GetRange, ObjectMeta, ObjectStoreExt, PutOptions, PutPayload};
use parking_lot::Mutex;

use super::Remote;
use super::doubts::Tries;
use super::engine::{BodySink, BodySinks, Call, Engine, Failed, Got, TAKERS, UNTIL, What, wait_before};
use super::fault::{Fault, mistake_of};
use super::layout::{HEAD, OBJECT_MAX, blob_size, head_of, sums_in};
use super::refusals::is_refusal;

/// The maximum number of keys that one request removes.
const REMOVED_AT_ONCE: usize = 1000;

/// Concurrent requests that each remove one key, for a store without the other kind.
const SINGLES_AT_ONCE: usize = 16;

/// How many keys are listed before they are passed on.
const LISTED_AT_ONCE: usize = 1000;

/// How often a blob is fetched before wrong bytes are taken for the store's copy.
const ASKED: u32 = 4;

/// Groups of a blob, and the object's head, if it was requested and did not arrive with them.
struct PartRead {
    body: Got,
    head: Option<Got>,
}

impl BlobSource for Remote {
    fn read_at(&self, id: &BlobId, offset: u32, buf: &mut [u8]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        if buf.is_empty() {
            let size = self.size_of(id)?.ok_or(BlobError::Missing(*id))?;
            return if offset > size { Err(past_end(id, size)) } else { Ok(()) };
        }
        let len = u32::try_from(buf.len()).unwrap_or(u32::MAX);
        let part = self.part(id, offset, len)?;
        let from = (offset - part.offset) as usize;
        buf.copy_from_slice(&part.bytes[from..from + buf.len()]);
        Ok(())
    }

    /// Never: each read is a request.
    fn is_local(&self, _: &BlobId) -> bool {
        false
    }
}

impl Origin for Remote {
    fn adopt(&self, id: &BlobId, sums: &Sums, file: &FilePath) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        let mut object = vec![0; HEAD as usize + sums.size() as usize];
        File::open(file)?.read_exact_at(&mut object[HEAD as usize..], 0)?;
        self.store(id, sums, object)
    }

    fn put(&self, id: &BlobId, sums: &Sums, bytes: &[u8]) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        let mut object = Vec::with_capacity(HEAD as usize + bytes.len());
        object.resize(HEAD as usize, 0);
        object.extend_from_slice(bytes);
        self.store(id, sums, object)
    }

    /// Every store operation is durable when it returns.
    fn sync(&self) -> Result<(), BlobError> {
        Ok(())
    }

    fn remove(&self, id: &BlobId) -> Result<(), BlobError> {
        self.remove_many(std::slice::from_ref(id), BootTime::NEVER)
    }

    /// With requests that remove a thousand keys, if the store has them.
    fn remove_many(&self, ids: &[BlobId], until: BootTime) -> Result<(), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.writable()?;
        // That one is refused is no reason to keep the others.
        let mut refused = Ok(());
        for ids in ids.chunks(REMOVED_AT_ONCE) {
            ids.iter().for_each(|id| self.recent.forget(id));
            let keys: Vec<Path> = ids.iter().map(|id| self.layout.blob(id)).collect();
            let (engine, call) = (Arc::clone(&self.engine), self.call(What::Remove));
            let left = until.since(base::time::boot());
            if left.is_zero() {
                return Err(too_late());
            }
            let call = Call { deadline: call.deadline.within(left), one: call.one.min(left), ..call };
            let tries = Arc::new(Tries::default());
            let made = Arc::clone(&tries);
            let removed = self.wait(UNTIL.scope(until, async move {
                match &*keys {
                    [key] => remove_one(&engine, call, key, &made).await,
                    _ => remove_all(&engine, call, keys, &made).await,
                }
            }));
            if tries.are_doubtful() {
                self.doubts.add(ids, base::time::monotonic());
            }
            let removed = removed.map_err(|failed| match base::time::boot() < until {
                true => self.unavailable(&failed),
                false => too_late(),
            });
            match removed {
                Err(error @ BlobError::Refused(_)) => refused = refused.and(Err(error)),
                other => other?,
            }
        }
        refused
    }

    fn look(&self) -> Result<Option<String>, BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.look_at_marker()
    }

    fn size(&self, id: &BlobId) -> Result<Option<u64>, BlobError> {
        let _phase = phase::enter(Phase::Origin);
        Ok(self.size_of(id)?.map(u64::from))
    }

    fn list(&self, each: &mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError> {
        let mut keep = |meta: &ObjectMeta| match (self.layout.blob_of(&meta.location), blob_size(meta.size)) {
            (Some(id), Some(size)) => each(id, u64::from(size)),
            // Another program's object, or one of a size that no blob has.
            _ => true,
        };
        self.list_keys(&self.layout.blobs(), &mut keep).map_err(|failed| self.unavailable(&failed))
    }

    fn verify(&self, id: &BlobId) -> Result<(), BlobError> {
        self.fetch(id).map(drop)
    }

    fn fetch(&self, id: &BlobId) -> Result<(Sums, Buffer), BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.until_right(id, |fresh, deadline| {
            Ok(whole(id, self.get_whole(id, fresh, deadline, Arc::new(headless))?))
        })
    }

    fn fetch_onto(&self, id: &BlobId, onto: &Arc<dyn Onto>) -> Result<Option<(Sums, Buffer)>, BlobError> {
        let _phase = phase::enter(Phase::Origin);
        self.until_right(id, |fresh, deadline| {
            // After a wrong answer, the next one is compared as a whole.
            let takers = if fresh { counting(onto) } else { handing_on(id, onto) };
            let got = self.get_whole(id, fresh, deadline, takers)?;
            Ok(if onto.is_whole() { Ok(None) } else { whole(id, got).map(Some) })
        })
    }

    fn fetch_part(&self, id: &BlobId, offset: u32, len: u32) -> Result<Part, BlobError> {
        let _phase = phase::enter(Phase::Origin);
        if len == 0 {
            let (sums, bytes) = self.fetch(id)?;
            let past = offset > sums.size();
            return if past { Err(past_end(id, sums.size())) } else { Ok(Part { sums, offset: 0, bytes }) };
        }
        self.part(id, offset, len)
    }

    fn describe(&self) -> String {
        self.spec.to_string()
    }
}

impl Remote {
    /// The meaning of a failed call about a blob. `deadline` is that of the call: further checks end by then
    /// too.
    pub(super) fn explain(&self, id: &BlobId, failed: &Failed, deadline: Deadline) -> BlobError {
        if !failed.fault.is_missing() {
            return self.unavailable(failed);
        }
        match self.marker_is_there(deadline) {
            Ok(true) => BlobError::Missing(*id),
            Ok(false) => BlobError::Unavailable(format!(
                "{}: the origin is gone (it holds no covey-origin any more): bring the bucket back under this name",
                self.spec
            )),
            Err(failed) => self.unavailable(&failed),
        }
    }

    fn size_of(&self, id: &BlobId) -> Result<Option<u32>, BlobError> {
        self.size_by(id, self.call(What::Small).deadline)
    }

    fn size_by(&self, id: &BlobId, deadline: Deadline) -> Result<Option<u32>, BlobError> {
        let call = Call { deadline, ..self.call(What::Small) };
        let (engine, key) = (Arc::clone(&self.engine), self.layout.blob(id));
        let total = self.wait(async move {
            let (engine, key) = (&engine, &key);
            engine.run(call, Some(key), |_| engine.size(key)).await
        });
        match total {
            Ok(total) => {
                let what = || format!("its object has {total} bytes");
                blob_size(total).map(Some).ok_or_else(|| BlobError::Damaged { id: *id, what: what() })
            }
            Err(failed) => match self.explain(id, &failed, deadline) {
                BlobError::Missing(_) => Ok(None),
                other => Err(other),
            },
        }
    }

    /// Waits until no removal of the blob can be carried out any more.
    fn wait_for_removal(&self, id: &BlobId) -> Result<(), BlobError> {
        let left = self.doubts.left(id, base::time::monotonic());
        if Deadline::current().left() < left {
            let what = "the store may still carry out an earlier removal of this blob";
            return Err(BlobError::Unavailable(what.to_owned()));
        }
        if !left.is_zero() {
            std::thread::sleep(left);
        }
        Ok(())
    }

    /// Stores a blob: `object` is [`HEAD`] bytes for its head, then its own bytes.
    fn store(&self, id: &BlobId, sums: &Sums, mut object: Vec<u8>) -> Result<(), BlobError> {
        self.writable()?;
        let (head, bytes) = object.split_at_mut(HEAD as usize);
        if sums.id() != *id || sums.size() as usize != bytes.len() {
            let what =
                format!("the sums of {} do not belong to the {} bytes of {id}", sums.id(), bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
        }
        if !bytes.is_empty() {
            // Bytes that decayed on the way here must not become the only copy.
            sums.check(0, bytes).map_err(|wrong| BlobError::Damaged { id: *id, what: wrong.to_string() })?;
        }
        head.copy_from_slice(&head_of(sums));
        self.wait_for_removal(id)?;
        let (engine, call, key) = (Arc::clone(&self.engine), self.call(What::Store), self.layout.blob(id));
        let bytes = Bytes::from(object);
        let stored = self.wait(async move {
            let (key, bytes) = (&key, &bytes);
            let put = |_| async {
                engine.pay(bytes.len() as u64).await;
                let payload = PutPayload::from(bytes.clone());
                let put = engine.one().put_opts(key, payload, PutOptions::default());
                put.await.map(drop).map_err(|error| Fault::of(&error))
            };
            engine.run(call, Some(key), put).await
        });
        stored.map_err(|failed| match failed.fault.is_missing() {
            // An upload can also find that the bucket does not exist.
            true => self.explain(id, &failed, call.deadline),
            false => self.unavailable(&failed),
        })
    }

    /// Fetches. If the result is not the blob, fetches again past any cache on the way, [`ASKED`] times in
    /// all, with a wait before each further fetch, all within the time limit of one call. A line that
    /// corrupts one answer in five corrupts two in a row often enough for programs to notice.
    fn until_right<T>(
        &self,
        id: &BlobId,
        ask: impl Fn(bool, Deadline) -> Result<Result<T, String>, BlobError>,
    ) -> Result<T, BlobError> {
        let deadline = self.call(What::Large).deadline;
        let mut asked = 0;
        loop {
            let what = match ask(asked > 0, deadline)? {
                Ok(done) => return Ok(done),
                Err(wrong) => wrong,
            };
            asked += 1;
            self.engine.stats.damage();
            self.recent.forget(id);
            // The second follows at once: the likeliest cause is a cache on the way, which it bypasses.
            let wait =
                if asked == 1 { Duration::ZERO } else { wait_before(asked - 1, None, base::random::u64()) };
            if asked == ASKED || wait >= deadline.left() {
                return Err(BlobError::Damaged { id: *id, what });
            }
            std::thread::sleep(wait);
        }
    }

    /// A blob's object, without what `takers` take of it.
    fn get_whole(
        &self,
        id: &BlobId,
        fresh: bool,
        deadline: Deadline,
        takers: BodySinks,
    ) -> Result<Got, BlobError> {
        let call = Call { deadline, ..self.call(What::Large) };
        let (engine, key) = (Arc::clone(&self.engine), self.layout.blob(id));
        let got = self.wait(TAKERS.scope(takers, async move {
            let key = &key;
            engine.run(call, Some(key), |_| engine.get(key, None, fresh, OBJECT_MAX)).await
        }));
        got.map_err(|failed| self.explain(id, &failed, deadline))
    }

    fn part(&self, id: &BlobId, offset: u32, len: u32) -> Result<Part, BlobError> {
        let end = u64::from(offset) + u64::from(len);
        if end > u64::from(BLOB_MAX) {
            return Err(past_end(id, self.size_of(id)?.ok_or(BlobError::Missing(*id))?));
        }
        let from = offset - offset % GROUP;
        let to = (end as u32).next_multiple_of(GROUP);
        self.until_right(id, |fresh, deadline| {
            let known = self.recent.get(id);
            if let Some(sums) = known.as_ref().filter(|sums| end > u64::from(sums.size())) {
                return Err(past_end(id, sums.size()));
            }
            let to = known.as_ref().map_or(to, |sums| to.min(sums.size()));
            let whole = to - from > BLOB_MAX / 4;
            let what = if whole { What::Large } else { What::Small };
            let call = Call { deadline, ..self.call(what) };
            let (engine, key) = (Arc::clone(&self.engine), self.layout.blob(id));
            let head = known.is_none();
            let read = self.wait(async move {
                let range = u64::from(HEAD + from)..u64::from(HEAD + to);
                read_part(&engine, call, &key, range, head, fresh).await
            });
            let read = match read {
                Err(failed) if failed.fault.status() == Some(416) => {
                    return Err(past_end(id, self.size_by(id, deadline)?.ok_or(BlobError::Missing(*id))?));
                }
                read => read.map_err(|failed| self.explain(id, &failed, deadline))?,
            };
            let sums = match known {
                Some(sums) => Ok((*sums).clone()),
                None => sums_of(id, &read),
            };
            let sums = match sums {
                Ok(sums) => sums,
                Err(wrong) => return Ok(Err(wrong)),
            };
            if end > u64::from(sums.size()) {
                self.recent.put(id, &sums);
                return Err(past_end(id, sums.size()));
            }
            let mut bytes = read.body.bytes;
            // The head came with the first groups.
            let before = u64::from(HEAD + from).saturating_sub(read.body.start) as usize;
            bytes.leave_out(before);
            if let Err(wrong) = sums.check_group(from, &bytes) {
                return Ok(Err(wrong.to_string()));
            }
            self.recent.put(id, &sums);
            Ok(Ok(Part { sums, offset: from, bytes }))
        })
    }

    /// Calls `each` with every key below `prefix`, on this thread, until it returns false.
    pub(super) fn list_keys(
        &self,
        prefix: &Path,
        each: &mut dyn FnMut(&ObjectMeta) -> bool,
    ) -> Result<(), Failed> {
        self.list_with(self.call(What::List), Some(prefix), each)
    }

    /// Lists keys as [`Remote::list_keys`], with one call for each page: a listing is unbounded, but each of
    /// its pages must come in time.
    pub(super) fn list_with(
        &self,
        mut call: Call,
        prefix: Option<&Path>,
        each: &mut dyn FnMut(&ObjectMeta) -> bool,
    ) -> Result<(), Failed> {
        let listing = Arc::new(Listing { prefix: prefix.cloned(), at: Mutex::default() });
        loop {
            let (engine, own) = (Arc::clone(&self.engine), Arc::clone(&listing));
            let page = self.wait(async move {
                let (engine, own) = (&engine, &own);
                engine.run(call, None, |_| own.page(engine)).await
            })?;
            if !page.iter().all(&mut *each) || page.len() < LISTED_AT_ONCE {
                return Ok(());
            }
            call.deadline = self.call(What::List).deadline;
        }
    }
}

/// A listing in progress: the stream of its answers, and the key after which to continue when the stream
/// breaks.
struct Listing {
    prefix: Option<Path>,
    at: Mutex<(Option<Keys>, Option<Path>)>,
}

type Keys = BoxStream<'static, object_store::Result<ObjectMeta>>;

impl Listing {
    /// The next keys; fewer than [`LISTED_AT_ONCE`] only at the end.
    async fn page(&self, engine: &Engine) -> Result<Vec<ObjectMeta>, Fault> {
        let (stream, last) = {
            let mut at = self.at.lock();
            (at.0.take(), at.1.clone())
        };
        let mut stream = stream.unwrap_or_else(|| match &last {
            Some(last) => engine.one().list_with_offset(self.prefix.as_ref(), last),
            None => engine.one().list(self.prefix.as_ref()),
        });
        let mut page = Vec::new();
        while page.len() < LISTED_AT_ONCE {
            match stream.next().await {
                Some(Ok(meta)) => page.push(meta),
                Some(Err(error)) => return Err(Fault::of(&error)),
                None => break,
            }
        }
        let last = page.last().map(|meta| meta.location.clone()).or(last);
        *self.at.lock() = (Some(stream), last);
        Ok(page)
    }
}

/// The range of an object, and its head if requested: in parallel, or as one range if they touch.
async fn read_part(
    engine: &Engine,
    call: Call,
    key: &Path,
    range: std::ops::Range<u64>,
    head: bool,
    fresh: bool,
) -> Result<PartRead, Failed> {
    if !head {
        return Ok(PartRead { body: get_range(engine, call, key, range, fresh).await?, head: None });
    }
    if range.start == u64::from(HEAD) {
        return Ok(PartRead { body: get_range(engine, call, key, 0..range.end, fresh).await?, head: None });
    }
    let small = Call { what: What::Small, ..call };
    let body = get_range(engine, call, key, range, fresh);
    let (body, head) = try_join(body, get_range(engine, small, key, 0..u64::from(HEAD), fresh)).await?;
    Ok(PartRead { body, head: Some(head) })
}

async fn get_range(
    engine: &Engine,
    call: Call,
    key: &Path,
    range: std::ops::Range<u64>,
    fresh: bool,
) -> Result<Got, Failed> {
    let range = &range;
    let get = |_| engine.get(key, Some(GetRange::Bounded(range.clone())), fresh, OBJECT_MAX);
    engine.run(call, Some(key), get).await
}

/// The sums that arrived with a part, if they lead to the blob's name.
fn sums_of(id: &BlobId, read: &PartRead) -> Result<Sums, String> {
    let first = read.head.as_ref().unwrap_or(&read.body);
    if first.total != read.body.total || first.start != 0 {
        return Err("two answers about it do not fit together".to_owned());
    }
    let size = blob_size(first.total).ok_or_else(|| odd(first.total))?;
    sums_in(id, size, &first.bytes)
}

/// A blob from what was collected of its object: everything but the head.
fn whole(id: &BlobId, got: Got) -> Result<(Sums, Buffer), String> {
    match blob_size(got.total) {
        Some(size) if got.len == got.total && got.bytes.len() == size as usize => {}
        Some(_) if got.len == got.total => {
            return Err("its bytes are not those that the sums before them speak of".to_owned());
        }
        _ => return Err(odd(got.total)),
    }
    let sums = Sums::of(&got.bytes);
    match sums.id() == *id {
        true => Ok((sums, got.bytes)),
        false => Err(format!("its bytes in the store have the hash {}", sums.id())),
    }
}

fn odd(size: u64) -> String {
    format!("its object has {size} bytes")
}

/// Takes the head alone.
fn headless() -> BodySink {
    let mut left = HEAD as usize;
    Box::new(move |_, piece| {
        let taken = piece.len().min(left);
        left -= taken;
        taken
    })
}

/// Takes the head alone, and reports what arrives. Otherwise the fetch would seem to have stalled.
fn counting(onto: &Arc<dyn Onto>) -> BodySinks {
    let onto = Arc::clone(onto);
    Arc::new(move || {
        let (onto, mut head) = (Arc::clone(&onto), headless());
        Box::new(move |total, piece| {
            onto.came(piece.len() as u64);
            head(total, piece)
        })
    })
}

/// Passes on the bytes of a blob as they arrive, once the sums before them have arrived and have its name.
fn handing_on(id: &BlobId, onto: &Arc<dyn Onto>) -> BodySinks {
    let (id, onto) = (*id, Arc::clone(onto));
    Arc::new(move || {
        let onto = Arc::clone(&onto);
        let (mut head, mut at) = (Vec::with_capacity(HEAD as usize), 0);
        // None: not here yet, or of no use.
        let mut sums: Option<Sums> = None;
        Box::new(move |total, piece| {
            onto.came(piece.len() as u64);
            let (first, rest) = piece.split_at(piece.len().min(HEAD as usize - head.len()));
            head.extend_from_slice(first);
            if !first.is_empty() && head.len() == HEAD as usize {
                sums = blob_size(total).and_then(|size| sums_in(&id, size, &head).ok());
            }
            sums = sums.take().filter(|sums| onto.take(sums, at, rest));
            at += rest.len() as u32;
            if sums.is_some() { piece.len() } else { first.len() }
        })
    })
}

async fn remove_one(engine: &Engine, call: Call, key: &Path, tries: &Tries) -> Result<(), Failed> {
    let delete = || async { engine.one().delete(key).await.map_err(|error| Fault::of(&error)) };
    let remove = |_| tries.one(delete());
    match engine.run(call, Some(key), remove).await {
        Err(failed) if failed.fault.is_missing() => Ok(()),
        other => other,
    }
}

async fn remove_all(engine: &Engine, call: Call, keys: Vec<Path>, tries: &Tries) -> Result<(), Failed> {
    let all = &keys;
    let delete = || async {
        let keys = futures_util::stream::iter(all.clone().into_iter().map(Ok)).boxed();
        let (mut removed, mut failed) = (engine.stores.many.delete_stream(keys), Ok(()));
        while let Some(one) = removed.next().await {
            match one.map_err(|error| Fault::of(&error)) {
                Err(fault) if !fault.is_missing() => failed = failed.and(Err(fault)),
                _ => {}
            }
        }
        failed
    };
    let remove = |_| tries.one(delete());
    let failed = match engine.run(Call { tries: 4, ..call }, None, remove).await {
        Err(failed) => failed,
        Ok(()) => return Ok(()),
    };
    // A store that has no such request says so in several ways.
    if !matches!(failed.fault.status(), Some(400 | 404 | 405 | 411 | 501)) {
        return Err(failed);
    }
    let mut refused = Ok(());
    for keys in keys.chunks(SINGLES_AT_ONCE) {
        let singles: Vec<_> = keys.iter().map(|key| remove_one(engine, call, key, tries)).collect();
        for removed in futures_util::future::join_all(singles).await {
            match removed {
                Err(failed) if is_refusal(mistake_of(&failed.fault)) => refused = refused.and(Err(failed)),
                other => other?,
            }
        }
    }
    refused
}
