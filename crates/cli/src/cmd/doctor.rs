//! `covey doctor`: finds what on this machine would keep Covey from mounting or make it slow, and names the
//! command that fixes it. It also says which settings suit which use ([`advice`]).

mod advice;
mod database;
mod fleet;
mod machine;
mod places;
#[cfg(feature = "s3")]
mod probe;
mod remote_side;
mod s3;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use api::control::{ControlAddress, Request};
use api::error::{Failure, Result};
use api::status::Status;
use base::Deadline;
use fuse::mount::{ANSWER_WITHIN, Life, Mounted};
use node::control;
use node::mounts;
use node::volume_dir::VolumeDir;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::term::Term;

/// Looks for what keeps Covey from mounting, or from being quick, and names the command that mends it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey doctor\n  covey doctor /srv/volume      also looks at a volume and its disk\n  \
    covey doctor --s3 127.0.0.1:9878 --s3-keys keys.toml      also looks at an S3 endpoint\n\n\
    Exit status: 0 nothing is wrong, 1 something is."
)]
pub struct Args {
    /// A volume, or a path on its mount, to look at as well; or postgres://USER@HOST/DATABASE?volume=NAME or
    /// etcd://HOST:2379/?volume=NAME, to look at that database and nothing else
    volume: Option<PathBuf>,
    #[command(flatten)]
    s3: s3::S3,
}

pub use places::{folder_of, free_room};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// All is well.
    Ok,
    /// Nothing to fix. It says which setting suits which use.
    Tip,
    /// Something works, but could be better.
    Note,
    /// Something does not work.
    Wrong,
}

/// One finding.
#[derive(Debug, Serialize)]
pub struct Check {
    name: &'static str,
    level: Level,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

fn ok(name: &'static str, found: impl Into<String>) -> Check {
    Check { name, level: Level::Ok, found: found.into(), mend: None }
}

fn note(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
    Check { name, level: Level::Note, found: found.into(), mend: Some(mend.into()) }
}

fn tip(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
    Check { name, level: Level::Tip, found: found.into(), mend: Some(mend.into()) }
}

fn wrong(name: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Check {
    Check { name, level: Level::Wrong, found: found.into(), mend: Some(mend.into()) }
}

/// Runs the command.
pub fn run(args: &Args, named: Option<&OsString>, term: Term) -> Result<u8> {
    let names = args.volume.as_deref().filter(|path| node::shared::making::is_address(path));
    let mut checks = match names {
        Some(address) => database::checks(address)?,
        None => checks(args.volume.as_deref(), named),
    };
    checks.extend(args.s3.checks());
    let wrong = checks.iter().filter(|check| check.level == Level::Wrong).count();
    term.result(&checks, || text(&checks, wrong));
    Ok(u8::from(wrong > 0))
}

/// All checks. `named`: the configuration file, if one was named.
pub fn checks(path: Option<&Path>, named: Option<&OsString>) -> Vec<Check> {
    // A mount may have no folder: a published tree, a corpus, a volume in memory. The mount itself is checked
    // below.
    let folder = path.map(places::folder_of).filter(|folder| !places::is_on_a_mount(folder));
    let folder = folder.as_deref();
    let mut checks = vec![kernel(), filesystem(), device(), rights()];
    checks.extend(allow_other());
    let machine = advice::Machine::here();
    checks.push(uring(machine.uring));
    checks.extend(machine::passthrough());
    checks.extend(advice::machine(&machine));
    checks.push(machine::clock());
    checks.push(open_files());
    checks.extend(machine::pinned_memory());
    checks.extend(machine::yielding());
    checks.push(machine::configuration(named));
    checks.extend(machine::fstab());
    checks.push(places::disk(folder));
    checks.extend(places::inodes(folder));
    checks.extend(folder.map(volume));
    if let Some(dir) = folder.and_then(|folder| VolumeDir::open(folder).ok()) {
        checks.extend(remote_side::clock(&dir));
        checks.extend(remote_side::clear(dir.home().endpoint.as_deref()));
        checks.extend(places::rights(&dir));
        checks.extend(places::leftovers(&dir));
    }
    let of_mount = |mount: &Mounted| {
        let mut checks = vec![present_mount(mount)];
        let address = ControlAddress::of_source(Path::new(&mount.source));
        if checks[0].level != Level::Wrong
            && let Ok(status) = control::ask::<Status>(&address, &Request::Status, &mut |_| ())
        {
            checks.extend(advice::of_mount(mount, &status, &machine));
            checks.extend(remote_side::of_mount(mount, &status));
            checks.extend(fleet::of_mount(mount));
            checks.extend(in_the_clear(mount));
            checks.extend(s3::of_mount(&status));
        }
        checks
    };
    checks.extend(mounts::of_each(&node::trust::mounts(), of_mount).into_iter().flatten());
    checks.extend(advice::uses(&machine));
    checks
}

/// Connections of a mount that are not encrypted.
fn in_the_clear(mount: &Mounted) -> Vec<Check> {
    let address = ControlAddress::of_source(Path::new(&mount.source));
    let status: Option<Status> = control::ask(&address, &Request::Status, &mut |_| ()).ok();
    let Some(status) = status else { return Vec::new() };
    let endpoint = status.remote_side.as_ref().and_then(|remote_side| remote_side.endpoint.as_deref());
    let fleet = status.fleet.as_ref().and_then(fleet::clear);
    fleet.into_iter().chain(remote_side::clear(endpoint)).collect()
}

fn text(checks: &[Check], wrong: usize) -> String {
    let mut text = String::new();
    for check in checks {
        let mark = match check.level {
            Level::Ok => "ok   ",
            Level::Tip => "tip  ",
            Level::Note => "note ",
            Level::Wrong => "WRONG",
        };
        text.push_str(&format!("{mark}  {:16} {}\n", check.name, check.found));
        if let Some(mend) = &check.mend {
            let word = if check.level == Level::Tip { "with" } else { "mend" };
            text.push_str(&format!("{:24}{word}: {mend}\n", ""));
        }
    }
    let notes = checks.iter().filter(|check| check.level == Level::Note).count();
    text.push_str(&match wrong {
        0 if notes == 0 => "\nNothing is wrong.\n".to_owned(),
        0 => "\nNothing is wrong, but read what is marked as a note.\n".to_owned(),
        1 => "\n1 thing is wrong.\n".to_owned(),
        n => format!("\n{n} things are wrong.\n"),
    });
    text
}

fn kernel() -> Check {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version {
        (5, 17..) | (6.., _) => ok("kernel", format!("Linux {release}")),
        _ => wrong("kernel", format!("Linux {release}: its FUSE is too old"), "use Linux 5.17 or newer"),
    }
}

fn filesystem() -> Check {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if known.lines().any(|line| line.trim_start_matches("nodev").trim() == "fuse") {
        return ok("fuse", "the kernel knows FUSE");
    }
    wrong(
        "fuse",
        "the kernel does not know FUSE",
        "modprobe fuse   (as root; a kernel without the module needs CONFIG_FUSE_FS)",
    )
}

fn device() -> Check {
    let path = Path::new("/dev/fuse");
    if !path.exists() {
        let mend =
            "modprobe fuse   (as root; in a container start it with --device /dev/fuse --cap-add SYS_ADMIN)";
        return wrong("/dev/fuse", "it is not there", mend);
    }
    match fs::OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => ok("/dev/fuse", "can be opened"),
        Err(error) => {
            let found = format!("cannot be opened: {}", api::error::plain(&error));
            wrong(
                "/dev/fuse",
                found,
                "chmod 666 /dev/fuse   (as root; in a container --device /dev/fuse --cap-add SYS_ADMIN)",
            )
        }
    }
}

fn rights() -> Check {
    if may_mount() {
        return ok("rights", "this user may mount");
    }
    match find_program("fusermount3") {
        Some(path) => match fs::metadata(&path) {
            Ok(meta) if meta.permissions().mode() & 0o4000 != 0 => {
                ok("rights", format!("mounts through {}", path.display()))
            }
            _ => wrong(
                "rights",
                format!("{} is not set-user-id", path.display()),
                format!("chmod u+s {}   (as root)", path.display()),
            ),
        },
        None => wrong(
            "rights",
            "this user may not mount and fusermount3 is missing",
            "apt-get install fuse3   (or run covey as root)",
        ),
    }
}

/// Whether this process has CAP_SYS_ADMIN, which mount(2) requires.
pub fn may_mount() -> bool {
    const CAP_SYS_ADMIN: u32 = 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0);
    capabilities >> CAP_SYS_ADMIN & 1 == 1
}

/// Finds a program on PATH as a shell does, and in the system's folders.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(name)).find(|file| file.is_file())
}

fn allow_other() -> Option<Check> {
    if may_mount() {
        return None;
    }
    let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    let allowed = conf.lines().any(|line| line.trim() == "user_allow_other");
    let mend = "echo user_allow_other >> /etc/fuse.conf   (as root)";
    Some(match allowed {
        true => ok("allow_other", "users may share their mounts"),
        false => note(
            "allow_other",
            "mounts of this user cannot be shared with other users (-o allow_other)",
            mend,
        ),
    })
}

fn uring(switched_on: Option<bool>) -> Check {
    match switched_on {
        Some(true) => ok("io_uring", "FUSE over io_uring is on"),
        Some(false) if may_mount() => {
            ok("io_uring", "FUSE over io_uring is off on this host; the next mount of root turns it on")
        }
        Some(false) => note(
            "io_uring",
            "FUSE over io_uring is off on this host, and only root can turn it on; mounts use /dev/fuse, which is slower",
            format!("echo Y > {}   (as root; then mount again)", fuse::uring::SWITCH),
        ),
        None => ok("io_uring", "this kernel has no FUSE over io_uring; mounts use /dev/fuse"),
    }
}

fn open_files() -> Check {
    match getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) {
        limit @ 1024.. => ok("open files", format!("up to {limit}")),
        few => wrong("open files", format!("only {few} are allowed"), "ulimit -n 65536"),
    }
}

fn volume(path: &Path) -> Check {
    let failed = |failure: Failure| {
        let why = failure.why.first().map(|why| format!(" ({why})")).unwrap_or_default();
        wrong("volume", format!("{}{why}", failure.what), failure.next.join("; or "))
    };
    let dir = match VolumeDir::open(path) {
        Ok(dir) => dir,
        Err(failure) => return failed(failure),
    };
    if let Err(failure) = node::origins::check_origin(&dir) {
        return failed(failure);
    }
    match dir.holder() {
        Err(failure) => failed(failure),
        Ok(None) => ok("volume", format!("{}, not in use", dir.path().display())),
        Ok(Some(holder)) => match holder.mountpoint {
            Some(place) => ok("volume", format!("{}, mounted at {}", dir.path().display(), place.display())),
            None => ok("volume", format!("{}, in use by process {}", dir.path().display(), holder.pid)),
        },
    }
}

/// Checks a mount: whether it is dead, and whether its read-ahead is still the kernel's small default.
fn present_mount(mount: &Mounted) -> Check {
    let place = mount.path.display();
    match mount.life(Deadline::after(ANSWER_WITHIN)) {
        Life::Lives(_) => {}
        Life::Dead => {
            return wrong(
                "mount",
                format!("{place} is dead: its daemon is gone"),
                format!("covey umount {place}"),
            );
        }
        Life::Silent => {
            let failure =
                control::silent(&ControlAddress::of_source(Path::new(&mount.source)), ANSWER_WITHIN);
            let why = failure.why.join("; ");
            return wrong("mount", format!("{}: {why}", failure.what), failure.next.join("; or "));
        }
    }
    let knob = format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(mount.dev), libc::minor(mount.dev));
    let ahead = fs::read_to_string(&knob).ok().and_then(|text| text.trim().parse::<u32>().ok());
    match ahead {
        Some(kib @ ..1024) if !advice::is_remote(mount) => note(
            "mount",
            format!("{place} reads only {kib} KiB ahead; large files are slow through mmap"),
            format!("echo 1024 > {knob}   (as root)"),
        ),
        Some(kib) => ok("mount", format!("{place} reads {kib} KiB ahead")),
        None => ok("mount", format!("{place}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_not_passed_over_at_the_end() {
        let fine = || ok("kernel", "Linux 6.1");
        assert!(text(&[fine()], 0).ends_with("\nNothing is wrong.\n"));
        let noted = text(&[fine(), note("mount", "slow", "make it fast")], 0);
        assert!(noted.ends_with("\nNothing is wrong, but read what is marked as a note.\n"), "{noted}");
    }
}
