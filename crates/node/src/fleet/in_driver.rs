//! A program in the driver of an interface answers other nodes' questions about blobs (crate [`watch`]). It
//! has a copy of the names of this node's blobs.

use std::sync::Arc;

use ::watch::WatchError;
use ::watch::driver::{DriverWatch, Mode, Target};
use api::status::fleet::InDriver as Status;
use fleet::directory::{Mirror, Name, Proof};
use fleet::node::Fleet;
use parking_lot::Mutex;

use crate::log;

struct State {
    watch: DriverWatch,
    /// There was a name without room. Then the program must not say that a blob is not here.
    is_full: bool,
}

impl State {
    /// The copy lacks a name from now on.
    fn lacks(&mut self, why: &str) {
        if !std::mem::replace(&mut self.is_full, true) {
            let _ = self.watch.set_complete(false);
            log::warn(&format!("fleet: the daemon answers some questions about blobs itself: {why}"));
        }
    }
}

/// The program, until its copy of the names is dropped.
pub struct InDriver {
    interface: String,
    state: Arc<Mutex<State>>,
}

struct Copy(Arc<Mutex<State>>);

impl Mirror for Copy {
    fn insert(&mut self, name: &Name, proof: &Proof) {
        let mut state = self.0.lock();
        match state.watch.insert(name, proof) {
            Ok(true) => {}
            Ok(false) => state.lacks("the driver's table is full"),
            Err(error) => state.lacks(&error.to_string()),
        }
    }

    fn remove(&mut self, name: &Name) {
        // A name that stays says that a blob is here which is not. The node that asks finds that out.
        let _ = self.0.lock().watch.remove(name);
    }

    fn complete(&mut self) {
        let mut state = self.0.lock();
        if !state.is_full
            && let Err(error) = state.watch.set_complete(true)
        {
            state.lacks(&error.to_string());
        }
    }
}

impl InDriver {
    /// Attaches the program to an interface. If that fails, says why; the daemon answers then.
    pub fn start(fleet: &Fleet, interface: &str) -> Option<InDriver> {
        let asked_port = fleet.address()?.port();
        match InDriver::attach(fleet, interface, asked_port) {
            Ok(program) => Some(program),
            Err(error) => {
                log::warn(&format!("fleet: only the daemon answers questions about blobs: {error}"));
                None
            }
        }
    }

    fn attach(fleet: &Fleet, interface: &str, asked_port: u16) -> Result<InDriver, WatchError> {
        let target = Target { interface: interface.to_owned(), served_port: 0, asked_port };
        let watch = DriverWatch::attach(&target)?;
        let state = Arc::new(Mutex::new(State { watch, is_full: false }));
        fleet.mirror(Box::new(Copy(state.clone())));
        Ok(InDriver { interface: interface.to_owned(), state })
    }

    /// What it did.
    pub fn status(&self) -> Status {
        let state = self.state.lock();
        let totals = state.watch.totals().unwrap_or_default();
        Status {
            interface: self.interface.clone(),
            mode: match state.watch.mode() {
                Mode::Driver => "driver",
                Mode::Kernel => "kernel",
            }
            .to_owned(),
            answered: totals.answered,
            passed: totals.passed,
            is_full: state.is_full,
        }
    }
}
