//! System calls and memory mappings behind safe functions. The unsafe code of this crate lives here and in
//! `persist`; each block names the assertion it rests on.
//!
//! Kernel floor 4.18: every newer call is probed at run time and has a fallback. Interrupted calls are
//! repeated, short transfers continued.

mod clock;
mod faulted;
mod fcntl;
mod file;
mod file_window;
mod fork;
mod frames;
mod futex;
mod kernel;
mod lost;
mod mapping;
mod nameless;
pub(crate) mod numa;
mod private;
mod queue;
pub(crate) mod ring;
mod sigbus;
#[cfg(forebay_simulated)]
mod simulated;
mod staged;
mod uring;
mod usage;
mod userfault;
mod view;

pub(crate) use clock::{boottime_ns, monotonic_ns};
pub use faulted::{Faulted, FaultsServed};
pub(crate) use fcntl::{
    description_lock, description_unlock, description_unlock_all, flock_exclusive, is_locked_by_others,
    is_record_locked, record_lock, record_lock_holder, record_unlock, Locked,
};
pub(crate) use file::{
    allocate, allocated_bytes, direct_alignment, drop_cached, file_system, flush_data, holes, next_data,
    open_at_once, open_direct, open_path_only, punch, read_ahead, write_all_at, DirectAlignment,
};
pub use file_window::{Expect, FileWindow};
pub(crate) use fork::{fork_generation, process_local, FIRST_GENERATION};
pub use fork::{pid, ForkMark};
pub use frames::{Frame, FrameMemory, FrameRequest, FrameRing};
pub(crate) use futex::{futex_wait, futex_wait_in_handler, futex_wake, futex_wake_in_handler};
pub use lost::{watch, watched, LostPage};
pub(crate) use mapping::{page_bytes, MapOptions, Mapping};
pub(crate) use nameless::{link_nameless, open_nameless};
pub use queue::{Queue, QueueOptions, Request};
pub use sigbus::Serve;
pub(crate) use sigbus::{end_by_sigbus, keep_sigbus, say_in_handler};
pub use staged::StagedWrite;
pub use usage::Usage;
pub(crate) use usage::{children_peak, process_faults};
pub(crate) use userfault::userfault_ability;
pub use userfault::UserfaultAbility;
pub use view::View;

#[cfg(test)]
pub(crate) use fork::in_child;
#[cfg(test)]
mod sandbox;
