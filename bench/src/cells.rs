//! What is measured. A cell does one kind of work on one place and answers one or more figures.
//!
//! All figures but those named MiB/s are times: smaller is better.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base::time::monotonic;

use crate::Result;
use crate::place::{Kind, Place};
use crate::work::{Fresh, micros_at, run};

/// A figure's name beside its cell's ("" for the only one), its unit, and its value.
pub type Figure = (&'static str, &'static str, f64);

/// What the cells work with: made once, outside the places.
pub struct Inputs {
    tar: PathBuf,
    repository: PathBuf,
    mib: u64,
}

impl Inputs {
    /// Packs a tree and commits it to a repository.
    ///
    /// # Errors
    /// tar or git is missing or fails.
    pub fn make(scratch: &Path, tree: &Path, mib: u64) -> Result<Inputs> {
        let (tar, repository) = (scratch.join("tree.tar"), scratch.join("repository"));
        run(Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(tree).arg("."))?;
        fs::create_dir(&repository)?;
        run(Command::new("tar").arg("-xf").arg(&tar).arg("-C").arg(&repository))?;
        for words in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "all"], &["gc", "-q"]] {
            run(git(&repository).args(words))?;
        }
        Ok(Inputs { tar, repository, mib })
    }
}

fn git(folder: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(["-c", "user.name=Bench", "-c", "user.email=bench@example.org"]);
    git.args(["-c", "gc.auto=0", "-c", "safe.directory=*"]).env("GIT_CONFIG_NOSYSTEM", "1");
    git
}

/// One cell.
pub struct Cell {
    /// Its row of the table.
    pub name: &'static str,
    /// Whether a filesystem that remembers nothing can do it.
    on_null: bool,
    work: fn(&mut Place, &Inputs) -> Result<Vec<Figure>>,
}

impl Cell {
    /// Whether this place can do it.
    pub fn runs_on(&self, kind: Kind) -> bool {
        self.on_null || kind != Kind::Null
    }

    /// Does the work once.
    ///
    /// # Errors
    /// The place failed to do it.
    pub fn measure(&self, place: &mut Place, inputs: &Inputs) -> Result<Vec<Figure>> {
        (self.work)(place, inputs)
            .map_err(|error| format!("{} on {}: {error}", self.name, place.kind.name()).into())
    }
}

/// All of them, in the order in which a round runs them: `rm -rf` removes what untar and git clone made.
pub const CELLS: &[Cell] = &[
    Cell {
        name: "open+read+close of 64 KiB, warm, 1 thread",
        on_null: true,
        work: |place, _| warm_reads(place, 1),
    },
    Cell {
        name: "open+read+close of 64 KiB, warm, 16 threads",
        on_null: true,
        work: |place, _| warm_reads(place, 16),
    },
    Cell { name: "create+write 4 KiB+close+unlink", on_null: true, work: |place, _| cycles(place) },
    Cell { name: "writes of 4107 bytes, with close", on_null: true, work: |place, _| small_writes(place) },
    Cell { name: "untar", on_null: false, work: untar },
    Cell { name: "git clone", on_null: false, work: clone },
    Cell { name: "rm -rf", on_null: false, work: |place, _| remove(place) },
    Cell { name: "write a large file, with fsync", on_null: false, work: write_large },
    Cell { name: "read it, warm", on_null: false, work: |place, _| read_large(place, false) },
    Cell { name: "read it, cold", on_null: false, work: |place, _| read_large(place, true) },
];

const FILES: u64 = fuse::null::FILES;
const FILE_SIZE: usize = fuse::null::FILE_SIZE as usize;

/// The folder with the small files: made at the first visit. The empty filesystem has them in its root.
fn small_files(place: &Place) -> Result<PathBuf> {
    if place.kind == Kind::Null {
        return Ok(place.root().to_owned());
    }
    let folder = place.root().join("small");
    if !folder.exists() {
        fs::create_dir(&folder)?;
        let (mut data, mut fresh) = (vec![0; FILE_SIZE], Fresh::new());
        for number in 0..FILES {
            fresh.fill(&mut data);
            fs::write(folder.join(number.to_string()), &data)?;
        }
    }
    Ok(folder)
}

fn warm_reads(place: &mut Place, threads: u64) -> Result<Vec<Figure>> {
    let folder = small_files(place)?;
    // Whatever is not in memory yet comes in now.
    (0..FILES).try_for_each(|number| fs::read(folder.join(number.to_string())).map(drop))?;
    let each = 24_000 / threads;
    let mut workers = Vec::new();
    for _ in 0..threads {
        let folder = folder.clone();
        workers.push(base::thread::spawn("reader", move || reader(&folder, each))?);
    }
    let mut times = Vec::new();
    for worker in workers {
        times.extend(worker.join().map_err(|_| "a reader panicked")??);
    }
    Ok(vec![("p50", "us", micros_at(&mut times, 0.5)), ("p99", "us", micros_at(&mut times, 0.99))])
}

fn reader(folder: &Path, count: u64) -> Result<Vec<Duration>> {
    let (mut fresh, mut data) = (Fresh::new(), vec![0; FILE_SIZE]);
    let mut times = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let path = folder.join(fresh.below(FILES).to_string());
        let begun = monotonic();
        File::open(&path)?.read_exact(&mut data)?;
        times.push(begun.elapsed());
    }
    Ok(times)
}

fn cycles(place: &mut Place) -> Result<Vec<Figure>> {
    let (mut data, mut fresh, mut times) = ([0; 4096], Fresh::new(), Vec::new());
    for number in 0..3_000 {
        fresh.fill(&mut data);
        let path = place.root().join(format!("cycle-{number}"));
        let begun = monotonic();
        File::options().write(true).create_new(true).open(&path)?.write_all(&data)?;
        fs::remove_file(&path)?;
        times.push(begun.elapsed());
    }
    Ok(vec![("p50", "us", micros_at(&mut times, 0.5)), ("p99", "us", micros_at(&mut times, 0.99))])
}

fn small_writes(place: &mut Place) -> Result<Vec<Figure>> {
    const COUNT: u32 = 16_000;
    let (mut data, mut fresh) = (vec![0; 4107], Fresh::new());
    let path = place.root().join("log");
    let mut spent = Duration::ZERO;
    let mut file = File::options().write(true).create_new(true).open(&path)?;
    for _ in 0..COUNT {
        fresh.fill(&mut data);
        let begun = monotonic();
        file.write_all(&data)?;
        spent += begun.elapsed();
    }
    let begun = monotonic();
    drop(file);
    spent += begun.elapsed();
    fs::remove_file(&path)?;
    Ok(vec![("", "us each", spent.as_secs_f64() * 1e6 / f64::from(COUNT))])
}

/// Wall time of a program.
fn timed(command: &mut Command) -> Result<Vec<Figure>> {
    let begun = monotonic();
    run(command)?;
    Ok(vec![("", "s", begun.elapsed().as_secs_f64())])
}

fn untar(place: &mut Place, inputs: &Inputs) -> Result<Vec<Figure>> {
    let target = place.root().join("tree");
    fs::create_dir(&target)?;
    timed(Command::new("tar").arg("-xf").arg(&inputs.tar).arg("-C").arg(target))
}

fn clone(place: &mut Place, inputs: &Inputs) -> Result<Vec<Figure>> {
    timed(git(place.root()).args(["clone", "-q", "--no-hardlinks"]).arg(&inputs.repository).arg("clone"))
}

fn remove(place: &mut Place) -> Result<Vec<Figure>> {
    let paths = [place.root().join("tree"), place.root().join("clone")];
    timed(Command::new("rm").arg("-rf").args(paths))
}

fn write_large(place: &mut Place, inputs: &Inputs) -> Result<Vec<Figure>> {
    let (mut data, mut fresh) = (vec![0; 1 << 20], Fresh::new());
    let path = place.root().join("large");
    // What the last round left must neither help nor hinder.
    if path.exists() {
        fs::remove_file(&path)?;
    }
    let mut spent = Duration::ZERO;
    let mut file = File::create(&path)?;
    for _ in 0..inputs.mib {
        fresh.fill(&mut data);
        let begun = monotonic();
        file.write_all(&data)?;
        spent += begun.elapsed();
    }
    let begun = monotonic();
    file.sync_all()?;
    spent += begun.elapsed();
    Ok(vec![("", "MiB/s", inputs.mib as f64 / spent.as_secs_f64())])
}

fn read_large(place: &mut Place, cold: bool) -> Result<Vec<Figure>> {
    let path = place.root().join("large");
    if !path.exists() {
        return Err("the cell that writes the file must run before".into());
    }
    if cold {
        place.make_cold()?;
    } else {
        // As far as memory goes, all of it is there afterwards.
        std::io::copy(&mut File::open(&path)?, &mut std::io::sink())?;
    }
    let (mut data, mut total) = (vec![0; 1 << 20], 0);
    let begun = monotonic();
    let mut file = File::open(&path)?;
    loop {
        match file.read(&mut data)? {
            0 => break,
            got => total += got,
        }
    }
    Ok(vec![("", "MiB/s", total as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64())])
}
