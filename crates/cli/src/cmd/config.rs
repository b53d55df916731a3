//! `covey config`: shows which value is in effect, and where it comes from.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;

use api::error::Result;
use clap::{Arg, CommandFactory};
use node::options::{self, MountOptions};
use node::secrets::Cleaner;
use serde::Serialize;

use crate::Cli;
use crate::config::file::{Section, Value};
use crate::config::known::Known;
use crate::config::{Config, known};
use crate::table::Table;
use crate::term::Term;

/// Shows every setting: its value, and whether it comes from the environment, a configuration file or by
/// default
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey config                   what holds for every mount of this machine\n  \
    covey config /srv/volume       what holds for one volume\n  \
    covey config --example > ~/.config/covey/covey.toml\n\n\
    What is nearer wins: the command line, then the environment (COVEY_...), then ~/.config/covey/covey.toml, then\n\
    /etc/covey/covey.toml, then the default. --config FILE or COVEY_CONFIG names the one file to read instead."
)]
pub struct Args {
    /// A volume, whose own section then counts
    volume: Option<PathBuf>,
    /// Print a configuration file in which everything is explained and commented out
    #[arg(long)]
    example: bool,
}

/// One setting.
#[derive(Debug, Serialize)]
pub struct Setting {
    section: &'static str,
    key: String,
    /// None if there is no value and no default.
    value: Option<String>,
    /// The environment variable, the file and line, or `default`.
    from: String,
}

/// All settings.
#[derive(Debug, Serialize)]
pub struct Report {
    files: Vec<FileLooked>,
    settings: Vec<Setting>,
}

#[derive(Debug, Serialize)]
struct FileLooked {
    #[serde(with = "api::raw_path")]
    path: PathBuf,
    read: bool,
}

/// Runs the command.
pub fn run(args: &Args, named: Option<&OsString>, term: Term) -> Result<u8> {
    if args.example {
        term.result(&serde_json::json!({ "example": example() }), example);
        return Ok(0);
    }
    let report = report(named, args.volume.clone())?;
    term.result(&report, || text(&report));
    Ok(0)
}

/// The settings, for a volume or in general.
///
/// # Errors
/// A configuration file cannot be read.
pub fn report(named: Option<&OsString>, volume: Option<PathBuf>) -> Result<Report> {
    let command = Cli::command();
    let config = Config::load(&command, named.map(OsString::as_os_str))?;
    let known = Known::of(&command);
    let cleaner = Cleaner::here();
    let mut settings = option_settings(&config, volume.as_deref());
    let mut nearest = HashMap::new();
    for entry in config.of_volume(volume.as_deref()) {
        let log = if entry.section == Section::Log { "log-" } else { "" };
        let from = format!("{}, line {}", entry.file.display(), entry.line);
        nearest.insert(format!("{log}{}", entry.key), (shown(&entry.value), from));
    }
    settings.extend(known.mount_arguments().iter().map(|arg| of_argument("mount", "", arg, &nearest)));
    for key in ["endpoint", "region"] {
        let (value, from) = nearest.get(key).cloned().unzip();
        let from = from.unwrap_or_else(|| "default".to_owned());
        settings.push(Setting { section: "origin", key: key.to_owned(), value, from });
    }
    settings.extend(known.log_arguments().iter().map(|arg| of_argument("log", "log-", arg, &nearest)));
    for setting in &mut settings {
        setting.value = setting.value.take().map(|value| cleaner.clean(&value));
    }
    let files = config.files.into_iter().map(|(path, read)| FileLooked { path, read }).collect();
    Ok(Report { files, settings })
}

fn shown(value: &Value) -> String {
    match value {
        Value::Flag(on) => on.to_string(),
        Value::Text(text) => text.clone(),
    }
}

/// Mount options are words. The last word of each name counts.
fn option_settings(config: &Config, volume: Option<&std::path::Path>) -> Vec<Setting> {
    let split = |word: &str| match word.split_once('=') {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (word.to_owned(), "on".to_owned()),
    };
    let default = MountOptions::default().to_words();
    let defaults: HashMap<String, String> = default.split(',').map(split).collect();
    let mut set: HashMap<String, (String, String)> = HashMap::new();
    for entry in config.of_volume(volume).filter(|entry| entry.section != Section::Log) {
        if let Some(word) = crate::config::option_word(&entry.key, &entry.value) {
            let (name, value) = split(&word);
            set.insert(name, (value, format!("{}, line {}", entry.file.display(), entry.line)));
        }
    }
    let environment = std::env::var(crate::args::ENVIRONMENT).unwrap_or_default();
    for (name, value) in environment.split(',').map(str::trim).filter(|word| !word.is_empty()).map(split) {
        set.insert(name, (value, crate::args::ENVIRONMENT.to_owned()));
    }
    let setting = |name: &str| {
        let (value, from) = set.get(name).cloned().unzip();
        let value = value.or_else(|| defaults.get(name).cloned());
        let from = from.unwrap_or_else(|| "default".to_owned());
        Setting { section: "mount", key: name.to_owned(), value, from }
    };
    options::names().map(|(name, _)| setting(name)).collect()
}

fn of_argument(
    section: &'static str,
    prefix: &str,
    arg: &Arg,
    nearest: &HashMap<String, (String, String)>,
) -> Setting {
    let long = arg.get_long().unwrap_or_default();
    let environment = arg.get_env().and_then(|name| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
        Some((value.to_string_lossy().into_owned(), name.to_string_lossy().into_owned()))
    });
    let (value, from) = environment.or_else(|| nearest.get(long).cloned()).unzip();
    let default = arg.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
    let default = default.or_else(|| known::is_flag(arg).then(|| "false".to_owned()));
    Setting {
        section,
        key: long.strip_prefix(prefix).unwrap_or(long).to_owned(),
        value: value.or(default),
        from: from.unwrap_or_else(|| "default".to_owned()),
    }
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    for file in &report.files {
        let state = if file.read { "read" } else { "not there" };
        text.push_str(&format!("{}: {state}\n", file.path.display()));
    }
    let mut table = Table::new(&["setting", "value", "from"]);
    for setting in &report.settings {
        let value = setting.value.clone().unwrap_or_else(|| "-".to_owned());
        table.row(vec![format!("{}.{}", setting.section, setting.key), value, setting.from.clone()]);
    }
    text.push('\n');
    text + &table.text()
}

/// A configuration file with all keys, explained and commented out.
pub fn example() -> String {
    let mut text = String::from(
        "## Covey's configuration. Settings of the command line and of the environment (COVEY_...) win over this file, and\n\
         ## ~/.config/covey/covey.toml wins over /etc/covey/covey.toml. `covey config` shows what is in force.\n\
         ## Credentials have no place here: they belong into the environment or into ~/.aws/credentials.\n\n\
         ## For every mount: what covey mount takes after -o ...\n[mount]\n",
    );
    for (forms, meaning) in options::known() {
        text.push_str(&format!("## {meaning}\n"));
        for (name, with_value) in
            forms.split(", ").map(|form| form.split_once('=').map_or((form, None), |(n, v)| (n, Some(v))))
        {
            text.push_str(&format!("# {name} = {}\n", example_value(name, with_value)));
        }
    }
    let command = Cli::command();
    let known = Known::of(&command);
    text.push_str("## ... and its arguments.\n");
    for arg in known.mount_arguments() {
        describe(&mut text, "", arg);
    }
    text.push_str(
        "\n## Where origins are, for volumes that keep their blobs in an object store.\n[origin]\n\
         # endpoint = \"https://s3.example.net\"\n# region = \"eu-central-1\"\n\n## What daemons write.\n[log]\n",
    );
    for arg in known.log_arguments() {
        describe(&mut text, "log-", arg);
    }
    text.push_str("\n## For one volume: all of the first two, nearer than what stands above.\n# [volume.\"/srv/volume\"]\n# readers = 4\n");
    text
}

fn example_value(name: &str, form: Option<&str>) -> String {
    match (name, form) {
        (_, None) => "true".to_owned(),
        ("commit", _) => "1".to_owned(),
        (_, Some("on|off")) => "true".to_owned(),
        (_, Some("KIB")) => "1024".to_owned(),
        (_, Some("N")) => "8".to_owned(),
        (_, Some("SIZE")) => "\"10G\"".to_owned(),
        (_, Some("NAMES")) => "\"*.h5\"".to_owned(),
        (_, Some("URL")) => "\"https://s3.example.net\"".to_owned(),
        (_, Some(choices)) if choices.contains('|') => {
            format!("{:?}", choices.split('|').next().unwrap_or_default())
        }
        (_, Some(_)) => "60".to_owned(),
    }
}

fn describe(text: &mut String, prefix: &str, arg: &Arg) {
    let long = arg.get_long().unwrap_or_default();
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let value = match (long, arg.get_default_values().first()) {
        (_, None) if known::is_flag(arg) => "false".to_owned(),
        ("metrics", None) => "\"127.0.0.1:9464\"".to_owned(),
        (_, Some(default)) => match default.to_string_lossy().parse::<u64>() {
            Ok(number) => number.to_string(),
            Err(_) => format!("{:?}", default.to_string_lossy()),
        },
        // A key with neither a default nor a value that suits everybody is only named.
        (_, None) => {
            text.push_str(&format!("## {help}\n## {}\n", long.strip_prefix(prefix).unwrap_or(long)));
            return;
        }
    };
    text.push_str(&format!("## {help}\n# {} = {value}\n", long.strip_prefix(prefix).unwrap_or(long)));
}
