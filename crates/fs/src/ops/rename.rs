//! Renames: within a directory, between two, over an existing name, and exchanges of two names.

use base::Ino;
use meta::plan::Op;

use super::check_name;
use crate::api::{RenameMode, Touched};
use crate::errno::Error;
use crate::volume::Core;

impl Core {
    pub(crate) fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        to: Ino,
        to_name: &[u8],
        mode: RenameMode,
    ) -> Result<Touched, Error> {
        check_name(name)?;
        check_name(to_name)?;
        let mode = match mode {
            RenameMode::Replace => meta::plan::op::RenameMode::Replace,
            RenameMode::NoReplace => meta::plan::op::RenameMode::NoReplace,
            RenameMode::Exchange => meta::plan::op::RenameMode::Exchange,
        };
        let change = self.run(&Op::Rename { parent, name, to, to_name, mode })?;
        for (parent, name) in [(parent, name), (to, to_name)] {
            if let Ok(Some(dentry)) = self.names.lookup(parent, name) {
                self.hints.named(name, dentry.ino);
            }
        }
        self.hints.changed();
        Ok(Touched([super::link::file_of(&change), change.displaced]))
    }
}
