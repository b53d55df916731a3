//! `covey ui`: the dashboard of this machine's mounts.

use std::path::PathBuf;
use std::sync::Arc;

use api::error::{Failure, Result};
use node::{limits, log, mounts, notify, signals};
use serde::Serialize;
use ui::{Bound, Options};

use crate::args::fleet::Tls;
use crate::args::ui::{ADDRESS, More};
use crate::beside::browser;
use crate::dashboard::{Machine, Outside};
use crate::term::Term;

/// Shows mounts in a browser: where bytes come from, what is read most, the fleet; stays until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  covey ui                              all mounts of this machine\n  \
    covey ui /mnt/covey --listen 127.0.0.1:8000\n  covey up --ui /mnt/covey              with the mount itself\n  \
    covey ui --ui-token FILE --demos .    in a checkout: its demos, from the page\n  \
    covey ui --join 10.0.0.1:7171 --secret-file /etc/covey/secret      a fleet without a mount\n\n\
    From another machine: ssh -L 9879:127.0.0.1:9879 MACHINE, and then http://127.0.0.1:9879")]
pub struct Args {
    /// Mountpoints [default: all mounts, also later ones]
    mounts: Vec<PathBuf>,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = ADDRESS)]
    listen: String,
    #[command(flatten)]
    more: More,
    /// A checkout of the project: its demos can be run from the page. Needs --ui-token
    #[arg(long, value_name = "FOLDER")]
    demos: Option<PathBuf>,
    /// Show this JupyterLab, too: the address that `make lab` prints, without its token
    #[arg(long, value_name = "URL")]
    lab: Option<String>,
    /// Also show the members of a fleet. Any of these nodes is asked; nothing is joined by that
    #[arg(long, value_name = "HOST:PORT,...")]
    join: Option<String>,
    /// The file with the fleet's secret
    #[arg(long, value_name = "FILE", env = "COVEY_SECRET_FILE", hide_env = true)]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    tls: Tls,
}

#[derive(Serialize)]
struct Serving {
    url: String,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let outside = |join: &String| Outside::new(join, args.secret_file.clone(), args.tls.options());
    let shown = shown(&args.mounts)?.and(args.join.as_ref().map(outside));
    signals::block();
    limits::leave_no_core();
    let options = browser::options(&args.more, &args.listen);
    let bound = Bound::new(&Options { demos: args.demos.clone(), lab: args.lab.clone(), ..options })?;
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

fn shown(paths: &[PathBuf]) -> Result<Machine> {
    if paths.is_empty() {
        return Ok(Machine::all());
    }
    let mountpoint = |path: &PathBuf| {
        let found = mounts::entered(&mounts::absolute(path)?).map(|(mount, _)| mount.path);
        found.ok_or_else(|| {
            Failure::new("not-mounted", format!("{} is on no mount of Covey's", path.display()))
                .next("covey df lists the mounts")
        })
    };
    paths.iter().map(mountpoint).collect::<Result<_>>().map(Machine::with)
}
