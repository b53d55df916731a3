//! F2: many workers, small files. Each worker creates, writes and closes its files. Then all files are read
//! twice, by other workers than wrote them. A second part measures how this depends on the number of threads
//! that read requests from /dev/fuse.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::Result;
use crate::chart::Lines;
use crate::peer::Tools;
use crate::place::{Kind, Place};
use crate::process;
use crate::run::{Bench, Cell, Common, Figure};
use crate::sheet::{Bound, Sheet};
use crate::work::{Fresh, together};

/// F2: parallel small files, by transport and by number of readers
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// The number of concurrent workers
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=4096))]
    workers: u64,
    /// Files of all workers together; each number gets rows of its own [default: 1024,262144; with --quick
    /// 1024]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..))]
    files: Vec<u64>,
    /// No files are written with fsync above this number
    #[arg(long, default_value_t = 20_000)]
    synced_at_most: u64,
    /// Numbers of reader threads to compare, all on /dev/fuse [default: 1,2,4,8,16,32,64,128,256; with
    /// --quick 1,4,64]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=4096))]
    readers: Vec<u64>,
    /// Run only one of the comparisons: of transports and places, or of numbers of readers
    #[arg(long, value_enum)]
    part: Option<Part>,
}

/// One of the two comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Places and transports.
    Places,
    /// Numbers of readers.
    Readers,
}

/// Bytes of a file.
const SIZE: usize = 4096;

/// Runs both comparisons.
///
/// # Errors
/// A place failed, or the results cannot be saved.
pub fn run(args: &Args) -> Result<()> {
    if args.part != Some(Part::Readers) {
        places(args)?;
    }
    if args.part != Some(Part::Places) {
        readers(args)?;
    }
    Ok(())
}

fn places(args: &Args) -> Result<()> {
    let bench = Bench::begin(&args.common)?;
    let other = match args.common.transport {
        fuse::Transport::Classic => fuse::Transport::Uring,
        _ => fuse::Transport::Classic,
    };
    let name = format!("covey {other}");
    let mut setups = vec![bench.setup(Kind::Covey), bench.setup(Kind::Covey).named(&name)];
    setups[1].transport = other;
    setups.push(bench.setup(Kind::Memory));
    setups.extend([Kind::Ext4, Kind::Folder, Kind::Null].map(|kind| bench.setup(kind)));
    let mut places = bench.places(setups, &Tools::none())?;
    let mut sheet = bench.sheet("parallel", "F2, parallel small files");
    let counts = if args.files.is_empty() && args.common.quick {
        vec![1024]
    } else if args.files.is_empty() {
        vec![1024, 262_144]
    } else {
        args.files.clone()
    };
    let mut cells = Vec::new();
    for &files in &counts {
        let load = Load { workers: args.workers.min(files), files };
        cells.push(Cell::new(load.name("unsynced"), move |place| load.pass(place, false)));
        if files <= args.synced_at_most {
            cells.push(Cell::new(load.name("synced"), move |place| load.pass(place, true)));
        }
        targets(&mut sheet, load, &name);
    }
    bench.measure(&mut places, &cells, &mut sheet)?;
    sheet.note("A row of one round: all files written, read, read again, removed. The writes are unsynced, or each ends with fsync.");
    sheet.chart_ratios("covey", &["ext4", "null"]);
    bench.finish(sheet, places)
}

fn targets(sheet: &mut Sheet, load: Load, other: &str) {
    let rows = [
        ("unsynced", "first read", "ext4", 2.0),
        ("unsynced", "second read", "ext4", 1.5),
        ("synced", "write", "ext4", 1.5),
        ("unsynced", "write", "null", 1.5),
    ];
    for (cell, figure, against, most) in rows {
        let row = format!("{}, {figure}", load.name(cell));
        sheet.target(row, "covey", against, Bound::AtMost(most));
    }
    for against in ["ext4", other] {
        sheet.target(format!("{}, write", load.name("unsynced")), "covey", against, Bound::Shown);
    }
}

/// The amount of work.
#[derive(Clone, Copy)]
pub struct Load {
    /// The number of concurrent workers.
    pub workers: u64,
    /// The number of files of all workers together.
    pub files: u64,
}

impl Load {
    fn name(self, how: &str) -> String {
        format!("{} files by {} workers, {how}", self.files, self.workers)
    }

    fn path(folder: &Path, number: u64) -> PathBuf {
        folder.join(format!("p{number}"))
    }

    fn folder(place: &Place) -> Result<PathBuf> {
        // The empty filesystem has no folders.
        if place.kind() == Kind::Null {
            return Ok(place.root().to_owned());
        }
        let folder = place.root().join("parallel");
        fs::create_dir(&folder)?;
        Ok(folder)
    }

    /// Writes all files, reads them twice, removes them. Returns how long each step took.
    ///
    /// # Errors
    /// An error of the filesystem.
    pub fn pass(self, place: &Place, synced: bool) -> Result<Vec<Figure>> {
        let folder = Load::folder(place)?;
        let write = self.write(&folder, synced)?;
        let first = self.read(&folder)?;
        let second = self.read(&folder)?;
        let remove = self.remove(&folder)?;
        if place.kind() != Kind::Null {
            fs::remove_dir(&folder)?;
        }
        Ok(vec![
            ("write", "ms", write),
            ("first read", "ms", first),
            ("second read", "ms", second),
            ("remove", "ms", remove),
        ])
    }

    fn write(self, folder: &Path, synced: bool) -> Result<f64> {
        let work = move |path: &Path, fresh: &mut Fresh, data: &mut [u8]| {
            fresh.fill(data);
            let mut file = File::options().write(true).create_new(true).open(path)?;
            file.write_all(data)?;
            if synced {
                file.sync_all()?;
            }
            Ok(())
        };
        self.by_all(folder, 0, work)
    }

    fn read(self, folder: &Path) -> Result<f64> {
        let work = |path: &Path, _: &mut Fresh, data: &mut [u8]| {
            let mut file = File::open(path)?;
            file.read_exact(data)?;
            Ok(())
        };
        self.by_all(folder, 1, work)
    }

    fn remove(self, folder: &Path) -> Result<f64> {
        self.by_all(folder, 0, |path, _, _| Ok(fs::remove_file(path)?))
    }

    /// All workers start together. Returns how long until the last has done its share, in milliseconds.
    /// `shift` moves the shares from worker to worker.
    fn by_all(
        self,
        folder: &Path,
        shift: u64,
        work: impl Fn(&Path, &mut Fresh, &mut [u8]) -> Result<()> + Copy + Send + 'static,
    ) -> Result<f64> {
        let (folder, workers) = (folder.to_owned(), self.workers);
        let paths = move |worker: u64| -> Vec<PathBuf> {
            let share = ((worker + shift) % workers..self.files).step_by(workers as usize);
            share.map(|number| Load::path(&folder, number)).collect()
        };
        let spent = together(workers, paths, move |paths| {
            let (mut fresh, mut data) = (Fresh::new(), [0; SIZE]);
            paths.iter().try_for_each(|path| {
                let done = work(path, &mut fresh, &mut data);
                done.map_err(|error| format!("{}: {error}", path.display()).into())
            })
        })?;
        Ok(spent.as_secs_f64() * 1e3)
    }
}

/// Measures a mount for each number of readers. The daemon receives the creates, all written data, and all
/// reads, because the kernel's pages are dropped before the reads.
fn readers(args: &Args) -> Result<()> {
    let bench = Bench::begin(&args.common)?;
    let counts = match (&args.readers[..], args.common.quick) {
        ([], true) => vec![1, 4, 64],
        ([], false) => vec![1, 2, 4, 8, 16, 32, 64, 128, 256],
        (given, _) => given.to_vec(),
    };
    let mut setups = Vec::new();
    for &count in &counts {
        let mut setup = bench.setup(Kind::Covey).named(readers_name(count));
        setup.transport = fuse::Transport::Classic;
        setup.readers = count as usize;
        setups.push(setup);
    }
    let mut places = bench.places(setups, &Tools::none())?;
    let mut sheet = bench.sheet("readers", "F2, threads that read requests from /dev/fuse");
    sheet.fact("transport", "classic");
    let files = args.files.first().copied().unwrap_or(1024);
    let load = Load { workers: args.workers.min(files), files };
    let cell = Cell::new(load.name("on /dev/fuse"), move |place| to_the_daemon(place, load));
    let name = cell.name.clone();
    bench.measure(&mut places, &[cell], &mut sheet)?;
    let mut series = Vec::new();
    for figure in ["write", "read"] {
        let row = format!("{name}, {figure}");
        let one = sheet.median(&row, &readers_name(counts[0]));
        let mut points = Vec::new();
        for &count in &counts {
            if let (Some(one), Some(this)) = (one, sheet.median(&row, &readers_name(count))) {
                points.push((count as f64, one / this));
                let cell = format!("{figure}: speed-up over {}", readers_name(counts[0]));
                sheet.add(&cell, &readers_name(count), &[("", "x", one / this)], 0.0);
            }
        }
        series.push((figure.to_owned(), points));
    }
    for figure in ["virtual memory", "resident memory"] {
        let row = format!("{name}, {figure}");
        let points = counts
            .iter()
            .filter_map(|&count| Some((count as f64, sheet.median(&row, &readers_name(count))?)))
            .collect();
        series.push((figure.to_owned(), points));
    }
    let memory = series.split_off(2);
    let axes = |what: &str| ("reader threads".to_owned(), what.to_owned());
    let title = format!("{}, speed-up over the fewest readers", load.name("on /dev/fuse"));
    sheet.chart_lines("speed", Lines { title, axes: axes("times faster"), series });
    sheet.chart_lines(
        "memory",
        Lines { title: "Memory of the daemon".into(), axes: axes("MiB"), series: memory },
    );
    bench.finish(sheet, places)
}

fn readers_name(count: u64) -> String {
    if count == 1 { "1 reader".to_owned() } else { format!("{count} readers") }
}

fn to_the_daemon(place: &Place, load: Load) -> Result<Vec<Figure>> {
    let folder = Load::folder(place)?;
    let write = load.write(&folder, false)?;
    place.drop_pages()?;
    let read = load.read(&folder)?;
    let memory = place.pid().map(process::memory).unwrap_or_default();
    load.remove(&folder)?;
    fs::remove_dir(&folder)?;
    Ok(vec![
        ("write", "ms", write),
        ("read", "ms", read),
        ("virtual memory", "MiB", memory.virtual_mib),
        ("resident memory", "MiB", memory.resident_mib),
    ])
}
