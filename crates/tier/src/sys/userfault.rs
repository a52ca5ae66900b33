//! userfaultfd: the calls, made by hand, because what a kernel has is found out when the program runs.
//!
//! Guarantees: nothing here allocates, takes a lock or counts, so that all of it but `open` may be used in a signal
//! handler. Ranges are checked by the owner of the memory (faulted.rs).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

/// Version of the interface.
const API: u64 = 0xAA;
/// The descriptor answers faults of user code only: what every user may have (5.11).
const USER_MODE_ONLY: libc::c_int = 1;

const FEATURE_WP: u64 = 1;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_POISON: u64 = 1 << 14;

const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;
const COPY_WP: u64 = 2;
const PROTECT_WP: u64 = 1;

/// `_IOWR(0xAA, number, size)` of the generic encoding, which x86-64 and aarch64 use.
const fn exchange(number: u64, size: u64) -> u64 {
    3 << 30 | size << 16 | API << 8 | number
}

/// `_IOR`, as the kernel numbers waking and ending.
const fn read(number: u64, size: u64) -> u64 {
    2 << 30 | size << 16 | API << 8 | number
}

const IOC_API: u64 = exchange(0x3F, 24);
const IOC_REGISTER: u64 = exchange(0x00, 32);
const IOC_WAKE: u64 = read(0x02, 16);
const IOC_COPY: u64 = exchange(0x03, 40);
const IOC_PROTECT: u64 = exchange(0x06, 24);
const IOC_POISON: u64 = exchange(0x08, 32);
/// `USERFAULTFD_IOC_NEW` of /dev/userfaultfd: `_IO(0xAA, 0)`.
const IOC_NEW: u64 = API << 8;

/// What this process may do with userfaultfd, for messages and choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserfaultAbility {
    /// Faults of user code can be answered in a signal handler.
    pub signals: bool,
    /// Stores to pages that are there can be noticed.
    pub write_protect: bool,
    /// A page can be made to fail.
    pub poison: bool,
    /// Faults of the kernel, in calls that are given an address of a window, can be answered, too.
    pub kernel_faults: bool,
}

/// A descriptor that answers the faults of ranges of this process.
#[derive(Debug)]
pub(super) struct Userfault {
    fd: OwnedFd,
    features: u64,
}

fn open_fd(flags: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers; a new descriptor is the only effect.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// By the device that an administrator can open to a group (6.1).
fn open_by_device() -> io::Result<OwnedFd> {
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd")?;
    // SAFETY: the argument is flags, not a pointer; a new descriptor is the only effect.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW as _, libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn open_any(kernel_faults: bool) -> io::Result<OwnedFd> {
    if kernel_faults {
        return open_fd(0).or_else(|_| open_by_device());
    }
    match open_fd(USER_MODE_ONLY) {
        // Kernels before 5.11 do not know the flag.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => open_fd(0).or_else(|_| open_by_device()),
        other => other,
    }
}

/// Agrees on features; gives those that the kernel has.
fn agree(fd: &OwnedFd, features: u64) -> io::Result<u64> {
    let mut words = [API, features, 0u64];
    call(fd.as_raw_fd(), IOC_API, &mut words)?;
    Ok(words[1])
}

/// One ioctl whose argument is `words`.
fn call<const N: usize>(fd: RawFd, number: u64, words: &mut [u64; N]) -> io::Result<()> {
    // SAFETY: every argument of these calls is a struct of N words of 8 bytes (sizes are in `number`), alive for the
    // call. Which memory they change is said in the words: the callers' ranges are their own (see faulted.rs).
    let rc = unsafe { libc::ioctl(fd, number as _, words.as_mut_ptr()) };
    match rc {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// What is possible here; tried once.
pub(crate) fn userfault_ability() -> Result<UserfaultAbility, i32> {
    static KNOWN: OnceLock<Result<UserfaultAbility, i32>> = OnceLock::new();
    *KNOWN.get_or_init(|| {
        let errno = |e: io::Error| e.raw_os_error().unwrap_or(libc::EIO);
        let fd = open_any(false).map_err(errno)?;
        let has = agree(&fd, 0).map_err(errno)?;
        let kernel_faults = open_any(true).is_ok();
        Ok(UserfaultAbility {
            signals: has & FEATURE_SIGBUS != 0,
            write_protect: has & FEATURE_WP != 0,
            poison: has & FEATURE_POISON != 0,
            kernel_faults,
        })
    })
}

impl Userfault {
    /// `by_signal`: who touches an absent page gets SIGBUS; else the descriptor tells, also of the kernel's touches.
    pub(super) fn open(by_signal: bool) -> io::Result<Userfault> {
        let can = userfault_ability().map_err(io::Error::from_raw_os_error)?;
        let optional = [(can.write_protect, FEATURE_WP), (can.poison, FEATURE_POISON)];
        let mut features = optional.iter().filter(|(has, _)| *has).map(|(_, bit)| bit).sum::<u64>();
        if by_signal {
            features |= FEATURE_SIGBUS;
        }
        let fd = open_any(!by_signal)?;
        agree(&fd, features)?;
        Ok(Userfault { fd, features })
    }

    /// Whether stores to pages that are there can be noticed.
    pub(super) fn has_write_protect(&self) -> bool {
        self.features & FEATURE_WP != 0
    }

    /// From now on touching an absent page of this range is a fault of ours; a store to a protected one, too.
    pub(super) fn register(&self, start: u64, len: u64, protects: bool) -> io::Result<()> {
        let mode = REGISTER_MISSING | if protects { REGISTER_WP } else { 0 };
        call(self.fd.as_raw_fd(), IOC_REGISTER, &mut [start, len, mode, 0])
    }

    /// Puts pages where none are, a copy of what lies at `from`; repeats what the kernel broke off.
    pub(super) fn copy(&self, to: u64, from: u64, len: u64, protect: bool) -> io::Result<()> {
        let mode = if protect { COPY_WP } else { 0 };
        let mut done = 0;
        while done < len {
            let mut words = [to + done, from + done, len - done, mode, 0];
            let result = call(self.fd.as_raw_fd(), IOC_COPY, &mut words);
            match (result, words[4] as i64) {
                (Ok(()), _) => return Ok(()),
                // A part of it: go on behind.
                (Err(_), copied @ 1..) => done += copied as u64,
                (Err(e), _) if is(&e, libc::EAGAIN) => std::hint::spin_loop(),
                (Err(e), _) => return Err(e),
            }
        }
        Ok(())
    }

    /// Makes stores to these pages faults, or no longer.
    pub(super) fn protect(&self, start: u64, len: u64, on: bool) -> io::Result<()> {
        let mode = if on { PROTECT_WP } else { 0 };
        loop {
            match call(self.fd.as_raw_fd(), IOC_PROTECT, &mut [start, len, mode]) {
                Err(e) if is(&e, libc::EAGAIN) => std::hint::spin_loop(),
                other => return other,
            }
        }
    }

    /// Makes touching these absent pages an error of the memory (6.6).
    pub(super) fn poison(&self, start: u64, len: u64) -> io::Result<()> {
        if self.features & FEATURE_POISON == 0 {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        call(self.fd.as_raw_fd(), IOC_POISON, &mut [start, len, 0, 0])
    }

    /// Wakes the threads that sleep in a fault of this range.
    pub(super) fn wake(&self, start: u64, len: u64) {
        // No thread to wake is no error; a wrong range cannot be.
        let _ = call(self.fd.as_raw_fd(), IOC_WAKE, &mut [start, len]);
    }

    /// The next fault: its address, and whether it was a store. None: none within `timeout_ms`.
    pub(super) fn next(&self, timeout_ms: i32) -> io::Result<Option<(u64, bool)>> {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        if unsafe { libc::poll(&mut poll, 1, timeout_ms) } <= 0 {
            return Ok(None);
        }
        // struct uffd_msg: 32 bytes; byte 0 the event, at 8 the flags, at 16 the address.
        let mut message = [0u64; 4];
        // SAFETY: 32 writable bytes.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), message.as_mut_ptr().cast(), 32) };
        if got != 32 {
            let e = io::Error::last_os_error();
            // Another thread took it.
            return if got < 0 && !is(&e, libc::EAGAIN) && !is(&e, libc::EINTR) { Err(e) } else { Ok(None) };
        }
        const EVENT_PAGEFAULT: u64 = 0x12;
        Ok((message[0] & 0xff == EVENT_PAGEFAULT).then_some((message[2], message[1] & 1 != 0)))
    }
}

fn is(e: &io::Error, errno: i32) -> bool {
    e.raw_os_error() == Some(errno)
}
