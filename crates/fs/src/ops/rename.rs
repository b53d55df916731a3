//! Renames: within a directory, between two, over something, and exchanging two names.

use base::Ino;
use meta::plan::Op;

use super::check_name;
use crate::api::RenameMode;
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
    ) -> Result<(), Error> {
        check_name(name)?;
        check_name(to_name)?;
        let mode = match mode {
            RenameMode::Replace => meta::plan::op::RenameMode::Replace,
            RenameMode::NoReplace => meta::plan::op::RenameMode::NoReplace,
            RenameMode::Exchange => meta::plan::op::RenameMode::Exchange,
        };
        self.run(&Op::Rename { parent, name, to, to_name, mode })?;
        for (parent, name) in [(parent, name), (to, to_name)] {
            if let Ok(Some(dentry)) = self.names.lookup(parent, name) {
                self.hints.named(name, dentry.ino);
            }
        }
        self.hints.changed();
        Ok(())
    }
}
