//! The dashboard of a mount.

use std::sync::Arc;

use api::error::Result;
use node::log;
use node::running::Running;
use ui::Options;

pub use ui::{Bound, Server};

use crate::args::ui::{More, Ui};
use crate::dashboard::Machine;

/// Returns the options of a dashboard at this address.
pub fn options(more: &More, listen: &str) -> Options {
    let More { ui_token, ui_insecure } = more.clone();
    Options { listen: listen.to_owned(), insecure: ui_insecure, token: ui_token, demos: None, lab: None }
}

/// Binds the address, if a dashboard is wanted.
///
/// # Errors
/// The address or the token cannot be used.
pub fn bind(args: &Ui) -> Result<Option<Bound>> {
    args.ui.as_deref().map(|listen| Bound::new(&options(&args.more, listen))).transpose()
}

/// Shows the mount in a browser.
///
/// # Errors
/// The server cannot be started.
pub fn serve(bound: Bound, running: &Running) -> Result<Server> {
    let shown = Machine::with(vec![running.mounted().mountpoint]);
    let server = bound.serve(Arc::new(shown))?;
    running.also_in_browser(format!("http://{}", server.address()));
    log::line(&format!("the dashboard is at http://{}", server.address()));
    Ok(server)
}
