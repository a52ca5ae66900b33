//! A small file that several processes read and write as atomic words: the control segment of a space.
//!
//! Guarantees: the file is fully allocated before it is mapped, so no store into it can fail; access outside
//! it or unaligned panics. Where the file is cut off or its memory fails, the words are this process's own from then
//! on, from 0, and [`SharedWords::check`] says so. It is soft state: never flushed, no checksum, content and layout
//! belong to the owner.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::device::pool;
use crate::host::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sys::{self, MapOptions, Mapping};
use crate::{capacity, Error, Kind, Result, TierKind};

/// See the file's head.
pub struct SharedWords {
    mapping: Mapping,
    path: PathBuf,
}

impl SharedWords {
    /// Makes the file (0600, must not exist) with `len` zero bytes and maps it.
    ///
    /// # Errors
    /// `TierFull` without free space; `PermissionDenied`, `Io`.
    pub fn create(path: &Path, len: u64) -> Result<SharedWords> {
        let file = pool::create_file(path, len)?;
        let made = (|| {
            let _turn = capacity::Turn::take(path);
            capacity::require(path, TierKind::Dram, len)?;
            if let Err(e) = sys::allocate(&file, &(0..len)) {
                match e.raw_os_error() {
                    Some(libc::EOPNOTSUPP | libc::ENOSYS) => pool::fill_holes(&file, path, &(0..len))?,
                    _ => return Err(Error::io(format!("cannot allocate {}", path.display()), e)),
                }
            }
            SharedWords::map(&file, path, len)
        })();
        made.inspect_err(|_| {
            let _ = std::fs::remove_file(path);
        })
    }

    /// Maps an existing file of at least `len` bytes.
    ///
    /// # Errors
    /// `Damaged` when it is shorter; `PermissionDenied`, `Io`.
    pub fn open(path: &Path, len: u64) -> Result<SharedWords> {
        let file = pool::open_file(path, crate::Access::Write)?;
        let meta = file.metadata().map_err(|e| Error::io(format!("cannot stat {}", path.display()), e))?;
        if meta.len() < len {
            return Err(Error::new(Kind::Damaged, format!("{} is shorter than it must be", path.display()))
                .with("bytes", meta.len())
                .with("expected_bytes", len));
        }
        SharedWords::map(&file, path, len)
    }

    /// Maps an open file that has no name of its own (`path` is for messages), of at least `len` bytes.
    ///
    /// # Errors
    /// `Damaged` when it is shorter; `Io`.
    pub fn of_file(file: &std::fs::File, path: &Path, len: u64) -> Result<SharedWords> {
        let meta = file.metadata().map_err(|e| Error::io(format!("cannot stat {}", path.display()), e))?;
        if meta.len() < len {
            return Err(Error::new(Kind::Damaged, format!("{} is shorter than it must be", path.display())));
        }
        SharedWords::map(file, path, len)
    }

    fn map(file: &std::fs::File, path: &Path, len: u64) -> Result<SharedWords> {
        let mut mapping = Mapping::new(file, len, MapOptions { writable: true, ..MapOptions::default() })
            .map_err(|e| Error::io(format!("cannot map {}", path.display()), e))?;
        mapping.replace_lost_pages();
        Ok(SharedWords { mapping, path: path.to_owned() })
    }

    /// Whether all of it is shared still.
    ///
    /// # Errors
    /// `Io` once a page of it was lost.
    #[inline]
    pub fn check(&self) -> Result<()> {
        match self.mapping.met_lost_page() {
            false => Ok(()),
            true => Err(self.lost()),
        }
    }

    #[cold]
    fn lost(&self) -> Error {
        Error::new(Kind::Io, format!("a page of {} is lost", self.path.display()))
            .hint("the file was truncated, or its memory failed; restart the processes that have it open")
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.mapping.len()
    }

    /// Whether it has no byte (it never has none).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The 8-byte word at `offset`, a multiple of 8.
    #[inline]
    pub fn u64(&self, offset: u64) -> &AtomicU64 {
        self.mapping.word_mut(offset)
    }

    /// The 4-byte word at `offset`, a multiple of 4; a futex for [`crate::wait`].
    #[inline]
    pub fn u32(&self, offset: u64) -> &AtomicU32 {
        self.mapping.word32(offset)
    }

    /// Copies bytes out. Each byte is read atomically, the whole is not: order it by a word of your own.
    pub fn read_bytes(&self, range: Range<u64>) -> Vec<u8> {
        range.map(|at| self.mapping.byte(at).load(Ordering::Relaxed)).collect()
    }

    /// Copies bytes in. Each byte is stored atomically, the whole is not: order it by a word of your own.
    pub fn write_bytes(&self, offset: u64, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            self.mapping.byte(at).store(*byte, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for SharedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWords").field("path", &self.path).field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_show_one_content() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("control");
        let a = SharedWords::create(&path, 5000).unwrap();
        let b = SharedWords::open(&path, 5000).unwrap();
        a.u64(8).store(1 << 40, Ordering::Release);
        a.u32(4992).store(9, Ordering::Release);
        a.write_bytes(101, b"name");
        assert_eq!(b.u64(8).load(Ordering::Acquire), 1 << 40);
        assert_eq!(b.u32(4992).load(Ordering::Acquire), 9);
        assert_eq!(b.read_bytes(101..105), b"name");
        assert_eq!(SharedWords::open(&path, 5001).unwrap_err().kind(), Kind::Damaged);
        assert!(SharedWords::create(&path, 10).is_err(), "it exists");
        assert_eq!(b.u64(8).load(Ordering::Acquire), 1 << 40, "a refused create left it alone");
    }

    #[test]
    fn a_waiter_in_another_process_is_woken() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("words");
        let words = SharedWords::create(&path, 4096).unwrap();
        let minute = std::time::Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while words.u32(4).load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                // Most likely the child sleeps by now; if not, it sees the word.
                std::thread::sleep(std::time::Duration::from_millis(20));
                words.u32(0).store(1, Ordering::Release);
                crate::wait::wake_all(words.u32(0));
            });
            let status = sys::in_child(|| {
                let mine = SharedWords::open(&path, 4096).unwrap();
                mine.u32(4).store(1, Ordering::Release);
                while mine.u32(0).load(Ordering::Acquire) == 0 {
                    assert!(crate::wait::wait(mine.u32(0), 0, minute), "never woken");
                }
                0
            });
            words.u32(4).store(1, Ordering::Release);
            assert_eq!(status, 0);
        });
    }

    #[test]
    #[should_panic(expected = "multiple of 8")]
    fn unaligned_words_are_refused() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        SharedWords::create(&dir.path().join("c"), 4096).unwrap().u64(4);
    }

    #[test]
    fn a_full_tier_is_an_error_and_leaves_no_file() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("huge");
        assert_eq!(SharedWords::create(&path, 1 << 46).unwrap_err().kind(), Kind::TierFull);
        assert!(!path.exists());
    }
}
