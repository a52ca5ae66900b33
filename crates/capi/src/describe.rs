//! What a version says of its variables and of itself: names of dimensions, attributes.
//!
//! Guarantees: they are part of the step in which they are said, become visible and durable with its version, and have
//! to be said again for the next. Attributes of a whole space are in `attribute`. Lists, which Python can set, are not
//! readable through this ABI and say so.

use crate::attribute::{copy_text, double_of, int64_of};
use crate::memory::{dimensions, out, text, texts, word};
use crate::reader::{self, fb_reader};
use crate::status::guard;
use crate::writer::{self, fb_writer};
use crate::FB_OK;
use forebay_space::{Attribute, Description, Error, Kind, Result};
use std::ffi::{c_char, c_int};

/// Names the `ndim` dimensions of a variable of the open step, in C's order. One rank is enough. Does not block.
///
/// FB_USAGE (an empty or too long name), FB_STEP_STATE, FB_VARIABLE_MISMATCH (named otherwise before in this step).
/// Readers get FB_VARIABLE_MISMATCH when ranks name them differently, or not as many as the variable has.
#[no_mangle]
pub unsafe extern "C" fn fb_describe_dims(
    writer: *mut fb_writer,
    variable: *const c_char,
    ndim: c_int,
    dims: *const *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and texts.
        let (mut state, variable, dims) = unsafe {
            (writer::state_of(writer)?, text(variable, "variable")?, texts(dims, dimensions(ndim)?, "dims")?)
        };
        state.writer.describe(variable, Description::of_dims(&dims))?;
        Ok(FB_OK)
    })
}

/// Sets an attribute of a variable of the open step to a text; with `variable` NULL or empty, of the version itself.
/// The last value counts, of several ranks that of the highest. Does not block. FB_USAGE (an empty or too long key,
/// too long a text), FB_STEP_STATE.
#[no_mangle]
pub unsafe extern "C" fn fb_describe_text(
    writer: *mut fb_writer,
    variable: *const c_char,
    key: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: the header's contract for texts; `describe` has it for the others.
    guard(|| unsafe { describe(writer, variable, key, Attribute::Text(text(value, "value")?.to_owned())) })
}

/// Sets an attribute of a variable or of the version to a whole number. As fb_describe_text.
#[no_mangle]
pub unsafe extern "C" fn fb_describe_int64(
    writer: *mut fb_writer,
    variable: *const c_char,
    key: *const c_char,
    value: i64,
) -> c_int {
    // SAFETY: the header's contract for handles and texts.
    guard(|| unsafe { describe(writer, variable, key, Attribute::Int(value)) })
}

/// Sets an attribute of a variable or of the version to a number. As fb_describe_text.
#[no_mangle]
pub unsafe extern "C" fn fb_describe_double(
    writer: *mut fb_writer,
    variable: *const c_char,
    key: *const c_char,
    value: f64,
) -> c_int {
    // SAFETY: the header's contract for handles and texts.
    guard(|| unsafe { describe(writer, variable, key, Attribute::Float(value)) })
}

/// Copies the name of dimension `index` (from 0, in C's order) of a variable of the current version into `buffer`, as
/// fb_attribute_get_text copies a text. Does not block.
///
/// FB_UNKNOWN_KEY (its writers named no dimensions, or not so many), FB_UNKNOWN_VARIABLE, FB_BUFFER_MISMATCH (more
/// than `bytes`: `*needed` is stored all the same), FB_VARIABLE_MISMATCH, FB_STEP_STATE, FB_DAMAGED.
#[no_mangle]
pub unsafe extern "C" fn fb_described_dim(
    reader: *mut fb_reader,
    variable: *const c_char,
    index: c_int,
    buffer: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and texts.
        let (mut state, variable) = unsafe { (reader::state_of(reader)?, text(variable, "variable")?) };
        let dims = state.reader.variable(variable)?.description.dims.unwrap_or_default();
        let name = usize::try_from(index).ok().and_then(|index| dims.get(index)).ok_or_else(|| {
            Error::new(Kind::UnknownKey, format!("dimension {index} of variable {variable} has no name"))
                .with("named", dims.len())
        })?;
        // SAFETY: the header's contract for texts and outputs.
        unsafe { copy_text(name, &format!("the name of dimension {index}"), buffer, bytes, needed) }
    })
}

/// Copies a text attribute of a variable of the current version, or of the version itself where `variable` is NULL or
/// empty, into `buffer`, as fb_attribute_get_text does. Does not block.
///
/// FB_UNKNOWN_KEY (the hint names the nearest), FB_UNKNOWN_VARIABLE, FB_BUFFER_MISMATCH (not a text, or more than
/// `bytes`: `*needed` is stored all the same), FB_VARIABLE_MISMATCH, FB_STEP_STATE, FB_DAMAGED.
#[no_mangle]
pub unsafe extern "C" fn fb_described_text(
    reader: *mut fb_reader,
    variable: *const c_char,
    key: *const c_char,
    buffer: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and outputs.
        let (key, value) = unsafe { (text(key, "key")?, described(reader, variable, key)?) };
        let Attribute::Text(value) = value else { return Err(other(key, "a text")) };
        // SAFETY: the header's contract for texts and outputs.
        unsafe { copy_text(&value, &format!("attribute {key}"), buffer, bytes, needed) }
    })
}

/// Stores a whole-number attribute of a variable of the current version, or of the version itself where `variable` is
/// NULL or empty, in `*value`; a truth value counts as 0 or 1. Does not block. As fb_described_text.
#[no_mangle]
pub unsafe extern "C" fn fb_described_int64(
    reader: *mut fb_reader,
    variable: *const c_char,
    key: *const c_char,
    value: *mut i64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and outputs.
        let (place, key, found) =
            unsafe { (out(value, "value")?, text(key, "key")?, described(reader, variable, key)?) };
        place.set(int64_of(&found).ok_or_else(|| other(key, "a whole number"))?);
        Ok(FB_OK)
    })
}

/// Stores a number attribute of a variable of the current version, or of the version itself where `variable` is NULL or
/// empty, in `*value`; a whole number is converted. Does not block. As fb_described_text.
#[no_mangle]
pub unsafe extern "C" fn fb_described_double(
    reader: *mut fb_reader,
    variable: *const c_char,
    key: *const c_char,
    value: *mut f64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and outputs.
        let (place, key, found) =
            unsafe { (out(value, "value")?, text(key, "key")?, described(reader, variable, key)?) };
        place.set(double_of(&found).ok_or_else(|| other(key, "a number"))?);
        Ok(FB_OK)
    })
}

/// # Safety
/// The header's contract for handles and texts.
unsafe fn describe(
    writer: *mut fb_writer,
    variable: *const c_char,
    key: *const c_char,
    value: Attribute,
) -> Result<c_int> {
    // SAFETY: the caller's contract.
    let (mut state, variable, key) =
        unsafe { (writer::state_of(writer)?, word(variable, "variable")?, text(key, "key")?) };
    match variable.filter(|name| !name.is_empty()) {
        None => state.writer.set_version_attribute(key, &value)?,
        Some(name) => {
            let attributes = [(key.to_string(), value)].into();
            state.writer.describe(name, Description { dims: None, attributes })?;
        }
    }
    Ok(FB_OK)
}

/// # Safety
/// The header's contract for handles and texts.
unsafe fn described(
    reader: *mut fb_reader,
    variable: *const c_char,
    key: *const c_char,
) -> Result<Attribute> {
    // SAFETY: the caller's contract.
    let (mut state, variable, key) =
        unsafe { (reader::state_of(reader)?, word(variable, "variable")?, text(key, "key")?) };
    let (mut attributes, of) = match variable.filter(|name| !name.is_empty()) {
        None => (state.reader.version_attributes()?, "the version".to_string()),
        Some(name) => (state.reader.variable(name)?.description.attributes, format!("variable {name}")),
    };
    attributes.remove(key).ok_or_else(|| {
        let error = Error::new(Kind::UnknownKey, format!("{of} has no attribute `{key}`"));
        match forebay_config::did_you_mean(key, attributes.keys().map(String::as_str)) {
            Some(name) => error.hint(format!("did you mean `{name}`?")),
            None => error,
        }
    })
}

fn other(key: &str, wanted: &str) -> Error {
    Error::new(Kind::BufferMismatch, format!("attribute {key} is not {wanted}"))
        .hint("use the fb_described_ function of its type")
}
