//! `covey trace` of a mount that `covey attach` has made: its lines are made by the program that attached.

use std::path::Path;
use std::time::Duration;

use api::error::{Failure, Result};
use node::signals;
use serde_json::json;
use stream::attach::ear::Ear;

use crate::term::Term;

/// The trace of the mount that a path is on, if a program on this machine has attached it.
pub fn of(path: &Path, every: u32) -> Option<Ear> {
    Ear::of(path, every).ok()
}

/// Shows the lines until Ctrl-C, or for a time; then percentiles.
pub fn show(ear: Ear, at_most: Option<Duration>, term: Term) -> Result<u8> {
    signals::block();
    let failed = |error| Failure::io("the program that has attached the mount does not answer", &error);
    let goodbye = ear.goodbye().map_err(failed)?;
    let wait = move || {
        let signalled = signals::next_within(at_most);
        goodbye();
        // A second signal ends the program at once. So does a mount that no longer answers.
        signals::next_within(signalled.then_some(Duration::from_secs(10)));
        std::process::exit(130);
    };
    base::thread::spawn("covey-signals", wait)
        .map_err(|error| Failure::io("cannot start a thread", &error))?;
    ear.hear(|line| term.line(Some(&json!({ "line": line })), || line.to_owned())).map_err(failed)?;
    Ok(0)
}
