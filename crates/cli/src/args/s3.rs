//! Command-line arguments of the S3 endpoint.

use std::ffi::OsString;
use std::path::PathBuf;

use api::error::Result;

/// An S3 endpoint beside a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct S3 {
    /// Also serve the mount to S3 clients at ADDRESS:PORT; see docs/S3.md
    #[arg(long, value_name = "ADDRESS:PORT", requires = "s3_keys")]
    pub s3: Option<String>,
    /// With --s3: the file of keys
    #[arg(long, value_name = "FILE", requires = "s3")]
    pub s3_keys: Option<PathBuf>,
    /// With --s3: the bucket's name [default: that of the volume's folder, or of the tree]
    #[arg(long, value_name = "NAME", requires = "s3")]
    pub s3_bucket: Option<String>,
    /// With --s3: the certificate and its chain, PEM
    #[arg(long, value_name = "FILE", requires_all = ["s3", "s3_tls_key"])]
    pub s3_tls_cert: Option<PathBuf>,
    /// With --s3: the key to it
    #[arg(long, value_name = "FILE", requires_all = ["s3", "s3_tls_cert"])]
    pub s3_tls_key: Option<PathBuf>,
    /// With --s3: a name of this machine; requests to BUCKET.NAME are for that bucket
    #[arg(long, value_name = "NAME", requires = "s3")]
    pub s3_domain: Vec<String>,
}

impl S3 {
    /// The bucket's name for a source of this name.
    pub fn bucket(&self, source: &str) -> String {
        self.s3_bucket.clone().unwrap_or_else(|| {
            let last = source.rsplit(['/', '@', ':']).next().unwrap_or("");
            if last.is_empty() { source.trim_end_matches(':').to_owned() } else { last.to_owned() }
        })
    }

    /// The arguments for a program that is started to do the same.
    pub fn to_args(&self) -> Result<Vec<OsString>> {
        let S3 { s3, s3_keys, s3_bucket, s3_tls_cert, s3_tls_key, s3_domain } = self.clone();
        let file = |path: Option<PathBuf>| path.map(|path| node::mounts::absolute(&path)).transpose();
        let mut words: Vec<OsString> = Vec::new();
        let mut add = |option: &str, value: Option<OsString>| {
            words.extend(value.into_iter().flat_map(|value| [OsString::from(option), value]));
        };
        add("--s3", s3.map(Into::into));
        add("--s3-keys", file(s3_keys)?.map(Into::into));
        add("--s3-bucket", s3_bucket.map(Into::into));
        add("--s3-tls-cert", file(s3_tls_cert)?.map(Into::into));
        add("--s3-tls-key", file(s3_tls_key)?.map(Into::into));
        s3_domain.into_iter().for_each(|domain| add("--s3-domain", Some(domain.into())));
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_is_called_like_its_source() {
        let bucket = |source: &str| S3::default().bucket(source);
        assert_eq!(bucket("/srv/volumes/data"), "data");
        assert_eq!(bucket("file:/srv/v/blobs@nightly"), "nightly");
        assert_eq!(bucket("mem:"), "mem");
        let named = S3 { s3_bucket: Some("other".to_owned()), ..S3::default() };
        assert_eq!(named.bucket("/srv/data"), "other");
    }
}
