//! Checks the files: names, inodes, and every row that belongs to an inode.
//!
//! There are three passes. The first counts all names by inode. The second looks at all rows of each inode,
//! of every kind. If some inodes have wrong names, the third finds those names.

use base::Ino;
use base::size::{INLINE_MAX, NAME_MAX};
use blob::ExtentPage;
use hashbrown::HashMap;

use crate::key::{DentryKey, Key, tags};
use crate::plan::{ACCESS_ACL, CAPABILITY, DEFAULT_ACL, nothing};
use crate::quota::{self, QuotaRow};
use crate::record::{Dentry, InodeRecord, mode};
use crate::store::{StoreError, Value};
use crate::trash::TrashRow;

use super::cursor::Cursor;
use super::packs::Tallies;
use super::{Audit, Finding};

/// What the names say about an inode.
#[derive(Clone, Copy)]
struct Named {
    /// The directory of the name seen last.
    parent: Ino,
    names: u32,
    /// The kind that all its names agree on; 0 if they differ.
    kind: u32,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// No inode was seen.
    Missing,
    /// The inode agrees with its names.
    Seen,
    /// The inode's names are to be checked one by one.
    Suspect,
    /// A directory on the path that is being walked.
    OnPath,
    /// A directory from which the root was reached.
    Reached,
}

type Names = HashMap<Ino, Named>;

pub(super) fn check(audit: &mut Audit<'_, '_>, tallies: &mut Tallies) -> Result<(), StoreError> {
    let mut names = count_names(audit)?;
    check_inodes(audit, &mut names, tallies)?;
    tallies.look_up(audit)?;
    if names.values().any(|named| matches!(named.state, State::Missing | State::Suspect)) {
        find_names(audit, &names)?;
    }
    find_loops(audit, &mut names)
}

fn count_names(audit: &mut Audit<'_, '_>) -> Result<Names, StoreError> {
    let mut names = Names::new();
    let mut rows = Cursor::kind(audit.store, tags::DENTRY);
    while let Some((key, row)) = rows.next()? {
        audit.summary.names += 1;
        audit.count_rows(rows.take_read());
        let Ok(dentry) = Dentry::decode(&row) else {
            audit.report(Finding::BadRow { key });
            continue;
        };
        // An entry at another position than a lookup of its name expects can be listed but never opened.
        let Some(entry) = sound_entry(&key) else {
            audit.report(Finding::BadName { key, ino: dentry.ino, row });
            continue;
        };
        let first = Named { parent: entry.parent, names: 0, kind: dentry.kind, state: State::Missing };
        let named = names.entry(dentry.ino).or_insert(first);
        named.names = named.names.saturating_add(1);
        named.parent = entry.parent;
        if named.kind != dentry.kind {
            named.kind = 0;
        }
    }
    Ok(names)
}

/// The parts of an entry's key, if it can be the name of something.
fn sound_entry(key: &Key) -> Option<DentryKey<'_>> {
    key.as_dentry().filter(DentryKey::is_placed)
}

/// Cursors over all kinds of rows that are keyed by inode.
struct Side<'a> {
    inodes: Cursor<'a>,
    entries: Cursor<'a>,
    extents: Cursor<'a>,
    inline: Cursor<'a>,
    xattrs: Cursor<'a>,
    changed: Cursor<'a>,
    subdirs: Cursor<'a>,
    orphans: Cursor<'a>,
    quotas: Cursor<'a>,
    trash: Cursor<'a>,
}

impl<'a> Side<'a> {
    fn all(&mut self) -> [&mut Cursor<'a>; 10] {
        [
            &mut self.inodes,
            &mut self.entries,
            &mut self.extents,
            &mut self.inline,
            &mut self.xattrs,
            &mut self.changed,
            &mut self.subdirs,
            &mut self.orphans,
            &mut self.quotas,
            &mut self.trash,
        ]
    }

    fn next(&mut self) -> Result<Option<u64>, StoreError> {
        let mut least = None;
        for cursor in self.all() {
            let number = cursor.number()?;
            least = [least, number].into_iter().flatten().min();
        }
        Ok(least)
    }
}

fn check_inodes(
    audit: &mut Audit<'_, '_>,
    names: &mut Names,
    tallies: &mut Tallies,
) -> Result<(), StoreError> {
    let of = |tag| Cursor::kind(audit.store, tag);
    let mut side = Side {
        inodes: of(tags::INODE),
        entries: of(tags::DENTRY),
        extents: of(tags::EXTENTS),
        inline: of(tags::INLINE),
        xattrs: of(tags::XATTR),
        changed: of(tags::DIR_CHANGED),
        subdirs: of(tags::SUBDIRS),
        orphans: of(tags::ORPHAN),
        quotas: of(tags::QUOTA),
        trash: of(tags::TRASH),
    };
    while let Some(number) = side.next()? {
        check_inode(audit, &mut side, Ino(number), names, tallies)?;
        let read = side.all().into_iter().map(|cursor| cursor.take_read()).sum();
        audit.count_rows(read);
    }
    Ok(())
}

fn check_inode(
    audit: &mut Audit<'_, '_>,
    side: &mut Side<'_>,
    ino: Ino,
    names: &mut Names,
    tallies: &mut Tallies,
) -> Result<(), StoreError> {
    let row = side.inodes.next_of(ino.0)?;
    let mark = side.orphans.next_of(ino.0)?;
    let (live, marked) = (row.is_some(), mark.is_some());
    let trash = check_trash(audit, side, ino, Rows { live, marked })?;
    let holder = match (row, mark) {
        (Some(row), Some((key, mark))) => {
            if !mark.is_empty() {
                audit.report(Finding::StrayRow { key, row: mark });
            }
            Some(row)
        }
        (None, Some((key, mark))) if mark.is_empty() => {
            audit.report(Finding::StrayRow { key, row: mark });
            None
        }
        (row, mark) => row.or(mark),
    };
    let (holder, decoded) = match (&trash, holder) {
        (Some(trash), None) => (Some((trash.key.clone(), trash.row.clone())), trash.dir.map(Ok)),
        (_, holder) => {
            let decoded = holder.as_ref().map(|(_, row)| InodeRecord::decode(row));
            (holder, decoded)
        }
    };
    let (Some((key, row)), Some(Ok(record))) = (holder, decoded.clone()) else {
        if decoded.is_some() {
            audit.report(Finding::BadRow { key: if live { Key::inode(ino) } else { Key::orphan(ino) } });
            if let Some(named) = names.get_mut(&ino) {
                named.state = State::Seen;
            }
            return skip(side, ino, |_| {});
        }
        return skip(side, ino, |(key, row)| audit.report(Finding::StrayRow { key, row }));
    };
    audit.summary.inodes += 1;
    audit.summary.orphans += u64::from(marked);
    audit.summary.trash += u64::from(trash.is_some());
    let mut right = record;
    let marked = trash.map(|trash| (trash.key, trash.row)).or(marked.then(|| (Key::orphan(ino), nothing())));
    check_names(audit, ino, &row, (live, marked), names, &mut right);
    check_entries(audit, side, ino, record.is_dir() && live)?;
    check_bytes(audit, side, ino, tallies, &mut right)?;
    check_xattrs(audit, side, ino, &mut right)?;
    check_quota(audit, side, ino, &mut right)?;
    audit.summary.bytes += right.stored;
    audit.count_used(right.quota, right.stored);
    if right != record {
        audit.report(Finding::WrongInode { ino, key, row, right: Box::new(right) });
    }
    Ok(())
}

/// Skips all rows of an inode.
fn skip(side: &mut Side<'_>, ino: Ino, mut each: impl FnMut((Key, Value))) -> Result<(), StoreError> {
    for cursor in side.all() {
        while let Some(row) = cursor.next_of(ino.0)? {
            each(row);
        }
    }
    Ok(())
}

/// Which rows an inode has.
#[derive(Clone, Copy)]
struct Rows {
    /// The inode's own row.
    live: bool,
    /// The mark of an open file without a name.
    marked: bool,
}

/// The row of an inode in the trash, as it should be.
struct InTrash {
    key: Key,
    row: Value,
    /// Of a directory: its inode.
    dir: Option<InodeRecord>,
}

/// Checks the row of an inode in the trash. It is in place of the mark, and holds the inode of a directory.
fn check_trash(
    audit: &mut Audit<'_, '_>,
    side: &mut Side<'_>,
    ino: Ino,
    Rows { live, marked }: Rows,
) -> Result<Option<InTrash>, StoreError> {
    let Some((key, row)) = side.trash.next_of(ino.0)? else { return Ok(None) };
    match TrashRow::decode(&row) {
        Ok(TrashRow { dir, .. }) if !marked && dir.is_none() == live => Ok(Some(InTrash { key, row, dir })),
        _ => {
            audit.report(Finding::StrayRow { key, row });
            Ok(None)
        }
    }
}

/// Checks links, parent and mark: the row that says that it has no name. `right` becomes what the row should
/// say.
fn check_names(
    audit: &mut Audit<'_, '_>,
    ino: Ino,
    row: &Value,
    (live, marked): (bool, Option<(Key, Value)>),
    names: &mut Names,
    right: &mut InodeRecord,
) {
    let is_dir = right.is_dir();
    let mut count = 0;
    let mut parent = Ino(0);
    if let Some(named) = names.get_mut(&ino) {
        count = named.names;
        parent = named.parent;
        // A removed directory cannot have a name.
        named.state = match named.kind == right.kind() && (count == 1 || !is_dir) {
            _ if !live => State::Missing,
            true => State::Seen,
            false => State::Suspect,
        };
        if !live {
            count = 0;
        }
    }
    if ino == Ino::ROOT {
        (right.nlink, right.parent) = (1, Ino::ROOT);
        return;
    }
    if count == 0 && marked.is_none() {
        // The repair gives it a name, with one link.
        audit.report(Finding::OrphanInode { ino, row: row.clone() });
        return;
    }
    if let Some((key, row)) = marked.filter(|_| count > 0) {
        audit.report(Finding::StrayRow { key, row });
    }
    right.nlink = if is_dir { count.min(1) } else { count };
    right.parent = match count {
        // A removed directory keeps its old parent.
        0 => right.parent,
        1 if is_dir || right.parent != Ino(0) => parent,
        1 => Ino(0),
        // One of a directory's names is right. The third pass finds out which.
        _ if is_dir => right.parent,
        _ => Ino(0),
    };
}

/// Checks directory entries and their counters.
fn check_entries(
    audit: &mut Audit<'_, '_>,
    side: &mut Side<'_>,
    ino: Ino,
    is_live_dir: bool,
) -> Result<(), StoreError> {
    let mut subdirs = 0;
    while let Some((key, row)) = side.entries.next_of(ino.0)? {
        if !is_live_dir {
            audit.report(Finding::StrayRow { key, row });
        } else if Dentry::decode(&row).is_ok_and(|dentry| dentry.is_dir()) && sound_entry(&key).is_some() {
            subdirs += 1;
        }
    }
    while let Some((key, row)) = side.changed.next_of(ino.0)? {
        if !is_live_dir || row.len() != 8 {
            audit.report(Finding::StrayRow { key, row });
        }
    }
    let counted = side.subdirs.next_of(ino.0)?.is_some();
    if counted || subdirs > 0 {
        audit.compare(Key::subdirs(ino), subdirs)?;
    }
    Ok(())
}

/// Checks the quota of a directory. Its flag and its row say the same.
fn check_quota(
    audit: &mut Audit<'_, '_>,
    side: &mut Side<'_>,
    ino: Ino,
    right: &mut InodeRecord,
) -> Result<(), StoreError> {
    let mut counts = false;
    while let Some((key, row)) = side.quotas.next_of(ino.0)? {
        match QuotaRow::decode(&row) {
            Ok(row) if right.is_dir() => counts = row.state != quota::State::Removing,
            Ok(_) => audit.report(Finding::StrayRow { key, row }),
            Err(_) => {
                audit.report(Finding::BadRow { key });
                counts = right.has(InodeRecord::QUOTA_ROOT);
            }
        }
    }
    right.set(InodeRecord::QUOTA_ROOT, counts);
    Ok(())
}

/// Checks the bytes of a file or a symbolic link.
fn check_bytes(
    audit: &mut Audit<'_, '_>,
    side: &mut Side<'_>,
    ino: Ino,
    tallies: &mut Tallies,
    right: &mut InodeRecord,
) -> Result<(), StoreError> {
    let is_link = right.kind() == mode::S_IFLNK;
    let flagged = right.has(InodeRecord::INLINE);
    let mut stored = 0;
    let mut inline = None;
    while let Some((key, row)) = side.inline.next_of(ino.0)? {
        let fits = is_link || right.is_file() && row.len() <= INLINE_MAX;
        if flagged && fits && !row.is_empty() {
            inline = Some(row.len() as u64);
        } else {
            audit.report(Finding::StrayRow { key, row });
        }
    }
    if let Some(len) = inline {
        (right.size, stored) = (len, len);
    }
    right.set(InodeRecord::INLINE, inline.is_some());
    while let Some((key, row)) = side.extents.next_of(ino.0)? {
        if !right.is_file() || inline.is_some() {
            audit.report(Finding::StrayRow { key, row });
            continue;
        }
        audit.summary.pages += 1;
        let (Some((_, number)), Ok(page)) = (key.as_extents(), ExtentPage::decode(&row)) else {
            audit.report(Finding::BadRow { key });
            continue;
        };
        let page = cut_to_size(audit, ino, number, &row, page, right.size);
        stored += u64::from(page.covered_bytes());
        tallies.add(audit, ino, number, &page)?;
    }
    right.stored = stored;
    Ok(())
}

fn cut_to_size(
    audit: &mut Audit<'_, '_>,
    ino: Ino,
    number: u32,
    row: &Value,
    mut page: ExtentPage,
    size: u64,
) -> ExtentPage {
    let start = u64::from(number) * u64::from(ExtentPage::SPAN);
    let keep = size.saturating_sub(start).min(u64::from(ExtentPage::SPAN));
    if !page.truncate(keep as u32).is_empty() || page.is_empty() {
        let right = (!page.is_empty()).then(|| page.encode().into());
        audit.report(Finding::PastEnd { ino, page: number, row: row.clone(), right });
    }
    page
}

fn check_xattrs(
    audit: &mut Audit<'_, '_>,
    side: &mut Side<'_>,
    ino: Ino,
    right: &mut InodeRecord,
) -> Result<(), StoreError> {
    let special = [
        (CAPABILITY, InodeRecord::HAS_CAPABILITY),
        (ACCESS_ACL, InodeRecord::HAS_ACL),
        (DEFAULT_ACL, InodeRecord::HAS_DEFAULT_ACL),
    ];
    (right.xattr_list, right.xattr_bytes) = (0, 0);
    special.iter().for_each(|(_, flag)| right.set(*flag, false));
    while let Some((key, value)) = side.xattrs.next_of(ino.0)? {
        let name = key.as_xattr().map(|(_, name)| name);
        let Some(name) = name.filter(|name| !name.is_empty() && !name.contains(&0) && name.len() <= NAME_MAX)
        else {
            audit.report(Finding::StrayRow { key, row: value });
            continue;
        };
        right.xattr_list += name.len() as u32 + 1;
        if name != CAPABILITY {
            right.xattr_bytes = right.xattr_bytes.saturating_add(value.len() as u32);
        }
        for (_, flag) in special.iter().filter(|(special, _)| *special == name) {
            right.set(*flag, true);
        }
    }
    right.set(InodeRecord::HAS_XATTRS, right.xattr_list > 0);
    Ok(())
}

/// Finds the wrong names.
fn find_names(audit: &mut Audit<'_, '_>, names: &Names) -> Result<(), StoreError> {
    let mut rows = Cursor::kind(audit.store, tags::DENTRY);
    while let Some((key, row)) = rows.next()? {
        audit.count_rows(rows.take_read());
        let (Some(entry), Ok(dentry)) = (sound_entry(&key), Dentry::decode(&row)) else { continue };
        let Some(named) = names.get(&dentry.ino) else { continue };
        let (parent, name, ino) = (entry.parent, Box::from(entry.name), dentry.ino);
        match named.state {
            State::Missing => audit.report(Finding::DanglingName { parent, name, ino, row }),
            State::Suspect => {
                let inode = audit.store.get(&Key::inode(ino))?;
                let Some(record) = inode.and_then(|row| InodeRecord::decode(&row).ok()) else { continue };
                if dentry.kind != record.kind() {
                    let right = Dentry { ino, kind: record.kind() };
                    audit.report(Finding::WrongKind { parent, name, row, right });
                } else if named.names > 1 && record.is_dir() && parent != record.parent {
                    audit.report(Finding::SecondName { parent, name, ino, row });
                }
            }
            State::Seen | State::OnPath | State::Reached => {}
        }
    }
    Ok(())
}

/// Walks up from every directory.
fn find_loops(audit: &mut Audit<'_, '_>, names: &mut Names) -> Result<(), StoreError> {
    let dirs: Vec<Ino> =
        names.iter().filter(|(_, named)| named.kind == mode::S_IFDIR).map(|(ino, _)| *ino).collect();
    let mut way = Vec::new();
    for dir in dirs {
        let mut at = dir;
        // Up, until the answer is known: the root, the top of a tree without a name, or a directory that an
        // earlier walk visited.
        while let Some(named) = names.get_mut(&at) {
            match named.state {
                State::Reached => break,
                State::OnPath => {
                    report_loop(audit, at, named.parent)?;
                    break;
                }
                State::Missing | State::Seen | State::Suspect => {}
            }
            named.state = State::OnPath;
            way.push(at);
            at = named.parent;
        }
        for ino in way.drain(..) {
            if let Some(named) = names.get_mut(&ino) {
                named.state = State::Reached;
            }
        }
    }
    Ok(())
}

fn report_loop(audit: &mut Audit<'_, '_>, ino: Ino, parent: Ino) -> Result<(), StoreError> {
    let mut entries = Cursor::new(audit.store, Key::dentries(parent, 0));
    while let Some((key, entry)) = entries.next()? {
        let Some(name) = sound_entry(&key).map(|entry| Box::from(entry.name)) else { continue };
        if Dentry::decode(&entry).is_ok_and(|dentry| dentry.ino == ino)
            && let Some(row) = audit.store.get(&Key::inode(ino))?
        {
            audit.report(Finding::Loop { ino, row, parent, name, entry });
            return Ok(());
        }
    }
    Ok(())
}
