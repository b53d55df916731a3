//! `covey ui`: the dashboard of this machine's mounts.

use std::path::PathBuf;
use std::sync::Arc;

use api::error::{Failure, Result};
use node::{limits, log, mounts, notify, signals};
use serde::Serialize;
use ui::Bound;

use crate::args::ui::{ADDRESS, More};
use crate::dashboard::Mounts;
use crate::term::Term;

/// Shows mounts in a browser: where bytes come from, what is read most, the fleet; stays until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey ui                              all mounts of this machine\n  \
    covey ui /mnt/covey --listen 127.0.0.1:8000\n  covey up --ui /mnt/covey              with the mount itself\n\n\
    From another machine: ssh -L 9879:127.0.0.1:9879 MACHINE, and then http://127.0.0.1:9879")]
pub struct Args {
    /// Mountpoints [default: all mounts, also later ones]
    mounts: Vec<PathBuf>,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ADDRESS)]
    listen: String,
    #[command(flatten)]
    more: More,
}

#[derive(Serialize)]
struct Serving {
    url: String,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let shown = shown(&args.mounts)?;
    signals::block();
    limits::leave_no_core();
    let bound = Bound::new(&args.more.options(&args.listen))?;
    let server = bound.serve(Arc::new(shown))?;
    let url = format!("http://{}", server.address());
    let line = format!("the dashboard is at {url}");
    notify::ready(&line);
    if term.is_json() {
        term.result(&Serving { url }, String::new);
    } else {
        log::line(&format!("{line}; Ctrl-C ends it"));
    }
    let signal = signals::next();
    log::line(&format!("signal {signal}: ending"));
    notify::stopping();
    Ok(0)
}

fn shown(paths: &[PathBuf]) -> Result<Mounts> {
    if paths.is_empty() {
        return Ok(Mounts::All);
    }
    let mountpoint = |path: &PathBuf| {
        let found = mounts::entered(&mounts::absolute(path)?).map(|(mount, _)| mount.path);
        found.ok_or_else(|| {
            Failure::new("not-mounted", format!("{} is on no mount of Covey's", path.display()))
                .next("covey df lists the mounts")
        })
    };
    paths.iter().map(mountpoint).collect::<Result<_>>().map(Mounts::Named)
}
