//! What an operation on names means. Pure: no I/O, no clock, no randomness, so that it can be model-checked.
//!
//! [`plan`] looks at the rows it is given. It returns one of three things: the rows that it must see first,
//! why the operation is refused, or one commit that does the operation, with what the caller needs to know.
//! The same plan runs over every engine.
//!
//! [`op`] holds the operations; one file per family plans them:
//!
//! ```text
//!   create   link   rename   attr   data (write)   range (punch, copy)   clone   xattr            families
//!   trash (out of it)    pack     doom (blobs of shared volumes that nothing keeps)
//!   size (truncate, inline)        acl        quota                                               shared
//!   pages: extent pages and the packs' counters    draft: a commit under construction            tools
//!   view: rows shown so far, and how to ask for more
//! ```

mod acl;
mod attr;
mod clone;
mod create;
mod data;
mod doom;
mod draft;
mod link;
pub mod op;
mod pack;
mod pages;
mod quota;
mod range;
mod rename;
mod size;
mod trash;
pub mod view;
mod xattr;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use draft::nothing;
pub(crate) use pages::packs_of;
pub(crate) use xattr::{ACCESS_ACL, CAPABILITY, DEFAULT_ACL};

pub use op::{Change, Ctx, Op, Plan, Refusal};
pub use view::View;

use view::Stop;

/// The result of an operation, given the rows shown so far. The same input always gives the same output.
pub fn plan(op: &Op<'_>, ctx: &Ctx, view: &View) -> Plan {
    match attempt(op, ctx, view) {
        Ok(change) => Plan::Change(Box::new(change)),
        Err(Stop::Refused(refusal)) => Plan::Refused(refusal),
        Err(Stop::Need { keys, ranges }) => Plan::Need { keys, ranges },
    }
}

fn attempt(op: &Op<'_>, ctx: &Ctx, view: &View) -> Result<Change, Stop> {
    match *op {
        Op::Format { rows } => create::format(view, ctx, rows),
        Op::Create { parent, name, ref make } => create::create(view, ctx, parent, name, make),
        Op::Tmpfile { parent, ref make } => create::tmpfile(view, ctx, parent, make),
        Op::Link { ino, parent, name } => link::link(view, ctx, ino, parent, name),
        Op::Unlink { parent, name } => link::unlink(view, ctx, parent, name),
        Op::Rmdir { parent, name } => link::rmdir(view, ctx, parent, name),
        Op::Rename { parent, name, to, to_name, mode } => {
            rename::rename(view, ctx, &rename::Rename { parent, name, to, to_name, mode })
        }
        Op::SetAttr { ino, ref set } => attr::set(view, ctx, ino, set),
        Op::Write { ino, ref body, unprivileged, cached, intern, over } => {
            data::write(view, ctx, &data::Write { ino, body, unprivileged, cached, intern, over })
        }
        Op::Punch { ino, offset, len, grow_to } => range::punch(view, ctx, ino, offset, len, grow_to),
        Op::CopyRange { from, from_offset, to, to_offset, len } => {
            range::copy(view, ctx, &range::Copy { from, from_offset, to, to_offset, len })
        }
        Op::CloneInode { from, ino, quota } => clone::clone(view, ctx, from, ino, quota),
        Op::CloneMore { from, ino, page, over } => clone::more(view, from, ino, page, over),
        Op::Attach { ino, parent, name } => link::attach(view, ctx, ino, parent, name),
        Op::Restore { ino, parent, name } => trash::restore(view, ctx, ino, parent, name),
        Op::Expire { ino, at } => trash::expire(view, ino, at),
        Op::Reap { ino } => link::reap(view, ino),
        Op::ReapShared { ino } => link::reap_shared(view, ino),
        Op::SetXattr { ino, name, value, mode, kill_sgid } => {
            xattr::set(view, ctx, &xattr::Set { ino, name, value, mode, kill_sgid })
        }
        Op::RemoveXattr { ino, name } => xattr::remove(view, ctx, ino, name),
        Op::OpenPack { pack } => pack::open(view, pack),
        Op::SealPack { pack, blob, size } => pack::seal(view, pack, blob, size),
        Op::CondemnPack { pack } => pack::condemn(view, pack),
        Op::CondemnShared { pack } => doom::condemn(view, ctx, pack),
        Op::Doom { blob, reason, by } => doom::doom(view, &doom::Doom { blob, reason, by }),
        Op::ForgetPack { pack } => pack::forget(view, pack),
        Op::Follow { ino, page, moves } => pack::follow(view, ino, page, moves),
        Op::SetQuota { dir, was, row } => quota::set(view, dir, was, row),
        Op::MoveToQuota { ino, from, to } => quota::move_to(view, ino, from, to),
        Op::Allocate { counter, count, from } => pack::allocate(view, counter, count, from),
    }
}
