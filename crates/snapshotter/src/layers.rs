//! Which layer of the folder of images has a chain id.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use oci::digest::Digest;
use oci::folder;

/// Finds layers.
pub trait Layers: Send + Sync {
    /// Whether there is a layer with this chain id.
    ///
    /// # Errors
    /// The layers cannot be looked at, so nothing is known.
    fn has(&self, chain: &Digest) -> io::Result<bool>;

    /// Whether the layers can be looked at. If so, what is not found is not there.
    ///
    /// # Errors
    /// They cannot.
    fn check(&self) -> io::Result<()>;

    /// The chain ids of all layers.
    ///
    /// # Errors
    /// They cannot be looked at.
    fn names(&self) -> io::Result<BTreeSet<Digest>>;

    /// Whether the mount with the layers answers a simple question in time. If not, it is not touched.
    fn answers(&self, _: Duration) -> bool {
        true
    }
}

/// The layers in a folder of images. What has a name there is whole, so a look at the names is enough. They
/// are read anew for each question, because images may come and go.
#[derive(Debug)]
pub struct InFolder(pub PathBuf);

impl Layers for InFolder {
    fn check(&self) -> io::Result<()> {
        // The folder was there at the start. Without it, the mount is gone. That is no folder without layers.
        // Links are not followed, here and below: a tree of others would lead to a folder of this machine.
        match fs::symlink_metadata(self.0.join("layers"))?.is_dir() {
            true => Ok(()),
            false => Err(io::Error::new(ErrorKind::NotADirectory, "its `layers` is no folder")),
        }
    }

    fn has(&self, chain: &Digest) -> io::Result<bool> {
        self.check()?;
        match fs::symlink_metadata(self.0.join(folder::layer(chain))) {
            Ok(about) => Ok(about.is_dir()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn names(&self) -> io::Result<BTreeSet<Digest>> {
        self.check()?;
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(self.0.join("layers"))? {
            let name = entry?.file_name();
            names.extend(name.to_str().and_then(|name| Digest::parse(&name.replacen('-', ":", 1))));
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_found_by_its_chain_id() {
        let folder = tempfile::tempdir().unwrap();
        let images = InFolder(folder.path().to_owned());
        let [one, two] = [b"1", b"2"].map(|bytes| Digest::of(bytes));
        assert!(images.has(&one).is_err(), "nothing is mounted there");
        fs::create_dir_all(folder.path().join(folder::layer(&one))).unwrap();
        fs::create_dir(folder.path().join("layers/other")).unwrap();
        assert!(images.has(&one).unwrap() && !images.has(&two).unwrap());
        assert_eq!(images.names().unwrap(), BTreeSet::from([one]));
        assert!(InFolder(folder.path().join("gone")).has(&one).is_err());
    }

    /// A link led to a folder of the machine that mounts the image.
    #[test]
    fn regression_a_layer_that_is_a_link_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let images = InFolder(folder.path().join("images"));
        let one = Digest::of(b"1");
        fs::create_dir_all(images.0.join("layers")).unwrap();
        std::os::unix::fs::symlink("/etc", images.0.join(folder::layer(&one))).unwrap();
        assert!(!images.has(&one).unwrap());
        // Nor may the folder of all layers be a link.
        let real = folder.path().join("real");
        fs::create_dir_all(real.join(folder::layer(&one))).unwrap();
        let linked = InFolder(folder.path().join("linked"));
        fs::create_dir(&linked.0).unwrap();
        std::os::unix::fs::symlink(real.join("layers"), linked.0.join("layers")).unwrap();
        assert_eq!(linked.has(&one).unwrap_err().kind(), ErrorKind::NotADirectory);
        assert!(linked.check().is_err());
    }
}
