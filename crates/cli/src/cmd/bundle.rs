//! `covey bundle`: one file with the contents of a bug report, without secrets.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use api::error::{Context, Failure, Result};
use api::text::{bytes, utc};
use archive::export::tar;
use serde::Serialize;

use crate::bundle::{self, Bundle};
use crate::cmd::{config, doctor};
use crate::config::Config;
use crate::table::Table;
use crate::term::Term;

/// Gathers what a report of a fault needs into one archive: machine, mounts, figures, log, settings; no
/// secrets, no contents of files
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey bundle /mnt/covey\n  covey bundle /srv/volume -o report.tar.zst      a volume that is not mounted\n  \
    zstd -dc report.tar.zst | tar -tv                    what is in it\n\n\
    Keys, passwords and tokens are taken out, of variables only the names are told. Look it through before you send it."
)]
pub struct Args {
    /// A mount or a volume; without one, the machine alone
    path: Option<PathBuf>,
    /// The archive to make [default: covey-bundle-TIME.tar.zst here]
    #[arg(short = 'o', long = "output", value_name = "FILE.tar.zst")]
    output: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Outcome {
    #[serde(with = "api::raw_path")]
    file: PathBuf,
    bytes: u64,
    holds: Vec<Held>,
}

#[derive(Debug, Serialize)]
struct Held {
    name: String,
    bytes: usize,
}

/// Runs the command.
pub fn run(args: &Args, named: Option<&OsString>, term: Term) -> Result<u8> {
    let now = base::time::now();
    let stamp: String = utc(now.seconds()).chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    let folder = format!("covey-bundle-{stamp}");
    let path = args.output.clone().unwrap_or_else(|| format!("{folder}.tar.zst").into());
    if !path.as_os_str().to_string_lossy().ends_with(".tar.zst") {
        return Err(Failure::usage(format!("{} is no name for a bundle", path.display()))
            .next("name one that ends with .tar.zst"));
    }
    // Creates the file first. Gathering takes some seconds and would be useless if the result could not be
    // saved.
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&path);
    let mut file = match file {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let failure = Failure::new("exists", format!("{} is there already", path.display()));
            return Err(failure.next("name another file with -o"));
        }
        other => other.at("make", &path)?,
    };
    let outcome = gather(args.path.as_deref(), named, term).and_then(|bundle| {
        let written = tar::of_texts(Vec::new(), &folder, &bundle.texts, now).at("pack", &path)?;
        file.write_all(&written).and_then(|()| file.sync_all()).at("write", &path)?;
        Ok((bundle, written.len() as u64))
    });
    let (bundle, size) = match outcome {
        Ok(done) => done,
        Err(failure) => {
            let _ = std::fs::remove_file(&path);
            return Err(failure);
        }
    };
    let holds =
        bundle.texts.iter().map(|(name, text)| Held { name: name.clone(), bytes: text.len() }).collect();
    let outcome = Outcome { file: path, bytes: size, holds };
    term.result(&outcome, || text(&outcome));
    Ok(0)
}

fn gather(path: Option<&Path>, named: Option<&OsString>, term: Term) -> Result<Bundle> {
    let mut bundle = Bundle::new();
    bundle.text("README.txt", &bundle::about(path));
    if let Some(path) = path {
        bundle.volume(path, &|line: &str| term.say(line))?;
    }
    bundle.machine();
    bundle.mounts();
    bundle.environment();
    bundle.json("doctor.json", &doctor::checks(path, named));
    match config::report(named, path.map(Path::to_owned)) {
        Ok(report) => bundle.json("settings.json", &report),
        Err(failure) => bundle.json("settings.json", &serde_json::json!({ "error": failure })),
    }
    for (number, file) in Config::places(named.map(OsString::as_os_str)).iter().enumerate() {
        let text = std::fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        if let Ok(text) = text {
            bundle.text(&format!("settings-{}.toml", number + 1), &format!("# {}\n{text}", file.display()));
        }
    }
    Ok(bundle)
}

fn text(outcome: &Outcome) -> String {
    let mut table = Table::new(&["file", "bytes "]);
    for held in &outcome.holds {
        table.row(vec![held.name.clone(), bytes(held.bytes as u64)]);
    }
    let path = outcome.file.display();
    format!(
        "{}\nMade {path} ({}). Look it through before you send it: zstd -dc {path} | tar -xO | less\n",
        table.text(),
        bytes(outcome.bytes)
    )
}
