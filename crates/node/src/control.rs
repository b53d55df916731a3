//! Requests to a daemon that accept only its own answers: [`api::control`] with what [`crate::trust`] knows
//! about this machine's mounts.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::control::{self, Asked, Ear, Known, Request, Tick};
use api::error::{Failure, Result};
use serde::de::DeserializeOwned;

use crate::trust;

/// The mounts in this machine's mount table.
struct Mounts;

impl Known for Mounts {
    fn check(&self, stream: &UnixStream, ear: &Ear) -> io::Result<()> {
        trust::check_daemon(stream, ear)
    }

    fn place(&self, ear: &Ear) -> Option<PathBuf> {
        let mut mounts = trust::mounts().into_iter().rev();
        mounts.find(|mount| Ear::of_source(Path::new(&mount.source)) == *ear).map(|mount| mount.path)
    }
}

/// Sends a request and waits for the answer. `tick` receives the progress of a long operation. The deadline
/// of this thread and the limit on the daemon's silence bound the wait.
pub fn ask<T: DeserializeOwned>(ear: &Ear, request: &Request, tick: &mut dyn FnMut(&Tick)) -> Result<T> {
    control::ask(&Mounts, ear, request, tick)
}

/// Sends a request and returns before the answer.
pub fn begin(ear: &Ear, request: &Request) -> Result<Asked> {
    Asked::ask(&Mounts, ear, request)
}

/// The failure to report for a daemon that exists and is silent: which daemon, why as far as can be seen, and
/// what to do.
pub fn silent(ear: &Ear, waited: Duration) -> Failure {
    control::silent(&Mounts, ear, waited)
}
