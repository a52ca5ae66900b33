//! Windows on what is no file: threads read it for those that touch what is not there, and what they fail with is the
//! error of the pages concerned alone.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use forebay_pager::{
    stripe_lengths, Advice, Backing, FileBacking, Mode, OnError, StripedBacking, Window, WindowEngine,
    WindowOptions,
};
use forebay_tier::{Error, Kind, Result};

const PAGE: u64 = 4096;
const TILE: u64 = 16 << 10;
const TILES: u64 = 64;

/// The byte at a place: no two pages are the same.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 ^ (at / PAGE) as u8
}

/// Bytes that are computed, of which some cannot be had.
#[derive(Default)]
struct Computed {
    reads: AtomicU64,
    /// Pages whose reading is an error, and one that panics.
    bad: Vec<u64>,
    panics: Option<u64>,
}

impl Backing for Computed {
    fn bytes(&self) -> u64 {
        // The last tile is short.
        TILES * TILE - 1000
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.reads.fetch_add(1, Relaxed);
        let pages = offset / PAGE..(offset + out.len() as u64).div_ceil(PAGE);
        assert!(!self.panics.is_some_and(|page| pages.contains(&page)), "on purpose");
        if let Some(page) = self.bad.iter().find(|page| pages.contains(page)) {
            return Err(Error::new(Kind::BoxNotCovered, "never put").with("page", page));
        }
        out.iter_mut().zip(offset..).for_each(|(to, at)| *to = byte(at));
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        unreachable!("a window writes no backing")
    }

    fn flush(&self) -> Result<()> {
        unreachable!("a window flushes no backing")
    }

    fn direct(&self, _: u64, _: usize) -> Option<(Arc<File>, u64)> {
        None
    }

    fn name(&self) -> String {
        "what is computed".into()
    }

    fn method(&self) -> &'static str {
        "device"
    }
}

fn options(mode: Mode) -> WindowOptions {
    WindowOptions {
        mode,
        tile_bytes: TILE as usize,
        on_error: OnError::Zeros,
        ..WindowOptions::new(12 * TILE)
    }
}

/// None where userfaultfd is refused.
fn on(backing: Arc<dyn Backing>, options: &WindowOptions) -> Option<Window> {
    match Window::on(backing, options) {
        Ok(window) => Some(window),
        Err(e) => {
            assert_eq!(e.kind(), Kind::NotPossibleHere, "{e}");
            skips::skipped("windows on what is no file", e.message());
            None
        }
    }
}

#[test]
fn everything_shows_within_the_budget_however_many_touch_it() {
    let Some(window) = on(Arc::new(Computed::default()), &options(Mode::ReadOnly)) else { return };
    assert_eq!(window.bytes(), TILES * TILE - 1000);
    let look = |thread: u64| {
        for nth in 0..4000u64 {
            // Each in its own order, across all of it, more often than fits.
            let at = (nth * 7919 + thread * 104_729) * 613 % window.bytes();
            assert_eq!(window.as_slice()[at as usize], byte(at), "{at}");
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || look(thread));
        }
    });
    let seen = window.statistics();
    assert_eq!((seen.engine, seen.failures), (WindowEngine::Userfault, 0));
    assert!(seen.evicted_bytes > 0 && seen.resident_peak <= 12 * TILE, "{seen:?}");
    window.close().unwrap();
}

#[test]
fn stripes_are_read_ahead_and_hints_hold() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = 1 << 20;
    let files = stripe_lengths(bytes, 3, 32 << 10)
        .into_iter()
        .enumerate()
        .map(|(nth, len)| FileBacking::create(&dir.path().join(nth.to_string()), len).unwrap());
    let striped = StripedBacking::new(files.collect(), 32 << 10).unwrap();
    let data: Vec<u8> = (0..bytes).map(byte).collect();
    striped.write(0, &data).unwrap();
    let Some(mut window) = on(Arc::new(striped), &options(Mode::ReadOnly)) else { return };
    window.prefetch(5 * TILE..7 * TILE);
    window.will_stream(0..bytes);
    assert!(window.as_slice() == data);
    let before = window.statistics().faults;
    window.done_with(0..bytes);
    window.advise(Advice::Random);
    assert_eq!(window.statistics().resident_bytes, 0);
    let mut part = vec![0; 50_000];
    window.read(70_001, &mut part).unwrap();
    assert_eq!(part, data[70_001..120_001]);
    assert_eq!(window.statistics().faults, before, "a copy is no fault");
}

#[test]
fn what_is_stored_stays_with_the_window() {
    let Some(mut window) = on(Arc::new(Computed::default()), &options(Mode::CopyOnWrite)) else { return };
    for at in (0..window.bytes()).step_by(1 << 10) {
        window.as_mut_slice().unwrap()[at as usize] = !byte(at);
    }
    // All of it has left by now, and comes back from where it was kept.
    let all = (0..window.bytes()).map(|at| if at % (1 << 10) == 0 { !byte(at) } else { byte(at) });
    assert!(window.as_slice().iter().copied().eq(all));
    window.flush().unwrap();
    window.close().unwrap();
}

#[test]
fn what_cannot_be_read_is_an_error_of_its_pages_alone() {
    // A page in the middle of a tile, a whole tile, and the last page, which is short.
    let bad: Vec<u64> = [5, 8, 9, 10, 11, TILES * 4 - 1].to_vec();
    let computed = Computed { bad: bad.clone(), ..Computed::default() };
    let advised = WindowOptions { advice: Advice::Random, ..options(Mode::ReadOnly) };
    let Some(window) = on(Arc::new(computed), &advised) else { return };
    window.check().unwrap();
    for page in 0..TILES * 4 {
        let at = page * PAGE + 17;
        let wanted = if bad.contains(&page) { 0 } else { byte(at) };
        assert_eq!(window.as_slice()[at as usize], wanted, "page {page}");
    }
    let error = window.check().unwrap_err();
    assert_eq!(error.kind(), Kind::BoxNotCovered, "the backing's own error: {error}");
    assert!(error.to_string().contains("page=5"), "{error}");
    let error = window.read(9 * PAGE, &mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), Kind::BoxNotCovered, "{error}");
    window.read(13 * PAGE, &mut [0; 8]).unwrap();
    assert!(window.statistics().failures >= bad.len() as u64);
}

#[test]
fn a_backing_that_panics_is_an_error_and_no_thread_waits_for_it() {
    let computed = Computed { panics: Some(2), ..Computed::default() };
    let advised = WindowOptions { advice: Advice::Random, ..options(Mode::ReadOnly) };
    let Some(window) = on(Arc::new(computed), &advised) else { return };
    for _ in 0..20 {
        assert_eq!(window.read(2 * PAGE, &mut [0; 8]).unwrap_err().kind(), Kind::Io);
    }
    let mut page = [0; 8];
    window.read(30 * PAGE, &mut page).unwrap();
    assert!(page.iter().zip(30 * PAGE..).all(|(seen, at)| *seen == byte(at)));
}

#[test]
fn what_needs_a_file_is_refused() {
    let on =
        |options: &WindowOptions| Window::on(Arc::new(Computed::default()), options).map(drop).unwrap_err();
    assert_eq!(on(&options(Mode::ReadWrite)).kind(), Kind::NotPossibleHere);
    for engine in [WindowEngine::Kernel, WindowEngine::Direct] {
        let asked = WindowOptions { engine: Some(engine), ..options(Mode::ReadOnly) };
        let error = on(&asked);
        assert!(
            error.kind() == Kind::NotPossibleHere && error.to_string().contains("maps a file"),
            "{error}"
        );
    }
    let long = WindowOptions { bytes: Some(TILES * TILE), ..options(Mode::ReadOnly) };
    assert_eq!(on(&long).kind(), Kind::Damaged);
}
