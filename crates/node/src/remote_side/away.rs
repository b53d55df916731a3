//! An origin that could not be used when its volume was opened. A background thread tries to reach it until
//! it answers.
//!
//! Meanwhile the volume is mounted with the data on this node. When the origin answers, the thread checks
//! that it belongs to the volume, as opening would have done. A mismatch is logged and stays in the status.
//! Until the check succeeds, nothing is stored or deleted in the origin, because the origin itself checks
//! before it changes anything ([`Remote::see`]).

use std::sync::{Arc, Weak};
use std::time::Duration;

use api::status::remote_side::TroubleStatus;
use base::Timestamp;
use origin::{Mistake, OriginError, Remote};
use parking_lot::{Condvar, Mutex};

use crate::log;

/// The first pause between two attempts. Each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(15);

struct State {
    /// Why it cannot be used, and since when. None once it has been reached.
    trouble: Option<(String, Timestamp)>,
    stop: bool,
}

/// See the [module](self).
pub struct Away {
    state: Mutex<State>,
    stopped: Condvar,
}

impl Away {
    /// Starts trying to reach it. `back` is called once when that succeeds.
    pub fn look(remote: &Arc<Remote>, why: String, back: impl FnOnce() + Send + 'static) -> Arc<Away> {
        let state = State { trouble: Some((why, base::time::now())), stop: false };
        let away = Arc::new(Away { state: Mutex::new(state), stopped: Condvar::new() });
        let (own, remote) = (away.clone(), Arc::downgrade(remote));
        // Without a thread, the first change in the origin checks it.
        let _ = base::thread::spawn("covey-look", move || {
            if own.until_seen(&remote) {
                back();
            }
        });
        away
    }

    /// Stops the attempts.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.stopped.notify_all();
    }

    /// Why the origin cannot be used, until it has been reached.
    pub fn trouble(&self) -> Option<TroubleStatus> {
        let (why, since) = self.state.lock().trouble.clone()?;
        Some(TroubleStatus::of(why, since))
    }

    /// Tries until the origin is reached. False if it was stopped before.
    fn until_seen(&self, remote: &Weak<Remote>) -> bool {
        let mut pause = PAUSE;
        // The reason that was logged when the volume was opened is not logged again.
        let mut said = self.state.lock().trouble.as_ref().map(|(why, _)| why.clone()).unwrap_or_default();
        loop {
            {
                let mut state = self.state.lock();
                if !state.stop {
                    self.stopped.wait_for(&mut state, pause);
                }
                if state.stop {
                    return false;
                }
            }
            let Some(remote) = remote.upgrade() else { return false };
            match look(&remote) {
                Ok(()) => {
                    self.state.lock().trouble = None;
                    log::line("the origin serves again: it is used from now on");
                    return true;
                }
                Err(Wrong { why, answers }) => {
                    if answers && why != said {
                        log::warn(&format!("the origin answers and cannot be used: {why}"));
                        said.clone_from(&why);
                    }
                    let mut state = self.state.lock();
                    if let Some((last, _)) = &mut state.trouble {
                        *last = why;
                    }
                }
            }
            pause = PAUSE_MAX.min(pause * 2);
        }
    }
}

/// Why the origin cannot be used, and whether it answers at all.
struct Wrong {
    why: String,
    answers: bool,
}

/// Makes the checks that opening the volume would have made. The claim on the origin has its own thread
/// (`crate::claim`).
fn look(remote: &Remote) -> Result<(), Wrong> {
    remote.see().map_err(|error| match error {
        OriginError::Remote { mistake, what, .. } => {
            Wrong { why: what, answers: !matches!(mistake, Mistake::Busy | Mistake::Endpoint) }
        }
        other => Wrong { why: other.to_string(), answers: true },
    })
}
