//! The files of a job: found or made, long enough, laid out, opened.
//!
//! Guarantees: a file that reads need is written in full before the job starts, with bytes that do not compress unless
//! the job says so; what is missing for it is an error before anything is measured; an existing file keeps its length
//! if that is enough, and its bytes unless the job writes. Files that were made are listed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_tier::engine::Aligned;
use forebay_tier::{capacity, Error, Kind, Result};
use rustix::fs::{Advice, FallocateFlags, OFlags};

use super::content::Filler;
use super::job::{Allocate, Job, Remove, WriteThrough};

/// Bytes of one write when a file is laid out.
const LAYOUT_BYTES: usize = 1 << 20;

/// What was found or made of a job's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prepared {
    /// Begin and end of the job's part of each file.
    pub(crate) parts: Vec<(u64, u64)>,
    /// Files that did not exist before.
    pub(crate) made: Vec<std::path::PathBuf>,
}

/// Finds or makes all files of a job.
pub(crate) fn prepare(job: &Job, stop: &AtomicBool) -> Result<Prepared> {
    let mut prepared = Prepared::default();
    let result = job.files.iter().try_for_each(|path| one(job, path, stop, &mut prepared));
    if result.is_err() && job.remove != Remove::Never {
        remove(job, &prepared.made);
    }
    result.map(|()| prepared)
}

fn one(job: &Job, path: &Path, stop: &AtomicBool, prepared: &mut Prepared) -> Result<()> {
    let present = present_bytes(path)?;
    let end = if job.size > 0 { job.offset + job.size } else { present.unwrap_or(0).max(job.file_bytes) };
    if end < job.offset + u64::from(job.block_min()) {
        let what =
            if job.size == 0 && present.is_none() { "a new file needs a size" } else { "no block fits in" };
        return Err(Error::new(Kind::Usage, format!("{what}: {}", path.display()))
            .with("job", &job.name)
            .with("from", job.offset)
            .with("to", end)
            .hint("give size, and a block that is not larger"));
    }
    let wanted = end.max(job.file_bytes);
    if present.is_none_or(|present| present < wanted) {
        if path.symlink_metadata().is_ok_and(|meta| !meta.file_type().is_file() && !meta.is_symlink()) {
            return Err(Error::new(Kind::Usage, format!("{} ends before {wanted}", path.display()))
                .with("job", &job.name)
                .with("bytes", present.unwrap_or(0)));
        }
        make(job, path, present, wanted, stop, prepared)?;
    }
    prepared.parts.push((job.offset, end));
    Ok(())
}

/// Bytes of a file or block device; None when there is none.
///
/// # Errors
/// `Io`, `PermissionDenied`; `Io` also for what is neither.
pub fn present_bytes(path: &Path) -> Result<Option<u64>> {
    let looked = || match path.metadata() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
        Ok(meta) if meta.file_type().is_block_device() => {
            let file = File::open(path)?;
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map(Some).map_err(io::Error::from)
        }
        Ok(meta) if meta.is_file() => Ok(Some(meta.len())),
        Ok(_) => Err(io::Error::other("neither a regular file nor a block device")),
    };
    looked().map_err(|e| Error::io(format!("cannot stat {}", path.display()), e))
}

fn make(
    job: &Job,
    path: &Path,
    present: Option<u64>,
    bytes: u64,
    stop: &AtomicBool,
    prepared: &mut Prepared,
) -> Result<()> {
    let failed = |doing: &str, e: io::Error| Error::io(format!("cannot {doing} {}", path.display()), e);
    if !job.create {
        return Err(Error::new(Kind::Usage, format!("{} is missing or too short", path.display()))
            .with("job", &job.name)
            .with("bytes", bytes)
            .hint("the job does not create files"));
    }
    let laid_out = job.reads || job.overwrite;
    if laid_out || matches!(job.allocate, Allocate::Native | Allocate::KeepSize) {
        require_free_space(job, path, bytes - present.unwrap_or(0))?;
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(path)
        .map_err(|e| failed("make", e))?;
    if present.is_none() {
        prepared.made.push(path.to_path_buf());
    }
    allocate(job.allocate, &file, bytes).map_err(|e| failed("allocate", e))?;
    // A mapping ends where the file does, so that it cannot grow by being written.
    let mapped = matches!(job.engine, super::Engine::Mmap | super::Engine::Dax);
    if laid_out {
        lay_out(job, &file, present.unwrap_or(0), bytes, stop).map_err(|e| failed("lay out", e))?;
        file.sync_all().map_err(|e| failed("flush", e))?;
    } else if mapped {
        file.set_len(bytes).map_err(|e| failed("extend", e))?;
    }
    Ok(())
}

fn allocate(how: Allocate, file: &File, bytes: u64) -> io::Result<()> {
    let reserve = |flags| match rustix::fs::fallocate(file, flags, 0, bytes) {
        // Best effort, as blocks come with the writes otherwise; only a lack of space is worth an error now.
        Err(rustix::io::Errno::NOSPC) => Err(io::Error::from(rustix::io::Errno::NOSPC)),
        _ => Ok(()),
    };
    match how {
        Allocate::No => Ok(()),
        Allocate::Native => reserve(FallocateFlags::empty()),
        Allocate::KeepSize => reserve(FallocateFlags::KEEP_SIZE),
        Allocate::Truncate => file.set_len(bytes),
    }
}

/// Free space is checked before a page is touched: on tmpfs the kernel would kill instead of refusing.
fn require_free_space(job: &Job, path: &Path, missing: u64) -> Result<()> {
    let dir = &capacity::folder_of(path);
    // A directory that cannot be asked says itself what is wrong when the file is made.
    let free = forebay_tier::detect(dir).and_then(|kind| capacity::headroom(dir, kind)).ok();
    match free.filter(|free| free.bytes < missing) {
        None => Ok(()),
        Some(free) => {
            Err(Error::new(Kind::TierFull, format!("insufficient capacity for {}", path.display()))
                .with("job", &job.name)
                .with("wanted_bytes", missing)
                .with("free_bytes", free.bytes)
                .with("limited_by", free.limited_by)
                .hint("a smaller size, or another directory"))
        }
    }
}

/// Writes what is behind the bytes that are there.
fn lay_out(job: &Job, file: &File, present: u64, bytes: u64, stop: &AtomicBool) -> io::Result<()> {
    let mut filler = Filler::new(job);
    let mut buffer = vec![0; LAYOUT_BYTES];
    let mut at = present;
    while at < bytes {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let len = (bytes - at).min(LAYOUT_BYTES as u64) as usize;
        // New bytes for each part: a device that finds duplicates shall not.
        filler.fill(&mut buffer[..len]);
        file.write_all_at(&buffer[..len], at)?;
        at += len as u64;
    }
    Ok(())
}

/// Opens the files of a job as its requests need them.
pub(crate) fn open(job: &Job) -> Result<Vec<File>> {
    job.files.iter().map(|path| open_one(job, path)).collect()
}

fn open_one(job: &Job, path: &Path) -> Result<File> {
    let mut flags = OFlags::CLOEXEC;
    if job.direct {
        flags |= OFlags::DIRECT;
    }
    if job.writes {
        flags |= match job.write_through {
            WriteThrough::No => OFlags::empty(),
            WriteThrough::Data => OFlags::DSYNC,
            WriteThrough::All => OFlags::SYNC,
        };
    }
    let with = |flags: OFlags| {
        let options = &mut OpenOptions::new();
        let flags = i32::try_from(flags.bits()).expect("flags of open are small");
        options.read(true).write(job.writes).create(job.writes && job.create).mode(0o644);
        options.custom_flags(flags).open(path)
    };
    // Access times would be written for nothing; only the owner may refrain.
    let opened = with(flags | OFlags::NOATIME).or_else(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => with(flags),
        _ => Err(e),
    });
    opened.map_err(|e| {
        let refused = job.direct && e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error());
        if refused {
            return Error::new(Kind::NotPossibleHere, format!("{} cannot be direct: {e}", path.display()))
                .with("job", &job.name)
                .hint("its file system has no direct I/O; leave direct out, or use another directory");
        }
        Error::io(format!("cannot open {}", path.display()), e)
    })
}

/// What the kernel is told before a pass: forget, and how reads will come.
pub(crate) fn advise(job: &Job, files: &[File], parts: &[(u64, u64)]) {
    for (file, (begin, end)) in files.iter().zip(parts) {
        let len = std::num::NonZeroU64::new(end - begin);
        // All of it is advice; where it is not taken nothing is wrong but the cache.
        if job.invalidate {
            let _ = rustix::fs::fadvise(file, *begin, len, Advice::DontNeed);
        }
        if job.advise {
            let order = if job.is_random() { Advice::Random } else { Advice::Sequential };
            let _ = rustix::fs::fadvise(file, *begin, len, order);
        }
    }
}

/// Reads the job's part of every file once.
pub(crate) fn pre_read(job: &Job, parts: &[(u64, u64)], stop: &AtomicBool) -> io::Result<()> {
    let mut buffer = Aligned::new(LAYOUT_BYTES);
    for (path, (begin, end)) in job.files.iter().zip(parts) {
        let (file, mut at) = (File::open(path)?, *begin);
        while at < *end && !stop.load(Ordering::Relaxed) {
            match file.read_at(buffer.part((end - at).min(LAYOUT_BYTES as u64) as usize), at)? {
                0 => break,
                n => at += n as u64,
            }
        }
    }
    Ok(())
}

/// Removes what the job says shall not stay.
pub(crate) fn remove(job: &Job, made: &[std::path::PathBuf]) {
    let gone = |path: &std::path::PathBuf| match job.remove {
        Remove::Never => false,
        Remove::Made => made.contains(path),
        Remove::All => path.symlink_metadata().is_ok_and(|meta| meta.is_file()),
    };
    for path in job.files.iter().filter(|path| gone(path)) {
        // Another job on the same file may have been quicker.
        let _ = std::fs::remove_file(path);
    }
}
