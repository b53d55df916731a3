//! `covey top`: shows what keeps mounts busy, redrawn in place.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use api::control::{ControlAddress, Request};
use api::error::{Failure, Result};
use api::text::{Lines, bytes, count};
use api::watch::{Busy, TopTable, Wish};
use node::control;
use serde::Serialize;
use serde_json::Value;

use crate::cmd::stats::interval_ms;
use crate::looking::{ear_of, parse_time, stop_by_signal};
use crate::table::Table;
use crate::term::Term;

/// Shows what keeps mounts busy: operations, callers, files
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  covey top                         all mounts of this machine\n  covey top /mnt/covey\n  \
    covey top /mnt/covey --interval 5s --count 1 > busy.txt\n\nIt counts what comes to the daemon; what the kernel \
    answers from its own memory is not seen.\nWhile it runs every request is traced."
)]
pub struct Args {
    /// A path on a mount, or the volume that is mounted [default: all mounts]
    path: Option<PathBuf>,
    /// How long a table stands for: 2s, 500ms
    #[arg(long, short = 'i', value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    interval: Duration,
    /// End after so many tables of each mount [default: at Ctrl-C]
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
}

/// The table of one mount.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    mount: &'a str,
    #[serde(flatten)]
    table: &'a TopTable,
}

/// Runs the command.
pub fn run(args: &Args, term: Term) -> Result<u8> {
    let interval_ms = interval_ms(args.interval)?;
    let places = places(args)?;
    node::signals::block();
    let (news, heard) = mpsc::channel();
    let (mut stoppers, mut failed, mut asked_of) = (Vec::new(), None, vec![false; places.len()]);
    for (index, (place, address)) in places.iter().enumerate() {
        // A mount of another user, a dead one, or one that does not answer must not hide the others.
        let asked = match control::begin(address, &Request::Watch { wish: Wish::Top { interval_ms } }) {
            Ok(asked) => asked,
            Err(failure) if places.len() > 1 => {
                term.warn(format_args!("{place}: {}", failure.line()));
                failed = Some(failure);
                continue;
            }
            Err(failure) => return Err(failure),
        };
        asked_of[index] = true;
        stoppers.push((asked.stopper()?, asked.stopper()?));
        let news = news.clone();
        let spawned = base::thread::spawn("covey-top", move || {
            let done = asked.hear::<Value>(&mut |_| (), &mut |value| {
                let table = serde_json::from_value::<TopTable>(value);
                let _ = news.send((index, table.ok().map(Ok)));
            });
            let _ = news.send((index, done.err().map(Err)));
        });
        spawned.map_err(|error| Failure::io("cannot start a thread", &error))?;
    }
    drop(news);
    let (mine, theirs): (Vec<_>, Vec<_>) = stoppers.into_iter().unzip();
    if let (true, Some(failure)) = (mine.is_empty(), failed) {
        return Err(failure);
    }
    stop_by_signal(theirs, None)?;
    let enough = || mine.iter().for_each(|stopper| stopper.stop());
    show(args, term, &places, &asked_of, &heard, &enough)
}

/// A message from one of the mounts: a table, a failure, or its end.
type News = (usize, Option<Result<TopTable>>);

fn show(
    args: &Args,
    term: Term,
    places: &[(String, ControlAddress)],
    asked: &[bool],
    heard: &mpsc::Receiver<News>,
    enough: &dyn Fn(),
) -> Result<u8> {
    let in_place = std::io::stdout().is_terminal() && !term.is_json();
    let mut latest: Vec<Option<TopTable>> = places.iter().map(|_| None).collect();
    // The number of tables that each mount has yet to send. None for mounts that send no more.
    let mut due: Vec<Option<u64>> =
        asked.iter().map(|asked| asked.then(|| args.count.unwrap_or(u64::MAX))).collect();
    let (mut failed, mut stopped, mut seen) = (None, false, false);
    for (index, news) in heard {
        match news {
            Some(Ok(table)) if !stopped => {
                let mount = &places[index].0;
                seen = true;
                due[index] = due[index].map(|due| due.saturating_sub(1));
                if due[index].is_none() {
                    continue;
                }
                if in_place {
                    latest[index] = Some(table);
                    draw(places, &latest);
                } else {
                    term.line(Some(&Shown { mount, table: &table }), || text(mount, &table));
                }
            }
            Some(Err(failure)) => {
                if places.len() > 1 {
                    term.warn(format_args!("{}: {}", places[index].0, failure.line()));
                }
                (failed, due[index], latest[index]) = (Some(failure), None, None);
            }
            Some(Ok(_)) => {}
            None => (latest[index], due[index]) = (None, None),
        }
        if !stopped && due.iter().flatten().all(|due| *due == 0) {
            stopped = true;
            enough();
        }
    }
    // If several mounts are watched, one that answered is enough. Failures of the others were printed.
    failed.filter(|_| places.len() == 1 || !seen).map_or(Ok(0), Err)
}

fn places(args: &Args) -> Result<Vec<(String, ControlAddress)>> {
    if let Some(path) = &args.path {
        return Ok(vec![(path.display().to_string(), ear_of(path, "top")?)]);
    }
    let mounts = node::trust::mounts();
    if mounts.is_empty() {
        return Err(Failure::new("not-mounted", "no volume is mounted")
            .next("mount one: covey mount -d VOLUME MOUNTPOINT"));
    }
    let address = |source: &str| ControlAddress::of_source(std::path::Path::new(source));
    Ok(mounts.iter().map(|mount| (mount.path.display().to_string(), address(&mount.source))).collect())
}

/// Redraws all tables over the terminal, with as many lines as fit.
fn draw(places: &[(String, ControlAddress)], latest: &[Option<TopTable>]) {
    let shown =
        places.iter().zip(latest).filter_map(|((mount, _), table)| Some(text(mount, table.as_ref()?)));
    let all: String = shown.collect();
    let (rows, columns) = crate::term::size();
    let mut screen = String::from("\x1b[H");
    for line in all.lines().take(rows.saturating_sub(1)) {
        screen.extend(api::text::shown(line, Lines::One).chars().take(columns));
        screen.push_str("\x1b[K\n");
    }
    screen.push_str("\x1b[J");
    let mut out = std::io::stdout().lock();
    if out.write_all(screen.as_bytes()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

fn text(mount: &str, table: &TopTable) -> String {
    let per_second = |n: u64| (n as f64 / table.seconds.max(0.001)).round() as u64;
    let mut out = format!("{mount}: {} requests/s\n", count(per_second(table.requests)));
    for (head, rows) in [("operation", &table.operations), ("caller", &table.callers), ("file", &table.files)]
    {
        if rows.is_empty() {
            continue;
        }
        let mut lines = Table::new(&["requests/s ", "bytes/s ", "busy ", head]);
        for Busy { name, requests, bytes: size, ns } in rows {
            // Percent of one thread's time, so two threads can be 200 % busy.
            let busy = *ns as f64 / 1e7 / table.seconds.max(0.001);
            let cells = [count(per_second(*requests)), bytes(per_second(*size)), format!("{busy:.1}%")];
            lines.row(cells.into_iter().chain([name.clone()]).collect());
        }
        out += &lines.text();
    }
    if table.lost > 0 {
        out += &format!("{} requests came too fast to be seen\n", count(table.lost));
    }
    out + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_who_and_what() {
        let busy = |name: &str| Busy { name: name.into(), requests: 200, bytes: 1 << 20, ns: 1_000_000_000 };
        let table = TopTable {
            seconds: 2.0,
            requests: 200,
            lost: 3,
            operations: vec![busy("read")],
            callers: vec![busy("cat 12")],
            files: vec![busy("/a/b")],
        };
        let shown = text("/mnt", &table);
        for part in [
            "/mnt: 100 requests/s",
            "read",
            "cat 12",
            "/a/b",
            "50.0%",
            "512.0 KiB",
            "3 requests came too fast",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
