//! Where a database's password comes from.
//!
//! In this order: the variable `COVEY_PG_PASSWORD`, the variable `PGPASSWORD`, and the file that `PGPASSFILE`
//! names, or `~/.pgpass`. The file is PostgreSQL's: a line is `host:port:database:user:password`, `*` stands
//! for anything, and a backslash stands before `:` and `\`. A file that other users can read is refused, as
//! PostgreSQL's own programs do.
//!
//! The password is read for each connection, so that a changed one needs no restart.

use std::path::Path;

use super::Target;
use crate::secrets::{Secrets, Source, in_variable, one_line, private_text};

/// Longer files hold something else.
const FILE_MAX: u64 = 1 << 20;

/// The password for a database; none if no source has one.
///
/// # Errors
/// A line that says why a source cannot be used.
pub(super) fn find(secrets: &Secrets, target: &Target) -> Result<Option<String>, String> {
    let file = match &secrets.0 {
        Source::Password(password) => return Ok(Some(password.clone())),
        Source::File(path) => path.clone(),
        Source::Environment => {
            for name in ["COVEY_PG_PASSWORD", "PGPASSWORD"] {
                if let Some(password) = in_variable(name)? {
                    return Ok(Some(password));
                }
            }
            match (std::env::var_os("PGPASSFILE"), std::env::var_os("HOME")) {
                (Some(path), _) => path.into(),
                (None, Some(home)) => Path::new(&home).join(".pgpass"),
                (None, None) => return Ok(None),
            }
        }
    };
    in_file(&file, target)
}

fn in_file(path: &Path, target: &Target) -> Result<Option<String>, String> {
    // PGPASSFILE=/dev/null is the usual way to say that there is none.
    let Some(text) = private_text(path, FILE_MAX)? else { return Ok(None) };
    // A Unix socket is written as `localhost` there too.
    let is_socket = target.host.starts_with('/');
    let port = target.port.to_string();
    let wanted = [target.host.as_str(), &port, &target.database, &target.user];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((fields, password)) = split(line) else { continue };
        let fits = fields.iter().zip(wanted).enumerate().all(|(at, (field, wanted))| {
            field == "*" || field == wanted || (at == 0 && is_socket && field == "localhost")
        });
        if fits {
            return one_line(&password, &format!("the password file {}", path.display())).map(Some);
        }
    }
    Ok(None)
}

/// The four fields of a line and its password.
fn split(line: &str) -> Option<([String; 4], String)> {
    let mut fields: [String; 5] = Default::default();
    let mut at = 0;
    let mut rest = line.chars();
    while let Some(next) = rest.next() {
        match next {
            '\\' => fields[at].extend(rest.next()),
            ':' if at < 4 => at += 1,
            other => fields[at].push(other),
        }
    }
    let [host, port, database, user, password] = fields;
    (at == 4).then_some(([host, port, database, user], password))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn found(text: &str, host: &str) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pass");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let target = Target::parse(&format!("postgres://u@{host}/d?volume=v")).unwrap();
        find(&Secrets::file(&path), &target).unwrap()
    }

    #[test]
    fn the_first_line_that_fits_counts() {
        let text = "# h:*:*:*:no\nother:*:*:u:1\nh:5432:d:u:a\\:b\\\\c:d\n*:*:*:*:last";
        assert_eq!(found(text, "h").unwrap(), "a:b\\c:d");
        assert_eq!(found(text, "elsewhere").unwrap(), "last");
        assert_eq!(found("h:5433:d:u:x\nbroken\n", "h"), None);
        assert_eq!(found("localhost:*:*:*:x", "%2Frun").unwrap(), "x");
        assert_eq!(found("*:*:*:*:s3cret \r\n", "h").unwrap(), "s3cret");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pass");
        fs::write(&path, "*:*:*:*:s3cret").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let target = Target::parse("postgres://u@h/d?volume=v").unwrap();
        let message = find(&Secrets::file(&path), &target).unwrap_err();
        assert!(message.contains("0640") && message.contains("chmod 600"), "{message}");
        assert!(!message.contains("s3cret"));
        fs::write(&path, "*:*:*:*:s3\rcret\n").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let message = find(&Secrets::file(&path), &target).unwrap_err();
        assert!(message.contains("control character") && message.contains(path.to_str().unwrap()));
        assert!(!message.contains("cret\n") && !message.contains("s3"), "{message}");
        assert_eq!(find(&Secrets::file(folder.path().join("none")), &target).unwrap(), None);
        assert!(!format!("{:?}", Secrets::password("s3cret")).contains("s3cret"));
    }
}
