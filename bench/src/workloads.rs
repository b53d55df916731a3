//! Six real programs, each cloned, configured, built, run, walked, packed, unpacked and removed: on ext4, on
//! a volume and on a volume in memory.
//!
//! ```text
//! make bench-workloads                                    all of it; root
//! make bench-workloads BENCH_ARGS="--quick"               redis and nginx, nothing built
//! make bench-workloads BENCH_ARGS="--only python --places covey --rounds 1 --transport classic"
//! ```
//!
//! It is a measurement and a test: every exit status counts, a built program must answer requests correctly,
//! a new clone must be clean, every walk must find the same, and `git status` of a built tree must be the
//! same as on ext4. The report names every failure, the run continues, and the exit status is 1.
//!
//! Steps are done on all places in turns, and the order of the places changes from round to round, so that
//! other load on the machine affects all alike. A figure is the median of its rounds, and a ratio is one of
//! two medians.
//!
//! - [`recipes`]: the programs. [`place`]: the places. [`steps`]: the steps. [`shell`]: how they run.
//! - [`monitor`]: memory and disk over time. [`report`], [`chart`]: what is saved in `bench/results`.

mod chart;
mod monitor;
mod place;
mod recipes;
mod report;
mod shell;
mod steps;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place::Switch;
use crate::{Result, interrupt};
use monitor::Monitor;
use place::{Counts, Daemon, Kind, Place};
use recipes::{RECIPES, Recipe};
use report::{Program, Samples};
use steps::{ARCHIVE_BUILD, BUILD, LIGHT, Setting, Step};

/// The programs for `--quick`.
const QUICK: [&str; 2] = ["redis", "nginx"];
/// Suffixes of names that count as code.
const CODE: &str =
    "c h cc cpp hh inc def y l s S py rb pl pm sh awk sql java js rs lua tcl m4 ac am in mk erb xs pgc";

/// Six programs cloned, built, run, walked, packed and removed, compared with ext4
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The program to measure
    #[arg(long, default_value = "target/release/covey")]
    covey: PathBuf,
    /// A folder of bare repositories: redis.git, nginx.git, httpd.git, python.git, postgresql.git, ruby.git
    /// [default: where `make bench-workloads` puts them, covey/workloads in the user's cache folder]
    #[arg(long, env = "MIRRORS")]
    mirrors: Option<PathBuf>,
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// The places to measure
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ext4,covey,mem")]
    places: Vec<Kind>,
    /// Only Redis and nginx, without builds
    #[arg(long)]
    quick: bool,
    /// How often cloning, walking, packing and removing is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How often each program is built from a clone
    #[arg(long, default_value_t = 1)]
    build_rounds: usize,
    /// How often each program is built from an archive, without git [default: as often as from a clone]
    #[arg(long)]
    archive_build_rounds: Option<usize>,
    /// The number of jobs for make -j
    #[arg(long, short, default_value_t = 2)]
    jobs: usize,
    /// The compilers' optimisation level: the lower it is, the larger the filesystem's part of a build
    #[arg(long, default_value = "-O2", allow_hyphen_values = true)]
    cflags: String,
    /// The transport of requests to Covey: uring, classic or auto
    #[arg(long, default_value_t = fuse::Transport::Uring)]
    transport: fuse::Transport,
    /// Options for `covey mount -o`
    #[arg(long)]
    options: Option<String>,
    /// The folder to work in; its disk is the one that is measured
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// The folder for results, in a subfolder; `none` saves nothing
    #[arg(long, default_value = "bench/results")]
    results: PathBuf,
}

/// Runs the measurement. A failure of a step is an error, but all the rest is done first.
///
/// # Errors
/// A step failed, or the measurement was not possible.
pub fn run(args: &Args) -> Result<()> {
    if measure(args)? { Ok(()) } else { Err("not everything passed: see above".into()) }
}

/// Returns whether everything passed.
fn measure(args: &Args) -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        return Err("it mounts an ext4 to compare with: run it as root".into());
    }
    let covey = args
        .covey
        .canonicalize()
        .map_err(|error| format!("{}: {error}; run `make build` first", args.covey.display()))?;
    let recipes = chosen(args)?;
    let mirrors = mirrors(args)?;
    let mut samples = Samples::default();
    for recipe in &recipes {
        samples.programs.push(describe(&mirrors, recipe.name)?);
    }
    let below = args.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let scratch = tempfile::Builder::new().prefix("covey-workloads-").tempdir_in(below)?;
    // A server that drops root must reach its files.
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755))?;
    let logs = scratch.path().join("logs");
    std::fs::create_dir(&logs)?;
    interrupt::listen();
    let switch = Switch::as_it_is();
    let daemon = Daemon { covey: covey.clone(), transport: args.transport, options: args.options.clone() };
    let mut places = Vec::new();
    for kind in args.places.iter().copied().collect::<BTreeSet<_>>() {
        places.push(Place::set_up(kind, scratch.path(), &daemon)?);
    }
    let facts = report::facts(&covey, asked_for(args));
    let setting = Setting { mirrors, logs, jobs: args.jobs.max(1), cflags: args.cflags.clone() };
    let monitor = Monitor::start(&places)?;
    let mut bench = Bench { setting, monitor, places, samples };
    for recipe in recipes {
        bench.program(args, recipe);
    }
    let Bench { monitor, places, mut samples, .. } = bench;
    let lines = monitor.finish();
    for place in &places {
        if place.kind != Kind::Ext4 {
            samples.peaks.insert(place.kind, place.peak_kib() << 10);
            samples.transports.insert(place.kind, place.transport.clone());
        }
    }
    for place in places {
        if let Err(error) = place.tear_down() {
            samples.failures.push(error.to_string());
        }
    }
    drop(switch);
    interrupt::check()?;
    samples.compare_git_status();
    samples.compare_walks();
    println!("{}", samples.markdown(&facts)?);
    if args.results.as_os_str() != "none" {
        println!("kept in {}", samples.keep(&args.results, &facts, &lines)?.display());
    }
    Ok(samples.failures.is_empty())
}

/// The folder of repositories: the given one, or where `make bench-workloads` keeps them.
fn mirrors(args: &Args) -> Result<PathBuf> {
    let folder = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = || folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    let mirrors = args.mirrors.clone().or_else(|| Some(cache()?.join("covey/workloads")));
    let mirrors = mirrors.ok_or("say where the sources are: --mirrors DIR")?;
    mirrors.canonicalize().map_err(|error| {
        let here = mirrors.display();
        format!("{here}: {error}; make it: scripts/workload-sources {here}").into()
    })
}

fn chosen(args: &Args) -> Result<Vec<&'static Recipe>> {
    let wanted = |name: &str| match args.only.is_empty() {
        true => !args.quick || QUICK.contains(&name),
        false => args.only.iter().any(|only| only == name),
    };
    if let Some(unknown) = args.only.iter().find(|only| !RECIPES.iter().any(|recipe| recipe.name == **only)) {
        let names: Vec<_> = RECIPES.iter().map(|recipe| recipe.name).collect();
        return Err(format!("--only {unknown}: there are {}", names.join(", ")).into());
    }
    Ok(RECIPES.iter().filter(|recipe| wanted(recipe.name)).collect())
}

fn asked_for(args: &Args) -> Vec<(&'static str, String)> {
    let (build, archive) = build_rounds(args);
    vec![
        ("rounds", format!("{}; builds {build} from a clone, {archive} from an archive", args.rounds)),
        ("builds", format!("make -j{}, {}", args.jobs.max(1), args.cflags)),
        ("transport", args.transport.to_string()),
        ("options", args.options.clone().unwrap_or_else(|| "the defaults".to_owned())),
    ]
}

/// The numbers of rounds for builds from a clone and from an archive.
fn build_rounds(args: &Args) -> (usize, usize) {
    if args.quick {
        (0, 0)
    } else {
        (args.build_rounds, args.archive_build_rounds.unwrap_or(args.build_rounds))
    }
}

/// Describes the contents of a repository's newest commit.
fn describe(mirrors: &Path, name: &str) -> Result<Program> {
    let repository = mirrors.join(format!("{name}.git"));
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "safe.directory=*", "-c", "grep.threads=1"]).arg("-C").arg(&repository).args(words);
        shell::quiet(git.env("GIT_CONFIG_NOSYSTEM", "1"))
    };
    if !repository.is_dir() {
        let here = mirrors.display();
        return Err(format!(
            "{} is missing; make it with `scripts/workload-sources {here} {name}`, or say --only for what is there",
            repository.display()
        )
        .into());
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?.trim().to_owned();
    let listed = git(&["ls-tree", "-r", "-l", "HEAD"])?;
    // Mode, kind, hash, size, then a tab and the path.
    let sizes = listed
        .lines()
        .filter_map(|line| line.split('\t').next()?.split_whitespace().nth(3)?.parse::<u64>().ok());
    let (files, bytes) = sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size));
    let globs: Vec<String> = CODE.split(' ').map(|end| format!("*.{end}")).collect();
    let mut words = vec!["grep", "-c", "-I", "-e", "", "HEAD", "--"];
    words.extend(globs.iter().map(String::as_str));
    let counted = git(&words)?;
    let lines = counted.lines().filter_map(|line| line.rsplit(':').next()?.parse::<u64>().ok()).sum();
    Ok(Program { name: name.to_owned(), commit, files, bytes, lines })
}

struct Bench {
    setting: Setting,
    monitor: Monitor,
    places: Vec<Place>,
    samples: Samples,
}

impl Bench {
    fn program(&mut self, args: &Args, recipe: &'static Recipe) {
        let (build, archive) = build_rounds(args);
        // After a failure, a place has no further steps of this program, which would only fail as well.
        let mut failed = BTreeSet::new();
        for (steps, rounds) in [(LIGHT, args.rounds), (BUILD, build), (ARCHIVE_BUILD, archive)] {
            for round in 0..rounds {
                for step in steps {
                    self.step(recipe, step, round, &mut failed);
                }
            }
        }
        for place in &self.places {
            if failed.contains(&place.kind) {
                let names = ["clone", "tree", "archive.tar", "run"].map(|name| place.root().join(name));
                Command::new("rm").arg("-rf").args(names).status().ok();
            }
        }
    }

    fn step(&mut self, recipe: &Recipe, step: &'static Step, round: usize, failed: &mut BTreeSet<Kind>) {
        let count = self.places.len();
        for turn in 0..count {
            let at = (turn + round) % count;
            let kind = self.places[at].kind;
            if failed.contains(&kind) || interrupt::check().is_err() {
                continue;
            }
            let what = format!("{}, {}, {}", recipe.name, step.name, kind.name());
            eprintln!("{what}, round {}", round + 1);
            self.monitor.mark(what.clone());
            if let Err(error) = self.measure(recipe, step, at) {
                eprintln!("failed: {what}: {error}");
                self.samples.failures.push(format!("{what}: {error}"));
                failed.insert(kind);
            }
        }
    }

    fn measure(&mut self, recipe: &Recipe, step: &'static Step, at: usize) -> Result<()> {
        let place = &mut self.places[at];
        let before = place.counts()?;
        let found = step.run(&self.setting, recipe, place)?;
        place.must_live()?;
        let requests: Counts = place
            .counts()?
            .into_iter()
            .map(|(kind, count)| {
                let was = before.get(&kind).copied().unwrap_or(0);
                (kind, count.saturating_sub(was))
            })
            .filter(|(_, count)| *count > 0)
            .collect();
        if place.kind == Kind::Mem {
            let stored = place.status()?["stored_bytes"].as_u64().unwrap_or(0);
            self.monitor.stored(place.kind, stored);
        }
        let kind = place.kind;
        self.samples.add(recipe.name, step.name, kind, found, requests);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        Line::try_parse_from(["workloads", "--mirrors", "here"].iter().chain(words)).unwrap().args
    }

    #[test]
    fn programs_are_chosen_by_name() {
        let names =
            |words: &[&str]| -> Vec<_> { chosen(&args(words)).unwrap().iter().map(|r| r.name).collect() };
        assert_eq!(names(&[]).len(), 6);
        assert_eq!(names(&["--quick"]), QUICK);
        assert_eq!(names(&["--only", "ruby,redis"]), ["redis", "ruby"]);
        assert_eq!(names(&["--quick", "--only", "ruby"]), ["ruby"]);
        assert!(chosen(&args(&["--only", "perl"])).unwrap_err().to_string().contains("redis, nginx"));
        assert_eq!(build_rounds(&args(&["--build-rounds", "3", "--archive-build-rounds", "0"])), (3, 0));
    }

    #[test]
    fn a_repository_is_described_by_its_newest_commit() {
        let scratch = tempfile::tempdir().unwrap();
        let repository = scratch.path().join("redis.git");
        std::fs::create_dir(&repository).unwrap();
        std::fs::write(repository.join("a.c"), "int a;\nint b;\n").unwrap();
        std::fs::write(repository.join("text"), "no code\n").unwrap();
        for words in ["init -q", "add -A", "-c user.name=a -c user.email=a@example.org commit -q -m all"] {
            shell::quiet(Command::new("git").arg("-C").arg(&repository).args(words.split(' '))).unwrap();
        }
        let program = describe(scratch.path(), "redis").unwrap();
        assert_eq!((program.files, program.bytes, program.lines), (2, 22, 2));
        assert!(describe(scratch.path(), "nginx").unwrap_err().to_string().contains("workload-sources"));
    }
}
