//! Numbers of the element types. They belong to this ABI and never change; Rust's order of `Dtype` may.

use forebay_space::{Dtype, Error, Kind, Result};
use std::ffi::{c_char, c_int};

/// `fb_get`: whatever the variable holds.
pub const FB_ANY: c_int = 0;
/// Truth value, one byte, 0 or 1.
pub const FB_BOOL: c_int = 1;
/// Signed integer of 8 bits.
pub const FB_INT8: c_int = 2;
/// Signed integer of 16 bits.
pub const FB_INT16: c_int = 3;
/// Signed integer of 32 bits.
pub const FB_INT32: c_int = 4;
/// Signed integer of 64 bits.
pub const FB_INT64: c_int = 5;
/// Unsigned integer of 8 bits.
pub const FB_UINT8: c_int = 6;
/// Unsigned integer of 16 bits.
pub const FB_UINT16: c_int = 7;
/// Unsigned integer of 32 bits.
pub const FB_UINT32: c_int = 8;
/// Unsigned integer of 64 bits.
pub const FB_UINT64: c_int = 9;
/// IEEE 754 half precision.
pub const FB_FLOAT16: c_int = 10;
/// The upper half of a single precision number.
pub const FB_BFLOAT16: c_int = 11;
/// IEEE 754 single precision: `float`, `real(4)`.
pub const FB_FLOAT32: c_int = 12;
/// IEEE 754 double precision: `double`, `real(8)`.
pub const FB_FLOAT64: c_int = 13;
/// Two single precision numbers: real, imaginary.
pub const FB_COMPLEX64: c_int = 14;
/// Two double precision numbers: real, imaginary.
pub const FB_COMPLEX128: c_int = 15;
/// Bytes of a UTF-8 text, one element a byte.
pub const FB_STR: c_int = 16;

/// Number and type of each element type, in the order of the numbers.
pub const DTYPES: [(c_int, Dtype); 16] = [
    (FB_BOOL, Dtype::Bool),
    (FB_INT8, Dtype::I8),
    (FB_INT16, Dtype::I16),
    (FB_INT32, Dtype::I32),
    (FB_INT64, Dtype::I64),
    (FB_UINT8, Dtype::U8),
    (FB_UINT16, Dtype::U16),
    (FB_UINT32, Dtype::U32),
    (FB_UINT64, Dtype::U64),
    (FB_FLOAT16, Dtype::F16),
    (FB_BFLOAT16, Dtype::BF16),
    (FB_FLOAT32, Dtype::F32),
    (FB_FLOAT64, Dtype::F64),
    (FB_COMPLEX64, Dtype::C64),
    (FB_COMPLEX128, Dtype::C128),
    (FB_STR, Dtype::Str),
];

/// Bytes of one element of this type, or FB_USAGE when there is no such type. Does not block.
#[no_mangle]
pub extern "C" fn fb_dtype_size(dtype: c_int) -> c_int {
    crate::status::guard(|| dtype_of(dtype).map(|d| d.size() as c_int))
}

/// Name of the type as NumPy says it ("float64"), stored in `*name`. The text is never freed.
/// FB_USAGE when there is no such type. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_dtype_name(dtype: c_int, name: *mut *const c_char) -> c_int {
    crate::status::guard(|| {
        // SAFETY: the header's contract for outputs.
        let name = unsafe { crate::memory::out(name, "name")? };
        name.set(terminated_name(dtype_of(dtype)?));
        Ok(crate::FB_OK)
    })
}

/// The type with this number.
pub(crate) fn dtype_of(number: c_int) -> Result<Dtype> {
    DTYPES.iter().find(|(n, _)| *n == number).map(|(_, d)| *d).ok_or_else(|| {
        Error::new(Kind::Usage, format!("{number} is not the number of an element type"))
            .hint("use FB_FLOAT64 and its like from forebay.h")
    })
}

/// The number of this type.
pub(crate) fn number_of(dtype: Dtype) -> Result<c_int> {
    DTYPES.iter().find(|(_, d)| *d == dtype).map(|(n, _)| *n).ok_or_else(|| {
        Error::new(Kind::Internal, format!("element type {} has no number in the C ABI", dtype.name()))
    })
}

fn terminated_name(dtype: Dtype) -> *const c_char {
    static NAMES: std::sync::OnceLock<Vec<std::ffi::CString>> = std::sync::OnceLock::new();
    let names = NAMES.get_or_init(|| DTYPES.iter().map(|(_, d)| crate::status::c_text(d.name())).collect());
    let at = DTYPES.iter().position(|(_, d)| *d == dtype);
    at.map_or(c"unknown".as_ptr(), |i| names[i].as_ptr())
}

/// Refuses to read a variable as a type that it does not have.
pub(crate) fn same(name: &str, wanted: c_int, stored: Dtype) -> Result<()> {
    if wanted == FB_ANY || dtype_of(wanted)? == stored {
        return Ok(());
    }
    Err(Error::new(Kind::BufferMismatch, format!("variable {name} holds {}", stored.name()))
        .with("asked_for", dtype_of(wanted)?.name())
        .hint("fb_variable_info returns dtype and shape; FB_ANY copies the bytes without conversion"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_there_and_back() {
        for (i, (number, dtype)) in DTYPES.iter().enumerate() {
            assert_eq!(*number, i as c_int + 1, "numbers are dense and in order");
            assert_eq!(*number, *dtype as c_int, "the number in a record");
            assert_eq!(dtype_of(*number).expect("known"), *dtype);
            assert_eq!(number_of(*dtype).expect("known"), *number);
            assert_eq!(fb_dtype_size(*number), dtype.size() as c_int);
        }
        assert_eq!(DTYPES.len(), Dtype::ALL.len(), "every element type has a number");
        assert_eq!(dtype_of(0).expect_err("0 is FB_ANY").kind(), Kind::Usage);
    }
}
