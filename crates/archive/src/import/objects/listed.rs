//! A listing in memory. Neighbouring keys begin alike, so of each only what differs is kept.
//!
//! ```text
//!   bytes shared with the key before (2)   rest of the key: length (2), bytes
//!   ETag: length (2), bytes   size (8)   last modified: seconds (8), nanoseconds (4)
//! ```

use api::error::{Failure, Result};
use base::Timestamp;

use super::Object;

/// The most bytes of a listing: some millions of objects.
const BYTES_MAX: usize = 512 << 20;

/// Objects, in the order in which they were added.
#[derive(Default)]
pub(super) struct Listed {
    bytes: Vec<u8>,
    count: u64,
    /// The last key.
    last: Vec<u8>,
}

impl Listed {
    /// Adds an object.
    ///
    /// # Errors
    /// There are too many.
    pub fn add(&mut self, object: &Object) -> Result<()> {
        let key = object.key.as_bytes();
        let lengths = [key.len(), object.etag.len()];
        if lengths.iter().any(|len| *len > usize::from(u16::MAX)) || self.bytes.len() > BYTES_MAX {
            return Err(Failure::new("too-large", "there are more objects than can be listed in memory")
                .why(format!("the list would have more than {} MiB", BYTES_MAX >> 20))
                .next("import it in parts: name a longer prefix"));
        }
        let shared = key.iter().zip(&self.last).take_while(|(a, b)| a == b).count();
        self.bytes.extend_from_slice(&(shared as u16).to_le_bytes());
        for text in [&key[shared..], object.etag.as_bytes()] {
            self.bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
            self.bytes.extend_from_slice(text);
        }
        self.bytes.extend_from_slice(&object.size.to_le_bytes());
        self.bytes.extend_from_slice(&object.modified.seconds().to_le_bytes());
        self.bytes.extend_from_slice(&object.modified.nanos().to_le_bytes());
        self.last = key.to_vec();
        self.count += 1;
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The objects.
    pub fn iter(&self) -> impl Iterator<Item = Object> {
        let (mut left, mut key) = (&*self.bytes, Vec::new());
        std::iter::from_fn(move || {
            let shared = u16::from_le_bytes(number(&mut left)?);
            key.truncate(usize::from(shared));
            key.extend_from_slice(text(&mut left)?);
            let etag = String::from_utf8_lossy(text(&mut left)?).into_owned();
            let size = u64::from_le_bytes(number(&mut left)?);
            let seconds = i64::from_le_bytes(number(&mut left)?);
            let modified = Timestamp::from_parts(seconds, u32::from_le_bytes(number(&mut left)?));
            Some(Object { key: String::from_utf8_lossy(&key).into_owned(), size, etag, modified })
        })
    }
}

fn text<'a>(left: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = u16::from_le_bytes(number(left)?);
    let (text, rest) = left.split_at_checked(usize::from(len))?;
    *left = rest;
    Some(text)
}

fn number<const N: usize>(left: &mut &[u8]) -> Option<[u8; N]> {
    let (number, rest) = left.split_first_chunk::<N>()?;
    *left = rest;
    Some(*number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_comes_back() {
        let mut listed = Listed::default();
        let object = |key: &str, size| Object {
            key: key.to_owned(),
            size,
            etag: format!("e{size}"),
            modified: Timestamp::from_parts(-3, 5),
        };
        let all: Vec<Object> = ["", "a", "a/b/ü", "a/b/û", "a/b", "b"]
            .iter()
            .zip(0..)
            .map(|(key, size)| object(key, size))
            .collect();
        all.iter().for_each(|object| listed.add(object).unwrap());
        assert_eq!((listed.iter().collect::<Vec<_>>(), listed.len()), (all, 6));
        assert!(listed.add(&object(&"x".repeat(70_000), 1)).is_err());
    }
}
