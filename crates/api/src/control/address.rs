//! Where a daemon's control socket is, and how a command finds it from the source of the mount.
//!
//! ```text
//!   a volume's folder       VOLUME/control.sock
//!   anything else           /run/covey/NAME, of root's daemons; /run/user/UID/covey/NAME, of a user's
//!                           where there is neither: NAME in the kernel's table of the network namespace
//!   a volume's publishers   the same with a NAME that follows from the folder; every user may connect
//! ```
//!
//! A file can be found from every network namespace, a name in the kernel's table only from the daemon's own.
//! So a daemon takes a file where it can. The file gets its name only when it can be connected to. The next
//! daemon in that folder removes files that no process listens at any more.

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

/// The folder for the daemons of root, and the folder that holds those of the other users.
const RUN: (&str, &str) = ("/run/covey", "/run/user");

/// The constants of FNV-1a with 128 bits.
const FNV_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// The address of a daemon's control socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlAddress {
    /// A socket file.
    File(PathBuf),
    /// A name, for a mount without a folder. See the [module](self).
    Name(String),
}

impl fmt::Display for ControlAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlAddress::File(path) => path.parent().unwrap_or(path).display().fmt(f),
            ControlAddress::Name(name) => f.write_str(name),
        }
    }
}

impl ControlAddress {
    /// The control socket of the daemon whose mount has this source.
    pub fn of_source(mounted: &Path) -> ControlAddress {
        match mounted.to_str() {
            // The text holds the numbers of the corpus, and what tells one mount of it from another.
            Some(text) if text.starts_with(source::CORPUS) => ControlAddress::Name(format!("covey-{text}")),
            Some(text) if text.starts_with(source::MEMORY) => {
                ControlAddress::Name(format!("covey-{}", &text[source::MEMORY.len()..]))
            }
            // The name of an origin can be longer than a socket address.
            Some(text) if source::tree(text).is_some() => {
                let mark = text.rsplit(source::MARK).next().unwrap_or(text);
                ControlAddress::Name(format!("covey-tree-{mark}"))
            }
            _ => ControlAddress::File(mounted.join("control.sock")),
        }
    }

    /// The socket at which members of a group may ask for publications, if the volume's owner allows it. A
    /// volume's own socket lies in a folder that they may not enter.
    pub(super) fn of_publishers(&self) -> Option<ControlAddress> {
        let ControlAddress::File(path) = self else { return None };
        // FNV-1a. Two volumes with the same number would only get in each other's way.
        let number = path
            .as_os_str()
            .as_bytes()
            .iter()
            .fold(FNV_BASIS, |number, byte| (number ^ u128::from(*byte)).wrapping_mul(FNV_PRIME));
        Some(ControlAddress::Name(format!("covey-publish-{number:032x}")))
    }

    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        let name = match self {
            ControlAddress::File(path) => return connect(path),
            ControlAddress::Name(name) => name,
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

    /// Starts listening. Also returns the file to remove at the end.
    pub(super) fn bind(&self) -> io::Result<(UnixListener, Option<PathBuf>)> {
        let name = match self {
            ControlAddress::File(path) => {
                // The process that binds holds the volume's lock. So an existing socket belongs to a dead
                // daemon.
                match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                return Ok((bind(path)?, Some(path.clone())));
            }
            ControlAddress::Name(name) => name,
        };
        // Two attempts: the last daemon of a folder removes the folder, perhaps at this moment.
        for _ in 0..2 {
            let Some(path) = own_folder().map(|folder| folder.join(name)) else { break };
            if let Ok(listener) = bind_beside(&path) {
                return Ok((listener, Some(path)));
            }
        }
        Ok((bind_name(name)?, None))
    }

    /// Starts listening where every user can connect. The daemon itself checks each caller. Also returns the
    /// file to remove at the end.
    pub(super) fn bind_for_all(&self) -> io::Result<(UnixListener, Option<PathBuf>)> {
        let ControlAddress::Name(name) = self else { return self.bind() };
        // Other users may not enter the folder of a user's daemons.
        if caller::euid() != 0 {
            return Ok((bind_name(name)?, None));
        }
        let (listener, file) = self.bind()?;
        if let Some(file) = &file {
            fs::set_permissions(file, Permissions::from_mode(0o666))?;
        }
        Ok((listener, file))
    }

    /// Removes the file, and the folder if it is empty then.
    pub(super) fn remove(&self, path: &Path) {
        let _ = fs::remove_file(path);
        if let (ControlAddress::Name(_), Some(folder)) = (self, path.parent()) {
            // Fails if other daemons have sockets in it.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// An address holds 107 bytes. A longer path goes through a descriptor of its folder.
fn address(path: &Path) -> io::Result<(SocketAddr, Option<File>)> {
    if path.as_os_str().len() <= 100 {
        return Ok((SocketAddr::from_pathname(path)?, None));
    }
    let folder = File::open(path.parent().unwrap_or(Path::new("/")))?;
    let name = path.file_name().unwrap_or_default();
    let short = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name);
    Ok((SocketAddr::from_pathname(short)?, Some(folder)))
}

/// Connects within a time limit. When the queue of a stopped daemon is full, connect(2) would wait as long as
/// the daemon is stopped.
fn connect_to(address: &SocketAddr) -> io::Result<UnixStream> {
    let name = address.as_pathname().map(|path| path.as_os_str().as_bytes().to_vec());
    let name = name.or_else(|| address.as_abstract_name().map(|name| [b"\0", name].concat()));
    let name = name.unwrap_or_default();
    // SAFETY: sockaddr_un holds only numbers, for which all zero bytes are valid.
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
    // SAFETY: the descriptor is new, and nothing else owns it.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(socket) });
    // The kernel applies the send timeout to connect(2).
    let within = Deadline::current().within(CONNECT).left().max(Duration::from_millis(1));
    stream.set_write_timeout(Some(within))?;
    // SAFETY: `to` is a live address, and its first `len` bytes are set.
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

/// Binds a name without a file. It is free when nothing has the last listener any more.
fn bind_name(name: &str) -> io::Result<UnixListener> {
    let address = SocketAddr::from_abstract_name(name.as_bytes())?;
    base::lock::bind(|| UnixListener::bind_addr(&address))
}

/// Binds under a temporary name and renames it. So a socket with the right name can always be connected to.
fn bind_beside(path: &Path) -> io::Result<UnixListener> {
    let beside = path.with_file_name(format!(".{:016x}", base::random::u64()));
    let listener = bind(&beside)?;
    fs::rename(&beside, path).inspect_err(|_| drop(fs::remove_file(&beside)))?;
    Ok(listener)
}

/// The folder for this user's daemons. Creates it if it is absent, and removes the sockets of dead daemons.
/// None if there is no place for it.
fn own_folder() -> Option<PathBuf> {
    let user = caller::euid();
    let folder = if user == 0 { RUN.0.into() } else { Path::new(RUN.1).join(user.to_string()).join("covey") };
    // Everyone may enter root's folder: the permissions of the socket refuse users who may not ask.
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

/// The files where a daemon of this name may listen: root's, and those of users whose folder this user may
/// enter.
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
        let address = ControlAddress::Name(format!("covey-test-{:016x}", base::random::u64()));
        assert!(address.connect().is_err());
        let (listener, file) = address.bind().unwrap();
        address.connect().unwrap();
        let Some(file) = file else { return };
        assert!(file.is_absolute() && file.exists());
        // It dies without cleaning up. The next daemon removes its socket.
        drop(listener);
        let other = ControlAddress::Name(format!("covey-test-{:016x}", base::random::u64()));
        let (_listener, second) = other.bind().unwrap();
        assert!(!file.exists() && address.connect().is_err());
        other.remove(&second.unwrap());
        assert!(other.connect().is_err());
    }
}
