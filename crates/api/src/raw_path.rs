//! Paths in JSON: text if they are UTF-8, otherwise a list of their bytes. A name on Linux can be any bytes.
//! Even so, the parent, commands and scripts must get the exact path of a mountpoint.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A path that need not be UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RawPath {
    /// A path that is UTF-8.
    Text(String),
    /// The bytes of a path that is not UTF-8.
    Bytes(Vec<u8>),
}

impl From<&Path> for RawPath {
    fn from(path: &Path) -> RawPath {
        match path.to_str() {
            Some(text) => RawPath::Text(text.to_owned()),
            None => RawPath::Bytes(path.as_os_str().as_bytes().to_vec()),
        }
    }
}

impl From<RawPath> for PathBuf {
    fn from(path: RawPath) -> PathBuf {
        match path {
            RawPath::Text(text) => text.into(),
            RawPath::Bytes(bytes) => std::ffi::OsString::from_vec(bytes).into(),
        }
    }
}

/// Serializes a [`PathBuf`], for `#[serde(with = "raw_path")]`.
pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    RawPath::from(path).serialize(to)
}

/// Reads what [`serialize`] wrote.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    RawPath::deserialize(from).map(PathBuf::from)
}

/// Serialization of a path that may be absent.
pub mod option {
    use super::{Deserialize, Deserializer, PathBuf, RawPath, Serialize, Serializer};

    /// See [`super::serialize`].
    #[allow(clippy::ref_option, reason = "serde hands the field over as it is")]
    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        path.as_deref().map(RawPath::from).serialize(to)
    }

    /// See [`super::deserialize`].
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        Ok(Option::<RawPath>::deserialize(from)?.map(PathBuf::from))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Told {
        #[serde(with = "crate::raw_path")]
        place: PathBuf,
        #[serde(default, with = "crate::raw_path::option", skip_serializing_if = "Option::is_none")]
        other: Option<PathBuf>,
    }

    #[test]
    fn regression_a_path_survives_whatever_its_bytes() {
        for bytes in [&b"a/b"[..], b"\xff/\xfe", b""] {
            let place = PathBuf::from(OsStr::from_bytes(bytes));
            for other in [None, Some(place.clone())] {
                let told = Told { place: place.clone(), other };
                let text = serde_json::to_string(&told).unwrap();
                assert_eq!(serde_json::from_str::<Told>(&text).unwrap(), told, "{text}");
            }
        }
        let plain = serde_json::to_string(&Told { place: "/mnt/x".into(), other: None }).unwrap();
        assert_eq!(plain, r#"{"place":"/mnt/x"}"#);
    }
}
