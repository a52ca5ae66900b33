//! The engines that do one request at a time: system calls on a file, copies from and to a mapping.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use forebay_tier::{Error, MapMode, Result, SharedRegion, TierKind};

use super::files;
use super::job::{Engine, Job};

/// One request at a time.
pub(crate) trait Transfer {
    /// Before each pass: forgets what the kernel has cached, if the job wants that.
    fn begin_pass(&mut self, job: &Job, parts: &[(u64, u64)]) -> Result<()>;
    /// Fills the buffer from `offset`; says how many bytes came.
    fn read(&mut self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes the buffer to `offset`; says how many bytes were taken.
    fn write(&mut self, file: usize, offset: u64, buffer: &[u8]) -> io::Result<usize>;
    /// Makes what was written to a file durable.
    fn flush(&mut self, file: usize, data_only: bool) -> io::Result<()>;
}

/// pread and pwrite.
pub(crate) struct Plain(pub(crate) Vec<File>);

impl Transfer for Plain {
    fn begin_pass(&mut self, job: &Job, parts: &[(u64, u64)]) -> Result<()> {
        files::advise(job, &self.0, parts);
        Ok(())
    }

    #[inline]
    fn read(&mut self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        again(|| self.0[file].read_at(buffer, offset))
    }

    #[inline]
    fn write(&mut self, file: usize, offset: u64, buffer: &[u8]) -> io::Result<usize> {
        again(|| self.0[file].write_at(buffer, offset))
    }

    #[inline]
    fn flush(&mut self, file: usize, data_only: bool) -> io::Result<()> {
        flush(&self.0[file], data_only)
    }
}

/// fsync or fdatasync.
pub(crate) fn flush(file: &File, data_only: bool) -> io::Result<()> {
    again(|| if data_only { file.sync_data() } else { file.sync_all() })
}

/// Repeats what a signal interrupted.
#[inline]
fn again<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Copies from and to mappings of the files.
pub(crate) struct Mapped {
    files: Vec<File>,
    regions: Vec<SharedRegion>,
    /// Each write is made persistent at once.
    persist: bool,
}

impl Mapped {
    pub(crate) fn new(job: &Job, files: Vec<File>) -> Mapped {
        Mapped { files, regions: Vec::new(), persist: job.engine == Engine::Dax }
    }
}

impl Transfer for Mapped {
    fn begin_pass(&mut self, job: &Job, parts: &[(u64, u64)]) -> Result<()> {
        // Pages that a process has mapped are not forgotten.
        self.regions.clear();
        files::advise(job, &self.files, parts);
        let mode = if job.writes { MapMode::Write } else { MapMode::Read };
        // The page cache is mapped as a file on any file system; for persistent memory its own tier is found.
        let tier = if self.persist { None } else { Some(TierKind::File) };
        for path in &job.files {
            let region = SharedRegion::map(path, None, tier, mode)?;
            if job.advise && job.is_random() {
                region.expect_random();
            }
            self.regions.push(region);
        }
        Ok(())
    }

    #[inline]
    fn read(&mut self, file: usize, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.regions[file].copy_out(offset as usize, buffer).map_err(system)?;
        Ok(buffer.len())
    }

    #[inline]
    fn write(&mut self, file: usize, offset: u64, buffer: &[u8]) -> io::Result<usize> {
        let region = &self.regions[file];
        match self.persist {
            true => region.copy_persist(offset as usize, buffer),
            false => region.copy_in(offset as usize, buffer),
        }
        .map_err(system)?;
        Ok(buffer.len())
    }

    fn flush(&mut self, file: usize, _data_only: bool) -> io::Result<()> {
        let region = &self.regions[file];
        region.persist(0..region.len()).map_err(system)
    }
}

/// The operating system's error below ours, as far as there is one.
fn system(e: Error) -> io::Error {
    let below = std::error::Error::source(&e).and_then(|e| e.downcast_ref::<io::Error>());
    match below.and_then(io::Error::raw_os_error) {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::other(e),
    }
}
