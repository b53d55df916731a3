//! Which layer of the folder of images has a chain id.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

use oci::digest::Digest;
use oci::folder;

/// Finds layers.
pub trait Layers: Send + Sync {
    /// The layer (its diff id) that makes the chain id `below` to the chain id `chain`. None if it is not
    /// there. `below` is None for the lowest layer.
    ///
    /// # Errors
    /// The layers cannot be looked at, so nothing is known.
    fn find(&self, below: Option<&Digest>, chain: &Digest) -> io::Result<Option<Digest>>;

    /// Whether the layers can be looked at. If so, what is not found is not there.
    ///
    /// # Errors
    /// They cannot.
    fn check(&self) -> io::Result<()>;
}

/// The chain id of a layer above a chain id, or above nothing.
pub fn chain_id(below: Option<&Digest>, diff_id: &Digest) -> Digest {
    match below {
        Some(below) => Digest::of(format!("{below} {diff_id}").as_bytes()),
        None => *diff_id,
    }
}

/// The layers in a folder of images. What has a name there is whole, so a look at the names is enough. They
/// are read anew for each question, because images may come and go.
#[derive(Debug)]
pub struct InFolder(pub PathBuf);

impl Layers for InFolder {
    fn check(&self) -> io::Result<()> {
        // The folder was there at the start. Without it, the mount is gone. That is no folder without layers.
        fs::symlink_metadata(self.0.join("layers")).map(drop)
    }

    fn find(&self, below: Option<&Digest>, chain: &Digest) -> io::Result<Option<Digest>> {
        self.check()?;
        if below.is_none() {
            return match fs::symlink_metadata(self.0.join(folder::layer(chain))) {
                Ok(about) => Ok(about.is_dir().then_some(*chain)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            };
        }
        for entry in fs::read_dir(self.0.join("layers"))? {
            let name = entry?.file_name();
            let layer = name.to_str().and_then(|name| Digest::parse(&name.replacen('-', ":", 1)));
            if let Some(layer) = layer.filter(|layer| chain_id(below, layer) == *chain) {
                return Ok(Some(layer));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chain ids are those of the image specification: "CHAIN-ID DIFF-ID" with a space between.
    #[test]
    fn a_layer_is_found_by_its_chain_id() {
        let folder = tempfile::tempdir().unwrap();
        let images = InFolder(folder.path().to_owned());
        let [one, two] = [b"1", b"2"].map(|bytes| Digest::of(bytes));
        let above = chain_id(Some(&one), &two);
        assert_eq!(above, Digest::of(format!("sha256:{} sha256:{}", one.hex(), two.hex()).as_bytes()));
        assert!(images.find(None, &one).is_err(), "nothing is mounted there");
        for layer in [one, two] {
            fs::create_dir_all(folder.path().join(folder::layer(&layer))).unwrap();
        }
        fs::create_dir(folder.path().join("layers/other")).unwrap();
        assert_eq!(images.find(None, &one).unwrap(), Some(one));
        assert_eq!(images.find(Some(&one), &above).unwrap(), Some(two));
        assert_eq!(images.find(Some(&two), &above).unwrap(), None);
        assert_eq!(images.find(None, &above).unwrap(), None);
        assert!(InFolder(folder.path().join("gone")).find(None, &one).is_err());
    }
}
