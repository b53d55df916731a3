//! A mounted volume as a sink: its daemon creates the items. The other end is `node::import`.
//!
//! A thread hears what the daemon says. If the daemon fails or goes away, that thread shuts the connection
//! down, so that the sender does not wait for it.

use std::fs::File;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

use api::answers::{Imported, Skipped};
use api::control::{Asked, ImportOrder, Ready, Request};
use api::error::{Context, Failure, Result};
use rustix::fs::{Mode, OFlags};

use super::{Item, Sink, Step, wire};
use crate::sys;

/// Bytes that are sent at a time.
const BUFFER: usize = 128 << 10;

/// A place on a mounted volume, and what else is mounted.
#[derive(Clone, Copy, Debug)]
pub struct Onto<'a> {
    /// The absolute path of the place. Its last component need not exist.
    pub path: &'a Path,
    /// Where the volume is mounted.
    pub mountpoint: &'a Path,
    /// The device number of the mount.
    pub device: u64,
    /// The places of all mounts that this process sees, one for each mount.
    pub mounts: &'a [PathBuf],
}

/// Why the daemon does not do it.
#[derive(Debug)]
pub enum Refused {
    /// The mount can be used instead. The failure says why that is needed.
    UseMount(Failure),
    /// The import cannot be done either way.
    Failed(Failure),
}

/// The daemon of a mounted volume.
pub struct Remote {
    stream: UnixStream,
    waiting: Vec<u8>,
    hearing: Option<JoinHandle<Result<Imported>>>,
    skipped: Vec<Skipped>,
    /// The destination. While it is open, an unmount reports that the mount is in use.
    _folder: OwnedFd,
}

impl Remote {
    /// Asks the daemon to take items for this place. Creates the folder if its parent exists. `begin` sends a
    /// request to the daemon of the mount.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn open(
        place: Onto<'_>,
        overwrite: bool,
        begin: impl FnOnce(&Request) -> Result<Asked>,
    ) -> std::result::Result<Remote, Refused> {
        let near = near(place)?;
        let order = ImportOrder {
            form: wire::FORM,
            mountpoint: place.mountpoint.into(),
            folder: near.inner.as_path().into(),
            ino: near.ino,
            new: near.new.as_deref().map(Into::into),
            overwrite,
            umask: sys::umask(),
        };
        let asked = begin(&Request::Import(order)).map_err(Refused::UseMount)?;
        let (stream, end) = (asked.stream(), asked.stream());
        let (stream, end) = (stream.map_err(Refused::Failed)?, end.map_err(Refused::Failed)?);
        let (note, notes) = channel();
        let hear = move || {
            let outcome = asked.hear::<Imported>(&mut |_| (), &mut |value| {
                let _ = note.send(serde_json::from_value::<Ready>(value).ok());
            });
            let _ = end.shutdown(Shutdown::Both);
            outcome
        };
        let failed = |error: io::Error| Refused::Failed(Failure::io("cannot start a thread", &error));
        let hearing = base::thread::spawn("covey-hear", hear).map_err(failed)?;
        let Ok(Some(ready)) = notes.recv() else {
            let _ = stream.shutdown(Shutdown::Both);
            let outcome = hearing.join().unwrap_or_else(|_| Err(strange()));
            return Err(refused(outcome.err().unwrap_or_else(strange)));
        };
        let folder = pin(place.path, ready).map_err(Refused::Failed)?;
        Ok(Remote {
            stream,
            waiting: Vec::with_capacity(2 * BUFFER),
            hearing: Some(hearing),
            skipped: Vec::new(),
            _folder: folder,
        })
    }

    fn send(&mut self, step: &Step) -> Result<()> {
        if let Err(error) = wire::put(step, &mut self.waiting) {
            let name = match step {
                Step::Item(item) => item.path.display().to_string(),
                _ => "a file".to_owned(),
            };
            return Err(Failure::io(format!("cannot import {name}"), &error));
        }
        if self.waiting.len() < BUFFER { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<()> {
        let sent = self.stream.write_all(&self.waiting);
        self.waiting.clear();
        // What the daemon said is the cause.
        sent.map_err(|error| {
            self.heard().err().unwrap_or_else(|| Failure::io("cannot send to the daemon", &error))
        })
    }

    /// Waits for the daemon's last word.
    fn heard(&mut self) -> Result<Imported> {
        let hearing = self.hearing.take().ok_or_else(strange)?;
        hearing.join().unwrap_or_else(|_| Err(strange()))
    }
}

impl Sink for Remote {
    fn item(&mut self, item: Item) -> Result<()> {
        self.send(&Step::Item(item))
    }

    fn ranges(&mut self, _: Vec<(u64, u64)>) -> Result<()> {
        // The daemon writes at offsets.
        Ok(())
    }

    fn piece(&mut self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        self.send(&Step::Piece(offset, bytes))
    }

    fn end(&mut self) -> Result<()> {
        self.send(&Step::End)
    }

    fn abandon(&mut self) -> Result<()> {
        self.send(&Step::Abandon)
    }

    fn idle(&mut self) -> Result<()> {
        self.flush()?;
        match &self.hearing {
            Some(hearing) if hearing.is_finished() => Err(self.heard().err().unwrap_or_else(strange)),
            _ => Ok(()),
        }
    }

    fn finish(&mut self) -> Result<()> {
        wire::put_finish(&mut self.waiting);
        self.flush()?;
        self.skipped = self.heard()?.skipped;
        Ok(())
    }

    fn stop(&mut self) -> Result<()> {
        if self.hearing.is_none() {
            return Ok(());
        }
        self.flush()?;
        // Without the last message the daemon knows that this is not the end of the source.
        let _ = self.stream.shutdown(Shutdown::Write);
        self.heard().map(drop)
    }

    fn left_out(&mut self) -> Vec<Skipped> {
        std::mem::take(&mut self.skipped)
    }
}

/// The existing folder at or above the destination.
struct Near {
    inner: PathBuf,
    ino: u64,
    new: Option<PathBuf>,
}

fn near(place: Onto<'_>) -> std::result::Result<Near, Refused> {
    let Onto { path, mountpoint, device, mounts } = place;
    let elsewhere = |what: String| Refused::UseMount(Failure::new("elsewhere", what));
    if let Some(mount) = mounts.iter().find(|mount| *mount != mountpoint && mount.starts_with(path)) {
        return Err(elsewhere(format!("{} is mounted below it", mount.display())));
    }
    if mounts.iter().filter(|mount| *mount == mountpoint).count() > 1 {
        return Err(elsewhere(format!("something else is mounted at {}, too", mountpoint.display())));
    }
    let look = |path: &Path| path.symlink_metadata();
    let (folder, new) = match look(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (path.parent().unwrap_or(path), path.file_name().map(PathBuf::from))
        }
        _ => (path, None),
    };
    let meta = look(folder).at("look at", folder).map_err(Refused::Failed)?;
    if !meta.is_dir() || meta.dev() != device {
        return Err(elsewhere(format!("{} is no folder of that mount itself", folder.display())));
    }
    let inner = folder.strip_prefix(mountpoint).unwrap_or(Path::new(""));
    let flags = rustix::fs::statvfs(folder).map(|of| of.f_flag);
    if flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::RDONLY)) {
        let error = io::Error::from_raw_os_error(libc::EROFS);
        return Err(Refused::Failed(Failure::io(format!("cannot import into {}", path.display()), &error)));
    }
    Ok(Near { inner: inner.to_owned(), ino: meta.ino(), new })
}

/// Opens the destination, and checks that it is the folder that the daemon has opened.
fn pin(path: &Path, ready: Ready) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from).at("open", path)?;
    let file = File::from(fd);
    if file.metadata().at("look at", path)?.ino() != ready.ino {
        return Err(Failure::new(
            "changed",
            format!("{} is not the folder that the daemon has opened", path.display()),
        )
        .why("somebody else changes the destination meanwhile")
        .next("name a place that only you can change, and start again"));
    }
    Ok(file.into())
}

/// What a refusal before the first item means.
fn refused(failure: Failure) -> Refused {
    match &*failure.code {
        // An older daemon takes the request for a mistake of usage.
        "usage" => Refused::UseMount(
            Failure::new("elsewhere", "the mount's daemon is of an older release")
                .next("unmount, and mount again with this one"),
        ),
        "elsewhere" | "not-a-volume" | "no-answer" | "not-permitted" => Refused::UseMount(failure),
        _ => Refused::Failed(failure),
    }
}

fn strange() -> Failure {
    Failure::new("no-answer", "the daemon's answer cannot be understood")
}
