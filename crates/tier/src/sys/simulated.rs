//! What the simulator does to memory: unmaps what abandoned processes left, carries out a store that was held back.
//! Built only with `--cfg forebay_simulated`.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use crate::simulation::Memory;

/// Given to the simulator with each mapping.
pub(super) const MEMORY: Memory = Memory { unmap: unmap_abandoned, store: store_late };

/// Unmaps a mapping whose owner never runs again.
fn unmap_abandoned(base: usize, len: usize) {
    // SAFETY: the range is in the simulator's table of mappings, from which a mapping that is dropped is removed; the
    // threads that could use it are parked for ever.
    unsafe { libc::munmap(base as *mut libc::c_void, len) };
}

/// Stores a word of 4 or 8 bytes.
fn store_late(address: usize, value: u64, bytes: usize) {
    // SAFETY: the address is that of a word that this thread stored to just before, and a thread that holds a store
    // back neither drops nor unmaps anything without another store.
    unsafe {
        match bytes {
            4 => (*(address as *const AtomicU32)).store(value as u32, SeqCst),
            _ => (*(address as *const AtomicU64)).store(value, SeqCst),
        }
    }
}
