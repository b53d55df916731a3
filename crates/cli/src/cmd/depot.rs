//! `covey depot`: a zone's cache server, or a node that lends its disk. There is no mount: it ends with a signal.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blob::Origin;
use cache::{CacheOptions, NodeCache, NodeParts, StoresNothing};
use origin::Access;
use peer::fleet::Fleet;
use peer::id::Role;
use serde_json::Value;

use crate::control::{Ear, Listener, Request, Serve, Tick, Wire};
use crate::error::{Context, Failure, Result};
use crate::far::options::parse_size;
use crate::fleet::options::FleetOptions;
use crate::fleet::shown::{FleetStatus, PeerRow};
use crate::fleet::{self, Lender, Told};
use crate::frozen::Reach;
use crate::term::Term;
use crate::volume_dir::private_folder;
use crate::watch::Wish;
use crate::{log, notify, origins, signals};

/// Serves a zone's nodes from a disk of its own: what they ask for is fetched from the origin once and kept
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey depot --origin s3://bucket/models --cache /srv/depot --size 500G --listen 10.0.0.9:7171 --secret-file /etc/covey/secret\n  \
    covey depot --origin s3://bucket/models --cache /srv/depot --join 10.0.0.1:7171 --listen 10.0.0.9:7171 --secret-file /etc/covey/secret\n\n\
    Several depots of a zone share what there is by their weights. It stays until SIGTERM or Ctrl-C; covey peers FOLDER asks it who is there."
)]
pub struct Args {
    /// The origin whose published trees the fleet reads: s3://BUCKET/PREFIX
    #[arg(long, value_name = "ORIGIN")]
    origin: String,
    #[command(flatten)]
    reach: Reach,
    /// The folder of its cache; made if it is absent
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// Bytes of the disk for blobs, like 500G [default: most of what is free]
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    #[command(flatten)]
    fleet: FleetOptions,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    signals::block();
    let depot = Arc::new(Depot::open(args)?);
    let listener = Listener::start(Ear::of_source(&depot.folder), depot.clone())?;
    let address = depot.fleet.address().map(|address| address.to_string()).unwrap_or_default();
    notify::ready(&format!("a depot of {} on {address}", args.origin));
    if !term.is_json() {
        log::line(&format!("a depot of {} serves on {address}; Ctrl-C ends it", args.origin));
    }
    let signal = signals::next();
    log::line(&format!("signal {signal}: ending"));
    notify::stopping();
    drop(listener);
    depot.fleet.close();
    depot.cache.close();
    Ok(0)
}

struct Depot {
    folder: PathBuf,
    fleet: Arc<Fleet>,
    cache: Arc<NodeCache>,
    _lock: File,
}

impl Depot {
    fn open(args: &Args) -> Result<Depot> {
        let size = args.size.as_deref().map(|text| {
            parse_size(text).filter(|size| *size >= 64 << 20).ok_or_else(|| {
                Failure::usage(format!("--size {text} is no size of at least 64M"))
                    .next("write one like 500G")
            })
        });
        let size = size.transpose()?;
        if !args.fleet.is_on() {
            return Err(Failure::usage("a depot has a fleet to serve, and none was named")
                .next("join one by any of its nodes: --join HOST:PORT")
                .next("or begin one: --listen ADDRESS:PORT"));
        }
        // Before anything is made: the fleet's options are what is wrong most often.
        args.fleet.secret()?;
        args.fleet.listen(&args.fleet.contacts()?)?;
        let home = origins::address(&args.origin, &args.reach)?;
        let origin = origins::open_origin(&home, Access::ReadOnly)?;
        let volume = volume_of(&*origin, &args.origin)?;
        let folder = crate::mounts::absolute(&args.cache)?;
        private_folder(&folder)?;
        let lock = lock(&folder)?;
        let joined = fleet::join(&args.fleet, Role::Depot, &folder, volume, origin.clone())?;
        let fits = |size: std::io::Result<u64>| size.at("use", &folder);
        let blobs = folder.join("blobs");
        private_folder(&blobs)?;
        let parts = NodeParts {
            folder: blobs,
            index: folder.join("cache.idx"),
            // A depot is asked after the nodes: what it does not have it gets from the origin and nowhere else.
            remote: origin,
            pending: Arc::new(StoresNothing),
            may_delete: None,
            watch: Some(Arc::new(Told(Arc::downgrade(&joined.fleet)))),
            options: CacheOptions {
                budget: size.map_or_else(|| fits(cache::default_budget(&folder)), Ok)?,
                floor: fits(cache::default_floor(&folder))?,
                ..CacheOptions::default()
            },
            report: log::sink(),
        };
        let cache = Arc::new(NodeCache::open(parts).at("open", &folder)?);
        let filler: Arc<dyn Origin> = cache.clone();
        joined.fleet.lend(Arc::new(Lender(Arc::downgrade(&cache))));
        joined.fleet.fill_from(&filler);
        fleet::tell_free(&joined.fleet, &cache);
        Ok(Depot { folder, fleet: joined.fleet, cache, _lock: lock })
    }
}

/// Whose trees the origin holds.
fn volume_of(origin: &dyn Origin, name: &str) -> Result<[u8; 16]> {
    let owner = tree::Owner::read(origin)
        .map_err(|error| crate::publish::failure(format!("cannot use {name}"), error))?;
    owner.map(|owner| owner.volume).ok_or_else(|| {
        Failure::new("not-published", format!("nothing was ever published in {name}"))
            .next("publish a tree first: covey publish VOLUME NAME")
    })
}

fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("depot.lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path).at("open", &path)?;
    // SAFETY: flock(2) on a descriptor that `file` keeps open.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(file);
    }
    Err(Failure::new("in-use", format!("{} is another depot's", folder.display()))
        .next("name a folder of its own: --cache DIR"))
}

impl Serve for Depot {
    fn serve(&self, request: Request, _: &mut dyn FnMut(Tick)) -> Result<Value> {
        let value = match request {
            Request::Peers => {
                serde_json::to_value(self.fleet.seen().iter().map(PeerRow::from).collect::<Vec<_>>())
            }
            Request::Status => serde_json::to_value(FleetStatus::of(&self.fleet, &self.cache)),
            _ => {
                return Err(Failure::usage(
                    "a depot is asked who is there and what it did, and nothing else",
                ));
            }
        };
        value.map_err(|error| Failure::new("io", "the answer cannot be written").why(error.to_string()))
    }

    fn watch(&self, _: &Wish, _: &Wire<'_>) -> Result<Value> {
        Err(Failure::usage("a depot has no requests to look at").next("covey peers FOLDER shows the fleet"))
    }
}
