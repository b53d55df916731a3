//! The decision whether a mount asks the kernel for rings.
//!
//! The kernel offers them only while its switch is on. This is one switch for the whole machine, and it is
//! off by default. On, it changes nothing for mounts that do not ask for rings. So [`Transport::Auto`] turns
//! it on where this process may, and says so. If it cannot be turned on, a demand ([`Transport::Uring`]) is
//! refused, and `auto` stays on /dev/fuse with a line that says why, what this costs, and what to do.
//!
//! The switch stays on after the mount, because other mounts may use it by then. Turning it off does not
//! affect a running mount.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::Transport;
use crate::channel::Device;
use crate::mount::MountError;

/// The file of the kernel's switch.
pub const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// What /dev/fuse costs, as measured on two cores with Linux 6.18.
const COST: &str = "create and remove a file 279 us instead of 149, unpack an archive 473 ms instead of 332";

/// The switch: a file that holds `Y` or `N`.
#[derive(Clone, Debug)]
pub(crate) struct Switch(PathBuf);

impl Switch {
    /// The kernel's.
    pub(crate) fn of_kernel() -> Switch {
        Switch(SWITCH.into())
    }

    /// Whether it is on. `None` if the kernel has no such switch.
    pub(crate) fn is_on(&self) -> Option<bool> {
        let text = std::fs::read_to_string(&self.0).ok()?;
        Some(matches!(text.trim(), "Y" | "1"))
    }

    fn turn_on(&self) -> io::Result<()> {
        std::fs::write(&self.0, "Y")
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

/// Whether the kernel's switch is on. `None` if the kernel has no such switch.
pub fn switched_on() -> Option<bool> {
    let switch = Switch::of_kernel();
    // The kernel's module may be loaded only when its device is first opened.
    switch.is_on().or_else(|| Device::open().ok().and_then(|_| switch.is_on()))
}

/// Why rings cannot be had, and what to do about it.
pub(crate) struct Lack {
    /// The reason.
    pub why: String,
    /// The next step.
    pub next: String,
}

impl Lack {
    pub(crate) fn old_kernel() -> Lack {
        Lack { why: "this kernel has no FUSE over io_uring".into(), next: "use Linux 6.14 or newer".into() }
    }

    /// io_uring itself is not allowed here.
    pub(crate) fn forbidden(error: &io::Error) -> Lack {
        Lack {
            why: format!("this system does not allow io_uring ({error})"),
            next: "see `sysctl kernel.io_uring_disabled` and, in a container, its seccomp profile".into(),
        }
    }

    fn stays_off(switch: &Switch, error: &io::Error) -> Lack {
        let turn_on = format!("echo Y > {}, then mount again", switch.path().display());
        let (why, next) = match error.kind() {
            ErrorKind::PermissionDenied => (
                "FUSE over io_uring is off, and only root can turn it on".into(),
                format!("as root: {turn_on}"),
            ),
            ErrorKind::ReadOnlyFilesystem => (
                "FUSE over io_uring is off, and /sys is read-only here".into(),
                format!("as root of the host: {turn_on}"),
            ),
            _ => (
                format!("FUSE over io_uring is off and cannot be turned on here ({error})"),
                format!("as root: {turn_on}"),
            ),
        };
        Lack { why, next }
    }

    /// The refusal of a demand.
    pub(crate) fn refusal(self) -> MountError {
        MountError::NoUring(format!("{}: {}; or use --transport auto", self.why, self.next))
    }

    /// The line for a mount that stays on /dev/fuse.
    pub(crate) fn line(self) -> String {
        format!("requests come through /dev/fuse ({COST}), because {}; {}", self.why, self.next)
    }
}

/// Whether to ask the kernel for rings. `allowed` tries whether the system allows io_uring at all. Messages
/// for the user are added to `remarks`.
///
/// # Errors
/// [`MountError::NoUring`] if rings were demanded and cannot be had. Its text says what to do.
pub(crate) fn decide(
    wanted: Transport,
    switch: &Switch,
    allowed: impl FnOnce() -> io::Result<()>,
    remarks: &mut Vec<String>,
) -> Result<bool, MountError> {
    let lack = match (wanted, switch.is_on()) {
        (Transport::Classic, _) => return Ok(false),
        (_, None) => Lack::old_kernel(),
        (_, Some(is_on)) => match allowed() {
            // The switch is left as it is if it would be of no use.
            Err(error) => Lack::forbidden(&error),
            Ok(()) if is_on => return Ok(true),
            Ok(()) => match switch.turn_on() {
                Err(error) => Lack::stays_off(switch, &error),
                Ok(()) => {
                    remarks.push(format!(
                        "turned on FUSE over io_uring, a switch of the whole machine that only lets mounts ask \
                         for it (off again: echo N > {}; --transport classic leaves it alone)",
                        switch.path().display()
                    ));
                    return Ok(true);
                }
            },
        },
    };
    if wanted == Transport::Uring {
        return Err(lack.refusal());
    }
    remarks.push(lack.line());
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake {
        _dir: tempfile::TempDir,
        switch: Switch,
    }

    impl Fake {
        fn holding(text: &str) -> Fake {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("enable_uring");
            std::fs::write(&path, text).unwrap();
            Fake { _dir: dir, switch: Switch(path) }
        }

        fn text(&self) -> String {
            std::fs::read_to_string(self.switch.path()).unwrap()
        }
    }

    fn decided(wanted: Transport, switch: &Switch) -> (Result<bool, MountError>, Vec<String>) {
        let mut remarks = Vec::new();
        (decide(wanted, switch, || Ok(()), &mut remarks), remarks)
    }

    #[test]
    fn auto_and_uring_turn_the_switch_on_and_say_so_in_one_line() {
        for wanted in [Transport::Auto, Transport::Uring] {
            let fake = Fake::holding("N\n");
            let (asks, remarks) = decided(wanted, &fake.switch);
            assert!(asks.unwrap());
            assert_eq!(fake.text(), "Y");
            let [line] = &remarks[..] else { panic!("{remarks:?}") };
            assert!(line.starts_with("turned on") && !line.contains('\n'), "{line}");
            assert!(line.contains(fake.switch.path().to_str().unwrap()), "{line}");
        }
    }

    #[test]
    fn nothing_is_said_if_the_switch_is_on() {
        for wanted in [Transport::Auto, Transport::Uring] {
            for on in ["Y\n", "1"] {
                let fake = Fake::holding(on);
                let (asks, remarks) = decided(wanted, &fake.switch);
                assert!(asks.unwrap() && remarks.is_empty(), "{remarks:?}");
            }
        }
    }

    #[test]
    fn classic_never_touches_the_switch() {
        for text in ["N\n", "Y\n"] {
            let fake = Fake::holding(text);
            let (asks, remarks) = decided(Transport::Classic, &fake.switch);
            assert!(!asks.unwrap() && remarks.is_empty(), "{remarks:?}");
            assert_eq!(fake.text(), text);
        }
    }

    fn one_line(remarks: &[String], parts: &[&str]) {
        let [line] = remarks else { panic!("{remarks:?}") };
        assert!(!line.contains('\n') && line.contains("/dev/fuse") && line.contains("279 us"), "{line}");
        for part in parts {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn an_old_kernel_is_named_with_its_cost() {
        let switch = Switch("/nowhere/enable_uring".into());
        let (asks, remarks) = decided(Transport::Auto, &switch);
        assert!(!asks.unwrap());
        one_line(&remarks, &["this kernel has no", "Linux 6.14"]);
        let refused = decided(Transport::Uring, &switch).0.unwrap_err().to_string();
        assert!(refused.contains("Linux 6.14") && refused.contains("--transport auto"), "{refused}");
    }

    #[test]
    fn a_switch_that_cannot_be_turned_on_is_named_with_its_cost() {
        // Even root cannot write there.
        let switch = Switch("/proc/version".into());
        let (asks, remarks) = decided(Transport::Auto, &switch);
        assert!(!asks.unwrap());
        one_line(&remarks, &["FUSE over io_uring is off", "echo Y > /proc/version"]);
        let refused = decided(Transport::Uring, &switch).0.unwrap_err().to_string();
        assert!(
            refused.contains("echo Y > /proc/version") && refused.contains("--transport auto"),
            "{refused}"
        );
        let lack = |errno| Lack::stays_off(&switch, &io::Error::from_raw_os_error(errno)).line();
        one_line(&[lack(libc::EACCES)], &["only root can turn it on", "as root: echo Y > "]);
        one_line(&[lack(libc::EROFS)], &["/sys is read-only", "as root of the host: echo Y > "]);
        one_line(&[lack(libc::EIO)], &["cannot be turned on here", "as root: echo Y > "]);
    }

    #[test]
    fn the_switch_stays_off_if_io_uring_itself_is_forbidden() {
        let fake = Fake::holding("N\n");
        let forbidden = || Err(io::Error::from_raw_os_error(libc::EPERM));
        let mut remarks = Vec::new();
        assert!(!decide(Transport::Auto, &fake.switch, forbidden, &mut remarks).unwrap());
        one_line(&remarks, &["does not allow io_uring", "kernel.io_uring_disabled"]);
        let refused =
            decide(Transport::Uring, &fake.switch, forbidden, &mut remarks).unwrap_err().to_string();
        assert!(refused.contains("kernel.io_uring_disabled"), "{refused}");
        assert_eq!(fake.text(), "N\n");
    }
}
