//! A shelf: the frames of one tile length and one policy, and the slabs that they were cut from.
//!
//! All arrays of that length and policy share it. Slabs move between shelves (pool.rs); a shelf that has fewer than its
//! fair share takes one from the shelf that has most.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_tier::engine::Frame;
use forebay_tier::Error;

use crate::array::Kept;
use crate::policy::{Evict, Heat, Policy};
use crate::pool::UNIT_BYTES;

/// See the file's head.
pub(crate) struct Shelf {
    pub(crate) tile_bytes: usize,
    pub(crate) policy: Policy,
    inner: Mutex<Inner>,
    /// Tiles that are claimed ahead of their use, by all threads.
    pub(crate) claims: AtomicUsize,
    failures: AtomicU64,
    failure: Mutex<Option<Kept>>,
}

/// Cuts a frame into frames of `bytes`, the last ones first.
pub(crate) fn cut(frame: Frame, bytes: usize) -> Vec<Frame> {
    let mut parts = Vec::with_capacity(frame.len() / bytes);
    let mut rest = frame;
    while rest.len() > bytes {
        let (first, more) = rest.split_at(bytes);
        parts.push(first);
        rest = more;
    }
    parts.push(rest);
    // Frames are taken from the end: so those at the start come first, and memory is touched from its start on.
    parts.reverse();
    parts
}

/// What the shelf's lock guards. It is never held while an engine's is taken.
pub(crate) struct Inner {
    /// Knows frames by their number among those of this length.
    evict: Box<dyn Evict>,
    /// Units of a frame.
    step: u32,
    pub(crate) free: Vec<Frame>,
    /// Where each slab begins.
    slabs: Vec<usize>,
}

/// Heat of frames that are numbered in units, for a policy that numbers them in frames.
struct InUnits<'a> {
    heat: &'a dyn Heat,
    step: u32,
}

impl Heat for InUnits<'_> {
    fn get(&self, frame: u32) -> u8 {
        self.heat.get(frame * self.step)
    }

    fn set(&self, frame: u32, heat: u8) {
        self.heat.set(frame * self.step, heat);
    }
}

impl Shelf {
    /// Most bytes that a shelf needs for each of its frames, the slabs aside.
    pub(crate) const FRAME_KNOWN_BYTES_MAX: u64 =
        Policy::FRAME_BYTES_MAX + std::mem::size_of::<Frame>() as u64 + std::mem::size_of::<usize>() as u64;

    /// Bytes that a shelf takes of `frames` frames from `slabs` slabs.
    pub(crate) fn known_bytes(policy: Policy, frames: usize, slabs: usize) -> u64 {
        let lists = frames * std::mem::size_of::<Frame>() + slabs * std::mem::size_of::<usize>();
        policy.bytes(frames) + lists as u64
    }

    /// Without a slab, for `frames` frames from `slabs` slabs.
    pub(crate) fn new(tile_bytes: usize, policy: Policy, frames: usize, slabs: usize) -> Shelf {
        let inner = Inner {
            evict: policy.build(frames),
            step: (tile_bytes / UNIT_BYTES) as u32,
            free: Vec::with_capacity(frames),
            slabs: Vec::with_capacity(slabs),
        };
        Shelf {
            tile_bytes,
            policy,
            inner: Mutex::new(inner),
            claims: AtomicUsize::new(0),
            failures: AtomicU64::new(0),
            failure: Mutex::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write that was to free a frame has failed.
    pub(crate) fn write_failed(&self, e: &Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).replace(Kept::new(e));
        self.failures.fetch_add(1, AcqRel);
    }

    /// How many such writes have failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Acquire)
    }

    /// The last one's error, for a thread that finds no free frame because of it.
    pub(crate) fn failure(&self) -> Option<Error> {
        let kept = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().map(|kept| kept.error().with("while", "evicting a tile to load another one"))
    }

    pub(crate) fn slabs(&self) -> usize {
        self.lock().slabs.len()
    }
}

impl Inner {
    /// Cuts a slab into frames.
    pub(crate) fn add_slab(&mut self, slab: Frame, tile_bytes: usize) {
        self.slabs.push(slab.start());
        self.free.extend(cut(slab, tile_bytes));
    }

    /// Takes a slab back of which every frame is free.
    pub(crate) fn take_slab(&mut self, slab_bytes: usize) -> Option<Frame> {
        let in_slab =
            |start: usize| move |frame: &Frame| (start..start + slab_bytes).contains(&frame.start());
        let is_free = |start: &usize| {
            self.free.iter().filter(|frame| in_slab(*start)(frame)).map(Frame::len).sum::<usize>()
                == slab_bytes
        };
        let at = self.slabs.iter().position(is_free)?;
        let start = self.slabs.swap_remove(at);
        // In place: the list was made as long as it can become.
        let mut parts = Vec::new();
        for at in (0..self.free.len()).rev() {
            if in_slab(start)(&self.free[at]) {
                parts.push(self.free.swap_remove(at));
            }
        }
        parts.sort_by_key(Frame::start);
        parts.into_iter().reduce(Frame::join)
    }

    /// Where its slabs begin.
    pub(crate) fn slab_starts(&self) -> Vec<usize> {
        self.slabs.clone()
    }

    // ---- the policy, by units

    pub(crate) fn admit(&mut self, frame: u32, tile: u64) {
        self.evict.admit(frame / self.step, tile);
    }

    pub(crate) fn victim(&mut self, heat: &dyn Heat) -> Option<u32> {
        let heat = InUnits { heat, step: self.step };
        self.evict.victim(&heat).map(|frame| frame * self.step)
    }

    pub(crate) fn keep(&mut self, frame: u32, tile: u64) {
        self.evict.keep(frame / self.step, tile);
    }

    pub(crate) fn remove(&mut self, frame: u32) {
        self.evict.remove(frame / self.step);
    }

    pub(crate) fn admitted(&self) -> usize {
        self.evict.len()
    }

    /// Bytes that it really takes.
    #[cfg(test)]
    pub(crate) fn real_bytes(&self) -> usize {
        self.evict.bytes()
            + self.free.capacity() * std::mem::size_of::<Frame>()
            + self.slabs.capacity() * std::mem::size_of::<usize>()
    }
}
