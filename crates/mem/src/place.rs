//! Where big allocations lie: the window of this process, made with the first of them, and what is given out of it.
//!
//! Guarantees: memory that is given out is zeros; what is freed is neither written nor read again, and its storage
//! is free. Once made, a place stays until the process ends: its file has no name, and the kernel takes it back.
//! Invariant: `BASE..END` is set before any address in it is given out, and never changes in a process.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_pager::job::{Counter, Job, JobOptions, Member, ProcessMemory};
use forebay_pager::{Window, WindowOptions, WindowStatistics};
use forebay_tier::plain::PlainFile;
use forebay_tier::{Error, Kind, Result};

use crate::extents::{Extents, PAGE};
use crate::inside::{is_inside, Inside};
use crate::{copy, descriptors, fork, maps, next, steward};

/// Set by `forebay mem`: the threshold, a colon, and the path of the job's words.
const VARIABLE: &std::ffi::CStr = c"FOREBAY_MEM";

/// The window begins at a multiple of this: longer alignments are the C library's business.
pub(crate) const ALIGNMENT_MAX: usize = 2 << 20;

/// Where the descriptors of this library are put: programs count on the low ones.
const DESCRIPTOR_MIN: i32 = 400;

/// How often who waits for the budget looks, and how often for nothing: other threads may bring as much as leaves.
const LOOK: Duration = Duration::from_millis(1);
const TRIES_MAX: u32 = 1000;

/// What is shorter stays in ordinary memory; everything does before `begin` and in programs without a job.
static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);
static PLACE: AtomicPtr<Place> = AtomicPtr::new(std::ptr::null_mut());
static BASE: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
/// Whether calls of the system need help with addresses in the window.
static HELPS: AtomicBool = AtomicBool::new(false);
/// 1 while a thread makes the place.
static MAKING: AtomicU32 = AtomicU32::new(0);

/// See the file's head.
pub(crate) struct Place {
    pub(crate) window: Window,
    pub(crate) member: Member,
    pub(crate) calls: AtomicU64,
    extents: Mutex<Extents>,
    allocations: AtomicU64,
    placed: AtomicU64,
    placed_now: AtomicU64,
    placed_peak: AtomicU64,
}

/// Whether an allocation of so many bytes goes to the window.
#[inline]
pub(crate) fn is_big(bytes: usize) -> bool {
    bytes >= THRESHOLD.load(Relaxed) && !is_inside()
}

/// The offset of an address of the window.
#[inline]
pub(crate) fn offset_of(memory: *const libc::c_void) -> Option<u64> {
    let at = memory as usize;
    let base = BASE.load(Relaxed);
    (at >= base && at < END.load(Relaxed)).then(|| (at - base) as u64)
}

/// The place, where calls of the system need help with these addresses.
#[inline]
pub(crate) fn helps(memory: *const libc::c_void, bytes: usize) -> Option<&'static Place> {
    if !HELPS.load(Relaxed) {
        return None;
    }
    let (base, end, at) = (BASE.load(Relaxed), END.load(Relaxed), memory as usize);
    if at.max(base) >= at.saturating_add(bytes).min(end) || is_inside() {
        return None;
    }
    here()
}

/// Whether the window's faults are answered in a handler for SIGBUS.
pub(crate) fn has_handler() -> bool {
    HELPS.load(Relaxed)
}

/// The place of this process, where it has one.
pub(crate) fn here() -> Option<&'static Place> {
    // SAFETY: null or from Box::into_raw, and never freed.
    unsafe { PLACE.load(Acquire).as_ref() }
}

/// Looks whether this process belongs to a job.
pub(crate) fn begin() {
    let Some((threshold, path)) = asked() else { return };
    end_with_the_command(&path);
    fork::prepare();
    THRESHOLD.store(threshold, Relaxed);
}

/// The program that the command started ends when that is killed: the words of the job are gone with it, and no process
/// that began afterwards would be under the budget.
fn end_with_the_command(words: &Path) {
    let number = words.components().nth(2).and_then(|part| part.as_os_str().to_str()?.parse::<i32>().ok());
    // SAFETY: no pointers.
    unsafe {
        if number == Some(libc::getppid()) {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            if number != Some(libc::getppid()) {
                libc::_exit(128 + libc::SIGKILL);
            }
        }
    }
}

/// What the variable says: the threshold and the path of the job's words.
fn asked() -> Option<(usize, PathBuf)> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: a name that ends with NUL; the value is copied before anybody can change it.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()).as_ref() }?;
    // SAFETY: the value of a variable ends with NUL.
    let value = unsafe { std::ffi::CStr::from_ptr(value) }.to_str().ok()?;
    let (threshold, path) = value.split_once(':')?;
    Some((threshold.parse().ok()?, PathBuf::from(std::ffi::OsStr::from_bytes(path.as_bytes()))))
}

/// The place of this process, made now if need be. None: it cannot be had, which was said once.
fn here_or_made() -> Option<&'static Place> {
    if let Some(place) = here() {
        return Some(place);
    }
    while MAKING.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        std::thread::yield_now();
    }
    if here().is_none() && THRESHOLD.load(Relaxed) != usize::MAX {
        match steward::without_signals(make_and_keep) {
            Ok(place) => publish(place),
            Err(e) => {
                THRESHOLD.store(usize::MAX, Relaxed);
                let hint = e.hint_text().map(|hint| format!(" ({hint})")).unwrap_or_default();
                say(&[format!("{e}{hint}; large allocations use ordinary memory").as_bytes()]);
            }
        }
    }
    MAKING.store(0, Release);
    here()
}

/// Makes the place, whose descriptors the program cannot close from then on.
fn make_and_keep() -> Result<Place> {
    descriptors::keep_those_of(make_new, is_ours)
}

/// Whether an open descriptor, which leads to `target`, belongs to a place.
fn is_ours(made: &Result<Place>, descriptor: &Path, target: &Path) -> bool {
    let Ok(place) = made else { return false };
    let folder = &place.member.job().options().folder;
    let file = |path: &Path| std::fs::metadata(path).map(|seen| (seen.dev(), seen.ino())).ok();
    let words = asked().and_then(|(_, path)| file(&path));
    target.starts_with(folder)
        || target.to_string_lossy().contains("userfaultfd")
        || words.is_some() && words == file(descriptor)
}

fn make_new() -> Result<Place> {
    let (_, path) = asked().ok_or_else(|| Error::new(Kind::Usage, "unknown job"))?;
    let job = Job::open(&open_high(&path)?, &path)?;
    let JobOptions { tile_bytes, capacity, .. } = job.options().clone();
    let tile = tile_bytes as u64;
    let capacity = capacity / tile * tile;
    make(|folder, options| Window::scratch(folder, capacity, options), Extents::new(capacity, tile), None)
}

/// Makes a place: the window by `open`, of which `given` is given out; `reserved` is what the parent holds for it.
fn make(
    open: impl FnOnce(&Path, &WindowOptions) -> Result<Window>,
    given: Extents,
    reserved: Option<Reservation>,
) -> Result<Place> {
    let (_, path) = asked().ok_or_else(|| Error::new(Kind::Usage, "unknown job"))?;
    let words = open_high(&path)?;
    let job = Job::open(&words, &path)?;
    let asked = job.options().clone();
    let mut options = WindowOptions::new(asked.budget);
    (options.tile_bytes, options.engine) = (asked.tile_bytes, asked.engine);
    warm_up();
    let window = open(&asked.folder, &options)?;
    let least = window.budget_min();
    let member = match reserved {
        Some(held) => Member::join_reserved(words, &path, held.parent, held.bytes)?,
        None => Member::join(words, &path, |_| least)?,
    };
    window.set_budget(member.claim());
    member.set_engine(window.statistics().engine);
    let now = given.placed();
    Ok(Place {
        extents: Mutex::new(given),
        window,
        member,
        calls: AtomicU64::new(0),
        allocations: AtomicU64::new(0),
        placed: AtomicU64::new(0),
        placed_now: AtomicU64::new(now),
        placed_peak: AtomicU64::new(now),
    })
}

/// Looks up what a handler for signals may call: nothing is looked up in there.
fn warm_up() {
    let nothing = std::ptr::null_mut();
    // SAFETY: no descriptor and no bytes: each of them fails at once.
    unsafe {
        libc::write(-1, nothing, 0);
        libc::read(-1, nothing, 0);
        libc::pread(-1, nothing, 0, 0);
        libc::pwrite(-1, nothing, 0, 0);
    }
}

fn publish(place: Place) {
    let base = place.window.as_ptr() as usize;
    let place: &'static Place = Box::leak(Box::new(place));
    BASE.store(base, Relaxed);
    END.store(base + place.window.bytes() as usize, Relaxed);
    HELPS.store(!place.window.serves_system(), Relaxed);
    steward::start(place);
    PLACE.store(std::ptr::from_ref(place).cast_mut(), Release);
}

/// The job's words, at a descriptor that no program counts on.
fn open_high(path: &Path) -> Result<File> {
    let failed = |e| Error::io(format!("cannot join the job at {}", path.display()), e);
    let file = File::options().read(true).write(true).open(path).map_err(failed)?;
    // SAFETY: duplicates an open descriptor; the result is a descriptor of its own, or -1.
    let high = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, DESCRIPTOR_MIN) };
    if high < 0 {
        return Ok(file);
    }
    // SAFETY: made just now, no other object owns it.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(high) })
}

/// In a child of fork: the parent's place is not used.
pub(crate) fn forget_parents() {
    MAKING.store(0, Relaxed);
    HELPS.store(false, Relaxed);
    PLACE.store(std::ptr::null_mut(), Relaxed);
    BASE.store(0, Relaxed);
    END.store(0, Relaxed);
}

/// What a parent leaves its child: a copy of what is allocated. Nothing is allocated meanwhile.
pub(crate) struct Inheritance {
    place: &'static Place,
    extents: MutexGuard<'static, Extents>,
    file: PlainFile,
    reserved: Reservation,
}

/// A part of the budget that the parent, in that slot of the job, holds for a child.
#[derive(Clone, Copy)]
struct Reservation {
    parent: u32,
    bytes: u64,
}

impl Inheritance {
    /// Bytes of the budget that are held for the child.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.bytes
    }

    /// The descriptors of the copy.
    pub(crate) fn descriptors(&self) -> Vec<i32> {
        let direct = self.file.direct().map(|file| file.as_raw_fd());
        std::iter::once(self.file.cached().as_raw_fd()).chain(direct).collect()
    }
}

/// In a child of fork: its place, at the addresses of the parent's.
pub(crate) fn inherit(inheritance: Inheritance) -> Result<()> {
    let _inside = Inside::enter();
    let base = BASE.load(Relaxed);
    forget_parents();
    let make = || descriptors::keep_those_of(|| make_heir(inheritance, base), is_ours);
    publish(steward::without_signals(make)?);
    Ok(())
}

fn make_heir(inheritance: Inheritance, base: usize) -> Result<Place> {
    let Inheritance { extents, file, place: parents, reserved } = inheritance;
    let live: Vec<_> = extents.live().collect();
    let given = extents.clone();
    drop(extents);
    let bytes = parents.window.bytes() as usize;
    let made = make(
        |_, options| maps::at(base, bytes, || Window::scratch_on(file, options, &live)),
        given,
        Some(reserved),
    )?;
    match made.window.as_ptr() as usize == base {
        true => Ok(made),
        false => Err(Error::new(Kind::Internal, "the window of a child lies elsewhere")),
    }
}

/// Memory of a window: zeros. None: ordinary memory is to be used; null: the capacity is used up.
pub(crate) fn allocate(bytes: usize, alignment: usize) -> Option<*mut libc::c_void> {
    if alignment > ALIGNMENT_MAX {
        return None;
    }
    let _inside = Inside::enter()?;
    let place = here_or_made()?;
    place.wait_for_budget();
    Some(match place.take(bytes as u64, alignment as u64) {
        Some(offset) => (BASE.load(Relaxed) + offset as usize) as *mut libc::c_void,
        None => {
            next::set_errno(libc::ENOMEM);
            std::ptr::null_mut()
        }
    })
}

impl Place {
    fn extents(&self) -> MutexGuard<'_, Extents> {
        self.extents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what is allocated for a child.
    pub(crate) fn bequeath(&'static self) -> Result<Inheritance> {
        let _inside = Inside::enter();
        let bytes = self.window.budget_min();
        self.member.reserve(bytes)?;
        let reserved = Reservation { parent: self.member.slot(), bytes };
        let copied =
            self.copied().map(|(extents, file)| Inheritance { place: self, extents, file, reserved });
        copied.inspect_err(|_| self.member.cancel_reserved(bytes))
    }

    fn copied(&self) -> Result<(MutexGuard<'_, Extents>, PlainFile)> {
        let extents = self.extents();
        let file = PlainFile::nameless(&self.member.job().options().folder, self.window.bytes())?;
        copy::all(&self.window, &extents, &file)?;
        Ok((extents, file))
    }

    /// Who allocates while more is in memory than the budget has waits until that has left, as long as anything leaves.
    fn wait_for_budget(&self) {
        let (mut least, mut tries) = (u64::MAX, 0);
        while self.window.is_file() && tries < TRIES_MAX {
            let (there, budget) = self.window.level();
            if there <= budget {
                return;
            }
            tries = if there < least { 0 } else { tries + 1 };
            least = least.min(there);
            std::thread::sleep(LOOK);
        }
    }

    fn take(&self, bytes: u64, alignment: u64) -> Option<u64> {
        let mut extents = self.extents();
        let offset = extents.take(bytes, alignment)?;
        self.allocations.fetch_add(1, Relaxed);
        self.placed.fetch_add(bytes, Relaxed);
        self.note(&extents);
        Some(offset)
    }

    fn note(&self, extents: &Extents) {
        self.placed_now.store(extents.placed(), Relaxed);
        self.placed_peak.fetch_max(extents.placed(), Relaxed);
        self.window.set_used_end(extents.end());
    }

    /// The live range that begins at an offset: what an allocation has.
    pub(crate) fn bytes_at(&self, offset: u64) -> Option<u64> {
        let _inside = Inside::enter();
        self.extents().at(offset).map(|range| range.end - range.start)
    }

    /// Gives pages back, as far as they are given out.
    pub(crate) fn release(&self, range: Range<u64>) {
        let _inside = Inside::enter();
        let empty = self.extents().release(range);
        self.empty(empty);
    }

    /// Makes what begins at `offset` as long as `bytes` where it is; false: there is no capacity behind it.
    pub(crate) fn resize(&self, offset: u64, bytes: u64) -> bool {
        let _inside = Inside::enter();
        let resized = {
            let mut extents = self.extents();
            let resized = extents.resize(offset, bytes);
            self.note(&extents);
            resized
        };
        resized.map(|empty| self.empty(empty)).is_some()
    }

    /// Empties unused tiles, which can then be allocated again.
    fn empty(&self, tiles: Vec<Range<u64>>) {
        for range in tiles {
            // What cannot be emptied is not given out again.
            if self.window.forget(&range).is_ok() {
                let mut extents = self.extents();
                extents.give(range);
                self.note(&extents);
            }
        }
    }

    /// The tile in which a byte lies ends here.
    pub(crate) fn end_of_tile(&self, offset: u64) -> u64 {
        offset.next_multiple_of(self.member.job().options().tile_bytes as u64)
    }

    /// Whether all pages of a range are given out.
    pub(crate) fn covers(&self, range: &Range<u64>) -> bool {
        let _inside = Inside::enter();
        self.extents().covers(range)
    }

    /// Makes pages zeros: whole tiles by forgetting them, the rest by storing.
    pub(crate) fn clear(&self, range: &Range<u64>) {
        let _inside = Inside::enter();
        let tile = self.member.job().options().tile_bytes as u64;
        let (first, last) = (range.start.next_multiple_of(tile), range.end / tile * tile);
        let store = |part: Range<u64>| {
            let start = (BASE.load(Relaxed) as u64 + part.start) as *mut u8;
            // SAFETY: pages of the window that the program has (it asks for zeros there), `part` lies in them.
            unsafe { std::ptr::write_bytes(start, 0, (part.end - part.start) as usize) };
        };
        if first >= last {
            return store(range.clone());
        }
        if self.window.forget(&(first..last)).is_err() {
            store(first..last);
        }
        store(range.start..first);
        store(last..range.end);
    }

    /// Bytes that were read from the tier. Where the kernel brings pages: what this process read from disks, of which
    /// no
    /// more can be of the window than has left it.
    fn read_from_tier(&self, seen: &WindowStatistics) -> u64 {
        match self.window.is_file() {
            true => forebay_tier::process::disk_read_bytes().min(seen.evicted_bytes),
            false => seen.read_bytes,
        }
    }

    /// Ends the program, as a full tier does, where a write to the tier has failed: it must not go on with memory that
    /// may be lost.
    pub(crate) fn end_where_a_write_failed(&self) {
        let Some(error) = self.window.failed_write() else { return };
        say(&[
            b"a write to the tier failed (",
            error.to_string().as_bytes(),
            b"); memory may be lost, so the program ends",
        ]);
        self.say();
        forebay_tier::window::end_by_sigbus()
    }

    /// As [`Place::end_where_a_write_failed`]; allocates nothing and takes no lock.
    pub(crate) fn end_silently_where_a_write_failed(&self) {
        if self.window.failed_write().is_some() {
            let line = b"forebay mem: a write to the tier failed; memory may be lost, so the program ends\n";
            // SAFETY: a live buffer; what cannot be said is not said.
            unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
            forebay_tier::window::end_by_sigbus()
        }
    }

    /// Says in the job's words what was done.
    pub(crate) fn say(&self) {
        let seen = self.window.statistics();
        for (counter, value) in [
            (Counter::Allocations, self.allocations.load(Relaxed)),
            (Counter::Placed, self.placed.load(Relaxed)),
            (Counter::PlacedPeak, self.placed_peak.load(Relaxed)),
            (Counter::Faults, seen.faults),
            (Counter::Read, self.read_from_tier(&seen)),
            (Counter::Written, seen.written_bytes),
            (Counter::Evicted, seen.evicted_bytes),
            (Counter::Calls, self.calls.load(Relaxed)),
        ] {
            self.member.set(counter, value);
        }
        let pid = forebay_tier::process::pid();
        let anonymous = forebay_tier::process::anonymous_bytes(pid);
        // A window of tiles is anonymous memory, one of the kernel's pages is not.
        let own = if self.window.is_file() { 0 } else { seen.resident_bytes + self.window.beside() };
        let placed = self.placed_now.load(Relaxed);
        self.member.set_memory(&ProcessMemory { pid, placed, outside: anonymous.saturating_sub(own) });
    }
}

/// At the end of the process: the last numbers.
pub(crate) fn say_last() {
    if let Some(place) = here() {
        let _inside = Inside::enter();
        place.end_where_a_write_failed();
        place.say();
        place.member.leave();
    }
}

/// Rounds up to pages, as mappings are.
pub(crate) fn pages(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(PAGE as usize).unwrap_or(usize::MAX)
}

/// A line on standard error.
pub(crate) fn say(parts: &[&[u8]]) {
    let mut line = b"forebay mem: ".to_vec();
    parts.iter().for_each(|part| line.extend_from_slice(part));
    line.push(b'\n');
    // SAFETY: a live buffer; what cannot be said is not said.
    unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
}
