//! Sessions: which nodes use a volume.
//!
//! A session is a key with the node's epoch, and a lease of etcd that removes this key when it is not renewed
//! in time. Every commit of a joined store checks the key. So a commit of a session that has expired changes
//! nothing, and neither does one of a session whose place another process took: the key then holds the next
//! epoch.
//!
//! A number is small, belongs to one node for ever, and is never given to another: the node's own key, which
//! no lease removes, holds it.

use std::time::Duration;

use etcd_client::{Compare, CompareOp, Error, KeyValue, PutOptions, Txn, TxnOp};
use meta::engine::database::{Database, Incarnation, Join, Renewed, Session, SessionRow};
use meta::store::StoreError;
use tokio::task::JoinSet;

use super::commit::fenced;
use super::errors::{Failure, NoLease};
use super::incarnation;
use super::layout::{hex, unhex};
use super::pool::Taken;
use super::request::{Ask, absent, is, look, look_with, single};
use super::{Etcd, gone};

/// The longest session, in seconds.
const TTL_MAX: u64 = 86_400;

/// A session with its length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) number: i64,
    pub(super) epoch: i64,
    pub(super) lease: i64,
    ttl: Duration,
    /// Set if another process of the node began it: a random number. What etcd remembers of that process's
    /// operations says nothing of this one's.
    pub(super) resumed: Option<u64>,
}

impl Place {
    pub(super) fn session(&self) -> Session {
        Session { number: self.number, epoch: self.epoch }
    }
}

/// The value of a node's key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    number: i64,
    epoch: i64,
    lease: i64,
    /// Which call of `join` wrote it: a repeated call gets the same answer.
    token: String,
    host: String,
    address: String,
    /// The version of its program. Older programs do not write it, and do not mind it.
    program: String,
}

impl Node {
    fn encode(&self) -> String {
        let one_line = |text: &str| text.replace(['\n', '\r'], " ");
        format!(
            "{}\n{}\n{:x}\n{}\n{}\n{}\n{}\n",
            self.number,
            self.epoch,
            self.lease,
            self.token,
            one_line(&self.host),
            one_line(&self.address),
            one_line(&self.program)
        )
    }

    fn decode(bytes: &[u8]) -> Option<Node> {
        let mut lines = std::str::from_utf8(bytes).ok()?.lines();
        Some(Node {
            number: lines.next()?.parse().ok().filter(|number| *number > 0)?,
            epoch: lines.next()?.parse().ok()?,
            lease: i64::from_str_radix(lines.next()?, 16).ok()?,
            token: lines.next()?.to_owned(),
            host: lines.next()?.to_owned(),
            address: lines.next()?.to_owned(),
            program: lines.next().unwrap_or_default().to_owned(),
        })
    }
}

fn node_of(row: &KeyValue) -> Result<Node, StoreError> {
    Node::decode(row.value()).ok_or_else(|| {
        let key = String::from_utf8_lossy(row.key());
        StoreError::Damaged(format!("the key {key} of a node cannot be read; restore etcd from a backup"))
    })
}

/// Whether the session of a node lasts, by the keys of those that do.
fn is_alive(node: &Node, alive: Option<&KeyValue>) -> bool {
    alive.is_some_and(|row| row.value() == node.epoch.to_string().as_bytes())
}

/// What joining makes of a node's number and epoch.
struct Entry {
    number: i64,
    epoch: i64,
    checks: Vec<Compare>,
    writes: Vec<TxnOp>,
}

impl Entry {
    /// The node has a number. `alive`: its session must not last.
    fn again(before: &Node, row: &KeyValue, alive: Option<Vec<u8>>) -> Entry {
        let mut checks = vec![Compare::mod_revision(row.key(), CompareOp::Equal, row.mod_revision())];
        checks.extend(alive.map(absent));
        Entry { number: before.number, epoch: before.epoch + 1, checks, writes: Vec::new() }
    }

    /// The node gets the next number.
    fn first(key: &[u8], count: Vec<u8>, last: Option<&KeyValue>) -> Result<Entry, Failure> {
        let number = last.map_or(Ok(0), number_of)? + 1;
        let is_last = match last {
            Some(row) => is(count.clone(), row.value()),
            None => absent(count.clone()),
        };
        let writes = vec![TxnOp::put(count, number.to_string(), None)];
        Ok(Entry { number, epoch: 1, checks: vec![absent(key.to_vec()), is_last], writes })
    }
}

/// The lease for a new session, which further attempts use too.
fn granted(taken: &mut Taken<'_>, ttl: Duration, lease: &mut Option<i64>) -> Result<i64, Failure> {
    if let Some(granted) = *lease {
        return Ok(granted);
    }
    let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
    Ok(*lease.insert(taken.once(async |mut wires| wires.lease.grant(seconds, None).await)?.id()))
}

impl Etcd {
    fn try_join(
        &self,
        taken: &mut Taken<'_>,
        join: &Join<'_>,
        token: &str,
        lease: &mut Option<i64>,
    ) -> Result<Place, Failure> {
        let ttl = ttl_of(join.ttl);
        let mine = granted(taken, ttl, lease)?;
        let (volume, count, key) =
            (self.volume_key(), self.layout.node_count(), self.layout.node(&join.node));
        let asks = [
            Ask::Key(volume.clone()),
            Ask::Key(count.clone()),
            Ask::Key(key.clone()),
            Ask::Span(self.layout.all_alive(), usize::MAX >> 1),
        ];
        let (_, rows) = look_with(taken, &asks, 0)?;
        let [volumes, counts, nodes, alive] = rows.as_slice() else {
            return Err(Failure::refused("etcd answers in an unexpected form"));
        };
        let Some(is_volume) = single(volumes).filter(|row| self.is_mine(row.value())) else {
            return Err(Failure::Store(gone(&self.pool.door.target)));
        };
        let before = single(nodes).map(node_of).transpose().map_err(Failure::Store)?;
        if let Some(before) = before.as_ref().filter(|before| before.token == token) {
            let Node { number, epoch, lease, .. } = *before;
            return Ok(Place { number, epoch, lease, ttl, resumed: None });
        }
        let mut entry = match (&before, single(nodes)) {
            (Some(before), Some(row)) => {
                let alive_key = self.layout.alive(before.number);
                if !join.take_over && alive.iter().any(|row| row.key() == alive_key) {
                    return Err(self.in_use(taken, before, mine));
                }
                Entry::again(before, row, (!join.take_over).then_some(alive_key))
            }
            _ => Entry::first(&key, count, single(counts))?,
        };
        entry.checks.push(is(volume, is_volume.value()));
        let (number, epoch) = (entry.number, entry.epoch);
        let node = Node {
            number,
            epoch,
            lease: mine,
            token: token.to_owned(),
            host: join.host.to_owned(),
            address: join.address.to_owned(),
            program: join.program.to_owned(),
        };
        entry.writes.push(TxnOp::put(key, node.encode(), None));
        let put = PutOptions::new().with_lease(mine);
        entry.writes.push(TxnOp::put(self.layout.alive(number), epoch.to_string(), Some(put)));
        let txn = Txn::new().when(entry.checks).and_then(entry.writes);
        let done = match taken.once(async |mut wires| wires.kv.txn(txn).await) {
            Err(Failure::Own(NoLease)) => {
                *lease = None;
                return Err(Failure::Again("the lease expired before the node had joined".to_owned()));
            }
            done => done?,
        };
        if !done.succeeded() {
            return Err(Failure::Again("other nodes join at the same time".to_owned()));
        }
        if let Some(before) = before {
            // The keys of its operations go away with it. Its expiry would do the same.
            let _ = taken.once(async |mut wires| wires.lease.revoke(before.lease).await);
        }
        Ok(Place { number, epoch, lease: mine, ttl, resumed: None })
    }

    /// Makes a session last its whole length again, if it is not over.
    fn keep(&self, taken: &mut Taken<'_>, place: &Place) -> Result<Incarnation, Failure> {
        match taken.once(async |mut wires| wires.lease.keep_alive(place.lease).await.map(drop)) {
            Err(Failure::Own(NoLease)) => return Err(Failure::Store(fenced())),
            done => done?,
        }
        // The lease lasts even if another process took the place.
        let (incarnation, row) = self.get(taken, self.layout.alive(place.number))?;
        let epoch = place.epoch.to_string();
        let holds = row.is_some_and(|row| row.value() == epoch.as_bytes() && row.lease() == place.lease);
        if holds { Ok(incarnation) } else { Err(Failure::Store(fenced())) }
    }

    /// A row, and the cluster that has it.
    fn get(&self, taken: &mut Taken<'_>, key: Vec<u8>) -> Result<(Incarnation, Option<KeyValue>), Failure> {
        let door = &self.pool.door;
        let known = door.opened.known();
        let mut answer = taken.once(async |mut wires| wires.kv.get(key.clone(), None).await)?;
        door.opened.meet(&door.target, known, answer.header())?;
        Ok((incarnation::of(answer.header()), answer.take_kvs().into_iter().next()))
    }

    /// Raises the number of the last node.
    fn skip(&self, taken: &mut Taken<'_>, count: u32) -> Result<(), Failure> {
        let key = self.layout.node_count();
        let (_, row) = self.get(taken, key.clone())?;
        let last = row.as_ref().map_or(Ok(0), number_of)?;
        let is_last = match &row {
            Some(row) => is(key.clone(), row.value()),
            None => absent(key.clone()),
        };
        let put = TxnOp::put(key, (last + i64::from(count)).to_string(), None);
        let txn = Txn::new().when([is_last]).and_then([put]);
        match taken.once(async |mut wires| wires.kv.txn(txn).await)?.succeeded() {
            true => Ok(()),
            false => Err(Failure::Again("other nodes join at the same time".to_owned())),
        }
    }

    /// The node has a session elsewhere.
    fn in_use(&self, taken: &mut Taken<'_>, node: &Node, mine: i64) -> Failure {
        let _ = taken.once(async |mut wires| wires.lease.revoke(mine).await);
        let left = taken.once(async |mut wires| wires.lease.time_to_live(node.lease, None).await);
        let left = left.map_or(0, |left| left.ttl()).max(1);
        Failure::refused(format!(
            "this node already has the volume {} open on {:?}: the same folder is used twice, or the node ended without leaving; close the other one, or wait {left} s until its session expires",
            self.pool.door.target.volume, node.host
        ))
    }

    fn joined(&self) -> Result<Place, StoreError> {
        let place = *self.place.read();
        place.ok_or_else(|| StoreError::Unavailable("this store has no session; join first".to_owned()))
    }

    /// How many milliseconds these leases last, each.
    fn remaining(&self, leases: &[i64]) -> Result<Vec<i64>, StoreError> {
        self.pool.ask(async |wires| {
            let mut asked = JoinSet::new();
            for (at, lease) in leases.iter().copied().enumerate() {
                let mut lessor = wires.lease.clone();
                asked.spawn(async move { (at, lessor.time_to_live(lease, None).await) });
            }
            let mut left = vec![0; leases.len()];
            while let Some(done) = asked.join_next().await {
                let (at, answer) = done.map_err(|error| Error::Internal(error.to_string()))?;
                if let Some(left) = left.get_mut(at) {
                    *left = answer?.ttl().max(0) * 1000;
                }
            }
            Ok(left)
        })
    }
}

fn ttl_of(ttl: Duration) -> Duration {
    let seconds = ttl.as_millis().div_ceil(1000);
    Duration::from_secs(u64::try_from(seconds).unwrap_or(TTL_MAX).clamp(1, TTL_MAX))
}

fn number_of(row: &KeyValue) -> Result<i64, Failure> {
    let number = std::str::from_utf8(row.value()).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let key = String::from_utf8_lossy(row.key()).into_owned();
        Failure::Store(StoreError::Damaged(format!("the key {key} is no number; restore etcd from a backup")))
    })
}

impl Database for Etcd {
    fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    fn join(&self, join: &Join<'_>) -> Result<Session, StoreError> {
        let token = hex(&base::random::id16());
        let mut lease = None;
        let place = self.pool.take()?.attempts(|taken, _| self.try_join(taken, join, &token, &mut lease))?;
        *self.place.write() = Some(place);
        Ok(place.session())
    }

    fn resume(&self, node: &[u8; 16], session: Session, ttl: Duration) -> Result<(), StoreError> {
        let key = self.layout.node(node);
        let place = self.pool.take()?.attempts(|taken, _| {
            let found = taken.once(async |mut wires| wires.kv.get(key.clone(), None).await)?;
            let row = found.kvs().first().ok_or_else(|| Failure::Store(fenced()))?;
            let Node { number, epoch, lease, .. } = node_of(row).map_err(Failure::Store)?;
            if (Session { number, epoch }) != session {
                return Err(Failure::Store(fenced()));
            }
            let resumed = Some(base::random::u64());
            let place = Place { number, epoch, lease, ttl: ttl_of(ttl), resumed };
            self.keep(taken, &place)?;
            Ok(place)
        })?;
        *self.place.write() = Some(place);
        Ok(())
    }

    /// In two round trips. The length is counted from before them.
    fn renew(&self) -> Result<Renewed, StoreError> {
        let place = self.joined()?;
        let done = self.pool.take()?.attempts(|taken, _| {
            let began = base::time::boot();
            Ok((began, self.keep(taken, &place)?))
        });
        let (began, incarnation) = done?;
        let remaining = place.ttl.saturating_sub(base::time::boot().since(began));
        Ok(Renewed { incarnation, remaining, server_time: None })
    }

    fn incarnation(&self) -> Result<Incarnation, StoreError> {
        let key = self.volume_key();
        Ok(self.pool.take()?.attempts(|taken, _| self.get(taken, key.clone()))?.0)
    }

    /// None: its API does not tell them.
    fn weaknesses(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    fn skip_numbers(&self, count: u32) -> Result<(), StoreError> {
        self.pool.take()?.attempts(|taken, _| self.skip(taken, count))
    }

    fn leave(&self) -> Result<(), StoreError> {
        let place = self.joined()?;
        self.pool.take()?.attempts(|taken, _| {
            match taken.once(async |mut wires| wires.lease.revoke(place.lease).await.map(drop)) {
                // It has ended by itself.
                Err(Failure::Own(NoLease)) => Ok(()),
                done => done,
            }
        })
    }

    /// etcd ends sessions by itself.
    fn end(&self, row: &SessionRow) -> Result<bool, StoreError> {
        Ok(row.ended)
    }

    fn session(&self) -> Option<Session> {
        self.place.read().map(|place| place.session())
    }

    fn sessions(&self) -> Result<Vec<SessionRow>, StoreError> {
        let all = usize::MAX >> 1;
        let asks = [Ask::Span(self.layout.nodes(), all), Ask::Span(self.layout.all_alive(), all)];
        let (_, rows) = look(&self.pool, &asks, 0)?;
        let [nodes, alive] = rows.as_slice() else { return Ok(Vec::new()) };
        let mut found = Vec::with_capacity(nodes.len());
        for row in nodes {
            let node = node_of(row)?;
            let key = self.layout.alive(node.number);
            let lives = is_alive(&node, alive.iter().find(|row| row.key() == key));
            let id =
                row.key().rsplit(|byte| *byte == b'/').next().and_then(|id| std::str::from_utf8(id).ok());
            found.push((id.and_then(unhex).unwrap_or_default(), node, lives));
        }
        let leases: Vec<i64> =
            found.iter().filter(|(.., lives)| *lives).map(|(_, node, _)| node.lease).collect();
        let mut left = self.remaining(&leases)?.into_iter();
        let mut list: Vec<SessionRow> = found
            .into_iter()
            .map(|(id, node, lives)| SessionRow {
                number: node.number,
                node: id,
                host: node.host,
                address: node.address,
                epoch: node.epoch,
                expires_in_ms: if lives { left.next().unwrap_or_default() } else { -1 },
                alive: lives,
                renewal: None,
                ended: !lives,
                program: node.program,
            })
            .collect();
        list.sort_unstable_by_key(|row| row.number);
        Ok(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_read_back_and_damage_is_noticed() {
        let node = Node {
            number: 3,
            epoch: 7,
            lease: 0x7fff_0000_1234,
            token: "t".to_owned(),
            host: "a b".to_owned(),
            address: String::new(),
            program: "1.2".to_owned(),
        };
        assert_eq!(Node::decode(node.encode().as_bytes()), Some(node.clone()));
        let two_lines = Node { host: "a\nb".to_owned(), ..node.clone() };
        assert_eq!(Node::decode(two_lines.encode().as_bytes()), Some(node));
        let older = Node::decode(b"3\n7\n1f\nt\nh\na\n").expect("an older program wrote it");
        assert_eq!((older.lease, older.address.as_str(), older.program.as_str()), (31, "a", ""));
        for bad in ["", "0\n1\n1\nt\nh\na\n", "1\n1\n1\nt\nh", "x\n1\n1\nt\nh\na\n"] {
            assert_eq!(Node::decode(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
