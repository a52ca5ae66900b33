//! Calls of the system that are given addresses in the window: their data goes through a buffer in ordinary memory.
//!
//! Faults of the kernel itself are not answered by who may only answer those of user code: it would give EFAULT. So the
//! call gets the buffer, and the copy to or from the window faults in user code. Nothing is kept in memory meanwhile,
//! so that calls that wait, however many, leave the budget to the others. Guarantees: what a call returns is what one
//! call would have returned that was interrupted there; parts follow each other only where one call would not have
//! returned between them: on files, and when a stream is sent. A message is always one part. Not helped: calls that are
//! made past the C library, and those that are not here (ioctl, io_uring, process_vm_readv).

use std::sync::atomic::Ordering::Relaxed;

use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

use crate::next::{self, errno, next, set_errno};
use crate::place;

/// What is transferred at once where parts may follow each other.
const PART: usize = 1 << 20;

/// Memory for one call. Mapped, as a handler for signals may make calls, and may not allocate.
struct Buffer {
    memory: *mut c_void,
    bytes: usize,
}

impl Buffer {
    /// None, with errno set: there is none.
    fn new(bytes: usize) -> Option<Buffer> {
        let bytes = place::pages(bytes.max(1));
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh mapping at an address that the kernel chooses.
        let memory = unsafe {
            next::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        (memory != libc::MAP_FAILED).then_some(Buffer { memory, bytes })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let kept = errno();
        // SAFETY: the mapping of this value.
        unsafe { next::munmap(self.memory, self.bytes) };
        set_errno(kept);
    }
}

/// How a transfer goes on behind a part that was transferred whole.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum After {
    /// It ends: what comes next may be long in coming.
    Return,
    /// It goes on until all is done.
    GoOn,
    /// There are no parts: it is one message.
    Whole,
}

/// A transfer of `bytes` bytes at `memory` by `call`, which is given a buffer, how much, and how much was transferred
/// before; `write`: it stores there.
pub(crate) fn in_parts(
    memory: *const c_void,
    bytes: size_t,
    write: bool,
    after: impl Fn() -> After,
    mut call: impl FnMut(usize, size_t, usize) -> ssize_t,
) -> ssize_t {
    let Some(place) = place::helps(memory, bytes) else { return call(memory as usize, bytes, 0) };
    place.calls.fetch_add(1, Relaxed);
    let after = after();
    let part_max = if after == After::Whole { bytes } else { bytes.min(PART) };
    let Some(buffer) = Buffer::new(part_max) else { return -1 };
    let mut done = 0;
    loop {
        let part = (bytes - done).min(part_max);
        let there = (memory as usize + done) as *mut u8;
        if !write {
            // SAFETY: the caller's memory; the buffer is as long.
            unsafe { std::ptr::copy_nonoverlapping(there, buffer.memory.cast(), part) };
        }
        let got = call(buffer.memory as usize, part, done);
        if got < 0 {
            return if done > 0 { done as ssize_t } else { got };
        }
        if write {
            // SAFETY: as above. A message that is longer than its buffer may be told by its own length.
            unsafe { std::ptr::copy_nonoverlapping(buffer.memory.cast(), there, part.min(got as usize)) };
        }
        done += got as usize;
        if (got as usize) != part || done >= bytes || after != After::GoOn {
            return done as ssize_t;
        }
    }
}

/// What a descriptor is open on.
fn kind_of(fd: c_int) -> libc::mode_t {
    // SAFETY: zeros are a value of the plain struct, which the call fills.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    match unsafe { libc::fstat(fd, &mut found) } {
        0 => found.st_mode & libc::S_IFMT,
        _ => 0,
    }
}

/// Whether a descriptor takes bytes and not messages.
fn is_stream(fd: c_int) -> bool {
    let kept = errno();
    let stream = match kind_of(fd) {
        libc::S_IFREG | libc::S_IFIFO | libc::S_IFBLK => true,
        libc::S_IFSOCK => {
            let (mut kind, mut bytes) = (0 as c_int, size_of::<c_int>() as socklen_t);
            let to = std::ptr::from_mut(&mut kind).cast();
            // SAFETY: an int of this frame, and its length.
            let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, to, &mut bytes) };
            rc == 0 && kind == libc::SOCK_STREAM
        }
        _ => false,
    };
    set_errno(kept);
    stream
}

/// A file's data is there; who else sends some may take its time.
fn of_reading(fd: c_int) -> After {
    let kept = errno();
    let is_file = kind_of(fd) == libc::S_IFREG;
    set_errno(kept);
    match is_stream(fd) {
        _ if is_file => After::GoOn,
        true => After::Return,
        false => After::Whole,
    }
}

fn of_writing(fd: c_int) -> After {
    if is_stream(fd) {
        After::GoOn
    } else {
        After::Whole
    }
}

fn of_receiving(fd: c_int, flags: c_int) -> After {
    if flags & libc::MSG_PEEK != 0 || !is_stream(fd) {
        After::Whole
    } else if flags & libc::MSG_WAITALL != 0 {
        After::GoOn
    } else {
        After::Return
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
                |at, part, _| {
                    next!($name as fn(c_int, *mut c_void, size_t) -> ssize_t, fd, at as *mut c_void, part)
                },
            )
        }
    };
}

plain!(read, c"read", ssize_t, true, of_reading);
plain!(write, c"write", ssize_t, false, of_writing);

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
                |at, part, done| {
                    let there = offset + done as off_t;
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
    let after = || of_receiving(fd, flags);
    in_parts(memory, bytes, true, after, |at, part, _| {
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
        || of_writing(fd),
        |at, part, _| {
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
    let after = || of_receiving(fd, flags);
    in_parts(memory, bytes, true, after, |at, part, _| {
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
        || of_writing(fd),
        |at, part, _| {
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

/// The caller's parts, where one of them is in the window, and how long they are together. None: there is nothing to
/// help, or the kernel says what is wrong.
unsafe fn helped<'a>(vector: *const iovec, count: usize) -> Option<(&'a [iovec], usize)> {
    if vector.is_null() || count > 1024 {
        return None;
    }
    // SAFETY: the caller's vector, of so many parts.
    let parts = unsafe { std::slice::from_raw_parts(vector, count) };
    let all = parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.iov_len))?;
    let place = parts.iter().find_map(|part| place::helps(part.iov_base, part.iov_len))?;
    place.calls.fetch_add(1, Relaxed);
    (all <= isize::MAX as usize).then_some((parts, all))
}

/// Copies `bytes` bytes from `skip` on between the parts and a buffer.
unsafe fn copy(parts: &[iovec], mut skip: usize, buffer: &Buffer, mut bytes: usize, to_parts: bool) {
    let mut at = buffer.memory.cast::<u8>();
    for part in parts {
        let from = skip.min(part.iov_len);
        let now = (part.iov_len - from).min(bytes);
        skip -= from;
        // SAFETY: the caller's part, which is so long; the buffer has as many bytes as are asked for.
        unsafe {
            let there = part.iov_base.cast::<u8>().add(from);
            match to_parts {
                true => std::ptr::copy_nonoverlapping(at, there, now),
                false => std::ptr::copy_nonoverlapping(there, at, now),
            }
            at = at.add(now);
        }
        bytes -= now;
        if bytes == 0 {
            return;
        }
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
    // SAFETY: the caller's vector, of so many parts.
    let Some((parts, bytes)) = (unsafe { helped(vector, count.try_into().unwrap_or(usize::MAX)) }) else {
        return call(vector, count, 0);
    };
    let after = after();
    let part_max = if after == After::Whole { bytes } else { bytes.min(PART) };
    let Some(buffer) = Buffer::new(part_max) else { return -1 };
    let mut done = 0;
    loop {
        let part = (bytes - done).min(part_max);
        if !write {
            // SAFETY: the caller's parts, which have so many bytes.
            unsafe { copy(parts, done, &buffer, part, false) };
        }
        let one = iovec { iov_base: buffer.memory, iov_len: part };
        let got = call(&one, 1, done);
        if got < 0 {
            return if done > 0 { done as ssize_t } else { got };
        }
        if write {
            // SAFETY: as above.
            unsafe { copy(parts, done, &buffer, part.min(got as usize), true) };
        }
        done += got as usize;
        if (got as usize) != part || done >= bytes || after != After::GoOn {
            return done as ssize_t;
        }
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

vectors!(readv, c"readv", true, of_reading);
vectors!(writev, c"writev", false, of_writing);

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

/// A message whose data is in a buffer: of a stream what fits, else all.
unsafe fn message(
    given: *const msghdr,
    write: bool,
    after: impl Fn() -> After,
    call: impl FnOnce(*mut msghdr) -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller's message.
    let Some(mut changed) = (unsafe { given.as_ref() }).copied() else { return call(given.cast_mut()) };
    // SAFETY: its vector, of so many parts.
    let Some((parts, bytes)) = (unsafe { helped(changed.msg_iov, changed.msg_iovlen) }) else {
        return call(given.cast_mut());
    };
    let part = if after() == After::Whole { bytes } else { bytes.min(PART) };
    let Some(buffer) = Buffer::new(part) else { return -1 };
    if !write {
        // SAFETY: the caller's parts, which have so many bytes.
        unsafe { copy(parts, 0, &buffer, part, false) };
    }
    let mut one = iovec { iov_base: buffer.memory, iov_len: part };
    (changed.msg_iov, changed.msg_iovlen) = (&mut one, 1);
    let got = call(&mut changed);
    if write && got >= 0 {
        // SAFETY: as above; and the caller's message: what the call says of it beside the data.
        let to = unsafe {
            copy(parts, 0, &buffer, part.min(got as usize), true);
            &mut *given.cast_mut()
        };
        (to.msg_namelen, to.msg_controllen) = (changed.msg_namelen, changed.msg_controllen);
        to.msg_flags = changed.msg_flags;
    }
    got
}

/// recvmsg(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, given: *mut msghdr, flags: c_int) -> ssize_t {
    let call = |changed| next!(c"recvmsg" as fn(c_int, *mut msghdr, c_int) -> ssize_t, fd, changed, flags);
    // SAFETY: the caller's arguments.
    unsafe { message(given, true, || of_receiving(fd, flags), call) }
}

/// sendmsg(2).
#[cfg_attr(not(test), no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, given: *const msghdr, flags: c_int) -> ssize_t {
    let call = |changed| next!(c"sendmsg" as fn(c_int, *mut msghdr, c_int) -> ssize_t, fd, changed, flags);
    // SAFETY: the caller's arguments.
    unsafe { message(given, false, || of_writing(fd), call) }
}
