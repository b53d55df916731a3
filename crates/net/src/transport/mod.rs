//! The transport between nodes: a listener that serves what a [`Service`] has, and requests to other nodes.
//!
//! ```text
//!   this node                                                            another node
//!                                     one control connection
//!     Net::ask, notes, list     ────► many small frames at once ───────► serve::control ──► Service
//!
//!                                     1 to 4 bulk connections
//!     Net::read_groups, fetch_into ─► sums, then slices of 1 MiB ◄────── serve::bulk: sendfile from a file
//!                                     straight into the final buffer
//! ```
//!
//! - A connection carries requests in one direction: the node that opened it asks, the node that accepted it
//!   answers. Each connection begins with the handshake of [`crate::hello`].
//! - [`call`]: a request in flight; no task runs for it. [`lane`]: the requesting end of a connection.
//!   [`peers`]: all of these ends.
//! - [`establish`]: how a connection begins. [`link`]: the established connection, plain or under TLS.
//! - [`reader`]: the loop that reads the requesting end. [`listen`], [`serve`], [`finished`]: the
//!   serving end. [`service`]: the interface that the serving end calls. [`socket`]: the system calls.
//! - Control connections, fetches and serving each run on their own threads: a tokio runtime each. So large
//!   fetches do not delay questions, and a slow disk under the blobs that are served delays neither questions
//!   nor fetches. A transport that does not listen has no threads for serving.
//! - [`clients`]: what each other node uses of this one. [`suspicions`]: blobs whose copies are checked
//!   because another node doubts them.
//! - [`backlog`]: bytes that were requested from this node and have not been sent.
//! - [`window`]: how much may be in flight to this node.
//!
//! The transport never waits without an end: every request has a deadline, every connection its pings. It
//! never allocates memory for a length from another node before the length is checked. It never retries: the
//! requester decides which node to ask next.

mod backlog;
pub mod call;
mod clients;
pub mod counters;
mod establish;
pub mod fail;
mod finished;
mod flows;
mod job;
mod lane;
mod link;
mod listen;
mod outbox;
mod peers;
mod reader;
mod serve;
pub mod service;
mod slice;
mod socket;
mod suspicions;
#[cfg(test)]
mod tests;
mod window;

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::BlobId;
use base::size::{BLOB_MAX, GROUP};
use blob::Sums;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::frame::{
    self, Get, KeepAsk, LendAsk, ListAsk, LoanPart, PackAsk, PackPart, RecallAsk, Returned, Type, WITH_SUMS,
};
use crate::hello::{Class, Greeter, Identity};
use crate::id::NodeId;
use crate::message::{Answer, Ask, Note};
use crate::secret::Secret;
use crate::tls::Tls;
use fetch::{Arriving, Verify};

use backlog::Backlog;
pub use call::Call;
use call::Slot;
use clients::Clients;
use counters::Counters;
pub use counters::Counts;
pub use fail::Fail;
pub use flows::Bytes;
use flows::Flows;
use lane::{Gather, Lane, Sink};
use peers::Peers;
use suspicions::Suspicions;
use window::ReceiveWindow;

pub use service::{Content, CopyState, Filled, Listed, Prefix, Roll, Service, Then, Unfilled};

/// Receives lines for the operator: which node was refused, and why.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// A node to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Where it listens.
    pub address: SocketAddr,
    /// The node that is expected there. None if only the address is known. An answer of another node is an
    /// error.
    pub node: Option<NodeId>,
}

/// How the transport is set up.
pub struct Options {
    /// The identity of this node.
    pub identity: Identity,
    /// What all nodes of the fleet know.
    pub secret: Secret,
    /// The TLS setup. None leaves connections unencrypted. Either all nodes of a fleet have TLS, or none.
    pub tls: Option<Tls>,
    /// Where to listen. Port 0 takes a free one, none serves no other node.
    pub listen: Option<SocketAddr>,
    /// How whole blobs and groups are verified.
    pub verify: Verify,
    /// Timeouts and bounds.
    pub limits: Limits,
}

/// Timeouts and bounds. The defaults are right for a data centre. Tests shorten them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The time limit of a handshake on either side, and of connecting.
    pub handshake: Duration,
    /// Upper bound on connections whose handshake has not ended, in total. A new one replaces the oldest. A
    /// quarter is reserved for the addresses of members.
    pub half_open: usize,
    /// Upper bound on connections whose handshake has not ended, from one address.
    pub half_open_each: usize,
    /// Upper bound on connections that are served.
    pub connections: usize,
    /// Upper bound on connections of one node that are served. A new one replaces the oldest.
    pub connections_each: usize,
    /// Upper bound on bodies that were promised and not yet sent, in total. Each is an open file.
    pub bodies: usize,
    /// Upper bound on bodies that were promised to one node and not yet sent.
    pub bodies_each: usize,
    /// Threads that read the disk for other nodes' requests, beside those that serve, on each of the two
    /// runtimes that do so (control and serving).
    pub helpers: usize,
    /// Upper bound on unanswered requests on one connection. More fail with [`Fail::Busy`].
    pub requests: usize,
    /// Bulk connections to one node.
    pub bulk: usize,
    /// Fetches in flight on every bulk connection before another one is opened.
    pub window: usize,
    /// A bulk connection without a request ends after this.
    pub bulk_idle: Duration,
    /// A control connection without a request ends after this.
    pub control_idle: Duration,
    /// After this long without any received byte, a ping is sent. After the same time again the connection is
    /// given up.
    pub quiet: Duration,
    /// After a connection failed, the next attempt waits this long. The time doubles with each failure, up to
    /// 64 times this value.
    pub backoff: Duration,
    /// Threads for bulk connections that fetch, and as many for those that serve if it listens.
    pub threads: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            handshake: Duration::from_secs(5),
            half_open: 512,
            half_open_each: 64,
            connections: 16 << 10,
            connections_each: 16,
            bodies: 4096,
            bodies_each: 1024,
            helpers: 32,
            requests: 1024,
            bulk: 4,
            window: 4,
            bulk_idle: Duration::from_secs(30),
            control_idle: Duration::from_secs(300),
            quiet: Duration::from_secs(5),
            backoff: Duration::from_millis(100),
            threads: 2,
        }
    }
}

/// Why the transport did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}; choose another with --listen, or end what uses it")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: std::io::Error,
    },
    /// The system cannot start its threads.
    #[error("the peer transport cannot start its threads: {0}")]
    Threads(std::io::Error),
}

/// The state that all connections share.
pub(crate) struct Shared {
    greeter: Greeter,
    tls: Option<Tls>,
    limits: Limits,
    verify: Verify,
    service: Arc<dyn Service>,
    counters: Arc<Counters>,
    flows: Flows,
    backlog: Arc<Backlog>,
    clients: Arc<Clients>,
    suspicions: Suspicions,
    peers: Peers,
    window: Arc<ReceiveWindow>,
    closed: AtomicBool,
    report: Report,
    said: Mutex<Vec<(IpAddr, Instant)>>,
}

impl Shared {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn silence_ms(&self) -> u32 {
        u32::try_from(3 * self.limits.quiet.as_millis()).unwrap_or(u32::MAX)
    }

    fn backlog(&self) -> u16 {
        self.backlog.mebibytes()
    }

    /// Reports at most one line a minute for an address, so that a stranger cannot fill a log.
    fn say(&self, about: SocketAddr, line: &str) {
        let now = base::time::monotonic();
        let mut said = self.said.lock();
        said.retain(|(_, when)| now.duration_since(*when) < Duration::from_secs(60));
        if said.len() < 256 && !said.iter().any(|(address, _)| *address == about.ip()) {
            said.push((about.ip(), now));
            drop(said);
            (self.report)(line);
        }
    }
}

/// The transport of a node. Clones share it. When the last clone is dropped, all connections end.
#[derive(Clone)]
pub struct Net(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    address: Option<SocketAddr>,
    /// Control, fetches, and serving if it listens. Empty after it was dropped.
    runtimes: Vec<Runtime>,
    /// Control and fetches.
    handles: [Handle; 2],
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.peers.close();
        // Does not wait: the last clone may be dropped inside one of the runtimes' own tasks.
        self.runtimes.drain(..).for_each(Runtime::shutdown_background);
    }
}

fn runtime(name: &str, threads: usize, helpers: usize) -> Result<Runtime, StartError> {
    Builder::new_multi_thread()
        .worker_threads(threads.max(1))
        .max_blocking_threads(helpers.max(1))
        .thread_name(name)
        .enable_all()
        .build()
        .map_err(StartError::Threads)
}

impl Net {
    /// Starts the threads, and listens if [`Options::listen`] is set.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(options: Options, service: Arc<dyn Service>, report: Report) -> Result<Net, StartError> {
        let Limits { threads, helpers, .. } = options.limits;
        let (control, bulk) = (runtime("peer", 1, helpers)?, runtime("peer bulk", threads, 1)?);
        let handles = [control.handle().clone(), bulk.handle().clone()];
        let shared = Arc::new(Shared {
            greeter: Greeter::new(options.identity, &options.secret, options.limits.handshake),
            tls: options.tls,
            limits: options.limits,
            verify: options.verify,
            service,
            counters: Arc::default(),
            flows: Flows::default(),
            backlog: Arc::default(),
            clients: Arc::default(),
            suspicions: Suspicions::default(),
            peers: Peers::default(),
            window: Arc::default(),
            closed: AtomicBool::new(false),
            report,
            said: Mutex::default(),
        });
        let (mut address, mut serving) = (None, None);
        if let Some(wanted) = options.listen {
            let failed = |error| StartError::Listen { address: wanted, error };
            let listener = base::lock::bind(|| std::net::TcpListener::bind(wanted)).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            address = Some(listener.local_addr().map_err(failed)?);
            let serve = runtime("peer serve", threads, helpers)?;
            let _inside = control.enter();
            let listener = TcpListener::from_std(listener).map_err(failed)?;
            control.spawn(listen::listen(Arc::clone(&shared), listener, serve.handle().clone()));
            serving = Some(serve);
        }
        let runtimes = [control, bulk].into_iter().chain(serving).collect();
        Ok(Net(Arc::new(Inner { shared, address, runtimes, handles })))
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.address
    }

    /// Whether its connections are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.0.shared.tls.is_some()
    }

    /// How busy this node is with serving: MiB that other nodes wait for and that have not been sent.
    /// [`Ask::backlog`] and [`crate::id::Member::load`] carry it.
    pub fn backlog(&self) -> u16 {
        self.0.shared.backlog()
    }

    /// Asks a tracker: "Where do I get these?"
    pub fn ask(&self, peer: Peer, ask: &Ask, time: Duration) -> Call<Vec<Answer>> {
        let flags = if ask.part { frame::PART } else { 0 };
        let payload = frame::encode_ask(ask);
        self.submit(peer, Class::Control, (Type::Ask, flags), &payload, Sink::None, time, call::answers)
    }

    /// Tells a tracker what happened to blobs here. Ends when the tracker has received it. At most
    /// [`crate::message::NOTES_MAX`] notes.
    pub fn notes(&self, peer: Peer, notes: &[Note], time: Duration) -> Call<()> {
        self.call(peer, Class::Control, Type::Notes, &frame::encode_notes(notes), time, call::done)
    }

    /// Asks which blobs a node has, by the first bits of their ids.
    pub fn list(&self, peer: Peer, prefix: Prefix, time: Duration) -> Call<Listed> {
        let ask = ListAsk { prefix, most: u16::MAX };
        self.call(peer, Class::Control, Type::List, &ask.encode(), time, call::listed)
    }

    /// Asks a depot: "Fetch this from the origin and keep it." The call ends when that is done, so `time` is
    /// that of a fetch.
    pub fn fill(&self, peer: Peer, blob: &BlobId, time: Duration) -> Call<Filled> {
        self.call(peer, Class::Control, Type::Fill, &blob.0, time, call::filled)
    }

    /// Asks the node that writes a pack for bytes of it: at most [`frame::PACK_MAX`].
    pub fn pack(&self, peer: Peer, ask: &PackAsk, time: Duration) -> Call<PackPart> {
        self.call(peer, Class::Control, Type::Pack, &ask.encode(), time, call::pack)
    }

    /// Asks a node to keep bytes of a pack that this one writes. The result is the number of that node's run.
    pub fn keep(&self, peer: Peer, ask: &KeepAsk, time: Duration) -> Call<u64> {
        self.call(peer, Class::Control, Type::Keep, &ask.encode(), time, call::kept)
    }

    /// Asks a node to give back a lease. The call ends when the node no longer uses it.
    pub fn recall(&self, peer: Peer, ask: &RecallAsk, time: Duration) -> Call<()> {
        self.call(peer, Class::Control, Type::Recall, &ask.encode(), time, call::done)
    }

    /// Asks a node to lend a unit that it has a lease of. `None`: it does not.
    pub fn lend(&self, peer: Peer, ask: &LendAsk, time: Duration) -> Call<Option<LoanPart>> {
        self.call(peer, Class::Control, Type::Lend, &ask.encode(), time, call::loan)
    }

    /// Tells a node that its loan is no longer used.
    pub fn returned(&self, peer: Peer, returned: &Returned, time: Duration) -> Call<()> {
        self.call(peer, Class::Control, Type::Returned, &returned.encode(), time, call::done)
    }

    /// Asks: "Which members come after this one?" It also works with a fleet whose volume is not known here.
    /// The secret is enough.
    pub fn members(&self, peer: Peer, after: NodeId, time: Duration) -> Call<Roll> {
        self.call(peer, Class::Look, Type::Members, &after.0, time, call::roll)
    }

    /// Opens the control connection before it is needed. Ends when the node has proved that it belongs to the
    /// fleet.
    pub fn greet(&self, peer: Peer, time: Duration) -> Call<()> {
        self.call(peer, Class::Control, Type::Notes, &frame::encode_notes(&[]), time, call::done)
    }

    fn call<T>(
        &self,
        peer: Peer,
        class: Class,
        kind: Type,
        payload: &[u8],
        time: Duration,
        take: fn(call::Reply) -> Option<T>,
    ) -> Call<T> {
        self.submit(peer, class, (kind, 0), payload, Sink::None, time, take)
    }

    #[allow(clippy::too_many_arguments, reason = "what a request consists of; five callers, all here")]
    fn submit<T>(
        &self,
        peer: Peer,
        class: Class,
        header: (Type, u8),
        payload: &[u8],
        sink: Sink,
        time: Duration,
        take: fn(call::Reply) -> Option<T>,
    ) -> Call<T> {
        let began = base::time::monotonic();
        let lane = match self.lane(peer, class) {
            Ok(lane) => lane,
            Err(fail) => return Call::failed(fail),
        };
        let slot = Arc::new(Slot::default());
        match lane.submit(header, payload, &slot, sink, time) {
            Ok(request) => Call::new(slot, take, (lane, request), began, time),
            Err(fail) => Call::failed(fail),
        }
    }

    fn lane(&self, peer: Peer, class: Class) -> Result<Arc<Lane>, Fail> {
        let [control, bulk] = &self.0.handles;
        let on = if class == Class::Bulk { bulk } else { control };
        self.0.shared.peers.lane(&self.0.shared, peer, class, on)
    }

    /// Fetches into `arriving` what it lacks: its sums if they are missing, then all bytes that have not been
    /// verified. It can be called for the same blob with another node after a failure, or while the first
    /// attempt is still running. `arriving` itself is never failed here.
    pub fn fetch_into(&self, peer: Peer, arriving: &Arc<Arriving>, time: Duration) -> Call<()> {
        self.fetch_counted(peer, arriving, &Arc::default(), time)
    }

    /// Fetches as [`Net::fetch_into`] does, for the case that several nodes may be asked for one blob. `came`
    /// counts the bytes from this node, and stays 0 until the first.
    pub fn fetch_counted(
        &self,
        peer: Peer,
        arriving: &Arc<Arriving>,
        came: &Arc<AtomicU64>,
        time: Duration,
    ) -> Call<()> {
        let get = Get { blob: arriving.id(), offset: arriving.verified(), len: Get::REST };
        let flags = if arriving.sums().is_none() { WITH_SUMS } else { 0 };
        let sink = Sink::Blob(Arc::clone(arriving), Arc::clone(came));
        self.submit(peer, Class::Bulk, (Type::Get, flags), &get.encode(), sink, time, call::done)
    }

    /// Reads the groups of a blob that cover a range, and the blob's sums. This is less than the blob but
    /// verified like all of it ([`Options::verify`]), so the result may be kept and passed on. `len` is at
    /// least 1.
    pub fn read_groups(
        &self,
        peer: Peer,
        blob: &BlobId,
        offset: u32,
        len: u32,
        time: Duration,
    ) -> Call<(Sums, Vec<u8>)> {
        let from = offset - offset % GROUP;
        let end = offset.saturating_add(len).min(BLOB_MAX);
        let get = Get { blob: *blob, offset: from, len: end.next_multiple_of(GROUP).saturating_sub(from) };
        let hashed = self.0.shared.verify == Verify::Blake3;
        let gather = Gather { blob: *blob, offset, len, from, bytes: Vec::new(), sums: None, hashed };
        let sink = Sink::Groups(Arc::new(Mutex::new(gather)));
        let header = (Type::Get, WITH_SUMS);
        self.submit(peer, Class::Bulk, header, &get.encode(), sink, time, call::groups)
    }

    /// Ends all connections to a node that has left.
    pub fn forget(&self, address: SocketAddr) {
        self.0.shared.peers.forget(address, &Fail::Closed);
    }

    /// Stops asking and ends the connections that ask. Requests in flight fail with [`Fail::Closed`].
    pub fn close(&self) {
        self.0.shared.closed.store(true, Ordering::Release);
        self.0.shared.peers.close();
    }

    /// What it has done so far.
    pub fn counters(&self) -> Counts {
        self.0.shared.counters.now()
    }

    /// Bytes of blobs from and to each node that it exchanged some with.
    pub fn flows(&self) -> std::collections::HashMap<NodeId, Bytes> {
        self.0.shared.flows.now()
    }

    /// Sets the rate of this node's link, in bytes a second. It bounds what others send to this node.
    pub fn carries(&self, rate: u64) {
        self.0.shared.window.carries(rate);
    }

    /// Runs a future of the transport's users. It must not block.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.0.handles[0].spawn(work);
    }
}
