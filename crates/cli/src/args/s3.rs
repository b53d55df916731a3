//! Command-line arguments of the S3 endpoint.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use api::error::{Failure, Result};
use gateway::foreign::Revalidate;
use gateway::server::{Bound, Options};
use node::fleet::options::FleetOptions;
use node::options::NodeOptions;
use node::origins::Reach;
use node::read_through::ReadThroughOptions;
use node::remote_side::options::parse_size;

use crate::looking::parse_time;

/// An S3 endpoint beside a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct S3 {
    /// Also serve the mount to S3 clients at ADDRESS:PORT; see docs/S3.md
    #[arg(long, value_name = "ADDRESS:PORT", requires = "s3_keys")]
    s3: Option<String>,
    /// With --s3: the file of keys
    #[arg(long, value_name = "FILE", requires = "s3")]
    s3_keys: Option<PathBuf>,
    /// With --s3: the bucket's name [default: that of the volume's folder, or of the tree]
    #[arg(long, value_name = "NAME", requires = "s3")]
    s3_bucket: Option<String>,
    /// With --s3: the certificate and its chain, PEM
    #[arg(long, value_name = "FILE", requires_all = ["s3", "s3_tls_key"])]
    s3_tls_cert: Option<PathBuf>,
    /// With --s3: the key to it
    #[arg(long, value_name = "FILE", requires_all = ["s3", "s3_tls_cert"])]
    s3_tls_key: Option<PathBuf>,
    /// With --s3: a name of this machine; requests to BUCKET.NAME are for that bucket
    #[arg(long, value_name = "NAME", requires = "s3")]
    s3_domain: Vec<String>,
}

impl S3 {
    /// Binds the address, if one is named.
    pub fn bind(&self) -> Result<Option<Bound>> {
        let S3 { s3, s3_keys, s3_bucket: _, s3_tls_cert, s3_tls_key, s3_domain } = self.clone();
        let Some(listen) = s3 else { return Ok(None) };
        let keys = s3_keys.ok_or_else(|| Failure::usage("--s3 needs --s3-keys FILE"))?;
        let tls = s3_tls_cert.zip(s3_tls_key);
        Bound::new(Options { listen, tls, domains: s3_domain, ..Options::default() }, &keys).map(Some)
    }

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

/// How buckets that Covey did not write are served.
#[derive(Clone, Debug, clap::Args)]
pub struct Foreign {
    /// Of a bucket that Covey did not write: how old what is known of an object may be: never (the store is
    /// asked once), a time like 5s, or always (it is asked for each request)
    #[arg(long, value_name = "WHEN", default_value = "5s", value_parser = revalidate)]
    revalidate: Revalidate,
    /// Of such a bucket: bytes of the disk for what was fetched, like 200G [default: most of what is free]
    #[arg(long, value_name = "SIZE", value_parser = cache_size)]
    cache_size: Option<u64>,
    /// Of such a bucket: join a fleet of gateways that serve the same bucket by any of them
    #[arg(long, value_name = "HOST:PORT,...")]
    join: Option<String>,
    /// Of such a bucket: where the fleet reaches this gateway, TCP and UDP
    #[arg(long, value_name = "ADDRESS:PORT")]
    fleet_listen: Option<SocketAddr>,
    /// The file with the fleet's secret; covey fleet secret FILE makes one
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Where this gateway is: those of one zone give blobs to one another [default: default]
    #[arg(long, value_name = "NAME")]
    zone: Option<String>,
}

impl Foreign {
    /// Checks the options for so many buckets.
    ///
    /// # Errors
    /// A fleet is named, and there is not one bucket for it.
    pub fn check(&self, buckets: usize) -> Result<()> {
        if self.fleet().is_some() && buckets != 1 {
            return Err(Failure::usage("a fleet is for one bucket that Covey did not write")
                .why(format!("{buckets} such buckets are named"))
                .next("start a gateway for each: covey s3 ... NAME=s3://BUCKET --join HOST:PORT"));
        }
        Ok(())
    }

    fn fleet(&self) -> Option<FleetOptions> {
        let Foreign { join, fleet_listen, secret_file, zone, .. } = self.clone();
        let named = join.is_some() || fleet_listen.is_some() || secret_file.is_some() || zone.is_some();
        named.then(|| FleetOptions {
            join,
            listen: fleet_listen,
            secret_file,
            zone,
            ..FleetOptions::default()
        })
    }

    /// How fresh answers are.
    pub fn revalidate(&self) -> Revalidate {
        self.revalidate
    }

    /// The form that crate `node` takes.
    ///
    /// # Errors
    /// The folder is no path.
    pub fn options(&self, reach: Reach, cache: Option<PathBuf>) -> Result<ReadThroughOptions> {
        let cache = cache.map(|cache| node::mounts::absolute(&cache)).transpose()?;
        let deadline = NodeOptions::writing("serve over S3").deadline;
        Ok(ReadThroughOptions { reach, cache, cache_size: self.cache_size, fleet: self.fleet(), deadline })
    }
}

fn revalidate(text: &str) -> std::result::Result<Revalidate, String> {
    match text {
        "never" => Ok(Revalidate::Never),
        "always" => Ok(Revalidate::Every(Duration::ZERO)),
        time => parse_time(time)
            .map(Revalidate::Every)
            .map_err(|_| "write never, always, or a time like 5s".to_owned()),
    }
}

fn cache_size(text: &str) -> std::result::Result<u64, String> {
    let size = parse_size(text).filter(|size| *size >= 64 << 20);
    size.ok_or_else(|| "write a size of at least 64M, like 200G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freshness_is_read() {
        assert_eq!(revalidate("never"), Ok(Revalidate::Never));
        assert_eq!(revalidate("5s"), Ok(Revalidate::Every(Duration::from_secs(5))));
        assert_eq!(revalidate("always"), revalidate("0s"));
        for bad in ["", "5x", "sometimes", "-1s"] {
            assert!(revalidate(bad).is_err(), "{bad}");
        }
    }

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
