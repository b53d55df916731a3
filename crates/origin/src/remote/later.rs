//! A store whose keys are missing. Each request looks for them, and fails until they are found.
//!
//! The `object_store` crate reads the keys of Google and Azure when a store is made. So this makes the store
//! from the environment, and from the files that it names, until that succeeds. From then on that store is
//! used. An attempt is made at most once in each [`PAUSE`], because it may test whether a metadata service
//! listens.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;

use super::fault::Fault;

/// The minimum time between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

type Made = std::result::Result<Arc<dyn ObjectStore>, Fault>;

struct Inner {
    make: Box<dyn Fn() -> Made + Send + Sync>,
    made: OnceLock<Arc<dyn ObjectStore>>,
    /// When the last attempt was made, and why it failed.
    last: Mutex<Option<(Instant, Fault)>>,
}

/// See the [module](self).
#[derive(Clone)]
pub(crate) struct Later(Arc<Inner>);

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Later(...)")
    }
}

impl fmt::Display for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a store without keys")
    }
}

impl Later {
    /// `make` makes the store once its keys are available.
    pub(crate) fn new(make: impl Fn() -> Made + Send + Sync + 'static) -> Later {
        Later(Arc::new(Inner { make: Box::new(make), made: OnceLock::new(), last: Mutex::new(None) }))
    }

    fn look(&self) -> Made {
        let inner = &self.0;
        if let Some(store) = inner.made.get() {
            return Ok(Arc::clone(store));
        }
        let mut last = inner.last.lock();
        if let Some((_, fault)) = last.as_ref().filter(|(at, _)| at.elapsed() < PAUSE) {
            return Err(fault.clone());
        }
        match (inner.make)() {
            Ok(store) => Ok(Arc::clone(inner.made.get_or_init(|| store))),
            Err(fault) => {
                *last = Some((base::time::monotonic(), fault.clone()));
                Err(fault)
            }
        }
    }

    /// The store, if its keys are available. Runs on a blocking thread, because it reads files and may
    /// contact a metadata service.
    fn store(&self) -> impl Future<Output = Result<Arc<dyn ObjectStore>>> + Send + 'static {
        let later = self.clone();
        async move {
            let made = match later.0.made.get() {
                Some(store) => Ok(Arc::clone(store)),
                None => tokio::task::spawn_blocking(move || later.look()).await.unwrap_or(Err(Fault::Ended)),
            };
            made.map_err(|fault| object_store::Error::Generic { store: "later", source: Box::new(fault) })
        }
    }

    /// A stream from the store. The store is looked up when the stream's first item is requested.
    fn stream<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn ObjectStore) -> BoxStream<'static, Result<T>> + Send + 'static,
    ) -> BoxStream<'static, Result<T>> {
        let store = self.store();
        stream::once(async move { store.await.map(|store| ask(&*store)) }).try_flatten().boxed()
    }
}

#[async_trait]
impl ObjectStore for Later {
    async fn put_opts(&self, at: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.store().await?.put_opts(at, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store().await?.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Path, options: GetOptions) -> Result<GetResult> {
        self.store().await?.get_opts(at, options).await
    }

    fn delete_stream(&self, at: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.stream(|store| store.delete_stream(at))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned();
        self.stream(move |store| store.list(prefix.as_ref()))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let (prefix, offset) = (prefix.cloned(), offset.clone());
        self.stream(move |store| store.list_with_offset(prefix.as_ref(), &offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.store().await?.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.store().await?.copy_opts(from, to, options).await
    }
}
