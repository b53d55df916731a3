//! Folders that a layer leaves out, on a folder of this machine. Opaque folders need root.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;

use archive::sys::metadata;

use super::*;
use crate::layer::OPAQUE;
use crate::place::OnMount;

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
        let top = root.path().join(&below).join(layer(&blob.digest));
        for &(folder, mode, is_opaque) in *folders {
            let folder = top.join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            if is_opaque && metadata::set_xattr(&File::open(&folder).unwrap(), OPAQUE, b"y").is_err() {
                return None;
            }
        }
        image.layers.push(Layer { diff_id: blob.digest, blob });
    }
    let highest = image.layers.last().unwrap().diff_id;
    let sent = image.layers.clone();
    let plan = Plan { of_layers: sent.len(), layers: sent, files: Vec::new(), below, named: false };
    plan.complete(&place, &image, &[(highest, path.into())]).unwrap();
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
