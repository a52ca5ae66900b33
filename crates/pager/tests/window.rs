//! Windows: what is read is what the file holds, what is stored arrives there, the budget is kept, and a page that
//! cannot be read is an error of that page alone; with every engine that can be had here.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use fastrand::Rng;
use forebay_pager::{Advice, Mode, Window, WindowEngine, WindowOptions};
use forebay_tier::Kind;

const TILE: usize = 4096;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir()).unwrap()
}

/// A file in which word `n` is `n`.
fn numbered(dir: &Path, words: u64) -> PathBuf {
    let path = dir.join("data");
    let bytes: Vec<u8> = (0..words).flat_map(u64::to_ne_bytes).collect();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// What can be had here; what not is said.
fn engines(path: &Path, mode: Mode) -> Vec<WindowEngine> {
    let all = [WindowEngine::Userfault, WindowEngine::Handler, WindowEngine::Kernel];
    let can = |engine: &WindowEngine| match Window::open(path, &options(*engine, mode)) {
        Ok(_) => true,
        Err(e) => {
            assert_eq!(e.kind(), Kind::NotPossibleHere, "{e}");
            if mode != Mode::CopyOnWrite {
                skips::skipped(&format!("windows by {}", engine.name()), e.message());
            }
            false
        }
    };
    all.into_iter().filter(can).collect()
}

fn options(engine: WindowEngine, mode: Mode) -> WindowOptions {
    WindowOptions { engine: Some(engine), mode, tile_bytes: TILE, ..WindowOptions::new(16 * TILE as u64) }
}

#[test]
fn every_word_is_that_of_the_file() {
    let dir = folder();
    let words = 40 * TILE as u64 / 8 + 5;
    let path = numbered(dir.path(), words);
    for engine in engines(&path, Mode::ReadOnly) {
        for (tile_bytes, advice, origin) in
            [(4096, Advice::Random, 0), (4096, Advice::Normal, 24), (8192, Advice::Sequential, 4096)]
        {
            let options = WindowOptions { tile_bytes, advice, origin, ..options(engine, Mode::ReadOnly) };
            let window = Window::open(&path, &options).unwrap();
            let values: &[u64] = window.values().unwrap();
            let first = origin / 8;
            assert_eq!(values.len() as u64, words - first);
            assert!(
                values.iter().zip(first..).all(|(value, wanted)| *value == wanted),
                "{engine:?} in order"
            );
            let mut numbers = Rng::with_seed(7);
            for _ in 0..2000 {
                let at = numbers.u64(..values.len() as u64);
                assert_eq!(values[at as usize], first + at, "{engine:?} at random");
            }
            let mut part = vec![0; 3 * TILE];
            window.read(100, &mut part).unwrap();
            assert_eq!(part, window.as_slice()[100..100 + 3 * TILE]);
            let seen = window.statistics();
            assert_eq!((seen.engine, seen.why, seen.failures), (engine, "asked for", 0));
            if engine != WindowEngine::Kernel {
                assert!(seen.faults > 0 && seen.evicted_bytes > 0 && seen.read_bytes > 8 * words, "{seen:?}");
                assert!(seen.resident_bytes <= seen.budget && seen.resident_peak <= seen.budget, "{seen:?}");
            }
        }
    }
}

#[test]
fn what_is_stored_arrives() {
    let dir = folder();
    let words = 64 * TILE as u64 / 8 + 3;
    let path = numbered(dir.path(), words);
    for engine in engines(&path, Mode::ReadWrite) {
        numbered(dir.path(), words);
        let mut window = Window::open(&path, &options(engine, Mode::ReadWrite)).unwrap();
        let mut numbers = Rng::with_seed(3);
        let mut wanted: Vec<u64> = (0..words).collect();
        let values: &mut [u64] = window.values_mut().unwrap();
        for round in 0..4000 {
            let at = numbers.u64(..words) as usize;
            match round % 3 {
                0 => assert_eq!(values[at], wanted[at], "{engine:?}"),
                _ => {
                    values[at] ^= round << 32;
                    wanted[at] ^= round << 32;
                }
            }
        }
        window.write(8 * (words - 2), &[0xab; 16]).unwrap();
        wanted[words as usize - 2..].fill(u64::from_ne_bytes([0xab; 8]));
        window.flush().unwrap();
        let there = std::fs::read(&path).unwrap();
        let bytes: Vec<u8> = wanted.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert!(there == bytes, "{engine:?}: the file after a flush");
        window.values_mut::<u64>().unwrap()[5] = 1;
        window.close().unwrap();
        let mut word = [0; 8];
        std::fs::File::open(&path).unwrap().read_exact_at(&mut word, 40).unwrap();
        assert_eq!(word, 1u64.to_ne_bytes(), "{engine:?}: the file after the end");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8 * words, "{engine:?}: its length");
    }
}

/// Ranks that share a file: a tile that two of them have is written by each as far as it is its own.
#[test]
fn neighbours_in_one_file_do_not_write_over_each_other() {
    let dir = folder();
    let path = numbered(dir.path(), 4096);
    for engine in engines(&path, Mode::ReadWrite) {
        let part = |origin: u64, bytes: u64| {
            let options = options(engine, Mode::ReadWrite);
            let tile_bytes = 4 * TILE;
            let budget = 16 * tile_bytes as u64;
            Window::open(&path, &WindowOptions { origin, bytes: Some(bytes), tile_bytes, budget, ..options })
                .unwrap()
        };
        for border in [8192 + 80, 8192] {
            let (mut low, mut high) = (part(0, border), part(border, 32_768 - border));
            // Both have the tile of the border before either stores.
            assert_eq!((low.as_slice()[0], high.as_slice()[0]), (0, (border / 8 % 256) as u8));
            low.as_mut_slice().unwrap()[border as usize - 8..].fill(1);
            low.flush().unwrap();
            high.as_mut_slice().unwrap()[..8].fill(2);
            high.close().unwrap();
            low.close().unwrap();
            let mut found = [0; 16];
            std::fs::File::open(&path).unwrap().read_exact_at(&mut found, border - 8).unwrap();
            assert_eq!(found, [[1; 8], [2; 8]].concat()[..], "{} at {border}", engine.name());
            let words: Vec<u8> = (0..4096u64).flat_map(u64::to_ne_bytes).collect();
            std::fs::write(&path, words).unwrap();
        }
    }
}

#[test]
fn copies_on_write_stay_with_the_window() {
    let dir = folder();
    let words = 64 * TILE as u64 / 8;
    let path = numbered(dir.path(), words);
    for engine in engines(&path, Mode::CopyOnWrite) {
        let mut window = Window::open(&path, &options(engine, Mode::CopyOnWrite)).unwrap();
        for _ in 0..2 {
            let values: &mut [u64] = window.values_mut().unwrap();
            values.iter_mut().step_by(700).for_each(|value| *value += 1 << 40);
        }
        window.flush().unwrap();
        let values: &[u64] = window.values().unwrap();
        for (at, value) in values.iter().enumerate() {
            let wanted = at as u64 + if at % 700 == 0 { 2 << 40 } else { 0 };
            assert_eq!(*value, wanted, "{engine:?}");
        }
        let there = std::fs::read(&path).unwrap();
        assert!(there.chunks(8).zip(0u64..).all(|(word, wanted)| word == wanted.to_ne_bytes()));
    }
    let refused = Window::open(&path, &options(WindowEngine::Kernel, Mode::CopyOnWrite));
    assert_eq!(refused.map(drop).unwrap_err().kind(), Kind::NotPossibleHere);
}

#[test]
fn a_window_to_read_cannot_be_stored_into() {
    let dir = folder();
    let path = numbered(dir.path(), 1024);
    for engine in engines(&path, Mode::ReadOnly) {
        let mut window = Window::open(&path, &options(engine, Mode::ReadOnly)).unwrap();
        assert_eq!(window.as_mut_slice().unwrap_err().kind(), Kind::PermissionDenied);
        assert_eq!(window.write(0, &[1]).unwrap_err().kind(), Kind::PermissionDenied);
        assert_eq!(window.read(8192, &mut [0]).unwrap_err().kind(), Kind::BoxOutsideShape);
        window.flush().unwrap();
    }
}

#[test]
fn the_kernel_may_touch_what_handlers_answer() {
    let dir = folder();
    let path = numbered(dir.path(), 64 * 512);
    let other = dir.path().join("other");
    std::fs::write(&other, [7; 4 * TILE]).unwrap();
    let other = std::fs::File::open(&other).unwrap();
    for engine in engines(&path, Mode::ReadWrite) {
        let mut window = Window::open(&path, &options(engine, Mode::ReadWrite)).unwrap();
        let part = &mut window.as_mut_slice().unwrap()[5 * TILE..9 * TILE];
        let read = other.read_at(part, 0);
        if engine == WindowEngine::Userfault {
            let e = read.expect_err("no thread answers the kernel's faults");
            assert_eq!(e.raw_os_error(), Some(14), "{e}");
            // Touched before, it works.
            assert!(part.iter_mut().step_by(TILE).all(|byte| std::mem::replace(byte, 0) < 255));
            assert_eq!(other.read_at(part, 0).unwrap(), 4 * TILE);
        }
        assert!(part.iter().all(|byte| *byte == 7), "{engine:?}");
        window.close().unwrap();
        numbered(dir.path(), 64 * 512);
    }
}

#[test]
fn the_engine_is_chosen_and_said() {
    let dir = folder();
    let path = numbered(dir.path(), 64 * 512);
    let chosen = |options: WindowOptions| {
        let seen = Window::open(&path, &options).unwrap().statistics();
        (seen.engine, seen.why)
    };
    let few = WindowOptions { tile_bytes: TILE, ..WindowOptions::new(1 << 20) };
    let much = WindowOptions { tile_bytes: TILE, ..WindowOptions::new(1 << 30) };
    let long = WindowOptions { tile_bytes: 64 << 10, ..WindowOptions::new(1 << 30) };
    assert_eq!(chosen(much).0, WindowEngine::Kernel);
    let able = forebay_tier::window::userfault();
    let wanted = if able.is_ok() { WindowEngine::Userfault } else { WindowEngine::Kernel };
    assert_eq!((chosen(few).0, chosen(long.clone()).0), (wanted, wanted));
    if able.is_err() {
        assert_eq!(chosen(long).1, "userfaultfd is refused");
        return;
    }
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let there = numbered(shm.path(), 4096);
    let window = Window::open(&there, &long).unwrap();
    assert_eq!(window.statistics().engine, WindowEngine::Direct);
    assert_eq!(window.values::<u64>().unwrap()[4095], 4095);
}

#[test]
fn the_kernels_pages_leave_before_the_budget_is_exceeded() {
    let dir = folder();
    if forebay_tier::detect(dir.path()).unwrap() == forebay_tier::TierKind::Pmem {
        return skips::skipped(
            "pages of the kernel that leave",
            "these files lie on the medium that is mapped",
        );
    }
    let path = dir.path().join("data");
    const MIB: u64 = 1 << 20;
    std::fs::write(&path, vec![5; 24 * MIB as usize]).unwrap();
    let options = WindowOptions {
        engine: Some(WindowEngine::Kernel),
        mode: Mode::ReadWrite,
        ..WindowOptions::new(8 * MIB)
    };
    let mut window = Window::open(&path, &options).unwrap();
    // Writing the file has left it in the page cache, which is the first thing to leave.
    wait_until(|| window.statistics().resident_bytes <= 8 * MIB);
    window.as_mut_slice().unwrap().iter_mut().step_by(TILE).for_each(|byte| *byte += 1);
    wait_until(|| window.statistics().resident_bytes <= 8 * MIB);
    assert!(window.as_slice().iter().step_by(TILE).all(|byte| *byte == 6));
    let seen = window.statistics();
    assert!(seen.evicted_bytes >= 16 * MIB, "{seen:?}");
    // Pages that are just being written stay until they are.
    wait_until(|| {
        window.done_with(0..24 * MIB);
        window.statistics().resident_bytes == 0
    });
    window.close().unwrap();
    assert!(std::fs::read(&path).unwrap().iter().step_by(TILE).all(|byte| *byte == 6));
}

/// Waits for what a thread does in its own time; a minute at most.
fn wait_until(mut done: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if done() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("nothing happens");
}

/// The soak: `touches` by four threads in a budget of few tiles, with hints, forks and threads that come and go.
fn soak(dir: &Path, engine: WindowEngine, touches: u64) -> u64 {
    const TILES: u64 = 24;
    const THREADS: u64 = 4;
    let path = dir.join("data");
    std::fs::write(&path, vec![0; TILES as usize * TILE]).unwrap();
    // Space for two tiles, a buffer, and what is known of them: each touch throws another thread's tile out.
    let budget = 3 * TILE as u64 + 256;
    let options = WindowOptions { budget, ..options(engine, Mode::ReadWrite) };
    let mut window = Window::open(&path, &options).unwrap();
    let totals: Vec<AtomicU64> = (0..TILES).map(|_| AtomicU64::new(0)).collect();
    let mut seed = 0;
    let mut left = touches;
    while left > 0 {
        let turn = left.min(4096);
        left -= turn;
        seed += 1;
        match seed % 4 {
            0 => window.prefetch(seed % TILES * TILE as u64..TILES * TILE as u64),
            1 => window.done_with(0..TILES / 2 * TILE as u64),
            2 => window.will_stream(0..TILES * TILE as u64),
            _ => window.advise(if seed % 8 == 3 { Advice::Random } else { Advice::Normal }),
        }
        if seed % 64 == 0 {
            window.flush().unwrap();
        }
        // Each thread has a part of its own of every tile, so that no two store to one place.
        let mut parts: Vec<Vec<&mut [u64]>> = (0..THREADS).map(|_| Vec::new()).collect();
        for tile in window.values_mut::<u64>().unwrap().chunks_mut(TILE / 8) {
            for (part, of) in tile.chunks_mut(TILE / 8 / THREADS as usize).zip(&mut parts) {
                of.push(part);
            }
        }
        std::thread::scope(|scope| {
            for (thread, mut mine) in parts.into_iter().enumerate() {
                let totals = &totals;
                scope.spawn(move || {
                    let mut numbers = Rng::with_seed(seed * THREADS + thread as u64);
                    for _ in 0..turn / THREADS {
                        let tile = numbers.u64(..TILES) as usize;
                        if numbers.bool() {
                            mine[tile][0] += 1;
                            totals[tile].fetch_add(1, Relaxed);
                        } else {
                            assert!(mine[tile][1..].iter().all(|value| *value == 0));
                        }
                    }
                });
            }
            if seed % 32 == 0 {
                scope.spawn(|| assert!(std::process::Command::new("true").status().unwrap().success()));
            }
        });
    }
    let faults = window.statistics().faults;
    window.close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for (tile, total) in bytes.chunks(TILE).zip(&totals) {
        let word = |at: usize| u64::from_ne_bytes(tile[at..at + 8].try_into().unwrap());
        let part = TILE / THREADS as usize;
        let sum: u64 = (0..TILE).step_by(part).map(word).sum();
        assert_eq!(sum, total.load(Relaxed), "{engine:?}: an increment was lost");
    }
    faults
}

#[test]
fn nothing_is_lost_in_a_budget_of_few_tiles() {
    let dir = folder();
    for engine in engines(&numbered(dir.path(), 1024), Mode::ReadWrite) {
        let faults = soak(dir.path(), engine, 10_000);
        assert!(engine == WindowEngine::Kernel || faults > 5_000, "{faults} faults");
    }
}

/// The long one, on a file in memory, so that the disk is not what it waits for.
#[test]
#[ignore = "many minutes"]
fn nothing_is_lost_in_ten_million_faults() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut faults = 0;
    while faults < 10_000_000 {
        faults += soak(dir.path(), WindowEngine::Userfault, 1_000_000);
        println!("{faults} faults");
    }
}
