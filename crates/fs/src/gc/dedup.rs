//! Deduplication: equal pages are stored once, however their bytes arrived.
//!
//! A page is a file of up to 4 MiB, or an aligned 4 MiB range of a larger one. Most pages need nothing done
//! here: a small file that arrives in one write is looked up at that moment (`ops/write.rs`), and a page in a
//! pack of its own is a blob whose name is its hash. The others arrived in pieces. Such a page is read,
//! hashed and looked up once it was not written to for [`QUIET`], or once 1 MiB or more of it was written and
//! its file was synced:
//!
//! | its bytes | what is done |
//! |---|---|
//! | are stored elsewhere, and were found sound there ([`crate::equal`]) | the page refers to those; its own become dead |
//! | are new, and in one piece | a row says where they are |
//! | are new, and in several pieces | this is remembered; they are copied into one piece when another page turns out to be equal |
//! | were lost elsewhere | everything that refers to the lost bytes is changed to refer to these |
//!
//! A page is looked at again after half of it was rewritten. So a database that changes a little here and
//! there is not copied again and again. A page in several pieces is copied only when it has an equal: most
//! never do, and every byte would be written twice ([`Scattered`](super::fresh::Scattered)). Pages with
//! holes, and pages that refer to the same bytes twice, are left as they are.

use std::time::Duration;

use base::size::{BLOB_MAX, INLINE_MAX};
use base::{BlobId, Ino, PackNo, time};
use blob::{Extent, ExtentPage};
use meta::plan::Op;
use meta::plan::Refusal;
use meta::plan::op::Move;
use meta::record::{ContentRow, InodeRecord};
use meta::store::CommitError;
use meta::{Commit, Expect, Key, PackRow};

use super::crowd::refers_twice;
use super::fresh::{PAGES_MAX, QUIET, When, Written};
use crate::bytes::content_id;
use crate::equal::{Target, is_lost};
use crate::errno::Error;
use crate::packs::table::Place;
use crate::packs::{Slot, Writer};
use crate::volume::Core;

/// The length of a round.
const ROUND: Duration = Duration::from_millis(200);
/// Pages taken at a time.
const BATCH: usize = 64;
/// How many packs with the same blob are tried.
const TRIED: usize = 4;

/// The result of examining a page.
enum Look {
    Done,
    /// Examine it again when this many bytes of it were written.
    Later(u32),
}

/// The content of a page that is examined.
struct Content<'a> {
    hash: BlobId,
    /// Empty if they did not have to be read.
    bytes: &'a [u8],
    /// The page is a blob.
    is_blob: bool,
    /// Equal bytes elsewhere are lost.
    is_lost: bool,
}

/// Whether other pages may refer to a page at its present place.
enum Kept {
    /// Other pages may refer to the page, at this place; none if its pack was just sealed or condemned.
    At(Option<(PackNo, u32)>),
    /// Other pages may not refer to the page. This is the result of the examination.
    Not(Look),
}

/// What is known of a page without reading it.
enum Known {
    Nothing,
    /// The page is a blob.
    Hash(BlobId),
    /// The page is all of an open pack, which will be a blob soon.
    Soon,
}

impl Core {
    /// The thread that deduplicates. An fsync wakes it, so that equal files are stored once a moment after
    /// they were copied and synced. With a remote origin a check may wait for the network. For that reason
    /// the thread is not joined then.
    pub(crate) fn deduper(&self) {
        let mut complained = false;
        while !self.stopping() {
            let done = if self.may_copy() { self.dedup(When::Quiet, ROUND) } else { Ok(()) };
            if let Err(error) = &done
                && !complained
            {
                self.report(&format!("the search for equal data failed and will be repeated: {error}"));
            }
            complained = done.is_err();
            self.fresh.wait_for_sync(if complained { QUIET } else { ROUND });
        }
    }

    /// Examines written pages, no longer than `patience`.
    pub(crate) fn dedup(&self, when: When, patience: Duration) -> Result<(), Error> {
        if self.is_shared() {
            return Ok(());
        }
        let began = time::monotonic();
        // Collected until the end, so that no page is taken twice.
        let mut later = Vec::new();
        let mut done = Ok(());
        'all: loop {
            let batch = self.fresh.take(when, BATCH);
            if batch.is_empty() {
                break;
            }
            let mut batch = batch.into_iter();
            while let Some((page, written)) = batch.next() {
                match self.dedup_page(page.0, page.1, &written, when) {
                    Ok(Look::Done) => {}
                    Ok(Look::Later(enough)) => later.push((page, written, enough)),
                    // The page cannot be read, or the disk is full. Reads report that; the page stays as it
                    // is.
                    Err(Error::Blob(_)) => {}
                    Err(error) => done = Err(error),
                }
                let over = time::monotonic().saturating_duration_since(began) >= patience || self.stopping();
                if done.is_err() || over {
                    later.extend(batch.map(|(page, written)| (page, written, 0)));
                    break 'all;
                }
            }
        }
        later.into_iter().for_each(|(page, written, enough)| self.fresh.put_back(page, &written, enough));
        done
    }

    fn dedup_page(&self, ino: Ino, page: u32, written: &Written, when: When) -> Result<Look, Error> {
        let record = self.names.inode(ino)?;
        let Some(record) = record.filter(|record| record.is_file() && !record.has(InodeRecord::INLINE))
        else {
            return Ok(Look::Done);
        };
        let start = u64::from(page) * u64::from(BLOB_MAX);
        let len = record.size.saturating_sub(start).min(u64::from(BLOB_MAX)) as u32;
        let extents = self.names.extents(ino, page)?;
        if len <= INLINE_MAX as u32 && page == 0
            || !is_dense(&extents, len)
            || refers_twice(extents.extents())
        {
            return Ok(Look::Done);
        }
        if when != When::All && written.bytes < len / 2 {
            return Ok(Look::Later(len / 2));
        }
        let pieces = extents.extents();
        let known = match self.known(pieces)? {
            // A pack that is not full is sealed only after it was idle for a while.
            Known::Soon if when == When::Quiet && (len == BLOB_MAX || !written.synced) => {
                return Ok(Look::Later(0));
            }
            Known::Hash(blob) => Some(blob),
            Known::Nothing | Known::Soon => None,
        };
        if known.is_none() && self.is_remote(pieces)? {
            return Ok(Look::Done);
        }
        let mut bytes = Vec::new();
        let hash = match known {
            Some(blob) => blob,
            None => {
                bytes = self.read_pieces(pieces, len)?;
                content_id(&bytes)
            }
        };
        let mut lost = None;
        for candidate in self.candidates(&hash, len, known.is_some())? {
            if is_at(pieces, &candidate) {
                return Ok(Look::Done);
            }
            if bytes.is_empty() {
                bytes = self.read_pieces(pieces, len)?;
            }
            match self.check_target(&candidate, &bytes, when != When::Closing) {
                // The check may have waited so long that the volume was closed meanwhile.
                _ if when == When::Quiet && self.stopping() => return Ok(Look::Later(0)),
                Target::Sound => return self.refer_to(ino, page, pieces, &candidate),
                Target::Lost => lost = Some(candidate),
                Target::Stale => {}
                Target::Unknown => return Ok(Look::Later(0)),
            }
        }
        let content = Content { hash, bytes: &bytes, is_blob: known.is_some(), is_lost: lost.is_some() };
        match self.keep_here((ino, page), pieces, &content)? {
            Kept::Not(look) => return Ok(look),
            Kept::At(here) => {
                if let (Some(lost), Some((to, to_offset))) = (lost, here) {
                    self.heal(&lost, to, to_offset)?;
                }
            }
        }
        Ok(Look::Done)
    }

    /// Keeps the page's bytes, which are stored nowhere else: joined into one piece if other pages will refer
    /// to them.
    fn keep_here(&self, page: (Ino, u32), pieces: &[Extent], content: &Content<'_>) -> Result<Kept, Error> {
        let (hash, bytes) = (content.hash, content.bytes);
        let mut other = None;
        let here = match pieces {
            [one] if content.is_blob => Some((one.pack, one.offset)),
            [one] => self.note_content(&hash, one.pack, one.offset, one.len)?,
            _ if !self.may_copy() => return Ok(Kept::Not(Look::Later(0))),
            _ => {
                other = self.scattered.meet(hash, page);
                if other.is_none() && !content.is_lost {
                    return Ok(Kept::Not(Look::Done));
                }
                self.join_pieces(page.0, page.1, pieces, bytes, &hash)?
            }
        };
        let forgotten = self.scattered.take(&hash);
        if let Some(other) = other.or(forgotten).filter(|other| *other != page) {
            // The other page is examined again, and will refer to these bytes.
            self.fresh.put_back(other, &Written::all(), 0);
        }
        Ok(Kept::At(here))
    }

    fn known(&self, pieces: &[Extent]) -> Result<Known, Error> {
        let [one] = pieces else { return Ok(Known::Nothing) };
        if one.offset != 0 {
            return Ok(Known::Nothing);
        }
        Ok(match self.pack_row(one.pack)? {
            Some(PackRow::Sealed { blob, size }) if size == one.len => Known::Hash(blob),
            Some(PackRow::Open) if self.packs.is_all_of(one.pack, one.len) => Known::Soon,
            _ => Known::Nothing,
        })
    }

    /// Whether reading these pieces would wait for a network.
    fn is_remote(&self, pieces: &[Extent]) -> Result<bool, Error> {
        if self.options.local {
            return Ok(false);
        }
        for piece in pieces {
            if let Some(Place::Blob(blob)) = self.place_of(piece.pack)?
                && !self.parts.source.is_local(&blob)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn read_pieces(&self, pieces: &[Extent], len: u32) -> Result<Vec<u8>, Error> {
        let mut bytes = vec![0; len as usize];
        for piece in pieces {
            let to = &mut bytes[piece.at as usize..piece.end() as usize];
            match self.read_pack(piece.pack, piece.offset, to) {
                // It may have moved since the names were read.
                Err(error) if is_lost(&error) => {
                    self.table.drop(piece.pack);
                    self.read_pack(piece.pack, piece.offset, to)?;
                }
                done => done?,
            }
        }
        Ok(bytes)
    }

    /// Where these bytes were stored. `is_blob`: they are a blob here; then other packs with the same blob
    /// share its storage already.
    fn candidates(&self, hash: &BlobId, len: u32, is_blob: bool) -> Result<Vec<ContentRow>, Error> {
        let mut all: Vec<ContentRow> =
            self.names.content(hash)?.filter(|row| row.len == len).into_iter().collect();
        if is_blob {
            return Ok(all);
        }
        for pack in self.names.blob_packs(hash)?.into_iter().take(TRIED) {
            if let Some(PackRow::Sealed { size, .. }) = self.pack_row(pack)?
                && size == len
            {
                all.push(ContentRow { pack, offset: 0, len });
            }
        }
        Ok(all)
    }

    /// The page's bytes also exist at `target`: makes the page refer to those, as far as it was not changed
    /// meanwhile.
    fn refer_to(&self, ino: Ino, page: u32, pieces: &[Extent], target: &ContentRow) -> Result<Look, Error> {
        let moves = moves(pieces, target.pack, target.offset, |_| None);
        match self.run(&Op::Follow { ino, page, moves: &moves }) {
            Ok(change) => {
                self.counters.dedup_hits.add(1);
                self.counters.dedup_bytes.add(change.done);
                // Its own copy is dead. A pack that is not full would be kept open until it is idle.
                self.packs.close_own(ino, page);
                Ok(Look::Done)
            }
            Err(Error::Refused(Refusal::ContentGone)) => Ok(Look::Later(0)),
            Err(error) => Err(error),
        }
    }

    /// Copies a page into one piece, and records where it is.
    fn join_pieces(
        &self,
        ino: Ino,
        page: u32,
        pieces: &[Extent],
        bytes: &[u8],
        hash: &BlobId,
    ) -> Result<Option<(PackNo, u32)>, Error> {
        let (slot, _): (Slot, u32) = self.store_range(Writer::Mover, bytes)?;
        self.counters.moved_bytes.add(bytes.len() as u64);
        let crc = |piece: &Extent| Some(blob::sums::crc32c(&bytes[piece.at as usize..piece.end() as usize]));
        let moves = moves(pieces, slot.pack(), slot.offset, crc);
        self.run(&Op::Follow { ino, page, moves: &moves })?;
        self.note_content(hash, slot.pack(), slot.offset, bytes.len() as u32)
    }

    /// Records where a content is, if its pack may be referred to.
    fn note_content(
        &self,
        hash: &BlobId,
        pack: PackNo,
        offset: u32,
        len: u32,
    ) -> Result<Option<(PackNo, u32)>, Error> {
        let Some(row) = self.pack_row(pack)?.filter(PackRow::is_usable) else { return Ok(None) };
        let mut commit = Commit::default();
        commit.checks.push((Key::pack(pack), Expect::Is(row.encode())));
        commit.puts.push((Key::content(hash), ContentRow { pack, offset, len }.encode()));
        match self.parts.store.commit(commit) {
            Ok(()) => Ok(Some((pack, offset))),
            // The pack was sealed or condemned just now.
            Err(CommitError::Conflict { .. }) => Ok(None),
            Err(CommitError::Store(error)) => Err(error.into()),
        }
    }

    /// Marks the pages that a pack holds bytes of for examination: the run that wrote them did not finish
    /// that.
    pub(crate) fn note_users(&self, pack: PackNo) -> Result<(), Error> {
        for (ino, page) in self.names.pack_users(pack, (Ino(0), 0), PAGES_MAX)? {
            self.fresh.put_back((ino, page), &Written::all(), 0);
        }
        Ok(())
    }
}

/// Whether the extents cover the first `len` bytes of a page, and nothing else.
fn is_dense(extents: &ExtentPage, len: u32) -> bool {
    let end = extents.extents().iter().try_fold(0, |end, piece| (piece.at == end).then(|| piece.end()));
    len > 0 && end == Some(len)
}

/// Whether these pieces are exactly that range.
fn is_at(pieces: &[Extent], place: &ContentRow) -> bool {
    matches!(pieces, [one] if one.pack == place.pack && one.offset == place.offset)
}

/// The moves of a page's pieces to one range, sorted as the planner wants them.
fn moves(pieces: &[Extent], to: PackNo, to_offset: u32, crc: impl Fn(&Extent) -> Option<u32>) -> Vec<Move> {
    let step = |piece: &Extent| Move {
        from: piece.pack,
        from_offset: piece.offset,
        len: piece.len,
        to,
        to_offset: to_offset + piece.at,
        crc: crc(piece),
    };
    let mut moves: Vec<Move> = pieces.iter().map(step).collect();
    moves.sort_unstable_by_key(|step| (step.from, step.from_offset));
    moves
}
