//! The service Node: volumes become bind mounts on this machine.
//!
//! ```text
//!   stage     record ─► mount of the source ─► bind mount of the volume's folder at the staging place
//!   publish   target in the record ─► the same folder at the target
//!   unpublish, unstage: the same backwards; the source ends with the last record that names it
//! ```
//!
//! Each step is written down before it is made. A repeated call makes what is missing.

use std::path::{Path, PathBuf};

use fuse::mount::Life;
use node::log;
use tonic::Status;

use crate::Driver;
use crate::class::{Use, wanted};
use crate::mount::{Held, Source};
use crate::names;
use crate::places;
use crate::proto::identity::Empty;
use crate::proto::node::{
    NodeExpandRequest, NodeExpandResponse, NodeInfo, PublishRequest, StageRequest, StatsRequest,
    StatsResponse, UnpublishRequest, UnstageRequest, Usage, can, unit,
};
use crate::proto::{Capability, Texts, Topology, controller::Capabilities};
use crate::records::{Staged, Target};
use crate::refuse::{self, Answer};
use crate::secrets::Secrets;

impl Driver {
    pub(crate) fn node_capabilities(&self, _: Empty) -> Answer<Capabilities> {
        let all = [can::STAGE_UNSTAGE_VOLUME, can::GET_VOLUME_STATS, can::EXPAND_VOLUME];
        Ok(Capabilities { capabilities: all.map(Capability::of).to_vec() })
    }

    pub(crate) fn node_info(&self, _: Empty) -> Answer<NodeInfo> {
        let node_id = self.options.node.clone();
        Ok(NodeInfo { node_id, max_volumes_per_node: 0, accessible_topology: self.topology() })
    }

    /// Where exclusive volumes of this node are reached. None without such volumes.
    pub(crate) fn topology(&self) -> Option<Topology> {
        let segments = Texts::from([(self.segment(), self.options.node.clone())]);
        self.options.folder.as_ref().map(|_| Topology { segments })
    }

    pub(crate) fn stage(&self, call: StageRequest) -> Answer<Empty> {
        names::check_id(&call.volume_id)?;
        let secrets = Secrets::take(call.secrets)?;
        let staging = places::check("staging_target_path", &call.staging_target_path)?;
        let wish = Use::of(&call.volume_context);
        let kind = match &wish {
            Ok(Use::Tree(_)) => "tree",
            Ok(Use::Exclusive { .. }) => "exclusive",
            _ => "volume",
        };
        let wanted = wanted(call.volume_capability.as_ref(), kind)?;
        let (source, inner) = self.source(wish?, &wanted.options)?;
        let _alone = self.alone(&call.volume_id)?;
        let new = Staged {
            id: call.volume_id,
            staging,
            source,
            inner,
            read_only: wanted.read_only,
            targets: Vec::new(),
        };
        let before: Option<Staged> = self.staged.find(&new.id)?;
        let is_new = before.is_none();
        let staged = match before {
            Some(before) if !is_same(&before, &new) => {
                return Err(refuse::exists(
                    format!("the volume {} is staged at {} otherwise", before.id, before.staging.display()),
                    "unstage it first",
                ));
            }
            Some(before) => before,
            None => {
                self.staged.put(&new.id, &new)?;
                new
            }
        };
        // An earlier record stays: it may be kept because this node has bytes that are in no origin yet.
        self.stage_it(&staged, &secrets).inspect_err(|_| {
            if is_new {
                self.give_up(&staged);
            }
        })?;
        Ok(Empty {})
    }

    /// What is mounted for a volume, and the folder in it.
    fn source(&self, wish: Use, options: &str) -> Answer<(Source, PathBuf)> {
        Ok(match wish {
            Use::Tree(tree) => (Source::tree(tree, options), PathBuf::new()),
            Use::Shared { address, path } => (Source::shared(&address, options), path),
            Use::Exclusive { name } => {
                let folder = self.exclusive(&name)?;
                if !folder.join("covey.json").is_file() {
                    return Err(refuse::not_found(
                        format!("the exclusive volume {name} is not on the node {}", self.options.node),
                        "use it on the node that it was made on",
                    ));
                }
                (Source::exclusive(&folder, options), PathBuf::new())
            }
        })
    }

    /// The folder of an exclusive volume.
    pub(crate) fn exclusive(&self, name: &str) -> Answer<PathBuf> {
        debug_assert!(names::is_part(name));
        match &self.options.folder {
            Some(folder) => Ok(folder.join(name)),
            None => Err(refuse::precondition(
                format!("the node {} has no folder for exclusive volumes", self.options.node),
                "start its driver with --folder DIR",
            )),
        }
    }

    /// Makes what a record says: the mount of the source, and the volume at its staging place.
    pub(crate) fn stage_it(&self, staged: &Staged, secrets: &Secrets) -> Answer<Held> {
        let held = self.mounts.hold(&staged.source, secrets)?;
        self.show(staged, held.place(), &staged.staging, false)?;
        Ok(held)
    }

    /// Undoes the first stage of a volume, which failed, if nothing of the volume is at its places.
    fn give_up(&self, staged: &Staged) {
        let is_free = |place: &Path| places::at(place).is_none_or(|there| !places::is_ours(&there));
        if staged.targets.is_empty() && is_free(&staged.staging) {
            let undone =
                self.staged.remove(&staged.id).and_then(|()| self.mounts.release(&staged.source.key()));
            if let Err(status) = undone {
                log::warn(&format!("what is left of {} stays: {}", staged.id, status.message()));
            }
        }
    }

    /// Shows the volume's folder at a place, unless it is there already.
    pub(crate) fn show(&self, staged: &Staged, mount: &Path, place: &Path, read_only: bool) -> Answer<()> {
        let source =
            places::at(mount).ok_or_else(|| Status::unavailable("the mount has gone; next: try again"))?;
        if let Some(there) = places::at(place) {
            let shown = Path::new("/").join(&staged.inner);
            let is_same = there.dev == source.dev && there.root == shown;
            // A mount of what cannot change is read-only itself.
            if places::is_ours(&there) && is_same && there.read_only == (read_only || source.read_only) {
                return Ok(());
            }
            let is_dead = places::is_ours(&there) && places::life(place) == Some(Life::Dead);
            if !is_dead {
                return Err(refuse::exists(
                    format!(
                        "something else, or the same with other access, is mounted at {}",
                        place.display()
                    ),
                    "unpublish and unstage what is there",
                ));
            }
            places::clear(place)?;
        }
        places::make(place)?;
        places::bind(mount, &staged.inner, place, read_only).map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::EXDEV) => refuse::not_found(
                format!("the volume {} has no folder /{} there", staged.source.what, staged.inner.display()),
                "check the attribute path; it must be a folder, and no part of it a symbolic link",
            ),
            _ => refuse::io(format!("cannot mount at {}", place.display()), &error),
        })
    }

    pub(crate) fn unstage(&self, call: UnstageRequest) -> Answer<Empty> {
        names::check_id(&call.volume_id)?;
        let staging = places::check("staging_target_path", &call.staging_target_path)?;
        let _alone = self.alone(&call.volume_id)?;
        let record: Option<Staged> = self.staged.find(&call.volume_id)?;
        let record = record.filter(|staged| staged.staging == staging);
        if let Some(staged) = &record {
            let is_published =
                |target: &&Target| places::at(&target.path).is_some_and(|there| places::is_ours(&there));
            if let Some(target) = staged.targets.iter().find(is_published) {
                return Err(refuse::precondition(
                    format!("the volume {} is published at {}", staged.id, target.path.display()),
                    "unpublish it first",
                ));
            }
        }
        if places::at(&staging).is_some_and(|there| places::is_ours(&there)) {
            places::clear(&staging)?;
        }
        if let Some(staged) = record {
            self.mounts.leave(&staged)?;
        }
        Ok(Empty {})
    }

    pub(crate) fn publish(&self, call: PublishRequest) -> Answer<Empty> {
        names::check_id(&call.volume_id)?;
        let secrets = Secrets::take(call.secrets)?;
        let target = places::check("target_path", &call.target_path)?;
        let staging = places::check("staging_target_path", &call.staging_target_path)?;
        let capability = wanted(call.volume_capability.as_ref(), "volume")?;
        let _alone = self.alone(&call.volume_id)?;
        let staged: Option<Staged> = self.staged.find(&call.volume_id)?;
        let Some(mut staged) = staged.filter(|staged| staged.staging == staging) else {
            let what = format!("the volume {} is not staged at {}", call.volume_id, staging.display());
            return Err(refuse::precondition(what, "call NodeStageVolume first"));
        };
        let read_only = call.readonly || capability.read_only || staged.read_only;
        let held = self.stage_it(&staged, &secrets)?;
        if let Some(known) = staged.targets.iter().find(|known| known.path == target) {
            if known.read_only != read_only {
                let what = format!("{} is published with other access", target.display());
                return Err(refuse::exists(what, "unpublish it first"));
            }
        } else {
            staged.targets.push(Target { path: target.clone(), read_only });
            self.staged.put(&staged.id, &staged)?;
        }
        self.show(&staged, held.place(), &target, read_only)?;
        Ok(Empty {})
    }

    pub(crate) fn unpublish(&self, call: UnpublishRequest) -> Answer<Empty> {
        names::check_id(&call.volume_id)?;
        let target = places::check("target_path", &call.target_path)?;
        let _alone = self.alone(&call.volume_id)?;
        let record: Option<Staged> = self.staged.find(&call.volume_id)?;
        let is_known =
            record.as_ref().is_some_and(|staged| staged.targets.iter().any(|known| known.path == target));
        let there = places::at(&target);
        if there.as_ref().is_some_and(places::is_ours) {
            places::clear(&target)?;
        }
        if is_known || there.is_some_and(|there| places::is_ours(&there)) {
            places::remove(&target)?;
        }
        if let Some(mut staged) = record.filter(|_| is_known) {
            staged.targets.retain(|known| known.path != target);
            self.staged.put(&staged.id, &staged)?;
        }
        Ok(Empty {})
    }

    pub(crate) fn stats(&self, call: StatsRequest) -> Answer<StatsResponse> {
        names::check_id(&call.volume_id)?;
        let place = self.place_of(&call.volume_id, &call.volume_path)?;
        let (room, _) = self.room(&place)?;
        Ok(StatsResponse { usage: room.to_vec() })
    }

    pub(crate) fn node_expand(&self, call: NodeExpandRequest) -> Answer<NodeExpandResponse> {
        names::check_id(&call.volume_id)?;
        let place = self.place_of(&call.volume_id, &call.volume_path)?;
        // The controller has changed the quota, and the nodes see it.
        let (_, total) = self.room(&place)?;
        Ok(NodeExpandResponse { capacity_bytes: total })
    }

    /// A place where a volume is staged or published.
    fn place_of(&self, id: &str, text: &str) -> Answer<PathBuf> {
        if text.is_empty() {
            return Err(refuse::invalid("the call has no volume_path", "send a path where the volume is"));
        }
        // Any other path is looked at by nothing, whatever it is.
        let place = places::resolved(Path::new(text));
        let staged: Option<Staged> = self.staged.find(id)?;
        let is_known = staged.is_some_and(|staged| {
            staged.staging == place || staged.targets.iter().any(|target| target.path == place)
        });
        match is_known && places::at(&place).is_some_and(|there| places::is_ours(&there)) {
            true => Ok(place),
            false => Err(refuse::not_found(
                format!("the volume {id} is not at {}", place.display()),
                "name a path where it is staged or published",
            )),
        }
    }

    /// The space at a place, and its size. A quota is the size of what is below it.
    fn room(&self, place: &Path) -> Answer<([Usage; 2], i64)> {
        match places::life(place) {
            Some(Life::Lives(room)) => {
                let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
                let (total, used) = (number(room.size), number(room.size.saturating_sub(room.free)));
                let bytes = Usage { available: number(room.available), total, used, unit: unit::BYTES };
                let inodes = Usage { available: 0, total: 0, used: number(room.inodes), unit: unit::INODES };
                Ok(([bytes, inodes], total))
            }
            Some(Life::Silent) => Err(Status::unavailable(format!(
                "the daemon of the mount at {} does not answer; next: try again",
                place.display()
            ))),
            _ => Err(Status::internal(format!(
                "the daemon of the mount at {} is gone; next: restart the pod, or publish the volume again",
                place.display()
            ))),
        }
    }
}

/// Whether a stage is the same as an earlier one.
fn is_same(before: &Staged, new: &Staged) -> bool {
    Staged { targets: Vec::new(), ..before.clone() } == *new
}
