//! `covey import`: copies a folder, an archive, the objects of a bucket or a container image into a volume,
//! mounted or not. Images are in [`crate::images`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::caller;
use api::error::{Failure, Result};
use archive::import::bounds::Bounds;
use archive::import::direct::{Direct, NotMounted, To};
use archive::import::folder::Folder;
use archive::import::objects::there::{InVolume, OnMount, There};
use archive::import::objects::{Objects, Owner};
use archive::import::place::Place;
use archive::import::remote::{Onto, Refused, Remote};
use archive::import::tar::Tar;
use archive::sys;
use archive::transfer::{self, Source, Summary};
use base::Ino;
use node::bucket::Bucket;
use node::opened::Node;
use node::options::NodeOptions;
use node::remote_side::options::parse_size;
use node::{control, mounts};
#[cfg(feature = "containers")]
use oci::source::claims as is_image;
use serde::Serialize;

use crate::args::Reach;
use crate::copying::{self, Seen};
use crate::target::{self, Target, resolve_new};
use crate::term::Term;

/// Copies a folder, a tar archive (plain, gzip, zstd), a bucket's objects or a container image into a volume
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey import /usr/share /mnt/covey/share\n  covey import linux.tar.zst /srv/volume:/linux      a volume that is not mounted\n  \
    xz -dc linux.tar.xz | covey import - /mnt/covey/linux\n  covey import s3://bucket/prefix /mnt/covey/data      also gs:// and az://\n  \
    covey import docker://docker.io/library/debian:12 /mnt/covey/images      also oci:DIR:TAG, docker-archive:FILE\n\n\
    DEST becomes what SRC is: the folder's contents are found right below it. Modes, times, extended attributes, ACLs, hard\n\
    and symbolic links, holes, and as root owners (by number) and device nodes arrive as they were, as with tar -p. What\n\
    cannot is named, and the exit status is then 1.\n\n\
    Of a bucket, each object whose key begins with PREFIX/ becomes a file, with the object's time. Run it again to go on after an\n\
    interruption: files whose object has not changed are not copied again. Keys and settings come from the environment, as for origins.\n\n\
    Of an image, as root: DEST is a folder of images, in which each layer becomes a folder for overlayfs, once. See covey image\n\
    and docs/CONTAINERS.md."
)]
pub struct Args {
    /// A folder, a tar archive, - for an archive on standard input, s3://BUCKET/PREFIX, or an image:
    /// oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:TAG], docker://HOST/NAME[:TAG|@DIGEST]
    pub src: PathBuf,
    /// A path on a mount, or VOLUME:/PATH; made if it is not there
    pub dest: PathBuf,
    /// Replace files that are there already; without it the first one ends the import. Of an image: let its
    /// name, if it is there already, mean this image from now on
    #[arg(long)]
    pub overwrite: bool,
    /// Of an image: its name in DEST [default: its reference, or its tag]
    #[arg(long)]
    pub name: Option<String>,
    /// Of an image: the platform to take, as OS/ARCHITECTURE[/VARIANT] [default: this machine's]
    #[arg(long, value_name = "PLATFORM")]
    pub platform: Option<String>,
    /// Of an archive or an image: the most bytes that it may unpack to [default: what is free in DEST, or 100
    /// times its own size]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Of an archive or an image: the most members [default: 10000000]
    #[arg(long, value_name = "NUMBER")]
    pub max_entries: Option<u64>,
    #[command(flatten)]
    reach: Reach,
}

fn size(text: &str) -> std::result::Result<u64, String> {
    parse_size(text).ok_or_else(|| "write a size like 200G".to_owned())
}

impl Args {
    /// What the source may ask for, if so many bytes are free where it goes.
    pub fn bounds(&self, free: u64) -> Bounds {
        Bounds::new(&self.src.display().to_string(), free, self.max_size, self.max_entries)
    }
}

/// The free bytes of a place on a mount. The place itself may not be there yet.
pub fn free_at(path: &Path) -> u64 {
    let there = path.ancestors().find_map(|path| rustix::fs::statvfs(path).ok());
    there.map_or(0, |of| of.f_bavail.saturating_mul(of.f_frsize))
}

/// The free bytes of a volume that this process has opened.
pub fn free_in(node: &Node) -> u64 {
    node.filesystem().statfs(Ino::ROOT).map_or(0, |of| of.available)
}

#[derive(Debug, Serialize)]
struct Outcome<'a> {
    source: &'a Path,
    destination: &'a Path,
    /// Why the daemon did not do it, if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    through_mount: Option<String>,
    #[serde(flatten)]
    summary: Summary,
}

/// Whether a text names a container image, in a program without them.
#[cfg(not(feature = "containers"))]
fn is_image(text: &str) -> bool {
    ["oci:", "oci-archive:", "docker-archive:", "docker://"].iter().any(|scheme| text.starts_with(scheme))
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    if let Some(text) = args.src.to_str().filter(|text| is_image(text)) {
        if args.reach != Reach::default() {
            return Err(no_endpoint(args));
        }
        #[cfg(not(feature = "containers"))]
        return Err(crate::parts::lacking(&format!("container images, and {text} names one")));
        #[cfg(feature = "containers")]
        return crate::images::import(args, text, term);
    }
    if args.name.is_some() || args.platform.is_some() {
        return Err(Failure::usage(format!("{} is no image", args.src.display()))
            .why("only an image has a name and a platform")
            .next("leave --name and --platform out, or name an image: oci:DIR, docker-archive:FILE, docker://REF"));
    }
    let label =
        args.src.file_name().map_or_else(|| "import".to_owned(), |name| name.to_string_lossy().into_owned());
    // Before the threads of the store's client exist: a signal would end the program there.
    let stop = copying::stop_by_signal(term)?;
    let bucket = bucket(args)?;
    if bucket.is_none() {
        mounts::check_way(&args.src)?;
    }
    let target = resolve_new(&args.dest)?;
    let seen = Seen { label: &label, term, stop: Some(&stop) };
    let mut through_mount = None;
    let again = bucket.is_some();
    let summary = into(args, target, bucket, seen, &mut through_mount).map_err(|failure| {
        let interrupted = again && failure.code == "interrupted";
        let next = "start it again: what is there is not copied again";
        if interrupted { failure.map_next(next) } else { failure }
    })?;
    Ok(report(args, through_mount, summary, term))
}

/// Copies everything to where it goes. `through_mount` gets the reason why the daemon does not do it.
fn into(
    args: &Args,
    target: Target,
    bucket: Option<Bucket>,
    seen: Seen<'_>,
    through_mount: &mut Option<String>,
) -> Result<Summary> {
    match target {
        Target::Mounted(place) => {
            let there = || Box::new(OnMount::new(&place.path)) as Box<dyn There>;
            let bounds = args.bounds(free_at(&place.path));
            let source = source(args, bucket, Some(place.mount.dev), &there, bounds)?;
            onto_mount(&place, source, args.overwrite, seen, through_mount)
                .map_err(|failure| place.explained(failure))
        }
        Target::Closed { dir, inner } => {
            let node = Arc::new(Node::open(&dir, &NodeOptions::writing("import"))?);
            let there = || Box::new(InVolume::new(node.filesystem(), &inner)) as Box<dyn There>;
            let source = source(args, bucket, None, &there, args.bounds(free_in(&node)));
            let outcome = source.and_then(|source| offline(&node, source, &inner, args.overwrite, seen));
            // Close in any case, so that everything imported so far is kept.
            let closed = node.close();
            let summary = outcome?;
            closed?;
            Ok(summary)
        }
    }
}

/// Copies everything to a place on a mount. `through_mount` gets the reason why the daemon does not do it.
pub fn onto_mount(
    place: &target::Place,
    source: Box<dyn Source>,
    overwrite: bool,
    seen: Seen<'_>,
    through_mount: &mut Option<String>,
) -> Result<Summary> {
    match remote(place, overwrite) {
        Ok(mut sink) => seen.watch(|watch| transfer::run(source, &mut sink, watch)),
        Err(Refused::Failed(failure)) => Err(failure),
        Err(Refused::UseMount(why)) => {
            let why = why.line();
            seen.term.say(format_args!("the files go through the mount, which takes longer: {why}"));
            *through_mount = Some(why);
            let mut sink = Place::new(&place.path, overwrite)?;
            seen.watch(|watch| transfer::run(source, &mut sink, watch))
        }
    }
}

/// Asks the daemon of the mount to take the items.
fn remote(place: &target::Place, overwrite: bool) -> std::result::Result<Remote, Refused> {
    let mounts: Vec<PathBuf> = fuse::mount::all().into_iter().map(|mount| mount.path).collect();
    let onto =
        Onto { path: &place.path, mountpoint: &place.mount.path, device: place.mount.dev, mounts: &mounts };
    Remote::open(onto, overwrite, |request| control::begin(&place.address(), request))
}

/// Copies everything to a place of a volume that this process has opened.
pub fn offline(
    node: &Node,
    source: Box<dyn Source>,
    inner: &Path,
    overwrite: bool,
    seen: Seen<'_>,
) -> Result<Summary> {
    let shown = format!("{}:/{}", node.name(), inner.display());
    let to = To { shown, folder: inner, overwrite, umask: sys::umask() };
    let mut sink = Direct::new(node.filesystem(), Box::new(NotMounted), to)?;
    seen.watch(|watch| transfer::run(source, &mut sink, watch))
}

/// The bucket, if the source is one.
fn bucket(args: &Args) -> Result<Option<Bucket>> {
    match args.src.to_str().filter(|text| Bucket::claims(text)) {
        Some(text) => Bucket::open(text, &args.reach.reach()).map(Some),
        None if args.reach != Reach::default() => Err(no_endpoint(args)),
        None => Ok(None),
    }
}

fn no_endpoint(args: &Args) -> Failure {
    Failure::usage(format!("{} has neither an endpoint nor a region", args.src.display()))
        .next("leave --endpoint and --region out, or name a bucket: s3://BUCKET/PREFIX")
}

fn source(
    args: &Args,
    bucket: Option<Bucket>,
    not_into: Option<u64>,
    there: &dyn Fn() -> Box<dyn There>,
    bounds: Bounds,
) -> Result<Box<dyn Source>> {
    if let Some(bucket) = bucket {
        let owner = Owner { uid: caller::euid(), gid: caller::egid(), umask: sys::umask() };
        return Ok(Box::new(Objects::new(Arc::new(bucket), there(), owner, args.overwrite)));
    }
    let path = &*args.src;
    if path.is_dir() {
        return Ok(Box::new(Folder::new(path, not_into)?));
    }
    if path == Path::new("-") {
        return Ok(Box::new(Tar::stream("-", Box::new(io::stdin()), bounds)?));
    }
    if path.symlink_metadata().is_err() {
        if let Ok(Target::Closed { dir, .. }) = target::resolve(path) {
            let (shown, dest) = (path.display(), args.dest.display());
            return Err(Failure::usage(format!("{shown} is a place in a volume that is not mounted"))
                .next(format!("covey export {shown} - | covey import - {dest}"))
                .next(format!("or mount it: covey mount -d {} MOUNTPOINT", dir.path().display())));
        }
        return Err(
            Failure::new("not-found", format!("{} is not there", path.display())).next("check the path")
        );
    }
    Ok(Box::new(Tar::open(path, bounds)?))
}

fn report(args: &Args, through_mount: Option<String>, summary: Summary, term: Term) -> u8 {
    let left_out = copying::say_left_out(&summary.skipped, term);
    let outcome = Outcome { source: &args.src, destination: &args.dest, through_mount, summary };
    term.result(&outcome, || copying::in_words("Imported", &outcome.summary));
    u8::from(left_out)
}
