//! The steps of the benchmark. The same work runs in a folder on the mount and in a plain folder, and each
//! step is timed.
//!
//! Ctrl-C sets a flag. A step checks it after every file and every mebibyte, so it ends soon and the folder
//! is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use api::error::{Context, Failure, Result};
use api::text::{Lines, shown};
use base::size::MIB;
use rustix::fs::{Advice, fadvise};

/// Set by Ctrl-C.
static STOP: AtomicBool = AtomicBool::new(false);
/// Size of a small file in bytes.
const SMALL: usize = 4096;
/// Bytes per write and read.
const CHUNK: usize = MIB as usize;

/// The amount of work.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// Number of small files.
    pub files: u64,
    /// Size of the large file in bytes, a multiple of one mebibyte.
    pub size: u64,
    /// Threads of the parallel step.
    pub readers: usize,
}

impl Amount {
    /// The disk space that the work needs, with some to spare.
    pub fn room(&self) -> u64 {
        self.size + self.files * SMALL as u64 + 16 * MIB
    }
}

/// The limits of the verdicts, as ratios of mount time to plain time.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Up to this ratio, the verdict is good.
    pub good: f64,
    /// Up to this ratio, the verdict is fair.
    pub fair: f64,
}

/// A step that is measured.
pub struct Step {
    /// The step's name in the table.
    pub what: &'static str,
    /// The step's stable name in JSON.
    pub word: &'static str,
    /// What it counts: files or bytes.
    pub unit: Unit,
    /// What the verdict depends on.
    pub limits: Limits,
    /// What to try if the ratio is higher.
    pub advice: &'static str,
    run: fn(&Scratch, &Amount) -> io::Result<()>,
}

/// What a step counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Files a second.
    Files,
    /// Files a second, by several threads of which each reads all files.
    FilesOfAll,
    /// Bytes a second.
    Bytes,
}

impl Unit {
    /// The amount that a step processes.
    pub fn amount(self, of: &Amount) -> u64 {
        match self {
            Unit::Files => of.files,
            Unit::FilesOfAll => of.files * of.readers as u64,
            Unit::Bytes => of.size,
        }
    }
}

const MISSES: &str = "requests are slow: mount as root, which uses io_uring, and run fewer other programs";
const KERNEL: &str =
    "this should not reach the daemon at all: covey doctor says whether the mount is as it should be";
const BYTES: &str = "the disk below the volume is the limit, or read_ahead: covey doctor looks at both";

/// A step that changes names costs FUSE round trips, which a local filesystem does not have.
const CHANGE: Limits = Limits { good: 10.0, fair: 25.0 };
/// So does the first stat after a write, which asks for the number of blocks.
const FIRST_STAT: Limits = Limits { good: 20.0, fair: 50.0 };
/// Steps that the kernel answers from its own memory should cost about the same in both places.
const CACHED: Limits = Limits { good: 1.6, fair: 3.0 };
/// Bytes of a large file that pass through the daemon.
const LARGE: Limits = Limits { good: 1.5, fair: 3.0 };

/// The steps in their order.
pub const STEPS: &[Step] = &[
    step("create small files", "create", Unit::Files, CHANGE, MISSES, create),
    step("stat them", "stat", Unit::Files, FIRST_STAT, MISSES, stat),
    step("stat them again", "stat-warm", Unit::Files, CACHED, KERNEL, stat),
    step("read them", "read", Unit::Files, CACHED, KERNEL, read),
    step("read them in parallel", "read-parallel", Unit::FilesOfAll, CACHED, KERNEL, read_parallel),
    step("delete them", "delete", Unit::Files, CHANGE, MISSES, delete),
    step("write a large file, fsync", "write-large", Unit::Bytes, LARGE, BYTES, write_large),
    step("read it from the disk", "read-large-cold", Unit::Bytes, LARGE, BYTES, read_large_cold),
    step("read it from memory", "read-large-warm", Unit::Bytes, CACHED, KERNEL, read_large),
];

const fn step(
    what: &'static str,
    word: &'static str,
    unit: Unit,
    limits: Limits,
    advice: &'static str,
    run: fn(&Scratch, &Amount) -> io::Result<()>,
) -> Step {
    Step { what, word, unit, limits, advice, run }
}

/// A folder of this run. It is removed on drop, however the run ends.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates it in `folder`.
    pub fn new(folder: &Path) -> Result<Scratch> {
        let path = folder.join(format!(".covey-bench-{}", std::process::id()));
        fs::create_dir(&path).or_fail(|| format!("cannot make a folder in {}", folder.display()))?;
        Ok(Scratch { path })
    }

    /// Runs one step and returns the seconds it took.
    pub fn measure(&self, step: &Step, amount: &Amount) -> Result<f64> {
        let began = base::time::monotonic();
        let done = (step.run)(self, amount);
        let took = (base::time::monotonic() - began).as_secs_f64();
        match done {
            Ok(()) => Ok(took),
            Err(error) if error.kind() == io::ErrorKind::Interrupted && stopped() => Err(interrupted()),
            Err(error) => {
                Err(Failure::io(format!("cannot {} in {}", step.what, self.path.display()), &error))
            }
        }
    }

    /// Removes what a round left, so that the next round starts with an empty folder.
    pub fn clear(&self) -> Result<()> {
        let large = self.large();
        fs::remove_file(&large).at("remove", &large)
    }

    fn small(&self, number: u64) -> PathBuf {
        self.path.join(format!("small-{number}"))
    }

    fn large(&self) -> PathBuf {
        self.path.join("large")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            let (path, why) = (self.path.display().to_string(), api::error::plain(&error));
            let path = shown(&path, Lines::One);
            base::out::complaint(format_args!(
                "covey: the bench's folder could not be removed ({why}): rm -r {path}"
            ));
        }
    }
}

/// From here on, Ctrl-C and similar signals end the run cleanly. A second one ends it at once.
pub fn catch_signals() -> Result<()> {
    node::signals::block();
    let wait = || {
        let first = node::signals::next();
        STOP.store(true, Ordering::Release);
        node::signals::next();
        std::process::exit(128 + first);
    };
    base::thread::spawn("covey-signals", wait).map(drop).or_fail(|| "cannot start a thread".to_owned())
}

fn stopped() -> bool {
    STOP.load(Ordering::Acquire)
}

fn interrupted() -> Failure {
    Failure::new("interrupted", "the bench was interrupted; what it made was removed")
        .next("covey bench --quick takes a few seconds")
}

fn go_on() -> io::Result<()> {
    if stopped() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
}

/// Fills the buffer with random bytes. Equal contents are stored once, which would improve the figures.
fn unlike(room: &mut [u8]) {
    base::random::fill(room);
}

fn create(scratch: &Scratch, amount: &Amount) -> io::Result<()> {
    let mut bytes = [0; SMALL];
    unlike(&mut bytes);
    for number in 0..amount.files {
        go_on()?;
        bytes[..8].copy_from_slice(&base::random::u64().to_be_bytes());
        File::create_new(scratch.small(number))?.write_all(&bytes)?;
    }
    Ok(())
}

fn stat(scratch: &Scratch, amount: &Amount) -> io::Result<()> {
    (0..amount.files)
        .try_for_each(|number| go_on().and_then(|()| fs::metadata(scratch.small(number)).map(drop)))
}

fn read(scratch: &Scratch, amount: &Amount) -> io::Result<()> {
    let mut bytes = [0; SMALL];
    (0..amount.files).try_for_each(|number| {
        go_on()?;
        File::open(scratch.small(number))?.read_exact(&mut bytes)
    })
}

fn read_parallel(scratch: &Scratch, amount: &Amount) -> io::Result<()> {
    let threads: Vec<usize> = (0..amount.readers).collect();
    base::thread::for_each("covey-bench", threads.len(), &threads, |_| read(scratch, amount))
}

fn delete(scratch: &Scratch, amount: &Amount) -> io::Result<()> {
    (0..amount.files).try_for_each(|number| go_on().and_then(|()| fs::remove_file(scratch.small(number))))
}

fn write_large(scratch: &Scratch, amount: &Amount) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(scratch.large())?;
    let mut bytes = vec![0; CHUNK];
    unlike(&mut bytes);
    for number in 0..amount.size / MIB {
        go_on()?;
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        file.write_all(&bytes)?;
    }
    file.sync_all()
}

fn read_large_cold(scratch: &Scratch, amount: &Amount) -> io::Result<()> {
    let file = File::open(scratch.large())?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    read_large(scratch, amount)
}

fn read_large(scratch: &Scratch, amount: &Amount) -> io::Result<()> {
    let mut file = File::open(scratch.large())?;
    let mut bytes = vec![0; CHUNK];
    for _ in 0..amount.size / MIB {
        go_on()?;
        file.read_exact(&mut bytes)?;
    }
    Ok(())
}
