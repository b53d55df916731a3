//! What a daemon serves beside its mount: an S3 endpoint, and a dashboard.

#[cfg(feature = "dashboard")]
pub mod browser;
#[cfg(feature = "s3")]
mod endpoint;

use api::error::Result;
use node::running::Running;

use crate::args::s3::S3;
use crate::args::ui::Ui;

/// What a daemon serves beside its mount.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// An S3 endpoint.
    pub s3: S3,
    /// A dashboard.
    pub ui: Ui,
}

impl Beside {
    /// Binds the sockets, before anything is mounted. `bucket`: the name for S3 clients.
    ///
    /// # Errors
    /// An address cannot be used, or this program lacks the part.
    pub fn bind(&self, bucket: &str) -> Result<Bounds> {
        Ok(Bounds { s3: endpoint::bind(&self.s3, bucket)?, ui: browser::bind(&self.ui)? })
    }
}

/// The sockets of what is served beside the mount.
pub struct Bounds {
    s3: Option<endpoint::Bound>,
    ui: Option<browser::Bound>,
}

/// What is served, until it is dropped.
pub struct Servers {
    _s3: Option<endpoint::Server>,
    _ui: Option<browser::Server>,
}

impl Bounds {
    /// Serves the mount at these sockets.
    ///
    /// # Errors
    /// A server cannot be started.
    pub fn serve(self, bucket: &str, running: &Running) -> Result<Servers> {
        let s3 = self.s3.map(|bound| endpoint::serve(bound, bucket, running)).transpose()?;
        let ui = self.ui.map(|bound| browser::serve(bound, running)).transpose()?;
        Ok(Servers { _s3: s3, _ui: ui })
    }
}

/// In place of the S3 endpoint, in a program without it.
#[cfg(not(feature = "s3"))]
mod endpoint {
    use api::error::Result;
    use node::running::Running;

    use crate::args::s3::S3;
    use crate::parts;

    pub type Bound = std::convert::Infallible;
    pub type Server = Bound;

    pub fn bind(args: &S3, _: &str) -> Result<Option<Bound>> {
        if args.s3.is_some() { Err(parts::lacking("the S3 endpoint")) } else { Ok(None) }
    }

    pub fn serve(bound: Bound, _: &str, _: &Running) -> Result<Server> {
        match bound {}
    }
}

/// In place of the dashboard, in a program without it.
#[cfg(not(feature = "dashboard"))]
mod browser {
    use api::error::Result;
    use node::running::Running;

    use crate::args::ui::Ui;
    use crate::parts;

    pub type Bound = std::convert::Infallible;
    pub type Server = Bound;

    pub fn bind(args: &Ui) -> Result<Option<Bound>> {
        if args.ui.is_some() { Err(parts::lacking("the dashboard")) } else { Ok(None) }
    }

    pub fn serve(bound: Bound, _: &Running) -> Result<Server> {
        match bound {}
    }
}
