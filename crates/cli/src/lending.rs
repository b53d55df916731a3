//! Commands that lend a disk to a fleet. They print their address and run until a signal arrives.

use api::error::Result;
use net::id::Role;
use node::fleet::lender::{Lending, Options};
use node::{limits, log, notify, signals};

use crate::term::Term;

/// Serves until a signal arrives.
pub fn run(options: &Options, role: Role, term: Term) -> Result<u8> {
    signals::block();
    limits::check(limits::For::Daemon)?;
    limits::leave_no_core();
    let node = signals::ending(&format!("opening {}", options.origin), || Lending::start(options, role))?;
    let (what, address) = (node.what(), node.address());
    notify::ready(&format!("{what} of {} on {address}", options.origin));
    if !term.is_json() {
        log::line(&format!("{what} of {} serves on {address}; Ctrl-C ends it", options.origin));
    }
    let signal = signals::next();
    log::line(&format!("signal {signal}: ending"));
    notify::stopping();
    node.end();
    Ok(0)
}
