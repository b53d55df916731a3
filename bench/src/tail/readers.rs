//! Many threads open, read and close files; the time of open and read is recorded.
//!
//! Everything that a reader needs is created before the clock starts: its histograms, its buffer, and the
//! files' names in the form that the system call needs. A measured call allocates nothing and writes to
//! nothing shared.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use base::time::monotonic;
use corpus::{Spec, content};
use hdrhistogram::Histogram;
use rustix::fs::{Advice, Mode, OFlags, fadvise, open};

use crate::Result;

/// Longer calls are counted as this long, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;
/// Decimal digits of a time that a histogram keeps: an error of 0.1 %.
const DIGITS: u8 = 3;

/// The files of a corpus, written to any folder.
pub struct Files {
    spec: Spec,
    names: Vec<String>,
}

/// The paths of the files below one folder.
pub struct Paths {
    spec: Spec,
    paths: Arc<Vec<CString>>,
}

/// The results of one run.
pub struct Seen {
    /// Times of open(), in nanoseconds.
    pub open: Histogram<u32>,
    /// Times of read() of a whole file, in nanoseconds.
    pub read: Histogram<u32>,
    /// Files read.
    pub files: u64,
    /// From the first reader's start to the last one's end, without the time between passes.
    pub elapsed: Duration,
}

impl Files {
    /// Derives all names from the seed.
    pub fn of(spec: Spec) -> Files {
        let mut bytes = vec![0; spec.size as usize];
        let names = (0..spec.count).map(|index| content::derive(&spec, index, &mut bytes)).collect();
        Files { spec, names }
    }

    /// Writes all files to a folder.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let mut bytes = vec![0; self.spec.size as usize];
        for (index, name) in self.names.iter().enumerate() {
            content::fill(&self.spec, index as u64, &mut bytes);
            std::fs::write(folder.join(name), &bytes)
                .map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        Ok(())
    }

    /// Their paths below a folder.
    ///
    /// # Errors
    /// The folder's name contains a NUL byte.
    pub fn below(&self, folder: &Path) -> Result<Paths> {
        let path = |name: &String| CString::new(folder.join(name).as_os_str().as_bytes());
        let paths = self.names.iter().map(path).collect::<std::result::Result<_, _>>()?;
        Ok(Paths { spec: self.spec, paths: Arc::new(paths) })
    }
}

impl Paths {
    /// Opens and reads every file once, so that it is in memory. The bytes must be the derived ones.
    ///
    /// # Errors
    /// A file does not exist or has other bytes.
    pub fn warm(&self) -> Result<()> {
        let mut wanted = vec![0; self.spec.size as usize];
        for (index, path) in self.paths.iter().enumerate() {
            content::fill(&self.spec, index as u64, &mut wanted);
            let path = path.to_str()?;
            let bytes = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
            if bytes != wanted {
                return Err(format!("{path} does not hold what was derived for it").into());
            }
        }
        Ok(())
    }

    /// Reads `files` random files in all, with so many concurrent readers.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn at_random(&self, readers: usize, files: u64) -> Result<Seen> {
        let each = (files / readers as u64).max(1);
        self.run(readers, move |reader, seen| reader.random(each, seen))
    }

    /// Reads every file once per pass, divided among the readers. Before each pass the mount loses all its
    /// pages of them.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn cold(&self, readers: usize, passes: u32) -> Result<Seen> {
        let mut all = Seen::new()?;
        for _ in 0..passes {
            for path in self.paths.iter() {
                let file = open(path.as_c_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                fadvise(&file, 0, None, Advice::DontNeed)?;
            }
            all.add(&self.run(readers, move |reader, seen| reader.share(readers, seen))?)?;
        }
        Ok(all)
    }

    fn run(
        &self,
        readers: usize,
        work: impl Fn(&mut Reader, &mut Seen) -> Result<()> + Copy + Send + 'static,
    ) -> Result<Seen> {
        let start = Arc::new(Barrier::new(readers + 1));
        let mut threads = Vec::with_capacity(readers);
        for number in 0..readers {
            let (paths, start) = (Arc::clone(&self.paths), Arc::clone(&start));
            // A page that is first touched while the clock runs would count as the filesystem's time.
            let buffer = vec![1; self.spec.size as usize];
            let mut seen = Seen::new()?;
            threads.push(base::thread::spawn("reader", move || {
                let mut reader = Reader { number, paths, buffer, state: 0x9e37_79b9 + number as u64 };
                start.wait();
                let begun = monotonic();
                let outcome = work(&mut reader, &mut seen);
                outcome.map(|()| (seen, begun, monotonic()))
            })?);
        }
        start.wait();
        let mut all = Seen::new()?;
        // By the readers' own clocks: this thread may be scheduled only after they are done.
        let mut whole: Option<(Instant, Instant)> = None;
        for thread in threads {
            let (seen, begun, ended) = thread.join().map_err(|_| "a reader panicked")??;
            all.add(&seen)?;
            let (first, last) = whole.unwrap_or((begun, ended));
            whole = Some((first.min(begun), last.max(ended)));
        }
        all.elapsed = whole.map_or(Duration::ZERO, |(first, last)| last - first);
        Ok(all)
    }
}

impl Seen {
    fn new() -> Result<Seen> {
        let empty = || Histogram::new_with_bounds(1, LONGEST, DIGITS);
        Ok(Seen { open: empty()?, read: empty()?, files: 0, elapsed: Duration::ZERO })
    }

    fn add(&mut self, other: &Seen) -> Result<()> {
        self.open.add(&other.open)?;
        self.read.add(&other.read)?;
        self.files += other.files;
        self.elapsed += other.elapsed;
        Ok(())
    }
}

struct Reader {
    number: usize,
    paths: Arc<Vec<CString>>,
    buffer: Vec<u8>,
    state: u64,
}

impl Reader {
    fn random(&mut self, files: u64, seen: &mut Seen) -> Result<()> {
        for _ in 0..files {
            // xorshift: enough to spread the readers over the files, and the same in every run.
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            let at = (self.state % self.paths.len() as u64) as usize;
            self.one(at, seen)?;
        }
        Ok(())
    }

    fn share(&mut self, readers: usize, seen: &mut Seen) -> Result<()> {
        (self.number..self.paths.len()).step_by(readers).try_for_each(|at| self.one(at, seen))
    }

    fn one(&mut self, at: usize, seen: &mut Seen) -> Result<()> {
        let begun = monotonic();
        let file = open(self.paths[at].as_c_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let opened = monotonic();
        let got = rustix::io::read(&file, &mut self.buffer)?;
        let read = monotonic();
        drop(file);
        seen.open.saturating_record((opened - begun).as_nanos() as u64);
        seen.read.saturating_record((read - opened).as_nanos() as u64);
        seen.files += 1;
        if got != self.buffer.len() {
            return Err(format!("{got} bytes were read of {}", self.buffer.len()).into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Files) {
        let (folder, files) = (tempfile::tempdir().unwrap(), Files::of(Spec::new(1, 20, 5000).unwrap()));
        files.write(folder.path()).unwrap();
        (folder, files)
    }

    #[test]
    fn every_call_is_counted_once() {
        let (folder, files) = folder();
        let paths = files.below(folder.path()).unwrap();
        paths.warm().unwrap();
        let seen = paths.at_random(3, 300).unwrap();
        assert_eq!((seen.files, seen.open.len(), seen.read.len()), (300, 300, 300));
        assert!(seen.elapsed > Duration::ZERO && seen.read.max() > seen.read.min());
        let seen = paths.cold(7, 2).unwrap();
        assert_eq!((seen.files, seen.open.len()), (40, 40), "each file once in each pass");
    }

    #[test]
    fn a_file_with_other_bytes_and_a_file_that_is_short_are_noticed() {
        let (folder, files) = folder();
        let paths = files.below(folder.path()).unwrap();
        let victim = folder.path().join(&files.names[3]);
        let mut bytes = std::fs::read(&victim).unwrap();
        bytes[4999] ^= 1;
        std::fs::write(&victim, &bytes).unwrap();
        assert!(paths.warm().unwrap_err().to_string().contains("does not hold"));
        bytes.pop();
        std::fs::write(&victim, &bytes).unwrap();
        assert!(paths.cold(2, 1).is_err());
        std::fs::remove_file(&victim).unwrap();
        assert!(paths.cold(2, 1).is_err());
    }
}
