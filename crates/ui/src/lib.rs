//! The dashboard: the mounts of this machine in a browser, and a REST interface with the same figures.
//!
//! ```text
//!   browser ── GET /                   the page: assets.rs, built from web/
//!           ── GET /api/v1/...         figures, as the daemons answer them: routes.rs
//!           ── GET /api/v1/events      a stream of figures, one message a second: live.rs
//!           ── GET /api/v1/demos/live  a WebSocket with what a demo says: demo.rs
//!           ── POST /api/v1/...        what changes something needs a token: guard.rs
//! ```
//!
//! This crate knows no mount. A front end says which mounts there are and how their daemons are asked
//! ([`Daemons`]). `openapi.json` describes the interface; a test compares it with the routes.

// The tests may unwrap, read clocks and start threads.
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used, missing_docs))]

mod assets;
mod connections;
mod demo;
mod guard;
mod lab;
mod live;
mod routes;
mod server;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use api::control::Request;
use api::error::Result;
use api::status::fleet::PeerRow;
use api::watch::Wish;
use serde::Serialize;
use serde_json::Value;

pub use server::{Bound, Options, Server};

/// A mount that is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// The mount's source.
    pub source: String,
    /// The mountpoint.
    #[serde(with = "api::raw_path")]
    pub mountpoint: PathBuf,
}

/// The mounts, and their daemons. Calls block, and have time limits of their own.
pub trait Daemons: Send + Sync {
    /// The mounts that are there now.
    fn mounts(&self) -> Vec<Shown>;

    /// Sends a request to a daemon and returns its answer.
    ///
    /// # Errors
    /// The daemon's failure, or that it does not answer.
    fn ask(&self, mount: &Shown, request: &Request) -> Result<Value>;

    /// Passes on what a daemon sends for a wish, until `each` returns false.
    ///
    /// # Errors
    /// The daemon's failure, or that it does not answer.
    fn watch(&self, mount: &Shown, wish: &Wish, each: &mut dyn FnMut(Value) -> bool) -> Result<()>;

    /// Which nodes of a fleet are asked for its members, without a mount.
    fn fleet(&self) -> Option<String>;

    /// The members of that fleet, as one of its nodes sees them.
    ///
    /// # Errors
    /// No node answers, or no fleet was named (`no-fleet`).
    fn members(&self) -> Result<Vec<PeerRow>>;
}
