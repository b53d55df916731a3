//! Work that several figures use. Smaller times are better, larger MiB/s are better.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base::time::monotonic;

use crate::Result;
use crate::place::{Kind, Place};
use crate::run::Figure;
use crate::work::{Fresh, micros_at, run};

/// A tree, packed and in a repository. It is created once, outside the places.
pub struct Tree {
    tar: PathBuf,
    repository: PathBuf,
}

impl Tree {
    /// Packs a tree and commits it to a repository.
    ///
    /// # Errors
    /// tar or git is missing or fails.
    pub fn make(scratch: &Path, tree: &Path) -> Result<Tree> {
        let (tar, repository) = (scratch.join("tree.tar"), scratch.join("repository"));
        run(Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(tree).arg("."))?;
        fs::create_dir(&repository)?;
        run(Command::new("tar").arg("-xf").arg(&tar).arg("-C").arg(&repository))?;
        for words in [&["init", "-q"][..], &["add", "-A"], &["commit", "-q", "-m", "all"], &["gc", "-q"]] {
            run(git(&repository).args(words))?;
        }
        Ok(Tree { tar, repository })
    }
}

fn git(folder: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(["-c", "user.name=Bench", "-c", "user.email=bench@example.org"]);
    git.args(["-c", "gc.auto=0", "-c", "safe.directory=*"]).env("GIT_CONFIG_NOSYSTEM", "1");
    git
}

/// The number of small files.
pub const FILES: u64 = fuse::null::FILES;
/// The size of each, in bytes.
pub const FILE_SIZE: usize = fuse::null::FILE_SIZE as usize;

/// The folder with the small files, created at the first call. The empty filesystem has them in its root.
///
/// # Errors
/// They cannot be written.
pub fn small_files(place: &Place) -> Result<PathBuf> {
    if place.kind() == Kind::Null {
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

/// Opens, reads completely and closes files that are in memory.
///
/// # Errors
/// One cannot be read.
pub fn warm_reads(place: &Place, threads: u64, times: u64) -> Result<Vec<Figure>> {
    let folder = small_files(place)?;
    // Loads whatever is not in memory yet.
    (0..FILES).try_for_each(|number| fs::read(folder.join(number.to_string())).map(drop))?;
    let each = times / threads;
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

/// Creates, writes 4 KiB to, closes and removes files, one after another.
///
/// # Errors
/// An error of the filesystem.
pub fn cycles(place: &Place, count: u64) -> Result<Vec<Figure>> {
    let (mut data, mut fresh, mut times) = ([0; 4096], Fresh::new(), Vec::new());
    for number in 0..count {
        fresh.fill(&mut data);
        let path = place.root().join(format!("cycle-{number}"));
        let begun = monotonic();
        File::options().write(true).create_new(true).open(&path)?.write_all(&data)?;
        fs::remove_file(&path)?;
        times.push(begun.elapsed());
    }
    Ok(vec![("p50", "us", micros_at(&mut times, 0.5)), ("p99", "us", micros_at(&mut times, 0.99))])
}

/// Creates files of 4 KiB in a new folder that stays until [`remove`].
///
/// # Errors
/// An error of the filesystem.
pub fn creates(place: &Place, count: u64) -> Result<Vec<Figure>> {
    let folder = place.root().join("created");
    fs::create_dir(&folder)?;
    let (mut data, mut fresh, mut spent) = ([0; 4096], Fresh::new(), Duration::ZERO);
    for number in 0..count {
        fresh.fill(&mut data);
        let path = folder.join(number.to_string());
        let begun = monotonic();
        File::options().write(true).create_new(true).open(&path)?.write_all(&data)?;
        spent += begun.elapsed();
    }
    Ok(vec![("", "us each", spent.as_secs_f64() * 1e6 / count as f64)])
}

/// The wall-clock time of a program.
fn timed(command: &mut Command) -> Result<Vec<Figure>> {
    let begun = monotonic();
    run(command)?;
    Ok(vec![("", "s", begun.elapsed().as_secs_f64())])
}

/// Unpacks the tree.
///
/// # Errors
/// tar failed.
pub fn untar(place: &Place, tree: &Tree) -> Result<Vec<Figure>> {
    let target = place.root().join("tree");
    fs::create_dir(&target)?;
    timed(Command::new("tar").arg("-xf").arg(&tree.tar).arg("-C").arg(target))
}

/// Clones the repository.
///
/// # Errors
/// git failed.
pub fn clone(place: &Place, tree: &Tree) -> Result<Vec<Figure>> {
    timed(git(place.root()).args(["clone", "-q", "--no-hardlinks"]).arg(&tree.repository).arg("clone"))
}

/// Removes what [`untar`], [`clone`] and [`creates`] created.
///
/// # Errors
/// rm failed.
pub fn remove(place: &Place) -> Result<Vec<Figure>> {
    let paths = ["tree", "clone", "created"].map(|name| place.root().join(name));
    timed(Command::new("rm").arg("-rf").args(paths))
}

fn rate(mib: u64, spent: Duration) -> Vec<Figure> {
    vec![("", "MiB/s", mib as f64 / spent.as_secs_f64())]
}

/// Writes the large file anew, with fsync.
///
/// # Errors
/// An error of the filesystem.
pub fn write_large(place: &Place, mib: u64) -> Result<Vec<Figure>> {
    let (mut data, mut fresh) = (vec![0; 1 << 20], Fresh::new());
    let path = place.root().join("large");
    // The file of the last round must not affect this one.
    if path.exists() {
        fs::remove_file(&path)?;
    }
    let mut spent = Duration::ZERO;
    let mut file = File::create(&path)?;
    for _ in 0..mib {
        fresh.fill(&mut data);
        let begun = monotonic();
        file.write_all(&data)?;
        spent += begun.elapsed();
    }
    let begun = monotonic();
    file.sync_all()?;
    spent += begun.elapsed();
    Ok(rate(mib, spent))
}

/// Reads the large file from beginning to end.
///
/// # Errors
/// It was not written.
pub fn read_large(place: &mut Place, cold: bool) -> Result<Vec<Figure>> {
    let path = place.root().join("large");
    if !path.exists() {
        return Err("the cell that writes the file must run before".into());
    }
    if cold {
        place.make_cold()?;
    } else {
        // As far as memory suffices, all of it is cached afterwards.
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
    Ok(rate((total >> 20) as u64, begun.elapsed()))
}

/// Consecutive writes of 4107 bytes, as git writes its packs: the median, and the mean including the close,
/// in microseconds.
///
/// # Errors
/// An error of the filesystem.
pub fn small_writes(place: &Place, count: u64) -> Result<Vec<Figure>> {
    let (mut data, mut fresh) = (vec![0; 4107], Fresh::new());
    let path = place.root().join("log");
    let mut times = Vec::with_capacity(count as usize);
    let mut file = File::options().write(true).create_new(true).open(&path)?;
    for _ in 0..count {
        fresh.fill(&mut data);
        let begun = monotonic();
        file.write_all(&data)?;
        times.push(begun.elapsed());
    }
    let begun = monotonic();
    drop(file);
    let spent = begun.elapsed() + times.iter().sum::<Duration>();
    fs::remove_file(&path)?;
    let each = spent.as_secs_f64() * 1e6 / count as f64;
    Ok(vec![("p50", "us", micros_at(&mut times, 0.5)), ("mean with close", "us", each)])
}
