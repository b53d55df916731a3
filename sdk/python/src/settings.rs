//! The arguments of a tree: what is opened, and how. A pickle holds these, and which publication it is.

use std::path::PathBuf;

use api::error::{Failure, Result};
use node::fleet::options::{FleetOptions, TlsOptions};
use node::frozen::Named;
use node::frozen::trust::Accept;
use node::options::{MountOptions, NodeOptions};
use node::origins::Reach;
use node::reader::Reader;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The keyword arguments, named as the options of `covey mount`.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `ORIGIN@NAME`.
    pub tree: String,
    /// The folder of caches.
    pub cache_dir: Option<PathBuf>,
    /// The only key whose signature is accepted.
    pub key: Option<String>,
    /// Accept a record that is older than one that was seen.
    pub accept_older: bool,
    /// The address of the store.
    pub endpoint: Option<String>,
    /// The bucket's region.
    pub region: Option<String>,
    /// Options as after `-o` of `covey mount`.
    pub options: Option<String>,
    /// A node of the fleet to join.
    pub join: Option<String>,
    /// The address for the fleet.
    pub listen: Option<String>,
    /// The file with the fleet's secret.
    pub secret_file: Option<PathBuf>,
    /// The zone of this node.
    pub zone: Option<String>,
    /// Certificate, key and certificate of the CA.
    pub tls: [Option<PathBuf>; 3],
    /// Threads that read many ranges.
    pub threads: usize,
}

impl Settings {
    /// Opens the tree, or this publication of its name. A `second` process of several has a free port of its
    /// own in the fleet.
    pub fn open(&self, second: bool, sequence: Option<u64>) -> Result<Reader> {
        let mut named = Named::parse(&self.tree)?.ok_or_else(|| {
            Failure::usage(format!("{} is not a published tree", self.tree))
                .next("write ORIGIN@NAME, such as s3://BUCKET/PREFIX@NAME or file:/srv/blobs@NAME")
        })?;
        named.sequence = sequence.or(named.sequence);
        let accept = Accept { key: self.key.clone(), accept_older: self.accept_older };
        let reach = Reach { endpoint: self.endpoint.clone(), region: self.region.clone() };
        let named = named.accepting(&accept)?.reached(&reach, self.cache_dir.as_deref())?;
        let named = named.in_fleet(&self.fleet(second)?)?;
        let words: Vec<String> = self.options.iter().cloned().collect();
        let mount = MountOptions::parse(&words)?;
        let options = NodeOptions {
            deadline: mount.deadline,
            access: mount.access,
            remote_side: mount.remote_side,
            beside: true,
            ..NodeOptions::reading("python")
        };
        Reader::open(&named, &options)
    }

    fn fleet(&self, second: bool) -> Result<FleetOptions> {
        let listen = self.listen.as_deref().map(|text| {
            text.parse::<std::net::SocketAddr>().map_err(|_| {
                Failure::usage(format!("{text} is no address to listen at")).next("write one like 10.0.0.5:0")
            })
        });
        let mut listen = listen.transpose()?;
        if let (true, Some(address)) = (second, &mut listen) {
            address.set_port(0);
        }
        let [tls_cert, tls_key, tls_ca] = self.tls.clone();
        Ok(FleetOptions {
            join: self.join.clone(),
            listen,
            secret_file: self.secret_file.clone(),
            zone: self.zone.clone(),
            tls: TlsOptions { tls_cert, tls_key, tls_ca },
            ..FleetOptions::default()
        })
    }

    /// The keyword arguments, without the tree.
    pub fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let text = |path: &Option<PathBuf>| path.as_ref().map(|path| path.as_os_str().to_owned());
        let dict = PyDict::new(py);
        dict.set_item("cache_dir", text(&self.cache_dir))?;
        dict.set_item("key", &self.key)?;
        dict.set_item("accept_older", self.accept_older)?;
        dict.set_item("endpoint", &self.endpoint)?;
        dict.set_item("region", &self.region)?;
        dict.set_item("options", &self.options)?;
        dict.set_item("join", &self.join)?;
        dict.set_item("listen", &self.listen)?;
        dict.set_item("secret_file", text(&self.secret_file))?;
        dict.set_item("zone", &self.zone)?;
        for (name, path) in ["tls_cert", "tls_key", "tls_ca"].iter().zip(&self.tls) {
            dict.set_item(name, text(path))?;
        }
        dict.set_item("threads", self.threads)?;
        Ok(dict)
    }
}
