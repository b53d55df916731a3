//! A commit under construction: what it checks, what it writes, and what is returned to the caller.
//!
//! The draft enforces the rules that hold for every family. An inode is written only over the value that was
//! seen, and its `change` increases. Additions to one counter are merged. A directory's own times are brought
//! up to date before its record is written.

use std::sync::LazyLock;

use base::{Ino, Timestamp};

use crate::key::{Key, KeyRange, Used};
use crate::quota::Charge;
use crate::record::{InodeRecord, mode, moment_to_u64};
use crate::store::{Expect, Value};
use crate::trash::TrashRow;

use super::op::{Change, Ctx, Refusal};
use super::quota;
use super::view::{Node, Stop, View};

/// The value of rows whose key holds all the information.
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

    /// Checks that the row is still as it was shown.
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

    /// Adds to a counter. Several additions to one counter are summed.
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

    /// Counts inodes that come or go, in the volume's total and for their quota.
    pub fn count_inodes(&mut self, quota: Ino, by: i64) {
        static INODES: LazyLock<Key> = LazyLock::new(|| Key::volume("inodes"));
        self.add(INODES.clone(), by);
        self.charge(quota, Used::Inodes, by);
    }

    /// Counts stored bytes that come or go, in the volume's total and for their quota.
    pub fn count_bytes(&mut self, quota: Ino, by: i64) {
        static BYTES: LazyLock<Key> = LazyLock::new(|| Key::volume("bytes"));
        self.add(BYTES.clone(), by);
        self.charge(quota, Used::Bytes, by);
    }

    /// Counts for a quota alone.
    pub fn charge(&mut self, quota: Ino, what: Used, by: i64) {
        if quota == Ino(0) || by == 0 {
            return;
        }
        self.add(Key::quota_used(quota, what), by);
        let charges = &mut self.change.charges;
        if !charges.iter().any(|charge| charge.quota == quota) {
            charges.push(Charge { quota, bytes: 0, inodes: 0 });
        }
        for charge in charges.iter_mut().filter(|charge| charge.quota == quota) {
            match what {
                Used::Bytes => charge.bytes += by,
                Used::Inodes => charge.inodes += by,
            }
        }
    }

    /// A directory's entries change now. This sets its modification and change time without writing its row.
    /// The row becomes a check: whether the directory can still take names, and what they inherit, is as it
    /// was shown. Changes of entries do not write the row, so any number of them can run concurrently.
    pub fn entries_changed(&mut self, dir: &Node, now: Timestamp) {
        let moment = moment_to_u64(now.max(Timestamp(dir.record.ctime.0 + 1)));
        let maxs = &mut self.change.commit.maxs;
        if maxs.iter().all(|(key, _)| key.number() != Some(dir.ino.0)) {
            maxs.push((Key::dir_changed(dir.ino), moment));
            self.check_seen(dir.key.clone(), Some(&dir.seen));
        }
    }

    /// The record of a node that is about to change, with its change time set to now. For a directory, the
    /// times that its entries gave it are written into the record, so row `08` must have been shown (see
    /// [`needs_entries_changed`]).
    pub fn touched(&mut self, view: &View, ctx: &Ctx, node: &Node) -> Result<InodeRecord, Stop> {
        let mut record = node.record;
        record.ctime = ctx.now;
        if needs_entries_changed(node) {
            let (row, changed) = view.entries_changed(node.ino)?;
            self.check_seen(Key::dir_changed(node.ino), row);
            let current = node.record.with_entries_changed(changed);
            record.mtime = current.mtime;
            record.ctime = ctx.now.max(current.ctime);
        }
        Ok(record)
    }

    /// Writes an inode over what was seen. Returns the record as written.
    pub fn update(&mut self, node: &Node, record: InodeRecord) -> InodeRecord {
        self.write(node, record, false)
    }

    /// Writes an inode whose bytes change over what was seen. Returns the record as written.
    pub fn update_bytes(&mut self, node: &Node, record: InodeRecord) -> InodeRecord {
        self.write(node, record, true)
    }

    fn write(&mut self, node: &Node, mut record: InodeRecord, bytes: bool) -> InodeRecord {
        record.change = InodeRecord::next_change(node.record.change, bytes);
        self.check_seen(node.key.clone(), Some(&node.seen));
        self.put(node.key.clone(), node.row(record));
        self.change.inode = Some((node.ino, record));
        record
    }

    /// A new inode.
    pub fn create(&mut self, ino: Ino, record: InodeRecord) {
        self.put(Key::inode(ino), record.encode());
        self.count_inodes(record.quota, 1);
        self.count_bytes(record.quota, record.stored as i64);
        self.change.inode = Some((ino, record));
    }

    /// Removes an inode's last name, or one of several: `name` in `parent`. Checks that a directory's range
    /// of entries is empty. A directory's row `08` must have been shown.
    pub fn lose_name(
        &mut self,
        view: &View,
        ctx: &Ctx,
        node: &Node,
        (parent, name): (Ino, &[u8]),
    ) -> Result<(), Stop> {
        let trash = |dir| {
            let (kind, size) = (node.record.kind(), node.record.size);
            TrashRow { at: ctx.now, parent, name: name.into(), kind, size, dir }.encode()
        };
        let mut record = self.touched(view, ctx, node)?;
        if record.is_dir() || record.nlink == 1 {
            quota::leave(self, &mut record);
        }
        if record.is_dir() {
            record.nlink = 0;
            record.change = InodeRecord::next_change(record.change, false);
            self.check_seen(node.key.clone(), Some(&node.seen));
            self.check_empty(Key::dentries(node.ino, 0));
            self.del(node.key.clone());
            self.del(Key::dir_changed(node.ino));
            match view.keeps_removed() {
                true => self.put(Key::trash(node.ino), trash(Some(record))),
                false => self.put(Key::orphan(node.ino), record.encode()),
            }
            self.change.inode = Some((node.ino, record));
        } else {
            record.nlink = record.nlink.checked_sub(1).ok_or(Refusal::Damaged)?;
            match record.nlink {
                0 if view.keeps_removed() => self.put(Key::trash(node.ino), trash(None)),
                0 => self.put(Key::orphan(node.ino), nothing()),
                _ => {}
            }
            self.update(node, record);
        }
        if record.nlink == 0 && !view.keeps_removed() {
            self.change.orphaned.push(node.ino);
        }
        Ok(())
    }

    /// Writing, truncating and changing the owner clear privileges: capabilities always, set-id bits if the
    /// caller is unprivileged. `unprivileged` is the group of such a caller. Set-group-id on a file that its
    /// group may not execute can have another meaning (mandatory locking), so it stays if the caller is in
    /// the file's group. `record` still has the old group.
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
            // A capability's value is not counted, so its old length need not be known.
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
