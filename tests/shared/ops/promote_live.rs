//! `covey promote` of a volume that programs use, mounted with `-o promotable`.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run, run_ok};
use covey_tests::shared::{Node, Shared};
use covey_tests::{Need, requires, requires_server, say};

use super::gate::Gate;
use super::publish::{LIMIT, fill, same};
use super::single::{Single, a_blob, gate_of, small};

const LIVE: &[&str] = &["-o", "promotable,locks=fleet"];

/// A program that uses a mount in all ways at once. It prints `ready`. When it is told how often it must have
/// done each thing at least, it goes on until then, and prints what it did. It keeps everything open until
/// its input ends. Any error ends it.
const BUSY: &str = r#"
import fcntl, json, mmap, os, sys, threading, time
root = sys.argv[1]
log = os.open(root + '/log', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
ghost = os.open(root + '/ghost', os.O_RDWR | os.O_CREAT)
os.pwrite(ghost, b'g' * 300000, 0)
os.unlink(root + '/ghost')
mapped = os.open(root + '/mapped', os.O_RDWR | os.O_CREAT)
os.ftruncate(mapped, 1 << 20)
pages = mmap.mmap(mapped, 1 << 20)
os.makedirs(root + '/sub/deep')
os.mkdir(root + '/made')
os.chdir(root + '/sub/deep')
listing = os.open(root + '/made', os.O_RDONLY | os.O_DIRECTORY)
locked = open(root + '/flock', 'w')
fcntl.flock(locked, fcntl.LOCK_EX)
ranged = open(root + '/range', 'w')
fcntl.lockf(ranged, fcntl.LOCK_EX, 10, 5)
stop, least, count, slowest = False, 0, {}, 0.0
def each(name, work):
    global slowest
    n = 0
    try:
        while not stop or n < least:
            began = time.monotonic()
            work(n)
            slowest = max(slowest, time.monotonic() - began)
            n += 1
            time.sleep(0.002)
    except BaseException as error:
        print(json.dumps({'error': name + ' ' + repr(error)}), flush=True)
        os._exit(1)
    count[name] = n
def append(n):
    line = b'a%d\n' % n
    assert os.write(log, line) == len(line)
def haunt(n):
    os.pwrite(ghost, b'%08d' % n, 8 * (n % 1000))
    assert os.pread(ghost, 8, 8 * (n % 1000)) == b'%08d' % n
    assert os.fstat(ghost).st_size == 300000 and os.fstat(ghost).st_nlink == 0
def dirty(n):
    pages[n % 256 * 4096:n % 256 * 4096 + 8] = b'%08d' % n
def beside(n):
    with open('r%d' % (n % 20), 'w') as f: f.write(str(n))
    with open('r%d' % (n % 20)) as f: assert f.read() == str(n)
    assert os.getcwd() == root + '/sub/deep'
def make(n):
    with open(root + '/made/%d' % n, 'x') as f: f.write('made %d' % n)
    assert os.stat('%d' % n, dir_fd=listing).st_size == len('made %d' % n)
    if n % 25 == 0: assert len(os.listdir(listing)) == n + 1
works = {'append': append, 'haunt': haunt, 'dirty': dirty, 'beside': beside, 'make': make}
threads = [threading.Thread(target=each, args=pair) for pair in works.items()]
[thread.start() for thread in threads]
print('ready', flush=True)
least = int(sys.stdin.readline() or 0)
stop = True
[thread.join() for thread in threads]
pages.flush()
count['slowest'] = slowest
print(json.dumps(count), flush=True)
sys.stdin.read()
"#;

struct Busy {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Busy {
    fn start(root: &Path) -> Busy {
        let mut python = Command::new("python3");
        python.args(["-S", "-E", "-c", BUSY]).arg(root).current_dir("/");
        python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = python.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut busy = Busy { child, lines };
        assert_eq!(busy.line(), "ready");
        busy
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// What it did, by kind, at least 60 times each. It goes on to hold everything.
    fn stop(&mut self) -> serde_json::Value {
        let input = self.child.stdin.as_mut().unwrap();
        // A program that has met an error is gone, and has said so.
        input.write_all(b"60\n").ok();
        let line = self.line();
        let done: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line}"));
        assert!(done["error"].is_null(), "{done}");
        done
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Promotes a mounted volume.
fn promote(single: &Single<'_>, root: &Path) -> Command {
    let mut command = covey();
    command.args(["promote", "--json"]).arg(root).arg(single.address());
    command
}

fn live(single: &Single<'_>, name: &str) -> Node {
    let name = format!("{}-{name}", single.name);
    Node::with(single.shared.folder.path(), &single.text(), &name, LIVE)
}

fn second(single: &Single<'_>) -> Node {
    try_second(single).unwrap_or_else(|said| panic!("covey mount: {said}"))
}

fn try_second(single: &Single<'_>) -> Result<Node, String> {
    let name = format!("{}-second", single.name);
    Node::try_with(single.shared.folder.path(), &single.address(), &name, &["-o", "locks=fleet"])
}

/// Whether this program gets a lock: on the whole file by flock(2), or on one byte.
fn gets(path: &Path, byte: Option<i64>) -> bool {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut range = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: byte.unwrap_or(0),
        l_len: 1,
        l_pid: 0,
    };
    let done = match byte {
        // SAFETY: the descriptor is open. The call takes numbers only.
        None => unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) },
        // SAFETY: the descriptor is open, and `range` lives through the call.
        Some(_) => unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw mut range) },
    };
    let error = std::io::Error::last_os_error();
    assert!(done == 0 || error.raw_os_error() == Some(libc::EAGAIN), "{error}");
    done == 0
}

/// What the program wrote is what a node sees.
fn sees(root: &Path, done: &serde_json::Value, more: usize) {
    let many = |what: &str| done[what].as_u64().unwrap();
    let log = fs::read_to_string(root.join("log")).unwrap();
    let mine: Vec<&str> = log.lines().filter(|line| line.starts_with('a')).collect();
    let wanted: Vec<String> = (0..many("append")).map(|n| format!("a{n}")).collect();
    assert_eq!(mine, wanted, "each line once, in its order");
    assert_eq!(log.lines().count() - mine.len(), more);
    for n in 0..many("make") {
        assert_eq!(fs::read_to_string(root.join(format!("made/{n}"))).unwrap(), format!("made {n}"));
    }
    assert_eq!(fs::read_dir(root.join("made")).unwrap().count() as u64, many("make"));
    let mapped = fs::read(root.join("mapped")).unwrap();
    for n in many("dirty").saturating_sub(256)..many("dirty") {
        let at = n as usize % 256 * 4096;
        assert_eq!(&mapped[at..at + 8], format!("{n:08}").as_bytes());
    }
    let last = many("beside") - 1;
    assert_eq!(fs::read_to_string(root.join(format!("sub/deep/r{}", last % 20))).unwrap(), last.to_string());
}

/// The program that waited for the lock has got it, and another node gets both locks.
fn are_released(mut waits: Child, root: &Path) {
    let until = Instant::now() + LIMIT;
    while waits.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "the lock was released, and the program that waits does not get it");
        std::thread::sleep(Duration::from_millis(10));
    }
    // close(2) does not wait for the end of a lock.
    for (name, byte) in [("flock", None), ("range", Some(7))] {
        while !gets(&root.join(name), byte) {
            assert!(Instant::now() < until, "{name} is still locked");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Open files, files without a name, mappings, working directories and locks stay while the volume becomes a
/// shared one. No program sees an error, and other nodes see what it did, and its locks.
#[test]
fn programs_go_on_while_their_volume_is_promoted() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let single = Single::new(&shared, "single");
    let node = live(&single, "one");
    let root = node.mountpoint.clone();
    fill(&root.join("tree"), 1);
    let mut busy = Busy::start(&root);
    std::thread::sleep(Duration::from_millis(700));
    // It waits for a lock, and goes on waiting for it on the shared volume.
    let waits = Command::new("flock").arg(root.join("flock")).arg("true").spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let (said, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            // Mounts as soon as that is possible, and tries to take what others have.
            let other = loop {
                match try_second(&single) {
                    Ok(other) => break other,
                    Err(said) => assert!(!said.contains("panicked"), "{said}"),
                }
            };
            assert!(!gets(&other.mountpoint.join("flock"), None), "the flock is held");
            assert!(!gets(&other.mountpoint.join("range"), Some(7)), "the range is locked");
            assert!(gets(&other.mountpoint.join("range"), Some(20)), "and nothing more");
            other
        });
        (run(&mut promote(&single, &root), LIMIT), other.join().unwrap())
    });
    assert!(said.status.success(), "{said:?} {}", node.log());
    let done = said.json();
    assert!(done["stayed_mounted"] == true && done["mounted_again"] == true, "{done} {}", node.log());
    assert!(single.is_nodes() && !single.folder().join("meta/names.db").exists(), "{}", node.log());
    // Other nodes know of the open file without a name.
    let holds = "select count(*) from covey_kv where substring(k from 1 for 1) = ";
    assert_eq!(shared.server.sql(&format!("{holds}'\\x15'")), "1");
    // Both append to the same file.
    let mut log = File::options().append(true).open(other.mountpoint.join("log")).unwrap();
    for n in 0..50 {
        log.write_all(format!("b{n}\n").as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    let waited = done["waited_seconds"].as_f64().unwrap();
    let done = busy.stop();
    say(format_args!(
        "programs waited for {waited:.2} s by the command, {} s by themselves",
        done["slowest"]
    ));
    for what in ["append", "haunt", "dirty", "beside", "make"] {
        assert!(done[what].as_u64().unwrap() > 50, "{done}");
    }
    for place in [&root, &other.mountpoint] {
        sees(place, &done, 50);
    }
    fs::write(other.mountpoint.join("made/later"), "later").unwrap();
    assert_eq!(fs::read_to_string(root.join("made/later")).unwrap(), "later");
    busy.end();
    are_released(waits, &other.mountpoint);
    drop((node, other));
    run_ok(covey().args(["fsck", &single.address()]), LIMIT);
}

/// The same with locks in the kernel, where requests come over io_uring if the machine has it.
#[test]
fn programs_go_on_with_locks_in_the_kernel() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let single = Single::new(&shared, "single");
    let node = Node::with(shared.folder.path(), &single.text(), "single-one", &["-o", "promotable"]);
    let root = node.mountpoint.clone();
    let status = run_ok(covey().args(["status", "--json"]).arg(&root), LIMIT).json();
    say(format_args!("requests come by {}", status["served"]["transport"]));
    let mut busy = Busy::start(&root);
    std::thread::sleep(Duration::from_millis(300));
    let said = run(&mut promote(&single, &root), LIMIT);
    assert!(said.status.success() && said.json()["stayed_mounted"] == true, "{said:?} {}", node.log());
    assert!(!gets(&root.join("flock"), None) && !gets(&root.join("range"), Some(7)));
    std::thread::sleep(Duration::from_millis(300));
    let done = busy.stop();
    let other = single.node("second");
    for place in [&root, &other.mountpoint] {
        sees(place, &done, 0);
    }
    let status = run_ok(covey().args(["status", "--json"]).arg(&root), LIMIT).json();
    assert_eq!(status["mode"].as_str(), Some("shared"), "{status}");
    busy.end();
}

/// A promotion that fails while programs wait: they go on with the volume as it was, and with the shared one
/// after the next attempt. An open file without a name lives through both.
#[test]
fn programs_go_on_when_a_promotion_fails() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let single = Single::new(&shared, "single");
    let node = live(&single, "one");
    let root = node.mountpoint.clone();
    fill(&root.join("tree"), 1);
    fs::write(root.join("large"), vec![3; 5 << 20]).unwrap();
    run_ok(covey().arg("flush").arg(&root), LIMIT);
    let mut busy = Busy::start(&root);
    let blob = a_blob(&single.at("origin"));
    for _ in 0..2 {
        fs::rename(&blob, single.at("lost")).unwrap();
        let said = run(&mut promote(&single, &root), LIMIT);
        assert!(said.code() == 1 && said.stderr.contains("lacks 1 blobs"), "{said:?}");
        assert!(said.stderr.contains("as it was") && !single.is_nodes(), "{said:?}");
        assert!(!gets(&root.join("flock"), None) && !gets(&root.join("range"), Some(7)));
        fs::rename(single.at("lost"), &blob).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    let said = run(&mut promote(&single, &root), LIMIT);
    assert!(said.status.success() && said.json()["stayed_mounted"] == true, "{said:?} {}", node.log());
    std::thread::sleep(Duration::from_millis(300));
    let done = busy.stop();
    let other = second(&single);
    for place in [&root, &other.mountpoint] {
        sees(place, &done, 0);
    }
    busy.end();
}

/// Promotes a mounted volume through a relay, which passes so many answers on from the moment on when its
/// programs wait.
fn pausing(single: &Single<'_>, node: &Node, gate: &Gate, more: u64) -> Child {
    let log = node.mountpoint.with_extension("log");
    gate.shut_after_begin(more, move || fs::read_to_string(&log).is_ok_and(|log| log.contains(WAIT)));
    let mut command = covey();
    command.arg("promote").arg(&node.mountpoint).arg(single.through(gate));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// What a daemon says when the programs of its mount wait.
const WAIT: &str = "programs wait";

/// The command is killed while programs wait: they go on with what is there then, the volume as it was or the
/// shared one.
#[test]
fn programs_go_on_when_a_promotion_is_killed() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let source = shared.folder.path().join("source");
    fill(&source, 7);
    let all = {
        let single = small(&shared, "clean", &source);
        let (node, gate) = (live(&single, "one"), gate_of(&shared));
        let mut child = pausing(&single, &node, &gate, u64::MAX);
        // The daemon's own requests are counted too, at the end.
        assert!(child.wait().unwrap().success());
        gate.since_begin()
    };
    let (mut as_it_was, mut as_shared) = (0, 0);
    for more in (0..all).filter(|more| *more == 3 || more % 4 == 0 && more + 48 >= all) {
        let single = small(&shared, &format!("m{more}"), &source);
        let (node, gate) = (live(&single, "one"), gate_of(&shared));
        let mut busy = Busy::start(&node.mountpoint);
        let mut child = pausing(&single, &node, &gate, more);
        gate.wait_shut(|| child.try_wait().unwrap().is_some());
        child.kill().ok();
        child.wait().unwrap();
        if more % 8 == 0 {
            // Then the database is away for the daemon too.
            std::thread::sleep(Duration::from_secs(3));
        }
        gate.open();
        let until = Instant::now() + LIMIT;
        while !node.log().contains("programs go on") {
            assert!(Instant::now() < until, "{more} of {all}: {}", node.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        same(&source, &node.mountpoint.join("tree"));
        let done = busy.stop();
        sees(&node.mountpoint, &done, 0);
        match single.is_nodes() {
            true => {
                as_shared += 1;
                let other = Node::with(
                    shared.folder.path(),
                    &single.through(&gate),
                    &format!("{}-second", single.name),
                    &["-o", "locks=fleet"],
                );
                sees(&other.mountpoint, &done, 0);
                assert!(!gets(&other.mountpoint.join("flock"), None), "{more} of {all}");
            }
            false => as_it_was += 1,
        }
        busy.end();
    }
    assert!(as_it_was > 1 && as_shared > 1, "{as_it_was} {as_shared} of {all}");
}

/// A mount without `promotable` has to be free of programs. `--wait` waits for that.
#[test]
fn a_promotion_waits_for_programs_that_use_another_mount() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let single = Single::new(&shared, "single");
    let node = single.mount("one");
    let root = node.mountpoint.clone();
    let open = File::create(root.join("open")).unwrap();
    let mut command = promote(&single, &root);
    let mut child =
        command.args(["--wait", "60"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // The copy is there, so it waits.
    while !single.folder().join("promoting").exists() {
        assert!(child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_secs(1));
    assert!(child.try_wait().unwrap().is_none() && !single.is_nodes());
    drop(open);
    let said = child.wait_with_output().unwrap();
    let done: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert!(said.status.success() && done["stayed_mounted"] == false, "{done}");
    assert!(done["mounted_again"] == true && single.is_nodes(), "{done} {}", node.log());
    assert!(root.join("open").exists());
}

/// A mount that is ended while its programs wait for a promotion: the programs see an error, the daemon ends,
/// and the folder is what the promotion made of it.
#[test]
fn a_mount_can_be_ended_while_its_volume_is_promoted() {
    requires!(Need::Covey);
    let shared = Shared::new(requires_server!(), 0);
    let source = shared.folder.path().join("source");
    fill(&source, 7);
    let single = small(&shared, "single", &source);
    let mut node = live(&single, "one");
    let gate = gate_of(&shared);
    let mut child = pausing(&single, &node, &gate, 0);
    assert!(gate.wait_shut(|| child.try_wait().unwrap().is_some()), "it ended: {}", node.log());
    assert!(node.log().contains(WAIT));
    let place = node.mountpoint.join("tree");
    let waits = std::thread::spawn(move || fs::read_dir(place).map(Iterator::count));
    std::thread::sleep(Duration::from_millis(300));
    assert!(!waits.is_finished(), "it waits");
    node.ask_to_end();
    assert!(waits.join().unwrap().is_err());
    gate.open();
    assert!(child.wait().unwrap().success() && single.is_nodes());
    node.kill();
    let again = single.mount("again");
    same(&source, &again.mountpoint.join("tree"));
}
