//! A shelf: the frames of one tile length and one policy, and the slabs that they were cut from.
//!
//! All arrays of that length and policy share it. Slabs move between shelves (pool.rs); a shelf that has fewer than its
//! fair share takes one from the shelf that has most.

use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_tier::engine::Frame;
use forebay_tier::Error;

use crate::array::Kept;
use crate::policy::{Evict, Policy};

/// See the file's head.
pub(crate) struct Shelf {
    pub(crate) tile_bytes: usize,
    pub(crate) policy: Policy,
    inner: Mutex<Inner>,
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
    pub(crate) evict: Box<dyn Evict>,
    pub(crate) free: Vec<Frame>,
    /// Where each slab begins.
    slabs: Vec<usize>,
}

impl Shelf {
    /// Without a slab, in a pool of `units` frames of the shortest kind.
    pub(crate) fn new(tile_bytes: usize, policy: Policy, units: usize) -> Shelf {
        let inner = Inner { evict: policy.build(units), free: Vec::new(), slabs: Vec::new() };
        Shelf {
            tile_bytes,
            policy,
            inner: Mutex::new(inner),
            failures: AtomicU64::new(0),
            failure: Mutex::default(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write that was to make room has failed.
    pub(crate) fn write_failed(&self, e: &Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).replace(Kept::new(e));
        self.failures.fetch_add(1, AcqRel);
    }

    /// How many such writes have failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Acquire)
    }

    /// The last one's error, for somebody who finds no room because of it.
    pub(crate) fn failure(&self) -> Option<Error> {
        let kept = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        kept.as_ref().map(|kept| kept.error().with("while", "making room for another tile"))
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
        let (mut parts, free): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.free).into_iter().partition(in_slab(start));
        self.free = free;
        parts.sort_by_key(Frame::start);
        parts.into_iter().reduce(Frame::join)
    }

    /// The first slab: where to look first for one to give away.
    pub(crate) fn first_slab(&self) -> Option<usize> {
        self.slabs.first().copied()
    }
}
