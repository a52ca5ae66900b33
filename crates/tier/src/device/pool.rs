//! The pool file itself: making, opening, checking, filling holes. Shared by all kinds of devices.

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::{capacity, counters, host, sys, Access, Error, Kind, Result};

/// An open pool file.
#[derive(Debug)]
pub(crate) struct PoolFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) capacity: u64,
    pub(crate) access: Access,
}

impl PoolFile {
    /// Makes the file, then lets `finish` turn it into a device; removes it again when that fails.
    pub(crate) fn create<T>(
        path: &Path,
        capacity: u64,
        finish: impl FnOnce(PoolFile) -> Result<T>,
    ) -> Result<T> {
        let capacity = whole_pages(capacity)?;
        let file = create_file(path, capacity)?;
        let pool = PoolFile { file, path: path.to_owned(), capacity, access: Access::Write };
        finish(pool).inspect_err(|_| {
            let _ = std::fs::remove_file(path);
        })
    }

    pub(crate) fn open(path: &Path, access: Access) -> Result<PoolFile> {
        let file = open_file(path, access)?;
        let meta = file.metadata().map_err(|e| Error::io(format!("cannot stat {}", path.display()), e))?;
        let page = sys::page_bytes() as u64;
        if !meta.is_file() || meta.len() == 0 || meta.len() % page != 0 {
            return Err(Error::new(Kind::Damaged, format!("{} is not a pool", path.display()))
                .with("bytes", meta.len())
                .with("page_bytes", page)
                .hint("a pool is a regular file of whole pages; this file was truncated, or is not a pool"));
        }
        Ok(PoolFile { file, path: path.to_owned(), capacity: meta.len(), access })
    }

    /// `Damaged` when the file was cut off since it was opened.
    pub(crate) fn check_length(&self) -> Result<()> {
        let bytes = self.file.metadata().map_err(|e| self.failed("ask for the length of", e))?.len();
        if bytes >= self.capacity {
            return Ok(());
        }
        Err(Error::new(Kind::Damaged, format!("{} was truncated while it was mapped", self.path.display()))
            .with("bytes", bytes)
            .with("mapped", self.capacity)
            .hint("another program truncated the file; the data after its end are lost"))
    }

    /// Whether the file lies on tmpfs.
    pub(crate) fn on_tmpfs(&self) -> Result<bool> {
        let known = sys::file_system(&self.file);
        Ok(known.map_err(|e| self.failed("ask for the file system of", e))?.is_tmpfs)
    }

    /// The range grown to whole pages inside the pool, after the checks of every write.
    pub(crate) fn pages(&self, range: &Range<u64>) -> Result<Range<u64>> {
        self.check_writable()?;
        self.check(range.start, range.end.wrapping_sub(range.start))?;
        if range.is_empty() {
            return Ok(0..0);
        }
        let page = sys::page_bytes() as u64;
        // A mapped region may end inside a page; allocating the rest of it would make the file longer.
        Ok(range.start / page * page..range.end.next_multiple_of(page).min(self.capacity))
    }

    /// `Internal` for a range outside the pool: a mistake of the layer above.
    #[inline]
    pub(crate) fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.capacity => Ok(()),
            _ => Err(self.outside(offset, len)),
        }
    }

    /// As `check`, for a word.
    #[inline]
    pub(crate) fn check_word(&self, offset: u64) -> Result<()> {
        if offset % 8 != 0 {
            return Err(self.outside(offset, 8).hint("words must be aligned to 8 bytes"));
        }
        self.check(offset, 8)
    }

    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        match self.access {
            Access::Write => Ok(()),
            Access::Read => Err(self.read_only()),
        }
    }

    #[cold]
    fn outside(&self, offset: u64, len: u64) -> Error {
        Error::new(Kind::Internal, "range out of bounds of the pool")
            .with("offset", offset)
            .with("len", len)
            .with("capacity", self.capacity)
            .with("pool", self.path.display())
    }

    #[cold]
    fn read_only(&self) -> Error {
        Error::new(Kind::PermissionDenied, "the pool was opened for reading only")
            .with("pool", self.path.display())
    }

    #[cold]
    pub(crate) fn failed(&self, doing: &str, e: std::io::Error) -> Error {
        Error::io(format!("cannot {doing} pool {}", self.path.display()), e)
    }

    /// See [`crate::Device::read`].
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check(offset, out.len() as u64)?;
        self.file.read_exact_at(out, offset).map_err(|e| self.failed("read", e))?;
        counters::add_syscall();
        counters::add_bytes_copied(out.len() as u64);
        Ok(())
    }

    /// See [`crate::Device::after_hole`].
    pub(crate) fn after_hole(&self, offset: u64) -> u64 {
        let data = sys::next_data(&self.file, offset.min(self.capacity));
        data.map_or(offset, |data| data.unwrap_or(self.capacity).min(self.capacity))
    }

    /// Writes by system call, counted.
    pub(crate) fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        counters::add_bytes_copied(src.len() as u64);
        sys::write_all_at(&self.file, src, offset).map_err(|e| self.failed("write to", e))
    }

    /// Makes the file's existence durable: its size, and its name in the directory.
    pub(crate) fn sync_name(&self) -> Result<()> {
        let synced = self.file.sync_all().and_then(|()| File::open(capacity::parent(&self.path))?.sync_all());
        #[cfg(forebay_simulated)]
        crate::simulation::flushed(&self.file);
        synced.map_err(|e| self.failed("make durable", e))
    }
}

fn whole_pages(capacity: u64) -> Result<u64> {
    let most = i64::MAX as u64 / 2;
    match capacity {
        1.. if capacity <= most => Ok(capacity.next_multiple_of(sys::page_bytes() as u64)),
        _ => Err(Error::new(Kind::Usage, "a pool has at least one byte and at most 4 EiB")
            .with("capacity", capacity)),
    }
}

/// Makes a sparse file of `len` bytes, 0600, that must not exist. Removes it when its size cannot be set.
pub(crate) fn create_file(path: &Path, len: u64) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let making = |e| Error::io(format!("cannot create {}", path.display()), e);
    host::syscall("open to make").map_err(making)?;
    let file = options.open(path).map_err(making)?;
    if let Err(e) = file.set_len(len) {
        let _ = std::fs::remove_file(path);
        return Err(making(e));
    }
    Ok(file)
}

/// Opens an existing file; never follows a symbolic link in its last part, other than to what this process has open.
pub(crate) fn open_file(path: &Path, access: Access) -> Result<File> {
    let mut options = OpenOptions::new();
    let follow = if capacity::own_descriptor(path).is_some() { 0 } else { libc::O_NOFOLLOW };
    let opened = host::syscall("open")
        .and_then(|()| sys::open_at_once(options.read(true).write(access == Access::Write), follow, path));
    opened.map_err(|e| Error::io(format!("cannot open {}", path.display()), e))
}

/// Allocates the missing blocks of a range where the file system has no fallocate: by writing zeros into
/// holes. Data stays. The caller owns the range, so no other thread writes into a hole meanwhile.
pub(crate) fn fill_holes(file: &File, path: &Path, range: &Range<u64>) -> Result<()> {
    const ZEROS: &[u8] = &[0; 1 << 16];
    let filling = |e| Error::io(format!("cannot allocate {}", path.display()), e);
    for hole in sys::holes(file, range).map_err(filling)? {
        let mut at = hole.start;
        while at < hole.end {
            let n = (hole.end - at).min(ZEROS.len() as u64);
            sys::write_all_at(file, &ZEROS[..n as usize], at).map_err(filling)?;
            at += n;
        }
    }
    Ok(())
}
