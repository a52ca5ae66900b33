//! The engine *userfault*: tiles of a window that come when they are touched and leave by the clock.
//!
//! Everything from [`Service::serve`] on may run in a signal handler: no allocation, no lock, every sleep a slice.
//!
//! Guarantees: never more tiles there than slots, nor more bytes on the way than buffers; a tile that differs from its
//! file leaves only when it was written; an I/O error is that of its page alone. Invariants of the words: words.rs.

mod memory;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::*};
use std::sync::Arc;

use forebay_tier::plain::{PlainFile, DIRECT_ALIGNMENT};
use forebay_tier::window::{Faulted, Serve};

use super::ahead::Streams;
use super::failures::Failures;
use super::source::Source;
use super::stack::Stack;
use super::words::{
    self, Event, ABSENT, BAD, BUSY, DIRTY, HELD, HOT, LEAVING, OVERLAID, PAYLOAD_MAX, PRESENT,
};

/// Tiles that leave together.
const BATCH: usize = 32;

/// No tile in a slot.
const NO_TILE: u32 = u32::MAX;

/// Pages that are tried one by one where a tile cannot be read.
const PAGE: usize = 4096;

/// What was done so far.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) faults: AtomicU64,
    pub(crate) loaded: AtomicU64,
    pub(crate) written: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
}

/// See the file's head.
pub(crate) struct Service {
    pub(crate) memory: Arc<Faulted>,
    pub(crate) tile_bytes: usize,
    /// Byte of the file where the data begins: what is before it belongs to others, and is never written.
    origin: u64,
    /// Byte of the file where the data ends.
    file_bytes: u64,
    writable: bool,
    words: Box<[AtomicU32]>,
    /// How many calls of the system use a tile now, so that it has to stay; none for a window that has no such calls.
    pins: Box<[AtomicU16]>,
    slots: Box<[AtomicU32]>,
    /// Slots that may be used, those that are, and most that ever were.
    limit: AtomicU32,
    used: AtomicU32,
    pub(crate) used_peak: AtomicU32,
    buffers_total: u64,
    /// The file began empty: of what was never written to it, zeros are known without reading.
    blank: bool,
    free: Stack,
    buffers: Stack,
    freed: Event,
    hand: AtomicU64,
    /// Up to where tiles were written ahead of the hand.
    broom: AtomicU64,
    source: Source,
    overlay: Option<PlainFile>,
    pub(crate) streams: Streams,
    pub(crate) counts: Counts,
    pub(crate) failures: Failures,
}

/// What a service is made of.
pub(crate) struct Parts {
    pub(crate) memory: Arc<Faulted>,
    pub(crate) tile_bytes: usize,
    pub(crate) origin: u64,
    pub(crate) file_bytes: u64,
    pub(crate) writable: bool,
    pub(crate) slots: u32,
    pub(crate) buffers: u32,
    pub(crate) source: Source,
    pub(crate) overlay: Option<PlainFile>,
    pub(crate) zeros: bool,
    pub(crate) blank: bool,
}

impl Service {
    pub(crate) fn new(parts: Parts) -> Service {
        let tiles = parts.file_bytes.div_ceil(parts.tile_bytes as u64);
        let name = parts.source.name();
        const { assert!(ABSENT == 0) };
        // Zeroed by the kernel, page by page as they are touched.
        let words = bytemuck::zeroed_slice_box(tiles as usize);
        let pins = bytemuck::zeroed_slice_box(if parts.blank { tiles as usize } else { 0 });
        Service {
            tile_bytes: parts.tile_bytes,
            origin: parts.origin,
            file_bytes: parts.file_bytes,
            writable: parts.writable,
            words,
            pins,
            limit: AtomicU32::new(parts.slots),
            used: AtomicU32::new(0),
            used_peak: AtomicU32::new(0),
            blank: parts.blank,
            buffers_total: u64::from(parts.buffers),
            slots: (0..parts.slots).map(|_| AtomicU32::new(NO_TILE)).collect(),
            free: Stack::full(parts.slots),
            buffers: Stack::full(parts.buffers),
            freed: Event::default(),
            hand: AtomicU64::new(0),
            broom: AtomicU64::new(0),
            source: parts.source,
            overlay: parts.overlay,
            streams: Streams::new(tiles, parts.tile_bytes, parts.slots),
            counts: Counts::default(),
            failures: Failures::new(&name, parts.zeros),
            memory: parts.memory,
        }
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    fn word(&self, tile: u32) -> &AtomicU32 {
        &self.words[tile as usize]
    }

    /// Where a tile lies in the window; the last one may be longer than the file.
    fn range(&self, tile: u32) -> Range<u64> {
        let start = u64::from(tile) * self.tile_bytes as u64;
        start..start + self.tile_bytes as u64
    }

    /// Bytes of a tile that the file has.
    fn needed(&self, tile: u32) -> usize {
        (self.file_bytes - self.range(tile).start).min(self.tile_bytes as u64) as usize
    }

    /// How many tiles are there or on their way.
    pub(crate) fn resident(&self) -> u64 {
        u64::from(self.used.load(Relaxed))
    }

    // ---- in

    /// Sees to it that a tile is there, and that it may be stored into.
    pub(crate) fn bring(&self, tile: u32, write: Option<bool>) -> Result<(), i32> {
        let word = self.word(tile);
        loop {
            let seen = word.load(Acquire);
            match words::state(seen) {
                ABSENT => {
                    if words::take(word, seen, BUSY) {
                        return self.load(tile, seen, write == Some(true));
                    }
                }
                PRESENT => {
                    // Where the processor does not tell, a fault on what is there can only be a store.
                    if !self.writable || write == Some(false) || seen & DIRTY != 0 {
                        return Ok(());
                    }
                    if seen & BAD != 0 {
                        // Written back, it would put zeros in place of unknown contents.
                        return Err(EIO);
                    }
                    if words::take(word, seen, HELD) {
                        let freed = self.memory.protect(&self.range(tile), false);
                        let dirty = if freed.is_ok() { DIRTY } else { 0 };
                        words::open(word, seen & !words::STATE | PRESENT | dirty);
                        return freed.map_err(|e| errno_of(&e));
                    }
                }
                _ => words::wait(word, seen),
            }
        }
    }

    /// Brings a tile that may be wanted soon, if that can be done at once.
    pub(crate) fn bring_ahead(&self, tile: u32) {
        let word = self.word(tile);
        let seen = word.load(Acquire);
        // Zeros come as fast when they are touched.
        let empty = self.blank && seen & OVERLAID == 0;
        if !empty && words::state(seen) == ABSENT && words::take(word, seen, BUSY) {
            // Who touches it tries again and gets the error.
            let _ = self.load(tile, seen, false);
        }
    }

    /// Reads a tile that the caller took to `BUSY`, `seen` before.
    fn load(&self, tile: u32, seen: u32, write: bool) -> Result<(), i32> {
        let overlaid = seen & OVERLAID;
        let slot = match self.slot() {
            Ok(slot) => slot,
            Err(errno) => {
                words::open(self.word(tile), seen);
                return Err(errno);
            }
        };
        // Before anybody can store into it: `dirty` looks here.
        self.slots[slot as usize].store(tile, Release);
        let buffer = self.buffer();
        let filled = self.fill(tile, buffer, overlaid != 0, write);
        self.buffers.push(buffer);
        match filled {
            Ok(flags) => {
                let hot = if self.left_lately(seen) { HOT } else { 0 };
                words::open(self.word(tile), words::with_payload(PRESENT | overlaid | hot | flags, slot));
                self.freed.tell();
                Ok(())
            }
            Err(errno) => {
                // Pages that came before the error would be there without a slot.
                let range = self.range(tile);
                self.failures.forget(&range);
                let _ = self.memory.discard(std::iter::once(range));
                self.slots[slot as usize].store(NO_TILE, Release);
                self.give_back(slot);
                words::open(self.word(tile), seen);
                self.freed.tell();
                Err(errno)
            }
        }
    }

    /// Whether an absent tile left less than a budget's worth of evictions ago: a longer stay would have spared it.
    fn left_lately(&self, seen: u32) -> bool {
        let (then, now) = (words::payload(seen), self.counts.evicted.load(Relaxed) as u32 & PAYLOAD_MAX);
        then != 0 && (now.wrapping_sub(then) & PAYLOAD_MAX) < self.slots.len() as u32
    }

    /// Reads a tile into a buffer and lets it appear; gives the flags of its word.
    fn fill(&self, tile: u32, buffer: u32, overlaid: bool, write: bool) -> Result<u32, i32> {
        let (range, needed) = (self.range(tile), self.needed(tile));
        if self.blank && !overlaid {
            self.memory.clear(buffer as usize, 0..self.tile_bytes);
            self.memory.appear(&range, buffer as usize, !write).map_err(|e| errno_of(&e))?;
            return Ok(if write { DIRTY } else { 0 });
        }
        match self.read(overlaid, buffer, range.start, needed) {
            Ok(()) => {
                self.memory.clear(buffer as usize, needed..self.tile_bytes);
                let protect = self.writable && !write;
                self.memory.appear(&range, buffer as usize, protect).map_err(|e| errno_of(&e))?;
                self.counts.loaded.fetch_add(1, Relaxed);
                self.counts.bytes_read.fetch_add(needed as u64, Relaxed);
                Ok(if write { DIRTY } else { 0 })
            }
            Err(_) => self.fill_by_pages(overlaid, buffer, &range, needed),
        }
    }

    /// Reads `needed` bytes from `offset` on into a buffer.
    fn read(&self, overlaid: bool, buffer: u32, offset: u64, needed: usize) -> Result<(), i32> {
        let file = match (&self.overlay, &self.source) {
            (Some(overlay), _) if overlaid => overlay,
            (_, Source::File(file)) => file,
            // Behind the data there is nothing to read: `fill_by_pages` asks for whole tiles.
            (_, Source::Backing(_)) if needed == 0 => return Ok(()),
            (_, Source::Backing(fetch)) => return fetch.read(buffer, offset, needed),
        };
        let (mut done, mut direct) = (0, file.direct());
        let whole = needed.next_multiple_of(DIRECT_ALIGNMENT as usize);
        while done < needed {
            let (from, len) = match direct {
                Some(direct) => (&**direct, whole - done),
                None => (file.cached(), needed - done),
            };
            match self.memory.read(buffer as usize, done, from, offset + done as u64, len) {
                // The file ends before the data does.
                Ok(0) => return Err(ENDED_EARLY),
                Ok(got) => {
                    done += got;
                    // Behind a short transfer there may be no aligned place.
                    direct = direct.filter(|_| done % DIRECT_ALIGNMENT as usize == 0);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(errno_of(&e)),
            }
        }
        Ok(())
    }

    /// What can be read of a tile that cannot be read as a whole: the other pages fail, or are zeros.
    fn fill_by_pages(
        &self,
        overlaid: bool,
        buffer: u32,
        range: &Range<u64>,
        needed: usize,
    ) -> Result<u32, i32> {
        let mut bad = 0;
        for at in (0..self.tile_bytes).step_by(PAGE) {
            let page = range.start + at as u64..range.start + (at + PAGE) as u64;
            let len = needed.saturating_sub(at).min(PAGE);
            match self.read(overlaid, buffer, page.start, len) {
                Ok(()) => {
                    self.memory.clear(buffer as usize, len..PAGE);
                    self.memory.appear(&page, buffer as usize, self.writable).map_err(|e| errno_of(&e))?;
                    self.counts.bytes_read.fetch_add(len as u64, Relaxed);
                }
                Err(errno) => {
                    bad = BAD;
                    if !self.failures.add(page.start, errno) {
                        return Err(errno);
                    }
                    if self.failures.zeros {
                        self.memory.clear(buffer as usize, 0..PAGE);
                        self.memory
                            .appear(&page, buffer as usize, self.writable)
                            .map_err(|e| errno_of(&e))?;
                    } else {
                        // Without it the list of failures answers alone.
                        let _ = self.memory.poison(&page);
                    }
                }
            }
        }
        self.counts.loaded.fetch_add(1, Relaxed);
        Ok(bad)
    }

    fn buffer(&self) -> u32 {
        loop {
            let found = self.buffers.pop().or_else(|| self.freed.wait(|| self.buffers.pop()));
            if let Some(buffer) = found {
                return buffer;
            }
        }
    }

    // ---- out

    /// A free slot.
    fn slot(&self) -> Result<u32, i32> {
        loop {
            if let Some(slot) = self.take_slot() {
                return Ok(slot);
            }
            let wanted = BATCH.min(self.limit.load(Relaxed) as usize / 16).max(1);
            let (mut freed, failed) = self.evict(wanted, 0);
            if freed == 0 && failed != 0 {
                // What cannot be written stays; what need not be written may still go.
                freed = self.evict(wanted, DIRTY).0;
            }
            if freed == 0 && failed != 0 {
                return Err(failed);
            }
            if freed == 0 {
                // All are on their way in: each is one transfer.
                if let Some(slot) = self.freed.wait(|| self.take_slot()) {
                    return Ok(slot);
                }
            }
        }
    }

    /// Makes up to `wanted` tiles leave, as the clock says, but none with one of the flags `but`; how many did, and
    /// what a write failed with.
    fn evict(&self, wanted: usize, but: u32) -> (usize, i32) {
        let mut victims = [0u32; BATCH];
        let mut found = 0;
        for _ in 0..3 * self.slots.len() {
            let at = (self.hand.fetch_add(1, Relaxed) % self.slots.len() as u64) as u32;
            let tile = self.slots[at as usize].load(Acquire);
            if tile == NO_TILE {
                continue;
            }
            let word = self.word(tile);
            let seen = word.load(Relaxed);
            if words::state(seen) != PRESENT || words::payload(seen) != at || seen & but != 0 {
                continue;
            }
            if seen & HOT != 0 {
                let _ = word.compare_exchange(seen, seen & !HOT, Relaxed, Relaxed);
            } else if words::take(word, seen, LEAVING) {
                if self.is_pinned(tile) {
                    words::open(word, seen);
                    continue;
                }
                victims[found] = tile;
                found += 1;
                if found == wanted {
                    break;
                }
            }
        }
        self.let_go(&mut victims[..found])
    }

    /// Writes and evicts tiles that the caller took to `LEAVING`.
    fn let_go(&self, victims: &mut [u32]) -> (usize, i32) {
        let (mut kept, mut failed) = (0, 0);
        for at in 0..victims.len() {
            let tile = victims[at];
            let seen = self.word(tile).load(Relaxed);
            if seen & DIRTY != 0 {
                // The next fault shall not have to wait for a write.
                self.streams.sweep();
            }
            match if seen & DIRTY != 0 { self.write(tile) } else { Ok(()) } {
                Ok(()) => {
                    victims[kept] = tile;
                    kept += 1;
                }
                // Not lost: it stays, and stores to it go on.
                Err(errno) => {
                    failed = errno;
                    let _ = self.memory.protect(&self.range(tile), false);
                    words::open(self.word(tile), seen & !words::STATE | PRESENT);
                }
            }
        }
        let gone = &victims[..kept];
        if self.memory.discard(gone.iter().map(|tile| self.range(*tile))).is_ok() {
            gone.iter().for_each(|tile| self.gone(*tile));
            return (kept, failed);
        }
        // Memory that may not go (mlock): each for itself, as some of them may have gone.
        let mut freed = 0;
        for tile in gone {
            if self.memory.discard(std::iter::once(self.range(*tile))).is_ok() {
                self.gone(*tile);
                freed += 1;
                continue;
            }
            let seen = self.word(*tile).load(Relaxed);
            let overlaid = self.overlaid(seen & DIRTY != 0);
            words::open(self.word(*tile), seen & !(words::STATE | DIRTY) | PRESENT | overlaid);
        }
        (freed, if failed == 0 && freed < kept { ENOMEM } else { failed })
    }

    /// A tile's pages are gone.
    fn gone(&self, tile: u32) {
        let seen = self.word(tile).load(Relaxed);
        if seen & BAD != 0 {
            self.failures.forget(&self.range(tile));
        }
        let overlaid = seen & OVERLAID | self.overlaid(seen & DIRTY != 0);
        let slot = words::payload(seen);
        let stamp = (self.counts.evicted.fetch_add(1, Relaxed) as u32 + 1) & PAYLOAD_MAX;
        self.slots[slot as usize].store(NO_TILE, Release);
        words::open(self.word(tile), words::with_payload(ABSENT | overlaid, stamp));
        self.give_back(slot);
        self.freed.tell();
    }

    /// The flag of a tile that was written, where it matters.
    fn overlaid(&self, written: bool) -> u32 {
        if written && (self.blank || self.overlay.is_some()) {
            OVERLAID
        } else {
            0
        }
    }

    /// A slot, unless as many as may be are used.
    fn take_slot(&self) -> Option<u32> {
        let limit = self.limit.load(SeqCst);
        let more = |used: u32| (used < limit).then_some(used + 1);
        let used = self.used.fetch_update(SeqCst, Relaxed, more).ok()?;
        // Who lowers the limit looks at `used` afterwards: one of the two sees the other.
        if used >= self.limit.load(SeqCst) {
            self.used.fetch_sub(1, AcqRel);
            return None;
        }
        let slot = self.free.pop();
        match slot {
            Some(_) => drop(self.used_peak.fetch_max(used + 1, Relaxed)),
            // Its owner has counted it and not yet pushed it.
            None => drop(self.used.fetch_sub(1, AcqRel)),
        }
        slot
    }

    fn give_back(&self, slot: u32) {
        self.free.push(slot);
        self.used.fetch_sub(1, AcqRel);
    }

    /// Writes a tile that the caller took; from then on stores to it are faults.
    fn write(&self, tile: u32) -> Result<(), i32> {
        let range = self.range(tile);
        self.memory.protect(&range, true).map_err(|e| errno_of(&e))?;
        // The overlay is ours as a whole; of the file only the data is.
        let (file, from) = match (&self.overlay, &self.source) {
            (Some(overlay), _) => (overlay, range.start),
            (None, Source::File(file)) => (&**file, range.start.max(self.origin)),
            // Only what is copied on write is stored into.
            (None, Source::Backing(_)) => return Err(EIO),
        };
        let needed = (range.start + self.needed(tile) as u64).saturating_sub(from) as usize;
        let is_whole = |at: u64| at % DIRECT_ALIGNMENT == 0;
        // Whole blocks would write what is not the data.
        let direct = file.direct().filter(|_| is_whole(from) && is_whole(needed as u64));
        let mut to: &File = direct.map_or(file.cached(), |file| file);
        let mut done = 0;
        while done < needed {
            let at = from + done as u64;
            match self.memory.write(at, needed - done, to, at) {
                Ok(0) => return Err(EIO),
                Ok(put) => done += put,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(errno_of(&e)),
            }
            if !is_whole(done as u64) {
                to = file.cached();
            }
        }
        self.counts.written.fetch_add(1, Relaxed);
        self.counts.bytes_written.fetch_add(needed as u64, Relaxed);
        Ok(())
    }

    // ---- not in a handler

    /// The tiles that differ, in order; those that another thread has taken may.
    pub(crate) fn dirty(&self) -> Vec<u32> {
        let differs = |word: u32| word & DIRTY != 0 || words::state(word) != PRESENT;
        let is_dirty = |tile: &u32| *tile != NO_TILE && differs(self.word(*tile).load(Acquire));
        let mut found: Vec<u32> = self.slots.iter().map(|slot| slot.load(Acquire)).filter(is_dirty).collect();
        found.sort_unstable();
        found
    }

    /// Writes a tile, which stays; nothing happens to one that is clean or has left.
    pub(crate) fn clean(&self, tile: u32) -> Result<(), i32> {
        let word = self.word(tile);
        loop {
            let seen = word.load(Acquire);
            match words::state(seen) {
                // It left, and so was written.
                ABSENT => return Ok(()),
                PRESENT if seen & DIRTY == 0 => return Ok(()),
                PRESENT => {
                    if words::take(word, seen, HELD) {
                        return self.clean_held(tile, seen);
                    }
                }
                _ => words::wait(word, seen),
            }
        }
    }

    /// Writes a tile that the caller took to `HELD`, `seen` before, and opens it.
    fn clean_held(&self, tile: u32, seen: u32) -> Result<(), i32> {
        let written = self.write(tile);
        let now = match &written {
            Ok(()) => seen & !DIRTY | self.overlaid(true),
            Err(_) => {
                let _ = self.memory.protect(&self.range(tile), false);
                seen
            }
        };
        words::open(self.word(tile), now);
        self.freed.tell();
        written
    }

    /// Writes the next tile before the hand that differs; false: a quarter of the round is clean.
    pub(crate) fn sweep(&self) -> bool {
        let ahead = (self.slots.len() as u64 / 4).max(1);
        let hand = self.hand.load(Relaxed);
        let at = self.broom.fetch_max(hand, AcqRel).max(hand);
        if at >= hand + ahead {
            return false;
        }
        if self.broom.compare_exchange(at, at + 1, AcqRel, Relaxed).is_err() {
            return true;
        }
        let tile = self.slots[(at % self.slots.len() as u64) as usize].load(Acquire);
        if tile != NO_TILE {
            let seen = self.word(tile).load(Relaxed);
            let leaves = words::state(seen) == PRESENT && seen & (DIRTY | HOT) == DIRTY;
            if leaves && words::take(self.word(tile), seen, HELD) {
                if self.is_pinned(tile) {
                    words::open(self.word(tile), seen);
                    return true;
                }
                // It stays as it is, and the fault that needs its slot gets the error.
                let _ = self.clean_held(tile, seen);
            }
        }
        true
    }

    /// Makes what was written durable.
    pub(crate) fn flush_file(&self) -> io::Result<()> {
        self.source.flush()
    }

    /// Calls `with` while a tile is there and stays, unless a page with one of these bytes of it is bad.
    pub(crate) fn hold(
        &self,
        tile: u32,
        bytes: Range<u64>,
        write: bool,
        with: impl FnOnce(&Faulted),
    ) -> Result<(), i32> {
        let word = self.word(tile);
        let pages = bytes.start / PAGE as u64 * PAGE as u64..bytes.end;
        loop {
            self.bring(tile, Some(write))?;
            let seen = word.load(Acquire);
            let fits = words::state(seen) == PRESENT && (!write || seen & DIRTY != 0);
            if fits && words::take(word, seen, HELD) {
                let failed = if seen & BAD != 0 { self.failures.first_in(&pages) } else { None };
                if failed.is_none() {
                    with(&self.memory);
                }
                words::open(word, seen);
                self.freed.tell();
                return failed.map_or(Ok(()), Err);
            }
        }
    }

    /// Lets the tiles of a range leave now.
    pub(crate) fn leave(&self, tiles: Range<u32>) -> i32 {
        let mut failed = 0;
        let mut victims = [0u32; BATCH];
        let mut found = 0;
        for tile in tiles {
            let seen = self.word(tile).load(Relaxed);
            if words::state(seen) == PRESENT && words::take(self.word(tile), seen, LEAVING) {
                victims[found] = tile;
                found += 1;
            }
            if found == BATCH {
                failed = failed.max(self.let_go(&mut victims).1);
                found = 0;
            }
        }
        failed.max(self.let_go(&mut victims[..found]).1)
    }
}

impl Serve for Service {
    fn serve(&self, offset: u64, write: Option<bool>) -> bool {
        self.counts.faults.fetch_add(1, Relaxed);
        let tile = (offset / self.tile_bytes as u64) as u32;
        let page = offset / PAGE as u64 * PAGE as u64;
        self.streams.touched(tile);
        let brought = match self.failures.answers(page) {
            Some(errno) => Err(errno),
            None => self.bring(tile, write).inspect_err(|errno| self.failures.note(page, *errno)),
        };
        // A page of it alone may have failed.
        match brought.and_then(|()| self.failures.answers(page).map_or(Ok(()), Err)) {
            Ok(()) => true,
            Err(errno) => {
                self.failures.say(page, errno);
                false
            }
        }
    }
}

const EIO: i32 = 5;
const ENOMEM: i32 = 12;
/// What a short file is, in errors that have only a number: `ENODATA`.
pub(crate) const ENDED_EARLY: i32 = 61;

fn errno_of(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(EIO)
}
