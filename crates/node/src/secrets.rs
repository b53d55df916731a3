//! Secrets, which must not leave this machine, and their removal from a text: passwords, keys, tokens,
//! signatures.
//!
//! Two methods work together. Values that are known here (environment variables and credential files) are
//! removed wherever they occur. Text that looks like a credential is removed, too. It is recognized by its
//! name (`secret_key = ...`, `"token": "..."`, `--password ...`), by its place (`https://user:word@host`, a
//! private key in PEM) or by its shape (an access key id, a key of forty characters, a signed token).
//! Removing a word too many costs a question. A word too few cannot be taken back.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use api::error::{Context, Failure, Result};
use api::own;

/// The replacement for a removed text.
pub const REMOVED: &str = "(removed)";

/// Shorter known values are not removed, because they occur in every text.
const SHORTEST: usize = 6;

/// Whether this code runs in a program that decides about its core dumps itself.
static IS_EMBEDDED: AtomicBool = AtomicBool::new(false);

/// From now on [`keep_from_dumps`] does nothing. For a library in a program of others: that program has the
/// same secrets in its environment, and debuggers and profilers of its user attach to it.
pub fn leave_dumps_to_the_program() {
    IS_EMBEDDED.store(true, Ordering::Relaxed);
}

/// Call this before a secret is read. From then on this process writes no core dump, and no other process of
/// its user may read its memory. A limit of 0 alone is not enough: a program to which the kernel pipes dumps
/// gets them in spite of it.
pub fn keep_from_dumps() {
    if IS_EMBEDDED.load(Ordering::Relaxed) {
        return;
    }
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        crate::log::warn(&format!("a crash of this process could write its secrets to disk: {error}"));
    }
}

/// The contents of a file with a secret. None if the file does not exist. From then on this process writes no
/// core dump.
pub fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    keep_from_dumps();
    let mut file = match File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.at("read", path)?,
    };
    let about = file.metadata().at("look at", path)?;
    own::is_private(path, &about).map_err(|why| {
        Failure::new("not-private", format!("the secret in {} is not used", path.display()))
            .why(why)
            .next("if somebody may have read it, it is no secret any more: replace it")
    })?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).at("read", path)?;
    Ok(Some(text))
}

/// Whether a value with this name is secret.
pub fn is_secret_name(name: &str) -> bool {
    const PARTS: [&str; 13] = [
        "secret",
        "password",
        "passwd",
        "passphrase",
        "token",
        "accesskey",
        "apikey",
        "credential",
        "privatekey",
        "accountkey",
        "encryptionkey",
        "signature",
        "authorization",
    ];
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    // Names of files and settings for credentials are not secret themselves.
    let about = ["file", "path", "uri", "url", "profile"].iter().any(|end| plain.ends_with(end));
    !about
        && (matches!(plain.as_str(), "sig" | "sas" | "auth" | "pass")
            || PARTS.iter().any(|part| plain.contains(part)))
}

/// Whether a value contains a name and a password, as in `https://user:word@host`, or a signed query.
pub fn is_in_address(value: &str) -> bool {
    without_user(value) != value || without_named(value) != value
}

/// Removes secrets from texts.
#[derive(Debug, Default)]
pub struct Cleaner {
    values: Vec<String>,
}

impl Cleaner {
    /// A cleaner that knows the credentials of this process's environment and user.
    pub fn here() -> Cleaner {
        let mut values: Vec<String> = std::env::vars_os()
            .filter(|(name, _)| name.to_str().is_some_and(is_secret_name))
            .filter_map(|(_, value)| value.into_string().ok())
            .collect();
        for file in credential_files() {
            let text = std::fs::read(file).unwrap_or_default();
            values.extend(named_values(&String::from_utf8_lossy(&text)));
        }
        Cleaner::of(values)
    }

    /// A cleaner that knows these values.
    pub fn of(mut values: Vec<String>) -> Cleaner {
        // They are used without white space at their ends.
        values.iter_mut().for_each(|value| *value = value.trim().to_owned());
        values.retain(|value| value.len() >= SHORTEST);
        // Longer values come first. So a value that contains another one is removed completely.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Cleaner { values }
    }

    /// The text without secrets.
    pub fn clean(&self, text: &str) -> String {
        let mut text = without_keys(text);
        for value in &self.values {
            text = text.replace(value.as_str(), REMOVED);
        }
        let lines = text.split('\n').map(|line| without_shapes(&without_named(&without_user(line))));
        lines.collect::<Vec<_>>().join("\n")
    }
}

fn credential_files() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        ["AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "GOOGLE_APPLICATION_CREDENTIALS"]
            .iter()
            .filter_map(std::env::var_os)
            .map(PathBuf::from)
            .collect();
    if let Some(home) = std::env::home_dir() {
        files.extend([".aws/credentials", ".aws/config"].map(|name| home.join(name)));
    }
    files
}

/// The values of `name = value` lines with secret names.
fn named_values(text: &str) -> Vec<String> {
    let pairs = text.lines().filter_map(|line| line.split_once(['=', ':']));
    pairs
        .filter(|(name, _)| is_secret_name(name))
        .map(|(_, value)| value.trim().trim_matches([',', '"', '\'', ' ']).to_owned())
        .collect()
}

/// Removes private keys in PEM, up to their end or to the end of the text.
fn without_keys(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("-----BEGIN ") {
        let head_end = rest[at..].find('\n').map_or(rest.len(), |len| at + len);
        // In JSON the line ends are escaped.
        let head_end = rest[at..head_end].find("\\n").map_or(head_end, |len| at + len);
        if !rest[at..head_end].contains("PRIVATE KEY") {
            out.push_str(&rest[..head_end]);
            rest = &rest[head_end..];
            continue;
        }
        out.push_str(&rest[..at]);
        out.push_str(REMOVED);
        let end = rest[head_end..].find("-----END ").map(|len| head_end + len + "-----END ".len());
        let end = end.and_then(|from| rest[from..].find("-----").map(|len| from + len + 5));
        rest = end.map_or("", |end| &rest[end..]);
    }
    out.push_str(rest);
    out
}

/// Removes the part before the host in `scheme://user:word@host`.
fn without_user(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let from = at + 3;
        let len = rest[from..].find(|c: char| c.is_whitespace() || "/?#\"'<>".contains(c));
        let end = len.map_or(rest.len(), |len| from + len);
        out.push_str(&rest[..from]);
        match rest[from..end].rfind('@') {
            Some(host) => {
                out.push_str(REMOVED);
                out.push_str(&rest[from + host..end]);
            }
            None => out.push_str(&rest[from..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Removes the values of secret names in `name=value`, `name: value`, `"name": "value"` and `--name value`.
fn without_named(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut at = 0;
    while at < line.len() {
        let Some(start) = line[at..].find(is_word).map(|len| at + len) else { break };
        let end = line[start..].find(|c| !is_word(c)).map_or(line.len(), |len| start + len);
        out.push_str(&line[at..end]);
        at = end;
        let name = &line[start..end];
        if !is_secret_name(name) {
            continue;
        }
        let Some((from, to)) = value_behind(line, end, name) else { continue };
        out.push_str(&line[end..from]);
        out.push_str(REMOVED);
        at = to;
    }
    out.push_str(&line[at..]);
    out
}

/// The range of the value that belongs to the name ending at `end`.
fn value_behind(line: &str, end: usize, name: &str) -> Option<(usize, usize)> {
    let skip = |at: usize, of: &str| {
        at + (line[at..].len() - line[at..].trim_start_matches(|c| of.contains(c)).len())
    };
    let sign = skip(end, "\"'\\ \t");
    let from = match line[sign..].chars().next() {
        Some('=' | ':') => skip(sign + 1, " \t"),
        // `--secret-key abc`
        _ if name.starts_with("--") && sign > end => sign,
        _ => return None,
    };
    let rest = &line[from..];
    let first = rest.chars().next()?;
    if name.to_ascii_lowercase().ends_with("authorization") {
        return Some((from, line.len()));
    }
    if matches!(first, '"' | '\'') {
        let open = from + 1;
        // A quote after a backslash belongs to the value.
        let mut escaped = false;
        let close = line[open..].char_indices().find(|(_, c)| {
            let ends = *c == first && !escaped;
            escaped = *c == '\\' && !escaped;
            ends
        });
        return Some((open, close.map_or(line.len(), |(len, _)| open + len)));
    }
    let len = rest.find(|c: char| c.is_whitespace() || ",;&\"'()[]{}<>\\".contains(c)).unwrap_or(rest.len());
    (len > 0).then_some((from, from + len))
}

/// Removes words that have the shape of a credential.
fn without_shapes(line: &str) -> String {
    let part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '+' | '_' | '-' | '.');
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(part) {
        let end = rest[start..].find(|c| !part(c)).map_or(rest.len(), |len| start + len);
        out.push_str(&rest[..start]);
        // A full stop at the end of a sentence does not belong to the word.
        let word = &rest[start..end];
        let bare = word.trim_end_matches('.');
        out.push_str(if has_shape(bare) { REMOVED } else { bare });
        out.push_str(&word[bare.len()..]);
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

fn has_shape(word: &str) -> bool {
    let any = |test: fn(&u8) -> bool| word.as_bytes().iter().any(test);
    let mixed = any(u8::is_ascii_digit) && any(u8::is_ascii_uppercase) && any(u8::is_ascii_lowercase);
    let number = word.len() == 20
        && ["AKIA", "ASIA"].iter().any(|begin| word.starts_with(begin))
        && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
    let key = word.len() == 40 && mixed && !word.contains(['_', '-', '.']);
    let signed = word.len() > 30 && word.starts_with("eyJ") && word.matches('.').count() == 2;
    number || key || signed || word.starts_with("ya29.")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key that signs published trees was read whatever its mode, and a core dump could contain it.
    #[test]
    fn regression_a_secret_is_read_from_a_private_file_and_kept_from_dumps() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("publisher.json");
        assert!(read(&path).unwrap().is_none());
        std::fs::write(&path, "s").unwrap();
        for (mode, is_taken) in [(0o600, true), (0o644, false), (0o640, false), (0o400, true)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path).is_ok(), is_taken, "{mode:o}");
        }
        let dumpable = rustix::process::dumpable_behavior().unwrap();
        assert_eq!(dumpable, rustix::process::DumpableBehavior::NotDumpable);
        assert_eq!(rustix::process::getrlimit(rustix::process::Resource::Core).current, Some(0));
    }

    #[test]
    fn names_of_secrets_are_told_from_others() {
        for name in [
            "AWS_SECRET_ACCESS_KEY",
            "aws_access_key_id",
            "--session-token",
            "password",
            "X-Amz-Signature",
            "AZURE_STORAGE_ACCOUNT_KEY",
            "sig",
        ] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["endpoint", "region", "AWS_SHARED_CREDENTIALS_FILE", "AWS_PROFILE", "key", "commit", ""]
        {
            assert!(!is_secret_name(name), "{name}");
        }
    }

    #[test]
    fn secrets_go_by_name_place_and_shape_and_the_rest_stays() {
        let cleaner = Cleaner::of(vec!["s3cr3t-known".to_owned(), "known".to_owned()]);
        for (text, clean) in [
            ("all is well: 12 files=3", "all is well: 12 files=3"),
            ("secret_key = abc, region = b", "secret_key = (removed), region = b"),
            (r#"{"token":"a\"b c","x":1}"#, r#"{"token":"(removed)","x":1}"#),
            ("covey --secret-key abc mount", "covey --secret-key (removed) mount"),
            (
                "GET https://me:pw@host/a?X-Amz-Signature=1f&b=2",
                "GET https://(removed)@host/a?X-Amz-Signature=(removed)&b=2",
            ),
            ("Authorization: AWS4-HMAC-SHA256 Credential=x/y", "Authorization: (removed)"),
            ("it was s3cr3t-known again", "it was (removed) again"),
            ("id AKIAIOSFODNN7EXAMPLE.", "id (removed)."),
            ("id AKIAIOSFODNN7EXAMPLE now", "id (removed) now"),
            ("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "(removed)"),
            (
                "blob 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
                "blob 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
            ),
            ("a\n-----BEGIN RSA PRIVATE KEY-----\nxx\n-----END RSA PRIVATE KEY-----\nb", "a\n(removed)\nb"),
            ("-----BEGIN CERTIFICATE-----\nxx", "-----BEGIN CERTIFICATE-----\nxx"),
        ] {
            assert_eq!(cleaner.clean(text), clean, "{text}");
        }
    }

    #[test]
    fn an_address_with_a_password_is_one() {
        assert!(is_in_address("https://a:b@host") && is_in_address("https://h/?sig=abc"));
        assert!(!is_in_address("https://host:9000/a") && !is_in_address("eu-central-1"));
    }

    #[test]
    fn values_of_a_credentials_file_are_known() {
        let text =
            "[default]\naws_access_key_id = AB12CD34\naws_secret_access_key=\"zz/yy+xx\"\nregion = x\n";
        assert_eq!(named_values(text), ["AB12CD34", "zz/yy+xx"]);
    }

    #[test]
    fn any_text_is_taken() {
        let cleaner = Cleaner::of(vec!["geheim".to_owned()]);
        for text in [
            "",
            "=",
            "token=",
            "token:",
            "\"token\"",
            "://",
            "://@",
            "é=ü token=ß",
            "token=\"offen",
            "--token",
        ] {
            cleaner.clean(text);
        }
    }
}
