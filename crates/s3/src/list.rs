//! Listings in the order of S3: by the bytes of whole keys. A folder sorts as its name with a `/`, so that
//! `a.b` comes before `a/c` and after `a-b`.
//!
//! A folder's entries have no order in the filesystem. Each pass through a folder keeps the smallest entries
//! behind a position, a page at most, in a heap. So memory is bounded whatever a folder holds.

use std::collections::BinaryHeap;
use std::ops::ControlFlow;

use base::{Ino, Timestamp};
use fs::api::FileKind;

use crate::attributes;
use crate::bucket::{Bucket, Held, Outcome};
use crate::keys::HIDDEN;

/// Entries of a folder that are kept at a time.
const BATCH: usize = 1_024;

/// What to list.
#[derive(Clone, Debug, Default)]
pub struct Order {
    /// Only keys that begin with this.
    pub prefix: String,
    /// Keys with this behind the prefix are grouped.
    pub delimiter: Option<String>,
    /// Only keys behind this one.
    pub after: String,
    /// The most keys and groups.
    pub max: usize,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The key.
    pub key: String,
    /// Its size.
    pub size: u64,
    /// Its ETag, without quotes.
    pub etag: String,
    /// When it was last changed.
    pub modified: Timestamp,
}

/// A page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Objects.
    pub objects: Vec<Listed>,
    /// Groups.
    pub groups: Vec<String>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// Lists a bucket.
pub fn list(bucket: &Bucket, order: &Order) -> Outcome<Page> {
    let mut page = Page::default();
    if order.max == 0 {
        return Ok(page);
    }
    let mut walk = match Walk::start(bucket, order)? {
        Some(walk) => walk,
        None => return Ok(page),
    };
    let mut last = String::new();
    let mut group = String::new();
    while let Some(item) = walk.next()? {
        let key = item.key();
        if let Some(grouped) = grouped(key, order) {
            if grouped == group || grouped <= order.after.as_str() {
                continue;
            }
            if page.objects.len() + page.groups.len() == order.max {
                page.next = Some(last);
                return Ok(page);
            }
            group = grouped.to_owned();
            last = group.clone();
            page.groups.push(group.clone());
            continue;
        }
        let Item::Object { key, parent, name } = item else { continue };
        // What was removed meanwhile is not listed.
        let Ok(found) = bucket.lookup(parent, &name) else { continue };
        if page.objects.len() + page.groups.len() == order.max {
            page.next = Some(last);
            return Ok(page);
        }
        last = key.clone();
        let is_folder = found.attr.kind == FileKind::Dir;
        page.objects.push(Listed {
            key,
            size: if is_folder { 0 } else { found.attr.size },
            etag: if is_folder {
                EMPTY.to_owned()
            } else {
                attributes::etag(bucket, found.node(), &found.attr)
            },
            modified: found.attr.mtime,
        });
    }
    Ok(page)
}

/// The MD5 of nothing, which is the ETag of a folder.
pub const EMPTY: &str = "d41d8cd98f00b204e9800998ecf8427e";

/// The group of a key, up to and with the delimiter.
fn grouped<'k>(key: &'k str, order: &Order) -> Option<&'k str> {
    let delimiter = order.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty())?;
    let rest = key.strip_prefix(order.prefix.as_str())?;
    let at = rest.find(delimiter)?;
    key.get(..order.prefix.len() + at + delimiter.len())
}

/// A step of a walk.
enum Item {
    /// An object, by the folder that holds it.
    Object { key: String, parent: Ino, name: Vec<u8> },
    /// A folder that is not entered, because a group stands for all in it.
    Folder { key: String },
}

impl Item {
    fn key(&self) -> &str {
        match self {
            Item::Object { key, .. } | Item::Folder { key } => key,
        }
    }
}

/// An entry of a folder. The text is what its keys go on with: a folder's ends with `/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    text: String,
}

impl Entry {
    fn is_folder(&self) -> bool {
        self.text.ends_with('/')
    }

    fn name(&self) -> &str {
        self.text.strip_suffix('/').unwrap_or(&self.text)
    }
}

/// A folder that is being walked.
struct Level {
    held: Option<Held>,
    /// The key of the folder; empty for the root.
    key: String,
    /// The smallest entries that are still to come, the smallest last.
    batch: Vec<Entry>,
    /// There are entries behind the batch.
    more: bool,
    /// The last entry that was taken.
    last: Option<String>,
}

impl Level {
    fn node(&self) -> Ino {
        self.held.as_ref().map_or(Ino::ROOT, Held::node)
    }
}

/// A walk through the keys behind a position.
struct Walk<'b> {
    bucket: &'b Bucket,
    order: &'b Order,
    levels: Vec<Level>,
    /// The folder that the prefix names, if it is an object itself.
    first: Option<Item>,
    /// The folders above the first level.
    _above: Vec<Held>,
}

impl<'b> Walk<'b> {
    /// Begins in the folder that the prefix names. `None` if there is nothing.
    fn start(bucket: &'b Bucket, order: &'b Order) -> Outcome<Option<Walk<'b>>> {
        let (path, _) = order.prefix.rsplit_once('/').unwrap_or(("", ""));
        let mut above: Vec<Held> = Vec::new();
        let mut key = String::new();
        let mut last = None;
        if order.prefix.starts_with('/') {
            return Ok(None);
        }
        for name in path.split('/').filter(|_| !path.is_empty()) {
            let parent = above.last().map_or(Ino::ROOT, Held::node);
            let nowhere = matches!(name, "" | "." | "..") || key.is_empty() && name == HIDDEN;
            let found = match bucket.lookup(parent, name.as_bytes()) {
                Ok(found) if found.attr.kind == FileKind::Dir && !nowhere => found,
                _ => return Ok(None),
            };
            key = format!("{key}{name}/");
            last = Some((parent, name.as_bytes().to_vec(), bucket.has(found.node(), attributes::FOLDER)));
            above.push(found.held);
        }
        let is_prefix = key == order.prefix && key.as_str() > order.after.as_str();
        let first = last.filter(|(.., is_object)| *is_object && is_prefix);
        let first = first.map(|(parent, name, _)| Item::Object { key: key.clone(), parent, name });
        let held = above.pop();
        let level = Level { held, key, batch: Vec::new(), more: true, last: None };
        Ok(Some(Walk { bucket, order, levels: vec![level], first, _above: above }))
    }

    fn next(&mut self) -> Outcome<Option<Item>> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        loop {
            let Some(level) = self.levels.last() else { return Ok(None) };
            if level.batch.is_empty() && level.more {
                self.fill()?;
            } else if let Some(item) = self.take() {
                return Ok(Some(item));
            }
        }
    }

    /// Takes the next entry of the last level, or leaves the level.
    fn take(&mut self) -> Option<Item> {
        let by_slash = self.order.delimiter.as_deref() == Some("/");
        let level = self.levels.last_mut()?;
        let Some(entry) = level.batch.pop() else {
            self.levels.pop();
            return None;
        };
        level.last = Some(entry.text.clone());
        let key = format!("{}{}", level.key, entry.text);
        let (parent, name) = (level.node(), entry.name().as_bytes().to_vec());
        if !entry.is_folder() {
            return Some(Item::Object { key, parent, name });
        }
        if by_slash {
            return Some(Item::Folder { key });
        }
        // What was removed meanwhile is not entered.
        let found = self.bucket.lookup(parent, &name).ok()?;
        let is_object = self.bucket.has(found.node(), attributes::FOLDER);
        let held = Some(found.held);
        self.levels.push(Level { held, key: key.clone(), batch: Vec::new(), more: true, last: None });
        (is_object && key > self.order.after).then_some(Item::Object { key, parent, name })
    }

    /// Reads the smallest entries behind the last one that was taken.
    fn fill(&mut self) -> Outcome<()> {
        let Walk { bucket, order, levels, .. } = self;
        let Some(level) = levels.last_mut() else { return Ok(()) };
        let begin = order.prefix.get(level.key.len()..).unwrap_or("");
        let mut heap: BinaryHeap<Entry> = BinaryHeap::new();
        let mut more = false;
        let is_top = level.key.is_empty();
        bucket.fs().readdir(level.node(), 0, &mut |entry| {
            let Some(text) = text_of(entry.name, entry.kind) else { return ControlFlow::Continue(()) };
            let wanted = text.starts_with(begin)
                && !(is_top && text == HIDDEN_ENTRY)
                && level.last.as_ref().is_none_or(|last| text > *last)
                && behind(&level.key, &text, &order.after);
            if wanted {
                heap.push(Entry { text });
            }
            if heap.len() > BATCH {
                heap.pop();
                more = true;
            }
            ControlFlow::Continue(())
        })?;
        level.batch = heap.into_sorted_vec();
        level.batch.reverse();
        level.more = more;
        Ok(())
    }
}

const HIDDEN_ENTRY: &str = ".covey-s3/";

/// Whether the key of an entry, or a key in that folder, comes after a position.
fn behind(folder: &str, text: &str, after: &str) -> bool {
    match after.strip_prefix(folder) {
        Some(rest) => text > rest || text.ends_with('/') && rest.starts_with(text),
        None => folder > after,
    }
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
