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
//! The last piece of a file often shares a blob with other files, and begins anywhere in it. Such a piece is
//! copied into its place, if all of them together have at most [`COPIED_MOST`] bytes.
//!
//! The files are never written to while they are open or mapped, and never cut. A disk that fails while it is
//! read ends the process with SIGBUS, as for every mapping.

use std::ffi::c_int;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::{NonNull, null_mut};

use node::reader::OnDisk;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

/// More pieces are copied: the kernel bounds the mappings of a process.
const MOST: usize = 16 << 10;
/// How much of a mapping may be copied: a blob.
const COPIED_MOST: u64 = 4 << 20;

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

impl Mapping {
    /// Maps these pieces side by side. `None` if their places do not fit to pages, or the system refuses.
    fn new(pieces: &[OnDisk]) -> Option<Mapping> {
        let page = rustix::param::page_size();
        let skip = skip_of(pieces, page)?;
        let view = pieces.iter().map(OnDisk::len).sum::<u64>() as usize;
        let len = (skip + view).next_multiple_of(page);
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let pages = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ, flags) }.ok()?;
        let mapping = Mapping { pages: NonNull::new(pages.cast())?, len, skip, view };
        let mut at = skip;
        for (number, piece) in pieces.iter().enumerate() {
            if let OnDisk::File(file, offset, bytes) = piece {
                let (before, bytes) = (at % page, *bytes as usize);
                if number > 0 && !(*offset as usize).is_multiple_of(page) {
                    mapping.copy(at, file, *offset, bytes)?;
                    at += bytes;
                    continue;
                }
                let (place, from) = (at - before, *offset - before as u64);
                let flags = MapFlags::SHARED | MapFlags::FIXED;
                // SAFETY: the range lies in the pages of this mapping, which nothing else uses yet. It begins
                // at a page in memory and in the file.
                let mapped = unsafe {
                    let place = mapping.pages.as_ptr().add(place).cast();
                    mmap(place, before + bytes, ProtFlags::READ, flags, file, from)
                };
                mapped.ok()?;
            }
            at += piece.len() as usize;
        }
        Some(mapping)
    }

    /// Copies bytes of a file to a place that begins at a page. `None` if they cannot be read.
    fn copy(&self, at: usize, file: &File, offset: u64, len: usize) -> Option<()> {
        // SAFETY: the range lies in the pages of this mapping, which are anonymous there, and nothing else uses
        // them yet.
        let place = unsafe {
            let place = self.pages.as_ptr().add(at);
            mprotect(place.cast(), len, MprotectFlags::READ | MprotectFlags::WRITE).ok()?;
            std::slice::from_raw_parts_mut(place, len)
        };
        file.read_exact_at(place, offset).ok()?;
        // SAFETY: as above, and the slice is not used any more.
        unsafe { mprotect(self.pages.as_ptr().add(at).cast(), len, MprotectFlags::READ) }.ok()
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

/// Where in its first page the range begins. `None` if a piece after the first does not begin at a page in
/// memory, or if too much lies elsewhere than at a page in its file.
fn skip_of(pieces: &[OnDisk], page: usize) -> Option<usize> {
    if pieces.is_empty() || pieces.len() > MOST {
        return None;
    }
    let first = match &pieces[0] {
        OnDisk::File(_, offset, _) => *offset as usize % page,
        OnDisk::Hole(len) => page - *len as usize % page,
    };
    let (mut at, mut copied) = (first, 0);
    for (number, piece) in pieces.iter().enumerate() {
        if number > 0 && at % page != 0 {
            return None;
        }
        if let OnDisk::File(_, offset, len) = piece
            && *offset as usize % page != at % page
        {
            copied += len;
        }
        if copied > COPIED_MOST {
            return None;
        }
        at += piece.len() as usize;
    }
    Some(first % page)
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
    /// Maps these pieces.
    pub fn mapped(pieces: &[OnDisk]) -> Option<Buffer> {
        Mapping::new(pieces).map(|mapping| Buffer { bytes: Bytes::Mapped(mapping) })
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
