//! A shared volume whose nodes, database and object store are in networks of their own: what happens if some
//! of them cannot reach others, and if the database's clock jumps.
//!
//! Clients on all nodes create, rename and remove the same names meanwhile. Whatever the partition, the
//! history of what they saw is linearizable, no call lasts longer than the deadline, and when the network is
//! whole again every node works.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use covey_tests::program::{environment, run_ok, wait};
use covey_tests::shared::names;
use covey_tests::{Rng, proc, seeds};
use nets::clock::{self, Clock};
use nets::{Net, Port, Store, covey, requires_nets, say};
use servers::Server;

/// The longest time for a mount, an unmount or a daemon's end.
const PATIENCE: Duration = Duration::from_secs(120);
/// The deadline that the mounts give a request, in seconds, and when one hangs for certain.
const DEADLINE: &str = "deadline=10";
const HANG: Duration = Duration::from_secs(60);
/// How long a session lasts without being renewed.
const SESSION: Duration = Duration::from_secs(15);

fn rounds() -> u64 {
    std::env::var("COVEY_ROUNDS").ok().map_or(1, |text| text.parse().unwrap())
}

/// A database and nodes, each in a namespace of its own.
struct World {
    nodes: Vec<Node>,
    address: String,
    _server: Server,
    _readable: tempfile::TempDir,
    database: Port,
    net: Net,
}

struct Node {
    port: Port,
    mountpoint: PathBuf,
    folder: PathBuf,
    daemon: Option<Child>,
}

impl World {
    /// A volume with its origin in a folder, mounted by so many nodes. None if there is no PostgreSQL.
    fn new(nodes: usize, has_clock: bool) -> Option<(World, Option<Clock>)> {
        let net = Net::new();
        let origin = format!("file:{}", net.folder().join("origin").display());
        World::on(net, nodes, has_clock, &[&origin])
    }

    fn on(net: Net, nodes: usize, has_clock: bool, origin: &[&str]) -> Option<(World, Option<Clock>)> {
        let database = net.port("db", 100);
        // The server's user must be able to read it.
        let readable =
            tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().unwrap();
        let clock = has_clock.then(|| Clock::new(&readable.path().join("clock"))).flatten();
        let space = database.space().to_owned();
        let faked = clock.as_ref().map(|clock| {
            let mut command = Command::new("true");
            clock.give(&mut command);
            let pairs =
                command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
            pairs.collect::<Vec<_>>()
        });
        // `command` is what changes the user, and the server's program. The clock is for that alone: what
        // another user starts cannot use it.
        let wrap = move |command: Command| {
            let mut words: Vec<OsString> = command.get_args().map(OsString::from).collect();
            let program = words.pop().unwrap();
            let mut wrapped = Command::new("nsenter");
            wrapped.arg(format!("--net=/run/netns/{space}")).arg("--").arg(command.get_program());
            wrapped.args(words).args(["env", "LC_ALL=C"]);
            for (name, value) in faked.iter().flatten() {
                wrapped.arg([name.as_os_str(), value.as_os_str()].join("=".as_ref()));
            }
            wrapped.arg(program);
            wrapped
        };
        let server = Server::start_as("10.77.0.100", Some(Box::new(wrap)))?;
        let address =
            format!("postgres://covey@10.77.0.100:{}/covey?volume=work&sslmode=disable", server.port());
        let mut format = covey();
        format.args(["format", &address, "--origin"]).args(origin);
        run_ok(&mut database.wrap(&format), PATIENCE);
        let mut world =
            World { nodes: Vec::new(), address, _server: server, _readable: readable, database, net };
        for number in 0..nodes {
            let port = world.net.port(&format!("n{number}"), 11 + number as u8);
            let at = |what: &str| world.net.folder().join(format!("{what}{number}"));
            fs::create_dir_all(at("mnt")).unwrap();
            let mut node = Node { port, mountpoint: at("mnt"), folder: at("node"), daemon: None };
            node.mount(&world.address);
            world.nodes.push(node);
        }
        Some((world, clock))
    }

    fn path(&self, node: usize, path: &str) -> PathBuf {
        self.nodes[node].mountpoint.join(path)
    }

    fn heal(&self) {
        self.database.heal();
        self.nodes.iter().for_each(|node| node.port.heal());
    }

    /// Whatever happened, within a minute every node changes names, and the others see it.
    fn works_again(&self, seed: u64) {
        let healed = Instant::now();
        for node in 0..self.nodes.len() {
            let name = format!("after{seed}-{node}");
            while let Err(error) = fs::write(self.path(node, &name), &name) {
                assert!(healed.elapsed() < HANG, "node {node} does not work again: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
            for other in 0..self.nodes.len() {
                let read = || fs::read_to_string(self.path(other, &name));
                while !read().is_ok_and(|text| text == name) {
                    assert!(
                        healed.elapsed() < HANG,
                        "node {other} does not see what {node} did: {:?}",
                        read()
                    );
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// A round of clients on all nodes, while `cut` is done and, after a time, undone.
    fn round(&self, seed: u64, cut_for: Duration, cut: impl FnOnce()) {
        let name = format!("round{seed}");
        fs::create_dir(self.path(0, &name)).unwrap();
        let folders: Vec<PathBuf> = (0..self.nodes.len()).map(|node| self.path(node, &name)).collect();
        let began = Instant::now();
        names::round_where(&folders, self.nodes.len() * 2, 14, seed, true, || {
            std::thread::sleep(Duration::from_millis(seed * 31 % 150));
            cut();
            std::thread::sleep(cut_for);
            self.heal();
        });
        say(format_args!("seed {seed}: {:?}", began.elapsed()));
        self.works_again(seed);
    }
}

impl Node {
    fn mount(&mut self, address: &str) {
        let log = File::create(self.mountpoint.with_extension("log")).unwrap();
        let mut command = covey();
        command.arg("mount").arg(address).arg(&self.mountpoint).arg("--cache").arg(&self.folder);
        command.args(["-o", DEADLINE, "-o", "fsync=local"]);
        let mut command = self.port.wrap(&command);
        command.stdin(Stdio::null()).current_dir("/").stdout(log.try_clone().unwrap()).stderr(log);
        let mut daemon = command.spawn().unwrap();
        let began = Instant::now();
        while !proc::is_fuse_mount(&self.mountpoint) {
            let ended = daemon.try_wait().unwrap().is_some();
            assert!(!ended && began.elapsed() < PATIENCE, "covey mount: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        self.daemon = Some(daemon);
    }

    fn log(&self) -> String {
        fs::read_to_string(self.mountpoint.with_extension("log")).unwrap_or_default()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.heal();
        for node in &mut self.nodes {
            let mut umount = covey();
            umount.arg("umount").arg(&node.mountpoint).stdout(Stdio::null()).stderr(Stdio::null());
            let _ = umount.status();
            if let Some(daemon) = &mut node.daemon
                && wait(daemon, Duration::from_secs(20)).is_none()
            {
                daemon.kill().ok();
                daemon.wait().ok();
            }
            let _ = Command::new("umount").args(["-l"]).arg(&node.mountpoint).stderr(Stdio::null()).status();
        }
    }
}

/// Ends the test early if there is no PostgreSQL.
macro_rules! requires_world {
    ($world:expr) => {
        match $world {
            Some(world) => world,
            None => {
                say(format_args!("skipped: lacks PostgreSQL's server"));
                return;
            }
        }
    };
}

#[test]
fn names_are_linearizable_while_a_node_cannot_reach_the_database() {
    requires_nets!();
    let (world, _) = requires_world!(World::new(3, false));
    for seed in seeds(500, rounds()) {
        // One way or both ways, shorter than a session and longer.
        for (n, cut_for) in [Duration::from_secs(4), SESSION + Duration::from_secs(5)].into_iter().enumerate()
        {
            let (seed, node) = (seed * 10 + n as u64, &world.nodes[(seed as usize + n) % 3]);
            world.round(seed, cut_for, || {
                node.port.lose(&world.database);
                if seed % 2 == 0 {
                    world.database.lose(&node.port);
                }
            });
        }
    }
}

#[test]
fn names_are_linearizable_while_nodes_cannot_reach_one_another() {
    requires_nets!();
    let (world, _) = requires_world!(World::new(3, false));
    for seed in seeds(600, rounds()) {
        world.round(seed, Duration::from_secs(15), || {
            for (a, b) in [(0, 1), (1, 2), (2, 0)] {
                world.nodes[a].port.lose(&world.nodes[b].port);
                world.nodes[b].port.lose(&world.nodes[a].port);
            }
        });
        // A node that nothing reaches, and that reaches nothing.
        world.round(seed + 50, SESSION + Duration::from_secs(5), || {
            world.nodes[seed as usize % 3].port.plug(false)
        });
    }
}

/// While a node cannot reach the store, others read from it what it has not uploaded, and its fsync(2) to the
/// store fails and does not hang. Nothing is lost.
#[test]
fn a_node_that_cannot_reach_the_store_loses_nothing() {
    requires_nets!();
    environment(s3server::environment());
    let net = Net::new();
    let store = Store::empty(&net, 7);
    let (origin, endpoint) = (Store::origin("work"), store.endpoint());
    let (world, _) = requires_world!(World::on(net, 2, false, &[&origin, "--endpoint", &endpoint]));
    let bytes = Rng::new(9).bytes(6 << 20);
    let cut = &world.nodes[0].port;
    cut.lose(&store.port);
    let began = Instant::now();
    for n in 0..5 {
        let mut file = File::create(world.path(0, &format!("file{n}"))).unwrap();
        file.write_all(&bytes[n << 20..]).unwrap();
        // On this mount fsync(2) needs the node's disk and the database.
        file.sync_all().unwrap();
    }
    for n in 0..5 {
        assert!(fs::read(world.path(1, &format!("file{n}"))).unwrap() == bytes[n << 20..], "file{n}");
    }
    assert!(began.elapsed() < HANG);
    cut.heal();
    run_ok(covey().arg("flush").arg(&world.nodes[0].mountpoint), PATIENCE);
    world.works_again(1);
    // The node is gone, and its bytes are in the store.
    cut.plug(false);
    for n in 0..5 {
        assert!(
            fs::read(world.path(1, &format!("file{n}"))).unwrap() == bytes[n << 20..],
            "file{n}, from the store"
        );
    }
}

/// The database's clock is set forward and back by an hour. No node shows anything old, and none waits for
/// the hour to pass.
#[test]
fn names_are_linearizable_while_the_databases_clock_jumps() {
    requires_nets!();
    if clock::library().is_none() {
        return say(format_args!("skipped: lacks libfaketime"));
    }
    let (world, clock) = requires_world!(World::new(3, true));
    let clock = clock.unwrap();
    for seed in seeds(700, rounds()) {
        for (n, hours) in [1, 0, -1, 0].into_iter().enumerate() {
            let (seed, node) = (seed * 10 + n as u64, &world.nodes[(seed as usize + n) % 3]);
            let is_cut = n % 2 == 0;
            // On a busy machine, a shorter time is over before any operation has a result.
            let cut_for = if is_cut { SESSION + Duration::from_secs(5) } else { Duration::from_secs(10) };
            world.round(seed, cut_for, || {
                if is_cut {
                    // It cannot renew its session, and does not learn that its session has ended.
                    node.port.lose(&world.database);
                }
                clock.jump(hours * 3600);
            });
        }
    }
}

/// A node that reaches nothing goes on reading from its memory until its session is over. Until then nobody
/// else changes what it reads, also if the database's clock jumps over the end of the session.
#[test]
fn regression_a_clock_that_jumps_ends_no_session_early() {
    requires_nets!();
    if clock::library().is_none() {
        return say(format_args!("skipped: lacks libfaketime"));
    }
    let (world, clock) = requires_world!(World::new(2, true));
    let clock = clock.unwrap();
    fs::create_dir(world.path(0, "dir")).unwrap();
    for (round, hours) in [1, -1].into_iter().enumerate() {
        let (old, new) = (format!("old{round}"), format!("new{round}"));
        let at = |node: usize| world.path(node, &format!("dir/{round}"));
        std::os::unix::fs::symlink(&old, at(0)).unwrap();
        assert_eq!(fs::read_link(at(1)).unwrap().to_str(), Some(&*old));
        // Long enough for the first node to have the lease alone again.
        for _ in 0..40 {
            assert_eq!(fs::read_link(at(0)).unwrap().to_str(), Some(&*old));
            std::thread::sleep(Duration::from_millis(10));
        }
        world.nodes[0].port.plug(false);
        clock.jump(hours * 3600);
        let (began, end) = (Instant::now(), Mutex::new(None));
        let stale = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                // The last instant at which a read began that gave the old value.
                let mut last = None;
                while began.elapsed() < 2 * SESSION && end.lock().unwrap().is_none() {
                    let now = Instant::now();
                    if fs::read_link(at(0)).is_ok_and(|target| target.to_str() == Some(&*old)) {
                        last = Some(now);
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                std::thread::sleep(Duration::from_millis(300));
                let now = Instant::now();
                let is_old = fs::read_link(at(0)).is_ok_and(|target| target.to_str() == Some(&*old));
                if is_old { Some(now) } else { last }
            });
            let fresh = world.path(1, "dir/fresh");
            while let Err(error) = fs::remove_file(&fresh).or(Ok(())).and_then(|()| {
                std::os::unix::fs::symlink(&new, &fresh)?;
                fs::rename(&fresh, at(1))
            }) {
                assert!(began.elapsed() < HANG, "the other node cannot go on: {error}");
                std::thread::sleep(Duration::from_millis(20));
            }
            let changed = Instant::now();
            *end.lock().unwrap() = Some(changed);
            say(format_args!("{hours} hours: changed after {:?}", changed - began));
            reader.join().unwrap().filter(|last| *last > changed)
        });
        assert_eq!(stale, None, "the old value was read after it was replaced");
        world.heal();
        world.works_again(round as u64);
    }
}
