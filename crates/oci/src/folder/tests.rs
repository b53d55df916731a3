//! Folders that a layer leaves out, on a folder of this machine. Opaque folders need root.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;

use archive::sys::metadata;

use super::*;
use crate::layer::OPAQUE;
use crate::place::{Look, OnMount, Walk, Way};

/// Makes layers, the lowest first, as a list of folders with modes. Completes `path` in the highest one, and
/// returns its mode.
fn completed(layers: &[&[(&str, u32, bool)]], path: &str) -> Option<u32> {
    let root = tempfile::tempdir().unwrap();
    let place = OnMount::new(root.path());
    let mut image = Image {
        manifest: Descriptor::of("", b"manifest"),
        kept: Vec::new(),
        platform: Platform::here(),
        layers: Vec::new(),
    };
    let below = PathBuf::from(".new-1");
    for (at, folders) in layers.iter().enumerate() {
        let blob = Descriptor::of("", &[at as u8]);
        let chain = chain_id(image.layers.last().map(|layer: &Layer| &layer.chain), &blob.digest);
        let top = root.path().join(&below).join(layer(&chain));
        for &(folder, mode, is_opaque) in *folders {
            let folder = top.join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            if is_opaque && metadata::set_xattr(&File::open(&folder).unwrap(), OPAQUE, b"y").is_err() {
                return None;
            }
        }
        image.layers.push(Layer { diff_id: blob.digest, blob, chain });
    }
    let highest = image.layers.last().unwrap().chain;
    let sent = image.layers.clone();
    let plan = Plan { of_layers: sent.len(), layers: sent, files: Vec::new(), below, named: false };
    plan.complete(&place, &image, &[(highest, vec![path.into()])]).unwrap();
    let about = fs::metadata(root.path().join(plan.at(&highest)).join(path)).unwrap();
    Some(about.permissions().mode() & 0o7777)
}

#[test]
fn a_folder_that_a_layer_leaves_out_is_that_of_the_layer_below() {
    let lowest: &[_] = &[("a", 0o750, false), ("a/b", 0o700, false)];
    let implied: &[_] = &[("a", 0o755, false), ("a/b", 0o755, false)];
    assert_eq!(completed(&[lowest, implied], "a/b"), Some(0o700));
    assert_eq!(completed(&[lowest, &[("a", 0o755, false)], implied], "a/b"), Some(0o700));
    assert_eq!(completed(&[lowest, &[("a/b", 0o711, false)], implied], "a/b"), Some(0o711));
}

/// The owner, mode and times came from a folder that no program sees.
#[test]
fn regression_what_an_opaque_folder_hides_gives_no_mode() {
    let lowest: &[_] = &[("a", 0o750, false), ("a/b", 0o700, false), ("a/b/c", 0o700, false)];
    let implied: &[_] = &[("a", 0o755, false), ("a/b", 0o755, false), ("a/b/c", 0o755, false)];
    let hides: &[_] = &[("a", 0o711, true)];
    let Some(mode) = completed(&[lowest, hides, implied], "a/b") else { return };
    assert_eq!(mode, 0o755);
    // Also at the folder above it, and not what the opaque folder itself has.
    assert_eq!(completed(&[lowest, hides, implied], "a/b/c"), Some(0o755));
    assert_eq!(
        completed(&[lowest, &[("a", 0o711, true), ("a/b", 0o701, false)], implied], "a/b"),
        Some(0o701)
    );
    // The layer itself hides what is lower.
    let own: &[_] = &[("a", 0o755, true), ("a/b", 0o755, false)];
    assert_eq!(completed(&[lowest, own], "a/b"), Some(0o755));
    // An opaque folder itself is the one of the layers below.
    assert_eq!(completed(&[lowest, &[("a", 0o755, false), ("a/b", 0o755, true)]], "a/b"), Some(0o700));
}

/// The folder of a layer that does not list it covered that of the layers below.
#[test]
fn regression_the_folder_of_a_layer_is_that_of_the_layer_below() {
    let lowest: &[_] = &[("", 0o700, false)];
    let implied: &[_] = &[("", 0o755, false), ("a", 0o755, false)];
    assert_eq!(completed(&[lowest, implied], ""), Some(0o700));
    assert_eq!(completed(&[lowest, &[("", 0o711, false)], implied], ""), Some(0o711));
    assert_eq!(completed(&[implied], ""), Some(0o755));
}

/// Each folder was looked for from the top, for each folder above it and in each layer. The time grew
/// with the cube of the depth.
#[test]
fn regression_a_deep_path_is_walked_once() {
    const DEPTH: usize = 1500;
    let root = tempfile::tempdir().unwrap();
    let place = OnMount::new(root.path());
    let images = ["layers/lower", "layers/upper"].map(|name| root.path().join(name));
    let mut paths = vec![PathBuf::new()];
    for _ in 0..DEPTH {
        paths.push(paths.last().unwrap().join("d"));
    }
    for (layer, mode) in images.iter().zip([0o711, 0o755]) {
        fs::create_dir_all(layer.join(&paths[DEPTH])).unwrap();
        for path in &paths {
            fs::set_permissions(layer.join(path), Permissions::from_mode(mode)).unwrap();
        }
    }
    // What only the upper layer has, in the middle, changes nothing for the rest.
    paths.insert(2, PathBuf::from("d/c"));
    fs::create_dir(images[1].join("d/c")).unwrap();
    let steps = std::cell::Cell::new(0);
    let place = Counting { place, steps: &steps };
    let lower = [PathBuf::from("layers/none"), PathBuf::from("layers/lower")];
    implied::complete(&place, Path::new("layers/upper"), &lower, &paths).unwrap();
    for path in &paths {
        let expected = if path.ends_with("c") { 0o755 } else { 0o711 };
        let mode = fs::metadata(images[1].join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, expected, "{}", path.display());
    }
    assert!(steps.get() < 4 * DEPTH, "{} steps", steps.get());
}

/// Two images had the layer, and the folder that it leaves out was as in the one that was imported first:
/// open to all, for example, where the other image has a private one.
#[test]
fn regression_a_layer_above_other_layers_is_another_folder() {
    let blob = |text: &str| Descriptor::of("", text.as_bytes());
    let layers =
        |all: [&str; 2]| crate::manifest::layers(all.map(|text| (blob(text), Digest::of(text.as_bytes()))));
    let (open, closed) = (layers(["open", "top"]), layers(["closed", "top"]));
    assert_eq!(open[0].chain, open[0].diff_id);
    assert_eq!(open[1].diff_id, closed[1].diff_id);
    assert_ne!(layer(&open[1].chain), layer(&closed[1].chain));
    // The image specification: the chain id and the diff id, with a space between.
    let text = format!("sha256:{} sha256:{}", open[0].chain.hex(), open[1].diff_id.hex());
    assert_eq!(open[1].chain, Digest::of(text.as_bytes()));
    let there = HashSet::from([open[0].chain, open[1].chain]);
    assert_eq!(missing(&closed, &there), closed);
}

/// A place that counts the steps of its walks.
struct Counting<'a> {
    place: OnMount,
    steps: &'a std::cell::Cell<usize>,
}

struct Counted<'a>(Box<dyn Walk + 'a>, &'a std::cell::Cell<usize>);

impl Walk for Counted<'_> {
    fn down(&mut self, name: &std::ffi::OsStr) -> Result<Way> {
        self.1.set(self.1.get() + 1);
        self.0.down(name)
    }
    fn up(&mut self) -> Result<()> {
        self.0.up()
    }
    fn look(&self) -> Result<Look> {
        self.0.look()
    }
    fn is_opaque(&self) -> Result<bool> {
        self.0.is_opaque()
    }
    fn dress(&self, look: Look) -> Result<()> {
        self.0.dress(look)
    }
}

impl Place for Counting<'_> {
    fn walk<'a>(&'a self, top: &Path) -> Result<Option<Box<dyn Walk + 'a>>> {
        Ok(self.place.walk(top)?.map(|walk| Box::new(Counted(walk, self.steps)) as _))
    }
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
        self.place.make_folder(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.place.rename(from, to)
    }
    fn remove(&self, path: &Path) -> Result<()> {
        self.place.remove(path)
    }
    fn claim(&self, path: &Path, text: &str) -> Result<bool> {
        self.place.claim(path, text)
    }
    fn claimed(&self, path: &Path) -> Result<Option<crate::claim::Claimed>> {
        self.place.claimed(path)
    }
    fn touch(&self, path: &Path, at: base::Timestamp) -> Result<()> {
        self.place.touch(path, at)
    }
    fn sync(&self) -> Result<()> {
        self.place.sync()
    }
}
