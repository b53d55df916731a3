//! A volume that several nodes write to at the same time: what this node knows of the others.
//!
//! The names are in a database that all nodes use. This module holds what is left to agree on:
//!
//! - **A pack belongs to the node that writes it.** Its number says which node that is ([`owner`]). Only the
//!   owner has its bytes until they are in the origin, so other nodes read them from the owner.
//! - **Nothing is remembered that another node can change.** A read looks up the names again: in memory where
//!   this node has a lease ([`meta::lease`]), in the database otherwise. Of the pack table, only packs that
//!   are in the origin are remembered.
//! - **What fsync(2) synced is on a second disk**, if the mount asks for that, until the origin has it:
//!   [`keeping`].
//! - **Equal bytes are not searched for**: that would decide about packs that other nodes may be about to
//!   refer to.
//! - **Blobs are deleted when no node can refer to them any more**, and compacted while nodes refer to them:
//!   see [`crate::gc::shared`].
//! - **Locks are rows too**, if the mount asks for that: see `shared/locks.rs`.
//! - **An inode without a name lives while any node holds it**: see [`crate::gc::shared_orphans`].
//! - **What a write makes of the bytes that it found** (an inline file) is committed only if the file has not
//!   changed since. A lock of this process is not enough.

pub(crate) mod keeping;
pub(crate) mod locks;
mod sender;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use base::PackNo;
use blob::{BlobError, Kept};
use meta::lease::Leases;
use meta::store::StoreError;

pub use keeping::{Keeping, KeepingStats};

use crate::api::Locks;
use crate::volume::Volume;

/// The number of a pack within its node has this many bits; the bits above are the node.
const OWN_BITS: u32 = 40;
/// Nodes have numbers from 1 to this.
pub const NODE_MAX: u32 = (1 << 23) - 1;

/// The node that writes a pack.
pub fn owner(pack: PackNo) -> u32 {
    (pack.0 >> OWN_BITS) as u32
}

/// The pack with this number (below 2^40) of a node.
pub(crate) fn pack_of(node: u32, number: u64) -> Option<PackNo> {
    (number >> OWN_BITS == 0).then(|| PackNo(u64::from(node) << OWN_BITS | number))
}

/// What a node knows of the others. Part of [`crate::volume::Options`].
#[derive(Clone)]
pub struct Sharing {
    /// The number of this node in the volume: 1 to [`NODE_MAX`].
    pub node: u32,
    /// Where bytes of other nodes' packs are read.
    pub others: Arc<dyn Others>,
    /// How long a node that does not renew its session is still considered alive.
    pub lease: Duration,
    /// How long a blob stays in the origin after nothing refers to it any more.
    pub delay: Duration,
    /// Where locks on files are decided.
    pub locks: Locks,
    /// What lets this node answer and change names in memory. `None` in tests of what has no leases.
    pub leases: Option<Arc<Leases>>,
    /// What is known of second copies of this node's packs, if fsync(2) makes some.
    pub keeping: Option<Arc<Keeping>>,
    /// Copies of other nodes' packs on this node.
    pub kept: Option<Arc<dyn Kept>>,
}

/// What another node is asked to do with its copy of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Write the bytes to it.
    Write,
    /// Write the bytes to the copy, and answer when all that was written to it survives a power cut.
    Sync,
    /// Delete it: the origin has the pack.
    Drop,
}

/// A range of a pack for another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeepRange {
    /// Which pack.
    pub pack: PackNo,
    /// Where in it the bytes are.
    pub offset: u32,
    /// What is to be done.
    pub what: Keep,
    /// At most 16 KiB.
    pub bytes: Vec<u8>,
}

/// A session of a node. A node that joins again has another epoch, and no epoch comes twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionId {
    /// The node's number.
    pub node: u32,
    /// How often it had joined.
    pub epoch: u64,
}

/// The other nodes of a shared volume.
pub trait Others: Send + Sync {
    /// Asks the owner of a pack for bytes of it. Fills `buf` only for [`FromOwner::Bytes`].
    ///
    /// # Errors
    /// `Unavailable`: the owner does not answer.
    fn read(&self, pack: PackNo, offset: u32, buf: &mut [u8]) -> Result<FromOwner, BlobError>;

    /// Fills `buf` with bytes of another node's pack if that node has sent them with names. Does not ask
    /// another machine.
    fn was_sent(&self, _: PackNo, _: u32, _: &mut [u8]) -> bool {
        false
    }

    /// Asks the owner of a pack, which does not answer this node, to store it in the origin: by the database.
    /// False: that node is gone.
    fn want_stored(&self, _: PackNo) -> bool {
        false
    }

    /// The pack is not wanted any more.
    fn is_stored(&self, _: PackNo) {}

    /// The sessions that have not ended, this node's included. A session that is not among them never
    /// changes a row again.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn alive(&self) -> Result<Vec<SessionId>, StoreError>;

    /// Asks the database whether it is still the one that this node knows, and has been for so long. A server
    /// that began anew may lack what was confirmed last, until all nodes have sent it again.
    ///
    /// # Errors
    /// `Unavailable`: it is another one, or does not answer.
    fn check_engine(&self, _for_at_least: Duration) -> Result<(), StoreError> {
        Ok(())
    }

    /// The other nodes that may keep copies of this node's packs. The first is asked first.
    ///
    /// # Errors
    /// See [`StoreError`].
    fn keepers(&self) -> Result<Vec<SessionId>, StoreError> {
        Ok(Vec::new())
    }

    /// Has a node keep these ranges, in any order. Returns the number of its run: the same as long as its
    /// program was not started anew.
    ///
    /// # Errors
    /// A sentence. Some may be kept.
    fn keep(&self, _: SessionId, _: &[KeepRange]) -> Result<u64, String> {
        Err("nodes do not keep packs of one another".to_owned())
    }

    /// The epoch of this node's session: the last one, if it has ended. Does not ask another machine.
    fn epoch(&self) -> Option<u64>;
}

/// What the owner of a pack says about bytes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromOwner {
    /// The bytes are in the buffer.
    Bytes,
    /// The pack is a blob, and the origin has it.
    InOrigin,
    /// There is no such pack any more: the names say something else by now.
    Gone,
}

impl Volume {
    /// Looks at the sessions of the other nodes of a shared volume ([`Others::alive`]).
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn look_at_others(&self) -> Result<(), StoreError> {
        self.core.options.shared.as_ref().map_or(Ok(()), |sharing| sharing.others.alive().map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packs_number_says_which_node_writes_it() {
        assert_eq!(owner(pack_of(7, 12).unwrap()), 7);
        assert_eq!(owner(pack_of(NODE_MAX, (1 << OWN_BITS) - 1).unwrap()), NODE_MAX);
        assert!(pack_of(1, 1 << OWN_BITS).is_none());
        // SQLite stores numbers of packs as signed integers.
        assert!(pack_of(NODE_MAX, (1 << OWN_BITS) - 1).unwrap().0 <= i64::MAX as u64);
        assert_eq!(owner(PackNo(5)), 0, "packs of an exclusive volume belong to no node");
    }
}
