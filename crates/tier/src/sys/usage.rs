//! What a thread has used of the processor.

use std::mem::MaybeUninit;

use crate::process::Usage;

/// Of the calling thread, since it began.
pub(crate) fn thread_usage() -> Usage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to memory of the right size; all-zero bytes are a value of the plain struct, so that it
    // is initialised also if the call fails (it cannot, with these arguments).
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    Usage {
        user_ns: ns(usage.ru_utime),
        system_ns: ns(usage.ru_stime),
        waits: usage.ru_nvcsw as u64,
        preemptions: usage.ru_nivcsw as u64,
        minor_faults: usage.ru_minflt as u64,
        major_faults: usage.ru_majflt as u64,
    }
}

/// Most memory that one of the processes had that this one has waited for, in bytes.
pub(crate) fn children_peak() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: as above.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_maxrss as u64 * 1024
}

/// Page faults of this process, since it began: those for which a device was read, and the others.
pub(crate) fn process_faults() -> (u64, u64) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: as above.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    (usage.ru_majflt as u64, usage.ru_minflt as u64)
}
