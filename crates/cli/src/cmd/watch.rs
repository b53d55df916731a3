//! `covey watch`: what the kernel sees and the daemon does not, through eBPF programs.

mod mount;
mod redirect;
mod served;
mod status;
mod store;

use std::time::Duration;

use api::error::{Failure, Result};
use watch::WatchError;

use crate::term::Term;

/// Shows what the kernel sees: reads that the page cache answers, requests of S3 clients
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey watch status                                       what can be watched here\n  \
    covey watch mount /mnt/covey                             which parts of which files are hot\n  \
    covey watch store eth0 --port 9000                       requests of all S3 clients of this machine\n  \
    covey watch served eth0 --port 9878                      requests of other machines to this one\n  \
    covey watch redirect /sys/fs/cgroup/job --store 10.0.0.2:9000 --gateway 127.0.0.1:9878\n\n\
    It needs root, or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN. Nothing is watched any more when the command ends,\n\
    however it ends. docs/WATCH.md says more."
)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Status(status::Args),
    Mount(mount::Args),
    Store(store::Args),
    Served(served::Args),
    Redirect(redirect::Args),
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    match &args.what {
        What::Status(args) => status::run(args, term),
        What::Mount(args) => mount::run(args, term),
        What::Store(args) => store::run(args, term),
        What::Served(args) => served::run(args, term),
        What::Redirect(args) => redirect::run(args, term),
    }
}

/// How often, and for how long, a command shows what it sees.
#[derive(Debug, clap::Args)]
struct Rhythm {
    /// How long a table stands for: 2s, 500ms
    #[arg(long, short = 'i', value_name = "TIME", default_value = "2s", value_parser = crate::looking::parse_time)]
    interval: Duration,
    /// End after so many tables [default: at Ctrl-C]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Lines of a table
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
}

impl Rhythm {
    /// Calls `show` after each interval until Ctrl-C, or for the given number of tables. `step` waits for a
    /// part of an interval.
    fn run(
        &self,
        mut step: impl FnMut(Duration) -> Result<()>,
        mut show: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        crate::cmd::stats::interval_ms(self.interval)?;
        let mut shown = 0;
        while self.count.is_none_or(|count| shown < count) {
            let begun = base::time::monotonic();
            loop {
                let left = self.interval.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    break;
                }
                step(left)?;
            }
            show()?;
            shown += 1;
        }
        Ok(())
    }
}

/// What a user can do about a failure to watch.
fn failure(error: WatchError) -> Failure {
    let what = format!("cannot watch: {error}");
    match error {
        WatchError::NotPermitted(needs) => Failure::new("not-permitted", what)
            .next(format!("run it as root, or give the program the capabilities: setcap with {needs}")),
        WatchError::NoBtf => Failure::new("not-supported", what)
            .next("use a kernel with CONFIG_DEBUG_INFO_BTF=y, as those of all large distributions"),
        WatchError::NotThere(_) => Failure::usage(what),
        WatchError::Refused { .. } => Failure::new("not-supported", what)
            .next("see which programs this kernel accepts: covey watch status"),
        WatchError::Map(_) | WatchError::Io(_) => Failure::new("failed", what),
    }
}

/// A line about the cost of programs: each with its runs and its mean time.
fn cost_text(costs: &[watch::Cost]) -> String {
    let of = |cost: &watch::Cost| {
        let mean = cost.ns.checked_div(cost.runs).unwrap_or(0);
        format!("{} {} x {mean} ns", cost.program, api::text::count(cost.runs))
    };
    let ran: Vec<String> = costs.iter().filter(|cost| cost.runs > 0).map(of).collect();
    format!("cost: {}\n", if ran.is_empty() { "no program ran".to_owned() } else { ran.join(", ") })
}
