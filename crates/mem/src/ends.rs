//! `_exit`, `quick_exit`, `daemon`, exec functions: a failed write to the tier ends the program there too, before
//! it can report success.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};

use libc::{c_char, c_int, c_void};

use crate::inside::Inside;
use crate::next::Next;
use crate::place::here;

/// The process whose memory this is. A child of `vfork` has another number, and must leave the parent's alone.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// This process owns the memory: at its start, and as a child of `fork`.
pub(crate) fn own() {
    // SAFETY: has no preconditions.
    OWNER.store(unsafe { libc::getpid() }, Relaxed);
}

/// Ends the program by SIGBUS when a write to the tier has failed.
fn check() {
    // SAFETY: has no preconditions.
    if unsafe { libc::getpid() } != OWNER.load(Relaxed) {
        return;
    }
    let Some(place) = here() else { return };
    match Inside::enter() {
        Some(_inside) => place.end_where_a_write_failed(),
        // In a signal handler that has interrupted the library, which may hold its locks.
        None => place.end_silently_where_a_write_failed(),
    }
}

extern "C" {
    /// As at_quick_exit(3), which is no symbol of the shared library.
    fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), object: *mut c_void) -> c_int;
}

extern "C" fn at_quick_exit(_: *mut c_void) {
    check();
}

type Words = *const *const c_char;

/// A function of the C library by its own name, that is called behind the check.
macro_rules! behind_check {
    ($function:ident, $next:ident, $name:literal, ($($argument:ident: $type:ty),*) -> $result:ty) => {
        static $next: Next = Next::new($name);

        /// _exit(2), daemon(3), exec(3).
        #[cfg_attr(not(test), no_mangle)]
        #[allow(non_snake_case, reason = "the C library's name")]
        pub unsafe extern "C" fn $function($($argument: $type),*) -> $result {
            check();
            // SAFETY: the C library's function of this name has this type.
            let next: unsafe extern "C" fn($($type),*) -> $result = unsafe { std::mem::transmute($next.get()) };
            // SAFETY: the caller's arguments, under the same contract.
            unsafe { next($($argument),*) }
        }
    };
}

behind_check!(_exit, EXIT_NOW, c"_exit", (status: c_int) -> !);
behind_check!(_Exit, EXIT, c"_Exit", (status: c_int) -> !);
behind_check!(daemon, DAEMON, c"daemon", (stay: c_int, keep: c_int) -> c_int);
behind_check!(execve, EXECVE, c"execve", (path: *const c_char, words: Words, environment: Words) -> c_int);
behind_check!(execv, EXECV, c"execv", (path: *const c_char, words: Words) -> c_int);
behind_check!(execvp, EXECVP, c"execvp", (file: *const c_char, words: Words) -> c_int);
behind_check!(execvpe, EXECVPE, c"execvpe", (file: *const c_char, words: Words, environment: Words) -> c_int);
behind_check!(fexecve, FEXECVE, c"fexecve", (fd: c_int, words: Words, environment: Words) -> c_int);

/// execveat(2), which an old C library does not have.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    words: Words,
    environment: Words,
    flags: c_int,
) -> c_int {
    check();
    // SAFETY: the caller's arguments, under the contract of the system call.
    unsafe { libc::syscall(libc::SYS_execveat, folder, path, words, environment, flags) as c_int }
}

/// Prepares before the program begins: a child of a program with threads must not look up anything, and what is
/// registered first for `quick_exit` is called last.
#[cfg_attr(test, allow(dead_code, reason = "the loader calls it"))]
pub(crate) fn begin() {
    own();
    for function in [&EXIT_NOW, &EXIT, &DAEMON, &EXECVE, &EXECV, &EXECVP, &EXECVPE, &FEXECVE] {
        function.get();
    }
    // SAFETY: a function that lives as long as the process.
    unsafe { __cxa_at_quick_exit(at_quick_exit, null_mut()) };
}
