//! Return codes, the error of the calling thread, and the guard that every exported function runs in.
//!
//! Guarantees: [`guard`] lets no panic out; an error's text stays readable on the thread that got it until
//! the next error on that thread. It does not log and does not print.
//!
//! The negative codes are not listed here: the header gets them from `Kind::ALL` (`src/header.rs`).

use forebay_space::{Error, Kind, Result};
use std::cell::RefCell;
use std::ffi::{c_char, c_int, CStr, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// The call did what it says.
pub const FB_OK: c_int = 0;
/// No error: every writer closed, and this reader has seen the last version.
pub const FB_END_OF_STREAM: c_int = 1;
/// No error: there is no complete version yet, or no step of a checkpoint.
pub const FB_NOT_YET: c_int = 2;
/// No error: the version is complete already and the option "on_existing" is "skip"; the puts of this step
/// are accepted and dropped.
pub const FB_SKIPPED: c_int = 3;

struct LastError {
    text: CString,
    hint: CString,
}

thread_local! {
    static LAST: RefCell<Option<LastError>> = const { RefCell::new(None) };
}

/// The whole text of the last error on this thread: kind, message, facts, hint and causes, in one or more
/// lines. Never NULL; empty before the first error. Valid until the next call on this thread that fails; not
/// to be freed. Does not block.
#[no_mangle]
pub extern "C" fn fb_last_error() -> *const c_char {
    last(|e| e.text.as_ptr())
}

/// What to do about the last error on this thread. Never NULL; empty when there is no hint. Valid until the
/// next call on this thread that fails; not to be freed. Does not block.
#[no_mangle]
pub extern "C" fn fb_last_error_hint() -> *const c_char {
    last(|e| e.hint.as_ptr())
}

/// The name of an error code or status, for example "TimedOut" for FB_TIMED_OUT, "Ok" for FB_OK. Never NULL;
/// "Unknown" for a number that is neither. Not to be freed. Does not block.
#[no_mangle]
pub extern "C" fn fb_error_name(code: c_int) -> *const c_char {
    let name: &'static CStr = match code {
        FB_OK => c"Ok",
        FB_END_OF_STREAM => c"EndOfStream",
        FB_NOT_YET => c"NotYet",
        FB_SKIPPED => c"Skipped",
        _ => kind_of(code).map_or(c"Unknown", terminated_name),
    };
    name.as_ptr()
}

/// The exit status that a program which ends with this code should have, so that scripts can tell errors
/// apart: 0 for FB_OK and the other statuses, 2 usage, 3 not possible here, 4 a component failed, 5
/// permission missing, 6 capacity, 7 timed out or peer missing, 8 data check failed, 70 internal. Does not
/// block, cannot fail.
#[no_mangle]
pub extern "C" fn fb_exit_code(code: c_int) -> c_int {
    if code >= 0 {
        return 0;
    }
    kind_of(code).unwrap_or(Kind::Internal).exit_code()
}

/// Runs the body of an exported function: errors and panics become codes, and the thread's last error.
pub(crate) fn guard(body: impl FnOnce() -> Result<c_int>) -> c_int {
    // Handles are behind mutexes, so a panic inside one poisons it and later calls get FB_INTERNAL: broken
    // invariants are never seen again, which is what AssertUnwindSafe promises here.
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => return status,
        Ok(Err(error)) => error,
        Err(panic) => Error::new(Kind::Internal, format!("a panic inside Forebay: {}", panic_text(&*panic)))
            .hint("this is a bug in Forebay; close the handle and report it with this text"),
    };
    let code = -c_int::from(error.kind().code());
    // A panic while the error is kept (out of memory) must not leave the library either.
    let _ = catch_unwind(AssertUnwindSafe(|| keep(&error)));
    code
}

/// A NULL where memory is needed.
pub(crate) fn null(what: &str) -> Error {
    Error::new(Kind::Usage, format!("{what} is NULL"))
}

fn last(get: impl FnOnce(&LastError) -> *const c_char) -> *const c_char {
    LAST.try_with(|slot| slot.try_borrow().ok().and_then(|last| last.as_ref().map(get)))
        .ok()
        .flatten()
        .unwrap_or(c"".as_ptr())
}

fn keep(error: &Error) {
    let last = LastError { text: c_text(&full_text(error)), hint: c_text(error.hint_text().unwrap_or("")) };
    // At thread exit the slot may be gone; then nobody can ask any more either.
    let _ = LAST.try_with(|slot| slot.replace(Some(last)));
}

/// Display, then each cause that the text does not already contain.
fn full_text(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(e) = cause {
        let line = e.to_string();
        if !text.contains(&line) {
            text.push_str("\n  caused by: ");
            text.push_str(&line);
        }
        cause = e.source();
    }
    text
}

/// A C text; a NUL inside (a name from a damaged pool, say) is shown as U+FFFD instead of ending the text
/// early.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

fn kind_of(code: c_int) -> Option<Kind> {
    u16::try_from(code.checked_neg()?).ok().and_then(Kind::from_code)
}

/// Kind names with a NUL behind them, made once: C wants to keep the pointer for ever.
fn terminated_name(kind: Kind) -> &'static CStr {
    static NAMES: std::sync::OnceLock<Vec<(Kind, CString)>> = std::sync::OnceLock::new();
    NAMES
        .get_or_init(|| Kind::ALL.iter().map(|k| (*k, c_text(k.name()))).collect())
        .iter()
        .find(|(k, _)| *k == kind)
        .map_or(c"Unknown", |(_, name)| name.as_c_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(p: *const c_char) -> String {
        // SAFETY: the functions under test return a pointer to a NUL-terminated text that lives until the
        // next failing call on this thread; it is copied before that.
        unsafe { CStr::from_ptr(p) }.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn a_panic_is_an_error_code() {
        let code = guard(|| panic!("the floor fell out"));
        assert_eq!(code, -c_int::from(Kind::Internal.code()));
        assert!(read(fb_last_error()).contains("the floor fell out"));
        assert!(read(fb_last_error_hint()).contains("bug"));
    }

    #[test]
    fn text_hint_and_causes_are_kept_per_thread() {
        let code = guard(|| {
            Err(Error::new(Kind::TimedOut, "nobody came")
                .with("rank", 2)
                .hint("start rank 2")
                .caused_by(std::io::Error::other("deeper")))
        });
        assert_eq!(code, -c_int::from(Kind::TimedOut.code()));
        assert_eq!(
            read(fb_last_error()),
            "TimedOut: nobody came (rank=2)\n  hint: start rank 2\n  caused by: deeper"
        );
        assert_eq!(read(fb_last_error_hint()), "start rank 2");
        std::thread::spawn(|| assert_eq!(read(fb_last_error()), "")).join().expect("other thread");
    }

    #[test]
    fn names_and_exit_codes() {
        for kind in Kind::ALL {
            let code = -c_int::from(kind.code());
            assert_eq!(read(fb_error_name(code)), kind.name());
            assert_eq!(fb_exit_code(code), kind.exit_code());
        }
        assert_eq!(read(fb_error_name(FB_END_OF_STREAM)), "EndOfStream");
        assert_eq!(read(fb_error_name(c_int::MIN)), "Unknown");
        assert_eq!(fb_exit_code(FB_OK), 0);
        assert_eq!(fb_exit_code(-9999), 70);
    }

    #[test]
    fn a_nul_inside_a_text_does_not_cut_it() {
        assert_eq!(c_text("a\0b").to_str().expect("UTF-8"), "a\u{fffd}b");
    }
}
