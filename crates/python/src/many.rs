//! `put_many` and `get_many`: many small objects in one call.
//!
//! Guarantees: the arrays of a call are read (or filled) where they lie; nothing is allocated per object beyond the
//! references that keep names and arrays alive during the call; a put that finds no free space goes on at the object
//! where it stopped. An error names the object. Not here: what a put or a get is (`writer.rs`, `reader.rs`).

use forebay_space::{Dtype, Error, Kind, Piece, Reader, Result, Writer};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::buffer::{self, Contiguous};
use crate::errors::usage;
use crate::{arrays, convert};

const ZEROS: [u64; 16] = [0; 16];

/// What a call of `put_many` was given, kept alive.
pub struct Objects<'py> {
    names: Vec<Bound<'py, PyString>>,
    arrays: Arrays<'py>,
}

enum Arrays<'py> {
    /// One array: object `i` is its `i`-th part along the first axis.
    Stacked(Bound<'py, PyAny>),
    /// One array an object; true beside text.
    Each(Vec<(Bound<'py, PyAny>, bool)>),
}

/// The objects as the space takes them.
pub type Pieces<'a> = Vec<(Piece<'a>, &'a [u8])>;

impl<'py> Objects<'py> {
    /// From `put_many(dict)`, `put_many(names, array)` or `put_many(names, arrays)`.
    pub fn new(first: &Bound<'py, PyAny>, arrays: Option<&Bound<'py, PyAny>>) -> PyResult<Self> {
        let py = first.py();
        let hint = "put_many(names, array), put_many(names, list_of_arrays) or put_many({name: array})";
        let Some(arrays) = arrays.filter(|a| !a.is_none()) else {
            let Ok(both) = first.cast::<PyDict>() else {
                return Err(usage(py, Kind::Usage, "put_many was given no arrays", hint));
            };
            let names = both.iter().map(|(name, _)| text(&name)).collect::<PyResult<_>>()?;
            let arrays = both.iter().map(|(_, array)| one(array)).collect::<PyResult<_>>()?;
            return Ok(Objects { names, arrays: Arrays::Each(arrays) });
        };
        let names = names(first)?;
        let given = if let Some(found) = buffer::contiguous(arrays) {
            let parts = found.dims.first().copied().unwrap_or(0);
            (parts as usize, Arrays::Stacked(arrays.clone()))
        } else {
            let each = arrays.try_iter()?.map(|array| one(array?)).collect::<PyResult<Vec<_>>>()?;
            (each.len(), Arrays::Each(each))
        };
        if given.0 != names.len() {
            let what = format!("put_many was given {} names and {} arrays", names.len(), given.0);
            return Err(usage(py, Kind::BufferMismatch, what, hint));
        }
        Ok(Objects { names, arrays: given.1 })
    }

    /// The pieces, borrowed. Each object is the whole of its variable.
    pub fn pieces(&self) -> PyResult<Pieces<'_>> {
        let mut pieces = Vec::with_capacity(self.names.len());
        match &self.arrays {
            Arrays::Stacked(array) => {
                let Contiguous { dtype, dims, bytes } = expect(array);
                // With no name there is no axis to split, either.
                let shape = dims.get(1..).unwrap_or(&[]);
                let object = shape.iter().product::<u64>() as usize * dtype.size();
                for (i, name) in self.names.iter().enumerate() {
                    pieces.push((whole(name.to_str()?, dtype, shape), &bytes[i * object..(i + 1) * object]));
                }
            }
            Arrays::Each(each) => {
                for (name, (array, text)) in self.names.iter().zip(each) {
                    let Contiguous { dtype, dims, bytes } = expect(array);
                    pieces.push((whole(name.to_str()?, if *text { Dtype::Str } else { dtype }, dims), bytes));
                }
            }
        }
        Ok(pieces)
    }
}

fn expect<'a>(array: &'a Bound<'_, PyAny>) -> Contiguous<'a> {
    buffer::contiguous(array).expect("checked when it was taken")
}

fn whole<'a>(name: &'a str, dtype: Dtype, shape: &'a [u64]) -> Piece<'a> {
    // NumPy's 64 dimensions are more than a record holds; the space refuses them with the piece's name.
    let start = ZEROS.get(..shape.len()).unwrap_or(&ZEROS);
    Piece { name, dtype, shape, start, count: shape }
}

/// One array of its own, as an exact contiguous ndarray.
fn one(array: Bound<'_, PyAny>) -> PyResult<(Bound<'_, PyAny>, bool)> {
    if buffer::contiguous(&array).is_some() {
        return Ok((array, false));
    }
    arrays::to_contiguous(&array)
}

fn text<'py>(name: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyString>> {
    Ok(name.cast::<PyString>()?.clone())
}

/// The names of a call: any iterable of str but a str itself.
pub fn names<'py>(names: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyString>>> {
    if names.is_instance_of::<PyString>() {
        let hint = "a list of names; put and get take one";
        return Err(usage(names.py(), Kind::Usage, "expected a list of names, got one name", hint));
    }
    names.try_iter()?.map(|name| text(&name?)).collect()
}

/// Puts the pieces from `done` on, which rises with each.
pub fn put(writer: &mut Writer, pieces: &Pieces<'_>, done: &mut usize) -> Result<()> {
    writer.put_each(pieces[*done..].iter().copied(), done)
}

/// Copies each named variable, which must be of this type and shape, to its part of `out`.
pub fn get(reader: &mut Reader, names: &[&str], dtype: Dtype, shape: &[u64], out: &mut [u8]) -> Result<()> {
    let object = shape.iter().product::<u64>() as usize * dtype.size();
    let fits = |d: Dtype, s: &[u64]| convert::same_type(dtype, d) && s == shape;
    let mut done = 0;
    while done < names.len() {
        let take = |i: usize, d: Dtype, s: &[u64], bytes: &[u8]| {
            let takes = fits(d, s);
            if takes {
                out[i * object..(i + 1) * object].copy_from_slice(bytes);
            }
            takes
        };
        reader.with_each(names[done..].iter().copied(), object, take, &mut done)?;
        // The next one, if there is one, lies in several pieces, or is not what was asked for.
        let Some(name) = names.get(done) else { break };
        let part = &mut out[done * object..(done + 1) * object];
        get_one(reader, name, (dtype, shape), fits, part).map_err(|e| e.with("object", done))?;
        done += 1;
    }
    Ok(())
}

fn get_one(
    reader: &mut Reader,
    name: &str,
    (dtype, shape): (Dtype, &[u64]),
    fits: impl Fn(Dtype, &[u64]) -> bool,
    part: &mut [u8],
) -> Result<()> {
    let (has, is) = reader.array(name)?;
    if fits(has, &is) {
        return reader.get(name, None, part);
    }
    Err(Error::new(
        Kind::BufferMismatch,
        format!("{name} does not match dtype and shape of the output array"),
    )
    .with("variable", name)
    .with("dtype", has)
    .with("shape", format!("{:?}", is.as_slice()))
    .with("wanted", format!("{dtype} {shape:?}"))
    .hint("get_many takes objects of one dtype and shape; get takes one of any"))
}
