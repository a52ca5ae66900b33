//! Measures loads through a window: what `cargo xtask bench pager` compares with mmap and with fio.
//!
//! Arguments: FILE, `mmap`, `auto`, `userfault` or `kernel`, `loads` or `scan`, threads, seconds. `loads` are random
//! dependent ones, each to another page; `scan` reads every word in order. The budget is a quarter of the file; `mmap`
//! is a plain mapping with MADV_RANDOM, which the measurement limits by a cgroup. Prints bytes per second, measured
//! (4 KiB a load), and on standard error what the window says.

use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_pager::{Advice, Window, WindowOptions};
use forebay_tier::window::{Expect, FileWindow, View};

const PAGE: usize = 4096;

/// The memory that is read.
enum Memory {
    Window(Box<Window>),
    Mapping(View),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Window(window) => window.as_slice(),
            Memory::Mapping(view) => view.as_slice(),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, engine, what, threads, seconds] = words.as_slice() else {
        return Err("FILE mmap|auto|userfault|kernel loads|scan THREADS SECONDS".into());
    };
    let (threads, limit): (u64, _) = (threads.parse()?, Duration::from_secs_f64(seconds.parse()?));
    let scans = what == "scan";
    let memory = open(Path::new(file), engine, scans)?;
    let stop = AtomicBool::new(false);
    let bytes = AtomicU64::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (memory, stop, bytes) = (memory.bytes(), &stop, &bytes);
            scope.spawn(move || match scans {
                true => scan(memory, stop, bytes),
                false => loads(memory, thread, stop, bytes),
            });
        }
        std::thread::sleep(limit);
        stop.store(true, Relaxed);
    });
    let seconds = begun.elapsed().as_secs_f64();
    if let Memory::Window(window) = &memory {
        eprintln!("{:?}", window.statistics());
    }
    println!("{}", bytes.load(Relaxed) as f64 / seconds);
    Ok(())
}

fn open(file: &Path, engine: &str, scans: bool) -> Result<Memory, Box<dyn std::error::Error>> {
    let opened = std::fs::File::open(file)?;
    let bytes = opened.metadata()?.len();
    let map = Arc::new(FileWindow::new(opened, bytes, false)?);
    // Cold: what earlier runs left in the page cache is no part of this one.
    map.drop_cached(&(0..bytes))?;
    if engine == "mmap" {
        map.expect(&(0..bytes), if scans { Expect::Sequential } else { Expect::Random });
        return Ok(Memory::Mapping(map.view(&(0..bytes))));
    }
    let options = WindowOptions {
        tile_bytes: if scans { 1 << 20 } else { PAGE },
        advice: if scans { Advice::Sequential } else { Advice::Random },
        engine: (engine != "auto").then(|| engine.parse()).transpose()?,
        ..WindowOptions::new(bytes / 4)
    };
    Ok(Memory::Window(Box::new(Window::open(file, &options)?)))
}

/// Loads of which each says where the next one is, as far as the processor knows.
fn loads(memory: &[u8], seed: u64, stop: &AtomicBool, bytes: &AtomicU64) {
    let pages = (memory.len() / PAGE) as u64;
    let mut at = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut done = 0;
    while !stop.load(Relaxed) {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let found = memory[((at >> 33) % pages) as usize * PAGE + 64];
        at ^= u64::from(found) << 40;
        done += PAGE as u64;
    }
    bytes.fetch_add(done, Relaxed);
}

/// Sums all words, again and again.
fn scan(memory: &[u8], stop: &AtomicBool, bytes: &AtomicU64) {
    let mut sum = 0u64;
    'rounds: loop {
        for part in memory.chunks(1 << 20) {
            let words =
                part.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()));
            sum = words.fold(sum, u64::wrapping_add);
            bytes.fetch_add(part.len() as u64, Relaxed);
            if stop.load(Relaxed) {
                break 'rounds;
            }
        }
    }
    black_box(sum);
}
