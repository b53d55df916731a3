//! Access control lists: as text in archives, and as bytes in the kernel.
//!
//! ```text
//!   text    user::rw-,user:lisa:r--:1001,group::r--,mask::r--,other::---
//!           (a fourth field is a number, which has precedence over the name)
//!   bytes   version 2 (4, little-endian), then for each entry: tag (2), permissions (2), id (4)
//! ```

use std::collections::BTreeMap;

/// The attribute of the list that decides access.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of the list that new files in a folder inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

/// More entries than any filesystem stores.
const ENTRIES_MAX: usize = 8192;
/// The id of an entry without a user or group.
const NOBODY: u32 = u32::MAX;

/// What an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A user.
    User,
    /// A group.
    Group,
}

/// The bytes of a list in text. `find` returns the number for a name without one.
///
/// # Errors
/// The reason as text, for the report of what was left out.
pub fn parse(text: &[u8], find: &dyn Fn(Subject, &str) -> Option<u32>) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "its ACL is not text".to_owned())?;
    // In the kernel's order: by tag, then by id.
    let mut entries = BTreeMap::new();
    for line in text.split([',', '\n']) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (tag, id, perm) = entry(line, find)?;
        if entries.insert((tag, id), perm).is_some() || entries.len() > ENTRIES_MAX {
            return Err(format!("its ACL has {line:?} twice, or is too long"));
        }
    }
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for ((tag, id), perm) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&perm.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    Ok(bytes)
}

/// Tag, id and permissions of one entry.
fn entry(line: &str, find: &dyn Fn(Subject, &str) -> Option<u32>) -> Result<(u16, u32, u16), String> {
    let bad = || format!("its ACL has an entry {line:?} that makes no sense");
    // Each entry of a default list may begin with this word.
    let line = line.strip_prefix("default:").unwrap_or(line);
    let fields: Vec<&str> = line.split(':').map(str::trim).collect();
    let (kind, name, perm, number) = match fields.as_slice() {
        [kind, name, perm] => (*kind, *name, *perm, None),
        [kind, name, perm, number] => (*kind, *name, *perm, Some(*number)),
        [kind @ ("mask" | "m" | "other" | "o"), perm] => (*kind, "", *perm, None),
        _ => return Err(bad()),
    };
    let perm = permissions(perm).ok_or_else(bad)?;
    let id = |who| {
        let numbers = number.and_then(|number| number.parse().ok()).or_else(|| name.parse().ok());
        numbers
            .or_else(|| find(who, name))
            .ok_or_else(|| format!("its ACL names {name:?}, whom this machine does not know"))
    };
    Ok(match (kind, name.is_empty()) {
        ("user" | "u", true) => (0x01, NOBODY, perm),
        ("user" | "u", false) => (0x02, id(Subject::User)?, perm),
        ("group" | "g", true) => (0x04, NOBODY, perm),
        ("group" | "g", false) => (0x08, id(Subject::Group)?, perm),
        ("mask" | "m", true) => (0x10, NOBODY, perm),
        ("other" | "o", true) => (0x20, NOBODY, perm),
        _ => return Err(bad()),
    })
}

/// `rwx`, with `-` for a missing permission, or one octal digit.
fn permissions(text: &str) -> Option<u16> {
    if let Ok(digit @ 0..=7) = text.parse::<u16>() {
        return Some(digit);
    }
    text.chars().try_fold(0, |perm, letter| match letter {
        'r' => Some(perm | 4),
        'w' => Some(perm | 2),
        'x' => Some(perm | 1),
        '-' => Some(perm),
        _ => None,
    })
}

/// An ACL in the kernel's format, as text for setfacl. `None` if it is no ACL.
pub fn text(value: &[u8]) -> Option<String> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != 2 || entries.len() % 8 != 0 {
        return None;
    }
    let one = |entry: &[u8]| {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let perm = u16::from_le_bytes([entry[2], entry[3]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let who = match tag {
            0x01 => "user:".to_owned(),
            0x02 => format!("user:{id}"),
            0x04 => "group:".to_owned(),
            0x08 => format!("group:{id}"),
            0x10 => "mask:".to_owned(),
            0x20 => "other:".to_owned(),
            _ => return None,
        };
        let bit = |bit: u16, letter: char| if perm & bit == 0 { '-' } else { letter };
        Some(format!("{who}:{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x')))
    };
    let texts: Option<Vec<String>> = entries.chunks_exact(8).map(one).collect();
    Some(texts?.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(who: Subject, name: &str) -> Option<u32> {
        (who == Subject::User && name == "root").then_some(0)
    }

    fn ids(bytes: &[u8]) -> Vec<(u16, u16, u32)> {
        let entry = |entry: &[u8]| {
            let short = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
            (short(0), short(2), u32::from_le_bytes(entry[4..8].try_into().unwrap()))
        };
        bytes[4..].chunks_exact(8).map(entry).collect()
    }

    #[test]
    fn a_list_is_read_as_tar_and_star_and_bsdtar_write_it() {
        let wanted =
            [(1, 6, NOBODY), (2, 4, 7), (2, 6, 1001), (4, 4, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY)];
        for text in [
            "user::rw-,user:1001:rw-,user:7:r--,group::r--,mask::rw-,other::---",
            "user::rw-\nuser:nobody-here:rw-:1001\nuser:7:r-- #comment\ngroup::r--\nmask:rw-\nother::---\n",
            "u::6,u:1001:6,u:7:4,g::4,m::6,o::0",
        ] {
            let bytes = parse(text.as_bytes(), &known).unwrap();
            assert_eq!(bytes[..4], [2, 0, 0, 0]);
            assert_eq!(ids(&bytes), wanted, "{text}");
        }
        assert_eq!(ids(&parse(b"user:root:rwx", &known).unwrap()), [(2, 7, 0)]);
    }

    #[test]
    fn text_that_is_no_list_is_named_in_the_error() {
        for text in
            ["user", "user:", "who::rwx", "user::rwz", "mask:x:rwx", "user::r,user::w", "user:no such user:r"]
        {
            assert!(parse(text.as_bytes(), &known).is_err(), "{text}");
        }
        assert!(parse(b"\xff", &known).is_err());
    }
}
