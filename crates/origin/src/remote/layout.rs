//! Where things lie in the store, and how a blob and its sums share one object.
//!
//! ```text
//!   PREFIX/covey-origin          the marker: "covey origin 1", and whose it is
//!   PREFIX/blobs/ab/ab12...ef    the blob's bytes, then its encoded sums (`blob::sums`)
//!   PREFIX/records/NAME          a record
//! ```
//!
//! **The sums are a trailer**, so that storing a blob is one PUT and a whole read is one GET. Their length follows from the
//! blob's, and the blob's from the object's: nothing else says where one ends and the other begins.

use base::BlobId;
use base::size::BLOB_MAX;
use blob::Sums;
use object_store::path::Path;

use super::spec::RemoteSpec;

/// The longest trailer: that of a blob of 4 MiB.
pub(crate) const TRAILER_MAX: u32 = 2576;
/// The largest object that holds a blob.
pub(crate) const OBJECT_MAX: u64 = BLOB_MAX as u64 + TRAILER_MAX as u64;

/// The keys below a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    prefix: String,
}

impl Layout {
    pub(crate) fn new(spec: &RemoteSpec) -> Layout {
        let prefix = if spec.prefix.is_empty() { String::new() } else { format!("{}/", spec.prefix) };
        Layout { prefix }
    }

    pub(crate) fn root(&self) -> Option<Path> {
        let prefix = self.prefix.trim_end_matches('/');
        (!prefix.is_empty()).then(|| Path::from(prefix))
    }

    pub(crate) fn marker(&self) -> Path {
        Path::from(format!("{}covey-origin", self.prefix))
    }

    pub(crate) fn blobs(&self) -> Path {
        Path::from(format!("{}blobs", self.prefix))
    }

    pub(crate) fn blob(&self, id: &BlobId) -> Path {
        let name = id.to_string();
        Path::from(format!("{}blobs/{}/{name}", self.prefix, &name[..2]))
    }

    /// The blob that a key below [`Layout::blobs`] holds; other keys are nobody's.
    pub(crate) fn blob_of(&self, key: &Path) -> Option<BlobId> {
        let rest = key.as_ref().strip_prefix(&*self.prefix)?.strip_prefix("blobs/")?;
        let (folder, name) = rest.split_once('/')?;
        let id: BlobId = name.parse().ok()?;
        (name.starts_with(folder) && folder.len() == 2 && id.to_string() == name).then_some(id)
    }

    pub(crate) fn record(&self, name: &str) -> Path {
        Path::from(format!("{}records/{name}", self.prefix))
    }

    /// The folder of records whose names begin with `folder/`, or of all.
    pub(crate) fn records(&self, folder: &str) -> Path {
        match folder {
            "" => Path::from(format!("{}records", self.prefix)),
            _ => Path::from(format!("{}records/{folder}", self.prefix)),
        }
    }

    pub(crate) fn record_of(&self, key: &Path) -> Option<String> {
        Some(key.as_ref().strip_prefix(&*self.prefix)?.strip_prefix("records/")?.to_owned())
    }
}

/// The size of the blob in an object of `size` bytes, if an object with a blob can have that size.
pub(crate) fn blob_size(size: u64) -> Option<u32> {
    let object = |blob: u32| u64::from(blob) + Sums::encoded_len(blob) as u64;
    // Each byte more of a blob makes the object at least a byte longer, so that halving finds it.
    let (mut low, mut high) = (0, BLOB_MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        if object(middle) < size { low = middle + 1 } else { high = middle }
    }
    (object(low) == size).then_some(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_of_a_blob_is_found_again() {
        assert_eq!(Sums::encoded_len(BLOB_MAX), TRAILER_MAX as usize);
        let near = [0, 1, 32 << 10, 64 << 10, 128 << 10, 1 << 20, BLOB_MAX];
        for size in near.iter().flat_map(|at| at.saturating_sub(40)..=(at + 40).min(BLOB_MAX)) {
            let object = u64::from(size) + Sums::encoded_len(size) as u64;
            assert_eq!(blob_size(object), Some(size));
        }
        assert_eq!([blob_size(0), blob_size(47), blob_size(OBJECT_MAX + 1)], [None; 3]);
        let bytes = vec![7; 70_000];
        assert_eq!(Sums::of(&bytes).encode().len(), Sums::encoded_len(70_000));
    }

    #[test]
    fn keys_lead_back_to_what_they_hold() {
        for prefix in ["s3://bucket", "s3://bucket/a/b"] {
            let layout = Layout::new(&RemoteSpec::parse(prefix).unwrap());
            let id = Sums::of(b"x").id();
            assert_eq!(layout.blob_of(&layout.blob(&id)), Some(id));
            assert_eq!(layout.record_of(&layout.record("published/a")).unwrap(), "published/a");
            assert_eq!(layout.blob_of(&layout.record("x")), None);
            assert_eq!(layout.blob_of(&layout.marker()), None);
            assert_eq!(layout.blob_of(&Path::from(format!("{}/00/{id}", layout.blobs()))), None);
        }
    }
}
