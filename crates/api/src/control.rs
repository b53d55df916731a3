//! How a command talks to the daemon that has a volume mounted: one request, progress messages, one answer.
//!
//! ```text
//!   covey gc VOLUME ──"{"op":"gc"}\n"──► unix socket of the daemon
//!                   ◄──{"progress":{"done":3,"of":10,"what":"..."}}\n ...
//!                   ◄──{"done":{...}}\n  or  {"failed":{...}}\n
//! ```
//!
//! The control socket of a volume in a folder lies in that folder, which only its owner may enter. The socket
//! of any other mount lies in a folder of the system ([`address`]). In both cases the daemon asks the kernel
//! for the caller's user and serves only root and its own user. Others get a refusal before anything is read,
//! and take no place. Each caller that is served has its own thread: requests are rare, and a long one (a
//! garbage collection) must not delay `status`.
//!
//! **Publishers.** The owner of a volume can allow a group to publish it ([`Listener::admit`]). Its members
//! cannot reach the volume's own socket. The daemon has a second one for them, at which it serves a few
//! requests only ([`Request::is_of_publishers`]).
//!
//! After [`Request::Watch`] the daemon sends notes until the command sends `stop` or closes its end.

pub mod address;
mod client;
mod orders;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::Deadline;
use base::places::{Limits, Peer, Places};
use serde::{Deserialize, Serialize};

use crate::caller;
use crate::error::{Failure, Result};
use crate::raw_path::RawPath;
use crate::reads::ReadRange;
use crate::watch::Wish;

pub use address::ControlAddress;
pub use client::{Asked, Known, Stopper, ask, silent, state};
pub use orders::{ImportOrder, NewLimit, Ready, TrashOrder, Trashed};

/// The requests to a daemon. Paths are relative to the volume's root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Request {
    /// The figures of the mount. The answer is a `Status`.
    Status,
    /// The figures as a page of text for Prometheus.
    Metrics,
    /// What a file consists of. The answer is an `Info`.
    Info {
        /// The file.
        path: RawPath,
        /// Whether to list every extent.
        #[serde(default)]
        list: bool,
    },
    /// How a file is read, and which hint says so. The answer is a `Hint`.
    Hint {
        /// The file or folder.
        path: RawPath,
    },
    /// Clone a file or folder. Only metadata is copied.
    Clone {
        /// A file or folder.
        from: RawPath,
        /// A path that does not exist, in a folder that does.
        to: RawPath,
    },
    /// List the quotas. The answer is a list of `QuotaUse`.
    Quotas {
        /// Only those of this folder, of the folders below it and of those around it. Empty: all.
        path: RawPath,
    },
    /// Give a folder a quota. The answer is a `QuotaUse`.
    SetQuota {
        /// The folder.
        path: RawPath,
        /// The most bytes.
        bytes: NewLimit,
        /// The most files and folders.
        files: NewLimit,
    },
    /// Take a folder's quota away.
    RemoveQuota {
        /// The folder.
        path: RawPath,
    },
    /// Look at the trash, or change it.
    Trash {
        /// What to do.
        order: TrashOrder,
    },
    /// Publish a folder under a name.
    Publish {
        /// The folder. Empty for the whole volume.
        path: RawPath,
        /// The name.
        name: String,
        /// Write every tree node again.
        #[serde(default)]
        afresh: bool,
        /// How many publications of the name are kept. None: as many as before.
        #[serde(default)]
        keep: Option<u32>,
    },
    /// Delete a published tree.
    Unpublish {
        /// The tree's name.
        name: String,
    },
    /// List what is published. The answer is a `Published`.
    Published {
        /// Also the older publications that are kept.
        all: bool,
    },
    /// Collect garbage: remove the data that nothing refers to.
    Gc,
    /// Make everything written so far survive a power cut.
    Flush,
    /// Wait until everything written so far is in the origin. The answer is a `Settled`.
    Settle {
        /// The longest time to wait. None: no limit.
        seconds: Option<u64>,
    },
    /// Copy the names into a database, for a promotion that follows. The answer is the number of rows.
    CopyNames {
        /// The address of the shared volume.
        address: String,
    },
    /// Stop serving the volume, close it, and wait for the end of the promotion that is under way. Programs
    /// that use the mount wait meanwhile. The answer comes when no request is being served.
    HandOver,
    /// Evict cached blobs. The answer is an `Evicted`.
    Evict {
        /// Stop when the cache holds at most this many bytes. None: evict everything.
        to: Option<u64>,
    },
    /// Fetch the data of files and trees. The answer is a `WarmSummary`.
    Warm {
        /// The files and folders.
        paths: Vec<RawPath>,
        /// Fetch into the zone's depots, not into this node's cache.
        #[serde(default)]
        depot: bool,
    },
    /// Fetch ranges of files, in this order. The answer is a `WarmSummary`.
    WarmReads {
        /// The ranges.
        reads: Vec<ReadRange>,
    },
    /// List the nodes of the fleet. The answer is a list of `PeerRow`.
    Peers,
    /// Which parts of files are read most. The answer is a `Heat`.
    Heat {
        /// Only this file, or files below this folder. None: all files.
        #[serde(default)]
        path: Option<RawPath>,
        /// How many chunks to list.
        top: u32,
    },
    /// Which nodes of the fleet have the blobs of a file. The answer is a list of `HolderRow`.
    Holders {
        /// The file.
        path: RawPath,
    },
    /// Import what the command sends. The daemon first sends a note, [`Ready`]. Then the command sends the
    /// items as bytes (`archive::import::wire`), and shuts its end down. The answer is an `Imported`.
    Import(ImportOrder),
    /// Watch the mount until the command sends `stop`.
    Watch {
        /// What to watch.
        wish: Wish,
    },
}

impl Request {
    /// Whether members of the group that may publish can send it.
    pub fn is_of_publishers(&self) -> bool {
        matches!(self, Request::Publish { .. } | Request::Unpublish { .. } | Request::Published { .. })
    }
}

/// A group whose members may publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publishers {
    /// The group's number.
    pub gid: u32,
    /// The group's name or number, as the owner wrote it.
    pub name: String,
}

/// The progress of a long operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tick {
    /// Done so far.
    pub done: u64,
    /// The total. 0 while it is not known.
    pub of: u64,
    /// What is being done, in words.
    pub what: String,
}

/// One line from the daemon.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reply {
    Progress(Tick),
    Note(serde_json::Value),
    Done(serde_json::Value),
    Failed(Failure),
}

/// Serves the requests to a daemon.
pub trait Serve: Send + Sync {
    /// Serves one request and blocks until it is done. An operation that may take long calls `tick` at least
    /// once a second.
    fn serve(&self, request: Request, tick: &mut dyn FnMut(Tick)) -> Result<serde_json::Value>;

    /// A member of the group that may publish asks for this. It is served next.
    fn asked_by_member(&self, _user: u32, _request: &Request) {}

    /// Serves a [`Wish`] until the caller stops it.
    fn watch(&self, wish: &Wish, wire: &Wire<'_>) -> Result<serde_json::Value>;

    /// Lists what is in the trash, as notes.
    fn list_trash(&self, _: &Wire<'_>) -> Result<serde_json::Value> {
        Err(Failure::usage("this daemon has no volume with a trash"))
    }

    /// Imports what the caller sends.
    fn import(&self, _: &ImportOrder, _: &Wire<'_>) -> Result<serde_json::Value> {
        Err(Failure::usage("this daemon has no volume to import into"))
    }
}

/// What the daemon received from a command that watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Nothing arrived in the given time.
    Nothing,
    /// The command wants to stop and expects the summary.
    Stop,
    /// The command closed its end.
    Gone,
}

/// The daemon's end of a connection to a command that watches, or that sends an import.
pub struct Wire<'a> {
    stream: &'a UnixStream,
    /// `stop` arrived together with the request.
    stopped: bool,
}

impl Wire<'_> {
    /// The end of a connection that another part of the program serves.
    pub fn on(stream: &UnixStream) -> Wire<'_> {
        Wire { stream, stopped: false }
    }

    /// The connection, to receive bytes.
    pub fn stream(&self) -> &UnixStream {
        self.stream
    }

    /// The user and the process at the other end.
    pub fn caller(&self) -> io::Result<libc::ucred> {
        caller::of(self.stream)
    }

    /// Sends progress. False if the command does not receive it.
    pub fn tick(&self, tick: Tick) -> bool {
        send(self.stream, &Reply::Progress(tick)).is_ok()
    }

    /// Sends a note. False if the command does not receive it.
    pub fn note(&self, value: &impl Serialize) -> bool {
        let value = serde_json::to_value(value).unwrap_or_default();
        send(self.stream, &Reply::Note(value)).is_ok()
    }

    /// Waits at most this long for a message from the command.
    pub fn heard(&self, wait: Duration) -> Heard {
        if self.stopped {
            return Heard::Stop;
        }
        let ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
        let mut poll = libc::pollfd { fd: self.stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: `poll` is one live entry, and the descriptor in it is open.
        if unsafe { libc::poll(&raw mut poll, 1, ms) } <= 0 {
            return Heard::Nothing;
        }
        let mut word = [0; 64];
        let mut stream = self.stream;
        match stream.read(&mut word) {
            Ok(1..) => Heard::Stop,
            _ => Heard::Gone,
        }
    }
}

fn send(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_string(reply)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// The listening daemon's side. Stops listening when dropped.
#[derive(Debug)]
pub struct Listener {
    sockets: Vec<Socket>,
    stop: Arc<AtomicBool>,
    /// How long a caller may take to send its request.
    patience: Duration,
}

struct Socket {
    address: ControlAddress,
    /// The socket, if it is a file.
    file: Option<PathBuf>,
    /// Callers that are being served. Each socket has its own, so that publishers do not keep the owner out.
    callers: Places,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{:?}, {} callers", self.address, self.callers.count())
    }
}

impl Socket {
    fn new(address: ControlAddress, file: Option<PathBuf>, limits: Limits) -> Socket {
        Socket { address, file, callers: Places::new(limits) }
    }
}

/// One socket of a daemon, and what it serves there.
struct Entrance {
    serve: Arc<dyn Serve>,
    /// Set if this is the socket for publishers.
    publishers: Option<Publishers>,
    patience: Duration,
}

/// Callers of root and of the daemon's user served at a time, and those of one process: a dashboard, which
/// others may read, does not keep commands out.
const CALLERS: Limits = Limits { all: 64, strangers: 64, each: 16, keeps_work: true };
/// Publishers served at a time, and those of one user. Some places are root's and the owner's.
const PUBLISHERS: Limits = Limits { all: 32, strangers: 24, each: 8, keeps_work: true };
/// How long a caller may take to send its request, and to take a part of the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long after a caller could not be accepted the next one is.
const AGAIN: Duration = Duration::from_millis(50);
/// At shutdown, callers that are being served get this long to receive their answers. So a command that
/// watches gets its summary.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Listener {
    /// Starts listening.
    pub fn start(address: ControlAddress, serve: Arc<dyn Serve>) -> Result<Listener> {
        Listener::with_patience(address, serve, PATIENCE)
    }

    fn with_patience(address: ControlAddress, serve: Arc<dyn Serve>, patience: Duration) -> Result<Listener> {
        let cannot = |error: io::Error| Failure::io("cannot open the control socket", &error);
        let (socket, file) = address.bind().map_err(cannot)?;
        let mut listener = Listener { sockets: Vec::new(), stop: Arc::default(), patience };
        listener.sockets.push(Socket::new(address, file, CALLERS));
        listener.listen(socket, Entrance { serve, publishers: None, patience }).map_err(cannot)?;
        Ok(listener)
    }

    /// Serves requests for publications of a group's members, too. Only for the daemon of a volume in a
    /// folder.
    pub fn admit(&mut self, publishers: Publishers, serve: Arc<dyn Serve>) -> Result<()> {
        let cannot = |error: io::Error| Failure::io("cannot open the socket for publishers", &error);
        let address = self.sockets.first().and_then(|socket| socket.address.of_publishers());
        let address = address.ok_or_else(|| Failure::usage("only a volume in a folder can be published"))?;
        let (socket, file) = address.bind_for_all().map_err(cannot)?;
        self.sockets.push(Socket::new(address, file, PUBLISHERS));
        let (publishers, patience) = (Some(publishers), self.patience);
        self.listen(socket, Entrance { serve, publishers, patience }).map_err(cannot)
    }

    /// Listens at the last socket.
    fn listen(&self, socket: UnixListener, entrance: Entrance) -> io::Result<()> {
        let stopped = self.stop.clone();
        let Some(served) = self.sockets.last().map(|socket| socket.callers.clone()) else { return Ok(()) };
        let entrance = Arc::new(entrance);
        base::thread::spawn("covey-control", move || accept(&socket, &entrance, &stopped, &served)).map(drop)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        for Socket { address, file, .. } in &self.sockets {
            // Its thread waits in accept(2). A connection of our own wakes it.
            let _ = address.connect();
            if let Some(file) = file {
                address.remove(file);
            }
        }
        let until = base::time::monotonic() + LAST_WORDS;
        let busy = || self.sockets.iter().any(|socket| socket.callers.count() > 0);
        while busy() && base::time::monotonic() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn accept(socket: &UnixListener, entrance: &Arc<Entrance>, stop: &AtomicBool, callers: &Places) {
    loop {
        let accepted = socket.accept();
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let Ok((stream, _)) = accepted else {
            // For example, no descriptor is left. That may pass.
            std::thread::sleep(AGAIN);
            continue;
        };
        if let Err(refusal) = entrance.admits(&stream) {
            // Its buffer is empty. A caller must not hold this thread up all the same.
            let _ = stream.set_nonblocking(true);
            let _ = send(&stream, &Reply::Failed(refusal));
            continue;
        }
        let (peer, known) = entrance.peer(&stream);
        // One that is served is at work until its place is free, so no place is taken from it.
        let Ok(place) = callers.enter(peer, known, || {}).map(Arc::new) else {
            let _ = stream.set_nonblocking(true);
            let _ = send(&stream, &Reply::Failed(too_many()));
            continue;
        };
        let (entrance, work) = (entrance.clone(), place.work());
        // If there is no thread, the place is free at once.
        let _ = base::thread::spawn("covey-caller", move || {
            let _work = work;
            // The panic hook logs a handler's panic. Only this caller loses its answer.
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| answer(&stream, &entrance)));
        });
    }
}

fn too_many() -> Failure {
    Failure::new("busy", "the daemon answers too many requests at the moment").next("try again")
}

fn answer(stream: &UnixStream, entrance: &Entrance) {
    let serve = &*entrance.serve;
    let send = |reply: &Reply| {
        let _ = send(stream, reply);
    };
    let mut line = String::new();
    let asking = Asking { stream, until: Deadline::after(entrance.patience) };
    // Requests are short. The longest is a list of files. A longer line does not come from a Covey command.
    let mut reader = BufReader::new(asking.take(1 << 20));
    let read = reader.read_line(&mut line);
    let stopped = !reader.buffer().is_empty();
    if read.is_err() || line.is_empty() {
        return;
    }
    let _ = stream.set_read_timeout(Some(entrance.patience));
    let _ = stream.set_write_timeout(Some(entrance.patience));
    let outcome = match serde_json::from_str(&line) {
        Ok(request) if !entrance.serves(stream, &request) => Err(not_for_publishers()),
        Ok(Request::Watch { wish }) => serve.watch(&wish, &Wire { stream, stopped }),
        Ok(Request::Trash { order: TrashOrder::List }) => serve.list_trash(&Wire { stream, stopped }),
        Ok(Request::Import(order)) => serve.import(&order, &Wire { stream, stopped }),
        Ok(request) => serve.serve(request, &mut |tick| send(&Reply::Progress(tick))),
        Err(error) => Err(Failure::usage("this daemon does not know that request").why(error.to_string())),
    };
    send(&match outcome {
        Ok(value) => Reply::Done(value),
        Err(failure) => Reply::Failed(failure),
    });
}

/// A caller that sends its request, of which all bytes have to come in time.
struct Asking<'a> {
    stream: &'a UnixStream,
    until: Deadline,
}

impl Read for Asking<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.until.left();
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(bytes)
    }
}

impl Entrance {
    /// Whether the caller may ask for anything here.
    fn admits(&self, stream: &UnixStream) -> Result<()> {
        let Some(Publishers { gid, name }) = &self.publishers else {
            let who = "only root and the user who mounted the volume may ask its daemon";
            let refusal = || Failure::new("not-permitted", who).next("use sudo");
            return if is_owner(stream) { Ok(()) } else { Err(refusal()) };
        };
        if is_owner(stream) || caller::is_in_group(stream, *gid).unwrap_or(false) {
            return Ok(());
        }
        Err(Failure::new(
            "not-permitted",
            format!("only members of the group {name} may publish this volume"),
        )
        .next(format!("have root add you to it, then log in again: usermod -aG {name} USER")))
    }

    /// Whose place a caller takes, and whether it is one of those that are kept.
    fn peer(&self, stream: &UnixStream) -> (Peer, bool) {
        let Ok(who) = caller::of(stream) else { return (Peer::Unknown, false) };
        match self.publishers {
            None => (Peer::Process(who.pid.cast_unsigned()), false),
            Some(_) => (Peer::User(who.uid), is_owner(stream)),
        }
    }

    /// Whether this request is served here.
    fn serves(&self, stream: &UnixStream, request: &Request) -> bool {
        if self.publishers.is_none() {
            return true;
        }
        let serves = request.is_of_publishers();
        if let (true, Ok(user)) = (serves && !is_owner(stream), caller::user(stream)) {
            self.serve.asked_by_member(user, request);
        }
        serves
    }
}

fn not_for_publishers() -> Failure {
    Failure::new("not-permitted", "this socket is for publications only").next("use sudo")
}

/// Whether the caller is root or the daemon's own user.
fn is_owner(stream: &UnixStream) -> bool {
    caller::user(stream).is_ok_and(|user| user == 0 || user == caller::euid())
}

#[cfg(test)]
mod tests;
