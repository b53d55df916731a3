//! In place of [`remote`](crate::remote), in a program without object stores: their URLs are read, and
//! opening one fails.

#[path = "remote/answers.rs"]
mod answers;
#[allow(dead_code, reason = "an origin in a store uses the rest")]
#[path = "remote/environment.rs"]
mod environment;
#[allow(dead_code, reason = "an origin in a store uses the rest")]
#[path = "remote/latency.rs"]
mod latency;
#[allow(dead_code, reason = "an origin in a store uses the rest")]
#[path = "remote/limits.rs"]
mod limits;
#[allow(dead_code, reason = "an origin in a store uses the rest")]
#[path = "remote/spec.rs"]
mod spec;
#[allow(dead_code, reason = "an origin in a store uses the rest")]
#[path = "remote/stats.rs"]
mod stats;

use std::ops::Range;
use std::path::Path;

use base::{BlobId, ForeignObject};
use blob::{BlobError, BlobSource, Origin, Records, Sums};

use crate::{Access, OriginError};

pub use answers::{ACTS, Mistake, Object, Refusal, Right, Unread};
pub use environment::Environment;
pub use limits::Limits;
pub use spec::{RemoteSpec, Store, is_in_the_clear};
pub use stats::{KINDS, Kind, RemoteStats, Times};

fn lacking(place: String) -> OriginError {
    OriginError::Remote {
        origin: place,
        mistake: Mistake::Other,
        what: "this program was built without object stores".to_owned(),
        next: Some("build the one that has them: make build; it is then at target/release/covey".to_owned()),
    }
}

/// An origin in an object store. No value exists.
#[derive(Debug)]
pub enum Remote {}

impl Remote {
    /// Says that this program has no object stores.
    ///
    /// # Errors
    /// Always.
    pub fn format(spec: &RemoteSpec, _: &Environment, _: Limits, _: &str) -> Result<Remote, OriginError> {
        Err(lacking(spec.to_string()))
    }

    /// Says that this program has no object stores.
    ///
    /// # Errors
    /// Always.
    pub fn open(spec: &RemoteSpec, _: &Environment, _: Limits, _: Access) -> Result<Remote, OriginError> {
        Err(lacking(spec.to_string()))
    }

    /// Says that this program has no object stores.
    ///
    /// # Errors
    /// Always.
    pub fn open_unseen(
        spec: &RemoteSpec,
        _: &Environment,
        _: Limits,
        _: Access,
        _: &str,
    ) -> Result<Remote, OriginError> {
        Err(lacking(spec.to_string()))
    }

    /// Says that this program has no object stores.
    ///
    /// # Errors
    /// Always.
    pub fn clock_ahead(spec: &RemoteSpec, _: &Environment) -> Result<Option<i64>, OriginError> {
        Err(lacking(spec.to_string()))
    }
}

/// Methods that nothing calls, because no value exists.
macro_rules! never {
    ($($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        $(
            /// Never called.
            #[allow(missing_docs, clippy::missing_errors_doc, reason = "no value exists")]
            fn $name(&self, $(_: $argument),*) -> $result {
                match *self {}
            }
        )*
    };
    (pub $($name:ident($($argument:ty),*) -> $result:ty;)*) => {
        $(
            /// Never called.
            #[allow(missing_docs, clippy::missing_errors_doc, reason = "no value exists")]
            pub fn $name(&self, $(_: $argument),*) -> $result {
                match *self {}
            }
        )*
    };
}

impl Remote {
    never! { pub
        see() -> Result<(), OriginError>;
        spec() -> &RemoteSpec;
        volume() -> &str;
        stats() -> RemoteStats;
        refusals() -> Vec<Refusal>;
        mark() -> Result<bool, OriginError>;
    }
}

impl BlobSource for Remote {
    never! {
        read_at(&BlobId, u32, &mut [u8]) -> Result<(), BlobError>;
        is_local(&BlobId) -> bool;
    }
}

impl Records for Remote {
    never! {
        record(&str) -> Result<Option<Vec<u8>>, BlobError>;
        put_record(&str, &[u8]) -> Result<(), BlobError>;
        create_record(&str, &[u8]) -> Result<bool, BlobError>;
        remove_record(&str) -> Result<(), BlobError>;
        records(&str) -> Result<Vec<String>, BlobError>;
    }
}

impl Origin for Remote {
    never! {
        adopt(&BlobId, &Sums, &Path) -> Result<(), BlobError>;
        put(&BlobId, &Sums, &[u8]) -> Result<(), BlobError>;
        sync() -> Result<(), BlobError>;
        remove(&BlobId) -> Result<(), BlobError>;
        size(&BlobId) -> Result<Option<u64>, BlobError>;
        list(&mut dyn FnMut(BlobId, u64) -> bool) -> Result<(), BlobError>;
        verify(&BlobId) -> Result<(), BlobError>;
        describe() -> String;
    }
}

/// Objects of others. No value exists.
#[derive(Debug)]
pub enum Bucket {}

impl Bucket {
    /// Says that this program has no object stores.
    ///
    /// # Errors
    /// Always.
    pub fn open(
        text: &str,
        _: Option<&str>,
        _: Option<&str>,
        _: &Environment,
    ) -> Result<Bucket, OriginError> {
        Err(lacking(text.to_owned()))
    }

    never! { pub
        url() -> String;
        identity(&Object) -> ForeignObject;
        list(&mut dyn FnMut(Object) -> bool) -> Result<(), OriginError>;
        read(&Object, Range<u64>) -> Result<Vec<u8>, Unread>;
        read_again(&Object, Range<u64>) -> Result<Vec<u8>, Unread>;
        check(&Object) -> Result<Check, Unread>;
    }
}

/// Compares an object's bytes with what its store says. No value exists.
#[derive(Debug)]
pub enum Check {}

impl Check {
    never! { pub
        end() -> Result<(), String>;
    }

    /// Never called.
    pub fn add(&mut self, _: &[u8]) {
        match *self {}
    }
}
