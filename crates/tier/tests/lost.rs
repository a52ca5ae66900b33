//! Pages that the medium does not give, on the code path of persistent memory, in memory and in files: an error for who
//! watches, the signal for who does not. A file that is cut off below its mapping stands for a bad block: the kernel
//! answers a load with the same signal.

use std::fs::OpenOptions;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use forebay_tier::device::mapped::Mapped;
use forebay_tier::device::pmem;
use forebay_tier::{watch, watched, Access, Device, Kind, SharedWords, TierKind};

const PAGE: u64 = 4096;
const PAGES: u64 = 16;
const CHILD: &str = "FOREBAY_TEST_LOST";

/// A pool whose byte N is that of its page.
fn pool(dir: &Path) -> Mapped {
    let made = pmem::create_emulated(&dir.join("pool"), PAGES * PAGE).unwrap();
    made.prepare(0..PAGES * PAGE).unwrap();
    for page in 0..PAGES {
        made.write(page * PAGE, &[page as u8 + 1; PAGE as usize]).unwrap();
    }
    made
}

/// Leaves so many pages of the file.
fn cut(dir: &Path, pages: u64) {
    let file = OpenOptions::new().write(true).open(dir.join("pool")).unwrap();
    file.set_len(pages * PAGE).unwrap();
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

#[test]
fn a_lost_page_is_an_error_and_the_others_stay() {
    let dir = folder();
    let pool = pool(dir.path());
    cut(dir.path(), 10);
    let error = pool.will_read(9 * PAGE..10 * PAGE + 1).unwrap_err();
    assert_eq!(error.kind(), Kind::Io);
    assert!(error.to_string().contains("offset=40960"), "{error}");
    assert!(error.hint_text().is_some());
    pool.will_read(0..10 * PAGE).unwrap();
    pool.can_read(0..PAGES * PAGE).expect("nothing of it is read yet");
    assert_eq!(pool.bytes(9 * PAGE..10 * PAGE)[4095], 10);
    // Again, and for another handle.
    assert_eq!(pool.will_read(15 * PAGE..16 * PAGE).unwrap_err().kind(), Kind::Io);
    assert_eq!(pool.will_read(15 * PAGE + 7..15 * PAGE + 8).unwrap_err().kind(), Kind::Io);
}

#[test]
fn who_watches_sees_zeros_and_is_told_where() {
    let dir = folder();
    let pool = pool(dir.path());
    cut(dir.path(), 10);
    let (seen, lost) =
        watch(|| [8, 9, 12, 11, 13].map(|page| pool.bytes(page * PAGE..(page + 1) * PAGE)[17]));
    assert_eq!(seen, [9, 10, 0, 0, 0]);
    let lost = lost.expect("three pages are lost").to_string();
    assert!(lost.contains("byte 45056") && lost.contains("pool"), "the first one: {lost}");
    let (seen, lost) = watch(|| pool.bytes(9 * PAGE..9 * PAGE + 1)[0]);
    assert!(seen == 10 && lost.is_none());
}

#[test]
fn a_call_within_a_call_is_told_of_its_own() {
    let dir = folder();
    let pool = pool(dir.path());
    cut(dir.path(), 10);
    let first = |page: u64| pool.bytes(page * PAGE..(page + 1) * PAGE)[0];
    let (inner, outer) = watch(|| {
        assert_eq!(first(10), 0);
        let (_, same) = watch(|| first(10));
        let (_, none) = watch(|| first(3));
        assert_eq!(first(11), 0);
        (same.is_some(), none.is_some())
    });
    assert_eq!(inner, (true, false));
    assert!(outer.is_some());
    assert!(watch(|| watch(|| first(12)).1.is_some()).1.is_none(), "who was told has to say it");
}

#[test]
fn the_file_is_mapped_again_afterwards() {
    let dir = folder();
    let pool = pool(dir.path());
    cut(dir.path(), 10);
    assert!(pool.will_read(0..PAGES * PAGE).is_err());
    cut(dir.path(), PAGES);
    pool.will_read(0..PAGES * PAGE).expect("all of it is there again");
    // A store goes to the file, not to zeros that were left in its place.
    pool.write(12 * PAGE, b"again").unwrap();
    let other = pmem::open_emulated(&dir.path().join("pool"), Access::Read).unwrap();
    assert_eq!(other.bytes(12 * PAGE..12 * PAGE + 5), b"again");
    assert_eq!(other.bytes(9 * PAGE..9 * PAGE + 1), [10], "what was not lost stays as it was");
}

#[test]
fn no_thread_takes_the_zeros_of_another_for_data() {
    let dir = folder();
    let pool = pool(dir.path());
    cut(dir.path(), 10);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                let (_, lost) = watch(|| pool.bytes(10 * PAGE..11 * PAGE)[0]);
                assert!(lost.is_some());
            }
            done.store(true, Ordering::SeqCst);
        });
        scope.spawn(|| {
            let mut reads = 0;
            while !done.load(Ordering::SeqCst) || reads == 0 {
                let read = watched(|| Ok(pool.bytes(10 * PAGE..11 * PAGE)[0]));
                assert_eq!(read.unwrap_err().kind(), Kind::Io);
                assert_eq!(watched(|| Ok(pool.bytes(4 * PAGE..5 * PAGE)[0])).unwrap(), 5);
                reads += 1;
            }
        });
    });
}

#[test]
fn a_store_to_a_lost_page_is_an_error_and_goes_nowhere() {
    for kind in [TierKind::Dram, TierKind::Pmem] {
        let dir = folder();
        let path = dir.path().join("pool");
        let pool: Arc<dyn Device> = match kind {
            TierKind::Pmem => Arc::new(pool(dir.path())),
            _ => forebay_tier::create(kind, &path, PAGES * PAGE).unwrap(),
        };
        pool.prepare(0..PAGES * PAGE).unwrap();
        cut(dir.path(), 10);
        let mut crcs = vec![7];
        let failed = [
            pool.write(12 * PAGE + 5, &[1; 9000]),
            pool.write_checksummed(11 * PAGE, &[2; 3 * PAGE as usize], PAGE as usize, &mut crcs),
            pool.write_unordered(15 * PAGE, &[3; 64], None, &mut Vec::new(), true),
            pool.store_word(10 * PAGE, 4),
        ];
        for result in failed {
            assert_eq!(result.unwrap_err().kind(), Kind::Io, "{kind}");
        }
        pool.write(9 * PAGE, &[5; 100]).expect("that page is there");
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 10 * PAGE);
        cut(dir.path(), PAGES);
        pool.write(12 * PAGE, b"again").unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[12 * PAGE as usize..][..6], *b"again\0");
        assert!(bytes[9 * PAGE as usize..][..100] == [5; 100]);
    }
}

#[test]
fn a_file_that_was_cut_off_is_an_error_for_who_watches() {
    let dir = folder();
    let pool = forebay_tier::create(TierKind::File, &dir.path().join("pool"), PAGES * PAGE).unwrap();
    pool.prepare(0..PAGES * PAGE).unwrap();
    pool.write(3 * PAGE, &[7; 100]).unwrap();
    cut(dir.path(), 10);
    let (seen, lost) = watch(|| (pool.bytes(3 * PAGE..3 * PAGE + 1)[0], pool.bytes(11 * PAGE..12 * PAGE)[0]));
    assert_eq!(seen, (7, 0));
    assert!(lost.is_some());
}

#[test]
fn words_of_a_file_that_was_cut_off_are_no_longer_shared_and_say_so() {
    let dir = folder();
    let words = SharedWords::create(&dir.path().join("pool"), 3 * PAGE).unwrap();
    words.u64(2 * PAGE).store(5, Ordering::SeqCst);
    words.check().unwrap();
    cut(dir.path(), 1);
    words.u64(8).store(6, Ordering::SeqCst);
    words.check().expect("that page is there");
    assert_eq!(words.u64(2 * PAGE).load(Ordering::SeqCst), 0);
    assert_eq!(words.check().unwrap_err().kind(), Kind::Io);
    words.u64(PAGE).store(7, Ordering::SeqCst);
    assert_eq!(words.u64(PAGE).load(Ordering::SeqCst), 7);
}

/// Not a test of its own: what the one below starts.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let pool = pool(&dir);
    cut(&dir, 10);
    assert!(pool.will_read(10 * PAGE..11 * PAGE).is_err());
    println!("alive");
    let byte = pool.bytes(10 * PAGE..11 * PAGE)[0];
    println!("read {byte}");
}

#[test]
fn who_does_not_watch_gets_the_signal() {
    let dir = folder();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(CHILD, dir.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.signal(), Some(7), "{text}");
    assert!(text.contains("alive") && !text.contains("read "), "{text}");
}
