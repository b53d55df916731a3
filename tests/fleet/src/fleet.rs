//! A network, a store, a published tree and its nodes.

use std::time::{Duration, Instant};

use crate::net::{Net, Port};
use crate::node::{How, Node};
use crate::readers::{Plan, Readers, Report};
use crate::store::Store;
use crate::tree::Tree;
use crate::wire::Weather;

/// The last part of the first node's address.
const FIRST: u8 = 11;
/// The last part of the first depot's address.
const DEPOT: u8 = 3;
/// The zone of all nodes.
pub const ZONE: &str = "here";
/// The port on which nodes listen.
const LISTEN: u16 = 7400;
/// A read that takes longer than this hangs. It is twice the deadline of a request, since the machine may be
/// busy.
pub const HANG: Duration = Duration::from_secs(60);

/// Nodes that mount the same tree. See the [module](self).
pub struct Fleet {
    /// The nodes, in order. First, so that they end before the things that they depend on.
    pub nodes: Vec<Node>,
    /// The object store.
    pub store: Store,
    /// The mounted tree.
    pub tree: &'static Tree,
    /// The network.
    pub net: Net,
    /// The deadline that its mounts give a request.
    deadline: Duration,
}

impl Fleet {
    /// A fleet of `nodes` nodes that mount a tree, not started.
    pub fn new(tree: &'static Tree, nodes: usize, seed: u64, how: &How) -> Fleet {
        let net = Net::new();
        let store = Store::over(&net, seed, &tree.root());
        let mut fleet = Fleet { nodes: Vec::new(), store, tree, net, deadline: how.deadline() };
        for _ in 0..nodes {
            fleet.add(how);
        }
        fleet
    }

    /// Adds a node, not started.
    pub fn add(&mut self, how: &How) -> &mut Node {
        let number = self.nodes.len();
        let name = format!("n{}", number + 1);
        let port = self.net.port(&name, FIRST + u8::try_from(number).unwrap());
        self.nodes.push(Node::new(&name, self.net.folder(), port, &self.store, how.clone()));
        self.nodes.last_mut().unwrap()
    }

    /// The same, with nodes that know one another: a cluster secret, and every node joins through the first
    /// two.
    pub fn joined(tree: &'static Tree, nodes: usize, seed: u64, how: &How) -> Fleet {
        let mut fleet = Fleet::new(tree, nodes, seed, how);
        let secret = fleet.secret();
        let seeds: Vec<String> = fleet.nodes.iter().take(2).map(|node| listen(&node.port)).collect();
        for node in &mut fleet.nodes {
            let listen = listen(&node.port);
            let words =
                ["--join", &seeds.join(","), "--listen", &listen, "--zone", ZONE, "--secret-file", &secret];
            node.set_how(how.clone().words(&words));
        }
        fleet
    }

    /// The file with the cluster's secret, created if necessary.
    pub fn secret(&self) -> String {
        let path = self.net.folder().join("secret");
        if !path.exists() {
            covey_tests::program::covey_ok(&["fleet".as_ref(), "secret".as_ref(), path.as_os_str()]);
        }
        path.to_str().unwrap().to_owned()
    }

    /// A depot, not started, which joined nodes ask before the origin.
    pub fn depot(&self, name: &str, number: u8, size: &str) -> Node {
        self.depot_at(self.net.port(name, number), name, size)
    }

    /// The same behind a link with delay or loss.
    pub fn depot_behind(&self, name: &str, number: u8, size: &str, weather: Weather) -> Node {
        self.depot_at(self.net.port_behind(name, number, weather, 1), name, size)
    }

    fn depot_at(&self, port: Port, name: &str, size: &str) -> Node {
        let (secret, listen) = (self.secret(), listen(&port));
        let join = self.nodes.first().map(|node| crate::fleet::listen(&node.port)).unwrap_or_default();
        let origin = Store::origin(crate::tree::PREFIX);
        let words = ["depot", "--origin", &origin, "--size", size, "--join", &join, "--listen", &listen];
        let words = [&words[..], &["--zone", ZONE, "--secret-file", &secret]].concat();
        Node::lending(name, self.net.folder(), port, &self.store, &words)
    }

    /// Starts `count` depots, numbered from 3 on, each on the disk or on a tmpfs of the given size. Returns
    /// when they serve, all nodes run, and all nodes know all depots.
    pub fn with_depots(&mut self, count: u8, disk: Option<u64>) -> Vec<Node> {
        let mut depots: Vec<Node> =
            (0..count).map(|n| self.depot(&format!("depot{}", n + 1), DEPOT + n, "1G")).collect();
        self.start();
        for depot in &mut depots {
            disk.iter().for_each(|&bytes| depot.cache_on_tmpfs(bytes));
            depot.spawn();
        }
        for depot in &mut depots {
            depot.await_mounted(HANG).unwrap_or_else(|why| panic!("covey depot: {why}"));
        }
        self.converge(self.nodes.len() as u64 + u64::from(count), HANG);
        depots
    }

    /// Starts all nodes that do not run, at the same time, and waits until they serve.
    pub fn start(&mut self) {
        let mut begun = Vec::new();
        for node in self.nodes.iter_mut().filter(|node| node.pid().is_none()) {
            node.spawn();
            begun.push(node);
        }
        for node in begun {
            node.await_mounted(HANG).unwrap_or_else(|why| panic!("covey mount: {why}"));
        }
    }

    /// Unmounts all nodes, at the same time. Each must end without an error.
    pub fn end(&mut self) {
        std::thread::scope(|scope| {
            for node in &mut self.nodes {
                scope.spawn(|| node.end());
            }
        });
    }

    /// Unmounts these nodes, at the same time, and deletes their caches.
    pub fn end_and_forget(&mut self, nodes: &[usize]) {
        std::thread::scope(|scope| {
            for (_, node) in self.nodes.iter_mut().enumerate().filter(|(number, _)| nodes.contains(number)) {
                scope.spawn(|| {
                    node.end();
                    node.lose_cache();
                });
            }
        });
    }

    /// A plan for reads on all nodes.
    pub fn plan(&self, readers: u64, seed: u64) -> Plan {
        Plan {
            mounts: self.nodes.iter().map(Node::mnt).collect(),
            nodes: (0..self.nodes.len()).collect(),
            readers,
            seed,
            reads: None,
        }
    }

    /// Waits for readers. When one hangs, all nodes are killed and the test fails. It also fails on errors
    /// that no promise allows.
    pub fn join(&mut self, readers: Readers, hint: &str) -> Report {
        let begun = readers.begun;
        match readers.join(HANG) {
            Ok(report) => {
                let gone = |&node: &usize| self.nodes[node].was_gone(begun);
                let gone: Vec<usize> = (0..self.nodes.len()).filter(gone).collect();
                report.must_fail_as_promised(self.deadline, &gone, hint);
                report
            }
            Err(readers) => {
                let so_far = readers.so_far();
                let logs: Vec<String> = self.nodes.iter().map(|node| tail(&node.log())).collect();
                self.nodes.iter_mut().for_each(Node::kill);
                panic!("{hint}: a read hangs\n{so_far:?}\n{}", logs.join("\n--\n"));
            }
        }
    }

    /// Waits until every running node sees so many nodes, and a moment longer, so that trackers learn what
    /// the others have.
    pub fn converge(&self, nodes: u64, patience: Duration) {
        let end = Instant::now() + patience;
        let running: Vec<&Node> = self.nodes.iter().filter(|node| node.pid().is_some()).collect();
        let sees = |node: &&Node| node.status().pointer("/fleet/nodes").and_then(serde_json::Value::as_u64);
        while running.iter().any(|node| sees(node).unwrap_or(0) < nodes) {
            assert!(
                Instant::now() < end,
                "not all nodes see {nodes}: {:?}",
                running.iter().map(sees).collect::<Vec<_>>()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        std::thread::sleep(Duration::from_secs(2));
    }

    /// The sum of a figure, such as `/fleet/peer/bytes`, over all running nodes.
    pub fn sum(&self, pointer: &str) -> u64 {
        let running = self.nodes.iter().filter(|node| node.pid().is_some());
        running.filter_map(|node| node.status().pointer(pointer)?.as_u64()).sum()
    }

    /// Reads on these nodes during `work` and for a moment longer. Every byte must be right, and no read may
    /// take longer than `within`.
    pub fn while_reading(
        &mut self,
        nodes: &[usize],
        seed: u64,
        within: Duration,
        work: impl FnOnce(&mut Fleet),
    ) -> Report {
        let plan = Plan { nodes: nodes.to_vec(), ..self.plan(6, seed) };
        let readers = Readers::start(self.tree, &plan);
        std::thread::sleep(Duration::from_millis(300));
        work(self);
        std::thread::sleep(Duration::from_millis(300));
        let report = self.join(readers, &format!("seed {seed}"));
        report.must_be_true(within, &format!("seed {seed}"));
        report
    }

    /// Reads every byte of every file once, on one node. On a busy machine a read may miss its deadline, so a
    /// read that fails is repeated.
    pub fn warm(&self, node: usize) {
        let (mnt, end) = (self.nodes[node].mnt(), Instant::now() + HANG);
        for file in self.tree.files() {
            let name = file.path.display();
            let bytes = loop {
                match crate::readers::read(&mnt, file, 0, file.size as usize) {
                    Ok(bytes) => break bytes,
                    Err(errno) => assert!(Instant::now() < end, "{name}: still error {errno} after {HANG:?}"),
                }
                std::thread::sleep(Duration::from_millis(100));
            };
            assert_eq!((bytes.len() as u64, file.differs(0, &bytes)), (file.size, None), "{name}");
        }
    }

    /// Looks up every name, without reading contents.
    pub fn names(&self, node: usize) {
        for file in self.tree.files() {
            std::fs::metadata(self.nodes[node].mnt().join(&file.path)).unwrap();
        }
    }

    /// How often these nodes found the fleet slow or failing ([`Node::troubles`]).
    pub fn troubles(&self, nodes: &[usize]) -> u64 {
        nodes.iter().map(|&node| self.nodes[node].troubles()).sum()
    }

    /// Runs the reads of a plan to the end.
    pub fn join_of(&mut self, plan: &Plan) -> Report {
        self.join(Readers::start(self.tree, plan), &format!("seed {}", plan.seed))
    }

    /// Waits until every node reads without an error again after a fault: the back-off from a store or a peer
    /// may last a little longer than the fault.
    pub fn settle(&mut self, patience: Duration) {
        let end = Instant::now() + patience;
        for seed in 0.. {
            let plan = Plan { reads: Some(2), ..self.plan(2 * self.nodes.len() as u64, 900 + seed) };
            let report = self.join_of(&plan);
            report.must_be_true(HANG, "afterwards");
            if report.errors() == 0 {
                return;
            }
            assert!(Instant::now() < end, "still errors {patience:?} after all was healed: {report:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Runs `reads` reads in each of `readers` readers on these nodes. Each must give right bytes within
    /// `within`.
    pub fn must_read(
        &mut self,
        nodes: &[usize],
        readers: u64,
        reads: u64,
        seed: u64,
        within: Duration,
    ) -> Report {
        let hint = format!("COVEY_FLEET_SEED={seed}");
        let plan = Plan { nodes: nodes.to_vec(), reads: Some(reads), ..self.plan(readers, seed) };
        let report = self.join(Readers::start(self.tree, &plan), &hint);
        report.must_be_true(within, &hint);
        let hit: Vec<usize> = nodes.iter().copied().filter(|&node| report.0[node].right > 0).collect();
        report.must_be_whole(hit, &hint);
        assert_eq!(report.right(), readers * reads, "{hint}: {report:?}");
        report
    }

    /// Restores links, store and stopped processes. Nodes that were killed stay dead.
    pub fn heal(&self) {
        self.store.heal();
        for node in &self.nodes {
            node.thaw();
            node.port.heal();
        }
    }

    /// Cuts the connection between nodes `a` and `b`.
    pub fn part(&self, a: usize, b: usize) {
        self.nodes[a].port.lose(&self.nodes[b].port);
        self.nodes[b].port.lose(&self.nodes[a].port);
    }
}

/// Waits until a port has sent this many more bytes.
pub fn until_sent(port: &Port, more: u64) {
    let (before, end) = (port.traffic().sent, Instant::now() + HANG);
    while port.traffic().sent < before + more {
        assert!(Instant::now() < end, "{} sends nothing", port.space());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The address at which a node on this port listens for other nodes.
pub fn listen(port: &Port) -> String {
    format!("{}:{LISTEN}", port.address())
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(15)..].join("\n")
}
