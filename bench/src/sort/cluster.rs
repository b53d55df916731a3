//! The nodes of a sort: each has a volume of its own, on one object store. What it wrote for the others it
//! publishes. What the others wrote for it, it mounts. Every part is read by one node, so no node can get it
//! from another, and the mounts join no fleet.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use base::time::monotonic;
use nets::{Net, Port, Store};
use serde_json::Value;

use super::Args;
use super::phases::Share;
use super::worker::Worker;
use crate::Result;
use crate::process::cpu_seconds;

/// The name under which a node publishes its parts.
const NAME: &str = "shuffle";
/// The last part of the first node's address.
const FIRST: u8 = 11;
/// No command takes this long.
const PATIENCE: Duration = Duration::from_secs(600);

/// The nodes. What is first is dropped first: the workers and mounts end before the network.
pub struct Cluster {
    nodes: Vec<Node>,
    store: Store,
    net: Net,
}

struct Node {
    worker: Worker,
    mounts: Vec<PathBuf>,
    port: Port,
    folder: PathBuf,
}

impl Cluster {
    /// Formats and mounts a volume on each node and starts its worker.
    ///
    /// # Errors
    /// A command failed.
    pub fn start(args: &Args, records: u64, parts: usize) -> Result<Cluster> {
        nets::tree::use_keys();
        let net = Net::new();
        let store = Store::empty(&net, 1);
        let mut cluster = Cluster { nodes: Vec::new(), store, net };
        let count = usize::from(args.nodes);
        for node in 0..count {
            let name = format!("n{}", node + 1);
            let port = cluster.net.port(&name, FIRST + node as u8);
            let folder = cluster.net.folder().join(&name);
            let from = |other| if other == node { "mnt/shuffle".to_owned() } else { format!("from-{other}") };
            let from: Vec<PathBuf> = (0..count).map(|other| folder.join(from(other))).collect();
            from.iter().try_for_each(std::fs::create_dir_all)?;
            let mnt = folder.join("mnt");
            // The folder of its own parts is on the volume, which covers this one.
            std::fs::remove_dir(mnt.join("shuffle"))?;
            let share = Share { form: args.form, node, nodes: count, records, parts, mnt: mnt.clone(), from };
            let mut format = nets::covey();
            format.arg("format").arg(folder.join("volume")).args(["--origin", &origin(node)]);
            format.args(["--endpoint", &cluster.store.endpoint()]);
            finish(&mut port.wrap(&format))?;
            let mut mount = nets::covey();
            mount.args(["mount", "-d"]).arg(folder.join("volume")).arg(&mnt);
            finish(&mut port.wrap(&mount))?;
            let worker = Worker::start(&port, &share)?;
            cluster.nodes.push(Node { worker, mounts: vec![mnt], port, folder });
        }
        if let Some(mbit) = args.mbit {
            cluster.nodes.iter().for_each(|node| node.port.shape(Some(mbit * 1_000_000)));
        }
        Ok(cluster)
    }

    /// All nodes do a step at the same time. Returns their answers, in order, each with its seconds.
    ///
    /// # Errors
    /// One of them failed.
    pub fn step(&mut self, step: &str) -> Result<Vec<(Value, f64)>> {
        self.nodes.iter_mut().try_for_each(|node| node.worker.begin(step))?;
        self.nodes.iter_mut().map(|node| node.worker.answer()).collect()
    }

    /// Each node publishes its parts and mounts those of all others. Returns the seconds of each node.
    ///
    /// # Errors
    /// A command failed.
    pub fn exchange(&mut self) -> Result<Vec<f64>> {
        let published = self.on_each(|_, node| {
            let mut publish = nets::covey();
            publish.arg("publish").arg(node.folder.join("mnt/shuffle")).arg(NAME);
            finish(&mut node.port.wrap(&publish))
        })?;
        let count = self.nodes.len();
        let mounted = self.on_each(|at, node| {
            for other in (0..count).filter(|&other| other != at) {
                let mut mount = nets::covey();
                mount.args(["mount", "-d", &format!("{}@{NAME}", origin(other))]);
                mount.arg(node.folder.join(format!("from-{other}")));
                mount.args(["--endpoint", &self.store.endpoint(), "--cache"]);
                mount.arg(node.folder.join(format!("cache-{other}")));
                finish(&mut node.port.wrap(&mount))?;
            }
            Ok(())
        })?;
        for at in 0..count {
            let node = &mut self.nodes[at];
            let others = (0..count).filter(|&other| other != at);
            node.mounts.extend(others.map(|other| node.folder.join(format!("from-{other}"))));
        }
        Ok(published.iter().zip(mounted).map(|(publish, mount)| publish + mount).collect())
    }

    /// Returns the seconds that the work took on each node.
    fn on_each(&self, work: impl Fn(usize, &Node) -> Result<()> + Sync) -> Result<Vec<f64>> {
        // An error is passed on as text, because it cannot go from one thread to another as it is.
        let said = std::thread::scope(|scope| {
            let work = &work;
            let run = |(at, node)| {
                move || {
                    let begun = monotonic();
                    work(at, node).map_err(|error| error.to_string())?;
                    Ok::<_, String>(begun.elapsed().as_secs_f64())
                }
            };
            let threads: Vec<_> = self.nodes.iter().enumerate().map(|it| scope.spawn(run(it))).collect();
            threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
        });
        said.into_iter().map(|done| Ok(done.map_err(|_| "a thread panicked")??)).collect()
    }

    /// Processor time of all daemons and workers so far, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        // Each mount is a process in its node's namespace, and so is the worker.
        let pids = |node: &Node| {
            let listed = Command::new("ip").args(["netns", "pids", node.port.space()]).output();
            String::from_utf8_lossy(&listed.map(|listed| listed.stdout).unwrap_or_default()).into_owned()
        };
        let of =
            |node: &Node| pids(node).lines().filter_map(|pid| pid.parse().ok()).map(cpu_seconds).sum::<f64>();
        self.nodes.iter().map(of).sum()
    }

    /// Bytes that the store sent to the nodes.
    pub fn bytes_from_store(&self) -> u64 {
        self.nodes.iter().map(|node| self.store.given_to(&node.port)).sum()
    }

    /// Unmounts everything.
    ///
    /// # Errors
    /// A mount does not end.
    pub fn end(mut self) -> Result<()> {
        for node in &mut self.nodes {
            for mount in std::mem::take(&mut node.mounts).into_iter().rev() {
                let mut umount = nets::covey();
                umount.args(["umount", "--force"]).arg(mount);
                finish(&mut node.port.wrap(&umount))?;
            }
        }
        Ok(())
    }
}

/// Where a node's volume keeps its blobs.
fn origin(node: usize) -> String {
    Store::origin(&format!("sort-{node}"))
}

/// Runs a command to its end.
///
/// # Errors
/// What it printed, if it failed.
fn finish(command: &mut Command) -> Result<()> {
    let done = nets::run(command, PATIENCE);
    match done.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}\n{}", done.status, done.stderr).into()),
    }
}
