//! Turns closed packs into blobs.
//!
//! A pack that nothing refers to is forgotten instead. A pack that is mostly dead first gives its live ranges
//! to another pack. A pack that cannot be sealed (the origin does not answer) stays an open pack: readable,
//! durable, and tried again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{PackNo, time};
use blob::BlobError;
use hashbrown::HashSet;
use meta::PackRow;
use meta::plan::{Op, Refusal};

use super::OpenPack;
use super::table::Place;
use crate::errno::Error;
use crate::volume::Core;

/// How often the sealer looks for idle packs.
const LOOK: Duration = Duration::from_millis(250);
/// After a failure, sealing is tried again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// After a pack of the last run could not be sealed again, this is tried again after this time.
const RESEAL: Duration = Duration::from_secs(2);
/// The longest wait for an equal blob that is being deleted, when a volume is closed.
const BUSY: Duration = Duration::from_secs(20);
/// A pack this small is sealed as it is, however dead it is.
const TOO_SMALL_TO_MOVE: u32 = 64 << 10;
/// If more than one in so many bytes of a pack was never written, its bytes are moved to another pack: zeros
/// are not worth storing.
const HOLES: u32 = 8;

impl Core {
    /// The sealer's thread.
    pub(crate) fn sealer(&self) {
        let mut complained = false;
        let (mut reseal, mut told) = (Some(time::monotonic()), HashSet::new());
        while !self.stopping() {
            if reseal.is_some_and(|at| time::monotonic() >= at) {
                let is_done = self.reseal_noted(&mut told);
                reseal = (!is_done).then(|| time::monotonic() + RESEAL);
            }
            let Some(pack) = self.packs.next_to_seal(LOOK) else { continue };
            let done = self.seal_or_quarantine(&pack, true);
            self.packs.sealed(pack.clone(), done.is_err());
            if self.packs.is_quarantined(pack.no) {
                // What died while it was being sealed was not judged.
                self.garbage.touch(&[pack.no]);
            }
            match done {
                Ok(()) => complained = false,
                // An equal blob of a shared volume is being deleted. That takes some seconds.
                Err(Error::Refused(Refusal::Busy)) => self.sweep.pause(LOOK),
                Err(error) => {
                    if !complained {
                        let no = pack.no;
                        self.report(&format!(
                            "{no:?} cannot be sealed and stays open; this will be repeated: {error}"
                        ));
                    }
                    complained = true;
                    self.sweep.pause(AGAIN);
                }
            }
        }
    }

    /// Seals all closed packs without waiting for more. The first failure ends it. Used when a volume is
    /// closed.
    pub(crate) fn seal_all(&self) -> Result<(), Error> {
        self.packs.close_all();
        let began = base::time::monotonic();
        while let Some(pack) = self.packs.next_to_seal(Duration::ZERO) {
            let done = self.seal_or_quarantine(&pack, false);
            self.packs.sealed(pack, done.is_err());
            match done {
                // An equal blob of a shared volume is being deleted. The pack stays open if that takes long.
                Err(Error::Refused(Refusal::Busy)) if began.elapsed() > BUSY => return Ok(()),
                Err(Error::Refused(Refusal::Busy)) => {
                    self.options.shared.iter().try_for_each(|sharing| self.finish_deletions(sharing))?;
                    std::thread::sleep(LOOK);
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// Seals a pack. From a damaged pack, the readable bytes are moved to another pack. The rest stays, and
    /// reads of it fail.
    fn seal_or_quarantine(&self, pack: &Arc<OpenPack>, may_move: bool) -> Result<(), Error> {
        let no = pack.no;
        let error = match self.seal(pack, may_move) {
            Err(Error::Blob(error)) if is_damage(&error) => error,
            done => return done,
        };
        self.move_readable(no)?;
        if self.names.pack_live(no)? == 0 {
            return self.forget_open(no);
        }
        self.report(&format!(
            "{error}; what of it can be read was moved, the rest is lost: `covey fsck` says which files it belongs to, copy them back from a backup"
        ));
        self.packs.quarantine(no);
        if !may_move {
            self.packs.close_all();
        }
        Ok(())
    }

    fn seal(&self, pack: &Arc<OpenPack>, may_move: bool) -> Result<(), Error> {
        let (no, len) = (pack.no, pack.len());
        if self.packs.was_adopted(no) {
            self.note_users(no)?;
        }
        let mut live = self.names.pack_live(no)?;
        // A publication refers to packs as they are: they become blobs, however dead they are.
        if may_move
            && !self.publishing.is_paused()
            && live > 0
            && (live < u64::from(len / 2) || pack.holes() > len / HOLES)
            && len > TOO_SMALL_TO_MOVE
            && self.may_copy()
        {
            match self.move_live(no) {
                // Moving failed, so the pack is sealed as it is.
                Err(Error::Blob(_)) => {}
                done => done?,
            }
            live = self.names.pack_live(no)?;
        }
        if live == 0 {
            match self.forget_open(no) {
                // The same content was written again meanwhile and refers to the pack, or the pack is being
                // published.
                Err(Error::Refused(Refusal::Busy)) => {}
                done => return done,
            }
        }
        self.seal_as_blob(no, len)
    }

    /// Turns an open pack that has no writer into a blob.
    pub(crate) fn seal_as_blob(&self, no: PackNo, len: u32) -> Result<(), Error> {
        if self.is_shared() {
            return self.seal_shared(no, len);
        }
        let shared = self.blobs.read();
        let blob = self.parts.packs.seal(no, len)?;
        self.answers.stored(&blob);
        self.run(&Op::SealPack { pack: no, blob, size: len })?;
        if self.names.blob_packs(&blob)?.len() > 1 {
            self.counters.dedup_hits.add(1);
            self.counters.dedup_bytes.add(u64::from(len));
            self.garbage.twice(len, true);
        }
        drop(shared);
        self.table.put(no, Place::Blob(blob));
        self.counters.sealed.add(1);
        // Read after the commit: it sees what died before, and what dies later touches the pack.
        self.garbage.sealed(no, len, self.names.pack_live(no)?);
        self.garbage.touch(&[no]);
        self.sweep.retire(no);
        Ok(())
    }

    /// Forgets an open pack that nothing refers to. Its row is deleted now, its file after the next flush.
    ///
    /// # Errors
    /// `Busy`, also for a pack of a shared volume that is named as a blob: it is deleted as described in
    /// [`crate::gc::shared`].
    pub(crate) fn forget_open(&self, no: PackNo) -> Result<(), Error> {
        if self.is_shared() && !matches!(self.pack_row(no)?, Some(PackRow::Open) | None) {
            return Err(Refusal::Busy.into());
        }
        // Under the lock, so that a publication that begins now either finds the pack gone or keeps it.
        let shared = self.blobs.read();
        if self.publishing.is_paused() {
            return Err(Refusal::Busy.into());
        }
        self.run(&Op::ForgetPack { pack: no })?;
        drop(shared);
        // The database may have forgotten the row, and names that refer to it. Both are sent again, perhaps
        // since the row was read.
        self.check_engine(Duration::ZERO)?;
        if self.is_shared() && self.pack_row(no)?.is_some() {
            return Err(Refusal::Busy.into());
        }
        self.sweep.forgotten.fetch_add(1, Ordering::AcqRel);
        self.drop_file(no);
        Ok(())
    }

    /// Deletes the file of an open pack after the next flush. Nothing of it is to be stored any more.
    pub(crate) fn drop_file(&self, no: PackNo) {
        self.resealing.lock().remove(&no);
        self.table.drop(no);
        self.sweep.discard(no);
    }
}

/// Whether the error says that an open pack's bytes are not those that were written.
pub(crate) fn is_damage(error: &BlobError) -> bool {
    matches!(error, BlobError::Io(error) if error.kind() == io::ErrorKind::InvalidData)
}
