//! The native part of the Python package `coveyfs`: published trees, opened in the process that reads them.
//!
//! ```text
//!   tree.rs      class Tree: its methods release the interpreter's lock while they work
//!   file.rs      class File: a file with a position, for Python's file objects
//!   waits.rs     calls that may wait, and Ctrl-C
//!   process.rs   the open tree of this process; a forked process opens its own
//!   settings.rs  the arguments of Tree, which are also what a pickle holds
//!   info.rs      attributes as dictionaries
//!   ranges.rs    many ranges at once: joined where they are near, read in parallel
//!   mapped.rs    class Buffer: bytes that are mapped from this machine's disk, or copied
//!   heat.rs      which MiB of which files this process reads most
//!   mounts.rs    questions to the daemon of a mount
//!   errors.rs    failures as Python's exceptions
//! ```
//!
//! A panic becomes an exception (`pyo3.PanicException`) and never ends the interpreter.

mod errors;
mod file;
mod heat;
mod info;
mod mapped;
mod mounts;
mod process;
mod ranges;
mod settings;
mod tree;
mod waits;

use pyo3::prelude::*;

/// Notes that this process is a forked child. `coveyfs` registers it with `os.register_at_fork`.
#[pyfunction]
fn _forked() {
    process::forked();
}

/// Closes the trees of this process. `coveyfs` registers it with `atexit`.
#[pyfunction]
fn _close_all(py: Python<'_>) -> PyResult<()> {
    waits::wait(py, process::close_all)
}

#[pymodule]
fn _coveyfs(module: &Bound<'_, PyModule>) -> PyResult<()> {
    node::secrets::leave_dumps_to_the_program();
    node::log::configure(node::log::Level::Warn, node::log::Format::Text);
    module.add_class::<tree::Tree>()?;
    module.add_class::<mapped::Buffer>()?;
    module.add_class::<file::File>()?;
    module.add_function(wrap_pyfunction!(mounts::status, module)?)?;
    module.add_function(wrap_pyfunction!(mounts::heat, module)?)?;
    module.add_function(wrap_pyfunction!(_forked, module)?)?;
    module.add_function(wrap_pyfunction!(_close_all, module)?)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
