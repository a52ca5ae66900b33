//! Windows on media that fail: a page that cannot be read is an error of that page alone, and one that cannot be
//! written stays.

#[path = "../../tier/tests/skips/mod.rs"]
mod skips;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use forebay_pager::{Advice, Mode, OnError, Window, WindowEngine, WindowOptions};
use forebay_tier::Kind;

const PAGE: usize = 4096;
const PAGES: u64 = 48;
const SIGBUS: i32 = 7;

/// Says what a child of a test shall do, and to which file.
const CHILD: &str = "FOREBAY_TEST_WINDOW_CHILD";
const FILE: &str = "FOREBAY_TEST_WINDOW_FILE";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).or_else(|_| tempfile::tempdir()).unwrap()
}

/// Page `n` holds `n + 1` in every byte.
fn pages(dir: &Path) -> PathBuf {
    let path = dir.join("data");
    std::fs::write(&path, (0..PAGES).flat_map(|page| [page as u8 + 1; PAGE]).collect::<Vec<u8>>()).unwrap();
    path
}

fn options(tile_bytes: usize, mode: Mode) -> WindowOptions {
    WindowOptions {
        engine: Some(WindowEngine::Userfault),
        tile_bytes,
        mode,
        // Nothing is read, and nothing fails, but what is touched.
        advice: Advice::Random,
        ..WindowOptions::new(8 * tile_bytes as u64)
    }
}

/// None where userfaultfd is refused.
fn open(path: &Path, options: &WindowOptions) -> Option<Window> {
    match Window::open(path, options) {
        Ok(window) => Some(window),
        Err(e) => {
            assert_eq!(e.kind(), Kind::NotPossibleHere, "{e}");
            skips::skipped("faults of a window", e.message());
            None
        }
    }
}

fn cut(path: &Path, len: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

#[test]
fn a_bad_page_is_an_error_of_its_own_alone() {
    for tile_bytes in [PAGE, 4 * PAGE] {
        let dir = folder();
        let path = pages(dir.path());
        let options = WindowOptions { on_error: OnError::Zeros, ..options(tile_bytes, Mode::ReadOnly) };
        let Some(mut window) = open(&path, &options) else { return };
        let good = 21;
        cut(&path, good * PAGE as u64 + 50);
        window.check().unwrap();
        for page in 0..PAGES {
            let wanted = if page < good { page as u8 + 1 } else { 0 };
            // The page with the file's new end holds what is left, and zeros behind it, as every file does.
            let at = page as usize * PAGE + if page == good { 100 } else { 0 };
            assert_eq!(window.as_slice()[at], wanted, "page {page}, tiles of {tile_bytes}");
        }
        let error = window.check().unwrap_err();
        assert_eq!(error.kind(), Kind::Damaged, "{error}");
        assert!(error.to_string().contains(&format!("offset={}", good * PAGE as u64)), "{error}");
        window.check().expect("an error is told once");
        assert!(window.statistics().failures >= PAGES - good - 1);
        for page in 0..PAGES {
            let mut found = [0; 8];
            // Half of a page, and the end of the one before.
            match window.read(page * PAGE as u64 + 100, &mut found) {
                Ok(()) => assert_eq!(found, [page as u8 + 1; 8]),
                Err(e) => assert!(page >= good && e.kind() == Kind::Damaged, "page {page}: {e}"),
            }
            let across = window.read((page * PAGE as u64).saturating_sub(4), &mut found);
            assert_eq!(across.is_ok(), page < good, "page {page}, tiles of {tile_bytes}");
        }
        // Nothing sticks: the medium gives the pages now.
        pages(dir.path());
        window.done_with(0..window.bytes());
        assert!((0..PAGES as usize).all(|page| window.as_slice()[page * PAGE] == page as u8 + 1));
        window.read((good + 2) * PAGE as u64, &mut [0; 8]).unwrap();
    }
}

#[test]
fn a_bad_page_is_never_written_back() {
    let dir = folder();
    let path = pages(dir.path());
    let options = WindowOptions { on_error: OnError::Zeros, ..options(4 * PAGE, Mode::ReadWrite) };
    let Some(mut window) = open(&path, &options) else { return };
    cut(&path, 10 * PAGE as u64);
    assert_eq!(window.as_slice()[11 * PAGE], 0);
    assert_eq!(window.write(11 * PAGE as u64, &[9]).unwrap_err().kind(), Kind::Io);
    // Nor what can be read of the same tile: it would go with the others.
    assert_eq!(window.write(8 * PAGE as u64, &[9]).unwrap_err().kind(), Kind::Io);
    window.read(8 * PAGE as u64, &mut [0]).unwrap();
    window.write(4 * PAGE as u64, &[9]).unwrap();
    window.flush().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 10 * PAGE as u64);
    assert_eq!(std::fs::read(&path).unwrap()[4 * PAGE], 9);
}

/// Runs the test `child` of this program again, in a shell that runs `before` first.
fn start(what: &str, path: &Path, before: &str) -> Command {
    let mut command = Command::new("sh");
    let program = std::env::current_exe().unwrap();
    command.args(["-c", &format!("{before} exec \"$0\" --exact child --nocapture --test-threads=1")]);
    command.arg(program).env(CHILD, what).env(FILE, path).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn who_touches_a_bad_page_gets_the_signal() {
    let dir = folder();
    let path = pages(dir.path());
    if open(&path, &options(PAGE, Mode::ReadOnly)).is_none() {
        return;
    }
    let output = start("touch", &path, "").output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.signal(), Some(SIGBUS), "{text}");
    assert!(text.contains("good pages are there"), "{text}");
    let wanted = format!("cannot read the page at byte {} of {}", 30 * PAGE, path.display());
    assert!(text.contains(&wanted), "{text}");
}

#[test]
fn what_cannot_be_written_stays() {
    let dir = folder();
    let path = pages(dir.path());
    if open(&path, &options(PAGE, Mode::ReadWrite)).is_none() {
        return;
    }
    // A write beyond the limit is an error then, not a signal.
    let output = start("full", &path, "trap '' XFSZ; ulimit -f 32;").output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("what could not be written was there"), "{}", said(&output));
}

/// Not a test by itself: what the children do.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let path = PathBuf::from(std::env::var(FILE).unwrap());
    match what.as_str() {
        "touch" => {
            let window = Window::open(&path, &options(PAGE, Mode::ReadOnly)).unwrap();
            cut(&path, 20 * PAGE as u64);
            assert!((0..20).all(|page| window.as_slice()[page * PAGE] == page as u8 + 1));
            println!("good pages are there");
            println!("{}", window.as_slice()[30 * PAGE]);
        }
        "full" => full(&path),
        other => panic!("no child {other}"),
    }
}

/// Stores more than the limit on files lets out.
fn full(path: &Path) {
    let mut window = Window::open(path, &options(PAGE, Mode::ReadWrite)).unwrap();
    let mut stored = Vec::new();
    let mut refused = None;
    for page in 0..PAGES {
        match window.write(page * PAGE as u64, &[0xff; PAGE]) {
            Ok(()) => stored.push(page),
            Err(e) => {
                refused = Some(e);
                break;
            }
        }
    }
    let refused = refused.expect("more is stored than can be written");
    assert!(refused.message().starts_with("cannot write"), "{refused}");
    assert!(window.flush().is_err());
    let mut seen = [0; PAGE];
    let there = std::fs::read(path).unwrap();
    let mut kept = 0;
    for page in stored {
        match window.read(page * PAGE as u64, &mut seen) {
            Ok(()) => kept += 1,
            // It has left, and it does not fit as long as the others cannot.
            Err(_) => seen.copy_from_slice(&there[page as usize * PAGE..][..PAGE]),
        }
        assert!(seen.iter().all(|byte| *byte == 0xff), "page {page}");
    }
    assert!(kept > 2, "{kept} pages were there");
    assert!(window.close().is_err());
    println!("what could not be written was there");
}
