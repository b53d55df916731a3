//! Clones a file or folder for a caller. Only metadata is copied.

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use api::answers::CloneSummary;
use api::control::Tick;
use api::error::{Failure, Result};
use api::text::count;
use base::Ino;
use fs::Errno;

use super::Node;
use crate::errno::errno_failure;

/// The result of a clone, and the name that the kernel must look up again.
#[derive(Debug)]
pub struct Cloned {
    /// The figures for the user.
    pub summary: CloneSummary,
    /// The folder of the new name.
    pub parent: Ino,
    /// The new name.
    pub name: Vec<u8>,
}

impl Node {
    /// Makes `to` a copy of `from` by copying only metadata. Both paths are relative to the root.
    pub fn clone_tree(&self, from: &Path, to: &Path, tick: &mut dyn FnMut(Tick)) -> Result<Cloned> {
        let started = base::time::monotonic();
        let shown = |path: &Path| format!("/{}", path.display());
        let failed = |what: String| move |errno: Errno| errno_failure(what, errno);
        let name = to.file_name().ok_or_else(|| {
            Failure::usage("the volume's root is there already").next("name a path below it")
        })?;
        let found = self.volume.resolve(from.as_os_str().as_bytes(), false);
        let source = found.map_err(failed(format!("cannot clone {}", shown(from))))?;
        let folder = to.parent().unwrap_or(Path::new(""));
        let parent = self.volume.resolve(folder.as_os_str().as_bytes(), true);
        let parent = parent.map_err(failed(format!("cannot clone into {}", shown(folder))))?.ino;
        let mut progress = |done: fs::clone::Cloned| {
            let files = done.files + done.dirs;
            tick(Tick { done: files, of: 0, what: format!("{} files and folders", count(files)) });
            ControlFlow::Continue(())
        };
        let done = self.volume.clone_tree(source.ino, parent, name.as_bytes(), &mut progress);
        let done = match done {
            Err(Errno::EEXIST) => {
                return Err(archive::import::exists(Path::new(&shown(to))).map_next("name another path"));
            }
            Err(Errno::EBUSY) => {
                return Err(Failure::new("busy", format!("cannot clone {}", shown(from)))
                    .why("other nodes change a file of more than 4 GiB in it all the time")
                    .next("try again when they have ended; nothing was made"));
            }
            other => other.map_err(failed(format!("cannot clone {} to {}", shown(from), shown(to))))?,
        };
        let summary = CloneSummary {
            files: done.files + done.dirs,
            bytes: done.bytes,
            seconds: (base::time::monotonic() - started).as_secs_f64(),
        };
        Ok(Cloned { summary, parent, name: name.as_bytes().to_vec() })
    }
}
