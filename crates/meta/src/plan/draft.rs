//! A commit in the making: what it checks, what it writes, and what the caller will be told.
//!
//! The draft keeps the rules that every family must keep: an inode is written only over the value that was seen, its `change` goes up,
//! additions to one counter are one addition, and a directory's own times are settled before its record is written.

use std::sync::LazyLock;

use base::{Ino, Timestamp};

use crate::key::{Key, KeyRange};
use crate::record::{InodeRecord, decode_u64, encode_i64, mode, moment_to_u64};
use crate::store::{Expect, Value};

use super::op::{Change, Ctx, Refusal};
use super::view::{Node, Stop, View};

/// The value of rows whose key says everything.
pub(crate) fn nothing() -> Value {
    static NOTHING: LazyLock<Value> = LazyLock::new(|| Value::from(&[][..]));
    NOTHING.clone()
}

/// See the module's essay.
#[derive(Default)]
pub(super) struct Draft {
    pub change: Change,
}

impl Draft {
    pub fn new() -> Draft {
        Draft::default()
    }

    /// The row must still be as it was shown.
    pub fn check_seen(&mut self, key: Key, seen: Option<&Value>) {
        let expect = seen.map_or(Expect::Absent, |value| Expect::Is(value.clone()));
        self.change.commit.checks.push((key, expect));
    }

    pub fn check_empty(&mut self, range: KeyRange) {
        self.change.commit.empty.push(range);
    }

    pub fn put(&mut self, key: Key, value: Value) {
        self.change.commit.puts.push((key, value));
    }

    pub fn del(&mut self, key: Key) {
        self.change.commit.dels.push(key);
    }

    /// Adds to a counter; several additions to one are summed.
    pub fn add(&mut self, key: Key, by: i64) {
        if by == 0 {
            return;
        }
        let adds = &mut self.change.commit.adds;
        match adds.iter_mut().find(|(other, _)| *other == key) {
            Some((_, sum)) => *sum += by,
            None => adds.push((key, by)),
        }
    }

    /// Adds to a counter that nothing else in this draft adds to.
    pub fn add_once(&mut self, key: Key, by: i64) {
        if by != 0 {
            self.change.commit.adds.push((key, by));
        }
    }

    pub fn total_inodes(&mut self, by: i64) {
        static INODES: LazyLock<Key> = LazyLock::new(|| Key::volume("inodes"));
        self.add(INODES.clone(), by);
    }

    pub fn total_bytes(&mut self, by: i64) {
        static BYTES: LazyLock<Key> = LazyLock::new(|| Key::volume("bytes"));
        self.add(BYTES.clone(), by);
    }

    /// A directory's entries change now: seen as its modification and change time, without writing its row. The row is a check: whether
    /// the directory can still take names, and what they inherit, is as it was shown. Changes of entries do not write it, so any
    /// number of them go on side by side.
    pub fn entries_changed(&mut self, dir: &Node, now: Timestamp) {
        let moment = moment_to_u64(now.max(Timestamp(dir.record.ctime.0 + 1)));
        let maxs = &mut self.change.commit.maxs;
        if maxs.iter().all(|(key, _)| key.number() != Some(dir.ino.0)) {
            maxs.push((Key::dir_changed(dir.ino), moment));
            self.check_seen(dir.key.clone(), Some(&dir.seen));
        }
    }

    /// The record of a node that is about to change, its change time set to now. A directory's times that entries gave it are
    /// written into it, so `08` must have been shown (see [`needs_entries_changed`]).
    pub fn touched(&mut self, view: &View, ctx: &Ctx, node: &Node) -> Result<InodeRecord, Stop> {
        let mut record = node.record;
        record.ctime = ctx.now;
        if needs_entries_changed(node) {
            let (row, changed) = view.entries_changed(node.ino)?;
            self.check_seen(Key::dir_changed(node.ino), row);
            let settled = node.record.with_entries_changed(changed);
            record.mtime = settled.mtime;
            record.ctime = ctx.now.max(settled.ctime);
        }
        Ok(record)
    }

    /// Writes an inode over what was seen; answers it as written.
    pub fn update(&mut self, node: &Node, mut record: InodeRecord) -> InodeRecord {
        record.change = node.record.change.wrapping_add(1);
        self.check_seen(node.key.clone(), Some(&node.seen));
        self.put(node.key.clone(), record.encode());
        self.change.inode = Some((node.ino, record));
        record
    }

    /// A new inode.
    pub fn create(&mut self, ino: Ino, record: InodeRecord) {
        self.put(Key::inode(ino), record.encode());
        self.total_inodes(1);
        self.total_bytes(record.stored as i64);
        self.change.inode = Some((ino, record));
    }

    /// An inode's last name goes, or one of several. The range of a directory's entries must be checked empty by the caller's commit: it is
    /// done here. `08` of a directory must have been shown.
    pub fn lose_name(&mut self, view: &View, ctx: &Ctx, node: &Node) -> Result<(), Stop> {
        let mut record = self.touched(view, ctx, node)?;
        if record.is_dir() {
            record.nlink = 0;
            record.change = record.change.wrapping_add(1);
            self.check_seen(node.key.clone(), Some(&node.seen));
            self.check_empty(Key::dentries(node.ino, 0));
            self.del(node.key.clone());
            self.del(Key::dir_changed(node.ino));
            self.put(Key::orphan(node.ino), record.encode());
            self.change.inode = Some((node.ino, record));
        } else {
            record.nlink = record.nlink.checked_sub(1).ok_or(Refusal::Damaged)?;
            if record.nlink == 0 {
                self.put(Key::orphan(node.ino), nothing());
            }
            self.update(node, record);
        }
        if record.nlink == 0 {
            self.change.orphaned.push(node.ino);
        }
        Ok(())
    }

    /// Writing, truncating and changing the owner take privileges away: capabilities always, set-id bits if it is done by one
    /// who is not privileged. That one's group is `unprivileged`; set-group-id on a file that its group may not run means
    /// something else to some, and stays where one of that group writes. `record` still has the group of before.
    pub fn drop_privileges(&mut self, ino: Ino, record: &mut InodeRecord, unprivileged: Option<u32>) {
        if record.is_dir() {
            return;
        }
        if let Some(gid) = unprivileged {
            record.mode &= !mode::S_ISUID;
            if record.mode & mode::S_IXGRP != 0 || gid != record.gid {
                record.mode &= !mode::S_ISGID;
            }
        }
        if record.has(InodeRecord::HAS_CAPABILITY) {
            self.del(Key::xattr(ino, super::xattr::CAPABILITY));
            // Its value is not counted, so how long it was need not be known.
            super::xattr::recount(record, super::xattr::CAPABILITY, Some(0), None);
        }
    }

    pub fn finish(self) -> Change {
        self.change
    }
}

/// Whether a node is a directory whose times are partly in its row `08`.
pub(super) fn needs_entries_changed(node: &Node) -> bool {
    node.record.is_dir() && !node.is_removed()
}

/// The next value of a number that goes up by one, over what was seen.
pub(super) fn take_numbers(draft: &mut Draft, view: &View, key: &Key, count: u64) -> Result<u64, Stop> {
    let row = view.row(key)?.ok_or(Refusal::Damaged)?;
    let first = decode_u64(Some(row))?;
    let next = first.checked_add(count).ok_or(Refusal::Invalid)?;
    draft.check_seen(key.clone(), Some(row));
    draft.put(key.clone(), encode_i64(next as i64));
    Ok(first)
}
