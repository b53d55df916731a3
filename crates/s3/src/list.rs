//! Listings in the order of S3: by the bytes of whole keys. A folder sorts as its name with a `/`, so that
//! `a.b` comes before `a/c` and after `a-b`.
//!
//! A walk descends through the folders with the sorted entries of each ([`crate::sorted`]). It enters no
//! folder whose keys are before the position, or are one group.
//!
//! What is gone is left out. Any other failure fails the listing: a program that keeps another place equal to
//! the bucket removes there what a listing leaves out.

use base::{Ino, Timestamp};
use fs::Errno;
use fs::api::FileKind;

use crate::attributes;
use crate::bucket::{Bucket, Held, Outcome, there};
use crate::keys::HIDDEN;
use crate::sorted::{self, Batch, Position};

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
    /// The object's size in bytes.
    pub size: u64,
    /// The object's ETag, without quotes.
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
        let Some(found) = there(bucket.lookup(parent, &name))? else { continue };
        let is_folder = found.attr.kind == FileKind::Dir;
        let etag = match is_folder {
            true => Ok(EMPTY.to_owned()),
            false => attributes::etag(bucket, found.node(), &found.attr),
        };
        let Some(etag) = there(etag)? else { continue };
        if page.objects.len() + page.groups.len() == order.max {
            page.next = Some(last);
            return Ok(page);
        }
        last = key.clone();
        let size = if is_folder { 0 } else { found.attr.size };
        page.objects.push(Listed { key, size, etag, modified: found.attr.mtime });
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

/// A folder that is being walked.
struct Level {
    held: Option<Held>,
    /// The key of the folder; empty for the root.
    key: String,
    /// The smallest entries that are still to come, the smallest last.
    batch: Vec<String>,
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
            if matches!(name, "" | "." | "..") || key.is_empty() && name == HIDDEN {
                return Ok(None);
            }
            let found = match bucket.lookup(parent, name.as_bytes()) {
                Err(Errno::ENAMETOOLONG) => None,
                found => there(found)?.filter(|found| found.attr.kind == FileKind::Dir),
            };
            let Some(found) = found else { return Ok(None) };
            let is_object = there(bucket.has(found.node(), attributes::FOLDER))?;
            let Some(is_object) = is_object else { return Ok(None) };
            key = format!("{key}{name}/");
            last = Some((parent, name.as_bytes().to_vec(), is_object));
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
            } else if let Some(item) = self.take()? {
                return Ok(Some(item));
            }
        }
    }

    /// Takes the next entry of the last level, or leaves the level.
    fn take(&mut self) -> Outcome<Option<Item>> {
        let by_slash = self.order.delimiter.as_deref() == Some("/");
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        let Some(entry) = level.batch.pop() else {
            self.levels.pop();
            return Ok(None);
        };
        level.last = Some(entry.clone());
        let key = format!("{}{entry}", level.key);
        let parent = level.node();
        let Some(name) = entry.strip_suffix('/') else {
            return Ok(Some(Item::Object { key, parent, name: entry.into_bytes() }));
        };
        let name = name.as_bytes().to_vec();
        if by_slash {
            return Ok(Some(Item::Folder { key }));
        }
        // What was removed meanwhile is not entered.
        let found = there(self.bucket.lookup(parent, &name))?;
        let Some(found) = found.filter(|found| found.attr.kind == FileKind::Dir) else { return Ok(None) };
        let is_object = there(self.bucket.has(found.node(), attributes::FOLDER))?;
        let Some(is_object) = is_object else { return Ok(None) };
        let held = Some(found.held);
        self.levels.push(Level { held, key: key.clone(), batch: Vec::new(), more: true, last: None });
        Ok((is_object && key > self.order.after).then_some(Item::Object { key, parent, name }))
    }

    /// Reads the smallest entries behind the last one that was taken.
    fn fill(&mut self) -> Outcome<()> {
        let Walk { bucket, order, levels, .. } = self;
        let Some(level) = levels.last_mut() else { return Ok(()) };
        let begin = order.prefix.get(level.key.len()..).unwrap_or("");
        let position = match (&level.last, order.after.strip_prefix(&level.key)) {
            (Some(last), _) => Position::Behind(last),
            (None, Some(rest)) => Position::In(rest),
            (None, None) if level.key > order.after => Position::In(""),
            // All keys of this folder come before the position.
            (None, None) => {
                level.more = false;
                return Ok(());
            }
        };
        let Batch { mut entries, more } = sorted::smallest(bucket, level.node(), begin, position)?;
        if level.key.is_empty() {
            entries.retain(|entry| entry.strip_suffix('/') != Some(HIDDEN));
        }
        (level.batch, level.more) = (entries, more);
        Ok(())
    }
}
