//! The entries of a folder in the order of keys.
//!
//! A folder has no order. A pass through it keeps the smallest entries behind a position, in a heap. A page
//! of a listing needs a thousand of them, and a folder may have millions. So a pass keeps more than that, and
//! the pages that follow take them from there, as long as the folder has not changed.

use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Bound;
use std::ops::ControlFlow;

use base::{Ino, Timestamp};
use fs::api::FileKind;

use crate::bucket::{Bucket, Outcome};

/// Entries that a page takes at a time.
const BATCH: usize = 1_024;
/// Entries that a pass through a large folder keeps.
const KEPT: usize = 100_000;
/// A folder that changed less than this before a pass may change again without a later time. Nothing is kept
/// of it.
const QUIET_NS: i128 = 1_000_000_000;

/// Entries of a large folder, kept from one page to the next.
pub struct Ahead {
    folder: Ino,
    changed: Timestamp,
    /// The text with which all kept entries begin.
    begin: String,
    /// All entries behind this one, up to the last that is kept, are there.
    after: String,
    entries: BTreeSet<String>,
    /// There are entries behind the last.
    more: bool,
}

/// A part of a folder's entries, the smallest last.
#[derive(Debug, Default)]
pub struct Batch {
    /// What the keys of each entry go on with. That of a folder ends with `/`.
    pub entries: Vec<String>,
    /// There are entries behind these.
    pub more: bool,
}

/// Where entries begin.
#[derive(Clone, Copy, Debug)]
pub enum Position<'a> {
    /// Behind this entry.
    Behind(&'a str),
    /// Behind this key. If it is the key of something in a folder, that folder comes first.
    In(&'a str),
}

impl<'a> Position<'a> {
    fn text(self) -> &'a str {
        match self {
            Position::Behind(text) | Position::In(text) => text,
        }
    }

    /// The folder that leads to the position.
    fn inside(self) -> Option<&'a str> {
        match self {
            Position::Behind(_) => None,
            Position::In(text) => text.split_inclusive('/').next().filter(|first| first.ends_with('/')),
        }
    }
}

/// The smallest entries that begin with a text and come after a position.
pub fn smallest(bucket: &Bucket, folder: Ino, begin: &str, position: Position<'_>) -> Outcome<Batch> {
    let changed = bucket.fs().getattr(folder)?.ctime;
    if let Some(batch) = kept(bucket, folder, changed, begin, position) {
        return Ok(batch);
    }
    let (after, inside) = (position.text(), position.inside());
    let began = base::time::now();
    let mut heap: BinaryHeap<String> = BinaryHeap::new();
    let mut more = false;
    bucket.fs().readdir(folder, 0, &mut |entry| {
        let Some(text) = text_of(entry.name, entry.kind) else { return ControlFlow::Continue(()) };
        let behind = text.as_str() > after || Some(text.as_str()) == inside;
        if behind && text.starts_with(begin) {
            heap.push(text);
        }
        if heap.len() > KEPT {
            heap.pop();
            more = true;
        }
        ControlFlow::Continue(())
    })?;
    let mut entries = heap.into_sorted_vec();
    if entries.len() > BATCH {
        if changed.0 + QUIET_NS < began.0 {
            let (begin, after) = (begin.to_owned(), after.to_owned());
            let kept = entries.iter().cloned().collect();
            *bucket.ahead.lock() = Some(Ahead { folder, changed, begin, after, entries: kept, more });
        }
        entries.truncate(BATCH);
        more = true;
    }
    entries.reverse();
    Ok(Batch { entries, more })
}

/// Returns the smallest entries from what an earlier pass kept, if it is still true and reaches far enough.
fn kept(
    bucket: &Bucket,
    folder: Ino,
    changed: Timestamp,
    begin: &str,
    position: Position<'_>,
) -> Option<Batch> {
    let (after, inside) = (position.text(), position.inside());
    let ahead = bucket.ahead.lock();
    let ahead = ahead.as_ref()?;
    let same = ahead.folder == folder && ahead.changed == changed && ahead.begin == begin;
    if !same || after < ahead.after.as_str() {
        return None;
    }
    let behind = ahead.entries.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
    // The folder that leads to the position sorts before it, or is the position.
    let first = inside.and_then(|inside| ahead.entries.get(inside)).into_iter();
    let mut rest = first.chain(behind);
    let mut entries: Vec<String> = rest.by_ref().take(BATCH).cloned().collect();
    let more = rest.next().is_some() || ahead.more;
    if entries.is_empty() && more {
        return None;
    }
    entries.reverse();
    Some(Batch { entries, more })
}

/// What the keys of an entry go on with. Names that are no text, and what is neither a file nor a folder,
/// have no keys.
fn text_of(name: &[u8], kind: FileKind) -> Option<String> {
    let text = std::str::from_utf8(name).ok()?;
    match (text, kind) {
        ("." | "..", _) => None,
        (text, FileKind::File) => Some(text.to_owned()),
        (text, FileKind::Dir) => Some(format!("{text}/")),
        _ => None,
    }
}
