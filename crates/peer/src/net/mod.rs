//! The transport between nodes: a listener that serves what a [`Service`] has, and requests to others.
//!
//! ```text
//!   this node                                                            another node
//!     Net::ask, notes, list,          one control connection
//!     read_range (up to 64 KiB) ────► many small frames at once ───────► serve::control ──► Service
//!
//!     Net::fetch, fetch_into,         1 to 4 bulk connections
//!     read_range (above)        ────► sums, then slices of 1 MiB ◄────── serve::bulk: sendfile from the blob's file
//!                                     straight into the final buffer
//! ```
//!
//! - A connection serves one direction: who made it asks, who accepted it answers. Each begins with the handshake of [`crate::hello`].
//! - [`call`]: a request under way; no task runs for it. [`lane`]: this end of a connection that asks. [`peers`]: which of them there are.
//! - [`serve`]: the other end. [`service`]: whom it asks. [`socket`]: the system calls.
//! - Control and bulk run on threads of their own, so that one who fetches much does not keep waiting one who reads 4 KiB.
//!
//! What is never done: waiting without an end (every request has its time, every connection its pings), memory for a length that
//! somebody else named before it has been looked at, retries (the one who asks decides whom to ask next).

pub mod call;
pub mod counters;
pub mod fail;
pub mod service;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::BlobId;

use crate::arriving::{Arriving, Verify};
use crate::hello::{Identity, Secret};
use crate::id::NodeId;
use crate::message::{Answer, Ask, Note};

pub use call::Call;
pub use counters::Counts;
pub use fail::Fail;
pub use service::{Content, Listed, Prefix, Service};

/// Where lines for the operator go: who was refused, and why.
pub type Report = Arc<dyn Fn(&str) + Send + Sync>;

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// Where it listens.
    pub address: SocketAddr,
    /// Who is expected there; none where only the address is known. Another node's answer is an error.
    pub node: Option<NodeId>,
}

/// How the transport is set up.
pub struct Options {
    /// Who this node is.
    pub identity: Identity,
    /// What all nodes of the fleet know.
    pub secret: Secret,
    /// Where to listen; port 0 takes a free one, none serves nobody.
    pub listen: Option<SocketAddr>,
    /// How whole blobs and ranges above 64 KiB are checked. Smaller ranges are checked by their CRC.
    pub verify: Verify,
    /// Times and bounds.
    pub limits: Limits,
    /// What is left out, to measure what it is good for.
    pub without: Without,
}

/// Times and bounds. The defaults are right for a data centre; tests shorten them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A handshake takes no longer, on either side; so does a connection that is made.
    pub handshake: Duration,
    /// Connections whose handshake has not ended, in total.
    pub half_open: usize,
    /// The same, from one address.
    pub half_open_each: usize,
    /// Connections that are served.
    pub connections: usize,
    /// Requests on one connection whose answers have not ended: more are [`Fail::Busy`].
    pub requests: usize,
    /// Bulk connections to one node.
    pub bulk: usize,
    /// Fetches under way on every bulk connection before another is opened.
    pub window: usize,
    /// A bulk connection without a request ends after this.
    pub bulk_idle: Duration,
    /// A control connection without a request ends after this.
    pub control_idle: Duration,
    /// Nothing heard for so long: a ping is sent; nothing for so long again: the connection is given up.
    pub quiet: Duration,
    /// After a connection failed the next is tried no sooner; doubled each time, up to a hundredfold.
    pub backoff: Duration,
    /// Threads for bulk connections.
    pub threads: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            handshake: Duration::from_secs(5),
            half_open: 512,
            half_open_each: 64,
            connections: 16 << 10,
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

/// How bodies of blobs leave this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Body {
    /// From the file to the socket in the kernel.
    #[default]
    Sendfile,
    /// The same through a pipe.
    Splice,
    /// Read, then written.
    Copy,
}

/// What is left out; only measurements set any of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Without {
    /// One request at a time on a connection.
    pub multiplexing: bool,
    /// Every frame is written by itself.
    pub batching: bool,
    /// The receiver is woken for every bit that comes.
    pub low_water: bool,
    /// CRCs are computed from the bytes instead of put together.
    pub merging: bool,
    /// One bulk connection, however much is asked for.
    pub growth: bool,
    /// How bodies are sent.
    pub body: Body,
}

/// Why the transport did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}; choose another with --listen, or end what uses it")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// The system has no room for its threads.
    #[error("the peer transport cannot start its threads: {0}")]
    Threads(std::io::Error),
}

/// The transport of a node. Clones are the same one; when the last goes, all connections end.
#[derive(Clone)]
pub struct Net(Arc<Inner>);

struct Inner;

impl Net {
    /// Starts its threads, and listens if that is asked for.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(options: Options, service: Arc<dyn Service>, report: Report) -> Result<Net, StartError> {
        let _ = (options, service, report);
        Ok(Net(Arc::new(Inner)))
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        None
    }

    /// How much this node still has to send, in MiB: what [`Ask::backlog`] and [`crate::id::Member::load`] say.
    pub fn backlog(&self) -> u16 {
        0
    }

    /// "Where do I get these?" of a tracker.
    pub fn ask(&self, _peer: Peer, _ask: &Ask, _time: Duration) -> Call<Vec<Answer>> {
        Call::failed(Fail::Closed)
    }

    /// What became of blobs here, for a tracker; the end is that it heard it.
    pub fn notes(&self, _peer: Peer, _notes: &[Note], _time: Duration) -> Call<()> {
        Call::failed(Fail::Closed)
    }

    /// Which blobs it has, by their names' first bits.
    pub fn list(&self, _peer: Peer, _prefix: Prefix, _time: Duration) -> Call<Listed> {
        Call::failed(Fail::Closed)
    }

    /// Fetches into `arriving` what is missing of it: its sums if they are, then all bytes that have not been verified. It can be called for the
    /// same blob with another node after a failure, or while the first still tries; `arriving` itself is never failed here.
    pub fn fetch_into(&self, _peer: Peer, _arriving: &Arc<Arriving>, _time: Duration) -> Call<()> {
        Call::failed(Fail::Closed)
    }

    /// Bytes of a blob: up to 64 KiB on the control connection, more on a bulk one. They have been checked as [`Options::verify`] says.
    pub fn read_range(
        &self,
        _peer: Peer,
        _blob: &BlobId,
        _offset: u32,
        _len: u32,
        _time: Duration,
    ) -> Call<Vec<u8>> {
        Call::failed(Fail::Closed)
    }

    /// As [`Net::read_range`], with the end handed to `then` by the loop that reads the connection (or here, if it fails at once): the cheapest way where
    /// thousands are under way. `then` must not wait for anything.
    pub fn read_range_then(
        &self,
        _peer: Peer,
        _range: (BlobId, u32, u32),
        _time: Duration,
        then: impl FnOnce(Result<Vec<u8>, Fail>) + Send + 'static,
    ) {
        then(Err(Fail::Closed));
    }

    /// Opens the control connection before it is needed, to see who is there.
    pub fn greet(&self, _peer: Peer, _time: Duration) -> Call<()> {
        Call::failed(Fail::Closed)
    }

    /// Ends all connections to a node that has left.
    pub fn forget(&self, _address: SocketAddr) {}

    /// Says goodbye on every connection and ends them; requests under way fail with [`Fail::Closed`].
    pub fn close(&self) {}

    /// What it has done so far.
    pub fn counters(&self) -> Counts {
        Counts::default()
    }

    /// Where futures of the transport's users may run; not for what blocks.
    pub fn spawn(&self, _work: impl Future<Output = ()> + Send + 'static) {}

}
