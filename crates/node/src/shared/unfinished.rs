//! The end of a promotion, from the moment on in which the folder is a node's: also after a kill.
//!
//! The rename of `covey.json` decides. Before it, the database holds a volume without the row that says where
//! the origin is, which no node mounts, and the row `promoting`, which says whose names these are. After it,
//! only that folder can complete the volume, and does so at its next mount.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use api::error::{Context, Failure, Result};
use blob::Origin;
use engines::Address;
use meta::store::{CommitError, StoreError, Value};
use meta::{Commit, Expect, Key, MetaStore, Names};
use tree::Owner;

use super::rows::{ROW_DETACHING, ROW_ORIGIN, ROW_PROMOTING, place_rows};
use super::setup_failure;
use crate::publisher::{self, Publisher};
use crate::volume_dir::VolumeDir;

/// The file that tells a volume from one with the same id.
pub(super) const LIFE: &str = "life";
/// The row `detaching` after the switch ([`super::detaching`]).
pub(super) const SWITCHED: &[u8] = b"switched";

/// The row `promoting` for a folder.
pub(super) fn row_of(dir: &VolumeDir, life: &str) -> Value {
    Value::from(format!("{life} {}", publisher::place_of(dir)).into_bytes())
}

/// The life of the folder that a row `promoting` names.
pub(super) fn life_in(row: &[u8]) -> String {
    parts(row).0
}

fn parts(row: &[u8]) -> (String, String) {
    let text = String::from_utf8_lossy(row);
    let (life, place) = text.split_once(' ').unwrap_or((&text, ""));
    (life.to_owned(), place.to_owned())
}

/// The life that a folder remembers.
pub(super) fn life_of(dir: &VolumeDir) -> Option<String> {
    fs::read_to_string(dir.path().join(LIFE)).ok().map(|text| text.trim().to_owned())
}

/// The failure for a volume whose folder has to finish its promotion.
pub(super) fn failure(target: &Address, row: &[u8]) -> Failure {
    let (_, place) = parts(row);
    Failure::new(
        "unfinished",
        format!("the promotion of {place} to the volume {} is not finished", target.volume()),
    )
    .why("it was interrupted, and only that folder can finish it")
    .next("on that machine, run covey promote again with the same arguments, or mount the folder")
    .next("for another volume choose another name: ...?volume=NAME")
}

/// The failure for a volume whose making was interrupted.
pub(super) fn incomplete(target: &Address, names: &Arc<dyn MetaStore>) -> Failure {
    match names.get(&Key::volume(ROW_PROMOTING)) {
        Ok(Some(row)) => failure(target, &row),
        _ => Failure::new("damaged", format!("the volume {} has no origin", target.volume()))
            .why("its format, its restore or its promotion was interrupted")
            .next("run that command again, with the same name or another one"),
    }
}

/// Whether this folder has to complete the volume.
pub(super) fn is_own(dir: &VolumeDir, names: &Arc<dyn MetaStore>) -> Result<bool> {
    let row = names.get(&Key::volume(ROW_PROMOTING)).map_err(|error| setup_failure(error.into()))?;
    Ok(dir.is_shared() && row.is_some_and(|row| life_of(dir) == Some(life_in(&row))))
}

/// Completes the volume if this folder is the one that was promoted to it. Returns whether it was incomplete.
pub(super) fn complete(dir: &VolumeDir, names: &Arc<dyn MetaStore>) -> Result<bool> {
    let failed = |error: StoreError| setup_failure(error.into());
    let key = Key::volume(ROW_PROMOTING);
    let Some(row) = names.get(&key).map_err(failed)? else { return Ok(false) };
    if !dir.is_shared() || life_of(dir) != Some(life_in(&row)) {
        return Ok(false);
    }
    let place = place_rows(&dir.home()).into_iter();
    let commit = Commit {
        checks: vec![(key.clone(), Expect::Is(row))],
        puts: place.map(|(name, text)| (Key::volume(&name), Value::from(text))).collect(),
        dels: vec![key],
        ..Commit::default()
    };
    match names.commit(commit) {
        // Another process did the same.
        Ok(()) | Err(CommitError::Conflict { .. }) => Ok(true),
        Err(CommitError::Store(error)) => Err(failed(error)),
    }
}

/// Fails if the volume is not complete.
pub(super) fn check_complete(target: &Address, names: &Arc<dyn MetaStore>) -> Result<()> {
    let row = Names::new(names.clone()).volume_row(ROW_ORIGIN);
    match row.map_err(|error| setup_failure(error.into()))? {
        Some(_) => check_detached(target, names),
        None => Err(incomplete(target, names)),
    }
}

/// Fails if a copy is between the switch and the end of the command that detaches it.
fn check_detached(target: &Address, names: &Arc<dyn MetaStore>) -> Result<()> {
    let row = names.get(&Key::volume(ROW_DETACHING)).map_err(|error| setup_failure(error.into()))?;
    if row.as_deref() != Some(SWITCHED) {
        return Ok(());
    }
    Err(Failure::new("unfinished", format!("the volume {} is not detached yet", target.volume()))
        .why("covey detach was interrupted in its last step")
        .next("run that command again, with the same arguments"))
}

/// Whether a node's folder still holds what it had as the folder of a volume.
pub(crate) fn has_remains(dir: &VolumeDir) -> bool {
    dir.is_shared()
        && [Publisher::file(dir), dir.claim(), dir.meta().join("names.db")].iter().any(|file| file.exists())
}

/// Removes from a node's folder what it had as the folder of a volume. The volume is complete. `origin` is
/// its origin, in which the volume is named by its new address from now on.
pub(crate) fn remove_remains(dir: &VolumeDir, origin: &dyn Origin) -> Result<()> {
    if let Some(me) = Publisher::of(dir)? {
        name_owner(dir, &me, origin)?;
        // Its identity and its key are in the database.
        remove(&Publisher::file(dir))?;
    }
    remove(&dir.claim())?;
    for entry in fs::read_dir(dir.meta()).at("read", &dir.meta())?.flatten() {
        let path = entry.path();
        match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => fs::remove_dir_all(&path).at("remove", &path)?,
            false => remove(&path)?,
        }
    }
    let synced = fs::File::open(dir.path()).and_then(|folder| folder.sync_all());
    synced.at("write to", dir.path())
}

/// Says in the origin where its owner is now. Its name and its key stay.
fn name_owner(dir: &VolumeDir, me: &Publisher, origin: &dyn Origin) -> Result<()> {
    let failed = |error| publisher::failure("the origin cannot be told where its owner is now", error);
    let name = me.owner().unwrap_or_default();
    let note = dir.format().names.clone().unwrap_or_default();
    // A record holds no longer note.
    let kept = &note[..note.floor_char_boundary(255)];
    match Owner::read(origin).map_err(failed)? {
        Some(owner) if owner.owner == name && owner.note != kept => {
            owner.hand_over(origin, name, note, me.signer()?.key()).map(drop).map_err(failed)
        }
        // Nothing was published, or it is done. Another owner is found by the check of the owner.
        _ => Ok(()),
    }
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done.at("remove", file),
    }
}
