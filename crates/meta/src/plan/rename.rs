//! Rename: replace, refuse to, or exchange.
//!
//! **Loops.** A directory may not move into itself. The ancestors of its new parent are read up to the root,
//! and each becomes a check of the commit. Moving one of them writes its record. So two moves that together
//! would make a loop cannot both succeed.

use base::Ino;
use hashbrown::HashSet;

use crate::key::Key;
use crate::record::{Dentry, InodeRecord, mode};
use crate::store::Value;

use super::create::check_name;
use super::draft::{Draft, needs_entries_changed};
use super::op::{Change, Ctx, Refusal, RenameMode};
use super::quota;
use super::view::{Ask, Node, Stop, View};

/// Deeper than any path that can be walked. A longer way to the root is a loop.
const DEPTH_MAX: usize = 1 << 20;

/// [`super::Op::Rename`]
pub(super) struct Rename<'a> {
    pub parent: Ino,
    pub name: &'a [u8],
    pub to: Ino,
    pub to_name: &'a [u8],
    pub mode: RenameMode,
}

/// What is known before the inodes are read.
struct Ends<'v> {
    from_key: Key,
    to_key: Key,
    source: Dentry,
    source_seen: &'v Value,
    target: Option<(Dentry, &'v Value)>,
    parent: Node,
    to: Node,
}

pub(super) fn rename(view: &View, ctx: &Ctx, op: &Rename<'_>) -> Result<Change, Stop> {
    let ends = ends(view, op)?;
    let exchange = op.mode == RenameMode::Exchange;
    let Ends { source, target, .. } = &ends;

    let mut ask = Ask::new(view);
    for dentry in [Some(source), target.as_ref().map(|(dentry, _)| dentry)].into_iter().flatten() {
        ask.row(&Key::inode(dentry.ino));
        if dentry.is_dir() {
            ask.row(&Key::dir_changed(dentry.ino));
        }
    }
    let replaced_dir = target.as_ref().filter(|(dentry, _)| dentry.is_dir() && !exchange);
    let inside = replaced_dir.map(|(dentry, _)| Key::dentries(dentry.ino, 0));
    if let Some(inside) = &inside {
        ask.range(inside, 1);
    }
    ask.done()?;

    let moved = view.named_node(source.ino)?;
    let mut draft = Draft::new();
    if target.as_ref().is_some_and(|(dentry, _)| dentry.ino == source.ino) {
        // Two names of one file: POSIX requires that nothing happens.
        draft.change.inode = Some((moved.ino, moved.record));
        return Ok(draft.finish());
    }
    quota::check_same(&ends.to, ends.parent.record.quota_below(op.parent))?;
    check_loops(&mut draft, view, op, &ends)?;
    if let Some(inside) = &inside
        && !view.range(inside, 1)?.is_empty()
    {
        return Err(Refusal::NotEmpty.into());
    }

    draft.check_seen(ends.from_key.clone(), Some(ends.source_seen));
    draft.check_seen(ends.to_key.clone(), target.as_ref().map(|(_, seen)| *seen));
    draft.put(ends.to_key.clone(), source.encode());
    let mut subdirs = [(op.parent, -i64::from(source.is_dir())), (op.to, i64::from(source.is_dir()))];
    if let Some((dentry, _)) = target {
        let other = view.named_node(dentry.ino)?;
        subdirs[1].1 -= i64::from(dentry.is_dir());
        draft.change.displaced = (other.record.kind() == mode::S_IFREG).then_some(other.ino);
        if exchange {
            subdirs[0].1 += i64::from(dentry.is_dir());
            relocate(&mut draft, view, ctx, &other, &ends.parent)?;
        } else {
            draft.lose_name(view, ctx, &other, (op.to, op.to_name))?;
        }
    }
    match target.filter(|_| exchange) {
        Some((dentry, _)) => draft.put(ends.from_key.clone(), dentry.encode()),
        None => draft.del(ends.from_key.clone()),
    }
    relocate(&mut draft, view, ctx, &moved, &ends.to)?;
    if op.parent == op.to {
        draft.add(Key::subdirs(op.to), subdirs[0].1 + subdirs[1].1);
    } else {
        subdirs.into_iter().for_each(|(dir, by)| draft.add(Key::subdirs(dir), by));
    }
    draft.entries_changed(&ends.parent, ctx.now);
    draft.entries_changed(&ends.to, ctx.now);
    Ok(draft.finish())
}

/// Reads both names and both directories, and refuses what their kinds alone forbid.
fn ends<'v>(view: &'v View, op: &Rename<'_>) -> Result<Ends<'v>, Stop> {
    check_name(op.name)?;
    check_name(op.to_name)?;
    let from_key = Key::dentry(op.parent, op.name);
    let to_key = Key::dentry(op.to, op.to_name);
    let mut ask = Ask::new(view);
    ask.row(&Key::inode(op.parent)).row(&Key::inode(op.to)).row(&from_key).row(&to_key).done()?;
    let parent = view.live_dir(op.parent)?;
    let to = view.live_dir(op.to)?;
    let (source, source_seen) = view.dentry(&from_key)?.ok_or(Refusal::NotFound)?;
    let target = view.dentry(&to_key)?;
    match (op.mode, &target) {
        (RenameMode::NoReplace, Some(_)) => return Err(Refusal::Exists.into()),
        (RenameMode::Exchange, None) => return Err(Refusal::NotFound.into()),
        (RenameMode::Replace, Some((target, _))) if source.is_dir() != target.is_dir() => {
            let refusal = if source.is_dir() { Refusal::NotDir } else { Refusal::IsDir };
            return Err(refusal.into());
        }
        _ => {}
    }
    Ok(Ends { from_key, to_key, source, source_seen, target, parent, to })
}

/// Refuses to move a directory into itself.
fn check_loops(draft: &mut Draft, view: &View, op: &Rename<'_>, ends: &Ends<'_>) -> Result<(), Stop> {
    if op.parent == op.to {
        return Ok(());
    }
    let mut walked = Ancestors::default();
    if ends.source.is_dir() {
        check_not_within(draft, view, &mut walked, ends.source.ino, op.to)?;
    }
    if let Some((target, _)) = ends.target.filter(|(target, _)| target.is_dir())
        && op.mode == RenameMode::Exchange
    {
        check_not_within(draft, view, &mut walked, target.ino, op.parent)?;
    }
    Ok(())
}

/// Directories that are checks of the draft already.
#[derive(Default)]
pub(super) struct Ancestors(HashSet<Ino>);

/// Refuses with `Invalid` if `dir` is `mover` or lies below it. Every directory from `dir` up to the root (or
/// to the top of a tree that has no name yet) becomes a check.
pub(super) fn check_not_within(
    draft: &mut Draft,
    view: &View,
    walked: &mut Ancestors,
    mover: Ino,
    dir: Ino,
) -> Result<(), Stop> {
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == mover {
            return Err(Refusal::Invalid.into());
        }
        let key = Key::inode(at);
        let row = view.row(&key)?.ok_or(Refusal::NotFound)?;
        let record = InodeRecord::decode(row)?;
        if walked.0.insert(at) {
            draft.check_seen(key, Some(row));
        }
        if at == Ino::ROOT || record.parent == Ino(0) {
            return Ok(());
        }
        at = record.parent;
    }
    Err(Refusal::Damaged.into())
}

/// Records that an inode's name is now in `dir`.
fn relocate(draft: &mut Draft, view: &View, ctx: &Ctx, node: &Node, dir: &Node) -> Result<(), Stop> {
    if needs_entries_changed(node) {
        view.row(&Key::dir_changed(node.ino))?;
    }
    let mut record = draft.touched(view, ctx, node)?;
    if record.is_dir() || record.nlink == 1 {
        record.parent = dir.ino;
    }
    quota::inherit(draft, &mut record, dir)?;
    draft.update(node, record);
    Ok(())
}
