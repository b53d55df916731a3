//! Bytes of a file that are mapped from this machine's disk, or copied where that is not possible.
//!
//! A large file is stored in pieces of 4 MiB, each a blob and a file of its own. So address space is reserved
//! for the whole range, and each piece is mapped into its place:
//!
//! ```text
//!   reserved:  | blob 1, 4 MiB | blob 2, 4 MiB |  hole: zeros  | blob 3 ... |
//!                 ▲ skip: the range begins here
//! ```
//!
//! The last piece of a file often shares a blob with other files, and begins anywhere in it. And a blob may
//! not be whole on this disk, because only parts of it were read. Such pieces are read into their places, if
//! all of them together are at most [`COPIED`] of the range.
//!
//! The files are never written to while they are open or mapped, and never cut. A disk that fails while it is
//! read ends the process with SIGBUS, as for every mapping.

use std::ffi::c_int;
use std::fs::File;
use std::ptr::{NonNull, null_mut};

use node::reader::{OnDisk, Outcome};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

/// More pieces are copied: the kernel bounds the mappings of a process.
const MOST: usize = 16 << 10;
/// How much of a mapping may be copied: an eighth, or a blob and the end of a file.
const COPIED: (u64, u64) = (8, 8 << 20);

/// Mapped pages, and the part of them that was asked for.
struct Mapping {
    pages: NonNull<u8>,
    len: usize,
    skip: usize,
    view: usize,
}

// SAFETY: the pages are only read, and they stay mapped until this is dropped.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// Reads bytes of the range, from an offset in it on.
type Read<'r> = &'r dyn Fn(u64, &mut [u8]) -> Outcome<()>;

impl Mapping {
    /// Maps these pieces side by side, and reads those that cannot be mapped. `None` if that is too much, if
    /// their places do not fit to pages, or if the system refuses.
    fn new(pieces: &[OnDisk], read: Read<'_>) -> Outcome<Option<Mapping>> {
        let page = rustix::param::page_size();
        let Some(skip) = skip_of(pieces, page) else { return Ok(None) };
        let Some(mapping) = Mapping::reserve(skip, pieces.iter().map(OnDisk::len).sum::<u64>() as usize)
        else {
            return Ok(None);
        };
        let mut at = skip;
        for piece in pieces {
            let len = piece.len() as usize;
            let done = match piece {
                _ if is_copied(piece, at, page) => mapping.copy(at, len, read)?,
                OnDisk::File(file, offset, _) => mapping.map(at, len, file, *offset),
                OnDisk::Hole(_) | OnDisk::Elsewhere(_) => Some(()),
            };
            if done.is_none() {
                return Ok(None);
            }
            at += len;
        }
        Ok(Some(mapping))
    }

    /// Address space for the range.
    fn reserve(skip: usize, view: usize) -> Option<Mapping> {
        let len = (skip + view).next_multiple_of(rustix::param::page_size());
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let pages = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ, flags) }.ok()?;
        Some(Mapping { pages: NonNull::new(pages.cast())?, len, skip, view })
    }

    /// Maps bytes of a file at a place. Both lie alike in their pages.
    fn map(&self, at: usize, len: usize, file: &File, offset: u64) -> Option<()> {
        let before = at % rustix::param::page_size();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the range lies in the pages of this mapping, which nothing else uses yet. It begins at a
        // page in memory and in the file.
        let mapped = unsafe {
            let place = self.pages.as_ptr().add(at - before).cast();
            mmap(place, before + len, ProtFlags::READ, flags, file, offset - before as u64)
        };
        mapped.ok().map(|_| ())
    }

    /// Reads bytes to a place that begins at a page. `None` if the system refuses.
    fn copy(&self, at: usize, len: usize, read: Read<'_>) -> Outcome<Option<()>> {
        let start = at - at % rustix::param::page_size();
        let protect = |flags| {
            // SAFETY: the range lies in the pages of this mapping, and only this function uses it now.
            unsafe { mprotect(self.pages.as_ptr().add(start).cast(), at - start + len, flags) }.ok()
        };
        if protect(MprotectFlags::READ | MprotectFlags::WRITE).is_none() {
            return Ok(None);
        }
        // SAFETY: as above. The pages are anonymous, and may be written to until `protect` is called again.
        let place = unsafe { std::slice::from_raw_parts_mut(self.pages.as_ptr().add(at), len) };
        read((at - self.skip) as u64, place)?;
        Ok(protect(MprotectFlags::READ))
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the pages are mapped for reading as long as `self` lives, and `skip + view` is within them.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().add(self.skip), self.view) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: these pages were mapped by `new`, and the borrow of every user has ended.
        let _ = unsafe { munmap(self.pages.as_ptr().cast(), self.len) };
    }
}

/// Whether a piece at this place is read and not mapped.
fn is_copied(piece: &OnDisk, at: usize, page: usize) -> bool {
    match piece {
        OnDisk::File(_, offset, _) => *offset as usize % page != at % page,
        OnDisk::Elsewhere(_) => true,
        OnDisk::Hole(_) => false,
    }
}

/// Where in its first page the range begins. `None` if a piece after the first does not begin at a page, or
/// if too much is to be copied.
fn skip_of(pieces: &[OnDisk], page: usize) -> Option<usize> {
    if pieces.is_empty() || pieces.len() > MOST {
        return None;
    }
    let first = match &pieces[0] {
        OnDisk::File(_, offset, _) => *offset as usize % page,
        OnDisk::Hole(len) | OnDisk::Elsewhere(len) => (page - *len as usize % page) % page,
    };
    let (mut at, mut copied) = (first, 0);
    for (number, piece) in pieces.iter().enumerate() {
        if number > 0 && at % page != 0 {
            return None;
        }
        copied += if is_copied(piece, at, page) { piece.len() } else { 0 };
        at += piece.len() as usize;
    }
    let all = (at - first) as u64;
    let may = copied <= (all / COPIED.0).max(COPIED.1) && copied <= all / 2;
    may.then_some(first)
}

enum Bytes {
    Mapped(Mapping),
    Copied(Box<[u8]>),
}

/// Read-only bytes, for `memoryview`, `numpy.frombuffer` and the like.
#[pyclass(frozen, module = "coveyfs._coveyfs")]
pub struct Buffer {
    bytes: Bytes,
}

impl Buffer {
    /// Maps these pieces. What cannot be mapped is read. `None` if that is too much.
    ///
    /// # Errors
    /// Of reading.
    pub fn mapped(pieces: &[OnDisk], read: Read<'_>) -> Outcome<Option<Buffer>> {
        let mapping = Mapping::new(pieces, read)?;
        Ok(mapping.map(|mapping| Buffer { bytes: Bytes::Mapped(mapping) }))
    }

    /// Takes bytes that were read.
    pub fn copied(bytes: Vec<u8>) -> Buffer {
        Buffer { bytes: Bytes::Copied(bytes.into()) }
    }

    fn as_bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(mapping) => mapping.bytes(),
            Bytes::Copied(bytes) => bytes,
        }
    }
}

#[pymethods]
impl Buffer {
    /// Whether the bytes are pages of files on this machine's disk, and not a copy.
    #[getter]
    fn is_zero_copy(&self) -> bool {
        matches!(self.bytes, Bytes::Mapped(_))
    }

    fn __len__(&self) -> usize {
        self.as_bytes().len()
    }

    /// Fills a view of the bytes.
    ///
    /// # Safety
    /// `view` is a view that Python wants to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let bytes = slf.get().as_bytes();
        // SAFETY: the view refers to this object, which keeps the bytes where they are.
        let filled = unsafe {
            let start = bytes.as_ptr().cast_mut().cast();
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes.len() as ffi::Py_ssize_t, 1, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}
