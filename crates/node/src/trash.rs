//! The trash of a mounted volume: what the mount's options say of it, and what commands ask.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use api::answers::TrashKept;
use api::control::{Tick, TrashOrder, Wire};
use api::error::{Failure, Result};
use fuse::Session;
use serde_json::Value;

use crate::kernel::Kernel;
use crate::mount::Mount;
use crate::options::KeepTrash;

/// How long a command may take for a part of a list.
const PAGER: Duration = Duration::from_secs(600);

/// Sets what the options of the mount say. If that fails, the mount is closed. A mount that only reads leaves
/// the volume's setting as it is: the options may be those that a configuration file gives to all mounts.
pub fn keep(mount: &Mount, keep: KeepTrash) -> Result<()> {
    let keep = match keep {
        KeepTrash::AsIs => return Ok(()),
        KeepTrash::Off => None,
        KeepTrash::For(time) => Some(time),
    };
    let Some(node) = mount.as_node().filter(|node| node.mode().writes()) else { return Ok(()) };
    let done = node.set_trash(keep);
    if done.is_err() {
        mount.close()?;
    }
    done
}

/// Lists what is in the trash: a note for each part of it.
pub fn list(mount: &Mount, wire: &Wire<'_>) -> Result<TrashKept> {
    let node = mount.node()?;
    // A person may read the list in a pager.
    let _ = wire.stream().set_write_timeout(Some(PAGER));
    let mut is_taken = true;
    let kept = node.list_trash(&mut |part| {
        is_taken = wire.note(&part);
        if is_taken { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    match is_taken {
        true => Ok(kept),
        false => Err(Failure::new("no-answer", "the command did not take the whole list in time")),
    }
}

/// Answers a command. The kernel hears of the names that are there again.
pub fn serve(
    mount: &Mount,
    session: &Session,
    order: TrashOrder,
    tick: &mut dyn FnMut(Tick),
) -> Result<serde_json::Result<Value>> {
    let node = mount.node()?;
    Ok(match order {
        TrashOrder::List => return Err(Failure::usage("this is not answered at once")),
        TrashOrder::Set { seconds } => {
            serde_json::to_value(node.set_trash(seconds.map(Duration::from_secs))?)
        }
        TrashOrder::Restore { what, to, all } => {
            let kernel = Kernel::new(node.shown(), session.notifier());
            let to = to.map(PathBuf::from);
            let done = node.restore_trash(&what, to.as_deref(), all, &kernel, tick);
            kernel.settle();
            serde_json::to_value(done?)
        }
        TrashOrder::Empty { older_seconds } => {
            serde_json::to_value(node.empty_trash(Duration::from_secs(older_seconds), tick)?)
        }
    })
}
