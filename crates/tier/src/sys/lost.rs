//! Pages that the medium does not give any more: poisoned persistent memory, blocks that a disk cannot read, a file
//! that was cut off below its mapping.
//!
//! Guarantees: within [`watch`] a load from such a page of a mapping that was [`Covered`] sees zeros, and a store goes
//! nowhere, instead of ending the process by SIGBUS, and the caller is told. Outside of it the signal stays. A mapping
//! that is [`Replaced`] shows zeros from then on where a page is lost, in all threads, and says so when asked.
//!
//! How: the handler for SIGBUS puts a page of zeros over the lost one and notes it for its thread; the instruction runs
//! again. When the call ends the file is mapped there again. A thread that met the zeros of another one works again.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{fence, AtomicBool, AtomicU64, Ordering::*};
use std::sync::Arc;
use std::time::Duration;

use super::kernel;
use super::mapping::page_bytes;
use super::sigbus::{Serve, Served};
use crate::{Error, Kind};

/// Mappings of which one call can lose pages; a page of one more is the signal.
const MAPPINGS_MAX: usize = 4;

/// How often a call is made again because another thread lost pages meanwhile, each time a millisecond later: such a
/// page shows zeros for no longer than one call of that thread.
const TRIES_MAX: u32 = 2000;

/// Pages that show zeros now, in all threads.
static COVERED_NOW: AtomicU64 = AtomicU64::new(0);

/// Mappings whose lost pages are told: where there is none, nothing has to be watched.
static MAPPINGS: AtomicU64 = AtomicU64::new(0);

/// How often a page was covered.
static COVERED_EVER: AtomicU64 = AtomicU64::new(0);

/// The pages of one mapping.
#[derive(Debug)]
struct Pages {
    base: usize,
    len: usize,
    file: File,
    path: PathBuf,
    protection: libc::c_int,
    flags: libc::c_int,
    /// The mapping is gone: nothing is mapped there again.
    gone: AtomicBool,
}

/// A mapping of shared words whose lost pages are replaced by zeros, each by itself and for as long as it is mapped:
/// words are loaded and stored everywhere, and those who use them ask now and then whether they are still shared.
#[derive(Debug)]
pub(super) struct Replaced {
    words: Arc<Words>,
    _served: Served,
}

#[derive(Debug)]
struct Words {
    base: usize,
    lost: AtomicBool,
}

impl Replaced {
    /// Of `len` bytes from `base` on, mapped for loads and stores.
    pub(super) fn new(base: usize, len: usize) -> io::Result<Replaced> {
        let words = Arc::new(Words { base, lost: AtomicBool::new(false) });
        let served = Served::enter(base, len, words.clone())?;
        Ok(Replaced { words, _served: served })
    }

    /// Whether a page was lost.
    #[inline]
    pub(super) fn met_lost_page(&self) -> bool {
        self.words.lost.load(Relaxed)
    }
}

impl Serve for Words {
    fn serve(&self, offset: u64, _write: Option<bool>) -> bool {
        let page = offset / page_bytes() as u64 * page_bytes() as u64;
        self.lost.store(true, SeqCst);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a page inside our own mapping, where nothing can be loaded or stored any more.
        unsafe { kernel::map_zeros(self.base + page as usize, page_bytes(), protection) }.is_ok()
    }

    fn lost(&self, offset: u64, write: Option<bool>) -> bool {
        self.serve(offset, write)
    }
}

/// A mapping whose lost pages are told.
#[derive(Debug)]
pub(super) struct Covered {
    pages: Arc<Pages>,
    _served: Served,
}

impl Covered {
    /// Of `len` bytes from `base` on, which are `file` from its beginning, mapped with these bits. `path` is for
    /// messages.
    pub(super) fn new(
        (base, len): (usize, usize),
        file: &File,
        path: &Path,
        (protection, flags): (libc::c_int, libc::c_int),
    ) -> io::Result<Covered> {
        let (file, path, gone) = (file.try_clone()?, path.to_owned(), AtomicBool::new(false));
        let pages = Arc::new(Pages { base, len, file, path, protection, flags, gone });
        let served = Served::enter(base, len, pages.clone())?;
        MAPPINGS.fetch_add(1, SeqCst);
        Ok(Covered { pages, _served: served })
    }
}

impl Drop for Covered {
    fn drop(&mut self) {
        self.pages.gone.store(true, SeqCst);
        MAPPINGS.fetch_sub(1, SeqCst);
    }
}

/// Pages that one call lost of one mapping: from the first to the last one.
#[derive(Clone, Copy)]
struct Note {
    /// From `Arc::increment_strong_count`; null: none.
    pages: *const Pages,
    from: u64,
    to: u64,
    count: u64,
}

const NONE: Note = Note { pages: std::ptr::null(), from: 0, to: 0, count: 0 };

/// What the thread's innermost call of `watch` lost.
#[derive(Clone, Copy)]
struct Notes {
    of: [Note; MAPPINGS_MAX],
}

const NO_NOTES: Notes = Notes { of: [NONE; MAPPINGS_MAX] };

/// What one thread has to do with [`COVERED_NOW`] and [`COVERED_EVER`].
#[derive(Clone, Copy)]
struct Own {
    now: u64,
    ever: u64,
}

thread_local! {
    static OWN: Cell<Own> = const { Cell::new(Own { now: 0, ever: 0 }) };
    static NOTES: Cell<Notes> = const { Cell::new(NO_NOTES) };
    /// Whether the thread is in a call of `watch`.
    static WATCHING: Cell<bool> = const { Cell::new(false) };
}

impl Serve for Pages {
    fn serve(&self, offset: u64, write: Option<bool>) -> bool {
        self.cover(offset, write)
    }

    fn lost(&self, offset: u64, write: Option<bool>) -> bool {
        self.cover(offset, write)
    }
}

impl Pages {
    /// In the handler: shows zeros, where this thread is told of it.
    fn cover(&self, offset: u64, write: Option<bool>) -> bool {
        let mut notes = NOTES.get();
        if !WATCHING.get() || (write == Some(true) && self.protection & libc::PROT_WRITE == 0) {
            return false;
        }
        let page = offset / page_bytes() as u64 * page_bytes() as u64;
        let this: *const Pages = self;
        let Some(note) = notes.of.iter_mut().find(|note| note.pages == this || note.pages.is_null()) else {
            return false;
        };
        COVERED_NOW.fetch_add(1, SeqCst);
        COVERED_EVER.fetch_add(1, SeqCst);
        // SAFETY: a page inside our own mapping, where nothing can be loaded or stored any more.
        let covered = unsafe { kernel::map_zeros(self.base + page as usize, page_bytes(), self.protection) };
        if covered.is_err() {
            COVERED_NOW.fetch_sub(1, SeqCst);
            return false;
        }
        if note.pages.is_null() {
            // SAFETY: `self` lies in an Arc, as `Covered::new` makes them all, which the table keeps alive meanwhile.
            unsafe { Arc::increment_strong_count(this) };
            *note = Note { pages: this, from: page, to: page + page_bytes() as u64, count: 1 };
        } else {
            note.from = note.from.min(page);
            note.to = note.to.max(page + page_bytes() as u64);
            note.count += 1;
        }
        NOTES.set(notes);
        OWN.set(Own { now: OWN.get().now + 1, ever: OWN.get().ever + 1 });
        true
    }

    /// Maps the file again, with what lies between lost pages.
    fn uncover(&self, from: u64, to: u64) {
        if self.gone.load(SeqCst) {
            return;
        }
        let (at, len) = (self.base + from as usize, (to.min(self.whole()) - from) as usize);
        let (protection, flags) = (self.protection, self.flags | libc::MAP_FIXED);
        // SAFETY: inside our own mapping of this file, whose bytes at this place these are; as it was mapped first.
        let mapped = unsafe { kernel::map_file(at, len, protection, flags, self.file.as_raw_fd(), from) };
        if mapped.is_err() {
            // Better no byte than a wrong one: who touches this now gets a signal.
            // SAFETY: our own mapping.
            unsafe { libc::mprotect(at as *mut _, len, libc::PROT_NONE) };
        }
    }

    fn whole(&self) -> u64 {
        (self.len as u64).next_multiple_of(page_bytes() as u64)
    }
}

/// A page that could not be read.
#[derive(Clone, Debug)]
pub struct LostPage {
    path: PathBuf,
    /// Where it begins in the file.
    offset: u64,
}

impl LostPage {
    /// The error for who wanted what was on it: `Io`.
    #[cold]
    pub fn error(&self) -> Error {
        let what = format!("{} cannot be accessed: the medium lost a page of it", self.path.display());
        Error::new(Kind::Io, what).with("offset", self.offset).hint(
            "the file was truncated, or the device failed at this offset; all other data stay readable. Bad blocks of \
             persistent memory: ndctl list --media-errors",
        )
    }
}

impl fmt::Display for LostPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the medium lost the page at byte {} of {}", self.offset, self.path.display())
    }
}

/// Calls `work`, which may read and write pools through their mappings. With what it returned comes the
/// first page that it met and that the medium does not give: all of that page was zeros to it, and
/// what it stored there is lost. `work` is called again when another thread met such a page meanwhile, for two seconds
/// at most; then the page that is told is nowhere. Until the process has met one it costs about a nanosecond.
#[inline]
pub fn watch<R>(mut work: impl FnMut() -> R) -> (R, Option<LostPage>) {
    if MAPPINGS.load(Acquire) == 0 {
        return (work(), None);
    }
    if COVERED_EVER.load(Acquire) != 0 {
        return watch_closely(work);
    }
    // No page was lost before, so that no thread has a note; a thread that covers one counts it before.
    let first = FirstWatch { outer: WATCHING.replace(true) };
    let result = work();
    fence(Acquire);
    if COVERED_EVER.load(Relaxed) == 0 {
        return (result, None);
    }
    match first.end() {
        Some(lost) => (result, Some(lost)),
        None => watch_closely(work),
    }
}

/// A call of `watch` in a process that had lost no page; ends also when `work` panics.
struct FirstWatch {
    outer: bool,
}

impl FirstWatch {
    #[cold]
    fn end(self) -> Option<LostPage> {
        let notes = NOTES.get();
        (!notes.of[0].pages.is_null()).then(|| first(&notes))
    }
}

impl Drop for FirstWatch {
    #[inline]
    fn drop(&mut self) {
        WATCHING.set(self.outer);
        if COVERED_EVER.load(Relaxed) != 0 {
            forget_notes();
        }
    }
}

/// Ends what this thread's call has noted.
#[cold]
fn forget_notes() {
    let notes = NOTES.replace(NO_NOTES);
    uncover(&notes);
    release(&notes);
}

#[cold]
fn watch_closely<R>(mut work: impl FnMut() -> R) -> (R, Option<LostPage>) {
    let mut tries = 0;
    loop {
        let own = OWN.get();
        let (before, covered) = (COVERED_EVER.load(SeqCst), COVERED_NOW.load(SeqCst));
        let watching = Watching::begin();
        let result = work();
        let lost = watching.end();
        fence(SeqCst);
        let ours = OWN.get().ever - own.ever;
        let alone = covered == own.now && COVERED_EVER.load(SeqCst) - before == ours;
        tries += 1;
        if alone || lost.is_some() {
            return (result, lost);
        }
        if tries == TRIES_MAX {
            return (result, Some(LostPage { path: PathBuf::from("a pool of this process"), offset: 0 }));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// As [`watch`] for work that ends with a result: a page that was lost is its error.
#[inline]
pub fn watched<R>(work: impl FnMut() -> crate::Result<R>) -> crate::Result<R> {
    match watch(work) {
        (result, None) => result,
        (_, Some(lost)) => Err(lost.error()),
    }
}

/// One call of `watch`; ends also when `work` panics.
struct Watching {
    outer: Notes,
    was_watching: bool,
}

impl Watching {
    #[inline]
    fn begin() -> Watching {
        let (outer, was_watching) = (NOTES.replace(NO_NOTES), WATCHING.replace(true));
        if !outer.of[0].pages.is_null() {
            // What a call around this one lost is to be lost to this one, too.
            uncover(&outer);
        }
        Watching { outer, was_watching }
    }

    #[inline]
    fn end(self) -> Option<LostPage> {
        let notes = NOTES.get();
        match notes.of[0].pages.is_null() {
            true => None,
            false => Some(first(&notes)),
        }
    }
}

impl Drop for Watching {
    #[inline]
    fn drop(&mut self) {
        let notes = NOTES.replace(self.outer);
        WATCHING.set(self.was_watching);
        if !notes.of[0].pages.is_null() {
            uncover(&notes);
            release(&notes);
        }
        if self.outer.of[0].pages.is_null() {
            return;
        }
        // The call around this one goes on: its pages show what they show, and it knows of them.
        let mut outer = self.outer;
        outer.of.iter_mut().for_each(|note| note.count = 0);
        NOTES.set(outer);
    }
}

#[cold]
fn first(notes: &Notes) -> LostPage {
    let note = &notes.of[0];
    // SAFETY: counted when it was noted, until `release`.
    let pages = unsafe { &*note.pages };
    LostPage { path: pages.path.clone(), offset: note.from }
}

#[cold]
fn uncover(notes: &Notes) {
    for note in notes.of.iter().filter(|note| !note.pages.is_null()) {
        // SAFETY: as in `first`.
        unsafe { &*note.pages }.uncover(note.from, note.to);
        COVERED_NOW.fetch_sub(note.count, SeqCst);
        OWN.set(Own { now: OWN.get().now - note.count, ..OWN.get() });
    }
}

#[cold]
fn release(notes: &Notes) {
    for note in notes.of.iter().filter(|note| !note.pages.is_null()) {
        // SAFETY: releases what `cover` counted; no thread has the note any more.
        unsafe { Arc::decrement_strong_count(note.pages) };
    }
}
