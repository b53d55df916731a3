//! Command-line arguments, as clap parses them. Each struct converts into the plain options that crate `node`
//! takes.

pub mod fleet;
#[cfg(feature = "s3")]
pub mod foreign;
pub mod s3;
pub mod ui;
pub mod unused;

use std::time::Duration;

use api::error::Result;
use node::frozen::trust;
use node::heat::Counting;
use node::options::MountOptions;
use node::{again, log, origins, running, watch};

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Level {
    /// Something does not work.
    Error,
    /// Something could go wrong, or went wrong and was dealt with.
    Warn,
    /// What happened.
    Info,
    /// What happened inside, for a person that looks for a fault.
    Debug,
}

impl From<Level> for log::Level {
    fn from(level: Level) -> log::Level {
        match level {
            Level::Error => log::Level::Error,
            Level::Warn => log::Level::Warn,
            Level::Info => log::Level::Info,
            Level::Debug => log::Level::Debug,
        }
    }
}

/// What a line looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl From<Format> for log::Format {
    fn from(format: Format) -> log::Format {
        match format {
            Format::Text => log::Format::Text,
            Format::Json => log::Format::Json,
        }
    }
}

/// Which signatures and records of a published tree are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Accept {
    /// Of a published tree: accept only what is signed by this key (64 hexadecimal digits), and remember it.
    /// Without this the owner's keys at the first use are remembered, and other keys refused later
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Of a published tree: use its record although a newer one was seen here, and remember it as the newest
    #[arg(long)]
    accept_older: bool,
}

impl Accept {
    /// The form that crate `node` takes.
    pub fn accept(&self) -> trust::Accept {
        trust::Accept { key: self.key.clone(), accept_older: self.accept_older }
    }
}

/// How the store of an origin is reached, beside its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Reach {
    /// Of a tree or a bucket in an object store: where the store is, when it is not the cloud's own
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Of a tree or a bucket in an object store: the bucket's region
    #[arg(long)]
    region: Option<String>,
}

impl Reach {
    /// The form that crate `node` takes.
    pub fn reach(&self) -> origins::Reach {
        origins::Reach { endpoint: self.endpoint.clone(), region: self.region.clone() }
    }
}

/// How the kernel's requests reach the daemon.
#[derive(Clone, Debug, clap::Args)]
pub struct Transport {
    /// How requests come: auto (FUSE over io_uring where it can be had; as root it turns the kernel's switch
    /// on), uring (that or no mount), or classic (/dev/fuse; leaves the switch alone)
    #[arg(
        id = "transport",
        long = "transport",
        value_name = "HOW",
        default_value_t,
        env = "COVEY_FUSE_TRANSPORT",
        hide_env = true
    )]
    kind: fuse::Transport,
    /// Threads that read requests from /dev/fuse [default: one per core]
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        hide_default_value = true,
        env = "COVEY_FUSE_READERS",
        hide_env = true
    )]
    readers: usize,
    /// Over io_uring, keep each program on the CPU where it asks (on, off)
    #[arg(
        long = "yield",
        alias = "aside",
        value_name = "ON",
        action = clap::ArgAction::Set,
        value_parser = clap::builder::BoolishValueParser::new(),
        default_value = "on",
        hide_possible_values = true,
        env = "COVEY_FUSE_YIELD",
        hide_env = true
    )]
    yields: bool,
}

impl Transport {
    /// The form that crate `node` takes.
    pub fn transport(&self) -> running::Transport {
        let Transport { kind, readers, yields } = *self;
        running::Transport { kind, readers, yields }
    }
}

/// What a daemon shows of itself while it serves.
#[derive(Clone, Debug, clap::Args)]
pub struct Shown {
    /// Serve figures for Prometheus at http://ADDRESS:PORT/metrics; see docs/METRICS.md
    #[arg(long, value_name = "ADDRESS:PORT", env = "COVEY_METRICS", hide_env = true)]
    metrics: Option<String>,
    /// Let --metrics be seen from other machines
    #[arg(long, env = "COVEY_METRICS_PUBLIC", hide_env = true, value_parser = clap::builder::FalseyValueParser::new())]
    metrics_public: bool,
    /// Write a line to the log for every Nth request [0: none]
    #[arg(long, value_name = "N", env = "COVEY_FUSE_TRACE_RATE", default_value_t = 0, hide = true)]
    trace_rate: u32,
    /// Count accesses of each MiB of each file, for covey heat; see docs/WATCH.md. auto: by eBPF programs if
    /// the kernel permits it; daemon: by the daemon alone
    #[arg(long, value_name = "COUNTED BY", num_args = 0..=1, require_equals = true, default_missing_value = "auto")]
    heat: Option<HeatBy>,
}

/// What counts accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum HeatBy {
    Auto,
    Daemon,
}

impl Shown {
    /// The form that crate `node` takes.
    pub fn shown(&self) -> watch::Shown {
        let Shown { metrics, metrics_public, trace_rate, heat } = self.clone();
        let heat = heat.map(|by| match by {
            HeatBy::Auto => Counting::Auto,
            HeatBy::Daemon => Counting::Daemon,
        });
        watch::Shown { metrics, metrics_public, trace_rate, heat }
    }
}

/// Publishes a mounted volume again and again.
#[derive(Clone, Debug, clap::Args)]
pub struct Every {
    /// Publish the volume this often while it is mounted, when something has changed: 90s, 5m, 1h
    #[arg(long, value_name = "TIME", value_parser = time)]
    publish_every: Option<Duration>,
    /// Under which name --publish-every publishes
    #[arg(long, value_name = "NAME", default_value = "latest", requires = "publish_every")]
    publish_as: String,
    /// With --publish-every: publish once more at a clean unmount, if something has changed, and wait so long
    /// for it; 0: not
    #[arg(long, value_name = "TIME", value_parser = time_or_none, default_value = "30s", requires = "publish_every")]
    publish_last: Duration,
}

impl Every {
    /// The form that crate `node` takes.
    pub fn every(&self) -> again::Every {
        let Every { publish_every, publish_as, publish_last } = self.clone();
        again::Every { publish_every, publish_as, publish_last }
    }
}

/// Parses a time in seconds, minutes or hours. The minimum is one second.
pub fn time(text: &str) -> std::result::Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => 0,
    };
    let seconds = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    match seconds.filter(|seconds| (1..=31_536_000).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs(seconds)),
        None => Err("write a time like 90s, 5m or 1h".to_owned()),
    }
}

/// Like [`time`], but 0 is allowed too.
fn time_or_none(text: &str) -> std::result::Result<Duration, String> {
    match text.trim_end_matches(|c: char| c.is_ascii_alphabetic()) {
        "0" => Ok(Duration::ZERO),
        _ => time(text),
    }
}

/// What was asked for after `-o`, and beneath that what the environment and the configuration file say.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Lists {
    /// Mount options, as covey mount --help lists them
    #[arg(short = 'o', value_name = "OPTION,...")]
    options: Vec<String>,
    /// What COVEY_MOUNT_OPTIONS says
    #[arg(long, hide = true, env = ENVIRONMENT, hide_env = true)]
    environment_options: Option<String>,
    /// What the configuration file says; filled in before the command line is read
    #[arg(long, hide = true)]
    configured_options: Option<String>,
}

/// The environment variable that holds mount options.
pub const ENVIRONMENT: &str = "COVEY_MOUNT_OPTIONS";
/// The id of the hidden argument that carries the mount options of the configuration file.
pub const CONFIGURED: &str = "configured_options";

impl Lists {
    /// A list of one word, as a configuration file has it.
    pub fn of_word(word: &str) -> Lists {
        Lists { configured_options: Some(word.to_owned()), ..Lists::default() }
    }

    /// Parses the options. Later sources win: configuration file, then environment, then command line.
    pub fn parse(&self) -> Result<MountOptions> {
        let beneath = self.configured_options.iter().chain(&self.environment_options);
        MountOptions::parse(beneath.chain(&self.options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let seconds = |text| time(text).map(|time| time.as_secs()).ok();
        assert_eq!(
            ["90s", "5m", "1h", "7", "0s", "5x", "", "m", "9999999999999999999h"].map(seconds),
            [Some(90), Some(300), Some(3600), Some(7), None, None, None, None, None]
        );
        assert_eq!(["0", "0s", "1m"].map(|text| time_or_none(text).unwrap().as_secs()), [0, 0, 60]);
        assert!(time_or_none("soon").is_err() && time_or_none("00x1").is_err());
    }

    #[test]
    fn what_is_typed_wins_over_the_environment_and_that_over_the_file() {
        let one = |text: &str| Some(text.to_owned());
        let lists = Lists {
            configured_options: one("ro,commit=7,deadline=9"),
            environment_options: one("commit=6,nosuid"),
            options: vec!["commit=5".to_owned(), "rw".to_owned()],
        };
        let options = lists.parse().unwrap();
        assert_eq!((options.commit, options.deadline), (Duration::from_secs(5), Duration::from_secs(9)));
        assert!(options.nosuid(false) && !options.read_only);
    }
}
