//! The keys of the store, and how a blob and its sums share one object.
//!
//! ```text
//!   PREFIX/covey-origin          the marker: "covey origin 2", and the volume
//!   PREFIX/blobs/ab/ab12...ef    2,576 bytes: its encoded sums (`blob::sums`), then zeros; then its bytes
//!   PREFIX/records/NAME          a record
//! ```
//!
//! **The sums come first**, in the blob's own object. So storing a blob is one PUT and a whole read is one
//! GET. A reader can compare each group as it arrives and pass it on at once. The head has the length of the
//! longest sums, so that a reader that does not know the blob's size knows where each byte is.

use base::BlobId;
use base::size::BLOB_MAX;
use blob::Sums;
use object_store::path::Path;

use super::spec::RemoteSpec;

/// The length of the head, which holds the sums of the largest blob (4 MiB).
pub(crate) const HEAD: u32 = 2576;
/// The largest object that holds a blob.
pub(crate) const OBJECT_MAX: u64 = BLOB_MAX as u64 + HEAD as u64;

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

    /// The blob that a key below [`Layout::blobs`] holds; none for other keys.
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

/// The size of the blob in an object of `size` bytes; none if no blob's object has that size.
pub(crate) fn blob_size(size: u64) -> Option<u32> {
    let blob = u32::try_from(size.checked_sub(u64::from(HEAD))?).ok()?;
    (blob <= BLOB_MAX).then_some(blob)
}

/// The head of a blob with these sums.
pub(crate) fn head_of(sums: &Sums) -> Vec<u8> {
    let mut head = sums.encode();
    head.resize(HEAD as usize, 0);
    head
}

/// The sums at the beginning of an object, if they are this blob's.
///
/// # Errors
/// What is wrong with them.
pub(crate) fn sums_in(id: &BlobId, size: u32, object: &[u8]) -> Result<Sums, String> {
    let encoded = object.get(..Sums::encoded_len(size)).ok_or("its object begins with too few bytes")?;
    let sums = Sums::decode(encoded).map_err(|error| error.to_string())?;
    if sums.id() != *id {
        return Err(format!("the sums before it belong to {}", sums.id()));
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_every_size_have_room() {
        assert_eq!(Sums::encoded_len(BLOB_MAX), HEAD as usize);
        assert_eq!([blob_size(0), blob_size(2575), blob_size(OBJECT_MAX + 1)], [None; 3]);
        assert_eq!(
            [blob_size(2576), blob_size(2577), blob_size(OBJECT_MAX)],
            [Some(0), Some(1), Some(BLOB_MAX)]
        );
        for size in [0, 1, 70_000, 65_536, 4 << 20] {
            let sums = Sums::of(&vec![7; size]);
            let head = head_of(&sums);
            assert_eq!(head.len(), HEAD as usize);
            assert_eq!(sums_in(&sums.id(), sums.size(), &head).unwrap(), sums);
            assert!(sums_in(&Sums::of(b"another").id(), sums.size(), &head).is_err());
            assert!(sums_in(&sums.id(), sums.size(), &head[..40]).is_err());
        }
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
