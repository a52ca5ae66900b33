//! Where the tiles of an array come from and go to.
//!
//! A backing is a range of bytes. Where it says that a part of it is a part of a file ([`Backing::direct`]), requests
//! go there by io_uring, many at once; else threads call [`Backing::read`] and [`Backing::write`].

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use forebay_tier::plain::{PlainFile, DIRECT_ALIGNMENT};
use forebay_tier::{Device, Error, Kind, Result};

/// See the file's head. Calls come from any thread, several at once, for parts that do not overlap.
pub trait Backing: Send + Sync {
    /// How many bytes there are.
    fn bytes(&self) -> u64;

    /// Fills `out` from `offset` on.
    ///
    /// # Errors
    /// Also when the backing ends before: then `out` holds anything.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// What was to be written may then be there in part.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Makes everything durable that was written before.
    ///
    /// # Errors
    /// When it may be lost.
    fn flush(&self) -> Result<()>;

    /// The file and the byte in it where these `len` bytes lie, if they can be moved by page-aligned requests of a
    /// length that is a multiple of the page. A request that reads past the end of the file is cut there.
    fn direct(&self, offset: u64, len: usize) -> Option<(Arc<File>, u64)>;

    /// For messages.
    fn name(&self) -> String;

    /// `direct`: past the page cache; `cached`: through it, so that the kernel's memory is not in the budget;
    /// `device`: as the device does it.
    fn method(&self) -> &'static str;
}

/// One file, past the page cache where its file system can do that.
pub struct FileBacking {
    file: PlainFile,
    bytes: u64,
}

impl FileBacking {
    /// Of this file, as long as it is now.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn new(file: PlainFile) -> Result<FileBacking> {
        let bytes = file.bytes()?;
        Ok(FileBacking { file, bytes })
    }

    /// Opens a file that exists.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path, writable: bool) -> Result<FileBacking> {
        FileBacking::new(PlainFile::open(path, writable)?)
    }

    /// Makes a new file of zeros with all its blocks reserved.
    ///
    /// # Errors
    /// `NameInUse`, `TierFull`, or what the system says.
    pub fn create(path: &Path, bytes: u64) -> Result<FileBacking> {
        FileBacking::new(PlainFile::create(path, bytes)?)
    }

    fn failed(&self, doing: &str, offset: u64, len: usize, e: std::io::Error) -> Error {
        Error::io(format!("cannot {doing} {}", self.name()), e).with("offset", offset).with("bytes", len)
    }
}

impl Backing for FileBacking {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let got = self.file.read(offset, out).map_err(|e| self.failed("read", offset, out.len(), e))?;
        if got < out.len() {
            return Err(ended_early(self, offset, out.len()));
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write(offset, bytes).map_err(|e| self.failed("write", offset, bytes.len(), e))
    }

    fn flush(&self) -> Result<()> {
        self.file.flush().map_err(|e| Error::io(format!("cannot flush {}", self.name()), e))
    }

    fn direct(&self, offset: u64, len: usize) -> Option<(Arc<File>, u64)> {
        let aligned = offset % DIRECT_ALIGNMENT == 0 && len as u64 % DIRECT_ALIGNMENT == 0;
        let file = self.file.direct().filter(|_| aligned)?;
        Some((file.clone(), offset))
    }

    fn name(&self) -> String {
        self.file.path().display().to_string()
    }

    fn method(&self) -> &'static str {
        if self.file.direct().is_some() {
            "direct"
        } else {
            "cached"
        }
    }
}

/// What a read says that found fewer bytes than there have to be.
#[cold]
pub(crate) fn ended_early(backing: &dyn Backing, offset: u64, len: usize) -> Error {
    Error::new(Kind::Damaged, format!("{} is shorter than the data", backing.name()))
        .with("offset", offset)
        .with("bytes", len)
        .hint("the file was truncated after it was opened")
}

/// A device of the tier crate, with whatever adapters around it.
pub struct DeviceBacking {
    device: Arc<dyn Device>,
}

impl DeviceBacking {
    /// All of this device.
    pub fn new(device: Arc<dyn Device>) -> DeviceBacking {
        DeviceBacking { device }
    }
}

impl Backing for DeviceBacking {
    fn bytes(&self) -> u64 {
        self.device.capacity()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.device.read(offset, out)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.device.prepare(offset..offset + bytes.len() as u64)?;
        self.device.write(offset, bytes)
    }

    fn flush(&self) -> Result<()> {
        self.device.persist(0..self.device.capacity())
    }

    fn direct(&self, _offset: u64, _len: usize) -> Option<(Arc<File>, u64)> {
        None
    }

    fn name(&self) -> String {
        self.device.path().display().to_string()
    }

    fn method(&self) -> &'static str {
        "device"
    }
}
