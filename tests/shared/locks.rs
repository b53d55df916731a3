//! Locks on files, across nodes that are mounted with `-o locks=fleet`.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use covey_tests::locking::set;
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server, say};
use servers::Server;

const SOON: Duration = Duration::from_secs(60);
const FLEET: &[&str] = &["-o", "locks=fleet"];
const STYLES: [&str; 3] = ["posix", "ofd", "flock"];

/// What every script begins with: `take(f, style, wait)`.
const TAKE: &str = "
import fcntl, struct, sys, os
def take(f, style, wait):
    if style == 'flock':
        return fcntl.flock(f, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    if style == 'posix':
        return fcntl.lockf(f, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    fcntl.fcntl(f, 38 if wait else 37, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0))
def say(*what):
    print(*what, flush=True)
";

fn shared(server: Server) -> Shared {
    let shared = Shared::with(server, 2, FLEET);
    fs::write(shared.path(0, "file"), "0").unwrap();
    shared
}

/// A Python program; it prints lines, and ends when its input does.
struct Python {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Python {
    fn new(script: &str, args: &[&str], path: &Path) -> Python {
        let mut python = Command::new("python3");
        python.args(["-S", "-E", "-c", &format!("{TAKE}{script}")]).args(args).arg(path).current_dir("/");
        python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = python.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Python { child, lines }
    }

    /// Takes the lock, says so, and keeps it.
    fn holder(style: &str, path: &Path) -> Python {
        let script = "
f = open(sys.argv[2], 'r+b')
say('begun')
take(f, sys.argv[1], True)
say('locked')
sys.stdin.read()
";
        let mut python = Python::new(script, &[style], path);
        assert_eq!(python.line(), "begun");
        python
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: it sends a signal to a child of this process that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn try_lock(file: &File, style: &str) -> Result<(), i32> {
    set(file, style, libc::F_WRLCK)
}

fn unlock(file: &File, style: &str) {
    set(file, style, libc::F_UNLCK).unwrap();
}

/// How long it took until the lock was free.
fn until_locked(file: &File, style: &str) -> Duration {
    let began = Instant::now();
    while let Err(errno) = try_lock(file, style) {
        assert!(errno == libc::EAGAIN && began.elapsed() < SOON, "error {errno}");
        std::thread::sleep(Duration::from_millis(5));
    }
    began.elapsed()
}

#[test]
fn locks_exclude_across_nodes_and_a_waiter_gets_them() {
    requires!(Need::Covey, Need::PythonSqlite);
    let shared = shared(requires_server!());
    let mine = open(&shared.path(0, "file"));
    for style in STYLES {
        try_lock(&mine, style).unwrap();
        let there = open(&shared.path(1, "file"));
        assert_eq!(try_lock(&there, style), Err(libc::EAGAIN), "{style}");
        drop(there);
        let mut waits = Python::holder(style, &shared.path(1, "file"));
        std::thread::sleep(Duration::from_millis(500));
        let began = Instant::now();
        unlock(&mine, style);
        assert_eq!(waits.line(), "locked");
        let took = began.elapsed();
        say(format_args!("{style}: granted {took:?} after the other node unlocked"));
        assert!(took < SOON);
        assert_eq!(try_lock(&mine, style), Err(libc::EAGAIN), "{style}");
        waits.end();
        until_locked(&mine, style);
        unlock(&mine, style);
    }
    // A killed program holds nothing, and a signal interrupts one that waits.
    for style in STYLES {
        let mut holds = Python::holder(style, &shared.path(1, "file"));
        assert_eq!(holds.line(), "locked");
        assert_eq!(try_lock(&mine, style), Err(libc::EAGAIN));
        let waits = Python::holder(style, &shared.path(0, "file"));
        std::thread::sleep(Duration::from_millis(300));
        waits.signal(libc::SIGTERM);
        let began = Instant::now();
        let mut child = waits.child;
        assert!(!child.wait().unwrap().success());
        assert!(began.elapsed() < SOON, "{style}: {:?}", began.elapsed());
        holds.kill();
        let took = until_locked(&mine, style);
        say(format_args!("{style}: free {took:?} after its holder was killed"));
        unlock(&mine, style);
    }
    let began = Instant::now();
    const PAIRS: u32 = 300;
    for _ in 0..PAIRS {
        try_lock(&mine, "posix").unwrap();
        unlock(&mine, "posix");
    }
    say(format_args!("lock and unlock of an uncontended range: {:?}", began.elapsed() / PAIRS));
}

#[test]
fn locks_of_a_killed_node_end_with_its_session() {
    requires!(Need::Covey, Need::PythonSqlite);
    let mut shared = shared(requires_server!());
    let path = shared.path(1, "file");
    let mut holds = Python::holder("posix", &path);
    assert_eq!(holds.line(), "locked");
    shared.nodes[1].kill();
    let mine = open(&shared.path(0, "file"));
    assert_eq!(try_lock(&mine, "posix"), Err(libc::EAGAIN), "its session lasts");
    let took = until_locked(&mine, "posix");
    say(format_args!("free {took:?} after its node was killed"));
    holds.kill();
    unlock(&mine, "posix");
    shared.nodes[1].try_mount(FLEET).unwrap();
    // A busy machine may delay some of them, but not all. The session would last for 12 seconds or more.
    let quick = (0..5).any(|_| {
        let mut holds = Python::holder("posix", &path);
        assert_eq!(holds.line(), "locked");
        let killed = Instant::now();
        shared.nodes[1].kill();
        shared.nodes[1].try_mount(FLEET).unwrap();
        let took = until_locked(&mine, "posix");
        say(format_args!("free {took:?} after its node had mounted again"));
        holds.kill();
        unlock(&mine, "posix");
        killed.elapsed() < Duration::from_secs(10)
    });
    assert!(quick, "each time the lock lasted as long as the session of its killed node");
}

/// The first holder was stopped for longer than its session lasts. It went on, and wrote over what the next
/// one had written.
#[test]
fn regression_a_lost_lock_stops_its_holder() {
    requires!(Need::Covey);
    let shared = shared(requires_server!());
    for name in ["flock", "posix", "unlocked", "released"] {
        fs::write(shared.path(0, name), "first holder").unwrap();
    }
    let [flocked, ranged, unlocked, released] =
        ["flock", "posix", "unlocked", "released"].map(|name| open(&shared.path(0, name)));
    let lost = [("flock", &flocked), ("posix", &ranged)];
    lost.iter().for_each(|(style, file)| try_lock(file, style).unwrap());
    try_lock(&released, "flock").unwrap();
    unlock(&released, "flock");
    lost.iter().for_each(|(_, file)| file.sync_all().unwrap());
    shared.nodes[0].freeze(true);
    let next = ["flock", "posix"].map(|style| (style, open(&shared.path(1, style))));
    for (style, file) in &next {
        until_locked(file, style);
        file.write_all_at(b"next holder", 0).unwrap();
        file.sync_all().unwrap();
    }
    shared.nodes[0].freeze(false);
    // Until it has joined again, it answers everything with an error.
    let began = Instant::now();
    while unlocked.write_all_at(b"goes on", 0).is_err() {
        assert!(began.elapsed() < SOON, "{}", shared.nodes[0].log());
        std::thread::sleep(Duration::from_millis(50));
    }
    released.write_all_at(b"goes on", 0).unwrap();
    let error = |result: std::io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    // Closing the file would end the POSIX locks of this process.
    let read = |file: &File| {
        let mut bytes = [0; 12];
        file.read_exact_at(&mut bytes, 0).map(|()| bytes).unwrap()
    };
    for ((style, old), (_, new)) in lost.iter().zip(&next) {
        for (what, result) in [
            ("write", old.write_all_at(b"FIRST AGAIN", 0)),
            ("read", old.read_exact_at(&mut [0; 4], 0)),
            ("fsync", old.sync_all()),
            ("ftruncate", old.set_len(3)),
        ] {
            assert_eq!(error(result), Some(libc::EIO), "{style}: {what}");
        }
        assert_eq!(try_lock(old, style), Err(libc::EIO), "{style}");
        assert_eq!(read(new), *b"next holderr", "{style}");
    }
    // A file that is opened anew is free of it. A process has its POSIX locks until it closes the file.
    drop(ranged);
    for (style, new) in &next {
        let again = open(&shared.path(0, style));
        assert_eq!(try_lock(&again, style), Err(libc::EAGAIN), "{style}");
        unlock(new, style);
        until_locked(&again, style);
        again.write_all_at(b"first again", 0).unwrap();
        assert_eq!(read(new), *b"first againr", "{style}");
    }
    assert_eq!(error(flocked.write_all_at(b"FIRST AGAIN", 0)), Some(libc::EIO), "the old one is still lost");
}

#[test]
fn a_counter_under_a_lock_is_exact() {
    requires!(Need::Covey, Need::PythonSqlite);
    let shared = shared(requires_server!());
    let script = "
f = os.open(sys.argv[2], os.O_RDWR)
for n in range(50):
    take(f, sys.argv[1], True)
    value = int(os.pread(f, 20, 0))
    os.pwrite(f, b'%d' % (value + 1), 0)
    if sys.argv[1] == 'flock': fcntl.flock(f, fcntl.LOCK_UN)
    else: fcntl.lockf(f, fcntl.LOCK_UN)
say('done')
";
    for style in ["posix", "flock"] {
        fs::write(shared.path(0, "file"), "0").unwrap();
        let began = Instant::now();
        let mut all: Vec<Python> =
            (0..4).map(|n| Python::new(script, &[style], &shared.path(n % 2, "file"))).collect();
        all.iter_mut().for_each(|python| assert_eq!(python.line(), "done"));
        say(format_args!("{style}: 200 increments by 4 processes on 2 nodes in {:?}", began.elapsed()));
        all.into_iter().for_each(Python::end);
        assert_eq!(fs::read_to_string(shared.path(1, "file")).unwrap(), "200", "{style}");
    }
}

#[test]
fn sqlite_writes_on_two_nodes() {
    requires!(Need::Covey, Need::PythonSqlite);
    let shared = shared(requires_server!());
    let script = "
import sqlite3
db = sqlite3.connect(sys.argv[2], timeout=120)
db.execute('pragma journal_mode=delete')
for n in range(50):
    db.execute('insert into work values (?, ?)', (sys.argv[1], n))
    db.commit()
db.close()
say('done')
";
    let make = "
import sqlite3
db = sqlite3.connect(sys.argv[1])
db.execute('create table work (who, n)')
db.commit()
say('made')
";
    let mut python = Python::new(make, &[], &shared.path(0, "db"));
    assert_eq!(python.line(), "made");
    python.end();
    let began = Instant::now();
    let mut all: Vec<Python> =
        (0..2).map(|n| Python::new(script, &[["a", "b"][n]], &shared.path(n, "db"))).collect();
    all.iter_mut().for_each(|python| assert_eq!(python.line(), "done"));
    say(format_args!("100 transactions by 2 nodes in {:?}", began.elapsed()));
    all.into_iter().for_each(Python::end);
    let check = "
import sqlite3
db = sqlite3.connect(sys.argv[1])
say(db.execute('select count(*), count(distinct who || n) from work').fetchone())
say(db.execute('pragma integrity_check').fetchone())
";
    for node in 0..2 {
        let mut python = Python::new(check, &[], &shared.path(node, "db"));
        assert_eq!(python.line(), "(100, 100)", "on node {node}");
        assert_eq!(python.line(), "('ok',)", "on node {node}");
        python.end();
    }
}

#[test]
fn only_a_shared_volume_has_locks_of_the_fleet() {
    requires!(Need::Covey);
    let folder = covey_tests::scratch();
    let mut refused = covey_tests::program::covey();
    let said = refused.args(["mount", "mem:"]).arg(folder.path()).args(FLEET).output().unwrap();
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(!said.status.success() && text.contains("shared volumes"), "{text}");
}

/// Nodes with other settings on one volume did not exclude each other, and nothing said so.
#[test]
fn regression_all_nodes_of_a_volume_have_the_same_locks() {
    requires!(Need::Covey);
    let mut shared = Shared::new(requires_server!(), 2);
    fs::write(shared.path(0, "file"), "").unwrap();
    let open_both = |shared: &Shared| [0, 1].map(|node| open(&shared.path(node, "file")));
    // Unless something else is asked for, locks hold on all nodes.
    let [here, there] = open_both(&shared);
    try_lock(&here, "flock").unwrap();
    assert_eq!(try_lock(&there, "flock"), Err(libc::EAGAIN));
    drop([here, there]);
    shared.nodes[1].unmount();
    let local: &[&str] = &["-o", "locks=local"];
    let said = shared.nodes[1].try_mount(local).unwrap_err();
    assert!(said.contains("the volume has locks=fleet") && said.contains("--set local"), "{said}");
    let set = |shared: &Shared, to: &str| {
        let mut command = covey_tests::program::covey();
        let done = command.args(["locks", &shared.address, "--set", to]).output().unwrap();
        let text = [done.stdout, done.stderr].concat();
        (done.status.success(), String::from_utf8_lossy(&text).into_owned())
    };
    let (done, text) = set(&shared, "local");
    assert!(!done && text.contains("nodes have the volume mounted"), "{text}");
    shared.nodes[0].unmount();
    let (done, text) = set(&shared, "local");
    assert!(done && text.contains("Before, it had locks=fleet"), "{text}");
    assert!(shared.nodes[0].try_mount(FLEET).unwrap_err().contains("the volume has locks=local"));
    shared.nodes[0].try_mount(local).unwrap();
    shared.nodes[1].try_mount(&[]).unwrap();
    let both = open_both(&shared);
    both.iter().for_each(|file| try_lock(file, "flock").unwrap());
}
