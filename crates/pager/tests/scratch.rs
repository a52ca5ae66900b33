//! Windows that are memory: zeros without reading, forgetting without writing, budgets that change, parts that stay.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use forebay_pager::{Window, WindowEngine, WindowOptions};

const TILE: usize = 64 << 10;
const BUDGET: u64 = 32 * TILE as u64;
const BYTES: u64 = 4 * BUDGET;

fn window(engine: Option<WindowEngine>) -> Window {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir()).unwrap();
    let mut options = WindowOptions::new(BUDGET);
    (options.tile_bytes, options.engine) = (TILE, engine);
    let made = Window::scratch(dir.path(), BYTES, &options).unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "its file has a name");
    made
}

fn has_userfault() -> bool {
    forebay_tier::window::userfault().is_ok_and(|can| can.signals && can.write_protect)
}

/// Every engine that there is here.
fn engines() -> Vec<Option<WindowEngine>> {
    let exact = has_userfault().then_some(Some(WindowEngine::Userfault));
    exact.into_iter().chain([None]).collect()
}

/// A window with the engine whose budget is exact. None, and counted, where it is refused.
fn exact(what: &str) -> Option<Window> {
    if !has_userfault() {
        skips::skipped(what, "userfaultfd is refused");
        return None;
    }
    Some(window(Some(WindowEngine::Userfault)))
}

fn fill(window: &mut Window, seed: usize) {
    let all = window.as_mut_slice().unwrap();
    for at in (0..all.len()).step_by(512) {
        all[at] = (at / 512 + seed) as u8 | 1;
    }
}

fn holds(window: &Window, seed: usize, from: usize) {
    let all = window.as_slice();
    for at in (from..all.len()).step_by(512) {
        assert_eq!(all[at], (at / 512 + seed) as u8 | 1, "byte {at}");
    }
}

#[test]
fn what_is_stored_is_there_and_what_is_forgotten_is_zeros() {
    for engine in engines() {
        let mut window = window(engine);
        assert!(window.as_slice().iter().all(|byte| *byte == 0));
        fill(&mut window, 5);
        holds(&window, 5, 0);
        let half = BYTES as usize / 2;
        window.forget(&(0..half as u64)).unwrap();
        assert!(window.as_slice()[..half].iter().all(|byte| *byte == 0));
        holds(&window, 5, half);
        fill(&mut window, 6);
        holds(&window, 6, 0);
    }
}

/// Reading ahead of stores would fill a small budget with zeros, which leave by long pieces only.
#[test]
fn a_store_into_fresh_memory_brings_its_own_page_only() {
    let mut window = window(Some(WindowEngine::Kernel));
    let half = BYTES as usize / 2;
    let brings_one = |window: &mut Window| {
        window.as_mut_slice().unwrap()[half] = 1;
        let there = window.statistics().resident_bytes;
        assert!((1..=16 << 10).contains(&there), "{there} bytes came with it");
    };
    brings_one(&mut window);
    fill(&mut window, 5);
    holds(&window, 5, 0);
    window.forget(&(0..BYTES)).unwrap();
    brings_one(&mut window);
}

/// What a system may be given the addresses of without being asked for another engine.
#[test]
fn the_system_reaches_it_unless_asked_otherwise() {
    use std::io::Read;
    let mut window = window(None);
    assert!(window.serves_system());
    let part = &mut window.as_mut_slice().unwrap()[TILE..2 * TILE];
    std::fs::File::open("/dev/zero").unwrap().read_exact(part).unwrap();
}

#[test]
fn a_window_on_what_another_one_held_shows_it() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir()).unwrap();
    for engine in engines() {
        let file = forebay_tier::plain::PlainFile::nameless(dir.path(), BYTES).unwrap();
        let at = 5 * TILE as u64;
        file.write(at, &[7; TILE]).unwrap();
        file.flush().unwrap();
        let mut options = WindowOptions::new(BUDGET);
        (options.tile_bytes, options.engine) = (TILE, engine);
        let stored = at..at + TILE as u64;
        let window = Window::scratch_on(file, &options, std::slice::from_ref(&stored)).unwrap();
        let all = window.as_slice();
        assert!(all[at as usize..][..TILE].iter().all(|byte| *byte == 7), "{engine:?}");
        assert!(all[..at as usize].iter().all(|byte| *byte == 0), "{engine:?}");
        assert!(window.stored(&(0..BYTES)).iter().any(|part| part.contains(&at)));
    }
}

#[test]
fn zeros_are_not_read_and_what_is_forgotten_is_not_written() {
    let Some(mut window) = exact("zeros that are not read") else { return };
    assert!(window.as_slice().iter().step_by(64).all(|byte| *byte == 0));
    let seen = window.statistics();
    assert_eq!((seen.read_bytes, seen.written_bytes), (0, 0), "{seen:?}");
    let part = BUDGET as usize / 4;
    window.as_mut_slice().unwrap()[..part].fill(3);
    window.forget(&(0..part as u64)).unwrap();
    assert!(window.as_slice().iter().step_by(64).all(|byte| *byte == 0));
    let seen = window.statistics();
    assert_eq!((seen.read_bytes, seen.written_bytes), (0, 0), "{seen:?}");
    assert!(seen.resident_peak <= BUDGET);
}

#[test]
fn a_budget_that_shrinks_is_kept_at_once() {
    let Some(mut window) = exact("a budget that changes") else { return };
    fill(&mut window, 1);
    for tiles in [16, 8, 24] {
        let budget = window.beside() + tiles * TILE as u64;
        window.set_budget(budget);
        assert!(window.statistics().resident_bytes <= tiles * TILE as u64);
        holds(&window, 1, 0);
        assert_eq!(window.statistics().resident_bytes, tiles * TILE as u64);
    }
    window.set_budget(0);
    assert!(window.statistics().resident_bytes <= window.budget_min());
    holds(&window, 1, 0);
}

#[test]
fn what_is_pinned_stays_whatever_comes() {
    let Some(mut window) = exact("parts that stay") else { return };
    fill(&mut window, 2);
    let pinned = window.pin(&(3..2 * TILE as u64), true).unwrap();
    let sweep = |_| holds(&window, 2, 2 * TILE);
    (0..3).for_each(sweep);
    let before = window.statistics();
    assert!(before.evicted_bytes > BYTES);
    let seen: usize = window.as_slice()[..2 * TILE].iter().step_by(512).map(|byte| *byte as usize).sum();
    assert!(seen > 0 && window.statistics().faults == before.faults, "a pinned tile had left");
    drop(pinned);
    (0..3).for_each(sweep);
    let before = window.statistics().faults;
    holds(&window, 2, 0);
    assert!(window.statistics().faults > before, "what is not pinned leaves");
}
