//! Arrays that a producer fills in place: memory of the pool as an ndarray, from `reserve` to `commit` and beyond.
//!
//! Guarantees: on a byte-addressable tier the array is the pool itself, and its commit copies nothing. It turns
//! read-only when committed or given up, and can be read for as long as Python keeps it, also when the writer is
//! closed; what it then shows is undefined once every reader has released the version. Elsewhere (pools on files,
//! the files channel, a version that is skipped) the array is ordinary memory that is put at commit.
//! Does not reach slices of the array that were made before: they stay writable and must not be written to.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use forebay_space::{Dtype, Kind, NdBox, Reservation, CONCAT};
use pyo3::prelude::*;

use crate::arrays;
use crate::buffer::{self, NewArray};
use crate::errors::{usage, wait_in_slices, OrRaise};
use crate::writer::Shared;

/// Where a piece goes.
pub struct Place<'a> {
    /// Variable.
    pub name: &'a str,
    /// Element type.
    pub dtype: Dtype,
    /// Global shape.
    pub shape: &'a [u64],
    /// First element.
    pub start: &'a [u64],
    /// Extents.
    pub count: &'a [u64],
}

/// An array that Python is filling.
pub struct Reserved {
    array: Py<PyAny>,
    memory: Memory,
    /// The concatenated variable that it is a part of.
    concatenated: Option<String>,
}

enum Memory {
    Pool(Reservation),
    Own {
        name: String,
        dtype: Dtype,
        shape: Vec<u64>,
        start: Vec<u64>,
    },
    /// Its commit has failed, and the memory is gone: the step cannot be whole.
    Lost,
}

impl Reserved {
    /// Whether this is that very array.
    pub fn is(&self, array: &Bound<'_, PyAny>) -> bool {
        self.array.is(array)
    }

    /// Whether it is a part of that concatenated variable.
    pub fn is_part_of(&self, name: &str) -> bool {
        self.concatenated.as_deref() == Some(name)
    }

    /// The concatenated variable that it is a part of.
    pub fn concatenated(&self) -> Option<&str> {
        self.concatenated.as_deref()
    }

    /// Makes the array read-only.
    pub fn freeze(&self, py: Python<'_>) -> PyResult<()> {
        self.array.bind(py).getattr("flags")?.setattr("writeable", false)
    }

    /// Publishes it in the open step. Where that fails it stays what it was, or is lost: the step is not whole without
    /// it.
    pub fn commit(
        &mut self,
        py: Python<'_>,
        shared: &Shared,
        version: u64,
        timeout: Duration,
    ) -> PyResult<()> {
        // First read-only, then published: nothing may be written under the readers.
        self.freeze(py)?;
        match std::mem::replace(&mut self.memory, Memory::Lost) {
            Memory::Pool(reservation) => {
                shared.without_gil(py, |state| state.in_step(version)?.commit(reservation)).or_raise(py)
            }
            Memory::Own { name, dtype, shape, start } => {
                let array = self.array.bind(py);
                let found = buffer::contiguous(array).expect("made as a contiguous array");
                let (count, bytes) = (found.dims, found.bytes);
                let put = wait_in_slices(py, timeout, |_| {
                    shared.lock().in_step(version)?.put(&name, dtype, &shape, &start, count, bytes)
                });
                if put.is_err() {
                    self.memory = Memory::Own { name, dtype, shape, start };
                }
                put
            }
            Memory::Lost => Err(usage(
                py,
                Kind::StepState,
                "the commit of a reserved array has failed, so the step is not whole",
                "abort the step, and put it again",
            )),
        }
    }
}

/// Base of an array over the pool.
#[pyclass(module = "forebay", frozen)]
struct PoolMemory {
    _mapping: Arc<dyn Any + Send + Sync>,
}

/// Space for a piece, as an array to write to.
pub fn reserve<'py>(
    py: Python<'py>,
    shared: &Shared,
    version: u64,
    skipped: bool,
    place: &Place<'_>,
    timeout: Duration,
) -> PyResult<(Reserved, Bound<'py, PyAny>)> {
    let descriptor = arrays::descriptor(py, place.dtype)?;
    let concatenated = (place.shape.first() == Some(&CONCAT)).then(|| place.name.to_string());
    shared.with(py, |state| state.in_step(version).map(drop)).or_raise(py)?;
    let mapping = shared.with(py, |state| Ok(state.writer()?.keep_alive())).or_raise(py)?;
    let Place { name, dtype, shape, start, count } = *place;
    let Some(_mapping) = mapping.filter(|_| !skipped) else {
        check_place(place).or_raise(py)?;
        let array = NewArray::new(py, dtype, descriptor.as_ref(), count)?.finish();
        let memory = Memory::Own { name: name.into(), dtype, shape: shape.to_vec(), start: start.to_vec() };
        return Ok((Reserved { array: array.clone().unbind(), memory, concatenated }, array));
    };
    let mut reservation = wait_in_slices(py, timeout, |_| {
        shared.lock().in_step(version)?.reserve(name, dtype, shape, start, count)
    })?;
    let owner = Bound::new(py, PoolMemory { _mapping })?.into_any();
    let array = buffer::writable_over(owner, reservation.as_mut_slice(), dtype, descriptor.as_ref(), count)?;
    let memory = Memory::Pool(reservation);
    Ok((Reserved { array: array.clone().unbind(), memory, concatenated }, array))
}

/// A box that does not fit is refused before memory is taken for it, as the space does it for its own.
fn check_place(place: &Place<'_>) -> forebay_space::Result<()> {
    let region = NdBox::new(place.start, place.count)?;
    region.check_inside(place.name, place.shape)?;
    region.bytes(place.dtype.size()).map(drop)
}
