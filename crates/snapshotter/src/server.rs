//! The unix socket at which containerd asks, and the threads that answer.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::error::{Context, Failure, Result};
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;

use crate::service::Service;
use crate::snapshots::Snapshots;

/// Operations that run at the same time. More wait. Those that ask a folder of images that hangs take some
/// seconds each, and must leave room for the others.
const HELPERS: usize = 256;
/// How long operations that run are waited for at the end.
const ENDING: Duration = Duration::from_secs(10);

/// A socket that is bound.
#[derive(Debug)]
pub struct Bound {
    listener: StdListener,
    path: PathBuf,
}

impl Bound {
    /// Binds the socket. Only root may connect. A socket that nothing listens at is replaced.
    ///
    /// # Errors
    /// Another program listens there, or the socket cannot be made.
    pub fn new(path: &Path) -> Result<Bound> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Ok(about) if about.file_type().is_socket() && UnixStream::connect(path).is_err() => {
                fs::remove_file(path).at("remove", path)?;
            }
            Ok(about) => {
                let why = match about.file_type().is_socket() {
                    true => "another program listens there",
                    false => "it is no socket",
                };
                return Err(Failure::new("in-use", format!("cannot listen at {}", path.display()))
                    .why(why)
                    .next("end that program, or name another socket: --on unix:PATH"));
            }
            Err(error) => return Err(error).at("look at", path),
        }
        let listener = StdListener::bind(path).map_err(|error| {
            Failure::io(format!("cannot listen at {}", path.display()), &error)
                .next("name a socket in a folder that is there: --on unix:/run/covey-snapshotter.sock")
        })?;
        fs::set_permissions(path, PermissionsExt::from_mode(0o600)).at("change the mode of", path)?;
        listener.set_nonblocking(true).at("listen at", path)?;
        Ok(Bound { listener, path: path.to_owned() })
    }

    /// Answers until the server is dropped.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn serve(self, snapshots: Arc<Snapshots>) -> Result<Server> {
        let cannot = |error: io::Error| Failure::io("cannot start the threads of the snapshotter", &error);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(HELPERS)
            .thread_name("covey-snapshot")
            .enable_all()
            .build()
            .map_err(cannot)?;
        let listener = {
            let _inside = runtime.enter();
            UnixListener::from_std(self.listener).map_err(cannot)?
        };
        let (stop, mut stopped) = watch::channel(false);
        runtime.spawn(async move {
            let until = async move { stopped.wait_for(|stopped| *stopped).await.map_or((), drop) };
            let incoming = UnixListenerStream::new(listener);
            let server = tonic::transport::Server::builder();
            let _ = server.serve_with_incoming_shutdown(Service(snapshots), incoming, until).await;
        });
        Ok(Server { stop, path: self.path, runtime: Some(runtime) })
    }
}

/// A snapshotter that answers. When it is dropped, it takes no more requests, and finishes what runs.
pub struct Server {
    stop: watch::Sender<bool>,
    path: PathBuf,
    runtime: Option<Runtime>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        self.stop.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(ENDING);
        }
    }
}

#[cfg(test)]
mod tests;
