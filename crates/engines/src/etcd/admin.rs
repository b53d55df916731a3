//! Creating, opening and removing volumes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{DeleteOptions, GetOptions, Txn, TxnOp};
use meta::store::StoreError;
use parking_lot::{Mutex, RwLock};

use super::errors::Failure;
use super::layout::{Layout, hex, unhex, volume, volume_count};
use super::link::{Door, Link};
use super::pool::{Pool, Taken};
use super::request::{Ask, absent, is, look, look_with, single};
use super::{Etcd, FORMAT, Options, SERVER_MIN, SetupError, Target};

/// How long the end of a store may take.
const LAST: Duration = Duration::from_millis(500);
/// So many keys are removed at a time. etcd answers nothing else meanwhile.
const REMOVE: i64 = 5_000;

/// The row of a volume.
pub(super) struct Found {
    pub(super) number: u64,
    pub(super) uuid: [u8; 16],
}

impl Found {
    pub(super) fn encode(&self) -> String {
        format!("{FORMAT} {} {}", self.number, hex(&self.uuid))
    }
}

fn decode(target: &Target, row: &[u8]) -> Result<Found, SetupError> {
    let text = String::from_utf8_lossy(row).into_owned();
    let mut words = text.split(' ');
    let format = words.next().unwrap_or_default();
    if format != FORMAT {
        return Err(SetupError::Version(format!(
            "the volume {} on {} has the form {format:?}, and this program knows {FORMAT}; use the covey that wrote it, or a newer one",
            target.volume,
            target.server()
        )));
    }
    let number = words.next().and_then(|word| word.parse().ok());
    let found = number.zip(words.next().and_then(unhex));
    let (number, uuid) = found.ok_or_else(|| {
        StoreError::Damaged(format!("the row of the volume {} cannot be read", target.volume))
    })?;
    Ok(Found { number, uuid })
}

/// Finds the volume of an address.
pub(super) fn find(pool: &Pool) -> Result<Found, SetupError> {
    let target = &pool.door.target;
    let (_, rows) = look(pool, &[Ask::Key(volume(&target.prefix, &target.volume))], 0)?;
    match rows.first().and_then(|rows| single(rows)) {
        Some(row) => decode(target, row.value()),
        None => Err(SetupError::Missing(format!(
            "the cluster {} has no volume {} under {}/; create it with `covey format`, or name another one",
            target.server(),
            target.volume,
            target.prefix
        ))),
    }
}

/// The line about a server that is too old.
pub(super) fn too_old(server: &str, version: &str) -> Option<String> {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    let (major, minor) = SERVER_MIN;
    (found < SERVER_MIN)
        .then(|| format!("the server {server} is etcd {version}; version {major}.{minor} or newer is needed"))
}

/// Connections to a cluster that can be used.
pub(super) fn connect(target: &Target, options: &Options, lanes: usize) -> Result<Pool, SetupError> {
    let door = Door::new(target.clone(), options.secrets.clone()).map_err(Failure::into_store)?;
    let pool = Pool::new(Arc::new(door), lanes, options.patience);
    let link = any_link(&pool, options.patience)?;
    pool.give(link);
    let (server, version) = pool.take()?.attempts(|taken, _| version(taken))?;
    match too_old(&server, &version) {
        Some(line) => Err(StoreError::Unavailable(line).into()),
        None => Ok(pool),
    }
}

/// Which server answers, and its version.
fn version(taken: &mut Taken<'_>) -> Result<(String, String), Failure> {
    let status = taken.once(async |mut wires| wires.maintenance.status().await)?;
    Ok((taken.server(), status.version().to_owned()))
}

/// A connection to any member. Each is tried once.
fn any_link(pool: &Pool, patience: Duration) -> Result<Link, SetupError> {
    let servers = pool.door.target.servers.len().max(1);
    let limit = patience.div_f64(servers as f64);
    let mut lines: Vec<String> = Vec::new();
    for _ in 0..servers {
        match Link::open(&pool.door, limit).map_err(Failure::into_store) {
            Ok(link) => return Ok(link),
            Err(StoreError::Unavailable(line)) if servers > 1 => lines.push(line),
            Err(error) => return Err(error.into()),
        }
    }
    // A wrong password is the same for all members.
    lines.dedup();
    let why = lines.join("; and ");
    Err(StoreError::Unavailable(format!("no member of the cluster can be used: {why}")).into())
}

impl Etcd {
    /// Opens a volume. A cluster that cannot be reached is not tried again.
    ///
    /// # Errors
    /// `Missing` without such a volume. Otherwise one line that names the mistake and says what to do.
    pub fn open(target: &Target, options: Options) -> Result<Etcd, SetupError> {
        let pool = connect(target, &options, options.lanes)?;
        let found = find(&pool)?;
        let status = pool.ask(async |mut wires| wires.maintenance.status().await)?;
        pool.door.opened.set(status.header());
        Ok(Etcd {
            layout: Layout::new(&target.prefix, found.number),
            pool,
            number: found.number,
            uuid: found.uuid,
            place: RwLock::new(None),
            own: Mutex::new(None),
            counters: Mutex::new(HashMap::new()),
        })
    }

    /// Registers a volume. A repeated call with the same id succeeds.
    ///
    /// # Errors
    /// `Exists` if the name is in use. Otherwise as [`Etcd::open`].
    pub fn create(target: &Target, uuid: [u8; 16], options: &Options) -> Result<(), SetupError> {
        let pool = connect(target, options, 1)?;
        let (key, count) = (volume(&target.prefix, &target.volume), volume_count(&target.prefix));
        let asks = [Ask::Key(key.clone()), Ask::Key(count.clone())];
        let made = pool.take()?.attempts(|taken, _| {
            let (_, rows) = look_with(taken, &asks, 0)?;
            let row = |at: usize| rows.get(at).and_then(|rows| single(rows));
            if let Some(row) = row(0) {
                return Ok(Some(row.value().to_vec()));
            }
            let last = row(1).map(|row| row.value().to_vec());
            let last_number =
                last.as_deref().map_or(Some(0), |text| std::str::from_utf8(text).ok()?.parse().ok());
            let number = last_number.map(|last: u64| last + 1).ok_or_else(|| {
                Failure::Store(StoreError::Damaged("the count of volumes is no number".to_owned()))
            })?;
            let is_last = match &last {
                Some(last) => is(count.clone(), last.as_slice()),
                None => absent(count.clone()),
            };
            let puts = [
                TxnOp::put(key.clone(), Found { number, uuid }.encode(), None),
                TxnOp::put(count.clone(), number.to_string(), None),
            ];
            let txn = Txn::new().when([absent(key.clone()), is_last]).and_then(puts);
            match taken.once(async |mut wires| wires.kv.txn(txn).await)?.succeeded() {
                true => Ok(None),
                false => Err(Failure::Again("other volumes are created at the same time".to_owned())),
            }
        });
        let Some(row) = made? else { return Ok(()) };
        match decode(target, &row)? {
            Found { uuid: there, .. } if there == uuid => Ok(()),
            _ => Err(SetupError::Exists(format!(
                "the cluster {} has a volume {} already under {}/; choose another name",
                target.server(),
                target.volume,
                target.prefix
            ))),
        }
    }

    /// Removes a volume with all its rows. Nodes that use it meet errors.
    ///
    /// # Errors
    /// As [`Etcd::open`].
    pub fn remove(target: &Target, options: &Options) -> Result<(), SetupError> {
        let pool = connect(target, options, 1)?;
        let found = find(&pool)?;
        let key = volume(&target.prefix, &target.volume);
        // Nodes notice it first, and no name leads to what is left if this is interrupted.
        let txn = Txn::new().when([is(key.clone(), found.encode())]).and_then([TxnOp::delete(key, None)]);
        pool.ask(async |mut wires| wires.kv.txn(txn.clone()).await)?;
        let (mut start, end) = Layout::new(&target.prefix, found.number).all();
        loop {
            let limited = GetOptions::new().with_range(end.clone()).with_limit(REMOVE).with_keys_only();
            let page =
                pool.ask(async |mut wires| wires.kv.get(start.clone(), Some(limited.clone())).await)?;
            let Some(last) = page.kvs().last() else { return Ok(()) };
            let next = [last.key(), &[0]].concat();
            let range = DeleteOptions::new().with_range(next.clone());
            pool.ask(async |mut wires| wires.kv.delete(start.clone(), Some(range.clone())).await)?;
            start = next;
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // A session ends by itself or by leaving. What etcd remembers of a store without one goes here.
        if let Some((_, lease)) = self.own.get_mut().take() {
            self.pool.last(LAST, async |mut wires| wires.lease.revoke(lease).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_servers_are_named() {
        assert!(too_old("h:1", "3.3.25").unwrap().contains("version 3.4 or newer"));
        for version in ["3.4.0", "3.7.3", "4.0.0-rc.1"] {
            assert_eq!(too_old("h:1", version), None);
        }
    }

    #[test]
    fn rows_of_volumes_are_read_back() {
        let target = Target::parse("etcd://h/?volume=v").unwrap();
        let found = Found { number: 7, uuid: [9; 16] };
        let again = decode(&target, found.encode().as_bytes()).unwrap();
        assert_eq!((again.number, again.uuid), (7, [9; 16]));
        let message = |row: &str| decode(&target, row.as_bytes()).err().unwrap().to_string();
        assert!(message("2 7 00").contains("or a newer one"));
        assert!(message("1 x").contains("cannot be read"));
    }
}
