//! The thread that checks whether a volume's claim on its origin still holds.

use std::sync::{Arc, Weak};

use api::error::{Failure, Result};
use fs::volume::Volume;
use origin::claim::{LOOK, Standing};
use parking_lot::{Condvar, Mutex};

use super::{Trouble, Writer};
use crate::log;

/// The thread that checks the claim. It stops when this is dropped.
pub struct Watch {
    stop: Arc<(Mutex<bool>, Condvar)>,
}

impl Drop for Watch {
    /// Does not wait for a check that is under way, because it may wait for the origin. It then finds the
    /// volume gone.
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
    }
}

/// Starts the thread. It calls `back` when the origin belongs to this volume again, or for the first time.
pub fn start(writer: Writer, volume: &Arc<Volume>, back: Box<dyn Fn() + Send>) -> Result<Watch> {
    let stop = Arc::new((Mutex::new(false), Condvar::new()));
    let looking = Looking {
        seen: writer.keeper().standing(),
        writer,
        volume: Arc::downgrade(volume),
        back,
        stop: stop.clone(),
    };
    base::thread::spawn("covey-claim", move || looking.run())
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    Ok(Watch { stop })
}

struct Looking {
    writer: Writer,
    volume: Weak<Volume>,
    back: Box<dyn Fn() + Send>,
    seen: Standing,
    stop: Arc<(Mutex<bool>, Condvar)>,
}

impl Looking {
    fn run(mut self) {
        loop {
            {
                let (stop, changed) = &*self.stop;
                let mut stop = stop.lock();
                if !*stop {
                    changed.wait_for(&mut stop, LOOK);
                }
                if *stop {
                    return;
                }
            }
            self.look();
            self.tell();
        }
    }

    fn look(&self) {
        let keeper = self.writer.keeper();
        if let Standing::Lost { .. } | Standing::Closed = keeper.standing() {
            return;
        }
        if keeper.standing() != Standing::Unclaimed {
            // The state of the claim shows a problem. Uploads report an origin that does not answer.
            let _ = keeper.verify();
            return;
        }
        let Some(volume) = self.volume.upgrade() else { return };
        match self.writer.claim(origin::claim::decide::Wish::Open) {
            Ok(_) => self.writer.try_to_hold_published(&*volume.parts().store),
            Err(Trouble::Away(_) | Trouble::Gone(_)) => {}
            Err(Trouble::Failed(failure)) => keeper.refuse(&failure.in_one_line()),
        }
    }

    /// Acts on a change of the claim's state.
    fn tell(&mut self) {
        let now = self.writer.keeper().standing();
        let same = std::mem::discriminant(&now) == std::mem::discriminant(&self.seen);
        let before = std::mem::replace(&mut self.seen, now.clone());
        if same {
            return;
        }
        match now {
            Standing::Lost { why, .. } => {
                if let Some(volume) = self.volume.upgrade() {
                    volume.turn_read_only();
                }
                log::error(&format!(
                    "this volume may not write to its origin any more: {why}. Changes are refused from now on; what was written is on this node, \
                     and what is not uploaded stays here (covey export reads it)"
                ));
            }
            Standing::Gone { why, .. } => log::error(&format!(
                "the origin is gone: {why}. What is written stays on this node; nothing is uploaded, deleted or published"
            )),
            Standing::Held { .. } => {
                if before == Standing::Unclaimed {
                    log::line("the origin answers, and is claimed");
                } else {
                    log::line("the origin answers again");
                }
                (self.back)();
            }
            Standing::Unclaimed | Standing::Closed => {}
        }
    }
}
