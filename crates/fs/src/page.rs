//! Pages: a file is divided into aligned ranges of 4 MiB, and each page has its own extents.

use base::size::BLOB_MAX;

/// The page of a file that holds this byte, and the byte's offset in the page.
pub(crate) fn page_of(offset: u64) -> (u32, u32) {
    ((offset / u64::from(BLOB_MAX)) as u32, (offset % u64::from(BLOB_MAX)) as u32)
}
