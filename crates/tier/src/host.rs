//! What the layers above and this crate take from the machine: shared words, threads, locks between threads, clocks,
//! files, system calls.
//!
//! In an ordinary build every name here is the standard library's own, and [`syscall`], [`interruptible`], [`point`]
//! and [`transfer_bytes`] are empty and inlined: the machine code is the same as without them. In a simulated build
//! (`--cfg forebay_simulated`, `cargo xtask simulate`) they are those of `crate::simulation`, which schedules
//! simulated processes, lets calls fail and kills processes between any two of them. Code that simulated processes run
//! must take these names from here and not from `std`.

#[cfg(forebay_simulated)]
pub use crate::simulation::host::{
    atomic, fs, interruptible, point, random_uuid, sync, syscall, thread, time, transfer_bytes,
};

#[cfg(not(forebay_simulated))]
pub use ordinary::*;

#[cfg(not(forebay_simulated))]
mod ordinary {
    /// Words that processes share.
    pub mod atomic {
        pub use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};
    }

    /// Locks between the threads of a process.
    pub mod sync {
        pub use std::sync::{Condvar, Mutex, MutexGuard};
    }

    /// Threads.
    pub mod thread {
        pub use std::thread::{sleep, spawn, yield_now, Builder, JoinHandle};
    }

    /// The clock of deadlines.
    pub mod time {
        pub use std::time::Instant;
    }

    /// Files and directories.
    pub mod fs {
        pub use std::fs::*;
    }

    /// Called before a system call; an error stands for the call's own.
    #[inline(always)]
    pub fn syscall(_name: &'static str) -> std::io::Result<()> {
        Ok(())
    }

    /// As [`syscall`], for one that the caller repeats when a signal interrupts it.
    #[inline(always)]
    pub fn interruptible(_name: &'static str) -> std::io::Result<()> {
        Ok(())
    }

    /// Called where another process may see a difference before and after.
    #[inline(always)]
    pub fn point(_name: &'static str) {}

    /// How many of `bytes` one call may transfer from a file's `offset` on, or to it.
    #[inline(always)]
    pub fn transfer_bytes(_offset: u64, bytes: usize) -> usize {
        bytes
    }

    /// 16 random bytes from the operating system, by way of `random`.
    #[inline(always)]
    pub fn random_uuid(random: impl FnOnce() -> [u8; 16]) -> [u8; 16] {
        random()
    }
}
