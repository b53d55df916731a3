//! A server in this process, over a filesystem that waits for the test; and the real program.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use base::Ino;
use fs::api::*;
use fuse::null::Null;
use guests::server::{Options, Server};
use stream::hello::Sharing;
use tempfile::TempDir;
use virtio::server::Socket;

/// How long anything that must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "this never happened: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a test decides, and sees.
#[derive(Default)]
pub struct Watched {
    held_back: Mutex<bool>,
    changed: Condvar,
    waiting: AtomicUsize,
    references: Mutex<HashMap<Ino, i64>>,
}

impl Watched {
    /// From now on fsync, mkdir and fallocate wait, or not.
    pub fn hold_back(&self, hold: bool) {
        *self.held_back.lock().unwrap() = hold;
        self.changed.notify_all();
    }

    /// References that were given and not given back.
    pub fn references(&self) -> i64 {
        self.references.lock().unwrap().values().sum()
    }

    /// How many requests wait for that.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut held_back = self.held_back.lock().unwrap();
        while *held_back {
            held_back = self.changed.wait(held_back).unwrap();
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn refer(&self, ino: Ino, by: i64) {
        *self.references.lock().unwrap().entry(ino).or_default() += by;
    }
}

/// A filesystem without data, whose files have set-id bits.
pub struct Slow {
    null: Null,
    watched: Arc<Watched>,
}

impl Slow {
    fn entry(&self, found: Result<Entry>) -> Result<Entry> {
        let mut found = found?;
        self.watched.refer(found.node, 1);
        found.attr.perm |= 0o4000;
        Ok(found)
    }
}

macro_rules! passed_on {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.null.$name($($argument),*)
        })*
    };
}

impl Filesystem for Slow {
    fn coherence(&self) -> Coherence {
        Coherence::Exclusive
    }

    fn would_wait(&self, request: Waiting) -> bool {
        match request {
            Waiting::Sync => true,
            Waiting::Change => *self.watched.held_back.lock().unwrap(),
            _ => false,
        }
    }

    fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.entry(self.null.lookup(parent, name))
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.watched.refer(ino, -(count as i64));
    }

    fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], node: &NewNode) -> Result<Entry> {
        self.entry(self.null.mknod(caller, parent, name, node))
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], perm: u16, umask: u16) -> Result<Entry> {
        self.watched.wait();
        self.entry(self.null.mkdir(caller, parent, name, perm, umask))
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.entry(self.null.symlink(caller, parent, name, target))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.entry(self.null.link(ino, parent, name))
    }

    fn fsync(&self, ino: Ino, data_only: bool) -> Result<()> {
        self.watched.wait();
        self.null.fsync(ino, data_only)
    }

    fn allocate(&self, ino: Ino, offset: u64, len: u64, how: Allocate) -> Result<()> {
        let _ = (ino, offset, len, how);
        self.watched.wait();
        Ok(())
    }

    passed_on! {
        getattr(ino: Ino) -> Result<Attr>;
        setattr(caller: &Caller, ino: Ino, set: &SetAttr) -> Result<Attr>;
        readlink(ino: Ino) -> Result<Vec<u8>>;
        unlink(parent: Ino, name: &[u8]) -> Result<Touched>;
        rmdir(parent: Ino, name: &[u8]) -> Result<()>;
        rename(parent: Ino, name: &[u8], to: Ino, to_name: &[u8], mode: RenameMode) -> Result<Touched>;
        read(ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;
        write(ino: Ino, offset: u64, data: &[u8], unprivileged: Option<&Caller>, cached: bool) -> Result<bool>;
        seek(ino: Ino, offset: u64, what: Seek) -> Result<u64>;
        copy_range(from: Ino, from_offset: u64, to: Ino, to_offset: u64, len: u64) -> Result<u64>;
        sync() -> Result<()>;
        readdir(ino: Ino, position: u64, each: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>) -> Result<()>;
        readdir_plus(ino: Ino, position: u64, each: &mut dyn FnMut(DirEntry<'_>, Option<&Entry>) -> ControlFlow<()>) -> Result<()>;
        getxattr(ino: Ino, name: &[u8]) -> Result<Vec<u8>>;
        setxattr(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode, kill_sgid: bool) -> Result<()>;
        listxattr(ino: Ino) -> Result<Vec<u8>>;
        removexattr(ino: Ino, name: &[u8]) -> Result<()>;
        statfs(ino: Ino) -> Result<StatFs>;
    }
}

/// A server in this process with two sockets.
pub struct World {
    dir: TempDir,
    pub watched: Arc<Watched>,
    log: Arc<Mutex<Vec<String>>>,
    pub sockets: Vec<Socket>,
    pub server: Server,
}

impl World {
    /// `keep`: for how many seconds guests may keep names and attributes.
    pub fn new(sharing: Sharing, keep: u64) -> World {
        World::with(sharing, keep, Duration::from_secs(60))
    }

    /// The same with a deadline for requests that wait.
    pub fn with(sharing: Sharing, keep: u64, deadline: Duration) -> World {
        let (dir, watched, log) = (covey_tests::scratch(), Arc::<Watched>::default(), Arc::default());
        let lines: Arc<Mutex<Vec<String>>> = Arc::clone(&log);
        let log_line = Arc::new(move |line: &str| lines.lock().unwrap().push(line.to_owned()));
        let options = Options { sharing, deadline, threads: 2, ..Options::new("test", b"test", log_line) };
        let fs = Arc::new(Slow { null: Null::new(), watched: Arc::clone(&watched) });
        let server = Server::start(fs, options).unwrap();
        let listen = |name: &str| {
            let options =
                virtio::server::Options { keep: Duration::from_secs(keep), tag: Some("models".into()) };
            Socket::listen(server.door(), &dir.path().join(name), options).unwrap()
        };
        let sockets = vec![listen("one"), listen("two")];
        World { dir, watched, log, sockets, server }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    /// Waits until a line with these words is in the log.
    pub fn says(&self, words: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.log().contains(words) {
            assert!(Instant::now() < end, "nothing says {words:?}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.watched.hold_back(false);
    }
}

/// `covey serve` at a vhost-user socket.
pub struct Program {
    child: std::process::Child,
    log: PathBuf,
}

impl Program {
    /// Serves `source` at the socket `on`.
    pub fn start(folder: &Path, source: &Path, on: &Path, more: &[&str]) -> Program {
        let log = folder.join(format!("serve-{}.log", base::random::u64()));
        let file = std::fs::File::create(&log).unwrap();
        let mut command = covey_tests::program::covey();
        command.arg("serve").arg(source).arg("--on").arg(format!("vhost-user:{}", on.display()));
        command.args(more).stdin(std::process::Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let program = Program { child: command.spawn().unwrap(), log };
        until("the server listens", || {
            let log = program.log();
            assert!(!log.contains("error") && !log.contains("cannot"), "{log}");
            log.contains("Ctrl-C")
        });
        program
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends it in good order.
    pub fn end(mut self) {
        // SAFETY: the child is ours and has not been waited for, so its number is its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        let status = covey_tests::program::wait(&mut self.child, PATIENCE);
        assert_eq!(status.and_then(|status| status.code()), Some(0), "{}", self.log());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("server: {}", self.log());
        }
    }
}
