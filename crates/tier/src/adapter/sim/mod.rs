//! `sim`: a device whose power can fail at every fence, so that recovery can be tried on all that may be left.
//!
//! It stands around a device in memory, which plays the processor caches (or the page cache): a read sees
//! the newest bytes. Beside it the simulator keeps, for each unit that is not certainly on the medium, every value
//! the unit has had since it last was. At each fence it notes a [`Crash`]: those units with those values. After a
//! crash each of them may hold any one of them, whatever the others hold; [`Explorer`] goes through the images.
//!
//! Mediums:
//! - [`Medium::Lines`]: byte-addressable persistent memory, units are cache lines. `write` stores and writes back;
//!   words and staged memory are stored only; a line is settled by a fence of the *same* actor after it was written
//!   back; anything may reach the medium earlier. Stronger than the processor: `write` never fences.
//! - [`Medium::Blocks`]: a file on a block device, units are what it writes whole (512 or 4096 bytes); `persist`
//!   settles everything, `fence` nothing; a flush that fails (`inject_flush_failure`) poisons.
//! - [`Medium::Both`]: lines first and blocks behind them, as the pools of a space with a lower tier stand behind one
//!   another. No range crosses the border. `persist` settles only its own part; a failed flush poisons only the blocks.
//!
//! It does not simulate: damage, reordering seen by other processors (memory is coherent), time.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::dram;
use crate::{Device, Durability, Error, Horizon, Kind, Result, StagedWrite, TierKind};

mod explore;
mod image;
#[cfg(test)]
mod tests;

pub use explore::{Explorer, Plan};
pub use image::Image;

/// What the simulated medium is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// Persistent memory with volatile caches.
    Lines,
    /// A block device that tears writes at this many bytes, a power of two that divides the pool.
    Blocks {
        /// Bytes that it writes whole.
        torn_bytes: usize,
    },
    /// Persistent memory, and behind it a block device.
    Both {
        /// Bytes of the memory, a multiple of `torn_bytes`.
        lines_bytes: u64,
        /// Bytes that the block device writes whole.
        torn_bytes: usize,
    },
}

impl Medium {
    /// Whether what lies at `offset` is memory.
    fn is_lines(self, offset: u64) -> bool {
        match self {
            Medium::Lines => true,
            Medium::Blocks { .. } => false,
            Medium::Both { lines_bytes, .. } => offset < lines_bytes,
        }
    }

    /// Bytes of the unit at `offset`.
    fn unit_bytes(self, offset: u64) -> u64 {
        match self {
            Medium::Blocks { torn_bytes } | Medium::Both { torn_bytes, .. } if !self.is_lines(offset) => {
                torn_bytes as u64
            }
            _ => crate::persist::LINE_BYTES as u64,
        }
    }

    /// The units that a range touches.
    fn units(self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (mut at, end) = (range.start - range.start % self.unit_bytes(range.start), range.end);
        let is_empty = range.is_empty();
        std::iter::from_fn(move || {
            let unit = at..at + self.unit_bytes(at);
            at = unit.end;
            (unit.start < end && !is_empty).then_some(unit)
        })
    }

    /// Whether a pool of so many bytes has whole units.
    fn fits(self, capacity: u64) -> bool {
        let torn = self.unit_bytes(u64::MAX);
        let border = if let Medium::Both { lines_bytes, .. } = self { lines_bytes } else { 0 };
        torn.is_power_of_two() && capacity % torn == 0 && border % torn == 0 && border <= capacity
    }
}

/// A way to break the contract, to check that tests with the simulator notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// `write` leaves its lines in the cache.
    WriteKeepsLines,
    /// `write_checksummed` leaves its lines in the cache.
    ChecksummedWriteKeepsLines,
    /// `persist` fences only.
    PersistKeepsLines,
    /// `persist` does nothing at all; on blocks: no flush.
    PersistDoesNothing,
    /// `fence` and `persist_written` do nothing.
    FenceDoesNothing,
}

impl Flaw {
    /// All of them.
    pub const ALL: [Flaw; 5] = [
        Flaw::WriteKeepsLines,
        Flaw::ChecksummedWriteKeepsLines,
        Flaw::PersistKeepsLines,
        Flaw::PersistDoesNothing,
        Flaw::FenceDoesNothing,
    ];
}

/// Where a crash was noted; in each case *before* the call takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// `fence`, or `persist_written` on lines.
    Fence,
    /// `persist`.
    Persist,
    /// A flush that failed.
    FailedFlush,
    /// [`Sim::crash_now`].
    Now,
}

impl Point {
    /// A word for tables.
    pub fn name(self) -> &'static str {
        match self {
            Point::Fence => "fence",
            Point::Persist => "persist",
            Point::FailedFlush => "failed flush",
            Point::Now => "no fence",
        }
    }
}

/// A unit that is not certainly on the medium.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Where it lies, from the start of the pool.
    pub offset: u64,
    /// What it may hold, oldest first: the first is what the medium certainly held once, the last is what readers
    /// see now. Neighbours differ.
    pub values: Vec<Arc<[u8]>>,
    /// From the fence on it holds this value or a later one.
    pub settles: Option<usize>,
}

/// A moment at which the power may fail.
#[derive(Clone, Debug)]
pub struct Crash {
    /// What [`Sim::act`] said last.
    pub tag: u64,
    /// Which call it precedes.
    pub point: Point,
    /// Everything that is not certainly on the medium, by offset.
    pub units: Vec<Unit>,
}

/// All crashes of a run.
#[derive(Clone, Debug)]
pub struct Trace {
    /// What the medium is.
    pub medium: Medium,
    /// What was on it at the beginning.
    pub before: Vec<u8>,
    /// In the order of time.
    pub crashes: Vec<Crash>,
}

struct Dirty {
    values: Vec<Arc<[u8]>>,
    /// Who has written back which value.
    written_back: Option<(u32, usize)>,
}

#[derive(Default)]
struct State {
    actor: u32,
    tag: u64,
    dirty: BTreeMap<u64, Dirty>,
    /// Pool memory that callers fill by themselves: whole units, and what was last seen there.
    staged: Vec<(Range<u64>, Vec<u8>)>,
    before: Vec<u8>,
    /// None: crashes are not noted.
    crashes: Option<Vec<Crash>>,
    /// Fences until the process dies at one.
    dies_in: Option<u64>,
    poison: Option<String>,
    injected_errno: i32,
}

/// The payload of the panic with which [`Sim::die_at_fence`] ends the process that is played.
#[derive(Debug)]
pub struct Died;

/// See the module. One process, any number of actors.
pub struct Sim {
    inner: Arc<dyn Device>,
    medium: Medium,
    flaw: Option<Flaw>,
    state: Mutex<State>,
}

impl Sim {
    /// Around a device, whose bytes now count as being on the medium.
    ///
    /// # Errors
    /// `Usage` when the inner device is not byte-addressable, or units do not divide the pool.
    pub fn new(inner: Arc<dyn Device>, medium: Medium) -> Result<Sim> {
        if !inner.byte_addressable() || !medium.fits(inner.capacity()) {
            return Err(Error::new(Kind::Usage, "a simulator needs memory below it, in whole units")
                .with("medium", format!("{medium:?}"))
                .with("inner", inner.kind()));
        }
        Ok(Sim { inner, medium, flaw: None, state: Mutex::default() })
    }

    /// On anonymous shared memory that holds `image`; nothing of it has a name after this call.
    ///
    /// # Errors
    /// Those of [`dram::create`] in /dev/shm and of `prepare`; `Usage` when `image` is not whole pages.
    pub fn in_memory(image: &[u8], medium: Medium) -> Result<Sim> {
        let path = nameless();
        let inner = dram::create(&path, image.len() as u64)?;
        std::fs::remove_file(&path).map_err(|e| Error::io(format!("cannot remove {}", path.display()), e))?;
        if inner.capacity() != image.len() as u64 {
            return Err(Error::new(Kind::Usage, "an image has whole pages").with("bytes", image.len()));
        }
        inner.prepare(0..inner.capacity())?;
        inner.write(0, image)?;
        Sim::new(Arc::new(inner), medium)
    }

    /// The same with a flaw.
    pub fn with_flaw(self, flaw: Option<Flaw>) -> Sim {
        Sim { flaw, ..self }
    }

    /// From here on crashes are noted. What is dirty stays dirty.
    pub fn record(&self) {
        let mut state = self.lock();
        let mut before = self.inner.bytes(0..self.inner.capacity()).to_vec();
        for (at, dirty) in &state.dirty {
            let at = *at as usize;
            before[at..at + dirty.values[0].len()].copy_from_slice(&dirty.values[0]);
        }
        state.before = before;
        state.crashes = Some(Vec::new());
    }

    /// What was noted since [`Sim::record`], which it ends.
    pub fn take_trace(&self) -> Trace {
        let mut state = self.lock();
        Trace {
            medium: self.medium,
            before: std::mem::take(&mut state.before),
            crashes: state.crashes.take().unwrap_or_default(),
        }
    }

    /// Who acts from now on, a thread or process of its own: its fences settle only what it wrote back itself.
    /// Crashes carry `tag`.
    pub fn act(&self, actor: u32, tag: u64) {
        let mut state = self.lock();
        (state.actor, state.tag) = (actor, tag);
    }

    /// Notes a crash without a fence.
    pub fn crash_now(&self) {
        let mut state = self.lock();
        self.look_at_staged(&mut state);
        note(&mut state, Point::Now, |_, _| None);
    }

    /// At the `n`-th fence or persist from now (0: the next) the process dies before it takes effect: the call
    /// panics with [`Died`]. The memory stays as it is, as after a kill.
    pub fn die_at_fence(&self, n: u64) {
        self.lock().dies_in = Some(n);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A death inside a call leaves the state as it was before the fence, which is what is wanted.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whole units around a range.
    fn whole(&self, range: &Range<u64>) -> Range<u64> {
        let mut units = self.medium.units(range);
        let Some(first) = units.next() else { return range.start..range.start };
        first.start..units.last().map_or(first.end, |last| last.end)
    }

    /// Does `store` on a range and notes what became of its units.
    fn store(&self, range: Range<u64>, writes_back: bool, store: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.lock();
        self.check_poison(&state, range.start)?;
        self.look_at_staged(&mut state);
        let inside = range.start <= range.end && range.end <= self.inner.capacity();
        let units = self.medium.units(if inside { &range } else { &(0..0) });
        let before: Vec<(Range<u64>, Arc<[u8]>)> =
            units.map(|unit| (unit.clone(), self.inner.bytes(unit).into())).collect();
        store()?;
        let actor = state.actor;
        for (unit, before) in before {
            let at = unit.start;
            changed(&mut state.dirty, at, &before, self.inner.bytes(unit));
            let written_back = writes_back && self.medium.is_lines(at);
            if let Some(dirty) = state.dirty.get_mut(&at).filter(|_| written_back) {
                dirty.written_back = Some((actor, dirty.values.len() - 1));
            }
        }
        Ok(())
    }

    /// Staged pool memory is filled without a call: finds out what changed.
    fn look_at_staged(&self, state: &mut State) {
        let State { staged, dirty, .. } = state;
        for (range, seen) in staged {
            for (unit, seen) in self.medium.units(range).zip(seen.chunks_mut(crate::persist::LINE_BYTES)) {
                let now = self.inner.bytes(unit.clone());
                changed(dirty, unit.start, seen, now);
                seen.copy_from_slice(now);
            }
        }
    }

    /// The fence of the current actor, or the flush of the block device, which settles nothing of the other.
    fn settle(&self, state: &mut State, point: Point, lines: bool) {
        if let Some(n) = state.dies_in {
            state.dies_in = n.checked_sub(1);
            if n == 0 {
                std::panic::resume_unwind(Box::new(Died));
            }
        }
        let actor = state.actor;
        let settles = |at: u64, dirty: &Dirty| match self.medium.is_lines(at) {
            of if of != lines => None,
            true => dirty.written_back.filter(|(who, _)| *who == actor).map(|(_, value)| value),
            false => Some(dirty.values.len() - 1),
        };
        note(state, point, settles);
        state.dirty.retain(|at, dirty| {
            if let Some(value) = settles(*at, dirty) {
                dirty.values.drain(..value);
                dirty.written_back = None;
            }
            dirty.values.len() > 1
        });
    }

    fn persist_blocks(&self, state: &mut State) -> Result<()> {
        let errno = std::mem::take(&mut state.injected_errno);
        if errno == 0 {
            self.settle(state, Point::Persist, false);
            return Ok(());
        }
        note(state, Point::FailedFlush, |_, _| None);
        let e = std::io::Error::from_raw_os_error(errno);
        state.poison = Some(e.to_string());
        Err(poisoned(&e.to_string(), self.path()).caused_by(e))
    }

    /// Refuses what goes to the part whose flush failed.
    fn check_poison(&self, state: &State, offset: u64) -> Result<()> {
        match &state.poison {
            Some(first) if !self.medium.is_lines(offset) => Err(poisoned(first, self.path())),
            _ => Ok(()),
        }
    }
}

fn nameless() -> PathBuf {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    PathBuf::from(format!("/dev/shm/forebay-sim-{}-{n}", std::process::id()))
}

/// The unit at an offset went from `before` to `after`.
fn changed(dirty: &mut BTreeMap<u64, Dirty>, unit: u64, before: &[u8], after: &[u8]) {
    match dirty.get_mut(&unit) {
        Some(known) if known.values.last().is_none_or(|last| **last != *after) => {
            known.values.push(after.into());
        }
        Some(_) => {}
        None if before != after => {
            dirty.insert(unit, Dirty { values: vec![before.into(), after.into()], written_back: None });
        }
        None => {}
    }
}

fn note(state: &mut State, point: Point, settles: impl Fn(u64, &Dirty) -> Option<usize>) {
    let tag = state.tag;
    let Some(crashes) = &mut state.crashes else { return };
    let units = state.dirty.iter().map(|(at, dirty)| Unit {
        offset: *at,
        values: dirty.values.clone(),
        settles: settles(*at, dirty),
    });
    crashes.push(Crash { tag, point, units: units.collect() });
}

#[cold]
fn poisoned(first: &str, path: &Path) -> Error {
    Error::new(Kind::Poisoned, format!("the pool accepts no more writes, because a flush failed: {first}"))
        .with("pool", path.display())
}

impl Device for Sim {
    fn kind(&self) -> TierKind {
        if self.byte_addressable() {
            TierKind::Pmem
        } else {
            TierKind::File
        }
    }

    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn byte_addressable(&self) -> bool {
        self.medium.is_lines(0)
    }

    /// Of what is played.
    fn durability(&self, horizon: Horizon) -> Durability {
        match horizon {
            Horizon::Epoch | Horizon::Write => Durability::Power,
            Horizon::None => Durability::Process,
        }
    }

    fn prepare(&self, range: Range<u64>) -> Result<()> {
        self.check_poison(&self.lock(), range.start)?;
        self.inner.prepare(range)
    }

    fn populate_read(&self, range: Range<u64>) {
        self.inner.populate_read(range)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        let range = offset..offset.saturating_add(src.len() as u64);
        let writes_back = self.flaw != Some(Flaw::WriteKeepsLines);
        self.store(range, writes_back, || self.inner.write(offset, src))
    }

    fn write_checksummed(
        &self,
        offset: u64,
        src: &[u8],
        chunk_bytes: usize,
        crcs: &mut Vec<u32>,
    ) -> Result<()> {
        let range = offset..offset.saturating_add(src.len() as u64);
        let writes_back = self.flaw != Some(Flaw::ChecksummedWriteKeepsLines);
        self.store(range, writes_back, || self.inner.write_checksummed(offset, src, chunk_bytes, crcs))
    }

    fn persist(&self, range: Range<u64>) -> Result<()> {
        let mut state = self.lock();
        self.check_poison(&state, range.start)?;
        self.inner.persist(range.clone())?;
        if self.flaw == Some(Flaw::PersistDoesNothing) {
            return Ok(());
        }
        self.look_at_staged(&mut state);
        if !self.medium.is_lines(range.start) {
            return self.persist_blocks(&mut state);
        }
        if self.flaw != Some(Flaw::PersistKeepsLines) {
            let actor = state.actor;
            for (_, dirty) in state.dirty.range_mut(self.whole(&range)) {
                dirty.written_back = Some((actor, dirty.values.len() - 1));
            }
        }
        self.settle(&mut state, Point::Persist, true);
        Ok(())
    }

    fn persist_written(&self, range: Range<u64>) -> Result<()> {
        if !self.medium.is_lines(range.start) {
            return self.persist(range);
        }
        self.inner.persist_written(range)?;
        self.fence();
        Ok(())
    }

    fn fence(&self) {
        self.inner.fence();
        if self.medium.is_lines(0) && self.flaw != Some(Flaw::FenceDoesNothing) {
            let mut state = self.lock();
            self.look_at_staged(&mut state);
            self.settle(&mut state, Point::Fence, true);
        }
    }

    fn store_word(&self, offset: u64, value: u64) -> Result<()> {
        let range = offset..offset.saturating_add(8);
        self.store(range, false, || self.inner.store_word(offset, value))
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        self.inner.bytes(range)
    }

    fn will_read(&self, range: Range<u64>) -> Result<()> {
        self.inner.will_read(range)
    }

    fn can_read(&self, range: Range<u64>) -> Result<()> {
        self.inner.can_read(range)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.inner.read(offset, out)
    }

    fn load_word(&self, offset: u64) -> u64 {
        self.inner.load_word(offset)
    }

    fn stage(&self, range: Range<u64>) -> Result<StagedWrite> {
        let mut state = self.lock();
        self.check_poison(&state, range.start)?;
        let staged = self.inner.stage(range.clone())?;
        if !self.medium.is_lines(range.start) {
            return Ok(StagedWrite::on_heap(range));
        }
        let whole = self.whole(&range);
        let seen = self.inner.bytes(whole.clone()).to_vec();
        state.staged.push((whole, seen));
        Ok(staged)
    }

    fn unstage(&self, staged: StagedWrite, chunk_bytes: Option<usize>, crcs: &mut Vec<u32>) -> Result<()> {
        let range = staged.range();
        if !self.medium.is_lines(range.start) {
            return match chunk_bytes {
                _ if staged.is_in_pool() => Err(foreign()),
                Some(chunk) => self.write_checksummed(range.start, staged.as_slice(), chunk, crcs),
                None => self.write(range.start, staged.as_slice()),
            };
        }
        self.inner.unstage(staged, chunk_bytes, crcs)?;
        let mut state = self.lock();
        self.look_at_staged(&mut state);
        let start = self.whole(&range).start;
        if let Some(at) = state.staged.iter().position(|(whole, _)| whole.start == start) {
            state.staged.swap_remove(at);
        }
        Ok(())
    }

    fn inject_flush_failure(&self, errno: i32) -> bool {
        let can_fail = !self.medium.is_lines(u64::MAX);
        if can_fail {
            self.lock().injected_errno = errno;
        }
        can_fail
    }
}

#[cold]
fn foreign() -> Error {
    Error::new(Kind::Internal, "staged memory came back to another device than it came from")
}
