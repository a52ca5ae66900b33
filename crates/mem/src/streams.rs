//! fread and fwrite: the C library transfers what is long by calls of its own, straight to where it is wanted.

use libc::{c_void, size_t, ssize_t, FILE};

use crate::calls::{check, in_parts, After};
use crate::next::next;

macro_rules! stream {
    ($function:ident, $name:literal, $write:literal) => {
        /// fread(3), fwrite(3).
        #[cfg_attr(not(test), no_mangle)]
        pub unsafe extern "C" fn $function(
            memory: *mut c_void,
            bytes: size_t,
            count: size_t,
            stream: *mut FILE,
        ) -> size_t {
            type Stream = *mut FILE;
            let Some(all) = bytes.checked_mul(count).filter(|all| {
                *all > 0 && *all <= isize::MAX as usize && crate::place::helps(memory, *all).is_some()
            }) else {
                return next!(
                    $name as fn(*mut c_void, size_t, size_t, Stream) -> size_t,
                    memory,
                    bytes,
                    count,
                    stream
                );
            };
            let done = in_parts(
                memory,
                all,
                $write,
                || After::GoOn,
                |at, part, _| {
                    let to = at as *mut c_void;
                    next!($name as fn(*mut c_void, size_t, size_t, Stream) -> size_t, to, 1, part, stream)
                        as ssize_t
                },
            );
            // It says what failed by the stream and not by its result.
            done.max(0) as size_t / bytes
        }
    };
}

stream!(fread, c"fread", true);
stream!(fread_unlocked, c"fread_unlocked", true);
stream!(fwrite, c"fwrite", false);
stream!(fwrite_unlocked, c"fwrite_unlocked", false);

macro_rules! checked {
    ($function:ident, $plain:ident) => {
        /// fread(3) of programs that were built with checks.
        #[cfg_attr(not(test), no_mangle)]
        pub unsafe extern "C" fn $function(
            memory: *mut c_void,
            has: size_t,
            bytes: size_t,
            count: size_t,
            stream: *mut FILE,
        ) -> size_t {
            check(bytes.saturating_mul(count), has);
            // SAFETY: the caller's arguments.
            unsafe { $plain(memory, bytes, count, stream) }
        }
    };
}

checked!(__fread_chk, fread);
checked!(__fread_unlocked_chk, fread_unlocked);
