//! Mount options: `-o ro,commit=5,...`, as mount(8) passes them on, and how a volume is opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use api::text::parse_span;
use blob::Access;
use engines::address::LANES;
use fs::access::{AccessRules, Pattern};
use fs::api::Locks;
use fs::handover::Handed;

use crate::remote_side::options::{self as remote_side, RemoteOptions};

/// The default for the longest time that a request waits.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The default for how long blobs of a shared volume stay after nothing refers to them any more.
pub const GC_DELAY: Duration = Duration::from_secs(300);
/// The most connections to the database of a shared volume.
const LANES_MAX: usize = 64;
/// The longest such time, in seconds.
const GC_DELAY_MAX: u64 = 30 * 86_400;

/// Where locks on files of a shared volume hold if nothing else is asked for.
pub const SHARED_LOCKS: Locks = Locks::Fleet;

/// The options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Refuse all changes.
    pub read_only: bool,
    /// The tree cannot change, so the kernel may cache everything.
    pub frozen: bool,
    /// Allow other users. None: only if root mounts.
    pub allow_other: Option<bool>,
    /// Ignore set-user-id bits and file capabilities. None: only if another user made the files
    /// ([`MountOptions::nosuid`]).
    pub nosuid: Option<bool>,
    /// Ignore device nodes. None: only if another user made the files.
    pub nodev: Option<bool>,
    /// Execute nothing.
    pub noexec: bool,
    /// Changes survive a power cut after at most this time.
    pub commit: Duration,
    /// Reads update access times by the rules of relatime.
    pub relatime: bool,
    /// The kernel may delay writes until close or fsync.
    pub writeback: Option<bool>,
    /// The mount has no extended attributes and no ACLs, and the kernel asks for none.
    pub without_xattrs: bool,
    /// The kernel's read-ahead, in KiB.
    pub read_ahead_kib: Option<u32>,
    /// A request that waits longer fails with EIO.
    pub deadline: Duration,
    /// The group whose members may publish the volume: a name or a number.
    pub publish_group: Option<String>,
    /// Where locks on files of a shared volume hold. `None`: as the volume has it.
    pub locks: Option<Locks>,
    /// The volume can become a shared one while programs use the mount.
    pub promotable: bool,
    /// How long blobs of a shared volume stay after nothing refers to them any more.
    pub gc_delay: Duration,
    /// How many connections to the database of a shared volume this node has at most.
    pub lanes: usize,
    /// How long what is removed is kept.
    pub trash: KeepTrash,
    /// How files in a remote origin are read.
    pub access: AccessRules,
    /// The options of a remote origin.
    pub remote_side: RemoteOptions,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            frozen: false,
            allow_other: None,
            nosuid: None,
            nodev: None,
            noexec: false,
            commit: Duration::from_secs(1),
            relatime: false,
            writeback: None,
            without_xattrs: false,
            read_ahead_kib: None,
            deadline: DEADLINE,
            publish_group: None,
            locks: None,
            promotable: false,
            gc_delay: GC_DELAY,
            lanes: LANES,
            trash: KeepTrash::AsIs,
            access: AccessRules::default(),
            remote_side: RemoteOptions::default(),
        }
    }
}

/// What a mount says of the trash of its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepTrash {
    /// Nothing: the volume's setting stays.
    AsIs,
    /// From now on what is removed is deleted at once.
    Off,
    /// From now on it is kept for so long.
    For(Duration),
}

impl KeepTrash {
    /// Reads `off`, or a time like `1d`.
    pub fn parse(text: &str) -> Option<KeepTrash> {
        if text == "off" { Some(KeepTrash::Off) } else { parse_span(text).map(KeepTrash::For) }
    }
}

/// How a volume is opened.
#[derive(Clone)]
pub struct NodeOptions {
    /// The name of the command that opens it.
    pub does: &'static str,
    /// The future mountpoint.
    pub mountpoint: Option<PathBuf>,
    /// Change nothing.
    pub read_only: bool,
    /// The tree cannot change.
    pub frozen: bool,
    /// Reads update access times.
    pub relatime: bool,
    /// Changes survive a power cut after at most this time.
    pub commit: Duration,
    /// A read that waits longer fails.
    pub deadline: Duration,
    /// Where locks on files of a shared volume hold. `None`: as the volume has it.
    pub locks: Option<Locks>,
    /// How long blobs of a shared volume stay after nothing refers to them any more.
    pub gc_delay: Duration,
    /// How many connections to the database of a shared volume this node has at most.
    pub lanes: usize,
    /// How files in a remote origin are read.
    pub access: AccessRules,
    /// The options of a remote origin.
    pub remote_side: RemoteOptions,
    /// Replay a damaged log up to the damage, after saving a copy of it in this new folder.
    pub salvage: Option<PathBuf>,
    /// Claim the origin for this folder, even if another folder holds the claim.
    pub take_over: bool,
    /// Of a published tree: also read what the other caches of its volume on this machine have.
    pub beside: bool,
    /// The volume can become a shared one while programs use the mount.
    pub promotable: bool,
    /// Several kernels see the volume, as guests of this node.
    pub many_kernels: bool,
    /// Kernels that held inodes without a name may come back for so long, and find them.
    pub orphans_stay: Duration,
    /// What the volume that was open here before has left, and the kernel still uses.
    pub handed: Option<Arc<Handed>>,
}

impl NodeOptions {
    /// Options for a command that only reads.
    pub fn reading(does: &'static str) -> NodeOptions {
        NodeOptions { read_only: true, ..NodeOptions::writing(does) }
    }

    /// Options for a command that changes the volume.
    pub fn writing(does: &'static str) -> NodeOptions {
        NodeOptions {
            does,
            mountpoint: None,
            read_only: false,
            frozen: false,
            relatime: false,
            commit: Duration::from_secs(1),
            deadline: DEADLINE,
            locks: None,
            gc_delay: GC_DELAY,
            lanes: LANES,
            access: AccessRules::default(),
            remote_side: RemoteOptions::default(),
            salvage: None,
            take_over: false,
            beside: false,
            promotable: false,
            many_kernels: false,
            orphans_stay: Duration::ZERO,
            handed: None,
        }
    }
}

/// The words that `-o` accepts, each with a short explanation. Also the text of the help.
pub const KNOWN: &[(&str, &str)] = &[
    ("ro, rw", "refuse all changes; or not (the default)"),
    ("frozen", "read-only, and the tree cannot change while mounted"),
    ("allow_other, noallow_other", "let other users in (as root that is the default)"),
    ("default_permissions", "the kernel checks permissions: always so, accepted for old habits"),
    (
        "suid, nosuid",
        "heed set-user-id bits and file capabilities, or not (default: suid, but nosuid for a published tree or a corpus)",
    ),
    ("dev, nodev", "heed device nodes, or not (default: dev, but nodev for a published tree or a corpus)"),
    ("exec, noexec", "execute programs (the default), or none"),
    ("commit=SECONDS", "what was done survives a power cut after at most this (default 1)"),
    ("atime=relatime|off", "whether reads move access times (default off; also relatime, noatime)"),
    ("writeback=on|off", "let the kernel hold written bytes back until close or fsync (default on)"),
    (
        "xattr=on|off",
        "with off there are no extended attributes, ACLs and file capabilities in this mount, and listings are faster; means writeback=off (default on)",
    ),
    (
        "read_ahead=KIB",
        "how far the kernel reads ahead (default 1024; 128 before a remote origin, 4 with access=random there)",
    ),
    (
        "access=normal|random|stream",
        "how files in a remote origin are read (default normal: found out; random fetches only what is read)",
    ),
    (
        "random=NAMES, stream=NAMES, normal=NAMES",
        "the same of files and folders with such names, and all below them, like random=*.h5; may be repeated",
    ),
    ("deadline=SECONDS", "a request that waits longer is answered EIO (default 60)"),
    (
        "gc_delay=SECONDS",
        "of a shared volume: what nothing refers to is deleted in the origin after this (default 300)",
    ),
    (
        "lanes=N",
        "of a shared volume: at most this many connections to the database, beside those of publications (default 8)",
    ),
    (
        "locks=local|fleet",
        "of a shared volume: locks exclude the programs of all nodes (fleet), or those of this machine alone (local); it is the same on all nodes, and written down by the first mount (default fleet)",
    ),
    (
        "promotable",
        "of a volume of one node: covey promote makes it a shared one while programs use it; until then the kernel holds no written bytes back and asks this daemon at each open",
    ),
    (
        "trash=off|TIME",
        "set for the volume how long what is removed can be restored by covey trash: 12h, 7d (default: as it was set, first off)",
    ),
    ("publish_group=GROUP", "members of this group (a name or a number) may publish the volume, and no more"),
];

/// Options in fstab that are meant for mount(8) or systemd. A filesystem ignores them.
const PASSED_OVER: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "async",
    "diratime",
    "nodiratime",
    "silent",
    "loud",
];

/// The beginnings of further such options, which have a value or a longer name.
const PASSED_OVER_BEGIN: &[&str] = &["x-", "X-", "comment=", "helper=", "uhelper="];

impl MountOptions {
    /// Parses lists of options. Later options win.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a String>) -> Result<MountOptions> {
        let mut options = MountOptions::default();
        for word in lists.into_iter().flat_map(|list| list.split(',')).map(str::trim) {
            options.set(word)?;
        }
        if options.promotable && options.writeback == Some(true) {
            return Err(Failure::usage("the mount options promotable and writeback=on exclude each other")
                .why("a kernel that holds written bytes back cannot go on with a volume that others change too")
                .next("leave one of them out"));
        }
        if options.without_xattrs && options.writeback == Some(true) {
            return Err(Failure::usage("the mount options xattr=off and writeback=on exclude each other")
                .why("a kernel that holds written bytes back takes file capabilities away itself, by their attribute")
                .next("leave one of them out"));
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
            ("nosuid", None) => self.nosuid = Some(true),
            ("suid", None) => self.nosuid = Some(false),
            ("nodev", None) => self.nodev = Some(true),
            ("dev", None) => self.nodev = Some(false),
            ("noexec", None) => self.noexec = true,
            ("exec", None) => self.noexec = false,
            ("relatime", None) | ("atime", Some("relatime" | "on")) => self.relatime = true,
            ("noatime", None) | ("atime", Some("off")) => self.relatime = false,
            ("atime", Some(_)) => return Err(bad(word, "relatime or off")),
            ("writeback", Some("on")) => self.writeback = Some(true),
            ("writeback", Some("off")) => self.writeback = Some(false),
            ("xattr", Some(is @ ("on" | "off"))) => self.without_xattrs = is == "off",
            ("writeback" | "xattr", Some(_)) => return Err(bad(word, "on or off")),
            ("commit", Some(text)) => self.commit = seconds(word, text, 300)?,
            ("publish_group", Some(text)) => {
                let fits = !text.is_empty() && !text.contains(char::is_whitespace);
                self.publish_group = Some(text.to_owned()).filter(|_| fits);
                self.publish_group.as_ref().ok_or_else(|| bad(word, "the name or number of a group"))?;
            }
            ("locks", Some("local")) => self.locks = Some(Locks::Local),
            ("locks", Some("fleet")) => self.locks = Some(Locks::Fleet),
            ("locks", Some(_)) => return Err(bad(word, "local or fleet")),
            ("promotable", None) => self.promotable = true,
            ("gc_delay", Some(text)) => self.gc_delay = seconds(word, text, GC_DELAY_MAX)?,
            ("lanes", Some(text)) => self.lanes = lanes(word, text)?,
            ("trash", Some(text)) => {
                self.trash =
                    KeepTrash::parse(text).ok_or_else(|| bad(word, "a time like 12h or 7d, or off"))?;
            }
            ("deadline", Some(text)) => self.deadline = seconds(word, text, 3_600)?,
            ("access", Some(text)) => {
                let access = Access::named(text.as_bytes());
                self.access.default = access.ok_or_else(|| bad(word, "normal, random or stream"))?;
            }
            ("normal" | "random" | "stream", Some(text)) => {
                let (names, access) = (Pattern::new(text), Access::named(name.as_bytes()));
                let rule = names.zip(access);
                self.access
                    .names
                    .push(rule.ok_or_else(|| bad(word, "a pattern of names without /, like *.h5"))?);
            }
            ("read_ahead" | "max_read_ahead", Some(text)) => {
                let kib = text.parse().ok().filter(|kib| (4..=1 << 20).contains(kib));
                self.read_ahead_kib =
                    Some(kib.ok_or_else(|| bad(word, "a number of KiB from 4 to 1048576"))?);
            }
            ("", None) => {}
            ("remount", None) => {
                return Err(Failure::usage("a mounted volume cannot be remounted with other options")
                    .next("unmount it, then mount it again"));
            }
            _ if PASSED_OVER.contains(&word) => {}
            _ if PASSED_OVER_BEGIN.iter().any(|begin| word.starts_with(begin)) => {}
            _ if self.remote_side.set(name, value)? => {}
            _ => return Err(unknown(word)),
        }
        Ok(())
    }

    /// Whether set-user-id bits and file capabilities are ignored. `foreign` means that another user made the
    /// files. Root mounts such a tree to read it. A program in it must not run as root for every user of the
    /// machine, unless that was asked for.
    pub fn nosuid(&self, foreign: bool) -> bool {
        self.nosuid.unwrap_or(foreign)
    }

    /// Whether device nodes are ignored. For `foreign` see [`MountOptions::nosuid`].
    pub fn nodev(&self, foreign: bool) -> bool {
        self.nodev.unwrap_or(foreign)
    }

    /// The options as words after `-o`, for a program that is started to do the work.
    pub fn to_words(&self) -> String {
        let mut words = vec![
            format!("commit={}", self.commit.as_secs_f64()),
            format!("deadline={}", self.deadline.as_secs_f64()),
            format!("gc_delay={}", self.gc_delay.as_secs_f64()),
            format!("lanes={}", self.lanes),
            format!("atime={}", if self.relatime { "relatime" } else { "off" }),
        ];
        let switches = [
            (self.read_only, "ro"),
            (self.frozen, "frozen"),
            (self.allow_other == Some(true), "allow_other"),
            (self.allow_other == Some(false), "noallow_other"),
            (self.nosuid == Some(true), "nosuid"),
            (self.nosuid == Some(false), "suid"),
            (self.nodev == Some(true), "nodev"),
            (self.nodev == Some(false), "dev"),
            (self.noexec, "noexec"),
            (self.writeback == Some(true), "writeback=on"),
            (self.writeback == Some(false), "writeback=off"),
            (self.without_xattrs, "xattr=off"),
            (self.locks == Some(Locks::Fleet), "locks=fleet"),
            (self.locks == Some(Locks::Local), "locks=local"),
            (self.promotable, "promotable"),
        ];
        words.extend(switches.iter().filter(|(set, _)| *set).map(|(_, word)| (*word).to_owned()));
        words.extend(self.publish_group.as_ref().map(|group| format!("publish_group={group}")));
        match self.trash {
            KeepTrash::AsIs => {}
            KeepTrash::Off => words.push("trash=off".to_owned()),
            KeepTrash::For(time) => words.push(format!("trash={}s", time.as_secs())),
        }
        words.extend(self.read_ahead_kib.map(|kib| format!("read_ahead={kib}")));
        if self.access.default != Access::Normal {
            words.push(format!("access={}", self.access.default.name()));
        }
        words.extend(self.access.names.iter().map(|(names, access)| format!("{}={names}", access.name())));
        words.extend(self.remote_side.to_words());
        words.join(",")
    }
}

/// All words that `-o` accepts, as in [`KNOWN`], including those for remote origins.
pub fn known() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    KNOWN.iter().chain(remote_side::KNOWN)
}

/// The names of all options, each with whether it takes a value.
pub fn names() -> impl Iterator<Item = (&'static str, bool)> {
    let one = |form: &'static str| match form.split_once('=') {
        Some((name, _)) => (name, true),
        None => (form, false),
    };
    known().flat_map(move |(forms, _)| forms.split(", ").map(one))
}

/// Whether `-o` accepts a word.
pub fn is_known(word: &str) -> bool {
    MountOptions::default().set(word).is_ok()
}

/// Parses a number of seconds above 0. Fractions are allowed.
fn seconds(word: &str, text: &str, most: u64) -> Result<Duration> {
    let value = text.parse::<f64>().ok().filter(|value| *value > 0.0 && *value <= most as f64);
    let value = value.ok_or_else(|| bad(word, &format!("a number of seconds above 0, at most {most}")))?;
    Ok(Duration::from_secs_f64(value))
}

/// Parses a number of connections.
fn lanes(word: &str, text: &str) -> Result<usize> {
    let lanes = text.parse().ok().filter(|lanes| (1..=LANES_MAX).contains(lanes));
    lanes.ok_or_else(|| bad(word, &format!("a number from 1 to {LANES_MAX}")))
}

fn bad(word: &str, wanted: &str) -> Failure {
    Failure::usage(format!("the mount option {word} cannot be understood"))
        .why(format!("its value is to be {wanted}"))
}

fn unknown(word: &str) -> Failure {
    let known: Vec<&str> = known().map(|(name, _)| *name).collect();
    Failure::usage(format!("there is no mount option {word}"))
        .next(format!("known are: {}", known.join("; ")))
}

/// The list of options in the help text.
pub fn help() -> String {
    let line = |(name, meaning): &(&str, &str)| format!("  {name:28}  {meaning}\n");
    known().map(line).collect()
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
            writeback=off,read_ahead=4096,deadline=5,fsync=origin,cache_size=2G,x-systemd.automount,_netdev,\
            access=random,stream=*.mp4,random=a?c,normal=*.txt,publish_group=staff,locks=fleet,promotable,trash=7d,\
            xattr=off,lanes=3";
        let options = parse(text).unwrap();
        assert!(options.read_only && options.frozen && options.allow_other == Some(true) && options.relatime);
        assert_eq!((options.commit, options.writeback), (Duration::from_millis(500), Some(false)));
        assert_eq!(parse(&options.to_words()).unwrap(), options);
        assert_eq!(
            (options.locks, parse("locks=fleet,locks=local").unwrap().locks),
            (Some(Locks::Fleet), Some(Locks::Local))
        );
        assert!(!parse("ro,rw").unwrap().read_only, "the later one wins");
    }

    /// Root's mount of a published tree honoured set-user-id bits. A file made by the publisher ran as root
    /// for every user.
    #[test]
    fn regression_what_others_made_is_nosuid_and_nodev_unless_said() {
        let is = |text: &str, foreign| {
            let options = parse(text).unwrap();
            assert_eq!(parse(&options.to_words()).unwrap(), options, "{text}");
            (options.nosuid(foreign), options.nodev(foreign))
        };
        assert_eq!((is("", false), is("", true)), ((false, false), (true, true)));
        assert_eq!((is("suid", true), is("dev", true)), ((false, true), (true, false)));
        assert_eq!((is("suid,dev", true), is("nosuid,nodev", false)), ((false, false), (true, true)));
        assert_eq!(is("suid,nosuid", true), (true, true), "the later one wins");
    }

    #[test]
    fn every_name_that_is_listed_is_understood() {
        for (name, with_value) in names() {
            let tried = ["1", "on", "off", "8", "1G", "local", "random", "https://s3.example.net"]
                .map(|value| format!("{name}={value}"));
            let known = if with_value { tried.iter().any(|word| is_known(word)) } else { is_known(name) };
            assert!(known, "{name}");
        }
        assert!(is_known("_netdev") && is_known("x-systemd.after=a.mount") && !is_known("zstd"));
    }

    #[test]
    fn a_remount_is_refused_in_words() {
        assert!(parse("remount,ro").unwrap_err().what.contains("cannot be remounted"));
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
            "writeback=on,xattr=off",
            "xattr=none",
            "atime=yes",
            "locks=global",
            "lanes=0",
            "lanes=65",
            "trash=0",
            "trash=1y",
            "locks",
            "read_ahead=0",
            "publish_group=",
            "publish_group=a b",
            "ro=1",
            "access=sometimes",
            "random=a/b",
            "stream=",
            "random",
        ] {
            assert_eq!(parse(bad).unwrap_err().status, 2, "{bad}");
        }
    }
}
