//! Where locks on files hold is a setting of the volume: on all nodes, or on each machine for itself.
//! Programs on nodes that differ would not exclude each other, and nobody would notice. So the first mount
//! writes the setting down, and a mount that asks for another one is refused.

use api::error::{Failure, Result};
use engines::Address;
use fs::api::Locks;
use meta::engine::database::Database;
use meta::store::{CommitError, StoreError, Value};
use meta::{Commit, Expect, Key, MetaStore};

use super::rows::ROW_LOCKS;
use super::{setup_failure, setup_failure_at};
use crate::options::SHARED_LOCKS;

/// The word for it in options and in the row.
pub fn word(locks: Locks) -> &'static str {
    match locks {
        Locks::Local => "local",
        Locks::Fleet => "fleet",
    }
}

fn unreached(error: StoreError) -> Failure {
    setup_failure(error.into())
}

/// The setting of a volume. `None`: it has none yet.
fn setting(names: &dyn MetaStore) -> Result<Option<Locks>> {
    let Some(row) = names.get(&Key::volume(ROW_LOCKS)).map_err(unreached)? else { return Ok(None) };
    let known = [Locks::Local, Locks::Fleet].into_iter().find(|locks| word(*locks).as_bytes() == &row[..]);
    match known {
        Some(locks) => Ok(Some(locks)),
        None => Err(Failure::new("newer", "the volume's setting of locks is unknown to this program")
            .next("use the program of the other nodes")),
    }
}

fn put(names: &dyn MetaStore, expect: Expect, locks: Locks) -> Result<bool> {
    let key = Key::volume(ROW_LOCKS);
    let puts = vec![(key.clone(), Value::from(word(locks).as_bytes()))];
    match names.commit(Commit { checks: vec![(key, expect)], puts, ..Commit::default() }) {
        Ok(()) => Ok(true),
        Err(CommitError::Conflict { .. }) => Ok(false),
        Err(CommitError::Store(error)) => Err(unreached(error)),
    }
}

/// Where locks hold for a mount that asks for this, or for nothing. `keeps`: it becomes the setting of a
/// volume that has none.
pub(super) fn decide(names: &dyn MetaStore, wanted: Option<Locks>, keeps: bool) -> Result<Locks> {
    loop {
        match (setting(names)?, wanted) {
            (Some(locks), None) => return Ok(locks),
            (Some(locks), Some(wanted)) if locks == wanted => return Ok(locks),
            (Some(locks), Some(wanted)) => {
                let what = format!(
                    "the volume has locks={}, and this mount wants locks={}",
                    word(locks),
                    word(wanted)
                );
                return Err(Failure::new("other-locks", what)
                    .why("programs on nodes with different settings would not exclude each other")
                    .next(format!("leave locks={} out", word(wanted)))
                    .next(format!(
                        "or unmount all nodes, then: covey locks ADDRESS --set {}",
                        word(wanted)
                    )));
            }
            (None, wanted) => {
                let locks = wanted.unwrap_or(SHARED_LOCKS);
                // After a conflict, another node has just written it.
                if !keeps || put(names, Expect::Absent, locks)? {
                    return Ok(locks);
                }
            }
        }
    }
}

/// Changes the setting of a volume that no node has mounted. Returns what it was: `None` if it had none.
///
/// # Errors
/// The address is wrong, the database cannot be used, or nodes have the volume mounted.
pub fn set(address: &str, locks: Locks) -> Result<Option<Locks>> {
    let target = Address::parse(address).map_err(setup_failure)?;
    let names = target.open().map_err(setup_failure_at(&target))?;
    check_unused(&*names)?;
    loop {
        let before = setting(&*names)?;
        let expect = |locks: Locks| Expect::Is(Value::from(word(locks).as_bytes()));
        if !put(&*names, before.map_or(Expect::Absent, expect), locks)? {
            continue;
        }
        // A node that has joined since may have read the setting of before.
        if let Err(failure) = check_unused(&*names) {
            put(&*names, expect(locks), before.unwrap_or(SHARED_LOCKS))?;
            return Err(failure);
        }
        return Ok(before);
    }
}

fn check_unused(names: &dyn Database) -> Result<()> {
    let sessions = names.sessions().map_err(unreached)?;
    let hosts: Vec<String> =
        sessions.iter().filter(|row| row.alive && !row.ended).map(|row| row.host.clone()).collect();
    if hosts.is_empty() {
        return Ok(());
    }
    Err(Failure::new("in-use", format!("nodes have the volume mounted: {}", hosts.join(", ")))
        .why("programs on nodes with different settings would not exclude each other")
        .next("unmount it on all nodes, then run the command again; covey sessions ADDRESS lists them"))
}
