//! Locks that exclude the programs of all guests, and what becomes of them when something breaks.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use covey_tests::locking::set;
use covey_tests::program::covey_run;
use covey_tests::{Need, requires, say};

use super::world::{Guest, PATIENCE, Place, Proxy, Server, until};

const STYLES: [&str; 3] = ["posix", "ofd", "flock"];

/// A program that takes a lock when it may, says `locked`, and keeps it until its input ends.
const HOLD: &str = "
import fcntl, struct, sys, signal
f = open(sys.argv[2], 'r+b')
signal.signal(signal.SIGALRM, lambda *_: (print('interrupted', flush=True), sys.exit(0)))
print('begun', flush=True)
if sys.argv[1] == 'flock': fcntl.flock(f, fcntl.LOCK_EX)
elif sys.argv[1] == 'posix': fcntl.lockf(f, fcntl.LOCK_EX)
else: fcntl.fcntl(f, 38, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))
print('locked', flush=True)
sys.stdin.read()
";

/// A Python program; it prints lines, and ends when its input does. It is killed if its test fails.
pub struct Python {
    child: Child,
    lines: Receiver<String>,
}

impl Python {
    pub fn new(script: &str, args: &[&str], path: &Path) -> Python {
        let mut python = Command::new("python3");
        python.args(["-S", "-E", "-c", script]).args(args).arg(path).current_dir("/");
        python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = python.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (said, lines) = channel();
        // A lock that is never granted fails the test, and does not stop it.
        std::thread::spawn(move || out.lines().map_while(Result::ok).all(|line| said.send(line).is_ok()));
        Python { child, lines }
    }

    /// One that waits for the lock.
    pub fn waiter(style: &str, path: &Path) -> Python {
        let mut python = Python::new(HOLD, &[style], path);
        assert_eq!(python.line(), "begun");
        python
    }

    /// One that has it.
    pub fn holder(style: &str, path: &Path) -> Python {
        let mut python = Python::waiter(style, path);
        assert_eq!(python.line(), "locked");
        python
    }

    pub fn line(&mut self) -> String {
        let line = self.lines.recv_timeout(PATIENCE);
        line.unwrap_or_else(|error| panic!("a program says nothing: {error}"))
    }

    fn told(&mut self, word: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{word}").unwrap();
        self.line()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: it sends a signal to a child of this process that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    pub fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(self) {
        drop(self);
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

pub fn try_lock(file: &File, style: &str) -> Result<(), i32> {
    set(file, style, libc::F_WRLCK)
}

fn unlock(file: &File, style: &str) -> Result<(), i32> {
    set(file, style, libc::F_UNLCK)
}

/// Takes the lock as soon as it is free, and gives it back.
fn until_free(path: &Path, style: &str) {
    let file = open(path);
    until("the lock is free", || match try_lock(&file, style) {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error, libc::EAGAIN);
            false
        }
    });
    unlock(&file, style).unwrap();
}

/// A server of a volume or a folder, with two guests and a file.
struct Two {
    server: Server,
    guests: [Guest; 2],
    place: Place,
}

fn two(folder: bool, more: &[&str]) -> Two {
    let place = Place::new();
    let source = place.text(if folder { "folder" } else { "volume" });
    fs::create_dir_all(&source).unwrap();
    let server = Server::start(&place, &source, &[&["--many", "--locks", "server"], more].concat());
    let guests = ["a", "b"].map(|name| Guest::attach(&place, name, &place.unix("s"), &[]));
    fs::write(guests[0].join("f"), "0").unwrap();
    Two { server, guests, place }
}

impl Two {
    fn file(&self, guest: usize) -> PathBuf {
        self.guests[guest].join("f")
    }

    fn end(self) {
        self.guests.into_iter().for_each(Guest::end);
        self.server.end();
    }
}

/// With `--locks server`, flock, POSIX and OFD locks exclude the programs of other guests; one that waits is
/// granted, one that gets a signal is interrupted, and one that is killed holds nothing.
#[test]
fn locks_exclude_the_programs_of_all_guests() {
    requires!(Need::Root, Need::Covey, Need::Program("python3"));
    for folder in [false, true] {
        let two = two(folder, &[]);
        let mine = open(&two.file(0));
        for style in STYLES {
            try_lock(&mine, style).unwrap();
            assert_eq!(try_lock(&open(&two.file(1)), style), Err(libc::EAGAIN), "{style}");
            let mut waits = Python::waiter(style, &two.file(1));
            std::thread::sleep(Duration::from_millis(100));
            let began = Instant::now();
            unlock(&mine, style).unwrap();
            assert_eq!(waits.line(), "locked");
            say(format_args!("folder {folder}, {style}: granted {:?} after the unlock", began.elapsed()));
            assert_eq!(try_lock(&mine, style), Err(libc::EAGAIN), "{style}");
            let mut interrupted = Python::waiter(style, &two.file(0));
            std::thread::sleep(Duration::from_millis(50));
            interrupted.signal(libc::SIGALRM);
            assert_eq!(interrupted.line(), "interrupted", "{style}");
            interrupted.end();
            waits.kill();
            until_free(&two.file(0), style);
        }
        drop(mine);
        two.end();
    }
}

/// Increments by programs of two guests under a lock are all there.
#[test]
fn a_counter_of_two_guests_is_exact() {
    requires!(Need::Root, Need::Covey, Need::Program("python3"));
    let script = "
import fcntl, os, sys
f = os.open(sys.argv[2], os.O_RDWR)
for n in range(100):
    (fcntl.flock if sys.argv[1] == 'flock' else fcntl.lockf)(f, fcntl.LOCK_EX)
    value = int(os.pread(f, 20, 0))
    os.pwrite(f, b'%d' % (value + 1), 0)
    (fcntl.flock if sys.argv[1] == 'flock' else fcntl.lockf)(f, fcntl.LOCK_UN)
print('done', flush=True)
";
    for folder in [false, true] {
        let two = two(folder, &[]);
        for style in ["posix", "flock"] {
            fs::write(two.file(0), "100").unwrap();
            let mut all: Vec<Python> =
                (0..4).map(|n| Python::new(script, &[style], &two.file(n % 2))).collect();
            all.iter_mut().for_each(|python| assert_eq!(python.line(), "done"));
            all.into_iter().for_each(Python::end);
            // The number of digits does not change, so only the times tell that the bytes did.
            assert_eq!(fs::read_to_string(two.file(1)).unwrap(), "500", "folder {folder}, {style}");
        }
        two.end();
    }
}

/// Guests of a served folder and programs of the host exclude one another.
#[test]
fn a_folders_locks_are_those_of_the_host() {
    requires!(Need::Root, Need::Covey, Need::Program("python3"));
    let two = two(true, &[]);
    let host = two.place.path("folder/f");
    for style in STYLES {
        let holds = Python::holder(style, &two.file(0));
        assert_eq!(try_lock(&open(&host), style), Err(libc::EAGAIN), "{style}");
        let mut waits = Python::waiter(style, &host);
        holds.end();
        assert_eq!(waits.line(), "locked", "{style}");
        assert_eq!(try_lock(&open(&two.file(1)), style), Err(libc::EAGAIN), "{style}");
        let mut again = Python::waiter(style, &two.file(1));
        waits.end();
        assert_eq!(again.line(), "locked", "{style}");
        again.end();
    }
    two.end();
}

/// Many more programs wait for a lock than the guest may have requests in flight. The unlock gets through.
#[test]
fn requests_that_wait_take_no_place_from_others() {
    requires!(Need::Root, Need::Covey, Need::Program("python3"));
    let two = two(false, &["--requests", "2"]);
    let mut holds = Python::new(TOLD, &["flock"], &two.file(0));
    assert_eq!(holds.told("lock"), "ok");
    let mut waiting: Vec<Python> = (0..8).map(|_| Python::waiter("flock", &two.file(0))).collect();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(holds.told("read"), "ok", "others go on");
    assert_eq!(holds.told("unlock"), "ok");
    waiting.iter_mut().for_each(|python| drop(python.child.stdin.take()));
    for mut python in waiting {
        assert_eq!(python.line(), "locked");
        python.end();
    }
    holds.end();
    two.end();
}

/// Connections are cut while programs hold locks and wait for them: nothing is lost, and nothing is taken
/// twice.
#[test]
fn locks_outlive_a_connection() {
    requires!(Need::Root, Need::Covey, Need::Program("python3"));
    let place = Place::new();
    let server = place.serve(&["--many", "--locks", "server"]);
    let proxy = Proxy::start(&place);
    let guest = Guest::attach(&place, "a", proxy.address(), &[]);
    let other = Guest::attach(&place, "b", &place.unix("s"), &[]);
    fs::write(guest.join("f"), "0").unwrap();
    let there = open(&other.join("f"));
    for style in STYLES {
        let holds = Python::holder(style, &guest.join("f"));
        proxy.cut();
        assert_eq!(try_lock(&there, style), Err(libc::EAGAIN), "{style}: it comes back, and holds it");
        fs::write(guest.join("g"), "it is back").unwrap();
        assert_eq!(try_lock(&there, style), Err(libc::EAGAIN), "{style}");
        holds.end();
        until_free(&other.join("f"), style);
        // A request that waits is sent again, and waits once.
        try_lock(&there, style).unwrap();
        let mut waits = Python::waiter(style, &guest.join("f"));
        std::thread::sleep(Duration::from_millis(100));
        proxy.cut();
        fs::write(guest.join("g"), "it is back").unwrap();
        unlock(&there, style).unwrap();
        assert_eq!(waits.line(), "locked", "{style}");
        waits.end();
        until_free(&other.join("f"), style);
        // A signal is not lost with a connection.
        try_lock(&there, style).unwrap();
        let mut waits = Python::waiter(style, &guest.join("f"));
        std::thread::sleep(Duration::from_millis(100));
        proxy.lose_requests();
        waits.signal(libc::SIGALRM);
        std::thread::sleep(Duration::from_millis(50));
        proxy.heal();
        proxy.cut();
        assert_eq!(waits.line(), "interrupted", "{style}");
        waits.end();
        unlock(&there, style).unwrap();
        until_free(&other.join("f"), style);
    }
    drop(there);
    guest.end();
    other.end();
    server.end();
}

/// A guest that is killed loses its locks when the server forgets it, and not before.
#[test]
fn a_killed_guest_loses_its_locks() {
    requires!(Need::Root, Need::Covey, Need::Program("python3"));
    for folder in [false, true] {
        let two = two(folder, &["--linger", "1"]);
        let [guest, other] = two.guests;
        const HELD: [&str; 2] = ["ofd", "flock"];
        let holders = HELD.map(|style| Python::holder(style, &guest.join("f")));
        let waits = Python::waiter("flock", &guest.join("f"));
        let there = open(&other.join("f"));
        let killed = Instant::now();
        guest.kill();
        for style in HELD {
            // On a busy machine the server may have forgotten it already.
            let tried = try_lock(&there, style);
            let lingered = killed.elapsed() >= Duration::from_secs(1);
            assert!(tried == Err(libc::EAGAIN) || tried.is_ok() && lingered, "{style}: {tried:?}");
        }
        until("the server forgets it", || two.server.log().contains("is forgotten"));
        drop(there);
        HELD.iter().for_each(|style| until_free(&other.join("f"), style));
        holders.into_iter().for_each(Python::kill);
        waits.kill();
        other.end();
        two.server.end();
    }
}

/// A program that does what it is told, and says `ok` or the number of the error. It runs as a process of its
/// own: each process that this one starts closes copies of its files, and would wait for the server.
const TOLD: &str = "
import fcntl, struct, sys, os
f = os.open(sys.argv[2], os.O_RDWR)
for line in sys.stdin:
    try:
        kind = {'lock': fcntl.F_WRLCK, 'unlock': fcntl.F_UNLCK}.get(line.strip())
        if line.strip() == 'read': os.pread(f, 1, 0)
        elif sys.argv[1] == 'flock':
            fcntl.flock(f, fcntl.LOCK_UN if kind == fcntl.F_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            fcntl.fcntl(f, 37 if sys.argv[1] == 'ofd' else 6, struct.pack('hhqqi4x', kind, 0, 0, 0, 0))
        print('ok', flush=True)
    except OSError as error:
        print(error.errno, flush=True)
";

/// Another run of the server knows no locks. A program that held one is told so with EIO until it closes the
/// file. One that waited goes on waiting there.
#[test]
fn locks_that_end_with_their_server_are_not_lost_in_silence() {
    requires!(Need::Root, Need::Covey, Need::Program("python3"));
    let two = two(false, &[]);
    let [guest, other] = two.guests;
    STYLES.iter().for_each(|style| fs::write(guest.join(style), "0").unwrap());
    let mut held = STYLES.map(|style| Python::new(TOLD, &[style], &guest.join(style)));
    held.iter_mut().for_each(|python| assert_eq!(python.told("lock"), "ok"));
    let mut only_tried = Python::new(TOLD, &["posix"], &other.join("posix"));
    assert_eq!(only_tried.told("lock"), libc::EAGAIN.to_string());
    let mut waits = STYLES.map(|style| Python::waiter(style, &other.join(style)));
    std::thread::sleep(Duration::from_millis(100));
    two.server.kill();
    let server = two.place.serve(&["--many", "--locks", "server"]);
    until("it follows", || guest.log().contains("have lost their locks on 3 files"));
    for python in &mut waits {
        assert_eq!(python.line(), "locked", "it waited, and nothing holds it there");
    }
    let eio = libc::EIO.to_string();
    for (style, python) in STYLES.iter().zip(&mut held) {
        assert_eq!(python.told("lock"), eio, "{style}");
        assert_eq!(python.told("read"), "ok", "{style}: reads go on");
    }
    assert_eq!(only_tried.told("lock"), libc::EAGAIN.to_string(), "it had lost nothing");
    waits.into_iter().for_each(Python::end);
    // Another open file knows nothing of it, and an unlock of all ends it.
    STYLES.iter().for_each(|style| until_free(&guest.join(style), style));
    for (style, python) in STYLES.iter().zip(&mut held) {
        assert_eq!(python.told("unlock"), eio, "{style}");
        assert_eq!(python.told("lock"), "ok", "{style}");
        assert_eq!(try_lock(&open(&other.join(style)), style), Err(libc::EAGAIN));
    }
    held.into_iter().for_each(Python::end);
    only_tried.end();
    STYLES.iter().for_each(|style| until_free(&other.join(style), style));
    guest.end();
    other.end();
    server.end();
}

/// A file is closed while no server answers. Its lock ends when one does.
#[test]
fn a_lock_ends_although_nothing_answered_the_close() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&["--many", "--locks", "server"]);
    let proxy = Proxy::start(&place);
    let guest = Guest::attach(&place, "a", proxy.address(), &["--wait", "1"]);
    let other = Guest::attach(&place, "b", &place.unix("s"), &[]);
    fs::write(guest.join("f"), "0").unwrap();
    fs::write(guest.join("g"), "0").unwrap();
    let (flock, posix) = (open(&guest.join("f")), open(&guest.join("g")));
    try_lock(&flock, "flock").unwrap();
    try_lock(&posix, "posix").unwrap();
    let there = ["f", "g"].map(|name| open(&other.join(name)));
    proxy.lose_requests();
    proxy.cut();
    until("requests fail", || guest.log().contains("requests fail with EIO"));
    drop(flock);
    drop(posix);
    assert_eq!(try_lock(&there[0], "flock"), Err(libc::EAGAIN), "the server does not know yet");
    proxy.heal();
    until_free(&other.join("f"), "flock");
    until_free(&other.join("g"), "ofd");
    drop(there);
    guest.end();
    other.end();
    server.end();
}

/// Without `--locks server` a guest's locks are its own. What has no locks to share says so.
#[test]
fn locks_are_local_unless_the_server_decides_them() {
    requires!(Need::Root, Need::Covey);
    let place = Place::new();
    let server = place.serve(&["--many"]);
    let [one, two] = ["a", "b"].map(|name| Guest::attach(&place, name, &place.unix("s"), &[]));
    fs::write(one.join("f"), "0").unwrap();
    let [here, there] = [&one, &two].map(|guest| open(&guest.join("f")));
    for style in STYLES {
        assert_eq!((try_lock(&here, style), try_lock(&there, style)), (Ok(()), Ok(())), "{style}");
        [&here, &there].into_iter().for_each(|file| unlock(file, style).unwrap());
    }
    drop((here, there));
    one.end();
    two.end();
    server.end();
    let done = covey_run(&["serve", &place.text("volume"), "--locks", "server", "--on", &place.unix("t")]);
    assert!(done.code() == 2 && done.stderr.contains("add --many"), "{done:?}");
    let tree = ["serve", "corpus:7,10,64K", "--locks", "server", "--on", &place.unix("t")];
    let done = covey_run(&tree);
    assert!(done.code() == 2 && done.stderr.contains("nothing to lock"), "{done:?}");
}
