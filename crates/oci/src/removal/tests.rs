//! Removals of a folder on this machine, also with a place that fails at each step.

use std::cell::Cell;
use std::fs;

use serde_json::json;

use super::*;
use crate::claim::Claimed;
use crate::manifest::{Descriptor, MANIFESTS, Platform};
use crate::place::{OnMount, Walk};

/// A folder of images.
struct Images(tempfile::TempDir);

impl Images {
    fn new() -> Images {
        let images = Images(tempfile::tempdir().unwrap());
        for folder in ["names", "layers", "blobs/sha256"] {
            fs::create_dir_all(images.0.path().join(folder)).unwrap();
        }
        images
    }

    fn place(&self) -> OnMount {
        OnMount::new(self.0.path())
    }

    fn blob(&self, bytes: &[u8]) -> Descriptor {
        let blob = Descriptor::of(MANIFESTS[0], bytes);
        fs::write(self.0.path().join(folder::blob(&blob.digest)), bytes).unwrap();
        blob
    }

    /// Adds an image of layers. Returns its manifest.
    fn image(&self, name: &str, layers: &[&str]) -> Descriptor {
        let ids: Vec<Digest> = layers.iter().map(|layer| Digest::of(layer.as_bytes())).collect();
        for id in &ids {
            fs::create_dir_all(self.0.path().join(folder::layer(id)).join("etc")).unwrap();
        }
        let config = json!({ "os": "linux", "architecture": "amd64", "rootfs": { "diff_ids": ids } });
        let config = self.blob(config.to_string().as_bytes());
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [] });
        let manifest = self.blob(manifest.to_string().as_bytes());
        let named = Named {
            version: 1,
            name: name.to_owned(),
            manifest: manifest.clone(),
            platform: Platform::here(),
            source: "test".to_owned(),
        };
        let text = serde_json::to_vec(&named).unwrap();
        fs::write(self.0.path().join(folder::name(name).unwrap()), text).unwrap();
        manifest
    }

    fn count(&self, folder: &str) -> usize {
        fs::read_dir(self.0.path().join(folder)).unwrap().count()
    }

    /// Each name leads to what is there, with all its layers.
    fn must_be_whole(&self) {
        for named in names(&self.place()).unwrap() {
            let name = named.name.clone();
            for layer in complete(&self.place(), named).unwrap().layers {
                assert!(self.0.path().join(folder::layer(&layer)).join("etc").is_dir(), "{name} {layer}");
            }
        }
    }
}

#[test]
fn only_what_no_other_image_uses_is_removed() {
    let images = Images::new();
    images.image("app:1", &["base", "one"]);
    let two = images.image("app:latest", &["base", "two"]);
    images.image("same", &["base", "two"]);
    // An index that leads to an image that stays, one that does not, and what is not of this program.
    let stays = images.blob(json!({ "manifests": [two] }).to_string().as_bytes());
    images.blob(json!({ "manifests": [] }).to_string().as_bytes());
    fs::create_dir(images.0.path().join("layers/other")).unwrap();
    let removal = plan(&images.place(), "app:1").unwrap();
    assert_eq!(
        (&removal.names[..], &removal.layers[..]),
        (&["app:1".to_owned()][..], &[Digest::of(b"one")][..])
    );
    assert_eq!(removal.blobs.len(), 3, "manifest, config and the other index");
    assert!(!removal.blobs.contains(&stays.digest));
    removal.run(&images.place()).unwrap();
    images.must_be_whole();
    assert_eq!((images.count("names"), images.count("layers"), images.count("blobs/sha256")), (2, 3, 3));
    // One of two names of an image: its layers stay.
    let removal = plan(&images.place(), "app").unwrap();
    assert_eq!((&removal.names[..], removal.layers.len()), (&["app:latest".to_owned()][..], 0));
    removal.run(&images.place()).unwrap();
    let missing = plan(&images.place(), "app:1").unwrap_err();
    assert!(missing.code == "not-found" && missing.why[0].contains("there are: same"), "{missing}");
    // By its digest: all its names.
    images.image("again", &["base", "two"]);
    let removal = plan(&images.place(), &two.digest.to_string()).unwrap();
    assert_eq!((removal.names.len(), removal.layers.len(), removal.blobs.len()), (2, 2, 3));
    removal.run(&images.place()).unwrap();
    assert_eq!((images.count("names"), images.count("layers"), images.count("blobs/sha256")), (0, 1, 0));
    assert!(
        !fs::read_dir(images.0.path())
            .unwrap()
            .any(|entry| { entry.unwrap().file_name().to_str().unwrap().starts_with(NEW) })
    );
}

/// Which layers a damaged image uses is not known, so none is removed. The damaged image itself can be.
#[test]
fn a_damaged_image_keeps_its_layers() {
    let images = Images::new();
    images.image("app:1", &["base", "one"]);
    let two = images.image("app:2", &["two"]);
    fs::write(images.0.path().join(folder::blob(&two.digest)), "x").unwrap();
    let refused = plan(&images.place(), "app:1").unwrap_err();
    assert_eq!(refused.code, "damaged");
    assert!(refused.to_string().contains("app:2"), "{refused}");
    plan(&images.place(), "app:2").unwrap().run(&images.place()).unwrap();
    images.must_be_whole();
    assert_eq!((images.count("names"), images.count("layers")), (1, 2));
}

/// A place whose changes fail from some point on, as after a kill.
struct Failing {
    place: OnMount,
    left: Cell<usize>,
}

impl Failing {
    fn step(&self) -> Result<()> {
        match self.left.get().checked_sub(1) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(Failure::new("io", "killed")),
        }
    }
}

impl Place for Failing {
    fn read(&self, path: &Path, most: u64) -> Result<Option<Vec<u8>>> {
        self.place.read(path, most)
    }
    fn list(&self, path: &Path) -> Result<Vec<String>> {
        self.place.list(path)
    }
    fn is_there(&self, path: &Path) -> Result<bool> {
        self.place.is_there(path)
    }
    fn make_folder(&self, path: &Path) -> Result<()> {
        self.step().and_then(|()| self.place.make_folder(path))
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.step().and_then(|()| self.place.rename(from, to))
    }
    fn remove(&self, path: &Path) -> Result<()> {
        // A folder that is half removed is the worst that a kill can leave.
        if let Err(failure) = self.step() {
            fs::remove_dir_all(self.place.path().join(path).join("etc")).ok();
            return Err(failure);
        }
        self.place.remove(path)
    }
    fn walk<'a>(&'a self, top: &Path) -> Result<Option<Box<dyn Walk + 'a>>> {
        self.place.walk(top)
    }
    fn claim(&self, path: &Path, text: &str) -> Result<bool> {
        self.place.claim(path, text)
    }
    fn claimed(&self, path: &Path) -> Result<Option<Claimed>> {
        self.place.claimed(path)
    }
    fn touch(&self, path: &Path, at: base::Timestamp) -> Result<()> {
        self.place.touch(path, at)
    }
    fn sync(&self) -> Result<()> {
        self.step()
    }
}

/// Interrupted at each step: what has a name is whole, and the same removal again removes the rest.
#[test]
fn an_interrupted_removal_leaves_whole_images() {
    let mut steps = 0;
    loop {
        let images = Images::new();
        images.image("app:1", &["base", "one", "more"]);
        images.image("app:2", &["base", "two"]);
        let failing = Failing { place: images.place(), left: Cell::new(steps) };
        let done = plan(&failing, "app:1").unwrap().run(&failing);
        images.must_be_whole();
        let layers = fs::read_dir(images.0.path().join("layers")).unwrap();
        for layer in layers {
            assert!(
                layer.unwrap().path().join("etc").is_dir(),
                "a layer has lost something after {steps} steps"
            );
        }
        if done.is_ok() {
            assert!(steps >= 9, "{steps} steps");
            return;
        }
        // Nothing may be left, if only the last sync failed.
        match plan(&images.place(), "app:1") {
            Ok(removal) => removal.run(&images.place()).unwrap(),
            Err(failure) => assert_eq!(failure.code, "not-found"),
        }
        images.must_be_whole();
        assert_eq!(
            (images.count("names"), images.count("layers"), images.count("blobs/sha256")),
            (1, 2, 2),
            "{steps}"
        );
        assert_eq!(images.count(""), 3, "{steps}");
        steps += 1;
    }
}
