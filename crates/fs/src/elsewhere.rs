//! Bytes of packs in a shared volume: reads of other nodes' packs, and answers to other nodes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use base::{BlobId, Deadline, Ino, PackNo, Timestamp};
use blob::BlobError;
use meta::plan::Op;
use meta::store::StoreError;
use meta::{Key, PackRow};

use crate::api::Part;
use crate::bytes::{gone, may_have_moved};
use crate::errno::Error;
use crate::packs::table::Place;
use crate::page::page_of;
use crate::shared::{FromOwner, Sharing, owner};
use crate::volume::{Core, Volume};

/// A time this close behind the present one, in nanoseconds, is another machine's present. A later one was
/// set.
const CLOSE: i128 = 1_000_000_000;
/// How long the owner of a pack may take to store it in the origin, and how often this node looks.
const STORED: Duration = Duration::from_secs(40);
const LOOK: Duration = Duration::from_millis(250);
/// So many looks come before it is asked whether the owner is still there.
const AGAIN: u32 = 8;

impl Core {
    /// Whether other nodes write to this volume too.
    pub(crate) fn is_shared(&self) -> bool {
        self.options.shared.is_some()
    }

    /// Whether kernels see the volume that hear of a change by its times alone.
    pub(crate) fn has_many_kernels(&self) -> bool {
        self.options.many_kernels || self.is_shared()
    }

    /// What is known of other nodes, if this pack belongs to one of them.
    pub(crate) fn elsewhere(&self, pack: PackNo) -> Option<&Sharing> {
        self.options.shared.as_ref().filter(|sharing| owner(pack) != sharing.node)
    }

    /// Checks that the database has what it confirmed to this node, and to the others too if `for_at_least`
    /// is a session's length.
    ///
    /// # Errors
    /// `Unavailable`: it may lack some of that, or does not answer.
    pub(crate) fn check_engine(&self, for_at_least: Duration) -> Result<(), Error> {
        let Some(sharing) = &self.options.shared else { return Ok(()) };
        sharing.others.check_engine(for_at_least)?;
        if sharing.leases.as_ref().is_some_and(|leases| leases.engine_may_lack()) {
            let why = "the database may lack changes that this node sends to it again";
            return Err(StoreError::Unavailable(why.to_owned()).into());
        }
        Ok(())
    }

    /// The time of a change. If it changes a file's contents, it is one that the file did not have before:
    /// the kernels of other nodes and guests see by it that the contents are new. The clock moves in ticks,
    /// and two machines' clocks differ a little.
    pub(crate) fn after_what_was_seen(&self, op: &Op<'_>, now: Timestamp) -> Result<Timestamp, Error> {
        // What is done later bears no earlier time.
        let latest = Timestamp(self.latest.load(Ordering::Acquire).into());
        let now = if latest.0 - now.0 < CLOSE { now.max(latest) } else { now };
        let (Op::Write { ino, .. }
        | Op::SetAttr { ino, .. }
        | Op::Punch { ino, .. }
        | Op::CopyRange { to: ino, .. }) = *op
        else {
            return Ok(now);
        };
        let before = self.names.inode(ino)?.map_or(Timestamp(0), |record| record.mtime);
        let is_close = before >= now && before.0 - now.0 < CLOSE;
        if !is_close {
            return Ok(now);
        }
        let after = Timestamp(before.0 + 1);
        self.latest.fetch_max(after.as_nanos(), Ordering::AcqRel);
        Ok(after)
    }

    /// Whether a part of the names can be looked at, or changed, without asking another machine.
    pub(crate) fn is_part_here(&self, part: &Part<'_>, change: bool) -> bool {
        let row = |key: &Key| self.names.is_at_hand(key);
        let inode = |ino: Ino| {
            let key = Key::inode(ino);
            row(&key) && (!change || self.names.is_changeable(&key))
        };
        match *part {
            Part::Inode(ino) => inode(ino),
            Part::Byte(ino, offset) => inode(ino) && row(&Key::extents(ino, page_of(offset).0)),
            Part::Xattr(ino, name) => inode(ino) && row(&Key::xattr(ino, name)),
            Part::Listing(dir) => {
                let leases = self.options.shared.as_ref().and_then(|sharing| sharing.leases.as_ref());
                leases.is_some_and(|leases| leases.has_listing(dir)) && inode(dir)
            }
            Part::Target(ino) => inode(ino) && row(&Key::inline(ino)),
            Part::Name(dir, name) => {
                let key = Key::dentry(dir, name);
                if !inode(dir) || !row(&key) {
                    return false;
                }
                match self.names.lookup(dir, name) {
                    Ok(Some(child)) => inode(child.ino) && (!child.is_dir() || row(&Key::subdirs(child.ino))),
                    Ok(None) => true,
                    Err(_) => false,
                }
            }
        }
    }

    /// Returns the blob of a pack, if it can be fetched ahead of a read. It may wait for the database, and
    /// for the owner of the pack, which is asked once whether the origin has the blob.
    pub(crate) fn blob_ahead(&self, pack: PackNo) -> Option<BlobId> {
        let Ok(Some(Place::Blob(blob))) = self.place_of(pack) else { return None };
        let Some(sharing) = self.elsewhere(pack) else { return Some(blob) };
        if self.table.get(pack).is_some() || self.parts.source.is_local(&blob) {
            return Some(blob);
        }
        match sharing.others.read(pack, 0, &mut [0]) {
            Ok(FromOwner::InOrigin) => {
                self.table.put(pack, Place::Blob(blob));
                Some(blob)
            }
            // The read gets the bytes from the owner, or finds other names.
            Ok(FromOwner::Bytes | FromOwner::Gone) => None,
            // What an owner that does not answer has uploaded is in the origin.
            Err(_) => Some(blob),
        }
    }

    /// Reads a range of another node's pack.
    pub(crate) fn read_elsewhere(
        &self,
        sharing: &Sharing,
        pack: PackNo,
        offset: u32,
        buf: &mut [u8],
    ) -> Result<(), Error> {
        // No range of a pack is written twice, so these are the bytes, whatever the pack is now.
        if sharing.others.was_sent(pack, offset, buf) {
            return Ok(());
        }
        if let Some(blob) = self.table.named(pack)
            && self.read_if_here(&blob, offset, buf)?
        {
            return Ok(());
        }
        let row = self.pack_row(pack)?;
        let Some(row) = row else { return Err(gone(pack)) };
        let blob = match row {
            PackRow::Open => None,
            PackRow::Sealed { blob, .. } | PackRow::Condemned { blob, .. } => Some(blob),
        };
        if let Some(blob) = blob
            && self.read_if_here(&blob, offset, buf)?
        {
            self.table.put_named(pack, blob);
            return Ok(());
        }
        let asked = sharing.others.read(pack, offset, buf);
        match (asked, blob) {
            (Ok(FromOwner::Bytes), _) => Ok(()),
            (Ok(FromOwner::InOrigin), Some(blob)) => {
                self.table.put(pack, Place::Blob(blob));
                Ok(self.parts.source.read_at(&blob, offset, buf)?)
            }
            // Sealed since the row was read, or gone: the names are read again.
            (Ok(FromOwner::InOrigin | FromOwner::Gone), _) => Err(gone(pack)),
            // The owner does not answer. What it has uploaded is in the origin.
            (Err(error), Some(blob)) => match self.parts.source.read_at(&blob, offset, buf) {
                // Deleted since the row was read: the names are read again.
                Err(BlobError::Missing(_)) if self.pack_row(pack)? != Some(row) => Err(gone(pack)),
                Err(BlobError::Missing(_) | BlobError::Unavailable(_)) => {
                    self.read_when_stored(sharing, pack, (offset, buf), error)
                }
                done => {
                    done?;
                    // Its owner and the nodes with copies need not be asked about it again.
                    self.table.put(pack, Place::Blob(blob));
                    Ok(())
                }
            },
            (Err(error), None) => self.read_when_stored(sharing, pack, (offset, buf), error),
        }
    }

    /// Reads a range of a blob that this machine has. False: it has none, or no more.
    fn read_if_here(&self, blob: &BlobId, offset: u32, buf: &mut [u8]) -> Result<bool, Error> {
        if !self.parts.source.is_local(blob) {
            return Ok(false);
        }
        match self.parts.source.read_at(blob, offset, buf) {
            Ok(()) => Ok(true),
            // The owner of the pack has named it, and may not have stored it yet.
            Err(BlobError::Missing(_) | BlobError::Unavailable(_) | BlobError::Io(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a range of a pack whose owner does not answer, when the owner has stored it in the origin. It is
    /// asked to by the database. `error`: why it is not asked itself.
    fn read_when_stored(
        &self,
        sharing: &Sharing,
        pack: PackNo,
        (offset, buf): (u32, &mut [u8]),
        error: BlobError,
    ) -> Result<(), Error> {
        let end = Deadline::current().within(STORED);
        let mut looks = 0;
        let done = loop {
            // An owner that is gone stores nothing.
            if looks % AGAIN == 0 && !sharing.others.want_stored(pack) {
                return Err(error.into());
            }
            looks += 1;
            end.sleep(LOOK);
            let blob = match self.pack_row(pack)? {
                None => break Err(gone(pack)),
                Some(PackRow::Open) => None,
                Some(PackRow::Sealed { blob, .. } | PackRow::Condemned { blob, .. }) => Some(blob),
            };
            match blob.map(|blob| (blob, self.parts.source.read_at(&blob, offset, buf))) {
                None | Some((_, Err(BlobError::Missing(_) | BlobError::Unavailable(_)))) if end.is_over() => {
                    break Err(error.into());
                }
                None | Some((_, Err(BlobError::Missing(_) | BlobError::Unavailable(_)))) => {}
                Some((blob, Ok(()))) => {
                    self.table.put(pack, Place::Blob(blob));
                    break Ok(());
                }
                Some((_, Err(other))) => break Err(other.into()),
            }
        };
        sharing.others.is_stored(pack);
        done
    }
}

impl Volume {
    /// Bytes of one of this node's packs, for another node. `is_pending` says whether a blob is still waiting
    /// to be uploaded.
    ///
    /// # Errors
    /// The names or the bytes cannot be read.
    pub fn read_own_pack(
        &self,
        pack: PackNo,
        offset: u32,
        buf: &mut [u8],
        is_pending: impl Fn(&base::BlobId) -> bool,
    ) -> Result<FromOwner, Error> {
        let core = &self.core;
        if core.options.shared.as_ref().is_none_or(|sharing| owner(pack) != sharing.node) {
            return Ok(FromOwner::Gone);
        }
        match core.place_of(pack)? {
            None => return Ok(FromOwner::Gone),
            Some(Place::Blob(blob)) if !is_pending(&blob) => return Ok(FromOwner::InOrigin),
            Some(_) => {}
        }
        match core.read_pack(pack, offset, buf) {
            Ok(()) => Ok(FromOwner::Bytes),
            Err(error) if may_have_moved(&error) => {
                // It was sealed between the two looks.
                core.table.drop(pack);
                match core.place_of(pack)? {
                    None => Ok(FromOwner::Gone),
                    Some(_) => core.read_pack(pack, offset, buf).map(|()| FromOwner::Bytes),
                }
            }
            Err(error) => Err(error),
        }
    }
}
