//! Checks the packs: live bytes, users, blobs, contents.

use base::{Ino, PackNo};
use blob::ExtentPage;
use hashbrown::HashMap;

use crate::key::{Key, tags};
use crate::plan::packs_of;
use crate::record::{ContentRow, DoomedRow, PackRow};
use crate::store::{StoreError, Value};

use super::cursor::Cursor;
use super::{Audit, Finding};

/// How many rows are looked up at once.
const BATCH: usize = 256;

/// What the files' extents say about each pack.
#[derive(Default)]
pub(super) struct Tallies {
    packs: HashMap<PackNo, Tally>,
    /// User rows that must exist and were not looked up yet.
    pending: Vec<(PackNo, Ino, u32)>,
}

#[derive(Clone, Copy, Default)]
struct Tally {
    live: u64,
    users: u64,
    /// User rows that were missing.
    missing: u64,
    end: u32,
}

impl Tallies {
    /// Adds a page in its correct form.
    pub fn add(
        &mut self,
        audit: &mut Audit<'_, '_>,
        ino: Ino,
        number: u32,
        page: &ExtentPage,
    ) -> Result<(), StoreError> {
        for extent in page.extents() {
            let tally = self.packs.entry(extent.pack).or_default();
            tally.live += u64::from(extent.len);
            tally.end = tally.end.max(extent.offset + extent.len);
        }
        for pack in packs_of(page) {
            self.packs.entry(pack).or_default().users += 1;
            self.pending.push((pack, ino, number));
        }
        if self.pending.len() >= BATCH { self.look_up(audit) } else { Ok(()) }
    }

    pub fn look_up(&mut self, audit: &mut Audit<'_, '_>) -> Result<(), StoreError> {
        let keys: Vec<Key> =
            self.pending.iter().map(|&(pack, ino, page)| Key::pack_user(pack, ino, page)).collect();
        let rows = audit.store.get_many(&keys)?;
        for ((pack, ino, page), row) in self.pending.drain(..).zip(rows) {
            if row.is_none() {
                self.packs.entry(pack).or_default().missing += 1;
                audit.report(Finding::MissingUser { pack, ino, page });
            }
        }
        Ok(())
    }
}

pub(super) fn check(audit: &mut Audit<'_, '_>, tallies: &Tallies) -> Result<(), StoreError> {
    let store = audit.store;
    let [mut rows, mut lives, mut users] =
        [tags::PACK, tags::PACK_LIVE, tags::PACK_USER].map(|tag| Cursor::kind(store, tag));
    let mut seen = 0usize;
    loop {
        let next = [rows.number()?, lives.number()?, users.number()?].into_iter().flatten().min();
        let Some(number) = next else { break };
        let pack = PackNo(number);
        let tally = tallies.packs.get(&pack).copied().unwrap_or_default();
        seen += usize::from(tallies.packs.contains_key(&pack));
        match rows.next_of(number)? {
            Some((key, row)) => check_pack(audit, pack, key, row, &tally)?,
            None if tally.live > 0 => audit.report(Finding::LostPack { pack, bytes: tally.live }),
            None => {}
        }
        while lives.next_of(number)?.is_some() {}
        audit.compare(Key::pack_live(pack), tally.live)?;
        let mut count = 0u64;
        while users.next_of(number)?.is_some() {
            count += 1;
        }
        if count + tally.missing > tally.users {
            find_stray_users(audit, pack)?;
        }
        audit.count_rows(rows.take_read() + lives.take_read() + users.take_read());
    }
    if seen < tallies.packs.len() {
        // Packs that are referred to but have no row of their own.
        for (&pack, tally) in &tallies.packs {
            let rows = store.get_many(&[Key::pack(pack), Key::pack_live(pack)])?;
            let has_user = !store.scan(&Key::pack_users(pack), 1)?.is_empty();
            if rows.iter().all(Option::is_none) && !has_user {
                audit.report(Finding::LostPack { pack, bytes: tally.live });
                audit.compare(Key::pack_live(pack), tally.live)?;
            }
        }
    }
    check_blobs(audit)?;
    check_contents(audit)?;
    check_deletions(audit)
}

fn check_pack(
    audit: &mut Audit<'_, '_>,
    pack: PackNo,
    key: Key,
    row: Value,
    tally: &Tally,
) -> Result<(), StoreError> {
    audit.summary.packs += 1;
    let Ok(state) = PackRow::decode(&row) else {
        audit.report(Finding::BadRow { key });
        return Ok(());
    };
    let (blob, size) = match state {
        PackRow::Open => return Ok(()),
        PackRow::Sealed { blob, size } | PackRow::Condemned { blob, size } => (blob, size),
    };
    if tally.end > size {
        audit.report(Finding::LostPack { pack, bytes: tally.live });
    }
    if !state.is_usable() && tally.live > 0 {
        audit.report(Finding::CondemnedInUse { pack, row });
    }
    if audit.store.get(&Key::blob_pack(&blob, pack))?.is_none() {
        audit.report(Finding::MissingBlobRow { pack, blob });
    }
    Ok(())
}

/// A pack has more user rows than users: finds the extra ones.
fn find_stray_users(audit: &mut Audit<'_, '_>, pack: PackNo) -> Result<(), StoreError> {
    let mut users = Cursor::new(audit.store, Key::pack_users(pack));
    while let Some((key, row)) = users.next()? {
        let refers = match key.as_pack_user() {
            Some((_, ino, page)) => refers(audit, ino, page, pack)?,
            None => false,
        };
        if !refers {
            audit.report(Finding::StrayRow { key, row });
        }
    }
    Ok(())
}

fn refers(audit: &Audit<'_, '_>, ino: Ino, page: u32, pack: PackNo) -> Result<bool, StoreError> {
    // The repair will remove a page of an inode that does not exist.
    if audit.store.get(&Key::inode(ino))?.is_none() {
        return Ok(false);
    }
    let row = audit.store.get(&Key::extents(ino, page))?;
    let page = row.and_then(|row| ExtentPage::decode(&row).ok());
    Ok(page.is_some_and(|page| page.extents().iter().any(|extent| extent.pack == pack)))
}

fn check_blobs(audit: &mut Audit<'_, '_>) -> Result<(), StoreError> {
    let mut rows = Cursor::kind(audit.store, tags::BLOB_PACK);
    while let Some((key, row)) = rows.next()? {
        let belongs = match key.as_blob_pack() {
            Some((blob, pack)) => {
                let pack = audit.store.get(&Key::pack(pack))?.and_then(|row| PackRow::decode(&row).ok());
                match pack {
                    Some(PackRow::Sealed { blob: of, .. } | PackRow::Condemned { blob: of, .. }) => {
                        of == blob
                    }
                    Some(PackRow::Open) | None => false,
                }
            }
            None => false,
        };
        if !belongs {
            audit.report(Finding::StrayRow { key, row });
        }
        audit.count_rows(rows.take_read());
    }
    Ok(())
}

fn check_contents(audit: &mut Audit<'_, '_>) -> Result<(), StoreError> {
    let mut rows = Cursor::kind(audit.store, tags::CONTENT);
    while let Some((key, row)) = rows.next()? {
        let (Some(hash), Ok(content)) = (key.as_content(), ContentRow::decode(&row)) else {
            audit.report(Finding::StrayRow { key, row });
            continue;
        };
        let pack = audit.store.get(&Key::pack(content.pack))?.and_then(|row| PackRow::decode(&row).ok());
        let is_there = match pack {
            Some(PackRow::Open) => true,
            Some(PackRow::Sealed { size, .. }) => content.offset + content.len <= size,
            Some(PackRow::Condemned { .. }) | None => false,
        };
        if !is_there {
            audit.report(Finding::StaleContent { hash, row });
        }
        audit.count_rows(rows.take_read());
    }
    Ok(())
}

/// A blob that a shared volume deletes must not be needed.
fn check_deletions(audit: &mut Audit<'_, '_>) -> Result<(), StoreError> {
    let mut rows = Cursor::kind(audit.store, tags::CONDEMNED);
    while let Some((key, row)) = rows.next()? {
        if key.as_condemned().is_none() {
            audit.report(Finding::StrayRow { key, row });
        }
        audit.count_rows(rows.take_read());
    }
    let mut rows = Cursor::kind(audit.store, tags::DOOMED);
    while let Some((key, row)) = rows.next()? {
        let (Some(blob), Ok(_)) = (key.as_doomed(), DoomedRow::decode(&row)) else {
            audit.report(Finding::BadRow { key });
            continue;
        };
        let needs = [Key::blob_packs(&blob), Key::holders(&blob)];
        for need in needs {
            if !audit.store.scan(&need, 1)?.is_empty() {
                audit.report(Finding::DoomedInUse { blob });
                break;
            }
        }
        audit.count_rows(rows.take_read());
    }
    Ok(())
}
