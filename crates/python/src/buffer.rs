//! The only file with `unsafe` in this package: raw memory of ndarrays, in both directions, and of mapped regions and
//! windows.
//!
//! Guarantees: a slice handed out lives no longer than the borrow of the array it belongs to; an array made over
//! foreign memory holds its owner alive; a read-only array cannot be made writable again from Python, because its
//! base offers no buffer. Does not guard against Python threads that write into an array while it is being copied
//! (as everywhere in NumPy: the copy may then hold a mixture, nothing else breaks).
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_pager::Window;
use forebay_space::{Dtype, Error, Kind};
use forebay_tier::SharedRegion;
use numpy::npyffi::{self, npy_intp, PyArrayObject, PyArray_Descr, PY_ARRAY_API};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::errors::OrRaise;

/// NumPy's type number of `ml_dtypes.bfloat16`, once it was seen; user-defined types get theirs at run time.
static BFLOAT16_NUMBER: AtomicI32 = AtomicI32::new(-1);

/// Remembers the type number of bfloat16.
pub fn set_bfloat16_number(number: i32) {
    BFLOAT16_NUMBER.store(number, Ordering::Relaxed);
}

/// A C-contiguous ndarray in native byte order, borrowed.
pub struct Contiguous<'a> {
    /// Element type.
    pub dtype: Dtype,
    /// Shape of the array.
    pub dims: &'a [u64],
    /// All elements, in C order.
    pub bytes: &'a [u8],
}

/// The contents of `object` when it is exactly an ndarray (no subclass), C-contiguous, of a type that Forebay keeps.
#[inline]
pub fn contiguous<'a>(object: &'a Bound<'_, PyAny>) -> Option<Contiguous<'a>> {
    let raw = exact_array(object)?;
    // SAFETY: `exact_array` checked the type; the object is borrowed for 'a, and NumPy neither reallocates the data
    // nor the dimensions of an array that is referenced elsewhere (`resize` refuses, `shape=` keeps the storage).
    unsafe {
        let array = &*raw;
        if array.flags & npyffi::NPY_ARRAY_C_CONTIGUOUS == 0 || (*array.descr).byteorder as u8 == b'>' {
            return None;
        }
        let dtype = dtype_of_number((*array.descr).type_num)?;
        let dims = dims_of(array);
        let items: u64 = dims.iter().product();
        let bytes = bytes_at(array.data.cast(), items as usize * dtype.size());
        Some(Contiguous { dtype, dims, bytes })
    }
}

/// A C-contiguous ndarray that may be written to, borrowed.
pub struct Destination<'a> {
    /// Element type.
    pub dtype: Dtype,
    /// Shape of the array.
    pub dims: &'a [u64],
    /// All elements, in C order.
    pub bytes: &'a mut [u8],
}

/// Like [`contiguous`] for a destination: also requires the array to be writable.
pub fn destination<'a>(object: &'a Bound<'_, PyAny>) -> Option<Destination<'a>> {
    let raw = exact_array(object)?;
    // SAFETY: as in `contiguous`; the writable flag says that NumPy allows writes, and the callers (`get`,
    // `get_many` and `gather` with `out`) make no second slice of the same array while this one lives.
    unsafe {
        let array = &*raw;
        let wanted = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_WRITEABLE;
        if array.flags & wanted != wanted || (*array.descr).byteorder as u8 == b'>' {
            return None;
        }
        let dtype = dtype_of_number((*array.descr).type_num)?;
        let dims = dims_of(array);
        let length = dims.iter().product::<u64>() as usize * dtype.size();
        let bytes = match length {
            0 => &mut [],
            _ => std::slice::from_raw_parts_mut(array.data.cast::<u8>(), length),
        };
        Some(Destination { dtype, dims, bytes })
    }
}

/// Type number of an ndarray's dtype, for types that [`contiguous`] does not know.
pub fn type_number(object: &Bound<'_, PyAny>) -> Option<i32> {
    let raw = exact_array(object)?;
    // SAFETY: `exact_array` checked the type; an array always has a descriptor.
    Some(unsafe { (*(*raw).descr).type_num })
}

/// A fresh ndarray, C order, contents undefined until filled.
pub struct NewArray<'py> {
    array: Bound<'py, PyAny>,
    bytes: usize,
}

impl<'py> NewArray<'py> {
    /// Allocates through NumPy. `descriptor` is needed for bfloat16 only.
    #[inline]
    pub fn new(
        py: Python<'py>,
        dtype: Dtype,
        descriptor: Option<&Bound<'py, PyAny>>,
        dims: &[u64],
    ) -> PyResult<Self> {
        let items: u64 = dims.iter().product();
        let array = from_descriptor(py, dtype, descriptor, dims, std::ptr::null_mut(), 0)?;
        Ok(NewArray { array, bytes: items as usize * dtype.size() })
    }

    /// The memory to fill.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        let raw = self.array.as_ptr().cast::<PyArrayObject>();
        // SAFETY: the array was allocated by NumPy in `new` with `bytes` bytes and no other code has seen it yet.
        // The bytes are only written by the callee (`Reader::get` fills all of them or fails).
        unsafe { std::slice::from_raw_parts_mut((*raw).data.cast::<u8>(), self.bytes) }
    }

    /// The array, for the caller.
    #[inline]
    pub fn finish(self) -> Bound<'py, PyAny> {
        self.array
    }
}

/// An ndarray over `bytes` that lie outside Python; `owner` keeps them mapped for as long as the array lives.
///
/// Read-only, for good: `flags.writeable = True` is refused since `owner` exports no buffer.
pub fn read_only_over<'py>(
    owner: Bound<'py, PyAny>,
    bytes: &[u8],
    dtype: Dtype,
    descriptor: Option<&Bound<'py, PyAny>>,
    dims: &[u64],
) -> PyResult<Bound<'py, PyAny>> {
    let data = bytes.as_ptr().cast_mut().cast();
    over(owner, data, bytes.len(), dtype, descriptor, dims, 0)
}

/// A writable ndarray over `bytes` that lie outside Python; `owner` keeps them mapped for as long as the array lives.
pub fn writable_over<'py>(
    owner: Bound<'py, PyAny>,
    bytes: &mut [u8],
    dtype: Dtype,
    descriptor: Option<&Bound<'py, PyAny>>,
    dims: &[u64],
) -> PyResult<Bound<'py, PyAny>> {
    let data = bytes.as_mut_ptr().cast();
    over(owner, data, bytes.len(), dtype, descriptor, dims, npyffi::NPY_ARRAY_WRITEABLE)
}

fn over<'py>(
    owner: Bound<'py, PyAny>,
    data: *mut c_void,
    bytes: usize,
    dtype: Dtype,
    descriptor: Option<&Bound<'py, PyAny>>,
    dims: &[u64],
    writable: c_int,
) -> PyResult<Bound<'py, PyAny>> {
    let py = owner.py();
    let items: u64 = dims.iter().product();
    assert!(items as usize * dtype.size() <= bytes, "an array over foreign memory must lie inside it");
    let flags = npyffi::NPY_ARRAY_C_CONTIGUOUS | npyffi::NPY_ARRAY_ALIGNED | writable;
    let array = from_descriptor(py, dtype, descriptor, dims, data, flags)?;
    // SAFETY: `array` is a fresh ndarray; SetBaseObject takes over the reference of `owner`, also when it fails.
    let status = unsafe {
        PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast::<PyArrayObject>(), owner.into_ptr())
    };
    if status < 0 {
        return Err(PyErr::fetch(py));
    }
    Ok(array)
}

fn from_descriptor<'py>(
    py: Python<'py>,
    dtype: Dtype,
    descriptor: Option<&Bound<'py, PyAny>>,
    dims: &[u64],
    data: *mut c_void,
    flags: c_int,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: type number and descriptor are valid for NumPy (table below, or an object that `np.dtype` returned);
    // NewFromDescr takes over one reference of the descriptor and copies the dimensions.
    unsafe {
        let descr: *mut PyArray_Descr = match descriptor {
            Some(object) => object.clone().into_ptr().cast(),
            None => PY_ARRAY_API.PyArray_DescrFromType(py, number_of(dtype)),
        };
        if descr.is_null() {
            return Err(PyErr::fetch(py));
        }
        let array = PY_ARRAY_API.PyArray_NewFromDescr(
            py,
            PY_ARRAY_API.get_type_object(py, npyffi::NpyTypes::PyArray_Type),
            descr,
            dims.len() as c_int,
            dims.as_ptr().cast_mut().cast::<npy_intp>(),
            std::ptr::null_mut(),
            data,
            flags,
            std::ptr::null_mut(),
        );
        Bound::from_owned_ptr_or_err(py, array)
    }
}

#[inline]
fn exact_array(object: &Bound<'_, PyAny>) -> Option<*mut PyArrayObject> {
    // SAFETY: compares the type pointer of a live object with NumPy's.
    let exact = unsafe { npyffi::PyArray_CheckExact(object.py(), object.as_ptr()) != 0 };
    exact.then(|| object.as_ptr().cast())
}

/// # Safety
/// `array` must be a live ndarray that stays so for 'a.
#[inline]
unsafe fn dims_of<'a>(array: &PyArrayObject) -> &'a [u64] {
    if array.nd == 0 {
        return &[];
    }
    // SAFETY: NumPy keeps `nd` dimensions, none negative, as pointer-sized integers; this package is 64-bit only.
    unsafe { std::slice::from_raw_parts(array.dimensions.cast::<u64>(), array.nd as usize) }
}

/// # Safety
/// `data` must point to `bytes` readable bytes that live for 'a, unless `bytes` is 0.
#[inline]
unsafe fn bytes_at<'a>(data: *const u8, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: as the caller promised.
    unsafe { std::slice::from_raw_parts(data, bytes) }
}

const _: () = assert!(size_of::<npy_intp>() == 8, "dimensions are read as 64-bit integers");

/// The element type of a NumPy type number; `None` for the ones that Forebay does not keep.
#[inline]
pub fn dtype_of_number(number: i32) -> Option<Dtype> {
    Some(match number {
        0 => Dtype::Bool,
        1 => Dtype::I8,
        2 => Dtype::U8,
        3 => Dtype::I16,
        4 => Dtype::U16,
        5 => Dtype::I32,
        6 => Dtype::U32,
        // `long` and `long long` are both 64 bits wide on every platform of this package.
        7 | 9 => Dtype::I64,
        8 | 10 => Dtype::U64,
        11 => Dtype::F32,
        12 => Dtype::F64,
        14 => Dtype::C64,
        15 => Dtype::C128,
        23 => Dtype::F16,
        other if other >= 0 && other == BFLOAT16_NUMBER.load(Ordering::Relaxed) => Dtype::BF16,
        _ => return None,
    })
}

/// NumPy's type number; text is seen as its UTF-8 bytes. Not for bfloat16.
#[inline]
fn number_of(dtype: Dtype) -> c_int {
    match dtype {
        Dtype::Bool => 0,
        Dtype::I8 => 1,
        Dtype::U8 | Dtype::Str => 2,
        Dtype::I16 => 3,
        Dtype::U16 => 4,
        Dtype::I32 => 5,
        Dtype::U32 => 6,
        Dtype::I64 => 7,
        Dtype::U64 => 8,
        Dtype::F32 => 11,
        Dtype::F64 => 12,
        Dtype::C64 => 14,
        Dtype::C128 => 15,
        Dtype::F16 => 23,
        Dtype::BF16 => 4,
    }
}

/// Base of `forebay.Region`: its memory, through the buffer protocol.
///
/// NumPy keeps a reference to the object that gave a buffer, not always the buffer itself; so once memory was handed
/// out it stays mapped until this object is gone, closed or not.
#[pyclass(module = "forebay", name = "_RegionMemory", subclass, frozen)]
pub struct RegionMemory(Mutex<Mapped>);

struct Mapped {
    region: Option<SharedRegion>,
    closed: bool,
    handed_out: bool,
}

impl RegionMemory {
    /// The memory of a region, open.
    pub fn new(region: SharedRegion) -> Self {
        RegionMemory(Mutex::new(Mapped { region: Some(region), closed: false, handed_out: false }))
    }

    /// The region, for one call; it stays mapped until the copy is dropped.
    pub fn region(&self) -> forebay_space::Result<SharedRegion> {
        let mapped = self.lock();
        match &mapped.region {
            Some(region) if !mapped.closed => Ok(region.clone()),
            _ => Err(Error::new(Kind::Closed, "this region is closed")),
        }
    }

    /// No call after this one; unmaps the memory unless its address was given out.
    pub fn close(&self) {
        let mut mapped = self.lock();
        mapped.closed = true;
        if !mapped.handed_out {
            mapped.region = None;
        }
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, Mapped> {
        // Held for a few assignments only, which cannot panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl RegionMemory {
    /// # Safety
    /// Called by Python, as its buffer protocol says.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = slf.py();
        if view.is_null() {
            return Err(PyBufferError::new_err("no place for the view"));
        }
        let region = slf.get().region().or_raise(py)?;
        let (data, bytes) = (region.as_ptr().cast(), region.len() as ffi::Py_ssize_t);
        let read_only = c_int::from(!region.is_writable());
        slf.get().lock().handed_out = true;
        // SAFETY: `view` is Python's, not NULL; the memory stays mapped for as long as `slf` lives, because
        // `handed_out` is set, and the view takes a reference to it.
        let status = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data, bytes, read_only, flags) };
        if status != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(())
    }
}

/// Base of `forebay.Window`: its memory, through the buffer protocol. Once it was handed out it stays until this object
/// is gone, closed or not.
#[pyclass(module = "forebay", name = "_WindowMemory", subclass, frozen)]
pub struct WindowMemory(Mutex<Shown>);

struct Shown {
    window: Option<Window>,
    closed: bool,
    handed_out: bool,
}

impl WindowMemory {
    /// The memory of a window, open.
    pub fn new(window: Window) -> Self {
        WindowMemory(Mutex::new(Shown { window: Some(window), closed: false, handed_out: false }))
    }

    /// Calls `work` with the window, unless it is closed.
    pub fn with<T>(
        &self,
        work: impl FnOnce(&mut Window) -> forebay_space::Result<T>,
    ) -> forebay_space::Result<T> {
        let shown = &mut *self.lock();
        match &mut shown.window {
            Some(window) if !shown.closed => work(window),
            _ => Err(Error::new(Kind::Closed, "this window is closed").hint("open it again")),
        }
    }

    /// No call after this one. What was stored is made durable; the memory goes unless its address was given out.
    pub fn close(&self) -> forebay_space::Result<()> {
        let shown = &mut *self.lock();
        if std::mem::replace(&mut shown.closed, true) {
            return Ok(());
        }
        match &mut shown.window {
            Some(window) if shown.handed_out => window.flush().and(window.check()),
            window => window.take().map_or(Ok(()), |window| window.check().and(window.close())),
        }
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl WindowMemory {
    /// # Safety
    /// Called by Python, as its buffer protocol says.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = slf.py();
        if view.is_null() {
            return Err(PyBufferError::new_err("no place for the view"));
        }
        let seen = slf
            .get()
            .with(|window| Ok((window.as_ptr(), window.bytes() as ffi::Py_ssize_t, window.is_writable())));
        let (data, bytes, writable) = seen.or_raise(py)?;
        slf.get().lock().handed_out = true;
        // SAFETY: `view` is Python's, not NULL; the memory stays for as long as `slf` lives, because `handed_out` is
        // set, and the view takes a reference to it. Touching it brings what is not there, or is the signal that a
        // mapping of a file gives, too.
        let status = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), data.cast(), bytes, c_int::from(!writable), flags)
        };
        if status != 0 {
            return Err(PyErr::fetch(py));
        }
        Ok(())
    }
}
