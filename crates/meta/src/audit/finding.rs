//! What an audit can find, the messages for it, and the commit that repairs it.

use std::fmt;

use base::{BlobId, Ino, PackNo};

use crate::key::{Key, tags};
use crate::plan::nothing;
use crate::record::{Dentry, InodeRecord, PackRow, decode_i64, encode_i64};
use crate::store::{Commit, Expect, Value};
use crate::trash::TrashRow;

/// A disagreement. `row` is always the value that was found, so that a repair can check it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A row's bytes make no sense. Cannot be repaired.
    BadRow {
        /// The row's key.
        key: Key,
    },
    /// An entry with an impossible name, or at a position where it is never looked up. The repair removes it.
    /// If its inode then has no name, it gets another one, as an [`Finding::OrphanInode`].
    BadName {
        /// The entry's key.
        key: Key,
        /// What it names.
        ino: Ino,
        /// The entry's row.
        row: Value,
    },
    /// A name of an inode that does not exist. The repair removes the name.
    DanglingName {
        /// Directory.
        parent: Ino,
        /// Name.
        name: Box<[u8]>,
        /// The inode that is missing.
        ino: Ino,
        /// The name's row.
        row: Value,
    },
    /// A name says that its inode is of another kind than it is.
    WrongKind {
        /// Directory.
        parent: Ino,
        /// Name.
        name: Box<[u8]>,
        /// The name's row.
        row: Value,
        /// What it should be.
        right: Dentry,
    },
    /// A directory has more than one name; this is one that its own row does not confirm. The repair removes
    /// it.
    SecondName {
        /// Directory in which the name is.
        parent: Ino,
        /// Name.
        name: Box<[u8]>,
        /// The directory with several names.
        ino: Ino,
        /// The name's row.
        row: Value,
    },
    /// A directory whose ancestors form a loop. The repair gives one of the loop's directories a name in the
    /// root instead of its own.
    Loop {
        /// A directory of the loop.
        ino: Ino,
        /// The row of the directory's inode.
        row: Value,
        /// The directory that has its name.
        parent: Ino,
        /// The directory's name there.
        name: Box<[u8]>,
        /// The name's row.
        entry: Value,
    },
    /// An inode without a name and without the mark that says so. The repair names it `lost+INODE` in the
    /// root.
    OrphanInode {
        /// The inode.
        ino: Ino,
        /// The inode's row.
        row: Value,
    },
    /// An inode's row contradicts its names, bytes and attributes.
    WrongInode {
        /// The inode.
        ino: Ino,
        /// The key of its row.
        key: Key,
        /// The inode's row.
        row: Value,
        /// What it should be.
        right: Box<InodeRecord>,
    },
    /// Extents past the end of the file. The repair cuts them.
    PastEnd {
        /// The file.
        ino: Ino,
        /// Number of the 4 MiB page.
        page: u32,
        /// The page's row.
        row: Value,
        /// What it should be; none if it should not exist.
        right: Option<Value>,
    },
    /// A row that belongs to nothing that exists. The repair removes it.
    StrayRow {
        /// The row's key.
        key: Key,
        /// The row's value.
        row: Value,
    },
    /// A counter is wrong.
    WrongCount {
        /// The counter's key.
        key: Key,
        /// The counter's row.
        found: Option<Value>,
        /// The counted value.
        expected: i64,
    },
    /// A page refers to a pack, but the pack's row for this user is missing.
    MissingUser {
        /// The pack.
        pack: PackNo,
        /// The file.
        ino: Ino,
        /// Number of the 4 MiB page.
        page: u32,
    },
    /// Extents refer to a pack that has no row, or past the end of one. Their bytes are lost; cannot be
    /// repaired.
    LostPack {
        /// The pack.
        pack: PackNo,
        /// How many bytes refer to it.
        bytes: u64,
    },
    /// Extents refer to a condemned pack. The repair undoes the condemnation.
    CondemnedInUse {
        /// The pack.
        pack: PackNo,
        /// The pack's row.
        row: Value,
    },
    /// A sealed pack cannot be found by its blob.
    MissingBlobRow {
        /// The pack.
        pack: PackNo,
        /// The blob.
        blob: BlobId,
    },
    /// A blob is being deleted, and a pack or a published tree needs it. Cannot be repaired.
    DoomedInUse {
        /// The blob.
        blob: BlobId,
    },
    /// A row says that a small file's content is in a pack that does not hold it any more. Harmless; the
    /// repair removes the row.
    StaleContent {
        /// The content's hash.
        hash: BlobId,
        /// The row.
        row: Value,
    },
}

impl Finding {
    /// Whether users see nothing wrong: it only wastes space.
    pub fn is_harmless(&self) -> bool {
        matches!(self, Finding::StaleContent { .. })
    }
}

/// The commit that repairs a finding; none if that is impossible.
pub fn repair(finding: &Finding) -> Option<Commit> {
    let mut commit = Commit::default();
    let mut replace = |key: Key, row: &Value, with: Option<Value>| {
        commit.checks.push((key.clone(), Expect::Is(row.clone())));
        match with {
            Some(value) => commit.puts.push((key, value)),
            None => commit.dels.push(key),
        }
    };
    match finding {
        Finding::BadRow { .. } | Finding::LostPack { .. } | Finding::DoomedInUse { .. } => return None,
        Finding::DanglingName { parent, name, row, .. } | Finding::SecondName { parent, name, row, .. } => {
            replace(Key::dentry(*parent, name), row, None);
        }
        Finding::WrongKind { parent, name, row, right } => {
            replace(Key::dentry(*parent, name), row, Some(right.encode()));
        }
        Finding::Loop { ino, row, parent, name, entry } => {
            replace(Key::dentry(*parent, name), entry, None);
            rescue(&mut commit, *ino, row)?;
        }
        Finding::OrphanInode { ino, row } => rescue(&mut commit, *ino, row)?,
        Finding::WrongInode { key, row, right, .. } => {
            let value = match TrashRow::decode(row) {
                Ok(trash) if key.tag() == tags::TRASH => TrashRow { dir: Some(**right), ..trash }.encode(),
                _ => right.encode(),
            };
            replace(key.clone(), row, Some(value));
        }
        Finding::PastEnd { ino, page, row, right } => {
            replace(Key::extents(*ino, *page), row, right.clone());
        }
        Finding::StrayRow { key, row } | Finding::BadName { key, row, .. } => replace(key.clone(), row, None),
        Finding::StaleContent { hash, row } => replace(Key::content(hash), row, None),
        Finding::CondemnedInUse { pack, row } => {
            let Ok(PackRow::Condemned { blob, size }) = PackRow::decode(row) else { return None };
            replace(Key::pack(*pack), row, Some(PackRow::Sealed { blob, size }.encode()));
        }
        Finding::WrongCount { key, found, expected } => {
            let expect = found.clone().map_or(Expect::Absent, Expect::Is);
            commit.checks.push((key.clone(), expect));
            if *expected == 0 {
                commit.dels.push(key.clone());
            } else {
                commit.puts.push((key.clone(), encode_i64(*expected)));
            }
        }
        Finding::MissingUser { pack, ino, page } => {
            commit.puts.push((Key::pack_user(*pack, *ino, *page), nothing()));
        }
        Finding::MissingBlobRow { pack, blob } => commit.puts.push((Key::blob_pack(blob, *pack), nothing())),
    }
    Some(commit)
}

/// Gives an inode a name in the root.
fn rescue(commit: &mut Commit, ino: Ino, row: &Value) -> Option<()> {
    let mut record = InodeRecord::decode(row).ok()?;
    (record.nlink, record.parent) = (1, Ino::ROOT);
    record.change = record.change.wrapping_add(1);
    let entry = Key::dentry(Ino::ROOT, format!("lost+{ino}").as_bytes());
    commit.checks.push((entry.clone(), Expect::Absent));
    commit.checks.push((Key::inode(ino), Expect::Is(row.clone())));
    commit.puts.push((entry, Dentry { ino, kind: record.kind() }.encode()));
    commit.puts.push((Key::inode(ino), record.encode()));
    Some(())
}

struct Name<'a>(&'a Ino, &'a [u8]);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" in directory {}", self.1.escape_ascii(), self.0)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::BadRow { key } => write!(f, "row {key:?} is damaged"),
            Finding::BadName { key, ino, .. } => {
                let (dir, name) = (key.number().unwrap_or(0), key.as_bytes().get(17..).unwrap_or_default());
                write!(f, "\"{}\" in directory {dir} cannot be a name, of inode {ino}", name.escape_ascii())
            }
            Finding::DanglingName { parent, name, ino, .. } => {
                write!(f, "{} is a name of inode {ino}, which is not there", Name(parent, name))
            }
            Finding::WrongKind { parent, name, .. } => {
                write!(f, "{} names its inode as of another kind than it is", Name(parent, name))
            }
            Finding::SecondName { parent, name, ino, .. } => {
                write!(f, "{} is a second name of directory {ino}", Name(parent, name))
            }
            Finding::Loop { ino, parent, name, .. } => {
                write!(
                    f,
                    "directory {ino}, {}, is not below the root: it is within itself",
                    Name(parent, name)
                )
            }
            Finding::OrphanInode { ino, .. } => write!(f, "inode {ino} has no name"),
            Finding::WrongInode { ino, row, right, .. } => {
                write!(f, "inode {ino} is wrong about itself:")?;
                let trash = || TrashRow::decode(row).ok().and_then(|row| row.dir);
                let said = InodeRecord::decode(row).ok().or_else(trash);
                said.map_or(Ok(()), |row| differences(f, &row, right))
            }
            Finding::PastEnd { ino, page, .. } => {
                write!(f, "inode {ino} has bytes past its end, in page {page}")
            }
            Finding::StrayRow { key, .. } => write!(f, "row {key:?} belongs to nothing"),
            Finding::WrongCount { key, found, expected } => {
                let what = match key.tag() {
                    tags::VOLUME => format!("total {}", key.as_bytes()[1..].escape_ascii()),
                    tags::SUBDIRS => format!("subdirectory count of {}", key.number().unwrap_or(0)),
                    tags::QUOTA_USED => {
                        format!("use of the quota of directory {}", key.number().unwrap_or(0))
                    }
                    _ => format!("live bytes of pack {}", key.number().unwrap_or(0)),
                };
                match decode_i64(found.as_deref()) {
                    Ok(found) => write!(f, "{what}: says {found}, counted {expected}"),
                    Err(_) => write!(f, "{what}: damaged, counted {expected}"),
                }
            }
            Finding::MissingUser { pack, ino, page } => {
                write!(f, "pack {pack} does not know that page {page} of inode {ino} refers to it")
            }
            Finding::LostPack { pack, bytes } => {
                write!(f, "pack {pack} is not there or too short, and {bytes} bytes of files were in it")
            }
            Finding::CondemnedInUse { pack, .. } => write!(f, "pack {pack} is condemned and in use"),
            Finding::DoomedInUse { blob } => write!(f, "blob {blob} is being deleted and is needed"),
            Finding::MissingBlobRow { pack, blob } => {
                write!(f, "pack {pack} cannot be found by its blob {blob}")
            }
            Finding::StaleContent { hash, .. } => {
                write!(f, "content {hash} is looked for where it no longer is (harmless)")
            }
        }
    }
}

fn differences(f: &mut fmt::Formatter<'_>, row: &InodeRecord, right: &InodeRecord) -> fmt::Result {
    let fields = [
        ("links", u64::from(row.nlink), u64::from(right.nlink)),
        ("flags", u64::from(row.flags), u64::from(right.flags)),
        ("size", row.size, right.size),
        ("stored bytes", row.stored, right.stored),
        ("parent", row.parent.0, right.parent.0),
        ("attribute list", u64::from(row.xattr_list), u64::from(right.xattr_list)),
        ("attribute bytes", u64::from(row.xattr_bytes), u64::from(right.xattr_bytes)),
    ];
    for (what, says, is) in fields.into_iter().filter(|(_, says, is)| says != is) {
        write!(f, " {what}: says {says}, is {is}.")?;
    }
    Ok(())
}
