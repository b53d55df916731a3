//! An S3 server in this process ([`Server`]), and a proxy in front of it ([`Proxy`]) whose faults can be
//! switched while it runs.
//!
//! ```text
//!   the code under test ── http ──> Proxy (faults) ── http ──> Server (s3s over a temporary folder)
//! ```
//!
//! [`Azure`] implements as much of that protocol as is needed. [`Minio`] is a real store, where one is
//! installed. All listen on loopback, have threads of their own, and end when they are dropped. The proxy's
//! random choices follow from a seed, so that a failure can be repeated. Only tests and benches use this
//! crate.

// Tests may unwrap, read clocks and start threads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod azure;
mod fault;
mod minio;
mod proxy;
mod server;

pub use azure::Azure;
pub use fault::{Canned, Fault, Faults, Rule};
pub use http::Method;
pub use minio::Minio;
pub use proxy::Proxy;
pub use server::{BUCKET, Counts, Got, KEY, SECRET, Server, environment};

use std::future::Future;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tokio::runtime::{Builder, Runtime};

/// A separate runtime for each, so that none waits for the code under test.
fn runtime(name: &str) -> Runtime {
    Builder::new_multi_thread().worker_threads(2).thread_name(name).enable_all().build().unwrap()
}

/// Runs a future on a runtime and waits for it, also from a thread of another runtime.
fn wait<T: Send + 'static>(runtime: &Runtime, work: impl Future<Output = T> + Send + 'static) -> T {
    let (done, result) = std::sync::mpsc::channel();
    runtime.spawn(async move {
        let _ = done.send(work.await);
    });
    result.recv().unwrap()
}

/// A folder that is removed when this is dropped, or when the process ends in any way: servers are shared by
/// all tests of a program, so they are never dropped. A shell reads from a pipe that is never written to, and
/// removes the folder when the pipe closes.
struct Scratch {
    dir: PathBuf,
    shell: Child,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch::with(":", &[], &[])
    }

    /// The shell also runs `first`, with `$1` and so on, and at the end the function `last`, if `first`
    /// defined it. `$0` is the folder.
    fn with(first: &str, arguments: &[&std::ffi::OsStr], variables: &[(&str, &str)]) -> Scratch {
        let dir = tempfile::tempdir().unwrap().keep();
        let script = format!("last() {{ :; }}; {first}; read -r _; last; rm -rf \"$0\"");
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(script).arg(&dir).args(arguments).envs(variables.iter().copied());
        // In a process group of its own, so that whatever ends this program, Ctrl-C included, does not end
        // the shell before it has cleaned up.
        let shell = shell.process_group(0).stdin(Stdio::piped()).spawn().unwrap();
        Scratch { dir, shell }
    }

    fn path(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
