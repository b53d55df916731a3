//! Manifests, indexes and configs, as the OCI image format and Docker write them, and the choice of a
//! platform.
//!
//! ```text
//!   index ─► manifest, one for each platform ─► config: diff ids, what a container runs
//!                                            └► layers: archives, plain or compressed
//! ```
//!
//! A layer has two digests: that of its blob, and that of its archive without compression (the diff id). Only
//! what is used is parsed. The bytes are kept as they are, because their digest is their name.

use std::collections::BTreeMap;
use std::fmt;

use api::error::{Failure, Result};
use serde::{Deserialize, Serialize};

use crate::Blobs;
use crate::digest::{Digest, whole};

/// The largest manifest or index, in bytes. Registries have the same bound.
pub const MANIFEST_MAX: u64 = 4 << 20;
/// The largest config, in bytes.
const CONFIG_MAX: u64 = 16 << 20;
/// An index may name indexes, but not for ever.
const DEPTH_MAX: usize = 4;
/// The most layers. overlayfs stacks at most 500.
pub const LAYERS_MAX: usize = 500;

/// Media types of manifests.
pub const MANIFESTS: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
/// Media types of indexes.
pub const INDEXES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];

/// The annotation that gives an image of a layout its tag.
pub const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The annotation with an image's whole name, as containerd and BuildKit write it.
pub const WHOLE_NAME: &str = "io.containerd.image.name";

/// A blob: what it is, its digest and its size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// The blob's media type.
    #[serde(default)]
    pub media_type: String,
    /// The blob's digest.
    pub digest: Digest,
    /// The blob's size in bytes.
    pub size: u64,
    /// Of a manifest in an index: what it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// Remarks, for example its name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    /// A descriptor without remarks.
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Descriptor {
        let media_type = media_type.to_owned();
        Descriptor { media_type, digest, size, platform: None, annotations: BTreeMap::new() }
    }

    /// The descriptor of these bytes.
    pub fn of(media_type: &str, bytes: &[u8]) -> Descriptor {
        Descriptor::new(media_type, Digest::of(bytes), bytes.len() as u64)
    }
}

/// What an image runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// The operating system, `linux`.
    #[serde(default)]
    pub os: String,
    /// The architecture, as Go calls it: `amd64`, `arm64`, ...
    #[serde(default)]
    pub architecture: String,
    /// The variant of the architecture, for example `v7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// Returns the platform of this machine.
    pub fn here() -> Platform {
        let (architecture, variant) = match std::env::consts::ARCH {
            "x86_64" => ("amd64", None),
            "x86" => ("386", None),
            "aarch64" => ("arm64", None),
            "arm" => ("arm", Some("v7")),
            "powerpc64" => ("ppc64le", None),
            other => (other, None),
        };
        Platform {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.map(str::to_owned),
        }
    }

    /// Parses `OS/ARCHITECTURE` or `OS/ARCHITECTURE/VARIANT`. None for anything else.
    pub fn parse(text: &str) -> Option<Platform> {
        let mut parts = text.split('/').map(str::to_owned);
        let (os, architecture, variant) = (parts.next()?, parts.next()?, parts.next());
        let whole = parts.next().is_none() && ![&os, &architecture].iter().any(|part| part.is_empty());
        whole.then_some(Platform { os, architecture, variant })
    }

    /// Whether an image for `self` may be used where `wanted` is wanted. A variant counts if both name one.
    pub fn fits(&self, wanted: &Platform) -> bool {
        let variant = match (&self.variant, &wanted.variant) {
            (Some(mine), Some(theirs)) => mine == theirs,
            _ => true,
        };
        self.os == wanted.os && self.architecture == wanted.architecture && variant
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// An index.
#[derive(Clone, Debug, Deserialize)]
pub struct Index {
    /// The manifests that the index lists.
    pub manifests: Vec<Descriptor>,
}

/// A manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// 2.
    pub schema_version: u32,
    /// The manifest's own media type. Some programs leave it out.
    #[serde(default)]
    pub media_type: String,
    /// The config.
    pub config: Descriptor,
    /// The layers, the lowest first.
    pub layers: Vec<Descriptor>,
}

/// What is used of a config.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// What it runs on.
    #[serde(flatten)]
    pub platform: Platform,
    /// When it was made, as RFC 3339.
    #[serde(default)]
    pub created: Option<String>,
    /// The image's layers.
    pub rootfs: RootFs,
}

/// The layers by their content.
#[derive(Clone, Debug, Deserialize)]
pub struct RootFs {
    /// Digests of the layers' archives without compression, the lowest first.
    pub diff_ids: Vec<Digest>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The layer's blob.
    pub blob: Descriptor,
    /// The digest of its archive without compression.
    pub diff_id: Digest,
    /// What it is together with the layers below it.
    pub chain: Digest,
}

/// The chain id of a layer above a chain id, or above nothing: `CHAIN-ID DIFF-ID`, hashed.
pub fn chain_id(below: Option<&Digest>, diff_id: &Digest) -> Digest {
    match below {
        Some(below) => Digest::of(format!("{below} {diff_id}").as_bytes()),
        None => *diff_id,
    }
}

/// The layers of an image, the lowest first: their blobs and diff ids.
pub(crate) fn layers(all: impl IntoIterator<Item = (Descriptor, Digest)>) -> Vec<Layer> {
    let mut below = None;
    let layer = |(blob, diff_id)| {
        let chain = chain_id(below.as_ref(), &diff_id);
        below = Some(chain);
        Layer { blob, diff_id, chain }
    };
    all.into_iter().map(layer).collect()
}

/// An image that was chosen: everything but the bytes of its layers.
#[derive(Clone, Debug)]
pub struct Image {
    /// The descriptor of its manifest.
    pub manifest: Descriptor,
    /// The manifest, the config, and the indexes that led to it, byte for byte.
    pub kept: Vec<(Digest, Vec<u8>)>,
    /// What it runs on.
    pub platform: Platform,
    /// The image's layers, the lowest first.
    pub layers: Vec<Layer>,
}

/// Parses JSON of an image.
///
/// # Errors
/// It is not what it should be.
pub fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| {
        Failure::new("damaged", format!("{what} cannot be understood"))
            .why(error.to_string())
            .next("get the image again, or from a program that writes OCI or Docker images of schema 2")
    })
}

/// Follows a descriptor to the image for a platform. Every blob on the way is verified.
///
/// # Errors
/// There is no image for the platform, it is none at all, or something of it is damaged.
pub fn choose(blobs: &dyn Blobs, from: &Descriptor, wanted: &Platform) -> Result<Image> {
    let mut kept = Vec::new();
    let mut at = from.clone();
    for _ in 0..DEPTH_MAX {
        let bytes = whole(blobs.open_manifest(&at)?, &at, MANIFEST_MAX, "the manifest")?;
        kept.push((at.digest, bytes.clone()));
        if !is_index(&at, &bytes)? {
            return with_config(blobs, at, &bytes, kept, wanted);
        }
        let index: Index = parse(&bytes, &format!("the index {}", at.digest))?;
        at = of_platform(&index, wanted)?.clone();
    }
    Err(Failure::new("damaged", "the image's indexes name one another too often").next("get the image again"))
}

/// Whether it is an index and no manifest. Some programs give no media type.
fn is_index(blob: &Descriptor, bytes: &[u8]) -> Result<bool> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        #[serde(default)]
        schema_version: u32,
        #[serde(default)]
        media_type: String,
        #[serde(default)]
        manifests: Option<serde_json::Value>,
    }
    let head: Head = parse(bytes, &format!("the manifest {}", blob.digest))?;
    if head.schema_version == 1 {
        return Err(Failure::new("unsupported", "the image has a manifest of schema 1")
            .why("that form has no digests of its config and of its layers' contents")
            .next("push the image again with a program of today"));
    }
    let media_type = if blob.media_type.is_empty() { &head.media_type } else { &blob.media_type };
    Ok(match media_type.as_str() {
        media_type if MANIFESTS.contains(&media_type) => false,
        media_type if INDEXES.contains(&media_type) => true,
        _ => head.manifests.is_some(),
    })
}

fn of_platform<'a>(index: &'a Index, wanted: &Platform) -> Result<&'a Descriptor> {
    let known = |blob: &&Descriptor| blob.platform.as_ref().is_some_and(|platform| platform.fits(wanted));
    // What is asked for, then the one without a variant, which runs everywhere, then the lowest: amd64/v3
    // needs a newer processor.
    let rank = |blob: &&Descriptor| {
        let variant = blob.platform.as_ref().and_then(|platform| platform.variant.clone());
        (variant != wanted.variant, variant)
    };
    if let Some(found) = index.manifests.iter().filter(known).min_by_key(rank) {
        return Ok(found);
    }
    if let [only] = &index.manifests[..]
        && only.platform.is_none()
    {
        return Ok(only);
    }
    let there: Vec<String> = index
        .manifests
        .iter()
        .filter_map(|blob| blob.platform.as_ref())
        .filter(|platform| platform.os != "unknown")
        .map(Platform::to_string)
        .collect();
    let there =
        if there.is_empty() { "none that say what they are for".to_owned() } else { there.join(", ") };
    Err(other_platform(wanted).why(format!("it has manifests for: {there}")))
}

fn other_platform(wanted: &Platform) -> Failure {
    Failure::new("other-platform", format!("the image is not for {wanted}"))
        .next("choose one with --platform OS/ARCHITECTURE, for example --platform linux/arm64")
}

fn with_config(
    blobs: &dyn Blobs,
    manifest: Descriptor,
    bytes: &[u8],
    mut kept: Vec<(Digest, Vec<u8>)>,
    wanted: &Platform,
) -> Result<Image> {
    let Manifest { config, layers, .. } = parse(bytes, &format!("the manifest {}", manifest.digest))?;
    let what = format!("the config {}", config.digest);
    let config_bytes = whole(blobs.open(&config)?, &config, CONFIG_MAX, "the config")?;
    let Config { platform, rootfs, .. } = parse(&config_bytes, &what).map_err(|failure| {
        failure.why(format!("its media type is {:?}; only container images have layers", config.media_type))
    })?;
    kept.push((config.digest, config_bytes));
    if !platform.fits(wanted) {
        return Err(other_platform(wanted).why(format!("it is for {platform}")));
    }
    let (blobs_of, ids) = (layers.len(), rootfs.diff_ids.len());
    if blobs_of != ids {
        return Err(Failure::new("damaged", format!("{what} names {ids} layers, the manifest {blobs_of}"))
            .next("get the image again"));
    }
    if ids == 0 || ids > LAYERS_MAX {
        return Err(Failure::new("unsupported", format!("the image has {ids} layers"))
            .why(format!("one that can be mounted has 1 to {LAYERS_MAX}")));
    }
    Ok(Image { manifest, kept, platform, layers: self::layers(layers.into_iter().zip(rootfs.diff_ids)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bytes;
    use serde_json::json;

    /// Blobs in memory.
    #[derive(Default)]
    struct Memory(BTreeMap<Digest, Vec<u8>>);

    impl Memory {
        fn put(&mut self, media_type: &str, value: &serde_json::Value) -> Descriptor {
            let bytes = value.to_string().into_bytes();
            let blob = Descriptor::of(media_type, &bytes);
            self.0.insert(blob.digest, bytes);
            blob
        }

        fn image(&mut self, architecture: &str, layers: usize, ids: usize) -> Descriptor {
            let blob = |n: usize| Descriptor::of("layer", &[n as u8]);
            let ids: Vec<_> = (0..ids).map(|n| blob(n).digest).collect();
            let config =
                json!({ "os": "linux", "architecture": architecture, "rootfs": { "diff_ids": ids } });
            let config = self.put("config", &config);
            let layers: Vec<_> = (0..layers).map(blob).collect();
            let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers });
            let mut made = self.put(MANIFESTS[0], &manifest);
            made.platform = Platform::parse(&format!("linux/{architecture}"));
            made
        }
    }

    impl Blobs for Memory {
        fn open(&self, blob: &Descriptor) -> Result<Bytes> {
            Ok(Box::new(std::io::Cursor::new(self.0[&blob.digest].clone())))
        }
    }

    fn amd64() -> Platform {
        Platform::parse("linux/amd64").unwrap()
    }

    #[test]
    fn an_index_leads_to_the_image_of_the_platform() {
        let mut blobs = Memory::default();
        let (one, two) = (blobs.image("arm64", 1, 1), blobs.image("amd64", 2, 2));
        let index = blobs.put(INDEXES[1], &json!({ "schemaVersion": 2, "manifests": [one, two] }));
        // The outer index says of the inner one what it is for, and gives no media type.
        let outer = blobs.put(
            "",
            &json!({ "schemaVersion": 2, "manifests": [
            { "mediaType": index.media_type, "digest": index.digest, "size": index.size }] }),
        );
        let image = choose(&blobs, &outer, &amd64()).unwrap();
        assert_eq!((image.manifest.digest, image.layers.len(), image.kept.len()), (two.digest, 2, 4));
        let image = choose(&blobs, &outer, &Platform::parse("linux/arm64/v8").unwrap()).unwrap();
        assert_eq!(image.manifest.digest, one.digest);
        let refused = choose(&blobs, &outer, &Platform::parse("linux/s390x").unwrap()).unwrap_err();
        assert_eq!(refused.code, "other-platform");
        assert!(refused.why[0].contains("linux/arm64, linux/amd64"), "{refused}");
    }

    /// The first one was taken, also if it needs a newer processor.
    #[test]
    fn regression_the_image_that_runs_everywhere_is_preferred() {
        let image = |platform: &str, n: u8| {
            let mut blob = Descriptor::of(MANIFESTS[0], &[n]);
            blob.platform = Platform::parse(platform);
            blob
        };
        let chosen = |platforms: [&str; 3], wanted: &str| {
            let manifests: Vec<_> = (0..).zip(platforms).map(|(n, platform)| image(platform, n)).collect();
            let index: Index =
                parse(json!({ "schemaVersion": 2, "manifests": manifests }).to_string().as_bytes(), "it")
                    .unwrap();
            of_platform(&index, &Platform::parse(wanted).unwrap())
                .unwrap()
                .platform
                .clone()
                .unwrap()
                .to_string()
        };
        let of_amd64 = ["linux/amd64/v3", "linux/amd64", "linux/amd64/v2"];
        assert_eq!(chosen(of_amd64, "linux/amd64"), "linux/amd64");
        assert_eq!(chosen(of_amd64, "linux/amd64/v3"), "linux/amd64/v3");
        assert_eq!(chosen(["linux/arm/v7", "linux/arm/v6", "linux/arm64"], "linux/arm"), "linux/arm/v6");
    }

    #[test]
    fn an_image_that_makes_no_sense_is_refused() {
        let mut blobs = Memory::default();
        let code = |blobs: &Memory, blob: &Descriptor| choose(blobs, blob, &amd64()).unwrap_err().code;
        let other = blobs.image("riscv64", 1, 1);
        assert_eq!(code(&blobs, &other), "other-platform");
        for (layers, ids, why) in [(2, 1, "damaged"), (0, 0, "unsupported"), (501, 501, "unsupported")] {
            let image = blobs.image("amd64", layers, ids);
            assert_eq!(code(&blobs, &image), why, "{layers} {ids}");
        }
        let old = blobs.put("", &json!({ "schemaVersion": 1 }));
        assert_eq!(code(&blobs, &old), "unsupported");
        let artifact = blobs.put("application/vnd.cncf.helm.config.v1+json", &json!({ "name": "chart" }));
        let chart = json!({ "schemaVersion": 2, "config": artifact, "layers": [] });
        let chart = blobs.put(MANIFESTS[0], &chart);
        assert_eq!(code(&blobs, &chart), "damaged");
        let mut wrong = blobs.image("amd64", 1, 1);
        wrong.size += 1;
        assert_eq!(code(&blobs, &wrong), "damaged");
    }

    #[test]
    fn platforms_are_read_and_compared() {
        let fits = |image: &str, wanted: &str| {
            Platform::parse(image).unwrap().fits(&Platform::parse(wanted).unwrap())
        };
        assert!(fits("linux/arm/v7", "linux/arm") && fits("linux/arm", "linux/arm/v7"));
        assert!(!fits("linux/arm/v6", "linux/arm/v7") && !fits("windows/amd64", "linux/amd64"));
        assert!(["linux", "/amd64", "a/b/c/d", ""].iter().all(|text| Platform::parse(text).is_none()));
    }
}
