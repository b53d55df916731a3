//! Which hints apply to a file, and where they come from. The same order as in [`fs::access`], with a
//! reason for a person.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use api::answers::Hint;
use api::error::Result;
use blob::Access;
use fs::access::{ATTRIBUTE, KEEP_ATTRIBUTE, keep_named};
use fs::api::{Attr, FileKind, Filesystem};

use crate::errno::errno_failure;
use crate::opened::Node;

impl Node {
    /// The hints that apply to a file or folder, by its path below the root.
    pub fn hint(&self, path: &Path) -> Result<Hint> {
        let volume = self.volume();
        let look = |path: &Path| -> Result<Attr> {
            let found = volume.resolve(path.as_os_str().as_bytes(), false);
            found.map_err(|errno| errno_failure(format!("cannot look at /{}", path.display()), errno))
        };
        let itself = look(path)?;
        // A file with several names is in no folder.
        let depth = if itself.kind != FileKind::Dir && itself.nlink > 1 { 1 } else { usize::MAX };
        let above: Vec<&Path> = path.ancestors().take(depth).collect();
        let attribute = |at: &Path, name: &[u8]| -> Result<Option<Vec<u8>>> {
            Ok(volume.getxattr(look(at)?.ino, name).ok())
        };
        let said_by = |at: &Path| match at == path {
            true => "by its own attribute".to_owned(),
            false => format!("by the attribute of /{}", at.display()),
        };
        let (mut keep, mut keep_why) = (false, None);
        for at in &above {
            let value = attribute(at, KEEP_ATTRIBUTE)?;
            if let Some(said) = value.and_then(|value| keep_named(&value)) {
                (keep, keep_why) = (said, Some(said_by(at)));
                break;
            }
        }
        let rules = volume.access_rules();
        let of = |access: Access, why: String| Hint {
            access: access.name().to_owned(),
            why,
            keep,
            keep_why: keep_why.clone(),
            remote: self.is_remote(),
        };
        for at in &above {
            let value = attribute(at, ATTRIBUTE)?;
            if let Some(access) = value.and_then(|value| Access::named(&value)) {
                return Ok(of(access, said_by(at)));
            }
            let rule = at.file_name().and_then(|name| rules.of_name(name.as_bytes()));
            if let Some((pattern, access)) = rule {
                let why = format!("by -o {}={pattern}, for /{}", access.name(), at.display());
                return Ok(of(*access, why));
            }
        }
        let why = match rules.default {
            Access::Normal => "no hint is set".to_owned(),
            access => format!("by -o access={}", access.name()),
        };
        Ok(of(rules.default, why))
    }
}
