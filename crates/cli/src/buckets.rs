//! Mounts and volumes as buckets of the S3 gateway.

use std::sync::Arc;

use bytes::Bytes;
use gateway::foreign::entry::Version;
use gateway::foreign::{Away, Passed, Unread, Upstream};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use node::read_through::{self, ReadThrough};
use origin::remote;

use base::Ino;
use fs::api::Filesystem;
use gateway::bucket::{Changes, Made, NotMounted};
use gateway::server::Log;
use node::kernel::Kernel;
use node::log;

/// A kernel that hears of what S3 clients change.
struct Told(Kernel);

impl Changes for Told {
    fn name(&self, parent: Ino, name: &[u8]) {
        self.0.name(parent, name);
    }

    fn inode(&self, ino: Ino) {
        self.0.inode(ino);
    }

    fn settle(&self) {
        self.0.settle();
    }
}

/// Where the gateway's lines go.
pub fn log() -> Log {
    Arc::new(log::warn)
}

/// A bucket over a filesystem. New files belong to the user that runs this program.
pub fn made(name: &str, fs: Arc<dyn Filesystem>, kernel: Option<Kernel>, read_only: bool) -> Made {
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let changes: Arc<dyn Changes> = match kernel {
        Some(kernel) => Arc::new(Told(kernel)),
        None => Arc::new(NotMounted),
    };
    Made { name: name.to_owned(), fs, changes, read_only, owner }
}

/// A bucket of another store, with this node's cache.
pub struct Foreign(pub Arc<ReadThrough>);

/// An error of a body.
type Broken = Box<dyn std::error::Error + Send + Sync>;

#[async_trait::async_trait]
impl Upstream for Foreign {
    fn place(&self) -> (&str, &str) {
        self.0.forward().place()
    }

    async fn pass(&self, request: Passed) -> Result<http::Response<UnsyncBoxBody<Bytes, Broken>>, Away> {
        let Passed { method, key, query, headers, body } = request;
        let passed = remote::Passed::new(method, key, query, headers);
        let passed = match body {
            Some(body) => passed.with_body(body),
            None => passed,
        };
        let answer = self.0.forward().send(passed).await;
        let answer = answer.map_err(|error| Away(error.to_string()))?;
        Ok(answer.map(|body| body.map_err(Broken::from).boxed_unsync()))
    }

    fn piece(&self) -> u64 {
        self.0.piece()
    }

    fn read(&self, version: &Version, offset: u64, buf: &mut [u8]) -> Result<(), Unread> {
        let Version { key, etag, size } = version;
        self.0.read((key, etag, *size), offset, buf).map_err(|unread| match unread {
            read_through::Unread::Stale => Unread::Stale,
            read_through::Unread::Away(why) => Unread::Away(why),
        })
    }
}
