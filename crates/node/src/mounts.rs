//! Which Covey mount a path is in, and which processes use it.
//!
//! A Covey mount is recognized by its type and by the user that serves it ([`crate::trust`]). Its source is
//! the volume: an absolute folder, or `mem:<id>` for a volume in memory. So the kernel's mount table is the
//! only registry. From any path on the mount a command finds the volume and its control socket, and nothing
//! can be out of date.
//!
//! **A mount whose daemon does not answer delays no command.** A system call on a path in such a mount would
//! wait forever. So the path is first followed by name ([`entered`]), and the first Covey mount on the way is
//! asked, with a time limit, whether it is alive. Other mounts are not checked.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use api::control::{ControlAddress, Request};
use api::error::{Context, Failure, Result};
use base::Deadline;
use fuse::mount::{ANSWER_WITHIN, Life, Mounted, Room, find};
use parking_lot::Mutex;
use serde::de::IgnoredAny;

use crate::control;
use crate::trust;

/// The topmost mount at exactly this path, of Covey or of anything else.
pub fn at(mountpoint: &Path) -> Result<Option<Mounted>> {
    Ok(find(&absolute(mountpoint)?))
}

/// Whether it is a Covey mount.
pub fn is_covey(mount: &Mounted) -> bool {
    trust::is_covey(mount)
}

/// The Covey mount that contains a path, if there is one. The path must exist, except on a dead mount.
pub fn covey_of(path: &Path) -> Result<Option<Mounted>> {
    let mut ours = trust::mounts();
    if ours.is_empty() {
        return Ok(None);
    }
    if let Some((mount, _)) = entered(path)
        && life(&mount)? == Life::Dead
    {
        return Ok(Some(mount));
    }
    match fs::symlink_metadata(path).and_then(|_| fs::metadata(path).or_else(|_| fs::symlink_metadata(path)))
    {
        Ok(meta) => {
            ours.retain(|mount| mount.dev == meta.dev());
            let place = absolute(path)?;
            // The table has the newest last. A bind mount has the same device.
            let below = |mount: &Mounted| place.starts_with(&mount.path);
            let depth =
                |mount: &&Mounted| (below(mount), mount.path.as_os_str().len() * usize::from(below(mount)));
            Ok(ours.iter().max_by_key(depth).cloned())
        }
        Err(error) if is_dead(&error) => {
            let place = absolute(path)?;
            ours.retain(|mount| place.starts_with(&mount.path));
            Ok(ours.pop())
        }
        Err(error) => match entered(path) {
            // A database or a store is away. The daemon can say so, and the kernel's error cannot.
            Some((mount, _)) if error.raw_os_error() == Some(libc::EIO) => Ok(Some(mount)),
            _ => Err(Failure::io(format!("cannot open {}", path.display()), &error)),
        },
    }
}

/// The mount that shows all of a volume, and the same place there, for a place on any mount of it: a bind
/// mount shows only a part.
///
/// # Errors
/// Nothing here shows all of it, or the place is not on the mount.
pub fn on_the_whole(mount: Mounted, path: PathBuf) -> Result<(Mounted, PathBuf)> {
    // Its last name may be a link that leads there.
    let path = if path.starts_with(&mount.path) { path } else { absolute(&path)? };
    let Ok(rest) = path.strip_prefix(&mount.path) else {
        let (path, mount) = (path.display(), mount.path.display());
        return Err(Failure::new(
            "not-found",
            format!("{path} is on the volume mounted at {mount}, but not below it"),
        )
        .next(format!("name it by a path below {mount}")));
    };
    if mount.root == Path::new("/") {
        return Ok((mount, path));
    }
    let whole =
        trust::mounts().into_iter().rfind(|other| other.dev == mount.dev && other.root == Path::new("/"));
    let Some(whole) = whole else {
        let (path, root) = (mount.path.display(), mount.root.display());
        return Err(Failure::new(
            "not-mounted",
            format!("{path} shows only {root} of a volume that is mounted elsewhere"),
        )
        .next("run this where the volume itself is mounted"));
    };
    let inner = mount.root.strip_prefix("/").unwrap_or(&mount.root).join(rest);
    let place = if inner.as_os_str().is_empty() { whole.path.clone() } else { whole.path.join(inner) };
    Ok((whole, place))
}

/// How long a daemon may take for a question that it answers from memory.
const HEARS_WITHIN: Duration = Duration::from_secs(2);
/// The largest number of symbolic links to follow, as in the kernel.
const LINKS: usize = 40;

/// The first Covey mount on the way to a path, and the rest of the path below it. Touches nothing on the
/// mount. For a path that enters no Covey mount it looks only at the names on the way.
pub fn entered(path: &Path) -> Option<(Mounted, PathBuf)> {
    let ours: Vec<PathBuf> = crate::trust::mounts().into_iter().map(|mount| mount.path).collect();
    if ours.is_empty() {
        return None;
    }
    let names = |path: &Path| -> VecDeque<OsString> {
        let plain = |part: Component<'_>| !matches!(part, Component::RootDir | Component::CurDir);
        path.components().filter(|part| plain(*part)).map(|part| part.as_os_str().to_owned()).collect()
    };
    let (mut at, mut left) = (PathBuf::from("/"), names(&std::path::absolute(path).ok()?));
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        // The topmost mount counts, because another filesystem may cover a Covey mount.
        if ours.contains(&next)
            && let Some(mount) = find(&next).filter(is_covey)
        {
            return Some((mount, left.into_iter().collect()));
        }
        if fs::symlink_metadata(&next).ok()?.is_symlink() {
            links += 1;
            let target = fs::read_link(&next).ok().filter(|_| links <= LINKS)?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            let mut more = names(&target);
            more.append(&mut left);
            left = more;
        } else {
            at = next;
        }
    }
    None
}

/// Whether a mount's daemon lives. No answer in time is a failure that says so.
pub fn life(mount: &Mounted) -> Result<Life> {
    match mount.life(Deadline::current().within(ANSWER_WITHIN)) {
        // Its requests wait for a database, and end with an error.
        Life::Silent if is_of_shared(mount) && hears(mount) => Ok(Life::Lives(Room::default())),
        Life::Silent => {
            Err(control::silent(&ControlAddress::of_source(Path::new(&mount.source)), ANSWER_WITHIN))
        }
        life => Ok(life),
    }
}

/// Whether it is the mount of a shared volume: its folder names a database.
fn is_of_shared(mount: &Mounted) -> bool {
    let text = volume_of(mount).and_then(|folder| fs::read(folder.join("covey.json")).ok());
    let format = text.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok());
    format.is_some_and(|format| format["names"].is_string())
}

/// Whether its daemon answers a question for which it asks no other machine.
fn hears(mount: &Mounted) -> bool {
    let address = ControlAddress::of_source(Path::new(&mount.source));
    let answer = Deadline::after(HEARS_WITHIN)
        .scope(|| control::ask::<IgnoredAny>(&address, &Request::Peers, &mut |_| ()));
    // A refusal is an answer, too.
    !answer.is_err_and(|failure| matches!(&*failure.code, "silent" | "no-answer" | "not-permitted"))
}

/// Fails if the way to a path enters a Covey mount whose daemon does not answer. A system call on that path
/// would wait forever.
pub fn check_way(path: &Path) -> Result<()> {
    entered(path).map_or(Ok(()), |(mount, _)| life(&mount).map(drop))
}

/// Asks all mounts in parallel, so that one that does not answer does not delay the others.
pub fn of_each<T: Send>(mounts: &[Mounted], ask: impl Fn(&Mounted) -> T + Sync) -> Vec<T> {
    let places: Vec<(usize, &Mounted)> = mounts.iter().enumerate().collect();
    let answers: Mutex<Vec<Option<T>>> = Mutex::new(mounts.iter().map(|_| None).collect());
    let done = base::thread::for_each("covey-ask", mounts.len(), &places, |(index, mount)| {
        let answer = ask(mount);
        answers.lock()[*index] = Some(answer);
        Ok::<(), ()>(())
    });
    debug_assert!(done.is_ok());
    answers.into_inner().into_iter().flatten().collect()
}

/// Whether the error means that the path is on a mount whose daemon is gone. Over io_uring the kernel cancels
/// the requests of a daemon that was killed.
fn is_dead(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED))
}

/// The folder of the mounted volume, if it has one.
pub fn volume_of(mount: &Mounted) -> Option<PathBuf> {
    mount.source.starts_with('/').then(|| PathBuf::from(&mount.source))
}

/// The mount of a volume's folder, if it is mounted.
pub fn of_volume(volume: &Path) -> Option<Mounted> {
    trust::mounts().into_iter().rev().find(|mount| Path::new(&mount.source) == volume)
}

/// The absolute form of a path. Symbolic links are resolved where that is possible: a dead mountpoint can be
/// named, too.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    let here = std::path::absolute(path).at("resolve", path)?;
    let clean: PathBuf = here.components().collect();
    if let Some((mount, rest)) = entered(&clean) {
        let lives = || matches!(life(&mount), Ok(Life::Lives(_)));
        // The mountpoint itself is not touched. Paths on a mount that does not answer cannot be resolved.
        if rest.as_os_str().is_empty() || !lives() {
            return Ok(mount.path.join(rest).components().collect());
        }
    }
    if let Ok(full) = fs::canonicalize(&clean) {
        return Ok(full);
    }
    let (Some(folder), Some(name)) = (clean.parent(), clean.file_name()) else {
        return Ok(clean);
    };
    Ok(fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned()).join(name))
}

/// A process that keeps a mount busy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The process id.
    pub pid: u32,
    /// The process's name.
    pub name: String,
    /// What it holds: its working directory or an open file.
    pub holds: String,
}

/// The processes with a working directory, root, program or open file below a mountpoint, as far as this user
/// may see. Reads only links, so a dead mount does not block it.
pub fn users_of(mountpoint: &Path) -> Vec<User> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| user(pid, mountpoint)).collect()
}

fn user(pid: u32, mountpoint: &Path) -> Option<User> {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let below = |link: PathBuf| fs::read_link(link).ok().filter(|target| target.starts_with(mountpoint));
    let whole = [("cwd", "working directory"), ("root", "root"), ("exe", "program")];
    let held =
        whole.iter().find_map(|(link, what)| Some(format!("{what} {}", below(proc.join(link))?.display())));
    let held = held.or_else(|| {
        let mut open = fs::read_dir(proc.join("fd")).ok()?.flatten();
        open.find_map(|entry| Some(format!("open file {}", below(entry.path())?.display())))
    });
    let held = held.or_else(|| mapped(&proc, mountpoint));
    held.map(|holds| User {
        pid,
        name: fs::read_to_string(proc.join("comm")).unwrap_or_default().trim().to_owned(),
        holds,
    })
}

fn mapped(proc: &Path, mountpoint: &Path) -> Option<String> {
    let maps = fs::read(proc.join("maps")).ok()?;
    let mut prefix = b" ".to_vec();
    prefix.extend_from_slice(mountpoint.as_os_str().as_bytes());
    prefix.push(b'/');
    let line = maps
        .split(|&byte| byte == b'\n')
        .find(|line| line.windows(prefix.len()).any(|part| part == prefix))?;
    let at = line.windows(prefix.len()).position(|part| part == prefix)?;
    Some(format!("mapped file {}", String::from_utf8_lossy(&line[at + 1..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_is_found() {
        assert_eq!(at(Path::new("/proc")).unwrap().unwrap().kind, "proc");
        assert!(at(Path::new("/proc/self")).unwrap().is_none());
        assert!(covey_of(Path::new("/proc")).unwrap().is_none());
    }

    #[test]
    fn absolute_needs_no_file() {
        assert_eq!(absolute(Path::new("/proc/../proc/nothing/")).unwrap(), Path::new("/proc/nothing"));
        assert_eq!(absolute(Path::new("/")).unwrap(), Path::new("/"));
    }

    #[test]
    fn this_process_uses_its_program() {
        let program = std::env::current_exe().unwrap();
        let users = users_of(program.parent().unwrap());
        assert!(users.iter().any(|user| user.pid == std::process::id()), "{users:?}");
    }
}
