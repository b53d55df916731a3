//! The unix socket on which the orchestrator's helpers call, and a runtime of its own.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::error::{Context, Failure, Result};
use futures_util::stream;
use node::log;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::rpc::Calls;
use crate::{Driver, Services};

/// Calls at a time. More wait for these.
const CALLS: usize = 64;
/// How often dead and unused mounts are looked for.
const SWEEP: Duration = Duration::from_secs(10);
/// How long the end waits for calls that are under way.
const ENDING: Duration = Duration::from_secs(20);

/// A driver whose socket is bound, and does not answer yet.
pub struct Bound {
    driver: Arc<Driver>,
    listener: StdListener,
    path: PathBuf,
}

impl Bound {
    /// Checks an endpoint, before anything is made for it.
    ///
    /// # Errors
    /// It is no path of a unix socket, or in a folder that is not there.
    pub fn check(endpoint: &str) -> Result<()> {
        let path = path_of(endpoint)?;
        match path.parent() {
            Some(folder) if !folder.is_dir() => {
                Err(Failure::usage(format!("there is no folder {}", folder.display()))
                    .next("create it, or name another --endpoint"))
            }
            _ => Ok(()),
        }
    }

    /// Binds the endpoint, `unix:///PATH` or a path. A socket that a driver left is replaced; one that a
    /// process listens on is not.
    ///
    /// # Errors
    /// The endpoint is none, is in use, or cannot be made.
    pub fn new(driver: Driver, endpoint: &str) -> Result<Bound> {
        let path = path_of(endpoint)?;
        match fs::symlink_metadata(&path) {
            Ok(about) if !about.file_type().is_socket() => {
                return Err(Failure::usage(format!("{} is there, and is no socket", path.display()))
                    .next("name another --endpoint, or remove it"));
            }
            Ok(_) if StdStream::connect(&path).is_ok() => {
                return Err(Failure::new("in-use", format!("a process listens on {}", path.display()))
                    .next("end that driver, or name another --endpoint"));
            }
            Ok(_) => fs::remove_file(&path).at("remove", &path)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::io(format!("cannot use {}", path.display()), &error)),
        }
        let listener = StdListener::bind(&path).at("listen on", &path)?;
        // It accepts secrets and mounts as root.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).at("protect", &path)?;
        listener.set_nonblocking(true).at("listen on", &path)?;
        Ok(Bound { driver: Arc::new(driver), listener, path })
    }

    /// The driver.
    pub fn driver(&self) -> Arc<Driver> {
        self.driver.clone()
    }

    /// Serves calls until the server is dropped. Mounts whose daemons ended with an earlier driver are made
    /// again.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn serve(self) -> Result<Server> {
        let Bound { driver, listener, path } = self;
        let cannot = |error: io::Error| Failure::io("cannot start the threads of the driver", &error);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(CALLS)
            .thread_name("covey-csi")
            .enable_all()
            .build()
            .map_err(cannot)?;
        let listener = {
            let _inside = runtime.enter();
            UnixListener::from_std(listener).map_err(cannot)?
        };
        let (stop, stopped) = watch::channel(false);
        let incoming = stream::unfold(listener, |listener| async move {
            let accepted = listener.accept().await.map(|(socket, _)| socket);
            Some((accepted, listener))
        });
        let until = ended(stopped.clone());
        let calls = Calls(driver.clone());
        let served = runtime.spawn(async move {
            let server = tonic::transport::Server::builder();
            if let Err(error) = server.serve_with_incoming_shutdown(calls, Box::pin(incoming), until).await {
                log::error(&format!("the driver's socket has ended: {error}"));
            }
        });
        runtime.spawn(sweep(driver.clone(), stopped));
        if driver.options.services != Services::Controller {
            let driver = driver.clone();
            // A database that does not answer delays this, and no call.
            runtime.spawn_blocking(move || driver.recover());
        }
        Ok(Server { driver, path, stop, served: Some(served), runtime: Some(runtime) })
    }
}

async fn ended(mut stopped: watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

async fn sweep(driver: Arc<Driver>, stopped: watch::Receiver<bool>) {
    loop {
        let tidied = driver.clone();
        let _ = tokio::task::spawn_blocking(move || tidied.tidy_up()).await;
        if tokio::time::timeout(SWEEP, ended(stopped.clone())).await.is_ok() {
            return;
        }
        let swept = driver.clone();
        let work = move || {
            if swept.options.services != Services::Controller {
                swept.recover_lost();
            }
            swept.mounts.sweep(false);
            swept.mounts.tidy_caches();
        };
        let _ = tokio::task::spawn_blocking(work).await;
    }
}

fn path_of(endpoint: &str) -> Result<PathBuf> {
    let path =
        endpoint.strip_prefix("unix://").or_else(|| endpoint.strip_prefix("unix:")).unwrap_or(endpoint);
    let path = Path::new(path);
    if path.is_absolute() && !endpoint.starts_with("tcp:") {
        return Ok(path.to_owned());
    }
    Err(Failure::usage(format!("{endpoint} is no endpoint of a driver"))
        .why("its callers act as root, so it is a unix socket")
        .next("write unix:///csi/csi.sock"))
}

/// A driver that is served. It ends when it is dropped. Mounts that volumes use go on.
pub struct Server {
    driver: Arc<Driver>,
    path: PathBuf,
    stop: watch::Sender<bool>,
    served: Option<tokio::task::JoinHandle<()>>,
    runtime: Option<Runtime>,
}

impl Server {
    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            if let Some(served) = self.served.take() {
                let _ = runtime.block_on(async { tokio::time::timeout(ENDING, served).await });
            }
            runtime.shutdown_timeout(ENDING);
        }
        self.driver.mounts.sweep(true);
        // The next driver replaces a socket that stays.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_paths_of_sockets() {
        for (text, path) in [("unix:///csi/csi.sock", "/csi/csi.sock"), ("unix:/a", "/a"), ("/a", "/a")] {
            assert_eq!(path_of(text).unwrap(), Path::new(path));
        }
        for text in ["", "csi.sock", "tcp://127.0.0.1:1", "unix://csi.sock"] {
            assert_eq!(path_of(text).unwrap_err().status, 2, "{text}");
        }
    }
}
