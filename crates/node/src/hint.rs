//! Which access hint applies to a file, and where it comes from. The same order as in [`fs::access`], with a
//! reason for a person.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use api::answers::Hint;
use api::error::Result;
use blob::Access;
use fs::access::ATTRIBUTE;
use fs::api::{Attr, FileKind, Filesystem};

use crate::errno::errno_failure;
use crate::opened::Node;

impl Node {
    /// The hint that applies to a file or folder, by its path below the root.
    pub fn hint(&self, path: &Path) -> Result<Hint> {
        let volume = self.volume();
        let look = |path: &Path| -> Result<Attr> {
            let found = volume.resolve(path.as_os_str().as_bytes(), false);
            found.map_err(|errno| errno_failure(format!("cannot look at /{}", path.display()), errno))
        };
        let itself = look(path)?;
        // A file with several names is in no folder.
        let depth = if itself.kind != FileKind::Dir && itself.nlink > 1 { 1 } else { usize::MAX };
        let rules = volume.access_rules();
        let of = |access: Access, why: String| Hint {
            access: access.name().to_owned(),
            why,
            remote: self.is_remote(),
        };
        for above in path.ancestors().take(depth) {
            let value = volume.getxattr(look(above)?.ino, ATTRIBUTE).ok();
            if let Some(access) = value.and_then(|value| Access::named(&value)) {
                let why = match above == path {
                    true => "by its own attribute".to_owned(),
                    false => format!("by the attribute of /{}", above.display()),
                };
                return Ok(of(access, why));
            }
            let rule = above.file_name().and_then(|name| rules.of_name(name.as_bytes()));
            if let Some((pattern, access)) = rule {
                let why = format!("by -o {}={pattern}, for /{}", access.name(), above.display());
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
