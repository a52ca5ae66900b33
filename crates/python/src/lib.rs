//! The compiled part of the Python package `forebay`.
//!
//! Thin: arguments in, arrays out; every promise is kept by `forebay-space`. Unsafe code is in `buffer.rs` only.
#![deny(unsafe_code)]

mod arrays;
mod buffer;
mod cell;
mod checkpoint;
mod convert;
mod detach;
mod errors;
mod handles;
mod many;
mod options;
mod paged;
mod reader;
mod region;
mod reserve;
mod window;
mod writer;

use std::ffi::OsString;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::detach::detached;
use crate::errors::{usage, OrRaise};

/// Opens a space: mode "w" (starts over), "a" (goes on behind what is complete) or "x" (refuses a space that is there)
/// as one rank of its writers, mode "r" as one rank of a group of readers.
#[pyfunction]
#[pyo3(signature = (name, mode="r", **options))]
// options: begin
#[pyo3(text_signature = "(name, mode='r', *, rank=None, size=None, comm=None, component=None, group=None, \
    observer=False, channel='space', tier=None, quota=None, spill=None, \
    when_full=None, segment=None, horizon=None, retention=None, checksum=None, \
    batch=None, replace=False, verify='first', timeout=60, latest=False, \
    finished=False, scope='job', readers=None, absent=None)")]
// options: end
fn open<'py>(
    py: Python<'py>,
    name: &Bound<'py, PyAny>,
    mode: &str,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let name: String = py.import("os")?.call_method1("fspath", (name,))?.extract()?;
    let writes = match (mode, mode.parse()) {
        ("r", _) => None,
        (_, Ok(mode)) => Some(mode),
        (other, Err(_)) => {
            let what = format!("invalid mode {other:?}");
            return Err(usage(py, forebay_space::Kind::Usage, what, "mode is \"r\", \"w\", \"a\" or \"x\""));
        }
    };
    let options = options::from_keywords(py, &name, writes, options)?;
    arrays::prepare_numpy(py)?;
    match writes {
        None => Ok(Bound::new(py, reader::PyReader::open(py, &name, options)?)?.into_any()),
        Some(_) => Ok(Bound::new(py, writer::PyWriter::open(py, &name, options)?)?.into_any()),
    }
}

/// Every space under the root: what inspect() says, without the versions.
#[pyfunction]
fn list_spaces(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let found = detached(py, forebay_space::list).or_raise(py)?;
    convert::to_python(py, &found)
}

/// Describes a space without taking part in it.
#[pyfunction]
fn inspect<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    convert::inspect(py, name)
}

/// Reads every byte of a space and compares checksums.
#[pyfunction]
fn verify<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let report = detached(py, || forebay_space::verify(name)).or_raise(py)?;
    convert::to_python(py, &report)
}

/// Removes spaces that no live process holds.
#[pyfunction]
#[pyo3(signature = (*names, dead_only=false, dry_run=false))]
fn clean<'py>(
    py: Python<'py>,
    names: Vec<String>,
    dead_only: bool,
    dry_run: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let options = forebay_space::CleanOptions { names, dead_only, dry_run };
    let report = detached(py, || forebay_space::clean(&options)).or_raise(py)?;
    convert::to_python(py, &report)
}

/// Removes one space.
#[pyfunction]
fn destroy(py: Python<'_>, name: &str) -> PyResult<()> {
    detached(py, || forebay_space::destroy(name)).or_raise(py)
}

/// Directory of short names: $FOREBAY_DIR, else /dev/shm/forebay-<uid>.
#[pyfunction]
fn root(py: Python<'_>) -> PyResult<String> {
    forebay_space::root().map(|path| path.display().to_string()).or_raise(py)
}

/// The `forebay` command with these words; `again` are the words that start it again, `libraries` is the folder of
/// the libraries that come with it. Returns its exit status.
#[pyfunction]
fn command_line(py: Python<'_>, words: Vec<OsString>, again: Vec<OsString>, libraries: PathBuf) -> i32 {
    detached(py, || forebay_cli::main_with_command(words, again, libraries))
}

/// A size in bytes: `64MiB`, or a number.
#[pyfunction]
fn _bytes(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    paged::bytes("size", value)
}

/// Kinds of errors with their code and exit status, as compiled in.
#[pyfunction]
fn _kinds() -> Vec<(&'static str, u16, i32)> {
    forebay_space::Kind::ALL.iter().map(|kind| (kind.name(), kind.code(), kind.exit_code())).collect()
}

#[pymodule]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    let end = pyo3::wrap_pyfunction!(detach::end, module)?;
    module.py().import("atexit")?.call_method1("register", (end,))?;
    module.add_class::<writer::PyWriter>()?;
    module.add_class::<writer::WriteStep>()?;
    module.add_class::<writer::WriterSteps>()?;
    module.add_class::<reader::PyReader>()?;
    module.add_class::<reader::ReadStep>()?;
    module.add_class::<reader::ReaderSteps>()?;
    module.add_class::<reader::Subscription>()?;
    module.add_class::<convert::Variable>()?;
    module.add_class::<convert::Piece>()?;
    module.add_class::<region::PyRegion>()?;
    module.add_class::<paged::PyPool>()?;
    module.add_class::<paged::PyPaged>()?;
    module.add_class::<paged::PyVersionBacking>()?;
    module.add_class::<window::PyWindow>()?;
    module.add_class::<checkpoint::PyCheckpoint>()?;
    module.add_function(wrap_pyfunction!(region::map, module)?)?;
    module.add_function(wrap_pyfunction!(open, module)?)?;
    module.add_function(wrap_pyfunction!(list_spaces, module)?)?;
    module.add_function(wrap_pyfunction!(inspect, module)?)?;
    module.add_function(wrap_pyfunction!(verify, module)?)?;
    module.add_function(wrap_pyfunction!(clean, module)?)?;
    module.add_function(wrap_pyfunction!(destroy, module)?)?;
    module.add_function(wrap_pyfunction!(root, module)?)?;
    module.add_function(wrap_pyfunction!(command_line, module)?)?;
    module.add_function(wrap_pyfunction!(_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(_kinds, module)?)
}
