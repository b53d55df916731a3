//! `covey trash`: what was removed, restored or deleted for good.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use api::answers::{TrashEmptied, TrashEntry, TrashKept, TrashRestored};
use api::control::{Request, Tick, TrashOrder, Trashed};
use api::error::{Failure, Result};
use api::raw_path::RawPath;
use api::text::{bytes, count, parse_span, span};
use node::control;
use node::opened::Node;
use node::options::{KeepTrash, NodeOptions};
use serde::de::DeserializeOwned;

use super::clone::show;
use crate::table::Table;
use crate::target::{Place, Target, resolve};
use crate::term::Term;

/// Lists what was removed from a volume, restores it, or deletes it for good
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey trash set /mnt/covey 7d\n  covey trash ls /mnt/covey\n  \
    covey trash restore /mnt/covey /mnt/covey/thesis\n  covey trash empty /mnt/covey --older-than 1d\n\n\
    A volume keeps what is removed only after covey trash set, or when it was mounted with -o trash=TIME.\n\
    A folder comes back with what was removed with it, as by rm -r.")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Set how long the volume keeps what is removed, on all nodes
    ///
    /// Example: covey trash set /mnt/covey 7d
    Set {
        /// A place on a mount, or a volume's folder
        place: PathBuf,
        /// How long: 12h, 7d; `off`: what is removed from now on is deleted at once
        time: String,
    },
    /// List what is in the trash, the newest first
    ///
    /// Example: covey trash ls /mnt/covey
    #[command(alias = "list")]
    Ls {
        /// A place on a mount, or a volume's folder
        place: PathBuf,
    },
    /// Restore a file or folder to where it was
    ///
    /// Example: covey trash restore /mnt/covey /mnt/covey/thesis
    Restore {
        /// A place on a mount, or a volume's folder
        place: PathBuf,
        /// Where it was, or the number that covey trash ls shows. If several things were at a path, the
        /// newest. Of a folder that exists: what was removed from it last
        what: PathBuf,
        /// Restore it to this path, which must be free, or to this folder
        #[arg(long, value_name = "PATH")]
        to: Option<PathBuf>,
        /// With a folder, restore whatever was removed from it at any time, and not only with it
        #[arg(long)]
        all: bool,
    },
    /// Delete for good what is in the trash
    ///
    /// Example: covey trash empty /mnt/covey --older-than 1d
    Empty {
        /// A place on a mount, or a volume's folder
        place: PathBuf,
        /// Only what was removed at least so long ago: 1h, 7d
        #[arg(long, value_name = "TIME")]
        older_than: Option<String>,
    },
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let mut progress = term.progress("trash");
    let mut tick = |tick: &Tick| show(&mut progress, tick);
    match &args.what {
        What::Set { place, time } => {
            let keep = match KeepTrash::parse(time) {
                Some(KeepTrash::For(time)) => Some(time),
                Some(_) => None,
                None => return Err(no_time(time).next("or write off")),
            };
            set(place, keep)?;
            term.result(&(), || match keep {
                Some(keep) => {
                    format!("What is removed from {} can be restored for {}.", place.display(), span(keep.as_secs_f64()))
                }
                None => format!(
                    "What is removed from {} is deleted at once. What is in the trash stays there: covey trash empty deletes it.",
                    place.display()
                ),
            });
        }
        What::Ls { place } => {
            let mut listing = Listing::new(term);
            let kept = list(place, &mut |part| listing.part(&part))?;
            listing.end(kept);
        }
        What::Restore { place, what, to, all } => {
            let done = restore(place, what, to.as_deref(), *all, &mut tick)?;
            progress.done();
            term.result(&done, || said(&done, to.as_deref()));
        }
        What::Empty { place, older_than } => {
            let older = match older_than {
                Some(text) => parse_span(text).ok_or_else(|| no_time(text))?,
                None => Duration::ZERO,
            };
            let done = empty(place, older, &mut tick)?;
            progress.done();
            term.result(&done, || {
                format!("Deleted {} files and folders, {}.", count(done.files), bytes(done.bytes))
            });
        }
    }
    Ok(0)
}

fn no_time(text: &str) -> Failure {
    Failure::usage(format!("{text} is no time")).next("write one like 90s, 30m, 12h or 7d")
}

fn ask<T: DeserializeOwned>(place: &Place, order: TrashOrder, tick: &mut dyn FnMut(&Tick)) -> Result<T> {
    control::ask(&place.address(), &Request::Trash { order }, tick)
}

fn set(place: &Path, keep: Option<Duration>) -> Result<()> {
    match resolve(place)? {
        Target::Mounted(place) => {
            ask(&place, TrashOrder::Set { seconds: keep.map(|keep| keep.as_secs()) }, &mut |_| ())
        }
        Target::Closed { dir, .. } => {
            let node = Node::open(&dir, &NodeOptions::writing("trash"))?;
            let done = node.set_trash(keep);
            node.close()?;
            done
        }
    }
}

/// Passes on what is in the trash, in parts.
fn list(place: &Path, each: &mut dyn FnMut(Vec<TrashEntry>)) -> Result<TrashKept> {
    match resolve(place)? {
        Target::Mounted(place) => {
            let mut unread = None;
            let asked = control::begin(&place.address(), &Request::Trash { order: TrashOrder::List })?;
            let kept =
                asked.hear(&mut |_| (), &mut |note| match serde_json::from_value::<Vec<TrashEntry>>(note) {
                    Ok(mut part) => {
                        below(&place, &mut part);
                        each(part);
                    }
                    Err(error) => unread = Some(error),
                });
            match unread {
                Some(error) => Err(Failure::new("no-answer", "the daemon's answer cannot be understood")
                    .why(error.to_string())
                    .next("it may run another version of covey: unmount, and mount again with this one")),
                None => kept,
            }
        }
        Target::Closed { dir, .. } => {
            let node = Node::open(&dir, &NodeOptions::reading("trash"))?;
            let kept = node.list_trash(&mut |part| {
                each(part);
                ControlFlow::Continue(())
            });
            node.close()?;
            kept
        }
    }
}

/// Shows paths below the mountpoint.
fn below(place: &Place, part: &mut [TrashEntry]) {
    for entry in part.iter_mut().filter(|entry| entry.has_folder) {
        let path = PathBuf::from(entry.path.clone());
        let below = place.mount.path.join(path.strip_prefix("/").unwrap_or(&path));
        entry.path = RawPath::from(&*below);
    }
}

fn restore(
    place: &Path,
    what: &Path,
    to: Option<&Path>,
    all: bool,
    tick: &mut dyn FnMut(&Tick),
) -> Result<TrashRestored> {
    let target = resolve(place)?;
    let (mountpoint, inner) = match &target {
        Target::Mounted(place) => (Some(place.mount.path.clone()), place.inner().to_owned()),
        Target::Closed { inner, .. } => (None, inner.clone()),
    };
    let within = |path: &Path| within(mountpoint.as_deref(), &inner, path);
    let to = to.map(within).transpose()?;
    let what = match what.to_str().and_then(|text| text.parse().ok()) {
        Some(id) => Trashed::Id(id),
        None => Trashed::Path(RawPath::from(&*within(what)?)),
    };
    match target {
        Target::Mounted(place) => {
            let to = to.as_deref().map(RawPath::from);
            ask(&place, TrashOrder::Restore { what, to, all }, tick)
        }
        Target::Closed { dir, .. } => {
            let node = Node::open(&dir, &NodeOptions::writing("trash"))?;
            let mut ticked = |now: Tick| tick(&now);
            let done = node.restore_trash(&what, to.as_deref(), all, &(), &mut ticked);
            node.close()?;
            done
        }
    }
}

fn empty(place: &Path, older: Duration, tick: &mut dyn FnMut(&Tick)) -> Result<TrashEmptied> {
    match resolve(place)? {
        Target::Mounted(place) => ask(&place, TrashOrder::Empty { older_seconds: older.as_secs() }, tick),
        Target::Closed { dir, .. } => {
            let node = Node::open(&dir, &NodeOptions::writing("trash"))?;
            let done = node.empty_trash(older, &mut |now| tick(&now));
            node.close()?;
            done
        }
    }
}

/// A path below the volume's root: of a path below the mountpoint the rest, of another absolute path all, and
/// a relative path begins at the place. It need not exist.
fn within(mountpoint: Option<&Path>, place: &Path, path: &Path) -> Result<PathBuf> {
    let path = match (path.strip_prefix("/"), mountpoint) {
        (Ok(inside), mountpoint) => {
            let below = mountpoint.and_then(|mountpoint| path.strip_prefix(mountpoint).ok());
            below.unwrap_or(inside).to_owned()
        }
        (Err(_), _) => place.join(path),
    };
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir if clean.pop() => {}
            Component::CurDir | Component::RootDir => {}
            _ => {
                return Err(Failure::usage(format!("{} is not in the volume", path.display()))
                    .next("name a path below the mountpoint"));
            }
        }
    }
    Ok(clean)
}

fn said(done: &TrashRestored, to: Option<&Path>) -> String {
    let shown = |path: &RawPath| PathBuf::from(path.clone()).display().to_string();
    let at = to.map_or_else(|| shown(&done.path), |to| to.display().to_string());
    let restored = match done.files {
        1 => format!("Restored {at}."),
        files => format!("Restored {at}: {} files and folders.", count(files)),
    };
    match done.left {
        0 => restored,
        left => format!(
            "{restored} {} below it stay in the trash: removed earlier, or their names are taken.",
            count(left)
        ),
    }
}

/// Prints the list as it arrives: a table, or one value of JSON.
struct Listing {
    term: Term,
    is_begun: bool,
}

impl Listing {
    fn new(term: Term) -> Listing {
        Listing { term, is_begun: false }
    }

    fn part(&mut self, part: &[TrashEntry]) {
        let began = std::mem::replace(&mut self.is_begun, true);
        if !self.term.is_json() {
            let text = table(part);
            // Later parts show no heading. It is in their tables all the same, so that columns are as wide.
            let rows = if began { text.split_once('\n').map_or("", |(_, rows)| rows) } else { &text };
            return self.term.part(rows);
        }
        for (at, entry) in part.iter().enumerate() {
            let comma = match (began, at) {
                (false, 0) => "{\n  \"entries\": [\n",
                _ => ",\n",
            };
            let entry = serde_json::to_string(entry).unwrap_or_default();
            self.term.part_as_is(&format!("{comma}    {entry}"));
        }
    }

    fn end(self, kept: TrashKept) {
        let Listing { term, is_begun } = self;
        if term.is_json() {
            let begun = if is_begun { "\n  ]" } else { "{\n  \"entries\": []" };
            let seconds = kept.keep_seconds.map_or("null".to_owned(), |seconds| seconds.to_string());
            return term.part_as_is(&format!("{begun},\n  \"keep_seconds\": {seconds}\n}}\n"));
        }
        let said = match kept.keep_seconds {
            Some(seconds) => format!("What is removed is kept for {}.", span(seconds as f64)),
            None => "What is removed is deleted at once: covey trash set PLACE TIME changes that.".to_owned(),
        };
        term.part(&if is_begun { format!("{said}\n") } else { format!("The trash is empty. {said}\n") });
    }
}

fn table(part: &[TrashEntry]) -> String {
    let mut table = Table::new(&["REMOVED", "     SIZE ", "    NUMBER ", "PATH"]);
    for entry in part {
        let path = PathBuf::from(entry.path.clone());
        let slash: &OsStr = OsStr::from_bytes(if entry.kind == "folder" { b"/" } else { b"" });
        let missing = if entry.has_folder { "" } else { "   (its folder is gone)" };
        table.row(vec![
            entry.removed.clone(),
            if entry.kind == "folder" { "-".to_owned() } else { bytes(entry.bytes) },
            entry.id.to_string(),
            format!("{}{}{missing}", path.display(), slash.display()),
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_from_the_root_of_the_volume() {
        let mount = Some(Path::new("/mnt/covey"));
        for (mountpoint, place, path, inner) in [
            (mount, "", "/mnt/covey/a/b", "a/b"),
            (mount, "", "/a/b/", "a/b"),
            (mount, "team", "a/./b", "team/a/b"),
            (mount, "team", "../a", "a"),
            (None, "", "/a", "a"),
        ] {
            let found = within(mountpoint, Path::new(place), Path::new(path)).unwrap();
            assert_eq!(found, Path::new(inner), "{path}");
        }
        assert!(within(mount, Path::new(""), Path::new("../x")).is_err());
    }
}
