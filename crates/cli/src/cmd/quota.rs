//! `covey quota`: how many bytes and files a folder may hold.

use std::path::{Path, PathBuf};

use api::answers::QuotaUse;
use api::control::{NewLimit, Request, Tick};
use api::error::{Failure, Result};
use api::text::{bytes, count};
use node::control;
use node::opened::Node;
use node::options::NodeOptions;
use node::remote_side::options::parse_size;

use super::clone::show;
use crate::table::Table;
use crate::target::{Target, resolve};
use crate::term::Term;

/// Limits how many bytes and files a folder may hold, and shows how many it holds
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey quota set /mnt/covey/team-a --bytes 2T --files 10M\n  covey quota ls /mnt/covey\n  \
    covey quota rm /mnt/covey/team-a\n\n\
    What would exceed a limit fails with EDQUOT, \"Disk quota exceeded\". Quotas nest: what is in\n\
    the inner folder counts for the outer one too. mv between folders with different quotas copies,\n\
    and links between them are refused."
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Give a folder a quota, or change its limits
    ///
    /// Example: covey quota set /mnt/covey/team-a --bytes 2T --files 10M
    Set {
        /// The most stored bytes below the folder: 500G, 2T; `none` for no limit
        #[arg(long, value_name = "SIZE", required_unless_present = "files")]
        bytes: Option<String>,
        /// The most files and folders below it: 50000, 10M (ten million); `none` for no limit
        #[arg(long, value_name = "NUMBER")]
        files: Option<String>,
        /// A folder on a mount, a volume's folder, or VOLUME:/PATH
        folder: PathBuf,
    },
    /// List the quotas of a folder, of those below it and of those around it
    ///
    /// Example: covey quota ls /mnt/covey
    #[command(alias = "list", alias = "get")]
    Ls {
        /// A folder on a mount, a volume's folder, or VOLUME:/PATH
        folder: PathBuf,
    },
    /// Take a folder's quota away
    ///
    /// Example: covey quota rm /mnt/covey/team-a
    #[command(alias = "remove")]
    Rm {
        /// A folder on a mount, a volume's folder, or VOLUME:/PATH
        folder: PathBuf,
    },
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let mut progress = term.progress("quota");
    let mut tick = |tick: &Tick| show(&mut progress, tick);
    match &args.what {
        What::Set { bytes: size, files, folder } => {
            let new = (limit(size.as_deref(), parse_bytes)?, limit(files.as_deref(), parse_count)?);
            let quota = set(folder, new.0, new.1, &mut tick)?;
            progress.done();
            term.result(&quota, || {
                let (size, files) = (
                    of_limit(quota.bytes, quota.bytes_limit, bytes),
                    of_limit(quota.files, quota.files_limit, count),
                );
                format!("{} holds {size} and {files} files and folders.", folder.display())
            });
        }
        What::Ls { folder } => {
            let quotas = list(folder)?;
            term.result(&quotas, || match quotas.is_empty() {
                true => format!("No quota limits {}.", folder.display()),
                false => table(&quotas),
            });
        }
        What::Rm { folder } => {
            remove(folder, &mut tick)?;
            progress.done();
            term.result(&(), || format!("{} has no quota of its own any more.", folder.display()));
        }
    }
    Ok(0)
}

fn limit(text: Option<&str>, parse: fn(&str) -> Result<u64>) -> Result<NewLimit> {
    Ok(match text {
        None => NewLimit::Keep,
        Some("none") => NewLimit::None,
        Some(text) => NewLimit::Is(parse(text)?),
    })
}

fn parse_bytes(text: &str) -> Result<u64> {
    parse_size(text).ok_or_else(|| {
        Failure::usage(format!("--bytes {text} is no size")).next("write one like 500G or 2T, or none")
    })
}

/// Files are counted in thousands, and bytes in units of 1,024.
fn parse_count(text: &str) -> Result<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit.to_ascii_uppercase().as_str() {
        "" => Some(1),
        "K" => Some(1000),
        "M" => Some(1_000_000),
        "G" => Some(1_000_000_000),
        _ => None,
    };
    let number = number.parse::<u64>().ok().zip(unit).and_then(|(number, unit)| number.checked_mul(unit));
    number.ok_or_else(|| {
        Failure::usage(format!("--files {text} is no number")).next("write one like 50000 or 10M, or none")
    })
}

fn set(folder: &Path, bytes: NewLimit, files: NewLimit, tick: &mut dyn FnMut(&Tick)) -> Result<QuotaUse> {
    match resolve(folder)? {
        Target::Mounted(place) => {
            let request = Request::SetQuota { path: place.inner().into(), bytes, files };
            control::ask(&place.address(), &request, tick)
        }
        Target::Closed { dir, inner } => {
            let node = Node::open(&dir, &NodeOptions::writing("quota"))?;
            let done = node.set_quota(&inner, bytes, files, &mut |now| tick(&now));
            node.close()?;
            done
        }
    }
}

fn list(folder: &Path) -> Result<Vec<QuotaUse>> {
    match resolve(folder)? {
        Target::Mounted(place) => {
            let request = Request::Quotas { path: place.inner().into() };
            let mut quotas: Vec<QuotaUse> = control::ask(&place.address(), &request, &mut |_| ())?;
            for quota in &mut quotas {
                let below = |path: &String| place.mount.path.join(path.trim_start_matches('/'));
                quota.path = quota.path.as_ref().map(|path| below(path).to_string_lossy().into_owned());
            }
            Ok(quotas)
        }
        Target::Closed { dir, inner } => {
            let node = Node::open(&dir, &NodeOptions::reading("quota"))?;
            let quotas = node.quotas(&inner);
            node.close()?;
            quotas
        }
    }
}

fn remove(folder: &Path, tick: &mut dyn FnMut(&Tick)) -> Result<()> {
    match resolve(folder)? {
        Target::Mounted(place) => {
            control::ask(&place.address(), &Request::RemoveQuota { path: place.inner().into() }, tick)
        }
        Target::Closed { dir, inner } => {
            let node = Node::open(&dir, &NodeOptions::writing("quota"))?;
            let done = node.remove_quota(&inner, &mut |now| tick(&now));
            node.close()?;
            done
        }
    }
}

fn of_limit(used: u64, limit: Option<u64>, shown: fn(u64) -> String) -> String {
    match limit {
        Some(limit) => format!("{} of {}", shown(used), shown(limit)),
        None => shown(used),
    }
}

fn table(quotas: &[QuotaUse]) -> String {
    let mut table = Table::new(&["BYTES ", "LIMIT ", "FILES ", "LIMIT ", "STATE", "FOLDER"]);
    for quota in quotas {
        let none = || "-".to_owned();
        table.row(vec![
            bytes(quota.bytes),
            quota.bytes_limit.map_or_else(none, bytes),
            count(quota.files),
            quota.files_limit.map_or_else(none, count),
            match quota.state.as_str() {
                "counting" => "interrupted: set it again".to_owned(),
                "removing" => "interrupted: remove it again".to_owned(),
                state => state.to_owned(),
            },
            quota.path.clone().unwrap_or_else(none),
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_files() {
        let good = [("0", 0), ("12", 12), ("3k", 3000), ("10M", 10_000_000), ("2G", 2_000_000_000)];
        for (text, number) in good {
            assert_eq!(parse_count(text).ok(), Some(number), "{text}");
        }
        for text in ["", "M", "-1", "1.5", "10MB", "99999999999999999999", "18446744073709551615K"] {
            assert!(parse_count(text).is_err(), "{text}");
        }
    }
}
