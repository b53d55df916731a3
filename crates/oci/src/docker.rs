//! The archives that `docker save` writes.
//!
//! ```text
//!   manifest.json           [{"Config": NAME, "RepoTags": [...], "Layers": [NAME, ...]}, ...]
//! ```
//!
//! The archive has no manifest in the sense of registries, so one is made here: it names the config and the
//! layers as they are in the archive. Layers may be compressed, as a registry had them; then their digests
//! are computed. Archives of newer releases hold an OCI layout too, which is not needed.

use std::collections::BTreeMap;
use std::io::Read;

use api::error::{Failure, Result};
use serde::Deserialize;

use crate::digest::{Checked, Digest};
use crate::manifest::{Config, Descriptor, MANIFEST_MAX, MANIFESTS, Manifest, parse};
use crate::members::Members;
use crate::{Blobs, Bytes};

const CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const LAYER: &str = "application/vnd.docker.image.rootfs.diff.tar";
/// The largest config, in bytes.
const CONFIG_MAX: u64 = 16 << 20;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// One image of an archive.
#[derive(Debug)]
pub struct Archive {
    members: Members,
    /// Small blobs that were made or read here.
    small: BTreeMap<Digest, Vec<u8>>,
    /// The members of the layers.
    layers: BTreeMap<Digest, String>,
}

impl Archive {
    /// Opens the image of a tag. Without a tag the archive must hold one image. Returns the descriptor of its
    /// manifest, and its name for people.
    ///
    /// # Errors
    /// The archive holds no such image, or is damaged.
    pub fn open(members: Members, shown: &str, tag: Option<&str>) -> Result<(Archive, Descriptor, String)> {
        if !members.has("manifest.json") {
            return Err(Failure::new("not-an-image", format!("{shown} is no archive of docker save"))
                .why("it has no manifest.json")
                .next("an archive of an OCI layout is named as oci-archive:FILE"));
        }
        let all: Vec<Saved> =
            parse(&members.read("manifest.json", MANIFEST_MAX)?, &format!("manifest.json of {shown}"))?;
        let (saved, name) = find(all, shown, tag)?;
        let bytes = members.read(&saved.config, CONFIG_MAX)?;
        let config: Config = parse(&bytes, &format!("the config of {shown}"))?;
        if config.rootfs.diff_ids.len() != saved.layers.len() {
            return Err(Failure::new("damaged", format!("manifest.json of {shown} contradicts its config"))
                .next("save the image again"));
        }
        let (mut layers, mut blobs) = (BTreeMap::new(), Vec::new());
        for (member, diff_id) in saved.layers.into_iter().zip(config.rootfs.diff_ids) {
            let size = members.size(&member).ok_or_else(|| {
                Failure::new("damaged", format!("{shown} lacks the layer {member}"))
                    .next("save the image again")
            })?;
            let (kind, digest) = match compression(&members, &member)? {
                None => (LAYER.to_owned(), diff_id),
                Some(by) => (format!("{LAYER}.{by}"), digest_of(&members, &member)?),
            };
            blobs.push(Descriptor::new(&kind, digest, size));
            layers.insert(digest, member);
        }
        let config = Descriptor::of(CONFIG, &bytes);
        let manifest = Manifest {
            schema_version: 2,
            media_type: MANIFESTS[1].to_owned(),
            config: config.clone(),
            layers: blobs,
        };
        let made = serde_json::to_vec(&manifest)
            .map_err(|error| Failure::new("io", "cannot write a manifest").why(error.to_string()))?;
        let manifest = Descriptor::of(MANIFESTS[1], &made);
        let small = BTreeMap::from([(config.digest, bytes), (manifest.digest, made)]);
        Ok((Archive { members, small, layers }, manifest, name))
    }
}

/// How a member is compressed.
fn compression(members: &Members, member: &str) -> Result<Option<&'static str>> {
    let mut first = Vec::new();
    let read = members.open(member)?.take(4).read_to_end(&mut first);
    read.map_err(|error| Failure::io(format!("cannot read {member}"), &error))?;
    Ok(match &first[..] {
        [0x1F, 0x8B, ..] => Some("gzip"),
        [0x28, 0xB5, 0x2F, 0xFD] => Some("zstd"),
        _ => None,
    })
}

fn digest_of(members: &Members, member: &str) -> Result<Digest> {
    let all = Checked::new(members.open(member)?, u64::MAX, None);
    let done = all.finish().map_err(|error| Failure::io(format!("cannot read {member}"), &error))?;
    Ok(done.0)
}

fn find(all: Vec<Saved>, shown: &str, tag: Option<&str>) -> Result<(Saved, String)> {
    let tags_of = |saved: &Saved| saved.repo_tags.clone().unwrap_or_default();
    // `name` and `name:latest` are one.
    let same = |have: &str, want: &str| have == want || have.strip_suffix(":latest") == Some(want);
    let tags = all.iter().flat_map(tags_of).collect::<Vec<_>>().join(", ");
    let there = if tags.is_empty() { "no tags".to_owned() } else { format!("the tags {tags}") };
    let count = all.len();
    let fits = |saved: &Saved| tag.is_none_or(|tag| tags_of(saved).iter().any(|have| same(have, tag)));
    let mut found: Vec<Saved> = all.into_iter().filter(fits).collect();
    match (found.pop(), found.is_empty(), tag) {
        (Some(saved), true, _) => {
            let own = tags_of(&saved).into_iter().find(|have| tag.is_none_or(|tag| same(have, tag)));
            let name = own.unwrap_or_else(|| format!("{}:latest", stem(shown)));
            Ok((saved, name))
        }
        (Some(_), false, _) => Err(Failure::usage(format!("{shown} has {count} images"))
            .why(format!("it has {there}"))
            .next(format!("name one: docker-archive:{shown}:TAG"))),
        (None, _, tag) => {
            let what = tag.unwrap_or("image");
            Err(Failure::new("not-found", format!("{shown} has no {what}")).why(format!("it has {there}")))
        }
    }
}

fn stem(shown: &str) -> String {
    let stem = std::path::Path::new(shown).file_stem();
    stem.map_or_else(|| "image".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

impl Blobs for Archive {
    fn open(&self, blob: &Descriptor) -> Result<Bytes> {
        match (self.small.get(&blob.digest), self.layers.get(&blob.digest)) {
            (Some(bytes), _) => Ok(Box::new(std::io::Cursor::new(bytes.clone()))),
            (None, Some(member)) => self.members.open(member),
            (None, None) => Err(Failure::new("damaged", format!("the archive has no blob {}", blob.digest))),
        }
    }
}
