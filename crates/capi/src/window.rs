//! `fb_window`: a file as plain memory of the whole length, of which a budget's worth is there.
//!
//! Guarantees: the memory stays where it is until fb_window_close. What Rust promises more of, see
//! `forebay_pager::Window`.

use crate::memory::{give, handle, lock, out, out_or_null, take, text, word};
use crate::status::{c_text, guard};
use crate::FB_OK;
use forebay_pager::{Mode, Window, WindowOptions};
use forebay_space::{Error, Kind, Result};
use std::ffi::{c_char, c_int, c_void, CString};
use std::path::Path;
use std::sync::Mutex;

/// A file as memory in a budget: made by fb_window_open, ended by fb_window_close. Any threads may touch the memory.
pub struct fb_window {
    state: Mutex<Window>,
    engine: CString,
    why: CString,
}

/// The numbers of fb_window_statistic.
const COUNTS: [&str; 7] =
    ["faults", "read_bytes", "written_bytes", "evicted_bytes", "resident_bytes", "resident_peak", "failures"];

impl fb_window {
    fn with<T>(&self, work: impl FnOnce(&mut Window) -> Result<T>) -> Result<T> {
        work(&mut *lock(&self.state, "window")?)
    }
}

/// Opens `bytes` bytes from `offset` on of the file `path` (bytes 0: up to its end) as a window and stores the handle
/// in `*window`. No more than `budget` bytes of it are in memory, with what is known of them.
///
/// `mode` is "r" (read; NULL is the same), "r+" (read and write) or "c" (writes stay with this handle); the file must
/// be there. `tile` is what moves together, a power of two from 4096 to 2 MiB; 0 is 64 KiB. `engine` is "userfault"
/// (the thread that touches what is not there reads it in its own handler of SIGBUS), "handler" (threads answer, also
/// when a system call touches it), "kernel" (a mapping whose pages are sent away) or "direct" (a mapping of a file in
/// memory); NULL takes what fits. Who touches a page that cannot be read gets SIGBUS, after a line on stderr.
///
/// FB_USAGE, FB_DAMAGED (the file is too short), FB_NOT_POSSIBLE_HERE (this engine is not available),
/// FB_PERMISSION_DENIED, FB_TIER_FULL. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_window_open(
    path: *const c_char,
    mode: *const c_char,
    offset: u64,
    bytes: u64,
    budget: u64,
    tile: usize,
    engine: *const c_char,
    window: *mut *mut fb_window,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for outputs and texts; NULL is None for the latter two.
        let (place, path, mode, engine) = unsafe {
            (
                out(window, "window")?,
                Path::new(text(path, "path")?),
                word(mode, "mode")?.unwrap_or("r"),
                word(engine, "engine")?,
            )
        };
        let mut options = WindowOptions::new(budget);
        if tile > 0 {
            options.tile_bytes = tile;
        }
        options.mode = match mode {
            "r" => Mode::ReadOnly,
            "r+" => Mode::ReadWrite,
            "c" => Mode::CopyOnWrite,
            _ => {
                return Err(
                    Error::new(Kind::Usage, format!("a window has no mode {mode:?}")).hint("r, r+ or c")
                )
            }
        };
        options.engine = engine.map(str::parse).transpose()?;
        (options.origin, options.bytes) = (offset, (bytes > 0).then_some(bytes));
        options.overlay = forebay_tier::capacity::folder_of(path);
        let opened = Window::open(path, &options)?;
        let seen = opened.statistics();
        let (engine, why) = (c_text(seen.engine.name()), c_text(seen.why));
        give(fb_window { state: Mutex::new(opened), engine, why }, place);
        Ok(FB_OK)
    })
}

/// Stores the address of the first byte in `*data` and the size in `*bytes` (may be NULL). Touching a byte that is not
/// there brings it, which blocks for as long as the medium takes. In mode "r" a store ends the program; in a child of
/// fork() so does every touch. With engine "userfault" system calls that are given an address in it fail with EFAULT
/// where nothing is there yet. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_window_data(
    window: *const fb_window,
    data: *mut *mut c_void,
    bytes: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (window, data, bytes) =
            unsafe { (handle(window, "window")?, out(data, "data")?, out_or_null(bytes, "bytes")?) };
        let (start, length) = window.with(|window| Ok((window.as_ptr(), window.bytes())))?;
        data.set(start.cast());
        bytes.into_iter().for_each(|place| place.set(length));
        Ok(FB_OK)
    })
}

/// Stores how it works in `*engine` ("userfault", "handler", "kernel", "direct") and why so in `*why`; either may be
/// NULL. The texts live as long as the window. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_window_engine(
    window: *const fb_window,
    engine: *mut *const c_char,
    why: *mut *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and outputs.
        let (window, engine, why) =
            unsafe { (handle(window, "window")?, out_or_null(engine, "engine")?, out_or_null(why, "why")?) };
        engine.into_iter().for_each(|place| place.set(window.engine.as_ptr()));
        why.into_iter().for_each(|place| place.set(window.why.as_ptr()));
        Ok(FB_OK)
    })
}

/// Stores one number of what it has done and holds in `*value`: "faults", "read_bytes", "written_bytes",
/// "evicted_bytes", "resident_bytes", "resident_peak", "failures" (pages that could not be read). FB_UNKNOWN_KEY.
/// Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_window_statistic(
    window: *const fb_window,
    name: *const c_char,
    value: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles, texts and outputs.
        let (window, name, place) =
            unsafe { (handle(window, "window")?, text(name, "name")?, out(value, "value")?) };
        let seen = window.with(|window| Ok(window.statistics()))?;
        let value = match name {
            "faults" => seen.faults,
            "read_bytes" => seen.read_bytes,
            "written_bytes" => seen.written_bytes,
            "evicted_bytes" => seen.evicted_bytes,
            "resident_bytes" => seen.resident_bytes,
            "resident_peak" => seen.resident_peak,
            "failures" => seen.failures,
            _ => {
                return Err(Error::new(Kind::UnknownKey, format!("unknown statistic `{name}`"))
                    .hint(format!("available: {}", COUNTS.join(", "))))
            }
        };
        place.set(value);
        Ok(FB_OK)
    })
}

/// Says what the program will do next, of `bytes` bytes from `offset` on: "prefetch" begins to bring them,
/// "will_stream" says that they will be read from front to back, "done_with" sends them away (written back where they
/// were changed). For the whole window, whatever the range: "random" brings nothing beside what is touched,
/// "sequential" that all will be read from front to back, "normal" finds runs by itself. Only hints: none of them can
/// go wrong, but FB_UNKNOWN_KEY for another word.
#[no_mangle]
pub unsafe extern "C" fn fb_window_advise(
    window: *mut fb_window,
    hint: *const c_char,
    offset: u64,
    bytes: u64,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and texts.
        let (window, hint) = unsafe { (handle(window, "window")?, text(hint, "hint")?) };
        let range = offset..offset.saturating_add(bytes);
        window.with(|window| {
            match hint {
                "prefetch" => window.prefetch(range),
                "will_stream" => window.will_stream(range),
                "done_with" => window.done_with(range),
                "normal" | "random" | "sequential" => window.advise(hint.parse()?),
                _ => {
                    return Err(Error::new(Kind::UnknownKey, format!("unknown hint `{hint}`"))
                        .hint("prefetch, will_stream, done_with, normal, random or sequential"))
                }
            }
            Ok(FB_OK)
        })
    })
}

/// Writes back what was stored and makes it durable; blocks until it is. Nothing is written in modes "r" and "c". What
/// could not be written is still there, and the call may be made again; after FB_POISONED (the medium's own flush
/// failed) it is unknown what it holds.
#[no_mangle]
pub unsafe extern "C" fn fb_window_flush(window: *mut fb_window) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles.
        unsafe { handle(window, "window")? }.with(Window::flush)?;
        Ok(FB_OK)
    })
}

/// Ends the window, whose memory must not be touched any more, and sets `*window` to NULL: as fb_window_flush, whose
/// errors it has; what could not be written is lost then.
#[no_mangle]
pub unsafe extern "C" fn fb_window_close(window: *mut *mut fb_window) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles given by address.
        let Some(window) = (unsafe { take(window, "window")? }) else { return Ok(FB_OK) };
        let opened = window.state.into_inner();
        opened.unwrap_or_else(std::sync::PoisonError::into_inner).close()?;
        Ok(FB_OK)
    })
}
