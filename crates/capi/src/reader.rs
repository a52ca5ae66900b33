//! `fb_reader`: one rank's end of a space that is read.
//!
//! Guarantees: only complete versions are seen; what `fb_get` stores was verified as the option "verify"
//! says. Names of variables are kept for C until the version changes. Views are in `view.rs`.

use crate::dtype::{number_of, same};
use crate::memory::{dimensions, extents, give, handle, lock, out, out_or_null, output, take, text, texts};
use crate::options::{fb_options, options_or_default, timeout_of};
use crate::status::{c_text, guard};
use crate::{FB_ANY, FB_END_OF_STREAM, FB_NOT_YET, FB_OK, FB_STEP};
use forebay_space::{Dtype, Error, Kind, NdBox, Reader, Result};
use std::ffi::{c_char, c_int, c_void, CString};
use std::sync::{Mutex, MutexGuard};

/// One rank's end of a space that is read, made by fb_open_reader, or one version of it, made by fb_open_version;
/// ended by fb_close_reader.
pub struct fb_reader {
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) reader: Reader,
    /// Names of the current version's variables, once asked for.
    names: Option<Vec<CString>>,
}

impl State {
    fn names(&mut self) -> Result<&[CString]> {
        if self.names.is_none() {
            let names = self.reader.names()?;
            self.names = Some(names.iter().map(|name| c_text(name)).collect());
        }
        Ok(self.names.as_deref().unwrap_or_default())
    }
}

/// Opens `name` to read and stores the handle in `*reader`. The name is found as in fb_open_writer; `options`
/// may be NULL. Waits, until the timeout, for the space to appear. Ranks of one reader group ("component",
/// "size") share the versions: one goes when every rank of every group released it.
///
/// FB_PEER_MISSING (no such space before the deadline), FB_BAD_NAME, FB_NAME_IN_USE, FB_GROUP_MISMATCH,
/// FB_PERMISSION_DENIED, FB_POOL_OWNED_ELSEWHERE, FB_SEVERAL_NODES, FB_UNKNOWN_ENVIRONMENT,
/// FB_UNKNOWN_FORMAT, FB_DAMAGED.
#[no_mangle]
pub unsafe extern "C" fn fb_open_reader(
    name: *const c_char,
    options: *const fb_options,
    reader: *mut *mut fb_reader,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for outputs, texts and handles.
        let (place, name, options) =
            unsafe { (out(reader, "reader")?, text(name, "name")?, options_or_default(options)?) };
        let reader = Reader::open(name, &options)?;
        give(fb_reader { state: Mutex::new(State { reader, names: None }) }, place);
        Ok(FB_OK)
    })
}

/// Rank and size of this reader's group, as given or found in the environment. Either output may be NULL.
/// Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_reader_rank(reader: *mut fb_reader, rank: *mut u32, size: *mut u32) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (state, rank, size) =
            unsafe { (state_of(reader)?, out_or_null(rank, "rank")?, out_or_null(size, "size")?) };
        rank.into_iter().for_each(|place| place.set(state.reader.rank()));
        size.into_iter().for_each(|place| place.set(state.reader.size()));
        Ok(FB_OK)
    })
}

/// Goes to the next version that this reader has not seen, waiting for it at most `timeout` seconds, and
/// stores its number in `*version` (may be NULL). The version stays until fb_end_read.
///
/// Returns FB_STEP when a version is open, FB_END_OF_STREAM (no error either) after the last version of writers
/// that all closed; never FB_OK. FB_TIMED_OUT (names the ranks that are missing), FB_PRODUCER_DIED (names the
/// rank; after every complete version was seen, then at once and not after the timeout), FB_PEER_MISSING (the
/// space was removed), FB_STEP_STATE (a step is open), FB_DAMAGED.
#[no_mangle]
pub unsafe extern "C" fn fb_begin_read(reader: *mut fb_reader, timeout: f64, version: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (mut state, place) = unsafe { (state_of(reader)?, out_or_null(version, "version")?) };
        let begun = state.reader.begin_step(timeout_of(timeout)?)?;
        state.names = None;
        let Some(begun) = begun else { return Ok(FB_END_OF_STREAM) };
        place.into_iter().for_each(|place| place.set(begun));
        Ok(FB_STEP)
    })
}

/// Stores in `*missed` how many versions were dropped, unread by this reader, between the version before and the one
/// that is open; after FB_END_OF_STREAM those behind the last one. 0 unless the space drops what is not read
/// ("retention", "when_full", "absent"). Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_missed(reader: *mut fb_reader, missed: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (state, place) = unsafe { (state_of(reader)?, out(missed, "missed")?) };
        place.set(state.reader.missed());
        Ok(FB_OK)
    })
}

/// Releases the version that fb_begin_read began; when every reader has, its memory may be used again (views keep
/// theirs). When it returns the version counts as read: a group that keeps a cursor is not given it again, once all its
/// ranks have come that far. Does not block, but at a durable horizon for the medium. FB_STEP_STATE (no step is open).
#[no_mangle]
pub unsafe extern "C" fn fb_end_read(reader: *mut fb_reader) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        let mut state = unsafe { state_of(reader)? };
        state.reader.end_step()?;
        state.names = None;
        Ok(FB_OK)
    })
}

/// Waits at most `timeout` seconds until this version is complete; does not make it the current one.
///
/// FB_TIMED_OUT, FB_PRODUCER_DIED, FB_PEER_MISSING, FB_VERSION_GONE (it was complete and has been dropped).
#[no_mangle]
pub unsafe extern "C" fn fb_wait(reader: *mut fb_reader, version: u64, timeout: f64) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        let mut state = unsafe { state_of(reader)? };
        state.reader.wait(version, timeout_of(timeout)?)?;
        Ok(FB_OK)
    })
}

/// Opens a retained version and stores a handle of it in `*opened`: a reader whose only step is that version,
/// which is begun already. Any number can be open at once, mixed with fb_begin_read of `reader`, whose stream
/// stays where it is. Each holds its version until fb_end_read or fb_close_reader of the handle, also when
/// `reader` is closed. Does not wait.
///
/// FB_VERSION_GONE, FB_TIMED_OUT (it is not complete; fb_wait waits for it), FB_DAMAGED.
#[no_mangle]
pub unsafe extern "C" fn fb_open_version(
    reader: *mut fb_reader,
    version: u64,
    opened: *mut *mut fb_reader,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (mut state, place) = unsafe { (state_of(reader)?, out(opened, "opened")?) };
        let reader = state.reader.open_version(version)?;
        give(fb_reader { state: Mutex::new(State { reader, names: None }) }, place);
        Ok(FB_OK)
    })
}

/// Stores the newest complete version in `*version`, or returns FB_NOT_YET when there is none. Does not
/// block.
#[no_mangle]
pub unsafe extern "C" fn fb_latest(reader: *mut fb_reader, version: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (state, place) = unsafe { (state_of(reader)?, out(version, "version")?) };
        let Some(version) = state.reader.latest()? else { return Ok(FB_NOT_YET) };
        place.set(version);
        Ok(FB_OK)
    })
}

/// Stores the range of retained complete versions: from `*begin`, up to but without `*end`; equal when there
/// are none. Does not block; a version of the range may be dropped at any time unless it is being read.
#[no_mangle]
pub unsafe extern "C" fn fb_versions(reader: *mut fb_reader, begin: *mut u64, end: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (state, begin, end) = unsafe { (state_of(reader)?, out(begin, "begin")?, out(end, "end")?) };
        let versions = state.reader.versions()?;
        begin.set(versions.start);
        end.set(versions.end);
        Ok(FB_OK)
    })
}

/// Stores the number of variables of the current version in `*count`. Does not block. FB_STEP_STATE (there is
/// no current version), FB_DAMAGED.
#[no_mangle]
pub unsafe extern "C" fn fb_variable_count(reader: *mut fb_reader, count: *mut usize) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (mut state, place) = unsafe { (state_of(reader)?, out(count, "count")?) };
        place.set(state.names()?.len());
        Ok(FB_OK)
    })
}

/// Stores the name of the variable with this index (from 0) in `*name`. The text is valid until the current
/// version changes or ends. Does not block. FB_USAGE (no such index), FB_STEP_STATE, FB_DAMAGED.
#[no_mangle]
pub unsafe extern "C" fn fb_variable_name(
    reader: *mut fb_reader,
    index: usize,
    name: *mut *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (mut state, place) = unsafe { (state_of(reader)?, out(name, "name")?) };
        let names = state.names()?;
        let name = names.get(index).ok_or_else(|| {
            Error::new(Kind::Usage, format!("there is no variable number {index}"))
                .with("variables", names.len())
        })?;
        place.set(name.as_ptr());
        Ok(FB_OK)
    })
}

/// Stores element type, number of dimensions and whole shape of a variable of the current version. `shape`
/// holds `capacity` numbers (FB_DIMENSIONS_MAX is always enough); each output may be NULL. Does not block.
///
/// FB_UNKNOWN_VARIABLE (the hint names the nearest), FB_BUFFER_MISMATCH (more dimensions than `capacity`:
/// `*dtype` and `*ndim` are stored all the same), FB_STEP_STATE, FB_VARIABLE_MISMATCH, FB_DAMAGED.
#[no_mangle]
pub unsafe extern "C" fn fb_variable_info(
    reader: *mut fb_reader,
    name: *const c_char,
    dtype: *mut c_int,
    ndim: *mut c_int,
    shape: *mut u64,
    capacity: c_int,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and outputs.
        let (mut state, name, dtype, ndim) = unsafe {
            (state_of(reader)?, text(name, "name")?, out_or_null(dtype, "dtype")?, out_or_null(ndim, "ndim")?)
        };
        let (stored, extents) = state.reader.array(name)?;
        let number = number_of(stored)?;
        dtype.into_iter().for_each(|place| place.set(number));
        ndim.into_iter().for_each(|place| place.set(extents.len() as c_int));
        // SAFETY: `shape` holds `capacity` numbers, by the header's contract.
        unsafe { store_extents(&extents, shape, capacity, "shape")? };
        Ok(FB_OK)
    })
}

/// Copies a box of a variable of the current version into `buffer`, gathering it from the pieces that the
/// writers put. `dtype` is the type of the buffer's elements (FB_ANY does not check); `ndim`, `start` and
/// `count` are the box, and with start = count = NULL the whole variable is meant, whatever `ndim` says.
/// `bytes` is the size of the buffer and must be exactly the size of the box. Does not wait; nothing is kept
/// of the buffer.
///
/// FB_UNKNOWN_VARIABLE, FB_BOX_OUTSIDE_SHAPE, FB_BUFFER_MISMATCH (dtype or bytes), FB_BOX_NOT_COVERED (no
/// writer put some of it; the buffer's content is then unspecified), FB_STEP_STATE, FB_VERSION_GONE,
/// FB_DAMAGED.
#[no_mangle]
pub unsafe extern "C" fn fb_get(
    reader: *mut fb_reader,
    name: *const c_char,
    dtype: c_int,
    ndim: c_int,
    start: *const u64,
    count: *const u64,
    buffer: *mut c_void,
    bytes: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and extents.
        let (mut state, wanted) =
            unsafe { (state_of(reader)?, Wanted::read(name, dtype, ndim, start, count)?) };
        let (place, bytes_wanted) = wanted.place(&mut state.reader)?;
        if bytes_wanted != bytes {
            return Err(Error::new(
                Kind::BufferMismatch,
                format!("the buffer does not fit the box of {}", wanted.name),
            )
            .with("box_bytes", bytes_wanted)
            .with("buffer_bytes", bytes));
        }
        // SAFETY: `buffer` has `bytes` bytes, by the header's contract.
        let buffer = unsafe { output(buffer, bytes, "buffer")? };
        state.reader.get(wanted.name, Some(&place), buffer)?;
        Ok(FB_OK)
    })
}

/// Copies many whole variables of the current version into `buffer`, one behind the other in the order of
/// `names`: all of the same size, `bytes` in all. `dtype` is their type (FB_ANY does not check). As that many
/// calls of fb_get, but what a call costs is paid once. An error names the object (see fb_last_error); those
/// before it are in the buffer by then.
///
/// FB_UNKNOWN_VARIABLE, FB_BUFFER_MISMATCH (dtype or bytes), FB_BOX_NOT_COVERED, FB_STEP_STATE,
/// FB_VERSION_GONE, FB_DAMAGED.
#[no_mangle]
pub unsafe extern "C" fn fb_get_many(
    reader: *mut fb_reader,
    objects: usize,
    names: *const *const c_char,
    dtype: c_int,
    buffer: *mut c_void,
    bytes: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and buffers.
        let (mut state, names, buffer) =
            unsafe { (state_of(reader)?, texts(names, objects, "names")?, output(buffer, bytes, "buffer")?) };
        if dtype == FB_ANY {
            state.reader.get_many(&names, buffer)?;
            return Ok(FB_OK);
        }
        let object = bytes.checked_div(objects).unwrap_or(0);
        if object * objects != bytes {
            return Err(Error::new(
                Kind::BufferMismatch,
                "the size of the buffer is not a multiple of the number of objects",
            )
            .with("objects", objects)
            .with("buffer_bytes", bytes));
        }
        let mut done = 0;
        while done < objects {
            get_pieces(&mut state.reader, &names, dtype, buffer, object, &mut done)?;
            // The next one, if there is one, lies in several pieces, or is not what was asked for.
            let Some(name) = names.get(done) else { break };
            let part = &mut buffer[done * object..(done + 1) * object];
            get_one(&mut state.reader, name, dtype, part).map_err(|e| e.with("object", done))?;
            done += 1;
        }
        Ok(FB_OK)
    })
}

/// Copies variables of this type and size from `done` on, which rises with each, up to the first that is not one
/// piece, or another type or size.
fn get_pieces(
    reader: &mut Reader,
    names: &[&str],
    dtype: c_int,
    buffer: &mut [u8],
    object: usize,
    done: &mut usize,
) -> Result<()> {
    let behind = names[*done..].iter().copied();
    let take = |i: usize, stored: Dtype, _: &[u64], bytes: &[u8]| {
        let takes = bytes.len() == object && same(names[i], dtype, stored).is_ok();
        if takes {
            buffer[i * object..(i + 1) * object].copy_from_slice(bytes);
        }
        takes
    };
    reader.with_each(behind, object, take, done)
}

/// A whole variable of this type.
fn get_one(reader: &mut Reader, name: &str, dtype: c_int, part: &mut [u8]) -> Result<()> {
    same(name, dtype, reader.array(name)?.0)?;
    reader.get(name, None, part)
}

/// Ends the reader and its membership of its group for good, and sets `*reader` to NULL, whatever is returned: nothing
/// is kept for this rank any more, and its cursor is forgotten. One that comes again begins at the oldest version.
/// Views stay valid until they are freed.
///
/// FB_TIMED_OUT, FB_PEER_MISSING (the space was removed).
#[no_mangle]
pub unsafe extern "C" fn fb_leave_reader(reader: *mut *mut fb_reader) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles given by address.
        let Some(reader) = (unsafe { take(reader, "reader")? }) else { return Ok(FB_OK) };
        let Ok(state) = reader.state.into_inner() else { return Ok(FB_OK) };
        state.reader.leave()?;
        Ok(FB_OK)
    })
}

/// Ends the reader and sets `*reader` to NULL, whatever is returned. A group that keeps a cursor goes on there when it
/// is opened again (options "group", "absent"; fb_leave_reader ends it for good); any other holds nothing back any
/// more. Views stay valid until they are freed. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_close_reader(reader: *mut *mut fb_reader) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles given by address.
        let Some(reader) = (unsafe { take(reader, "reader")? }) else { return Ok(FB_OK) };
        let Ok(state) = reader.state.into_inner() else { return Ok(FB_OK) };
        state.reader.close()?;
        Ok(FB_OK)
    })
}

/// A box of a variable as a reader asks for it.
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a str,
    dtype: c_int,
    ndim: usize,
    start: Option<&'a [u64]>,
    count: Option<&'a [u64]>,
}

impl<'a> Wanted<'a> {
    /// # Safety
    /// `name` is a text, `start` and `count` are NULL or `ndim` numbers, by the header's contract.
    pub(crate) unsafe fn read(
        name: *const c_char,
        dtype: c_int,
        ndim: c_int,
        start: *const u64,
        count: *const u64,
    ) -> Result<Wanted<'a>> {
        let whole = start.is_null() && count.is_null();
        let ndim = dimensions(ndim)?;
        // SAFETY: the caller's contract, for all three.
        let (name, start, count) = unsafe {
            (
                text(name, "the variable's name")?,
                extents(start, ndim, "start")?,
                extents(count, ndim, "count")?,
            )
        };
        let (start, count) = if whole { (None, None) } else { (start, count) };
        Ok(Wanted { name, dtype, ndim, start, count })
    }

    /// The box, checked against the variable, and its size in bytes.
    pub(crate) fn place(&self, reader: &mut Reader) -> Result<(NdBox, usize)> {
        let (dtype, shape) = reader.array(self.name)?;
        same(self.name, self.dtype, dtype)?;
        let partly = self.start.is_some() || self.count.is_some();
        if partly && self.ndim != shape.len() {
            return Err(Error::new(
                Kind::BoxOutsideShape,
                format!("variable {} has other dimensions", self.name),
            )
            .with("ndim", self.ndim)
            .with("shape", format!("{:?}", shape.as_slice())));
        }
        let place = crate::memory::box_in(self.name, &shape, self.start, self.count)?;
        let bytes = place.bytes(dtype.size())?;
        Ok((place, bytes))
    }
}

/// Stores extents in memory of the caller for `capacity` numbers; NULL is fine.
///
/// # Safety
/// `to` is NULL or holds `capacity` numbers.
pub(crate) unsafe fn store_extents(from: &[u64], to: *mut u64, capacity: c_int, what: &str) -> Result<()> {
    if to.is_null() || from.is_empty() {
        return Ok(());
    }
    if usize::try_from(capacity).is_ok_and(|capacity| from.len() <= capacity) {
        for (i, extent) in from.iter().enumerate() {
            // SAFETY: i < capacity, and the caller's contract.
            unsafe { out(to.add(i), what)? }.set(*extent);
        }
        return Ok(());
    }
    Err(Error::new(Kind::BufferMismatch, format!("{what} is too short"))
        .with("dimensions", from.len())
        .with("capacity", capacity)
        .hint("FB_DIMENSIONS_MAX numbers are always enough"))
}

/// The locked state behind a reader's pointer.
///
/// # Safety
/// NULL or a live reader.
pub(crate) unsafe fn state_of<'a>(reader: *const fb_reader) -> Result<MutexGuard<'a, State>> {
    // SAFETY: the caller's contract.
    lock(unsafe { &handle(reader, "reader")?.state }, "the reader")
}
