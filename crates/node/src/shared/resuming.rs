//! What an earlier process of this node acknowledged and could not store: it is stored before the node joins
//! again.
//!
//! A process that was killed, or that ended while the database was away, leaves its journal
//! ([`meta::lease`]). Its session may still last, and with it its leases. So this process continues that
//! session, stores what is in the journal, and joins only then: from the moment on at which it joins, other
//! nodes may take the leases of the old session.
//!
//! If the session was ended meanwhile, other nodes may have gone on without these changes. Then they are
//! refused: the log and `covey status` say so, and a file in the node's folder lists them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

use api::error::{Context, Failure, Result};
use cache::DiskPacks;
use meta::engine::database::{Database, Session};
use meta::lease::{Journal, Left, OldSession, Replayed, replay};
use meta::shared::{SharedStore, Term};
use meta::store::StoreError;
use net::id::NodeId;

use super::EVERY;
use super::making::CHANGES;
use super::session::Keeper;
use crate::log;
use crate::volume_dir::VolumeDir;

/// The journal of this node, in its folder.
pub(super) fn place(dir: &VolumeDir) -> PathBuf {
    dir.path().join(CHANGES)
}

/// Stores what an earlier process of this node had acknowledged, or says that it cannot be.
pub(super) fn resume(
    dir: &VolumeDir,
    names: &Arc<dyn Database>,
    keeper: &Arc<Keeper>,
    term: &Arc<Term>,
    node: NodeId,
) -> Result<()> {
    let folder = place(dir);
    let left = Left::read(&folder, node.0).at("read", &folder)?;
    if left.is_empty() {
        return Ok(());
    }
    let count = left.len();
    let done = store(dir, names, keeper, term, left).map_err(|error| {
        Failure::new(
            "not-stored",
            format!("{count} changes that this node had acknowledged are not stored yet"),
        )
        .why(error.to_string())
        .next("mount it again; they stay in the node's folder until they are stored")
        .next(format!("to give them up, move {} away", folder.display()))
    })?;
    if done.stored > 0 {
        let stored = done.stored;
        log::line(&format!("{stored} changes that an earlier process had acknowledged are in the database"));
    }
    if let Some(line) = done.line() {
        let kept = done.keep(&folder).at("write to", &folder)?;
        let file = kept.map(|path| format!("; they are listed in {}", path.display()));
        log::warn(&format!("{line}{}", file.unwrap_or_default()));
    }
    // Before the node joins: the next process must not find them again in a session that is over.
    journal(dir, node).map(drop)
}

/// Makes sure that nothing waits to be stored: the database may only be read.
pub(super) fn must_be_empty(dir: &VolumeDir, node: NodeId) -> Result<()> {
    let folder = place(dir);
    let left = Left::read(&folder, node.0).at("read", &folder)?;
    if left.is_empty() {
        return Ok(());
    }
    let what = format!("{} changes that this node had acknowledged wait to be stored", left.len());
    Err(Failure::new("not-stored", what)
        .why("the database may only be read")
        .next("mount with another folder: --cache DIR"))
}

/// Adds to a failure that the folder holds changes of a volume that is not there any more.
pub(super) fn with_left(failure: Failure, dir: &VolumeDir) -> Failure {
    match Left::read_any(&place(dir)).len() {
        0 => failure,
        count => failure.next(format!(
            "the folder has {count} changes that were acknowledged and not stored: they are lost with the names that they belong to"
        )),
    }
}

fn store(
    dir: &VolumeDir,
    names: &Arc<dyn Database>,
    keeper: &Arc<Keeper>,
    term: &Arc<Term>,
    left: Left,
) -> std::result::Result<Replayed, StoreError> {
    let session = left.session().and_then(|holder| {
        Some(Session { number: holder.node.into(), epoch: i64::try_from(holder.epoch).ok()? })
    });
    let Some(session) = session else { return left.refuse(&**names) };
    match keeper.resume(session) {
        Ok(()) => {}
        Err(StoreError::Fenced(_)) => return left.refuse(&**names),
        Err(error) => return Err(error),
    }
    // Bytes are only looked at and made durable here, so no origin is needed.
    let packs = DiskPacks::open(&dir.open_packs(), Arc::new(origin::Memory::new()))
        .map_err(|error| StoreError::Unavailable(format!("the open packs cannot be read: {error}")))?;
    let packs = Arc::new(packs);
    let through = SharedStore::new(names.clone(), packs.clone(), term.clone());
    let (end, ended) = mpsc::channel::<()>();
    let renewer = keeper.clone();
    // Bytes that a batch needs may take long to be read and made durable.
    let renews = base::thread::spawn("covey-resumes", move || {
        while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
            let _ = renewer.keep();
        }
    });
    let renews =
        renews.map_err(|error| StoreError::Unavailable(format!("cannot start a thread: {error}")))?;
    let done = replay(left, &through, &*packs, &Continued { keeper, session });
    drop(end);
    let _ = renews.join();
    // Nothing is answered before the node has joined.
    term.end();
    done
}

/// The session of the earlier process.
struct Continued<'a> {
    keeper: &'a Keeper,
    session: Session,
}

impl OldSession for Continued<'_> {
    fn renew(&self) -> std::result::Result<(), StoreError> {
        self.keeper.keep()
    }

    fn resume(&self) -> std::result::Result<(), StoreError> {
        self.keeper.resume(self.session)
    }
}

/// The journal for a new session. Nothing may be left in it ([`resume`]).
pub(super) fn journal(dir: &VolumeDir, node: NodeId) -> Result<Journal> {
    let folder = place(dir);
    Journal::open(&folder, node.0).at("write to", &folder)
}

/// What was refused last, as long as the file that lists it is in the node's folder.
pub(crate) fn refused(dir: &VolumeDir) -> Option<String> {
    let found = fs::read_dir(place(dir)).ok()?.flatten().map(|entry| entry.path());
    let last = found.filter(|path| is_list(path)).max()?;
    let text = fs::read_to_string(&last).ok()?;
    Some(format!("{}; remove {} when you have seen to it", text.lines().next()?, last.display()))
}

fn is_list(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"refused-"))
}
