//! What pax records say about the next member, or (global ones) about all that follow.
//!
//! Only keys that the reader uses are kept, each with its last value, and all of them together have a bound.
//! So neither the records of many members nor repeated global records add up. GNU's oldest pax form for holes
//! uses many records with the same key. They become ranges at once.

use std::collections::BTreeMap;
use std::io;

use super::{damaged, number};
use crate::acl;

/// The most bytes of kept keys and values. Most of it is a member's extended attributes, and no filesystem of
/// Linux stores more of them in one file.
const KEPT_MAX: usize = 1 << 20;
/// The most bytes of a map of holes in text.
const MAP_MAX: usize = 8 << 20;
/// The most ranges of one file.
pub(super) const RANGES_MAX: usize = 1 << 19;

/// Keys with one value, apart from attributes.
const USED: [&[u8]; 14] = [
    b"path",
    b"linkpath",
    b"size",
    b"uid",
    b"gid",
    b"mtime",
    b"atime",
    b"GNU.sparse.major",
    b"GNU.sparse.name",
    b"GNU.sparse.realsize",
    b"GNU.sparse.size",
    b"GNU.sparse.map",
    b"SCHILY.acl.access",
    b"SCHILY.acl.default",
];
/// An access control list of another kind.
const NFS4: &[u8] = b"SCHILY.acl.ace";
const XATTR: &[u8] = b"SCHILY.xattr.";

/// See the [module](self).
#[derive(Clone, Default)]
pub(super) struct Records {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes of `values`, without maps of holes.
    kept: usize,
    /// pax 0.0: a record for each number.
    ranges: Vec<(u64, u64)>,
    offset: Option<u64>,
}

impl Records {
    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.values.get(key.as_bytes()).map(Vec::as_slice)
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        number(self.get(key)?)
    }

    /// The ranges of pax 0.0.
    pub(super) fn ranges(&self) -> &[(u64, u64)] {
        &self.ranges
    }

    /// Extended attributes, with their unescaped names.
    pub(super) fn xattrs(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let of =
            |(key, value): (&Vec<u8>, &Vec<u8>)| Some((unescaped(key.strip_prefix(XATTR)?), value.clone()));
        self.values.iter().filter_map(of).collect()
    }

    /// Access control lists in text.
    pub(super) fn acls(&self) -> Vec<(&'static [u8], Vec<u8>)> {
        let known = [("SCHILY.acl.access", acl::ACCESS), ("SCHILY.acl.default", acl::DEFAULT)];
        known.iter().filter_map(|(key, name)| Some((*name, self.get(key)?.to_vec()))).collect()
    }

    /// Properties that this reader cannot apply.
    pub(super) fn unknown(&self) -> Vec<String> {
        let ace = self.values.contains_key(NFS4);
        ace.then(|| "its ACL is one of NFS version 4".to_owned()).into_iter().collect()
    }

    /// Reads `LENGTH KEY=VALUE\n` until nothing is left.
    pub(super) fn read(&mut self, mut text: &[u8]) -> io::Result<()> {
        let bad = || damaged("a pax record is damaged");
        while !text.is_empty() && text[0] != 0 {
            let space = text.iter().take(20).position(|&byte| byte == b' ').ok_or_else(bad)?;
            let len = number(&text[..space]).and_then(|len| usize::try_from(len).ok()).ok_or_else(bad)?;
            let record =
                text.get(space + 1..len).and_then(|record| record.strip_suffix(b"\n")).ok_or_else(bad)?;
            let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(bad)?;
            self.keep(&record[..equals], &record[equals + 1..])?;
            text = &text[len..];
        }
        Ok(())
    }

    fn keep(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        let bad_map = || damaged("the map of a file with holes is damaged");
        match key {
            b"GNU.sparse.offset" => self.offset = number(value),
            b"GNU.sparse.numbytes" => {
                if self.ranges.len() >= RANGES_MAX {
                    return Err(too_many_ranges());
                }
                self.ranges.push(self.offset.take().zip(number(value)).ok_or_else(bad_map)?);
            }
            b"GNU.sparse.map" if value.len() > MAP_MAX => return Err(too_many_ranges()),
            key if USED.contains(&key) || key == NFS4 || key.starts_with(XATTR) => {
                // An empty value cancels the value of a global record.
                let old = match value.is_empty() && !key.starts_with(XATTR) {
                    true => self.values.remove(key),
                    false => self.values.insert(key.to_vec(), value.to_vec()),
                };
                if key == b"GNU.sparse.map" {
                    return Ok(());
                }
                let size = |value: &[u8]| key.len() + value.len();
                self.kept -= old.map_or(0, |old| size(&old));
                self.kept += if self.values.contains_key(key) { size(value) } else { 0 };
                if self.kept > KEPT_MAX {
                    return Err(damaged("the records of one member (its names and attributes) exceed 1 MiB"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

pub(super) fn too_many_ranges() -> io::Error {
    damaged("a file has more holes than the reader supports (524,288)")
}

/// An attribute's unescaped name: in a key `=` is written as `%3D`, and `%` as `%25`.
fn unescaped(name: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, more)) = rest.split_first() {
        let (byte, used) = match rest.get(..3) {
            Some(b"%3D") => (b'=', 3),
            Some(b"%25") => (b'%', 3),
            _ => (first, 1),
        };
        plain.push(byte);
        rest = if used == 1 { more } else { &rest[used..] };
    }
    plain
}
