//! The folder of a volume that holds images.
//!
//! ```text
//!   names/NAME.json             an image: its name, and the digest of its manifest. NAME is percent-encoded
//!   blobs/sha256/HEX            manifests, indexes and configs, byte for byte
//!   layers/sha256-HEX/          a layer as a folder in overlayfs form, by its chain id
//!   .import                     is locked while an import runs on this machine
//!   .import-by                  which process of which machine imports or removes ([`crate::claim`])
//!   .new-HEX/                   an import or a removal that runs, or was killed
//! ```
//!
//! An import fills `.new-HEX`, and gives everything its name at the end: first layers, then blobs, then the
//! image's name. So what has a name is whole, and a name leads only to what is there.
//!
//! A folder that a layer leaves out is that of the layers below ([`implied`]). So a layer above other
//! layers is another folder, and its name is the chain id, which covers all of them. Equal files are
//! stored once all the same. Builds before the first release gave a layer the name of its diff id, also
//! above others.

mod implied;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use api::error::{Failure, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::manifest::{Config, Descriptor, Image, Layer, MANIFEST_MAX, Manifest, Platform, chain_id, parse};
use crate::place::Place;
use crate::transfer::missing;

/// Bytes of a name that are written as they are.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b':').remove(b'@');
pub(crate) const NEW: &str = ".new-";
const CONFIG_MAX: u64 = 16 << 20;
/// The version of the file of a name.
const VERSION: u32 = 1;

/// The folder of a layer, by its chain id, below the folder of images.
pub fn layer(chain: &Digest) -> PathBuf {
    PathBuf::from(format!("layers/sha256-{}", chain.hex()))
}

/// The file of a small blob, below the folder of images.
pub fn blob(digest: &Digest) -> PathBuf {
    PathBuf::from(format!("blobs/sha256/{}", digest.hex()))
}

/// The file of a name, below the folder of images.
///
/// # Errors
/// The name is empty, too long, or begins with a dot.
pub fn name(name: &str) -> Result<PathBuf> {
    let file = format!("{}.json", utf8_percent_encode(name, PLAIN));
    if name.is_empty() || name.starts_with('.') || file.len() > 255 {
        return Err(Failure::usage(format!("{name:?} cannot be the name of an image"))
            .next("give it a shorter one, for example --name app:1.2"));
    }
    Ok(Path::new("names").join(file))
}

/// What the file of a name says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// 1.
    pub version: u32,
    /// The image's name.
    pub name: String,
    /// The image's manifest.
    pub manifest: Descriptor,
    /// What it runs on.
    pub platform: Platform,
    /// What it was imported from.
    pub source: String,
}

/// What an import of an image has to do.
#[derive(Debug)]
pub struct Plan {
    /// The layers to send.
    pub layers: Vec<Layer>,
    /// The files to send.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// The temporary folder.
    pub below: PathBuf,
    /// How many different layers the image has.
    pub of_layers: usize,
    /// Whether the name was there already and meant the same image.
    pub named: bool,
}

/// Compares an image with what is there, and removes what a killed import left. The folder must be locked.
///
/// # Errors
/// The name means another image and `overwrite` is false, or the folder cannot be read.
pub fn plan(place: &dyn Place, image: &Image, named: &Named, overwrite: bool) -> Result<Plan> {
    let file = name(&named.name)?;
    let was = place.read(&file, MANIFEST_MAX)?;
    let was = was.map(|bytes| parse::<Named>(&bytes, &format!("{}", file.display())));
    // One that cannot be understood is replaced.
    let was = if overwrite { was.and_then(Result::ok) } else { was.transpose()? };
    let same = was.as_ref().is_some_and(|was| was.manifest.digest == named.manifest.digest);
    if was.is_some() && !same && !overwrite {
        return Err(Failure::new("exists", format!("{} is there already, and is another image", named.name))
            .next("replace it with --overwrite, or give this one another name with --name"));
    }
    for left in place.list(Path::new(""))?.iter().filter(|name| name.starts_with(NEW)) {
        place.remove(Path::new(left))?;
    }
    let mut there = HashSet::new();
    for layer_ in &image.layers {
        if place.is_there(&layer(&layer_.chain))? {
            there.insert(layer_.chain);
        }
    }
    let layers = missing(&image.layers, &there);
    let of_layers = missing(&image.layers, &HashSet::new()).len();
    let mut files = Vec::new();
    for (digest, bytes) in &image.kept {
        // One that is damaged is sent again.
        let there = place.read(&blob(digest), bytes.len() as u64);
        if !matches!(there, Ok(Some(there)) if there == *bytes) {
            files.push((blob(digest), bytes.clone()));
        }
    }
    if !same {
        let text = serde_json::to_vec_pretty(named)
            .map_err(|error| Failure::new("io", "cannot write the name").why(error.to_string()))?;
        files.push((file, text));
    }
    let below = PathBuf::from(format!("{NEW}{:016x}", base::random::u64()));
    Ok(Plan { layers, files, below, of_layers, named: same })
}

impl Plan {
    /// Where a layer is before it has its name, or where it was already.
    fn at(&self, chain: &Digest) -> PathBuf {
        let is_new = self.layers.iter().any(|sent| sent.chain == *chain);
        if is_new { self.below.join(layer(chain)) } else { layer(chain) }
    }

    /// Gives folders that a layer leaves out the owner, mode and times that the layers below it give them.
    fn complete(&self, place: &dyn Place, image: &Image, implied: &[(Digest, Vec<PathBuf>)]) -> Result<()> {
        for (chain, paths) in implied {
            let lower = image.layers.iter().take_while(|other| other.chain != *chain);
            let mut lower: Vec<PathBuf> = lower.map(|other| self.at(&other.chain)).collect();
            lower.reverse();
            implied::complete(place, &self.at(chain), &lower, paths)?;
        }
        Ok(())
    }

    /// Completes folders that layers leave out (`implied`), and gives everything its name.
    ///
    /// # Errors
    /// Something cannot be renamed. What has its name by then is whole.
    pub fn commit(&self, place: &dyn Place, image: &Image, implied: &[(Digest, Vec<PathBuf>)]) -> Result<()> {
        self.complete(place, image, implied)?;
        for folder in ["layers", "blobs", "blobs/sha256", "names"] {
            place.make_folder(Path::new(folder))?;
        }
        for path in self.layers.iter().map(|sent| layer(&sent.chain)) {
            place.rename(&self.below.join(&path), &path)?;
        }
        for (path, _) in &self.files {
            place.rename(&self.below.join(path), path)?;
        }
        place.remove(&self.below)?;
        place.sync()
    }
}

/// An image of the folder, with everything that a mount needs.
#[derive(Clone, Debug)]
pub struct Found {
    /// What the file of the image's name says.
    pub named: Named,
    /// The config, byte for byte.
    pub config: Vec<u8>,
    /// The manifest.
    pub manifest: Manifest,
    /// When it was made, as the config says.
    pub created: Option<String>,
    /// The folders of its layers ([`layer`]), the lowest first.
    pub layers: Vec<Digest>,
}

/// Finds an image by its name, `name` without `:latest`, or the digest of its manifest.
///
/// # Errors
/// There is none, or something of it is damaged.
pub fn find(place: &dyn Place, wanted: &str) -> Result<Found> {
    for candidate in [wanted.to_owned(), format!("{wanted}:latest")] {
        if let Some(bytes) = place.read(&name(&candidate)?, MANIFEST_MAX)? {
            return complete(place, parse(&bytes, &format!("the file of the name {candidate}"))?);
        }
    }
    if let Some(digest) = Digest::parse(wanted)
        && let Some(named) = names(place)?.into_iter().find(|named| named.manifest.digest == digest)
    {
        return complete(place, named);
    }
    let names: Vec<String> = names(place)?.into_iter().map(|named| named.name).collect();
    let failure = Failure::new("not-found", format!("there is no image {wanted}"));
    Err(match names.len() {
        0 => failure
            .why("no image was imported here")
            .next("name the folder that images were imported into: --volume /mnt/covey/images"),
        _ => failure.why(format!("there are: {}", names.join(", "))),
    })
}

/// All names, in order.
///
/// # Errors
/// They cannot be read.
pub fn names(place: &dyn Place) -> Result<Vec<Named>> {
    let mut names = Vec::new();
    for file in place.list(Path::new("names"))?.iter().filter(|name| name.ends_with(".json")) {
        let path = Path::new("names").join(file);
        if let Some(bytes) = place.read(&path, MANIFEST_MAX)? {
            let named: Named = parse(&bytes, &format!("names/{file}"))?;
            if named.version != VERSION {
                return Err(Failure::new(
                    "unsupported",
                    format!("names/{file} has version {}", named.version),
                )
                .why(format!("this program knows version {VERSION}")));
            }
            names.push(named);
        }
    }
    names.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(names)
}

/// Reads what a name leads to.
///
/// # Errors
/// Something of it is not there or damaged.
pub fn complete(place: &dyn Place, named: Named) -> Result<Found> {
    let read = |what: &str, digest: &Digest, most| {
        let bytes = place.read(&blob(digest), most)?;
        let bytes = bytes.filter(|bytes| Digest::of(bytes) == *digest).ok_or_else(|| {
            Failure::new("damaged", format!("{what} of {} is not there, or is damaged", named.name))
                .why(format!("it should be at {}", blob(digest).display()))
                .next("import the image again with --overwrite")
        })?;
        Ok::<_, Failure>(bytes)
    };
    let manifest: Manifest =
        parse(&read("the manifest", &named.manifest.digest, MANIFEST_MAX)?, "the manifest")?;
    let config = read("the config", &manifest.config.digest, CONFIG_MAX)?;
    let Config { created, rootfs, .. } = parse(&config, "the config")?;
    let mut below = None;
    let layers = rootfs.diff_ids.iter().map(|diff_id| {
        let chain = chain_id(below.as_ref(), diff_id);
        below = Some(chain);
        // An earlier build has named it.
        let is_old = !place.is_there(&layer(&chain))? && place.is_there(&layer(diff_id))?;
        Ok(if is_old { *diff_id } else { chain })
    });
    let layers = layers.collect::<Result<_>>()?;
    Ok(Found { named, config, manifest, created, layers })
}

impl Named {
    /// The file of a name.
    pub fn new(name: String, image: &Image, source: String) -> Named {
        Named {
            version: VERSION,
            name,
            manifest: image.manifest.clone(),
            platform: image.platform.clone(),
            source,
        }
    }
}
