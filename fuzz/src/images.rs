//! Targets of container images: the documents and layers that a registry sends, the words of its answers, and
//! what orchestrators send (containerd's filters, ids of CSI volumes).

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::{Component, Path};

use api::answers::Skipped;
use api::error::{Failure, Result};
use archive::import::bounds::Bounds;
use archive::import::{Item, Kind, Sink};
use archive::transfer::{self, Watch};
use archive::write::Writer;
use base::Must;
use csi::names::{self, Id};
use oci::digest::Digest;
use oci::layer::OPAQUE;
use oci::manifest::{Descriptor, INDEXES, LAYERS_MAX, Layer, MANIFESTS, Platform, choose};
use oci::registry::auth::{self, Challenge};
use oci::registry::reference::Reference;
use oci::transfer::{Implied, Send};
use oci::{Blobs, Bytes};
use snapshotter::filter::Filter;
use snapshotter::record::{Kind as Snapshot, REFERENCE, Record, Used, VERSION};

/// Where a target's layer is sent.
const BELOW: &str = "new";

/// Blobs in memory.
#[derive(Default)]
struct Memory(BTreeMap<Digest, Vec<u8>>);

impl Blobs for Memory {
    fn open(&self, blob: &Descriptor) -> Result<Bytes> {
        let bytes = self.0.get(&blob.digest).ok_or_else(|| Failure::new("missing", "no such blob"))?;
        Ok(Box::new(Cursor::new(bytes.clone())))
    }
}

/// Documents between NUL bytes. `"@N"` in one of them stands for the descriptor of the document N, which
/// comes later: a fuzzer cannot find digests that match. The first one is what the image's name leads to.
pub fn image(data: &[u8]) {
    let parts: Vec<&[u8]> = data.split(|&byte| byte == 0).take(6).collect();
    let mut blobs = Memory::default();
    let mut known: Vec<(String, Descriptor)> = Vec::new();
    for (number, part) in parts.iter().enumerate().rev() {
        let Ok(mut text) = String::from_utf8(part.to_vec()) else { return };
        for (name, blob) in &known {
            let blob = format!("{{\"digest\":\"{}\",\"size\":{}}}", blob.digest, blob.size);
            text = text.replace(name, &blob);
        }
        let blob = Descriptor::of("", text.as_bytes());
        blobs.0.insert(blob.digest, text.into_bytes());
        known.push((format!("\"@{number}\""), blob));
    }
    let wanted = Platform::parse("linux/amd64").must("it is a platform");
    let Some((_, first)) = known.last() else { return };
    for media_type in ["", MANIFESTS[0], INDEXES[0]] {
        let first = Descriptor { media_type: media_type.to_owned(), ..first.clone() };
        if let Ok(image) = choose(&blobs, &first, &wanted) {
            assert!((1..=LAYERS_MAX).contains(&image.layers.len()) && image.platform.fits(&wanted));
            assert!(image.kept.iter().all(|(digest, bytes)| Digest::of(bytes) == *digest), "all is verified");
        }
    }
}

pub fn image_seeds() -> Vec<Vec<u8>> {
    let id = Digest::of(b"layer");
    let layer = format!(r#"{{"mediaType":"x","digest":"{id}","size":5}}"#);
    let manifest = |at: usize| format!(r#"{{"schemaVersion":2,"config":"@{at}","layers":[{layer}]}}"#);
    let config = format!(
        r#"{{"os":"linux","architecture":"amd64","created":"2024-01-01","rootfs":{{"diff_ids":["{id}"]}}}}"#
    );
    let index = r#"{"schemaVersion":2,"manifests":["@1"]}"#;
    [
        format!("{}\0{config}", manifest(1)),
        format!("{index}\0{}\0{config}", manifest(2)),
        r#"{"schemaVersion":1}"#.to_owned(),
    ]
    .map(String::into_bytes)
    .to_vec()
}

/// Checks what a layer becomes.
#[derive(Default)]
struct Checked {
    open: bool,
}

/// Whether a path is below the folder of new layers, without a step out of it.
fn is_below(path: &Path) -> bool {
    path.starts_with(BELOW) && path.components().all(|part| matches!(part, Component::Normal(_)))
}

impl Sink for Checked {
    fn item(&mut self, item: Item) -> Result<()> {
        assert!(is_below(&item.path), "{:?} leads out of the layer", item.path);
        if let Kind::HardLink(first) = &item.kind {
            assert!(is_below(first), "{first:?} leads out of the layer");
        }
        for (name, value) in &item.xattrs {
            let overlay = name.starts_with(b"trusted.overlay.");
            assert!(!overlay || name == OPAQUE && value == b"y", "overlayfs would obey the image");
        }
        self.open = matches!(item.kind, Kind::File { .. });
        Ok(())
    }

    fn piece(&mut self, _: u64, _: Vec<u8>) -> Result<()> {
        assert!(self.open, "bytes belong to a file");
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn left_out(&mut self) -> Vec<Skipped> {
        Vec::new()
    }
}

/// A layer's archive, plain or compressed.
pub fn layer(data: &[u8]) {
    let blob = Descriptor::of("", data);
    let (diff_id, chain) = (blob.digest, blob.digest);
    let layers = vec![Layer { diff_id, chain, blob: blob.clone() }];
    let blobs = Box::new(Memory([(blob.digest, data.to_vec())].into()));
    let (files, below) = (Vec::new(), BELOW.into());
    let (implied, bounds) = (Implied::default(), Bounds::new("the layer", 16 << 20, None, None));
    let source = Send { blobs, layers, files, below, implied, bounds };
    // A compressed layer fails at its end, because its archive has another digest.
    let _ =
        transfer::run(Box::new(source), &mut Checked::default(), Watch { stop: None, event: &mut |_| () });
}

pub fn layer_seeds() -> Vec<Vec<u8>> {
    let member = |kind: u8, path: &str, link: &str| archive::Entry {
        kind,
        path: path.as_bytes().to_vec(),
        link: link.as_bytes().to_vec(),
        ..archive::Entry::default()
    };
    let write = |entries: &[archive::Entry]| {
        let mut writer = Writer::new(Vec::new());
        for entry in entries {
            writer.begin(entry).must("a vector takes all");
            if entry.size > 0 {
                writer.data(b"bytes").must("a vector takes all");
            }
            writer.end().must("a vector takes all");
        }
        writer.finish().must("a vector takes all")
    };
    let file = archive::Entry { size: 5, data: vec![(0, 5)], ..member(b'0', "a/b", "") };
    let opaque = archive::Entry { xattrs: vec![(OPAQUE.to_vec(), b"y".to_vec())], ..member(b'5', "c/", "") };
    vec![
        write(&[member(b'5', "a/", ""), file.clone(), member(b'1', "a/c", "a/b"), member(b'2', "l", "a")]),
        write(&[member(b'0', "a/.wh.b", ""), member(b'0', "c/.wh..wh..opq", ""), file]),
        write(&[member(b'0', ".wh..wh.plnk", ""), member(b'0', "../x", "")]),
        write(&[opaque]),
    ]
}

/// References, platforms, digests, and the words of a registry's answers.
pub fn registry(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let debian = Reference::parse("docker.io/library/debian:12").must("it is a reference");
    if let Ok(reference) = Reference::parse(text) {
        let shown = reference.to_string();
        let again = Reference::parse(&shown).must("a reference is read as it is written");
        assert_eq!(again.to_string(), shown);
        assert!(!reference.repository.split('/').any(|part| matches!(part, "" | "." | "..")));
        assert!(reference.base().starts_with("https://") || reference.is_local(), "no bytes without TLS");
    }
    if let Some(digest) = Digest::parse(text) {
        assert_eq!(digest.to_string(), text);
    }
    if let Some(platform) = Platform::parse(text) {
        assert_eq!(Platform::parse(&platform.to_string()), Some(platform));
    }
    if let Some(Challenge::Bearer { realm, service }) = Challenge::parse(text)
        && let Ok(url) = auth::token_url(&realm, service.as_deref(), &debian)
    {
        assert_eq!(url.scheme(), "https", "a password is sent with TLS only");
    }
    if let Ok(token) = auth::token(data) {
        assert!(token.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "it is one line of a header");
    }
    assert!(auth::said(data).is_none_or(|text| text.len() <= 300));
}

pub fn registry_seeds() -> Vec<Vec<u8>> {
    let digest = Digest::of(b"x").to_string();
    [
        "localhost:5000/a/b:tag",
        &format!("registry.example/x/y@{digest}"),
        &digest,
        "linux/arm/v7",
        r#"Bearer realm="https://auth.example/token",service="registry",scope=x"#,
        "Basic realm=x",
        r#"{"token":"abc","access_token":"def"}"#,
        r#"{"errors":[{"code":"DENIED","message":"no"}]}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}

/// Filters of containerd, and ids of CSI volumes.
pub fn orchestrators(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(filter) = Filter::parse(text) {
        filter.matches(&snapshot(), "parent");
    }
    if let Some(id) = Id::parse(text) {
        assert_eq!(id.to_string(), text, "a volume has one id");
        let parts = match &id {
            Id::Shared { folder, name, .. } => vec![folder, name],
            Id::Tree { name } => vec![name],
            Id::Exclusive { name, node } => vec![name, node],
        };
        assert!(parts.iter().all(|part| is_component(part)));
        assert!(id.is_long() || names::check_id(text).is_ok());
    }
    assert!(is_component(&names::part_of(text)), "every name becomes one component");
}

fn is_component(text: &str) -> bool {
    matches!(Path::new(text).components().collect::<Vec<_>>()[..], [Component::Normal(part)] if part == text)
}

fn snapshot() -> Record {
    Record {
        version: VERSION,
        id: 1,
        name: "k8s.io/3/sha256:ab".to_owned(),
        parent: None,
        kind: Snapshot::Committed,
        chain: None,
        layer: None,
        created_ns: 0,
        updated_ns: 0,
        labels: [(REFERENCE.to_owned(), "sha256:ab".to_owned())].into(),
        used: Used::default(),
    }
}

pub fn orchestrators_seeds() -> Vec<Vec<u8>> {
    [
        r#"labels."containerd.io/snapshot.ref"==sha256:ab,parent=="k8s.io/2/sha256:cd""#,
        "kind!=active,name",
        "labels.`containerd.io/gc.root`==\"x, \\u0022y\\x22\"",
        "shared:csi/pvc-1@postgres://covey@db/covey?volume=work",
        "shared:csi/pvc-1@etcd://a:2379,b:2379/covey?volume=work",
        "tree:data",
        "exclusive:pvc-1@node-1",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec()
}
