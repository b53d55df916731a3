//! What one look at the names found out about a read.
//!
//! A transport asks [`Filesystem::plan_read`] once. The plan says whether the read would wait. It then goes
//! to [`Filesystem::read_planned`], or to [`Filesystem::start_read`] if it would. So the inode and the
//! extents of a read are looked up once.

use std::sync::Arc;

use base::Ino;
use blob::extent::ExtentPage;
use meta::record::InodeRecord;
use meta::store::Value;

use crate::Filesystem;

/// A read and what is known about it. See the [module](self).
pub struct ReadPlan {
    /// The inode, as the filesystem that planned the read numbers it.
    pub ino: Ino,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
    /// Whether the read would wait for more than memory and the local page cache.
    pub waits: bool,
    /// The names of the range, if they were looked up.
    pub(crate) found: Option<FoundNames>,
    /// The tree that planned the read, where a mount moves from tree to tree.
    pub(crate) tree: Option<Arc<dyn Filesystem>>,
}

impl ReadPlan {
    /// A plan without names: the read looks them up.
    pub fn without_names(ino: Ino, offset: u64, len: u32, waits: bool) -> ReadPlan {
        ReadPlan { ino, offset, len, waits, found: None, tree: None }
    }
}

/// The names of a range of a file.
pub(crate) struct FoundNames {
    pub(crate) record: InodeRecord,
    /// The bytes of an inline file, if they were looked up too.
    pub(crate) inline: Option<Value>,
    /// The page of the range's first byte.
    pub(crate) page: u32,
    /// The extents of that page.
    pub(crate) extents: ExtentPage,
}

impl FoundNames {
    /// The extents of this page, if they are among these names.
    pub(crate) fn of(&self, page: u32) -> Option<&ExtentPage> {
        (page == self.page).then_some(&self.extents)
    }
}
