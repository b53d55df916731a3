//! Requests to a daemon that accept only its own answers: [`api::control`] with what [`crate::trust`] knows
//! about this machine's mounts.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::control::{self, Asked, ControlAddress, Known, Request, Tick};
use api::error::{Failure, Result};
use serde::de::DeserializeOwned;

use crate::trust;

/// The mounts in this machine's mount table.
struct Mounts;

impl Known for Mounts {
    fn check(&self, stream: &UnixStream, address: &ControlAddress) -> io::Result<()> {
        trust::check_daemon(stream, address)
    }

    fn place(&self, address: &ControlAddress) -> Option<PathBuf> {
        let mut mounts = trust::mounts().into_iter().rev();
        mounts
            .find(|mount| ControlAddress::of_source(Path::new(&mount.source)) == *address)
            .map(|mount| mount.path)
    }
}

/// Sends a request and waits for the answer. `tick` receives the progress of a long operation. The deadline
/// of this thread and the limit on the daemon's silence bound the wait.
pub fn ask<T: DeserializeOwned>(
    address: &ControlAddress,
    request: &Request,
    tick: &mut dyn FnMut(&Tick),
) -> Result<T> {
    control::ask(&Mounts, address, request, tick)
}

/// Sends a request and returns before the answer.
pub fn begin(address: &ControlAddress, request: &Request) -> Result<Asked> {
    Asked::ask(&Mounts, address, request)
}

/// The failure to report for a daemon that exists and is silent: which daemon, why as far as can be seen, and
/// what to do.
pub fn silent(address: &ControlAddress, waited: Duration) -> Failure {
    control::silent(&Mounts, address, waited)
}
