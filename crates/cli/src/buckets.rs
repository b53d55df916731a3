//! Mounts and volumes as buckets of the S3 gateway.

use std::sync::Arc;

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
    Arc::new(|line| log::warn(line))
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
