//! `s3://BUCKET/PREFIX` and the like: what a user writes, and what a volume stores.
//!
//! A spec never holds a secret: it is printed, logged and stored. Text with something before an `@` is
//! refused without being repeated, because people paste URLs with keys in them.

use std::fmt;

use crate::OriginError;

const WHERE_KEYS_GO: &str = "give keys by the environment or ~/.aws/credentials";

/// The kind of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Amazon S3, and stores that speak its protocol: MinIO, Ceph, R2, Garage.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage; the account comes from the environment.
    Azure,
}

impl Store {
    /// The beginning of its URLs.
    pub fn scheme(self) -> &'static str {
        match self {
            Store::S3 => "s3://",
            Store::Gcs => "gs://",
            Store::Azure => "az://",
        }
    }
}

/// A place in an object store. [`fmt::Display`] is the URL; endpoint and region are kept beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSpec {
    /// What kind of store.
    pub store: Store,
    /// The bucket or container.
    pub bucket: String,
    /// Keys begin with this and a `/`; empty: the whole bucket. Without a `/` at either end.
    pub prefix: String,
    /// The store's address, if it is not the cloud's own: `http://127.0.0.1:9000`. Without a `/` at the end.
    pub endpoint: Option<String>,
    /// The bucket's region, if the store has regions.
    pub region: Option<String>,
}

impl RemoteSpec {
    /// Whether the text means a remote store, well-formed or not.
    pub fn claims(text: &str) -> bool {
        [Store::S3, Store::Gcs, Store::Azure].iter().any(|store| text.starts_with(store.scheme()))
    }

    /// Reads `s3://BUCKET[/PREFIX]`, `gs://BUCKET[/PREFIX]` or `az://CONTAINER[/PREFIX]`.
    ///
    /// # Errors
    /// [`OriginError::BadRemote`], which says what is wrong with it.
    pub fn parse(text: &str) -> Result<RemoteSpec, OriginError> {
        let stores = [Store::S3, Store::Gcs, Store::Azure];
        let found = stores.into_iter().find_map(|store| Some((store, text.strip_prefix(store.scheme())?)));
        let (store, rest) = found.ok_or_else(|| OriginError::Unknown(text.to_owned()))?;
        let bad = |what: String, next: &str| {
            let what = format!("{}...: {what}", store.scheme());
            Err(OriginError::BadRemote { what, next: next.to_owned() })
        };
        if rest.contains('@') {
            // What comes before the @ may be a key: it is not repeated.
            return bad("an origin's URL has no @".to_owned(), WHERE_KEYS_GO);
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if bucket.is_empty() {
            return bad("it names no bucket".to_owned(), &format!("write {}BUCKET/PREFIX", store.scheme()));
        }
        if let Some(why) = wrong_bucket(bucket) {
            return bad(format!("{bucket:?} is not a bucket's name"), why);
        }
        if let Some(why) = wrong_prefix(prefix) {
            return bad(format!("{prefix:?} is not a prefix"), why);
        }
        Ok(RemoteSpec {
            store,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
            endpoint: None,
            region: None,
        })
    }

    /// Sets the endpoint and region that a user named, or a volume stored.
    ///
    /// # Errors
    /// [`OriginError::BadRemote`], which says what is wrong with either.
    pub fn at(mut self, endpoint: Option<&str>, region: Option<&str>) -> Result<RemoteSpec, OriginError> {
        if let Some(endpoint) = endpoint {
            self.endpoint = Some(check_endpoint(endpoint)?);
        }
        if let Some(region) = region {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            if region.is_empty() || region.len() > 64 || !region.bytes().all(plain) {
                return Err(OriginError::BadRemote {
                    what: format!("{region:?} is not a region"),
                    next: "write one like eu-central-1".to_owned(),
                });
            }
            self.region = Some(region.to_owned());
        }
        Ok(self)
    }
}

impl fmt::Display for RemoteSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.store.scheme(), self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

/// Why this cannot be a bucket; none if it can. The stores' own rules differ a little; each checks the rest
/// itself.
fn wrong_bucket(name: &str) -> Option<&'static str> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !name.bytes().all(plain) {
        return Some("use letters, digits, - . and _");
    }
    if !(3..=222).contains(&name.len()) {
        return Some("use 3 to 222 characters");
    }
    let edges = [name.as_bytes().first(), name.as_bytes().last()];
    if edges.into_iter().flatten().any(|edge| !edge.is_ascii_alphanumeric()) || name.contains("..") {
        return Some("begin and end with a letter or digit, without two dots in a row");
    }
    None
}

/// Why this cannot be a prefix; none if it can.
fn wrong_prefix(prefix: &str) -> Option<&'static str> {
    if prefix.is_empty() {
        return None;
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._=+,/".contains(&byte);
    if !prefix.bytes().all(plain) {
        return Some("use letters, digits, / and - . _ = + ,");
    }
    if prefix.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return Some("leave out empty parts, . and ..");
    }
    if prefix.len() > 600 {
        return Some("use at most 600 bytes");
    }
    None
}

/// Checks an endpoint, and removes a `/` at its end.
fn check_endpoint(text: &str) -> Result<String, OriginError> {
    let bad =
        |what: &str, next: &str| Err(OriginError::BadRemote { what: what.to_owned(), next: next.to_owned() });
    let text = text.trim_end_matches('/');
    let what = "the endpoint is not a URL of a host";
    let example = "write it like https://s3.example.com or http://127.0.0.1:9000";
    let Some(host) = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")) else {
        return bad(what, example);
    };
    if host.contains('@') {
        return bad("an endpoint has no @", WHERE_KEYS_GO);
    }
    let host = host.split('/').next().unwrap_or("");
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    let name = if host.starts_with('[') { host } else { host.split(':').next().unwrap_or("") };
    let port =
        if host.starts_with('[') { host.split("]:").nth(1) } else { host.split_once(':').map(|x| x.1) };
    let port_fits = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    if name.is_empty() || !host.bytes().all(plain) || text.contains(['?', '#', ' ']) || !port_fits {
        return bad(what, example);
    }
    Ok(text.to_owned())
}

/// The host and port of a checked endpoint, as the network sees them.
pub(crate) fn host_of(endpoint: &str) -> &str {
    let rest = endpoint.split("://").nth(1).unwrap_or(endpoint);
    rest.split('/').next().unwrap_or(rest)
}

/// Whether the endpoint is on this machine, so that no proxy of the environment is used.
pub(crate) fn is_loopback(endpoint: &str) -> bool {
    let host = host_of(endpoint);
    let name = if host.starts_with('[') { host } else { host.split(':').next().unwrap_or(host) };
    let is_v4 = name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback());
    name == "localhost" || is_v4 || name.starts_with("[::1]")
}

/// Whether traffic to an endpoint can be read and changed on the way: it is plain HTTP to another machine.
pub fn is_in_the_clear(endpoint: &str) -> bool {
    endpoint.starts_with("http://") && !is_loopback(endpoint)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn plain_http_to_another_machine_is_in_the_clear() {
        for (endpoint, clear) in [
            ("http://10.0.0.1:9000", true),
            ("http://s3.example.com", true),
            ("http://127.example.com", true),
            ("https://s3.example.com", false),
            ("http://127.0.0.1:9000", false),
            ("http://localhost:9000", false),
            ("http://[::1]:9000", false),
        ] {
            assert_eq!(is_in_the_clear(endpoint), clear, "{endpoint}");
        }
    }

    #[test]
    fn what_is_well_written_is_understood() {
        for (text, store, bucket, prefix) in [
            ("s3://bucket", Store::S3, "bucket", ""),
            ("s3://bucket/", Store::S3, "bucket", ""),
            ("s3://my.bucket-1/team/a=1/v_2.0", Store::S3, "my.bucket-1", "team/a=1/v_2.0"),
            ("gs://data/x/", Store::Gcs, "data", "x"),
            ("az://con/p", Store::Azure, "con", "p"),
        ] {
            let spec = RemoteSpec::parse(text).unwrap();
            assert_eq!((spec.store, &*spec.bucket, &*spec.prefix), (store, bucket, prefix));
            assert_eq!(RemoteSpec::parse(&spec.to_string()).unwrap(), spec);
        }
    }

    #[test]
    fn what_is_badly_written_is_explained() {
        for (text, says) in [
            ("s3://", "names no bucket"),
            ("s3:///x", "names no bucket"),
            ("s3://ab", "3 to 222"),
            ("s3://bad bucket", "letters, digits"),
            ("s3://-abc", "begin and end"),
            ("s3://a..b", "two dots"),
            ("s3://bucket//x", "empty parts"),
            ("s3://bucket/a/../b", "empty parts"),
            ("s3://bucket/a b", "letters, digits"),
            ("s3://bucket/x?y", "letters, digits"),
        ] {
            let said = RemoteSpec::parse(text).unwrap_err().to_string();
            assert!(said.contains(says), "{text}: {said}");
        }
        let said = RemoteSpec::parse("s3://AKIAKEY:SECRET@bucket/x").unwrap_err().to_string();
        assert!(
            said.contains("give keys by") && !said.contains("SECRET") && !said.contains("AKIAKEY"),
            "{said}"
        );
    }

    #[test]
    fn endpoints_and_regions_are_checked() {
        let at =
            |endpoint| RemoteSpec::parse("s3://bucket").unwrap().at(Some(endpoint), Some("eu-central-1"));
        for good in
            ["http://127.0.0.1:9000", "https://s3.example.com/", "http://[::1]:9000", "https://x/store"]
        {
            assert_eq!(at(good).unwrap().endpoint.unwrap(), good.trim_end_matches('/'));
        }
        for bad in [
            "",
            "127.0.0.1:9000",
            "ftp://x",
            "http://",
            "http://:9000",
            "https://x:y",
            "https://x:70000",
            "https://a b",
        ] {
            assert!(at(bad).unwrap_err().to_string().contains("http://127.0.0.1:9000"), "{bad}");
        }
        let said = at("https://KEY:SECRET@host").unwrap_err().to_string();
        assert!(!said.contains("SECRET"), "{said}");
        assert!(RemoteSpec::parse("s3://bucket").unwrap().at(None, Some("eu central")).is_err());
        assert!(
            is_loopback("http://127.0.0.1:9000")
                && is_loopback("http://[::1]:1/x")
                && !is_loopback("https://s3.example.com")
        );
    }

    proptest! {
        #[test]
        fn any_text_is_understood_or_refused_and_what_is_understood_comes_back(text in "(s3|gs|az|file)://[a-z0-9./@ :A-Z?#%=-]{0,40}") {
            if let Ok(spec) = RemoteSpec::parse(&text) {
                prop_assert_eq!(&RemoteSpec::parse(&spec.to_string()).unwrap(), &spec);
                prop_assert!(!spec.prefix.starts_with('/') && !spec.prefix.ends_with('/'));
            }
        }

        #[test]
        fn well_formed_parts_survive(bucket in "[a-z0-9][a-z0-9-]{1,40}[a-z0-9]", parts in prop::collection::vec("[A-Za-z0-9_=+-]{1,12}", 0..5)) {
            let text = format!("s3://{bucket}/{}", parts.join("/"));
            let spec = RemoteSpec::parse(&text).unwrap();
            prop_assert_eq!(spec.bucket, bucket);
            prop_assert_eq!(spec.prefix, parts.join("/"));
        }
    }
}
