//! Opens a shared volume.

use std::sync::Arc;

use api::error::{Failure, Result};
use api::status::Mode;
use base::Deadline;
use blob::Origin;
use fs::handover::Handed;
use fs::volume::{MayDelete, Options, Volume};
use meta::MetaStore;
use parking_lot::Mutex;
use tree::Owner;

use super::parts::shared_parts;
use super::{Node, holder, mode, volume_options};
use crate::fleet::options::FleetOptions;
use crate::limits;
use crate::log;
use crate::options::NodeOptions;
use crate::publisher::volume_id;
use crate::refused::open_failure;
use crate::remote_side::ORIGIN_ASKED;
use crate::shared::away::Begun;
use crate::shared::claiming::UNCLAIMED;
use crate::shared::{Shared, unfinished};
use crate::volume_dir::VolumeDir;

impl Node {
    /// Joins a shared volume. The folder holds what belongs to this node.
    pub fn open_shared(dir: &VolumeDir, fleet: &FleetOptions, options: &NodeOptions) -> Result<Node> {
        if options.frozen {
            return Err(Failure::usage("a shared volume changes, so it cannot be mounted as frozen")
                .next("leave -o frozen out; -o ro refuses changes by this mount"));
        }
        limits::check(limits::For::Change)?;
        let lock = dir.lock(&holder(options))?;
        let only_read = NodeOptions { read_only: true, ..options.clone() };
        let (shared, options) = match Shared::open(dir, fleet, options, true) {
            Err(failure) if failure.code == UNCLAIMED && !options.read_only => {
                // The first is what happens now.
                let next = failure.next.get(1..).unwrap_or_default().join("; ");
                let why = failure.in_one_line();
                log::warn(&format!("the volume is mounted for reading only: {why}; {next}"));
                (Shared::open(dir, fleet, &only_read, false)?, &only_read)
            }
            Err(failure) if failure.code == UNCLAIMED => (Shared::open(dir, fleet, options, false)?, options),
            opened => (opened?, options),
        };
        let opened = open_volume(dir, &shared, options).inspect_err(|_| shared.close())?;
        let (volume, remote_side) = opened;
        let remote_side = remote_side.map(Arc::new);
        let uploads = remote_side.clone();
        let is_pending =
            move |blob: &base::BlobId| uploads.as_ref().is_some_and(|side| side.is_pending(blob));
        let started = shared.start(&volume, Arc::new(is_pending)).and_then(|()| match &options.handed {
            Some(handed) => take_over(dir, &shared, &volume, handed),
            None => Ok(()),
        });
        if let Err(failure) = started {
            let _ = volume.close();
            remote_side.iter().for_each(|side| side.close());
            shared.close();
            return Err(failure);
        }
        let node = Node {
            name: dir.path().display().to_string(),
            dir: Some(dir.clone()),
            volume,
            journal: None,
            rows: None,
            remote_side,
            tree_cache: None,
            tree: None,
            follow: None,
            mode: if options.read_only { mode(options) } else { Mode::Shared },
            opened: base::time::monotonic(),
            lock: Mutex::new(Some(lock)),
            writer: None,
            watch: Mutex::default(),
            shared: Some(shared),
        };
        if node.mode.writes() {
            // Once for each mount. The origin may be slow, and the mount does not need it.
            Deadline::after(ORIGIN_ASKED).scope(|| node.check_shared_owner()).inspect_err(|_| {
                let _ = node.close();
            })?;
            node.remove_remains(dir);
        }
        Ok(node)
    }
}

impl Node {
    /// The failure of a request that began then, as a command is told of it: with the outage of the database
    /// that it met, if this is a shared volume.
    pub(crate) fn explained(&self, begun: Begun, failure: Failure) -> Failure {
        let address = self.dir().and_then(|dir| dir.format().names.as_deref());
        match self.shared().zip(address) {
            Some((shared, address)) => begun.explain(shared, address, failure),
            None => failure,
        }
    }

    /// Removes what a promotion left in the folder when it was interrupted. The mount does not depend on it.
    fn remove_remains(&self, dir: &VolumeDir) {
        if !unfinished::has_remains(dir) {
            return;
        }
        let origin = self.volume.parts().origin.clone();
        let removed = Deadline::after(ORIGIN_ASKED).scope(|| unfinished::remove_remains(dir, &*origin));
        if let Err(failure) = removed {
            log::warn(&format!(
                "what the folder had before the volume was shared is still there: {}; the next mount removes it",
                failure.in_one_line()
            ));
        }
    }
}

/// Tells the other nodes what the kernel of this one uses already, before the promotion is completed and
/// they can mount the volume.
fn take_over(dir: &VolumeDir, shared: &Shared, volume: &Volume, handed: &Handed) -> Result<()> {
    let failed = |error: String| {
        Failure::new("no-database", "the database did not take what programs have open").why(error)
    };
    volume.note_held_orphans().map_err(|error| failed(error.to_string()))?;
    volume.adopt_locks(handed).map_err(|errno| failed(errno.to_string()))?;
    shared.complete(dir)
}

/// Whether the origin still is this volume's. A volume that was restored from a published tree owns it then.
fn is_owner(names: &dyn MetaStore, origin: &dyn Origin, id: [u8; 16]) -> std::result::Result<(), String> {
    let Some(found) = Owner::read(origin).map_err(|error| error.to_string())? else { return Ok(()) };
    let me = crate::publish::shared::owner(names).map_err(|failure| failure.to_string())?;
    if me == Some(found.owner) { Ok(()) } else { Err(tree::publish::not_owner(&found, id)) }
}

type OpenedVolume = (Arc<Volume>, Option<crate::remote_side::RemoteSide>);

fn open_volume(dir: &VolumeDir, shared: &Shared, options: &NodeOptions) -> Result<OpenedVolume> {
    let (parts, remote_side) = shared_parts(dir, shared, options)?;
    let store = parts.store.clone();
    let fsync = options.remote_side.fsync(true);
    let locks = shared.locks(options)?;
    let shared_with = Some(shared.sharing(locks, options.gc_delay));
    let (names, origin) = (store.clone(), parts.origin.clone());
    let (id, claims) = (volume_id(dir), shared.claims());
    let may_delete: MayDelete = Arc::new(move || {
        is_owner(&*names, &*origin, id)?;
        claims.as_ref().map_or(Ok(()), |claims| claims.may_delete(&*origin))
    });
    let mut for_volume =
        Options { names_local: false, shared: shared_with, fsync, ..volume_options(options) };
    for_volume.may_delete = Some(may_delete);
    if let Some(remote_side) = &remote_side {
        for_volume = remote_side.volume_options(&options.remote_side, for_volume);
    }
    match Volume::open(parts, for_volume) {
        Ok(volume) => {
            remote_side.iter().for_each(|remote_side| remote_side.opened(&store));
            Ok((Arc::new(volume), remote_side))
        }
        Err(error) => {
            remote_side.iter().for_each(crate::remote_side::RemoteSide::close);
            Err(open_failure(dir.path(), error))
        }
    }
}
