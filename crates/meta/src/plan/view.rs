//! What a plan has been shown so far, and how it asks for more.
//!
//! For a [`View`], a row has a known value, is known to be absent, or is unknown. A planning function asks
//! for all the rows it can name with [`Ask`], then reads them; `?` on a missing one ends the attempt with
//! [`Stop::Need`]. The next attempt begins from the top with the fuller view, so there is no state between
//! attempts.
//!
//! **What a plan may rely on.** Rows are read at different moments. So every row that a plan relies on
//! becomes a check of its commit ([`super::draft::Draft::check_seen`]). A plan relies on a range only through
//! a checked row that changes whenever the range does, and that was shown before or with the range. The
//! caller of the planner forgets all ranges after a conflict, and shows the rows of one `Need` before its
//! ranges.

use blob::ExtentPage;
use hashbrown::HashMap;

use base::{Ino, Timestamp};

use crate::key::{Key, KeyRange, tags};
use crate::record::{BadRecord, Dentry, InodeRecord, decode_u64, moment_from_u64};
use crate::store::{Rows, Value};
use crate::trash::{self, Setting, TrashRow};

use super::op::Refusal;

/// Rows and ranges shown so far.
#[derive(Clone, Debug, Default)]
pub struct View {
    rows: HashMap<Key, Option<Value>>,
    ranges: Vec<Shown>,
    trash: Setting,
}

#[derive(Clone, Debug)]
struct Shown {
    range: KeyRange,
    limit: usize,
    rows: Rows,
}

impl View {
    /// An empty view.
    pub fn new() -> View {
        View::default()
    }

    /// An empty view of a volume with this setting of its trash.
    pub fn of(trash: Setting) -> View {
        View { trash, ..View::default() }
    }

    /// Whether what loses its last name goes to the trash.
    pub(super) fn keeps_removed(&self) -> bool {
        self.trash.keeps()
    }

    /// Whether anything may be in the trash.
    pub(super) fn may_have_trash(&self) -> bool {
        self.trash != Setting::Never
    }

    /// Shows a row, or that it is absent. Replaces what was shown before.
    pub fn show(&mut self, key: Key, value: Option<Value>) {
        self.rows.insert(key, value);
    }

    /// Shows the first `limit` rows of a range.
    pub fn show_range(&mut self, range: KeyRange, limit: usize, rows: Rows) {
        self.ranges.retain(|shown| shown.range != range);
        self.ranges.push(Shown { range, limit, rows });
    }

    /// Forgets every range, so that they are asked for again.
    pub fn forget_ranges(&mut self) {
        self.ranges.clear();
    }

    /// Whether a range was shown.
    pub fn has_ranges(&self) -> bool {
        !self.ranges.is_empty()
    }

    /// All rows shown, in no order.
    pub fn rows(&self) -> impl Iterator<Item = (&Key, Option<&Value>)> {
        self.rows.iter().map(|(key, value)| (key, value.as_ref()))
    }

    /// A row that may be present or absent.
    pub(super) fn row(&self, key: &Key) -> Result<Option<&Value>, Stop> {
        match self.rows.get(key) {
            Some(known) => Ok(known.as_ref()),
            None => Err(Stop::Need { keys: vec![key.clone()], ranges: Vec::new() }),
        }
    }

    /// The first rows of a range: all of them if there are fewer than `limit`.
    pub(super) fn range(&self, range: &KeyRange, limit: usize) -> Result<&[(Key, Value)], Stop> {
        let shown = self.ranges.iter().find(|shown| shown.limit >= limit && shown.range == *range);
        match shown {
            Some(shown) => Ok(&shown.rows[..shown.rows.len().min(limit)]),
            None => Err(Stop::Need { keys: Vec::new(), ranges: vec![(range.clone(), limit)] }),
        }
    }

    /// A name.
    pub(super) fn dentry(&self, key: &Key) -> Result<Option<(Dentry, &Value)>, Stop> {
        let Some(value) = self.row(key)? else {
            return Ok(None);
        };
        Ok(Some((Dentry::decode(value)?, value)))
    }

    /// An inode, with or without a name. Refused with `NotFound` if there is none.
    pub(super) fn node(&self, ino: Ino) -> Result<Node, Stop> {
        let mut key = Key::inode(ino);
        if let Some(value) = self.row(&key)? {
            return Ok(Node { ino, key, record: InodeRecord::decode(value)?, seen: value.clone() });
        }
        // A removed directory's record is kept in its orphan row, or in the trash.
        key = Key::orphan(ino);
        let mut value = self.row(&key)?.filter(|value| !value.is_empty());
        if value.is_none() {
            key = Key::trash(ino);
            value = self.row(&key)?;
        }
        let value = value.ok_or(Refusal::NotFound)?;
        let (orphan, trash) =
            if key.tag() == tags::TRASH { (None, Some(value)) } else { (Some(value), None) };
        let record = trash::removed_dir(orphan, trash)?.ok_or(Refusal::NotFound)?;
        Ok(Node { ino, key, record, seen: value.clone() })
    }

    /// An inode that a name or row refers to. If it is missing, that is damage.
    pub(super) fn named_node(&self, ino: Ino) -> Result<Node, Stop> {
        let key = Key::inode(ino);
        let value = self.row(&key)?.ok_or(Refusal::Damaged)?;
        Ok(Node { ino, record: InodeRecord::decode(value)?, seen: value.clone(), key })
    }

    /// A directory that can take names: not a removed one. Refused with `NotFound` or `NotDir`.
    pub(super) fn live_dir(&self, ino: Ino) -> Result<Node, Stop> {
        let key = Key::inode(ino);
        let value = self.row(&key)?.ok_or(Refusal::NotFound)?;
        let record = InodeRecord::decode(value)?;
        if record.is_dir() {
            Ok(Node { ino, key, record, seen: value.clone() })
        } else {
            Err(Refusal::NotDir.into())
        }
    }

    /// When a directory's entries last changed, according to its row.
    pub(super) fn entries_changed(&self, dir: Ino) -> Result<(Option<&Value>, Timestamp), Stop> {
        let row = self.row(&Key::dir_changed(dir))?;
        Ok((row, moment_from_u64(decode_u64(row.map(|value| &value[..]))?)))
    }

    /// An extent page. An absent one is a hole.
    pub(super) fn page(&self, ino: Ino, page: u32) -> Result<(Option<&Value>, ExtentPage), Stop> {
        let row = self.row(&Key::extents(ino, page))?;
        Ok((row, decode_page(row)?))
    }
}

/// A page's row as a page.
pub(super) fn decode_page(row: Option<&Value>) -> Result<ExtentPage, Refusal> {
    row.map_or_else(|| Ok(ExtentPage::new()), |row| ExtentPage::decode(row).map_err(|_| Refusal::Damaged))
}

/// An inode as it was shown.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub ino: Ino,
    /// The row that holds it: `01`, or `0C` or `03` for a removed directory.
    pub key: Key,
    /// The value of the row `key`.
    pub seen: Value,
    /// The record in `seen`, decoded.
    pub record: InodeRecord,
}

impl Node {
    /// Whether it is a directory that has lost its name.
    pub fn is_removed(&self) -> bool {
        self.key.tag() != tags::INODE
    }

    /// The row with another record.
    pub fn row(&self, record: InodeRecord) -> Value {
        if self.key.tag() == tags::TRASH
            && let Ok(row) = TrashRow::decode(&self.seen)
        {
            return TrashRow { dir: Some(record), ..row }.encode();
        }
        record.encode()
    }
}

/// Why a plan ended before there was a change.
#[derive(Debug)]
pub(super) enum Stop {
    /// Rows that must be shown first.
    Need { keys: Vec<Key>, ranges: Vec<(KeyRange, usize)> },
    /// The operation is refused.
    Refused(Refusal),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Stop {
        Stop::Refused(refusal)
    }
}

impl From<BadRecord> for Stop {
    fn from(_: BadRecord) -> Stop {
        Stop::Refused(Refusal::Damaged)
    }
}

/// Collects the rows that a plan needs, so that they are requested together.
pub(super) struct Ask<'v> {
    view: &'v View,
    keys: Vec<Key>,
    ranges: Vec<(KeyRange, usize)>,
}

impl<'v> Ask<'v> {
    pub fn new(view: &'v View) -> Ask<'v> {
        Ask { view, keys: Vec::new(), ranges: Vec::new() }
    }

    pub fn row(&mut self, key: &Key) -> &mut Self {
        if !self.view.rows.contains_key(key) && !self.keys.contains(key) {
            self.keys.push(key.clone());
        }
        self
    }

    pub fn range(&mut self, range: &KeyRange, limit: usize) -> &mut Self {
        if self.view.range(range, limit).is_err() {
            self.ranges.push((range.clone(), limit));
        }
        self
    }

    /// Ends the attempt if something is missing.
    pub fn done(&mut self) -> Result<(), Stop> {
        if self.keys.is_empty() && self.ranges.is_empty() {
            return Ok(());
        }
        Err(Stop::Need { keys: std::mem::take(&mut self.keys), ranges: std::mem::take(&mut self.ranges) })
    }
}
