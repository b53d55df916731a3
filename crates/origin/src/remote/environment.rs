//! The environment, and the files with keys and settings, as a value, so that tests can pass their own.
//!
//! The `object_store` crate does not read Amazon's files, so this module does: `~/.aws/credentials` and
//! `~/.aws/config`, or the files that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE name. Both hold
//! sections of `name = value`. An indented line belongs to the name above it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Variables, by name. Their values may be secrets: they are never printed.
#[derive(Clone, Default)]
pub struct Environment {
    variables: HashMap<String, String>,
    is_unsigned: bool,
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Environment(...)")
    }
}

impl Environment {
    /// The environment of this process.
    pub fn process() -> Environment {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Environment { variables: std::env::vars_os().filter_map(text).collect(), is_unsigned: false }
    }

    /// An environment without variables, files and services, for a store that must not learn anything of this
    /// machine's. Requests are not signed, and use https only.
    pub fn unsigned() -> Environment {
        Environment { is_unsigned: true, ..Environment::default() }
    }

    /// Whether it is one of [`Environment::unsigned`].
    pub(crate) fn is_unsigned(&self) -> bool {
        self.is_unsigned
    }

    /// An environment with these variables only.
    pub fn of<N: Into<String>, V: Into<String>>(variables: impl IntoIterator<Item = (N, V)>) -> Environment {
        let text = |(name, value): (N, V)| (name.into(), value.into());
        Environment { variables: variables.into_iter().map(text).collect(), is_unsigned: false }
    }

    /// A variable that is set and not empty, without white space at its ends: the content of a file or the
    /// output of a command often ends with a line end.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The value of the first name that is set.
    pub(crate) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// The names of variables that begin with this.
    pub(crate) fn names(&self, start: &str) -> impl Iterator<Item = &str> {
        self.variables.keys().map(String::as_str).filter(move |name| name.starts_with(start))
    }

    /// The paths of Amazon's files: the credentials, and the configuration.
    pub(crate) fn aws_files(&self) -> [Option<PathBuf>; 2] {
        let home = self.get("HOME").map(PathBuf::from);
        let file = |variable: &str, name: &str| {
            let named = self.get(variable).map(PathBuf::from);
            named.or_else(|| Some(home.as_ref()?.join(".aws").join(name)))
        };
        [file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), file("AWS_CONFIG_FILE", "config")]
    }

    /// The chosen profile, and whether it was named explicitly.
    pub(crate) fn profile(&self) -> (&str, bool) {
        match self.first(&["AWS_PROFILE", "AWS_DEFAULT_PROFILE"]) {
            Some(name) => (name, true),
            None => ("default", false),
        }
    }
}

/// The sections of a file, each with its names and values. An indented name includes the name above it, as in
/// `s3.endpoint_url`.
pub(crate) type Sections = BTreeMap<String, BTreeMap<String, String>>;

/// Reads the sections. Skips other lines, as Amazon's own tools do.
pub(crate) fn parse_sections(text: &str) -> Sections {
    let mut all = Sections::new();
    let mut section: Option<String> = None;
    let mut above = String::new();
    for line in text.lines() {
        let indented = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let name = name.trim();
            let name = name.strip_prefix("profile ").map_or(name, str::trim);
            all.entry(name.to_owned()).or_default();
            section = Some(name.to_owned());
            continue;
        }
        let (Some(section), Some((name, value))) = (&section, line.split_once('=')) else { continue };
        let name = name.trim().to_ascii_lowercase();
        // A comment after a value needs a space before it, because keys can contain # and ;.
        let value = value.split(" #").next().unwrap_or("").split(" ;").next().unwrap_or("").trim();
        let key = if indented { format!("{above}.{name}") } else { name.clone() };
        if !indented {
            above = name;
        }
        all.entry(section.clone()).or_default().insert(key, value.to_owned());
    }
    all
}

/// The mode bits that let users other than the owner and the group read, or users other than the owner write.
const OTHERS: u32 = 0o026;

/// The profile's values in a file. `None` if the file or the section does not exist.
///
/// # Errors
/// The file exists but cannot be read, or it holds a secret key that other users can access.
pub(crate) fn read_profile(file: &Path, profile: &str) -> io::Result<Option<BTreeMap<String, String>>> {
    let read = || -> io::Result<(String, u32)> {
        let mut open = File::open(file)?;
        let mut text = String::new();
        open.read_to_string(&mut text)?;
        Ok((text, open.metadata()?.mode() & 0o7777))
    };
    match read() {
        Ok((text, mode)) => {
            let found = parse_sections(&text).remove(profile);
            let has_secret = found.as_ref().is_some_and(|found| found.contains_key("aws_secret_access_key"));
            if has_secret && mode & OTHERS != 0 {
                let what = format!("it has mode {mode:04o} and a secret key in it");
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
            }
            Ok(found)
        }
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# a comment
[default]
aws_access_key_id = AKIADEFAULT
aws_secret_access_key=se/cr=et+1#2

[profile work ]
region = eu-west-1  # where the office is
s3 =
    endpoint_url = http://127.0.0.1:9000
    addressing_style = path
output=json
nonsense
";

    #[test]
    fn sections_are_read_as_they_are_written() {
        let all = parse_sections(TEXT);
        assert_eq!(all["default"]["aws_secret_access_key"], "se/cr=et+1#2");
        assert_eq!(all["work"]["region"], "eu-west-1");
        assert_eq!(all["work"]["s3.endpoint_url"], "http://127.0.0.1:9000");
        assert_eq!(all["work"]["output"], "json");
        assert_eq!(parse_sections("a = b\n[x").len(), 1);
    }

    proptest::proptest! {
        /// Any content of such a file can be parsed, and no value lands in another section.
        #[test]
        fn any_text_has_sections(text in "([\\[\\]a-z =#;\\.\u{e9}\t\r]{0,12}\n){0,12}") {
            let all = parse_sections(&text);
            proptest::prop_assert!(all.len() <= text.matches('[').count());
            proptest::prop_assert!(all.values().flatten().all(|(key, value)| key.trim() == key && value.trim() == value));
        }

        #[test]
        fn any_text_names_an_origin_or_none(text in "(s3://|gs://|az://|file:|mem:)?[a-z0-9@/:\\. \u{e9}\u{1b}-]{0,40}") {
            if let Ok(crate::Spec::Remote(spec)) = crate::parse(&text) {
                proptest::prop_assert_eq!(crate::parse(&spec.to_string()).unwrap(), crate::Spec::Remote(spec));
            }
        }
    }

    #[test]
    fn an_environment_shows_no_values() {
        let environment = Environment::of([("AWS_SECRET_ACCESS_KEY", "hidden"), ("EMPTY", "")]);
        assert_eq!(format!("{environment:?}"), "Environment(...)");
        assert_eq!(
            (environment.get("AWS_SECRET_ACCESS_KEY"), environment.get("EMPTY")),
            (Some("hidden"), None)
        );
        assert_eq!(environment.profile(), ("default", false));
    }
}
