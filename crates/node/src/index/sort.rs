//! Sorts more records than fit into memory, by their keys.
//!
//! ```text
//!   push ──► a buffer of 16 MiB ──full──► sorted, appended to a file as a run
//!   reader ◄── the smallest key of all runs ◄── one small buffer for each run
//! ```
//!
//! The file has no name. So nothing is left of it when the process ends, even by a kill.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Bytes of records in memory before they become a run.
const BUFFER: usize = 16 << 20;
/// The most bytes that the buffers of all runs take together while they are read.
const READING: usize = 16 << 20;
/// The bounds of one run's buffer.
const RUN_BUFFER: Range<usize> = 4 << 10..256 << 10;
/// Bytes before a record: the lengths of its key and its value.
const HEAD: usize = 8;

/// Takes records in any order.
pub struct Sorter {
    file: Arc<File>,
    /// Where the file ends.
    end: u64,
    runs: Vec<Range<u64>>,
    /// Records as they are in the file.
    buffer: Vec<u8>,
    /// Where each record begins in the buffer.
    starts: Vec<u32>,
    limit: usize,
}

/// Sorted records. They can be read several times.
pub struct Sorted {
    file: Arc<File>,
    runs: Vec<Range<u64>>,
}

impl Sorter {
    /// A sorter with its file in this folder.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn new(folder: &Path) -> io::Result<Sorter> {
        Sorter::with_buffer(folder, BUFFER)
    }

    fn with_buffer(folder: &Path, limit: usize) -> io::Result<Sorter> {
        let (file, runs) = (Arc::new(nameless(folder)?), Vec::new());
        Ok(Sorter { file, end: 0, runs, buffer: Vec::new(), starts: Vec::new(), limit })
    }

    /// Adds a record. Of several with one key, the one that was added last comes last.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if !self.buffer.is_empty() && self.buffer.len() + HEAD + key.len() + value.len() > self.limit {
            self.end_run()?;
        }
        self.starts.push(self.buffer.len() as u32);
        self.buffer.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(value);
        Ok(())
    }

    fn end_run(&mut self) -> io::Result<()> {
        let buffer = &self.buffer;
        let record = |start: &u32| buffer.get(*start as usize..).unwrap_or_default();
        // Stable: records of one key stay in their order.
        self.starts.sort_by(|one, other| key_of(record(one)).cmp(key_of(record(other))));
        let mut out = Vec::with_capacity(1 << 20);
        let start = self.end;
        for at in &self.starts {
            let record = record(at);
            out.extend_from_slice(&record[..len_of(record)]);
            if out.len() >= 1 << 20 {
                self.file.write_all_at(&out, self.end)?;
                self.end += out.len() as u64;
                out.clear();
            }
        }
        self.file.write_all_at(&out, self.end)?;
        self.end += out.len() as u64;
        self.runs.push(start..self.end);
        self.buffer.clear();
        self.starts.clear();
        Ok(())
    }

    /// The sorted records.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> io::Result<Sorted> {
        if !self.starts.is_empty() {
            self.end_run()?;
        }
        Ok(Sorted { file: self.file, runs: self.runs })
    }
}

impl Sorted {
    /// Reads the records from the first on.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn reader(&self) -> io::Result<Reader> {
        let each = (READING / self.runs.len().max(1)).clamp(RUN_BUFFER.start, RUN_BUFFER.end);
        let mut reader = Reader { runs: Vec::new(), heap: BinaryHeap::new(), last: None };
        for (number, range) in self.runs.iter().enumerate() {
            let at = At { file: self.file.clone(), at: range.start, end: range.end };
            let mut run = Run { from: io::BufReader::with_capacity(each, at), value: Vec::new() };
            if let Some(key) = run.step()? {
                reader.heap.push(Reverse((key, number)));
            }
            reader.runs.push(run);
        }
        Ok(reader)
    }
}

/// Reads sorted records.
pub struct Reader {
    runs: Vec<Run>,
    heap: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    /// The run whose record was returned last.
    last: Option<usize>,
}

impl Reader {
    /// The next record: its key and its value. `None` at the end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self) -> io::Result<Option<(Vec<u8>, &[u8])>> {
        if let Some(run) = self.last.take()
            && let Some(key) = self.runs.get_mut(run).map_or(Ok(None), Run::step)?
        {
            self.heap.push(Reverse((key, run)));
        }
        let Some(Reverse((key, run))) = self.heap.pop() else { return Ok(None) };
        self.last = Some(run);
        Ok(Some((key, self.runs.get(run).map_or(&[], |run| &run.value))))
    }
}

struct Run {
    from: io::BufReader<At>,
    value: Vec<u8>,
}

impl Run {
    /// Reads the next record. Returns its key.
    fn step(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut head = [0; HEAD];
        match self.from.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let (key, value) = lens(&head);
        let mut bytes = vec![0; key];
        self.from.read_exact(&mut bytes)?;
        self.value.resize(value, 0);
        self.from.read_exact(&mut self.value)?;
        Ok(Some(bytes))
    }
}

/// A range of a file.
struct At {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for At {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let most = buf.len().min(usize::try_from(self.end - self.at).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buf[..most], self.at)?;
        self.at += read as u64;
        if read == 0 && most > 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file of sorted records is cut off"));
        }
        Ok(read)
    }
}

fn lens(record: &[u8]) -> (usize, usize) {
    let number = |at: usize| {
        let bytes = record.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes) as usize
    };
    (number(0), number(4))
}

fn key_of(record: &[u8]) -> &[u8] {
    record.get(HEAD..HEAD + lens(record).0).unwrap_or_default()
}

fn len_of(record: &[u8]) -> usize {
    let (key, value) = lens(record);
    HEAD + key + value
}

/// A new file in a folder, without a name.
fn nameless(folder: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(folder) {
        Ok(file) => Ok(file),
        // A filesystem without such files: for a moment it has a name.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT)) =>
        {
            let path = folder.join(format!("{:016x}.sort", base::random::u64()));
            let file = options.create_new(true).open(&path)?;
            fs::remove_file(&path)?;
            Ok(file)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(sorted: &Sorted) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (mut reader, mut all) = (sorted.reader().unwrap(), Vec::new());
        while let Some((key, value)) = reader.read().unwrap() {
            all.push((key, value.to_vec()));
        }
        all
    }

    #[test]
    fn many_runs_come_out_in_order_and_twice() {
        let dir = tempfile::tempdir().unwrap();
        for (count, limit) in [(0u64, 100), (1, 100), (5000, 1000), (5000, 1 << 20)] {
            let mut sorter = Sorter::with_buffer(dir.path(), limit).unwrap();
            let mut expected = Vec::new();
            for n in 0..count {
                let key = (n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 3000).to_be_bytes();
                let value = vec![n as u8; n as usize % 40];
                sorter.push(&key, &value).unwrap();
                expected.push((key.to_vec(), value));
            }
            expected.sort_by(|one, other| one.0.cmp(&other.0));
            let sorted = sorter.finish().unwrap();
            assert_eq!(all(&sorted), expected);
            assert_eq!(all(&sorted), expected);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the file has no name");
    }

    #[test]
    fn a_record_larger_than_the_buffer_is_a_run_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::with_buffer(dir.path(), 100).unwrap();
        sorter.push(b"b", &[7; 1000]).unwrap();
        sorter.push(b"a", b"1").unwrap();
        let all = all(&sorter.finish().unwrap());
        assert_eq!(all, [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), vec![7; 1000])]);
    }
}
