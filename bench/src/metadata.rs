//! F7: metadata. Creates, lookups, renames and removes per second, and per second of processor time, in a
//! volume with a million files: through the planner and its journal without a kernel, and through the mount;
//! with one caller and with 16, in one hot directory and in many.

mod planner;

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};

use crate::Result;
use crate::peer::Tools;
use crate::place::{Kind, Place};
use crate::process;
use crate::run::{Bench, Cell, Common, Figure};
use crate::work::{Fresh, together};

use planner::Planner;

/// F7: names per second, through the planner and through the mount
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Files in the volume before the measurement [default: 1000000; with --quick 10000]
    #[arg(long)]
    files: Option<u64>,
    /// Operations of each kind in each cell [default: 48000; with --quick 3200]
    #[arg(long, value_parser = clap::value_parser!(u64).range(16..))]
    operations: Option<u64>,
}

/// How the work is spread.
#[derive(Clone, Copy)]
struct Shape {
    callers: u64,
    folders: u64,
    operations: u64,
    files: u64,
}

/// The number of directories of the existing files, and of the spread work.
const MANY: u64 = 256;

/// The executor of operations: the planner, or system calls through a mount.
trait Names: Clone + Send + 'static {
    /// Creates directory number `folder`.
    fn folder(&self, folder: u64) -> Result<()>;
    /// Creates an empty file.
    fn create(&self, folder: u64, name: &str) -> Result<()>;
    /// Looks up an existing file.
    fn lookup(&self, folder: u64, name: &str) -> Result<()>;
    /// Renames a file.
    fn rename(&self, folder: u64, name: &str, to: &str) -> Result<()>;
    /// Removes a file.
    fn remove(&self, folder: u64, name: &str) -> Result<()>;
    /// Removes an empty directory.
    fn remove_folder(&self, folder: u64) -> Result<()>;
}

/// Runs the measurement.
///
/// # Errors
/// A place failed, or the results cannot be saved.
pub fn run(args: &Args) -> Result<()> {
    let bench = Bench::begin(&args.common)?;
    let files = args.files.unwrap_or(args.common.size(1_000_000, 10_000));
    let operations = args.operations.unwrap_or(args.common.size(48_000, 3_200));
    let kinds = [Kind::Planner, Kind::Covey, Kind::Memory, Kind::Ext4];
    let mut places = bench.places(kinds.map(|kind| bench.setup(kind)), &Tools::none())?;
    let planner = Planner::open(&bench.scratch().join("names"))?;
    let mut sheet = bench.sheet("metadata", "F7, names");
    sheet.columns(places.iter().map(|place| place.name().to_owned()));
    let fill = Shape { callers: 16, folders: MANY, operations: files, files };
    for place in &places {
        crate::run::progress(&format!("{files} files on {}", place.name()));
        let figures = match place.kind() {
            Kind::Planner => fill.fill(&planner, place)?,
            _ => fill.fill(&Mounted(place.root().to_owned()), place)?,
        };
        sheet.add(&format!("the first {files} files"), place.name(), &figures, 0.0);
    }
    let mut cells = Vec::new();
    for (callers, folders) in [(1, 1), (1, MANY), (16, 1), (16, MANY)] {
        let shape = Shape { callers, folders, operations, files };
        let planner = planner.clone();
        cells.push(Cell::new(shape.name(), move |place| match place.kind() {
            Kind::Planner => shape.measure(&planner, place),
            _ => shape.measure(&Mounted(place.root().to_owned()), place),
        }));
    }
    bench.measure(&mut places, &cells, &mut sheet)?;
    drop(cells);
    planner.close()?;
    sheet.note("Per core: for each second of processor time of callers and server together. A first lookup comes after mounting anew; the planner's finds the rows that the journal keeps.");
    sheet.chart_ratios("covey", &["planner", "mem", "ext4"]);
    bench.finish(sheet, places)
}

impl Shape {
    fn name(self) -> String {
        let callers = if self.callers == 1 { "1 caller" } else { "16 callers" };
        let folders = if self.folders == 1 { "one directory" } else { "many directories" };
        format!("{callers}, {folders}")
    }

    /// Creates the initial files: file `n` is `f<n>` in directory `n % MANY`.
    fn fill(self, names: &impl Names, place: &Place) -> Result<Vec<Figure>> {
        (0..MANY).try_for_each(|folder| names.folder(folder))?;
        let (rate, per_core) =
            self.rates(names, place, |names, number, _| names.create(number % MANY, &format!("f{number}")))?;
        Ok(vec![("creates", "1/s", rate), ("creates per core", "1/s", per_core)])
    }

    fn measure(self, names: &impl Names, place: &mut Place) -> Result<Vec<Figure>> {
        // The work has its own directories, next to those with the files.
        let (folders, files) = (self.folders, self.files);
        let folder = move |number: u64| MANY + number % folders;
        (0..folders).try_for_each(|number| names.folder(folder(number)))?;
        let (create, create_core) =
            self.rates(names, place, move |names, n, _| names.create(folder(n), &format!("n{n}")))?;
        let (rename, rename_core) = self.rates(names, place, move |names, n, _| {
            names.rename(folder(n), &format!("n{n}"), &format!("renamed-{n}"))
        })?;
        let (remove, remove_core) =
            self.rates(names, place, move |names, n, _| names.remove(folder(n), &format!("renamed-{n}")))?;
        (0..folders).try_for_each(|number| names.remove_folder(folder(number)))?;
        place.remount()?;
        let look = move |names: &_, fresh: &mut Fresh| {
            let number = fresh.below(files);
            Names::lookup(names, number % MANY, &format!("f{number}"))
        };
        let (first, first_core) = self.rates(names, place, move |names, _, fresh| look(names, fresh))?;
        let (again, again_core) = self.rates(names, place, move |names, n, _| {
            let number = n % 128 % files;
            names.lookup(number % MANY, &format!("f{number}"))
        })?;
        Ok(vec![
            ("creates", "1/s", create),
            ("creates per core", "1/s", create_core),
            ("renames", "1/s", rename),
            ("renames per core", "1/s", rename_core),
            ("removes", "1/s", remove),
            ("removes per core", "1/s", remove_core),
            ("first lookups", "1/s", first),
            ("first lookups per core", "1/s", first_core),
            ("repeated lookups", "1/s", again),
            ("repeated lookups per core", "1/s", again_core),
        ])
    }

    /// Operations per second, and per second of processor time, when all callers do their share. `work` gets
    /// the operation's number.
    fn rates<N: Names>(
        self,
        names: &N,
        place: &Place,
        work: impl Fn(&N, u64, &mut Fresh) -> Result<()> + Copy + Send + 'static,
    ) -> Result<(f64, f64)> {
        let cpu = place.cpu_seconds() + process::own_cpu_seconds();
        let names = names.clone();
        let spent = together(
            self.callers,
            move |caller| (names.clone(), caller),
            move |(names, caller)| {
                let mut fresh = Fresh::new();
                let mut share = (caller..self.operations).step_by(self.callers as usize);
                share.try_for_each(|number| work(&names, number, &mut fresh))
            },
        )?;
        let spent = spent.as_secs_f64();
        // A server's time is counted in hundredths of a second, so smaller values are unknown.
        let cpu = (place.cpu_seconds() + process::own_cpu_seconds() - cpu).max(0.001);
        Ok((self.operations as f64 / spent, self.operations as f64 / cpu))
    }
}

/// Executes operations through a mount, by paths from its root.
#[derive(Clone)]
struct Mounted(PathBuf);

impl Mounted {
    fn path(&self, folder: u64, name: &str) -> PathBuf {
        self.0.join(format!("d{folder}")).join(name)
    }
}

impl Names for Mounted {
    fn folder(&self, folder: u64) -> Result<()> {
        Ok(fs::create_dir(self.path(folder, ""))?)
    }

    fn create(&self, folder: u64, name: &str) -> Result<()> {
        fs::File::create_new(self.path(folder, name))?;
        Ok(())
    }

    fn lookup(&self, folder: u64, name: &str) -> Result<()> {
        Ok(rustix::fs::accessat(CWD, self.path(folder, name), Access::EXISTS, AtFlags::empty())?)
    }

    fn rename(&self, folder: u64, name: &str, to: &str) -> Result<()> {
        Ok(fs::rename(self.path(folder, name), self.path(folder, to))?)
    }

    fn remove(&self, folder: u64, name: &str) -> Result<()> {
        Ok(fs::remove_file(self.path(folder, name))?)
    }

    fn remove_folder(&self, folder: u64) -> Result<()> {
        let path: &Path = &self.path(folder, "");
        Ok(fs::remove_dir(path)?)
    }
}
