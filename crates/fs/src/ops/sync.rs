//! fsync(2) and its kin. One flush makes all that was committed before it survive, for all who wait.

use base::Ino;

use crate::errno::Error;
use crate::volume::Core;

impl Core {
    pub(crate) fn fsync(&self, _ino: Ino) -> Result<(), Error> {
        self.sync()
    }

    pub(crate) fn sync(&self) -> Result<(), Error> {
        if self.options.read_only {
            return Ok(());
        }
        self.flush()
    }
}
