//! Direct requests to the store, without a filesystem: its highest rate, and the cost of one object.

use std::sync::Arc;

use base::time::monotonic;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::aws::{AmazonS3Builder, S3CopyIfNotExists};
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload, WriteMultipart};
use tokio::runtime::Runtime;

use crate::Result;
use crate::store::{Access, BUCKETS};
use crate::work::{Fresh, micros_at};

/// The number of concurrent range requests, and the bytes of each.
const AT_A_TIME: usize = 16;
const RANGE: u64 = 4 << 20;

/// A client of the store.
pub struct Bare {
    runtime: Runtime,
    store: Arc<dyn ObjectStore>,
}

impl Bare {
    /// A client with the store's keys.
    ///
    /// # Errors
    /// The store's address is invalid.
    pub fn new(access: &Access) -> Result<Bare> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = AmazonS3Builder::new()
            .with_bucket_name(BUCKETS[4])
            .with_region("us-east-1")
            .with_endpoint(access.endpoint())
            .with_allow_http(true)
            .with_access_key_id(&access.key)
            .with_secret_access_key(&access.secret)
            .with_copy_if_not_exists(S3CopyIfNotExists::Multipart)
            .build()?;
        Ok(Bare { runtime, store: Arc::new(store) })
    }

    /// Stores an object of new random bytes.
    ///
    /// # Errors
    /// An error of the store.
    pub fn put(&self, name: &str, mib: u64) -> Result<()> {
        let key = Key::from(name);
        self.runtime.block_on(async {
            let mut writer =
                WriteMultipart::new_with_chunk_size(self.store.put_multipart(&key).await?, 8 << 20);
            let (mut data, mut fresh) = (vec![0; 1 << 20], Fresh::new());
            for _ in 0..mib {
                fresh.fill(&mut data);
                writer.wait_for_capacity(8).await?;
                writer.write(&data);
            }
            writer.finish().await?;
            Ok(())
        })
    }

    /// Reads an object by ranged GETs, many at a time. In MiB/s.
    ///
    /// # Errors
    /// An error of the store.
    pub fn stream(&self, name: &str, mib: u64) -> Result<f64> {
        let key = Key::from(name);
        let begun = monotonic();
        let got = self.runtime.block_on(async {
            let ranges =
                (0..(mib << 20).div_ceil(RANGE)).map(|n| n * RANGE..((n + 1) * RANGE).min(mib << 20));
            stream::iter(ranges)
                .map(|range| {
                    let (store, key) = (Arc::clone(&self.store), key.clone());
                    // A separate task, so that both processors are used.
                    async move { tokio::spawn(async move { store.get_range(&key, range).await }).await }
                })
                .buffered(AT_A_TIME)
                .map_err(|error| error.to_string())
                .try_fold(0u64, |sum, part| async move {
                    part.map(|bytes| sum + bytes.len() as u64).map_err(|error| error.to_string())
                })
                .await
        })?;
        if got != mib << 20 {
            return Err(format!("the store gave {got} bytes of {mib} MiB").into());
        }
        Ok(mib as f64 / begun.elapsed().as_secs_f64())
    }

    /// Stores so many objects of `size` bytes.
    ///
    /// # Errors
    /// An error of the store.
    pub fn put_chunks(&self, count: u64, size: usize) -> Result<()> {
        let mut fresh = Fresh::new();
        for number in 0..count {
            let mut data = vec![0; size];
            fresh.fill(&mut data);
            let key = Key::from(format!("chunks/{number}"));
            self.runtime.block_on(self.store.put(&key, PutPayload::from(data)))?;
        }
        Ok(())
    }

    /// Reads them completely, one after another. Returns the median of one GET, in microseconds.
    ///
    /// # Errors
    /// An error of the store.
    pub fn read_chunks(&self, count: u64) -> Result<f64> {
        let mut times = Vec::new();
        for number in 0..count {
            let key = Key::from(format!("chunks/{number}"));
            let begun = monotonic();
            self.runtime.block_on(async { self.store.get(&key).await?.bytes().await })?;
            times.push(begun.elapsed());
        }
        Ok(micros_at(&mut times, 0.5))
    }
}
