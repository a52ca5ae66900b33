//! What a thread has used of the processor.

use std::mem::MaybeUninit;
use std::ops::{AddAssign, Sub};

use serde::Serialize;

/// What a thread used of the processor, and how often it was interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Time in the program itself.
    pub user_ns: u64,
    /// Time in the kernel for it.
    pub system_ns: u64,
    /// How often it gave the processor away to wait.
    pub waits: u64,
    /// How often the processor was taken away.
    pub preemptions: u64,
    /// Pages that were mapped without reading them from anywhere.
    pub minor_faults: u64,
    /// Pages that had to be read first.
    pub major_faults: u64,
}

impl Usage {
    /// Of the calling thread, since it began. One system call.
    pub fn of_thread() -> Usage {
        thread_usage()
    }
}

impl Sub for Usage {
    type Output = Usage;
    fn sub(self, earlier: Usage) -> Usage {
        Usage {
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            waits: self.waits - earlier.waits,
            preemptions: self.preemptions - earlier.preemptions,
            minor_faults: self.minor_faults - earlier.minor_faults,
            major_faults: self.major_faults - earlier.major_faults,
        }
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.user_ns += other.user_ns;
        self.system_ns += other.system_ns;
        self.waits += other.waits;
        self.preemptions += other.preemptions;
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
    }
}

/// Of the calling thread, since it began.
fn thread_usage() -> Usage {
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
