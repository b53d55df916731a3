//! Equal bytes: whether a name may refer to stored bytes instead of the equal bytes that were just written.
//!
//! If the stored bytes were lost, the write would be acknowledged and could never be read. So no name is made
//! to refer to stored bytes before they were checked:
//!
//! | where they are | how they are checked |
//! |---|---|
//! | an open pack, a blob of an origin on this machine | they are read, which checks their sums, and compared |
//! | a blob of a remote origin | the origin says that it has the blob; a copy on this machine is compared as well |
//!
//! If the check is not possible now (the origin does not answer, or asking it would delay a writer), the
//! bytes are stored anew, and [`crate::gc::dedup`] checks again later.
//!
//! **Lost bytes heal.** When the same bytes are written again, everything that referred to the lost ones is
//! changed to refer to the new ones.

pub(crate) mod answers;

use std::io;

use base::{BlobId, Ino, PackNo};
use blob::BlobError;
use meta::plan::Op;
use meta::plan::op::Move;
use meta::record::ContentRow;

use crate::errno::Error;
use crate::packs::table::Place;
use crate::volume::Core;

pub(crate) use answers::Target;

/// Users of a pack read at a time.
const USERS: usize = 1024;

impl Core {
    /// Whether a range of a pack holds exactly these bytes. `may_wait`: a remote origin may be asked.
    pub(crate) fn check_target(&self, at: &ContentRow, bytes: &[u8], may_wait: bool) -> Target {
        // The pack may have been sealed or moved between the lookup and the read. Then the cached table of
        // packs is out of date.
        for look in 0..2 {
            match self.compare(at, bytes, may_wait) {
                Ok(found) => return found,
                Err(error) if is_lost(&error) && look == 0 => self.table.drop(at.pack),
                Err(error) if is_lost(&error) => return Target::Lost,
                Err(_) => return Target::Unknown,
            }
        }
        Target::Unknown
    }

    fn compare(&self, at: &ContentRow, bytes: &[u8], may_wait: bool) -> Result<Target, Error> {
        let Some(place) = self.place_of(at.pack)? else { return Ok(Target::Stale) };
        // A damaged pack never becomes a blob. What can be read of it was moved.
        if self.packs.is_damaged(at.pack) {
            return Ok(Target::Stale);
        }
        if let (Place::Blob(blob), false) = (place, self.options.local) {
            match self.ask_origin(&blob, may_wait)? {
                Target::Sound if !self.parts.source.is_local(&blob) => return Ok(Target::Sound),
                Target::Sound => {}
                other => return Ok(other),
            }
        }
        let mut there = vec![0; bytes.len()];
        self.read_pack(at.pack, at.offset, &mut there)?;
        Ok(if there == bytes { Target::Sound } else { Target::Stale })
    }

    /// Whether a remote origin has a blob.
    fn ask_origin(&self, blob: &BlobId, may_wait: bool) -> Result<Target, Error> {
        if let Some(answer) = self.answers.get(blob) {
            return Ok(answer);
        }
        if !may_wait || self.answers.is_silent() {
            return Ok(Target::Unknown);
        }
        match self.parts.origin.size(blob) {
            Ok(size) => {
                let answer = if size.is_some() { Target::Sound } else { Target::Lost };
                self.answers.put(blob, answer);
                Ok(answer)
            }
            Err(error) => {
                self.answers.note_silence();
                Err(error.into())
            }
        }
    }

    /// Makes everything that refers to a lost range refer to the same bytes at their new place.
    pub(crate) fn heal(&self, lost: &ContentRow, to: PackNo, to_offset: u32) -> Result<(), Error> {
        let (from, from_offset, len) = (lost.pack, lost.offset, lost.len);
        let moves = [Move { from, from_offset, len, to, to_offset, crc: None }];
        let (mut next, mut healed) = ((Ino(0), 0), 0);
        loop {
            let users = self.names.pack_users(from, next, USERS)?;
            for (ino, page) in &users {
                healed += self.run(&Op::Follow { ino: *ino, page: *page, moves: &moves })?.done;
            }
            match users.last() {
                Some((ino, u32::MAX)) if users.len() == USERS => next = (Ino(ino.0 + 1), 0),
                Some((ino, page)) if users.len() == USERS => next = (*ino, page + 1),
                _ => break,
            }
        }
        if healed > 0 {
            self.report(&format!(
                "{from:?} has lost bytes that were written again: {healed} bytes of other files that were lost with them can be read again"
            ));
            self.garbage.touch(&[from]);
        }
        Ok(())
    }
}

/// Whether an error says that bytes are missing or damaged, and not only unreachable for now.
pub(crate) fn is_lost(error: &Error) -> bool {
    match error {
        Error::Blob(BlobError::Missing(_) | BlobError::Damaged { .. }) => true,
        Error::Blob(BlobError::Io(error)) => matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData
        ),
        _ => false,
    }
}
