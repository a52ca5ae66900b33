//! The most memory that a command and what it starts have at a time, for `cargo xtask mem-matrix`: `memory_of PID
//! FOLDER`.
//!
//! Looks every few milliseconds at the processes that PID has started, and at theirs, until standard input ends; then
//! prints two numbers of bytes: what of the files below FOLDER that they have open, mapped or not, is in the page
//! cache, and their anonymous and shared memory. Does not see: processes that are shorter than the time between two
//! looks.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

use forebay_tier::process::children;
use forebay_tier::window::FileWindow;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, pid, folder] = &words[..] else { panic!("usage: memory_of PID FOLDER") };
    let (pid, folder) = (pid.parse().expect("PID is a number"), Path::new(folder));
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        over.store(true, Relaxed);
    });
    let mut most = (0, 0);
    while !is_over.load(Relaxed) {
        let now = look(pid, folder);
        most = (now.0.max(most.0), now.1.max(most.1));
        std::thread::sleep(LOOK);
    }
    println!("{} {}", most.0, most.1);
}

/// Bytes of files, and of memory, of what the command with this number started.
fn look(command: u32, folder: &Path) -> (u64, u64) {
    let (mut found, mut next) = (HashSet::new(), children(command));
    while let Some(pid) = next.pop() {
        if found.insert(pid) {
            next.extend(children(pid));
        }
    }
    let mut files = BTreeMap::new();
    for pid in &found {
        files.extend(cached(*pid, folder));
    }
    (files.values().sum(), found.iter().map(|pid| own(*pid)).sum())
}

/// The files below a folder that a process has open, by their numbers, and how much of each is in memory.
fn cached(pid: u32, folder: &Path) -> BTreeMap<u64, u64> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        if !std::fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(folder)) {
            continue;
        }
        let Ok(file) = File::open(entry.path()) else { continue };
        let Ok(metadata) = file.metadata() else { continue };
        if metadata.len() == 0 || all.contains_key(&metadata.ino()) {
            continue;
        }
        let window = FileWindow::new(file, metadata.len(), false);
        let pages = window.and_then(|window| window.cached_pages(&(0..window.bytes())));
        all.insert(metadata.ino(), pages.unwrap_or(0) * 4096);
    }
    all
}

/// Anonymous and shared memory of a process.
fn own(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    (of("RssAnon:") + of("RssShmem:")) << 10
}
