//! Where a cluster's password comes from.
//!
//! In this order: the variable `ETCD_PASSWORD`, and the first line of the file that `ETCD_PASSFILE` names. A
//! file that other users can read is refused. The password is read for each connection, so that a changed one
//! needs no restart.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Longer files hold something else.
const FILE_MAX: u64 = 1 << 16;
/// The mode bits for the group and for other users.
const OTHERS: u32 = 0o077;

/// Where the password comes from. Its text form shows no password.
#[derive(Clone, Default)]
pub struct Secrets(Source);

#[derive(Clone, Default)]
enum Source {
    #[default]
    Environment,
    Password(String),
    File(PathBuf),
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(not shown)")
    }
}

impl Secrets {
    /// From the environment, as the module says.
    pub fn from_env() -> Secrets {
        Secrets::default()
    }

    /// This one.
    pub fn password(password: impl Into<String>) -> Secrets {
        Secrets(Source::Password(password.into()))
    }

    /// From the first line of a file.
    pub fn file(path: impl Into<PathBuf>) -> Secrets {
        Secrets(Source::File(path.into()))
    }

    /// The password; none if no source has one.
    ///
    /// # Errors
    /// A line that says why a source cannot be used.
    pub(super) fn find(&self) -> Result<Option<String>, String> {
        match &self.0 {
            Source::Password(password) => Ok(Some(password.clone())),
            Source::File(path) => in_file(path).map(Some),
            Source::Environment => {
                if let Some(value) = std::env::var_os("ETCD_PASSWORD") {
                    let text = value.into_string().ok();
                    return text.map(Some).ok_or_else(|| "the variable ETCD_PASSWORD is not text".to_owned());
                }
                std::env::var_os("ETCD_PASSFILE").map(|path| in_file(Path::new(&path))).transpose()
            }
        }
    }
}

fn in_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let meta =
        path.metadata().map_err(|error| format!("the password file {shown} cannot be read: {error}"))?;
    if !meta.is_file() || meta.len() > FILE_MAX {
        return Err(format!(
            "the password file {shown} is no file of at most {FILE_MAX} bytes: is it the right one?"
        ));
    }
    if meta.mode() & OTHERS != 0 {
        let mode = meta.mode() & 0o7777;
        return Err(format!(
            "the password file {shown} has mode {mode:04o}, so others can read it; `chmod 600 {shown}`"
        ));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("the password file {shown} cannot be read: {error}"))?;
    let first = text.lines().next().filter(|line| !line.is_empty());
    first.map(str::to_owned).ok_or_else(|| format!("the first line of the password file {shown} is empty"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_read_and_must_be_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pass");
        let secrets = Secrets::file(&path);
        assert!(secrets.find().unwrap_err().contains("cannot be read"));
        std::fs::write(&path, "s3cret\nmore\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(secrets.find().unwrap_err().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(secrets.find().unwrap().as_deref(), Some("s3cret"));
        std::fs::write(&path, "\n").unwrap();
        assert!(secrets.find().unwrap_err().contains("empty"));
        assert!(!format!("{:?}", Secrets::password("s3cret")).contains("s3cret"));
    }
}
