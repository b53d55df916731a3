//! The trash, for a caller that names paths.

use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::answers::{TrashEmptied, TrashEntry, TrashKept, TrashRestored};
use api::control::{self, Tick};
use api::error::{Failure, Result};
use api::raw_path::RawPath;
use api::status::trash::TrashStatus;
use api::text::{count, utc};
use base::{Ino, Timestamp};
use fs::Errno;
use fs::api::FileKind;
use fs::trash::{Emptied, Picked, Place, RestoreError, Setting, Told, Trashed};

use super::Node;
use crate::errno::errno_failure;

/// Entries of the trash that are listed at a time.
const PART: usize = 500;

impl Node {
    /// How much is in the trash, and how long it is kept. None: the volume has none, or it cannot be read
    /// now.
    pub fn trash_status(&self) -> Option<TrashStatus> {
        if self.tree().is_some() {
            return None;
        }
        let keep_seconds = kept(self.volume.trash_setting().ok()?);
        let found = self.volume.trash_figures().ok()?;
        let status = TrashStatus { keep_seconds, files: found.files, bytes: found.bytes };
        (status != TrashStatus::default()).then_some(status)
    }

    /// Passes on what is in the trash, the newest first, in parts. Returns how long it is kept.
    pub fn list_trash(&self, each: &mut dyn FnMut(Vec<TrashEntry>) -> ControlFlow<()>) -> Result<TrashKept> {
        let failed = |errno| errno_failure("the trash cannot be read", errno);
        let keep_seconds = kept(self.volume.trash_setting().map_err(failed)?);
        let mut part = Vec::new();
        let listed = self.volume.each_in_trash(&mut |entry| {
            part.push(shown(entry));
            if part.len() < PART { ControlFlow::Continue(()) } else { each(std::mem::take(&mut part)) }
        });
        listed.map_err(failed)?;
        if !part.is_empty() {
            let _ = each(part);
        }
        Ok(TrashKept { keep_seconds })
    }

    /// Sets how long what is removed is kept. None: it is deleted at once.
    pub fn set_trash(&self, keep: Option<Duration>) -> Result<()> {
        self.volume.set_trash(keep).map_err(|errno| match errno {
            Errno::EROFS => Failure::usage(format!("{} is opened to be read only", self.name))
                .why("how long the trash is kept belongs to the volume, and setting it is a change")
                .next("mount the volume for writing, and set it there"),
            errno => errno_failure("the trash cannot be set", errno),
        })
    }

    /// Restores something from the trash.
    pub fn restore_trash(
        &self,
        what: &control::Trashed,
        to: Option<&Path>,
        all: bool,
        kernel: &dyn Told,
        tick: &mut dyn FnMut(Tick),
    ) -> Result<TrashRestored> {
        let path;
        let (picked, shown) = match what {
            control::Trashed::Id(id) => (Picked::Ino(Ino(*id)), format!("number {id}")),
            control::Trashed::Path(place) => {
                path = rooted(&PathBuf::from(place.clone()));
                (Picked::Path(&path), String::from_utf8_lossy(&path).into_owned())
            }
        };
        let place = to.map_or(Ok(Place::Back), |to| self.place(to))?;
        let mut ticked = |files: u64| {
            tick(Tick { done: files, of: 0, what: format!("{} files and folders", count(files)) });
        };
        let done = self.volume.restore_trash(picked, place, all, kernel, &mut ticked);
        let done = done.map_err(|error| not_restored(&shown, error))?;
        Ok(TrashRestored { path: raw(done.path), files: done.files, left: done.left })
    }

    /// A path that something is restored to: a folder, or a name that is free.
    fn place<'a>(&self, to: &'a Path) -> Result<Place<'a>> {
        let cannot = |errno| errno_failure(format!("cannot restore to /{}", to.display()), errno);
        match self.volume.resolve(to.as_os_str().as_bytes(), true) {
            Ok(found) if found.kind == FileKind::Dir => return Ok(Place::At(found.ino, None)),
            Ok(_) => return Err(taken(&format!("/{}", to.display()))),
            Err(Errno::ENOENT) => {}
            Err(errno) => return Err(cannot(errno)),
        }
        let folder = to.parent().unwrap_or(Path::new(""));
        let parent = self.volume.resolve(folder.as_os_str().as_bytes(), true).map_err(cannot)?;
        if parent.kind != FileKind::Dir {
            return Err(cannot(Errno::ENOTDIR));
        }
        let name = to.file_name().map(OsStrExt::as_bytes);
        Ok(Place::At(parent.ino, Some(name.ok_or_else(|| cannot(Errno::EINVAL))?)))
    }

    /// Deletes what has been in the trash at least so long.
    pub fn empty_trash(&self, older: Duration, tick: &mut dyn FnMut(Tick)) -> Result<TrashEmptied> {
        let until = match older.is_zero() {
            // Also what a node removed whose clock is ahead.
            true => Timestamp::from_nanos(i64::MAX),
            false => Timestamp(base::time::now().0 - older.as_nanos() as i128),
        };
        let mut ticked = |done: Emptied| {
            tick(Tick { done: done.files, of: 0, what: format!("{} files and folders", count(done.files)) });
        };
        let done = self.volume.empty_trash(until, &mut ticked);
        let done = done.map_err(|errno| errno_failure("the trash cannot be emptied", errno))?;
        Ok(TrashEmptied { files: done.files, bytes: done.bytes })
    }
}

fn shown(entry: Trashed) -> TrashEntry {
    TrashEntry {
        id: entry.ino.0,
        path: raw(entry.path),
        has_folder: entry.has_folder,
        kind: match entry.kind {
            FileKind::File => "file",
            FileKind::Dir => "folder",
            FileKind::Symlink => "link",
            _ => "other",
        }
        .to_owned(),
        bytes: entry.size,
        removed: utc(entry.at.seconds()),
    }
}

/// How long the trash is kept, in seconds.
fn kept(setting: Setting) -> Option<u64> {
    match setting {
        Setting::Never | Setting::Off => None,
        Setting::Keep(millis) => Some(millis.div_ceil(1000)),
    }
}

fn raw(path: Vec<u8>) -> RawPath {
    RawPath::from(&*PathBuf::from(std::ffi::OsString::from_vec(path)))
}

/// The path from the root, with a leading `/` and none at its end.
fn rooted(path: &Path) -> Vec<u8> {
    let mut all = b"/".to_vec();
    all.extend_from_slice(path.as_os_str().as_bytes());
    while all.len() > 1 && all.ends_with(b"/") {
        all.pop();
    }
    all
}

fn taken(path: &str) -> Failure {
    Failure::new("exists", format!("cannot restore: there is a {path}"))
        .why("what is there stays, and so does what is in the trash")
        .next("move it away, or restore to another path: covey trash restore PLACE WHAT --to PATH")
}

fn not_restored(shown: &str, error: RestoreError) -> Failure {
    match error {
        RestoreError::NotThere => Failure::new("not-found", format!("{shown} is not in the trash"))
            .next("covey trash ls PLACE lists what is"),
        RestoreError::Taken(path) => taken(&String::from_utf8_lossy(&path)),
        RestoreError::NoFolder => {
            Failure::new("not-found", format!("cannot restore {shown}: its folder was deleted for good"))
                .next("name another place: covey trash restore PLACE WHAT --to PATH")
        }
        RestoreError::InUse(name) => {
            let name = String::from_utf8_lossy(&name).into_owned();
            Failure::new("busy", format!("a program still uses the removed folder {name}"))
                .why("as long as it does, the kernel makes nothing in that folder")
                .next("end that program, or leave the folder with cd, and run the command again")
        }
        RestoreError::Failed(Errno::EDQUOT) => {
            Failure::new("quota", format!("{shown} does not fit into the quota of the folder that it was in"))
                .why("what was restored until then stays; the rest is still in the trash")
                .next("make room, or raise the limit with covey quota set, and run the command again")
        }
        RestoreError::Failed(errno) => errno_failure(format!("cannot restore {shown}"), errno),
    }
}
