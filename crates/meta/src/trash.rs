//! The trash of a volume: what lost its last name and can get it back.
//!
//! An inode in the trash has no name, so it looks like any other removed inode: its count of links is 0, and
//! it counts for no quota. In place of the row `0C` it has a row `03` ([`TrashRow`]), which says where it was
//! and since when it is there. So the reaper, which looks for rows `0C`, does not see it. It leaves the trash
//! in one of two ways, and each is one commit that checks the row `03`:
//!
//! - [`crate::plan::Op::Restore`] gives it a name again,
//! - [`crate::plan::Op::Expire`] replaces the row by a row `0C`. From then on it is a removed inode like any
//!   other.
//!
//! **The lease of the inode covers the row**, as it covers its row `0C`. So a removal writes as many rows as
//! without trash, and under the same leases.
//!
//! **A volume has one setting**, in its row `trash`. A volume that never had trash has no such row. One that
//! has it is of [`FORMAT_TRASH`], so that an older program refuses it: it would take what is in the trash for
//! damage.

use base::{Ino, Timestamp};

use crate::key::is_name;
use crate::record::{BadRecord, InodeRecord, mode, moment_from_u64, moment_to_u64};
use crate::store::Value;

/// The name of the volume's row that says how long its trash is kept, in milliseconds. 0: what is removed now
/// does not go there.
pub const ROW_TRASH: &str = "trash";
/// The name of the volume's row that holds the number of its format.
pub const ROW_FORMAT: &str = "format";
/// The format of a volume that never had trash.
pub const FORMAT: u32 = 1;
/// The format of a volume that has trash, or had it.
pub const FORMAT_TRASH: u32 = 2;

/// Whether a volume keeps what is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Setting {
    /// The volume never kept what is removed, so there is no row of an inode in the trash.
    #[default]
    Never,
    /// The volume does not keep what is removed now. There may be rows of earlier removals.
    Off,
    /// The volume keeps what is removed, for so many milliseconds. Not 0.
    Keep(u64),
}

impl Setting {
    /// What the volume's row says.
    ///
    /// # Errors
    /// The row is damaged.
    pub fn decode(row: Option<&[u8]>) -> Result<Setting, BadRecord> {
        let Some(row) = row else { return Ok(Setting::Never) };
        let millis = <[u8; 8]>::try_from(row).map_err(|_| BadRecord { what: "trash setting" })?;
        Ok(match u64::from_be_bytes(millis) {
            0 => Setting::Off,
            millis => Setting::Keep(millis),
        })
    }

    /// The volume's row; none for a volume that never had trash.
    pub fn encode(self) -> Option<Value> {
        match self {
            Setting::Never => None,
            Setting::Off => Some(0u64.to_be_bytes()[..].into()),
            Setting::Keep(millis) => Some(millis.max(1).to_be_bytes()[..].into()),
        }
    }

    /// Whether what is removed now goes to the trash.
    pub fn keeps(self) -> bool {
        matches!(self, Setting::Keep(_))
    }
}

/// An inode in the trash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrashRow {
    /// When it lost its last name.
    pub at: Timestamp,
    /// The directory that had the name.
    pub parent: Ino,
    /// The name.
    pub name: Box<[u8]>,
    /// `S_IFMT` bits of its mode.
    pub kind: u32,
    /// How large it was then, in bytes.
    pub size: u64,
    /// Of a directory: its inode. A file has a row for that.
    pub dir: Option<InodeRecord>,
}

impl TrashRow {
    /// Bytes before the name.
    const HEAD: usize = 26;

    /// The row.
    pub fn encode(&self) -> Value {
        let mut out = Vec::with_capacity(Self::HEAD + self.name.len());
        out.extend_from_slice(&moment_to_u64(self.at).to_be_bytes());
        out.extend_from_slice(&self.parent.0.to_be_bytes());
        out.extend_from_slice(&self.size.to_be_bytes());
        out.push((self.kind >> 12) as u8);
        out.push(self.name.len() as u8);
        out.extend_from_slice(&self.name);
        if let Some(dir) = &self.dir {
            out.extend_from_slice(&dir.encode());
        }
        out.into()
    }

    /// Reads a row.
    ///
    /// # Errors
    /// The row is not one that [`TrashRow::encode`] gives.
    pub fn decode(bytes: &[u8]) -> Result<TrashRow, BadRecord> {
        let bad = || BadRecord { what: "trash" };
        let number = |at: usize| {
            let field = bytes.get(at..at + 8).and_then(|field| <[u8; 8]>::try_from(field).ok());
            field.map(u64::from_be_bytes).ok_or_else(bad)
        };
        let at = moment_from_u64(number(0)?);
        let parent = Ino(number(8)?);
        let size = number(16)?;
        let kind = u32::from(*bytes.get(24).ok_or_else(bad)?) << 12;
        let len = usize::from(*bytes.get(25).ok_or_else(bad)?);
        let name = bytes.get(Self::HEAD..Self::HEAD + len).filter(|name| is_name(name)).ok_or_else(bad)?;
        let rest = bytes.get(Self::HEAD + len..).unwrap_or_default();
        let dir = if rest.is_empty() { None } else { Some(InodeRecord::decode(rest)?) };
        let is_dir = kind == mode::S_IFDIR;
        let agrees = dir.is_some() == is_dir && dir.is_none_or(|dir| dir.is_dir());
        if parent == Ino(0) || !mode::is_kind(kind) || !agrees {
            return Err(bad());
        }
        Ok(TrashRow { at, parent, name: name.into(), kind, size, dir })
    }
}

/// The inode that the row `0C` or `03` of a removed directory holds; none in the row of another inode.
///
/// # Errors
/// The row is damaged.
pub(crate) fn removed_dir(
    orphan: Option<&Value>,
    trash: Option<&Value>,
) -> Result<Option<InodeRecord>, BadRecord> {
    if let Some(row) = orphan.filter(|row| !row.is_empty()) {
        return InodeRecord::decode(row).map(Some);
    }
    trash.map_or(Ok(None), |row| Ok(TrashRow::decode(row)?.dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_trash_are_read_as_they_were_written() {
        let bytes = [1u8, 0].into_iter().chain([0; InodeRecord::LEN - 2]);
        let mut bytes: Vec<u8> = bytes.collect();
        bytes[4..8].copy_from_slice(&(mode::S_IFDIR | 0o755).to_be_bytes());
        let dir = InodeRecord::decode(&bytes).unwrap();
        for dir in [None, Some(dir)] {
            for name in [&b"a"[..], &[b'x'; 255]] {
                let (at, parent) = (Timestamp(12_345_678_901), Ino(7));
                let kind = if dir.is_some() { mode::S_IFDIR } else { mode::S_IFLNK };
                let row = TrashRow { at, parent, name: name.into(), kind, size: 1 << 40, dir };
                let bytes = row.encode();
                assert_eq!(TrashRow::decode(&bytes).unwrap(), row);
                (0..bytes.len()).for_each(|end| assert!(TrashRow::decode(&bytes[..end]).is_err()));
            }
        }
        for setting in [Setting::Never, Setting::Off, Setting::Keep(1), Setting::Keep(86_400_000)] {
            assert_eq!(Setting::decode(setting.encode().as_deref()).unwrap(), setting);
        }
        assert!(Setting::decode(Some(&[1])).is_err());
    }
}
