//! Container images: their import into a volume, and mounts of them. The formats are in [`oci`].
//!
//! ```text
//!   images.rs    the import; opening a folder of images for reading
//!   overlay.rs   one overlayfs mount of an image's layers
//!   tree.rs      the folder of images on a mount; mounts of published trees that have one
//!   rm.rs        the removal of an image
//!   users.rs     which overlays of this machine use a layer
//!   made.rs      what a mount of an image consists of, so that its unmount undoes exactly that
//!   patience.rs  says what a command waits for
//! ```

pub mod made;
pub mod overlay;
pub mod patience;
pub mod rm;
pub mod tree;
pub mod users;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use api::caller;
use api::error::{Failure, Result};
use api::text::{bytes, count};
use archive::import::bounds::Bounds;
use archive::transfer::{Source, Stop, Summary};
use node::opened::Node;
use node::options::NodeOptions;
use oci::Blobs;
use oci::claim::Claim;
use oci::folder::{self, Named};
use oci::manifest::{Image, Platform};
use oci::place::{InVolume, OnMount, Place};
use oci::source::{self, Found};
use oci::transfer::{Implied, Send};
use serde::Serialize;

use crate::cmd::import::{Args, free_at, free_in, offline, onto_mount};
use crate::copying::{self, Seen};
use crate::reading::{Opened, Way, split};
use crate::target::{Target, resolve, resolve_new};
use crate::term::Term;

/// The folder of images, where none is named.
const FOLDER: &str = "images";
/// How often a command that waits for a source looks whether it should stop.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Debug, Serialize)]
struct Outcome<'a> {
    name: &'a str,
    /// The digest of the manifest.
    manifest: String,
    platform: String,
    #[serde(with = "api::raw_path")]
    destination: PathBuf,
    layers: usize,
    /// Layers that were not there already.
    new_layers: usize,
    /// Why the daemon did not do it, if it did not.
    #[serde(skip_serializing_if = "Option::is_none")]
    through_mount: Option<String>,
    #[serde(flatten)]
    summary: Summary,
}

/// What an import did.
struct Done {
    new_layers: usize,
    layers: usize,
    /// Everything was there already.
    named: bool,
    summary: Summary,
}

/// `covey import` of an image.
pub fn import(args: &Args, text: &str, term: Term) -> Result<u8> {
    if caller::euid() != 0 {
        return Err(Failure::new("not-permitted", "images are imported as root")
            .why("layers have owners, device nodes and attributes that only root can set")
            .next("run it as root (or with sudo)"));
    }
    let wanted = match &args.platform {
        Some(text) => Platform::parse(text).ok_or_else(|| {
            Failure::usage(format!("{text:?} is no platform"))
                .next("write OS/ARCHITECTURE[/VARIANT], for example linux/arm64")
        })?,
        None => Platform::here(),
    };
    if let Some(name) = &args.name {
        folder::name(name)?;
    }
    // Before the threads that look names up exist: a signal would end the program there.
    let stop = copying::stop_by_signal(term)?;
    let target = resolve_new(&args.dest)?;
    let Found { name, image, blobs } = open(text, wanted, &stop)?;
    let named = Named::new(args.name.clone().unwrap_or(name), &image, text.to_owned());
    let seen = Seen { label: &named.name, term, stop: Some(&stop) };
    let mut through_mount = None;
    let (overwrite, blobs) = (args.overwrite, Some(blobs));
    let job = |free| Job { image: &image, named: &named, overwrite, blobs, bounds: args.bounds(free) };
    let done = match target {
        Target::Mounted(at) => {
            let mut job = job(free_at(&at.path));
            let place = OnMount::new(&at.path);
            let claim = place.lock()?;
            job.run(&place, &claim, &mut |source| onto_mount(&at, source, false, seen, &mut through_mount))?
        }
        Target::Closed { dir, inner } => {
            let node = Arc::new(Node::open(&dir, &NodeOptions::writing("import"))?);
            let mut job = job(free_in(&node));
            let place = InVolume::new(node.filesystem(), &inner);
            let outcome = place.lock().and_then(|claim| {
                job.run(&place, &claim, &mut |source| offline(&node, source, &inner, false, seen))
            });
            // Close in any case, so that everything imported so far is kept.
            let closed = node.close();
            let done = outcome?;
            closed?;
            done
        }
    };
    Ok(report(args, &named, through_mount, done, term))
}

/// Opens the source. A registry that does not answer can make that long, so a thread does it, and this one
/// looks for a request to stop.
fn open(text: &str, wanted: Platform, stop: &Stop) -> Result<Found> {
    let (tell, told) = sync_channel(1);
    let source = text.to_owned();
    base::thread::spawn("covey-read", move || drop(tell.send(source::open(&source, &wanted))))
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    loop {
        match told.recv_timeout(LOOK) {
            Ok(found) => return found,
            Err(RecvTimeoutError::Timeout) if stop.is_asked() => {
                let failure = Failure::new("interrupted", format!("stopped before {text} was opened"));
                return Err(Failure { status: 130, ..failure.next("start it again") });
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new("io", "the thread that reads failed"));
            }
        }
    }
}

/// An import of an image.
struct Job<'a> {
    image: &'a Image,
    named: &'a Named,
    overwrite: bool,
    blobs: Option<Box<dyn Blobs>>,
    /// What the image may ask for.
    bounds: Bounds,
}

impl Job<'_> {
    /// Sends what is missing, and gives it its names.
    fn run(
        &mut self,
        place: &dyn Place,
        claim: &Claim,
        send: &mut dyn FnMut(Box<dyn Source>) -> Result<Summary>,
    ) -> Result<Done> {
        let plan = folder::plan(place, self.image, self.named, self.overwrite)?;
        let (new_layers, layers) = (plan.layers.len(), plan.of_layers);
        let needed = !(plan.layers.is_empty() && plan.files.is_empty());
        let named = plan.named && !needed;
        let summary = match self.blobs.take().filter(|_| needed) {
            Some(blobs) => {
                let (layers, files) = (plan.layers.clone(), plan.files.clone());
                let (below, implied) = (plan.below.clone(), Implied::default());
                let bounds = self.bounds.clone();
                let source = Send { blobs, layers, files, below, implied: implied.clone(), bounds };
                let sent = send(Box::new(source)).and_then(|summary| {
                    claim.check()?;
                    plan.commit(place, self.image, &implied.lock())?;
                    Ok(summary)
                });
                sent.map_err(|failure| taken_back(failure, place, &plan.below))?
            }
            None => Summary { files: 0, bytes: 0, seconds: 0.0, already: 0, skipped: Vec::new() },
        };
        Ok(Done { new_layers, layers, named, summary })
    }
}

/// Nothing of an import that failed stays.
fn taken_back(failure: Failure, place: &dyn Place, below: &Path) -> Failure {
    let failure = match place.remove(below) {
        Ok(()) => failure,
        Err(error) => failure.why(format!("and what arrived could not be removed: {}", error.line())),
    };
    if failure.code == "interrupted" {
        return Failure { why: Vec::new(), ..failure }
            .why("nothing of the image has a name yet, and what arrived was removed")
            .map_next("start it again");
    }
    failure
}

fn report(args: &Args, named: &Named, through_mount: Option<String>, done: Done, term: Term) -> u8 {
    let left_out = copying::say_left_out(&done.summary.skipped, term);
    let Done { new_layers, layers, named: was_named, summary } = done;
    let outcome = Outcome {
        name: &named.name,
        manifest: named.manifest.digest.to_string(),
        platform: named.platform.to_string(),
        destination: args.dest.clone(),
        layers,
        new_layers,
        through_mount,
        summary,
    };
    term.result(&outcome, || {
        let Outcome { name, manifest, platform, summary, .. } = &outcome;
        if was_named {
            return format!("{name} is there already ({manifest}, {platform}).");
        }
        let Summary { files, bytes: size, seconds, .. } = summary;
        format!(
            "Imported {name} ({manifest}, {platform}): {new_layers} of {layers} layers were new, {} files with {} in {seconds:.1} s.",
            count(*files),
            bytes(*size)
        )
    });
    u8::from(left_out)
}

/// Runs `work` with the folder of images that a text names: a path on a mount, a volume's folder, or
/// ORIGIN@NAME.
pub fn with_place<T>(text: &Path, way: &Way, work: impl FnOnce(&dyn Place) -> Result<T>) -> Result<T> {
    if split(text).is_none()
        && let Target::Mounted(place) = resolve(text)?
    {
        return work(&OnMount::new(&images_at(&place.path)));
    }
    Opened::open(text, way, "image")?.close(|opened| {
        let volume = opened.node.filesystem();
        let inside = opened.inner.join(FOLDER);
        let place = InVolume::new(volume.clone(), &opened.inner);
        if place.is_there(Path::new("names"))? {
            return work(&place);
        }
        work(&InVolume::new(volume, &inside))
    })
}

/// The folder of images at a path: itself, or its folder `images`.
pub fn images_at(path: &Path) -> PathBuf {
    let inside = path.join(FOLDER);
    // A link in a tree of others would lead to a folder of this machine.
    let is_folder = inside.symlink_metadata().is_ok_and(|about| about.is_dir());
    match !path.join("names").is_dir() && is_folder && inside.join("names").is_dir() {
        true => inside,
        false => path.to_owned(),
    }
}
