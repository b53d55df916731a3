//! The bucket in the name of a host: `BUCKET.NAME`, where NAME is one of the names of this service.

use s3s::S3Result;
use s3s::host::{S3Host, VirtualHost};

/// Finds the bucket in the name of a host.
#[derive(Clone, Debug)]
pub struct Hosts {
    /// Names of this service.
    pub domains: Vec<String>,
}

impl Hosts {
    /// The domain and the bucket in a Host header, if it names a bucket.
    pub fn bucket<'a>(&'a self, host: &'a str) -> Option<(&'a str, &'a str)> {
        let name = without_port(host);
        let below =
            |domain: &str| name.strip_suffix(domain)?.strip_suffix('.').filter(|bucket| !bucket.is_empty());
        let domains = self.domains.iter().map(String::as_str).chain(["localhost"]);
        let mut found = domains.filter_map(|domain| Some((domain, below(domain)?)));
        found.next()
    }
}

impl S3Host for Hosts {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        Ok(match self.bucket(host) {
            Some((domain, bucket)) => VirtualHost::new(domain).with_bucket(bucket),
            None => VirtualHost::new(without_port(host)),
        })
    }
}

fn without_port(host: &str) -> &str {
    let name = host.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    name.map_or(host, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_found_in_the_name_of_a_host() {
        let hosts = Hosts { domains: vec!["s3.example.com".to_owned()] };
        let bucket = |host: &str| hosts.parse_host_header(host).unwrap().bucket().map(str::to_owned);
        assert_eq!(bucket("a.s3.example.com:9878").as_deref(), Some("a"));
        assert_eq!(bucket("a.b.s3.example.com").as_deref(), Some("a.b"));
        assert_eq!(bucket("data.localhost:1").as_deref(), Some("data"));
        for path_style in ["s3.example.com", "localhost:9878", "other.org", "xs3.example.com", "", ":"] {
            assert_eq!(bucket(path_style), None, "{path_style}");
        }
    }
}
