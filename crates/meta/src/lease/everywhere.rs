//! Waits until the engine has what all nodes have acknowledged. A snapshot of the engine holds it then.
//!
//! A node is asked by a recall of [`EVERYTHING`], which is the number of no unit. It gives nothing back: it
//! writes back what it has acknowledged, and answers. A node that does not answer may have acknowledged more.
//! When its session has ended, that is in the engine, or lost. So the end of the session is waited for.

use std::time::Duration;

use base::Ino;

use super::row::Holder;
use super::{Core, Leases, PATIENCE, not_joined};
use crate::store::StoreError;

/// What is recalled of a node that only has to write back.
pub(super) const EVERYTHING: Ino = Ino(0);
/// How long this node waits before it asks again.
const AGAIN: Duration = Duration::from_millis(200);

impl Leases {
    /// Waits until what all nodes have acknowledged before this call is in the engine.
    ///
    /// # Errors
    /// A node does not answer, and its session lasts. Or the changes of this one could not be stored in time.
    pub fn flush_everywhere(&self) -> Result<(), StoreError> {
        self.core.flush_everywhere()
    }
}

impl Core {
    /// See [`Leases::flush_everywhere`].
    pub(super) fn flush_everywhere(&self) -> Result<(), StoreError> {
        self.drain_all()?;
        let until = base::time::monotonic() + PATIENCE;
        let me = self.nodes.me().ok_or_else(not_joined)?;
        let mut left: Vec<Holder> = self.nodes.alive()?;
        left.retain(|holder| holder.node != me.node);
        loop {
            let mut silent = None;
            left.retain(|holder| match self.nodes.recall(holder.node, EVERYTHING, 0) {
                Ok(()) => false,
                Err(why) => {
                    silent = Some((holder.node, why));
                    true
                }
            });
            let Some((node, why)) = silent else { return Ok(()) };
            self.term.check()?;
            let alive = self.nodes.alive()?;
            left.retain(|holder| alive.contains(holder));
            if left.is_empty() {
                return Ok(());
            }
            if base::time::monotonic() > until {
                return Err(StoreError::Unavailable(format!(
                    "the node {node} may have changes that are not in the database, and does not say so: {why}"
                )));
            }
            std::thread::sleep(AGAIN);
        }
    }
}
