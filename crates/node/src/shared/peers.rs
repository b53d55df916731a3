//! What the nodes of a shared volume ask of one another: bytes that are not uploaded yet, which only their
//! writer can send, and leases.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use ::fs::shared::{FromOwner, KeepRange, Others, SessionId, owner};
use ::fs::volume::Volume;
use base::{BlobId, Ino, PackNo};
use blob::{BlobError, Kept};
use cache::KeptPacks;
use meta::Key;
use meta::engine::database::{Database, SessionRow};
use meta::lease::{Holder, Leases, Loan, LoanAsk, Nodes};
use meta::shared::outage::Outage;
use meta::store::StoreError;
use net::frame::{KeepAsk, LendAsk, LoanPart, PACK_MAX, PackAsk, PackPart, RecallAsk, Returned};
use net::id::NodeId;
use net::message::{Answer, Ask, Note};
use net::transport::{Content, CopyState, Fail, Listed, Net, Peer, Prefix, Roll, Service, Then, Unfilled};
use parking_lot::{Mutex, RwLock};

use super::IsPending;
use super::engine_seen::EngineSeen;
use super::keeping::{self, Keepers};
use super::living::Living;
use super::loans::{self, Sent};
use super::reaching::Unreached;
use crate::log;

/// How long another node may take to send bytes of a pack.
pub(super) const WAIT: Duration = Duration::from_secs(10);
/// How long another node may take to give back a lease. After that it is asked again, by the database too.
const RECALL: Duration = Duration::from_secs(4);
/// How long a message that gives a loan back may take.
const RETURN: Duration = Duration::from_secs(1);
/// A node that is looked for may have joined so long after the list of sessions was read.
const JOINED: Duration = Duration::from_millis(200);
/// How long the list of sessions is used before it is read again.
const KNOWN: Duration = Duration::from_secs(1);

/// The other nodes, as sources of bytes.
pub(super) struct Peers {
    pub(super) net: Net,
    pub(super) names: Arc<dyn Database>,
    outage: Arc<Outage>,
    seen: Arc<EngineSeen>,
    pub(super) wait: Duration,
    pub(super) kept: Arc<KeptPacks>,
    pub(super) keepers: Keepers,
    known: Mutex<Looked>,
    living: Living,
    sent: Sent,
    pub(super) unreached: Unreached,
}

#[derive(Clone)]
pub(super) struct Known {
    pub(super) host: String,
    pub(super) peer: Option<Peer>,
    pub(super) epoch: u64,
    pub(super) alive: bool,
}

/// The last look at the sessions, and the last one that failed.
#[derive(Default)]
struct Looked {
    nodes: Option<(Instant, HashMap<u32, Known>)>,
    failed: Option<(Instant, String)>,
}

impl Peers {
    pub(super) fn new(
        net: Net,
        (names, outage, seen): (Arc<dyn Database>, Arc<Outage>, Arc<EngineSeen>),
        wait: Duration,
        kept: Arc<KeptPacks>,
    ) -> Peers {
        let (known, living, keepers) = (Mutex::default(), Living::default(), Keepers::default());
        Peers {
            net,
            names,
            outage,
            seen,
            wait,
            kept,
            keepers,
            known,
            living,
            sent: Sent::default(),
            unreached: Unreached::default(),
        }
    }

    /// The nodes of all sessions, as they were a moment ago.
    pub(super) fn look(&self) -> Result<HashMap<u32, Known>, StoreError> {
        let mut known = self.known.lock();
        let is_new = |when: &Instant| base::time::monotonic().saturating_duration_since(*when) < KNOWN;
        if let Some((_, nodes)) = known.nodes.as_ref().filter(|(when, _)| is_new(when)) {
            return Ok(nodes.clone());
        }
        // Those that waited for this lock meanwhile would each wait for the database as long.
        if let Some((_, why)) = known.failed.as_ref().filter(|(when, _)| is_new(when)) {
            return Err(StoreError::Unavailable(why.clone()));
        }
        let sessions = self.sessions().inspect_err(|error| {
            if let StoreError::Unavailable(why) = error {
                known.failed = Some((base::time::monotonic(), why.clone()));
            }
        })?;
        let nodes: HashMap<u32, Known> = sessions
            .into_iter()
            .filter_map(|(row, lasts)| {
                let address: Option<SocketAddr> = row.address.parse().ok();
                let peer = address.map(|address| Peer { address, node: Some(NodeId(row.node)) });
                let epoch = row.epoch.try_into().ok()?;
                Some((u32::try_from(row.number).ok()?, Known { host: row.host, peer, epoch, alive: lasts }))
            })
            .collect();
        *known = Looked { nodes: Some((base::time::monotonic(), nodes.clone())), failed: None };
        Ok(nodes)
    }

    /// All sessions, and whether each may still last.
    fn sessions(&self) -> Result<Vec<(SessionRow, bool)>, StoreError> {
        let asked = base::time::monotonic();
        let rows = self.names.sessions();
        self.outage.note(&rows);
        Ok(self.living.judge(rows?, asked, base::time::monotonic()))
    }

    /// Finds a node that knows which server of the database answers now.
    fn find_aware(&self, node: u32) -> Result<(String, Peer), String> {
        if !self.seen.is_noticed_by(node, || self.names.sessions()).map_err(|error| error.to_string())? {
            return Err("it has not renewed its session since the database began anew".to_owned());
        }
        self.find(node).map_err(|error| error.to_string())
    }

    fn find(&self, node: u32) -> Result<(String, Peer), BlobError> {
        let look = || self.look().map_err(|error| BlobError::Unavailable(error.to_string()));
        let mut nodes = look()?;
        if nodes.get(&node).is_none_or(|known| !known.alive) {
            // It may have joined since the list was read.
            self.known.lock().nodes.take_if(|(when, _)| when.elapsed() > JOINED);
            nodes = look()?;
        }
        match nodes.get(&node) {
            Some(Known { host, peer: Some(peer), alive: true, .. }) => Ok((host.clone(), *peer)),
            Some(Known { host, .. }) => Err(BlobError::Unavailable(format!(
                "these bytes are only on the node {node} ({host}), which has left; they can be read when it is back"
            ))),
            None => {
                Err(BlobError::Unavailable(format!("these bytes are on the node {node}, which is unknown")))
            }
        }
    }
}

impl Peers {
    pub(super) fn read_from(
        &self,
        (host, peer): (&str, Peer),
        pack: PackNo,
        offset: u32,
        buf: &mut [u8],
    ) -> Result<FromOwner, BlobError> {
        let failed = |fail: Fail| {
            let why = format!("these bytes are only on the node {host}, and it does not send them: {fail}");
            BlobError::Unavailable(why)
        };
        let pieces = (0..).step_by(PACK_MAX as usize).zip(buf.chunks_mut(PACK_MAX as usize));
        // All questions are sent before the first answer is waited for.
        let calls: Vec<_> = pieces
            .map(|(at, piece): (u32, _)| {
                let ask = PackAsk { pack, offset: offset + at, len: piece.len() as u32 };
                (self.net.pack(peer, &ask, self.wait), piece)
            })
            .collect();
        for (call, piece) in calls {
            match call.wait().map_err(failed)? {
                PackPart::Bytes(bytes) if bytes.len() == piece.len() => piece.copy_from_slice(&bytes),
                PackPart::Bytes(_) => {
                    return Err(failed(Fail::Protocol("it sent another number of bytes".to_owned())));
                }
                PackPart::InOrigin => return Ok(FromOwner::InOrigin),
                PackPart::Gone => return Ok(FromOwner::Gone),
            }
        }
        Ok(FromOwner::Bytes)
    }
}

impl Peers {
    fn read_owner(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<FromOwner, BlobError> {
        let (host, peer) = self.find(owner(pack))?;
        self.read_from((&host, peer), pack, offset, buf).or_else(|error| {
            // It may have joined again, at another address.
            self.known.lock().nodes = None;
            let (host, again) = self.find(owner(pack))?;
            if again == peer { Err(error) } else { self.read_from((&host, again), pack, offset, buf) }
        })
    }
}

impl Others for Peers {
    fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<FromOwner, BlobError> {
        if owner(pack) == 0 {
            // The volume was one node's when the pack was written: it was restored or promoted.
            return Ok(FromOwner::InOrigin);
        }
        self.read_owner(pack, offset, buf).or_else(|error| self.read_kept(pack, offset, buf).ok_or(error))
    }

    fn want_stored(&self, pack: PackNo) -> bool {
        self.want(pack)
    }

    fn is_stored(&self, pack: PackNo) {
        self.got(pack);
    }

    fn keepers(&self) -> Result<Vec<SessionId>, StoreError> {
        keeping::nodes(self)
    }

    fn keep(&self, node: SessionId, ranges: &[KeepRange]) -> Result<u64, String> {
        keeping::keep(self, node, ranges)
    }

    fn was_sent(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> bool {
        self.sent.read(pack, offset, buf)
    }

    fn alive(&self) -> Result<Vec<SessionId>, StoreError> {
        // Not from memory: what is decided by it must be true now.
        let mut alive = Vec::new();
        for (row, lasts) in self.sessions()? {
            if (lasts || !row.ended && !self.names.end(&row)?)
                && let (Ok(node), Ok(epoch)) = (row.number.try_into(), row.epoch.try_into())
            {
                alive.push(SessionId { node, epoch });
            }
        }
        Ok(alive)
    }

    fn check_engine(&self, for_at_least: Duration) -> Result<(), StoreError> {
        self.seen.check(&*self.names, for_at_least)
    }

    fn epoch(&self) -> Option<u64> {
        self.names.session().and_then(|session| session.epoch.try_into().ok())
    }
}

impl Nodes for Peers {
    fn me(&self) -> Option<Holder> {
        let session = self.names.session()?;
        Some(Holder { node: session.number.try_into().ok()?, epoch: session.epoch.try_into().ok()? })
    }

    fn alive(&self) -> Result<Vec<Holder>, StoreError> {
        let sessions = Others::alive(self)?;
        Ok(sessions.iter().map(|session| Holder { node: session.node, epoch: session.epoch }).collect())
    }

    fn may_take(&self) -> bool {
        self.seen.is_noticed_by_all(|| self.names.sessions())
    }

    fn keeps_all(&self) -> bool {
        self.seen.keeps_all()
    }

    fn may_be_gone(&self, holder: Holder) -> bool {
        let known = self.known.lock();
        let nodes = known.nodes.as_ref().filter(|(when, _)| when.elapsed() < KNOWN);
        let known = nodes.and_then(|(_, nodes)| nodes.get(&holder.node));
        known.is_none_or(|known| !known.alive || known.epoch != holder.epoch)
    }

    fn recall(&self, node: u32, unit: Ino, seq: u64) -> Result<(), String> {
        self.call_back(node, unit, seq, RECALL)
    }

    fn recall_all(&self, asks: &[(u32, Ino, u64)]) -> Vec<bool> {
        // All questions are sent before the first answer is waited for.
        let call = |(node, unit, seq): &(u32, Ino, u64)| {
            let (_, peer) = self.find_aware(*node).ok()?;
            Some(self.net.recall(peer, &RecallAsk { unit: *unit, seq: *seq }, RECALL.min(self.wait)))
        };
        let calls: Vec<_> = asks.iter().map(call).collect();
        calls.into_iter().map(|call| call.is_some_and(|call| call.wait().is_ok())).collect()
    }

    fn call_back(&self, node: u32, unit: Ino, seq: u64, within: Duration) -> Result<(), String> {
        let (_, peer) = self.find_aware(node)?;
        let done = self.net.recall(peer, &RecallAsk { unit, seq }, within.min(self.wait)).wait();
        done.map_err(|fail| {
            // It may have joined again, at another address.
            self.known.lock().nodes = None;
            fail.to_string()
        })
    }

    fn borrow(&self, node: u32, ask: &LoanAsk) -> Result<Option<Loan>, String> {
        let me = self.me().ok_or("this node has not joined")?;
        let (_, peer) = self.find(node).map_err(|error| error.to_string())?;
        let keys = ask.keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        let ask = LendAsk { unit: ask.unit, to: me.node, returns: ask.returns, keys };
        let call = self.net.lend(peer, &ask, RECALL.min(self.wait));
        Ok(call.wait().map_err(|fail| fail.to_string())?.map(|part| self.sent.receive(part)))
    }

    fn give_back(&self, node: u32, unit: Ino, number: u64) {
        if let (Some(me), Ok((_, peer))) = (self.me(), self.find(node)) {
            let returned = Returned { unit, from: me.node, number };
            // If it does not arrive, the holder asks for the loan.
            let _ = self.net.returned(peer, &returned, RETURN).wait();
        }
    }

    fn report(&self, line: &str) {
        log::warn(line);
    }
}

/// Sends bytes of this node's packs to other nodes, and gives leases back.
#[derive(Default)]
pub(super) struct PackServer {
    served: RwLock<Option<(Weak<Volume>, IsPending)>>,
    leases: RwLock<Option<Weak<Leases>>>,
    kept: RwLock<Option<(Arc<KeptPacks>, Weak<Peers>)>>,
    /// The node as one of the fleet: it answers what is asked about blobs.
    fleet: OnceLock<Arc<dyn Service>>,
}

impl PackServer {
    /// Passes requests about blobs on, from now on.
    pub(super) fn join(&self, fleet: Arc<dyn Service>) {
        let _ = self.fleet.set(fleet);
    }

    pub(super) fn serve(&self, volume: Weak<Volume>, is_pending: IsPending) {
        *self.served.write() = Some((volume, is_pending));
    }

    /// Keeps packs of other nodes from now on.
    pub(super) fn keep(&self, kept: Arc<KeptPacks>, peers: &Arc<Peers>) {
        *self.kept.write() = Some((kept, Arc::downgrade(peers)));
    }

    /// Gives leases back from now on.
    pub(super) fn lend(&self, leases: &Arc<Leases>) {
        *self.leases.write() = Some(Arc::downgrade(leases));
    }
}

impl Service for PackServer {
    fn pack(&self, ask: PackAsk) -> Result<PackPart, String> {
        let served = self.served.read().clone();
        let volume = served.as_ref().and_then(|(volume, pending)| Some((volume.upgrade()?, pending)));
        let (volume, is_pending) = volume.ok_or("the volume is not open yet, or is being closed")?;
        let mut bytes = vec![0; ask.len as usize];
        let kept = self.kept.read().as_ref().map(|(kept, _)| kept.clone());
        // Of this node's own packs there are no copies here.
        if let Some(kept) = kept
            && kept.read(ask.pack, ask.offset, &mut bytes).map_err(|error| error.to_string())?
        {
            return Ok(PackPart::Bytes(bytes));
        }
        let read = volume.read_own_pack(ask.pack, ask.offset, &mut bytes, |blob| is_pending(blob));
        match read.map_err(|error| error.to_string())? {
            FromOwner::Bytes => Ok(PackPart::Bytes(bytes)),
            FromOwner::InOrigin => Ok(PackPart::InOrigin),
            FromOwner::Gone => Ok(PackPart::Gone),
        }
    }

    fn keep(&self, from: NodeId, ask: KeepAsk) -> Result<u64, String> {
        let served = self.kept.read().as_ref().map(|(kept, peers)| (kept.clone(), peers.clone()));
        let peers = served.and_then(|(kept, peers)| Some((kept, peers.upgrade()?)));
        let (kept, peers) = peers.ok_or("the volume is not open yet, or is being closed")?;
        keeping::serve(&peers, &kept, from, &ask)
    }

    fn recall(&self, ask: RecallAsk) -> Result<(), String> {
        let leases = self.leases.read().as_ref().and_then(Weak::upgrade);
        // Until it is open, what an earlier process has acknowledged may be in the journal only.
        let leases = leases.ok_or("the volume is not open yet, or is being closed")?;
        leases.recall(ask.unit, ask.seq).map_err(|error| error.to_string())
    }

    fn lend(&self, ask: LendAsk) -> Result<Option<LoanPart>, String> {
        let Some(leases) = self.leases.read().as_ref().and_then(Weak::upgrade) else { return Ok(None) };
        let keys = ask.keys.iter().map(|key| Key::from_bytes(key)).collect();
        let to = ask.to;
        let ask = LoanAsk { unit: ask.unit, returns: ask.returns, keys };
        let Some(loan) = leases.lend(to, &ask).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let served = self.served.read().clone();
        let (volume, is_pending) = served.map(|(volume, pending)| (volume.upgrade(), pending)).unzip();
        let is_pending = |blob: &BlobId| is_pending.as_ref().is_none_or(|is_pending| is_pending(blob));
        Ok(Some(loans::part(loan, volume.flatten().as_deref(), is_pending)))
    }

    fn returned(&self, returned: Returned) {
        if let Some(leases) = self.leases.read().as_ref().and_then(Weak::upgrade) {
            leases.returned(returned.unit, returned.from, returned.number);
        }
    }

    fn ask(&self, from: NodeId, ask: Ask) -> Vec<Answer> {
        match self.fleet.get() {
            Some(fleet) => fleet.ask(from, ask),
            None => vec![Answer::NotMine; ask.blobs.len()],
        }
    }

    fn notes(&self, from: NodeId, notes: Vec<Note>) {
        if let Some(fleet) = self.fleet.get() {
            fleet.notes(from, notes);
        }
    }

    fn content(&self, id: &BlobId) -> Option<Content> {
        self.fleet.get()?.content(id)
    }

    fn fill(&self, id: &BlobId, then: Then) {
        match self.fleet.get() {
            Some(fleet) => fleet.fill(id, then),
            None => then(Err(Unfilled::NoDepot)),
        }
    }

    fn members(&self, after: NodeId, most: usize) -> Roll {
        self.fleet.get().map(|fleet| fleet.members(after, most)).unwrap_or_default()
    }

    fn is_member(&self, address: IpAddr) -> bool {
        self.fleet.get().is_some_and(|fleet| fleet.is_member(address))
    }

    fn suspect(&self, id: &BlobId) -> CopyState {
        self.fleet.get().map_or(CopyState::Absent, |fleet| fleet.suspect(id))
    }

    fn list(&self, prefix: Prefix, most: usize) -> Listed {
        self.fleet.get().map(|fleet| fleet.list(prefix, most)).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the process before has acknowledged is in its journal, and stored before the volume is open.
    #[test]
    fn regression_a_node_that_is_not_open_yet_gives_no_lease_back() {
        let server = PackServer::default();
        for unit in [Ino(0), Ino::ROOT] {
            assert!(server.recall(RecallAsk { unit, seq: 1 }).is_err(), "{unit:?}");
        }
    }
}
