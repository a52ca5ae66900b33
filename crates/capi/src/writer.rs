//! `fb_writer`: one rank's end of a space that is written.
//!
//! Guarantees: the caller's memory is copied before `fb_put` returns; a reservation's memory stays valid
//! until `fb_commit`, the end of the step or the close; `fb_end_step` refuses a step with uncommitted
//! reservations, so that no half-filled piece becomes visible.

use crate::dtype::dtype_of;
use crate::memory::{
    dimensions, extents, give, handle, input, lock, out, out_or_null, take, text, texts, Piece,
};
use crate::options::{fb_options, options_or_default};
use crate::status::{c_text, guard, null};
use crate::{FB_OK, FB_SKIPPED};
use forebay_space::{Error, Kind, NdBox, Reservation, Result, Writer};
use std::ffi::{c_char, c_int, c_void, CString};
use std::sync::{Mutex, MutexGuard};

/// One rank's end of a space that is written: made by fb_open_writer, ended by fb_close_writer.
pub struct fb_writer {
    state: Mutex<State>,
    durability: CString,
}

pub(crate) struct State {
    pub(crate) writer: Writer,
    reserved: Vec<Reserved>,
}

/// A reservation and the address that C knows it by: its memory stays where it is when this value moves.
struct Reserved {
    address: usize,
    name: String,
    memory: Reservation,
}

impl State {
    /// Releases what was reserved and never committed.
    fn forget_reservations(&mut self) {
        self.reserved.clear();
    }
}

/// Opens `name` to write and stores the handle in `*writer`. A short name lies below FOREBAY_DIR (default
/// /dev/shm/forebay-UID); one that contains a slash is a path. The first rank makes the space. `options`
/// may be NULL. Does not wait for other ranks or for readers, only for the first pages of the pool to be
/// faulted in.
///
/// FB_BAD_NAME, FB_NAME_IN_USE (a live process holds this rank), FB_GROUP_MISMATCH (ranks disagree on the
/// size), FB_OPTION_MISMATCH (the space exists with other options), FB_TIER_FULL, FB_PERMISSION_DENIED,
/// FB_POOL_OWNED_ELSEWHERE, FB_SEVERAL_NODES, FB_NOT_POSSIBLE_HERE, FB_UNKNOWN_ENVIRONMENT,
/// FB_UNKNOWN_FORMAT, FB_DAMAGED.
#[no_mangle]
pub unsafe extern "C" fn fb_open_writer(
    name: *const c_char,
    options: *const fb_options,
    writer: *mut *mut fb_writer,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for outputs, texts and handles.
        let (place, name, options) =
            unsafe { (out(writer, "writer")?, text(name, "name")?, options_or_default(options)?) };
        let writer = Writer::open(name, &options)?;
        let durability = c_text(&writer.durability().to_string());
        give(fb_writer { state: Mutex::new(State { writer, reserved: Vec::new() }), durability }, place);
        Ok(FB_OK)
    })
}

/// Rank and size of this writer's group, as given or found in the environment. Either output may be NULL.
/// Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_writer_rank(writer: *mut fb_writer, rank: *mut u32, size: *mut u32) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (state, rank, size) =
            unsafe { (state_of(writer)?, out_or_null(rank, "rank")?, out_or_null(size, "size")?) };
        rank.into_iter().for_each(|place| place.set(state.writer.rank()));
        size.into_iter().for_each(|place| place.set(state.writer.size()));
        Ok(FB_OK)
    })
}

/// What an acknowledged step survives: "process crash", "OS crash" or "power failure", stored in `*text`. The
/// text lives as long as the writer. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_writer_durability(writer: *mut fb_writer, text: *mut *const c_char) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (writer, place) = unsafe { (handle(writer, "writer")?, out(text, "text")?) };
        place.set(writer.durability.as_ptr());
        Ok(FB_OK)
    })
}

/// After a restart: finds the first version that is not complete, stores it in `*version` (may be NULL) and
/// goes on from there. Every rank of the new group must call it before its first step. Does not wait for
/// other ranks.
///
/// FB_STEP_STATE (a step is open), FB_FENCED (a newer incarnation took over).
#[no_mangle]
pub unsafe extern "C" fn fb_resume(writer: *mut fb_writer, version: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (mut state, place) = unsafe { (state_of(writer)?, out_or_null(version, "version")?) };
        let next = state.writer.resume()?;
        place.into_iter().for_each(|place| place.set(next));
        Ok(FB_OK)
    })
}

/// Begins the next version and stores its number in `*version` (may be NULL). Does not wait.
///
/// FB_STEP_STATE (a step is open), FB_VERSION_EXISTS (after a restart without fb_resume), FB_PRODUCER_DIED
/// (another rank of this group), FB_FENCED.
#[no_mangle]
pub unsafe extern "C" fn fb_begin_step(writer: *mut fb_writer, version: *mut u64) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (mut state, place) = unsafe { (state_of(writer)?, out_or_null(version, "version")?) };
        let begun = state.writer.begin_step()?;
        place.into_iter().for_each(|place| place.set(begun));
        Ok(FB_OK)
    })
}

/// Begins this version, for programs that count their steps themselves. Does not wait.
///
/// FB_SKIPPED (no error) when the version is complete and the option "mode" is "a": a step is open, its puts are
/// dropped, fb_end_step ends it. FB_VERSION_EXISTS when it is complete in another mode, FB_VERSION_OUT_OF_ORDER
/// when it would leave a gap; else the errors of fb_begin_step.
#[no_mangle]
pub unsafe extern "C" fn fb_begin_version(writer: *mut fb_writer, version: u64) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        let mut state = unsafe { state_of(writer)? };
        Ok(if state.writer.begin_version(version)? { FB_OK } else { FB_SKIPPED })
    })
}

/// Puts one piece of variable `name` into the open step: `shape` is the variable's whole shape, the same on
/// every rank, `start` and `count` the box that `data` holds (each `ndim` numbers; NULL as said at the top).
/// `data` is copied and may be changed as soon as the call returns. A variable may be put in any number of
/// pieces that do not overlap. Waits, until the timeout, when the quota is used up; the step is durable after
/// fb_end_step only.
///
/// FB_STEP_STATE (no step is open), FB_BOX_OUTSIDE_SHAPE, FB_VARIABLE_MISMATCH (dtype or shape differ from
/// what another rank put), FB_BAD_NAME, FB_VERSION_TOO_LARGE, FB_QUOTA_FULL, FB_TIER_FULL, FB_POISONED,
/// FB_FENCED.
#[no_mangle]
pub unsafe extern "C" fn fb_put(
    writer: *mut fb_writer,
    name: *const c_char,
    dtype: c_int,
    ndim: c_int,
    shape: *const u64,
    start: *const u64,
    count: *const u64,
    data: *const c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and extents.
        let (mut state, piece) =
            unsafe { (state_of(writer)?, Piece::read(name, dtype, ndim, shape, start, count)?) };
        // SAFETY: `data` holds the box, which was checked to lie inside the shape.
        let data = unsafe { input(data, piece.bytes, "data")? };
        let Piece { name, dtype, shape, place, .. } = piece;
        state.writer.put(name, dtype, shape, &place.start, &place.count, data)?;
        Ok(FB_OK)
    })
}

/// Puts many objects into the open step, each whole and under a name of its own: `names[i]` is a variable of
/// `shape` (`ndim` numbers) whose elements are the i-th part of `data`, which holds all `objects` of them one
/// behind the other. As that many calls of fb_put, but what a call costs is paid once. After an error the objects
/// before the one that it names (see fb_last_error) are in the step: put the rest, or fb_abort_step.
///
/// Blocking and errors: those of fb_put.
#[no_mangle]
pub unsafe extern "C" fn fb_put_many(
    writer: *mut fb_writer,
    objects: usize,
    names: *const *const c_char,
    dtype: c_int,
    ndim: c_int,
    shape: *const u64,
    data: *const c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and texts.
        let (mut state, names) = unsafe { (state_of(writer)?, texts(names, objects, "names")?) };
        let dtype = dtype_of(dtype)?;
        let ndim = dimensions(ndim)?;
        // SAFETY: the header's contract for extents.
        let shape = unsafe { extents(shape, ndim, "shape")? }.ok_or_else(|| null("shape"))?;
        let bytes = NdBox::whole(shape).bytes(dtype.size())?.checked_mul(objects);
        let bytes = bytes.ok_or_else(|| Error::new(Kind::Usage, "more bytes than the address space"))?;
        // SAFETY: `data` holds all objects, by the header's contract.
        let data = unsafe { input(data, bytes, "data")? };
        state.writer.put_many(&names, dtype, shape, data)?;
        Ok(FB_OK)
    })
}

/// Reserves space for one piece and stores its address in `*data`: the pool itself where the tier is byte
/// addressable, so that the program can compute into it and nothing is copied. The parameters are those of
/// fb_put. Fill all of it, then call fb_commit with the same address. The memory ends with fb_commit
/// (whatever that returns), fb_abort_step or fb_close_writer, and must not be touched after that. It is
/// aligned as malloc() does, to 64 bytes where it is the pool; what it holds at first is unspecified.
///
/// Blocking and errors: those of fb_put.
#[no_mangle]
#[allow(clippy::too_many_arguments)] // fb_put's list and one output: the pair should read the same.
pub unsafe extern "C" fn fb_reserve(
    writer: *mut fb_writer,
    name: *const c_char,
    dtype: c_int,
    ndim: c_int,
    shape: *const u64,
    start: *const u64,
    count: *const u64,
    data: *mut *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, outputs, texts and extents.
        let (mut state, out, piece) = unsafe {
            (state_of(writer)?, out(data, "data")?, Piece::read(name, dtype, ndim, shape, start, count)?)
        };
        let Piece { name, dtype, shape, place, .. } = piece;
        let mut memory = state.writer.reserve(name, dtype, shape, &place.start, &place.count)?;
        let address = memory.as_mut_slice().as_mut_ptr();
        state.reserved.push(Reserved { address: address as usize, name: name.to_owned(), memory });
        out.set(address.cast());
        Ok(FB_OK)
    })
}

/// Hands in the piece whose memory fb_reserve stored as `data`; its checksum is computed here. The memory
/// must not be touched any more. Does not wait for other processes.
///
/// FB_USAGE (no such reservation), FB_STEP_STATE, FB_TIER_FULL, FB_POISONED, FB_FENCED.
#[no_mangle]
pub unsafe extern "C" fn fb_commit(writer: *mut fb_writer, data: *const c_void) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles; `data` is compared, never read.
        let mut state = unsafe { state_of(writer)? };
        let at = state.reserved.iter().rposition(|r| r.address == data as usize).ok_or_else(|| {
            Error::new(Kind::Usage, "nothing is reserved at this address")
                .with("reserved", state.reserved.len())
                .hint("give fb_commit the address that fb_reserve stored, once")
        })?;
        let reserved = state.reserved.swap_remove(at);
        state.writer.commit(reserved.memory)?;
        Ok(FB_OK)
    })
}

/// Ends the step: this rank's part of the version is acknowledged under the horizon of the space (see
/// DURABILITY at the top). The version becomes visible to readers when the last rank has returned from here.
/// Does not wait for other ranks.
///
/// FB_STEP_STATE (no step is open, or a reservation was not committed), FB_TIER_FULL, FB_POISONED (a flush
/// failed), FB_PRODUCER_DIED, FB_FENCED, FB_IO. After an error the version does not count and the step is
/// still open: try again, or fb_abort_step.
#[no_mangle]
pub unsafe extern "C" fn fb_end_step(writer: *mut fb_writer) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        let mut state = unsafe { state_of(writer)? };
        if let Some(open) = state.reserved.first() {
            let error =
                Error::new(Kind::StepState, format!("a reservation of {} was not committed", open.name));
            return Err(error.with("reserved", state.reserved.len()).hint("fb_commit it, or fb_abort_step"));
        }
        state.writer.end_step()?;
        Ok(FB_OK)
    })
}

/// Drops what this rank put into the open step, and its reservations; the version can be begun again. Does
/// not wait for other ranks. Without an open step it does nothing.
#[no_mangle]
pub unsafe extern "C" fn fb_abort_step(writer: *mut fb_writer) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        let mut state = unsafe { state_of(writer)? };
        state.forget_reservations();
        state.writer.abort_step()?;
        Ok(FB_OK)
    })
}

/// Ends the writer and sets `*writer` to NULL, whatever is returned. When every rank has closed, readers get
/// FB_END_OF_STREAM after the last version; an open step is aborted. Does not wait for readers.
#[no_mangle]
pub unsafe extern "C" fn fb_close_writer(writer: *mut *mut fb_writer) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles given by address.
        let Some(writer) = (unsafe { take(writer, "writer")? }) else { return Ok(FB_OK) };
        let (mut state, whole) = match writer.state.into_inner() {
            Ok(state) => (state, true),
            Err(poisoned) => (poisoned.into_inner(), false),
        };
        state.forget_reservations();
        if !whole {
            // A panic left it in pieces: no reader may take what it put for a clean end.
            state.writer.abandon();
            return Ok(FB_OK);
        }
        state.writer.close()?;
        Ok(FB_OK)
    })
}

/// The locked state behind a writer's pointer.
///
/// # Safety
/// NULL or a live writer.
pub(crate) unsafe fn state_of<'a>(writer: *const fb_writer) -> Result<MutexGuard<'a, State>> {
    // SAFETY: the caller's contract.
    lock(unsafe { &handle(writer, "writer")?.state }, "the writer")
}
