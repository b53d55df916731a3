//! Checks of an S3 endpoint: it is asked for its buckets as a client would, with a key of its file of keys,
//! and once more with a wrong secret.

#[cfg(feature = "s3")]
mod look;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use api::status::{Endpoint, Status};

use super::Check;

/// An S3 endpoint to look at.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct S3 {
    /// An S3 endpoint of covey s3 to look at as well; with https:// if it uses TLS. Endpoints of mounts are
    /// always looked at
    #[arg(long, value_name = "HOST:PORT", requires = "s3_keys")]
    s3: Option<String>,
    /// With --s3: its file of keys
    #[arg(long, value_name = "FILE", requires = "s3")]
    s3_keys: Option<PathBuf>,
}

impl S3 {
    /// The findings for the endpoint that is named.
    pub fn checks(&self) -> Vec<Check> {
        let (Some(address), Some(keys)) = (&self.s3, &self.s3_keys) else { return Vec::new() };
        let secure = address.strip_prefix("https://");
        let plain = address.strip_prefix("http://").unwrap_or(address);
        let address = secure.unwrap_or(plain).trim_end_matches('/');
        look((address, secure.is_some()), keys, "covey s3 --listen ADDRESS:PORT --keys FILE ...")
    }
}

/// The findings for the endpoint of a mount.
pub fn of_mount(status: &Status) -> Vec<Check> {
    let endpoint = status.served.as_ref().and_then(|served| served.s3.as_ref());
    let Some(Endpoint { address, keys, tls, .. }) = endpoint else { return Vec::new() };
    let address = reachable(address);
    let again = "mount it again; covey status and the log of the mount say more";
    look((&address, *tls), keys, again)
}

/// The address by which this machine reaches a listener.
fn reachable(address: &str) -> String {
    let Ok(mut at) = address.parse::<SocketAddr>() else { return address.to_owned() };
    match at.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => at.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => at.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    at.to_string()
}

#[cfg(feature = "s3")]
fn look((address, tls): (&str, bool), keys: &Path, start: &str) -> Vec<Check> {
    look::look(super::probe::Place { address, tls }, keys, start)
}

#[cfg(not(feature = "s3"))]
fn look((address, _): (&str, bool), _: &Path, _: &str) -> Vec<Check> {
    let found = format!("{address} was not looked at: this program was built without the S3 endpoint");
    vec![super::note("s3", found, "build the one that has it: make build")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_on_all_addresses_is_reached_on_this_machine() {
        assert_eq!(reachable("0.0.0.0:9"), "127.0.0.1:9");
        assert_eq!(reachable("[::]:9"), "[::1]:9");
        assert_eq!(reachable("10.0.0.1:9"), "10.0.0.1:9");
    }
}
