//! Asking a daemon, and believing only its own answers: [`api::control`] with what [`crate::trust`] knows of this machine's mounts.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::control::{self, Asked, Ear, Known, Request, Tick};
use api::error::{Failure, Result};
use serde::de::DeserializeOwned;

use crate::trust;

/// What this machine's table of mounts says.
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

/// Asks a daemon. `tick` is told how far long work has come. It ends by the deadline of this thread, and by the silence of the daemon.
pub fn ask<T: DeserializeOwned>(ear: &Ear, request: &Request, tick: &mut dyn FnMut(&Tick)) -> Result<T> {
    control::ask(&Mounts, ear, request, tick)
}

/// Asks a daemon, and returns before it answers.
pub fn begin(ear: &Ear, request: &Request) -> Result<Asked> {
    Asked::ask(&Mounts, ear, request)
}

/// A daemon that is there and says nothing: which, why as far as it can be seen, and what to do.
pub fn silent(ear: &Ear, waited: Duration) -> Failure {
    control::silent(&Mounts, ear, waited)
}
