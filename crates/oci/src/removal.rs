//! The removal of an image from a folder of images.
//!
//! Names go first, then the layers and blobs that no other image uses. So a removal that is interrupted
//! leaves layers that nothing names, and never a name whose layers are gone; the same removal again removes
//! the rest. A layer is renamed before it is removed, because what has the name of a layer is whole.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use serde::Serialize;

use crate::digest::Digest;
use crate::folder::{self, NEW, Named, complete, names};
use crate::manifest::{Index, MANIFEST_MAX};
use crate::place::Place;

/// Indexes that name indexes: as deep as an import follows them.
const DEPTH_MAX: usize = 4;

/// What a removal would remove.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Removal {
    /// Names.
    pub names: Vec<String>,
    /// Diff ids of layers that only they use.
    pub layers: Vec<Digest>,
    /// Manifests, configs and indexes that only they use.
    pub blobs: Vec<Digest>,
    /// What a removal or an import that was interrupted left.
    #[serde(skip)]
    pub leftovers: Vec<PathBuf>,
}

/// Finds out what belongs to an image alone. `wanted` is a name, a name without `:latest`, or the digest of a
/// manifest, which means all its names. What no name leads to belongs to it too, so an interrupted removal
/// can be completed although the name is gone.
///
/// # Errors
/// There is no such image and nothing is left over, or another image is damaged, so that nobody can say which
/// layers it uses.
pub fn plan(place: &dyn Place, wanted: &str) -> Result<Removal> {
    let all = names(place)?;
    let meant = meant(&all, wanted);
    let (going, staying): (Vec<Named>, Vec<Named>) = all.into_iter().partition(|named| meant(named));
    let there: Vec<String> = staying.iter().map(|named| named.name.clone()).collect();
    let (mut layers, mut blobs) = (HashSet::new(), HashSet::new());
    for named in staying {
        let name = named.name.clone();
        let digest = named.manifest.digest;
        let found = complete(place, named).map_err(|failure| {
            failure
                .why(format!("as long as {name} cannot be read, nobody can say which layers it uses"))
                .map_next(format!("import {name} again with --overwrite, or remove it first"))
        })?;
        layers.extend(found.layers);
        blobs.extend([digest, found.manifest.config.digest]);
    }
    keep_indexes(place, &mut blobs)?;
    let removal = Removal {
        names: going.into_iter().map(|named| named.name).collect(),
        layers: unused(place, Path::new("layers"), "sha256-", &layers)?,
        blobs: unused(place, Path::new("blobs/sha256"), "", &blobs)?,
        leftovers: place
            .list(Path::new(""))?
            .iter()
            .filter(|name| name.starts_with(NEW))
            .map(PathBuf::from)
            .collect(),
    };
    if removal.names.is_empty() && removal.layers.is_empty() && removal.leftovers.is_empty() {
        let failure = Failure::new("not-found", format!("there is no image {wanted}"));
        return Err(match there.is_empty() {
            true => failure.why("no image was imported here"),
            false => failure.why(format!("there are: {}", there.join(", "))),
        });
    }
    Ok(removal)
}

/// Which names a text means.
fn meant(all: &[Named], wanted: &str) -> impl Fn(&Named) -> bool + use<> {
    let latest = format!("{wanted}:latest");
    let name =
        [wanted.to_owned(), latest].into_iter().find(|name| all.iter().any(|named| named.name == *name));
    let digest = Digest::parse(wanted).filter(|_| name.is_none());
    move |named| match &name {
        Some(name) => named.name == *name,
        None => Some(named.manifest.digest) == digest,
    }
}

/// Adds the indexes that lead to a blob that stays.
fn keep_indexes(place: &dyn Place, staying: &mut HashSet<Digest>) -> Result<()> {
    for _ in 0..DEPTH_MAX {
        let before = staying.len();
        for digest in unused(place, Path::new("blobs/sha256"), "", staying)? {
            // A config may be longer, and is no index.
            let Ok(Some(bytes)) = place.read(&folder::blob(&digest), MANIFEST_MAX) else { continue };
            let Ok(index) = serde_json::from_slice::<Index>(&bytes) else { continue };
            if index.manifests.iter().any(|blob| staying.contains(&blob.digest)) {
                staying.insert(digest);
            }
        }
        if staying.len() == before {
            break;
        }
    }
    Ok(())
}

/// What a folder holds beside `used`. Names that this program did not give are left alone.
fn unused(place: &dyn Place, folder: &Path, prefix: &str, used: &HashSet<Digest>) -> Result<Vec<Digest>> {
    let names = place.list(folder)?;
    let digests =
        names.iter().filter_map(|name| Digest::parse(&format!("sha256:{}", name.strip_prefix(prefix)?)));
    let mut unused: Vec<Digest> = digests.filter(|digest| !used.contains(digest)).collect();
    unused.sort();
    Ok(unused)
}

impl Removal {
    /// Removes it. The folder must be locked since [`plan`].
    ///
    /// # Errors
    /// Something cannot be removed. What is left is whole, and the same removal again removes the rest.
    pub fn run(&self, place: &dyn Place) -> Result<()> {
        for name in &self.names {
            place.remove(&folder::name(name)?)?;
        }
        if !self.names.is_empty() {
            // A power cut must not bring a name back whose layers are gone.
            place.sync()?;
        }
        let below = PathBuf::from(format!("{NEW}{:016x}", base::random::u64()));
        place.make_folder(&below)?;
        for layer in &self.layers {
            place.rename(&folder::layer(layer), &below.join(layer.hex()))?;
        }
        for blob in &self.blobs {
            place.remove(&folder::blob(blob))?;
        }
        for left in self.leftovers.iter().chain([&below]) {
            place.remove(left)?;
        }
        place.sync()
    }
}

#[cfg(test)]
mod tests;
