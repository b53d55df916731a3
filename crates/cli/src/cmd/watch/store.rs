//! `covey watch store`: requests to an object store, of any program on this machine.

use std::path::PathBuf;

use api::error::Result;
use api::text::count;
use serde::Serialize;
use watch::counts::Histogram;
use watch::mount::Heat;
use watch::store::{Chunk, StoreWatch, Target, Totals};
use watch::{Cost, Event};

use super::{Rhythm, cost_text, failure};
use crate::table::Table;
use crate::term::Term;

/// Shows requests to an object store, of any program on this machine
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey watch store eth0 --port 9000\n  covey watch store lo --port 9000 --count 1 --json\n\n\
    Only plain HTTP/1.1 can be read. With --cgroup, connections of its programs to the port are tuned (no delay of small\n\
    segments, acknowledgements within 10 ms), and their round-trip times are counted."
)]
pub struct Args {
    /// The interface on which the requests leave
    interface: String,
    /// The store's port
    #[arg(long, default_value_t = 80, value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// A cgroup of version 2 whose connections are tuned and timed
    #[arg(long, value_name = "FOLDER")]
    cgroup: Option<PathBuf>,
    #[command(flatten)]
    rhythm: Rhythm,
}

/// One table.
#[derive(Debug, Serialize)]
struct Shown {
    totals: Totals,
    chunks: Vec<Chunk>,
    latency: Histogram,
    round_trips: Histogram,
    hot_events: u64,
    costs: Vec<Cost>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let Args { interface, port, cgroup, rhythm } = args;
    let heat = Heat::default();
    let target = Target { interface: interface.clone(), port: *port, cgroup: cgroup.clone(), heat };
    let watch = StoreWatch::attach(&target).map_err(failure)?;
    let _measured = watch::object::measure().map_err(failure)?;
    watch.unseen().iter().for_each(|line| term.warn(line));
    let (watch, hot) = (std::cell::RefCell::new(watch), std::cell::Cell::new(0));
    let step = |left| {
        let mut watch = watch.borrow_mut();
        watch.events().wait(left).map_err(failure)?;
        watch.events().drain(&mut |event| {
            if let Event::Hot { .. } = event {
                hot.set(hot.get() + 1);
            }
        });
        Ok(())
    };
    let show = || {
        let watch = watch.borrow();
        let mut chunks = watch.chunks().map_err(failure)?;
        chunks.sort_by_key(|chunk| std::cmp::Reverse((chunk.score, chunk.requests)));
        chunks.truncate(rhythm.top);
        let shown = Shown {
            totals: watch.totals().map_err(failure)?,
            chunks,
            latency: watch.latency().map_err(failure)?,
            round_trips: watch.round_trips().map_err(failure)?,
            hot_events: hot.get(),
            costs: watch.costs(),
        };
        term.line(Some(&shown), || text(&shown));
        Ok(())
    };
    rhythm.run(step, show)?;
    Ok(0)
}

fn text(shown: &Shown) -> String {
    let mut table = Table::new(&["score ", "requests ", "errors ", "mean us ", "status ", "MiB ", "path"]);
    for chunk in &shown.chunks {
        let score = format!("{}{:.1}", if chunk.hot { "hot " } else { "" }, f64::from(chunk.score) / 1e3);
        let mean = chunk.latency_ns as f64 / 1e3 / chunk.responses.max(1) as f64;
        let cells =
            [count(chunk.requests), count(chunk.errors), format!("{mean:.0}"), chunk.status.to_string()];
        let last = [count(chunk.chunk.into()), chunk.path.clone()];
        table.row([score].into_iter().chain(cells).chain(last).collect());
    }
    let Totals { requests, responses, keepalive, ranges, get, put, other, status, .. } = shown.totals;
    let [ok, moved, refused, failed] = status.map(count);
    let mut out = table.text();
    out += &format!(
        "requests {} ({} GET, {} PUT, {} other), {} on used connections, {} for ranges\n",
        count(requests),
        count(get),
        count(put),
        count(other),
        count(keepalive),
        count(ranges)
    );
    let times = [0.5, 0.99].map(|share| shown.latency.quantile(share) / 1_000).map(count);
    out += &format!(
        "responses {}: {ok} 2xx, {moved} 3xx, {refused} 4xx, {failed} 5xx; first byte within {} us (half), {} us (99 %)\n",
        count(responses),
        times[0],
        times[1]
    );
    let Totals { own_requests, own_responses, .. } = shown.totals;
    if own_requests > 0 {
        let [sent, answered] = [own_requests, own_responses].map(count);
        out += &format!("not among them: {sent} requests of Covey itself, {answered} answered\n");
    }
    let Totals { split, fragments, lost_chunks, lost_events, tuned, not_tuned, .. } = shown.totals;
    if shown.round_trips.count() > 0 || tuned + not_tuned > 0 {
        let times = [0.5, 0.99].map(|share| shown.round_trips.quantile(share) / 1_000).map(count);
        out += &format!(
            "connections tuned {}, not tuned {}; round trip within {} us (half), {} us (99 %)\n",
            count(tuned),
            count(not_tuned),
            times[0],
            times[1]
        );
    }
    if split + fragments + lost_chunks + lost_events > 0 {
        out += &format!(
            "not seen: {} request lines in two segments, {} fragments, {} requests and {} events for which the kernel's tables were full\n",
            count(split),
            count(fragments),
            count(lost_chunks),
            count(lost_events)
        );
    }
    out + &cost_text(&shown.costs)
}
