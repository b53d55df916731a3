//! One run: what all figures share. Places are measured in turns, each cell once per round, so that other
//! load on the machine affects all alike. The order of the places changes from round to round.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::time::monotonic;

use crate::Result;
use crate::interrupt;
use crate::machine;
use crate::peer::Tools;
use crate::place::{Kind, Place, Setup, Switch};
use crate::sheet::Sheet;

/// Options of every figure.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// The program to measure
    #[arg(long, default_value = "target/release/covey")]
    pub covey: PathBuf,
    /// How often each cell is measured [default: 5; with --quick 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Only cells whose name contains this
    #[arg(long)]
    pub only: Option<String>,
    /// Options for `covey mount -o`
    #[arg(long)]
    pub options: Option<String>,
    /// How the kernel's requests reach Covey and the empty filesystem: uring, classic or auto
    #[arg(long, default_value_t = fuse::Transport::Uring)]
    pub transport: fuse::Transport,
    /// The folder to work in; its disk is the one that is measured
    #[arg(long)]
    pub scratch: Option<PathBuf>,
    /// The folder for results, in a subfolder named by date and host; `none` saves nothing
    #[arg(long, default_value = "bench/results")]
    pub results: PathBuf,
    /// Smaller sizes and fewer rounds: a quick check that everything works
    #[arg(long)]
    pub quick: bool,
}

impl Common {
    /// The number of rounds.
    pub fn rounds(&self) -> usize {
        self.rounds.map_or(if self.quick { 3 } else { 5 }, |rounds| rounds as usize)
    }

    /// The tree to pack and to clone: the given one, or headers that a machine with a compiler has.
    pub fn tree<'t>(&self, given: Option<&'t Path>) -> &'t Path {
        given.unwrap_or(Path::new(if self.quick { "/usr/include/linux" } else { "/usr/include" }))
    }

    /// A number that is smaller in a quick run.
    pub fn size(&self, full: u64, quick: u64) -> u64 {
        if self.quick { quick } else { full }
    }
}

/// The result of a cell: figures, each with a name in addition to the cell's ("" for the only one), a unit
/// and a value. Where they were counted, also the FUSE requests of its operations.
pub struct Outcome {
    /// Name, unit, value.
    pub figures: Vec<Figure>,
    /// Requests per operation.
    pub requests: Option<PerOperation>,
}

/// FUSE requests per operation, by kind.
pub type PerOperation = std::collections::BTreeMap<String, f64>;

/// A figure's name in addition to its cell's, its unit, and its value.
pub type Figure = (&'static str, &'static str, f64);

impl From<Vec<Figure>> for Outcome {
    fn from(figures: Vec<Figure>) -> Outcome {
        Outcome { figures, requests: None }
    }
}

type Work<'w> = Box<dyn Fn(&mut Place) -> Result<Outcome> + 'w>;

/// One kind of work.
pub struct Cell<'w> {
    /// Its rows in the table.
    pub name: String,
    runs_on: fn(&Place) -> bool,
    work: Work<'w>,
}

impl<'w> Cell<'w> {
    /// A cell that runs on every place.
    pub fn new<O: Into<Outcome>>(
        name: impl Into<String>,
        work: impl Fn(&mut Place) -> Result<O> + 'w,
    ) -> Cell<'w> {
        let work: Work<'w> = Box::new(move |place| work(place).map(Into::into));
        Cell { name: name.into(), runs_on: |_| true, work }
    }

    /// Excludes the empty filesystem, which stores nothing.
    #[must_use]
    pub fn not_on_null(mut self) -> Cell<'w> {
        self.runs_on = |place| place.kind() != Kind::Null;
        self
    }
}

/// A run in progress, with a scratch folder that is removed at the end.
pub struct Bench {
    /// Its options.
    pub common: Common,
    /// The program, absolute.
    pub covey: PathBuf,
    scratch: tempfile::TempDir,
    _switch: Switch,
}

/// If a round of a peer takes longer than this, it is the peer's last.
const PATIENCE: Duration = Duration::from_secs(300);

impl Bench {
    /// Checks whether a run is possible here.
    ///
    /// # Errors
    /// Not root, or the program does not exist.
    pub fn begin(common: &Common) -> Result<Bench> {
        if !rustix::process::geteuid().is_root() {
            return Err("it mounts an ext4 and a tmpfs to compare with: run it as root".into());
        }
        interrupt::listen();
        let covey = common
            .covey
            .canonicalize()
            .map_err(|error| format!("{}: {error}; run `make build` first", common.covey.display()))?;
        let below = common.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let scratch = tempfile::Builder::new()
            .prefix("covey-bench-")
            .tempdir_in(&below)
            .map_err(|error| format!("{}: {error}; name another folder with --scratch", below.display()))?;
        Ok(Bench { common: common.clone(), covey, scratch, _switch: Switch::as_it_is() })
    }

    /// The scratch folder.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A setup with this run's options.
    pub fn setup(&self, kind: Kind) -> Setup {
        Setup { options: self.common.options.clone(), ..Setup::new(kind, self.common.transport) }
    }

    /// Sets up places.
    ///
    /// # Errors
    /// One of them failed.
    pub fn places(&self, setups: impl IntoIterator<Item = Setup>, tools: &Tools) -> Result<Vec<Place>> {
        setups.into_iter().map(|setup| Place::set_up(setup, self.scratch(), &self.covey, tools)).collect()
    }

    /// An empty table.
    pub fn sheet(&self, figure: &'static str, title: &'static str) -> Sheet {
        Sheet::new(figure, title, machine::facts(&self.common, &self.covey))
    }

    /// Measures all cells on all places, in turns. If a round of a peer takes longer than [`PATIENCE`], it is
    /// the peer's last, and the table says so.
    ///
    /// # Errors
    /// A place failed, or Ctrl-C was pressed in the first round. Later Ctrl-C ends the rounds, and what was
    /// measured by then is kept. The failure of a peer is noted in the table, and the peer is skipped in that
    /// cell from then on.
    pub fn measure(&self, places: &mut [Place], cells: &[Cell<'_>], sheet: &mut Sheet) -> Result<()> {
        let wanted =
            |cell: &&Cell<'_>| self.common.only.as_ref().is_none_or(|only| cell.name.contains(only.as_str()));
        let (rounds, count) = (self.common.rounds(), places.len());
        sheet.columns(places.iter().map(|place| place.name().to_owned()));
        let mut late = vec![false; count];
        for round in 0..rounds {
            let mut spent = vec![Duration::ZERO; count];
            for cell in cells.iter().filter(wanted) {
                for at in (0..count).map(|turn| (turn + round) % count) {
                    let place = &mut places[at];
                    if late[at] || !(cell.runs_on)(place) || sheet.gave_up(&cell.name, place.name()) {
                        continue;
                    }
                    progress(&format!("round {} of {rounds}: {} on {}", round + 1, cell.name, place.name()));
                    if interrupt::check().is_err() && round > 0 {
                        progress("");
                        sheet.note(format!("Interrupted in round {} of {rounds}: {}.", round + 1, cell.name));
                        return Ok(());
                    }
                    interrupt::check()?;
                    let begun = monotonic();
                    visit(cell, place, sheet)?;
                    if place.kind().is_peer() {
                        spent[at] += begun.elapsed();
                    }
                }
            }
            for (at, place) in places.iter().enumerate().filter(|(at, _)| spent[*at] > PATIENCE) {
                late[at] = true;
                let minutes = spent[at].as_secs_f64() / 60.0;
                let (name, done) = (place.name(), round + 1);
                sheet.note(format!(
                    "{name} had {done} of {rounds} rounds: one takes it {minutes:.0} minutes."
                ));
            }
        }
        progress("");
        Ok(())
    }

    /// Removes the places, prints the finished table and saves it with its raw results and charts.
    ///
    /// # Errors
    /// A place does not unmount, or the folder of results cannot be written.
    pub fn finish(&self, mut sheet: Sheet, places: Vec<Place>) -> Result<()> {
        places.into_iter().try_for_each(Place::tear_down)?;
        sheet.close(machine::load());
        println!("{}", sheet.markdown());
        if self.common.results.as_os_str() != "none" {
            println!("kept in {}\n", sheet.keep(&self.common.results)?.display());
        }
        Ok(())
    }
}

fn visit(cell: &Cell<'_>, place: &mut Place, sheet: &mut Sheet) -> Result<()> {
    let cpu = place.cpu_seconds();
    match (cell.work)(place) {
        Ok(outcome) => {
            sheet.add(&cell.name, place.name(), &outcome.figures, place.cpu_seconds() - cpu);
            if let Some(requests) = outcome.requests {
                sheet.add_requests(&cell.name, place.name(), requests);
            }
            Ok(())
        }
        Err(error) if place.kind().is_peer() => {
            // A tool may print a line for every file; the first one is enough.
            let said = error.to_string();
            sheet.give_up(&cell.name, place.name(), said.lines().next().unwrap_or_default());
            Ok(())
        }
        Err(error) => Err(format!("{} on {}: {error}", cell.name, place.name()).into()),
    }
}

/// Shows the current step on a terminal. An empty line clears it.
pub fn progress(line: &str) {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
    }
}
