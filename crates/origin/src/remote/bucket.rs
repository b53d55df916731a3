//! A bucket that others fill: its objects are listed and read as they are. It is no origin: it has no marker,
//! and nothing is written there.
//!
//! An object may change between its listing and a read, or between two reads of its ranges. So each read
//! names the ETag of the listing (`If-Match`), and the answer's own ETag and size are compared, too, since
//! not every store checks the condition. The bytes of two versions never come together.
//!
//! Nobody has the hash of such an object beforehand. But most stores say an MD5 or another sum of it
//! ([`Check`]). An object that is read as a whole is compared with that here, one that is read in ranges by
//! its reader.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use base::{Deadline, ForeignObject};
use futures_util::StreamExt;
use http::HeaderMap;
use object_store::path::Path;
use object_store::{GetOptions, GetRange};
use parking_lot::Mutex;

use super::answers::{Object, Unread};
use super::contents::{Check, Headers};
use super::engine::{Call, Engine, Failed, What};
use super::fault::{Fault, mistake_of};
use super::listing::{self, Page, bare};
use super::wire::{AnyBody, Fresh, Tap};
use super::{Environment, Limits, Mistake, Remote, RemoteSpec, Store, Wanted};
use crate::{Access, OriginError};

/// Time limit of a read with all its tries. No person waits for a single one. A connection without progress
/// ends much earlier ([`super::connections::IDLE`]).
const READ: Duration = Duration::from_secs(900);
/// Time limit of one try: some of them may share a slow line.
const TRY_READ: Duration = Duration::from_secs(300);

/// The objects below a prefix of a bucket.
pub struct Bucket {
    pub(super) remote: Remote,
    /// Keys begin with this. Empty, or with a `/` at its end.
    pub(super) prefix: String,
}

impl std::fmt::Debug for Bucket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bucket({}/{})", self.remote.spec, self.prefix)
    }
}

impl Bucket {
    /// Prepares to read below `text`: `s3://BUCKET[/PREFIX]` and the like. Sends no request yet.
    ///
    /// # Errors
    /// [`OriginError::BadRemote`] and [`OriginError::Remote`].
    pub fn open(
        text: &str,
        endpoint: Option<&str>,
        region: Option<&str>,
        environment: &Environment,
    ) -> Result<Bucket, OriginError> {
        let (bucket, prefix) = split(text)?;
        let spec = RemoteSpec::parse(bucket)?.at(endpoint, region)?;
        let limits = Limits { hedge: false, ..Limits::default() };
        let remote = Remote::connect(&spec, environment, limits, Access::ReadOnly, Wanted::Now)?;
        Ok(Bucket { remote, prefix })
    }

    /// Returns the bucket's URL with a `/` at the end, so that a key can follow: `s3://BUCKET/PREFIX/`.
    pub fn url(&self) -> String {
        format!("{}{}/{}", self.remote.spec.store.scheme(), self.remote.spec.bucket, self.prefix)
    }

    /// The identity of the version of an object that was listed here.
    pub fn identity(&self, object: &Object) -> ForeignObject {
        let RemoteSpec { store, bucket, endpoint, .. } = &self.remote.spec;
        let key = format!("{}{}", self.prefix, object.key);
        let (scheme, endpoint) = (store.scheme(), endpoint.as_deref());
        crate::foreign::identity(scheme, endpoint, bucket, &key, &object.etag, object.size)
    }

    /// Lists all objects, in the order of the store. `each` returns false to end the listing.
    ///
    /// # Errors
    /// [`OriginError::Remote`].
    pub fn list(&self, each: &mut dyn FnMut(Object) -> bool) -> Result<(), OriginError> {
        let mut token = None;
        loop {
            let (engine, prefix, asked) =
                (Arc::clone(&self.remote.engine), self.prefix.clone(), token.clone());
            // A person who named a wrong place learns of it soon. Later pages have more time.
            let call = match token {
                None => self.remote.opening(What::List),
                Some(_) => self.remote.call(What::List),
            };
            let page = self.remote.wait(async move {
                let (engine, prefix, asked) = (&engine, &prefix, &asked);
                engine.run(call, None, |_| page(engine, prefix, asked.clone())).await
            });
            let Page { objects, next } = page.map_err(|failed| self.remote.origin_error(&failed))?;
            if !objects.into_iter().all(&mut *each) || next.is_none() {
                return Ok(());
            }
            if next == token {
                let fault = Fault::Odd("a listing that does not go on".to_owned());
                return Err(self.remote.origin_error(&Failed { fault, tries: 1 }));
            }
            token = next;
        }
    }

    /// Reads a range of a listed object, which must not be empty. Blocks; many threads may read at once.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn read(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, Unread> {
        self.get(object, range, false)
    }

    /// Reads a range of a listed object as [`Bucket::read`], past any cache on the way.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn read_again(&self, object: &Object, range: Range<u64>) -> Result<Vec<u8>, Unread> {
        self.get(object, range, true)
    }

    fn get(&self, object: &Object, range: Range<u64>, again: bool) -> Result<Vec<u8>, Unread> {
        let key = self.path_of(object)?;
        let deadline = Deadline::current().within(READ);
        let call = Call { deadline, one: TRY_READ, ..self.remote.call(What::Large) };
        let (engine, wanted) = (Arc::clone(&self.remote.engine), object.clone());
        let read = self.remote.wait(async move {
            let (engine, key, wanted, range) = (&engine, &key, &wanted, &range);
            // Refusals are not counted: archived objects are refused one by one, and later ones are not.
            engine.try_until(call, |tries| get(engine, key, wanted, range.clone(), again || tries > 0)).await
        });
        match read {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(Unread::Changed),
            Err(failed) => Err(self.unread(&failed)),
        }
    }

    /// What compares the bytes of a listed object with what the store says of them. For objects that are read
    /// in ranges: [`Bucket::read`] does it for those that are read as a whole.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn check(&self, object: &Object) -> Result<Check, Unread> {
        let key = self.path_of(object)?;
        let deadline = Deadline::current().within(READ);
        let call = Call { deadline, ..self.remote.call(What::Small) };
        let (engine, wanted, store) =
            (Arc::clone(&self.remote.engine), object.clone(), self.remote.spec.store);
        let headers = self.remote.wait(async move {
            let (engine, key, wanted) = (&engine, &key, &wanted);
            engine.try_until(call, |_| head(engine, key, wanted)).await
        });
        match headers {
            Ok(headers) => Ok(Check::new(store, &object.etag, &headers.unwrap_or_default())),
            Err(failed) => Err(self.unread(&failed)),
        }
    }

    fn path_of(&self, object: &Object) -> Result<Path, Unread> {
        let key = Path::parse(format!("{}{}", self.prefix, object.key));
        key.map_err(|_| Unread::Object("its key has control characters".to_owned()))
    }

    fn unread(&self, failed: &Failed) -> Unread {
        let error = || self.remote.origin_error(failed);
        match mistake_of(&failed.fault) {
            _ if failed.fault.code() == "InvalidObjectState" => Unread::Object(
                "it is archived (InvalidObjectState): restore it in the store first".to_owned(),
            ),
            _ if failed.fault.is_missing() || failed.fault.is_taken() => Unread::Changed,
            Mistake::Denied => Unread::Denied(error()),
            Mistake::Other => Unread::Object(self.remote.explained(failed).to_string()),
            _ => Unread::Store(error()),
        }
    }
}

/// Splits a URL into the bucket and the prefix of the keys. Other prefixes than those of origins are allowed.
fn split(text: &str) -> Result<(&str, String), OriginError> {
    let stores = [Store::S3, Store::Gcs, Store::Azure];
    let scheme = stores.iter().map(|store| store.scheme()).find(|scheme| text.starts_with(scheme));
    let start = scheme.map_or(0, str::len);
    let end = text[start..].find('/').map_or(text.len(), |at| start + at);
    let (bucket, prefix) = (&text[..end], text[end..].strip_prefix('/').unwrap_or(""));
    // What comes before an @ may be a key with a secret, in which a / may be.
    let before = prefix.split('@').next().unwrap_or("");
    if prefix.contains('@') && (bucket[start..].contains(':') || before.contains(':')) {
        return RemoteSpec::parse(text).map(|_| (bucket, String::new()));
    }
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    if prefix.is_empty() {
        return Ok((bucket, String::new()));
    }
    let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.contains('\0');
    if prefix.split('/').any(bad) {
        return Err(OriginError::BadRemote {
            what: format!("{prefix:?} cannot be the beginning of keys that are paths"),
            next: "leave out empty parts, . and ..".to_owned(),
        });
    }
    Ok((bucket, format!("{prefix}/")))
}

/// One page of the keys.
async fn page(engine: &Engine, prefix: &str, token: Option<String>) -> Result<Page, Fault> {
    let lister = engine.stores.pages.as_ref();
    let lister = lister.ok_or_else(|| Fault::Odd("this store has no listing".to_owned()))?;
    let tapped = Arc::new(Mutex::new(None));
    let mut options = object_store::list::PaginatedListOptions { page_token: token, ..Default::default() };
    options.extensions.insert(Tap(Arc::clone(&tapped)));
    let prefix_or_none = Some(prefix).filter(|prefix| !prefix.is_empty());
    let listed = lister.list_paginated(prefix_or_none, options).await;
    let tapped = tapped.lock().take();
    match (tapped, listed) {
        (Some(text), _) => listing::read(&String::from_utf8_lossy(&text), prefix),
        (None, Err(error)) => Err(Fault::of(&error)),
        (None, Ok(_)) => Err(Fault::Odd("a listing without a body".to_owned())),
    }
}

/// The options of a request for the listed version, with all that the store says of it.
fn of_version(engine: &Engine, wanted: &Object) -> GetOptions {
    let mut options = GetOptions::new();
    options.if_match = Some(format!("\"{}\"", wanted.etag));
    options.extensions.insert(AnyBody);
    if let Some(sums) = &engine.stores.sums {
        options.extensions.insert(sums.clone());
    }
    options
}

/// The headers of an object. None if it is another one than was listed.
async fn head(engine: &Engine, key: &Path, wanted: &Object) -> Result<Option<HeaderMap>, Fault> {
    let options = of_version(engine, wanted).with_head(true);
    let result = engine.one().get_opts(key, options).await.map_err(|error| Fault::of(&error))?;
    let is_wanted = result.meta.e_tag.as_deref().map(bare) == Some(&*wanted.etag);
    let headers = result.extensions.get::<Headers>().filter(|_| is_wanted);
    Ok(headers.map(|headers| (*headers.0).clone()))
}

/// One GET. None if the object is another one than was listed.
async fn get(
    engine: &Engine,
    key: &Path,
    wanted: &Object,
    range: Range<u64>,
    fresh: bool,
) -> Result<Option<Vec<u8>>, Fault> {
    let whole = range == (0..wanted.size);
    let range_or_whole = (!whole).then(|| GetRange::Bounded(range.clone()));
    let mut options = of_version(engine, wanted).with_range(range_or_whole);
    if fresh {
        options.extensions.insert(Fresh);
    }
    let result = engine.one().get_opts(key, options).await.map_err(|error| Fault::of(&error))?;
    let etag = result.meta.e_tag.as_deref().map(bare);
    if etag.is_none() {
        return Err(Fault::Odd("an object without an ETag".to_owned()));
    }
    if etag != Some(&*wanted.etag) || result.meta.size != wanted.size {
        return Ok(None);
    }
    if result.range != range {
        return Err(Fault::Odd("another range than was asked for".to_owned()));
    }
    let headers = result.extensions.get::<Headers>().filter(|_| whole).cloned();
    let check = headers.map(|headers| Check::new(engine.stores.kind, &wanted.etag, &headers.0));
    let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let mut bytes = Vec::with_capacity(len);
    let mut pieces = result.into_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| Fault::of(&error))?;
        engine.stats.receive(piece.len() as u64);
        if bytes.len() + piece.len() > len {
            return Err(Fault::Odd(format!("more than the {len} bytes that were announced")));
        }
        bytes.extend_from_slice(&piece);
        engine.pace.bytes(piece.len() as u64).await;
    }
    if bytes.len() < len {
        return Err(Fault::Cut(format!("{} of {len} bytes came", bytes.len())));
    }
    if let Some(mut check) = check {
        check.add(&bytes);
        check.end().map_err(Fault::Differs)?;
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests;
