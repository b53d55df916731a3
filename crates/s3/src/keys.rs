//! Keys as paths. A key is a path below the bucket's root; a key that ends with `/` is a folder.
//!
//! Keys that cannot be paths are refused before the filesystem is asked: an empty part, `.`, `..`, a NUL, a
//! part over 255 bytes, a key over 1,024 bytes, and names in the folder that the gateway itself uses.

use s3s::s3_error;

use crate::errors::Result;

/// The folder at a bucket's root in which the gateway keeps what is incomplete. Nothing shows it.
pub const HIDDEN: &str = ".covey-s3";

/// The longest key, in bytes.
const KEY_MAX: usize = 1024;
/// The longest part between two slashes, in bytes.
const PART_MAX: usize = 255;

/// A key that is a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    text: String,
    folder: bool,
}

impl Key {
    /// Checks a key.
    pub fn parse(text: &str) -> Result<Key> {
        if text.len() > KEY_MAX {
            return Err(s3_error!(KeyTooLongError, "a key has at most 1,024 bytes"));
        }
        let folder = text.ends_with('/');
        let path = text.strip_suffix('/').unwrap_or(text);
        if path.split('/').any(|part| part.is_empty() || part == "." || part == ".." || part.contains('\0')) {
            return Err(s3_error!(
                InvalidArgument,
                "this key cannot be a path: no part of a key may be empty, . or .., or contain a NUL"
            ));
        }
        if path.split('/').any(|part| part.len() > PART_MAX) {
            return Err(s3_error!(
                KeyTooLongError,
                "a part of a key between two slashes has at most 255 bytes"
            ));
        }
        if path.split('/').next() == Some(HIDDEN) {
            return Err(s3_error!(InvalidArgument, "keys below .covey-s3/ belong to the gateway"));
        }
        Ok(Key { text: path.to_owned(), folder })
    }

    /// The names on the way, from the root, without the last.
    pub fn above(&self) -> impl Iterator<Item = &[u8]> {
        let above = self.text.rsplit_once('/').map(|(above, _)| above);
        above.into_iter().flat_map(|above| above.split('/')).map(str::as_bytes)
    }

    /// The last name.
    pub fn name(&self) -> &[u8] {
        self.text.rsplit('/').next().unwrap_or("").as_bytes()
    }

    /// Whether it ends with `/`.
    pub fn is_folder(&self) -> bool {
        self.folder
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        Key::parse(text).map_or_else(|error| error.code().as_str().to_owned(), |_| "fine".to_owned())
    }

    #[test]
    fn a_key_is_a_path_or_refused() {
        for key in ["a", "a/b", "a/", "a/b/", "...", "a b", "ä/ö", ".hidden", "a/.covey-s3"] {
            assert_eq!(code(key), "fine", "{key}");
        }
        for key in ["", "/", "/a", "a//b", "a//", ".", "..", "a/..", "a/../b", "./a", "a\0b", ".covey-s3/x"] {
            assert_eq!(code(key), "InvalidArgument", "{key}");
        }
        let part = "p".repeat(255);
        assert_eq!(code(&part), "fine");
        assert_eq!(code(&format!("{part}p")), "KeyTooLongError");
        assert_eq!(code(&"a/".repeat(512)), "fine");
        assert_eq!(code(&"a/".repeat(513)), "KeyTooLongError");
    }

    #[test]
    fn the_way_to_a_key() {
        let key = Key::parse("a/b/c/").unwrap();
        assert_eq!(key.above().collect::<Vec<_>>(), [&b"a"[..], b"b"]);
        assert_eq!((key.name(), key.is_folder()), (&b"c"[..], true));
        assert_eq!(Key::parse("c").unwrap().above().count(), 0);
    }
}
