//! Simulated processes that run the real code under one seed, in one process of the operating system.
//!
//! Built only with `--cfg forebay_simulated`. A simulated process has one or more threads; each is a thread of the
//! operating system, and exactly one of them runs at a time. Every access to a shared word, every system call of this
//! crate and of the layers above, every lock and every look at a clock is a *point* ([`scheduler`]): there the seed
//! decides who runs next, whether the call fails, and whether the process is stopped for a while or killed. A killed
//! process never runs again: its stores stay, its kernel locks are released, its memory is abandoned. Time is virtual
//! and moves only by points and when every thread waits.
//!
//! Guarantees: the same seed and the same build give the same run. What is simulated: record locks, futexes, threads,
//! mutexes, clocks, process ids, the boot. What is real: files (on tmpfs) and mappings of them.
//! Does not: weaken the order of memory accesses (that is the model checker's work), or interrupt a copy of a payload.
//!
//! A program of simulations calls [`run`]; inside it [`process`] starts and ends processes.

pub mod host;
mod kernel;
pub mod mutation;
mod names;
pub mod process;
mod random;
mod scheduler;
mod trace;

pub use kernel::{boot, cut_power, reboot};
pub(crate) use kernel::{
    description_lock, description_unlock, flushed, futex_wait, futex_wake, is_description_locked,
    is_record_locked, local_state, map_added, map_removed, record_lock, record_lock_holder, record_unlock,
    Memory,
};
pub use names::{cut_names, lose_names_below};
pub use random::Random;
pub(crate) use scheduler::{began_ns, clock_ns, pid};
pub use scheduler::{run, Failure, Outcome, Pressure, Settings};
pub use trace::Coverage;

/// When a simulated process began; None when it does not run.
pub(crate) fn start_time_ticks(pid: u32) -> Option<u64> {
    scheduler::is_running(pid).then_some(u64::from(pid))
}

/// Whether the calling thread belongs to a simulated process.
pub fn is_simulated() -> bool {
    scheduler::me().is_some()
}
