//! Pages of a window that could not be read: who touches one gets the signal, or sees zeros and is told later.
//!
//! A fixed list, read and changed without a lock, in signal handlers, too.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use forebay_tier::window;

/// Most pages that are bad at once; a tile that would need more cannot be had at all.
const PAGES_MAX: usize = 64;

const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;
const EROFS: i32 = 30;

/// See the file's head.
pub(crate) struct Failures {
    /// A bad page shows zeros.
    pub(crate) zeros: bool,
    name: String,
    /// Offset of a page, plus one; 0: unused.
    pages: [AtomicU64; PAGES_MAX],
    errnos: [AtomicU32; PAGES_MAX],
    listed: AtomicU32,
    total: AtomicU64,
    /// The first since the last query: its errno above, 0 when there is none; and where.
    first_errno: AtomicU32,
    first_at: AtomicU64,
}

impl Failures {
    pub(crate) fn new(name: &str, zeros: bool) -> Failures {
        Failures {
            zeros,
            name: name.to_string(),
            pages: [const { AtomicU64::new(0) }; PAGES_MAX],
            errnos: [const { AtomicU32::new(0) }; PAGES_MAX],
            listed: AtomicU32::new(0),
            total: AtomicU64::new(0),
            first_errno: AtomicU32::new(0),
            first_at: AtomicU64::new(0),
        }
    }

    /// Notes what a page failed with, without keeping it for who touches it.
    pub(crate) fn note(&self, page: u64, errno: i32) {
        self.total.fetch_add(1, Relaxed);
        if self.first_errno.compare_exchange(0, errno as u32, AcqRel, Relaxed).is_ok() {
            self.first_at.store(page, Release);
        }
    }

    /// A page is bad until [`Failures::forget`]; false: the list is full.
    pub(crate) fn add(&self, page: u64, errno: i32) -> bool {
        self.note(page, errno);
        let free = self.pages.iter().position(|at| at.compare_exchange(0, page + 1, AcqRel, Relaxed).is_ok());
        let Some(at) = free else { return false };
        self.errnos[at].store(errno as u32, Release);
        self.listed.fetch_add(1, Release);
        true
    }

    /// Whether any page is bad.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.listed.load(Acquire) > 0
    }

    fn in_range(&self, range: &Range<u64>) -> impl Iterator<Item = usize> + '_ {
        let range = range.clone();
        (0..PAGES_MAX).filter(move |at| {
            let page = self.pages[*at].load(Acquire);
            page > 0 && range.contains(&(page - 1))
        })
    }

    /// What the first bad page of a range failed with.
    pub(crate) fn first_in(&self, range: &Range<u64>) -> Option<i32> {
        self.in_range(range).next().map(|at| self.errnos[at].load(Acquire) as i32)
    }

    /// Whether touching this page is the signal.
    pub(crate) fn answers(&self, page: u64) -> Option<i32> {
        if self.zeros || !self.any() {
            return None;
        }
        self.first_in(&(page..page + 1))
    }

    /// The pages of a range left: they are tried again.
    pub(crate) fn forget(&self, range: &Range<u64>) {
        for at in self.in_range(range) {
            self.pages[at].store(0, Release);
            self.listed.fetch_sub(1, Release);
        }
    }

    /// How many pages failed so far.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// The first failure since the last call: where, and what it was.
    pub(crate) fn take_first(&self) -> Option<(u64, i32)> {
        match self.first_errno.swap(0, AcqRel) {
            0 => None,
            errno => Some((self.first_at.load(Acquire), errno as i32)),
        }
    }

    /// Says it, before the program gets a signal that says nothing.
    pub(crate) fn say(&self, page: u64, errno: i32) {
        let (mut offset, mut number) = ([0; 20], [0; 20]);
        let (what, why): (&[u8], &[u8]) = match errno {
            // A page is brought in place of others, which are written first.
            ENOSPC | EDQUOT | EROFS => (b"bring", b": the pages that leave for it cannot be written, error "),
            _ => (b"read", b": error "),
        };
        window::say_in_handler(&[
            b"forebay: cannot ",
            what,
            b" the page at byte ",
            digits(page, &mut offset),
            b" of ",
            self.name.as_bytes(),
            why,
            digits(errno as u64, &mut number),
            b" of the system\n",
        ]);
    }
}

/// A number in decimal, without allocating.
fn digits(mut number: u64, out: &mut [u8; 20]) -> &[u8] {
    let mut at = out.len();
    loop {
        at -= 1;
        out[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &out[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_listed_until_they_are_forgotten() {
        let failures = Failures::new("x", false);
        assert!(!failures.any() && failures.take_first().is_none());
        assert!(failures.add(8192, 5) && failures.add(0, 61));
        assert_eq!(
            (failures.answers(8192), failures.answers(4096), failures.answers(0)),
            (Some(5), None, Some(61))
        );
        assert_eq!(failures.take_first(), Some((8192, 5)));
        failures.forget(&(4096..12288));
        assert_eq!((failures.answers(8192), failures.answers(0), failures.total()), (None, Some(61), 2));
        let held = (1..).take_while(|n| failures.add(n << 20, 5)).count();
        assert_eq!(held, PAGES_MAX - 1);
    }

    #[test]
    fn numbers_are_written_without_allocating() {
        assert_eq!(digits(0, &mut [0; 20]), b"0");
        assert_eq!(digits(u64::MAX, &mut [0; 20]), b"18446744073709551615");
    }
}
