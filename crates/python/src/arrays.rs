//! Between Python objects and arrays: what may be put, which box is meant, what a dtype is called.
//!
//! Guarantees: an array in the memory of another device than CUDA's is refused by name and never touched; data that
//! is not C-contiguous in native byte order is copied once, by NumPy, before it is put. Decides nothing about where
//! pieces lie.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use forebay_space::{Dims, Dtype, Error, Kind, NdBox};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyEllipsis, PySlice, PyString, PyTuple};
use smallvec::SmallVec;

use crate::buffer;
use crate::detach::detached;
use crate::errors::{raise, usage, OrRaise};

/// Imports NumPy and looks its interface up, once. Another thread does that, in which no signal handler of Python runs:
/// one that raises meanwhile would be a panic of the `numpy` crate.
///
/// # Errors
/// What the import raises.
pub fn prepare_numpy(py: Python<'_>) -> PyResult<()> {
    static IS_READY: AtomicBool = AtomicBool::new(false);
    if IS_READY.load(SeqCst) {
        return Ok(());
    }
    py.import("numpy")?;
    let look_up = || Python::attach(|py| drop(numpy::dtype::<u8>(py)));
    // Where no thread can be started, or it ends in a panic, the first array looks it up.
    let looked_up =
        detached(py, || thread::Builder::new().spawn(look_up).map(|thread| thread.join().is_ok()));
    IS_READY.store(looked_up.unwrap_or(false), SeqCst);
    Ok(())
}

/// NumPy, imported at the first array that needs more than its C API.
pub fn numpy(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    static NUMPY: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    Ok(NUMPY.get_or_try_init(py, || py.import("numpy").map(Bound::unbind))?.bind(py).clone())
}

/// What `put` was given, as one exact ndarray, C-contiguous and native; `true` beside it for text.
///
/// Takes ndarrays of any layout, CPU DLPack objects, anything with the buffer protocol, str, numbers and lists.
#[cold]
pub fn to_contiguous<'py>(object: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, bool)> {
    let py = object.py();
    let np = numpy(py)?;
    if let Ok(text) = object.cast::<PyString>() {
        let bytes = text.call_method1("encode", ("utf-8",))?;
        return Ok((np.call_method1("frombuffer", (bytes, "u1"))?, true));
    }
    let ndarray = np.getattr("ndarray")?;
    let array = if object.is_instance(&ndarray)? || object.is_instance(&np.getattr("generic")?)? {
        refuse_masked(&np, object)?;
        np.call_method1("asarray", (object,))?
    } else if is_on_cuda_device(object)? {
        gpu(py)?.call_method1("to_host", (object,))?
    } else if object.hasattr("__dlpack_device__")? {
        np.call_method1("from_dlpack", (object,))?
    } else if let Ok(buffer) = py.import("builtins")?.call_method1("memoryview", (object,)) {
        np.call_method1("asarray", (buffer,))?
    } else {
        np.call_method1("asarray", (object,))?
    };
    Ok((native_contiguous(&np, array)?, false))
}

fn native_contiguous<'py>(
    np: &Bound<'py, PyModule>,
    array: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = np.py();
    let mut dtype = array.getattr("dtype")?;
    if dtype.getattr("byteorder")?.eq(">")? {
        dtype = dtype.call_method1("newbyteorder", ("=",))?;
    }
    learn_bfloat16(&array)?;
    let keywords = PyDict::new(py);
    keywords.set_item("dtype", &dtype)?;
    keywords.set_item("order", "C")?;
    let array = np.call_method("asarray", (array,), Some(&keywords))?;
    if buffer::contiguous(&array).is_none() {
        let what = format!("arrays of dtype {} cannot be kept", dtype.str()?);
        return Err(usage(py, Kind::BufferMismatch, what, &kept_dtypes()));
    }
    Ok(array)
}

/// Which element types there are, and what to do about another one.
fn kept_dtypes() -> String {
    let names: Vec<&str> = Dtype::ALL.iter().map(|dtype| dtype.name()).collect();
    format!(
        "these are, in native byte order: {}; convert others with array.astype(), take the fields of a structured \
         array one by one",
        names.join(", ")
    )
}

/// `ml_dtypes.bfloat16` has a type number of its own in each process.
fn learn_bfloat16(array: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Some(number) = buffer::type_number(array).filter(|n| *n >= 256) {
        if array.getattr("dtype")?.getattr("name")?.eq("bfloat16")? {
            buffer::set_bfloat16_number(number);
        }
    }
    Ok(())
}

fn refuse_masked(np: &Bound<'_, PyModule>, object: &Bound<'_, PyAny>) -> PyResult<()> {
    if buffer::type_number(object).is_none()
        && object.is_instance(&np.getattr("ma")?.getattr("MaskedArray")?)?
    {
        let hint = "put a.filled(...) or put data and mask as two variables";
        return Err(usage(np.py(), Kind::BufferMismatch, "a masked array would lose its mask", hint));
    }
    Ok(())
}

/// Whether this is an array in the memory of a CUDA device, which `forebay._gpu` copies; that of another is refused.
#[cold]
pub fn is_on_cuda_device(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    if object.hasattr("__dlpack_device__")? {
        return is_cuda(object);
    }
    object.hasattr("__cuda_array_interface__")
}

/// Copies from and to the memory of a CUDA device.
pub fn gpu(py: Python<'_>) -> PyResult<Bound<'_, PyModule>> {
    py.import("forebay._gpu")
}

/// By DLPack's device types: whether it is CUDA; no for those that a CPU can read, and others are refused.
fn is_cuda(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let device = object.call_method0("__dlpack_device__")?;
    let (kind, number): (i64, i64) = (device.get_item(0)?.extract()?, device.get_item(1)?.extract()?);
    let name = match kind {
        // The CPU; and pinned or managed memory, which it addresses too.
        1 | 3 | 11 | 13 => return Ok(false),
        2 => return Ok(true),
        4 => "OpenCL",
        7 => "Vulkan",
        8 => "Metal",
        9 => "VPI",
        10 => "ROCm",
        14 => "oneAPI",
        15 => "WebGPU",
        16 => "Hexagon",
        17 => "MAIA",
        _ => "unknown",
    };
    Err(in_device_memory(object.py(), object, &format!("{name} device {number} (DLPack device type {kind})")))
}

fn in_device_memory(py: Python<'_>, object: &Bound<'_, PyAny>, device: &str) -> PyErr {
    let class = object.get_type().qualname().map_or_else(|_| "?".into(), |n| n.to_string());
    let error = Error::new(Kind::DeviceMemory, format!("this {class} is in the memory of {device}"))
        .with("device", device)
        .hint("copy it to the host first, for example with .cpu(), .get() or numpy.asarray");
    raise(py, error)
}

/// The dtype object for types that NumPy lacks (bfloat16), else None.
pub fn descriptor<'py>(py: Python<'py>, dtype: Dtype) -> PyResult<Option<Bound<'py, PyAny>>> {
    if dtype != Dtype::BF16 {
        return Ok(None);
    }
    static BFLOAT16: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let found = BFLOAT16.get_or_try_init(py, || {
        let Ok(types) = py.import("ml_dtypes") else {
            let hint = "pip install ml_dtypes";
            return Err(usage(py, Kind::NotPossibleHere, "NumPy has no bfloat16", hint));
        };
        let dtype = numpy(py)?.call_method1("dtype", (types.getattr("bfloat16")?,))?;
        buffer::set_bfloat16_number(dtype.getattr("num")?.extract()?);
        Ok(dtype.unbind())
    })?;
    Ok(Some(found.bind(py).clone()))
}

/// The NumPy dtype object of a variable; text shows as bytes.
pub fn dtype_object<'py>(py: Python<'py>, dtype: Dtype) -> PyResult<Bound<'py, PyAny>> {
    match descriptor(py, dtype)? {
        Some(object) => Ok(object),
        None => numpy(py)?.call_method1("dtype", (if dtype == Dtype::Str { "uint8" } else { dtype.name() },)),
    }
}

/// Whether `out` is a writable array of this type and shape, of any layout.
pub fn fits_strided(out: &Bound<'_, PyAny>, dtype: Dtype, dims: &[u64]) -> PyResult<bool> {
    let py = out.py();
    if !out.is_instance(&numpy(py)?.getattr("ndarray")?)?
        || !out.getattr("flags")?.getattr("writeable")?.is_truthy()?
    {
        return Ok(false);
    }
    let same_shape = out.getattr("shape")?.eq(PyTuple::new(py, dims)?)?;
    Ok(same_shape && out.getattr("dtype")?.eq(dtype_object(py, dtype)?)?)
}

/// A dtype named by the caller of `reserve`: anything that `numpy.dtype` takes.
pub fn parse_dtype(object: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    let py = object.py();
    if object.cast::<PyString>().is_ok_and(|name| name == "bfloat16") {
        descriptor(py, Dtype::BF16)?;
    }
    let dtype = numpy(py)?.call_method1("dtype", (object,))?;
    if dtype.getattr("name")?.eq("bfloat16")? {
        return Ok(Dtype::BF16);
    }
    let native = !dtype.getattr("byteorder")?.eq(">")?;
    match buffer::dtype_of_number(dtype.getattr("num")?.extract()?).filter(|_| native) {
        Some(found) => Ok(found),
        None => {
            let what = format!("dtype {} cannot be kept", dtype.str()?);
            Err(usage(py, Kind::Usage, what, &kept_dtypes()))
        }
    }
}

/// A tuple or list of sizes, or one integer.
#[inline]
pub fn dims(object: &Bound<'_, PyAny>) -> PyResult<Dims> {
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return tuple.iter_borrowed().map(|item| size(&item)).collect();
    }
    if let Ok(one) = object.extract::<u64>() {
        return Ok(SmallVec::from_slice(&[one]));
    }
    object.try_iter()?.map(|item| size(&item?)).collect()
}

#[inline]
fn size(item: &Bound<'_, PyAny>) -> PyResult<u64> {
    item.extract::<u64>().map_err(|_| {
        let what = format!(
            "{} is not a valid size or offset",
            item.repr().map_or_else(|_| "?".into(), |r| r.to_string())
        );
        usage(item.py(), Kind::Usage, what, "sizes and offsets are integers, 0 or more")
    })
}

/// A box asked for by slices: the box, and the axes that integers drop.
pub struct Selection {
    /// The box in the variable's index space.
    pub region: NdBox,
    /// For each axis: whether the result keeps it.
    pub kept: SmallVec<[bool; 4]>,
}

/// Reads `slice | int | ... | tuple of them` against the shape of a variable.
pub fn select(key: &Bound<'_, PyAny>, shape: &[u64]) -> PyResult<Selection> {
    let py = key.py();
    let keys: Vec<Bound<'_, PyAny>> = match key.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().collect(),
        Err(_) => vec![key.clone()],
    };
    let ellipses = keys.iter().filter(|k| k.is_instance_of::<PyEllipsis>()).count();
    let given = keys.len() - ellipses;
    if given > shape.len() || ellipses > 1 {
        let what = format!("{given} indices for a variable of {} dimensions", shape.len());
        return Err(usage(py, Kind::BoxOutsideShape, what, ""));
    }
    let mut starts = Dims::new();
    let mut counts = Dims::new();
    let mut kept = SmallVec::new();
    let whole_axes = |starts: &mut Dims, counts: &mut Dims, kept: &mut SmallVec<[bool; 4]>, n: usize| {
        for _ in 0..n {
            counts.push(shape[starts.len()]);
            starts.push(0);
            kept.push(true);
        }
    };
    for key in &keys {
        if key.is_instance_of::<PyEllipsis>() {
            whole_axes(&mut starts, &mut counts, &mut kept, shape.len() - given);
            continue;
        }
        let (start, count, keep) = select_axis(key, shape[starts.len()])?;
        starts.push(start);
        counts.push(count);
        kept.push(keep);
    }
    let rest = shape.len() - starts.len();
    whole_axes(&mut starts, &mut counts, &mut kept, rest);
    Ok(Selection { region: NdBox::new(&starts, &counts).or_raise(py)?, kept })
}

fn select_axis(key: &Bound<'_, PyAny>, length: u64) -> PyResult<(u64, u64, bool)> {
    let py = key.py();
    if let Ok(slice) = key.cast::<PySlice>() {
        let range = slice.indices(length as isize)?;
        if range.step != 1 {
            let what = format!("a slice with step {}", range.step);
            return Err(usage(py, Kind::Usage, what, "read the box without a step, then slice the array"));
        }
        // PySlice clips as Python does; start <= stop is not given for an empty slice.
        return Ok((range.start as u64, range.slicelength as u64, true));
    }
    let index: i64 = key.extract().map_err(|_| {
        let what = format!(
            "{} is not a valid index of a box",
            key.repr().map_or_else(|_| "?".into(), |r| r.to_string())
        );
        usage(py, Kind::Usage, what, "boxes are made of slices, integers and ...")
    })?;
    let at = if index < 0 { index + length as i64 } else { index };
    if at < 0 || at >= length as i64 {
        let what = format!("index {index} is out of range for an axis of length {length}");
        return Err(usage(py, Kind::BoxOutsideShape, what, ""));
    }
    Ok((at as u64, 1, false))
}
