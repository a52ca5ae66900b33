//! The lock-free protocols of a space: commit, waiting, holding a version, dropping versions, moving a segment, taking
//! a lane over.
//!
//! Each is a function over the traits [`Word64`] and [`Word32`], so that the model checker runs exactly these lines
//! (tests/protocol, which includes this file) and the control segment calls them on its shared words. They use no
//! ordering stronger than they need: the model is run again with each of them weakened in turn, and must fail.
//!
//! Where two sides each store one word and then look at the other's, both put a full barrier in between: one of
//! them then sees the other. A SeqCst access on both sides would do as well, but says less and is not modelled.
//!
//! What they do not do: decide who is alive, and make anything durable.

use forebay_tier::host::atomic::{self, AtomicU32, AtomicU64, Ordering, Ordering::*};

/// Bits of a progress word that count commits; the incarnation stands above.
pub(crate) const COMMITTED_BITS: u32 = 40;

/// Most producer ranks of one space; a node has fewer cores.
pub(crate) const RANKS_MAX: u32 = 4096;

/// A cursor or lease that holds nothing.
pub(crate) const HOLDS_NOTHING: u64 = u64::MAX;

/// The full barrier that belongs to a kind of words.
pub(crate) trait Barrier {
    /// Nothing moves across it.
    fn barrier();
}

/// A shared word of 64 bits.
pub(crate) trait Word64: Barrier {
    /// As [`AtomicU64::load`].
    fn load(&self, order: Ordering) -> u64;
    /// As [`AtomicU64::store`].
    fn store(&self, value: u64, order: Ordering);
    /// As [`AtomicU64::swap`].
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// As [`AtomicU64::compare_exchange`] with a relaxed load where it fails; true: exchanged.
    fn exchange_if(&self, from: u64, to: u64, order: Ordering) -> bool;
    /// As [`AtomicU64::fetch_max`].
    fn fetch_max(&self, value: u64, order: Ordering) -> u64;
}

/// A shared word of 32 bits that processes can sleep on.
pub(crate) trait Word32: Barrier {
    /// As [`AtomicU32::load`].
    fn load(&self, order: Ordering) -> u32;
    /// As [`AtomicU32::fetch_add`].
    fn fetch_add(&self, value: u32, order: Ordering) -> u32;
    /// As [`AtomicU32::fetch_sub`].
    fn fetch_sub(&self, value: u32, order: Ordering) -> u32;
}

impl Barrier for AtomicU64 {
    #[inline(always)]
    fn barrier() {
        atomic::fence(SeqCst);
    }
}

impl Word64 for AtomicU64 {
    #[inline(always)]
    #[cfg_attr(forebay_simulated, track_caller)]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline(always)]
    #[cfg_attr(forebay_simulated, track_caller)]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }

    #[inline(always)]
    #[cfg_attr(forebay_simulated, track_caller)]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::swap(self, value, order)
    }

    #[inline(always)]
    #[cfg_attr(forebay_simulated, track_caller)]
    fn exchange_if(&self, from: u64, to: u64, order: Ordering) -> bool {
        self.compare_exchange(from, to, order, Relaxed).is_ok()
    }

    #[inline(always)]
    #[cfg_attr(forebay_simulated, track_caller)]
    fn fetch_max(&self, value: u64, order: Ordering) -> u64 {
        AtomicU64::fetch_max(self, value, order)
    }
}

impl Barrier for AtomicU32 {
    #[inline(always)]
    #[cfg_attr(forebay_simulated, track_caller)]
    fn barrier() {
        atomic::fence(SeqCst);
    }
}

impl Word32 for AtomicU32 {
    #[inline(always)]
    #[cfg_attr(forebay_simulated, track_caller)]
    fn load(&self, order: Ordering) -> u32 {
        AtomicU32::load(self, order)
    }

    #[inline(always)]
    #[cfg_attr(forebay_simulated, track_caller)]
    fn fetch_add(&self, value: u32, order: Ordering) -> u32 {
        AtomicU32::fetch_add(self, value, order)
    }

    #[inline(always)]
    #[cfg_attr(forebay_simulated, track_caller)]
    fn fetch_sub(&self, value: u32, order: Ordering) -> u32 {
        AtomicU32::fetch_sub(self, value, order)
    }
}

// ---- commit ---------------------------------------------------------------------------------------------------

/// A progress word: so many versions committed by this incarnation of a rank.
#[inline]
pub(crate) fn progress_word(incarnation: u32, committed: u64) -> u64 {
    u64::from(incarnation) << COMMITTED_BITS | committed
}

/// Incarnation and commits of a progress word.
#[inline]
pub(crate) fn progress_of(word: u64) -> (u32, u64) {
    ((word >> COMMITTED_BITS) as u32, word & ((1 << COMMITTED_BITS) - 1))
}

/// Incarnation and size of the producers' group word. Whatever the word says, there is a lane for each rank.
#[inline]
pub(crate) fn group_of(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, (word as u32).min(RANKS_MAX))
}

/// Counts `version` of a rank as committed: from here on a process that sees it sees what the rank wrote before.
/// False when a newer incarnation took the lane over.
#[inline]
pub(crate) fn advance<W: Word64>(progress: &W, incarnation: u32, version: u64) -> bool {
    let from = progress_word(incarnation, version);
    progress.exchange_if(from, from + 1, Release)
}

/// One more than the newest version that every rank has committed: the number of complete versions.
#[inline]
pub(crate) fn complete<'a, W: Word64 + 'a>(group: &W, base: &W, progress: impl Fn(u32) -> &'a W) -> u64 {
    let (incarnation, size) = group_of(group.load(Acquire));
    let mut complete = u64::MAX;
    for rank in 0..size {
        let (lane, committed) = progress_of(progress(rank).load(Acquire));
        // A lane that is just being taken over: what is complete stands in `base`, stored before the lane was taken.
        complete = complete.min(if lane == incarnation { committed } else { base.load(Acquire) });
    }
    if size == 0 {
        base.load(Relaxed)
    } else {
        complete
    }
}

/// Takes the lanes of `ranks` ranks from whatever incarnation has them: no commit of that one succeeds any more, and
/// every one that did is seen by every process that reads the lanes after this. What was complete stays so meanwhile,
/// even if the caller dies here; returned is the number of such versions.
pub(crate) fn close_lanes<'a, W: Word64 + 'a>(
    group: &W,
    base: &W,
    progress: impl Fn(u32) -> &'a W,
    incarnation: u32,
    ranks: u32,
) -> u64 {
    let known = complete(group, base, &progress);
    base.store(known, Relaxed);
    for rank in 0..ranks {
        progress(rank).swap(progress_word(incarnation, 0), AcqRel);
    }
    known
}

/// Opens the lanes for the next incarnation: `size` ranks, each of which has `first` versions behind it.
pub(crate) fn open_lanes<'a, W: Word64 + 'a>(
    group: &W,
    base: &W,
    progress: impl Fn(u32) -> &'a W,
    incarnation: u32,
    size: u32,
    first: u64,
) {
    base.store(first, Release);
    for rank in 0..size {
        progress(rank).store(progress_word(incarnation, first), Release);
    }
    group.store(u64::from(incarnation) << 32 | u64::from(size), Release);
}

// ---- waiting --------------------------------------------------------------------------------------------------

/// Tells the processes that wait for `events` to change. `wake` is called only if one may sleep.
#[inline]
pub(crate) fn announce<W: Word32>(events: &W, waiters: &W, wake: impl FnOnce()) {
    events.fetch_add(1, Release);
    W::barrier();
    if waiters.load(Relaxed) > 0 {
        wake();
    }
}

/// Sleeps by `wait`, which returns at once when `events` is no longer what it was when the caller last looked.
#[inline]
pub(crate) fn sleep<W: Word32, T>(waiters: &W, wait: impl FnOnce() -> T) -> T {
    waiters.fetch_add(1, Relaxed);
    W::barrier();
    let result = wait();
    waiters.fetch_sub(1, Relaxed);
    result
}

// ---- holding and dropping -------------------------------------------------------------------------------------

/// Holds every version from `lowest` on, in a word of the member's own. False when `version` was dropped before.
#[inline]
pub(crate) fn hold<W: Word64>(held: &W, lowest: u64, oldest: &W, version: u64) -> bool {
    release(held, lowest);
    // The process that drops raises `oldest` first and looks at what is held after; here it is the other way round.
    W::barrier();
    oldest.load(Relaxed) <= version
}

/// Holds only what is not below `lowest` any more; what was read before is read.
#[inline]
pub(crate) fn release<W: Word64>(held: &W, lowest: u64) {
    held.store(lowest, Release);
}

/// Holds every version from `from` on, or from the oldest there is if that is higher; returns which.
pub(crate) fn settle_on<W: Word64>(held: &W, oldest: &W, from: u64) -> u64 {
    let mut at = from;
    while !hold(held, at, oldest, at) {
        at = oldest.load(Relaxed);
    }
    at
}

/// The lowest of what `held` words hold; `alive` says whose word counts, by its place.
#[inline]
pub(crate) fn lowest_held<'a, W: Word64 + 'a>(
    held: impl Iterator<Item = &'a W>,
    alive: impl Fn(usize) -> bool,
) -> u64 {
    let mut lowest = HOLDS_NOTHING;
    for (place, word) in held.enumerate() {
        let version = word.load(Acquire);
        if version < lowest && alive(place) {
            lowest = version;
        }
    }
    lowest
}

/// Drops every version below what `floor` says, and returns below which one no version is held: what was there
/// may be overwritten. `floor` is asked again before and after `oldest` is raised. Before: a reader group that came in
/// between is then seen, or begins behind what is to go ([`first_kept`]), so that all its ranks find the same. After: a
/// reader that began to hold a version in between is then seen, or has seen that it is dropped. What was not dropped
/// here or before is not given out, however far its readers got meanwhile: a new reader may hold it without being seen.
pub(crate) fn drop_below<W: Word64>(oldest: &W, announced: &W, mut floor: impl FnMut() -> u64) -> u64 {
    let mut wanted = floor();
    if wanted > oldest.load(Relaxed) {
        announced.fetch_max(wanted, Relaxed);
        W::barrier();
        wanted = floor().min(wanted);
    }
    let dropped = oldest.fetch_max(wanted, Relaxed).max(wanted);
    W::barrier();
    floor().min(dropped)
}

/// The first version that is not dropped any more without a look at what is held: where a reader group begins that is
/// registered, and holds everything, since before this call.
pub(crate) fn first_kept<W: Word64>(oldest: &W, announced: &W) -> u64 {
    W::barrier();
    oldest.load(Relaxed).max(announced.load(Relaxed))
}

// ---- moving ---------------------------------------------------------------------------------------------------

/// Holds versions from `lowest` to `newest`, in two words of the member's own. False when `version`, one of them, was
/// dropped before. Movers may see more held than is, never less: the newest is raised before the lowest is lowered.
#[inline]
pub(crate) fn hold_range<W: Word64>(
    (held, held_newest): (&W, &W),
    (lowest, newest): (u64, u64),
    oldest: &W,
    version: u64,
) -> bool {
    // A mover that sees this store must also see, as before it, what was read under a lease that ended earlier.
    held_newest.store(newest, Release);
    hold(held, lowest, oldest, version)
}

/// Holds only versions from `lowest` to `newest` any more; what was read of the others is read.
#[inline]
pub(crate) fn release_range<W: Word64>((held, held_newest): (&W, &W), (lowest, newest): (u64, u64)) {
    release(held, lowest);
    held_newest.store(newest, Release);
}

/// Whether a version from `first` to `last` is held by one of the pairs of words, or may be about to be; `alive` says
/// whose words count, by their place.
#[inline]
pub(crate) fn is_held<'a, W: Word64 + 'a>(
    mut held: impl Iterator<Item = (&'a W, &'a W)>,
    (first, last): (u64, u64),
    alive: impl Fn(usize) -> bool,
) -> bool {
    let mut place = 0;
    held.any(|(lowest, newest)| {
        place += 1;
        lowest.load(Acquire) <= last && newest.load(Acquire) >= first && alive(place - 1)
    })
}

/// Whose a place in the pools is. All that was written about it, and there, before it got this owner is seen.
///
/// Who holds a version and *then* finds a place to be a segment's of that version may read it there for as long as
/// it holds the version. One that is being left does not count, although it can still be read: the process that leaves
/// it may have looked at what is held before.
#[inline]
pub(crate) fn look_at<W: Word64>(owner: &W) -> u64 {
    owner.load(Acquire)
}

/// Gives a place to another owner.
#[inline]
pub(crate) fn hand_over<W: Word64>(owner: &W, to: u64) {
    owner.store(to, Release);
}

/// The words about a run of granules: its owner, its segment, the newest version in it.
pub(crate) type RunWords<'a, W> = (&'a W, &'a W, &'a W);

/// Says what lies in a run that its owner word does not publish yet. No two segments of one lane have one word.
#[inline]
pub(crate) fn describe_run<W: Word64>((_, segment, last): RunWords<'_, W>, (is, newest): (u64, u64)) {
    segment.store(is, Release);
    last.store(newest, Release);
}

/// Owner, segment and newest version of a run, all three of one owner; None when it changes hands meanwhile.
///
/// The same owner may take the same run again, so the owner word does not tell the two apart: the segment word does,
/// which is looked at before and after. Of two lanes it may be the same; who needs the data looks at the header there.
#[inline]
pub(crate) fn look_at_run<W: Word64>((owner, segment, last): RunWords<'_, W>) -> Option<(u64, u64, u64)> {
    let is = segment.load(Acquire);
    let (owner, newest) = (look_at(owner), last.load(Acquire));
    (segment.load(Relaxed) == is).then_some((owner, is, newest))
}

/// Publishes the copy of a segment and leaves the old place. In this order: who sees that the old place is left finds
/// the new one.
pub(crate) fn publish_move<W: Word64>((new, segment): (&W, u64), (old, leaving): (&W, u64)) {
    hand_over(new, segment);
    hand_over(old, leaving);
}

/// Whether a place that was left before may be used for something else: no process reads it by a hold on a version from
/// `first` to `last`, and none will.
pub(crate) fn is_deserted<'a, W: Word64 + 'a>(
    held: impl Iterator<Item = (&'a W, &'a W)>,
    versions: (u64, u64),
    alive: impl Fn(usize) -> bool,
) -> bool {
    // A process that holds a version stores that first and looks at the place after; here it is the other way round.
    W::barrier();
    !is_held(held, versions, alive)
}
