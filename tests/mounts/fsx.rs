//! Random I/O on a few files. Every read is compared with an array of bytes.
//!
//! It mixes all the ways to change and to read a file: read and write, shared mappings with and without
//! msync, O_DIRECT, truncate, fallocate, holes, copies between the files. In between comes everything that
//! moves bytes from one place to another: fsync, dropped pages, closing, unmounting, and kill -9 of the
//! daemon after a close. A failure is shrunk to the shortest run that still shows it.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Duration;

use covey_tests::{Mounted, Need, Rng, Volume, requires, say, seeds, shrink};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};

const FILES: usize = 3;
const PAGE: u64 = 4096;

/// A range of one of the files.
#[derive(Clone, Copy, Debug)]
struct Range {
    file: usize,
    at: u64,
    len: usize,
}

#[derive(Clone, Debug)]
enum Step {
    Read(Range),
    Write(Range, u64),
    MmapRead(Range),
    MmapWrite(Range, u64, bool),
    DirectRead(Range),
    DirectWrite(Range, u64),
    Truncate(usize, u64),
    Allocate(Range),
    Punch(Range),
    Zero(Range, bool),
    Copy(Range, usize, u64),
    Fsync(usize),
    DropPages(usize),
    Reopen(usize),
    Remount,
    Kill,
}

/// The sizes that a run uses, and how often it remounts.
#[derive(Clone, Copy)]
struct Shape {
    largest: u64,
    /// One remount in so many steps.
    remounts: u64,
}

fn steps(seed: u64, count: usize, shape: Shape) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| step(&mut rng, shape)).collect()
}

fn step(rng: &mut Rng, shape: Shape) -> Step {
    if rng.one_in(shape.remounts) {
        return if rng.one_in(2) { Step::Remount } else { Step::Kill };
    }
    let file = rng.below(FILES as u64) as usize;
    let at = rng.length(shape.largest);
    let len = if rng.one_in(20) { rng.length(shape.largest) } else { rng.length(100_000) } as usize;
    let range = Range { file, at, len: len.min((shape.largest - at) as usize).max(1) };
    // O_DIRECT requires whole pages on most filesystems.
    let pages =
        Range { at: at / PAGE * PAGE, len: (range.len as u64).next_multiple_of(PAGE) as usize, ..range };
    match rng.below(40) {
        0..8 => Step::Read(range),
        8..17 => Step::Write(range, rng.u64()),
        17..19 => Step::MmapRead(range),
        19..23 => Step::MmapWrite(range, rng.u64(), rng.one_in(2)),
        23 => Step::DirectRead(pages),
        24 | 25 => Step::DirectWrite(pages, rng.u64()),
        26 | 27 => Step::Truncate(file, rng.length(shape.largest)),
        28 => Step::Allocate(range),
        29 | 30 => Step::Punch(range),
        31 => Step::Zero(range, rng.one_in(2)),
        32 | 33 => Step::Copy(range, rng.below(FILES as u64) as usize, rng.length(shape.largest)),
        34 => Step::Fsync(file),
        35 | 36 => Step::DropPages(file),
        _ => Step::Reopen(file),
    }
}

/// The files and their expected contents.
struct Bench<'a> {
    volume: &'a Volume,
    mounted: Option<Mounted>,
    folder: PathBuf,
    open: Vec<(File, File)>,
    expected: Vec<Vec<u8>>,
}

impl<'a> Bench<'a> {
    fn new(volume: &'a Volume, mounted: Mounted, folder: &str) -> Bench<'a> {
        std::fs::create_dir(mounted.join(folder)).unwrap();
        let mut bench = Bench {
            volume,
            mounted: Some(mounted),
            folder: folder.into(),
            open: Vec::new(),
            expected: vec![Vec::new(); FILES],
        };
        bench.open_all();
        bench
    }

    fn path(&self, file: usize) -> PathBuf {
        self.mounted.as_ref().unwrap().join(&self.folder).join(format!("file{file}"))
    }

    fn opened(&self, file: usize) -> (File, File) {
        let open = |flags| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
            options.open(self.path(file)).unwrap()
        };
        (open(0), open(libc::O_DIRECT))
    }

    fn open_all(&mut self) {
        self.open = (0..FILES).map(|file| self.opened(file)).collect();
    }

    fn run(&mut self, step: &Step) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("{step:?}: {error}");
        match *step {
            Step::Read(r) => return self.check(r, |file, buf| read_all(&file.0, buf, r.at)),
            Step::DirectRead(r) => return self.check(r, |file, buf| read_direct(&file.1, buf, r.at)),
            Step::MmapRead(r) => return self.check(r, |file, buf| mapped(&file.0, r.at, Mapped::Read(buf))),
            Step::Write(r, seed) => {
                let data = Rng::new(seed).bytes(r.len);
                self.open[r.file].0.write_all_at(&data, r.at).map_err(failed)?;
                self.expect(r, &data);
            }
            Step::DirectWrite(r, seed) => {
                let data = Aligned::of(&Rng::new(seed).bytes(r.len));
                self.open[r.file].1.write_all_at(data.bytes(), r.at).map_err(failed)?;
                self.expect(r, data.bytes());
            }
            Step::MmapWrite(r, seed, sync) => {
                let inside = (self.expected[r.file].len() as u64).saturating_sub(r.at).min(r.len as u64);
                if inside > 0 {
                    let data = Rng::new(seed).bytes(inside as usize);
                    mapped(&self.open[r.file].0, r.at, Mapped::Write(&data, sync)).map_err(failed)?;
                    self.expect(r, &data);
                }
            }
            Step::Truncate(file, len) => {
                self.open[file].0.set_len(len).map_err(failed)?;
                self.expected[file].resize(len as usize, 0);
            }
            Step::Copy(r, to, to_at) => self.copy(r, to, to_at).map_err(failed)?,
            Step::Allocate(r) | Step::Punch(r) | Step::Zero(r, _) => {
                self.allocate(step, r).map_err(failed)?
            }
            Step::Fsync(file) => self.open[file].0.sync_all().map_err(failed)?,
            Step::DropPages(file) => {
                self.open[file].0.sync_data().map_err(failed)?;
                fadvise(&self.open[file].0, 0, None, Advice::DontNeed).unwrap();
            }
            Step::Reopen(file) => self.open[file] = self.opened(file),
            Step::Remount | Step::Kill => return self.remount(matches!(step, Step::Kill)),
        }
        Ok(())
    }

    fn expect(&mut self, r: Range, data: &[u8]) {
        let (file, at) = (&mut self.expected[r.file], r.at as usize);
        file.resize(file.len().max(at + data.len()), 0);
        file[at..at + data.len()].copy_from_slice(data);
    }

    fn allocate(&mut self, step: &Step, r: Range) -> std::io::Result<()> {
        let (how, grows, zeros) = match step {
            Step::Allocate(_) => (FallocateFlags::empty(), true, false),
            Step::Punch(_) => (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, false, true),
            Step::Zero(_, true) => (FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, false, true),
            _ => (FallocateFlags::ZERO_RANGE, true, true),
        };
        fallocate(&self.open[r.file].0, how, r.at, r.len as u64)?;
        let (file, at) = (&mut self.expected[r.file], r.at as usize);
        if grows {
            file.resize(file.len().max(at + r.len), 0);
        }
        let end = file.len().min(at + r.len);
        if zeros && at < end {
            file[at..end].fill(0);
        }
        Ok(())
    }

    fn copy(&mut self, r: Range, to: usize, to_at: u64) -> std::io::Result<()> {
        let overlaps = r.file == to && r.at.abs_diff(to_at) < r.len as u64;
        if overlaps {
            return Ok(());
        }
        // Not beyond the source's end: the first call may move it, if source and target are the same file.
        let end = self.expected[r.file].len().min(r.at as usize + r.len);
        let Some(data) = self.expected[r.file].get(r.at as usize..end).map(<[u8]>::to_vec) else {
            return Ok(());
        };
        let (mut a, mut b) = (r.at, to_at);
        while b < to_at + data.len() as u64 {
            let [from, into] = [&self.open[r.file].0, &self.open[to].0];
            let left = (to_at + data.len() as u64 - b) as usize;
            if rustix::fs::copy_file_range(from, Some(&mut a), into, Some(&mut b), left)? == 0 {
                return Err(std::io::Error::other(format!(
                    "copy_file_range stopped after {:#x} bytes",
                    b - to_at
                )));
            }
        }
        if !data.is_empty() {
            self.expect(Range { file: to, at: to_at, len: data.len() }, &data);
        }
        Ok(())
    }

    fn remount(&mut self, kill: bool) -> Result<(), String> {
        self.open.clear();
        let mounted = self.mounted.take().unwrap();
        if kill {
            mounted.kill()
        } else {
            mounted.umount()
        }
        self.mounted = Some(self.volume.try_mount(&[])?);
        self.open_all();
        self.check_all()
    }

    fn check(
        &self,
        r: Range,
        read: impl Fn(&(File, File), &mut [u8]) -> std::io::Result<usize>,
    ) -> Result<(), String> {
        let expected = &self.expected[r.file];
        let (from, to) = (expected.len().min(r.at as usize), expected.len().min(r.at as usize + r.len));
        let mut buf = vec![0xaa; r.len];
        let got = read(&self.open[r.file], &mut buf).map_err(|error| format!("{r:?}: {error}"))?;
        differs(&buf[..got], &expected[from..to])
            .map_or(Ok(()), |what| Err(format!("file{}, from {:#x}: {what}", r.file, r.at)))
    }

    fn check_all(&self) -> Result<(), String> {
        for (file, expected) in self.expected.iter().enumerate() {
            let size = self.open[file].0.metadata().unwrap().len();
            if size != expected.len() as u64 {
                return Err(format!("file{file}: stat says {size:#x} bytes, expected {:#x}", expected.len()));
            }
            let whole = Range { file, at: 0, len: expected.len() + 1 };
            self.check(whole, |open, buf| read_all(&open.0, buf, 0))?;
        }
        Ok(())
    }
}

fn differs(got: &[u8], expected: &[u8]) -> Option<String> {
    if got.len() != expected.len() {
        return Some(format!("read {:#x} bytes, expected {:#x}", got.len(), expected.len()));
    }
    let first = got.iter().zip(expected).position(|(a, b)| a != b)?;
    let last = got.iter().zip(expected).rposition(|(a, b)| a != b)?;
    let zeros = got[first..=last].iter().all(|byte| *byte == 0);
    let (g, e) = (&got[first..(first + 8).min(got.len())], &expected[first..(first + 8).min(got.len())]);
    let note = if zeros { " (all zeros)" } else { "" };
    Some(format!("bytes +{first:#x}..=+{last:#x} differ{note}: got {g:02x?}.., expected {e:02x?}.."))
}

fn read_all(file: &File, buf: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut got = 0;
    while got < buf.len() {
        match file.read_at(&mut buf[got..], at + got as u64)? {
            0 => break,
            more => got += more,
        }
    }
    Ok(got)
}

fn read_direct(file: &File, buf: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut aligned = Aligned::of(buf);
    let got = file.read_at(aligned.bytes_mut(), at)?;
    buf[..got].copy_from_slice(&aligned.bytes()[..got]);
    // Only the end of the file may cut a read short. There the rest is requested again.
    let more = if got > 0 && got % PAGE as usize == 0 && got < buf.len() {
        read_direct(file, &mut buf[got..], at + got as u64)?
    } else {
        0
    };
    Ok(got + more)
}

/// A buffer that starts at a page boundary.
struct Aligned {
    room: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    fn of(bytes: &[u8]) -> Aligned {
        let room = vec![0; bytes.len() + PAGE as usize];
        let start = room.as_ptr().align_offset(PAGE as usize);
        let mut aligned = Aligned { room, start, len: bytes.len() };
        aligned.bytes_mut().copy_from_slice(bytes);
        aligned
    }

    fn bytes(&self) -> &[u8] {
        &self.room[self.start..self.start + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.start..self.start + self.len]
    }
}

enum Mapped<'a> {
    Read(&'a mut [u8]),
    Write(&'a [u8], bool),
}

/// Reads or writes through a shared mapping, up to the end of the file. Returns how many bytes.
fn mapped(file: &File, at: u64, what: Mapped<'_>) -> std::io::Result<usize> {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let wanted = match &what {
        Mapped::Read(buf) => buf.len(),
        Mapped::Write(data, _) => data.len(),
    };
    let len = file.metadata()?.len().saturating_sub(at).min(wanted as u64) as usize;
    if len == 0 {
        return Ok(0);
    }
    let start = at / PAGE * PAGE;
    let whole = (at - start) as usize + len;
    // SAFETY: a new mapping at an address the kernel chooses. All `whole` bytes are inside the file, which
    // nothing else changes. It is unmapped before this function returns, and no reference into it is kept.
    unsafe {
        let map = mmap(
            std::ptr::null_mut(),
            whole,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file,
            start,
        )?;
        let there = map.cast::<u8>().add((at - start) as usize);
        let mut synced = Ok(());
        match what {
            Mapped::Read(buf) => std::ptr::copy_nonoverlapping(there, buf.as_mut_ptr(), len),
            Mapped::Write(data, sync) => {
                std::ptr::copy_nonoverlapping(data.as_ptr(), there, len);
                if sync {
                    synced = msync(map, whole, MsyncFlags::SYNC);
                }
            }
        }
        munmap(map, whole)?;
        synced?;
    }
    Ok(len)
}

/// Runs the steps on new files. Returns why they failed, if they did. Removes the mount that a failed attempt
/// left.
fn attempt(volume: &Volume, name: &str, steps: &[Step]) -> Option<String> {
    let mounted = volume.mount();
    let mut bench = Bench::new(volume, mounted, name);
    for (number, step) in steps.iter().enumerate() {
        let mut done = bench.run(step);
        if number % 32 == 31 || number + 1 == steps.len() {
            done = done.and_then(|()| bench.check_all());
        }
        if let Err(reason) = done {
            return Some(format!("after {step:?}: {reason}"));
        }
    }
    std::fs::remove_dir_all(bench.mounted.as_ref().unwrap().join(name)).unwrap();
    bench.open.clear();
    bench.mounted.take().unwrap().umount();
    None
}

fn random_io(first: u64, runs: u64, count: usize, shape: Shape) {
    let volume = Volume::new();
    for seed in seeds(first, runs) {
        let steps = steps(seed, count, shape);
        let mut attempts = 0;
        let mut fails = |some: &[Step]| {
            attempts += 1;
            attempt(&volume, &format!("run{seed}-{attempts}"), some)
        };
        let Some(reason) = fails(&steps) else { continue };
        say(format_args!("seed {seed} fails; shrinking"));
        let (short, why) = shrink::shrink(&steps, reason, Duration::from_secs(90), fails);
        let lines: Vec<String> = short.iter().map(|step| format!("    {step:x?}")).collect();
        panic!("COVEY_SEED={seed}: {} steps fail:\n{}\n{why}", short.len(), lines.join("\n"));
    }
    say(format_args!("{runs} runs of {count} steps from seed {first} read back right"));
    volume.must_be_clean();
}

#[test]
fn random_io_reads_back_what_was_written() {
    requires!(Need::Mount);
    random_io(1, 6, 400, Shape { largest: 1 << 20, remounts: 60 });
}

#[test]
fn random_io_on_larger_files_reads_back_what_was_written() {
    requires!(Need::Mount);
    random_io(500, 2, 300, Shape { largest: 10 << 20, remounts: 100 });
}

#[test]
#[ignore = "minutes: make test-posix"]
fn long_random_io_reads_back_what_was_written() {
    requires!(Need::Mount);
    random_io(10_000, 60, 1_500, Shape { largest: 1 << 20, remounts: 150 });
    random_io(20_000, 20, 1_500, Shape { largest: 20 << 20, remounts: 300 });
}
