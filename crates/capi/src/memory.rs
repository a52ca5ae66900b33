//! From raw pointers to Rust values: the only place where memory of the caller is turned into references.
//!
//! Guarantees: NULL, misaligned, not UTF-8 and absurdly large become errors. It does not and cannot check
//! that the memory is alive and as long as the caller says: that is the contract of the header.

use crate::status::null;
use crate::FB_DIMENSIONS_MAX;
use forebay_space::{Dims, Dtype, Error, Kind, NdBox, Result};
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

/// A handle that C holds by pointer; `what` names it in errors.
///
/// # Safety
/// NULL, or a pointer that [`give`] made for this type and [`take`] has not taken back.
pub(crate) unsafe fn handle<'a, T>(pointer: *const T, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's contract; NULL is None.
    unsafe { pointer.as_ref() }.ok_or_else(|| null(what).hint("it was never opened, or is closed already"))
}

/// Locks the state of a handle; a handle that a panic left in pieces is refused.
pub(crate) fn lock<'a, T>(state: &'a Mutex<T>, what: &str) -> Result<MutexGuard<'a, T>> {
    state.lock().map_err(|_| {
        Error::new(Kind::Internal, format!("{what} is unusable after an internal error"))
            .hint("close it and open a new one")
    })
}

/// Hands a value to C.
pub(crate) fn give<T>(value: T, to: Out<*mut T>) {
    to.set(Box::into_raw(Box::new(value)));
}

/// Takes a handle back from C and sets C's variable to NULL; None when it was NULL already.
///
/// # Safety
/// `slot` is NULL or points to a pointer that is NULL or came from [`give`]; no call on it is in progress.
pub(crate) unsafe fn take<T>(slot: *mut *mut T, what: &str) -> Result<Option<Box<T>>> {
    // SAFETY: the caller's contract for `slot`.
    let slot = unsafe { out(slot, what)? };
    // SAFETY: `out` saw that it is not NULL and aligned; the caller's contract says that it is initialised.
    let pointer = unsafe { slot.0.as_ptr().read() };
    slot.set(std::ptr::null_mut());
    // SAFETY: a pointer that is not NULL came from `Box::into_raw` in `give` and is taken once: the variable
    // that held it is NULL now.
    Ok((!pointer.is_null()).then(|| unsafe { Box::from_raw(pointer) }))
}

/// A place for a result.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Stores the result.
    pub(crate) fn set(self, value: T) {
        // SAFETY: `out` checked NULL and alignment; that it is writable memory for a T is the caller's
        // contract.
        unsafe { self.0.as_ptr().write(value) }
    }
}

/// A result that must have a place.
///
/// # Safety
/// NULL, or writable memory for one T that outlives the returned value.
pub(crate) unsafe fn out<T>(pointer: *mut T, what: &str) -> Result<Out<T>> {
    let place = NonNull::new(pointer).ok_or_else(|| null(what))?;
    aligned(pointer, what)?;
    Ok(Out(place))
}

/// A result that the caller may not care about (NULL).
///
/// # Safety
/// As [`out`].
pub(crate) unsafe fn out_or_null<T>(pointer: *mut T, what: &str) -> Result<Option<Out<T>>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    unsafe { out(pointer, what) }.map(Some)
}

/// A text of the caller.
///
/// # Safety
/// NULL, or a NUL-terminated text that does not change while the result is in use.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: not NULL; terminated by the caller's contract.
    unsafe { CStr::from_ptr(pointer) }
        .to_str()
        .map_err(|e| Error::new(Kind::Usage, format!("{what} is not UTF-8: {e}")))
}

/// A text that may be left out.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn word<'a>(pointer: *const c_char, what: &str) -> Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    unsafe { text(pointer, what) }.map(Some)
}

/// Many texts of the caller.
///
/// # Safety
/// NULL, or `number` readable pointers, each as in [`text`], that do not change while the result is in use.
pub(crate) unsafe fn texts<'a>(
    pointers: *const *const c_char,
    number: usize,
    what: &str,
) -> Result<Vec<&'a str>> {
    if number == 0 {
        return Ok(Vec::new());
    }
    if pointers.is_null() {
        return Err(null(what));
    }
    aligned(pointers, what)?;
    fits(number.saturating_mul(size_of::<*const c_char>()), what)?;
    // SAFETY: not NULL, aligned, at most isize::MAX bytes; readable by the caller's contract.
    let pointers = unsafe { std::slice::from_raw_parts(pointers, number) };
    // SAFETY: the caller's contract for each.
    let one = |(i, p): (usize, &*const c_char)| unsafe { text(*p, what) }.map_err(|e| e.with("object", i));
    pointers.iter().enumerate().map(one).collect()
}

/// `bytes` bytes to read; NULL is fine when there are none.
///
/// # Safety
/// NULL, or `bytes` readable bytes that do not change while the result is in use.
pub(crate) unsafe fn input<'a>(pointer: *const c_void, bytes: usize, what: &str) -> Result<&'a [u8]> {
    if bytes == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(what).with("bytes", bytes));
    }
    fits(bytes, what)?;
    // SAFETY: not NULL, at most isize::MAX bytes, bytes have no alignment; readable by the caller's contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer.cast(), bytes) })
}

/// `number` numbers to read; NULL is fine when there are none.
///
/// # Safety
/// NULL, or `number` readable numbers that do not change while the result is in use.
pub(crate) unsafe fn numbers<'a>(pointer: *const u64, number: usize, what: &str) -> Result<&'a [u64]> {
    if number == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(what).with("numbers", number));
    }
    aligned(pointer, what)?;
    fits(number.saturating_mul(size_of::<u64>()), what)?;
    // SAFETY: not NULL, aligned, at most isize::MAX bytes; readable by the caller's contract.
    Ok(unsafe { std::slice::from_raw_parts(pointer, number) })
}

/// `bytes` bytes to fill; NULL is fine when there are none.
///
/// # Safety
/// NULL, or `bytes` writable bytes that no other code uses while the result is in use.
pub(crate) unsafe fn output<'a>(pointer: *mut c_void, bytes: usize, what: &str) -> Result<&'a mut [u8]> {
    if bytes == 0 {
        return Ok(&mut []);
    }
    if pointer.is_null() {
        return Err(null(what).with("bytes", bytes));
    }
    fits(bytes, what)?;
    // SAFETY: not NULL, at most isize::MAX bytes, bytes have no alignment; writable and unshared by the
    // caller's contract. Memory fresh from malloc counts as initialised here: the border hides where it came
    // from.
    Ok(unsafe { std::slice::from_raw_parts_mut(pointer.cast(), bytes) })
}

/// Shape, start or count of the caller; None when NULL (and there are dimensions).
///
/// # Safety
/// NULL, or `ndim` readable numbers that do not change while the result is in use.
pub(crate) unsafe fn extents<'a>(pointer: *const u64, ndim: usize, what: &str) -> Result<Option<&'a [u64]>> {
    if ndim == 0 {
        return Ok(Some(&[]));
    }
    if pointer.is_null() {
        return Ok(None);
    }
    aligned(pointer, what)?;
    // SAFETY: not NULL, aligned, at most FB_DIMENSIONS_MAX numbers (`dimensions`), readable by the contract.
    Ok(Some(unsafe { std::slice::from_raw_parts(pointer, ndim) }))
}

/// The number of dimensions, when it can be one.
pub(crate) fn dimensions(ndim: c_int) -> Result<usize> {
    if !(0..=FB_DIMENSIONS_MAX).contains(&ndim) {
        return Err(Error::new(Kind::Usage, format!("a variable cannot have {ndim} dimensions"))
            .hint(format!("ndim goes from 0 (a scalar) to {FB_DIMENSIONS_MAX}")));
    }
    Ok(ndim.unsigned_abs() as usize)
}

/// A piece of a variable as a writer describes it.
pub(crate) struct Piece<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [u64],
    pub(crate) place: NdBox,
    pub(crate) bytes: usize,
}

impl<'a> Piece<'a> {
    /// Reads the arguments that `fb_put` and `fb_reserve` share. The box is checked here because its size
    /// says how much of the caller's memory is touched.
    ///
    /// # Safety
    /// `name` as [`text`]; `shape`, `start` and `count` as [`extents`] with `ndim` numbers.
    pub(crate) unsafe fn read(
        name: *const c_char,
        dtype: c_int,
        ndim: c_int,
        shape: *const u64,
        start: *const u64,
        count: *const u64,
    ) -> Result<Piece<'a>> {
        // SAFETY: the caller's contract.
        let name = unsafe { text(name, "the variable's name")? };
        let dtype = crate::dtype::dtype_of(dtype)?;
        let ndim = dimensions(ndim)?;
        // SAFETY: the caller's contract, for all three.
        let (shape, start, count) = unsafe {
            (extents(shape, ndim, "shape")?, extents(start, ndim, "start")?, extents(count, ndim, "count")?)
        };
        let shape = shape.ok_or_else(|| null("shape"))?;
        let place = box_in(name, shape, start, count)?;
        let bytes = place.bytes(dtype.size())?;
        Ok(Piece { name, dtype, shape, place, bytes })
    }
}

/// The box of `start` and `count`, filled up from the shape and checked against it.
pub(crate) fn box_in(
    name: &str,
    shape: &[u64],
    start: Option<&[u64]>,
    count: Option<&[u64]>,
) -> Result<NdBox> {
    let start = start.map_or_else(|| Dims::from_elem(0, shape.len()), Dims::from_slice);
    let count = match count {
        Some(count) => Dims::from_slice(count),
        None => shape.iter().zip(&start).map(|(extent, first)| extent.saturating_sub(*first)).collect(),
    };
    let place = NdBox { start, count };
    place.check_inside(name, shape).map_err(|e| {
        e.hint("start + count may be at most the shape; dimensions are in C order and count elements")
    })?;
    Ok(place)
}

fn fits(bytes: usize, what: &str) -> Result<()> {
    if isize::try_from(bytes).is_err() {
        return Err(Error::new(
            Kind::Usage,
            format!("{what}: {bytes} bytes are more than the address space"),
        ));
    }
    Ok(())
}

fn aligned<T>(pointer: *const T, what: &str) -> Result<()> {
    if !pointer.is_aligned() {
        return Err(Error::new(Kind::Usage, format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_filled_up_from_the_shape() {
        let whole = box_in("u", &[4, 6], None, None).expect("whole");
        assert_eq!((whole.start.as_slice(), whole.count.as_slice()), (&[0, 0][..], &[4, 6][..]));
        let rest = box_in("u", &[4, 6], Some(&[1, 2]), None).expect("rest");
        assert_eq!(rest.count.as_slice(), &[3, 4]);
        assert_eq!(rest.bytes(8).expect("bytes"), 96);
    }

    #[test]
    fn boxes_outside_are_refused_before_memory_is_touched() {
        for (start, count) in [([0, 0], [4, 7]), ([4, 0], [1, 1]), ([u64::MAX, 0], [2, 1])] {
            let error = box_in("u", &[4, 6], Some(&start), Some(&count)).expect_err("outside");
            assert_eq!(error.kind(), Kind::BoxOutsideShape);
        }
    }

    #[test]
    fn null_and_misaligned_are_usage() {
        let numbers = [1u64, 2];
        let odd = numbers.as_ptr().cast::<u8>().wrapping_add(1).cast::<u64>();
        // SAFETY: misaligned pointers are refused before they are read.
        let error = unsafe { extents(odd, 1, "shape") }.expect_err("misaligned");
        assert_eq!(error.kind(), Kind::Usage);
        // SAFETY: NULL is allowed.
        assert!(unsafe { text(std::ptr::null(), "name") }.is_err());
        // SAFETY: NULL is allowed, and nothing is read when there are no bytes.
        assert_eq!(unsafe { input(std::ptr::null(), 0, "data") }.expect("empty"), &[] as &[u8]);
        assert!(dimensions(-1).is_err() && dimensions(17).is_err() && dimensions(16).is_ok());
    }
}
