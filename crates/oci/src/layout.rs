//! OCI image layouts: a folder, or a tar archive of one.
//!
//! ```text
//!   oci-layout              {"imageLayoutVersion": "1.0.0"}
//!   index.json              the images, with their tags as annotations
//!   blobs/sha256/HEX        every blob by its digest
//! ```

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use api::error::{Context, Failure, Result};
use serde::Deserialize;

use crate::manifest::{Descriptor, Index, MANIFEST_MAX, REF_NAME, WHOLE_NAME, parse};
use crate::members::Members;
use crate::{Blobs, Bytes};

/// A layout.
#[derive(Debug)]
pub struct Layout {
    place: Place,
    shown: String,
}

#[derive(Debug)]
enum Place {
    Folder(PathBuf),
    Archive(Members),
}

impl Layout {
    /// A layout in a folder.
    ///
    /// # Errors
    /// The folder is none.
    pub fn folder(path: &Path) -> Result<Layout> {
        Layout { place: Place::Folder(path.to_owned()), shown: path.display().to_string() }.checked()
    }

    /// A layout in an archive.
    ///
    /// # Errors
    /// The archive holds none.
    pub fn archive(path: &Path, members: Members) -> Result<Layout> {
        Layout { place: Place::Archive(members), shown: path.display().to_string() }.checked()
    }

    fn checked(self) -> Result<Layout> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head {
            image_layout_version: String,
        }
        let head: Head = parse(&self.read("oci-layout")?, &format!("oci-layout of {}", self.shown))?;
        if head.image_layout_version.starts_with("1.") {
            return Ok(self);
        }
        let version = head.image_layout_version;
        Err(Failure::new("unsupported", format!("{} has version {version} of the layout", self.shown))
            .why("this program knows version 1"))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        match &self.place {
            Place::Archive(members) if !members.has(name) => Err(self.none(name)),
            Place::Archive(members) => members.read(name, MANIFEST_MAX),
            Place::Folder(folder) => {
                let path = folder.join(name);
                let file = match File::open(&path) {
                    Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                        return Err(self.none(name));
                    }
                    other => other.at("open", &path)?,
                };
                let mut bytes = Vec::new();
                file.take(MANIFEST_MAX).read_to_end(&mut bytes).at("read", &path)?;
                Ok(bytes)
            }
        }
    }

    fn none(&self, name: &str) -> Failure {
        Failure::new("not-an-image", format!("{} is no OCI image layout", self.shown))
            .why(format!("it has no {name}"))
            .next("name the folder that holds oci-layout and index.json, or the archive: docker-archive:FILE")
    }

    /// The image of a tag, and its name for people. Without a tag the layout must hold one image.
    ///
    /// # Errors
    /// There is no such image, or no only one.
    pub fn find(&self, tag: Option<&str>) -> Result<(Descriptor, String)> {
        let index: Index = parse(&self.read("index.json")?, &format!("index.json of {}", self.shown))?;
        let named = |blob: &&Descriptor, wanted: &str| {
            [REF_NAME, WHOLE_NAME].iter().any(|key| blob.annotations.get(*key).is_some_and(|it| it == wanted))
        };
        let mut found = index.manifests.iter().filter(|blob| tag.is_none_or(|tag| named(blob, tag)));
        let tags: Vec<&str> = index.manifests.iter().filter_map(tag_of).collect();
        let there =
            if tags.is_empty() { "no tags".to_owned() } else { format!("the tags {}", tags.join(", ")) };
        match (found.next(), found.next()) {
            (Some(blob), None) => Ok((blob.clone(), self.name(blob))),
            (None, _) => {
                let tag = tag.unwrap_or("image");
                Err(Failure::new("not-found", format!("{} has no {tag}", self.shown))
                    .why(format!("it has {there}")))
            }
            // Of several images with one tag the last one counts, as tools that append to the index have it.
            (Some(_), Some(second)) if tag.is_some() => {
                let last = found.next_back().unwrap_or(second);
                Ok((last.clone(), self.name(last)))
            }
            (Some(_), Some(_)) => Err(Failure::usage(format!("{} has several images", self.shown))
                .why(format!("it has {there}"))
                .next(format!("name one: oci:{}:TAG", self.shown))),
        }
    }

    /// An image's name for people: its own whole one, or the layout's with the tag.
    fn name(&self, blob: &Descriptor) -> String {
        if let Some(whole) = blob.annotations.get(WHOLE_NAME) {
            return whole.clone();
        }
        let shown = Path::new(&self.shown);
        let stem = match &self.place {
            Place::Folder(_) => shown.file_name(),
            Place::Archive(_) => shown.file_stem(),
        };
        let stem = stem.map(|stem| stem.to_string_lossy().into_owned());
        match tag_of(blob) {
            Some(tag) if tag.contains(['/', ':']) => tag.to_owned(),
            tag => format!("{}:{}", stem.unwrap_or_else(|| "image".to_owned()), tag.unwrap_or("latest")),
        }
    }
}

fn tag_of(blob: &Descriptor) -> Option<&str> {
    blob.annotations.get(REF_NAME).map(String::as_str)
}

impl Blobs for Layout {
    fn open(&self, blob: &Descriptor) -> Result<Bytes> {
        let name = format!("blobs/sha256/{}", blob.digest.hex());
        match &self.place {
            Place::Archive(members) => members.open(&name),
            Place::Folder(folder) => {
                let path = folder.join(name);
                let file = File::open(&path).map_err(|error| {
                    Failure::io(format!("cannot open {}", path.display()), &error)
                        .map_next("the image is not whole: get it again")
                })?;
                Ok(Box::new(file))
            }
        }
    }
}
