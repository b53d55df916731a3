//! A node's session in a shared volume: it is renewed in time, or the node answers nothing.
//!
//! A session lasts for [`LEASE`] by the database's clock, counted from its last renewal. This node counts
//! from *before* it asked for the renewal, and a fifth less. So it stops answering before the others may
//! consider it gone, whatever its clock says.
//!
//! It counts by a clock that goes on while the machine sleeps. After a sleep, the session is renewed at once.
//! The kernel's clock did not go on, so the kernel is told to drop what it keeps until the session ends.
//!
//! After an outage, or after the process was stopped for long, the session may have ended. What was not
//! committed until then is lost, and fsync(2) of the files says so. Nothing of it is remembered, so the node
//! just joins again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use ::fs::volume::Volume;
use base::time::{BootTime, Sleeps, boot};
use meta::engine::database::{Database, Incarnation, Join, Session};
use meta::lease::Leases;
use meta::shared::Term;
use meta::shared::outage::Outage;
use meta::store::StoreError;
use net::id::NodeId;
use parking_lot::{Condvar, Mutex};

use super::claiming::Claims;
use super::engine_seen::EngineSeen;
use super::peers::Peers;
use super::{EVERY, LEASE};
use crate::log;

/// How much of a lease this node does not count on.
const MARGIN: Duration = Duration::from_secs(LEASE.as_secs() / 5);
/// What has to be said before a renewal must not be older than this.
const FRESH: Duration = Duration::from_secs(LEASE.as_secs() / 2);

/// How long a renewal waits until a database that began anew has all again.
const STORED_AGAIN: Duration = Duration::from_secs(2);

/// How often it is looked whether the machine was asleep.
const LOOK: Duration = Duration::from_millis(250);

/// So many looks at other nodes come before one at the claim on the origin.
const CLAIM: u32 = 10;

/// What was seen of the claim on the origin.
struct Claimed {
    seen: Option<Incarnation>,
    /// How many looks at other nodes there were since.
    rounds: u32,
    /// The log has it that the claim is lost.
    told: bool,
}

/// What the threads of a keeper are to do.
#[derive(Default)]
struct Orders {
    stop: bool,
    /// Renew the session now.
    renew: bool,
}

/// Keeps the session of a node.
pub(super) struct Keeper {
    names: Arc<dyn Database>,
    term: Arc<Term>,
    outage: Arc<Outage>,
    node: NodeId,
    address: String,
    /// The claim on the origin, if this node writes.
    claims: Option<Arc<Claims>>,
    seen: Arc<EngineSeen>,
    leases: Mutex<Option<Arc<Leases>>>,
    orders: Mutex<Orders>,
    ordered: Condvar,
}

impl Keeper {
    pub(super) fn new(
        names: Arc<dyn Database>,
        (term, outage): (Arc<Term>, Arc<Outage>),
        node: NodeId,
        address: String,
        claims: Option<Arc<Claims>>,
    ) -> Keeper {
        let (leases, orders, ordered) = (Mutex::default(), Mutex::default(), Condvar::new());
        let seen = Arc::new(EngineSeen::now(&*names));
        Keeper { names, term, outage, node, address, claims, seen, leases, orders, ordered }
    }

    /// The claim on the origin, if this node writes.
    pub(super) fn claims(&self) -> Option<Arc<Claims>> {
        self.claims.clone()
    }

    /// Notices from now on when another server of the database answers.
    pub(super) fn watch(self: &Arc<Keeper>) {
        let keeper = Arc::downgrade(self);
        self.names.on_another_server(Box::new(move |found| {
            let Some(keeper) = keeper.upgrade() else { return };
            // It may have forgotten what it had confirmed.
            keeper.leases().iter().for_each(|leases| leases.engine_began_anew());
            // Later: from then on, what the database says is taken for the truth.
            keeper.seen.note(found);
            keeper.orders.lock().renew = true;
            keeper.ordered.notify_all();
        }));
    }

    /// Which database has answered.
    pub(super) fn seen(&self) -> Arc<EngineSeen> {
        self.seen.clone()
    }

    /// The leases, which end with the session.
    pub(super) fn guard(&self, leases: Arc<Leases>) {
        *self.leases.lock() = Some(leases);
    }

    /// Returns the leases, which end with the session.
    pub(super) fn leases(&self) -> Option<Arc<Leases>> {
        self.leases.lock().clone()
    }

    /// Joins the volume.
    pub(super) fn join(&self, take_over: bool) -> Result<Session, StoreError> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let began = boot();
        let join = Join {
            node: self.node.0,
            host: host.trim(),
            address: &self.address,
            ttl: LEASE,
            take_over,
            program: env!("CARGO_PKG_VERSION"),
        };
        let session = self.names.join(&join)?;
        let checked = super::repairing::check_none(&*self.names);
        if let Err(error) = checked.and_then(|()| self.seen.begin(&*self.names)) {
            let _ = self.names.leave();
            return Err(error);
        }
        self.term.extend(began, LEASE - MARGIN);
        Ok(session)
    }

    /// Continues the session of an earlier process of this node.
    pub(super) fn resume(&self, session: Session) -> Result<(), StoreError> {
        let began = boot();
        self.names.resume(&self.node.0, session, LEASE)?;
        self.seen.begin(&*self.names)?;
        self.term.extend(began, LEASE - MARGIN);
        Ok(())
    }

    /// Renews such a session, if much of it is over. It may have been renewed at the same time.
    pub(super) fn keep(&self) -> Result<(), StoreError> {
        if self.term.left() > LEASE - MARGIN - EVERY {
            return Ok(());
        }
        let began = boot();
        self.names.renew()?;
        self.term.extend(began, LEASE - MARGIN);
        Ok(())
    }

    /// Starts the thread that renews, one that looks at the other nodes, one for those that cannot reach this
    /// one, and one that notices when the machine was asleep. The first three may wait for the database, and
    /// the others must not wait behind them.
    pub(super) fn start(self: &Arc<Keeper>, volume: Weak<Volume>, peers: Arc<Peers>) -> std::io::Result<()> {
        let [keeper, looker, reacher, waker] = std::array::from_fn(|_| self.clone());
        let (looked_at, wanted_of) = (volume.clone(), volume.clone());
        base::thread::spawn("covey-others", move || looker.look(&looked_at))?;
        base::thread::spawn("covey-reach", move || reacher.look_around(&wanted_of, &peers))?;
        base::thread::spawn("covey-sleeps", move || waker.notice_sleeps(Sleeps::from_now()))?;
        base::thread::spawn("covey-session", move || keeper.run(&volume)).map(drop)
    }

    /// Looks at what the other nodes use of quotas, how long the trash is kept, and at which of them renew
    /// their sessions. Without an answer, what was known before stays.
    fn look(&self, volume: &Weak<Volume>) {
        let mut claimed = Claimed { seen: None, rounds: 0, told: false };
        while self.goes_on(EVERY, |_| false) {
            let Some(volume) = volume.upgrade() else { return };
            if self.term.lasts() {
                self.look_at_claim(&volume, &mut claimed);
                if self.claims.is_some() {
                    let _ = self.seen.write(&*self.names);
                }
                let _ = volume.look_at_others();
                let _ = volume.refresh_quotas();
                let _ = volume.refresh_trash();
            }
        }
    }

    /// Looks whether the other nodes reach this one, and what they want if not.
    fn look_around(&self, volume: &Weak<Volume>, peers: &Peers) {
        while self.goes_on(EVERY, |_| false) {
            let Some(volume) = volume.upgrade() else { return };
            if self.term.lasts() {
                peers.look_around(&volume);
            }
        }
    }

    /// Looks at the claim on the origin now and then, and at once when another server answers.
    fn look_at_claim(&self, volume: &Volume, claimed: &mut Claimed) {
        let Some(claims) = &self.claims else { return };
        let now = self.seen.last();
        claimed.rounds += 1;
        if claimed.seen == now && claimed.rounds < CLAIM {
            return;
        }
        (claimed.seen, claimed.rounds) = (now, 0);
        match claims.look(&*volume.parts().origin) {
            Some(why) if !std::mem::replace(&mut claimed.told, true) => log::warn(&format!(
                "another database holds the names of this volume: {why}; nothing is deleted in the origin; unmount this node"
            )),
            Some(_) => {}
            None => claimed.told = false,
        }
    }

    /// Waits for so long, or until `is_due`. False: this keeper has ended.
    fn goes_on(&self, pause: Duration, is_due: impl Fn(&Orders) -> bool) -> bool {
        let mut orders = self.orders.lock();
        self.ordered.wait_while_for(&mut orders, |orders| !orders.stop && !is_due(orders), pause);
        !orders.stop
    }

    /// After a sleep of the machine: has the session renewed, and makes the kernel forget.
    fn notice_sleeps(&self, mut sleeps: Sleeps) {
        let mut keeps = false;
        while self.goes_on(LOOK, |_| false) {
            if sleeps.happened() {
                self.orders.lock().renew = true;
                self.ordered.notify_all();
                keeps = true;
            }
            keeps = keeps && !self.kernel_forgets();
        }
    }

    /// Makes the kernel drop what it was to keep until the session ends. False: it could not be done in time.
    fn kernel_forgets(&self) -> bool {
        self.leases().is_none_or(|leases| leases.kernel_forgets())
    }

    /// Ends the threads, and the term: from now on nothing is answered.
    pub(super) fn stop(&self) {
        self.orders.lock().stop = true;
        self.ordered.notify_all();
        self.term.end();
    }

    fn run(&self, volume: &Weak<Volume>) {
        let mut trouble: Option<BootTime> = None;
        loop {
            let pause = match trouble {
                _ if self.seen.is_new() => EVERY / 6,
                Some(_) => EVERY / 3,
                None => EVERY,
            };
            if !self.goes_on(pause, |orders| orders.renew) {
                return;
            }
            self.orders.lock().renew = false;
            let Some(volume) = volume.upgrade() else { return };
            let now = boot();
            match self.renew(&volume) {
                Ok(()) => {
                    if let Some(since) = trouble.take() {
                        let seconds = now.since(since).as_secs();
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
        let began = boot();
        volume.note_held_orphans()?;
        if boot().since(began) > FRESH {
            return Err(StoreError::Unavailable("the database answers too slowly".to_owned()));
        }
        self.renew_or_join(volume)
    }

    fn renew_or_join(&self, volume: &Volume) -> Result<(), StoreError> {
        // Whether another server answers now is noticed here, and not with the renewal. By that, other nodes
        // see that this one lacks nothing.
        let _ = self.names.incarnation();
        self.leases().iter().for_each(|leases| leases.wait_until_stored_again(STORED_AGAIN));
        let began = boot();
        let renewed = self.names.renew();
        self.outage.note(&renewed);
        match renewed {
            Ok(renewed) => {
                self.seen.note(&renewed.incarnation);
                self.extend(began);
                Ok(())
            }
            Err(StoreError::Fenced(_)) => {
                self.term.end();
                // After a sleep, the kernel does not forget by itself in time.
                if !self.kernel_forgets() {
                    let why = "this node's kernel does not give up what it keeps yet";
                    return Err(StoreError::Unavailable(why.to_owned()));
                }
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

    fn extend(&self, began: BootTime) {
        if !self.orders.lock().stop {
            self.term.extend(began, LEASE - MARGIN);
        }
    }
}
