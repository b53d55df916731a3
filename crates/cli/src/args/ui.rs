//! Command-line arguments of the dashboard.

use std::ffi::OsString;
use std::path::PathBuf;

use api::error::Result;

/// Where the dashboard listens unless an address is named.
pub const ADDRESS: &str = "127.0.0.1:9879";

/// A dashboard beside a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Ui {
    /// Also show the mount in a browser; see docs/DASHBOARD.md [default address: 127.0.0.1:9879]
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, require_equals = true, default_missing_value = ADDRESS)]
    pub ui: Option<String>,
    #[command(flatten)]
    pub more: More,
}

/// What else a dashboard needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct More {
    /// Of the dashboard: the file with the token that requests need which change something. It is made if it
    /// does not exist. Without it, nothing can be changed there
    #[arg(long, value_name = "FILE")]
    pub ui_token: Option<PathBuf>,
    /// Let other machines reach the dashboard, though nothing is encrypted
    #[arg(long)]
    pub ui_insecure: bool,
}

impl Ui {
    /// The arguments for a program that is started to do the same.
    pub fn to_args(&self) -> Result<Vec<OsString>> {
        let Some(listen) = &self.ui else { return Ok(Vec::new()) };
        let mut words: Vec<OsString> = vec![format!("--ui={listen}").into()];
        if let Some(token) = &self.more.ui_token {
            words.extend(["--ui-token".into(), node::mounts::absolute(token)?.into()]);
        }
        words.extend(self.more.ui_insecure.then(|| "--ui-insecure".into()));
        Ok(words)
    }
}
