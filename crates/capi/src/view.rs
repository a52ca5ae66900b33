//! `fb_view`: a box of a variable without a copy, read-only, with the lease that keeps it.
//!
//! Guarantees: the memory does not change and does not go until the view is freed, also after the step has
//! ended and the reader is closed. A view keeps its version from being reclaimed; long-lived views fill the
//! quota.

use crate::dtype::number_of;
use crate::memory::{give, handle, out, out_or_null, take};
use crate::reader::{fb_reader, state_of, store_extents, Wanted};
use crate::status::guard;
use crate::FB_OK;
use forebay_space::View;
use std::ffi::{c_char, c_int, c_void};

/// A box of a variable in place: made by fb_open_view, ended by fb_view_free.
pub struct fb_view {
    view: View,
}

/// Opens a view of a box of the current version and stores it in `*view`. The parameters are those of fb_get;
/// the box must be one contiguous range of one piece. Nothing is copied. Does not wait.
///
/// FB_NOT_CONTIGUOUS (use fb_get), else the errors of fb_get.
#[no_mangle]
pub unsafe extern "C" fn fb_open_view(
    reader: *mut fb_reader,
    name: *const c_char,
    dtype: c_int,
    ndim: c_int,
    start: *const u64,
    count: *const u64,
    view: *mut *mut fb_view,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, outputs, texts and extents.
        let (mut state, out, wanted) = unsafe {
            (state_of(reader)?, out(view, "view")?, Wanted::read(name, dtype, ndim, start, count)?)
        };
        let (place, _) = wanted.place(&mut state.reader)?;
        give(fb_view { view: state.reader.view(wanted.name, Some(&place))? }, out);
        Ok(FB_OK)
    })
}

/// Stores the address of the first element in `*data` and the size in `*bytes` (may be NULL). The memory is
/// read-only (a store ends the program) and valid until fb_view_free. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_view_data(
    view: *const fb_view,
    data: *mut *const c_void,
    bytes: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (view, data, bytes) =
            unsafe { (handle(view, "view")?, out(data, "data")?, out_or_null(bytes, "bytes")?) };
        let memory = view.view.bytes();
        data.set(memory.as_ptr().cast());
        bytes.into_iter().for_each(|place| place.set(memory.len()));
        Ok(FB_OK)
    })
}

/// Stores version, element type, number of dimensions and the count of the box. `count` holds `capacity` numbers; each
/// output may be NULL. Does not block. FB_BUFFER_MISMATCH (more dimensions than `capacity`: the others are stored all
/// the same).
#[no_mangle]
pub unsafe extern "C" fn fb_view_info(
    view: *const fb_view,
    version: *mut u64,
    dtype: *mut c_int,
    ndim: *mut c_int,
    count: *mut u64,
    capacity: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (view, version, dtype, ndim) = unsafe {
            (
                &handle(view, "view")?.view,
                out_or_null(version, "version")?,
                out_or_null(dtype, "dtype")?,
                out_or_null(ndim, "ndim")?,
            )
        };
        let number = number_of(view.dtype())?;
        version.into_iter().for_each(|place| place.set(view.version()));
        dtype.into_iter().for_each(|place| place.set(number));
        ndim.into_iter().for_each(|place| place.set(view.shape().len() as c_int));
        // SAFETY: `count` holds `capacity` numbers, by the header's contract.
        unsafe { store_extents(view.shape(), count, capacity, "count")? };
        Ok(FB_OK)
    })
}

/// Ends the view and sets `*view` to NULL; its memory must not be touched any more. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_view_free(view: *mut *mut fb_view) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles given by address.
        drop(unsafe { take(view, "view")? });
        Ok(FB_OK)
    })
}
