//! A plain file of raw bytes, moved past the page cache where its file system can do that.
//!
//! Unlike a pool it has no format: the file belongs to the user and may be of any length. Guarantees: space for a new
//! file is reserved when it is made, so that a full disk is an error there; `flush` means durable. Does not: keep two
//! writers apart.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use crate::{capacity, host, sys, Error, Kind, Result, TierKind};

/// What direct transfers of a plain file are aligned to here: enough for every device in use.
pub const DIRECT_ALIGNMENT: u64 = 4096;

/// See the file's head.
#[derive(Debug)]
pub struct PlainFile {
    path: PathBuf,
    cached: File,
    direct: Option<Arc<File>>,
    writable: bool,
}

/// Opens a regular file for reading; follows no symbolic link in its last part and waits for no FIFO.
///
/// # Errors
/// What the system says; `InvalidInput` for what is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<host::fs::File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    regular(host::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?)
}

/// As [`open_regular`], for reading and writing; a file that is missing is made, with mode 0600.
///
/// # Errors
/// As there.
pub fn open_regular_or_make(path: &Path) -> io::Result<host::fs::File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut options = host::fs::OpenOptions::new();
    regular(options.read(true).write(true).create(true).mode(0o600).custom_flags(flags).open(path)?)
}

fn regular(file: host::fs::File) -> io::Result<host::fs::File> {
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// The content of a regular file of at most `bytes_max`, as [`open_regular`] opens it.
///
/// # Errors
/// Those of [`open_regular`]; `InvalidData` where the file is longer.
pub fn read_regular(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let read = open_regular(path)?.take(bytes_max + 1).read_to_end(&mut content)?;
    match read as u64 <= bytes_max {
        true => Ok(content),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too large")),
    }
}

/// Opens a file or a device for reading; follows symbolic links and waits for no FIFO.
///
/// # Errors
/// What the system says.
pub fn open_at_once(path: &Path) -> io::Result<host::fs::File> {
    host::fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

impl PlainFile {
    /// Opens a file that exists.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, writable: bool) -> Result<PlainFile> {
        let failed = |e| Error::io(format!("cannot open {}", path.display()), e);
        let mut options = OpenOptions::new();
        let cached = sys::open_at_once(options.read(true).write(writable), 0, path).map_err(failed)?;
        if !cached.metadata().map_err(failed)?.is_file() {
            return Err(Error::new(Kind::Usage, format!("{} is no file", path.display())));
        }
        let direct = match sys::open_direct(path, writable) {
            Ok(file) => direct_of(file),
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => None,
            Err(e) => return Err(failed(e)),
        };
        Ok(PlainFile { path: path.to_owned(), cached, direct, writable })
    }

    /// Makes a new file of `bytes` zeros, all its blocks reserved.
    ///
    /// # Errors
    /// `NameInUse` when there is one already, `TierFull` when space is insufficient.
    pub fn create(path: &Path, bytes: u64) -> Result<PlainFile> {
        let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o666).open(path);
        let made = made.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => Error::new(Kind::NameInUse, format!("{} exists", path.display()))
                .hint("open it read-write, or remove it first"),
            _ => Error::io(format!("cannot create {}", path.display()), e),
        })?;
        let reserved = reserve(&made, path, bytes);
        let opened = reserved.and_then(|()| PlainFile::open(path, true));
        if opened.is_err() {
            // Nothing half-made stays; it was made here a moment ago.
            let _ = std::fs::remove_file(path);
        }
        opened
    }

    /// A file without a name in the folder `dir` that goes with this handle; its blocks are taken as it is written.
    ///
    /// # Errors
    /// What the system says.
    pub fn nameless(dir: &Path, bytes: u64) -> Result<PlainFile> {
        let failed =
            |e| Error::io(format!("cannot create an unnamed file (O_TMPFILE) in {}", dir.display()), e);
        let cached = sys::open_nameless(dir).or_else(|e| named_for_a_moment(dir, e)).map_err(failed)?;
        cached.set_len(bytes).map_err(failed)?;
        // The same file once more: by its descriptor, as it has no name.
        let again = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&cached)));
        let direct = sys::open_direct(&again, true).ok().and_then(direct_of);
        Ok(PlainFile { path: dir.to_owned(), cached, direct, writable: true })
    }

    /// The file for direct transfers, at multiples of [`DIRECT_ALIGNMENT`]; None where its file system has none.
    pub fn direct(&self) -> Option<&Arc<File>> {
        self.direct.as_ref()
    }

    /// The file for everything else.
    pub fn cached(&self) -> &File {
        &self.cached
    }

    /// Whether its bytes lie in memory (tmpfs).
    ///
    /// # Errors
    /// What the system says.
    pub fn is_memory(&self) -> io::Result<bool> {
        sys::file_system(&self.cached).map(|found| found.is_tmpfs)
    }

    /// The same file through the page cache alone.
    pub fn without_direct(self) -> PlainFile {
        PlainFile { direct: None, ..self }
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Its length.
    ///
    /// # Errors
    /// What the system says.
    pub fn bytes(&self) -> Result<u64> {
        let meta = self.cached.metadata();
        meta.map(|meta| meta.len()).map_err(|e| Error::io(format!("cannot stat {}", self.path.display()), e))
    }

    /// Reads up to `out.len()` bytes; fewer only at the file's end.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < out.len() {
            match self.cached.read_at(&mut out[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(more) => done += more,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Writes all of `bytes` at `offset`, through the page cache.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        sys::write_all_at(&self.cached, bytes, offset)
    }

    /// Drops the pages of it that the kernel has cached and that are written, for measurements that begin cold.
    ///
    /// # Errors
    /// What the system says.
    pub fn drop_cached(&self) -> io::Result<()> {
        sys::drop_cached(&self.cached)
    }

    /// Releases the blocks of a range; it reads as zeros from then on.
    ///
    /// # Errors
    /// What the system says; not every file system can.
    pub fn punch(&self, range: &Range<u64>) -> io::Result<()> {
        sys::punch(&self.cached, range)
    }

    /// Makes everything that was written durable.
    ///
    /// # Errors
    /// What the system says; what was written since the last flush may then be lost.
    pub fn flush(&self) -> io::Result<()> {
        sys::flush_data(&self.cached)
    }
}

/// Where the file system knows no nameless files (`e` says so): one whose name is gone when it is handed out.
fn named_for_a_moment(dir: &Path, e: io::Error) -> io::Result<File> {
    if !matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) {
        return Err(e);
    }
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = dir.join(format!(".forebay.{}-{count}.new", crate::process::pid()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// The file where it takes transfers aligned to [`DIRECT_ALIGNMENT`].
fn direct_of(file: File) -> Option<Arc<File>> {
    let asks = sys::direct_alignment(&file)?;
    (asks.offset as u64 <= DIRECT_ALIGNMENT && asks.memory as u64 <= DIRECT_ALIGNMENT).then(|| Arc::new(file))
}

fn reserve(file: &File, path: &Path, bytes: u64) -> Result<()> {
    let failed = |e| Error::io(format!("cannot reserve {bytes} bytes for {}", path.display()), e);
    let kind =
        if sys::file_system(file).map_err(failed)?.is_tmpfs { TierKind::Dram } else { TierKind::Direct };
    capacity::require(path, kind, bytes)?;
    file.set_len(bytes).map_err(failed)?;
    match sys::allocate(file, &(0..bytes)) {
        _ if bytes == 0 => Ok(()),
        Err(e) if !matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => Err(failed(e)),
        // A file system without it: the blocks are taken as the file is written.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_made_once_read_and_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let made = PlainFile::create(&path, 10_000).unwrap();
        assert_eq!(made.bytes().unwrap(), 10_000);
        made.write(9_990, &[5; 10]).unwrap();
        made.flush().unwrap();
        assert_eq!(PlainFile::create(&path, 1).unwrap_err().kind(), Kind::NameInUse);
        let read = PlainFile::open(&path, false).unwrap();
        let mut tail = [0; 20];
        assert_eq!(read.read(9_985, &mut tail).unwrap(), 15);
        assert_eq!(tail[..6], [0, 0, 0, 0, 0, 5]);
        assert!(!read.is_writable() && read.write(0, &[1]).is_err());
        assert!(PlainFile::open(dir.path(), false).is_err());
    }

    #[test]
    fn what_does_not_fit_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        assert_eq!(PlainFile::create(&path, 1 << 60).unwrap_err().kind(), Kind::TierFull);
        assert!(!path.exists());
    }

    #[test]
    fn a_nameless_file_is_nowhere_to_be_seen() {
        let dir = tempfile::tempdir().unwrap();
        let file = PlainFile::nameless(dir.path(), 1 << 20).unwrap();
        file.write(5, b"x").unwrap();
        assert_eq!(file.read(5, &mut [0; 1]).unwrap(), 1);
        let e = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        named_for_a_moment(dir.path(), e()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
