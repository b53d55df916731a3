//! Questions to the daemon of a mount, over its control socket, as `covey status` asks them.
//!
//! A mount whose daemon does not answer delays no call: each ends within [`PATIENCE`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use api::control::{ControlAddress, Request};
use api::error::{Failure, Result};
use api::heat::Heat;
use api::raw_path::RawPath;
use api::status::Status;
use base::Deadline;
use fuse::mount::{Life, Mounted};
use node::{control, mounts};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{errors, waits};

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// A place on a mount.
struct Place {
    mount: Mounted,
    path: PathBuf,
}

impl Place {
    /// The place that a path names: on a mount, or the folder of a mounted volume.
    fn of(path: &Path) -> Result<Place> {
        mounts::check_way(path)?;
        let found = mounts::covey_of(path)?;
        let path = mounts::absolute(path)?;
        let place = match found {
            Some(mount) => Place { mount, path },
            None => {
                let mount = mounts::of_volume(&path).ok_or_else(|| {
                    Failure::new("not-mounted", format!("{} is on no mount of Covey", path.display()))
                        .next("name a path on a mount (covey df lists them)")
                })?;
                Place { path: mount.path.clone(), mount }
            }
        };
        if mounts::life(&place.mount)? == Life::Dead {
            let at = place.mount.path.display();
            return Err(Failure::new("stale-mount", format!("the mount at {at} is dead"))
                .why("its daemon is gone")
                .next(format!("covey umount {at}, then mount again")));
        }
        Ok(place)
    }

    /// The path below the root of the mount. `None` for the root.
    fn inner(&self) -> Option<RawPath> {
        let inner = self.path.strip_prefix(&self.mount.path).ok()?;
        (!inner.as_os_str().is_empty()).then(|| RawPath::from(inner))
    }

    fn ask<T: DeserializeOwned>(&self, request: &Request) -> Result<T> {
        let address = ControlAddress::of_source(Path::new(&self.mount.source));
        control::ask(&address, request, &mut |_| ())
    }
}

/// Asks for something, without the interpreter's lock.
fn within<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    let done = waits::wait(py, || Deadline::after(PATIENCE).scope(work))?;
    done.map_err(|failure| errors::of_mount(&failure))
}

/// An answer as Python's dictionaries and lists.
pub fn to_python<'py>(py: Python<'py>, answer: &impl Serialize) -> PyResult<Bound<'py, PyAny>> {
    let text = serde_json::to_string(answer).map_err(|error| PyValueError::new_err(error.to_string()))?;
    py.import("json")?.call_method1("loads", (text,))
}

/// The figures of the mount that a path is on, as `covey status --json` shows them.
#[pyfunction]
pub fn status(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let status: Status = within(py, move || Place::of(&path)?.ask(&Request::Status))?;
    to_python(py, &status)
}

/// Which MiB of the files at or below a path on a mount are read most: at most `top`, hottest first.
#[pyfunction]
#[pyo3(signature = (path, top=50))]
pub fn heat(py: Python<'_>, path: PathBuf, top: u32) -> PyResult<Bound<'_, PyAny>> {
    let heat: Heat = within(py, move || {
        let place = Place::of(&path)?;
        place.ask(&Request::Heat { path: place.inner(), top })
    })?;
    let answer = to_python(py, &heat)?;
    // A path that is not UTF-8 is a list of bytes in JSON.
    for (at, chunk) in heat.chunks.into_iter().enumerate() {
        if let Some(path @ RawPath::Bytes(_)) = chunk.path {
            let row = answer.get_item("chunks")?.get_item(at)?;
            row.cast_into::<PyDict>()?.set_item("path", PathBuf::from(path).into_os_string())?;
        }
    }
    Ok(answer)
}
