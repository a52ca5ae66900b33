//! `_exit`, `quick_exit` and the exec functions: a failed write to the tier ends the program there too, before it can
//! report success.

use libc::{c_char, c_int, c_long};

use crate::inside::Inside;
use crate::next::Next;
use crate::place::here;

/// Ends the program by SIGBUS when a write to the tier has failed. The thread counts as inside meanwhile.
fn check() {
    let Some(_inside) = Inside::enter() else { return };
    if let Some(place) = here() {
        place.end_where_a_write_failed();
    }
}

macro_rules! exit {
    ($function:ident) => {
        /// _exit(2).
        #[cfg_attr(not(test), no_mangle)]
        #[allow(non_snake_case, reason = "the C library's name")]
        pub unsafe extern "C" fn $function(status: c_int) -> ! {
            check();
            loop {
                // SAFETY: ends the process.
                unsafe { libc::syscall(libc::SYS_exit_group, c_long::from(status)) };
            }
        }
    };
}

exit!(_exit);
exit!(_Exit);

type Words = *const *const c_char;

/// A function of the C library by its own name, that is called behind the check.
macro_rules! behind_check {
    ($function:ident, $next:ident, $name:literal, ($($argument:ident: $type:ty),*) -> $result:ty) => {
        static $next: Next = Next::new($name);

        /// exec(3), quick_exit(3).
        #[cfg_attr(not(test), no_mangle)]
        pub unsafe extern "C" fn $function($($argument: $type),*) -> $result {
            check();
            // SAFETY: the C library's function of this name has this type.
            let next: unsafe extern "C" fn($($type),*) -> $result = unsafe { std::mem::transmute($next.get()) };
            // SAFETY: the caller's arguments, under the same contract.
            unsafe { next($($argument),*) }
        }
    };
}

behind_check!(quick_exit, QUICK_EXIT, c"quick_exit", (status: c_int) -> !);
behind_check!(execve, EXECVE, c"execve", (path: *const c_char, words: Words, environment: Words) -> c_int);
behind_check!(execv, EXECV, c"execv", (path: *const c_char, words: Words) -> c_int);
behind_check!(execvp, EXECVP, c"execvp", (file: *const c_char, words: Words) -> c_int);
behind_check!(execvpe, EXECVPE, c"execvpe", (file: *const c_char, words: Words, environment: Words) -> c_int);
behind_check!(fexecve, FEXECVE, c"fexecve", (fd: c_int, words: Words, environment: Words) -> c_int);

/// Looks the functions up before the program begins: a child of a program with threads must not look up anything.
#[cfg_attr(test, allow(dead_code, reason = "the loader calls it"))]
pub(crate) fn look_up() {
    for function in [&QUICK_EXIT, &EXECVE, &EXECV, &EXECVP, &EXECVPE, &FEXECVE] {
        function.get();
    }
}
