//! Descriptors of this library, which programs that close what they did not open shall not close: the next file that
//! such a program opens would get the number, and tiles would be written into it.
//!
//! Guarantees: once a place is made, `close`, `close_range`, `closefrom`, `dup2` and `dup3` of the C library leave its
//! descriptors alone, and say EBADF where one alone is meant. Not helped: calls past the C library.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::*};

use libc::{c_int, c_uint};

use crate::inside::is_inside;
use crate::next::{next, set_errno};

/// Descriptors that are looked at; a process that has more open when it makes its place is not helped for those above.
const MOST: usize = 4096;
static OURS: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

/// `close_range` marks them only; ours are closed at `exec` anyway.
const CLOSE_RANGE_CLOEXEC: c_int = 4;

/// The descriptors that this process has open, as far as it can be told.
fn open_now() -> Vec<usize> {
    let Ok(all) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Runs `make`, and keeps the descriptors that it left open. Of those that other threads open meanwhile only what
/// `is_ours` says, of what was made, the descriptor's entry in /proc and what that leads to.
pub(crate) fn keep_those_of<T>(make: impl FnOnce() -> T, is_ours: impl Fn(&T, &Path, &Path) -> bool) -> T {
    let before = open_now();
    let made = make();
    for fd in open_now().into_iter().filter(|fd| *fd < MOST && !before.contains(fd)) {
        let descriptor = PathBuf::from(format!("/proc/self/fd/{fd}"));
        if std::fs::read_link(&descriptor).is_ok_and(|target| is_ours(&made, &descriptor, &target)) {
            OURS[fd / 64].fetch_or(1 << (fd % 64), Relaxed);
        }
    }
    made
}

/// In a child of fork: the parent's are closed, but for those that it opened for this process.
pub(crate) fn pass_on(to_child: &[c_int]) {
    for (at, word) in OURS.iter().enumerate() {
        let ours = word.swap(0, Relaxed);
        for bit in (0..64).filter(|bit| ours >> bit & 1 == 1) {
            let fd = (at * 64 + bit) as c_int;
            if !to_child.contains(&fd) {
                next!(c"close" as fn(c_int) -> c_int, fd);
            }
        }
    }
    for fd in to_child.iter().map(|fd| *fd as usize).filter(|fd| *fd < MOST) {
        OURS[fd / 64].fetch_or(1 << (fd % 64), Relaxed);
    }
}

/// None is ours any more.
#[cfg(test)]
pub(crate) fn forget() {
    OURS.iter().for_each(|word| word.store(0, Relaxed));
}

fn is_ours(fd: c_int) -> bool {
    let at = fd as usize;
    fd >= 0 && at < MOST && OURS[at / 64].load(Relaxed) >> (at % 64) & 1 == 1 && !is_inside()
}

fn refused() -> c_int {
    set_errno(libc::EBADF);
    -1
}

/// close(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) {
        return refused();
    }
    next!(c"close" as fn(c_int) -> c_int, fd)
}

/// dup2(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if is_ours(to) {
        return refused();
    }
    next!(c"dup2" as fn(c_int, c_int) -> c_int, from, to)
}

/// dup3(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if is_ours(to) {
        return refused();
    }
    next!(c"dup3" as fn(c_int, c_int, c_int) -> c_int, from, to, flags)
}

/// close_range(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: numbers only; no memory is named.
    let call = |first: c_uint, last: c_uint| unsafe {
        libc::syscall(libc::SYS_close_range, first, last, flags) as c_int
    };
    if flags & CLOSE_RANGE_CLOEXEC != 0 || first > last {
        return call(first, last);
    }
    parts(first, last).map(|(first, last)| call(first, last)).find(|rc| *rc != 0).unwrap_or(0)
}

/// closefrom(3).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let first = first.max(0) as c_uint;
    // SAFETY: numbers only.
    if unsafe { close_range(first, c_uint::MAX, 0) } == 0 {
        return;
    }
    // SAFETY: as above; a kernel without close_range is asked one by one.
    unsafe {
        let most = libc::sysconf(libc::_SC_OPEN_MAX).clamp(0, 1 << 20) as c_int;
        for fd in first as c_int..most {
            close(fd);
        }
    }
}

/// The parts of a range of descriptors between ours.
fn parts(first: c_uint, last: c_uint) -> impl Iterator<Item = (c_uint, c_uint)> {
    let mut at = Some(first);
    std::iter::from_fn(move || {
        let mut begin = at?;
        while begin < last && is_ours(begin as c_int) {
            begin += 1;
        }
        if is_ours(begin as c_int) {
            at = None;
            return None;
        }
        let mut end = begin;
        while end < last && (end as usize) < MOST && !is_ours(end as c_int + 1) {
            end += 1;
        }
        if end as usize >= MOST {
            end = last;
        }
        at = (end < last).then(|| end + 1);
        Some((begin, end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_around_ours() {
        for fd in [5usize, 6, 400] {
            OURS[fd / 64].fetch_or(1 << (fd % 64), Relaxed);
        }
        let all = |first, last| parts(first, last).collect::<Vec<_>>();
        assert_eq!(all(3, u32::MAX), [(3, 4), (7, 399), (401, u32::MAX)]);
        assert_eq!(all(5, 6), []);
        assert_eq!(all(6, 7), [(7, 7)]);
        assert_eq!(all(3, 5), [(3, 4)]);
        assert_eq!(all(5000, 6000), [(5000, 6000)]);
        forget();
        assert_eq!(all(3, 9), [(3, 9)]);
    }
}
