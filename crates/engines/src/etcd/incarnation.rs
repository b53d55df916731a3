//! Which cluster answers. A snapshot that is restored makes a new cluster, or one that has forgotten its last
//! revisions.

use etcd_client::ResponseHeader;
use meta::engine::database::Incarnation;
use parking_lot::Mutex;

use super::errors::Failure;
use super::target::Target;

/// The cluster that a store has opened, and the highest revision that it has told.
#[derive(Clone, Copy)]
pub(super) struct Known {
    cluster: u64,
    revision: i64,
}

/// What a store has seen of its cluster. `None` before it has opened one.
#[derive(Default)]
pub(super) struct Opened(Mutex<Option<Known>>);

impl Opened {
    /// What is known now, to be compared with the answer of a request that begins after this.
    pub(super) fn known(&self) -> Option<Known> {
        *self.0.lock()
    }

    /// From now on, no other cluster is used.
    pub(super) fn set(&self, header: Option<&ResponseHeader>) {
        *self.0.lock() =
            header.map(|header| Known { cluster: header.cluster_id(), revision: header.revision() });
    }

    /// Takes note of the header of an answer to a request that began when this was known.
    ///
    /// # Errors
    /// It is not the cluster that was opened, or this cluster has forgotten what it had told.
    pub(super) fn meet(
        &self,
        target: &Target,
        before: Option<Known>,
        header: Option<&ResponseHeader>,
    ) -> Result<(), Failure> {
        let (Some(before), Some(header)) = (before, header) else { return Ok(()) };
        let server = target.server();
        if before.cluster != header.cluster_id() {
            return Err(Failure::refused(format!(
                "the cluster {server} is not the one that this node has opened: it was restored, or made anew; unmount this node and mount it again"
            )));
        }
        if before.revision > header.revision() {
            return Err(Failure::refused(format!(
                "the cluster {server} was put back to an earlier state (revision {} after {}); unmount this node and mount it again",
                header.revision(),
                before.revision
            )));
        }
        if let Some(known) = self.0.lock().as_mut() {
            known.revision = known.revision.max(header.revision());
        }
        Ok(())
    }
}

/// The cluster as other engines name theirs. It has no timelines, and does not tell when it began.
pub(super) fn of(header: Option<&ResponseHeader>) -> Incarnation {
    let cluster = header.map_or(0, ResponseHeader::cluster_id);
    Incarnation { place: format!("etcd {cluster:016x}"), timeline: 0, began: 0 }
}
