//! The engine *kernel*: a mapping of the file, whose pages the kernel brings and a thread of ours sends away.
//!
//! The thread looks how much of the file is in the page cache and walks it as a clock with two hands. The first takes
//! a region out of the mapping, and begins to write what differs; the second, some regions behind, drops what was not
//! touched since from the page cache. A page that was touched is mapped again by then, so that the kernel keeps it:
//! that is its second chance, and costs no bookkeeping. Whole regions leave by few calls, which is what makes it
//! cheap.
//!
//! Memory that was never stored into (`fresh`) comes page by page: the kernel would read ahead of stores what is zeros,
//! in pieces that are longer than a region, and a piece leaves only as a whole.
//!
//! Guarantees: no byte is lost (dirty pages stay until they are written) unless a write fails: the file system may then
//! have dropped pages by itself, so that the owner of the window has to ask for it (`failed_write`, `flush`).
//! The budget is kept by looking often: the more seldom the less is missing, but a program that is faster than the
//! thread overshoots by what it brings meanwhile.
//! Where memory of a program overshoots by `BRAKE_ABOVE`, a second thread makes those wait that fault in it
//! (`hold_faults`), so that they store no faster than the disk writes. Both threads need a processor for that: where
//! the program keeps all of them busy with stores, the budget does not hold.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::*};
use std::sync::Arc;
use std::time::Duration;

use forebay_tier::clock;
use forebay_tier::window::{self, Expect, FileWindow};

use super::crew::Crew;

/// What leaves at once: the longest and the shortest region. Long ones cost fewer calls, short ones suit small budgets.
const REGION_MAX: u64 = 2 << 20;
const REGION_MIN: u64 = 64 << 10;

/// Regions between the hands: the time in which a page shows that it is used. Few, because a fault also maps the
/// neighbours that are there, used or not.
const HANDS_APART: u64 = 64;

/// The part of the budget that may lie between the hands.
const HANDS_PART: u64 = 4;

/// Regions that leave together where far more is there than the budget: the disk writes one while others are dropped.
const BATCH: u64 = 16;

/// Most parts of a window that are fresh or not: each may become a mapping of its own for the kernel, of which a
/// process may have 65530.
const FRESH_PARTS_MAX: u64 = 4096;

/// Memory whose budget holds fewer lengths that the kernel reads ahead comes page by page always: what a fault
/// brings would push out what the program uses.
const READ_AHEADS_MIN: u64 = 4;

/// Bytes a second that are assumed to come when no figure is known: how long the thread may sleep.
const RATE_MAX: u64 = 4 << 30;

/// Most above the budget before those wait that fault in memory: half of the budget, but no more than this, nor less
/// than an eighth of it.
const BRAKE_ABOVE: u64 = 8 << 20;

/// The thread's shortest and longest sleep.
const SLEEP_MS: Range<u32> = 1..20;

/// Rounds of the thread after which it counts instead of estimating.
const ROUNDS_ESTIMATED: u32 = 500;

/// What others counted serves for so long: counting looks at every page of the file, also at those that have left.
const COUNT_SERVES: Duration = Duration::from_millis(SLEEP_MS.end as u64);

const PAGE: u64 = 4096;

/// ENOSPC.
const NO_SPACE: i32 = 28;
const EIO: i32 = 5;

/// What the kernel says of pages that it could not write; the others are EROFS and EDQUOT.
const LOST: [i32; 4] = [EIO, NO_SPACE, 30, 122];

/// See the file's head.
pub(crate) struct Kernel {
    shared: Arc<Shared>,
    _crew: Crew,
}

struct Shared {
    map: Arc<FileWindow>,
    writable: bool,
    budget: AtomicU64,
    /// What is beyond is not used.
    used_end: AtomicU64,
    region: u64,
    random: AtomicBool,
    fresh: Option<Fresh>,
    /// Bytes that are there, as far as is known; below 0 for a moment where drops were counted before arrivals.
    resident: AtomicU64,
    peak: AtomicU64,
    counted: Counted,
    dropped: AtomicU64,
    written: AtomicU64,
    /// What a write failed with since the last flush; 0: none did.
    errno: AtomicI32,
    /// What the first write failed with that ever did; 0: none did.
    failed: AtomicI32,
    stop: forebay_tier::host::atomic::AtomicU32,
}

/// The last count of what is there. Words of their own, because a process may be forked at any time: they need not be
/// of one count.
#[derive(Default)]
struct Counted {
    /// When it ended, by the monotonic clock; 0: never.
    at_ns: AtomicU64,
    /// How long it took.
    cost_ns: AtomicU64,
    /// Page faults of the process when it began.
    faults: AtomicU64,
}

/// Which parts of a window were never sent away, and so need no reading ahead.
struct Fresh {
    part: u64,
    /// Whether the budget is long enough for reading ahead at all.
    may_read_ahead: bool,
    used: Vec<AtomicBool>,
}

impl Fresh {
    /// All of it.
    fn new(map: &FileWindow, region: u64, budget: u64) -> Fresh {
        let part = map.bytes().div_ceil(FRESH_PARTS_MAX).next_power_of_two().max(region);
        map.expect(&(0..map.bytes()), Expect::Random);
        let used = (0..map.bytes().div_ceil(part)).map(|_| AtomicBool::new(false)).collect();
        let may_read_ahead = budget / READ_AHEADS_MIN >= map.read_ahead_bytes();
        Fresh { part, may_read_ahead, used }
    }

    fn is_read_again(&self, number: u64, map: &FileWindow) {
        if self.may_read_ahead && !self.used[number as usize].swap(true, Relaxed) {
            map.expect(&self.range(number, map), Expect::Normal);
        }
    }

    fn range(&self, number: u64, map: &FileWindow) -> Range<u64> {
        number * self.part..((number + 1) * self.part).min(map.bytes())
    }

    /// The part that ends with this region is read again one day.
    fn leaves(&self, region: &Range<u64>, map: &FileWindow) {
        let number = (region.end - 1) / self.part;
        if region.end == self.range(number, map).end {
            self.is_read_again(number, map);
        }
    }

    /// What touches this range has something to read.
    fn is_stored(&self, range: &Range<u64>, map: &FileWindow) {
        for number in range.start / self.part..range.end.div_ceil(self.part) {
            self.is_read_again(number, map);
        }
    }

    /// What lies inside this range is zeros again.
    fn forgotten(&self, range: &Range<u64>, map: &FileWindow) {
        for number in range.start.div_ceil(self.part)..range.end.div_ceil(self.part) {
            let part = self.range(number, map);
            if part.end <= range.end && self.used[number as usize].swap(false, Relaxed) {
                map.expect(&part, Expect::Random);
            }
        }
    }
}

/// Page faults of this process.
fn all_faults() -> u64 {
    let (read, others) = window::faults();
    read + others
}

impl Kernel {
    /// `fresh`: the file is zeros, and no other process has it.
    pub(crate) fn start(
        map: Arc<FileWindow>,
        writable: bool,
        budget: u64,
        fresh: bool,
    ) -> std::io::Result<Kernel> {
        let shared = Arc::new(Shared::new(map, writable, budget, fresh));
        let own = shared.clone();
        let mut crew = Crew::new();
        crew.start("forebay-window".into(), move || own.steer())?;
        if shared.fresh.is_some() {
            let own = shared.clone();
            crew.start("forebay-brake".into(), move || own.brake())?;
        }
        Ok(Kernel { shared, _crew: crew })
    }

    pub(crate) fn expect(&self, what: Expect) {
        self.shared.random.store(what == Expect::Random, Relaxed);
        // What is fresh has said already what is to be expected.
        if self.shared.fresh.is_none() || what == Expect::Random {
            self.shared.map.expect(&(0..self.shared.map.bytes()), what);
        }
    }

    /// Of a window that was made fresh: here the file has something.
    pub(crate) fn is_stored(&self, range: &Range<u64>) {
        if let Some(fresh) = &self.shared.fresh {
            fresh.is_stored(range, &self.shared.map);
        }
    }

    pub(crate) fn prefetch(&self, range: &Range<u64>) {
        // No more than fits beside what is there: the rest would push it out again.
        let end = range.end.min(range.start + self.shared.budget.load(Relaxed) / 2);
        self.shared.map.begin_to_read(&(range.start..end));
    }

    pub(crate) fn will_stream(&self, range: &Range<u64>) {
        self.shared.map.expect(range, Expect::Sequential);
        self.shared.random.store(false, Relaxed);
    }

    pub(crate) fn done_with(&self, range: &Range<u64>) {
        let _ = self.shared.map.unmap_pages(range);
        self.shared.drop_region(range, false);
    }

    pub(crate) fn flush(&self) -> std::io::Result<()> {
        let failed = self.shared.errno.swap(0, AcqRel);
        self.shared.map.flush()?;
        match failed {
            0 => Ok(()),
            errno => Err(std::io::Error::from_raw_os_error(errno)),
        }
    }

    /// Changes the budget; what is above it leaves soon.
    pub(crate) fn set_budget(&self, bytes: u64) {
        // With less, what is used would leave before it is used.
        self.shared.budget.store(bytes.max(REGION_MIN), Relaxed);
    }

    pub(crate) fn budget(&self) -> u64 {
        self.shared.budget.load(Relaxed)
    }

    /// Nothing is beyond this byte.
    pub(crate) fn set_used_end(&self, end: u64) {
        self.shared.used_end.store(end, Relaxed);
    }

    /// Makes a range zeros again.
    pub(crate) fn forget(&self, range: &Range<u64>) -> std::io::Result<()> {
        self.shared.map.forget(range)?;
        if let Some(fresh) = &self.shared.fresh {
            fresh.forgotten(range, &self.shared.map);
        }
        Ok(())
    }

    /// What the first write failed with that ever did, be it one of the kernel's own.
    pub(crate) fn failed_write(&self) -> Option<i32> {
        if let Err(e) = self.shared.map.check_written() {
            self.shared.note(&e);
        }
        Some(self.shared.failed.load(Acquire)).filter(|errno| *errno != 0)
    }

    /// What is there, as it was counted at most so long ago.
    pub(crate) fn resident(&self, ago: Duration) -> u64 {
        match self.shared.is_counted(ago) {
            true => self.shared.resident.load(Relaxed),
            false => self.shared.count(),
        }
    }

    /// What is there, and the budget.
    pub(crate) fn level(&self) -> (u64, u64) {
        let budget = self.budget();
        (self.shared.count_above(budget), budget)
    }

    pub(crate) fn peak(&self) -> u64 {
        self.shared.peak.load(Relaxed)
    }

    /// Bytes that left so far, and of those written before.
    pub(crate) fn gone(&self) -> (u64, u64) {
        (self.shared.dropped.load(Relaxed), self.shared.written.load(Relaxed))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.shared.stop.store(1, Release);
        forebay_tier::wait::wake_all(&self.shared.stop);
    }
}

/// Where the hands are: numbers of regions that only rise.
struct Hands {
    first: u64,
    second: u64,
    /// Regions that the first hand has taken out of the mapping, and the second has not reached since.
    begun: Vec<bool>,
}

impl Shared {
    fn new(map: Arc<FileWindow>, writable: bool, budget: u64, fresh: bool) -> Shared {
        let region = (budget / 32).clamp(REGION_MIN, REGION_MAX).next_power_of_two().min(REGION_MAX);
        let fresh = fresh.then(|| Fresh::new(&map, region, budget));
        Shared {
            map,
            writable,
            budget: AtomicU64::new(budget),
            used_end: AtomicU64::new(u64::MAX),
            region,
            random: AtomicBool::new(false),
            fresh,
            resident: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            counted: Counted::default(),
            dropped: AtomicU64::new(0),
            written: AtomicU64::new(0),
            errno: AtomicI32::new(0),
            failed: AtomicI32::new(0),
            stop: forebay_tier::host::atomic::AtomicU32::new(0),
        }
    }

    /// Counts what is there.
    fn count(&self) -> u64 {
        let (began, faults) = (clock::now_ns(), all_faults());
        let all = 0..self.map.bytes();
        let bytes = self.map.cached_pages(&all).map_or(self.resident.load(Relaxed), |pages| pages * PAGE);
        self.resident.store(bytes, Relaxed);
        self.peak.fetch_max(bytes, Relaxed);
        let now = clock::now_ns();
        self.counted.faults.store(faults, Relaxed);
        self.counted.cost_ns.store(now - began, Relaxed);
        self.counted.at_ns.store(now, Relaxed);
        bytes
    }

    /// Whether what is there was counted at most so long ago.
    fn is_counted(&self, ago: Duration) -> bool {
        let at = self.counted.at_ns.load(Relaxed);
        at != 0 && u128::from(clock::now_ns().saturating_sub(at)) < ago.as_nanos()
    }

    /// What is there: by the last count, with a page for each fault since, unless that may be more than `most`, and
    /// counted then. What is stored comes so; what is read ahead comes without faults, but no faster than the disk is.
    fn count_above(&self, most: u64) -> u64 {
        let came = all_faults().saturating_sub(self.counted.faults.load(Relaxed)) * PAGE;
        let there = self.resident.load(Relaxed).saturating_add(came);
        let until_full = Duration::from_millis(most.saturating_sub(there) / (RATE_MAX / 1000));
        // Limits the share of time that is spent counting.
        let cost = Duration::from_nanos(self.counted.cost_ns.load(Relaxed));
        match there <= most && self.is_counted(until_full.max(4 * cost).min(COUNT_SERVES)) {
            true => there,
            false => self.count(),
        }
    }

    fn steer(&self) {
        let begun = vec![false; self.map.bytes().div_ceil(self.region) as usize];
        let mut hands = Hands { first: 0, second: 0, begun };
        // What others had brought before counts, too: the first round counts.
        let (mut faults, mut rounds) = (window::faults(), ROUNDS_ESTIMATED);
        while self.stop.load(Acquire) == 0 {
            let now = window::faults();
            let (read, all) = (now.0 - faults.0, now.0 + now.1 - faults.0 - faults.1);
            faults = now;
            rounds += 1;
            // Where a fault brings one page, faults tell; else a thread has to count, unless nothing happened.
            let told = if self.random.load(Relaxed) { Some(read * PAGE) } else { (all == 0).then_some(0) };
            let there = match told.filter(|_| rounds < ROUNDS_ESTIMATED) {
                Some(came) => self.resident.fetch_add(came, Relaxed) + came,
                None => {
                    rounds = 0;
                    self.count()
                }
            };
            self.peak.fetch_max(there, Relaxed);
            let budget = self.budget.load(Relaxed);
            if there > budget - budget / 16 {
                self.evict(&mut hands, there, budget);
            }
            let left = budget.saturating_sub(self.resident.load(Relaxed));
            let milliseconds = (left / (RATE_MAX / 1000)) as u32;
            let sleep = Duration::from_millis(u64::from(milliseconds.clamp(SLEEP_MS.start, SLEEP_MS.end)));
            // Counting has no more than half of a processor, unless one count takes longer than a round.
            let cost = Duration::from_nanos(self.counted.cost_ns.load(Relaxed));
            forebay_tier::wait::wait(&self.stop, 0, sleep.max(cost.min(COUNT_SERVES)));
        }
    }

    /// Makes those who fault wait while far more is there than the budget.
    fn brake(&self) {
        let mut faults = (0, 0);
        while self.stop.load(Acquire) == 0 {
            let (now, budget) = (window::faults(), self.budget.load(Relaxed));
            let most = budget + (budget / 2).clamp(BRAKE_ABOVE / 8, BRAKE_ABOVE);
            let there = if now == faults { 0 } else { self.count_above(most) };
            faults = now;
            if there > most {
                match self.map.hold_faults() {
                    Ok(()) => continue,
                    // A full disk may have capacity again; a file system without holes will not get them.
                    Err(e) if e.raw_os_error() == Some(NO_SPACE) => {}
                    Err(_) => return,
                }
            }
            let milliseconds = most.saturating_sub(there) / (RATE_MAX / 1000);
            let sleep = milliseconds.clamp(u64::from(SLEEP_MS.start), u64::from(SLEEP_MS.end));
            forebay_tier::wait::wait(&self.stop, 0, Duration::from_millis(sleep));
        }
    }

    /// Walks the hands until less than the budget is there, or everything was passed twice.
    fn evict(&self, hands: &mut Hands, there: u64, budget: u64) {
        let (low, urgent) = (budget - budget / 8, budget + budget / 2);
        let end = self.map.bytes().min(self.used_end.load(Relaxed)).max(1);
        let regions = end.div_ceil(self.region);
        let apart = (regions / HANDS_APART).min(budget / HANDS_PART / self.region).max(1).min(regions - 1);
        let mut there = there;
        if end < self.map.bytes() {
            // What was read ahead of the last byte that is used: no hand gets there.
            let behind = end.next_multiple_of(PAGE)..self.map.bytes();
            let _ = self.map.unmap_pages(&behind);
            there = there.saturating_sub(self.drop_exactly(&behind));
        }
        let last = hands.second + 2 * regions;
        while there > low && hands.second < last && self.stop.load(Relaxed) == 0 {
            self.begin(hands, there - low, apart, regions);
            // What was begun is written by now, or soon: only the first has to be waited for.
            while there > low && hands.second + apart < hands.first {
                let is_urgent = there > urgent;
                let end = (hands.second + if is_urgent { BATCH } else { 1 }).min(hands.first - apart);
                let gone = self.pass(
                    &mut hands.begun,
                    (hands.second..end).map(|number| number % regions),
                    is_urgent,
                );
                there = there.saturating_sub(gone);
                hands.second = end;
            }
        }
    }

    /// Moves the second hand over some regions: how many bytes left. A region that the first hand had found empty
    /// begins to leave here, and has its second chance from now on; where it is urgent, none has one.
    fn pass(&self, begun: &mut [bool], regions: impl Iterator<Item = u64> + Clone, is_urgent: bool) -> u64 {
        for region in regions.clone().filter(|region| is_urgent || !begun[*region as usize]) {
            let range = self.range(region);
            if self.map.cached_pages(&range).map_or(true, |pages| pages > 0) {
                self.leave(&range);
            }
        }
        let mut gone = 0;
        for region in regions {
            let is_begun = &mut begun[region as usize];
            if is_urgent || *is_begun {
                *is_begun = false;
                gone += self.drop_region(&self.range(region), is_urgent);
            } else {
                *is_begun = true;
            }
        }
        gone
    }

    /// Moves the first hand until `bytes` are on their way out: at least `apart` regions ahead of the second, and
    /// no more than a round.
    fn begin(&self, hands: &mut Hands, bytes: u64, apart: u64, regions: u64) {
        let mut begun = 0;
        while hands.first <= hands.second + apart || (begun < bytes && hands.first < hands.second + regions) {
            let ahead = self.range(hands.first % regions);
            let there = self.map.cached_pages(&ahead).unwrap_or(self.region / PAGE);
            if there > 0 {
                self.leave(&ahead);
            }
            hands.begun[(hands.first % regions) as usize] = there > 0;
            begun += there * PAGE;
            hands.first += 1;
        }
    }

    /// Takes a region out of the mapping, and begins to write what differs: in this order, because a page that is
    /// written while it is mapped costs every processor that runs the program an interrupt.
    fn leave(&self, range: &Range<u64>) {
        if let Some(fresh) = &self.fresh {
            fresh.leaves(range, &self.map);
        }
        let _ = self.map.unmap_pages(range);
        if self.writable {
            self.write_back(range, false);
        }
    }

    fn range(&self, region: u64) -> Range<u64> {
        let start = region * self.region;
        start..(start + self.region).min(self.map.bytes())
    }

    /// Drops what is clean and not mapped, after writing what differs; how many bytes left. `urgent`: also what was
    /// touched since.
    fn drop_region(&self, range: &Range<u64>, urgent: bool) -> u64 {
        if self.map.cached_pages(range).is_ok_and(|pages| pages == 0) {
            return 0;
        }
        // What the page cache holds in longer pieces leaves by the whole piece: the longest are as long as this.
        let start = range.start / REGION_MAX * REGION_MAX;
        let whole = start..range.end.next_multiple_of(REGION_MAX).min(self.map.bytes());
        if self.writable && !self.write_back(range, true) {
            return 0;
        }
        let left = self.drop_exactly(range);
        if !urgent && (left > 0 || whole == *range) {
            return left;
        }
        if urgent {
            if self.map.cached_pages(range).is_ok_and(|pages| pages == 0) {
                return left;
            }
            let _ = self.map.unmap_pages(&whole);
            if self.writable && !self.write_back(&whole, true) {
                return left;
            }
        }
        left + self.drop_exactly(&whole)
    }

    fn drop_exactly(&self, range: &Range<u64>) -> u64 {
        // Where it is not told, all of it is taken to have been there.
        let all = (range.end - range.start).div_ceil(PAGE);
        let before = self.map.cached_pages(range).unwrap_or(all);
        let _ = self.map.drop_cached(range);
        let after = self.map.cached_pages(range).unwrap_or(0);
        let bytes = before.saturating_sub(after) * PAGE;
        self.dropped.fetch_add(bytes, Relaxed);
        let less = |there: u64| Some(there.saturating_sub(bytes));
        let _ = self.resident.fetch_update(Relaxed, Relaxed, less);
        bytes
    }

    /// Begins to write a range, or writes it; false: it could not be written, now or ever before. Then nothing is
    /// dropped any more: the kernel takes pages for clean that it failed to write, and they are the only copy.
    fn write_back(&self, range: &Range<u64>, wait: bool) -> bool {
        let begun = self.map.write_back(range, wait).inspect_err(|e| self.note(e));
        begun.is_ok() && self.failed.load(Acquire) == 0
    }

    /// Notes what a write failed with, or that it could not be begun, which loses nothing.
    fn note(&self, error: &std::io::Error) {
        let errno = error.raw_os_error().unwrap_or(EIO);
        let _ = self.errno.compare_exchange(0, errno, AcqRel, Relaxed);
        if LOST.contains(&errno) {
            let _ = self.failed.compare_exchange(0, errno, AcqRel, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skips::skipped;
    use forebay_tier::window::View;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    const REGIONS: u64 = 4;

    /// A window of some regions on a disk, all stored into through the mapping. None where the page cache is the file.
    fn stored() -> Option<(Shared, View, tempfile::TempDir)> {
        let dir = tempfile::tempdir().unwrap();
        let file =
            File::options().read(true).write(true).create_new(true).open(dir.path().join("w")).unwrap();
        let bytes = REGIONS * REGION_MIN;
        file.set_len(bytes).unwrap();
        file.write_all_at(&[1], 0).unwrap();
        file.sync_all().unwrap();
        let map = Arc::new(FileWindow::new(file, bytes, true).unwrap());
        map.drop_cached(&(0..bytes)).unwrap();
        if map.cached_pages(&(0..bytes)).unwrap_or(1) > 0 {
            skipped("regions of a window that leave", "no disk below the folder for temporary files");
            return None;
        }
        let mut view = map.view(&(0..bytes));
        view.as_mut_slice().unwrap().fill(7);
        Some((Shared::new(map, true, REGION_MIN, false), view, dir))
    }

    #[test]
    fn a_region_that_came_behind_the_first_hand_leaves_in_the_second_round() {
        let Some((shared, view, _dir)) = stored() else { return };
        let mut begun = vec![false; REGIONS as usize];
        assert_eq!(shared.pass(&mut begun, 0..REGIONS, false), 0, "its second chance");
        assert_eq!(begun, [true; REGIONS as usize]);
        // It is out of the mapping: what is mapped would stay.
        assert_eq!(shared.pass(&mut begun, 0..REGIONS, false), REGIONS * REGION_MIN);
        assert_eq!(begun, [false; REGIONS as usize]);
        assert!(view.as_slice().iter().all(|byte| *byte == 7));
    }

    #[test]
    fn a_count_serves_until_it_is_old_or_more_may_be_there() {
        let Some((shared, view, _dir)) = stored() else { return };
        let all = REGIONS * REGION_MIN;
        assert_eq!(shared.count(), all);
        // It is never old.
        shared.counted.at_ns.store(u64::MAX, Relaxed);
        shared.map.unmap_pages(&(0..all)).unwrap();
        assert!(shared.write_back(&(0..all), true));
        shared.map.drop_cached(&(0..all)).unwrap();
        assert!(shared.count_above(u64::MAX) >= all, "what was counted");
        assert_eq!(shared.count_above(all - 1), 0, "counted, because it may be more than that");
        shared.resident.store(all, Relaxed);
        shared.counted.at_ns.store(0, Relaxed);
        assert_eq!(shared.count_above(u64::MAX), 0, "counted, because it was never");
        drop(view);
    }

    #[test]
    fn where_it_is_urgent_all_leave_at_once() {
        let Some((shared, view, _dir)) = stored() else { return };
        let mut begun = vec![false; REGIONS as usize];
        assert_eq!(shared.pass(&mut begun, 0..REGIONS, true), REGIONS * REGION_MIN);
        assert!(view.as_slice().iter().all(|byte| *byte == 7));
    }
}
