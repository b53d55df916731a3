//! Class `Tree`: a published tree that is open in this process.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::error::Result as Opens;
use fs::Errno;
use fs::api::{Attr, FileKind};
use node::reader::Reader;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::errors;
use crate::info::Info;
use crate::mapped::Buffer;
use crate::mounts;
use crate::process::{Opened, PerProcess};
use crate::ranges::{self, Wanted};
use crate::settings::Settings;

/// A published tree, read in this process. Each process that uses it, also a forked one, opens its own.
#[pyclass(frozen, module = "coveyfs._coveyfs")]
pub struct Tree {
    settings: Settings,
    opened: PerProcess,
    /// This is a copy for another process.
    is_copy: bool,
    /// The forks of the process that made it.
    forks: u64,
    /// Which publication of the name it is. 0 until it was opened. Children and copies open the same.
    sequence: AtomicU64,
}

/// A range that a caller asks for: path, first byte, end.
type Range = (PathBuf, u64, Option<u64>);

/// The same with the place of its file in a list, instead of the path.
type Placed = (usize, u64, Option<u64>);

impl Tree {
    /// The open tree of this process.
    fn reader(&self, py: Python<'_>) -> PyResult<Arc<Opened>> {
        if let Some(reader) = self.opened.at_hand() {
            return Ok(reader);
        }
        let second = self.is_copy || self.forks != crate::process::forks();
        let reader = py.detach(|| self.opened.get(|| self.open(second)));
        reader.map_err(|failure| errors::of(&failure))?.ok_or_else(errors::closed)
    }

    /// Opens the tree: the publication that was opened first, by this process or by one that it comes from.
    fn open(&self, second: bool) -> Opens<Reader> {
        let first = self.sequence.load(Ordering::SeqCst);
        // By its name first: without its store, a tree can be opened as the newest that was seen here.
        match self.settings.open(second, None) {
            Ok(newest) if first == 0 || newest.sequence() == Some(first) => {
                self.sequence.store(newest.sequence().unwrap_or(0), Ordering::SeqCst);
                return Ok(newest);
            }
            Ok(newest) => {
                let _ = newest.close();
            }
            Err(failure) if first == 0 || failure.code == "origin-away" => return Err(failure),
            // The name may be gone, and its older publications be kept.
            Err(_) => {}
        }
        self.settings.open(second, Some(first))
    }

    /// Runs work on a path without the interpreter's lock.
    fn at<T: Send>(
        &self,
        py: Python<'_>,
        path: &OsStr,
        work: impl FnOnce(&Opened, &[u8]) -> Result<T, Errno> + Send,
    ) -> PyResult<T> {
        let reader = self.reader(py)?;
        py.detach(|| work(&reader, path.as_bytes())).map_err(|errno| errors::at(errno, path))
    }

    /// The file at a path, and how many bytes of it there are from an offset on, at most `length`.
    fn file(&self, py: Python<'_>, path: &OsStr, offset: u64, length: Option<u64>) -> PyResult<(Attr, u64)> {
        let file = self.at(py, path, |reader, path| reader.info(path, true))?;
        if file.kind == FileKind::Dir {
            return Err(errors::at(Errno::EISDIR, path));
        }
        let left = file.size.saturating_sub(offset);
        Ok((file, length.map_or(left, |length| length.min(left))))
    }

    /// Reads into these bytes. Returns how many; fewer than fit only at the end of the file.
    pub fn fill(&self, py: Python<'_>, path: &OsStr, offset: u64, bytes: &mut [u8]) -> PyResult<usize> {
        let (file, length) = self.file(py, path, offset, Some(bytes.len() as u64))?;
        if length == 0 {
            return Ok(0);
        }
        let reader = self.reader(py)?;
        reader.heat.note(path, file.ino, offset, length);
        let bytes = &mut bytes[..length as usize];
        py.detach(|| reader.read(&file, offset, bytes)).map_err(|errno| errors::at(errno, path))
    }
}

fn join(folder: &OsStr, name: &[u8]) -> OsString {
    let mut path = folder.as_bytes().to_vec();
    while path.last() == Some(&b'/') {
        path.pop();
    }
    path.push(b'/');
    path.extend_from_slice(name);
    OsString::from_vec(path)
}

#[pymethods]
impl Tree {
    #[new]
    #[pyo3(signature = (tree, *, cache_dir=None, key=None, accept_older=false, endpoint=None, region=None,
        options=None, join=None, listen=None, secret_file=None, zone=None, tls_cert=None, tls_key=None,
        tls_ca=None, threads=16, lazy=false, sequence=0))]
    #[allow(clippy::too_many_arguments, reason = "they are the keyword arguments of the class")]
    fn new(
        py: Python<'_>,
        tree: String,
        cache_dir: Option<PathBuf>,
        key: Option<String>,
        accept_older: bool,
        endpoint: Option<String>,
        region: Option<String>,
        options: Option<String>,
        join: Option<String>,
        listen: Option<String>,
        secret_file: Option<PathBuf>,
        zone: Option<String>,
        tls_cert: Option<PathBuf>,
        tls_key: Option<PathBuf>,
        tls_ca: Option<PathBuf>,
        threads: usize,
        lazy: bool,
        sequence: u64,
    ) -> PyResult<Tree> {
        if !(1..=256).contains(&threads) {
            return Err(PyValueError::new_err("threads is a number from 1 to 256"));
        }
        let tls = [tls_cert, tls_key, tls_ca];
        let settings = Settings {
            tree,
            cache_dir,
            key,
            accept_older,
            endpoint,
            region,
            options,
            join,
            listen,
            secret_file,
            zone,
            tls,
            threads,
        };
        let forks = crate::process::forks();
        let sequence = AtomicU64::new(sequence);
        let tree = Tree { settings, opened: PerProcess::unopened(), is_copy: lazy, forks, sequence };
        if !lazy {
            tree.reader(py)?;
        }
        Ok(tree)
    }

    /// The name of the tree, `ORIGIN@NAME`.
    #[getter]
    fn tree(&self) -> &str {
        &self.settings.tree
    }

    /// Which publication of the name it is. 0 if that is not known yet.
    #[getter]
    fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::SeqCst)
    }

    /// Whether this process closed it.
    #[getter]
    fn closed(&self) -> bool {
        self.opened.is_closed()
    }

    /// Attributes of what a path leads to, as a dictionary.
    fn info<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyDict>> {
        let info = self.at(py, path.as_os_str(), |reader, path| Info::of(reader, path))?;
        info.to_dict(py, path.as_os_str())
    }

    /// The entries of a folder, each as a dictionary with attributes, in one pass. Of a file, the file.
    fn ls<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyList>> {
        let folder = path.as_os_str();
        let entries = self.at(py, folder, |reader, path| {
            let attr = reader.info(path, true)?;
            if attr.kind != FileKind::Dir {
                return Ok(vec![(folder.to_owned(), Info::of(reader, path)?)]);
            }
            let listed = reader.list(attr.ino)?.into_iter();
            let one = |entry: node::reader::Listed| {
                let path = join(folder, &entry.name);
                Ok((path.clone(), Info::with(reader, path.as_bytes(), entry.attr)?))
            };
            listed.map(one).collect::<Result<Vec<_>, Errno>>()
        })?;
        let list = PyList::empty(py);
        for (name, info) in entries {
            list.append(info.to_dict(py, &name)?)?;
        }
        Ok(list)
    }

    /// Bytes of a file from an offset on: at most `length`, fewer only at the end of the file.
    #[pyo3(signature = (path, offset=0, length=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let path = path.as_os_str();
        let (file, length) = self.file(py, path, offset, length)?;
        let reader = self.reader(py)?;
        reader.heat.note(path, file.ino, offset, length);
        PyBytes::new_with(py, length as usize, |bytes| {
            let read =
                py.detach(|| reader.read(&file, offset, bytes)).map_err(|errno| errors::at(errno, path))?;
            // A published tree does not change, so its size holds.
            if read == bytes.len() { Ok(()) } else { Err(errors::at(Errno::EIO, path)) }
        })
    }

    /// Reads into a writable buffer of bytes. Returns how many; fewer than fit only at the end of the file.
    fn read_into(&self, py: Python<'_>, path: PathBuf, offset: u64, buffer: PyBuffer<u8>) -> PyResult<usize> {
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is to be writable and contiguous"));
        }
        if buffer.len_bytes() == 0 {
            return self.fill(py, path.as_os_str(), offset, &mut []);
        }
        // SAFETY: Python keeps the memory in its place while `buffer` is held, and it has this many bytes. A
        // program that writes to it meanwhile gets mixed bytes, as with `readinto` of a file.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) };
        self.fill(py, path.as_os_str(), offset, bytes)
    }

    /// Reads many ranges in parallel: `(path, start, end)`, where the end `None` is that of the file. Ranges
    /// that are near each other are read together. Returns bytes for each; for a range that fails, its
    /// exception.
    fn read_ranges<'py>(&self, py: Python<'py>, ranges: Vec<Range>) -> PyResult<Bound<'py, PyList>> {
        let reader = self.reader(py)?;
        let (paths, wanted) = by_file(&ranges);
        let results = py.detach(|| {
            let look = |path: &&OsStr| match reader.info(path.as_bytes(), true) {
                Ok(attr) if attr.kind == FileKind::Dir => Err(Errno::EISDIR),
                found => found,
            };
            let files: Vec<Result<Attr, Errno>> = paths.iter().map(look).collect();
            let wanted: Vec<Wanted> = wanted.into_iter().map(|one| within(one, &files)).collect();
            for Wanted { file, start, end } in &wanted {
                if let Ok(attr) = &files[*file] {
                    reader.heat.note(paths[*file], attr.ino, *start, end - start);
                }
            }
            ranges::read(&reader, &files, &wanted, self.settings.threads)
        });
        let list = PyList::empty(py);
        for ((path, _, _), result) in ranges.iter().zip(results) {
            match result {
                Ok(bytes) => list.append(PyBytes::new(py, &bytes))?,
                // Not of this range alone.
                Err(errors::NO_MEMORY) => return Err(errors::at(errors::NO_MEMORY, path.as_os_str())),
                Err(errno) => list.append(errors::at(errno, path.as_os_str()).into_value(py))?,
            }
        }
        Ok(list)
    }

    /// A range of a file as a buffer. Its bytes are mapped from this machine's disk if all of them are there,
    /// and are copied otherwise. With `verify`, mapped bytes are checked once against their sums.
    #[pyo3(signature = (path, offset=0, length=None, verify=true))]
    fn map(
        &self,
        py: Python<'_>,
        path: PathBuf,
        offset: u64,
        length: Option<u64>,
        verify: bool,
    ) -> PyResult<Buffer> {
        let path = path.as_os_str();
        let (file, length) = self.file(py, path, offset, length)?;
        self.at(py, path, |reader, _| {
            reader.heat.note(path, file.ino, offset, length);
            let read = |from: u64, bytes: &mut [u8]| match reader.read(&file, offset + from, bytes)? {
                read if read == bytes.len() => Ok(()),
                _ => Err(Errno::EIO),
            };
            if let Some(pieces) = reader.place(&file, offset, length, verify)?
                && let Some(buffer) = Buffer::mapped(&pieces, &read)?
            {
                return Ok(buffer);
            }
            let mut bytes = errors::zeros(length)?;
            let read = reader.read(&file, offset, &mut bytes)?;
            bytes.truncate(read);
            Ok(Buffer::copied(bytes))
        })
    }

    /// The target of a symbolic link.
    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<OsString> {
        let target = self.at(py, path.as_os_str(), |reader, path| {
            let attr = reader.info(path, false)?;
            reader.readlink(attr.ino)
        })?;
        Ok(OsString::from_vec(target))
    }

    /// An extended attribute, as bytes.
    fn xattr<'py>(&self, py: Python<'py>, path: PathBuf, name: &str) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.at(py, path.as_os_str(), |reader, path| {
            reader.xattr(reader.info(path, true)?.ino, name.as_bytes())
        })?;
        Ok(PyBytes::new(py, &value))
    }

    /// The names of the extended attributes.
    fn xattrs(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        let names =
            self.at(py, path.as_os_str(), |reader, path| reader.xattrs(reader.info(path, true)?.ino))?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// All figures, as `covey status --json` shows them for a mount.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let reader = self.reader(py)?;
        let status = py.detach(|| reader.status()).map_err(|failure| errors::of(&failure))?;
        mounts::to_python(py, &status)
    }

    /// Bytes by where they were: read from the names, memory and disk, mapped, and fetched from peers, depots
    /// and the origin. And the MiB of files that this process read most: at most `top`, hottest first.
    #[pyo3(signature = (top=50))]
    fn heat<'py>(&self, py: Python<'py>, top: usize) -> PyResult<Bound<'py, PyDict>> {
        let reader = self.reader(py)?;
        let seen = reader.by_source();
        let dict = PyDict::new(py);
        let all = [
            ("names", seen.names),
            ("memory", seen.memory),
            ("disk", seen.disk),
            ("beside", seen.beside),
            ("mapped", seen.mapped),
            ("peers", seen.peers),
            ("depot", seen.depot),
            ("origin", seen.origin),
        ];
        all.iter().try_for_each(|(name, bytes)| dict.set_item(name, bytes))?;
        reader.heat.describe(py, top, &dict)?;
        Ok(dict)
    }

    /// Closes the tree of this process. Buffers that are mapped stay.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let closed = py.detach(|| self.opened.close().map_or(Ok(()), |reader| reader.close()));
        closed.map_err(|failure| errors::of(&failure))
    }

    /// What a pickle holds: the arguments, and which publication it is.
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let named = self.settings.to_dict(py)?;
        named.set_item("lazy", true)?;
        named.set_item("sequence", self.sequence())?;
        Ok((PyTuple::new(py, [&self.settings.tree])?, named))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _a: Py<PyAny>, _b: Py<PyAny>, _c: Py<PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<coveyfs.Tree {}>", self.settings.tree)
    }
}

/// The different files of some ranges, and the ranges with the place of their file among these.
fn by_file(ranges: &[Range]) -> (Vec<&OsStr>, Vec<Placed>) {
    let mut places = std::collections::HashMap::new();
    let mut paths: Vec<&OsStr> = Vec::new();
    let wanted = ranges.iter().map(|(path, start, end)| {
        let path = path.as_os_str();
        let place = *places.entry(path).or_insert_with(|| {
            paths.push(path);
            paths.len() - 1
        });
        (place, *start, *end)
    });
    let wanted = wanted.collect();
    (paths, wanted)
}

/// A range cut at the end of its file.
fn within((file, start, end): Placed, files: &[Result<Attr, Errno>]) -> Wanted {
    let size = files[file].as_ref().map_or(0, |attr| attr.size);
    let start = start.min(size);
    Wanted { file, start, end: end.unwrap_or(size).clamp(start, size) }
}
