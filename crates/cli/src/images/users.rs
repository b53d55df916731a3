//! Which overlays of this machine use a folder.
//!
//! A mount of an image, a container of containerd and one of podman are all overlays, and the kernel's table
//! of mounts names their layers. Overlays of other mount namespaces are not seen.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use api::error::{Context, Result};

/// An overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlaid {
    /// Where it is mounted.
    pub at: PathBuf,
    /// The overlay's layers, as they were named at the mount.
    pub lower: Vec<PathBuf>,
}

impl Overlaid {
    /// Whether one of its layers is this folder or below it. Links are followed.
    pub fn uses(&self, folder: &Path) -> bool {
        self.lower.iter().any(|layer| {
            layer.starts_with(folder) || layer.canonicalize().is_ok_and(|real| real.starts_with(folder))
        })
    }
}

/// All overlays of this mount namespace.
pub fn overlays() -> Result<Vec<Overlaid>> {
    let path = Path::new("/proc/self/mountinfo");
    Ok(parse(&fs::read(path).at("read", path)?))
}

fn parse(table: &[u8]) -> Vec<Overlaid> {
    table.split(|&byte| byte == b'\n').filter_map(overlay).collect()
}

/// One line: `ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS... - TYPE SOURCE OPTIONS`.
fn overlay(line: &[u8]) -> Option<Overlaid> {
    let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let dash = words.iter().position(|word| *word == b"-")?;
    if *words.get(dash + 1)? != b"overlay" {
        return None;
    }
    let mut lower = Vec::new();
    for option in parts(&unescaped(words.get(dash + 3)?), b',') {
        if let Some(layer) = option.strip_prefix(b"lowerdir+=") {
            lower.push(path(layer));
        } else if let Some(layers) = option.strip_prefix(b"lowerdir=") {
            lower.extend(parts(layers, b':').iter().map(|layer| path(layer)));
        }
    }
    let at = PathBuf::from(std::ffi::OsString::from_vec(unescaped(words.get(4)?)));
    Some(Overlaid { at, lower })
}

/// The kernel writes a space, a tab, a line's end and a backslash as octal numbers.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.get(..3)).flatten();
        let code = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(code) => {
                plain.push(code);
                rest = &after[3..];
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

/// Splits at a character that no backslash is before.
fn parts(text: &[u8], at: u8) -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new()];
    let mut escaped = false;
    for &byte in text {
        if byte == at && !escaped {
            all.push(Vec::new());
            continue;
        }
        escaped = byte == b'\\' && !escaped;
        if let Some(last) = all.last_mut() {
            last.push(byte);
        }
    }
    all
}

/// A path without the backslashes that overlayfs takes.
fn path(text: &[u8]) -> PathBuf {
    let mut plain = Vec::new();
    let mut escaped = false;
    for &byte in text {
        if byte == b'\\' && !escaped {
            escaped = true;
            continue;
        }
        escaped = false;
        plain.push(byte);
    }
    PathBuf::from(std::ffi::OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_overlays_are_read_from_the_table() {
        let table = b"46 27 0:39 / /m/a\\040b rw,relatime shared:3 - overlay covey-image rw,lowerdir+=/i/layers/x,lowerdir+=/i/layers/y,upperdir=/u\n\
            47 27 0:40 / /n rw - overlay overlay rw,lowerdir=/a\\134:b:/c\\134,d,workdir=/w\n\
            48 27 0:41 / /o rw - ext4 /dev/vda rw\nshort\n";
        let found = parse(table);
        let lower =
            |found: &Overlaid| found.lower.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(
            (found[0].at.to_str(), lower(&found[0])),
            (Some("/m/a b"), vec!["/i/layers/x".into(), "/i/layers/y".into()])
        );
        assert_eq!(lower(&found[1]), ["/a:b", "/c,d"]);
        assert!(found[0].uses(Path::new("/i/layers")) && !found[0].uses(Path::new("/i/layers/z")));
    }

    #[test]
    fn a_layer_behind_a_link_counts() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap();
        fs::create_dir_all(real.join("images/layers/x")).unwrap();
        std::os::unix::fs::symlink(real.join("images/layers/x"), real.join("fs")).unwrap();
        let overlay = Overlaid { at: PathBuf::from("/m"), lower: vec![real.join("fs")] };
        assert!(overlay.uses(&real.join("images/layers")));
        assert!(!overlay.uses(&real.join("images/names")));
    }
}
