//! Calls on files that the standard library lacks: free space, allocation, holes, kinds of file systems.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::{counters, host};

/// What `statfs` says of the file system that holds a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSystem {
    /// tmpfs: its bytes are main memory and end with the boot.
    pub(crate) is_tmpfs: bool,
    /// Bytes that an ordinary user may still allocate; None for a tmpfs without a limit.
    pub(crate) free_bytes: Option<u64>,
}

const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Asks for the file system of an open file or directory.
pub(crate) fn file_system(file: &File) -> io::Result<FileSystem> {
    // SAFETY: statfs is plain integers, for which all-zero bytes are a value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    counters::add_syscall();
    // SAFETY: the descriptor is open, `stat` outlives the call.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let is_tmpfs = stat.f_type as u64 == TMPFS_MAGIC;
    let unlimited = is_tmpfs && stat.f_blocks == 0;
    let free = (stat.f_bavail as u64).saturating_mul(stat.f_bsize as u64);
    Ok(FileSystem { is_tmpfs, free_bytes: (!unlimited).then_some(free) })
}

/// A descriptor that only names the file (O_PATH): closing it never drops record locks.
pub(crate) fn open_path_only(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC).open(path)
}

/// Opens a file without waiting for a process at the other end, should it be a FIFO. Transfers wait as usual
/// afterwards: with O_NONBLOCK left on, io_uring hands back EAGAIN on devices that cannot promise not to wait
/// (persistent memory, device mapper).
pub(crate) fn open_at_once(options: &mut OpenOptions, flags: i32, path: &Path) -> io::Result<File> {
    let file = options.custom_flags(flags | libc::O_NONBLOCK).open(path)?;
    counters::add_syscall();
    // SAFETY: the descriptor is open; no pointers. Flags that cannot be set (access mode, creation) are ignored.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a file past the page cache, where its file system can do that; else says so by `InvalidInput`.
pub(crate) fn open_direct(path: &Path, write: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let opened = open_at_once(options.read(true).write(write), libc::O_DIRECT, path);
    opened.map_err(|e| match e.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP) => io::Error::new(io::ErrorKind::InvalidInput, e),
        _ => e,
    })
}

/// Reserves the blocks of a range; the content of allocated blocks stays. ENOSPC comes from here, not later.
pub(crate) fn allocate(file: &File, range: &Range<u64>) -> io::Result<()> {
    loop {
        counters::add_syscall();
        let (start, len) = (range.start as libc::off_t, (range.end - range.start) as libc::off_t);
        let allocated = host::interruptible("fallocate").and_then(|()| {
            // SAFETY: the descriptor is open; no pointers. Mode 0 neither shrinks nor zeroes existing blocks.
            match unsafe { libc::fallocate(file.as_raw_fd(), 0, start, len) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
        match allocated {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Releases the blocks of a range; the file reads as zeros there, and keeps its length.
pub(crate) fn punch(file: &File, range: &Range<u64>) -> io::Result<()> {
    let (start, len) = (range.start as libc::off_t, (range.end - range.start) as libc::off_t);
    let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    loop {
        // SAFETY: the descriptor is open; no pointers; only what the file holds goes.
        if unsafe { libc::fallocate(file.as_raw_fd(), how, start, len) } == 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}

/// The parts of a range that hold no data yet, by SEEK_DATA and SEEK_HOLE. Blocks that are allocated but were
/// never written may count as holes. A file system without the calls reports no hole at all.
pub(crate) fn holes(file: &File, range: &Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let data = match seek(file, at, libc::SEEK_DATA)? {
            Some(data) => data.min(range.end),
            None => range.end,
        };
        if data > at {
            found.push(at..data);
        }
        if data >= range.end {
            break;
        }
        at = seek(file, data, libc::SEEK_HOLE)?.unwrap_or(range.end);
    }
    Ok(found)
}

/// The first data at or after `from`, as [`holes`] sees it; None where only a hole is left.
pub(crate) fn next_data(file: &File, from: u64) -> io::Result<Option<u64>> {
    seek(file, from, libc::SEEK_DATA)
}

/// The next data or hole at or after `from`; None past the last one. Moves the (otherwise unused) file
/// position.
fn seek(file: &File, from: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    counters::add_syscall();
    // SAFETY: the descriptor is open; no pointers. All other code of this crate reads and writes at offsets.
    let at = unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, whence) };
    if at >= 0 {
        return Ok(Some(at as u64));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENXIO) => Ok(None),
        _ => Err(error),
    }
}

#[repr(C)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

const EXTENTS: usize = 64;

#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [FiemapExtent; EXTENTS],
}

// The size without extents and one extent's size are part of the ioctl's contract (linux/fiemap.h).
const _: () = assert!(std::mem::size_of::<FiemapExtent>() == 56);
const _: () = assert!(std::mem::offset_of!(Fiemap, extents) == 32);

const FS_IOC_FIEMAP: u64 = 0xC020_660B;
const FIEMAP_EXTENT_LAST: u32 = 1;

/// How many bytes of a range have blocks, written or not: by FIEMAP, else by counting what is not a hole.
pub(crate) fn allocated_bytes(file: &File, range: &Range<u64>) -> io::Result<u64> {
    if let Some(bytes) = fiemap_bytes(file, range) {
        return Ok(bytes);
    }
    let missing: u64 = holes(file, range)?.iter().map(|hole| hole.end - hole.start).sum();
    Ok(range.end - range.start - missing)
}

fn fiemap_bytes(file: &File, range: &Range<u64>) -> Option<u64> {
    // SAFETY: Fiemap is plain integers, for which all-zero bytes are a value.
    let mut map: Box<Fiemap> = Box::new(unsafe { std::mem::zeroed() });
    let mut at = range.start;
    let mut total = 0;
    while at < range.end {
        map.start = at;
        map.length = range.end - at;
        map.flags = 0;
        map.extent_count = EXTENTS as u32;
        counters::add_syscall();
        // SAFETY: the descriptor is open; the kernel writes at most `extent_count` extents, the array's
        // length.
        let rc = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &mut *map as *mut Fiemap) };
        if rc != 0 {
            return None;
        }
        let extents = &map.extents[..(map.mapped_extents as usize).min(EXTENTS)];
        for extent in extents {
            let end = extent.logical.saturating_add(extent.length).min(range.end);
            total += end.saturating_sub(extent.logical.max(at));
            at = at.max(end);
        }
        if extents.last().is_none_or(|last| last.flags & FIEMAP_EXTENT_LAST != 0) {
            break;
        }
    }
    Some(total)
}

/// What a file asks of direct transfers, in bytes; powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectAlignment {
    /// Of the address of the memory.
    pub(crate) memory: usize,
    /// Of the offset in the file, and of the length.
    pub(crate) offset: usize,
}

/// What this file, opened with O_DIRECT, asks for: by statx (6.1), else by trial reads. None where it takes no direct
/// transfers.
pub(crate) fn direct_alignment(file: &File) -> Option<DirectAlignment> {
    // SAFETY: statx is plain integers, for which all-zero bytes are a value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    counters::add_syscall();
    // SAFETY: the descriptor is open, the path is an empty C string, `stat` outlives the call.
    let rc = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut stat)
    };
    if rc == 0 && stat.stx_mask & libc::STATX_DIOALIGN != 0 {
        let (memory, offset) = (stat.stx_dio_mem_align as usize, stat.stx_dio_offset_align as usize);
        return (memory > 0 && offset > 0).then_some(DirectAlignment { memory, offset });
    }
    // The trial asks with both alike: the memory may need less, never more.
    [512, 4096]
        .into_iter()
        .find(|align| reads_at(file, *align))
        .map(|align| DirectAlignment { memory: align, offset: align })
}

/// Whether `align` bytes at offset `align` can be read into memory that is aligned so and no better.
fn reads_at(file: &File, align: usize) -> bool {
    let mut memory = vec![0u8; 4 * align];
    let skew = memory.as_ptr().align_offset(2 * align) + align;
    // At the start where the file may be no longer than that: behind its end nothing is refused.
    let offset = if align < 4096 { align as u64 } else { 0 };
    counters::add_syscall();
    file.read_at(&mut memory[skew..skew + align], offset).is_ok()
}

/// Asks the kernel to read a range into the page cache, without waiting for it. Best effort.
///
/// In slices, because the kernel cuts one request to what the device takes at once (often a few MiB).
pub(crate) fn read_ahead(file: &File, range: &Range<u64>, slice_bytes: u64) {
    let mut at = range.start;
    while at < range.end {
        let len = slice_bytes.min(range.end - at);
        counters::add_syscall();
        // SAFETY: the descriptor is open; no pointers; the advice changes no content.
        unsafe {
            libc::posix_fadvise(
                file.as_raw_fd(),
                at as libc::off_t,
                len as libc::off_t,
                libc::POSIX_FADV_WILLNEED,
            )
        };
        at += len;
    }
}

/// Drops the cached pages of a file that are clean and that no process has mapped.
pub(crate) fn drop_cached(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open; no pointers; only clean pages go, which can be read again.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Writes all of `data` at `offset`.
pub(crate) fn write_all_at(file: &File, data: &[u8], offset: u64) -> io::Result<()> {
    write_all_with(data, offset, |data, offset| {
        counters::add_syscall();
        host::interruptible("write")?;
        file.write_at(&data[..host::transfer_bytes(offset, data.len())], offset)
    })
}

/// Goes on after short writes and interruptions.
fn write_all_with(
    mut data: &[u8],
    mut offset: u64,
    mut write: impl FnMut(&[u8], u64) -> io::Result<usize>,
) -> io::Result<()> {
    while !data.is_empty() {
        match write(data, offset) {
            Ok(0) => {
                return Err(io::Error::new(
                    io::ErrorKind::WriteZero,
                    "write returned 0: the file accepts no more bytes",
                ))
            }
            Ok(n) => {
                data = &data[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// fdatasync. EINTR is repeated (nothing was reported lost); any other error means that pages may be lost.
#[cfg_attr(forebay_simulated, track_caller)]
pub(crate) fn flush_data(file: &File) -> io::Result<()> {
    host::syscall("fdatasync")?;
    loop {
        counters::add_syscall();
        counters::add_flushes(1);
        match file.sync_data() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => {
                #[cfg(forebay_simulated)]
                crate::simulation::flushed(file);
                return other;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_goes_on_after_short_and_interrupted_writes() {
        let (mut seen, mut calls) = (vec![0u8; 20], 0);
        let data: Vec<u8> = (1..=13).collect();
        let stub = |part: &[u8], at: u64| {
            calls += 1;
            if calls % 2 == 1 {
                return Err(io::Error::from_raw_os_error(libc::EINTR));
            }
            let n = part.len().min(3);
            seen[at as usize..at as usize + n].copy_from_slice(&part[..n]);
            Ok(n)
        };
        write_all_with(&data, 5, stub).unwrap();
        assert_eq!(seen[5..18], data);
        assert_eq!(calls, 10);
        let nothing = write_all_with(&data, 0, |_, _| Ok(0)).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WriteZero);
        let broken =
            write_all_with(&data, 0, |_, _| Err(io::Error::from_raw_os_error(libc::EIO))).unwrap_err();
        assert_eq!(broken.raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn holes_and_allocation_are_told_apart() {
        for dir in ["/dev/shm".into(), std::env::temp_dir()] {
            let file = tempfile::tempfile_in(&dir).unwrap();
            file.set_len(1 << 20).unwrap();
            assert_eq!(holes(&file, &(0..1 << 20)).unwrap(), vec![0..1 << 20]);
            assert_eq!(allocated_bytes(&file, &(0..1 << 20)).unwrap(), 0);
            write_all_at(&file, &[1; 8192], 65536).unwrap();
            assert_eq!(holes(&file, &(0..1 << 20)).unwrap(), vec![0..65536, 73728..1 << 20]);
            assert_eq!(holes(&file, &(65536..73728)).unwrap(), vec![]);
            assert_eq!(holes(&file, &(69632..81920)).unwrap(), vec![73728..81920]);
            assert_eq!(allocated_bytes(&file, &(0..1 << 20)).unwrap(), 8192);
            assert_eq!(allocated_bytes(&file, &(61440..69632)).unwrap(), 4096);
            assert_eq!(allocated_bytes(&file, &(0..65536)).unwrap(), 0);
        }
    }
}
