//! The keys that a configuration file can have. They come from clap's argument table and the list of mount
//! options, so nothing is listed twice.

use clap::{Arg, ArgAction, Command};
use node::options;

use super::file::{Section, Value};

/// Keys of `[origin]`. They tell one store from another. Credentials come from the environment.
const ORIGIN: [&str; 2] = ["endpoint", "region"];
/// Keys of `[log]`. Their arguments are `--log-level` and `--log-format`.
const LOG: [&str; 2] = ["level", "format"];
/// Arguments of `covey mount` that make no sense for all mounts of a machine.
pub const NOT_MOUNT: [&str; 4] = ["background", "accept-older", "keep-removed", "take-over"];

/// Whether an argument or a key belongs to `[origin]`.
pub fn is_of_origin(name: &str) -> bool {
    ORIGIN.contains(&name)
}

/// Whether an argument is a switch without a value.
pub fn is_flag(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse)
}

/// The valid keys.
pub struct Known {
    mount: Vec<Arg>,
    log: Vec<Arg>,
}

impl Known {
    /// The keys of this program's command line.
    pub fn of(command: &Command) -> Known {
        let shown = |arg: &&Arg| arg.get_long().is_some() && !arg.is_hide_set();
        let is_mounts = |arg: &&Arg| {
            shown(arg) && !arg.get_long().is_some_and(|name| NOT_MOUNT.contains(&name) || is_of_origin(name))
        };
        let mount = command
            .find_subcommand("mount")
            .map(|sub| sub.get_arguments().filter(is_mounts).cloned().collect());
        let is_logs = |arg: &&Arg| arg.get_long().is_some_and(|name| name.starts_with("log-"));
        Known {
            mount: mount.unwrap_or_default(),
            log: command.get_arguments().filter(is_logs).cloned().collect(),
        }
    }

    /// The arguments of `covey mount` that can be configured.
    pub fn mount_arguments(&self) -> &[Arg] {
        &self.mount
    }

    /// The arguments that the keys of `[log]` set.
    pub fn log_arguments(&self) -> &[Arg] {
        &self.log
    }

    /// All keys of a section, in the program's spelling.
    pub fn keys(&self, section: &Section) -> Vec<String> {
        let mount = || {
            let arguments = self.mount.iter().filter_map(Arg::get_long).map(str::to_owned);
            options::names().map(|(name, _)| name.to_owned()).chain(arguments)
        };
        let origin = || ORIGIN.into_iter().map(str::to_owned);
        match section {
            Section::Mount => mount().collect(),
            Section::Origin => origin().collect(),
            Section::Log => LOG.into_iter().map(str::to_owned).collect(),
            Section::Volume(_) => mount().chain(origin()).collect(),
        }
    }

    /// Finds a key. `-` and `_` are equal.
    pub fn find(&self, section: &Section, key: &str) -> Option<String> {
        let plain = |text: &str| text.replace('_', "-");
        self.keys(section).into_iter().find(|known| plain(known) == plain(key))
    }

    /// The valid key most similar to this one, if any is similar.
    pub fn nearest(&self, section: &Section, key: &str) -> Option<String> {
        let far = |known: &String| distance(known, key);
        let nearest = self.keys(section).into_iter().min_by_key(far)?;
        (far(&nearest) <= 2.max(key.len() / 3)).then_some(nearest)
    }

    /// Why a key cannot have this value. None if it can.
    pub fn refuse(&self, section: &Section, key: &str, value: &Value) -> Option<String> {
        if let Value::Text(text) = value
            && text.contains(',')
            && options::names().any(|(name, _)| name == key)
        {
            return Some("a value has no comma".to_owned());
        }
        if *section != Section::Log
            && let Some(word) = super::option_word(key, value)
        {
            let known = crate::args::Lists::of_word(&word).parse();
            return known.err().map(|failure| failure.why.first().unwrap_or(&failure.what).clone());
        }
        let long = if *section == Section::Log { format!("log-{key}") } else { key.to_owned() };
        let arg = self.mount.iter().chain(&self.log).find(|arg| arg.get_long() == Some(&long));
        match (arg, value) {
            (Some(arg), Value::Text(_)) if is_flag(arg) => Some("it is to be true or false".to_owned()),
            (Some(arg), Value::Text(text)) => refused_by(arg, text),
            (Some(arg), Value::Flag(_)) if !is_flag(arg) => Some("it is to be a text or a number".to_owned()),
            // The guard is needed because a mount option that is a switch and is off has no word and gets
            // here too.
            (None, Value::Flag(_)) if is_of_origin(key) => Some("it is to be a text".to_owned()),
            _ => None,
        }
    }
}

/// The error of an argument's own parser for a value. None if the value is valid.
fn refused_by(arg: &Arg, text: &str) -> Option<String> {
    let value = Arg::new("value")
        .required(true)
        .allow_hyphen_values(true)
        .value_parser(arg.get_value_parser().clone());
    let trial = Command::new("trial").no_binary_name(true).arg(value);
    let error = trial.try_get_matches_from([text]).err()?;
    let reason = std::error::Error::source(&error).map(ToString::to_string);
    let choices = arg.get_possible_values();
    Some(reason.unwrap_or_else(|| match choices.is_empty() {
        true => "its value cannot be understood".to_owned(),
        false => {
            let names: Vec<&str> = choices.iter().map(clap::builder::PossibleValue::get_name).collect();
            format!("it is to be one of: {}", names.join(", "))
        }
    }))
}

/// The edit distance of two words: insertions, deletions and changes of letters.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, right) in b.iter().enumerate() {
            let changed = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_of_words() {
        for (a, b, far) in [
            ("", "", 0),
            ("commit", "comit", 1),
            ("deadline", "dedline", 1),
            ("ro", "readers", 6),
            ("abc", "acb", 2),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (far, far), "{a} {b}");
        }
    }
}
