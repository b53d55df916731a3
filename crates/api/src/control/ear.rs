//! Where a daemon listens, and how it is found by what is mounted.
//!
//! ```text
//!   a volume's folder       VOLUME/control.sock
//!   anything else           /run/covey/NAME, of root's daemons; /run/user/UID/covey/NAME, of a user's
//!                           where there is neither: NAME in the kernel's table of the network namespace
//! ```
//!
//! A file is found from every network namespace, a name in the kernel's table only from the daemon's own; so a file is taken where one can
//! be had. It gets its name when it can be connected to, and one that nobody listens at any more is removed by the next daemon there.

use std::fmt;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::Deadline;

use super::client::CONNECT;
use crate::{caller, source};

/// The folder of root's daemons, and the one in which users have theirs.
const RUN: (&str, &str) = ("/run/covey", "/run/user");

/// Where a daemon listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ear {
    /// A socket file.
    File(PathBuf),
    /// A name, for what has no folder. See the [module](self).
    Name(String),
}

impl fmt::Display for Ear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ear::File(path) => path.parent().unwrap_or(path).display().fmt(f),
            Ear::Name(name) => f.write_str(name),
        }
    }
}

impl Ear {
    /// The ear of the daemon whose mount has this source.
    pub fn of_source(mounted: &Path) -> Ear {
        match mounted.to_str() {
            // The numbers of a corpus and what tells one mount of it from another.
            Some(text) if text.starts_with(source::CORPUS) => Ear::Name(format!("covey-{text}")),
            Some(text) if text.starts_with(source::MEMORY) => {
                Ear::Name(format!("covey-{}", &text[source::MEMORY.len()..]))
            }
            // An origin may have a longer name than an ear.
            Some(text) if source::tree(text).is_some() => {
                let mark = text.rsplit(source::MARK).next().unwrap_or(text);
                Ear::Name(format!("covey-tree-{mark}"))
            }
            _ => Ear::File(mounted.join("control.sock")),
        }
    }

    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        let name = match self {
            Ear::File(path) => return connect(path),
            Ear::Name(name) => name,
        };
        let mut found = None;
        for path in rendezvous(name) {
            match connect(&path) {
                Ok(stream) => return Ok(stream),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => found = Some(error),
            }
        }
        let there = connect_to(&SocketAddr::from_abstract_name(name.as_bytes())?);
        there.map_err(|error| found.unwrap_or(error))
    }

    /// Listens. Also says which file has to be removed at the end.
    pub(super) fn bind(&self) -> io::Result<(UnixListener, Option<PathBuf>)> {
        let name = match self {
            Ear::File(path) => {
                // Whoever binds holds the volume's lock, so a socket that is there is a dead daemon's.
                match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                return Ok((bind(path)?, Some(path.clone())));
            }
            Ear::Name(name) => name,
        };
        // Twice: the last daemon of a folder takes it away, perhaps just now.
        for _ in 0..2 {
            let Some(path) = own_folder().map(|folder| folder.join(name)) else { break };
            if let Ok(listener) = bind_beside(&path) {
                return Ok((listener, Some(path)));
            }
        }
        let address = SocketAddr::from_abstract_name(name.as_bytes())?;
        Ok((UnixListener::bind_addr(&address)?, None))
    }

    /// Takes the file away, and the folder if it was the last.
    pub(super) fn remove(&self, path: &Path) {
        let _ = fs::remove_file(path);
        if let (Ear::Name(_), Some(folder)) = (self, path.parent()) {
            // Others' sockets in it keep it.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// An address holds 107 bytes: a longer path goes through a descriptor of its folder.
fn address(path: &Path) -> io::Result<(SocketAddr, Option<File>)> {
    if path.as_os_str().len() <= 100 {
        return Ok((SocketAddr::from_pathname(path)?, None));
    }
    let folder = File::open(path.parent().unwrap_or(Path::new("/")))?;
    let name = path.file_name().unwrap_or_default();
    let short = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
    Ok((SocketAddr::from_pathname(short)?, Some(folder)))
}

/// Connects with a bound: a daemon that is stopped takes so many callers, and the next would wait for as long as it is.
fn connect_to(address: &SocketAddr) -> io::Result<UnixStream> {
    let name = address.as_pathname().map(|path| path.as_os_str().as_bytes().to_vec());
    let name = name.or_else(|| address.as_abstract_name().map(|name| [b"\0", name].concat()));
    let name = name.unwrap_or_default();
    // SAFETY: sockaddr_un is plain numbers, for which all zero bytes are a value.
    let mut to: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    to.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if name.len() >= to.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    to.sun_path.iter_mut().zip(&name).for_each(|(to, byte)| *to = byte.cast_signed());
    // A path ends with a NUL, an abstract name with its length.
    let end = usize::from(name.first() != Some(&0));
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + name.len() + end;
    // SAFETY: socket(2) takes numbers.
    let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nobody else's.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(socket) });
    // The kernel bounds connecting by the time for sending.
    let within = Deadline::current().within(CONNECT).left().max(Duration::from_millis(1));
    stream.set_write_timeout(Some(within))?;
    // SAFETY: `to` is a living address, of which `len` bytes count.
    match unsafe { libc::connect(socket, (&raw const to).cast(), len as libc::socklen_t) } {
        0 => Ok(stream),
        _ => Err(io::Error::last_os_error()),
    }
}

fn connect(path: &Path) -> io::Result<UnixStream> {
    let (address, _folder) = address(path)?;
    connect_to(&address)
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let (address, _folder) = address(path)?;
    let listener = UnixListener::bind_addr(&address)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Binds under a name that nobody looks for, so that what has the right name can be connected to.
fn bind_beside(path: &Path) -> io::Result<UnixListener> {
    let beside = path.with_file_name(format!(".{:016x}", base::random::u64()));
    let listener = bind(&beside)?;
    fs::rename(&beside, path).inspect_err(|_| drop(fs::remove_file(&beside)))?;
    Ok(listener)
}

/// The folder for this user's daemons, made if it is absent, without sockets of the dead. None where there is no place for one.
fn own_folder() -> Option<PathBuf> {
    let user = caller::euid();
    let folder = if user == 0 { RUN.0.into() } else { Path::new(RUN.1).join(user.to_string()).join("covey") };
    // Root's can be entered by all: who may not ask is told so, by the socket's own rights.
    let _ = DirBuilder::new().mode(if user == 0 { 0o755 } else { 0o700 }).create(&folder);
    let about = fs::symlink_metadata(&folder).ok()?;
    if !about.is_dir() || about.uid() != user || about.mode() & 0o022 != 0 {
        return None;
    }
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(|path| !is_hidden(path)) {
        if connect(&path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(&path);
        }
    }
    Some(folder)
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Where a daemon of this name may listen: root's, or that of a user whose folder this user may enter.
fn rendezvous(name: &str) -> Vec<PathBuf> {
    let users = fs::read_dir(RUN.1).into_iter().flatten().flatten();
    let users = users.map(|user| user.path().join("covey").join(name));
    std::iter::once(Path::new(RUN.0).join(name)).chain(users).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_file_that_goes_with_its_daemon() {
        let ear = Ear::Name(format!("covey-test-{:016x}", base::random::u64()));
        assert!(ear.connect().is_err());
        let (listener, file) = ear.bind().unwrap();
        ear.connect().unwrap();
        let Some(file) = file else { return };
        assert!(file.is_absolute() && file.exists());
        // It dies without a word: the next daemon tidies up.
        drop(listener);
        let other = Ear::Name(format!("covey-test-{:016x}", base::random::u64()));
        let (_listener, second) = other.bind().unwrap();
        assert!(!file.exists() && ear.connect().is_err());
        other.remove(&second.unwrap());
        assert!(other.connect().is_err());
    }
}
