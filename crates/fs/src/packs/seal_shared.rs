//! How a pack of a shared volume becomes a blob.
//!
//! ```text
//!   hash the pack ──► commit: it is this blob ──► hand the blob to the origin
//!                     (refused while the blob is being deleted)
//! ```
//!
//! The commit comes first, so that a blob is named before any node uploads it. From the commit on, no node
//! deletes the blob. So an upload that finds the blob in the origin may rely on it. Until the origin has the
//! blob, this node reads the pack from its file ([`Core::resealing`]), and so it does after a crash between
//! the two steps.

use std::io;
use std::time::Duration;

use base::{BlobId, PackNo};
use blob::BlobError;
use meta::PackRow;
use meta::plan::{Op, Refusal};

use super::table::Place;
use crate::bytes::content_id;
use crate::errno::Error;
use crate::volume::Core;

impl Core {
    /// See the [module](self).
    pub(super) fn seal_shared(&self, no: PackNo, len: u32) -> Result<(), Error> {
        let blob = match self.pack_row(no)? {
            Some(PackRow::Open) => self.name_blob(no, len)?,
            // It was handed over since an earlier attempt.
            Some(PackRow::Sealed { .. }) if !self.resealing.lock().contains(&no) => return Ok(()),
            Some(PackRow::Sealed { blob, .. }) => blob,
            // All of it was removed since an earlier attempt.
            Some(PackRow::Condemned { .. }) => {
                self.drop_file(no);
                return Ok(());
            }
            None => return self.seal_without_row(no),
        };
        let found = self.parts.packs.seal(no, len)?;
        if found != blob {
            let what = format!("{no:?} was named {blob}, and its bytes are now {found}");
            return Err(BlobError::Io(io::Error::new(io::ErrorKind::InvalidData, what)).into());
        }
        self.table.put(no, Place::Blob(blob));
        self.resealing.lock().remove(&no);
        self.counters.sealed.add(1);
        self.garbage.touch(&[no]);
        self.sweep.retire(no);
        Ok(())
    }

    /// A pack that was named as a blob has no row when all of it was removed. Otherwise the database has
    /// forgotten the row, and gets names again that refer to these bytes.
    fn seal_without_row(&self, no: PackNo) -> Result<(), Error> {
        self.check_engine(Duration::ZERO)?;
        let is_named = self.resealing.lock().contains(&no);
        // Its row may have been put back since it was looked for.
        if self.pack_row(no)?.is_none() {
            if is_named {
                self.drop_file(no);
                return Ok(());
            }
            self.run(&Op::OpenPack { pack: no })?;
        }
        Err(Refusal::Busy.into())
    }

    /// Says in the names which blob the pack is.
    fn name_blob(&self, no: PackNo, len: u32) -> Result<BlobId, Error> {
        let mut bytes = vec![0; len as usize];
        self.parts.packs.read(no, 0, &mut bytes)?;
        let blob = content_id(&bytes);
        drop(bytes);
        // A commit that names bytes makes them durable, unless it is refused. The blob has those as well.
        self.parts.packs.sync(&[no])?;
        self.resealing.lock().insert(no);
        let named = self.run(&Op::SealPack { pack: no, blob, size: len });
        if let Err(Error::Refused(_)) = &named {
            self.resealing.lock().remove(&no);
        }
        // After another error it is unknown whether it was committed.
        named.map(|_| blob)
    }
}
