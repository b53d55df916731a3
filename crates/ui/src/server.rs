//! The listener: an address, a token, and a runtime of its own.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener as StdListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::error::{Failure, Result};
use api::own;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::Daemons;
use crate::connections::{self, Limits};
use crate::demo::Demos;
use crate::lab::Lab;
use crate::routes::{self, App, Extras, QUESTIONS, STREAMS};

/// How long the end waits for requests that are under way.
const ENDING: Duration = Duration::from_secs(2);
/// Threads that wait for daemons. Each mount that a browser looks at has one, so questions find others.
const WAITING: usize = STREAMS + 2 * QUESTIONS;
/// The least length of a token.
const TOKEN_MIN: usize = 16;

/// How the dashboard listens.
#[derive(Clone, Debug)]
pub struct Options {
    /// `ADDRESS:PORT`.
    pub listen: String,
    /// Whether an address is allowed that other machines reach. Nothing is encrypted.
    pub insecure: bool,
    /// The file with the token that requests need which change something. It is made if it does not exist.
    /// `None`: such requests are refused.
    pub token: Option<PathBuf>,
    /// A checkout of the project, whose demos can be run from the page.
    pub demos: Option<PathBuf>,
    /// The address of a JupyterLab, for a page with it.
    pub lab: Option<String>,
}

/// A listener that is bound.
pub struct Bound {
    listener: StdListener,
    address: SocketAddr,
    token: Option<String>,
    demos: Option<PathBuf>,
    lab: Option<Lab>,
}

impl Bound {
    /// Binds the address and reads the token.
    ///
    /// # Errors
    /// The address cannot be used, or other machines would reach it, or the token's file is not this user's
    /// alone.
    pub fn new(options: &Options) -> Result<Bound> {
        let at = &options.listen;
        let cannot = |error: io::Error| {
            Failure::io(format!("cannot show the dashboard at {at}"), &error)
                .next("write ADDRESS:PORT, like 127.0.0.1:9879, with a free port")
        };
        let listener = base::lock::bind(|| StdListener::bind(at)).map_err(cannot)?;
        listener.set_nonblocking(true).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        if !address.ip().is_loopback() && !options.insecure {
            return Err(Failure::usage(format!("other machines would reach the dashboard at {address}"))
                .why("nothing it sends is encrypted, and everybody who reaches it sees the names of files")
                .next("use 127.0.0.1 and a tunnel: ssh -L 9879:127.0.0.1:9879 MACHINE")
                .next("or allow it: --ui-insecure"));
        }
        let lab = options.lab.as_deref().map(Lab::new).transpose()?;
        let demos = options.demos.as_deref().map(|folder| demos(folder, options, address)).transpose()?;
        let token = options.token.as_deref().map(token).transpose()?;
        Ok(Bound { listener, address, token, demos, lab })
    }

    /// Returns the address that is bound.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the dashboard until the server is dropped.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn serve(self, daemons: Arc<dyn Daemons>) -> Result<Server> {
        self.serve_within(Limits::default(), daemons)
    }

    /// Serves the dashboard with other limits on what clients may take.
    pub(crate) fn serve_within(self, limits: Limits, daemons: Arc<dyn Daemons>) -> Result<Server> {
        let Bound { listener, address, token, demos, lab } = self;
        let cannot = |error: io::Error| Failure::io("cannot start the threads of the dashboard", &error);
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(WAITING)
            .thread_name("covey-ui")
            .enable_all()
            .build()
            .map_err(cannot)?;
        let listener = {
            let _inside = runtime.enter();
            TcpListener::from_std(listener).map_err(cannot)?
        };
        let (stop, stopped) = watch::channel(false);
        let demos = demos.map(|folder| Demos::new(folder, stopped.clone()));
        let extras = Extras { demos: demos.clone(), lab };
        let app = App::new(daemons, address, token, extras, stopped.clone());
        let guard = app.guard();
        runtime.spawn(connections::accept(listener, (routes::router(app), guard), limits, stopped));
        Ok(Server { address, stop, demos, runtime: Some(runtime) })
    }
}

/// A dashboard that is served. It ends when it is dropped, after a demo that runs has removed what it made.
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    demos: Option<Arc<Demos>>,
    runtime: Option<Runtime>,
}

impl Server {
    /// Returns the server's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            if let Some(demos) = &self.demos {
                runtime.block_on(demos.ended());
            }
            runtime.shutdown_timeout(ENDING);
        }
    }
}

/// The folder with the demos, if they may be run: they start processes, with this user's rights.
fn demos(folder: &Path, options: &Options, address: SocketAddr) -> Result<PathBuf> {
    if options.token.is_none() {
        return Err(Failure::usage("--demos needs a token")
            .why("a demo starts processes, so not everybody on this machine may begin one")
            .next("add --ui-token FILE; the file is made if it does not exist"));
    }
    if !address.ip().is_loopback() {
        return Err(Failure::usage(format!("--demos is not possible at {address}"))
            .why("the token would cross the network unencrypted, and it starts processes")
            .next("use 127.0.0.1 and a tunnel: ssh -L 9879:127.0.0.1:9879 MACHINE"));
    }
    let makefile = folder.join("Makefile");
    let text = fs::read_to_string(&makefile)
        .map_err(|error| Failure::io(format!("cannot read {}", makefile.display()), &error))?;
    if !text.contains("demo-cache:") {
        return Err(Failure::usage(format!("{} is no checkout of Covey", folder.display()))
            .next("git clone the project, and name that folder: --demos FOLDER"));
    }
    folder.canonicalize().map_err(|error| Failure::io(format!("cannot use {}", folder.display()), &error))
}

/// The token in a file. A file that does not exist is made, with a random token.
fn token(path: &Path) -> Result<String> {
    let cannot =
        |error: &io::Error| Failure::io(format!("cannot use the token in {}", path.display()), error);
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match new {
        Ok(mut file) => {
            let id = base::random::id16();
            let token: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            file.write_all(format!("{token}\n").as_bytes()).map_err(|error| cannot(&error))?;
            return Ok(token);
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(cannot(&error)),
    }
    let about = fs::metadata(path).map_err(|error| cannot(&error))?;
    own::is_private(path, &about).map_err(|why| {
        Failure::usage(format!("cannot use the token in {}", path.display()))
            .why(why)
            .next("make it a file that only you can read, or name another one with --ui-token")
    })?;
    let text = fs::read_to_string(path).map_err(|error| cannot(&error))?;
    let token = text.trim();
    if token.len() < TOKEN_MIN || token.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err(Failure::usage(format!("{} holds no token", path.display()))
            .why(format!("a token has at least {TOKEN_MIN} letters, digits and signs, on one line"))
            .next("remove the file: then it is made anew"));
    }
    Ok(token.to_owned())
}
