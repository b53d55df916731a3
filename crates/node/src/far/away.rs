//! An origin that could not be used when its volume was opened: it is looked for in the background until it has been seen.
//!
//! The volume is mounted meanwhile with what is on this node. When the origin answers it is compared with what the volume expects, as an open
//! would have done: whose place it is. What does not fit is said, and stays in the status; nothing is stored or deleted
//! there meanwhile, because the origin itself looks before it changes anything ([`Remote::see`]).

use std::sync::{Arc, Weak};
use std::time::Duration;

use api::status::far::TroubleStatus;
use base::Timestamp;
use origin::{Mistake, OriginError, Remote};
use parking_lot::{Condvar, Mutex};

use crate::log;

/// The first pause between two looks; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(15);

struct State {
    /// Why it cannot be used, and since when; none once it was seen.
    trouble: Option<(String, Timestamp)>,
    stop: bool,
}

/// See the [module](self).
pub struct Away {
    state: Mutex<State>,
    stopped: Condvar,
}

impl Away {
    /// Looks for it from now on. `back` is called once when it was seen.
    pub fn look(remote: &Arc<Remote>, why: String, back: impl FnOnce() + Send + 'static) -> Arc<Away> {
        let state = State { trouble: Some((why, base::time::now())), stop: false };
        let away = Arc::new(Away { state: Mutex::new(state), stopped: Condvar::new() });
        let (own, remote) = (away.clone(), Arc::downgrade(remote));
        // Without a thread the origin is seen by the first that changes something in it.
        let _ = base::thread::spawn("covey-look", move || {
            if own.until_seen(&remote) {
                back();
            }
        });
        away
    }

    /// Ends the looking.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.stopped.notify_all();
    }

    /// Why the origin cannot be used, until it has been seen.
    pub fn trouble(&self) -> Option<TroubleStatus> {
        let (why, since) = self.state.lock().trouble.clone()?;
        Some(TroubleStatus::of(why, since))
    }

    /// Whether it was seen, and not stopped before.
    fn until_seen(&self, remote: &Weak<Remote>) -> bool {
        let mut pause = PAUSE;
        // What was said when the volume was opened is not said again.
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

/// Why it cannot be used, and whether it answers at all.
struct Wrong {
    why: String,
    answers: bool,
}

/// Does what opening the volume would have done; the claim on the origin has a look-out of its own (`crate::claim`).
fn look(remote: &Remote) -> Result<(), Wrong> {
    remote.see().map_err(|error| match error {
        OriginError::Remote { mistake, what, .. } => {
            Wrong { why: what, answers: !matches!(mistake, Mistake::Busy | Mistake::Endpoint) }
        }
        other => Wrong { why: other.to_string(), answers: true },
    })
}
