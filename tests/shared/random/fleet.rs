//! The nodes of a trial, the database behind their relays, and what is done to them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use covey_tests::program::{covey, run_ok};
use covey_tests::shared::Node;
use covey_tests::{free_port, scratch};
use servers::{Cluster, Relay, Server};

use super::work::World;

pub const NODES: usize = 3;
/// A limit for what must happen: a recovery, a mount, an answer. Nothing that works takes this long, also on
/// a busy machine.
pub const LIMIT: Duration = Duration::from_secs(180);

/// The lines in which a node says that it has lost something, or that its session ended.
const LOSSES: [&str; 6] = [
    "the session had ended; this node has joined again",
    "are lost: the session ended before they were stored",
    "which this node had acknowledged, could not be stored",
    "which this node had acknowledged, may not be stored",
    "changes that this node had acknowledged may be lost",
    "the database had lost the last",
];

pub enum Engine {
    /// The server, and a standby of it.
    Postgres(Server, Option<Server>),
    Etcd(Cluster),
}

/// A node and its way to the database.
pub struct Member {
    node: Option<Node>,
    name: String,
    address: String,
    /// To each server of the database.
    pub relays: Vec<Relay>,
    /// To the node itself.
    pub peers: Relay,
    listens: u16,
    /// How much of its log was there when the round began.
    read: usize,
}

pub struct Fleet {
    pub engine: Engine,
    /// Which relay of each node leads to the primary.
    pub primary: usize,
    pub members: Vec<Member>,
    pub folder: PathBuf,
    options: String,
}

impl Fleet {
    /// A volume in a new database, mounted by all nodes.
    pub fn new(engine: Engine, options: String) -> Fleet {
        let folder = scratch().keep();
        let ports = match &engine {
            Engine::Postgres(primary, standby) => {
                vec![primary.port(), standby.as_ref().map_or_else(free_port, Server::port)]
            }
            Engine::Etcd(cluster) => (0..3).map(|at| cluster.port(at)).collect(),
        };
        let member = |number: usize| {
            let relays: Vec<Relay> = ports.iter().map(|port| Relay::new(*port)).collect();
            let hosts: Vec<String> =
                relays.iter().map(|relay| format!("127.0.0.1:{}", relay.port())).collect();
            let address = match &engine {
                Engine::Postgres(..) => {
                    format!("postgres://covey@{}/covey?volume=work&sslmode=disable", hosts.join(","))
                }
                Engine::Etcd(_) => format!("etcd://{}/?volume=work", hosts.join(",")),
            };
            let listens = free_port();
            let peers = Relay::new(listens);
            Member { node: None, name: number.to_string(), address, relays, peers, listens, read: 0 }
        };
        let members = (0..NODES).map(member).collect();
        let fleet = Fleet { engine, primary: 0, members, folder, options };
        let origin = format!("file:{}", fleet.origin().display());
        run_ok(covey().args(["format", fleet.address(), "--origin", &origin]), LIMIT);
        fleet
    }

    pub fn origin(&self) -> PathBuf {
        self.folder.join("origin")
    }

    /// An address of the volume.
    pub fn address(&self) -> &str {
        &self.members[0].address
    }

    /// The database, if it is PostgreSQL: the primary and its standby.
    pub fn servers(&mut self) -> (&mut Server, &mut Option<Server>) {
        match &mut self.engine {
            Engine::Postgres(primary, standby) => (primary, standby),
            Engine::Etcd(_) => unreachable!("this fault is one of PostgreSQL"),
        }
    }

    pub fn cluster(&self) -> &Cluster {
        match &self.engine {
            Engine::Etcd(cluster) => cluster,
            Engine::Postgres(..) => unreachable!("this fault is one of etcd"),
        }
    }

    pub fn node(&self, at: usize) -> &Node {
        self.members[at].node.as_ref().unwrap()
    }

    pub fn mountpoint(&self, at: usize) -> PathBuf {
        self.folder.join(format!("mnt-{at}"))
    }

    /// What nodes are mounted with.
    fn arguments(&self, at: usize) -> Vec<String> {
        let Member { listens, peers, .. } = &self.members[at];
        let mut all = vec!["-o".to_owned(), self.options.clone()];
        all.extend(["--listen".to_owned(), format!("127.0.0.1:{listens}")]);
        all.extend(["--advertise".to_owned(), format!("127.0.0.1:{}", peers.port())]);
        all
    }

    /// Mounts a node, again and again until it succeeds.
    pub fn mount(&mut self, at: usize, world: Option<&World>) -> Result<(), String> {
        let (arguments, folder) = (self.arguments(at), self.folder.clone());
        let more: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let member = &mut self.members[at];
        let end = Instant::now() + LIMIT;
        loop {
            let done = match &mut member.node {
                Some(node) => node.try_mount(&more),
                None => Node::try_with(&folder, &member.address, &member.name, &more)
                    .map(|node| member.node = Some(node)),
            };
            let log = match done {
                Ok(()) => break,
                Err(log) => log,
            };
            if Instant::now() > end {
                let last: Vec<&str> = log.lines().rev().take(4).collect();
                return Err(format!("node {at} cannot be mounted: {last:?}"));
            }
            if let Some(node) = &mut member.node {
                node.kill();
            }
            std::thread::sleep(Duration::from_millis(500));
        }
        let Some(world) = world else { return Ok(()) };
        let path = self.mountpoint(at);
        until(&format!("the root of node {at} is opened"), || world.doors[at].open(&path).is_ok())
    }

    pub fn kill(&mut self, at: usize) {
        self.members[at].node.as_mut().unwrap().kill();
    }

    pub fn unmount(&mut self, at: usize) {
        self.members[at].node.as_mut().unwrap().unmount();
    }

    /// Mounts a node that never was there, at the place after the last one.
    pub fn mount_anew(&mut self) {
        let node = Node::with(&self.folder, self.address(), &NODES.to_string(), &["-o", &self.options]);
        self.members[0].node = Some(node);
    }

    /// Another round begins: what was said so far counts no more.
    pub fn mark(&mut self) {
        for member in &mut self.members {
            member.read = member.node.as_ref().map_or(0, |node| node.log().len());
        }
    }

    /// The nodes that have lost something in this round, and say so.
    pub fn weak(&self) -> Vec<bool> {
        let said = |member: &Member| {
            let log = member.node.as_ref().map(Node::log).unwrap_or_default();
            let new = log.get(member.read..).unwrap_or_default().to_owned();
            LOSSES.iter().any(|line| new.contains(line))
        };
        self.members.iter().map(said).collect()
    }

    /// Leads all nodes to the servers that there are now.
    pub fn lead(&mut self) {
        let at = self.primary;
        let (primary, standby) = self.servers();
        let (first, second) = (primary.port(), standby.as_ref().map(Server::port));
        for member in &self.members {
            member.relays[at].lead_to(first);
            if let Some(second) = second {
                member.relays[1 - at].lead_to(second);
            }
        }
    }

    /// Waits until each node writes and reads again.
    pub fn recover(&self) -> Result<(), String> {
        for (at, other) in (0..NODES).flat_map(|at| (0..NODES).map(move |other| (at, other))) {
            let path = |node: usize| self.mountpoint(node).join(format!("probe{at}"));
            let probe = || {
                let text = format!("{at} {other}");
                fs::write(path(at), &text)?;
                fs::File::open(path(at))?.sync_all()?;
                Ok::<_, std::io::Error>(fs::read_to_string(path(other))? == text)
            };
            until(&format!("node {other} reads what node {at} writes"), || matches!(probe(), Ok(true)))?;
        }
        Ok(())
    }

    /// What each node printed last.
    pub fn logs(&self) -> String {
        let last = |member: &Member| {
            let log = member.node.as_ref().map(Node::log).unwrap_or_default();
            let new = log.get(member.read..).unwrap_or_default();
            let lines: Vec<&str> = new.lines().collect();
            format!(
                "node {} in this round:\n{}\n",
                member.name,
                lines[lines.len().saturating_sub(30)..].join("\n")
            )
        };
        self.members.iter().map(last).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for member in &mut self.members {
            member.relays.iter().chain([&member.peers]).for_each(Relay::open);
            member.node = None;
        }
        if std::thread::panicking() {
            eprintln!("kept: {}", self.folder.display());
            return;
        }
        remove(&self.folder);
    }
}

fn remove(folder: &Path) {
    if let Err(error) = fs::remove_dir_all(folder) {
        eprintln!("{} is not removed: {error}", folder.display());
    }
}

/// Waits for something that must happen.
pub fn until(what: &str, mut so: impl FnMut() -> bool) -> Result<(), String> {
    let end = Instant::now() + LIMIT;
    while !so() {
        if Instant::now() > end {
            return Err(format!("not within {LIMIT:?}: {what}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
