//! The cluster secret: what a node must know to belong to the fleet.
//!
//! It is read from a file (or from text of the environment). It is never sent and never printed. Its users
//! derive a *key* for one purpose from it ([`Secret::key`]). Neither the secret nor another key can be
//! computed from a key. Its memory is overwritten on drop.
//!
//! A secret that a person made up can be guessed offline by anyone who has recorded one datagram.
//! [`Secret::generate_text`] makes one that cannot be guessed.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

/// The minimum length in bytes.
pub const SECRET_MIN: usize = 16;
/// The maximum length in bytes. A longer file is not a secret.
pub const SECRET_MAX: usize = 4096;

/// The mode bits that give access to users other than the owner and the group.
const OTHERS: u32 = 0o007;
/// The group may read (systemd and Kubernetes provide secrets that way), but not write.
const GROUP_WRITES: u32 = 0o020;

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("the cluster secret {}: {error}; `covey fleet secret FILE` makes one", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The path is a folder, a pipe or a device.
    #[error("the cluster secret {} is not a regular file; name the file that holds it", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// Other users could have read or changed it.
    #[error(
        "the cluster secret {} has mode {mode:04o}: others can get at it; `chmod 600 {}`, and make a new secret if somebody may have read it",
        path.display(), path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// The file's mode.
        mode: u32,
    },
    /// The file belongs to another user, who can read and change it whatever its mode is.
    #[error("the cluster secret {} belongs to user {owner}: make it your own, `chown {me} {}`", path.display(), path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The file's owner.
        owner: u32,
        /// The user of this process.
        me: u32,
    },
    /// Fewer than [`SECRET_MIN`] bytes.
    #[error(
        "the cluster secret has {bytes} bytes, and needs {SECRET_MIN} at least; `covey fleet secret FILE` makes one"
    )]
    Short {
        /// How many it has.
        bytes: usize,
    },
    /// More than [`SECRET_MAX`] bytes.
    #[error("the cluster secret is longer than {SECRET_MAX} bytes: is that the right file?")]
    Long,
    /// The secret is more than one line, or no text.
    #[error(transparent)]
    NotALine(#[from] NotALine),
}

/// Text that should be one line has a control character inside.
#[derive(Debug, thiserror::Error)]
#[error("{from} holds a line end or another control character inside: give it as one line of text")]
pub struct NotALine {
    /// Where the text came from.
    pub from: String,
}

/// A password, a key, a token or an address, without white space at its ends. Files, mounted secrets and
/// commands often end it with a line end. `from` says where it came from: the text itself is in no message.
///
/// # Errors
/// It has a control character inside. A header or a form would carry it as something else.
pub fn line<'t>(text: &'t str, from: &dyn fmt::Display) -> Result<&'t str, NotALine> {
    let text = text.trim();
    match text.contains(char::is_control) {
        true => Err(NotALine { from: from.to_string() }),
        false => Ok(text),
    }
}

/// The cluster secret. Its `Debug` output does not show it.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Reads a file that only its owner, and at most readers of its group, can access. White space around the
    /// line is ignored.
    ///
    /// # Errors
    /// [`SecretError`].
    pub fn from_file(path: &Path) -> Result<Secret, SecretError> {
        let failed = |error| SecretError::Read { path: path.to_owned(), error };
        // Opening a pipe would wait for a writer.
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
        // Of the open file, because the path could mean another file a moment later.
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() {
            return Err(SecretError::NotAFile { path: path.to_owned() });
        }
        let mode = about.mode() & 0o7777;
        if mode & (OTHERS | GROUP_WRITES) != 0 {
            return Err(SecretError::Open { path: path.to_owned(), mode });
        }
        let (owner, me) = (about.uid(), rustix::process::geteuid().as_raw());
        if owner != 0 && owner != me {
            return Err(SecretError::Foreign { path: path.to_owned(), owner, me });
        }
        // Capacity for all at once, so that growing leaves no copies behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_MAX + 2));
        file.take(SECRET_MAX as u64 + 2).read_to_end(&mut bytes).map_err(failed)?;
        Secret::from_bytes(&bytes, &format_args!("the cluster secret {}", path.display()))
    }

    /// From text, such as a variable of the environment. White space around it is ignored.
    ///
    /// # Errors
    /// It is too short, too long, or more than one line.
    pub fn from_text(text: &str) -> Result<Secret, SecretError> {
        Secret::from_bytes(text.as_bytes(), &"the cluster secret")
    }

    fn from_bytes(bytes: &[u8], from: &dyn fmt::Display) -> Result<Secret, SecretError> {
        let bytes = bytes.trim_ascii();
        match bytes.len() {
            len if len < SECRET_MIN => Err(SecretError::Short { bytes: len }),
            len if len > SECRET_MAX => Err(SecretError::Long),
            _ if bytes.iter().any(u8::is_ascii_control) => Err(NotALine { from: from.to_string() }.into()),
            _ => Ok(Secret(Zeroizing::new(bytes.to_vec()))),
        }
    }

    /// A new secret as text: 64 hexadecimal digits.
    pub fn generate_text() -> String {
        let mut bytes = Zeroizing::new([0u8; 32]);
        crate::random::fill(bytes.as_mut_slice());
        blake3::Hash::from_bytes(*bytes).to_hex().to_string()
    }

    /// The key for one purpose ("gossip", "hello"). A purpose always has the same key, and no two purposes
    /// share one.
    pub fn key(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(&format!("covey fleet v1 {purpose}"), &self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const TEXT: &str = "0123456789abcdef0123456789abcdef";

    fn file(text: &[u8], mode: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (folder, path)
    }

    #[test]
    fn regression_a_secret_of_another_user_is_refused() {
        let (_folder, path) = file(TEXT.as_bytes(), 0o600);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1234), None).unwrap();
            let refused = Secret::from_file(&path).unwrap_err();
            assert!(matches!(refused, SecretError::Foreign { owner: 1234, .. }), "{refused}");
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        } else {
            println!("not root: only one's own: skipped");
        }
        assert!(Secret::from_file(&path).is_ok());
    }

    #[test]
    fn a_file_and_its_text_are_the_same_secret() {
        let text = Secret::from_text(TEXT).unwrap();
        for mode in [0o600, 0o400, 0o640] {
            let (_folder, path) = file(format!("{TEXT}\n").as_bytes(), mode);
            assert_eq!(Secret::from_file(&path).unwrap().key("a"), text.key("a"), "{mode:o}");
        }
    }

    #[test]
    fn purposes_and_secrets_have_keys_of_their_own() {
        let one = Secret::from_text(TEXT).unwrap();
        let other = Secret::from_text(&Secret::generate_text()).unwrap();
        assert_ne!(one.key("gossip"), one.key("hello"));
        assert_ne!(one.key("gossip"), other.key("gossip"));
        assert_ne!(Secret::generate_text(), Secret::generate_text());
        assert_eq!(Secret::generate_text().len(), 64);
    }

    #[test]
    fn what_others_can_reach_is_refused_with_what_to_do() {
        for mode in [0o644, 0o604, 0o602, 0o660, 0o601] {
            let (_folder, path) = file(TEXT.as_bytes(), mode);
            let error = Secret::from_file(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600") && error.contains(&format!("{mode:04o}")), "{error}");
        }
    }

    #[test]
    fn what_is_no_secret_is_refused() {
        assert!(matches!(Secret::from_text("short"), Err(SecretError::Short { bytes: 5 })));
        assert!(matches!(Secret::from_text(&" ".repeat(100)), Err(SecretError::Short { bytes: 0 })));
        assert!(matches!(Secret::from_text(&"x".repeat(4097)), Err(SecretError::Long)));
        assert!(matches!(Secret::from_text(&format!("{TEXT}\n{TEXT}")), Err(SecretError::NotALine(_))));
        let (folder, path) = file(&vec![b'x'; 1 << 20], 0o600);
        assert!(matches!(Secret::from_file(&path), Err(SecretError::Long)));
        assert!(matches!(Secret::from_file(folder.path()), Err(SecretError::NotAFile { .. })));
        let error = Secret::from_file(&folder.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("none") && error.contains("covey fleet secret"), "{error}");
    }

    #[test]
    fn white_space_ends_at_the_ends_of_a_line() {
        for text in ["s3cret word", "s3cret word\n", "s3cret word\r\n", " \ts3cret word \n\n"] {
            assert_eq!(line(text, &"it").unwrap(), "s3cret word");
        }
        for text in ["s3cret\nword", "s3\rcret", "s3\tcret", "s3\0cret", "s3\u{7f}cret\n", "s3\u{85}cret"] {
            let refused = line(text, &"the file /etc/pass").unwrap_err().to_string();
            assert!(refused.starts_with("the file /etc/pass holds") && !refused.contains("s3"), "{refused}");
        }
        let (_folder, path) = file(format!("{TEXT}\n{TEXT}\n").as_bytes(), 0o600);
        let refused = Secret::from_file(&path).unwrap_err().to_string();
        assert!(refused.contains(path.to_str().unwrap()) && !refused.contains(TEXT), "{refused}");
    }

    #[test]
    fn it_is_not_printed() {
        assert!(!format!("{:?}", Secret::from_text(TEXT).unwrap()).contains("0123"));
    }
}
