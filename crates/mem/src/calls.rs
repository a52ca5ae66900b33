//! Calls of the system that are given addresses in the window: what they touch is brought first, and stays meanwhile.
//!
//! Faults of the kernel itself are not answered by who may only answer those of user code: it would give EFAULT. A
//! long transfer goes in parts that fit the budget. Guarantees: what a call returns is what one call would have
//! returned that was interrupted there; parts follow each other only where one call would not have returned between
//! them: on files, and when data is sent. Not helped: calls that are made past the C library, and those that are not
//! here (ioctl, io_uring, process_vm_readv).

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::inside::Inside;
use crate::next::{errno, next, set_errno};
use crate::place::{self, Place};
use forebay_pager::Pinned;

/// Most parts of a vector that are helped at once; the kernel takes no more than 1024.
const PARTS_MAX: usize = 64;

/// Keeps a range there. None, with errno set: it cannot be had.
fn pin(place: &'static Place, range: &Range<u64>, write: bool) -> Option<Pinned<'static>> {
    let _inside = Inside::enter();
    place.calls.fetch_add(1, Relaxed);
    let pinned = place.window.pin(range, write).ok();
    if pinned.is_none() {
        set_errno(libc::EFAULT);
    }
    pinned
}

fn unpin(pinned: Option<Pinned<'static>>) {
    let kept = errno();
    drop(pinned);
    set_errno(kept);
}

/// How a transfer goes on behind a part that was transferred whole.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum After {
    /// It ends: what comes next may be long in coming.
    Return,
    /// It goes on until all is done.
    GoOn,
}

/// A transfer of `bytes` bytes at `memory` by `call`, which is given where and how much; `write`: it stores there.
pub(crate) fn in_parts(
    memory: *const c_void,
    bytes: size_t,
    write: bool,
    after: impl Fn() -> After,
    mut call: impl FnMut(usize, size_t) -> ssize_t,
) -> ssize_t {
    let Some((place, range)) = place::helps(memory, bytes) else { return call(memory as usize, bytes) };
    let part_max = place.window.pin_max().max(1) as usize;
    // What lies before the window, if anything, belongs to the first part.
    let before = memory as usize;
    let (mut done, mut at) = (0usize, range.start);
    loop {
        let left = bytes - done;
        let part = left.min(part_max);
        let end = (at + part as u64).min(range.end);
        let pinned = if at < end { pin(place, &(at..end), write) } else { None };
        if at < end && pinned.is_none() {
            return if done > 0 { done as ssize_t } else { -1 };
        }
        let got = call(before + done, part);
        unpin(pinned);
        if got < 0 {
            return if done > 0 { done as ssize_t } else { got };
        }
        done += got as usize;
        at += got as u64;
        if (got as usize) < part || done == bytes || after() == After::Return {
            return done as ssize_t;
        }
    }
}

/// A file's data is there; who else sends some may take its time.
fn of_file(fd: c_int) -> After {
    let kept = errno();
    // SAFETY: zeros are a value of the plain struct, which the call fills.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let rc = unsafe { libc::fstat(fd, &mut found) };
    set_errno(kept);
    match rc == 0 && found.st_mode & libc::S_IFMT == libc::S_IFREG {
        true => After::GoOn,
        false => After::Return,
    }
}

macro_rules! plain {
    ($function:ident, $name:literal, $type:ty, $write:literal, $after:expr) => {
        /// read(2), write(2).
        #[cfg_attr(not(test), no_mangle)]
        pub unsafe extern "C" fn $function(fd: c_int, memory: *mut c_void, bytes: size_t) -> ssize_t {
            in_parts(
                memory,
                bytes,
                $write,
                || $after(fd),
                |at, part| {
                    next!($name as fn(c_int, *mut c_void, size_t) -> ssize_t, fd, at as *mut c_void, part)
                },
            )
        }
    };
}

plain!(read, c"read", ssize_t, true, of_file);
plain!(write, c"write", ssize_t, false, |_| After::GoOn);

macro_rules! at_offset {
    ($function:ident, $name:literal, $write:literal) => {
        /// pread(2), pwrite(2).
        #[cfg_attr(not(test), no_mangle)]
        pub unsafe extern "C" fn $function(
            fd: c_int,
            memory: *mut c_void,
            bytes: size_t,
            offset: off_t,
        ) -> ssize_t {
            in_parts(
                memory,
                bytes,
                $write,
                || After::GoOn,
                |at, part| {
                    let there = offset + (at - memory as usize) as off_t;
                    let to = at as *mut c_void;
                    next!($name as fn(c_int, *mut c_void, size_t, off_t) -> ssize_t, fd, to, part, there)
                },
            )
        }
    };
}

at_offset!(pread, c"pread", true);
at_offset!(pread64, c"pread64", true);
at_offset!(pwrite, c"pwrite", false);
at_offset!(pwrite64, c"pwrite64", false);

/// read(2) of programs that were built with checks.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, memory: *mut c_void, bytes: size_t, has: size_t) -> ssize_t {
    check(bytes, has);
    // SAFETY: the caller's arguments.
    unsafe { read(fd, memory, bytes) }
}

/// pread(2), as above.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn __pread_chk(
    fd: c_int,
    memory: *mut c_void,
    bytes: size_t,
    offset: off_t,
    has: size_t,
) -> ssize_t {
    check(bytes, has);
    // SAFETY: the caller's arguments.
    unsafe { pread(fd, memory, bytes, offset) }
}

/// pread(2), as above.
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn __pread64_chk(
    fd: c_int,
    memory: *mut c_void,
    bytes: size_t,
    offset: off_t,
    has: size_t,
) -> ssize_t {
    check(bytes, has);
    // SAFETY: the caller's arguments.
    unsafe { pread64(fd, memory, bytes, offset) }
}

/// What such programs are ended for.
pub(crate) fn check(bytes: size_t, has: size_t) {
    if bytes > has {
        place::say(&[b"a buffer is shorter than what shall be read into it"]);
        // SAFETY: ends the process, as the C library does.
        unsafe { libc::abort() }
    }
}

// ---- sockets

/// recv(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, memory: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t {
    let after = || if flags & libc::MSG_WAITALL != 0 { After::GoOn } else { After::Return };
    in_parts(memory, bytes, true, after, |at, part| {
        let to = at as *mut c_void;
        next!(c"recv" as fn(c_int, *mut c_void, size_t, c_int) -> ssize_t, fd, to, part, flags)
    })
}

/// send(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, memory: *const c_void, bytes: size_t, flags: c_int) -> ssize_t {
    in_parts(
        memory,
        bytes,
        false,
        || After::GoOn,
        |at, part| {
            let from = at as *const c_void;
            next!(c"send" as fn(c_int, *const c_void, size_t, c_int) -> ssize_t, fd, from, part, flags)
        },
    )
}

/// recvfrom(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    memory: *mut c_void,
    bytes: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_bytes: *mut socklen_t,
) -> ssize_t {
    let after = || if flags & libc::MSG_WAITALL != 0 { After::GoOn } else { After::Return };
    in_parts(memory, bytes, true, after, |at, part| {
        type Sockets = (*mut sockaddr, *mut socklen_t);
        let (to, (a, b)): (_, Sockets) = (at as *mut c_void, (from, from_bytes));
        next!(
            c"recvfrom" as fn(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t,
            fd,
            to,
            part,
            flags,
            a,
            b
        )
    })
}

/// sendto(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    memory: *const c_void,
    bytes: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_bytes: socklen_t,
) -> ssize_t {
    in_parts(
        memory,
        bytes,
        false,
        || After::GoOn,
        |at, part| {
            let from = at as *const c_void;
            next!(
                c"sendto" as fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t,
                fd,
                from,
                part,
                flags,
                to,
                to_bytes
            )
        },
    )
}

// ---- vectors

/// The first parts of a vector, as far as they fit, brought and kept there.
struct Vector {
    pinned: Vec<Pinned<'static>>,
    parts: Vec<iovec>,
}

impl Vector {
    /// None: nothing of it needs help. An empty one, with errno set: it cannot be had.
    unsafe fn new(vector: *const iovec, count: usize, write: bool) -> Option<Vector> {
        // SAFETY: the caller's vector, of so many parts.
        let all = unsafe { std::slice::from_raw_parts(vector, count) };
        if count == 0 || !all.iter().any(|part| place::helps(part.iov_base, part.iov_len).is_some()) {
            return None;
        }
        let mut made = Vector { pinned: Vec::new(), parts: Vec::new() };
        let mut left = u64::MAX;
        for part in all.iter().take(PARTS_MAX) {
            let mut part = *part;
            if let Some((place, range)) = place::helps(part.iov_base, part.iov_len) {
                left = left.min(place.window.pin_max());
                let bytes = (range.end - range.start).min(left);
                left -= bytes;
                let Some(pinned) = pin(place, &(range.start..range.start + bytes), write) else { break };
                made.pinned.push(pinned);
                if bytes < range.end - range.start {
                    part.iov_len = bytes as usize;
                    made.parts.push(part);
                    break;
                }
            }
            made.parts.push(part);
            if left == 0 {
                break;
            }
        }
        Some(made)
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.iov_len).sum()
    }
}

/// A transfer of a vector by `call`, which is given parts and how many bytes were transferred before.
unsafe fn vector_in_parts(
    vector: *const iovec,
    count: c_int,
    write: bool,
    after: impl Fn() -> After,
    mut call: impl FnMut(*const iovec, c_int, usize) -> ssize_t,
) -> ssize_t {
    let valid = !vector.is_null() && (0..=1024).contains(&count);
    // SAFETY: the caller's vector, of so many parts.
    let first = if valid { unsafe { Vector::new(vector, count as usize, write) } } else { None };
    let Some(first) = first else { return call(vector, count, 0) };
    // SAFETY: as above.
    let mut rest: Vec<iovec> = unsafe { std::slice::from_raw_parts(vector, count as usize) }.to_vec();
    let (mut next_part, mut done) = (Some(first), 0usize);
    loop {
        let made = next_part.take().or_else(|| {
            // SAFETY: live parts of this frame.
            unsafe { Vector::new(rest.as_ptr(), rest.len(), write) }
        });
        let made = made.unwrap_or_else(|| Vector { pinned: Vec::new(), parts: rest.clone() });
        if made.parts.is_empty() {
            return if done > 0 || rest.is_empty() { done as ssize_t } else { -1 };
        }
        let wanted = made.bytes();
        let got = call(made.parts.as_ptr(), made.parts.len() as c_int, done);
        made.pinned.into_iter().for_each(|pinned| unpin(Some(pinned)));
        if got < 0 {
            return if done > 0 { done as ssize_t } else { got };
        }
        done += got as usize;
        advance(&mut rest, got as usize);
        if (got as usize) < wanted || rest.is_empty() || after() == After::Return {
            return done as ssize_t;
        }
    }
}

/// Takes the first `bytes` off.
fn advance(parts: &mut Vec<iovec>, mut bytes: usize) {
    while let Some(first) = parts.first_mut() {
        if first.iov_len > bytes {
            first.iov_base = (first.iov_base as usize + bytes) as *mut c_void;
            first.iov_len -= bytes;
            return;
        }
        bytes -= first.iov_len;
        parts.remove(0);
    }
}

macro_rules! vectors {
    ($function:ident, $name:literal, $write:literal, $after:expr) => {
        /// readv(2), writev(2).
        #[cfg_attr(not(test), no_mangle)]
        pub unsafe extern "C" fn $function(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t {
            let call =
                |parts, count, _| next!($name as fn(c_int, *const iovec, c_int) -> ssize_t, fd, parts, count);
            // SAFETY: the caller's arguments.
            unsafe { vector_in_parts(vector, count, $write, || $after(fd), call) }
        }
    };
}

vectors!(readv, c"readv", true, of_file);
vectors!(writev, c"writev", false, |_| After::GoOn);

macro_rules! vectors_at_offset {
    ($function:ident, $name:literal, $write:literal) => {
        /// preadv(2), pwritev(2).
        #[cfg_attr(not(test), no_mangle)]
        pub unsafe extern "C" fn $function(
            fd: c_int,
            vector: *const iovec,
            count: c_int,
            offset: off_t,
        ) -> ssize_t {
            let call = |parts, count, done| {
                let there = offset + done as off_t;
                next!($name as fn(c_int, *const iovec, c_int, off_t) -> ssize_t, fd, parts, count, there)
            };
            // SAFETY: the caller's arguments.
            unsafe { vector_in_parts(vector, count, $write, || After::GoOn, call) }
        }
    };
}

vectors_at_offset!(preadv, c"preadv", true);
vectors_at_offset!(preadv64, c"preadv64", true);
vectors_at_offset!(pwritev, c"pwritev", false);
vectors_at_offset!(pwritev64, c"pwritev64", false);

/// A message whose vector is what fits; the rest is another message, as it is after every short one.
unsafe fn message(given: *const msghdr, write: bool, call: impl FnOnce(*mut msghdr) -> ssize_t) -> ssize_t {
    // SAFETY: the caller's message.
    let Some(mut changed) = (unsafe { given.as_ref() }).copied() else { return call(given.cast_mut()) };
    // SAFETY: its vector, of so many parts.
    match unsafe { Vector::new(changed.msg_iov, changed.msg_iovlen, write) } {
        None => call(given.cast_mut()),
        Some(made) if made.parts.is_empty() => -1,
        Some(mut made) => {
            (changed.msg_iov, changed.msg_iovlen) = (made.parts.as_mut_ptr(), made.parts.len());
            let got = call(&mut changed);
            made.pinned.into_iter().for_each(|pinned| unpin(Some(pinned)));
            if write && got >= 0 {
                // SAFETY: the caller's message: what the call says of it beside the data.
                let to = unsafe { &mut *given.cast_mut() };
                (to.msg_namelen, to.msg_controllen) = (changed.msg_namelen, changed.msg_controllen);
                to.msg_flags = changed.msg_flags;
            }
            got
        }
    }
}

/// recvmsg(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, given: *mut msghdr, flags: c_int) -> ssize_t {
    let call = |changed| next!(c"recvmsg" as fn(c_int, *mut msghdr, c_int) -> ssize_t, fd, changed, flags);
    // SAFETY: the caller's arguments.
    unsafe { message(given, true, call) }
}

/// sendmsg(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, given: *const msghdr, flags: c_int) -> ssize_t {
    let call = |changed| next!(c"sendmsg" as fn(c_int, *mut msghdr, c_int) -> ssize_t, fd, changed, flags);
    // SAFETY: the caller's arguments.
    unsafe { message(given, false, call) }
}
