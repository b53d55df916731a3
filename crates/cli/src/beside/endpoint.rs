//! The S3 endpoint of a mount.

use api::error::{Failure, Result};
use api::status::Endpoint;
use gateway::server::{Options, check_name};
use node::running::Running;
use node::{log, mounts};

pub use gateway::server::{Bound, Server};

use crate::args::s3::S3;
use crate::buckets;

/// Binds the address, if one is named.
///
/// # Errors
/// The address, the keys or the bucket's name cannot be used.
pub fn bind(args: &S3, bucket: &str) -> Result<Option<Bound>> {
    let S3 { s3, s3_keys, s3_bucket: _, s3_tls_cert, s3_tls_key, s3_domain } = args.clone();
    let Some(listen) = s3 else { return Ok(None) };
    let keys = s3_keys.ok_or_else(|| Failure::usage("--s3 needs --s3-keys FILE"))?;
    let tls = s3_tls_cert.zip(s3_tls_key);
    let bound = Bound::new(Options { listen, tls, domains: s3_domain, ..Options::default() }, &keys)?;
    check_name(bucket).map_err(|failure| failure.next("name it: --s3-bucket NAME"))?;
    Ok(Some(bound))
}

/// Serves the mount to S3 clients.
///
/// # Errors
/// The server cannot be started.
pub fn serve(bound: Bound, bucket: &str, running: &Running) -> Result<Server> {
    bound.warning().iter().for_each(|line| log::warn(line));
    let read_only = !running.mounted().mode.writes();
    let kernel = if read_only { None } else { running.kernel() };
    let made = buckets::made(bucket, running.filesystem(), kernel, read_only);
    let (address, keys, tls) = bound.shown();
    // The mount is also asked from other folders.
    let keys = mounts::absolute(keys)?;
    let shown = Endpoint { address: address.to_string(), bucket: bucket.to_owned(), keys, tls };
    let server = bound.serve(vec![made], Vec::new(), buckets::log())?;
    running.also_at(shown);
    log::line(&format!("serves it to S3 clients on {}, as the bucket {bucket}", server.address()));
    Ok(server)
}
