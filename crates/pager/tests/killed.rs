//! Who is killed while tiles of an array, or of a window, are written behind leaves a file of whole pages, none of them
//! older than what was flushed.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use forebay_pager::{Array, ArrayOptions, FileBacking, Mode, Pool, PoolOptions};
use forebay_pager::{Window, WindowEngine, WindowOptions};
use forebay_tier::{Kind, Result};

const PAGE: usize = 4096;
const PAGES: u64 = 64;
/// A quarter of the pages.
const BUDGET: u64 = PAGES / 4 * PAGE as u64;

/// Tells a child of a test what writes, and to which file.
const WRITER: &str = "FOREBAY_TEST_KILLED_WRITER";
const FILE: &str = "FOREBAY_TEST_KILLED_FILE";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir()).unwrap()
}

fn blank(dir: &Path) -> PathBuf {
    let path = dir.join("data");
    std::fs::write(&path, vec![0; PAGES as usize * PAGE]).unwrap();
    path
}

fn array(path: &Path, ring: bool) -> Array {
    let pool = Pool::new(PoolOptions { budget: BUDGET, tile_max: PAGE, ring: Some(ring) }).unwrap();
    let options = ArrayOptions { mode: Mode::ReadWrite, ..ArrayOptions::new(PAGE) };
    Array::open(&pool, Arc::new(FileBacking::open(path, true).unwrap()), &options).unwrap()
}

fn window(path: &Path) -> Result<Window> {
    let engine = Some(WindowEngine::Userfault);
    let options = WindowOptions { engine, tile_bytes: PAGE, ..WindowOptions::new(BUDGET) };
    Window::open(path, &WindowOptions { mode: Mode::ReadWrite, ..options })
}

/// Runs the test `child` of this program again.
fn start(writer: &str, path: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    command.env(WRITER, writer).env(FILE, path).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

fn who_is_killed_leaves_whole_pages(writer: &str) {
    for rounds in [2, 4, 10] {
        let dir = folder();
        let path = blank(dir.path());
        let mut child = start(writer, &path);
        let mut flushed = 0;
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let Some(round) = line.strip_prefix("flushed ") else { continue };
            flushed = round.parse().unwrap();
            if flushed >= rounds {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(flushed >= rounds, "{writer}: it ended by itself");
        for (number, page) in std::fs::read(&path).unwrap().chunks(PAGE).enumerate() {
            let words: Vec<u64> = page.chunks(8).map(|w| u64::from_ne_bytes(w.try_into().unwrap())).collect();
            assert!(words.iter().all(|word| *word == words[0]), "{writer}: page {number} is torn");
            assert!(words[0] >= flushed, "{writer}: page {number} has {}, not {flushed}", words[0]);
        }
    }
}

#[test]
fn of_an_array() {
    // Where io_uring is refused both are threads.
    who_is_killed_leaves_whole_pages("ring");
    who_is_killed_leaves_whole_pages("threads");
}

#[test]
fn of_a_window() {
    let dir = folder();
    match window(&blank(dir.path())) {
        Ok(_) => who_is_killed_leaves_whole_pages("window"),
        Err(e) => {
            assert_eq!(e.kind(), Kind::NotPossibleHere, "{e}");
            skips::skipped("a killed writer of a window", e.message());
        }
    }
}

/// Not a test by itself: what the children do.
#[test]
fn child() {
    let Ok(writer) = std::env::var(WRITER) else { return };
    let path = PathBuf::from(std::env::var(FILE).unwrap());
    match writer.as_str() {
        "window" => {
            let mut window = window(&path).unwrap();
            write_rounds(|round, flush| {
                for page in window.values_mut::<u64>().unwrap().chunks_mut(PAGE / 8) {
                    page.fill(round);
                }
                flush.then(|| window.flush()).transpose().unwrap();
            });
        }
        engine => {
            let array = array(&path, engine == "ring");
            write_rounds(|round, flush| {
                for page in 0..PAGES {
                    array.pin_mut(page).unwrap().values::<u64>().unwrap().fill(round);
                }
                flush.then(|| array.flush()).transpose().unwrap();
            });
        }
    }
}

/// Calls `write` with the number of each round, and whether to flush, which every second one does; until it is killed.
fn write_rounds(mut write: impl FnMut(u64, bool)) {
    for round in 1u64.. {
        let flush = round % 2 == 0;
        write(round, flush);
        if flush {
            println!("flushed {round}");
        }
    }
}
