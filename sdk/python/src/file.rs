//! Class `File`: a file of a tree with a position, as Python's file objects have one.
//!
//! **A seek and the read after it belong together.** DuckDB reads one file on several threads: each takes the
//! interpreter's lock, calls `seek` and then `read`. So `seek` never gives the lock away, and `read` takes
//! its range and moves the position before it does. An `io.BufferedReader` gives the lock away in between
//! when another thread reads, which then mixes up positions, and DuckDB gets wrong bytes.
//!
//! Small reads share a block that was read ahead. A tree does not change, so the block is never out of date.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fs::Errno;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;
use crate::tree::Tree;

/// A part of the file in memory: its first byte, and its bytes.
type Block = (u64, Arc<Vec<u8>>);

/// A file that is open for reading. See the [module](self).
#[pyclass(frozen, module = "coveyfs._coveyfs")]
pub struct File {
    tree: Py<Tree>,
    path: PathBuf,
    size: u64,
    /// Smaller reads read so much, in bytes.
    block_size: u64,
    at: AtomicU64,
    /// What was read ahead. Nobody waits for the lock, because it may stay locked in a forked process.
    block: Mutex<Option<Block>>,
    closed: AtomicBool,
}

impl File {
    fn path(&self) -> &OsStr {
        self.path.as_os_str()
    }

    fn open(&self) -> PyResult<()> {
        match self.closed.load(Ordering::Relaxed) {
            true => Err(PyValueError::new_err("I/O operation on closed file")),
            false => Ok(()),
        }
    }

    /// The range that a read of this length gets, and moves the position behind it.
    fn take(&self, wanted: u64) -> (u64, u64) {
        let start = self.at.load(Ordering::Relaxed);
        let len = self.size.saturating_sub(start).min(wanted);
        self.at.store(start + len, Ordering::Relaxed);
        (start, len)
    }

    /// Moves the position back after a read that failed, if nothing else moved it.
    fn put_back<T>(&self, (start, len): (u64, u64), result: PyResult<T>) -> PyResult<T> {
        if result.is_err() {
            let _ = self.at.compare_exchange(start + len, start, Ordering::Relaxed, Ordering::Relaxed);
        }
        result
    }

    /// The block that holds a range, if it is in memory.
    fn at_hand(&self, start: u64, len: u64) -> Option<Block> {
        let block = self.block.try_lock().ok()?.clone()?;
        (block.0 <= start && start + len <= block.0 + block.1.len() as u64).then_some(block)
    }

    /// A block that holds a range of the file, which is not longer than one.
    fn block(&self, py: Python<'_>, start: u64, len: u64) -> PyResult<Block> {
        if let Some(block) = self.at_hand(start, len) {
            return Ok(block);
        }
        let len = self.block_size.max(len).min(self.size - start);
        let bytes = self.whole(self.tree.get().bytes(py, self.path(), start, len)?, len)?;
        let block = (start, Arc::new(bytes));
        if let Ok(mut kept) = self.block.try_lock() {
            *kept = Some(block.clone());
        }
        Ok(block)
    }

    /// What was read, if it is as long as it should be. A published tree does not change, so its size holds.
    fn whole<T: AsRef<[u8]>>(&self, read: T, len: u64) -> PyResult<T> {
        let is_whole = read.as_ref().len() as u64 == len;
        if is_whole { Ok(read) } else { Err(errors::at(Errno::EIO, self.path())) }
    }

    fn read_range<'py>(&self, py: Python<'py>, start: u64, len: u64) -> PyResult<Bound<'py, PyBytes>> {
        if len == 0 {
            return Ok(PyBytes::new(py, b""));
        }
        if len >= self.block_size && self.at_hand(start, len).is_none() {
            let read = self.tree.get().object(py, self.path(), start, Some(len))?;
            self.whole(read.as_bytes(), len)?;
            return Ok(read);
        }
        let (first, bytes) = self.block(py, start, len)?;
        let from = (start - first) as usize;
        Ok(PyBytes::new(py, &bytes[from..from + len as usize]))
    }
}

/// How many bytes a caller wants: all for none and for negative numbers.
fn wanted(size: Option<i64>) -> u64 {
    size.and_then(|size| u64::try_from(size).ok()).unwrap_or(u64::MAX)
}

#[pymethods]
impl File {
    #[new]
    fn new(tree: Py<Tree>, path: PathBuf, size: u64, block_size: u64) -> File {
        let block_size = block_size.max(1);
        let (at, block, closed) = (AtomicU64::new(0), Mutex::default(), AtomicBool::new(false));
        File { tree, path, size, block_size, at, block, closed }
    }

    /// Bytes from the position on: at most `size`, all for none and for negative numbers.
    #[pyo3(signature = (size=None, /))]
    fn read<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        self.open()?;
        let range = self.take(wanted(size));
        self.put_back(range, self.read_range(py, range.0, range.1))
    }

    /// The same, at most a block.
    #[pyo3(signature = (size=-1, /))]
    fn read1<'py>(&self, py: Python<'py>, size: i64) -> PyResult<Bound<'py, PyBytes>> {
        self.open()?;
        let range = self.take(wanted(Some(size)).min(self.block_size));
        self.put_back(range, self.read_range(py, range.0, range.1))
    }

    /// Reads into a writable buffer of bytes. Returns how many.
    fn readinto(&self, py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<usize> {
        self.open()?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is to be writable and contiguous"));
        }
        let range = self.take(buffer.len_bytes() as u64);
        let (start, len) = range;
        if len == 0 {
            return Ok(0);
        }
        // SAFETY: Python keeps the memory in its place while `buffer` is held, and it has this many bytes. A
        // program that writes to it meanwhile gets mixed bytes, as with `readinto` of a file.
        let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), len as usize) };
        let read = if len >= self.block_size && self.at_hand(start, len).is_none() {
            let read = self.tree.get().read_to(py, self.path(), start, bytes);
            read.and_then(|read| self.whole(&bytes[..read], len).map(|_| ()))
        } else {
            self.block(py, start, len).map(|(first, block)| {
                let from = (start - first) as usize;
                bytes.copy_from_slice(&block[from..from + len as usize]);
            })
        };
        self.put_back(range, read).map(|()| len as usize)
    }

    /// A line with its end, of at most `size` bytes.
    #[pyo3(signature = (size=None, /))]
    fn readline<'py>(&self, py: Python<'py>, size: Option<i64>) -> PyResult<Bound<'py, PyBytes>> {
        self.open()?;
        let begin = self.at.load(Ordering::Relaxed);
        let end = self.size.min(begin.saturating_add(wanted(size)));
        let (mut at, mut line) = (begin, Vec::new());
        while at < end && line.last() != Some(&b'\n') {
            let (first, bytes) = self.block(py, at, 1)?;
            let from = (at - first) as usize;
            let until = bytes.len().min(from + usize::try_from(end - at).unwrap_or(usize::MAX));
            let part = &bytes[from..until];
            let part = part.iter().position(|byte| *byte == b'\n').map_or(part, |end| &part[..=end]);
            line.extend_from_slice(part);
            at += part.len() as u64;
        }
        self.at.store(at, Ordering::Relaxed);
        Ok(PyBytes::new(py, &line))
    }

    /// Bytes from the position on, without moving it.
    #[pyo3(signature = (_size=0, /))]
    fn peek<'py>(&self, py: Python<'py>, _size: i64) -> PyResult<Bound<'py, PyBytes>> {
        self.open()?;
        let start = self.at.load(Ordering::Relaxed);
        if start >= self.size {
            return Ok(PyBytes::new(py, b""));
        }
        let (first, bytes) = self.block(py, start, 1)?;
        Ok(PyBytes::new(py, &bytes[(start - first) as usize..]))
    }

    /// Moves the position: from the beginning (0), from where it is (1), or from the end (2).
    #[pyo3(signature = (offset, whence=0, /))]
    fn seek(&self, offset: i64, whence: i32) -> PyResult<u64> {
        self.open()?;
        let base = match whence {
            0 => 0,
            1 => self.at.load(Ordering::Relaxed),
            2 => self.size,
            _ => return Err(PyValueError::new_err(format!("invalid whence: {whence}"))),
        };
        let at = base.checked_add_signed(offset).ok_or_else(|| errors::at(Errno::EINVAL, self.path()))?;
        self.at.store(at, Ordering::Relaxed);
        Ok(at)
    }

    /// The position.
    fn tell(&self) -> PyResult<u64> {
        self.open()?;
        Ok(self.at.load(Ordering::Relaxed))
    }

    /// Lets go of what was read ahead. Every other call is an error afterwards.
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        if let Ok(mut block) = self.block.try_lock() {
            *block = None;
        }
    }
}
