//! Attributes as dictionaries, with the keys that fsspec uses.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use base::Timestamp;
use fs::Errno;
use fs::api::{Attr, FileKind};
use node::reader::{Outcome, Reader};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Of a symbolic link that leads to nothing.
const LEADS_NOWHERE: [Errno; 4] = [Errno::ENOENT, Errno::ENOTDIR, Errno::ELOOP, Errno::ENAMETOOLONG];

/// A file as a path shows it.
pub struct Info {
    /// Its own attributes.
    own: Attr,
    /// The target of a symbolic link.
    target: Option<Vec<u8>>,
    /// The attributes of what the link leads to, if that is there.
    led_to: Option<Attr>,
}

impl Info {
    /// Looks a path up. Of a symbolic link, also what it leads to.
    pub fn of(reader: &Reader, path: &[u8]) -> Outcome<Info> {
        let own = reader.info(path, false)?;
        Info::with(reader, path, own)
    }

    /// The same with the attributes that a listing had.
    pub fn with(reader: &Reader, path: &[u8], own: Attr) -> Outcome<Info> {
        if own.kind != FileKind::Symlink {
            return Ok(Info { own, target: None, led_to: None });
        }
        let target = Some(reader.readlink(own.ino)?);
        let led_to = match reader.info(path, true) {
            Ok(attr) => Some(attr),
            Err(failed) if LEADS_NOWHERE.contains(&failed.errno) => None,
            // It may lead somewhere: the names could not be read.
            Err(failed) => return Err(failed),
        };
        Ok(Info { own, target, led_to })
    }

    /// The dictionary.
    pub fn to_dict<'py>(&self, py: Python<'py>, name: &OsStr) -> PyResult<Bound<'py, PyDict>> {
        let shown = self.led_to.as_ref().unwrap_or(&self.own);
        let dict = PyDict::new(py);
        dict.set_item("name", name)?;
        dict.set_item("type", kind(shown.kind))?;
        dict.set_item("size", if shown.kind == FileKind::Dir { 0 } else { shown.size })?;
        dict.set_item("ino", shown.ino.0)?;
        dict.set_item("mode", shown.kind.mode_bits() | u32::from(shown.perm))?;
        dict.set_item("uid", shown.uid)?;
        dict.set_item("gid", shown.gid)?;
        dict.set_item("nlink", shown.nlink)?;
        dict.set_item("mtime", seconds(shown.mtime))?;
        dict.set_item("ctime", seconds(shown.ctime))?;
        dict.set_item("created", seconds(shown.btime))?;
        dict.set_item("islink", self.target.is_some())?;
        if let Some(target) = &self.target {
            dict.set_item("destination", OsStr::from_bytes(target))?;
        }
        Ok(dict)
    }
}

fn seconds(time: Timestamp) -> f64 {
    time.0 as f64 / 1e9
}

/// The word of fsspec.
fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Dir => "directory",
        FileKind::Symlink => "link",
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice | FileKind::BlockDevice => "other",
    }
}
