//! What a daemon answers to commands.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use api::control::{ImportOrder, Request, Serve, Tick, Wire};
use api::error::{Failure, Result};
use api::heat::Heat;
use api::status::{Endpoint, Served, Status};
use api::watch::Wish;
use fuse::Session;
use parking_lot::Mutex;
use serde_json::Value;
use std::path::Path;

use crate::again;
use crate::heat::Heating;
use crate::mount::{Mount, Slot};
use crate::publish::Wanted;
use crate::shared::away::{self, Begun};
use crate::watch;
use crate::{import, log, metrics, trash};

/// What the daemon serves while it is mounted.
pub(super) struct Daemon {
    pub(super) mount: Arc<Slot>,
    pub(super) session: Arc<Session>,
    /// Set when the S3 endpoint serves, which is after the mount does.
    pub(super) s3: Mutex<Option<Endpoint>>,
    /// The URL of its dashboard, as soon as it is served.
    pub(super) ui: Mutex<Option<String>>,
    /// Set if accesses are counted.
    pub(super) heating: Mutex<Option<Heating>>,
    /// Whether the volume can be replaced while programs use the mount.
    pub(super) is_replaceable: bool,
    /// Set when the volume is to be replaced: see [`super::replacing`].
    pub(super) is_leaving: AtomicBool,
}

impl Daemon {
    pub(super) fn node(&self) -> Arc<Mount> {
        self.mount.get()
    }

    pub(super) fn requests(&self) -> u64 {
        self.session.counts().iter().map(|(_, count)| count).sum()
    }

    fn heat(&self, path: Option<PathBuf>, top: usize) -> Result<Heat> {
        let heating = self.heating.lock();
        let heating = heating.as_ref().ok_or_else(|| {
            Failure::usage("this mount does not count accesses")
                .next("mount it with --heat")
                .next("or count from now on, while a command runs: covey watch mount MOUNTPOINT")
        })?;
        heating.answer(path, top)
    }

    pub(super) fn status(&self) -> Result<Status> {
        let node = self.node();
        let mut status = node.status()?;
        status.served = Some(Served {
            mountpoint: self.session.mountpoint().to_owned(),
            pid: std::process::id(),
            uptime_seconds: node.age().as_secs(),
            requests: self.requests(),
            requests_by_kind: self
                .session
                .counts()
                .into_iter()
                .map(|(kind, n)| (kind.to_owned(), n))
                .collect(),
            waiting: self.session.waiting() as u64,
            replies_lost: self.session.replies_lost(),
            transport: self.session.transport().to_string(),
            s3: self.s3.lock().clone(),
            ui: self.ui.lock().clone(),
        });
        Ok(status)
    }

    /// The failure of a request, with what the node knows of it.
    fn explained(&self, begun: Begun) -> impl Fn(Failure) -> Failure {
        let node = self.node();
        move |failure| match node.as_node() {
            Some(node) => node.explained(begun, failure),
            None => failure,
        }
    }

    fn answer(&self, request: Request, tick: &mut dyn FnMut(Tick)) -> Result<Value> {
        let node = self.node();
        let value = match request {
            Request::Status => serde_json::to_value(self.status()?),
            Request::Metrics => serde_json::to_value(metrics::text(&node, &self.session)),
            Request::Info { path, list } => {
                serde_json::to_value(node.node()?.info(&PathBuf::from(path), list)?)
            }
            Request::Hint { path } => serde_json::to_value(node.node()?.hint(&PathBuf::from(path))?),
            Request::Publish { path, name, afresh, keep } => {
                let wanted = Wanted { path: PathBuf::from(path), name, afresh, keep };
                serde_json::to_value(again::for_caller(&node, wanted, tick)?)
            }
            Request::Unpublish { name } => {
                node.node()?.unpublish(&name)?;
                serde_json::to_value(())
            }
            Request::Published { all } => serde_json::to_value(node.node()?.published(all)?),
            Request::Gc => serde_json::to_value(node.node()?.gc(tick)?),
            Request::Flush => serde_json::to_value(node.flush()?),
            Request::Settle { seconds } => {
                serde_json::to_value(node.node()?.settle(seconds.map(Duration::from_secs), tick)?)
            }
            Request::CopyNames { address } => {
                serde_json::to_value(node.node()?.copy_names(Path::new(&address), tick)?)
            }
            Request::HandOver => serde_json::to_value(self.hand_over(&node)?),
            Request::Evict { to } => serde_json::to_value(node.node()?.evict(to)?),
            Request::Warm { paths, depot } => {
                let paths: Vec<PathBuf> = paths.into_iter().map(PathBuf::from).collect();
                serde_json::to_value(node.node()?.warm(&paths, depot, tick)?)
            }
            Request::WarmReads { reads } => serde_json::to_value(node.node()?.warm_reads(&reads, tick)?),
            Request::Clone { from, to } => {
                let cloned = node.node()?.clone_tree(&PathBuf::from(from), &PathBuf::from(to), tick)?;
                // The kernel still believes that the new name does not exist. It also caches the folder's
                // listing and times.
                let notifier = self.session.notifier();
                notifier.inval_entry(cloned.parent, &cloned.name);
                notifier.inval_inode(cloned.parent, 0, 0);
                notifier.settle();
                serde_json::to_value(cloned.summary)
            }
            Request::Quotas { path } => serde_json::to_value(node.node()?.quotas(&PathBuf::from(path))?),
            Request::SetQuota { path, bytes, files } => {
                serde_json::to_value(node.node()?.set_quota(&PathBuf::from(path), bytes, files, tick)?)
            }
            Request::RemoveQuota { path } => {
                node.node()?.remove_quota(&PathBuf::from(path), tick)?;
                serde_json::to_value(())
            }
            Request::Trash { order } => trash::serve(&node, &self.session, order, tick)?,
            Request::Peers => serde_json::to_value(node.peers()?),
            Request::Holders { path } => serde_json::to_value(node.node()?.holders(&PathBuf::from(path))?),
            Request::Heat { path, top } => {
                serde_json::to_value(self.heat(path.map(PathBuf::from), top as usize)?)
            }
            Request::Watch { .. } | Request::Import(_) => {
                return Err(Failure::usage("this is not answered at once"));
            }
        };
        value.map_err(|error| Failure::new("io", "the answer cannot be written").why(error.to_string()))
    }
}

impl Serve for Daemon {
    fn serve(&self, request: Request, tick: &mut dyn FnMut(Tick)) -> Result<Value> {
        let explained = self.explained(Begun::now(away::may_change(&request)));
        self.answer(request, tick).map_err(explained)
    }

    fn asked_by_member(&self, user: u32, request: &Request) {
        match request {
            Request::Publish { name, .. } => {
                log::line(&format!("user {user}, a member of the group that may, publishes {name}"));
            }
            Request::Unpublish { name } => {
                log::line(&format!("user {user}, a member of the group that may, unpublishes {name}"));
            }
            _ => {}
        }
    }

    fn watch(&self, wish: &Wish, wire: &Wire<'_>) -> Result<Value> {
        let explained = self.explained(Begun::now(false));
        watch::serve(&self.node(), &self.session, wish, wire).map_err(explained)
    }

    fn list_trash(&self, wire: &Wire<'_>) -> Result<Value> {
        let explained = self.explained(Begun::now(false));
        let kept = trash::list(&self.node(), wire).map_err(explained)?;
        serde_json::to_value(kept)
            .map_err(|error| Failure::new("io", "the answer cannot be written").why(error.to_string()))
    }

    fn import(&self, order: &ImportOrder, wire: &Wire<'_>) -> Result<Value> {
        let explained = self.explained(Begun::now(true));
        let imported = import::serve(&self.node(), &self.session, order, wire).map_err(explained)?;
        serde_json::to_value(imported)
            .map_err(|error| Failure::new("io", "the answer cannot be written").why(error.to_string()))
    }
}
