//! `covey image rm`: removes an image, and what only that image uses.

use std::path::Path;
use std::sync::Arc;

use api::caller;
use api::error::{Failure, Result};
use api::text::count;
use node::opened::Node;
use node::options::NodeOptions;
use oci::folder::layer;
use oci::place::{InVolume, OnMount, Place};
use oci::removal::{self, Removal};

use super::{FOLDER, images_at, made, users};
use crate::reading::split;
use crate::target::{Target, resolve};
use crate::term::Term;

/// Removes an image from a folder of images.
pub fn run(image: &str, volume: &Path, term: Term) -> Result<u8> {
    if caller::euid() != 0 {
        return Err(Failure::new("not-permitted", "images are removed as root")
            .why("only root can change a folder of images")
            .next("run it as root (or with sudo)"));
    }
    if split(volume).is_some() {
        return Err(Failure::usage(format!("{} does not change", volume.display()))
            .why("a published tree stays what it was")
            .next("remove the image from the volume that publishes it, and publish that again"));
    }
    let removal = match resolve(volume)? {
        Target::Mounted(at) => on_mount(image, &images_at(&at.path), term)?,
        Target::Closed { dir, inner } => {
            let node = Arc::new(Node::open(&dir, &NodeOptions::writing("remove an image"))?);
            let removed = closed(image, &node, &inner);
            // Close in any case, so that what was removed stays so.
            let closed = node.close();
            let removal = removed?;
            closed?;
            removal
        }
    };
    term.result(&removal, || {
        let layers = match removal.layers.len() {
            0 => "all its layers are layers of other images too".to_owned(),
            1 => "and one layer that only it used".to_owned(),
            some => format!("and {} layers that only it used", count(some as u64)),
        };
        match removal.names.is_empty() {
            true => format!("{image} was removed before; removed what was left of it."),
            false => format!("Removed {}; {layers}.", removal.names.join(", ")),
        }
    });
    Ok(0)
}

fn closed(image: &str, node: &Node, inner: &Path) -> Result<Removal> {
    let place = InVolume::new(node.filesystem(), inner);
    let place = match place.is_there(Path::new("names"))? {
        true => place,
        false => InVolume::new(node.filesystem(), &inner.join(FOLDER)),
    };
    // Nothing is made in a folder without images.
    let _import = place.is_there(Path::new("names"))?.then(|| place.lock()).transpose()?;
    remove(image, &place, |_| Ok(()))
}

fn on_mount(image: &str, at: &Path, term: Term) -> Result<Removal> {
    let place = OnMount::new(at);
    if !place.is_there(Path::new("names"))? {
        return Err(Failure::new("not-found", format!("{} is no folder of images", at.display()))
            .next("name the folder that images were imported into: --volume /mnt/covey/images"));
    }
    // No image is imported or mounted meanwhile.
    let _import = place.lock()?;
    let _mounts = made::lock(&|line| term.say(line))?;
    remove(image, &place, |removal| check_unused(removal, at))
}

fn remove(image: &str, place: &dyn Place, check: impl FnOnce(&Removal) -> Result<()>) -> Result<Removal> {
    let removal = removal::plan(place, image)?;
    check(&removal)?;
    removal.run(place)?;
    Ok(removal)
}

/// A mount would lose its files.
fn check_unused(removal: &Removal, at: &Path) -> Result<()> {
    let overlays = users::overlays()?;
    for diff_id in &removal.layers {
        let folder = at.join(layer(diff_id));
        if let Some(user) = overlays.iter().find(|overlay| overlay.uses(&folder)) {
            let names = removal.names.join(", ");
            return Err(Failure::new("in-use", format!("{names} is in use on this machine"))
                .why(format!("{} has its layer {diff_id}", user.at.display()))
                .next(format!(
                    "unmount that first: covey image umount {}, or end the container",
                    user.at.display()
                )));
        }
    }
    Ok(())
}
