//! A driver of the Container Storage Interface, version 1: calls of a container orchestrator become mounts of
//! this program, folders of shared volumes, and quotas.
//!
//! ```text
//!   orchestrator ── gRPC over a unix socket ──► server.rs ──► rpc.rs: the table of calls
//!                        proto/: messages                       │
//!        identity.rs ◄──────────────────┬──────────────────────┤
//!        controller/: makes and removes volumes                 └──► node/: stages and publishes them
//!                 └──────────► mount.rs: one `covey mount` for each source ◄──────┘
//!                                                                places.rs: bind mounts of its folders
//! ```
//!
//! - [`class`](mod@class): the kinds of volumes, and what a class or a volume may say. [`names`]: their ids.
//! - `records`: what is known after a restart. `recover`: volumes come back after their daemon died.
//!   `secrets`: what appears nowhere else.
//! - `caches`: what is cached of trees is removed when nothing has used it for long.
//! - `refuse`: codes of gRPC, with what to do next. `metrics`: counts of calls.
//!
//! Always true: a call that was repeated, or cut off at any point and repeated, ends as one call does. The
//! driver may be killed at any time. What it has made is found in the state folder and in the kernel's mount
//! table. Mounts are processes of their own and go on without a driver.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

mod caches;
mod class;
mod controller;
mod identity;
mod metrics;
mod mount;
pub mod names;
mod node_side;
mod places;
mod program;
pub mod proto;
mod records;
mod recover;
mod refuse;
mod rpc;
mod secrets;
mod server;

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::error::{Context, Failure, Result};
use base::lock::FileLock;
use node::remote_side::tree::hold_soon;
use parking_lot::{Condvar, Mutex};

use metrics::Metrics;
use mount::Mounts;
use records::Records;
use refuse::Answer;

pub use server::{Bound, Server};

/// The driver's name, as classes and volumes name it, unless it gets another one.
pub const NAME: &str = "csi.covey";

/// How long a call waits for another one of the same volume.
const TURN: Duration = Duration::from_secs(5);

/// Which services a driver has, beside Identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Services {
    /// Both.
    All,
    /// Only Node.
    Node,
    /// Only Controller.
    Controller,
}

/// What a driver is started with.
#[derive(Clone, Debug)]
pub struct Options {
    /// The driver's name: that of a domain.
    pub name: String,
    /// The node's name.
    pub node: String,
    /// The folder for records, secrets and mounts.
    pub state: PathBuf,
    /// The folder for what belongs to this node: caches, and what is not uploaded. None: in the state folder.
    pub cache: Option<PathBuf>,
    /// The folder for exclusive volumes. None: there are none.
    pub folder: Option<PathBuf>,
    /// Where the other nodes of a fleet reach this one.
    pub address: Option<IpAddr>,
    /// The services.
    pub services: Services,
}

/// A driver, without its socket.
pub struct Driver {
    options: Options,
    mounts: Arc<Mounts>,
    staged: Arc<Records>,
    made: Records,
    /// The volumes and names that calls work on.
    busy: Mutex<BTreeSet<String>>,
    freed: Condvar,
    metrics: Metrics,
    pauses: Mutex<recover::Pauses>,
    /// Held as long as the driver lives.
    _lock: FileLock,
}

impl Driver {
    /// Opens the state folder.
    ///
    /// # Errors
    /// A folder cannot be used, or the node's name cannot be part of an id.
    pub fn open(options: Options) -> Result<Driver> {
        if !names::is_part(&options.node) {
            return Err(Failure::usage(format!("{:?} cannot be the name of a node", options.node))
                .next("use up to 63 letters, digits, dots, hyphens and underscores: --node-id NAME"));
        }
        if !names::is_part(&options.name) || options.name.contains('_') {
            return Err(Failure::usage(format!("{:?} cannot be the name of a driver", options.name))
                .next("use letters, digits, dots and hyphens: --name csi.covey"));
        }
        let state = absolute(&options.state)?;
        let cache = options.cache.as_deref().map_or_else(|| Ok(state.join("cache")), absolute)?;
        let folder = options.folder.as_deref().map(absolute).transpose()?;
        for part in ["staged", "volumes", "mounts", "secrets"] {
            private(&state.join(part))?;
        }
        let lock = lock(&state)?;
        for part in ["staged", "volumes", "secrets"] {
            records::tidy(&state.join(part)).at("tidy up", &state)?;
        }
        for path in folder.iter().chain([&cache]) {
            DirBuilder::new().recursive(true).mode(0o700).create(path).at("make", path)?;
            api::own::check_folder(path).at("use", path)?;
        }
        node::secrets::keep_from_dumps();
        let staged = Arc::new(Records::new(state.join("staged")));
        let mounts = Arc::new(Mounts::new(&state, &cache, staged.clone(), options.address));
        let made = Records::new(state.join("volumes"));
        let (busy, freed, metrics) = (Mutex::default(), Condvar::default(), Metrics::default());
        let pauses = Mutex::default();
        let options = Options { state, folder, cache: Some(cache), ..options };
        Ok(Driver { options, mounts, staged, made, busy, freed, metrics, pauses, _lock: lock })
    }

    /// The name of the segment that says which node an exclusive volume is on.
    fn segment(&self) -> String {
        format!("{}/node", self.options.name)
    }

    /// Reserves a volume for one call. Waits a moment for another one.
    fn alone(&self, name: &str) -> Answer<Alone<'_>> {
        let deadline = base::Deadline::after(TURN);
        let mut busy = self.busy.lock();
        while !busy.insert(name.to_owned()) {
            if self.freed.wait_for(&mut busy, deadline.left()).timed_out() {
                return Err(refuse::aborted(format!("another call for the volume {name} is under way")));
            }
        }
        Ok(Alone { driver: self, name: name.to_owned() })
    }

    /// Reserves a volume for one call without waiting. `None`: another call works on it.
    fn alone_at_once(&self, name: &str) -> Option<Alone<'_>> {
        let is_free = self.busy.lock().insert(name.to_owned());
        is_free.then(|| Alone { driver: self, name: name.to_owned() })
    }
}

/// A volume that no other call works on.
struct Alone<'a> {
    driver: &'a Driver,
    name: String,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.driver.busy.lock().remove(&self.name);
        self.driver.freed.notify_all();
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).at("resolve", path)
}

/// The state folder is one driver's at a time. The kernel frees the lock of a driver that was killed.
fn lock(state: &Path) -> Result<FileLock> {
    hold_soon(&state.join("lock"))?.ok_or_else(|| {
        Failure::new("in-use", format!("another driver uses {}", state.display()))
            .next("end that driver, or name another --state")
    })
}

/// Makes a folder that only this user may enter.
fn private(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).at("make", path)?;
    api::own::check_folder(path).at("use", path)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(path, mode).at("protect", path)
}
