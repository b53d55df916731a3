//! `covey trace`: prints requests one by one with their times, and percentiles at the end. Or records what is
//! read, as a list.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::error::{Context, Failure, Result};
use api::reads::{self, ReadRange};
use api::text::{bytes, count};
use api::watch::{
    Batch, NEVER, OpSummary, Percentiles, RecordSummary, Recorded, TraceLine, TraceSummary, Wish,
};
use node::watch::opcode_of;
use serde_json::json;

#[cfg(feature = "guests")]
use crate::guest_trace;
use crate::looking::{ear_of, look_on, look_on_leaving, parse_time};
use crate::table::Table;
use crate::term::Term;

/// Shows the requests that a mount serves and where their time goes; percentiles at the end
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey trace /mnt/covey                        every request until Ctrl-C, then percentiles\n  \
    covey trace /mnt/covey --op read --slow 10ms  reads that took longer; percentiles of all reads\n  \
    covey trace /mnt/covey --every 100 --for 5s   every hundredth, for five seconds\n  \
    covey trace /mnt/covey --quiet --for 5s       percentiles only\n  \
    covey trace /mnt/covey --record app.reads     a list of what is read, until Ctrl-C; covey warm fetches it elsewhere\n\n\
    Times are in microseconds. total = queue + srv + return; srv = names + blob + cache + peer + origin + own (with what was\n\
    waited for a worker). queue and return are the kernel's and need a daemon that runs as root; of requests that come\n\
    faster than they can be shown they are known of one in eight, with --slow of all. Requests that the kernel answers from\n\
    its own memory never come to the daemon and are not seen.\n\n\
    On a mount of covey attach: total = to-server + server + to-client, and what the guest's program took itself;\n\
    filesystem is a part of server. A ? stands where the clocks of both machines differ. --every and --for work there."
)]
pub struct Args {
    /// A path on a mount, or the volume that is mounted
    path: PathBuf,
    /// Only every Nth request
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    every: u32,
    /// Only this operation: read, write, lookup, getattr, ...
    #[arg(long, value_name = "OPERATION")]
    op: Option<String>,
    /// Show only requests that took at least so long: 10ms, 250us. Percentiles count all
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    slow: Option<Duration>,
    /// End after this time: 5s, 2m [default: at Ctrl-C]
    #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
    at_most: Option<Duration>,
    /// Percentiles only
    #[arg(long, short = 'q')]
    quiet: bool,
    /// Write what is read, in the order of the first reads, to a list for covey warm --from-list
    #[arg(long, value_name = "FILE", conflicts_with_all = ["every", "op", "slow", "quiet"])]
    record: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    #[cfg(feature = "guests")]
    if let Some(ear) = guest_trace::of(&args.path, args.every) {
        let other = [args.op.is_some(), args.slow.is_some(), args.quiet, args.record.is_some()];
        if other.contains(&true) {
            return Err(Failure::usage("this is a guest's mount: only --every and --for work here")
                .next("run covey trace where covey serve runs for the others"));
        }
        return guest_trace::show(ear, args.at_most, term);
    }
    if let Some(list) = &args.record {
        return record(args, list, term);
    }
    if let Some(op) = &args.op {
        opcode_of(op)?;
    }
    let address = ear_of(&args.path, "trace")?;
    let slow_ns = match (args.quiet, args.slow) {
        (true, _) => NEVER,
        (false, slow) => slow.map_or(0, |slow| u64::try_from(slow.as_nanos()).unwrap_or(NEVER)),
    };
    let wish = Wish::Trace { every: args.every, op: args.op.clone(), slow_ns };
    let mut headed = false;
    let mut each = |batch: Batch| {
        if let Some(remark) = &batch.remark {
            term.say(remark);
        }
        for line in &batch.lines {
            if !std::mem::replace(&mut headed, true) {
                term.line(None::<&()>, head);
            }
            term.line(Some(&json!({ "request": line })), || text(line));
        }
        if batch.hidden > 0 {
            term.say(format_args!(
                "... and {} more, too many to be shown: use --every, --op or --slow",
                count(batch.hidden)
            ));
        }
    };
    let summary: TraceSummary = look_on(&address, wish, args.at_most, &mut each)?;
    term.line(Some(&json!({ "summary": summary })), || summary_text(&summary));
    Ok(0)
}

/// Writes the list of what is read. It gets its name when it is complete.
fn record(args: &Args, list: &Path, term: Term) -> Result<u8> {
    if list.is_dir() {
        return Err(
            Failure::usage(format!("{} is a folder", list.display())).next("name a file: --record FILE")
        );
    }
    let address = ear_of(&args.path, "trace")?;
    let new = PathBuf::from(format!("{}.new", list.display()));
    // One that an earlier command left, or that somebody else made, a link too, is not written to.
    match std::fs::remove_file(&new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).at("remove", &new),
        _ => {}
    }
    let mut out = BufWriter::new(File::create_new(&new).at("create", &new)?);
    let mut outcome = writeln!(out, "{}", reads::HEAD);
    let mut each = |part: Recorded| {
        for line in part.reads.iter().map(ReadRange::line) {
            outcome = std::mem::replace(&mut outcome, Ok(())).and_then(|()| out.write_all(&line));
        }
    };
    let (at_most, unfinished) = (args.at_most, Some(new.clone()));
    let recorded =
        look_on_leaving::<Recorded, RecordSummary>(&address, Wish::Record, at_most, unfinished, &mut each);
    let done = recorded.and_then(|summary| {
        outcome.and_then(|()| out.flush()).at("write", &new)?;
        std::fs::rename(&new, list).at("rename", &new)?;
        Ok(summary)
    });
    let summary = done.inspect_err(|_| drop(std::fs::remove_file(&new)))?;
    if summary.lost > 0 {
        term.warn(format_args!("{} requests came too fast, and are not in the list", count(summary.lost)));
    }
    if summary.unnamed > 0 {
        term.warn(format_args!(
            "{} files have no name that is found, and are not in the list",
            summary.unnamed
        ));
    }
    term.result(&summary, || {
        let RecordSummary { files, ranges, bytes: size, seconds, .. } = &summary;
        let (files, ranges, size) = (count(*files), count(*ranges), bytes(*size));
        format!("{}: {ranges} ranges of {files} files, {size}, in {seconds:.1} s.", list.display())
    });
    Ok(0)
}

const HEAD: [&str; 11] =
    ["total", "queue", "srv", "names", "blob", "cache", "peer", "origin", "wait", "own", "return"];

fn head() -> String {
    let columns: String = HEAD.iter().map(|name| format!("{name:>9}")).collect();
    format!("{:<14}{columns}  {:>9}  what", "", "bytes")
}

fn micros(ns: Option<u64>) -> String {
    match ns {
        None => "?".to_owned(),
        Some(0) => "-".to_owned(),
        Some(ns) if ns < 10_000_000 => format!("{:.1}", ns as f64 / 1e3),
        Some(ns) => format!("{:.0}", ns as f64 / 1e3),
    }
}

fn text(line: &TraceLine) -> String {
    let columns = [
        Some(line.total_ns),
        line.queue_ns,
        Some(line.srv_ns),
        Some(line.names_ns),
        Some(line.blob_ns),
        Some(line.cache_ns),
        Some(line.peer_ns),
        Some(line.origin_ns),
        Some(line.wait_ns),
        Some(line.own_ns),
        line.return_ns,
    ];
    let columns: String = columns.iter().map(|ns| format!("{:>9}", micros(*ns))).collect();
    let size = if line.bytes > 0 { bytes(u64::from(line.bytes)) } else { "-".to_owned() };
    let error = if line.error == 0 { String::new() } else { format!("  {}", fs::Errno(line.error as i32)) };
    let caller = line.caller.escape_debug();
    format!("{:<14}{columns}  {size:>9}  inode {}  {caller} {}{error}", line.op, line.inode, line.pid)
}

fn summary_text(summary: &TraceSummary) -> String {
    let mut out =
        format!("\n{} requests in {:.1} s; microseconds\n", count(summary.requests), summary.seconds);
    if !summary.operations.is_empty() {
        let mut table =
            Table::new(&["operation", "count ", "errors ", "part", "p50 ", "p90 ", "p99 ", "max "]);
        summary.operations.iter().for_each(|operation| rows(&mut table, operation));
        out += &table.text();
    }
    if summary.lost > 0 {
        out += &format!("{} requests came too fast to be seen: use --every\n", count(summary.lost));
    }
    if let Some(why) = &summary.kernel {
        out += &format!("{why}\n");
    }
    out
}

/// Adds a row for each part that took any time.
fn rows(table: &mut Table, operation: &OpSummary) {
    for (index, part) in HEAD.iter().enumerate() {
        let Some(Percentiles { p50, p90, p99, max }) = operation.parts.get(*part).copied() else { continue };
        if max == 0 {
            continue;
        }
        let mut row = if index == 0 {
            vec![operation.op.clone(), count(operation.count), count(operation.errors)]
        } else {
            vec![String::new(); 3]
        };
        row.push((*part).to_owned());
        row.extend([p50, p90, p99, max].map(|ns| micros(Some(ns))));
        table.row(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_shown_as_such() {
        let line = TraceLine {
            op: "read".into(),
            inode: 7,
            pid: 12,
            caller: "cat".into(),
            bytes: 4096,
            error: 0,
            total_ns: 65_000,
            queue_ns: None,
            srv_ns: 60_000,
            names_ns: 20_000,
            blob_ns: 0,
            cache_ns: 0,
            peer_ns: 0,
            origin_ns: 30_000,
            wait_ns: 0,
            own_ns: 10_000,
            return_ns: None,
        };
        let shown = text(&line);
        let words: Vec<_> = shown.split_whitespace().collect();
        assert_eq!(
            words[..12],
            ["read", "65.0", "?", "60.0", "20.0", "-", "-", "-", "30.0", "-", "10.0", "?"]
        );
        assert!(shown.ends_with("4.0 KiB  inode 7  cat 12"), "{shown}");
        assert_eq!(head().split_whitespace().count(), HEAD.len() + 2);
    }
}
