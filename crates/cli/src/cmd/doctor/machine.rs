//! Checks of the machine other than FUSE: clock, limits, configuration file, fstab.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use api::text::utc;
use clap::CommandFactory;
use clap::builder::{BoolishValueParser, TypedValueParser};

use super::{Check, find_program, note, ok, wrong};
use crate::Cli;
use crate::config::Config;

/// A correct clock shows no time before 2025 or after 2099.
const FIRST_SECOND: i64 = 1_735_689_600;
const LAST_SECOND: i64 = 4_102_444_800;

/// Checks the clock. It supplies the timestamps of files, and object stores refuse requests that are minutes
/// off.
pub fn clock() -> Check {
    let now = base::time::now().seconds();
    let shown = utc(now);
    if !(FIRST_SECOND..LAST_SECOND).contains(&now) {
        return wrong(
            "clock",
            format!("it shows {shown}"),
            "timedatectl set-ntp true   (as root; or set it: date -s '2026-01-31 12:00')",
        );
    }
    // SAFETY: `timex` is plain numbers, so all zeros is a valid value. It asks to change nothing.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` is alive during the call, and its type is the one that adjtimex(2) fills.
    let state = unsafe { libc::adjtimex(&mut timex) };
    match state {
        libc::TIME_ERROR => note(
            "clock",
            format!(
                "{shown}, and nothing keeps it right: object stores refuse clocks that are off by minutes"
            ),
            "timedatectl set-ntp true   (as root; in a virtual machine or container the host may do it)",
        ),
        _ => ok("clock", shown),
    }
}

/// Checks the limit of pinned memory. io_uring pins its buffers, and users without privileges can pin little.
pub fn pinned_memory() -> Option<Check> {
    const ENOUGH: u64 = 8 << 20;
    let switched_on = fuse::uring::switched_on() == Some(true);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is alive during the call, and its type is the one that getrlimit(2) fills.
    let status = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) };
    if !switched_on || status != 0 || super::may_mount() || limit.rlim_cur >= ENOUGH {
        return None;
    }
    Some(note(
        "pinned memory",
        format!("only {} KiB may be pinned, which io_uring needs", limit.rlim_cur >> 10),
        "ulimit -l 65536   (for a service: LimitMEMLOCK=infinity)",
    ))
}

/// Checks whether threads that serve over io_uring can yield to the caller, so that programs stay on their
/// CPU.
pub fn yielding() -> Option<Check> {
    let switched_on = fuse::uring::switched_on() == Some(true);
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let off = std::env::var_os("COVEY_FUSE_YIELD").is_some_and(|value| is_off(&value));
    if switched_on && off {
        return Some(note(
            "io_uring",
            "COVEY_FUSE_YIELD=off: programs move to another CPU with every request",
            "unset COVEY_FUSE_YIELD",
        ));
    }
    (switched_on && !has_sys_nice(&status)?).then(|| {
        note(
            "io_uring",
            "without CAP_SYS_NICE programs move to another CPU with every request, which can take longer than the request",
            "mount as root; in a container: --cap-add SYS_NICE",
        )
    })
}

/// Whether `covey mount --yield` reads this value as off. An invalid value is reported by `covey mount`
/// itself.
fn is_off(value: &OsStr) -> bool {
    let asked = BoolishValueParser::new().parse_ref(&clap::Command::new("doctor"), None, value);
    matches!(asked, Ok(false))
}

/// Whether CAP_SYS_NICE is among the effective capabilities in the text of /proc/PID/status.
fn has_sys_nice(status: &str) -> Option<bool> {
    const SYS_NICE: u64 = 1 << 23;
    let word = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?.trim();
    Some(u64::from_str_radix(word, 16).ok()? & SYS_NICE != 0)
}

/// Whether the kernel supports FUSE passthrough to a file of another filesystem. Covey does not use it, so
/// the result changes nothing.
pub fn passthrough() -> Option<Check> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let text = fs::read_to_string(format!("/boot/config-{}", release.trim())).ok()?;
    let has = text.lines().any(|line| line == "CONFIG_FUSE_PASSTHROUGH=y");
    Some(ok(
        "passthrough",
        if has { "this kernel has it; it is not needed" } else { "this kernel has none; it is not needed" },
    ))
}

/// Whether users other than its owner and root can change a file.
fn others_may_write(path: &Path) -> bool {
    fs::metadata(path)
        .is_ok_and(|meta| meta.mode() & 0o002 != 0 || meta.mode() & 0o020 != 0 && meta.gid() != meta.uid())
}

/// Checks whether the configuration files can be used.
pub fn configuration(named: Option<&OsString>) -> Check {
    match Config::load(&Cli::command(), named.map(OsString::as_os_str)) {
        Ok(config) => {
            let open = config.files.iter().find(|(path, read)| *read && others_may_write(path));
            if let Some((path, _)) = open {
                let shown = path.display();
                let found =
                    format!("{shown} can be written by other users, who then say how volumes are mounted");
                return wrong("configuration", found, format!("chmod go-w {shown}"));
            }
            let read: Vec<String> =
                config.files.iter().filter(|file| file.1).map(|file| file.0.display().to_string()).collect();
            ok(
                "configuration",
                if read.is_empty() { "no file: defaults".to_owned() } else { read.join(", ") },
            )
        }
        Err(failure) => wrong("configuration", failure.what, failure.next.join("; or ")),
    }
}

/// Checks whether the program and the volumes of the fstab lines exist.
pub fn fstab() -> Vec<Check> {
    let text = fs::read_to_string("/etc/fstab").unwrap_or_default();
    let helper = ["/sbin/mount.covey", "/usr/sbin/mount.covey"].iter().any(|path| Path::new(path).exists());
    lines_of_ours(&text).map(|(volume, place)| fstab_line(volume, place, helper)).collect()
}

/// Volume and mountpoint of each line of type covey.
fn lines_of_ours(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (volume, place, kind) = (words.next()?, words.next()?, words.next()?);
        (!volume.starts_with('#') && matches!(kind, "covey" | "fuse.covey")).then_some((volume, place))
    })
}

fn fstab_line(volume: &str, place: &str, helper: bool) -> Check {
    let program = find_program("covey").unwrap_or_else(|| "/usr/bin/covey".into());
    if !helper {
        let mend = format!("ln -s {} /sbin/mount.covey   (as root)", program.display());
        return wrong(
            "fstab",
            format!("{place} is of type covey, and mount(8) finds no /sbin/mount.covey"),
            mend,
        );
    }
    if volume.starts_with('/') && !Path::new(volume).join("covey.json").exists() {
        return wrong(
            "fstab",
            format!("{volume}, for {place}, is no volume"),
            format!("covey format {volume}, or mend /etc/fstab"),
        );
    }
    if !Path::new(place).is_dir() {
        return wrong("fstab", format!("{place} is not there"), format!("mkdir -p {place}"));
    }
    ok("fstab", format!("{volume} at {place}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::cmd::doctor::Level;

    #[test]
    fn capabilities_are_read() {
        let status = |word: &str| format!("Name:\tcovey\nCapPrm:\t0000000000000000\nCapEff:\t{word}\n");
        assert_eq!(has_sys_nice(&status("000001ffffffffff")), Some(true));
        assert_eq!(has_sys_nice(&status("0000000000800000")), Some(true));
        assert_eq!(has_sys_nice(&status("000001ffff7fffff")), Some(false));
        assert_eq!(has_sys_nice("Name: x"), None);
    }

    #[test]
    fn a_configuration_that_others_can_write_is_wrong() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("covey.toml");
        fs::write(&path, "[mount]\ncommit = 2\n").unwrap();
        let level = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            configuration(Some(&path.clone().into_os_string())).level
        };
        assert_eq!((level(0o644), level(0o666)), (Level::Ok, Level::Wrong));
    }

    #[test]
    fn lines_of_other_types_are_not_ours() {
        let text =
            "# /srv/a /a covey\n/srv/v  /mnt/v  covey  nofail 0 0\nUUID=x / ext4\n\nmem: /m fuse.covey\n";
        let found: Vec<_> = lines_of_ours(text).collect();
        assert_eq!(found, [("/srv/v", "/mnt/v"), ("mem:", "/m")]);
    }

    #[test]
    fn a_line_without_its_program_volume_or_place_is_wrong() {
        let temp = tempfile::tempdir().unwrap();
        let here = temp.path().to_str().unwrap();
        assert!(fstab_line("mem:", here, false).mend.unwrap().starts_with("ln -s "));
        assert_eq!(fstab_line(here, here, true).level, Level::Wrong);
        assert_eq!(fstab_line("mem:", "/nowhere", true).level, Level::Wrong);
        assert_eq!(fstab_line("mem:", here, true).level, Level::Ok);
    }
}
