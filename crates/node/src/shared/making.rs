//! A new shared volume, and the folder of a node that mounts one for the first time.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::fs::volume::{FormatRequest, Volume};
use api::error::{Context, Failure, Result};
use blob::sums::Sums;
use engines::Address;
use meta::engine::database::{Database, SetupError};
use meta::lease::Left;
use meta::store::{CommitError, StoreError, Value};
use meta::{Commit, Expect, Key, MetaStore, Names};
use net::secret::Secret;

use super::rows::{
    ROW_ENDPOINT, ROW_ORIGIN, ROW_PROMOTING, ROW_REGION, ROW_REMOVING, ROW_SECRET, ROW_SERVER, place_rows,
};
use super::{engine_seen, setup_failure, setup_failure_at, unfinished};
use crate::opened::{format_request, memory_parts_over};
use crate::origins::{Reach, address, origin_failure, spec_of};
use crate::refused::open_failure;
use crate::volume_dir::{Home, VolumeDir};

/// The folder of a node's journal, in the node's folder.
pub(super) const CHANGES: &str = "changes";

/// What a new shared volume is.
#[derive(Clone, Debug)]
pub struct Made {
    /// The volume's id: 32 hexadecimal digits.
    pub id: String,
    /// Where its blobs are.
    pub origin: String,
    /// The volume's address, without a password.
    pub names: String,
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether a text is the address of a shared volume.
pub fn is_address(text: &Path) -> bool {
    text.to_str().is_some_and(Address::is_meant)
}

/// Reads the address of a shared volume.
pub(super) fn target_of(text: &Path) -> Result<Address> {
    Address::parse(text.to_str().unwrap_or_default()).map_err(setup_failure)
}

/// Makes an empty shared volume. If that fails half-way, nothing is left in the database.
pub fn format(text: &Path, origin: Option<&str>, reach: &Reach) -> Result<Made> {
    let target = target_of(text)?;
    let origin = origin.ok_or_else(|| {
        Failure::usage("a shared volume needs an origin that all its nodes reach")
            .next("name one: --origin s3://BUCKET/PREFIX, or file:DIR on a filesystem that all nodes have")
    })?;
    let home = address(origin, reach)?;
    free(&target, "a volume is made under a name that is free", None)?;
    let id = base::random::id16();
    target.create(id).map_err(setup_failure)?;
    // Another command may have taken this one for dead, and have made a volume under the same name.
    let is_own = || target.open().map_or(true, |names| names.uuid() == id);
    fill(&target, id, &home).inspect_err(|_| {
        if is_own() {
            let _ = target.remove();
        }
    })?;
    if !is_own() {
        return Err(taken(&target));
    }
    Ok(Made { id: hex(&id), origin: home.origin, names: target.to_string() })
}

/// The failure of a command under whose name another one has made a volume since.
pub(super) fn taken(target: &Address) -> Failure {
    let what = format!("another command made the volume {} in the database meanwhile", target.volume());
    Failure::new("changed", what)
        .why("two commands under one name would write into each other's volume")
        .next("run the same command again under another name: ...?volume=NAME")
}

/// The origin comes last: its marker would prevent the next attempt.
fn fill(target: &Address, id: [u8; 16], home: &Home) -> Result<()> {
    let spec = spec_of(home)?;
    fill_names(target, id, home)?;
    spec.format(&hex(&id)).map(drop).map_err(origin_failure)
}

fn fill_names(target: &Address, id: [u8; 16], home: &Home) -> Result<()> {
    let names = target.open().map_err(setup_failure)?;
    let mut rows = place_rows(home);
    rows.push((ROW_SECRET.to_owned(), Secret::generate_text().into_bytes()));
    // No node has to notice it.
    let server = names.incarnation().map_err(|error| setup_failure(error.into()))?;
    rows.push((ROW_SERVER.to_owned(), engine_seen::row_of(&server).to_vec()));
    let request = FormatRequest { id: Some(id), rows, ..format_request() };
    let parts = memory_parts_over(names);
    Volume::format(&parts, &request).map_err(|error| open_failure(Path::new(&target.to_string()), error))
}

/// Whether the volume was made to the end.
pub(super) fn is_complete(store: &Arc<dyn MetaStore>) -> Result<bool> {
    let row = Names::new(store.clone()).volume_row(ROW_ORIGIN);
    Ok(row.map_err(|error| setup_failure(error.into()))?.is_some())
}

/// Where the blobs of a volume are. `None`: it was not made to the end.
pub(super) fn home_of(names: &Arc<dyn MetaStore>) -> Result<Option<Home>> {
    let rows = Names::new(names.clone());
    let row = |name: &str| -> Result<Option<String>> {
        let row = rows.volume_row(name).map_err(|error| setup_failure(error.into()))?;
        Ok(row.map(|row| String::from_utf8_lossy(&row).into_owned()))
    };
    let Some(origin) = row(ROW_ORIGIN)? else { return Ok(None) };
    Ok(Some(Home { origin, endpoint: row(ROW_ENDPOINT)?, region: row(ROW_REGION)?, cache_size: None }))
}

/// Makes sure that a name is free. What an interrupted command left is removed, but not the names of a volume
/// whose promotion only its folder can finish, unless `own` is the life of that folder and it is known that
/// the folder still has its names.
pub(super) fn free(target: &Address, why: &str, own: Option<&str>) -> Result<()> {
    let names = match target.open() {
        Ok(names) => names,
        Err(SetupError::Missing(_)) => return Ok(()),
        Err(error) => return Err(setup_failure(error)),
    };
    let failed = |error: StoreError| setup_failure(error.into());
    let promoting = names.get(&Key::volume(ROW_PROMOTING)).map_err(failed)?;
    if let Some(row) = promoting.as_ref().filter(|row| own != Some(unfinished::life_in(row).as_str())) {
        return Err(unfinished::failure(target, row));
    }
    // From here on, nothing that is still being made under this name can be completed.
    let checks = vec![
        (Key::volume(ROW_ORIGIN), Expect::Absent),
        (Key::volume(ROW_PROMOTING), promoting.map_or(Expect::Absent, Expect::Is)),
    ];
    let puts = vec![(Key::volume(ROW_REMOVING), Value::from(&[][..]))];
    match names.commit(Commit { checks, puts, ..Commit::default() }) {
        Ok(()) => {}
        Err(CommitError::Conflict { .. }) => {
            let what = format!("the database has a volume {} already", target.volume());
            return Err(Failure::new("exists", what).why(why).next("choose another name: ...?volume=NAME"));
        }
        Err(CommitError::Store(error)) => return Err(failed(error)),
    }
    drop(names);
    target.remove().map_err(setup_failure)
}

/// The folder of this node for a shared volume: the named one, or the default one of this user. It is made if
/// it does not exist.
pub fn node_folder(text: &Path, named: Option<&Path>) -> Result<VolumeDir> {
    let target = target_of(text)?;
    let names = target.open().map_err(setup_failure_at(&target))?;
    let id = hex(&names.uuid());
    let path = named.map_or_else(|| default_folder(&id), Path::to_owned);
    let names: Arc<dyn MetaStore> = names;
    if path.join("covey.json").exists() {
        unfinished::complete(&VolumeDir::open(&path)?, &names)?;
    }
    let secret = Names::new(names.clone()).volume_row(ROW_SECRET);
    let secret = secret.map_err(|error| setup_failure(error.into()))?;
    let (home, secret) = match home_of(&names)?.zip(secret) {
        Some(rows) => rows,
        None => return Err(unfinished::incomplete(&target, &names)),
    };
    let life = life(&String::from_utf8_lossy(&secret));
    if path.join("covey.json").exists() {
        let dir = VolumeDir::open(&path)?;
        if dir.format().id == id {
            let dir = match is_other_life(&dir, &life)? {
                true => dir.with_home(home)?,
                false => dir,
            };
            take_life(&dir, &life)?;
            return dir.with_names(target.to_string());
        }
        return Err(Failure::new("another-volume", format!("{} belongs to another volume", path.display()))
            .next("name another folder: --cache DIR"));
    }
    let dir = VolumeDir::create_node(&path, &id, home, target.to_string())?;
    take_life(&dir, &life)?;
    Ok(dir)
}

/// Tells a volume from the one that it was restored or detached from: each has its own secret.
pub(super) fn life(secret: &str) -> String {
    Sums::of(secret.as_bytes()).id().to_string()
}

/// Whether a folder was last used for a volume of the same id that is another one: this one was restored or
/// detached from it. If it holds what only that one can use, or is in use, this is an error: it would be
/// removed.
pub(super) fn is_other_life(dir: &VolumeDir, life: &str) -> Result<bool> {
    match fs::read_to_string(dir.path().join(unfinished::LIFE)) {
        Ok(known) if known.trim() == life => Ok(false),
        // An earlier version did not make it durable. A power cut soon after that left an empty file.
        Ok(known) if known.trim().is_empty() => Ok(true),
        Ok(_) if holds_bytes(dir) => {
            let shown = dir.path().display();
            Err(Failure::new(
                "another-volume",
                format!("{shown} holds bytes of the volume as it was before it was restored or detached"),
            )
            .why("they are not in the origin, and the volume at this address does not know them")
            .next("mount with another folder: --cache DIR")
            .next(format!("to give these bytes up, remove {shown}")))
        }
        _ => Ok(true),
    }
}

/// From now on the folder is used for the volume of this life.
pub(super) fn take_life(dir: &VolumeDir, life: &str) -> Result<()> {
    let file = dir.path().join(unfinished::LIFE);
    if fs::read_to_string(&file).is_ok_and(|known| known.trim() == life) {
        return Ok(());
    }
    // As durable as the bytes that come next. Otherwise a power cut could leave an empty file beside them.
    write_durably(&file, &format!("{life}\n")).at("write", &file)
}

/// Fails if the blobs of the volume are not where this folder looks for them.
pub(super) fn check_home(dir: &VolumeDir, target: &Address, names: &dyn Database) -> Result<()> {
    let row = names.get(&Key::volume(ROW_ORIGIN)).map_err(|error| setup_failure(error.into()))?;
    let Some(origin) = row.filter(|row| row[..] != *dir.origin().as_bytes()) else { return Ok(()) };
    let (shown, origin) = (dir.path().display(), String::from_utf8_lossy(&origin).into_owned());
    Err(Failure::new("changed", format!("{shown} looks for the blobs of the volume in {}", dir.origin()))
        .why(format!("they are in {origin} now"))
        .next(format!("mount the volume by its address: covey mount '{target}' MOUNTPOINT --cache {shown}")))
}

/// Writes a small file, and returns when it survives a power cut.
pub(super) fn write_durably(file: &Path, text: &str) -> std::io::Result<()> {
    let mut out = fs::File::create(file)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    file.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
}

/// Whether a folder has packs that are no blobs, also of other nodes, blobs that are not uploaded, or changes
/// that may not be stored.
fn holds_bytes(dir: &VolumeDir) -> bool {
    let has_packs = fs::read_dir(dir.open_packs()).is_ok_and(|mut entries| entries.next().is_some());
    let has_copies = fs::read_dir(dir.kept()).is_ok_and(|mut entries| entries.next().is_some());
    has_packs
        || has_copies
        || dir.not_uploaded().0 > 0
        || !Left::read_any(&dir.path().join(CHANGES)).is_empty()
}

fn default_folder(id: &str) -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
    state.unwrap_or_else(|| PathBuf::from("/var/lib")).join("covey/shared").join(id)
}
