//! The pool: a budget of memory, cut into slabs, and everything that moves between frames and backings.
//!
//! Guarantees: frames, what is known of them, and the page tables of all arrays together never take more than the
//! budget. Locks are taken in this order: an engine's, a shelf's; never two of one kind.

use std::sync::atomic::{AtomicU64, AtomicU8, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use forebay_tier::engine::{Frame, FrameMemory};
use forebay_tier::process::ForkMark;
use forebay_tier::{Error, Kind, Result};

use crate::array::Core;
use crate::engine::{ring_wanted, Engine, Op};
use crate::parking::{Parking, Patience, PATIENCE};
use crate::policy::{Heat, Policy, HEAT_MAX};
use crate::shelf::{cut, Shelf};
use crate::state::{self, DIRTY, OVERLAID, RESIDENT};
use crate::table::Table;

/// The shortest tile, and the unit in which frames are numbered.
pub(crate) const UNIT_BYTES: usize = 4096;

/// The longest tile.
pub(crate) const TILE_BYTES_MAX: usize = 2 << 20;

/// Engines of a pool: threads that share one wait for each other's calls, each costs a ring.
pub(crate) const ENGINES: usize = 8;

/// Bits of an owner's word that name the tile; the array stands above.
pub(crate) const TILE_BITS: u32 = 44;

/// How to make a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Most bytes of memory for data and for what has to be known of it.
    pub budget: u64,
    /// The longest tile of any array in the pool.
    pub tile_max: usize,
    /// io_uring or threads; None: as the process chooses.
    pub ring: Option<bool>,
}

impl PoolOptions {
    /// This budget, and tiles as long as it allows.
    pub fn new(budget: u64) -> PoolOptions {
        let share = (budget / 16).max(UNIT_BYTES as u64);
        let tile_max = 1 << share.ilog2().min(TILE_BYTES_MAX.ilog2());
        PoolOptions { budget, tile_max, ring: None }
    }
}

/// What a pool has done, in tiles unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Tiles that were read.
    pub loaded: u64,
    /// Tiles that were written.
    pub written: u64,
    /// Tiles that left.
    pub evicted: u64,
    /// Touched tiles that were there.
    pub hits: u64,
    /// Bytes of frames.
    pub frame_bytes: u64,
    /// Bytes of what is known of frames, and of page tables.
    pub table_bytes: u64,
    /// Most bytes that frames, what is known of them and page tables may take together.
    pub budget: u64,
}

/// Counters behind [`Statistics`].
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) loaded: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) hits: AtomicU64,
}

/// A frame's place: what it holds, and for whom. Frames longer than a unit use the first of their places.
#[derive(Default)]
pub(crate) struct Place {
    pub(crate) frame: RwLock<Option<Frame>>,
    /// Array and tile.
    owner: AtomicU64,
    heat: AtomicU8,
}

/// A budget of memory for arrays. Copies are the same pool.
#[derive(Clone)]
pub struct Pool(pub(crate) Arc<Inside>);

/// What a pool is made of.
pub(crate) struct Inside {
    budget: u64,
    pub(crate) slab_bytes: usize,
    memory: FrameMemory,
    pub(crate) slabs_total: AtomicU64,
    /// Those that no shelf has, the first in memory last.
    pub(crate) slabs: Mutex<Vec<Frame>>,
    places: Vec<Place>,
    pub(crate) shelves: RwLock<Vec<Arc<Shelf>>>,
    arrays: RwLock<Vec<Option<Arc<Core>>>>,
    pub(crate) engines: Vec<OnceLock<Mutex<Engine>>>,
    ring: bool,
    pub(crate) parking: Parking,
    pub(crate) counts: Counts,
    table_bytes: AtomicU64,
    patience_ns: AtomicU64,
    mark: ForkMark,
}

impl Heat for Inside {
    fn get(&self, frame: u32) -> u8 {
        self.places[frame as usize].heat.load(Relaxed)
    }

    fn set(&self, frame: u32, heat: u8) {
        self.places[frame as usize].heat.store(heat, Relaxed);
    }
}

impl Pool {
    /// A pool with this budget.
    ///
    /// # Errors
    /// `Usage` when the budget is too small for two of its longest tiles, `UnknownEnvironment` or `NotPossibleHere` as
    /// the choice of the engine says, `TierFull` without address space.
    pub fn new(options: PoolOptions) -> Result<Pool> {
        let slab = options.tile_max;
        if !slab.is_power_of_two() || !(UNIT_BYTES..=TILE_BYTES_MAX).contains(&slab) {
            return Err(Error::new(Kind::Usage, format!("invalid tile size: {slab} bytes"))
                .hint("a power of two from 4 KiB to 2 MiB"));
        }
        // For each slab its places, and space for one shelf of the shortest tiles; and a share for page tables and
        // other shelves.
        let units = slab / UNIT_BYTES;
        let known = (units * std::mem::size_of::<Place>() + std::mem::size_of::<Frame>()) as u64;
        let tables = options.budget / 64;
        let slabs =
            (options.budget - tables) / (slab as u64 + known + units as u64 * Shelf::FRAME_KNOWN_BYTES_MAX);
        if slabs < 2 {
            return Err(Error::new(Kind::Usage, "the budget holds fewer than two tiles")
                .with("budget", options.budget)
                .with("tile", slab)
                .hint("use a larger budget or shorter tiles"));
        }
        let bytes = slabs as usize * slab;
        let whole = Frame::new(bytes).map_err(|e| Error::io(format!("cannot map {bytes} bytes"), e))?;
        let memory = whole.memory();
        let ring = match options.ring {
            Some(ring) => ring,
            None => ring_wanted()?,
        };
        Ok(Pool(Arc::new(Inside {
            budget: options.budget,
            slab_bytes: slab,
            slabs_total: AtomicU64::new(slabs),
            memory,
            slabs: Mutex::new(cut(whole, slab)),
            places: (0..bytes / UNIT_BYTES).map(|_| Place::default()).collect(),
            shelves: RwLock::default(),
            arrays: RwLock::default(),
            engines: (0..ENGINES).map(|_| OnceLock::new()).collect(),
            ring,
            parking: Parking::new(),
            counts: Counts::default(),
            table_bytes: AtomicU64::new(slabs * known),
            patience_ns: AtomicU64::new(PATIENCE.as_nanos() as u64),
            mark: ForkMark::here(),
        })))
    }

    /// What it has done so far.
    pub fn statistics(&self) -> Statistics {
        let (inside, counts) = (&self.0, &self.0.counts);
        Statistics {
            loaded: counts.loaded.load(Relaxed),
            written: counts.written.load(Relaxed),
            evicted: counts.evicted.load(Relaxed),
            hits: counts.hits.load(Relaxed),
            frame_bytes: inside.slabs_total.load(Relaxed) * inside.slab_bytes as u64,
            table_bytes: inside.table_bytes.load(Relaxed),
            budget: inside.budget,
        }
    }

    /// Sets how long a thread waits at most: for a tile that another thread pins, for a frame while all are pinned, for
    /// a request under way. A minute where it is not set.
    pub fn set_patience(&self, limit: Duration) {
        self.0.patience_ns.store(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// The longest tile that an array of this pool can have.
    pub fn tile_max(&self) -> usize {
        self.0.slab_bytes
    }

    /// `io_uring` or `threads`.
    pub fn engine(&self) -> &'static str {
        if self.0.ring {
            "io_uring"
        } else {
            "threads"
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number of the calling thread, by which it chooses its engine.
fn thread_number() -> usize {
    static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = NEXT.fetch_add(1, Relaxed));
    NUMBER.with(|number| *number)
}

/// Spreads the bits of a tile's name.
pub(crate) fn hash(owner: u64) -> u64 {
    let mixed = (owner ^ owner >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 29
}

impl Inside {
    pub(crate) fn check(&self) -> Result<()> {
        self.mark.check("pager")
    }

    // ---- arrays and shelves

    /// Makes a new array known, with the shelf for its tiles, after space for its page table (and for a shelf that is
    /// new) was set aside. An error leaves the pool as it was.
    pub(crate) fn register(
        &self,
        tile_bytes: usize,
        policy: Policy,
        tiles: u64,
        make: impl FnOnce(u16, Arc<Shelf>) -> Arc<Core>,
    ) -> Result<Arc<Core>> {
        let mut shelves = self.shelves.write().unwrap_or_else(PoisonError::into_inner);
        let mut arrays = self.arrays.write().unwrap_or_else(PoisonError::into_inner);
        let at = arrays.iter().position(Option::is_none).unwrap_or(arrays.len());
        let number = u16::try_from(at)
            .map_err(|_| Error::new(Kind::TooMany, "a pool holds 65536 arrays").hint("drop some"))?;
        let known = shelves.iter().find(|shelf| shelf.tile_bytes == tile_bytes && shelf.policy == policy);
        let (known, slabs) = (known.cloned(), self.places.len() * UNIT_BYTES / self.slab_bytes);
        let frames = self.places.len() * UNIT_BYTES / tile_bytes;
        let shelf_bytes = if known.is_some() { 0 } else { Shelf::known_bytes(policy, frames, slabs) };
        self.set_aside(Table::bytes_max(tiles) + shelf_bytes)?;
        let shelf = known.unwrap_or_else(|| {
            shelves.push(Arc::new(Shelf::new(tile_bytes, policy, frames, slabs)));
            shelves[shelves.len() - 1].clone()
        });
        let core = make(number, shelf);
        if at == arrays.len() {
            arrays.push(None);
        }
        arrays[at] = Some(core.clone());
        Ok(core)
    }

    pub(crate) fn forget(&self, core: &Core) {
        self.arrays.write().unwrap_or_else(PoisonError::into_inner)[core.number as usize] = None;
        self.table_bytes.fetch_sub(Table::bytes_max(core.table.tiles()), Relaxed);
    }

    /// Sets memory aside for what has to be known: from what the budget left, then from unused slabs. All of it or,
    /// with an error, nothing.
    fn set_aside(&self, bytes: u64) -> Result<()> {
        let mut slabs = lock(&self.slabs);
        let total = self.slabs_total.load(Relaxed);
        let used = total * self.slab_bytes as u64 + self.table_bytes.load(Relaxed);
        let missing = (used + bytes).saturating_sub(self.budget);
        let (needed, spare) = (missing.div_ceil(self.slab_bytes as u64), total.saturating_sub(2));
        if needed > spare.min(slabs.len() as u64) {
            return Err(Error::new(Kind::TierFull, "the budget is too small for the metadata of this array")
                .with("budget", self.budget)
                .with("table_bytes", bytes)
                .hint("longer tiles, a larger budget, or open the arrays before data is touched"));
        }
        // The last ones in memory, which no engine has registered. Never touched, they are only address space.
        for mut slab in slabs.drain(..needed as usize) {
            let _ = slab.discard();
        }
        self.slabs_total.fetch_sub(needed, Relaxed);
        self.table_bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    pub(crate) fn patience(&self) -> Patience {
        Patience::new(Duration::from_nanos(self.patience_ns.load(Relaxed)))
    }

    /// How many frames an array of this shelf can hope for.
    pub(crate) fn frames_of(&self, shelf: &Shelf) -> usize {
        let slabs = self.slabs_total.load(Relaxed) as usize;
        let shelves = self.shelves.read().unwrap_or_else(PoisonError::into_inner).len().max(1);
        (slabs / shelves).max(1) * (self.slab_bytes / shelf.tile_bytes)
    }

    // ---- places

    #[inline]
    pub(crate) fn place(&self, frame: u32) -> &Place {
        &self.places[frame as usize]
    }

    /// A pin of a tile that was there.
    #[inline]
    pub(crate) fn touched(&self, frame: u32) {
        let heat = &self.places[frame as usize].heat;
        let seen = heat.load(Relaxed);
        if seen < HEAT_MAX {
            heat.store(seen + 1, Relaxed);
        }
    }

    pub(crate) fn count_hit(&self) {
        self.counts.hits.fetch_add(1, Relaxed);
    }

    /// Array and tile that a place was last given to.
    pub(crate) fn owner_of(&self, frame: u32) -> (u64, Option<Arc<Core>>) {
        let owner = self.places[frame as usize].owner.load(Relaxed);
        let arrays = self.arrays.read().unwrap_or_else(PoisonError::into_inner);
        (owner, arrays.get((owner >> TILE_BITS) as usize).cloned().flatten())
    }

    /// Puts a filled frame in its place; its number.
    pub(crate) fn install(&self, core: &Core, tile: u64, frame: Frame) -> u32 {
        let number = (frame.start() / UNIT_BYTES) as u32;
        let place = self.place(number);
        place.owner.store(u64::from(core.number) << TILE_BITS | tile, Relaxed);
        place.heat.store(0, Relaxed);
        let before = place.frame.try_write().expect("no thread pins a tile that comes").replace(frame);
        assert!(before.is_none(), "two frames in one place");
        number
    }

    /// Lets the policy know of a frame that was installed and opened.
    pub(crate) fn admit(&self, core: &Core, tile: u64, frame: u32) {
        let owner = u64::from(core.number) << TILE_BITS | tile;
        core.shelf.lock().admit(frame, hash(owner));
    }

    /// Takes a frame from the place of a tile that the caller made busy.
    pub(crate) fn take(&self, frame: u32) -> Frame {
        let place = self.place(frame).frame.try_write();
        place.expect("no thread pins a tile that goes").take().expect("a resident tile has a frame")
    }

    /// Opens a busy tile and wakes who waits.
    pub(crate) fn open(&self, core: &Core, tile: u64, to: u64, frame: u32) {
        if state::finish(core.table.word(tile), to, frame) {
            self.parking.wake(tile);
        }
    }

    /// Releases a pin.
    pub(crate) fn unpin(&self, core: &Core, tile: u64, dirty: bool) {
        if state::unpin(core.table.word(tile), dirty) {
            self.parking.wake(tile);
        }
    }

    /// Waits until a locked tile, whose word was `seen`, may have opened.
    pub(crate) fn wait(&self, core: &Core, tile: u64, seen: u64) {
        let word = core.table.word(tile);
        let now = || state::Word::load(word, Relaxed);
        if state::lock_of(seen) == state::BUSY {
            if let Some(engine) = state::payload(seen).checked_sub(1) {
                // What another thread began goes on also if that one has other things to do.
                let still = || (now() ^ seen) & !state::WAITED == 0;
                if self.drive(engine as usize, still) || !still() {
                    return;
                }
            }
        }
        self.parking.wait(tile, || state::announce(word, seen));
    }

    // ---- engines

    fn engine(&self, at: usize) -> MutexGuard<'_, Engine> {
        let made = self.engines[at].get_or_init(|| Mutex::new(Engine::new(self.ring, &self.memory)));
        lock(made)
    }

    /// The engine of the calling thread.
    pub(crate) fn own_engine(&self) -> usize {
        thread_number() % ENGINES
    }

    /// Begins an operation on a tile that the caller made busy; it is handed over by the next `submit`.
    pub(crate) fn begin(&self, at: usize, op: Op, frame: Frame) {
        let mut engine = self.engine(at);
        while !engine.has_capacity() {
            engine.reap(&mut |op, frame, result| self.complete(op, frame, result));
        }
        state::set_ring(op.core.table.word(op.tile), at as u32 + 1);
        engine.push(op, frame);
    }

    /// Hands over what was begun.
    pub(crate) fn submit(&self, at: usize) {
        self.engine(at).submit();
    }

    pub(crate) fn begin_writes(&self, writes: Vec<(Op, Frame)>) {
        if writes.is_empty() {
            return;
        }
        let at = self.own_engine();
        for (op, frame) in writes {
            self.begin(at, op, frame);
        }
        self.submit(at);
    }

    /// Lets an engine go on until something of it has ended, or for a slice; false: nothing was under way.
    pub(crate) fn drive(&self, at: usize, still: impl FnOnce() -> bool) -> bool {
        let mut engine = self.engine(at);
        if engine.under_way() == 0 || !still() {
            return false;
        }
        if let Some(ends) = engine.ends_by_threads() {
            // A mutex is not fair: threads that begin something of their own in this engine would wait as long as
            // this one does.
            drop(engine);
            if !ends.wait() {
                return true;
            }
            engine = self.engine(at);
            if engine.under_way() == 0 {
                // Another thread was faster.
                return true;
            }
        }
        engine.reap(&mut |op, frame, result| self.complete(op, frame, result));
        true
    }

    /// Lets any engine go on that has something under way, the thread's own first.
    pub(crate) fn drive_any(&self) -> bool {
        let own = self.own_engine();
        let all = (0..ENGINES).map(|at| (own + at) % ENGINES);
        all.into_iter().any(|at| self.engines[at].get().is_some() && self.drive(at, || true))
    }

    /// An operation has ended: its tile opens, its frame finds its place.
    fn complete(&self, op: Op, frame: Frame, result: Result<()>) {
        let (core, tile) = (op.core.clone(), op.tile);
        match op.write {
            true => self.written(&core, &op, frame, result),
            false => self.loaded(&core, tile, &op, frame, result),
        }
    }

    fn loaded(&self, core: &Core, tile: u64, op: &Op, mut frame: Frame, result: Result<()>) {
        let overlaid = if op.overlaid { OVERLAID } else { 0 };
        if let Err(e) = result {
            core.shelf.lock().free.push(frame);
            if op.claim {
                core.keep_error(tile, e);
                // The pin of the thread that asked for the tile.
                self.open(core, tile, state::FAILED | overlaid | 1, 0);
                if core.take_left_claim(tile) {
                    core.take_load_error(tile, || self.unpin(core, tile, false));
                }
            } else {
                // No thread waits for it any more; the next one tries again and gets the error.
                self.open(core, tile, overlaid, 0);
            }
            return;
        }
        self.counts.loaded.fetch_add(1, Relaxed);
        // Behind the end of the backing there may be anything, also of a tile that was here before.
        frame.bytes_mut()[op.needed..].fill(0);
        let number = self.install(core, tile, frame);
        self.admit(core, tile, number);
        self.open(core, tile, RESIDENT | overlaid | u64::from(op.claim), number);
        if op.claim && core.take_left_claim(tile) {
            self.unpin(core, tile, false);
        }
    }

    fn written(&self, core: &Core, op: &Op, frame: Frame, result: Result<()>) {
        let tile = op.tile;
        let overlaid = if op.overlaid { OVERLAID } else { 0 };
        match result {
            Ok(()) => {
                self.counts.written.fetch_add(1, Relaxed);
                core.write_succeeded(tile);
                if op.keep {
                    let number = self.put_back(frame);
                    self.open(core, tile, RESIDENT | overlaid, number);
                } else {
                    core.shelf.lock().free.push(frame);
                    self.open(core, tile, overlaid, 0);
                }
            }
            // Not lost: it stays, dirty as it was.
            Err(e) => {
                core.shelf.write_failed(&e);
                core.write_failed(tile, &e);
                let number = self.put_back(frame);
                if !op.keep {
                    self.admit(core, tile, number);
                }
                let before = if op.was_overlaid { OVERLAID } else { 0 };
                self.open(core, tile, RESIDENT | DIRTY | before, number);
            }
        }
    }

    /// Puts a frame back in its place.
    fn put_back(&self, frame: Frame) -> u32 {
        let number = (frame.start() / UNIT_BYTES) as u32;
        let before = self.place(number).frame.try_write().expect("no thread pins a busy tile").replace(frame);
        assert!(before.is_none(), "two frames in one place");
        number
    }
}

#[cfg(test)]
impl Inside {
    /// Bytes that are really taken by what is known of frames, the page tables aside.
    pub(crate) fn real_bytes(&self) -> usize {
        let shelves = self.shelves.read().unwrap_or_else(PoisonError::into_inner);
        let of_shelves: usize = shelves.iter().map(|shelf| shelf.lock().real_bytes()).sum();
        let slabs = lock(&self.slabs).capacity() * std::mem::size_of::<Frame>();
        self.places.capacity() * std::mem::size_of::<Place>() + slabs + of_shelves
    }

    /// Every place for an array is taken by this one.
    pub(crate) fn fill_arrays(&self, core: &Arc<Core>) {
        let mut arrays = self.arrays.write().unwrap_or_else(PoisonError::into_inner);
        arrays.resize_with(1 << 16, || Some(core.clone()));
    }
}
