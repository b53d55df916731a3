//! An etcd cluster, and nodes that mount one shared volume whose names are in it.

use std::path::PathBuf;
use std::time::Duration;

use servers::Cluster;

use crate::program::{covey, run_ok};
use crate::say;

use super::Node;

const LIMIT: Duration = Duration::from_secs(120);

/// A volume, its nodes, and the cluster that holds its names.
pub struct Volume {
    /// The nodes that mount it.
    pub nodes: Vec<Node>,
    /// Its address in the cluster.
    pub address: String,
    /// What belongs to it and its nodes.
    pub folder: tempfile::TempDir,
    /// The cluster.
    pub cluster: Cluster,
}

impl Volume {
    /// A new volume, mounted by so many nodes; none if etcd is not installed.
    pub fn new(nodes: usize) -> Option<Volume> {
        let Some(cluster) = Cluster::start() else {
            say(format_args!("skipped: lacks etcd"));
            return None;
        };
        let hosts = cluster.hosts();
        Some(Volume::through(cluster, &hosts, nodes))
    }

    /// The same with the cluster behind these servers, `HOST:PORT,HOST:PORT`.
    pub fn through(cluster: Cluster, hosts: &str, nodes: usize) -> Volume {
        let folder = crate::scratch();
        let address = format!("etcd://{hosts}/?volume=work");
        let origin = format!("file:{}", folder.path().join("origin").display());
        run_ok(covey().args(["format", &address, "--origin", &origin]), LIMIT);
        let nodes = (0..nodes).map(|n| Node::new(folder.path(), &address, &n.to_string())).collect();
        Volume { nodes, address, folder, cluster }
    }

    /// A path on a node.
    pub fn path(&self, node: usize, path: &str) -> PathBuf {
        self.nodes[node].mountpoint.join(path)
    }

    /// A path beside the mounts.
    pub fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The address of another volume.
    pub fn with(&self, name: &str) -> String {
        self.address.replace("volume=work", &format!("volume={name}"))
    }
}
