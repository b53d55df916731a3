//! Names and ids of volumes. An id says all that is needed to find its volume, because the orchestrator sends
//! nothing else when a volume is deleted:
//!
//! ```text
//!   shared:FOLDER/NAME@ADDRESS     a folder of the shared volume at ADDRESS
//!   tree:NAME                      a published tree; the volume's context says which
//!   exclusive:NAME@NODE            a volume in a folder of the node NODE
//! ```
//!
//! FOLDER, NAME and NODE are single components of a path: letters, digits, dots, hyphens and underscores, and
//! no dot at the beginning. [`Id::parse`] accepts nothing else, so what comes from an id can be joined to a
//! path. An id that was written by hand, for a volume that was not made here, is any text; it is only
//! compared, and hashed for names of files.

use std::fmt;

use engines::Address;

use crate::refuse::{self, Answer};

/// The longest id, in bytes. The specification asks for no more.
const ID_MAX: usize = 128;
/// The longest text that is taken as an id: one that was written by hand may be longer.
const TEXT_MAX: usize = 1024;
/// The longest component.
const PART_MAX: usize = 63;

/// The id of a volume that was made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Id {
    /// A folder of a shared volume.
    Shared {
        /// The folder that the volumes of a class are in.
        folder: String,
        /// The volume's own folder.
        name: String,
        /// The address of the shared volume.
        address: String,
    },
    /// A published tree.
    Tree {
        /// The volume's name.
        name: String,
    },
    /// A volume in a folder of a node.
    Exclusive {
        /// The volume's folder.
        name: String,
        /// The node.
        node: String,
    },
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Id::Shared { folder, name, address } => write!(f, "shared:{folder}/{name}@{address}"),
            Id::Tree { name } => write!(f, "tree:{name}"),
            Id::Exclusive { name, node } => write!(f, "exclusive:{name}@{node}"),
        }
    }
}

impl Id {
    /// Reads an id. None for any other text.
    pub fn parse(text: &str) -> Option<Id> {
        let part = |text: &str| is_part(text).then(|| text.to_owned());
        if let Some(rest) = text.strip_prefix("shared:") {
            let (place, address) = rest.split_once('@')?;
            let (folder, name) = place.split_once('/')?;
            let known = Address::parse(address).ok().filter(|parsed| parsed.to_string() == address);
            let address = known?.to_string();
            return Some(Id::Shared { folder: part(folder)?, name: part(name)?, address });
        }
        if let Some(name) = text.strip_prefix("tree:") {
            return Some(Id::Tree { name: part(name)? });
        }
        let (name, node) = text.strip_prefix("exclusive:")?.split_once('@')?;
        Some(Id::Exclusive { name: part(name)?, node: part(node)? })
    }

    /// Whether the id is too long.
    pub fn is_long(&self) -> bool {
        self.to_string().len() > ID_MAX
    }

    /// The id as a text, if it is not too long.
    pub fn text(&self) -> Answer<String> {
        let text = self.to_string();
        if text.len() <= ID_MAX {
            return Ok(text);
        }
        Err(refuse::invalid(
            format!(
                "the id of this volume would have {} bytes, and {ID_MAX} is the most: {text}",
                text.len()
            ),
            "shorten the parameters volume (a short name of the server, user and database) and folder",
        ))
    }
}

/// Whether a text is one component of a path, and safe to be one.
pub fn is_part(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !text.is_empty() && text.len() <= PART_MAX && !text.starts_with(['.', '-']) && text.bytes().all(plain)
}

/// How a component begins that is the hash of a name.
const HASHED: &str = "v-";

/// The component for the name that the orchestrator gave. A name that cannot be one is hashed.
pub fn part_of(name: &str) -> String {
    if is_part(name) && !name.starts_with(HASHED) { name.to_owned() } else { hashed(name) }
}

/// The component that is the hash of a name.
pub fn hashed(name: &str) -> String {
    format!("{HASHED}{}", hash(name))
}

/// A name for a file, of any text: 32 hexadecimal digits.
pub fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().chars().take(32).collect()
}

/// Checks the text of an id, which may be written by hand.
pub fn check_id(text: &str) -> Answer<()> {
    match text {
        "" => Err(refuse::invalid("the call names no volume", "send the field volume_id")),
        _ if text.len() > TEXT_MAX || text.chars().any(char::is_control) => Err(refuse::invalid(
            format!("the volume_id is no id: it has more than {TEXT_MAX} bytes, or control characters"),
            "use a shorter volumeHandle",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: &str = "postgres://covey@db/covey?volume=work";

    #[test]
    fn ids_are_read_as_they_are_written() {
        let address = Address::parse(ADDRESS).unwrap().to_string();
        let (folder, name) = ("csi".to_owned(), "pvc-1".to_owned());
        let ids = [
            Id::Shared { folder, name: name.clone(), address },
            Id::Tree { name: name.clone() },
            Id::Exclusive { name, node: "node-1".to_owned() },
        ];
        for id in ids {
            assert_eq!(Id::parse(&id.text().unwrap()), Some(id));
        }
    }

    #[test]
    fn what_leads_out_of_a_folder_is_no_id() {
        for place in
            ["../x", "csi/..", "csi/../etc", "/etc", "csi/a/b", "csi/", "/", "csi/.new-a", "csi/-a", "csi"]
        {
            assert_eq!(Id::parse(&format!("shared:{place}@{ADDRESS}")), None, "{place}");
        }
        for text in [
            "",
            "tree:",
            "tree:..",
            "tree:a/b",
            "exclusive:../a@n",
            "exclusive:a@../n",
            "exclusive:a",
            "pvc-1",
        ] {
            assert_eq!(Id::parse(text), None, "{text}");
        }
        for address in ["", "/srv/volume", "mem:", "postgres://covey:word@db/covey?volume=w", "--help"] {
            assert_eq!(Id::parse(&format!("shared:csi/a@{address}")), None, "{address}");
        }
    }

    #[test]
    fn every_name_becomes_a_component() {
        assert_eq!(part_of("pvc-1"), "pvc-1");
        let long = "x".repeat(200);
        for name in ["../etc", "a b", "", ".", "v-1", &long, "a/b"] {
            let part = part_of(name);
            assert!(is_part(&part) && part != name, "{name}: {part}");
        }
        assert_ne!(part_of("a/b"), part_of("a/c"));
    }
}
