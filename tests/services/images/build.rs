//! Images that a test makes itself, byte by byte: OCI layouts with layers of any members.

use std::path::{Path, PathBuf};

use archive::Entry;
use archive::write::Writer;
use oci::digest::Digest;
use serde_json::{Value, json};

/// A member of a layer: its type flag, its path, and the target of a link or the bytes of a file.
pub type Member<'a> = (u8, &'a str, &'a [u8]);

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The archive of a layer whose files belong to user 3 and group 4.
pub fn layer(members: &[Member<'_>]) -> Vec<u8> {
    layer_of(3, 4, members)
}

/// The archive of a layer.
pub fn layer_of(uid: u64, gid: u64, members: &[Member<'_>]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    for &(kind, path, bytes) in members {
        let is_file = kind == b'0';
        let size = if is_file { bytes.len() as u64 } else { 0 };
        let entry = Entry {
            kind,
            path: path.as_bytes().to_vec(),
            link: if is_file { Vec::new() } else { bytes.to_vec() },
            mode: 0o755,
            uid,
            gid,
            mtime: base::Timestamp::from_parts(1_600_000_000, 5),
            size,
            data: if size > 0 { vec![(0, size)] } else { Vec::new() },
            xattrs: if is_file { vec![(b"user.of".to_vec(), path.as_bytes().to_vec())] } else { Vec::new() },
            ..Entry::default()
        };
        writer.begin(&entry).unwrap();
        writer.data(&bytes[..size as usize]).unwrap();
        writer.end().unwrap();
    }
    writer.finish().unwrap()
}

/// Two layers with a shell, which print `hello from the image` from /etc/motd. The upper one hides /etc/gone.
pub fn busybox_layers() -> [Vec<u8>; 2] {
    let busybox = std::fs::read(covey_tests::need::which("busybox").unwrap()).unwrap();
    let dirs = ["bin", "dev", "etc", "proc", "sys", "tmp"];
    let mut below: Vec<_> = dirs.iter().map(|name| (b'5', *name, &b""[..])).collect();
    below.extend([
        (b'0', "bin/busybox", &busybox[..]),
        (b'2', "bin/sh", b"busybox"),
        (b'0', "etc/gone", b"1"),
    ]);
    let above = layer_of(0, 0, &[(b'0', "etc/motd", b"hello from the image\n"), (b'0', "etc/.wh.gone", b"")]);
    [layer_of(0, 0, &below), above]
}

/// A layout in a folder.
pub struct Layout(pub PathBuf);

impl Layout {
    pub fn new(folder: &Path) -> Layout {
        std::fs::create_dir_all(folder.join("blobs/sha256")).unwrap();
        std::fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        std::fs::write(folder.join("index.json"), r#"{"schemaVersion":2,"manifests":[]}"#).unwrap();
        Layout(folder.to_owned())
    }

    /// What covey import takes.
    pub fn source(&self, tag: &str) -> String {
        format!("oci:{}:{tag}", self.0.display())
    }

    pub fn blob_path(&self, digest: &str) -> PathBuf {
        self.0.join("blobs/sha256").join(digest.trim_start_matches("sha256:"))
    }

    /// Adds a blob and returns its descriptor.
    pub fn blob(&self, bytes: &[u8]) -> Value {
        let digest = Digest::of(bytes).to_string();
        std::fs::write(self.blob_path(&digest), bytes).unwrap();
        json!({ "mediaType": "application/octet-stream", "digest": digest, "size": bytes.len() })
    }

    /// Adds an image of layers, and gives it a tag. Returns its manifest's descriptor.
    pub fn image(&self, tag: &str, architecture: &str, layers: &[Vec<u8>]) -> Value {
        let ids: Vec<String> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
        let config = json!({ "os": "linux", "architecture": architecture, "config": { "Cmd": ["/bin/sh"] },
            "rootfs": { "type": "layers", "diff_ids": ids } });
        let typed = |kind: &str, bytes: &[u8]| {
            let mut blob = self.blob(bytes);
            blob["mediaType"] = format!("application/vnd.oci.image.{kind}").into();
            blob
        };
        let config = typed("config.v1+json", config.to_string().as_bytes());
        let layers: Vec<Value> = layers.iter().map(|layer| typed("layer.v1.tar", layer)).collect();
        let manifest =
            json!({ "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers });
        let mut manifest = self.blob(manifest.to_string().as_bytes());
        manifest["mediaType"] = MANIFEST.into();
        manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
        let path = self.0.join("index.json");
        let mut index: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        index["manifests"].as_array_mut().unwrap().push(manifest.clone());
        std::fs::write(path, index.to_string()).unwrap();
        manifest
    }
}

/// The architecture of this machine.
pub fn here() -> String {
    oci::manifest::Platform::here().architecture
}
