//! Databases behind one address: a primary with a standby that takes over, and a pooler.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run, run_ok};
use covey_tests::shared::Shared;
use covey_tests::{Need, requires, requires_server, say};
use servers::Server;

use super::publish::{LIMIT, Published, fill, publish, same};

/// Writes files with fsync(2) until told to stop. Errors are allowed: they say that nothing is certain.
pub struct Writer {
    pub acknowledged: Mutex<Vec<String>>,
    done: AtomicUsize,
    pub errors: AtomicUsize,
}

impl Writer {
    pub fn new() -> Writer {
        Writer { acknowledged: Mutex::default(), done: AtomicUsize::new(0), errors: AtomicUsize::new(0) }
    }

    pub fn run(&self, folder: &Path, stop: &AtomicBool) {
        for n in 0.. {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let name = format!("file{n}");
            let write = || {
                let mut file = fs::File::create(folder.join(&name))?;
                file.write_all(content(&name).as_bytes())?;
                file.sync_all()
            };
            match write() {
                Ok(()) => {
                    self.acknowledged.lock().unwrap().push(name);
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => {
                    self.errors.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
        }
    }

    /// Waits for this many more files.
    pub fn wait_for(&self, more: usize) {
        let (aim, end) = (self.done.load(Ordering::Relaxed) + more, Instant::now() + LIMIT);
        while self.done.load(Ordering::Relaxed) < aim {
            assert!(
                Instant::now() < end,
                "no file is written any more: {} errors",
                self.errors.load(Ordering::Relaxed)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

pub fn content(name: &str) -> String {
    // Some are kept in the names, some are not.
    name.repeat(1 + name.len() % 3 * 100)
}

/// Tells the writers to stop, also when the test fails.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The primary is killed while nodes write, and its standby is promoted. The mounts recover by themselves,
/// and have everything that was acknowledged.
#[test]
fn a_promoted_standby_has_all_that_was_acknowledged() {
    requires!(Need::Covey);
    let primary = requires_server!();
    let standby = primary.standby();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", standby.port(), primary.port());
    let shared = Shared::made(primary, &hosts, 2, &[]);
    let stop = AtomicBool::new(false);
    let writers = [Writer::new(), Writer::new()];
    let folders: Vec<PathBuf> = (0..2).map(|node| shared.path(node, &format!("of{node}"))).collect();
    folders.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        for (writer, folder) in writers.iter().zip(&folders) {
            let stop = &stop;
            scope.spawn(move || writer.run(folder, stop));
        }
        writers.iter().for_each(|writer| writer.wait_for(20));
        shared.server.kill();
        standby.promote();
        writers.iter().for_each(|writer| writer.wait_for(20));
        drop(stopping);
    });
    for (writer, folder) in writers.iter().zip(["of0", "of1"]) {
        let names = writer.acknowledged.lock().unwrap();
        say(format_args!("{} files, {} errors", names.len(), writer.errors.load(Ordering::Relaxed)));
        for (node, name) in (0..2).flat_map(|node| names.iter().map(move |name| (node, name))) {
            let text = fs::read_to_string(shared.path(node, folder).join(name)).unwrap();
            assert!(text == content(name), "{folder}/{name} on node {node}");
        }
    }
    // New mounts and commands find the promoted server by the same address.
    let node = shared.add_of(&shared.address, "late");
    same(&shared.path(0, ""), &node.mountpoint);
    assert_eq!(run(covey().args(["fsck", &shared.address]), LIMIT).code(), 0);
    let doctor = run(covey().args(["doctor", &shared.address]), LIMIT);
    assert!(doctor.stdout.contains("cannot take over"), "{doctor:?}");
}

/// A standby that lacks the last moments takes the place of its primary. The nodes store their changes again.
/// They did not store the rows of their packs, so other nodes got EIO, and in the end the bytes were deleted.
#[test]
fn regression_bytes_that_a_lagging_standby_did_not_know_are_there() {
    requires!(Need::Covey);
    let primary = requires_server!();
    let standby = primary.standby();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby.port());
    let shared = Shared::made(primary, &hosts, 2, &[]);
    let at = |node: usize, name: &str| shared.path(node, "of0").join(name);
    fs::create_dir(shared.path(0, "of0")).unwrap();
    fs::write(at(0, "before"), "1").unwrap();
    run_ok(covey().arg("flush").arg(shared.path(0, "")), LIMIT);
    // From here on the standby lacks what is confirmed.
    shared.server.sql("alter system reset synchronous_standby_names; select pg_reload_conf()");
    standby.down();
    let bytes = |name: &str, len: usize| -> Vec<u8> { name.bytes().cycle().take(len).collect() };
    let files = [("large", 3 << 20), ("small", 4000), ("other", 5000)];
    for (name, len) in files {
        let mut file = fs::File::create(at(0, name)).unwrap();
        file.write_all(&bytes(name, len)).unwrap();
        file.sync_all().unwrap();
    }
    shared.server.kill();
    standby.up();
    standby.promote();
    let end = Instant::now() + LIMIT;
    // Another node may look at the folder before its owner has noticed.
    let look = || _ = fs::read_dir(shared.path(1, "of0")).map(Iterator::count);
    look();
    while !shared.nodes[0].log().contains("confirmed to this node; it has them again") {
        assert!(Instant::now() < end, "{}", shared.nodes[0].log());
        if shared.nodes[0].log().contains("session had ended") {
            // By the standby's rows, it was renewed too long ago.
            return say(format_args!("skipped: lacks a machine on which this takes less than a session"));
        }
        look();
        std::thread::sleep(Duration::from_millis(100));
    }
    let is_there = |node: &Path, name: &str, len: usize| {
        fs::read(node.join("of0").join(name)).is_ok_and(|found| found == bytes(name, len))
    };
    let all_there = |node: &Path| {
        for (name, len) in files {
            let end = Instant::now() + LIMIT;
            while !is_there(node, name, len) {
                assert!(Instant::now() < end, "{}: {name}: {}", node.display(), shared.nodes[0].log());
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    };
    all_there(&shared.path(1, ""));
    all_there(&shared.path(0, ""));
    // The packs are blobs then.
    run_ok(covey().arg("flush").arg(shared.path(0, "")), LIMIT);
    all_there(&shared.add_of(&shared.address, "late").mountpoint);
    assert_eq!(run(covey().args(["fsck", &shared.address]), LIMIT).code(), 0);
}

/// Lets a server go on when the test ends, also if it fails.
struct Frozen<'a>(&'a Server);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        self.0.freeze(false);
    }
}

/// The primary hangs, and its standby is promoted. When the old primary goes on, it still takes connections,
/// and shows what was. No node asks it any more.
#[test]
fn a_primary_that_hung_is_not_asked_any_more() {
    requires!(Need::Covey);
    let primary = requires_server!();
    let standby = primary.standby();
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", primary.port(), standby.port());
    let shared = Shared::made(primary, &hosts, 2, &[]);
    // A busy node may miss the renewal of its session. It joins again, and has errors until then.
    let patiently = |work: &dyn Fn() -> std::io::Result<()>| {
        let end = Instant::now() + LIMIT;
        loop {
            match work() {
                Err(error) if error.raw_os_error() == Some(libc::EIO) && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                done => break done,
            }
        }
    };
    // Several connections of each node.
    let look = |name: &str| {
        std::thread::scope(|scope| {
            for thread in 0..24 {
                let path = shared.path(thread % 2, name);
                scope.spawn(move || {
                    let looked = patiently(&|| fs::metadata(&path).map(drop));
                    looked.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                });
            }
        });
    };
    fs::write(shared.path(0, "before"), "1").unwrap();
    look("before");
    let frozen = Frozen(&shared.server);
    shared.server.freeze(true);
    standby.promote();
    for node in 0..2 {
        let path = shared.path(node, &format!("after{node}"));
        patiently(&|| fs::write(&path, "1")).expect("a node does not use the promoted server");
    }
    drop(frozen);
    for n in 0..10 {
        let name = format!("new{n}");
        let written = patiently(&|| fs::write(shared.path(n % 2, &name), "1"));
        written.unwrap_or_else(|error| panic!("{name}: {error}: {}", shared.nodes[n % 2].log()));
        look(&name);
    }
    ["before", "after0", "after1"].iter().for_each(|name| look(name));
}

/// A pooler in transaction mode, with fewer connections than the nodes have. It ends with this.
struct Pooler {
    child: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Pooler {
    fn new(server: &Server) -> Pooler {
        let folder = tempfile::Builder::new().prefix("covey-pool-").tempdir_in("/tmp").unwrap();
        let port = covey_tests::free_port();
        let users = folder.path().join("users");
        fs::write(&users, "\"covey\" \"\"\n").unwrap();
        let config = folder.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = trust\nauth_file = {}\npool_mode = transaction\n\
             default_pool_size = 4\nmax_client_conn = 100\n",
            server.port(),
            users.display()
        );
        fs::write(&config, text).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder.path(), mode).unwrap();
        // It does not run as root. If the test is killed, the kernel ends it.
        let mut command = Command::new("setpriv");
        if rustix::process::geteuid().is_root() {
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
        }
        command.args(["--pdeathsig", "KILL", "pgbouncer", "-q"]).arg(&config);
        command.stdin(Stdio::null()).stdout(Stdio::null()).current_dir("/");
        let pooler = Pooler { child: command.spawn().unwrap(), port, _folder: folder };
        let end = Instant::now() + LIMIT;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < end, "pgbouncer does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        pooler
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn a_pooler_in_transaction_mode_may_stand_between() {
    requires!(Need::Covey, Need::Program("pgbouncer"), Need::Program("setpriv"));
    let server = requires_server!();
    let pooler = Pooler::new(&server);
    let shared = Shared::through(server, pooler.port, 2);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let folder = shared.path(client % 2, &format!("of{client}"));
            scope.spawn(move || fill(&folder, client as u64));
        }
    });
    same(&shared.path(0, ""), &shared.path(1, ""));
    publish(&shared.path(1, ""), "nightly");
    assert_eq!(run(covey().args(["fsck", &shared.address]), LIMIT).code(), 0);
    run_ok(covey().args(["locks", &shared.address]), LIMIT);
    let name = format!("{}@nightly", shared.origin());
    let published = Published::mount(&name, shared.folder.path().join("tree"));
    same(&shared.path(0, ""), &published.mountpoint);
}
