//! Command-line arguments for buckets that Covey did not write.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use api::error::{Failure, Result};
use gateway::foreign::Revalidate;
use node::fleet::options::FleetOptions;
use node::options::NodeOptions;
use node::origins::Reach;
use node::read_through::ReadThroughOptions;
use node::remote_side::options::parse_size;

use crate::looking::parse_time;

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
}
