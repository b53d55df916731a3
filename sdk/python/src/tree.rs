//! Class `Tree`: a published tree that is open in this process.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::error::Result as Opens;
use fs::Errno;
use fs::api::{Attr, FileKind};
use node::reader::{Listed, Outcome, Reader};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::errors::{self, Trouble};
use crate::info::Info;
use crate::mapped::Buffer;
use crate::mounts;
use crate::process::{Opened, PerProcess};
use crate::ranges::{self, Wanted};
use crate::settings::Settings;
use crate::waits;

/// A published tree, read in this process. Each process that uses it, also a forked one, opens its own.
#[pyclass(frozen, module = "coveyfs._coveyfs")]
pub struct Tree(Arc<Shared>);

/// What a call that nobody waits for any more still uses.
struct Shared {
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

/// Bytes of a file that the user's buffer gets at a time, if they are read elsewhere first.
const STEP: usize = 8 << 20;

/// So many bytes are copied: that costs less than to hand over a second piece of work.
const FEW: u64 = 64 << 10;

impl Shared {
    /// The open tree of this process.
    fn reader(&self) -> Result<Arc<Opened>, Trouble> {
        if let Some(reader) = self.opened.at_hand() {
            return Ok(reader);
        }
        let second = self.is_copy || self.forks != crate::process::forks();
        let reader = self.opened.get(|| self.open(second)).map_err(Trouble::Unopened)?;
        reader.ok_or(Trouble::Closed)
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

    /// The file at a path, and how many bytes of it there are from an offset on, at most `length`.
    fn file(&self, path: &OsStr, offset: u64, length: Option<u64>) -> Result<(Attr, u64), Trouble> {
        let file = self.reader()?.info(path.as_bytes(), true)?;
        if file.kind == FileKind::Dir {
            return Err(Errno::EISDIR.into());
        }
        let left = file.size.saturating_sub(offset);
        Ok((file, length.map_or(left, |length| length.min(left))))
    }

    /// Reads exactly these bytes of a file.
    fn fill(&self, path: &OsStr, file: &Attr, offset: u64, bytes: &mut [u8]) -> Result<(), Trouble> {
        let reader = self.reader()?;
        reader.heat.note(path, file.ino, offset, bytes.len() as u64);
        // A published tree does not change, so its size holds.
        if reader.read(file, offset, bytes)? == bytes.len() { Ok(()) } else { Err(Errno::EIO.into()) }
    }

    /// Reads exactly so many bytes.
    fn vec(&self, path: &OsStr, file: &Attr, offset: u64, length: u64) -> Result<Vec<u8>, Trouble> {
        let mut bytes = errors::zeros(length)?;
        if length > 0 {
            self.fill(path, file, offset, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Reads into these bytes. Returns how many; fewer than fit only at the end of the file.
    fn read_to(&self, path: &OsStr, offset: u64, bytes: &mut [u8]) -> Result<usize, Trouble> {
        let (file, length) = self.file(path, offset, Some(bytes.len() as u64))?;
        let bytes = &mut bytes[..length as usize];
        if !bytes.is_empty() {
            self.fill(path, &file, offset, bytes)?;
        }
        Ok(bytes.len())
    }
}

impl Tree {
    /// Runs work on a path, which may wait.
    fn at<T: Send + 'static>(
        &self,
        py: Python<'_>,
        path: &OsStr,
        work: impl FnOnce(&Shared, &OsStr) -> Result<T, Trouble> + Send + 'static,
    ) -> PyResult<T> {
        let (shared, place) = (Arc::clone(&self.0), path.to_owned());
        waits::wait(py, move || work(&shared, &place))?.map_err(|trouble| trouble.at(path))
    }

    /// The open tree of this process.
    fn reader(&self, py: Python<'_>) -> PyResult<Arc<Opened>> {
        match self.0.opened.at_hand() {
            Some(reader) => Ok(reader),
            None => self.at(py, OsStr::new("/"), |shared, _| shared.reader()),
        }
    }

    /// At most so many bytes of a file from an offset on; fewer only at its end.
    pub fn bytes(&self, py: Python<'_>, path: &OsStr, offset: u64, length: u64) -> PyResult<Vec<u8>> {
        self.at(py, path, move |shared, path| {
            let (file, length) = shared.file(path, offset, Some(length))?;
            shared.vec(path, &file, offset, length)
        })
    }

    /// The same as an object of Python. Without a `length`, all to the end of the file.
    pub fn object<'py>(
        &self,
        py: Python<'py>,
        path: &OsStr,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (file, length, few) = self.at(py, path, move |shared, path| {
            let (file, length) = shared.file(path, offset, length)?;
            let few = if length <= FEW { Some(shared.vec(path, &file, offset, length)?) } else { None };
            Ok((file, length, few))
        })?;
        if let Some(bytes) = few {
            return Ok(PyBytes::new(py, &bytes));
        }
        let mut unfilled = Unfilled::new(py, length as usize)?;
        let filled = self.at(py, path, move |shared, path| {
            shared.fill(path, &file, offset, unfilled.bytes())?;
            Ok(unfilled)
        })?;
        Ok(filled.object.into_bound(py))
    }

    /// Reads into these bytes of the program. Returns how many; fewer than fit only at the end of the file.
    pub fn read_to(&self, py: Python<'_>, path: &OsStr, offset: u64, bytes: &mut [u8]) -> PyResult<usize> {
        if !waits::has_signals() {
            let read = py.detach(|| self.0.read_to(path, offset, bytes));
            return read.map_err(|trouble| trouble.at(path));
        }
        // After a signal the program has its memory back, and a read that goes on must not write to it.
        let (mut done, mut first) = (0, true);
        while first || done < bytes.len() {
            first = false;
            let wanted = (bytes.len() - done).min(STEP);
            let read = self.bytes(py, path, offset.saturating_add(done as u64), wanted as u64)?;
            bytes[done..done + read.len()].copy_from_slice(&read);
            done += read.len();
            if read.len() < wanted {
                break;
            }
        }
        Ok(done)
    }
}

/// A new object of bytes, which its work fills before the program sees it. If nobody waits any more, the work
/// has the last reference to it.
struct Unfilled {
    object: Py<PyBytes>,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: only the thread that has it uses the bytes, which stay in their place as long as the object lives.
unsafe impl Send for Unfilled {}

impl Unfilled {
    /// `len` is greater than [`FEW`]: Python shares objects of no byte and of one.
    fn new(py: Python<'_>, len: usize) -> PyResult<Unfilled> {
        let object = PyBytes::new_with(py, len, |_| Ok(()))?;
        // SAFETY: it is an object of bytes.
        let start = unsafe { ffi::PyBytes_AsString(object.as_ptr()) };
        let start = NonNull::new(start.cast()).ok_or_else(|| PyErr::fetch(py))?;
        Ok(Unfilled { object: object.unbind(), start, len })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the object has so many bytes, and nothing else uses it yet: `new` made it.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
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
        let opened = PerProcess::unopened();
        let tree = Tree(Arc::new(Shared { settings, opened, is_copy: lazy, forks, sequence }));
        if !lazy {
            tree.reader(py)?;
        }
        Ok(tree)
    }

    /// The name of the tree, `ORIGIN@NAME`.
    #[getter]
    fn tree(&self) -> &str {
        &self.0.settings.tree
    }

    /// Which publication of the name it is. 0 if that is not known yet.
    #[getter]
    fn sequence(&self) -> u64 {
        self.0.sequence.load(Ordering::SeqCst)
    }

    /// Whether this process closed it.
    #[getter]
    fn closed(&self) -> bool {
        self.0.opened.is_closed()
    }

    /// Attributes of what a path leads to, as a dictionary.
    fn info<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyDict>> {
        let info =
            self.at(py, path.as_os_str(), |shared, path| Ok(Info::of(&*shared.reader()?, path.as_bytes())?))?;
        info.to_dict(py, path.as_os_str())
    }

    /// The entries of a folder, each as a dictionary with attributes, in one pass. Of a file, the file.
    fn ls<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyList>> {
        let entries = self.at(py, path.as_os_str(), |shared, folder| {
            let (reader, path) = (shared.reader()?, folder.as_bytes());
            let attr = reader.info(path, true)?;
            if attr.kind != FileKind::Dir {
                return Ok(vec![(folder.to_owned(), Info::of(&reader, path)?)]);
            }
            let one = |entry: Listed| {
                let path = join(folder, &entry.name);
                Ok((path.clone(), Info::with(&reader, path.as_bytes(), entry.attr)?))
            };
            reader.list(attr.ino)?.into_iter().map(one).collect::<Result<Vec<_>, Trouble>>()
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
        self.object(py, path.as_os_str(), offset, length)
    }

    /// Reads into a writable buffer of bytes. Returns how many; fewer than fit only at the end of the file.
    fn read_into(&self, py: Python<'_>, path: PathBuf, offset: u64, buffer: PyBuffer<u8>) -> PyResult<usize> {
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer is to be writable and contiguous"));
        }
        if buffer.len_bytes() == 0 {
            return self.read_to(py, path.as_os_str(), offset, &mut []);
        }
        // SAFETY: Python keeps the memory in its place while `buffer` is held, and it has this many bytes. A
        // program that writes to it meanwhile gets mixed bytes, as with `readinto` of a file.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) };
        self.read_to(py, path.as_os_str(), offset, bytes)
    }

    /// Reads many ranges in parallel: `(path, start, end)`, where the end `None` is that of the file. Ranges
    /// that are near each other are read together. Returns bytes for each; for a range that fails, its
    /// exception.
    fn read_ranges<'py>(&self, py: Python<'py>, ranges: Vec<Range>) -> PyResult<Bound<'py, PyList>> {
        let (ranges, results) = self.at(py, OsStr::new("/"), move |shared, _| {
            let results = read_ranges(&*shared.reader()?, &ranges, shared.settings.threads);
            Ok((ranges, results))
        })?;
        let list = PyList::empty(py);
        for ((path, _, _), result) in ranges.iter().zip(results) {
            match result {
                Ok(bytes) => list.append(PyBytes::new(py, &bytes))?,
                // Not of this range alone.
                Err(failed) if failed.errno == errors::NO_MEMORY => {
                    return Err(errors::at(failed, path.as_os_str()));
                }
                Err(failed) => list.append(errors::at(failed, path.as_os_str()).into_value(py))?,
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
        self.at(py, path.as_os_str(), move |shared, path| {
            let (file, length) = shared.file(path, offset, length)?;
            let reader = shared.reader()?;
            reader.heat.note(path, file.ino, offset, length);
            let read = |from: u64, bytes: &mut [u8]| match reader.read(&file, offset + from, bytes)? {
                read if read == bytes.len() => Ok(()),
                _ => Err(Errno::EIO.into()),
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
        let target = self.at(py, path.as_os_str(), |shared, path| {
            let reader = shared.reader()?;
            Ok(reader.readlink(reader.info(path.as_bytes(), false)?.ino)?)
        })?;
        Ok(OsString::from_vec(target))
    }

    /// An extended attribute, as bytes.
    fn xattr<'py>(&self, py: Python<'py>, path: PathBuf, name: String) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.at(py, path.as_os_str(), move |shared, path| {
            let reader = shared.reader()?;
            Ok(reader.xattr(reader.info(path.as_bytes(), true)?.ino, name.as_bytes())?)
        })?;
        Ok(PyBytes::new(py, &value))
    }

    /// The names of the extended attributes.
    fn xattrs(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        let names = self.at(py, path.as_os_str(), |shared, path| {
            let reader = shared.reader()?;
            Ok(reader.xattrs(reader.info(path.as_bytes(), true)?.ino)?)
        })?;
        Ok(names.into_iter().map(OsString::from_vec).collect())
    }

    /// All figures, as `covey status --json` shows them for a mount.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let reader = self.reader(py)?;
        let status = waits::wait(py, move || reader.status())?.map_err(|failure| errors::of(&failure))?;
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
        let shared = Arc::clone(&self.0);
        let closed = waits::wait(py, move || shared.opened.close().map_or(Ok(()), |reader| reader.close()))?;
        closed.map_err(|failure| errors::of(&failure))
    }

    /// What a pickle holds: the arguments, and which publication it is.
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        let named = self.0.settings.to_dict(py)?;
        named.set_item("lazy", true)?;
        named.set_item("sequence", self.sequence())?;
        Ok((PyTuple::new(py, [&self.0.settings.tree])?, named))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _a: Py<PyAny>, _b: Py<PyAny>, _c: Py<PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<coveyfs.Tree {}>", self.0.settings.tree)
    }
}

/// Reads many ranges. Returns the bytes of each, or why it failed.
fn read_ranges(reader: &Opened, ranges: &[Range], threads: usize) -> Vec<Outcome<Vec<u8>>> {
    let (paths, wanted) = by_file(ranges);
    let look = |path: &&OsStr| match reader.info(path.as_bytes(), true) {
        Ok(attr) if attr.kind == FileKind::Dir => Err(Errno::EISDIR.into()),
        found => found,
    };
    let files: Vec<Outcome<Attr>> = paths.iter().map(look).collect();
    let wanted: Vec<Wanted> = wanted.into_iter().map(|one| within(one, &files)).collect();
    for Wanted { file, start, end } in &wanted {
        if let Ok(attr) = &files[*file] {
            reader.heat.note(paths[*file], attr.ino, *start, end - start);
        }
    }
    ranges::read(reader, &files, &wanted, threads)
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
fn within((file, start, end): Placed, files: &[Outcome<Attr>]) -> Wanted {
    let size = files[file].as_ref().map_or(0, |attr| attr.size);
    let start = start.min(size);
    Wanted { file, start, end: end.unwrap_or(size).clamp(start, size) }
}
