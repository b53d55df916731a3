//! A node's session in a shared volume: it is renewed in time, or the node answers nothing.
//!
//! A session lasts for [`LEASE`] by the database's clock, counted from its last renewal. This node counts
//! from *before* it asked for the renewal, and a fifth less. So it stops answering before the others may
//! consider it gone, whatever its clock says.
//!
//! After an outage, or after the process was stopped for long, the session may have ended. What was not
//! committed until then is lost, and fsync(2) of the files says so. Nothing of it is remembered, so the node
//! just joins again.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ::fs::volume::Volume;
use meta::engine::database::{Database, Join, Session};
use meta::lease::Leases;
use meta::shared::Term;
use meta::shared::outage::Outage;
use meta::store::StoreError;
use net::id::NodeId;
use parking_lot::{Condvar, Mutex};

use super::LEASE;
use crate::log;

/// How often the session is renewed.
const EVERY: Duration = Duration::from_secs(LEASE.as_secs() / 5);
/// How much of a lease this node does not count on.
const MARGIN: Duration = Duration::from_secs(LEASE.as_secs() / 5);
/// What has to be said before a renewal must not be older than this.
const FRESH: Duration = Duration::from_secs(LEASE.as_secs() / 2);

/// Keeps the session of a node.
pub(super) struct Keeper {
    names: Arc<dyn Database>,
    term: Arc<Term>,
    outage: Arc<Outage>,
    node: NodeId,
    address: String,
    leases: Mutex<Option<Arc<Leases>>>,
    stop: Mutex<bool>,
    stopped: Condvar,
}

impl Keeper {
    pub(super) fn new(
        names: Arc<dyn Database>,
        (term, outage): (Arc<Term>, Arc<Outage>),
        node: NodeId,
        address: String,
    ) -> Keeper {
        let (leases, stop, stopped) = (Mutex::new(None), Mutex::new(false), Condvar::new());
        Keeper { names, term, outage, node, address, leases, stop, stopped }
    }

    /// The leases, which end with the session.
    pub(super) fn guard(&self, leases: Arc<Leases>) {
        *self.leases.lock() = Some(leases);
    }

    /// The same again.
    pub(super) fn leases(&self) -> Option<Arc<Leases>> {
        self.leases.lock().clone()
    }

    /// Joins the volume.
    pub(super) fn join(&self, take_over: bool) -> Result<Session, StoreError> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let began = base::time::monotonic();
        let join = Join {
            node: self.node.0,
            host: host.trim(),
            address: &self.address,
            ttl: LEASE,
            take_over,
            program: env!("CARGO_PKG_VERSION"),
        };
        let session = self.names.join(&join)?;
        if let Err(error) = super::repairing::check_none(&*self.names) {
            let _ = self.names.leave();
            return Err(error);
        }
        self.term.extend(began, LEASE - MARGIN);
        Ok(session)
    }

    /// Continues the session of an earlier process of this node.
    pub(super) fn resume(&self, session: Session) -> Result<(), StoreError> {
        let began = base::time::monotonic();
        self.names.resume(&self.node.0, session, LEASE)?;
        self.term.extend(began, LEASE - MARGIN);
        Ok(())
    }

    /// Renews such a session, if much of it is over.
    pub(super) fn keep(&self) -> Result<(), StoreError> {
        if self.term.left() > LEASE - MARGIN - EVERY {
            return Ok(());
        }
        let began = base::time::monotonic();
        self.names.renew()?;
        self.term.extend(began, LEASE - MARGIN);
        Ok(())
    }

    /// Starts the thread that renews, and one that looks at the other nodes. That one may wait for the
    /// database, and a renewal must not wait behind it.
    pub(super) fn start(self: &Arc<Keeper>, volume: Weak<Volume>) -> std::io::Result<()> {
        let (keeper, looker, looked_at) = (self.clone(), self.clone(), volume.clone());
        base::thread::spawn("covey-others", move || looker.look(&looked_at))?;
        base::thread::spawn("covey-session", move || keeper.run(&volume)).map(drop)
    }

    /// Looks at what the other nodes use of quotas, how long the trash is kept, and at which of them renew
    /// their sessions. Without an answer, what was known before stays.
    fn look(&self, volume: &Weak<Volume>) {
        loop {
            {
                let mut stop = self.stop.lock();
                if !*stop {
                    self.stopped.wait_for(&mut stop, EVERY);
                }
                if *stop {
                    return;
                }
            }
            let Some(volume) = volume.upgrade() else { return };
            if self.term.lasts() {
                let _ = volume.look_at_others();
                let _ = volume.refresh_quotas();
                let _ = volume.refresh_trash();
            }
        }
    }

    /// Ends the thread, and the term: from now on nothing is answered.
    pub(super) fn stop(&self) {
        *self.stop.lock() = true;
        self.stopped.notify_all();
        self.term.end();
    }

    fn run(&self, volume: &Weak<Volume>) {
        let mut trouble: Option<Instant> = None;
        loop {
            {
                let mut stop = self.stop.lock();
                if !*stop {
                    let pause = if trouble.is_some() { EVERY / 3 } else { EVERY };
                    self.stopped.wait_for(&mut stop, pause);
                }
                if *stop {
                    return;
                }
            }
            let Some(volume) = volume.upgrade() else { return };
            let now = base::time::monotonic();
            match self.renew(&volume) {
                Ok(()) => {
                    if let Some(since) = trouble.take() {
                        let seconds = now.saturating_duration_since(since).as_secs();
                        log::line(&format!("the session is kept again, after {seconds} s"));
                    }
                }
                Err(error) => {
                    if trouble.is_none() {
                        trouble = Some(now);
                        log::warn(&format!(
                            "the session cannot be renewed: {error}; without it this node answers with errors"
                        ));
                    }
                }
            }
        }
    }

    fn renew(&self, volume: &Volume) -> Result<(), StoreError> {
        if !self.term.lasts() {
            // Nothing can be said before a new session, and this one may last no longer.
            return self.renew_or_join(volume);
        }
        let began = base::time::monotonic();
        volume.note_held_orphans()?;
        if base::time::monotonic().saturating_duration_since(began) > FRESH {
            return Err(StoreError::Unavailable("the database answers too slowly".to_owned()));
        }
        self.renew_or_join(volume)
    }

    fn renew_or_join(&self, volume: &Volume) -> Result<(), StoreError> {
        let began = base::time::monotonic();
        let renewed = self.names.renew();
        self.outage.note(&renewed);
        match renewed {
            Ok(_) => {
                self.extend(began);
                Ok(())
            }
            Err(StoreError::Fenced(_)) => {
                self.term.end();
                // Nothing that was remembered may be used in the next session.
                self.leases().iter().for_each(|leases| leases.session_ended());
                self.join(false)?;
                log::warn("the session had ended; this node has joined again");
                volume.joined_again();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn extend(&self, began: Instant) {
        if !*self.stop.lock() {
            self.term.extend(began, LEASE - MARGIN);
        }
    }
}
