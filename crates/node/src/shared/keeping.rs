//! Copies of packs between the nodes of a shared volume: the messages that make and delete them, and reads of
//! what a node that is gone has synced.
//!
//! No row says which node has which copy: a row would make each fsync(2) a commit more. A node asks all
//! others when the owner of a pack does not answer, and remembers which one had it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ::fs::shared::{FromOwner, Keep, KeepRange, SessionId, owner};
use api::error::{Context, Failure, Result};
use base::PackNo;
use blob::Kept;
use cache::KeptPacks;
use meta::store::StoreError;
use net::frame::{self, KeepAsk, PACK_MAX, PackAsk, PackPart};
use net::id::NodeId;
use net::transport::Peer;
use parking_lot::Mutex;

use super::peers::Peers;
use crate::options::NodeOptions;
use crate::volume_dir::VolumeDir;

/// How long a node may take to keep some ranges. After that another one is asked.
const WAIT: Duration = Duration::from_secs(3);
/// How long nodes may take to say whether they have a copy.
const ASK: Duration = Duration::from_secs(5);

/// What is remembered of nodes with copies.
#[derive(Default)]
pub(super) struct Keepers {
    /// Which node had copies of a node's packs.
    of: Mutex<HashMap<u32, u32>>,
    /// The ids of nodes. The number of a node never becomes another's.
    ids: Mutex<HashMap<u32, NodeId>>,
}

/// Opens the folder of copies of other nodes' packs.
pub(super) fn open(dir: &VolumeDir, options: &NodeOptions) -> Result<Arc<KeptPacks>> {
    let folder = dir.kept();
    let floor = options.remote_side.cache_floor.map_or_else(|| cache::default_floor(dir.path()), Ok);
    // A node that may change nothing adds nothing, and has what it had.
    let budget = if options.read_only { 0 } else { options.remote_side.keep_max };
    // Below the cache's floor. So the cache first evicts blobs that the origin has.
    let kept = KeptPacks::open(&folder, budget, floor.at("use", dir.path())? / 2);
    kept.map(Arc::new).map_err(|error| Failure::io(format!("cannot open {}", folder.display()), &error))
}

/// The nodes that may keep copies of this node's packs. Those on other machines come first.
pub(super) fn nodes(peers: &Peers) -> std::result::Result<Vec<SessionId>, StoreError> {
    let Some(me) = peers.names.session().and_then(|session| u32::try_from(session.number).ok()) else {
        return Ok(Vec::new());
    };
    let nodes = peers.look()?;
    let host = nodes.get(&me).map(|known| known.host.clone());
    let mut others: Vec<_> =
        nodes.iter().filter(|(node, known)| **node != me && known.alive && known.peer.is_some()).collect();
    // Each node begins at the one after it, so that no node has the copies of all.
    others.sort_by_key(|(node, known)| (Some(&known.host) == host.as_ref(), **node < me, **node));
    Ok(others.into_iter().map(|(node, known)| SessionId { node: *node, epoch: known.epoch }).collect())
}

/// Has a node keep ranges. See [`::fs::shared::Others::keep`].
pub(super) fn keep(peers: &Peers, node: SessionId, ranges: &[KeepRange]) -> std::result::Result<u64, String> {
    let nodes = peers.look().map_err(|error| error.to_string())?;
    let known = nodes.get(&node.node).filter(|known| known.alive).ok_or("it has left")?;
    let (host, peer) = (&known.host, known.peer.ok_or("its address is unknown")?);
    let ask = |range: &KeepRange| {
        let what = match range.what {
            Keep::Write => frame::Keep::Write,
            Keep::Sync => frame::Keep::Sync,
            Keep::Drop => frame::Keep::Drop,
        };
        KeepAsk { pack: range.pack, offset: range.offset, what, bytes: range.bytes.clone() }
    };
    let wait = WAIT.min(peers.wait);
    // All are sent before the first answer is waited for.
    let calls: Vec<_> = ranges.iter().map(|range| peers.net.keep(peer, &ask(range), wait)).collect();
    let mut run = None;
    for call in calls {
        let answer = call.wait().map_err(|fail| format!("the node {} ({host}): {fail}", node.node))?;
        if run.is_some_and(|run| run != answer) {
            return Err(format!("the node {} ({host}) was started anew", node.node));
        }
        run = Some(answer);
    }
    run.ok_or_else(|| "there is nothing to keep".to_owned())
}

/// Answers another node's request to keep a range of its pack.
pub(super) fn serve(
    peers: &Peers,
    kept: &KeptPacks,
    from: NodeId,
    ask: &KeepAsk,
) -> std::result::Result<u64, String> {
    if peers.id_of(owner(ask.pack)) != Some(from) {
        return Err("the pack is not one of the node that sends it".to_owned());
    }
    let write = || match ask.bytes.is_empty() {
        true => Ok(()),
        false => kept.write(ask.pack, ask.offset, &ask.bytes),
    };
    let done = match ask.what {
        frame::Keep::Write => write(),
        frame::Keep::Sync => write().and_then(|()| kept.sync(ask.pack)),
        frame::Keep::Drop => kept.remove(ask.pack, None),
    };
    done.map(|()| kept.run()).map_err(|error| error.to_string())
}

impl Peers {
    fn id_of(&self, node: u32) -> Option<NodeId> {
        if let Some(id) = self.keepers.ids.lock().get(&node) {
            return Some(*id);
        }
        let id = self.look().ok()?.get(&node)?.peer?.node?;
        self.keepers.ids.lock().insert(node, id);
        Some(id)
    }

    /// Reads a copy of a pack whose owner does not answer: here, or on another node. None if no node has it.
    pub(super) fn read_kept(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Option<FromOwner> {
        // A damaged copy is as good as none.
        if self.kept.read(pack, offset, buf).unwrap_or(false) {
            return Some(FromOwner::Bytes);
        }
        let nodes = self.look().ok()?;
        let me = self.names.session().and_then(|session| u32::try_from(session.number).ok());
        let others: HashMap<u32, (&str, Peer)> = nodes
            .iter()
            .filter(|(node, known)| known.alive && **node != owner(pack) && Some(**node) != me)
            .filter_map(|(node, known)| Some((*node, (known.host.as_str(), known.peer?))))
            .collect();
        let whole = |node: u32, buf: &mut [u8]| {
            let read = self.read_from(*others.get(&node)?, pack, offset, buf);
            read.ok().filter(|read| *read == FromOwner::Bytes)
        };
        let known = self.keepers.of.lock().get(&owner(pack)).copied();
        if let Some(read) = known.and_then(|node| whole(node, buf)) {
            return Some(read);
        }
        let ask = PackAsk { pack, offset, len: (buf.len() as u32).min(PACK_MAX) };
        let wait = ASK.min(self.wait);
        // All are asked before the first answer is waited for.
        let calls: Vec<_> =
            others.iter().map(|(node, (_, peer))| (*node, self.net.pack(*peer, &ask, wait))).collect();
        for (node, call) in calls {
            if matches!(call.wait(), Ok(PackPart::Bytes(_)))
                && let Some(read) = whole(node, buf)
            {
                self.keepers.of.lock().insert(owner(pack), node);
                return Some(read);
            }
        }
        None
    }
}
