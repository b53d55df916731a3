//! `covey warm`: fetches the data of files before it is read.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use api::answers::WarmSummary;
use api::control::{ControlAddress, Request};
use api::error::{Context, Failure, Result};
use api::raw_path::RawPath;
use api::reads::{self, ReadRange};
use api::text::{bytes, count};
use node::control;

use crate::cmd::clone::show;
use crate::cmd::flush::HAND_OVER;
use crate::target::{Place, Target, resolve};
use crate::term::Term;

/// Bytes of paths in one request. Requests have a size limit.
const BATCH: usize = 256 << 10;

/// Fetches files and trees from the origin into this node's cache, or into its zone's depots
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey warm /mnt/covey/models/llama\n  find /mnt/covey/src -name '*.rs' | covey warm --from-list -\n  \
    covey warm /mnt/models --from-list app.reads      what covey trace --record wrote, in its order\n  \
    covey warm --depot /mnt/models/llama      for the nodes that come later\n\n\
    What is here already is not fetched again. Exit status: 0 when everything is here, 1 when something could not be had."
)]
pub struct Args {
    /// Files and folders on a mount
    #[arg(required_unless_present = "from_list")]
    paths: Vec<PathBuf>,
    /// Also those that a file names, one a line; - is standard input. A list of covey trace --record instead
    /// says which parts of files are fetched, in which order; PATH is then the mount, and nothing else of it
    /// is fetched
    #[arg(long, value_name = "FILE")]
    from_list: Option<PathBuf>,
    /// Of a node of a fleet: have the depots of its zone fetch them; the bytes do not come by this node
    #[arg(long)]
    depot: bool,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let mut paths = args.paths.clone();
    if let Some(file) = &args.from_list {
        let text = read(file)?;
        if reads::is_list(&text) {
            return recorded(args, file, &text, term);
        }
        paths.extend(list(&text));
    }
    if paths.is_empty() {
        return Err(Failure::usage("the list names no file").next("name files on a mount: covey warm PATH"));
    }
    let mut progress = term.progress("warm");
    let mut sum = WarmSummary::default();
    for (address, batch) in batches(&paths)? {
        let request = Request::Warm { paths: batch, depot: args.depot };
        sum.add(control::ask(&address, &request, &mut |tick| show(&mut progress, tick))?);
    }
    progress.done();
    Ok(report(&sum, args.depot, term))
}

/// Says what was not had, and the figures. Returns the exit status.
fn report(sum: &WarmSummary, depot: bool, term: Term) -> u8 {
    for missed in &sum.failed {
        term.say(format_args!("not had: {} ({})", missed.path, missed.why));
    }
    let more = sum.failed_count.saturating_sub(sum.failed.len() as u64);
    if more > 0 {
        term.say(format_args!("not had: {more} more"));
    }
    term.result(sum, || text(sum, depot));
    u8::from(sum.failed_count > 0)
}

/// Fetches what a recorded list names.
fn recorded(args: &Args, file: &Path, text: &[u8], term: Term) -> Result<u8> {
    let shown = file.display();
    let reads = reads::parse(text).map_err(|why| {
        Failure::usage(format!("the list {shown} cannot be understood"))
            .why(why)
            .next("record it again: covey trace MOUNT --record FILE")
    })?;
    let [path] = &args.paths[..] else {
        return Err(Failure::usage(format!("{shown} is a list of covey trace --record"))
            .why("it names files below the root of a mount, and says not which mount")
            .next(format!("name the mount: covey warm MOUNT --from-list {shown}")));
    };
    if args.depot {
        return Err(Failure::usage("depots fetch whole files").next("leave --depot out, or name paths"));
    }
    let address = mounted(path)?.address();
    let mut progress = term.progress("warm");
    let mut sum = WarmSummary::default();
    let mut rest = &reads[..];
    while !rest.is_empty() {
        let batch = rest.len().min(batch_of(rest));
        let request = Request::WarmReads { reads: rest[..batch].to_vec() };
        sum.add(control::ask(&address, &request, &mut |tick| show(&mut progress, tick))?);
        rest = &rest[batch..];
    }
    progress.done();
    if sum.gone > 0 {
        term.say(format_args!("{} files of the list are not there any more", count(sum.gone)));
    }
    Ok(report(&sum, false, term))
}

/// How many of these ranges fit a request.
fn batch_of(reads: &[ReadRange]) -> usize {
    let mut room = BATCH;
    let fits = reads.iter().take_while(|read| {
        let len = read.path.as_os_str().len() * 4 + 96;
        let fits = len <= room;
        room = room.saturating_sub(len);
        fits
    });
    fits.count().max(1)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    if file != Path::new("-") {
        return std::fs::read(file).at("read", file);
    }
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text).or_fail(|| "cannot read standard input".to_owned())?;
    Ok(text)
}

/// The paths of a list. Empty lines are ignored.
fn list(text: &[u8]) -> Vec<PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    let lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let named = lines.filter(|line| !line.is_empty());
    named.map(|line| PathBuf::from(std::ffi::OsStr::from_bytes(line))).collect()
}

/// The paths, grouped by the daemon that serves them, in batches that fit a request.
fn batches(paths: &[PathBuf]) -> Result<Vec<(ControlAddress, Vec<RawPath>)>> {
    let mut by_mount: BTreeMap<PathBuf, (ControlAddress, Vec<RawPath>)> = BTreeMap::new();
    let mut out = Vec::new();
    let mut room: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for path in paths {
        let place = mounted(path)?;
        let mount = place.mount.path.clone();
        if !by_mount.contains_key(&mount) {
            // Data that is still only in the kernel is not in the daemon's metadata yet.
            fuse::mount::hand_over(&mount, HAND_OVER);
        }
        let inner = RawPath::from(place.inner());
        let taken = room.entry(mount.clone()).or_default();
        *taken += place.inner().as_os_str().len() * 2 + 16;
        let entry = by_mount.entry(mount).or_insert_with(|| (place.address(), Vec::new()));
        entry.1.push(inner);
        if *taken >= BATCH {
            *taken = 0;
            out.push((entry.0.clone(), std::mem::take(&mut entry.1)));
        }
    }
    out.extend(by_mount.into_values().filter(|(_, paths)| !paths.is_empty()));
    Ok(out)
}

fn mounted(path: &Path) -> Result<Place> {
    match resolve(path)? {
        Target::Mounted(place) => Ok(place),
        Target::Closed { dir, .. } => {
            Err(Failure::new("not-mounted", format!("the volume {} is not mounted", dir.path().display()))
                .next(format!("mount it first: covey mount {} MOUNTPOINT", dir.path().display())))
        }
    }
}

fn text(sum: &WarmSummary, depot: bool) -> String {
    let (by, place) = if depot { (" by the depots", "there") } else { ("", "here") };
    let fetched = format!("{} blobs ({}) fetched{by}", count(sum.fetched_blobs), bytes(sum.fetched_bytes));
    let here = format!("{} ({}) were {place}", count(sum.here_blobs), bytes(sum.here_bytes));
    let failed = match sum.failed_count {
        0 => String::new(),
        n => format!("; {} could not be had", count(n)),
    };
    format!("{} files: {fetched}, {here}{failed}, {:.1} s.", count(sum.files), sum.seconds)
}
