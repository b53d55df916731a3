//! eBPF programs on real traffic: requests of real connections over veth links, real mounts, real cgroups.
//! They need root and a kernel with BTF.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, covey_ok};
use covey_tests::{Need, Volume, requires};
use nets::fleet::listen;
use nets::{Fleet, How, Net, Tree, requires_nets};
use watch::Event;
use watch::driver::{self, DriverWatch};
use watch::mount::{Heat, MountWatch};
use watch::redirect::{Redirect, Redirected};
use watch::status::{OF_MOUNT, status};
use watch::store::{StoreWatch, Target};

const PORT: u16 = 9000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether this process can use all programs. If not, says why.
fn usable() -> bool {
    match status().into_iter().find_map(|row| row.why) {
        Some(why) => nets::say(format_args!("skipped: {why}")),
        None => return true,
    }
    false
}

fn soon(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A web server that counts its requests. It answers each with 200, and `/missing` with 404.
struct Server {
    requests: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    address: SocketAddr,
}

impl Server {
    fn start(address: SocketAddr) -> Server {
        let listener = TcpListener::bind(address).unwrap();
        let (requests, ends) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let server = Server { requests, ends, address: listener.local_addr().unwrap() };
        let (requests, ends) = (server.requests.clone(), server.ends.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                let requests = requests.clone();
                std::thread::spawn(move || serve(stream.unwrap(), &requests));
            }
        });
        server
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Closes the socket that listens.
    fn end(&self) {
        self.ends.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: TcpStream, requests: &AtomicU64) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut stream = stream;
    while let Some(Ok(first)) = lines.next() {
        // The headers end at an empty line.
        while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
        requests.fetch_add(1, Ordering::SeqCst);
        let status = if first.contains("/missing") { "404 Not Found" } else { "200 OK" };
        // In one segment, as servers send it.
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

/// Sends requests over one connection, each after the answer to the one before.
fn ask(server: SocketAddr, paths: impl Iterator<Item = (String, Option<u64>)>) {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut answer = [0; 512];
    for (path, range) in paths {
        let range = range.map(|from| format!("Range: bytes={from}-\r\n")).unwrap_or_default();
        let head = format!("GET {path} HTTP/1.1\r\nHost: store\r\n{range}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        assert!(stream.read(&mut answer).unwrap() > 0);
    }
}

#[test]
fn every_request_of_ten_thousand_is_counted() {
    requires_nets!();
    if !usable() {
        return;
    }
    let net = Net::new();
    let (store, client) = (net.port("store", 2), net.port("client", 11));
    let address: SocketAddr = (store.address(), PORT).into();
    let server = store.inside(|| Server::start(address));
    let heat = Heat { hot: 1_000_000, ..Heat::default() };
    let target = Target { interface: "eth0".into(), port: PORT, cgroup: None, heat };
    client.inside(|| {
        let watch = StoreWatch::attach(&target).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..10_u64 {
                // Each asks for every tenth object in ranges, and misses some.
                let path = move |n: u64| match n % 100 {
                    0 => ("/bucket/missing".to_owned(), None),
                    n if n % 10 == 1 => (format!("/bucket/{n}"), Some((thread + 1) << 20)),
                    n => (format!("/bucket/{n}"), None),
                };
                scope.spawn(move || {
                    for connection in 0..4 {
                        ask(address, (0..250).map(|n| path(connection * 250 + n)));
                    }
                });
            }
        });
        let totals = watch.totals().unwrap();
        assert_eq!(server.requests(), 10_000);
        assert_eq!((totals.requests, totals.responses, totals.get), (10_000, 10_000, 10_000), "{totals:?}");
        assert_eq!((totals.keepalive, totals.ranges), (10_000 - 40, 1_000), "{totals:?}");
        assert_eq!(totals.status, [9_900, 0, 100, 0], "{totals:?}");
        assert_eq!((totals.split, totals.lost_chunks), (0, 0), "{totals:?}");
        let chunks = watch.chunks().unwrap();
        assert_eq!(chunks.iter().map(|chunk| chunk.requests).sum::<u64>(), 10_000);
        assert_eq!(chunks.iter().filter(|chunk| chunk.path == "/bucket/11").count(), 10, "a MiB each");
        assert_eq!(watch.latency().unwrap().count(), 10_000);
    });
    server.end();
}

#[test]
fn requests_of_other_machines_are_counted_in_the_driver() {
    requires_nets!();
    if !usable() {
        return;
    }
    let net = Net::new();
    let (served, client) = (net.port("served", 2), net.port("client", 11));
    let address: SocketAddr = (served.address(), PORT).into();
    let server = served.inside(|| Server::start(address));
    let target = driver::Target { interface: "eth0".into(), served_port: PORT, asked_port: 0 };
    let watch = served.inside(|| DriverWatch::attach(&target).unwrap());
    client.inside(|| ask(address, (0..200).map(|n| (format!("/bucket/{n}"), None))));
    // The same from this machine itself does not come through the driver.
    served.inside(|| ask(address, (0..3).map(|n| (format!("/bucket/{n}"), None))));
    let totals = watch.totals().unwrap();
    assert_eq!(server.requests(), 203);
    assert_eq!((totals.requests, totals.get, totals.put), (200, 200, 0), "{totals:?}");
    let clients = watch.clients().unwrap();
    assert_eq!(
        clients.iter().map(|it| (it.address, it.requests)).collect::<Vec<_>>(),
        [(client.address(), 200)]
    );
    server.end();
}

/// What every node has of a file, as a node says it: the name of the node that has a row, and what it has.
fn holders(file: &Path) -> BTreeMap<String, Option<u64>> {
    let rows =
        covey_ok(&["peers".as_ref(), "--holding".as_ref(), file.as_os_str(), "--json".as_ref()]).json();
    let row = |row: &serde_json::Value| {
        assert!(row["asked"].as_u64() > Some(1), "{row}");
        let has_all = row["held"].as_u64() == row["asked"].as_u64();
        let address = row["address"].as_str().unwrap().to_owned();
        (address, row["held"].as_u64().map(|held| if has_all { 100 } else { held }))
    };
    rows.as_array().unwrap().iter().map(row).collect()
}

#[test]
fn the_driver_says_what_a_stopped_node_has() {
    requires_nets!();
    if !usable() {
        return;
    }
    let how = How::default().with("deadline=8");
    let mut fleet = Fleet::joined(Tree::of_tests(), 3, 5, &how);
    // The first node answers in its driver, and the others by their daemons.
    let how = fleet.nodes[0].how().clone().words(&["--xdp", "eth0"]);
    fleet.nodes[0].set_how(how);
    fleet.start();
    fleet.converge(3, nets::fleet::HANG);
    let address = |n: usize| listen(&fleet.nodes[n].port);
    let largest = fleet.tree.large().max_by_key(|file| file.size).unwrap();
    let at = |n: usize| fleet.nodes[n].mnt().join(&largest.path);
    for node in [0, 2] {
        soon("the whole file is kept", || {
            let read = fs::read(at(node)).is_ok();
            let said = holders(&at(1));
            read && said.get(&address(node)) == Some(&Some(100))
        });
    }
    let said = holders(&at(1));
    assert_eq!(said.len(), 3, "{said:?}");
    assert!(said[&address(1)] < Some(100), "this node read nothing: {said:?}");
    // On a busy machine an answer may come too late, and after some seconds a stopped node is declared dead.
    let end = Instant::now() + PATIENCE;
    loop {
        [0, 2].iter().for_each(|&node: &usize| fleet.nodes[node].freeze());
        let said = holders(&at(1));
        [0, 2].iter().for_each(|&node: &usize| fleet.nodes[node].thaw());
        if (said.get(&address(0)), said.get(&address(2))) == (Some(&Some(100)), Some(&None)) {
            break;
        }
        assert!(Instant::now() < end, "{said:?}");
        soon("both answer again", || {
            let said = holders(&at(1));
            [0, 2].iter().all(|&node| said.get(&address(node)) == Some(&Some(100)))
        });
    }
    let status = fleet.nodes[0].status();
    assert!(status["fleet"]["in_driver"]["answered"].as_u64() > Some(0), "{status}");
    assert_eq!(status["fleet"]["in_driver"]["is_full"], false);
    fleet.end();
}

#[test]
fn reads_that_the_page_cache_answers_are_counted() {
    requires!(Need::Covey, Need::Root);
    if !usable() {
        return;
    }
    let volume = Volume::new();
    let mounted = volume.mount();
    let file = mounted.path().join("file");
    fs::write(&file, vec![7; 3 << 20]).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let mut watch = MountWatch::attach(mounted.path(), Heat { hot: 5, half_life: Duration::ZERO }).unwrap();
    assert_eq!(watch.unseen(), [""; 0]);
    // The whole file in one call fills the page cache.
    fs::read(&file).unwrap();
    let before = watch.chunks().unwrap();
    let open = fs::File::open(&file).unwrap();
    let mut page = [0; 4096];
    for _ in 0..20 {
        std::os::unix::fs::FileExt::read_exact_at(&open, &mut page, (1 << 20) + 4096).unwrap();
    }
    let reads = |chunks: &[watch::mount::Chunk], chunk| {
        chunks.iter().filter(|it| it.chunk == chunk).map(|it| it.reads).sum::<u64>()
    };
    let after = watch.chunks().unwrap();
    assert_eq!(reads(&after, 1) - reads(&before, 1), 20, "{after:?}");
    assert_eq!(reads(&after, 2), reads(&before, 2), "the others were not read");
    let mut hot = Vec::new();
    watch.events().drain(&mut |event| hot.push(event));
    assert!(hot.iter().any(|event| matches!(event, Event::Hot { chunk: 1, count: 5, .. })), "{hot:?}");
    // A process that ends without fsync is named. One that syncs is not.
    for (name, sync) in [("loses", ""), ("keeps", " conv=fsync")] {
        let script =
            format!("exec dd if=/dev/zero of={} bs=64k count=4{sync}", mounted.path().join(name).display());
        let done = Command::new("sh").args(["-c", &script]).stderr(Stdio::null()).status().unwrap();
        assert!(done.success());
    }
    let mut unsynced = Vec::new();
    soon("the end of dd is seen", || {
        watch.events().drain(&mut |event| {
            if let Event::Unsynced { name, files, pages, .. } = event {
                unsynced.push((name, files, pages));
            }
        });
        !unsynced.is_empty()
    });
    assert_eq!(unsynced, [("dd".to_owned(), 1, 64)]);
    drop((watch, open));
    mounted.umount();
}

/// A cgroup of version 2, removed at the end.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Option<Cgroup> {
        let roots = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(Path::new);
        let root = roots.into_iter().find(|root| root.join("cgroup.controllers").exists())?;
        let path = root.join(format!("covey-test-{}", std::process::id()));
        fs::create_dir(&path).ok()?;
        Some(Cgroup(path))
    }

    /// What a program prints that runs in this cgroup and asks a server.
    fn fetch(&self, from: SocketAddr) -> String {
        let script = format!(
            "echo $$ > {}/cgroup.procs && exec python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())' http://{from}/x",
            self.0.display()
        );
        let done = Command::new("sh").args(["-c", &script]).output().unwrap();
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let end = Instant::now() + PATIENCE;
        while fs::remove_dir(&self.0).is_err() && self.0.exists() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn connections_of_a_cgroup_go_to_the_gateway_while_it_listens() {
    if !rustix::process::geteuid().is_root() || covey_tests::need::which("python3").is_none() {
        return nets::say(format_args!("skipped: lacks root or python3"));
    }
    if !usable() {
        return;
    }
    let Some(cgroup) = Cgroup::new() else {
        return nets::say(format_args!("skipped: lacks a cgroup of version 2 that can be written to"));
    };
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    let (store, gateway) = (Server::start(any), Server::start(any));
    let redirect = Redirect::attach(&cgroup.0, store.address, gateway.address).unwrap();
    assert_eq!(cgroup.fetch(store.address), "ok");
    assert_eq!((store.requests(), gateway.requests()), (0, 1));
    // A program that is not in the cgroup is left alone.
    ask(store.address, std::iter::once(("/x".to_owned(), None)));
    assert_eq!((store.requests(), gateway.requests()), (1, 1));
    // Nothing listens: the store answers.
    gateway.end();
    soon("the gateway is gone", || TcpStream::connect(gateway.address).is_err());
    assert_eq!(cgroup.fetch(store.address), "ok");
    assert_eq!((store.requests(), gateway.requests()), (2, 1));
    assert_eq!(redirect.counts().unwrap(), Redirected { redirected: 1, direct: 1 });
    drop(redirect);
    assert_eq!(cgroup.fetch(store.address), "ok");
    assert_eq!(store.requests(), 3);
    store.end();
}

#[test]
fn a_killed_command_leaves_no_program() {
    requires_nets!();
    if !usable() {
        return;
    }
    let net = Net::new();
    let port = net.port("client", 11);
    let attached = |direction| {
        port.inside(|| {
            let found = aya::programs::SchedClassifier::query_tcx("eth0", direction);
            found.unwrap().1.len()
        })
    };
    let mut command = covey();
    command.args(["watch", "store", "eth0", "--port", "9000", "--interval", "200ms"]);
    let mut child = port.wrap(&command).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    use aya::programs::TcAttachType::{Egress, Ingress};
    assert_eq!((attached(Egress), attached(Ingress)), (1, 1));
    child.kill().unwrap();
    child.wait().unwrap();
    soon("no program is attached", || attached(Egress) == 0 && attached(Ingress) == 0);
}

/// A daemon that counts accesses holds its programs itself, so they end with it.
#[test]
fn a_killed_daemon_leaves_no_program() {
    requires!(Need::Covey, Need::Root);
    if !usable() {
        return;
    }
    let volume = Volume::new();
    let folder = covey_tests::scratch();
    let at = folder.path().join("at");
    fs::create_dir(&at).unwrap();
    let mut command = covey();
    command.args(["mount", "--heat"]).arg(&volume.source).arg(&at);
    let mut daemon = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let pid = daemon.id();
    let own = || {
        let files = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
        let text = files.filter_map(|file| fs::read_to_string(file.path()).ok()).collect::<String>();
        let ids = text.lines().filter_map(|line| line.strip_prefix("prog_id:"));
        ids.map(|id| id.trim().parse::<u32>().unwrap()).collect::<BTreeSet<_>>()
    };
    soon("the programs are loaded", || own().len() >= OF_MOUNT.len());
    let programs = own();
    let there = || {
        let loaded = aya::programs::loaded_programs().flatten();
        loaded.filter(|program| programs.contains(&program.id())).count()
    };
    assert_eq!(there(), programs.len());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    soon("no program is left", || there() == 0);
    covey().arg("umount").arg(&at).output().unwrap();
}
