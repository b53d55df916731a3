//! Checks a volume: its names against one another, and its names against its bytes.
//!
//! ```text
//!   1 names    meta::audit: rows, links, counts, extents, packs' counts
//!   2 blobs    every sealed pack: its blob is there, has its size, and is what its name says
//!   3 open     every open pack that something refers to: its file exists and has the bytes that were written
//!   4 trees    every blob that only a published tree needs is there
//!   5 strays   every blob of the origin belongs to a pack or to a published tree
//! ```
//!
//! Everything is streamed. Only the audit's own state and the findings are held in memory. The volume must
//! not be in use. A repair never replaces lost bytes with zeros: reads of a lost blob fail before and after
//! it. A repair corrects rows that contradict one another, restores inodes that lost their name, and deletes
//! blobs that nothing refers to.

mod finding;
mod lost;
mod users;

use base::size::GROUP;
use base::{BlobId, Ino, PackNo};
use blob::BlobError;
use meta::audit::{self, Listener};
use meta::key::tags;
use meta::plan::{Ctx, Op};
use meta::record::HeldRow;
use meta::store::CommitError;
use meta::{Key, Names, PackRow};

use crate::errno::Error;
use crate::packs::seal::is_damage;
use crate::volume::{OpenError, Parts, Volume};

pub use finding::{FileRange, Finding, RANGES_MAX};
pub(crate) use lost::name_in;
pub use lost::{Lost, lost, path_of};
use users::range_of;
pub use users::users;

/// How thoroughly blobs are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// A check that the blobs exist, with their sizes. Reads no data.
    Presence,
    /// A check that the blobs' stored sums match. Reads all data.
    Sums,
    /// A check that each blob's hash is its name. Reads all data.
    #[default]
    Full,
}

/// The phase of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Rows of names; counted in rows.
    Names,
    /// Sealed packs; counted in bytes.
    Blobs,
    /// Open packs; counted each.
    OpenPacks,
    /// What the origin holds; counted in blobs.
    Unreferenced,
}

/// The progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current phase.
    pub phase: Phase,
    /// How much of it is done.
    pub done: u64,
}

/// What a check went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// What the audit of names counted.
    pub names: audit::Summary,
    /// Sealed packs checked.
    pub blobs: u64,
    /// Bytes of the sealed packs checked.
    pub blob_bytes: u64,
    /// All findings.
    pub findings: u64,
    /// Findings that are not harmless.
    pub serious: u64,
}

/// The callbacks of a check.
pub struct Callbacks<'a> {
    /// Called with each finding.
    pub found: &'a mut dyn FnMut(Finding),
    /// Called now and then.
    pub progress: &'a mut dyn FnMut(Progress),
}

impl Callbacks<'_> {
    fn done(&mut self, phase: Phase, done: u64) {
        (self.progress)(Progress { phase, done });
    }
}

/// Checks a volume that is not in use.
///
/// # Errors
/// It is no volume, or its store or origin failed as a whole.
pub fn check(parts: &Parts, depth: Depth, callbacks: &mut Callbacks<'_>) -> Result<Summary, OpenError> {
    Volume::probe(&*parts.store)?;
    let mut summary = Summary::default();
    let mut found = Vec::new();
    summary.names = {
        let mut listener = Listener {
            found: &mut |finding| found.push(Finding::Names(finding)),
            progress: &mut |rows| callbacks.done(Phase::Names, rows),
        };
        audit::audit(&*parts.store, &mut listener).map_err(OpenError::Store)?
    };
    let mut check = Check { parts, names: Names::new(parts.store.clone()), depth, callbacks, summary };
    found.into_iter().for_each(|finding| check.report(finding));
    check.packs().map_err(OpenError::from)?;
    check.trees().map_err(OpenError::from)?;
    check.strays().map_err(OpenError::from)?;
    Ok(check.summary)
}

/// A check in progress.
struct Check<'a, 'e> {
    parts: &'a Parts,
    names: Names,
    depth: Depth,
    callbacks: &'a mut Callbacks<'e>,
    summary: Summary,
}

impl Check<'_, '_> {
    fn report(&mut self, finding: Finding) {
        self.summary.findings += 1;
        self.summary.serious += u64::from(!finding.is_harmless());
        (self.callbacks.found)(finding);
    }

    fn packs(&mut self) -> Result<(), Error> {
        let open = self.parts.packs.open_packs()?;
        let mut from = PackNo(0);
        let mut open_seen = 0;
        loop {
            let rows = self.names.packs(from, 256)?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            from = PackNo(last.0 + 1);
            for (pack, row) in rows {
                match row {
                    PackRow::Sealed { blob, size } => self.sealed(pack, blob, size, &open)?,
                    PackRow::Open => {
                        open_seen += 1;
                        let len = open.iter().find(|(no, _)| *no == pack).map(|(_, len)| *len);
                        self.open(pack, len)?;
                        self.callbacks.done(Phase::OpenPacks, open_seen);
                    }
                    PackRow::Condemned { .. } => {}
                }
            }
        }
    }

    fn sealed(&mut self, pack: PackNo, blob: BlobId, size: u32, open: &[(PackNo, u64)]) -> Result<(), Error> {
        // It was sealed, and a crash came before it was retired: its bytes are read from its open pack until
        // it is sealed again.
        let open = open.iter().any(|(no, len)| *no == pack && *len >= u64::from(size));
        let looked = if open { Ok(None) } else { self.look_at(blob, size) };
        self.summary.blobs += 1;
        self.summary.blob_bytes += u64::from(size);
        let done = self.summary.blob_bytes;
        self.callbacks.done(Phase::Blobs, done);
        match looked {
            Ok(None) => Ok(()),
            Ok(Some(what)) => {
                let files = self.users(pack)?;
                self.report(Finding::DamagedBlob { pack, blob, what, files });
                Ok(())
            }
            Err(BlobError::Missing(_)) => {
                let files = self.users(pack)?;
                self.report(Finding::MissingBlob { pack, blob, files });
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What is wrong with a blob, if anything.
    fn look_at(&self, blob: BlobId, size: u32) -> Result<Option<String>, BlobError> {
        let origin = &self.parts.origin;
        match origin.size(&blob)? {
            None => return Err(BlobError::Missing(blob)),
            Some(found) if found != u64::from(size) => {
                return Ok(Some(format!("it has {found} bytes instead of {size}")));
            }
            Some(_) => {}
        }
        let looked = match self.depth {
            Depth::Presence => Ok(()),
            Depth::Full => origin.verify(&blob),
            Depth::Sums => {
                let mut buf = vec![0; GROUP as usize];
                (0..size).step_by(GROUP as usize).try_for_each(|at| {
                    let len = GROUP.min(size - at) as usize;
                    origin.read_at(&blob, at, &mut buf[..len])
                })
            }
        };
        match looked {
            Ok(()) => Ok(None),
            Err(BlobError::Damaged { what, .. }) => Ok(Some(what)),
            Err(BlobError::Io(error)) => Ok(Some(error.to_string())),
            Err(error) => Err(error),
        }
    }

    /// Checks the blobs that only published trees need. Blobs of packs were checked with the packs.
    fn trees(&mut self) -> Result<(), Error> {
        let mut range = Key::kind(tags::HELD);
        loop {
            let rows = self.parts.store.scan(&range, 256)?;
            let Some((last, _)) = rows.last() else { return Ok(()) };
            range.start = last.successor();
            for (key, row) in &rows {
                let Some((blob, tree)) = key.as_held() else { continue };
                let is_needed = matches!(HeldRow::decode(row), Ok(HeldRow::Held | HeldRow::KeptAt(_)));
                if !is_needed || !self.names.blob_packs(&blob)?.is_empty() {
                    continue;
                }
                let looked = match self.parts.origin.size(&blob)? {
                    None => Err(BlobError::Missing(blob)),
                    Some(_) if self.depth == Depth::Presence => Ok(()),
                    Some(_) => self.parts.origin.verify(&blob),
                };
                let what = match looked {
                    Ok(()) => continue,
                    Err(BlobError::Missing(_)) => "it is missing".to_owned(),
                    Err(BlobError::Damaged { what, .. }) => what,
                    Err(error) => return Err(error.into()),
                };
                let tree = String::from_utf8_lossy(tree).into_owned();
                self.report(Finding::BrokenTree { tree, blob, what });
            }
        }
    }

    fn open(&mut self, pack: PackNo, len: Option<u64>) -> Result<(), Error> {
        if self.names.pack_live(pack).unwrap_or(0) == 0 {
            if len.is_none() {
                self.report(Finding::DeadPack { pack });
            }
            return Ok(());
        }
        let needed = self.end_of(pack)?;
        if len.is_none_or(|len| len < needed) {
            let files = self.users(pack)?;
            self.report(Finding::LostOpenPack { pack, len, files });
            return Ok(());
        }
        let files = if self.depth == Depth::Presence { Vec::new() } else { self.damaged_in_open(pack)? };
        if !files.is_empty() {
            self.report(Finding::DamagedOpenPack { pack, files });
        }
        Ok(())
    }

    /// The ranges of files whose bytes in an open pack are not those that were written.
    fn damaged_in_open(&self, pack: PackNo) -> Result<Vec<FileRange>, Error> {
        let mut files: Vec<FileRange> = Vec::new();
        let mut failed = None;
        self.each_extent(pack, &mut |ino, page, extent| {
            let mut bytes = vec![0; extent.len as usize];
            match self.parts.packs.read(pack, extent.offset, &mut bytes) {
                Ok(()) => {}
                Err(error) if is_damage(&error) => files.push(range_of(ino, page, extent)),
                Err(error) => failed = Some(error),
            }
            failed.is_none() && files.len() < RANGES_MAX
        })?;
        for file in &mut files {
            file.path = path_of(&self.names, file.ino)?;
        }
        failed.map_or(Ok(files), |error| Err(error.into()))
    }

    /// The end of the last byte of a pack that something refers to.
    fn end_of(&self, pack: PackNo) -> Result<u64, Error> {
        let mut end = 0;
        self.each_extent(pack, &mut |_, _, extent| {
            end = end.max(u64::from(extent.offset) + u64::from(extent.len));
            true
        })?;
        Ok(end)
    }

    /// The ranges of files that a pack holds.
    fn users(&self, pack: PackNo) -> Result<Vec<FileRange>, Error> {
        users::of(&self.names, pack)
    }

    fn each_extent(
        &self,
        pack: PackNo,
        each: &mut dyn FnMut(Ino, u32, &blob::Extent) -> bool,
    ) -> Result<(), Error> {
        users::each_extent(&self.names, pack, each)
    }

    fn strays(&mut self) -> Result<(), Error> {
        let origin = self.parts.origin.clone();
        let (mut seen, mut failed) = (0, None);
        origin.list(&mut |blob, size| {
            seen += 1;
            match self.names.blob_packs(&blob) {
                Ok(packs) if packs.is_empty() => match self.names.is_held(&blob) {
                    Ok(true) => {}
                    Ok(false) => self.report(Finding::StrayBlob { blob, size }),
                    Err(error) => {
                        failed = Some(error);
                        return false;
                    }
                },
                Ok(_) => {}
                Err(error) => {
                    failed = Some(error);
                    return false;
                }
            }
            self.callbacks.done(Phase::Unreferenced, seen);
            true
        })?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }
}

/// Repairs a finding of a check of this volume, if the volume was not used since. Returns false if the
/// finding cannot be repaired, or no longer applies.
///
/// # Errors
/// The store or the origin failed.
pub fn repair(parts: &Parts, finding: &Finding) -> Result<bool, OpenError> {
    match finding {
        Finding::Names(finding) => {
            let Some(commit) = audit::repair(finding) else { return Ok(false) };
            match parts.store.commit(commit) {
                Ok(()) => Ok(true),
                Err(CommitError::Conflict { .. }) => Ok(false),
                Err(CommitError::Store(error)) => Err(OpenError::Store(error)),
            }
        }
        Finding::DeadPack { pack } => {
            let ctx = Ctx { now: base::time::now(), uid: 0, gid: 0 };
            let names = Names::new(parts.store.clone());
            match names.run(&Op::ForgetPack { pack: *pack }, &ctx).map_err(Error::from) {
                Ok(_) => Ok(true),
                Err(Error::Refused(_)) => Ok(false),
                Err(error) => Err(error.into()),
            }
        }
        Finding::StrayBlob { blob, .. } => {
            let packs = Names::new(parts.store.clone()).blob_packs(blob).map_err(OpenError::Store)?;
            let held = Names::new(parts.store.clone()).is_held(blob).map_err(OpenError::Store)?;
            if held || !packs.is_empty() {
                return Ok(false);
            }
            parts.origin.remove(blob).map_err(OpenError::Blob)?;
            Ok(true)
        }
        Finding::MissingBlob { .. }
        | Finding::DamagedBlob { .. }
        | Finding::LostOpenPack { .. }
        | Finding::DamagedOpenPack { .. }
        | Finding::OnAbsentNode { .. }
        | Finding::BrokenTree { .. } => Ok(false),
    }
}

/// What a repair does with blobs that nothing refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreferenced {
    /// The blobs are deleted: this volume owns the origin, and its rows hold what is published there.
    Remove,
    /// The blobs stay: it is unknown whether another volume needs them.
    Keep,
}

/// Checks, repairs what can be repaired, and repeats until a check finds nothing more to repair. `found` is
/// called with every finding, and whether it was repaired.
///
/// # Errors
/// As [`check`] and [`repair`].
pub fn check_and_repair(
    parts: &Parts,
    depth: Depth,
    strays: Unreferenced,
    found: &mut dyn FnMut(&Finding, bool),
    progress: &mut dyn FnMut(Progress),
) -> Result<Summary, OpenError> {
    /// A repair may reveal further findings, but only a few.
    const PASSES: usize = 8;
    let mut reported: Vec<Finding> = Vec::new();
    for pass in 1.. {
        let mut findings = Vec::new();
        let depth = if pass == 1 { depth } else { Depth::Presence };
        let summary =
            check(parts, depth, &mut Callbacks { found: &mut |finding| findings.push(finding), progress })?;
        let mut repaired = 0;
        for finding in &findings {
            let kept = strays == Unreferenced::Keep && matches!(finding, Finding::StrayBlob { .. });
            let done = pass < PASSES && !kept && repair(parts, finding)?;
            repaired += u64::from(done);
            if done || !reported.contains(finding) {
                found(finding, done);
            }
        }
        reported.extend(findings);
        if repaired == 0 {
            return Ok(summary);
        }
        parts.store.flush().map_err(OpenError::Store)?;
    }
    Ok(Summary::default())
}
