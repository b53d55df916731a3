//! `covey index`: publishes the listing of a bucket as a tree, without copying its objects.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use api::answers::{IndexSummary, PublishSummary};
use api::caller;
use api::error::{Context, Failure, Result};
use api::text::{bytes, count};
use archive::sys;
use node::index::rows::Owner;
use node::index::{Indexed, Order};
use node::opened::Node;
use node::options::NodeOptions;
use node::publish::Wanted;
use node::publisher::check_name;

use crate::args::{Reach, time};
use crate::cmd::clone::show;
use crate::copying;
use crate::target::{Target, resolve};
use crate::term::Term;

/// So many keys that are left out are shown one by one.
const SHOWN: usize = 10;
/// How often a waiting command looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Publishes the objects of a bucket as files, as they are: no byte is copied
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey index s3://bucket/prefix /srv/volume data      then: covey mount ORIGIN@data MOUNTPOINT\n  \
    covey index --follow --every 5m s3://bucket /srv/volume data      again and again; covey mount --follow sees it\n  \
    covey index --skipped left-out.json gs://bucket /srv/volume data\n\n\
    Each object whose key begins with PREFIX/ becomes a file of the tree NAME, which is published in the volume's origin. Its bytes stay\n\
    in the bucket and are read from there by range. A file whose object was replaced or removed fails with ESTALE until the next index.\n\
    Keys that cannot be paths are left out and named, and the exit status is then 1. Keys of the store come from the environment."
)]
pub struct Args {
    /// s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX
    bucket: String,
    /// The folder of a volume that is not mounted: its origin gets the tree
    volume: PathBuf,
    /// The name of the tree: letters, digits and any of . _ - =
    name: String,
    /// List and publish again and again, until a signal comes
    #[arg(long)]
    follow: bool,
    /// With --follow: how long to wait in between
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60s", requires = "follow")]
    every: Duration,
    /// Write every key that is left out to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    skipped: Option<PathBuf>,
    /// Give new numbers to all files, and write all of the tree anew: mends a damaged tree
    #[arg(long)]
    afresh: bool,
    /// Keep so many publications of the name, this one included [default: as many as before, at first 1]
    #[arg(long, value_name = "COUNT")]
    keep: Option<u32>,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    check_name(&args.name)?;
    // First: the threads of the store's client would otherwise take the signals.
    let stop = copying::stop_or_end_by_signal(term)?;
    let from = Indexed::open(&args.bucket, &args.reach.reach())?;
    let interrupted = |failure: Failure| match stop.is_asked() {
        true => Failure { status: 130, ..failure },
        false => failure,
    };
    let mut left_out = once(args, &from, &stop, term).map_err(interrupted)?;
    loop {
        if !args.follow {
            return Ok(u8::from(left_out));
        }
        let until = base::time::monotonic() + args.every;
        while base::time::monotonic() < until && !stop.is_asked() {
            std::thread::sleep(LOOK.min(args.every));
        }
        if stop.is_asked() {
            return Ok(u8::from(left_out));
        }
        match once(args, &from, &stop, term) {
            Ok(left) => left_out = left,
            Err(failure) if stop.is_asked() => return Err(interrupted(failure)),
            // A store that is away comes back. What is published stays meanwhile.
            Err(failure) => term.say(format_args!("{}; trying again", failure.in_one_line())),
        }
    }
}

/// Lists and publishes once. Returns whether some keys were left out.
fn once(args: &Args, from: &Indexed, stop: &archive::transfer::Stop, term: Term) -> Result<bool> {
    let dir = match resolve(&args.volume)? {
        Target::Closed { dir, inner } if inner.as_os_str().is_empty() => dir,
        Target::Closed { .. } => {
            return Err(Failure::usage("a bucket is indexed into a volume, not into a folder of it")
                .next("leave the path out: the tree is published beside the volume's own files"));
        }
        Target::Mounted(place) => {
            return Err(Failure::usage(format!("{} is mounted", place.mount.source))
                .why("an index is published by the program that has the volume open")
                .next(
                    "unmount it, or make another volume for indexes: covey format FOLDER --origin ORIGIN",
                ));
        }
    };
    let all =
        args.skipped.as_deref().map(|path| Ok::<_, Failure>((path, File::create(path).at("write", path)?)));
    let all = all.transpose()?.map(|(path, file)| (path, BufWriter::new(file)));
    let (all, broken) = (RefCell::new(all), RefCell::new(None));
    let mut skip = |key: &str, why: &str| {
        if let Some((_, file)) = &mut *all.borrow_mut() {
            let line = serde_json::json!({ "key": key, "why": why });
            if let Err(error) = writeln!(file, "{line}") {
                broken.borrow_mut().get_or_insert(error);
            }
        }
    };
    let mut progress = term.progress("index");
    let wanted =
        Wanted { path: PathBuf::new(), name: args.name.clone(), afresh: args.afresh, keep: args.keep };
    let owner = Owner { uid: caller::euid(), gid: caller::egid(), umask: sys::umask() };
    let node = Node::open(&dir, &NodeOptions::writing("index"))?;
    let done = node.index(Order { from, wanted, owner, skip: &mut skip }, &mut |tick| {
        show(&mut progress, &tick);
        !stop.is_asked()
    });
    let closed = node.close();
    let done = done?;
    closed?;
    progress.done();
    if let Some((path, mut file)) = all.into_inner() {
        broken.into_inner().map_or_else(|| file.flush(), Err).at("write", path)?;
    }
    report(&done, args, term);
    Ok(done.left_out > 0)
}

fn report(done: &IndexSummary, args: &Args, term: Term) {
    for left in done.first_left_out.iter().take(SHOWN) {
        term.say(format_args!("left out: {} ({})", left.key.escape_debug(), left.why));
    }
    let more = done.left_out.saturating_sub(SHOWN as u64);
    if more > 0 {
        let all = match &args.skipped {
            Some(path) => format!("{} has all", path.display()),
            None => "--skipped FILE writes all".to_owned(),
        };
        term.say(format_args!("left out: {} more; {all}", count(more)));
    }
    term.result(done, || text(done));
}

fn text(done: &IndexSummary) -> String {
    let IndexSummary { source, published, objects, seconds, listing_seconds, .. } = done;
    let PublishSummary { name, sequence, unchanged, new_nodes, nodes, .. } = published;
    let took = format!("in {seconds:.2} s ({listing_seconds:.2} s of it listing)");
    if *unchanged {
        return format!("Nothing has changed: {name} ({sequence}) is {source} as it was, {took}.");
    }
    format!(
        "Published {source} as {name} ({sequence}): {} objects, {}; wrote {} of {} nodes, {took}.",
        count(*objects),
        bytes(published.bytes),
        count(*new_nodes),
        count(*nodes),
    )
}
