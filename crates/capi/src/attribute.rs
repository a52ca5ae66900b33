//! Attributes: small facts about a space (a unit, a parameter), not versioned.
//!
//! Guarantees: what a writer set is visible to readers when the call returns. Lists of numbers, which Python
//! can set, are not readable through this ABI and say so.

use crate::memory::{out, out_or_null, output, text};
use crate::reader::fb_reader;
use crate::status::guard;
use crate::writer::fb_writer;
use crate::{reader, writer, FB_OK};
use forebay_space::{Attribute, Error, Kind, Result};
use std::ffi::{c_char, c_int, c_void};

/// Sets an attribute of the space to a text. Replaces what was there; any rank may set it. Does not wait.
/// FB_BAD_NAME (an empty or too long key), FB_TOO_MANY, FB_FENCED.
#[no_mangle]
pub unsafe extern "C" fn fb_attribute_set_text(
    writer: *mut fb_writer,
    key: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: the header's contract for texts; `set` has it for the others.
    guard(|| unsafe { set(writer, key, Attribute::Text(text(value, "value")?.to_owned())) })
}

/// Sets an attribute of the space to a whole number. As fb_attribute_set_text.
#[no_mangle]
pub unsafe extern "C" fn fb_attribute_set_int64(
    writer: *mut fb_writer,
    key: *const c_char,
    value: i64,
) -> c_int {
    // SAFETY: the header's contract for handles and texts.
    guard(|| unsafe { set(writer, key, Attribute::Int(value)) })
}

/// Sets an attribute of the space to a number. As fb_attribute_set_text.
#[no_mangle]
pub unsafe extern "C" fn fb_attribute_set_double(
    writer: *mut fb_writer,
    key: *const c_char,
    value: f64,
) -> c_int {
    // SAFETY: the header's contract for handles and texts.
    guard(|| unsafe { set(writer, key, Attribute::Float(value)) })
}

/// Copies a text attribute into `buffer`, with NUL, and stores the bytes it needs, with NUL, in `*needed`
/// (may be NULL). To learn the size, ask with bytes = 0 and buffer = NULL. Does not block.
///
/// FB_UNKNOWN_KEY (the hint names the nearest), FB_BUFFER_MISMATCH (not a text, or more than `bytes`:
/// `*needed` is stored all the same).
#[no_mangle]
pub unsafe extern "C" fn fb_attribute_get_text(
    reader: *mut fb_reader,
    key: *const c_char,
    buffer: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and outputs.
        let (key, value) = unsafe { (text(key, "key")?, get(reader, key)?) };
        let Attribute::Text(value) = value else { return Err(other(key, "a text")) };
        // SAFETY: the header's contract for outputs.
        unsafe { copy_text(&value, &format!("attribute {key}"), buffer, bytes, needed) }
    })
}

/// Stores a whole-number attribute in `*value`; a truth value counts as 0 or 1. Does not block.
/// FB_UNKNOWN_KEY, FB_BUFFER_MISMATCH (it is of another type).
#[no_mangle]
pub unsafe extern "C" fn fb_attribute_get_int64(
    reader: *mut fb_reader,
    key: *const c_char,
    value: *mut i64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and outputs.
        let (place, key, value) = unsafe { (out(value, "value")?, text(key, "key")?, get(reader, key)?) };
        place.set(int64_of(&value).ok_or_else(|| other(key, "a whole number"))?);
        Ok(FB_OK)
    })
}

/// Stores a number attribute in `*value`; a whole number is converted. Does not block. FB_UNKNOWN_KEY,
/// FB_BUFFER_MISMATCH (it is of another type).
#[no_mangle]
pub unsafe extern "C" fn fb_attribute_get_double(
    reader: *mut fb_reader,
    key: *const c_char,
    value: *mut f64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and outputs.
        let (place, key, value) = unsafe { (out(value, "value")?, text(key, "key")?, get(reader, key)?) };
        place.set(double_of(&value).ok_or_else(|| other(key, "a number"))?);
        Ok(FB_OK)
    })
}

/// # Safety
/// The header's contract for handles and texts.
unsafe fn set(writer: *mut fb_writer, key: *const c_char, value: Attribute) -> Result<c_int> {
    // SAFETY: the caller's contract.
    let (mut state, key) = unsafe { (writer::state_of(writer)?, text(key, "key")?) };
    state.writer.set_attribute(key, &value)?;
    Ok(FB_OK)
}

/// # Safety
/// The header's contract for handles and texts.
unsafe fn get(reader: *mut fb_reader, key: *const c_char) -> Result<Attribute> {
    // SAFETY: the caller's contract.
    let (state, key) = unsafe { (reader::state_of(reader)?, text(key, "key")?) };
    let mut attributes = state.reader.attributes()?;
    attributes.remove(key).ok_or_else(|| {
        let error = Error::new(Kind::UnknownKey, format!("the space has no attribute `{key}`"));
        match forebay_config::did_you_mean(key, attributes.keys().map(String::as_str)) {
            Some(name) => error.hint(format!("did you mean `{name}`?")),
            None => error,
        }
    })
}

/// Copies a text with NUL to the caller's buffer; `needed` says how long it is in any case.
///
/// # Safety
/// `buffer` has `bytes` bytes or is NULL, `needed` holds a number or is NULL.
pub(crate) unsafe fn copy_text(
    value: &str,
    what: &str,
    buffer: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> Result<c_int> {
    let value = crate::status::c_text(value);
    let value = value.as_bytes_with_nul();
    // SAFETY: the caller's contract.
    let needed = unsafe { out_or_null(needed, "needed")? };
    needed.into_iter().for_each(|place| place.set(value.len()));
    if value.len() > bytes {
        return Err(Error::new(Kind::BufferMismatch, format!("{what} does not fit the buffer"))
            .with("needed_bytes", value.len())
            .with("buffer_bytes", bytes));
    }
    // SAFETY: `buffer` has `bytes` bytes, by the caller's contract, and the value is at most as long.
    unsafe { output(buffer.cast::<c_void>(), value.len(), "buffer")? }.copy_from_slice(value);
    Ok(FB_OK)
}

/// A whole number, or a truth value as 0 or 1; None for any other.
pub(crate) fn int64_of(value: &Attribute) -> Option<i64> {
    match value {
        Attribute::Int(number) => Some(*number),
        Attribute::Flag(flag) => Some(i64::from(*flag)),
        _ => None,
    }
}

/// A number; None for any other.
pub(crate) fn double_of(value: &Attribute) -> Option<f64> {
    match value {
        Attribute::Float(number) => Some(*number),
        Attribute::Int(number) => Some(*number as f64),
        _ => None,
    }
}

fn other(key: &str, wanted: &str) -> Error {
    Error::new(Kind::BufferMismatch, format!("attribute {key} is not {wanted}"))
        .hint("use the fb_attribute_get_ function of its type")
}
