//! What a failure means: whether to try again, and the line for a person.
//!
//! Messages name the server and the user, and repeat the server's own message. They never hold the password:
//! no part of the client puts it into an error.

use std::error::Error as _;

use etcd_client::Error;
use meta::store::StoreError;

use super::target::Target;
use crate::pool;

/// The codes of gRPC that matter here.
const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNIMPLEMENTED: i32 = 12;
const DATA_LOSS: i32 = 15;
const UNAUTHENTICATED: i32 = 16;

/// What to do when the database of etcd is full.
pub(super) const FULL: &str = "compact old revisions (etcdctl compact), defragment each member (etcdctl defrag), raise --quota-backend-bytes if that frees too little, then clear the alarm (etcdctl alarm disarm)";

/// A request that did not succeed.
pub(super) type Failure = pool::Failure<NoLease>;

/// A lease that the request names does not exist.
#[derive(Debug, thiserror::Error)]
#[error("etcd does not know the lease any more")]
pub(super) struct NoLease;

/// An error and its causes, in one line.
pub(super) fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        // Some errors repeat their cause in their own text.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        next = cause.source();
    }
    text
}

/// Why no connection could be made.
pub(super) fn unconnected(server: &str, host: &str, error: &tonic::transport::Error) -> Failure {
    let text = causes(error);
    if text.contains("certificate") || text.contains("InvalidCertificate") {
        return Failure::refused(format!(
            "the server {server} shows a certificate that is not accepted ({text}); name the right authority with sslrootcert, and the server as its certificate does"
        ));
    }
    if text.contains("failed to lookup address") || text.contains("dns error") {
        return Failure::Lost(format!(
            "the host {host} has no address ({text}); check its name and this machine's DNS"
        ));
    }
    if ["InvalidContentType", "corrupt message", "handshake eof"].iter().any(|form| text.contains(form)) {
        return Failure::refused(format!(
            "the server {server} does not speak TLS ({text}); leave sslmode out in a network that you trust"
        ));
    }
    Failure::Lost(format!(
        "the server {server} does not answer ({text}); check that etcd runs there and that this machine may reach it"
    ))
}

/// What an error of the client means.
pub(super) fn explain(target: &Target, server: &str, error: &Error) -> Failure {
    let Error::GRpcStatus(status) = error else {
        if matches!(error, Error::LeaseKeepAliveError(_)) {
            return Failure::Own(NoLease);
        }
        return Failure::Lost(format!("the request to the server {server} failed ({})", causes(error)));
    };
    let said = status.message();
    let refused = Failure::refused;
    match status.code() as i32 {
        INVALID_ARGUMENT | FAILED_PRECONDITION | UNAUTHENTICATED | PERMISSION_DENIED => {
            unauthorised(target, server, said).unwrap_or_else(|| unfit(server, said))
        }
        NOT_FOUND if said.contains("lease not found") => Failure::Own(NoLease),
        RESOURCE_EXHAUSTED if said.contains("space exceeded") => {
            Failure::Store(StoreError::NoSpace(format!(
                "the database of etcd has reached its quota, and the server {server} refuses changes ({said}); {FULL}"
            )))
        }
        RESOURCE_EXHAUSTED if said.contains("larger than max") => unfit(server, said),
        RESOURCE_EXHAUSTED => Failure::Again(format!(
            "the server {server} has too many requests ({said}); look at its disk and its load"
        )),
        OUT_OF_RANGE if said.contains("compacted") => refused(format!(
            "the server {server} has compacted the rows that were being read ({said}); keep old revisions longer (--auto-compaction-retention), or read them faster"
        )),
        UNIMPLEMENTED => refused(format!(
            "the server {server} is no etcd of version 3.4 or newer ({said}); check the address and its port"
        )),
        DATA_LOSS => Failure::Store(StoreError::Damaged(format!(
            "the server {server} reports damage: {said}; look at `etcdctl endpoint hashkv`, and restore the member"
        ))),
        _ => lost(server, said, &causes(error), status.source().is_some()),
    }
}

fn unauthorised(target: &Target, server: &str, said: &str) -> Option<Failure> {
    let user = target.user.as_deref().unwrap_or_default();
    let line = if said.contains("authentication failed") {
        format!(
            "the server {server} refuses the name or the password of user {user}; check them, and ETCD_PASSFILE or ETCD_PASSWORD"
        )
    } else if said.contains("user name is empty") || said.contains("user name not found") {
        format!(
            "the server {server} asks for a user ({said}); name one in the address, etcd://USER@..., and give its password in ETCD_PASSFILE or ETCD_PASSWORD"
        )
    } else if said.contains("authentication is not enabled") {
        format!(
            "the server {server} has no authentication turned on, and the address names user {user}; leave the user out, or turn it on (etcdctl auth enable)"
        )
    } else if said.contains("permission denied") {
        format!(
            "user {user} may not use the keys of this volume on {server}; grant it: etcdctl role grant-permission ROLE readwrite --prefix {}/",
            target.prefix
        )
    } else if said.contains("invalid auth token") || said.contains("auth revision") {
        // The token is old. A new connection gets a new one.
        return Some(Failure::Lost(format!(
            "the server {server} does not know this login any more ({said})"
        )));
    } else {
        return None;
    };
    Some(Failure::refused(line))
}

fn unfit(server: &str, said: &str) -> Failure {
    if said.contains("too many operations") {
        return Failure::refused(format!(
            "the server {server} takes fewer operations in a transaction than the usual 128 ({said}); raise its --max-txn-ops"
        ));
    }
    if said.contains("too large") || said.contains("larger than max") {
        return Failure::refused(format!(
            "the change is larger than a request that the server {server} takes ({said}); raise its --max-request-bytes"
        ));
    }
    Failure::refused(format!("the server {server} refuses ({said})"))
}

fn lost(server: &str, said: &str, causes: &str, is_local: bool) -> Failure {
    if said.contains("no leader") || said.contains("leader changed") {
        return Failure::Lost(format!(
            "the cluster of {server} has no leader ({said}); check that most of its members run"
        ));
    }
    if is_local || said.contains("transport error") {
        return Failure::Lost(format!(
            "the server {server} closed the connection ({causes}); check that etcd runs there"
        ));
    }
    Failure::Lost(format!("the server {server} did not carry out the request ({said}); look at its log"))
}
