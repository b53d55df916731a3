//! The file of keys, and what each key may do.
//!
//! ```toml
//! [[key]]
//! access_key = "COVEYREADER"
//! secret_key = "at least sixteen characters"
//! buckets = { data = "read", scratch = "write" }
//! ```
//!
//! `"*"` stands for every bucket. The file must belong to the user that runs the gateway, or to root, and no
//! other user may read it.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use api::error::{Failure, Result};
use base::places::Place;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{Credentials, S3Auth, SecretKey};
use s3s::path::S3Path;
use s3s::{S3Result, s3_error};
use serde::Deserialize;

use crate::reload::Keys;

/// The shortest secret.
const SECRET_MIN: usize = 16;
/// The largest file.
const FILE_MAX: u64 = 1 << 20;

/// What a key may do in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Read and list.
    Read,
    /// Also change.
    Write,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    access_key: String,
    secret_key: SecretKey,
    buckets: BTreeMap<String, Right>,
}

struct Holder {
    secret: SecretKey,
    buckets: BTreeMap<String, Right>,
}

/// The keys that the gateway accepts.
#[derive(Default)]
pub struct Keyring {
    holders: HashMap<String, Holder>,
}

impl Keyring {
    /// Reads a file of keys.
    pub fn read(path: &Path) -> Result<Keyring> {
        let shown = path.display();
        let cannot = |error: &std::io::Error| Failure::io(format!("cannot read the keys in {shown}"), error);
        let meta = std::fs::metadata(path).map_err(|error| cannot(&error))?;
        if meta.mode() & 0o077 != 0 {
            return Err(Failure::new("keys", format!("other users may use the keys in {shown}"))
                .why(format!("its mode is {:04o}", meta.mode() & 0o7777))
                .next(format!("chmod 600 {shown}")));
        }
        let me = rustix::process::geteuid().as_raw();
        if meta.uid() != me && meta.uid() != 0 {
            return Err(Failure::new("keys", format!("the keys in {shown} belong to another user"))
                .why(format!("its owner is user {}, and this is user {me}", meta.uid()))
                .next(format!("chown {me} {shown}")));
        }
        if meta.len() > FILE_MAX {
            return Err(Failure::new("keys", format!("{shown} is no file of keys: it is too large")));
        }
        let text = std::fs::read_to_string(path).map_err(|error| cannot(&error))?;
        Keyring::parse(&text).map_err(|why| {
            Failure::new("keys", format!("{shown} is no file of keys"))
                .why(why)
                .next("see docs/S3.md for its form")
        })
    }

    /// Reads the text of such a file. An error says what is wrong, and never a secret.
    pub fn parse(text: &str) -> std::result::Result<Keyring, String> {
        // The message of the parser quotes the line, which may hold a secret.
        let file: File = toml::from_str(text).map_err(|error| {
            let line =
                error.span().map(|span| text.get(..span.start).unwrap_or("").matches('\n').count() + 1);
            line.map_or(error.message().to_owned(), |line| format!("line {line}: {}", error.message()))
        })?;
        if file.key.is_empty() {
            return Err("it has no [[key]]".to_owned());
        }
        let mut holders = HashMap::new();
        for Row { access_key, secret_key, buckets } in file.key {
            let access_key = access_key.trim().to_owned();
            let named =
                access_key.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b',' | b'='));
            if access_key.is_empty() || !named {
                return Err("an access_key is a word of printable characters other than / , =".to_owned());
            }
            let from = format!("the secret_key of {access_key}");
            let secret = base::secret::line(secret_key.expose(), &from).map_err(|error| error.to_string())?;
            let secret_key = SecretKey::from(secret.to_owned());
            if secret_key.expose().len() < SECRET_MIN {
                return Err(format!("the secret_key of {access_key} has less than {SECRET_MIN} characters"));
            }
            if holders.insert(access_key.clone(), Holder { secret: secret_key, buckets }).is_some() {
                return Err(format!("the access_key {access_key} is there twice"));
            }
        }
        Ok(Keyring { holders })
    }

    /// How many keys there are.
    pub fn count(&self) -> usize {
        self.holders.len()
    }

    /// A key and its secret, for a request to the gateway itself: the first by name.
    pub fn any(&self) -> Option<(&str, &str)> {
        let (name, holder) = self.holders.iter().min_by_key(|(name, _)| name.as_str())?;
        Some((name, holder.secret.expose()))
    }

    /// What a key may do in a bucket. `None`: nothing.
    pub fn right(&self, access_key: &str, bucket: &str) -> Option<Right> {
        let buckets = &self.holders.get(access_key)?.buckets;
        buckets.get(bucket).or_else(|| buckets.get("*")).copied()
    }

    /// Refuses a request for a bucket that its key may not use in this way.
    pub fn check(&self, credentials: Option<&Credentials>, bucket: &str, needed: Right) -> S3Result<()> {
        let credentials = credentials.ok_or_else(|| s3_error!(AccessDenied, "the request is not signed"))?;
        match self.right(&credentials.access_key, bucket) {
            Some(right) if right >= needed => Ok(()),
            Some(_) => Err(s3_error!(AccessDenied, "this key may only read this bucket")),
            None => Err(s3_error!(AccessDenied, "this key may not use this bucket")),
        }
    }
}

/// The keys as s3s asks for them.
pub struct Shared(pub Arc<Keys>);

impl Shared {
    /// Refuses a request for a bucket that its key may not use in this way.
    pub fn allow(&self, credentials: Option<&Credentials>, bucket: &str, needed: Right) -> S3Result<()> {
        self.0.now().check(credentials, bucket, needed)
    }
}

/// Tells the place of a connection that a request on it has the signature of a key. The extensions are those
/// of the request.
pub fn know(extensions: &http::Extensions) {
    extensions.get::<Arc<Place>>().into_iter().for_each(|place| place.know());
}

#[async_trait::async_trait]
impl S3Auth for Shared {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let keys = self.0.now();
        let holder = keys.holders.get(access_key);
        let unknown = || s3_error!(InvalidAccessKeyId, "the access key is not known here");
        holder.map(|holder| holder.secret.clone()).ok_or_else(unknown)
    }
}

#[async_trait::async_trait]
impl S3Access for Shared {
    async fn check(&self, cx: &mut S3AccessContext<'_>) -> S3Result<()> {
        if cx.credentials().is_some() {
            know(cx.extensions_mut());
        }
        let bucket = match cx.s3_path() {
            // A listing of buckets shows those that the key may use.
            S3Path::Root if cx.credentials().is_some() => return Ok(()),
            S3Path::Root => return Err(s3_error!(AccessDenied, "the request is not signed")),
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => bucket,
        };
        self.0.now().check(cx.credentials(), bucket, needed(cx.s3_op().name()))
    }
}

/// What an operation needs.
fn needed(operation: &str) -> Right {
    let reads = ["Get", "Head", "List", "SelectObjectContent"];
    if reads.iter().any(|begin| operation.starts_with(begin)) { Right::Read } else { Right::Write }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const GOOD: &str = "[[key]]\naccess_key = \"A\"\nsecret_key = \"0123456789abcdef\"\nbuckets = { data = \"read\", \"*\" = \"write\" }\n";

    #[test]
    fn rights_are_per_bucket() {
        let keys = Keyring::parse(GOOD).unwrap();
        assert_eq!(keys.right("A", "data"), Some(Right::Read));
        assert_eq!(keys.right("A", "other"), Some(Right::Write));
        assert_eq!(keys.right("B", "data"), None);
        assert_eq!([needed("GetObject"), needed("ListParts")], [Right::Read; 2]);
        assert_eq!([needed("PutObject"), needed("AbortMultipartUpload")], [Right::Write; 2]);
    }

    #[test]
    fn what_is_wrong_is_said_without_the_secret() {
        let short = GOOD.replace("0123456789abcdef", "short");
        let twice = format!("{GOOD}{GOOD}");
        let right = GOOD.replace("write", "admin");
        let open = GOOD.replace("cdef\"", "cdef");
        let inside = GOOD.replace("0123456789abcdef", "0123456789\\nabcdef");
        for (text, says) in [
            ("", "no [[key]]"),
            (short.as_str(), "less than 16"),
            (twice.as_str(), "twice"),
            (right.as_str(), "line 4"),
            (open.as_str(), "line 3"),
            ("[[key]]\nx = 1\n", "line"),
            (inside.as_str(), "the secret_key of A holds a line end"),
        ] {
            let why = Keyring::parse(text).err().unwrap();
            assert!(why.contains(says) && !why.contains("0123456789"), "{why}");
        }
    }

    #[test]
    fn regression_white_space_around_a_key_is_not_of_the_key() {
        let text = GOOD
            .replace("\"A\"", "\"A\\n\"")
            .replace("\"0123456789abcdef\"", "\"\"\"\n0123456789abcdef\r\n\"\"\"");
        assert_eq!(Keyring::parse(&text).unwrap().any(), Some(("A", "0123456789abcdef")));
    }

    #[test]
    fn a_file_that_others_may_read_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("keys");
        std::fs::write(&path, GOOD).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        for bad in [0o640, 0o604, 0o666] {
            mode(bad);
            assert!(Keyring::read(&path).err().unwrap().to_string().contains("chmod 600"));
        }
        mode(0o600);
        Keyring::read(&path).unwrap();
    }
}
