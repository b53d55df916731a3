//! A shared volume: its names are in a database, and every node that mounts it writes to it.
//!
//! ```text
//!   FOLDER/covey.json ── names: postgres://..., etcd://...      FOLDER/node ── this node's id
//!
//!   Volume ──► Leases ──► SharedStore (fence, bytes before names) ──► the database
//!      │          └── leases of other nodes ───┐
//!      └── bytes of other nodes' packs ────────┴─► peers.rs ──► the other nodes
//! ```
//!
//! The folder holds what belongs to this node: its open packs, its cache, and what it has not uploaded yet.
//! The names are in the database, with all that another node needs to know of the volume ([`making`]).
//!
//! - [`making`]: a new volume, and the folder of a node that mounts it for the first time.
//! - [`aside`]: files whose bytes are lost are renamed.
//! - [`away`]: what commands are told when the database cannot be reached.
//! - [`bytes`](mod@bytes): whether the bytes of a volume are in the origin, or on a node.
//! - [`claiming`]: which database holds the names, so that a copy of it deletes no blob.
//! - [`copied`]: a node's folder that was copied to another disk.
//! - [`checking`]: a check of the names, and the locks that nodes hold.
//! - [`detaching`]: a copy of the database becomes a volume of its own, with a copy of the blobs.
//! - [`locking`]: where locks hold, as a setting of the volume.
//! - [`listed`]: what the database says of a volume, without joining it.
//! - [`living`]: which sessions last.
//! - [`peers`]: bytes and leases between nodes; [`keeping`]: copies of packs on a second node.
//! - [`reaching`]: nodes that do not reach each other.
//! - [`repairing`]: a repair of the names, while no node uses them.
//! - [`restoring`]: a new volume of a published tree.
//! - [`promoting`]: the names of a volume of one node move into a database; [`unfinished`]: its last steps.
//! - [`resuming`]: what a killed process of this node had acknowledged is stored.
//! - [`session`]: joins, renews in time, joins again, leaves.

pub mod aside;
pub(crate) mod away;
pub mod bytes;
pub mod checking;
pub mod claiming;
mod copied;
pub mod detaching;
mod engine_seen;
mod keeping;
pub mod listed;
mod living;
mod loans;
pub mod locking;
pub mod making;
mod members;
mod peers;
pub mod promoting;
mod reaching;
pub mod repairing;
pub mod restoring;
pub(crate) mod resuming;
mod rows;
mod session;
pub(crate) mod unfinished;

use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::fs::api::Locks;
use ::fs::shared::{Keeping, NODE_MAX, Others, Sharing};
use ::fs::volume::{Fsync, Volume};
use api::error::{Context, Failure, Result};
use api::status::copies::CopiesStatus;
use blob::PackStore;
use cache::KeptPacks;
use engines::Address;
use meta::MetaStore;
use meta::engine::database::{Database, SetupError};
use meta::lease::{Journal, Leases};
use meta::shared::outage::Outage;
use meta::shared::{Named, SharedStore, Term};
use meta::store::StoreError;
use net::hello::Identity;
use net::id::{NodeId, Role};
use net::secret::Secret;
use net::transport::{Limits, Net};
use parking_lot::Mutex;

use crate::fleet::options::FleetOptions;
use crate::log;
use crate::options::NodeOptions;
use crate::volume_dir::VolumeDir;
use claiming::Claims;
use members::Joining;
use peers::{PackServer, Peers};
use rows::ROW_SECRET;
use session::Keeper;

/// How long a session lasts without being renewed.
pub const LEASE: Duration = Duration::from_secs(15);
/// How often a session is renewed.
const EVERY: Duration = Duration::from_secs(LEASE.as_secs() / 5);
/// How long closing waits for changes that are not in the database yet.
const CLOSE: Duration = Duration::from_secs(10);

/// Whether a blob of this node waits to be uploaded.
pub type IsPending = Arc<dyn Fn(&base::BlobId) -> bool + Send + Sync>;

/// The part of a shared volume that one node has.
pub struct Shared {
    names: Arc<dyn Database>,
    term: Arc<Term>,
    outage: Arc<Outage>,
    net: Net,
    server: Arc<PackServer>,
    peers: Arc<Peers>,
    keeper: Arc<Keeper>,
    /// Until the leases have it.
    journal: Mutex<Option<Journal>>,
    number: u32,
    kept: Arc<KeptPacks>,
    keeping: Option<Arc<Keeping>>,
    joining: Joining,
}

impl Shared {
    /// Opens the names of the volume, and joins it. The failure has the code [`claiming::UNCLAIMED`] if the
    /// database may only be read; `may_change` is false for a mount that knows this.
    pub fn open(
        dir: &VolumeDir,
        fleet: &FleetOptions,
        options: &NodeOptions,
        may_change: bool,
    ) -> Result<Shared> {
        let text = dir.format().names.as_deref().unwrap_or_default();
        let target = Address::parse(text).map_err(setup_failure)?;
        let names = target.open_with(options.lanes).map_err(setup_failure_at(&target))?;
        check_id(dir, &target, &*names).map_err(|failure| resuming::with_left(failure, dir))?;
        let rows: Arc<dyn MetaStore> = names.clone();
        // With open files, the other nodes must hear of them first ([`Shared::complete`]).
        if options.handed.is_none() || !unfinished::is_own(dir, &rows)? {
            unfinished::complete(dir, &rows)?;
            unfinished::check_complete(&target, &rows)?;
        }
        let claims = Arc::new(Claims::new(names.clone(), target.to_string()));
        if may_change && options.handed.is_none() {
            // A promotion that is not complete yet may still go back to its folder.
            claims.open(dir, options.read_only)?;
        }
        warn_of_weaknesses(&*names);
        let node = node_id(dir)?;
        let server = Arc::new(PackServer::default());
        let (net, joining) = listen(dir, &target, fleet, node, &*names, server.clone())?;
        let address = fleet.advertise.or(net.address());
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        let term = Arc::new(Term::default());
        let outage: Arc<Outage> = Arc::default();
        let both = (term.clone(), outage.clone());
        let claims = Some(claims).filter(|_| may_change && !options.read_only);
        let keeper = Arc::new(Keeper::new(names.clone(), both, node, address, claims));
        keeper.watch();
        if may_change {
            resuming::resume(dir, &names, &keeper, &term, node)?;
        } else {
            resuming::must_be_empty(dir, node)?;
        }
        copied::say_left(dir, &*names)?;
        let journal = Mutex::new(Some(resuming::journal(dir, node)?));
        let number = join(&keeper, &target)?;
        // When a node does not answer, there must be time to ask the origin.
        let wait = peers::WAIT.min(options.deadline / 3);
        if !options.read_only {
            copied::take_packs(dir, number)?;
        }
        let kept = keeping::open(dir, options)?;
        let asked = (names.clone(), outage.clone(), keeper.seen());
        let peers = Arc::new(Peers::new(net.clone(), asked, wait, kept.clone()));
        let makes_copies = !options.read_only && matches!(options.remote_side.fsync(true), Fsync::Peer(_));
        let keeping = makes_copies.then(Arc::default);
        Ok(Shared {
            names,
            term,
            outage,
            net,
            server,
            peers,
            keeper,
            journal,
            number,
            kept,
            keeping,
            joining,
        })
    }

    /// Completes a promotion, if this folder has to. Other nodes can mount the volume from then on.
    pub(crate) fn complete(&self, dir: &VolumeDir) -> Result<()> {
        let text = dir.format().names.as_deref().unwrap_or_default();
        let target = Address::parse(text).map_err(setup_failure)?;
        let rows: Arc<dyn MetaStore> = self.names.clone();
        unfinished::complete(dir, &rows)?;
        unfinished::check_complete(&target, &rows)
    }

    /// The store for the volume.
    pub fn store(&self, packs: Arc<dyn PackStore>) -> Result<Arc<Leases>> {
        let named = self.keeping.clone().map(|keeping| keeping as Arc<dyn Named>);
        let store = SharedStore::new(self.names.clone(), packs, self.term.clone());
        let store = store.telling(named).noting(self.outage.clone());
        let (term, journal) = (self.term.clone(), self.journal.lock().take());
        let leases = Leases::with_journal(Arc::new(store), term, self.peers.clone(), journal)
            .map_err(|error| Failure::io("cannot start a thread", &error))?;
        self.keeper.guard(leases.clone());
        self.server.lend(&leases);
        Ok(leases)
    }

    /// Waits until what all nodes have acknowledged is in the database.
    ///
    /// # Errors
    /// A node does not answer, and its session lasts. Or this node's changes could not be stored in time.
    pub(crate) fn flush_everywhere(&self) -> std::result::Result<(), StoreError> {
        self.keeper.leases().map_or(Ok(()), |leases| leases.flush_everywhere())
    }

    /// Where bytes of other nodes' packs are read, and which sessions last.
    pub fn others(&self) -> Arc<dyn Others> {
        self.peers.clone()
    }

    /// Returns this node's number in the volume.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Where locks hold. A mount that writes makes it a setting of the volume.
    pub fn locks(&self, options: &NodeOptions) -> Result<Locks> {
        let keeps = options.mountpoint.is_some() && !options.read_only;
        locking::decide(&*self.names, options.locks, keeps)
    }

    /// What the volume must know of other nodes, after [`Shared::store`].
    pub fn sharing(&self, locks: Locks, delay: Duration) -> Sharing {
        let leases = self.keeper.leases();
        Sharing {
            node: self.number,
            others: self.peers.clone(),
            lease: LEASE,
            delay,
            locks,
            leases,
            keeping: self.keeping.clone(),
            kept: Some(self.kept.clone()),
        }
    }

    /// The claim on the origin, if this node writes.
    pub(crate) fn claims(&self) -> Option<Arc<Claims>> {
        self.keeper.claims()
    }

    /// Whether the database does not answer now.
    pub(crate) fn is_away(&self) -> bool {
        self.outage.seen(base::time::monotonic()).is_some_and(|away| !away.is_over)
    }

    /// What is wrong with the database, and since when.
    pub(crate) fn trouble(&self) -> Option<String> {
        let refused = self.outage.refused()?;
        let what = if refused.is_full { "it has no space for changes" } else { "it takes no changes" };
        let since = base::time::monotonic().saturating_duration_since(refused.since);
        Some(format!("{what}, since {}: {}", api::text::span(since.as_secs_f64()), refused.why))
    }

    /// The nodes that this one does not reach: a line for each.
    pub(crate) fn unreached(&self) -> Vec<String> {
        self.peers.unreached.lines()
    }

    /// The copies of packs that this node and the others keep of one another.
    pub fn copies(&self) -> CopiesStatus {
        let (kept, sent) = (self.kept.stats(), self.keeping.as_ref().map(|keeping| keeping.stats()));
        let sent = sent.unwrap_or_default();
        CopiesStatus {
            packs: kept.packs,
            bytes: kept.bytes,
            max_bytes: kept.budget,
            refused: kept.refused,
            keeper: sent.node,
            sent_bytes: sent.bytes,
        }
    }

    /// Begins to serve other nodes, and to renew the session.
    pub fn start(&self, volume: &Arc<Volume>, is_pending: IsPending) -> Result<()> {
        let weak: Weak<Volume> = Arc::downgrade(volume);
        self.server.serve(weak.clone(), is_pending);
        self.server.keep(self.kept.clone(), &self.peers);
        self.keeper
            .start(weak, self.peers.clone())
            .map_err(|error| Failure::io("cannot start a thread", &error))
    }

    /// Leaves the volume.
    pub fn close(&self) {
        let leases = self.keeper.leases();
        if let Some(Err(error)) = leases.as_ref().map(|leases| leases.close(CLOSE)) {
            log::warn(&format!(
                "the last changes could not be stored in the database: {error}; the next mount of this node stores them"
            ));
        }
        self.keeper.stop();
        self.net.close();
        if leases.is_some_and(|leases| leases.is_behind()) {
            // The next process needs the session for what is in the journal.
            return;
        }
        if let Err(error) = self.names.leave() {
            log::warn(&format!("the session could not be ended, and expires by itself: {error}"));
        }
    }
}

/// Joins the volume. Returns the number of this node.
fn join(keeper: &Keeper, target: &Address) -> Result<u32> {
    // This process holds the folder's lock, so an earlier session of this node is a dead process's.
    let session = keeper.join(true).map_err(|error| {
        Failure::new("not-joined", format!("cannot join the shared volume {}", target.volume()))
            .why(error.to_string())
    })?;
    let number = u32::try_from(session.number).ok().filter(|number| (1..=NODE_MAX).contains(number));
    number.ok_or_else(|| {
        Failure::new("too-many-nodes", format!("{} nodes have joined this volume", session.number))
            .why(format!("a volume takes {NODE_MAX} in its life"))
    })
}

/// Says in the log by which settings the database may lose what it has confirmed.
fn warn_of_weaknesses(names: &dyn Database) {
    let lines = names.weaknesses().unwrap_or_default();
    lines.iter().for_each(|line| log::warn(line));
}

/// The failure for a database that cannot be used.
pub fn setup_failure(error: SetupError) -> Failure {
    match error {
        SetupError::Target(why) => Failure::usage("the address of the database cannot be used").why(why),
        SetupError::Exists(what) => Failure::new("exists", what),
        SetupError::Missing(what) => Failure::new("not-found", what),
        SetupError::Version(what) => Failure::new("other-version", what),
        SetupError::Absent(what) => Failure::new("unsupported", what),
        SetupError::Store(error) => Failure::new("no-database", "the database cannot be used")
            .why(error.to_string())
            .next("covey doctor ADDRESS checks all of it"),
    }
}

/// Returns a [`setup_failure`] that says how to look at the database, by its address.
pub(crate) fn setup_failure_at(address: &Address) -> impl Fn(SetupError) -> Failure {
    let address = address.to_string();
    move |error| match error {
        SetupError::Store(error) => {
            away::unreached("the database cannot be used", &address, error.to_string())
        }
        error => setup_failure(error),
    }
}

/// The database must hold the names of this folder's volume, and not of another one.
fn check_id(dir: &VolumeDir, target: &Address, names: &dyn Database) -> Result<()> {
    if making::hex(&names.uuid()) == dir.format().id {
        let life = making::life(&secret_row(names)?);
        if making::is_other_life(dir, &life)? {
            making::check_home(dir, target, names)?;
        }
        return making::take_life(dir, &life);
    }
    Err(Failure::new("another-volume", format!("{} belongs to another volume", dir.path().display()))
        .why(format!("{} is now the name of a volume with another id", target.volume()))
        .next("mount the volume with another --cache DIR; that folder is made anew"))
}

/// The id of this node: random, and kept in its folder with the number of the file's own inode. A copy of the
/// folder has another inode. So the copy is another node, and never poses as this one.
fn node_id(dir: &VolumeDir) -> Result<NodeId> {
    let path = dir.path().join("node");
    let known = fs::read_to_string(&path).ok().zip(fs::metadata(&path).ok());
    if let Some((text, about)) = known
        && let Some((id, inode)) = text.trim().split_once(' ')
        && let (Ok(id), Ok(inode)) = (u128::from_str_radix(id, 16), inode.parse::<u64>())
        && inode == about.ino()
    {
        return Ok(NodeId(id.to_be_bytes()));
    }
    let id = NodeId::random();
    let new = dir.path().join("node.new");
    let write = || {
        let mut file = File::create(&new)?;
        writeln!(file, "{id} {}", file.metadata()?.ino())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(dir.path())?.sync_all()
    };
    write().at("write", &path)?;
    Ok(id)
}

fn listen(
    dir: &VolumeDir,
    target: &Address,
    fleet: &FleetOptions,
    node: NodeId,
    names: &dyn Database,
    server: Arc<PackServer>,
) -> Result<(Net, Joining)> {
    let secret = match &fleet.secret_file {
        Some(path) => Secret::from_file(path).map_err(|error| no_secret(&error.to_string()))?,
        None => secret_of(names)?,
    };
    let id = u128::from_str_radix(&dir.format().id, 16).unwrap_or_default();
    let joining = Joining::new(fleet, secret.clone(), node, id.to_be_bytes())?;
    let options = net::transport::Options {
        identity: Identity { node, role: Role::Node, volume: id.to_be_bytes() },
        secret,
        tls: fleet.tls.load()?,
        listen: Some(fleet.listen.unwrap_or_else(|| SocketAddr::new(reaching::own_address(target), 0))),
        verify: fleet.verify,
        limits: Limits::default(),
    };
    let net = Net::start(options, server, log::sink())
        .map_err(|error| Failure::new("no-fleet", "other nodes cannot be served").why(error.to_string()))?;
    Ok((net, joining))
}

fn secret_of(names: &dyn Database) -> Result<Secret> {
    Secret::from_text(&secret_row(names)?).map_err(|error| no_secret(&error.to_string()))
}

/// The secret as it is stored. Empty if there is none.
fn secret_row(names: &dyn Database) -> Result<String> {
    let row = names.get(&meta::Key::volume(ROW_SECRET));
    let row = row.map_err(|error| setup_failure(error.into()))?;
    Ok(String::from_utf8_lossy(row.as_deref().unwrap_or_default()).into_owned())
}

fn no_secret(why: &str) -> Failure {
    Failure::new("no-secret", "the nodes of this volume cannot know one another").why(why)
}
