//! Configuration files, and how their values reach the command line.
//!
//! ```text
//!   command line  >  environment (COVEY_*)  >  the user's covey.toml  >  /etc/covey/covey.toml  >  default
//!                                              (--config FILE or COVEY_CONFIG: that file alone)
//! ```
//!
//! The values of a file become the *defaults* of clap's argument table before the command line is parsed.
//! This has three effects. No command needs to know about files. The parser of each argument checks its
//! value. Every new argument of `covey mount` can be configured at once. Mount options are the exception.
//! They are a list of words, and the words of the file go before those of the environment and of `-o`.
//!
//! | section | keys |
//! |---|---|
//! | `[mount]` | the options of `-o` and the arguments of `covey mount`, by their names |
//! | `[origin]` | `endpoint`, `region` |
//! | `[log]` | `level`, `format` |
//! | `[volume."/srv/v"]` | the keys of `[mount]` and `[origin]`, for this volume only; overrides them |
//!
//! Credentials are not allowed here. A key that looks like one is refused.

pub mod file;
pub mod known;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use clap::{ArgMatches, Command};
use node::options;

use self::file::{Entry, Section, Value};
use self::known::Known;

/// The configuration file of the whole machine.
pub const SYSTEM: &str = "/etc/covey/covey.toml";

/// The commands that mount. They take the values of `[mount]`.
const MOUNTING: [&str; 2] = ["mount", "up"];

/// All entries of the configuration files, the most general first. Later entries win.
#[derive(Debug, Default)]
pub struct Config {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The files that were looked for, and whether each exists.
    pub files: Vec<(PathBuf, bool)>,
}

impl Config {
    /// Reads the files. `named` is the value of `--config` or `COVEY_CONFIG`. If it is empty, no file is
    /// read.
    ///
    /// # Errors
    /// A named file does not exist, or a file cannot be read or parsed.
    pub fn load(command: &Command, named: Option<&OsStr>) -> Result<Config> {
        let mut config = Config::default();
        let known = Known::of(command);
        for path in Config::places(named) {
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound && named.is_none() => {
                    config.files.push((path, false));
                    continue;
                }
                Err(error) => {
                    let what = format!("cannot read the configuration file {}", path.display());
                    return Err(Failure::io(what, &error).next("or leave it out: --config ''"));
                }
            };
            config.entries.extend(file::read(&path, &text, &known)?);
            config.files.push((path, true));
        }
        // The sort is stable, so files keep their order within one kind of section.
        config.entries.sort_by_key(|entry| matches!(entry.section, Section::Volume(_)));
        Ok(config)
    }

    /// The paths where configuration files are looked for, the most general first.
    pub fn places(named: Option<&OsStr>) -> Vec<PathBuf> {
        match named {
            Some(named) if named.is_empty() => Vec::new(),
            Some(named) => vec![named.into()],
            None => {
                let absolute =
                    |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
                let home = || std::env::home_dir().filter(|home| home.is_absolute());
                let user = absolute("XDG_CONFIG_HOME").or_else(|| Some(home()?.join(".config")));
                let user = user.map(|folder| folder.join("covey/covey.toml"));
                [Some(PathBuf::from(SYSTEM)), user].into_iter().flatten().collect()
            }
        }
    }

    /// The entries that apply to a volume: for each normalized key, the most specific one.
    pub fn of_volume<'a>(&'a self, volume: Option<&'a Path>) -> impl Iterator<Item = &'a Entry> {
        let applies = move |entry: &&Entry| match &entry.section {
            Section::Volume(name) => volume.is_some_and(|volume| is_same(name, volume)),
            _ => true,
        };
        let fitting: Vec<&Entry> = self.entries.iter().filter(applies).collect();
        let last = |at: usize, entry: &Entry, all: &[&Entry]| {
            !all[at + 1..]
                .iter()
                .any(|later| later.key == entry.key && later.section.overrides(&entry.section))
        };
        let kept: Vec<&Entry> = fitting
            .iter()
            .enumerate()
            .filter(|(at, entry)| last(*at, entry, &fitting))
            .map(|(_, entry)| *entry)
            .collect();
        kept.into_iter()
    }

    /// The `-o` words that apply to a volume.
    pub fn words(&self, volume: Option<&Path>) -> Vec<String> {
        let option = |entry: &Entry| option_word(&entry.key, &entry.value);
        self.of_volume(volume).filter(|entry| entry.section != Section::Log).filter_map(option).collect()
    }
}

/// Whether a section names this volume. The texts are equal, or both paths lead to the same folder.
fn is_same(section: &str, volume: &Path) -> bool {
    let full = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Path::new(section) == volume || full(Path::new(section)) == full(volume)
}

/// Converts a key to its `-o` word. Returns none if the key is no mount option, or is a switch that is off.
pub fn option_word(key: &str, value: &Value) -> Option<String> {
    let name = key.replace('-', "_");
    let (_, with_value) = options::names().find(|(known, _)| *known == name)?;
    match value {
        Value::Flag(on) if with_value => Some(format!("{name}={}", if *on { "on" } else { "off" })),
        Value::Flag(true) => Some(name),
        Value::Flag(false) => {
            let opposite = name.strip_prefix("no").map_or_else(|| format!("no{name}"), str::to_owned);
            options::names().any(|(known, _)| known == opposite).then_some(opposite)
        }
        Value::Text(text) => Some(format!("{name}={text}")),
    }
}

/// Returns the command with the configured values as its defaults, if the typed command takes any. The values
/// of `[origin]` apply only if the address of an object store was typed. An existing volume keeps its own.
///
/// # Errors
/// As for [`Config::load`]. A command that takes nothing from a file does not read any, so a broken file
/// cannot prevent an unmount.
pub fn beneath(command: Command, words: &[OsString], typed: &ArgMatches) -> Result<Option<Command>> {
    let Some((name, arguments)) = typed.subcommand() else { return Ok(None) };
    let Some(sub) = command.find_subcommand(name) else { return Ok(None) };
    let mounts = MOUNTING.contains(&name);
    let reaches = words.iter().any(|word| word.to_string_lossy().contains("://"))
        && sub.get_arguments().any(|arg| arg.get_long().is_some_and(known::is_of_origin));
    if !mounts && !reaches {
        return Ok(None);
    }
    let named = typed.get_one::<OsString>("config").map(OsString::as_os_str);
    let config = Config::load(&command, named)?;
    let volume = volume_of(name, arguments);
    let mut command = command;
    for entry in config.of_volume(volume.as_deref()) {
        command = match entry.section {
            Section::Log => with_default(command, &format!("log-{}", entry.key), &entry.value),
            _ if known::is_of_origin(&entry.key) && !reaches => command,
            _ if known::is_of_origin(&entry.key) => {
                command.mut_subcommand(name, |sub| with_default(sub, &entry.key, &entry.value))
            }
            _ if mounts => command.mut_subcommand(name, |sub| with_default(sub, &entry.key, &entry.value)),
            _ => command,
        };
    }
    let words = config.words(volume.as_deref()).join(",");
    if mounts && !words.is_empty() {
        let words = for_good(words);
        command = command
            .mut_subcommand(name, |sub| sub.mut_arg(crate::args::CONFIGURED, |arg| arg.default_value(words)));
    }
    Ok(Some(command))
}

/// The volume that a command line names.
fn volume_of(name: &str, arguments: &ArgMatches) -> Option<PathBuf> {
    let named = arguments.try_get_one::<PathBuf>("volume").ok().flatten().cloned();
    if name == "up" { named.or_else(crate::cmd::up::default_volume) } else { named }
}

/// Gives the argument with this long name a default, if the argument exists and is not hidden.
fn with_default(command: Command, key: &str, value: &Value) -> Command {
    let named = |arg: &&clap::Arg| arg.get_long() == Some(key) && !arg.is_hide_set();
    let Some(arg) = command.get_arguments().find(named) else { return command };
    let id = arg.get_id().to_string();
    let text = match (value, known::is_flag(arg)) {
        (Value::Flag(false), true) => return command,
        (Value::Flag(on), _) => on.to_string(),
        (Value::Text(text), _) => text.clone(),
    };
    let text = for_good(text);
    command.mut_arg(id, |arg| arg.default_value(text))
}

/// Leaks a text. The argument table lives as long as the program and takes only `'static` texts.
fn for_good(text: String) -> &'static str {
    Box::leak(text.into_boxed_str())
}

#[cfg(test)]
mod tests;
