//! The operations, one file per family. They work on names and bytes and return [`crate::errno::Error`];
//! `serve` turns that into the transport's types.

mod attr;
mod create;
mod dir;
mod link;
pub(crate) mod lookup;
mod read;
mod rename;
mod set_ids;
mod space;
mod sync;
pub(crate) mod write;
mod xattr;

use base::size::NAME_MAX;

use crate::errno::{Errno, Error};

/// Refuses bytes that cannot be a name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > NAME_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}
