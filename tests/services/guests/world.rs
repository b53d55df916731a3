//! Servers, guests, and what stands between them, with their clean-up.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_ok, wait};
use covey_tests::volume::detach;
use tempfile::TempDir;

/// How long anything that must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "this never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A folder with a volume in it, and places for sockets and mounts.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Place {
        let place = Place { dir: covey_tests::scratch() };
        covey_ok(&["format", &place.text("volume")]);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub fn unix(&self, name: &str) -> String {
        format!("unix:{}", self.text(name))
    }

    /// A file with a secret.
    pub fn secret(&self, name: &str) -> String {
        let path = self.text(name);
        covey_ok(&["fleet", "secret", &path]);
        path
    }

    /// Serves the volume.
    pub fn serve(&self, more: &[&str]) -> Server {
        Server::start(self, &self.text("volume"), more)
    }
}

/// A process with its output in a file.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(args: &[&str], log: PathBuf) -> Process {
        let file = std::fs::File::options().create(true).append(true).open(&log).unwrap();
        let mut command = covey();
        command.args(args).stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Process { child: command.spawn().unwrap(), log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: the child is ours and has not been waited for, so its number is its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
        if signal == libc::SIGSTOP {
            // Threads that run go on until the kernel stops them one by one.
            until("all threads are stopped", || self.is_stopped());
        }
    }

    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let state = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat"));
        let mut states = tasks.filter_map(|task| state(task.unwrap()).ok());
        states.all(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    }

    fn end(&mut self) -> i32 {
        self.signal(libc::SIGTERM);
        if wait(&mut self.child, PATIENCE).is_none() {
            self.child.kill().unwrap();
        }
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

/// `covey serve`.
pub struct Server {
    process: Process,
    ended: bool,
}

impl Server {
    pub fn start(place: &Place, source: &str, more: &[&str]) -> Server {
        let on = place.unix("s");
        let mut args = vec!["serve", source];
        if !more.contains(&"--on") {
            args.extend(["--on", &on]);
        }
        args.extend(more);
        let log = place.path(&format!("serve-{}.log", base::random::u64()));
        let server = Server { process: Process::start(&args, log), ended: false };
        until("the server listens", || {
            let log = server.log();
            assert!(!log.contains("error") && !log.contains("cannot"), "{log}");
            log.contains("Ctrl-C")
        });
        server
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    pub fn pid(&self) -> u32 {
        self.process.child.id()
    }

    pub fn signal(&self, signal: i32) {
        self.process.signal(signal);
    }

    /// The address that the system chose for tcp port 0.
    pub fn tcp(&self) -> String {
        let log = self.log();
        let at = log.find("tcp:").unwrap();
        log[at..].split([',', ';', ' ']).next().unwrap().to_owned()
    }

    pub fn kill(mut self) {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
        self.ended = true;
    }

    /// Ends it in good order.
    pub fn end(mut self) {
        let code = self.process.end();
        self.ended = true;
        assert_eq!(code, 0, "{}", self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.ended {
            self.signal(libc::SIGCONT);
            self.process.end();
        }
        if std::thread::panicking() {
            eprintln!("server: {}", self.log());
        }
    }
}

/// `covey attach`.
pub struct Guest {
    process: Process,
    mountpoint: PathBuf,
    ended: bool,
}

impl Guest {
    pub fn attach(place: &Place, name: &str, address: &str, more: &[&str]) -> Guest {
        let mountpoint = place.path(name);
        std::fs::create_dir_all(&mountpoint).unwrap();
        let mut args = vec!["attach", address, mountpoint.to_str().unwrap()];
        args.extend(more);
        let log = place.path(&format!("{name}-{}.log", base::random::u64()));
        let guest =
            Guest { process: Process::start(&args, log), mountpoint: mountpoint.clone(), ended: false };
        until("the guest mounts", || {
            let log = guest.log();
            assert!(!log.contains("error") && !log.contains("cannot"), "{log}");
            log.contains("Ctrl-C")
        });
        guest
    }

    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.mountpoint.join(name)
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    pub fn log_path(&self) -> PathBuf {
        self.process.log.clone()
    }

    /// Ends it as Ctrl-C does.
    pub fn end(mut self) {
        let code = self.process.end();
        self.ended = true;
        assert_eq!(code, 0, "{}", self.log());
        assert!(!covey_tests::proc::is_fuse_mount(&self.mountpoint), "it is still mounted");
    }

    /// Kills the process. The mount is dead then.
    pub fn kill(mut self) {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
        detach(&self.mountpoint);
        self.ended = true;
    }
}

/// `covey attach` that has not mounted yet.
pub struct Attempt {
    process: Process,
}

impl Attempt {
    pub fn start(place: &Place, address: &str) -> Attempt {
        let mountpoint = place.path("attempt");
        std::fs::create_dir_all(&mountpoint).unwrap();
        let args = ["attach", address, mountpoint.to_str().unwrap()];
        Attempt { process: Process::start(&args, place.path("attempt.log")) }
    }

    /// Ends it as Ctrl-C does. Returns its exit status and its log.
    pub fn interrupted(mut self) -> (i32, String) {
        self.process.signal(libc::SIGINT);
        let status = wait(&mut self.process.child, PATIENCE);
        (status.and_then(|status| status.code()).unwrap_or(-1), self.process.log())
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let _ = self.process.child.kill();
        let _ = self.process.child.wait();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if !self.ended {
            detach(&self.mountpoint);
            if wait(&mut self.process.child, Duration::from_secs(20)).is_none() {
                let _ = self.process.child.kill();
                let _ = self.process.child.wait();
            }
        }
        if std::thread::panicking() {
            eprintln!("guest: {}", self.log());
        }
    }
}

/// A relay between guests and a server that cuts connections in the middle of frames.
pub struct Proxy {
    address: String,
    pairs: Arc<Mutex<Vec<UnixStream>>>,
    pub cuts: Arc<AtomicUsize>,
    lossy: Arc<Lossy>,
    ended: Arc<AtomicBool>,
}

/// What a proxy swallows.
#[derive(Default)]
struct Lossy {
    requests: AtomicBool,
    replies: AtomicBool,
    connections: AtomicBool,
}

impl Proxy {
    pub fn start(place: &Place) -> Proxy {
        let path = place.path("proxy");
        let listener = UnixListener::bind(&path).unwrap();
        let (pairs, ended) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let proxy = Proxy {
            address: format!("unix:{}", path.display()),
            pairs: Arc::clone(&pairs),
            cuts: Arc::default(),
            lossy: Arc::default(),
            ended: Arc::clone(&ended),
        };
        let lossy = Arc::clone(&proxy.lossy);
        let server = place.path("s");
        std::thread::spawn(move || {
            for guest in listener.incoming().flatten() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                if lossy.connections.load(Ordering::Relaxed) {
                    continue;
                }
                let Ok(other) = UnixStream::connect(&server) else { continue };
                for (from, to, requests) in [(&guest, &other, true), (&other, &guest, false)] {
                    pairs.lock().unwrap().push(from.try_clone().unwrap());
                    copy(from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(&lossy), requests);
                }
            }
        });
        proxy
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// From now on, what guests send is lost, and so are new connections.
    pub fn lose_requests(&self) {
        self.lossy.connections.store(true, Ordering::Relaxed);
        self.lossy.requests.store(true, Ordering::Relaxed);
    }

    /// From now on, what the server sends is lost, and so are new connections.
    pub fn lose_replies(&self) {
        self.lossy.connections.store(true, Ordering::Relaxed);
        self.lossy.replies.store(true, Ordering::Relaxed);
    }

    /// Nothing is lost any more.
    pub fn heal(&self) {
        self.lossy.requests.store(false, Ordering::Relaxed);
        self.lossy.replies.store(false, Ordering::Relaxed);
        self.lossy.connections.store(false, Ordering::Relaxed);
    }

    /// Cuts all connections, wherever they are in a frame.
    pub fn cut(&self) {
        let pairs = std::mem::take(&mut *self.pairs.lock().unwrap());
        self.cuts.fetch_add(pairs.len() / 2, Ordering::Relaxed);
        pairs.iter().for_each(|stream| {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.cut();
        let _ = UnixStream::connect(self.address.trim_start_matches("unix:"));
    }
}

fn copy(mut from: UnixStream, mut to: UnixStream, lossy: Arc<Lossy>, requests: bool) {
    std::thread::spawn(move || {
        // An odd size, so that frames are cut at every place.
        let mut room = vec![0; 3001];
        while let Ok(count @ 1..) = from.read(&mut room) {
            let lost = if requests { &lossy.requests } else { &lossy.replies };
            if !lost.load(Ordering::Relaxed) && to.write_all(&room[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Both);
    });
}
