//! `mount.covey`: this program, under the name by which mount(8) calls it for `mount -t covey` and for fstab
//! lines.
//!
//! ```text
//!   mount.covey /srv/volume /mnt/covey -o ro,nofail,transport=uring      what mount(8) calls
//!   covey mount -d -o ro --transport=uring /srv/volume /mnt/covey        what is run
//! ```
//!
//! A word after `-o` is either a mount option or the name of an argument of `covey mount`. The exit status is
//! that of mount(8): 0 done, 1 wrong usage, 32 not mounted.

use std::ffi::OsString;
use std::path::Path;

use api::text::{Lines, shown};
use clap::{Arg, Command, CommandFactory, Parser};
use node::options;

use crate::Cli;
use crate::config::known;

/// Mounts a Covey volume for mount(8)
#[derive(Debug, Parser)]
#[command(
    name = "mount.covey",
    version,
    after_help = "Examples:\n  mount -t covey /srv/volume /mnt/covey -o ro,nosuid\n  \
    /srv/volume  /mnt/covey  covey  _netdev,nofail,commit=5,transport=uring  0 0      a line of /etc/fstab\n\n\
    Options are those of covey mount -o, and its arguments by their names (transport=uring, metrics=127.0.0.1:9464).\n\
    It returns when the volume is mounted and stays in the background; messages go to VOLUME/covey.log.\n\n\
    Exit status: 0 done, 1 wrong usage, 32 not mounted."
)]
pub struct Helper {
    /// The volume's folder, or mem:
    volume: OsString,
    /// An existing folder
    mountpoint: OsString,
    /// Look whether it could be mounted, and do not mount it
    #[arg(short = 'f')]
    fake: bool,
    /// Write no mtab: there is none
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Pass over options that are not known
    #[arg(short = 's')]
    sloppy: bool,
    /// Say what is done
    #[arg(short = 'v')]
    verbose: bool,
    /// Read-only
    #[arg(short = 'r', overrides_with = "read_write")]
    read_only: bool,
    /// Not read-only
    #[arg(short = 'w', overrides_with = "read_only")]
    read_write: bool,
    /// Options, divided by commas
    #[arg(short = 'o', value_name = "OPTION,...")]
    options: Vec<String>,
    /// The type that mount(8) was told; it changes nothing
    #[arg(short = 't', value_name = "TYPE", hide = true)]
    kind: Option<String>,
}

/// Whether the program was called as `mount.covey` or `mount.fuse.covey`.
pub fn is_called(words: &[OsString]) -> bool {
    let name = words.first().and_then(|word| Path::new(word).file_name());
    name.is_some_and(|name| name == "mount.covey" || name == "mount.fuse.covey")
}

/// Does what mount(8) asks and returns the exit status. `perform` runs a covey command line.
pub fn run(words: &[OsString], perform: impl FnOnce(Vec<OsString>, bool) -> u8) -> u8 {
    let helper = match Helper::try_parse_from(words) {
        Ok(helper) => helper,
        Err(error) => {
            // Help and version are no errors. Everything else is wrong usage.
            let asked = error.exit_code() == 0;
            let _ = error.print();
            return u8::from(!asked);
        }
    };
    let (words, passed_over) = helper.words();
    if helper.verbose {
        for word in passed_over {
            let word = shown(word, Lines::One);
            base::out::complaint(format_args!(
                "mount.covey: passed over the option {word}, which is not known"
            ));
        }
    }
    match perform(words, helper.verbose) {
        0 => 0,
        2 => 1,
        _ => 32,
    }
}

impl Helper {
    /// The equivalent covey command line, and the options that were ignored.
    fn words(&self) -> (Vec<OsString>, Vec<&str>) {
        let command = Cli::command();
        let mut words: Vec<OsString> = ["covey", "mount", "--background"].map(OsString::from).into();
        let mut passed_over = Vec::new();
        let mut options = Vec::new();
        for word in self.options.iter().flat_map(|list| list.split(',')).map(str::trim) {
            if options::is_known(word) {
                options.push(word);
            } else if let Some(argument) = as_argument(&command, word) {
                words.push(argument.into());
            } else if self.sloppy {
                passed_over.push(word);
            } else {
                options.push(word);
            }
        }
        options.extend(self.read_only.then_some("ro"));
        options.extend(self.read_write.then_some("rw"));
        if !options.is_empty() {
            words.extend(["-o".into(), options.join(",").into()]);
        }
        words.extend(self.fake.then(|| "--fake".into()));
        words.extend(["--".into(), self.volume.clone(), self.mountpoint.clone()]);
        (words, passed_over)
    }
}

/// Converts `transport=uring` to `--transport=uring`, if `covey mount` has that argument.
fn as_argument(command: &Command, word: &str) -> Option<String> {
    let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let long = name.replace('_', "-");
    let mount = command.find_subcommand("mount")?.get_arguments().chain(command.get_arguments());
    let is_meant = |arg: &&Arg| arg.get_long() == Some(&long) && !arg.is_hide_set();
    let arg = mount
        .into_iter()
        .find(is_meant)
        .filter(|_| long != "json" && !known::NOT_MOUNT.contains(&long.as_str()))?;
    match value {
        None if known::is_flag(arg) => Some(format!("--{long}")),
        Some(value) if !known::is_flag(arg) => Some(format!("--{long}={value}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> String {
        let helper = Helper::try_parse_from(line.split(' ')).unwrap();
        let words = helper.words().0.into_iter().map(|word| word.into_string().unwrap());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_mount_hands_on_becomes_a_command_line() {
        for (asked, done) in [
            ("mount.covey /v /m", "covey mount --background -- /v /m"),
            (
                "mount.covey /v /m -o rw,nofail,_netdev",
                "covey mount --background -o rw,nofail,_netdev -- /v /m",
            ),
            ("mount.covey -fnsv /v /m -o ro,zstd", "covey mount --background -o ro --fake -- /v /m"),
            ("mount.covey /v /m -r -t covey", "covey mount --background -o ro -- /v /m"),
            ("mount.covey /v /m -w -o commit=5", "covey mount --background -o commit=5,rw -- /v /m"),
            (
                "mount.covey /v /m -o transport=uring,log_level=debug,metrics_public,zstd",
                "covey mount --background --transport=uring --log-level=debug --metrics-public -o zstd -- /v /m",
            ),
            (
                "mount.covey /v /m -o json,background,accept_older",
                "covey mount --background -o json,background,accept_older -- /v /m",
            ),
            ("mount.covey /v /m -o suid,nodev", "covey mount --background -o suid,nodev -- /v /m"),
        ] {
            assert_eq!(words(asked), done, "{asked}");
        }
    }

    #[test]
    fn statuses_are_those_of_mount() {
        let called =
            |line: &str, status| run(&line.split(' ').map(OsString::from).collect::<Vec<_>>(), |_, _| status);
        assert_eq!((called("mount.covey /v /m", 0), called("mount.covey /v /m", 1)), (0, 32));
        assert_eq!((called("mount.covey /v /m", 2), called("mount.covey /v", 0)), (1, 1));
    }

    #[test]
    fn it_is_known_by_its_name() {
        let is = |name: &str| is_called(&[name.into()]);
        assert!(is("/sbin/mount.covey") && is("mount.fuse.covey") && !is("/usr/bin/covey") && !is(""));
    }
}
