//! Mount options: `-o ro,commit=5,...`, as mount(8) hands them on.

use std::time::Duration;

use crate::error::{Failure, Result};

/// What a mount is asked to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Refuse all changes.
    pub read_only: bool,
    /// The tree cannot change: the kernel may keep everything.
    pub frozen: bool,
    /// Let other users in; none: root does, others do not.
    pub allow_other: Option<bool>,
    /// Ignore set-user-id bits.
    pub nosuid: bool,
    /// Ignore device nodes.
    pub nodev: bool,
    /// Execute nothing.
    pub noexec: bool,
    /// What was done survives a power cut after at most this.
    pub commit: Duration,
    /// Reads move access times, as relatime has it.
    pub relatime: bool,
    /// The kernel may hold written bytes back until close or fsync.
    pub writeback: Option<bool>,
    /// How far the kernel reads ahead, in KiB.
    pub read_ahead_kib: Option<u32>,
    /// A request that waits longer is answered EIO.
    pub deadline: Duration,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            frozen: false,
            allow_other: None,
            nosuid: false,
            nodev: false,
            noexec: false,
            commit: Duration::from_secs(1),
            relatime: false,
            writeback: None,
            read_ahead_kib: None,
            deadline: Duration::from_secs(60),
        }
    }
}

/// What can be written after `-o`, with a word each; also the text of the help.
pub const KNOWN: &[(&str, &str)] = &[
    ("ro, rw", "refuse all changes; or not (the default)"),
    ("frozen", "read-only, and the tree cannot change while mounted"),
    ("allow_other, noallow_other", "let other users in (as root that is the default)"),
    ("default_permissions", "the kernel checks permissions: always so, accepted for old habits"),
    (
        "nosuid, nodev, noexec",
        "ignore set-user-id bits; device nodes; execute nothing (suid, dev, exec: the opposite)",
    ),
    ("commit=SECONDS", "what was done survives a power cut after at most this (default 1)"),
    ("atime=relatime|off", "whether reads move access times (default off; also relatime, noatime)"),
    ("writeback=on|off", "let the kernel hold written bytes back until close or fsync (default on)"),
    ("read_ahead=KIB", "how far the kernel reads ahead (default 1024)"),
    ("deadline=SECONDS", "a request that waits longer is answered EIO (default 60)"),
];

/// Options of fstab that are for mount(8) or systemd and mean nothing to a filesystem.
const PASSED_OVER: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "async",
    "diratime",
    "nodiratime",
];

impl MountOptions {
    /// Reads options; later ones win.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a String>) -> Result<MountOptions> {
        let mut options = MountOptions::default();
        for word in lists.into_iter().flat_map(|list| list.split(',')).map(str::trim) {
            options.set(word)?;
        }
        Ok(options)
    }

    fn set(&mut self, word: &str) -> Result<()> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match (name, value) {
            ("ro", None) => self.read_only = true,
            ("rw", None) => self.read_only = false,
            ("frozen", None) => self.frozen = true,
            ("allow_other", None) => self.allow_other = Some(true),
            ("noallow_other", None) => self.allow_other = Some(false),
            ("default_permissions", None) => {}
            ("nosuid", None) => self.nosuid = true,
            ("suid", None) => self.nosuid = false,
            ("nodev", None) => self.nodev = true,
            ("dev", None) => self.nodev = false,
            ("noexec", None) => self.noexec = true,
            ("exec", None) => self.noexec = false,
            ("relatime", None) => self.relatime = true,
            ("noatime", None) => self.relatime = false,
            ("atime", Some("relatime" | "on")) => self.relatime = true,
            ("atime", Some("off")) => self.relatime = false,
            ("atime", Some(_)) => return Err(bad(word, "relatime or off")),
            ("writeback", Some("on")) => self.writeback = Some(true),
            ("writeback", Some("off")) => self.writeback = Some(false),
            ("writeback", Some(_)) => return Err(bad(word, "on or off")),
            ("commit", Some(text)) => self.commit = seconds(word, text, 300)?,
            ("deadline", Some(text)) => self.deadline = seconds(word, text, 3_600)?,
            ("read_ahead" | "max_read_ahead", Some(text)) => {
                let kib = text.parse().ok().filter(|kib| (4..=1 << 20).contains(kib));
                self.read_ahead_kib =
                    Some(kib.ok_or_else(|| bad(word, "a number of KiB from 4 to 1048576"))?);
            }
            ("", None) => {}
            _ if PASSED_OVER.contains(&word) || word.starts_with("x-") || word.starts_with("comment=") => {}
            _ => return Err(unknown(word)),
        }
        Ok(())
    }

    /// The same as words after `-o`, for a program that is started to do the work.
    pub fn to_words(&self) -> String {
        let mut words = vec![
            format!("commit={}", self.commit.as_secs_f64()),
            format!("deadline={}", self.deadline.as_secs_f64()),
            format!("atime={}", if self.relatime { "relatime" } else { "off" }),
        ];
        let switches = [
            (self.read_only, "ro"),
            (self.frozen, "frozen"),
            (self.allow_other == Some(true), "allow_other"),
            (self.allow_other == Some(false), "noallow_other"),
            (self.nosuid, "nosuid"),
            (self.nodev, "nodev"),
            (self.noexec, "noexec"),
            (self.writeback == Some(true), "writeback=on"),
            (self.writeback == Some(false), "writeback=off"),
        ];
        words.extend(switches.iter().filter(|(set, _)| *set).map(|(_, word)| (*word).to_owned()));
        words.extend(self.read_ahead_kib.map(|kib| format!("read_ahead={kib}")));
        words.join(",")
    }
}

/// A number of seconds, fractions allowed, above 0.
fn seconds(word: &str, text: &str, most: u64) -> Result<Duration> {
    let value = text.parse::<f64>().ok().filter(|value| *value > 0.0 && *value <= most as f64);
    let value = value.ok_or_else(|| bad(word, &format!("a number of seconds above 0, at most {most}")))?;
    Ok(Duration::from_secs_f64(value))
}

fn bad(word: &str, wanted: &str) -> Failure {
    Failure::usage(format!("the mount option {word} cannot be understood"))
        .why(format!("its value is to be {wanted}"))
}

fn unknown(word: &str) -> Failure {
    let known: Vec<&str> = KNOWN.iter().map(|(name, _)| *name).collect();
    Failure::usage(format!("there is no mount option {word}"))
        .next(format!("known are: {}", known.join("; ")))
}

/// The list of options for a help text.
pub fn help() -> String {
    let line = |(name, meaning): &(&str, &str)| format!("  {name:28}  {meaning}\n");
    KNOWN.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<MountOptions> {
        MountOptions::parse(&[text.to_owned()])
    }

    #[test]
    fn options_are_read_and_written_back() {
        assert_eq!(parse("").unwrap(), MountOptions::default());
        let text = "ro,frozen,allow_other,default_permissions,nosuid,nodev,noexec,commit=0.5,atime=relatime,\
            writeback=off,read_ahead=4096,deadline=5,x-systemd.automount,_netdev";
        let options = parse(text).unwrap();
        assert!(options.read_only && options.frozen && options.allow_other == Some(true) && options.relatime);
        assert_eq!((options.commit, options.writeback), (Duration::from_millis(500), Some(false)));
        assert_eq!(parse(&options.to_words()).unwrap(), options);
        assert!(!parse("ro,rw").unwrap().read_only, "the later one wins");
    }

    #[test]
    fn what_is_unknown_is_refused_with_a_list() {
        let failure = parse("ro,compress=zstd").unwrap_err();
        assert_eq!(failure.status, 2);
        assert!(failure.next[0].contains("writeback=on|off"), "{failure}");
        for bad in [
            "commit=soon",
            "commit=0",
            "commit=-1",
            "commit=NaN",
            "writeback=maybe",
            "atime=yes",
            "read_ahead=0",
            "ro=1",
        ] {
            assert_eq!(parse(bad).unwrap_err().status, 2, "{bad}");
        }
    }
}
