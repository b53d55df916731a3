//! Buckets that others fill, as sources of imports: what `archive` asks of a bucket, answered by `origin`.

use std::ops::Range;

use api::error::{Failure, Result};
use archive::import::objects::{self, Object};
use origin::{Environment, OriginError};

use crate::origins::{Reach, remote_code};

/// The objects below a prefix of an object store.
pub struct Bucket {
    shown: String,
    bucket: origin::Bucket,
}

impl Bucket {
    /// Whether a text on the command line means a bucket.
    pub fn claims(text: &str) -> bool {
        origin::RemoteSpec::claims(text)
    }

    /// Prepares to read below `s3://BUCKET[/PREFIX]`, `gs://..` or `az://..`. Keys come from the environment.
    /// Sends no request yet.
    ///
    /// # Errors
    /// The place is badly named, or there are no keys.
    pub fn open(text: &str, reach: &Reach) -> Result<Bucket> {
        // The keys are loaded into this process's memory.
        crate::secrets::keep_from_dumps();
        let (endpoint, region) = (reach.endpoint.as_deref(), reach.region.as_deref());
        let shown = text.trim_end_matches('/').to_owned();
        let opened = origin::Bucket::open(text, endpoint, region, &Environment::process());
        let bucket = opened.map_err(|error| match error {
            OriginError::Remote { .. } => failure(&shown, error),
            other => Failure { status: 2, ..crate::origins::origin_failure(other) },
        })?;
        Ok(Bucket { shown, bucket })
    }
}

impl Bucket {
    fn unread(&self, unread: origin::Unread) -> objects::Unread {
        match unread {
            origin::Unread::Changed => objects::Unread::Changed,
            origin::Unread::Denied(error) => objects::Unread::Denied(failure(&self.shown, error)),
            origin::Unread::Object(why) => objects::Unread::Object(why),
            origin::Unread::Store(error) => objects::Unread::Store(failure(&self.shown, error)),
        }
    }
}

impl objects::Bucket for Bucket {
    fn shown(&self) -> String {
        self.shown.clone()
    }

    fn list(&self, each: &mut dyn FnMut(Object) -> bool) -> Result<()> {
        let listed = self.bucket.list(&mut |found| {
            let origin::Object { key, size, etag, modified } = found;
            each(Object { key, size, etag, modified })
        });
        listed.map_err(|error| failure(&self.shown, error))
    }

    fn read_again(
        &self,
        object: &Object,
        range: Range<u64>,
    ) -> std::result::Result<Vec<u8>, objects::Unread> {
        let Object { key, size, etag, modified } = object.clone();
        let read = self.bucket.read_again(&origin::Object { key, size, etag, modified }, range);
        read.map_err(|unread| self.unread(unread))
    }

    fn check(&self, object: &Object) -> std::result::Result<Box<dyn objects::Check>, objects::Unread> {
        let Object { key, size, etag, modified } = object.clone();
        let check = self.bucket.check(&origin::Object { key, size, etag, modified });
        check.map(|check| Box::new(Checked(check)) as Box<dyn objects::Check>).map_err(|why| self.unread(why))
    }

    fn read(&self, object: &Object, range: Range<u64>) -> std::result::Result<Vec<u8>, objects::Unread> {
        let Object { key, size, etag, modified } = object.clone();
        let read = self.bucket.read(&origin::Object { key, size, etag, modified }, range);
        read.map_err(|unread| self.unread(unread))
    }
}

/// The sums that a store says of an object.
struct Checked(origin::Check);

impl objects::Check for Checked {
    fn add(&mut self, bytes: &[u8]) {
        self.0.add(bytes);
    }

    fn end(self: Box<Self>) -> std::result::Result<(), String> {
        self.0.end()
    }
}

/// The failure for a bucket that cannot be read.
fn failure(shown: &str, error: OriginError) -> Failure {
    match error {
        OriginError::Remote { mistake, what, next, .. } => {
            let next = next.as_deref().unwrap_or("try again; what was imported is not copied again");
            Failure::new(remote_code(mistake), format!("cannot import from {shown}")).why(what).next(next)
        }
        other => crate::origins::origin_failure(other),
    }
}
