//! F1, the tail of open() and read(): how long they take on a warm mount, compared with tmpfs, with 1 to 256
//! concurrent readers.
//!
//! ```text
//! make bench-tail                                         all of it, ten runs: a quarter of an hour; root
//! cargo run --release -p covey-bench -- tail --quick      a minute: a check that everything works
//! ```
//!
//! The files are a corpus ([`corpus`]): this program derives names and bytes from a seed, and so does `covey
//! mount corpus:`, without any exchange. Each size is measured separately, in two parts. In each part the
//! places take turns within every run:
//!
//! - *warm*: every file was opened and read before. tmpfs; a volume, exclusive and frozen; the corpus.
//! - *cold*: the mount has lost its pages, and the blobs are on this machine. A volume over io_uring and over
//!   /dev/fuse.
//!
//! p50, p99 and more are saved for every run. A figure is the median of the runs, and a ratio is one of two
//! such medians.
//!
//! [`place`]: what is mounted. [`readers`]: what is timed, and how. [`report`], [`chart`]: what is saved.

mod chart;
mod place;
mod readers;
mod report;

use std::io::IsTerminal;
use std::path::PathBuf;

use corpus::Spec;

use crate::Result;
use crate::interrupt;
use crate::place::Switch;
use place::{Ground, How, Place};
use readers::Files;
use report::{Part, Report};

/// F1: how long open() and read() take, from 1 to 256 readers, compared with tmpfs
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The program to measure
    #[arg(long, default_value = "target/release/covey")]
    covey: PathBuf,
    /// The seed of all files
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Files of each size [default: 1000; with --quick 200]
    #[arg(long)]
    count: Option<u64>,
    /// Sizes of a file
    #[arg(long, value_delimiter = ',', default_value = "64K,4K,1M")]
    sizes: Vec<String>,
    /// Numbers of concurrent readers
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64, 256], value_parser = readers_at_once)]
    readers: Vec<usize>,
    /// How often each is measured [default: 10; with --quick 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Which parts: warm, cold
    #[arg(long, value_delimiter = ',', default_value = "warm,cold")]
    parts: Vec<Part>,
    /// The transport of requests to the warm mounts: uring, classic or auto
    #[arg(long, default_value_t = fuse::Transport::Uring)]
    transport: fuse::Transport,
    /// The folder to work in; its disk holds the volumes
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// The folder for results, in a subfolder named by date and host; `none` saves nothing
    #[arg(long, default_value = "bench/results")]
    results: PathBuf,
    /// Fewer files, runs and calls: a quick check that everything works
    #[arg(long)]
    quick: bool,
}

/// With more readers, thread limits would be reached before the filesystem matters.
fn readers_at_once(text: &str) -> std::result::Result<usize, String> {
    let readers = text.parse().ok().filter(|readers| (1..=4096).contains(readers));
    readers.ok_or_else(|| "a number of readers is from 1 to 4096".to_owned())
}

/// Runs it.
///
/// # Errors
/// A message that says what failed.
pub fn run(args: &Args) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err("it mounts a tmpfs to compare with: run it as root".into());
    }
    let covey = args
        .covey
        .canonicalize()
        .map_err(|error| format!("{}: {error}; run `make build` first", args.covey.display()))?;
    let count = args.count.unwrap_or(if args.quick { 200 } else { 1000 });
    let specs: Vec<Spec> = args
        .sizes
        .iter()
        .map(|size| format!("{},{count},{size}", args.seed).parse())
        .collect::<std::result::Result<_, _>>()?;
    specs.iter().try_for_each(fits)?;
    let _switch = Switch::as_it_is();
    let mut report = Report::begin(args.runs(), &covey, args.transport, &specs);
    for spec in &specs {
        let below = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let scratch = tempfile::Builder::new()
            .prefix("covey-tail-")
            .tempdir_in(&below)
            .map_err(|error| format!("{}: {error}; name another folder with --scratch", below.display()))?;
        let files = Files::of(*spec);
        let ground = Ground { covey: &covey, scratch: scratch.path(), spec: *spec, files: &files };
        measure(args, &ground, &mut report)?;
    }
    progress("");
    println!("{}", report.markdown());
    if args.results.as_os_str() != "none" {
        println!("kept in {}", report.keep(&args.results)?.display());
    }
    Ok(())
}

/// Checks the memory. The files of one size are in memory up to six times: a tmpfs, pages of three mounts,
/// the corpus, and the pages of the volumes' own files.
fn fits(spec: &Spec) -> Result<()> {
    let room = cache::memory_room()?.available;
    let needed = spec.bytes().saturating_mul(6);
    if needed <= room {
        return Ok(());
    }
    let (needed, room) = (needed >> 20, room >> 20);
    Err(format!("{spec} needs {needed} MiB of memory, {room} are to be had: lower --count or --sizes").into())
}

impl Args {
    fn runs(&self) -> u32 {
        self.runs.unwrap_or(if self.quick { 2 } else { 10 })
    }

    /// The number of files that a run reads: enough for a 99th percentile, and at most 4 GiB.
    fn files(&self, spec: Spec) -> u64 {
        let full = 20_000.min((4 << 30) / spec.size).max(2_000);
        if self.quick { full / 8 } else { full }
    }
}

/// Measures all parts of one size.
fn measure(args: &Args, ground: &Ground<'_>, report: &mut Report) -> Result<()> {
    const VOLUMES: [&str; 2] = ["one", "two"];
    let wanted = |part| args.parts.contains(&part);
    if wanted(Part::Warm) || wanted(Part::Cold) {
        progress("filling volumes");
        VOLUMES.iter().try_for_each(|folder| ground.volume(folder))?;
    }
    let volume = |folder, options, transport| How::Volume { folder, options, transport };
    if wanted(Part::Warm) {
        let transport = args.transport;
        let places = [
            ("tmpfs", How::Tmpfs),
            ("exclusive", volume(VOLUMES[0], "rw", transport)),
            ("frozen", volume(VOLUMES[1], "frozen", transport)),
            ("corpus", How::Corpus { transport }),
        ];
        compare(args, ground, Part::Warm, &places, report)?;
    }
    if wanted(Part::Cold) {
        let places = [
            ("classic", volume(VOLUMES[0], "rw", fuse::Transport::Classic)),
            ("uring", volume(VOLUMES[1], "rw", fuse::Transport::Uring)),
        ];
        compare(args, ground, Part::Cold, &places, report)?;
    }
    Ok(())
}

/// Measures one part: all of its places are mounted, and take turns in every run.
fn compare(
    args: &Args,
    ground: &Ground<'_>,
    part: Part,
    wanted: &[(&str, How)],
    report: &mut Report,
) -> Result<()> {
    interrupt::listen();
    let mut places = Vec::new();
    for (name, how) in wanted {
        progress(&format!("{}: {part}: mounting {name}", ground.spec));
        let place = ground.mount(name, how)?;
        // Also before the cold part, because this checks that the bytes are right.
        place.paths.warm()?;
        places.push(place);
    }
    let counts: &[usize] = if part == Part::Cold { &[1, 16, 64] } else { &args.readers };
    for run in 0..args.runs() {
        for readers in counts {
            for turn in 0..places.len() {
                interrupt::check()?;
                let at = (turn + run as usize) % places.len();
                let place = &places[at];
                progress(&format!(
                    "{}: {part}: run {} of {}, {readers} readers, {}",
                    ground.spec,
                    run + 1,
                    args.runs(),
                    place.name
                ));
                let seen = if part == Part::Cold {
                    place.paths.cold(*readers, if args.quick { 2 } else { 10 })?
                } else {
                    place.paths.at_random(*readers, args.files(ground.spec))?
                };
                report.add(part, ground.spec, &place.name, *readers, &seen);
            }
        }
    }
    places.into_iter().try_for_each(Place::unmount)
}

/// Shows the current step on a terminal. An empty line clears it.
fn progress(line: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(words: &str) -> std::result::Result<Args, clap::Error> {
        Line::try_parse_from(words.split(' ')).map(|line| line.args)
    }

    #[test]
    fn sizes_of_a_run_are_checked() {
        let args = parse("tail").unwrap();
        assert_eq!(
            (args.runs(), args.readers.as_slice(), args.parts.len()),
            (10, &[1, 4, 16, 64, 256][..], 2)
        );
        for bad in ["--readers 0", "--readers 5000", "--runs 0", "--parts hot"] {
            assert!(parse(&format!("tail {bad}")).is_err(), "{bad}");
        }
    }
}
