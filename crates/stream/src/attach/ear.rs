//! Where `covey trace`, `covey status` and `covey stats` find a guest's mount: a socket without a path, named
//! after the mount's device number.
//!
//! ```text
//!   covey trace ──── "trace 100" ───► the program that has attached
//!               ◄─── lines ...
//!               ──── end of input ──►
//!               ◄─── percentiles, end
//!
//!   covey status ─── "status" ──────►
//!               ◄─── lines, end       (super::status)
//! ```
//!
//! Only root and the user of the program are heard.

use std::io::{self, BufRead, BufReader, Write};
use std::mem::size_of;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{TrySendError, sync_channel};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use super::Shared;
use super::status::Status;

/// How many may listen at a time.
const LISTENERS: usize = 8;
/// How long a listener may take to read a line, and to say what it wants.
const PATIENCE: Duration = Duration::from_secs(2);
/// Lines that may wait for a listener.
const AHEAD: usize = 4096;
/// The longest wish.
const WISH_MAX: u64 = 64;
/// The longest status.
const STATUS_MAX: u64 = 64 << 10;

fn address(mount: &Path) -> io::Result<SocketAddr> {
    // Without a request to the mount itself: the program that asks may be the one that serves it.
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let found = statx(CWD, mount, flags, StatxFlags::empty())?;
    let name = format!("covey-attach-{}:{}", found.stx_dev_major, found.stx_dev_minor);
    SocketAddr::from_abstract_name(name)
}

/// The mount that is asked about.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) shared: Arc<Shared>,
    /// What the server calls what it serves.
    pub(super) name: String,
}

/// The kernel gives the device number of a mount that is gone to the next one. The program that had it may
/// take so long to end.
const ENDING: Duration = Duration::from_secs(5);

fn bind(mount: &Path) -> io::Result<UnixListener> {
    let began = base::time::monotonic();
    loop {
        match UnixListener::bind_addr(&address(mount)?) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && began.elapsed() < ENDING => {
                std::thread::sleep(Duration::from_millis(10));
            }
            done => break done,
        }
    }
}

/// Listens for commands, until the program ends.
pub(super) fn open(mount: &Path, asked: Asked) -> io::Result<()> {
    let listener = bind(mount)?;
    let accept = move || {
        let busy = Arc::new(AtomicUsize::new(0));
        while let Ok((stream, _)) = listener.accept() {
            if !may_listen(&stream) {
                continue;
            }
            if busy.fetch_add(1, Ordering::AcqRel) >= LISTENERS {
                busy.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let (asked, busy) = (asked.clone(), Arc::clone(&busy));
            let serve = move || {
                let _ = serve(&asked, &stream);
                busy.fetch_sub(1, Ordering::AcqRel);
            };
            let _ = base::thread::spawn("attach-trace", serve);
        }
    };
    base::thread::spawn("attach-ear", accept).map(drop)
}

fn may_listen(stream: &UnixStream) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let place = (&raw mut peer).cast();
    let fd = stream.as_raw_fd();
    // SAFETY: the place has the length that is passed, and both live through the call.
    let got = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut len) };
    got == 0 && (peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw())
}

fn serve(asked: &Asked, stream: &UnixStream) -> io::Result<()> {
    let shared = &asked.shared;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (mut wish, mut input) = (String::new(), BufReader::new(io::Read::take(stream, WISH_MAX)));
    input.read_line(&mut wish)?;
    if wish.trim_end() == "status" {
        return (&mut &*stream).write_all(shared.status(&asked.name).text().as_bytes());
    }
    let every = wish.trim_end().strip_prefix("trace ").and_then(|every| every.parse().ok());
    let Some(every) = every else { return (&mut &*stream).write_all(b"error: the wish is not understood\n") };
    let mut out = stream.try_clone()?;
    let (lines, coming) = sync_channel::<String>(AHEAD);
    // A listener that reads slowly misses lines, and delays no request.
    let write = move || coming.iter().all(|line| out.write_all(line.as_bytes()).is_ok());
    let writer = base::thread::spawn("attach-trace", write)?;
    let (hidden, missed) = (Arc::new(AtomicUsize::new(0)), lines.clone());
    let count = Arc::clone(&hidden);
    let listener = move |line: &str| match missed.try_send(format!("{line}\n")) {
        Err(TrySendError::Disconnected(_)) => false,
        Err(TrySendError::Full(_)) => {
            count.fetch_add(1, Ordering::Relaxed);
            true
        }
        Ok(()) => true,
    };
    let id = shared.tracer.listen(every, Box::new(listener));
    stream.set_read_timeout(None)?;
    // It says no more. The end of its input is its goodbye.
    let said = io::Read::read(&mut &*stream, &mut [0; 1]);
    let mut last = shared.tracer.leave(id);
    let hidden = hidden.load(Ordering::Relaxed);
    if hidden > 0 {
        last = format!("trace: {hidden} lines came too fast, and were not shown\n{last}");
    }
    let _ = lines.send(last);
    drop(lines);
    let _ = writer.join();
    said.map(drop)
}

/// What the program that has attached the mount of this path says of it.
///
/// # Errors
/// `ConnectionRefused` if no program has attached it, or it runs as another user. `InvalidData` if its words
/// make no sense. Otherwise the system's error.
pub fn status(path: &Path) -> io::Result<Status> {
    let stream = UnixStream::connect_addr(&address(path)?)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    (&stream).write_all(b"status\n")?;
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(&stream, STATUS_MAX), &mut text)?;
    Status::parse(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is of another version"))
}

/// The trace of a mount that a program on this machine has attached.
pub struct Ear(UnixStream);

impl Ear {
    /// Asks for every `every`th request of the mount that this path is on.
    ///
    /// # Errors
    /// `ConnectionRefused` if no program has attached it. Otherwise the system's error.
    pub fn of(path: &Path, every: u32) -> io::Result<Ear> {
        let stream = UnixStream::connect_addr(&address(path)?)?;
        (&stream).write_all(format!("trace {every}\n").as_bytes())?;
        Ok(Ear(stream))
    }

    /// What says goodbye from another thread: the percentiles come then, and the end.
    ///
    /// # Errors
    /// The system's error.
    pub fn goodbye(&self) -> io::Result<impl FnOnce() + Send + 'static> {
        let stream = self.0.try_clone()?;
        Ok(move || drop(stream.shutdown(std::net::Shutdown::Write)))
    }

    /// Passes each line on, until there are no more.
    ///
    /// # Errors
    /// The system's error.
    pub fn hear(self, mut each: impl FnMut(&str)) -> io::Result<()> {
        for line in BufReader::new(self.0).lines() {
            each(&line?);
        }
        Ok(())
    }
}
