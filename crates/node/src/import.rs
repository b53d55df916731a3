//! An import into a mounted volume. A command reads the source, with its own user's rights, and sends the
//! items. The daemon creates them in the volume itself, without a request of the kernel for each.
//!
//! ```text
//!   command ──► order ──────────────────► checks, the destination is opened
//!           ◄── ready ◄──────────────────
//!           ──► items and contents ──────► Direct ──► the volume
//!           ◄── progress, every second       └──────► the kernel forgets what changed
//!           ──► finish ──────────────────► attributes of folders, sync
//!           ◄── what was imported ◄──────
//! ```
//!
//! Only root may do this: here the kernel checks no permissions. If the command goes away, or the mount ends,
//! what has arrived stays, without the file that is incomplete.

use std::io::{self, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use api::answers::Imported;
use api::control::{ImportOrder, Ready, Tick, Wire};
use api::error::{Failure, Result};
use api::text::count;
use archive::import::direct::{Direct, To};
use archive::import::wire::{self, Message};
use archive::import::{Sink, Taken};
use fs::volume::Volume;
use fuse::Session;

use crate::errno::errno_failure;
use crate::kernel::Kernel;
use crate::log;
use crate::mount::Mount;

/// How often a thread that waits for bytes looks whether the mount still exists.
const LOOK: Duration = Duration::from_millis(200);
/// How often progress is sent. The command takes a longer silence for a daemon that hangs.
const TICK: Duration = Duration::from_secs(1);
/// Bytes that are received at a time.
const BUFFER: usize = 256 << 10;

/// Serves one import.
pub(crate) fn serve(
    node: &Mount,
    session: &Arc<Session>,
    order: &ImportOrder,
    wire: &Wire<'_>,
) -> Result<Imported> {
    let volume = node.node()?.shown();
    let path = check(&volume, session, order, wire)?;
    let kernel = Kernel::new(volume.clone(), session.notifier());
    let shown = session.mountpoint().join(&path).display().to_string();
    let to = To { shown: shown.clone(), folder: &path, overwrite: order.overwrite, umask: order.umask };
    let mut sink = Direct::new(volume, Box::new(kernel.clone()), to)?;
    kernel.settle();
    if !wire.note(&Ready { ino: sink.root().0 }) {
        return Err(gone());
    }
    let ticker = Ticker::start(wire.stream())?;
    let outcome = receive(session, wire, &mut sink, &ticker.state);
    let whole = matches!(outcome, Ok(true));
    let ended = if whole { sink.finish() } else { sink.stop() };
    kernel.settle();
    let taken = ticker.end();
    if !whole {
        let why = outcome.as_ref().err().map_or("the command ended it".to_owned(), Failure::in_one_line);
        log::line(&format!("the import into {shown} ended early, with {} files: {why}", count(taken.files)));
    }
    outcome?;
    ended?;
    Ok(Imported { files: taken.files, bytes: taken.bytes, skipped: sink.left_out() })
}

/// Checks the order, and returns the path below the volume's root. A failure with the code `elsewhere` means
/// that the command must use the mount.
fn check(volume: &Volume, session: &Session, order: &ImportOrder, wire: &Wire<'_>) -> Result<PathBuf> {
    let elsewhere = |what: String| Failure::new("elsewhere", what);
    if order.form != wire::FORM {
        return Err(elsewhere("the daemon has another version of covey".into()).next("mount again"));
    }
    let caller = wire.caller().map_err(|error| elsewhere(error.to_string()))?;
    if caller.uid != 0 {
        return Err(elsewhere("the daemon imports for root only".into()).next("use sudo"));
    }
    // In another namespace, the same path may lead to a read-only or id-mapped view.
    let same_view = namespace(&caller.pid.to_string()).is_some_and(|of| Some(of) == namespace("self"));
    if !same_view || PathBuf::from(order.mountpoint.clone()) != session.mountpoint() {
        return Err(elsewhere("this is another view of the mount than the daemon's own".into())
            .next(format!("name a path below {}", session.mountpoint().display())));
    }
    let folder = PathBuf::from(order.folder.clone());
    let found = volume.resolve(std::os::unix::ffi::OsStrExt::as_bytes(folder.as_os_str()), false);
    if found == Err(fs::Errno::EIO) {
        // The mount cannot find it either.
        return Err(errno_failure(format!("cannot import into /{}", folder.display()), fs::Errno::EIO));
    }
    if !found.is_ok_and(|attr| attr.ino.0 == order.ino) {
        return Err(elsewhere("the daemon finds another folder at this path".into()));
    }
    Ok(match &order.new {
        Some(name) => folder.join(PathBuf::from(name.clone())),
        None => folder,
    })
}

/// The mount namespace of a process.
fn namespace(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

/// Takes steps until the end. True if the command sent everything, false if it stopped.
fn receive(session: &Session, wire: &Wire<'_>, sink: &mut Direct, state: &State) -> Result<bool> {
    let stream = Patient { stream: wire.stream(), session, state };
    stream.stream.set_read_timeout(Some(LOOK)).map_err(|error| lost(&error))?;
    let mut bytes = BufReader::with_capacity(BUFFER, stream);
    let mut taken = Taken::default();
    loop {
        match wire::take(&mut bytes).map_err(|error| lost(&error))? {
            Some(Message::Step(step)) => taken.pass(step, sink)?,
            Some(Message::Finish) => return Ok(true),
            None => return Ok(false),
        }
        state.files.store(taken.files, Ordering::Relaxed);
        state.bytes.store(taken.bytes, Ordering::Relaxed);
        if state.gone.load(Ordering::Relaxed) {
            return Err(gone());
        }
    }
}

fn lost(error: &io::Error) -> Failure {
    Failure::io("the items to import did not arrive", error).next("start the import again with --overwrite")
}

fn gone() -> Failure {
    Failure::new("no-answer", "the command that imports is gone")
}

/// The command's bytes. Waits for them as long as the mount exists.
struct Patient<'a> {
    stream: &'a UnixStream,
    session: &'a Session,
    state: &'a State,
}

impl Read for Patient<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut stream = self.stream;
            match stream.read(buf) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
            if self.session.wait_for(Duration::ZERO).is_some() {
                return Err(io::Error::other("the mount has ended"));
            }
            if self.state.gone.load(Ordering::Relaxed) {
                return Err(io::Error::other("the command is gone"));
            }
        }
    }
}

/// What the thread that sends progress knows.
#[derive(Default)]
struct State {
    files: AtomicU64,
    bytes: AtomicU64,
    /// Progress could not be sent.
    gone: AtomicBool,
}

/// Sends progress every second, also while the volume makes its writers wait.
struct Ticker {
    state: Arc<State>,
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Ticker {
    fn start(stream: &UnixStream) -> Result<Ticker> {
        let cannot = |error: io::Error| Failure::io("cannot start a thread", &error);
        let stream = stream.try_clone().map_err(cannot)?;
        let state = Arc::new(State::default());
        let (end, ended) = channel::<()>();
        let shared = state.clone();
        let work = move || {
            while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let done = shared.files.load(Ordering::Relaxed);
                let tick = Tick { done, of: 0, what: format!("{} files", count(done)) };
                if !Wire::on(&stream).tick(tick) {
                    shared.gone.store(true, Ordering::Relaxed);
                }
            }
        };
        let thread = base::thread::spawn("covey-import", work).map_err(cannot)?;
        Ok(Ticker { state, end, thread })
    }

    /// Ends the thread, so that the answer is not in the middle of a line.
    fn end(self) -> Taken {
        drop(self.end);
        let _ = self.thread.join();
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Taken { files: load(&self.state.files), bytes: load(&self.state.bytes), begun: None }
    }
}
