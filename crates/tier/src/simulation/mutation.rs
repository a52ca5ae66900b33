//! One access, wake-up, flush or lock of the code done wrongly on purpose, to see that the oracle notices.
//!
//! A mutation names a place in the source and what goes wrong there; the code itself has no switches.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::Mutex;

use super::kernel::futex_key;
use super::scheduler::Key;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// A store is left out.
    LostStore,
    /// A store happens behind the next store of its thread.
    LateStore,
    /// A load gives what its thread saw last in that word.
    StaleLoad,
    /// A compare-and-swap does not compare.
    BlindExchange,
    /// Threads that wait are not woken.
    LostWake,
    /// A lock is not taken.
    LostLock,
    /// A file or directory is not flushed.
    LostFlush,
}

impl Site {
    /// All of them.
    pub const ALL: [Site; 7] = [
        Site::LostStore,
        Site::LateStore,
        Site::StaleLoad,
        Site::BlindExchange,
        Site::LostWake,
        Site::LostLock,
        Site::LostFlush,
    ];

    fn word(self) -> &'static str {
        match self {
            Site::LostStore => "lost-store",
            Site::LateStore => "late-store",
            Site::StaleLoad => "stale-load",
            Site::BlindExchange => "blind-exchange",
            Site::LostWake => "lost-wake",
            Site::LostLock => "lost-lock",
            Site::LostFlush => "lost-flush",
        }
    }
}

/// What goes wrong, and where. Text: `KIND@FILE:LINE:COLUMN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mutation {
    /// What.
    pub site: Site,
    /// Source file, as the compiler names it.
    pub file: &'static str,
    /// Its line.
    pub line: u32,
    /// Its column.
    pub column: u32,
}

impl fmt::Display for Mutation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}:{}", self.site.word(), self.file, self.line, self.column)
    }
}

impl FromStr for Mutation {
    type Err = String;
    fn from_str(text: &str) -> Result<Mutation, String> {
        let wrong = || format!("`{text}` is not KIND@FILE:LINE:COLUMN");
        let (kind, place) = text.split_once('@').ok_or_else(wrong)?;
        let site = Site::ALL.into_iter().find(|site| site.word() == kind).ok_or_else(wrong)?;
        let mut parts = place.rsplitn(3, ':');
        let mut number = || parts.next().and_then(|part| part.parse().ok()).ok_or_else(wrong);
        let (column, line) = (number()?, number()?);
        let file = parts.next().ok_or_else(wrong)?.to_owned().leak();
        Ok(Mutation { site, file, line, column })
    }
}

static ON: AtomicBool = AtomicBool::new(false);
static APPLIED: AtomicU64 = AtomicU64::new(0);
static ACTIVE: Mutex<Option<Mutation>> = Mutex::new(None);
/// The place counts, and nothing goes wrong there.
static IS_HARMLESS: AtomicBool = AtomicBool::new(false);
/// Something has gone wrong, or would have, since the scheduler looked last.
static NOTICE: AtomicBool = AtomicBool::new(false);
/// Places where a mutation would change something, as far as runs have met them.
static MET: Mutex<Option<HashMap<Mutation, Met>>> = Mutex::new(None);
static COLLECT: AtomicBool = AtomicBool::new(false);
/// Points of each run that was collected.
static POINTS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
/// The seed of the run that is collected.
static SEED: AtomicU64 = AtomicU64::new(0);
/// Words that hold something else than without the mutation.
static WRONG: Mutex<Vec<Key>> = Mutex::new(Vec::new());
static IS_ANY_WRONG: AtomicBool = AtomicBool::new(false);

/// Seeds that are kept of each place.
const SEEDS_MAX: usize = 150;

/// A run of more points is a long one.
const POINTS_MANY: u64 = 60_000;

/// How often a mutation would have changed something, and in which runs.
#[derive(Clone, Debug, Default)]
pub struct Met {
    /// Times.
    pub times: u64,
    /// In which runs how often, by their seeds.
    runs: Vec<(u64, u64)>,
    /// Those runs, the ones in which it happens most often by their points first.
    pub seeds: Vec<u64>,
}

/// Mappings of the run, one after the other: what was seen before at the address of one was another file's.
static MAPPED: Mutex<Vec<Range<usize>>> = Mutex::new(Vec::new());
static MAPPED_COUNT: AtomicUsize = AtomicUsize::new(0);

/// What a thread saw or stored last in each word.
#[derive(Default)]
struct Seen {
    words: HashMap<usize, u64>,
    /// So many mappings were there when it looked last.
    mapped: usize,
}

impl Seen {
    /// Forgets what lay where something else is mapped by now.
    fn forget_mapped(&mut self) {
        let count = MAPPED_COUNT.load(SeqCst);
        if self.mapped != count {
            let mapped = MAPPED.lock().expect("never poisoned");
            let new = &mapped[self.mapped.min(mapped.len())..];
            self.words.retain(|address, _| !new.iter().any(|range| range.contains(address)));
            self.mapped = count;
        }
    }
}

thread_local! {
    /// See [`Seen`].
    static SEEN: RefCell<Seen> = RefCell::default();
}

pub(super) fn set(mutation: Option<Mutation>, is_harmless: bool) {
    IS_HARMLESS.store(is_harmless, SeqCst);
    NOTICE.store(false, SeqCst);
    WRONG.lock().expect("never poisoned").clear();
    IS_ANY_WRONG.store(false, SeqCst);
    *ACTIVE.lock().expect("never poisoned") = mutation;
    APPLIED.store(0, SeqCst);
    MAPPED.lock().expect("never poisoned").clear();
    MAPPED_COUNT.store(0, SeqCst);
    ON.store(mutation.is_some(), SeqCst);
}

/// A file was mapped here.
pub(super) fn mapped(range: Range<usize>) {
    let mut mapped = MAPPED.lock().expect("never poisoned");
    mapped.push(range);
    MAPPED_COUNT.store(mapped.len(), SeqCst);
}

/// How often it made a difference.
pub(super) fn applied() -> u64 {
    APPLIED.load(SeqCst)
}

/// From now on places of mutations are collected.
pub fn collect() {
    *MET.lock().expect("never poisoned") = Some(HashMap::new());
    COLLECT.store(true, SeqCst);
}

/// The next run is that of this seed.
pub fn collect_seed(seed: u64) {
    SEED.store(seed, SeqCst);
}

/// The run of this seed had so many points.
pub fn collect_points(seed: u64, points: u64) {
    POINTS.lock().expect("never poisoned").insert(seed, points);
}

/// The places collected since [`collect`].
pub fn collected() -> Vec<(Mutation, Met)> {
    COLLECT.store(false, SeqCst);
    let met = MET.lock().expect("never poisoned").take().unwrap_or_default();
    let points = POINTS.lock().expect("never poisoned");
    let mut all: Vec<(Mutation, Met)> = met.into_iter().collect();
    for (_, met) in &mut all {
        // A million times the share, so that it is whole; long runs come last, whatever they do.
        let rank = |(seed, times): &(u64, u64)| {
            let points = points.get(seed).copied().unwrap_or(u64::MAX).max(1);
            (points > POINTS_MANY, std::cmp::Reverse(u128::from(*times) * 1_000_000 / u128::from(points)))
        };
        met.runs.sort_by_key(rank);
        met.seeds = met.runs.iter().take(SEEDS_MAX).map(|(seed, _)| *seed).collect();
    }
    all.sort_by_key(|(mutation, _)| *mutation);
    all
}

/// Whether this goes wrong here. `differs`: it would change something; only such a place is collected.
pub(crate) fn applies(site: Site, at: &'static Location<'static>, differs: impl Fn() -> bool) -> bool {
    if COLLECT.load(SeqCst) && differs() {
        let mutation = Mutation { site, file: at.file(), line: at.line(), column: at.column() };
        if let Some(met) = &mut *MET.lock().expect("never poisoned") {
            let (met, seed) = (met.entry(mutation).or_default(), SEED.load(SeqCst));
            met.times += 1;
            match met.runs.last_mut() {
                Some((last, times)) if *last == seed => *times += 1,
                _ => met.runs.push((seed, 1)),
            }
        }
    }
    if !ON.load(SeqCst) {
        return false;
    }
    let active = *ACTIVE.lock().expect("never poisoned");
    let is_here = active.is_some_and(|mutation| {
        mutation.site == site
            && (mutation.line, mutation.column) == (at.line(), at.column())
            && mutation.file == at.file()
    });
    if is_here && IS_HARMLESS.load(SeqCst) {
        if differs() {
            made_a_difference();
        }
        return false;
    }
    is_here
}

/// What went wrong changed what a thread saw or who ran: only this can be noticed.
pub(crate) fn made_a_difference() {
    APPLIED.fetch_add(1, SeqCst);
    NOTICE.store(true, SeqCst);
}

/// Whether something has gone wrong, or would have, since this was asked last.
pub(super) fn take_notice() -> bool {
    NOTICE.load(SeqCst) && NOTICE.swap(false, SeqCst)
}

/// A word holds something else than without the mutation, until the next store to it.
pub(crate) fn is_wrong(address: usize) {
    let key = futex_key(address);
    let mut wrong = WRONG.lock().expect("never poisoned");
    if !wrong.contains(&key) {
        wrong.push(key);
    }
    IS_ANY_WRONG.store(true, SeqCst);
    NOTICE.store(true, SeqCst);
}

/// A store to a word makes it right again.
pub(crate) fn stored(address: usize) {
    if IS_ANY_WRONG.load(SeqCst) {
        let key = futex_key(address);
        WRONG.lock().expect("never poisoned").retain(|wrong| *wrong != key);
    }
}

/// A thread looks at a word.
pub(crate) fn looks(address: usize) {
    if IS_ANY_WRONG.load(SeqCst) {
        let key = futex_key(address);
        if WRONG.lock().expect("never poisoned").contains(&key) {
            made_a_difference();
        }
    }
}

/// A thread knows what it stored itself.
pub(crate) fn saw(address: usize, value: u64) {
    if ON.load(SeqCst) || COLLECT.load(SeqCst) {
        SEEN.with_borrow_mut(|seen| {
            seen.forget_mapped();
            seen.words.insert(address, value);
        });
    }
}

/// What a load gives: `value`, or with a mutation what the thread saw last.
pub(crate) fn loaded(address: usize, value: u64, at: &'static Location<'static>) -> u64 {
    looks(address);
    if !ON.load(SeqCst) && !COLLECT.load(SeqCst) {
        return value;
    }
    SEEN.with_borrow_mut(|seen| {
        seen.forget_mapped();
        let known = seen.words.get(&address).copied();
        let differs = known.is_some_and(|known| known != value);
        match known {
            Some(old) if applies(Site::StaleLoad, at, || differs) => {
                if differs {
                    made_a_difference();
                }
                old
            }
            _ => {
                seen.words.insert(address, value);
                value
            }
        }
    })
}
