//! The command's side of a connection to a daemon. Every step has a time limit: connecting, sending, and the
//! silence between two lines from the daemon.
//!
//! A daemon that is stopped (SIGSTOP, a frozen cgroup) still has its socket. The kernel accepts connections
//! and data for it. So only an answer shows that the daemon is alive. A long operation sends its progress,
//! and each line restarts the limit.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use base::Deadline;

use serde::de::DeserializeOwned;

use super::{ControlAddress, Reply, Request, Tick};
use crate::error::{Failure, Result};

/// The limit for connecting and for sending a request.
pub(super) const CONNECT: Duration = Duration::from_secs(5);
/// A daemon listens so long after its mount is there, at most.
const BEGINS: Duration = Duration::from_millis(300);
/// A daemon that is alive answers a question about figures within this. A command that watches receives a
/// note every second.
const QUESTION: Duration = Duration::from_secs(10);
/// An operation may be silent for this long: some ask the origin, which has a minute to answer.
const WORK: Duration = Duration::from_secs(120);

/// How long a daemon may be silent after this request.
fn silence(request: &Request) -> Duration {
    match request {
        Request::Status
        | Request::Metrics
        | Request::Peers
        | Request::Heat { .. }
        | Request::Holders { .. }
        | Request::Watch { .. } => QUESTION,
        // Its own limit for the origin is shorter.
        Request::Info { .. } => QUESTION * 2,
        _ => WORK,
    }
}

/// What a caller knows about the mounts of this machine. It tells a daemon from a program that took its
/// place.
pub trait Known: Sync {
    /// Checks that the program at the other end is the daemon of this mount.
    ///
    /// # Errors
    /// `InvalidData` with an explanation, if another program has taken the daemon's place.
    fn check(&self, stream: &UnixStream, address: &ControlAddress) -> io::Result<()>;

    /// The mountpoint whose daemon listens there.
    fn place(&self, address: &ControlAddress) -> Option<PathBuf>;
}

/// Sends a request and waits for the answer. `tick` receives the progress of a long operation. The deadline
/// of this thread and the limit on the daemon's silence bound the wait.
pub fn ask<T: DeserializeOwned>(
    known: &'static dyn Known,
    address: &ControlAddress,
    request: &Request,
    tick: &mut dyn FnMut(&Tick),
) -> Result<T> {
    let asked = Asked::ask(known, address, request)?;
    asked.hear(tick, &mut |_| ())
}

/// Connects to a daemon. A mount is there a moment before its daemon listens.
fn connect(address: &ControlAddress) -> io::Result<UnixStream> {
    let until = Deadline::current().within(BEGINS);
    loop {
        match address.connect() {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                    && !until.is_over() =>
            {
                until.sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

/// A request that was sent to a daemon.
pub struct Asked {
    known: &'static dyn Known,
    stream: UnixStream,
    address: ControlAddress,
    silence: Duration,
}

impl Asked {
    /// Sends the request.
    pub fn ask(known: &'static dyn Known, address: &ControlAddress, request: &Request) -> Result<Asked> {
        let lost = |error| lost(known, address, error, CONNECT);
        let silence = silence(request);
        let stream = match connect(address) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && request.is_of_publishers() => {
                address.of_publishers().and_then(|address| address.connect().ok()).ok_or_else(no_publisher)?
            }
            other => other.map_err(lost)?,
        };
        known.check(&stream, address).map_err(lost)?;
        let sent = || {
            stream.set_write_timeout(Some(CONNECT))?;
            let mut line = serde_json::to_string(request)?;
            line.push('\n');
            (&stream).write_all(line.as_bytes())
        };
        match sent() {
            // A daemon that refuses a caller does so before it reads. The refusal is there.
            Err(error) if is_closed(&error) => Ok(Asked { known, stream, address: address.clone(), silence }),
            Ok(()) => Ok(Asked { known, stream, address: address.clone(), silence }),
            Err(error) => Err(lost(error)),
        }
    }

    /// A handle that another thread can use to stop the daemon. The daemon then answers with its summary.
    pub fn stopper(&self) -> Result<Stopper> {
        self.stream.try_clone().map(Stopper).map_err(|error| lost(self.known, &self.address, error, CONNECT))
    }

    /// The connection, to send what follows the request.
    pub fn stream(&self) -> Result<UnixStream> {
        self.stream.try_clone().map_err(|error| lost(self.known, &self.address, error, CONNECT))
    }

    /// Waits for the answer, and passes on progress and notes until then.
    pub fn hear<T: DeserializeOwned>(
        &self,
        tick: &mut dyn FnMut(&Tick),
        note: &mut dyn FnMut(serde_json::Value),
    ) -> Result<T> {
        let lost = |error, waited| lost(self.known, &self.address, error, waited);
        let mut lines = BufReader::new(&self.stream).lines();
        loop {
            let wait = Deadline::current().within(self.silence).left();
            // A timeout of zero would mean no timeout.
            let wait = wait.max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(wait)).map_err(|error| lost(error, wait))?;
            let line = match lines.next() {
                Some(line) => line.map_err(|error| lost(error, wait))?,
                None => return Err(lost(io::Error::other("it closed the connection"), wait)),
            };
            match serde_json::from_str(&line) {
                Ok(Reply::Progress(progress)) => tick(&progress),
                Ok(Reply::Note(value)) => note(value),
                Ok(Reply::Failed(failure)) => return Err(failure),
                Ok(Reply::Done(value)) => {
                    return serde_json::from_value(value).map_err(|error| {
                        Failure::new("no-answer", "the daemon's answer cannot be understood")
                            .why(error.to_string())
                            .next(
                                "it may run another version of covey: unmount, and mount again with this one",
                            )
                    });
                }
                Err(error) => return Err(lost(error.into(), wait)),
            }
        }
    }
}

/// Whether an error says that the other end was closed.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// See [`Asked::stopper`].
pub struct Stopper(UnixStream);

impl Stopper {
    /// Asks the daemon to stop.
    pub fn stop(&self) {
        // A write error means that the daemon has gone. The thread that waits for the answer reports that.
        let _ = (&self.0).write_all(b"stop\n");
    }
}

/// The failure for a user that may not publish, and a daemon that lets no group do so.
fn no_publisher() -> Failure {
    Failure::new("not-permitted", "only root and the user who mounted the volume may publish it")
        .next("use sudo, or have it mounted with -o publish_group=GROUP, where GROUP is a group of yours")
}

/// The failure to report when a daemon cannot be asked.
fn lost(known: &dyn Known, address: &ControlAddress, error: io::Error, waited: Duration) -> Failure {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Failure::new("not-permitted", "only root and the user who mounted a volume may ask its daemon")
                .next("use sudo")
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => silent(known, address, waited),
        // The source of a volume's mount is an absolute path. That of a guest's is the address of its server.
        _ if matches!(address, ControlAddress::File(path) if path.is_relative()) => {
            Failure::new("no-answer", "this is the mount of a guest, and its daemon is elsewhere")
                .next("run the command where covey serve runs")
        }
        _ => Failure::new("no-answer", "the daemon that has this volume mounted does not answer")
            .why(crate::error::plain(&error))
            .next("if it died: covey umount MOUNTPOINT, then mount again"),
    }
}

/// The failure to report for a daemon that exists and is silent: which daemon, why as far as can be seen, and
/// what to do.
pub fn silent(known: &dyn Known, address: &ControlAddress, waited: Duration) -> Failure {
    let place = known.place(address).map(|place| place.display().to_string());
    let name = place.clone().unwrap_or_else(|| address.to_string());
    let process = daemon(address);
    let shown = process.map_or_else(|| "it".to_owned(), |pid| format!("process {pid}"));
    let waited = format!("nothing came from {shown} in {:.0} s", waited.as_secs_f64().max(1.0));
    let failure = Failure::new("silent", format!("the daemon of {name} does not answer"));
    let failure = match (process, process.and_then(state)) {
        (Some(pid), Some('T' | 't')) => failure
            .why(format!("{waited}: it is stopped (by a signal, or by a debugger)"))
            .next(format!("let it go on: kill -CONT {pid}")),
        (_, Some('D')) => {
            failure.why(format!("{waited}: it waits for a disk")).next("look at the disk: dmesg | tail")
        }
        _ => failure
            .why(waited)
            .next("try again; if it stays so, look at its log, and make a report: covey bundle"),
    };
    match place {
        Some(place) => failure.next(format!(
            "or end the mount; what it had not written down is lost: covey umount --force {place}"
        )),
        None => failure,
    }
}

/// The process that listens, according to the kernel. A stopped process has its socket, too.
fn daemon(address: &ControlAddress) -> Option<u32> {
    let stream = address.connect().ok()?;
    crate::caller::of(&stream).ok().map(|who| who.pid.cast_unsigned()).filter(|pid| *pid != 0)
}

/// The letter of a process's state: `T` when it is stopped.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The state follows the process name, which may hold any character.
    stat.rsplit(')').next()?.trim().chars().next()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::super::tests::Nothing;
    use super::*;

    fn ear_of(folder: &tempfile::TempDir) -> (ControlAddress, UnixListener) {
        let path = folder.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        (ControlAddress::File(path), listener)
    }

    /// `covey status` and others said that the daemon might have died.
    #[test]
    fn regression_a_guests_mount_is_named_as_one() {
        let address = ControlAddress::of_source(std::path::Path::new("unix:/run/none.sock"));
        let failure = Asked::ask(&Nothing, &address, &Request::Gc).map(drop).unwrap_err();
        assert!(failure.to_string().contains("where covey serve runs"), "{failure}");
    }

    /// A daemon that accepts and never answers, and a daemon that does not even accept.
    #[test]
    fn regression_a_daemon_that_says_nothing_is_named_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let (address, _listener) = ear_of(&folder);
        let bound = Duration::from_millis(300);
        let asked = || {
            let begin = base::time::monotonic();
            let failure = Deadline::after(bound)
                .scope(|| ask::<serde_json::Value>(&Nothing, &address, &Request::Status, &mut |_| ()))
                .unwrap_err();
            (failure, begin.elapsed())
        };
        // Without the bound it takes ten seconds each time.
        let (failure, took) = (0..3).map(|_| asked()).min_by_key(|(_, took)| *took).unwrap();
        assert!(took < Duration::from_secs(4), "{took:?}");
        let said = failure.to_string();
        assert_eq!(failure.code, "silent", "{said}");
        assert!(said.contains(&format!("process {}", std::process::id())), "{said}");
        assert!(said.contains(folder.path().to_str().unwrap()) && !failure.next.is_empty(), "{said}");
        // Its queue of callers is full. Connecting must time out, too.
        let waiting: Vec<_> = std::iter::from_fn(|| {
            Deadline::after(Duration::from_millis(50)).scope(|| address.connect()).ok()
        })
        .take(10_000)
        .collect();
        assert!(waiting.len() < 10_000);
        let failure = Deadline::after(bound)
            .scope(|| Asked::ask(&Nothing, &address, &Request::Gc).map(drop))
            .unwrap_err();
        assert_eq!(failure.code, "silent", "{failure}");
    }

    /// The command sends its request only after the daemon has refused it.
    static REFUSED: std::sync::Barrier = std::sync::Barrier::new(2);

    struct Late;

    impl Known for Late {
        fn check(&self, _: &UnixStream, _: &ControlAddress) -> io::Result<()> {
            REFUSED.wait();
            Ok(())
        }

        fn place(&self, _: &ControlAddress) -> Option<PathBuf> {
            None
        }
    }

    /// A daemon refuses a stranger without waiting for its request.
    #[test]
    fn a_refusal_that_comes_before_the_request_is_heard() {
        let folder = tempfile::tempdir().unwrap();
        let (address, listener) = ear_of(&folder);
        let serving = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let refusal = Failure::new("not-permitted", "not you");
            super::super::send(&stream, &Reply::Failed(refusal)).unwrap();
            drop(stream);
            REFUSED.wait();
        });
        let failure = ask::<u32>(&Late, &address, &Request::Gc, &mut |_| ()).unwrap_err();
        serving.join().unwrap();
        assert_eq!((&*failure.code, &*failure.what), ("not-permitted", "not you"));
    }

    #[test]
    fn progress_begins_the_time_anew() {
        base::trial::at_some_scale(|scale| progress(scale * Duration::from_millis(100))).unwrap();
    }

    /// Progress at this interval, and half of the whole time is the longest silence.
    fn progress(every: Duration) -> std::result::Result<(), String> {
        let folder = tempfile::tempdir().unwrap();
        let (address, listener) = ear_of(&folder);
        let serving = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            // The other side hears no more when it has waited for too long.
            for done in 0..6 {
                std::thread::sleep(every);
                let tick = Tick { done, of: 6, what: String::new() };
                let _ = super::super::send(&stream, &Reply::Progress(tick));
            }
            let _ = super::super::send(&stream, &Reply::Done(serde_json::json!(7)));
        });
        let asked = Asked { silence: 3 * every, ..Asked::ask(&Nothing, &address, &Request::Gc).unwrap() };
        let mut ticks = 0;
        let done = asked.hear::<u32>(&mut |_| ticks += 1, &mut |_| ());
        serving.join().unwrap();
        assert_eq!((done.map_err(|failure| failure.to_string())?, ticks), (7, 6));
        Ok(())
    }
}
