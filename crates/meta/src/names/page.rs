//! What a read of a file needs, in one look.

use base::Ino;
use base::phase::{self, Phase};
use blob::ExtentPage;

use super::{Names, damaged, decode_page};
use crate::key::Key;
use crate::record::InodeRecord;
use crate::store::{StoreError, Value};

/// The result of [`Names::file_page`].
#[derive(Clone, Debug)]
pub struct FilePage {
    /// The file as it is stored.
    pub record: InodeRecord,
    /// The file's bytes, if they are inline.
    pub inline: Option<Value>,
    /// The page's extents.
    pub extents: ExtentPage,
}

impl Names {
    /// What a read of one page of a file needs, as of one moment: another node may cut the file and write it
    /// again between two looks. `None`: there is no such inode, or it is a directory that was removed.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn file_page(&self, ino: Ino, page: u32) -> Result<Option<FilePage>, StoreError> {
        let _phase = phase::enter(Phase::Names);
        let keys = [Key::inode(ino), Key::inline(ino), Key::extents(ino, page)];
        let rows = self.store.get_many(&keys)?;
        let [row, inline, extents] = <[_; 3]>::try_from(rows).unwrap_or_default();
        let Some(row) = row else { return Ok(None) };
        let record = InodeRecord::decode(&row).map_err(damaged)?;
        let extents = extents.map_or_else(|| Ok(ExtentPage::new()), |row| decode_page(&row))?;
        Ok(Some(FilePage { record, inline, extents }))
    }
}
