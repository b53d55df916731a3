//! Ctrl-C during a long copy: the first signal asks it to stop, the second ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use api::error::{Failure, Result};
use node::signals;

use crate::term::Term;

/// Whether it was asked to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Takes the signals from now on. Threads started before this are ended by them as before.
    pub fn by_signal(term: Term) -> Result<Stop> {
        signals::block();
        let stop = Stop::default();
        let asked = stop.clone();
        let work = move || {
            signals::next();
            asked.0.store(true, Ordering::Relaxed);
            term.say("stopping: what has arrived is completed. Ctrl-C again ends it at once");
            signals::next();
            std::process::exit(130);
        };
        base::thread::spawn("covey-signals", work)
            .map_err(|error| Failure::io("cannot start a thread", &error))?;
        Ok(stop)
    }

    /// Whether it was asked to stop.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
