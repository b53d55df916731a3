//! The password of a database, and files that hold one.
//!
//! Each engine says in its own `secrets` where it looks. The password is read for each connection, so that a
//! changed one needs no restart.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The mode bits for the group and for other users.
const OTHERS: u32 = 0o077;

/// Where the password comes from. Its text form shows no password.
#[derive(Clone, Default)]
pub struct Secrets(pub(super) Source);

#[derive(Clone, Default)]
pub(super) enum Source {
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
    /// From the environment, as the engine says.
    pub fn from_env() -> Secrets {
        Secrets::default()
    }

    /// Uses the given password.
    pub fn password(password: impl Into<String>) -> Secrets {
        Secrets(Source::Password(password.into()))
    }

    /// From a file in the engine's format.
    pub fn file(path: impl Into<PathBuf>) -> Secrets {
        Secrets(Source::File(path.into()))
    }
}

/// The password in a variable, if it is set.
///
/// # Errors
/// A line that says why it cannot be used.
pub(super) fn in_variable(name: &str) -> Result<Option<String>, String> {
    let Some(value) = std::env::var_os(name) else { return Ok(None) };
    let text = value.into_string().map_err(|_| format!("the variable {name} is not text"))?;
    one_line(&text, &format!("the variable {name}")).map(Some)
}

/// A password without white space at its ends. `from` says where it came from.
///
/// # Errors
/// A line that says that it has a control character inside.
pub(super) fn one_line(text: &str, from: &str) -> Result<String, String> {
    base::secret::line(text, &from).map(str::to_owned).map_err(|error| error.to_string())
}

/// The text of a password file of at most `most` bytes, which other users must not be able to read. None if
/// there is no such file, or it is none.
///
/// # Errors
/// A line that says why it cannot be used.
pub(super) fn private_text(path: &Path, most: u64) -> Result<Option<String>, String> {
    let shown = path.display();
    let unread = |error: std::io::Error| format!("the password file {shown} cannot be read: {error}");
    let meta = match path.metadata() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        meta => meta.map_err(unread)?,
    };
    if !meta.is_file() {
        return Ok(None);
    }
    if meta.len() > most {
        return Err(format!("the password file {shown} has more than {most} bytes: is it the right file?"));
    }
    if meta.mode() & OTHERS != 0 {
        let mode = meta.mode() & 0o7777;
        return Err(format!(
            "the password file {shown} has mode {mode:04o}, so others can read it; `chmod 600 {shown}`"
        ));
    }
    std::fs::read_to_string(path).map(Some).map_err(unread)
}
