//! One budget for the windows of several processes: who may have how much of it, and what all of them did.
//!
//! Every process that has windows is a member with a claim on the budget. Guarantees: the claims of all members are
//! never more than the budget together; a member that dies releases what it had, because the kernel drops its lock;
//! no process waits for a member that is dead. A member that is short of memory gets what is free, and then what others
//! have above their equal share, as soon as these have let it go. Does not: move memory itself. The words are soft
//! state in a file that goes with the processes that hold it open.
//!
//! Invariants: a claim grows only under the lock, and only its owner makes it smaller; totals change under the lock.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

use forebay_tier::liveness::{MembersFile, SlotGuard};
use forebay_tier::{Error, Kind, Result, SharedWords};

use crate::window::WindowEngine;

/// Most processes with windows at once.
pub const MEMBERS_MAX: u64 = 512;

/// What a file of another build begins with, it does not begin with this.
const MAGIC: u64 = 0x3242_4f4a_4d45_4d46;

/// Bytes of the head: options first, then totals, then the folder's path.
const HEAD_BYTES: u64 = 8192;
const MEMBER_BYTES: u64 = 192;
const TOTALS_AT: u64 = 256;
const PATH_AT: u64 = 4096;
const PATH_MAX: u64 = 4000;

/// Words of a member before its counters.
const CLAIM: u64 = 0;
const HUNGRY: u64 = 8;
const RESIDENT: u64 = 16;
/// Bytes that a process holds for children that have not joined yet.
const RESERVED: u64 = 24;
/// 1 while a process waits for bytes for a child.
const WAITING: u64 = 32;
/// The process, its placed bytes, and its anonymous memory that is not in a window.
const PID: u64 = 40;
const PLACED: u64 = 48;
const OUTSIDE: u64 = 56;
/// What must be zero before another process takes the slot.
const MEMBER_STATE: [u64; 8] = [PID, PLACED, OUTSIDE, HUNGRY, RESIDENT, WAITING, RESERVED, CLAIM];
const COUNTERS_AT: u64 = 64;

/// The lock of claims and totals, and how long it is waited for: who holds it does some arithmetic.
const LOCK: u64 = 0;
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of the file.
pub const BYTES: u64 = HEAD_BYTES + MEMBERS_MAX * MEMBER_BYTES;

/// What all processes of a job share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOptions {
    /// Most bytes of all windows in memory.
    pub budget: u64,
    /// Bytes that come and go together.
    pub tile_bytes: usize,
    /// What is shorter stays in ordinary memory.
    pub threshold: u64,
    /// Most bytes that one process may have in windows.
    pub capacity: u64,
    /// None: as it fits.
    pub engine: Option<WindowEngine>,
    /// Folder of the files without names.
    pub folder: PathBuf,
}

/// What windows of a job did, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Counter {
    /// Allocations that were placed in a window.
    Allocations,
    /// Bytes of them.
    Placed,
    /// Most bytes in windows of one process at once.
    PlacedPeak,
    /// Touches of what was not there.
    Faults,
    /// Bytes that were read.
    Read,
    /// Bytes that were written.
    Written,
    /// Bytes that left.
    Evicted,
    /// Calls of the system that were given addresses in a window, and were helped.
    Calls,
    /// Processes that had a window.
    Processes,
    /// Most anonymous memory of one process that was not in its window.
    OutsidePeak,
}

/// The memory of a process that has a window, as it said last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Its number.
    pub pid: u32,
    /// Bytes of its placed allocations.
    pub placed: u64,
    /// Bytes of its anonymous memory that are not in the window.
    pub outside: u64,
}

impl Counter {
    /// All of them.
    pub const ALL: [Counter; 10] = [
        Counter::Allocations,
        Counter::Placed,
        Counter::PlacedPeak,
        Counter::Faults,
        Counter::Read,
        Counter::Written,
        Counter::Evicted,
        Counter::Calls,
        Counter::Processes,
        Counter::OutsidePeak,
    ];

    /// Whether a number of all processes is the largest of theirs and not the sum.
    fn is_peak(self) -> bool {
        matches!(self, Counter::PlacedPeak | Counter::OutsidePeak)
    }
}

/// The words of a job.
pub struct Job {
    words: SharedWords,
    options: JobOptions,
}

/// Words of the head.
const BUDGET_AT: u64 = 8;
const TILE_AT: u64 = 16;
const THRESHOLD_AT: u64 = 24;
const CAPACITY_AT: u64 = 32;
const ENGINE_AT: u64 = 40;
const PATH_LEN_AT: u64 = 48;
const PEAK_AT: u64 = 56;
/// The engines that were used, a bit each.
const USED_ENGINES_AT: u64 = 64;

const ENGINES: [WindowEngine; 2] = [WindowEngine::Userfault, WindowEngine::Kernel];

fn engine_number(engine: Option<WindowEngine>) -> u64 {
    engine.and_then(|engine| ENGINES.iter().position(|known| *known == engine)).map_or(0, |at| at as u64 + 1)
}

fn engine_of(number: u64) -> Option<WindowEngine> {
    number.checked_sub(1).and_then(|at| ENGINES.get(at as usize).copied())
}

impl Job {
    /// Begins a job in `file`, which has [`BYTES`] zeros.
    ///
    /// # Errors
    /// What the system says; `Usage` for a path that is too long.
    pub fn begin(file: &File, options: &JobOptions) -> Result<Job> {
        use std::os::unix::ffi::OsStrExt;
        let words = SharedWords::of_file(file, Path::new("the words of a job"), BYTES)?;
        let path = options.folder.as_os_str().as_bytes();
        if path.len() as u64 > PATH_MAX {
            return Err(Error::new(Kind::Usage, "the path of the tier is too long"));
        }
        words.write_bytes(PATH_AT, path);
        for (at, value) in [
            (BUDGET_AT, options.budget),
            (TILE_AT, options.tile_bytes as u64),
            (THRESHOLD_AT, options.threshold),
            (CAPACITY_AT, options.capacity),
            (ENGINE_AT, engine_number(options.engine)),
            (PATH_LEN_AT, path.len() as u64),
        ] {
            words.u64(at).store(value, Relaxed);
        }
        words.u64(0).store(MAGIC, Release);
        Ok(Job { words, options: options.clone() })
    }

    /// A job that another process began.
    ///
    /// # Errors
    /// `Damaged` when it is none.
    pub fn open(file: &File, path: &Path) -> Result<Job> {
        use std::os::unix::ffi::OsStrExt;
        let words = SharedWords::of_file(file, path, BYTES)?;
        if words.u64(0).load(Acquire) != MAGIC {
            return Err(Error::new(Kind::Damaged, format!("{} is not a job of this build", path.display())));
        }
        let word = |at| words.u64(at).load(Relaxed);
        let length = word(PATH_LEN_AT).min(PATH_MAX);
        let folder = words.read_bytes(PATH_AT..PATH_AT + length);
        let options = JobOptions {
            budget: word(BUDGET_AT),
            tile_bytes: word(TILE_AT) as usize,
            threshold: word(THRESHOLD_AT),
            capacity: word(CAPACITY_AT),
            engine: engine_of(word(ENGINE_AT)),
            folder: PathBuf::from(std::ffi::OsStr::from_bytes(&folder)),
        };
        Ok(Job { words, options })
    }

    /// What all share.
    pub fn options(&self) -> &JobOptions {
        &self.options
    }

    fn member(&self, slot: u64, word: u64) -> &forebay_tier::host::atomic::AtomicU64 {
        self.words.u64(HEAD_BYTES + slot * MEMBER_BYTES + word)
    }

    fn total(&self, counter: Counter) -> &forebay_tier::host::atomic::AtomicU64 {
        self.words.u64(TOTALS_AT + counter as u64 * 8)
    }

    fn claimed(&self) -> u64 {
        let of =
            |slot| [CLAIM, RESERVED].map(|word| self.member(slot, word).load(Acquire)).iter().sum::<u64>();
        (0..MEMBERS_MAX).map(of).sum()
    }

    /// A number of all processes, those that have ended included.
    pub fn sum(&self, counter: Counter) -> u64 {
        let at = COUNTERS_AT + counter as u64 * 8;
        let mine = (0..MEMBERS_MAX).map(|slot| self.member(slot, at).load(Relaxed));
        let ended = self.total(counter).load(Relaxed);
        match counter.is_peak() {
            true => mine.fold(ended, u64::max),
            false => mine.sum::<u64>() + ended,
        }
    }

    /// Most bytes of all windows that were in memory at once, at the times it was read.
    pub fn resident_peak(&self) -> u64 {
        self.words.u64(PEAK_AT).load(Relaxed)
    }

    /// The processes that have a window; one that has died may be among them.
    pub fn processes(&self) -> Vec<ProcessMemory> {
        let word = |slot, word| self.member(slot, word).load(Relaxed);
        let of = |slot| ProcessMemory {
            pid: word(slot, PID) as u32,
            placed: word(slot, PLACED),
            outside: word(slot, OUTSIDE),
        };
        (0..MEMBERS_MAX).map(of).filter(|process| process.pid > 0).collect()
    }

    /// The engines of the windows: one, unless some process was refused what others had; none where there were none.
    pub fn engines(&self) -> Vec<WindowEngine> {
        let used = self.words.u64(USED_ENGINES_AT).load(Relaxed);
        ENGINES.into_iter().filter(|engine| used >> engine_number(Some(*engine)) & 1 == 1).collect()
    }

    fn too_small(&self, least: u64) -> Error {
        Error::new(Kind::TierFull, "the budget is too small for so many processes")
            .with("budget", self.options.budget)
            .with("least", least)
            .hint("use a larger --dram, a smaller --tile, fewer processes, or --engine kernel")
    }

    /// Empties the place of a member that has ended, after adding what it did to the totals. Under the lock.
    fn bury(&self, slot: u64) {
        for counter in Counter::ALL {
            let value = self.member(slot, COUNTERS_AT + counter as u64 * 8).swap(0, Relaxed);
            match counter.is_peak() {
                true => drop(self.total(counter).fetch_max(value, Relaxed)),
                false => drop(self.total(counter).fetch_add(value, Relaxed)),
            }
        }
        for word in MEMBER_STATE {
            self.member(slot, word).store(0, Release);
        }
    }
}

fn too_many() -> Error {
    Error::new(Kind::TierFull, format!("the job has {MEMBERS_MAX} processes already"))
}

/// A process of a job.
pub struct Member {
    job: Job,
    members: MembersFile,
    guard: SlotGuard,
    slot: u64,
}

impl Member {
    /// Joins a job through its file, of which this process has no other descriptor; `least` is what it needs.
    /// Blocks until others have let go that much, ten seconds at most.
    ///
    /// # Errors
    /// `TierFull` when the budget is too small for so many processes.
    pub fn join(file: File, path: &Path, least: impl Fn(&JobOptions) -> u64) -> Result<Member> {
        let made = Member::enter(file, path)?;
        let least = least(&made.job.options);
        let mut waited = Duration::ZERO;
        const SLICE: Duration = Duration::from_millis(5);
        while made.grow(least, u64::MAX)? < least {
            if waited > LOCK_TIMEOUT {
                made.locked(|job| {
                    job.bury(made.slot);
                    Ok(())
                })?;
                return Err(made.job.too_small(least));
            }
            std::thread::sleep(SLICE);
            waited += SLICE;
        }
        made.set(Counter::Processes, 1);
        Ok(made)
    }

    /// As [`Member::join`], with the bytes that the parent, in slot `parent`, reserved for this process: it does not
    /// wait
    /// for memory.
    ///
    /// # Errors
    /// `TierFull` when all slots are taken.
    pub fn join_reserved(file: File, path: &Path, parent: u32, bytes: u64) -> Result<Member> {
        let made = Member::enter(file, path)?;
        made.locked(|job| {
            let reserved = job.member(u64::from(parent), RESERVED);
            // Less where the parent has ended: then others may have taken it.
            let held = bytes.min(reserved.load(Relaxed));
            reserved.store(reserved.load(Relaxed) - held, Release);
            made.word(CLAIM).store(held, Release);
            Ok(())
        })?;
        made.set(Counter::Processes, 1);
        Ok(made)
    }

    /// Takes a free slot, with no claim yet.
    fn enter(file: File, path: &Path) -> Result<Member> {
        let job = Job::open(&file, path)?;
        let members = MembersFile::of_file(file, path)?;
        let mut found = None;
        for slot in 0..MEMBERS_MAX as u32 {
            if let Some(guard) = members.lock_slot(slot)? {
                found = Some(guard);
                break;
            }
        }
        let guard = found.ok_or_else(too_many)?;
        let slot = u64::from(guard.slot());
        let made = Member { job, members, guard, slot };
        made.locked(|job| {
            job.bury(slot);
            Ok(())
        })?;
        made.word(HUNGRY).store(1, Release);
        Ok(made)
    }

    /// Reserves `least` bytes of the budget for a child that is about to be made, waiting until others have released
    /// them.
    /// The child takes them by [`Member::join_reserved`]; where it is not made, [`Member::cancel_reserved`] frees them.
    ///
    /// # Errors
    /// `TierFull`: at once where the processes that are there need all of the budget, or all slots are taken.
    pub fn reserve(&self, least: u64) -> Result<()> {
        if (0..MEMBERS_MAX as u32).all(|slot| self.members.is_alive(slot)) {
            return Err(too_many());
        }
        self.word(WAITING).store(1, Release);
        let reserved = self.wait_to_reserve(least);
        self.word(WAITING).store(0, Release);
        reserved
    }

    fn wait_to_reserve(&self, least: u64) -> Result<()> {
        const SLICE: Duration = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        while !self.try_to_reserve(least)? {
            if waited > LOCK_TIMEOUT {
                return Err(self.job.too_small(least));
            }
            std::thread::sleep(SLICE);
            waited += SLICE;
        }
        Ok(())
    }

    fn try_to_reserve(&self, least: u64) -> Result<bool> {
        self.locked(|job| {
            let free = || job.options.budget.saturating_sub(job.claimed());
            if free() < least {
                self.bury_dead();
            }
            if free() >= least {
                self.word(RESERVED).fetch_add(least, AcqRel);
                return Ok(true);
            }
            // No process can have less than it needs: waiting for that is of no use.
            let needed = |slot| {
                let (claim, reserved) = (job.member(slot, CLAIM), job.member(slot, RESERVED));
                claim.load(Relaxed).min(least) + reserved.load(Relaxed)
            };
            match (0..MEMBERS_MAX).map(needed).sum::<u64>() + least > job.options.budget {
                true => Err(job.too_small(least)),
                false => Ok(false),
            }
        })
    }

    /// Frees what was reserved for a child that was not made.
    pub fn cancel_reserved(&self, bytes: u64) {
        let less = |reserved: u64| Some(reserved.saturating_sub(bytes));
        let _ = self.word(RESERVED).fetch_update(AcqRel, Relaxed, less);
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    fn word(&self, word: u64) -> &forebay_tier::host::atomic::AtomicU64 {
        self.job.member(self.slot, word)
    }

    /// What this process may have.
    pub fn claim(&self) -> u64 {
        self.word(CLAIM).load(Relaxed)
    }

    /// Says what this process did.
    pub fn set(&self, counter: Counter, value: u64) {
        self.word(COUNTERS_AT + counter as u64 * 8).store(value, Relaxed);
    }

    /// Says what memory this process has now.
    pub fn set_memory(&self, now: &ProcessMemory) {
        self.word(PLACED).store(now.placed, Relaxed);
        self.word(OUTSIDE).store(now.outside, Relaxed);
        self.word(PID).store(u64::from(now.pid), Relaxed);
        let peak = COUNTERS_AT + Counter::OutsidePeak as u64 * 8;
        self.word(peak).fetch_max(now.outside, Relaxed);
    }

    /// Says how it works.
    pub fn set_engine(&self, engine: WindowEngine) {
        self.job.words.u64(USED_ENGINES_AT).fetch_or(1 << engine_number(Some(engine)), Relaxed);
    }

    fn locked<T>(&self, with: impl FnOnce(&Job) -> Result<T>) -> Result<T> {
        self.members.with_lock(LOCK, LOCK_TIMEOUT, || with(&self.job))
    }

    /// Frees the claims of those that have died. Under the lock.
    fn bury_dead(&self) {
        for slot in (0..MEMBERS_MAX).filter(|slot| *slot != self.slot) {
            let known = MEMBER_STATE.iter().any(|word| self.job.member(slot, *word).load(Relaxed) > 0);
            if known && !self.members.is_alive(slot as u32) {
                self.job.bury(slot);
            }
        }
    }

    /// Makes the claim larger, up to `most`: half of what is free, at least `least` more if so much is free. The claim.
    fn grow(&self, least: u64, most: u64) -> Result<u64> {
        self.locked(|job| {
            let mut free = job.options.budget.saturating_sub(job.claimed());
            if free < least.max(job.options.budget / 64) {
                self.bury_dead();
                free = job.options.budget.saturating_sub(job.claimed());
            }
            let small = free <= job.options.budget / 16;
            let more = if small { free } else { (free / 2).max(least.min(free)) };
            let now = self.claim();
            // Less than what makes progress is no use to anybody.
            let more = if now == 0 && more < least { 0 } else { more.min(most.saturating_sub(now)) };
            self.word(CLAIM).store(now + more, Release);
            Ok(now + more)
        })
    }

    /// What this process should have from now on: `resident` bytes are there, and it is `short` of memory or not. A
    /// claim that is larger than the result is to be made smaller by [`Member::shrink`], once memory was let go.
    ///
    /// # Errors
    /// As those of the lock.
    pub fn adjust(&self, resident: u64, short: bool, least: u64) -> Result<u64> {
        self.word(RESIDENT).store(resident, Relaxed);
        self.word(HUNGRY).store(u64::from(short), Relaxed);
        self.note_peak();
        let (mut alive, mut others_short) = (0, false);
        for slot in 0..MEMBERS_MAX {
            let (claim, hungry) = (self.job.member(slot, CLAIM), self.job.member(slot, HUNGRY));
            let wants = hungry.load(Relaxed) > 0;
            // A child that is about to be made is another process, of this member's, too.
            let child = self.job.member(slot, WAITING).load(Relaxed);
            alive += u64::from(claim.load(Relaxed) > 0 || wants) + child;
            others_short |= wants && slot != self.slot || child > 0;
        }
        let (budget, claim) = (self.job.options.budget, self.claim());
        let free = budget.saturating_sub(self.job.claimed());
        let fair = budget / alive.max(1);
        if others_short && claim > fair {
            return Ok(fair.max(claim / 4 * 3).max(least).min(claim));
        }
        if others_short && !short && resident < claim / 2 {
            return Ok((resident / 4 * 5).max(least).min(claim));
        }
        // Dead members are found by who is short. What is free is also for the others that are.
        let most = if others_short { fair } else { budget };
        if short && (free > 0 || alive > 1) && claim < most {
            return self.grow(0, most);
        }
        Ok(claim)
    }

    /// Adds up what is there. Who gives and who takes meanwhile would be counted twice: so only what two looks see.
    fn note_peak(&self) {
        let look = || std::array::from_fn(|slot| self.job.member(slot as u64, RESIDENT).load(Acquire));
        let seen: [u64; MEMBERS_MAX as usize] = look();
        if seen == look() {
            self.job.words.u64(PEAK_AT).fetch_max(seen.iter().sum(), Relaxed);
        }
    }

    /// Makes the claim smaller, or leaves it.
    pub fn shrink(&self, to: u64) {
        if to < self.claim() {
            self.word(RESIDENT).fetch_min(to, Relaxed);
            self.word(CLAIM).store(to, Release);
        }
    }

    /// At the end of the process: nothing of it counts as there any more. What it may have is free when it is gone.
    pub fn leave(&self) {
        self.word(RESIDENT).store(0, Relaxed);
        self.word(HUNGRY).store(0, Relaxed);
    }

    /// The number of this process in the job.
    pub fn slot(&self) -> u32 {
        self.guard.slot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn options() -> JobOptions {
        JobOptions {
            budget: 64 * MIB,
            tile_bytes: 65536,
            threshold: MIB,
            capacity: 1 << 30,
            engine: Some(WindowEngine::Kernel),
            folder: PathBuf::from("/scratch/a b"),
        }
    }

    fn job() -> (tempfile::NamedTempFile, Job) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(BYTES).unwrap();
        let job = Job::begin(file.as_file(), &options()).unwrap();
        (file, job)
    }

    fn open(file: &tempfile::NamedTempFile) -> File {
        File::options().read(true).write(true).open(file.path()).unwrap()
    }

    #[test]
    fn options_arrive_as_they_were_given() {
        let (file, _job) = job();
        let seen = Job::open(&open(&file), file.path()).unwrap();
        assert_eq!(seen.options(), &options());
        let empty = tempfile::tempfile().unwrap();
        assert_eq!(Job::open(&empty, Path::new("x")).err().unwrap().kind(), Kind::Damaged);
    }

    #[test]
    fn one_process_gets_everything_and_never_more() {
        let (file, job) = job();
        let member = Member::join(open(&file), file.path(), |_| MIB).unwrap();
        for _ in 0..20 {
            let target = member.adjust(member.claim(), true, MIB).unwrap();
            assert!(target <= 64 * MIB && job.claimed() <= 64 * MIB);
        }
        assert_eq!(member.claim(), 64 * MIB);
        assert_eq!(job.resident_peak(), 64 * MIB);
    }

    #[test]
    fn the_memory_of_a_process_is_known_to_all_until_it_is_buried() {
        let (file, job) = job();
        let member = Member::join(open(&file), file.path(), |_| MIB).unwrap();
        let first = ProcessMemory { pid: 7, placed: 5, outside: 9 };
        member.set_memory(&first);
        assert_eq!(job.processes(), [first]);
        member.set_memory(&ProcessMemory { outside: 2, ..first });
        assert_eq!(job.sum(Counter::OutsidePeak), 9);
        job.bury(u64::from(member.slot()));
        assert_eq!((job.processes().len(), job.sum(Counter::OutsidePeak)), (0, 9));
    }

    /// A second member in the place of another process: its words as that would write them.
    #[test]
    fn who_has_more_than_its_share_gives_to_who_is_short() {
        let (file, job) = job();
        let member = Member::join(open(&file), file.path(), |_| MIB).unwrap();
        while member.claim() < 64 * MIB {
            member.adjust(member.claim(), true, MIB).unwrap();
        }
        let _alive = member.members.lock_slot(7).unwrap().unwrap();
        job.member(7, HUNGRY).store(1, Relaxed);
        for _ in 0..20 {
            let target = member.adjust(member.claim(), true, MIB).unwrap();
            member.shrink(target);
        }
        assert_eq!(member.claim(), 32 * MIB, "and no more");
    }

    #[test]
    fn a_child_gets_what_its_parent_reserved_or_is_refused_at_once() {
        let (file, job) = job();
        let member = Member::join(open(&file), file.path(), |_| MIB).unwrap();
        while member.claim() < 64 * MIB {
            member.adjust(member.claim(), true, MIB).unwrap();
        }
        assert!(!member.try_to_reserve(MIB).unwrap(), "all of it is the parent's");
        member.word(WAITING).store(1, Relaxed);
        member.shrink(member.adjust(64 * MIB, true, MIB).unwrap());
        assert!(member.try_to_reserve(MIB).unwrap(), "which releases some for a child");
        assert!(job.claimed() <= 64 * MIB && member.word(RESERVED).load(Relaxed) == MIB);
        member.cancel_reserved(MIB);
        assert_eq!(job.claimed(), member.claim());
        // 63 others of whom each has what it needs.
        member.word(WAITING).store(0, Relaxed);
        member.shrink(MIB);
        let _alive: Vec<_> = (1..64).map(|slot| member.members.lock_slot(slot).unwrap().unwrap()).collect();
        (1..64).for_each(|slot| job.member(slot, CLAIM).store(MIB, Relaxed));
        assert_eq!(member.reserve(MIB).err().unwrap().kind(), Kind::TierFull);
        assert!(member.reserve(0).is_ok(), "the engine kernel needs nothing");
    }

    #[test]
    fn what_a_dead_process_had_is_free_and_what_it_did_is_counted() {
        let (file, job) = job();
        job.member(9, CLAIM).store(60 * MIB, Relaxed);
        job.member(9, COUNTERS_AT + Counter::Faults as u64 * 8).store(5, Relaxed);
        let member = Member::join(open(&file), file.path(), |_| 8 * MIB).unwrap();
        member.set(Counter::Faults, 2);
        assert!(member.claim() >= 8 * MIB && job.claimed() <= 64 * MIB);
        assert_eq!((job.member(9, CLAIM).load(Relaxed), job.sum(Counter::Faults)), (0, 7));
        assert_eq!(job.sum(Counter::Processes), 1);
    }
}
