//! Where a cluster's password comes from.
//!
//! In this order: the variable `ETCD_PASSWORD`, and the first line of the file that `ETCD_PASSFILE` names. A
//! file that other users can read is refused. The password is read for each connection, so that a changed one
//! needs no restart.

use std::path::Path;

use crate::secrets::{Secrets, Source, in_variable, one_line, private_text};

/// Longer files hold something else.
const FILE_MAX: u64 = 1 << 16;

/// The password; none if no source has one.
///
/// # Errors
/// A line that says why a source cannot be used.
pub(super) fn find(secrets: &Secrets) -> Result<Option<String>, String> {
    match &secrets.0 {
        Source::Password(password) => Ok(Some(password.clone())),
        Source::File(path) => in_file(path).map(Some),
        Source::Environment => {
            if let Some(password) = in_variable("ETCD_PASSWORD")? {
                return Ok(Some(password));
            }
            std::env::var_os("ETCD_PASSFILE").map(|path| in_file(Path::new(&path))).transpose()
        }
    }
}

fn in_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let text = private_text(path, FILE_MAX)?
        .ok_or_else(|| format!("the password file {shown} cannot be read: there is no such file"))?;
    let first = one_line(text.lines().next().unwrap_or(""), &format!("the password file {shown}"))?;
    let empty = || format!("the first line of the password file {shown} is empty");
    Some(first).filter(|line| !line.is_empty()).ok_or_else(empty)
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
        assert!(find(&secrets).unwrap_err().contains("cannot be read"));
        std::fs::write(&path, "s3cret\nmore\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(find(&secrets).unwrap_err().contains("chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find(&secrets).unwrap().as_deref(), Some("s3cret"));
        std::fs::write(&path, " s3cret \r\n").unwrap();
        assert_eq!(find(&secrets).unwrap().as_deref(), Some("s3cret"));
        std::fs::write(&path, "s3\tcret\n").unwrap();
        let refused = find(&secrets).unwrap_err();
        assert!(
            refused.contains("control character") && refused.contains(path.to_str().unwrap()),
            "{refused}"
        );
        assert!(!refused.contains("cret\n") && !refused.contains("s3"), "{refused}");
        std::fs::write(&path, "\n").unwrap();
        assert!(find(&secrets).unwrap_err().contains("empty"));
        assert!(!format!("{:?}", Secrets::password("s3cret")).contains("s3cret"));
    }
}
