//! What a text on the command line names: an image, and where its blobs are.
//!
//! The words are those of skopeo and podman: `oci:DIR[:TAG]`, `oci-archive:FILE[:TAG]`,
//! `docker-archive:FILE[:TAG]`, `docker://REFERENCE`.

use std::path::Path;

use api::error::{Failure, Result};

use crate::Blobs;
use crate::docker::Archive;
use crate::layout::Layout;
use crate::manifest::{Image, Platform, choose};
use crate::members::Members;
use crate::registry::Registry;
use crate::registry::reference::Reference;

/// The words before the place.
const SCHEMES: [&str; 4] = ["oci:", "oci-archive:", "docker-archive:", "docker://"];

/// An image that can be imported.
pub struct Found {
    /// The image's name, unless the user gives it another one.
    pub name: String,
    /// The image.
    pub image: Image,
    /// Where its blobs are.
    pub blobs: Box<dyn Blobs>,
}

/// Whether a text names an image.
pub fn claims(text: &str) -> bool {
    SCHEMES.iter().any(|scheme| text.starts_with(scheme))
}

/// Opens what a text names, and reads its manifest and config.
///
/// # Errors
/// There is no such image for the platform, or it is damaged.
pub fn open(text: &str, wanted: &Platform) -> Result<Found> {
    let unknown = || Failure::usage(format!("{text} names no image"));
    let scheme = SCHEMES.into_iter().find(|scheme| text.starts_with(scheme)).ok_or_else(unknown)?;
    let rest = &text[scheme.len()..];
    let (blobs, manifest, name): (Box<dyn Blobs>, _, _) = match scheme {
        "docker://" => {
            let reference = Reference::parse(rest)?;
            let registry = Registry::new(&reference)?;
            let manifest = registry.named()?;
            (Box::new(registry), manifest, reference.to_string())
        }
        "oci:" => {
            let (folder, tag) = split(rest)?;
            let layout = Layout::folder(Path::new(folder))?;
            let (manifest, name) = layout.find(tag)?;
            (Box::new(layout), manifest, name)
        }
        "oci-archive:" => {
            let (file, tag) = split(rest)?;
            let layout = Layout::archive(Path::new(file), Members::of(Path::new(file))?)?;
            let (manifest, name) = layout.find(tag)?;
            (Box::new(layout), manifest, name)
        }
        _ => {
            let (file, tag) = split(rest)?;
            let (archive, manifest, name) = Archive::open(Members::of(Path::new(file))?, file, tag)?;
            (Box::new(archive), manifest, name)
        }
    };
    let image = choose(&*blobs, &manifest, wanted)?;
    Ok(Found { name, image, blobs })
}

/// Splits `PLACE[:TAG]`. The place is the shortest text before a colon that is there, since a tag may have
/// colons too.
fn split(text: &str) -> Result<(&str, Option<&str>)> {
    let ends = text.match_indices(':').map(|(at, _)| at).chain([text.len()]);
    let there = |end: &usize| *end > 0 && Path::new(&text[..*end]).exists();
    let end = ends.into_iter().find(there).ok_or_else(|| {
        let place = text.split(':').next().unwrap_or(text);
        if place.is_empty() {
            return Failure::usage("the source names no folder or file").next("write oci:DIR[:TAG]");
        }
        Failure::new("not-found", format!("{place} is not there")).next("check the path")
    })?;
    Ok((&text[..end], text.get(end + 1..).filter(|tag| !tag.is_empty())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_may_have_colons_and_so_may_a_place() {
        let temp = tempfile::tempdir().unwrap();
        let (plain, odd) = (temp.path().join("a"), temp.path().join("b:c"));
        std::fs::create_dir(&plain).unwrap();
        std::fs::create_dir(&odd).unwrap();
        let (plain, odd) = (plain.to_str().unwrap(), odd.to_str().unwrap());
        for (place, tag) in [(plain, None), (plain, Some("host:5000/x:1")), (odd, None), (odd, Some("1"))] {
            let text = tag.map_or_else(|| place.to_owned(), |tag| format!("{place}:{tag}"));
            assert_eq!(split(&text).unwrap(), (place, tag), "{text}");
        }
        assert!(split("").is_err() && split(&format!("{plain}x:1")).is_err());
    }

    #[test]
    fn what_is_no_image_is_left_to_other_imports() {
        assert!(claims("oci:x") && claims("docker://debian") && claims("docker-archive:a.tar"));
        assert!(!claims("s3://bucket/x") && !claims("/srv/oci:x") && !claims("-"));
    }
}
