//! `covey csi`: a driver of the Container Storage Interface.

use std::net::IpAddr;
use std::path::PathBuf;

use api::caller;
use api::error::{Failure, Result};
use csi::{Bound, Driver, Options, Services};
use node::{limits, log, metrics, notify, signals};
use serde::Serialize;

use crate::term::Term;

/// Serves volumes to Kubernetes and other container orchestrators (CSI); stays until SIGTERM
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey csi --endpoint unix:///csi/csi.sock --node-id NODE --state /run/covey-csi\n  \
    covey csi --endpoint unix:///csi/csi.sock --node-id NODE --state DIR --node-only --metrics 127.0.0.1:9810\n  \
    covey csi --endpoint unix:///csi/csi.sock --node-id NODE --state DIR --folder /var/lib/covey-volumes\n\n\
    Mounts are processes of their own: they go on when the driver ends, and the next finds them.\n\
    Passwords and keys come from the orchestrator's secrets. docs/KUBERNETES.md has manifests, and\n\
    the parameters of a StorageClass."
)]
pub struct Args {
    /// The unix socket of the driver, which its callers' helpers know: unix:///csi/csi.sock
    #[arg(long, value_name = "unix:///PATH", env = "CSI_ENDPOINT", hide_env = true)]
    endpoint: String,
    /// The driver's name, as classes name it. Two drivers of one cluster have two names
    #[arg(long, value_name = "NAME", default_value = csi::NAME)]
    name: String,
    /// The node's name: in Kubernetes the name of the Node
    #[arg(long, value_name = "NAME")]
    node_id: String,
    /// The folder for records, secrets and mounts; in memory, so that secrets are on no disk
    #[arg(long, value_name = "DIR")]
    state: PathBuf,
    /// The folder for caches and for what is not uploaded yet: on a disk [default: cache in the state folder]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Offer exclusive volumes of this node, which are made in this folder
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Where the other nodes of a fleet reach this one
    #[arg(long, value_name = "ADDRESS")]
    address: Option<IpAddr>,
    /// Only stage and publish volumes
    #[arg(long, conflicts_with = "controller_only")]
    node_only: bool,
    /// Only make and remove volumes
    #[arg(long)]
    controller_only: bool,
    /// Serve figures for Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<String>,
    /// Let other machines read them
    #[arg(long, requires = "metrics")]
    metrics_public: bool,
}

#[derive(Serialize)]
struct Serving {
    endpoint: PathBuf,
    node: String,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    if caller::euid() != 0 {
        return Err(Failure::new("not-permitted", "only root can mount volumes for pods")
            .next("run it as root; in Kubernetes with securityContext.privileged: true"));
    }
    signals::block();
    limits::check(limits::For::Daemon)?;
    limits::leave_no_core();
    let page = args.metrics.as_deref().map(|at| metrics::bind(at, args.metrics_public)).transpose()?;
    Bound::check(&args.endpoint)?;
    let driver = Driver::open(Options {
        name: args.name.clone(),
        node: args.node_id.clone(),
        state: args.state.clone(),
        cache: args.cache.clone(),
        folder: args.folder.clone(),
        address: args.address,
        services: match (args.node_only, args.controller_only) {
            (true, _) => Services::Node,
            (_, true) => Services::Controller,
            _ => Services::All,
        },
    })?;
    let bound = Bound::new(driver, &args.endpoint)?;
    if let Some(page) = page {
        let driver = bound.driver();
        page.serve_page(move || driver.page())?;
    }
    let server = bound.serve()?;
    let line = format!("serves CSI calls at {}", server.path().display());
    notify::ready(&line);
    if term.is_json() {
        let (endpoint, node) = (server.path().to_owned(), args.node_id.clone());
        term.result(&Serving { endpoint, node }, String::new);
    } else {
        log::line(&line);
    }
    let signal = signals::next();
    log::line(&format!("signal {signal}: ending; mounts that volumes use go on"));
    notify::stopping();
    drop(server);
    Ok(0)
}
