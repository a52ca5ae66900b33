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
/// No error: the version is complete already and the option "mode" is "a"; the puts of this step
/// are accepted and dropped.
pub const FB_SKIPPED: c_int = 3;
/// No error: fb_begin_read has opened a version.
pub const FB_STEP: c_int = 4;

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
        FB_STEP => c"Step",
        _ => kind_of(code).map_or(c"Unknown", terminated_name),
    };
    name.as_ptr()
}

/// The exit status that a program which ends with this code should have, so that scripts can tell errors
/// apart: 0 for FB_OK and the other statuses, 2 usage, 3 not possible here, 4 a component failed, 5
/// permission denied, 6 out of space, 7 timed out or peer missing, 8 data check failed, 70 internal. Does not
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

/// Hints of the library below name its own functions; these are the ones of C, longer phrases first.
const C_NAMES: [(&str, &str); 18] = [
    ("call begin_step to begin reading", "call fb_begin_read to begin reading"),
    ("of open or begin_step", "at opening or in fb_begin_read"),
    ("call begin_step first", "call fb_begin_step first"),
    ("call end_step or abort_step first", "call fb_end_step or fb_abort_step first"),
    ("call end_step first", "call fb_end_read first"),
    ("call resume()", "call fb_resume()"),
    ("replace=true", "the option \"replace\" set to \"true\""),
    ("finished=true", "the option \"finished\" set to \"true\""),
    ("by open_version", "by fb_open_version"),
    ("begin_step opens", "fb_begin_step opens"),
    ("wait() blocks", "fb_wait() blocks"),
    ("use get,", "use fb_get,"),
    ("from reserve to commit", "from fb_reserve to fb_commit"),
    ("persist(range)", "fb_persist()"),
    ("commit every reservation, or abort the step", "call fb_commit for each, or fb_abort_step"),
    ("kind = \"space\"", "option \"channel\" set to \"space\""),
    ("omit `batch`", "omit the option \"batch\""),
    ("pass rank and size", "set the options \"rank\" and \"size\""),
];

/// A hint in the words of C. Settings that are written as Python and workflow files have them (`spill = "DIRECTORY"`)
/// become options of `fb_options_set`.
fn in_c(hint: &str) -> String {
    let text = C_NAMES.iter().fold(hint.to_owned(), |text, (rust, c)| text.replace(rust, c));
    settings_in_c(&text)
}

/// `key="value"` and `key = "value"` as `the option "key" set to "value"`.
fn settings_in_c(text: &str) -> String {
    let is_key = |c: char| c.is_ascii_lowercase() || c == '_';
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('=') {
        let (before, after) = (rest[..at].trim_end(), rest[at + 1..].trim_start());
        let key = before.rsplit(|c| !is_key(c)).next().unwrap_or_default();
        let value = after.strip_prefix('"').and_then(|value| value.split_once('"'));
        match (key, value) {
            ("" | "launcher", _) | (_, None) => out.push_str(&rest[..=at]),
            (key, Some((value, tail))) => {
                out.push_str(&before[..before.len() - key.len()]);
                out.push_str(&format!("the option \"{key}\" set to \"{value}\""));
                rest = tail;
                continue;
            }
        }
        rest = &rest[at + 1..];
    }
    out + rest
}

fn keep(error: &Error) {
    let (text, hint) = (full_text(error), error.hint_text().unwrap_or(""));
    let named = in_c(hint);
    let text = if hint.is_empty() { text } else { text.replacen(hint, &named, 1) };
    let last = LastError { text: c_text(&text), hint: c_text(&named) };
    // At thread exit the slot may be gone; then no caller can ask any more either.
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
            Err(Error::new(Kind::TimedOut, "no rank came")
                .with("rank", 2)
                .hint("start rank 2")
                .caused_by(std::io::Error::other("deeper")))
        });
        assert_eq!(code, -c_int::from(Kind::TimedOut.code()));
        assert_eq!(
            read(fb_last_error()),
            "TimedOut: no rank came (rank=2)\n  hint: start rank 2\n  caused by: deeper"
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
        assert_eq!((read(fb_error_name(FB_STEP)), fb_exit_code(FB_STEP)), ("Step".to_owned(), 0));
        assert_eq!(read(fb_error_name(c_int::MIN)), "Unknown");
        assert_eq!(fb_exit_code(FB_OK), 0);
        assert_eq!(fb_exit_code(-9999), 70);
    }

    /// Every hint in the sources of a crate, as the compiler reads it.
    fn hints_of(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                hints_of(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for start in code.split(".hint(").skip(1) {
                // Up to the end of the call; literals that a condition chooses between are all looked at.
                let call = start.split(";\n").next().unwrap_or_default();
                let joined = call.replace("\\\"", "\u{1}");
                for literal in joined.split('"').skip(1).step_by(2) {
                    let lines: Vec<&str> = literal.split("\\\n").map(str::trim_start).collect();
                    found.push(lines.concat().replace('\u{1}', "\""));
                }
            }
        }
    }

    /// What is spelled as Python or Rust in a hint that a C program gets, if something is.
    fn foreign(hint: &str) -> Option<String> {
        const CALLS: [&str; 12] = [
            "begin_step",
            "end_step",
            "abort_step",
            "resume",
            "subscribe",
            "open_version",
            "reserve",
            "mode=",
            "replace=",
            "finished=",
            "copy=",
            "None",
        ];
        let named = in_c(hint);
        let words = || named.split(|c: char| !(c.is_ascii_alphanumeric() || "_=(".contains(c)));
        let is_call = |word: &str| word.contains('(') && !word.starts_with("fb_") && !word.starts_with('(');
        let is_python = |word: &str| word.ends_with("=True") || word.ends_with("=False");
        words()
            .find(|word| CALLS.contains(word) || is_call(word) || is_python(word))
            .map(str::to_owned)
            .or_else(|| named.contains(" = \"").then(|| named.clone()))
    }

    #[test]
    fn hints_name_calls_and_options_of_c() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut hints = Vec::new();
        for name in ["tier", "log", "pager", "space", "checkpoint"] {
            hints_of(&crates.join(name).join("src"), &mut hints);
        }
        assert!(hints.len() > 150, "only {} hints were found", hints.len());
        let wrong: Vec<String> =
            hints.iter().filter_map(|hint| Some(format!("{} in: {}", foreign(hint)?, in_c(hint)))).collect();
        assert!(wrong.is_empty(), "name them in C_NAMES:\n{}", wrong.join("\n"));
        for hint in ["call resume() first", "open with mode=\"a\"", "use fb_get, or reserve", "replace=True"]
        {
            assert_eq!(
                foreign(hint).is_some(),
                hint.contains("replace") || hint.contains("reserve"),
                "{hint}"
            );
        }
    }

    #[test]
    fn settings_become_options() {
        assert_eq!(
            in_c("give it: spill = \"DIRECTORY\""),
            "give it: the option \"spill\" set to \"DIRECTORY\""
        );
        assert_eq!(
            in_c("open with scope=\"node\" (or FOREBAY_SCOPE=node)"),
            "open with the option \"scope\" set to \"node\" (or FOREBAY_SCOPE=node)"
        );
        let untouched = "launcher = [\"mpirun\"] with ranks = 4, keep=N";
        assert_eq!(in_c(untouched), untouched);
    }

    #[test]
    fn a_nul_inside_a_text_does_not_cut_it() {
        assert_eq!(c_text("a\0b").to_str().expect("UTF-8"), "a\u{fffd}b");
    }
}
