//! A node of a fleet without a mount, which lends a disk. It is either a zone's depot, or a node that only
//! adds its disk to the fleet.
//!
//! ```text
//!   depot   NodeCache ──miss──► origin     asked after the nodes; fetches a missing blob for the asking node
//!   lend    NodeCache ──miss──► Fleet ──► nodes, depots, the origin
//!                                          one of the nodes; keeps copies of the blobs that it tracks
//! ```
//!
//! Both end with a signal. Both keep a lock and a control socket in their folder, and report their figures
//! there ([`super::lent`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use api::answers::Evicted;
use api::control::{ControlAddress, Listener, Request, Serve, Tick, Wire};
use api::error::{Context, Failure, Result};
use api::status::fleet::LentStatus;
use api::watch::Wish;
use base::lock::FileLock;
use blob::Origin;
use cache::{CacheOptions, Evict, NodeCache, NodeParts, StoresNothing};
use fetch::Table;
use fleet::node::Fleet;
use net::id::Role;
use origin::{Access, Remote};
use serde_json::Value;

use super::lent::LOCK;
use super::options::FleetOptions;
use super::shown;
use crate::memory::Memory;
use crate::options::DEADLINE;
use crate::origins::Reach;
use crate::remote_side::options::{RemoteOptions, parse_size};
use crate::remote_side::status::of_reading;
use crate::remote_side::tree;
use crate::volume_dir::private_folder;
use crate::{limits, log, origins};

/// The options for lending a disk.
#[derive(Clone, Debug)]
pub struct Options {
    /// The origin whose published trees the fleet reads.
    pub origin: String,
    /// How it is reached.
    pub reach: Reach,
    /// The folder of its cache. Created if it is absent.
    pub cache: PathBuf,
    /// Bytes of the disk for blobs, like `500G`. The default is most of the free space.
    pub size: Option<String>,
    /// The fleet to join.
    pub fleet: FleetOptions,
}

/// The name of such a node: as a subject, and with an article.
fn words(role: Role) -> (&'static str, &'static str) {
    match role {
        Role::Depot => ("depot", "a depot"),
        Role::Node => ("lender", "a disk lent to the fleet"),
    }
}

/// A disk that is being lent, with a control socket.
pub struct Lending {
    listener: Listener,
    node: Arc<Lent>,
}

impl Lending {
    /// Starts serving.
    pub fn start(options: &Options, role: Role) -> Result<Lending> {
        let node = Arc::new(Lent::open(options, role)?);
        let listener = Listener::start(ControlAddress::of_source(&node.folder), node.clone())?;
        Ok(Lending { listener, node })
    }

    /// Returns the name of the role, with an article.
    pub fn what(&self) -> &'static str {
        words(self.node.role).1
    }

    /// The address for the fleet. Empty while it does not listen.
    pub fn address(&self) -> String {
        self.node.fleet.address().map(|address| address.to_string()).unwrap_or_default()
    }

    /// Leaves the fleet and closes the cache.
    pub fn end(self) {
        let Lending { listener, node } = self;
        drop(listener);
        node.fleet.close();
        node.cache.close();
    }
}

struct Lent {
    folder: PathBuf,
    origin: String,
    role: Role,
    began: Instant,
    fleet: Arc<Fleet>,
    cache: Arc<NodeCache>,
    /// The origin, if it is remote.
    remote: Option<Arc<Remote>>,
    _locks: [FileLock; 2],
}

/// Checks the options before anything is created. The fleet's options are the most frequent mistake.
fn check(options: &Options, role: Role) -> Result<Option<u64>> {
    let size = options.size.as_deref().map(|text| {
        parse_size(text).filter(|size| *size >= 64 << 20).ok_or_else(|| {
            Failure::usage(format!("--size {text} is no size of at least 64M")).next("write one like 500G")
        })
    });
    let size = size.transpose()?;
    if !options.fleet.is_on() {
        let (name, _) = words(role);
        return Err(Failure::usage(format!("a {name} has a fleet to serve, and none was named"))
            .next("join one by any of its nodes: --join HOST:PORT")
            .next("or begin one: --listen ADDRESS:PORT"));
    }
    options.fleet.secret()?;
    options.fleet.tls.load()?;
    options.fleet.listen(&options.fleet.contacts()?)?;
    Ok(size)
}

impl Lent {
    fn open(options: &Options, role: Role) -> Result<Lent> {
        let size = check(options, role)?;
        let home = origins::address(&options.origin, &options.reach)?;
        let remote = match home.origin.starts_with("file:") {
            true => None,
            false => Some(Arc::new(origins::open_remote(
                &home,
                crate::remote_side::limits(&RemoteOptions::default(), crate::options::DEADLINE),
            )?)),
        };
        let endpoint = remote.as_ref().and_then(|remote| remote.spec().endpoint.as_deref());
        origins::clear_line(endpoint).iter().for_each(|line| log::warn(line));
        let origin: Arc<dyn Origin> = match &remote {
            Some(remote) => remote.clone(),
            None => origins::open_origin(&home, Access::ReadOnly)?,
        };
        let volume = volume_of(&*origin, &options.origin)?;
        let folder = crate::mounts::absolute(&options.cache)?;
        private_folder(&folder)?;
        let locks = lock(&folder)?;
        // Nothing reads on this node, so the time limit is the default of reads elsewhere.
        let table = Table::new(options.fleet.verify, limits::cache_options().in_flight);
        let source = (origin.clone(), table.clone());
        let keeps = role == Role::Node;
        let joined = super::join(&options.fleet, role, keeps, &folder, volume, source, DEADLINE)?;
        let fits = |size: std::io::Result<u64>| size.at("use", &folder);
        let blobs = folder.join("blobs");
        private_folder(&blobs)?;
        // Other nodes are asked before a depot. So a depot fetches missing blobs only from the origin.
        let tier = keeps.then(|| joined.tier());
        let cache_options = CacheOptions {
            budget: size,
            floor: fits(cache::default_floor(&folder))?,
            ..limits::cache_options()
        };
        let parts = NodeParts {
            folder: blobs,
            index: folder.join("cache.idx"),
            remote: origin,
            tier,
            table,
            pending: Arc::new(StoresNothing),
            may_delete: None,
            watch: Some(joined.watch()),
            options: cache_options,
            report: log::sink(),
        };
        let cache = Arc::new(NodeCache::open(parts).at("open", &folder)?);
        joined.lend(&cache);
        if keeps {
            let kept = joined.fleet.keep_copies();
            kept.map_err(|error| Failure::io("cannot start a thread to copy with", &error))?;
        }
        let (fleet, began, origin) = (joined.fleet, base::time::monotonic(), home.origin);
        Ok(Lent { folder, origin, role, began, fleet, cache, remote, _locks: locks })
    }

    fn status(&self) -> LentStatus {
        let (counts, memory) = (self.fleet.counts(), Memory::now());
        LentStatus {
            folder: self.folder.clone(),
            origin: self.origin.clone(),
            role: words(self.role).0.to_owned(),
            zone: self.fleet.zone().to_string(),
            pid: std::process::id(),
            uptime_seconds: base::time::monotonic().saturating_duration_since(self.began).as_secs(),
            filled_blobs: counts.filled,
            warmed_blobs: counts.warmed,
            kept_blobs: counts.kept,
            memory_bytes: memory.now,
            memory_peak_bytes: memory.peak,
            remote_side: of_reading(self.remote.as_deref(), &self.cache),
            fleet: shown::of(&self.fleet, &self.cache),
        }
    }

    fn evict(&self, to: Option<u64>) -> Evicted {
        let evicted = self.cache.evict(to.map_or(Evict::All, Evict::To));
        Evicted { blobs: evicted.blobs, bytes: evicted.bytes, not_uploaded_blobs: 0, not_uploaded_bytes: 0 }
    }
}

/// The volume whose trees the origin holds.
fn volume_of(origin: &dyn Origin, name: &str) -> Result<[u8; 16]> {
    let owner = ::tree::Owner::read(origin)
        .map_err(|error| crate::publisher::failure(format!("cannot use {name}"), error))?;
    owner.map(|owner| owner.volume).ok_or_else(|| {
        Failure::new("not-published", format!("nothing was ever published in {name}"))
            .next("publish a tree first: covey publish VOLUME NAME")
    })
}

/// The folder's two locks: its own, which identifies the folder, and the one that a mount takes for a cache
/// there.
fn lock(folder: &Path) -> Result<[FileLock; 2]> {
    let hold = |name: &str| {
        tree::hold_soon(&folder.join(name))?.ok_or_else(|| {
            Failure::new("in-use", format!("{} is another depot's, or a mount's cache", folder.display()))
                .next("name a folder of its own: --cache DIR")
        })
    };
    Ok([hold(LOCK)?, hold("lock")?])
}

impl Serve for Lent {
    fn serve(&self, request: Request, _: &mut dyn FnMut(Tick)) -> Result<Value> {
        let value = match request {
            Request::Peers => serde_json::to_value(shown::peers(&self.fleet)),
            Request::Status => serde_json::to_value(self.status()),
            Request::Evict { to } => serde_json::to_value(self.evict(to)),
            _ => {
                return Err(Failure::usage("a node without a mount does not do that")
                    .next("covey status, covey peers and covey cache take its folder"));
            }
        };
        value.map_err(|error| Failure::new("io", "the answer cannot be written").why(error.to_string()))
    }

    fn watch(&self, _: &Wish, _: &Wire<'_>) -> Result<Value> {
        Err(Failure::usage("a node without a mount has no requests to look at")
            .next("covey status FOLDER shows what it did"))
    }
}
