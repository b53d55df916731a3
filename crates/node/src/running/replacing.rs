//! The volume of a mount is closed and opened again while programs use the mount: a volume of one node
//! becomes a shared one.
//!
//! ```text
//!   command                                  daemon
//!   locks VOLUME/promoting
//!   asks HandOver ─────────────────────────► lets no further request of the kernel begin, waits for those
//!                 ◄───────────────────────── that have begun
//!   waits until the folder is free           takes out what the kernel uses, closes the volume
//!   promotes the folder, unlocks ──────────► opens what is there now: the shared volume, or that of before
//!                                            tells the database what is open and locked, completes the
//!                                            promotion, and serves the requests that have waited
//! ```
//!
//! The connection to the kernel stays, and with it all that programs have open. So the flags that the kernel
//! took at the mount must be right for both volumes ([`fuse::swap`]), and they cost an exclusive mount much.
//! That is why it is an option. With other flags a second connection, mounted over the first one, would not
//! help: files that are open stay with the first one, whose kernel believes its own sizes, and two nodes that
//! append to such a file would overwrite each other.
//!
//! The kernel releases the lock of VOLUME/promoting when the command ends, whatever the reason. From the
//! rename of `covey.json` on the folder is a node's. If it cannot be opened then (the database is away), the
//! daemon tries again, and requests fail after the deadline of the mount.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::error::{Failure, Result};
use fs::handover::Handed;
use fuse::Session;

use super::serving::Daemon;
use super::{Plan, Running, listen, node_options, publishers, show_heat};
use crate::fleet::options::FleetOptions;
use crate::log;
use crate::mount::Mount;
use crate::opened::Source;
use crate::refused::not_a_volume;
use crate::shared::promoting::handover::UnderWay;
use crate::volume_dir::VolumeDir;

/// How long requests that have begun may take to end. Then the volume is served as before.
const PAUSE: Duration = Duration::from_secs(20);
/// How often a volume that cannot be opened is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// How often the daemon looks meanwhile whether it shall end.
const LOOK: Duration = Duration::from_millis(50);

/// The code of the failure of a mount whose volume must be unmounted to be promoted.
pub const NOT_PROMOTABLE: &str = "not-promotable";

impl Daemon {
    /// A promotion asks for the volume. From now on the kernel's requests wait.
    pub(super) fn hand_over(&self, mount: &Mount) -> Result<()> {
        let dir = mount.node()?.dir().ok_or_else(|| not_a_volume(&mount.name()))?;
        if !self.is_replaceable || dir.is_shared() {
            return Err(Failure::new(NOT_PROMOTABLE, "this mount cannot go on while its volume is promoted")
                .next("mount it with -o promotable"));
        }
        if UnderWay::of(dir).is_none() {
            return Err(Failure::usage("no promotion of this volume is under way")
                .next("begin one: covey promote FOLDER ADDRESS"));
        }
        if !self.session.pause(PAUSE) {
            return Err(Failure::new(
                "busy",
                "requests of programs do not end, so the volume is served as before",
            )
            .why(format!("one of them was being served for more than {} s", PAUSE.as_secs()))
            .next("look at covey status, then try again"));
        }
        self.is_leaving.store(true, Ordering::SeqCst);
        Ok(())
    }
}

impl Running {
    /// Whether a promotion has asked for the volume. [`Running::replace`] is next.
    pub fn is_leaving(&self) -> bool {
        self.served.is_leaving.load(Ordering::SeqCst)
    }

    /// Closes the volume, waits for the end of the promotion, and serves what is in the folder then.
    /// [`Running::go_on`] is next. False: the mount has ended, or `is_stopped` says that the daemon shall
    /// end.
    ///
    /// # Errors
    /// The mount is none of a volume in a folder.
    pub fn replace(&mut self, plan: &Plan, is_stopped: &dyn Fn() -> bool) -> Result<bool> {
        let served = self.served.clone();
        let (session, mount) = (&served.session, served.node());
        let node = mount.node()?;
        let dir = node.dir().ok_or_else(|| not_a_volume(&node.name()))?;
        let promotion = UnderWay::of(dir);
        drop((self.publishing.take(), self.following.take()));
        drop(served.heating.lock().take());
        drop(self.listener.take());
        let handed = Arc::new(node.hand_over());
        let (inodes, locks, waiting) = handed.counts();
        log::line(&format!(
            "the volume is being promoted: programs wait; the kernel uses {inodes} inodes, {locks} locks are held and {waiting} waited for"
        ));
        if let Err(failure) = mount.close() {
            // What was acknowledged is in the journal, and whatever opens the folder next finds it there.
            log::error(&failure.to_string());
        }
        let path = dir.path().to_owned();
        let is_over = || is_stopped() || session.wait_for(Duration::ZERO).is_some();
        if !promotion.is_none_or(|promotion| promotion.wait(&is_over)) {
            session.fail_requests();
            return Ok(false);
        }
        session.wait_until_dropped();
        let Some((mount, is_shared)) = open_again(plan, session, path, &handed, &is_over) else {
            session.fail_requests();
            return Ok(false);
        };
        let mount = Arc::new(mount);
        mount.node()?.volume().adopt_waiting(&handed);
        mount.node()?.volume().asks_the_kernel(Arc::new(session.notifier()));
        served.mount.set(mount.clone());
        session.resume(mount.filesystem());
        served.is_leaving.store(false, Ordering::SeqCst);
        let now = if is_shared { "the volume is shared now" } else { "the volume is as it was" };
        log::line(&format!("the promotion has ended: {now}; programs go on"));
        let publishers = if is_shared { Ok(None) } else { publishers(plan) };
        let listening = publishers.and_then(|publishers| listen(&served, publishers));
        // Programs go on without it.
        self.listener = listening.inspect_err(|failure| log::error(&failure.to_string())).ok();
        show_heat(&plan.shown, &served);
        Ok(true)
    }
}

/// Opens what is in the folder. `None`: the mount has ended meanwhile, or the daemon shall end.
fn open_again(
    plan: &Plan,
    session: &Session,
    path: PathBuf,
    handed: &Arc<Handed>,
    is_over: &dyn Fn() -> bool,
) -> Option<(Mount, bool)> {
    let began = base::time::monotonic();
    let mut told = false;
    while !is_over() {
        let mut options = node_options(plan, session.mountpoint());
        (options.take_over, options.handed) = (false, Some(handed.clone()));
        let opened = VolumeDir::open(&path).and_then(|dir| {
            let source = Source::in_folder(dir, FleetOptions::default());
            let is_shared = matches!(source, Source::Shared(..));
            Ok((Mount::open(&source, &options)?, is_shared))
        });
        let failure = match opened {
            Ok(opened) => return Some(opened),
            Err(failure) => failure,
        };
        if !told {
            told = true;
            log::warn(&format!(
                "the volume cannot be opened again, and is tried again: {}",
                failure.in_one_line()
            ));
        }
        if began.elapsed() > plan.options.deadline {
            session.fail_requests();
        }
        let next = base::time::monotonic() + AGAIN;
        while base::time::monotonic() < next && !is_over() {
            std::thread::sleep(LOOK);
        }
    }
    None
}
