//! A copy of what a window holds, in another file: what a child of `fork` begins with.
//!
//! Goes past the page cache where the file system can, so that a copy needs no memory of its own but one buffer, and
//! passes over what was never stored.

use std::alloc::{alloc, dealloc, handle_alloc_error, Layout};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use forebay_pager::Window;
use forebay_tier::plain::PlainFile;
use forebay_tier::{Error, Result};

use crate::extents::{Extents, PAGE};

/// What is read and written at once.
const PART: u64 = 1 << 20;

/// What is not written where it is zeros.
const PIECE: usize = 64 << 10;

/// Memory that begins with a page, as transfers past the page cache ask for it.
struct Buffer(*mut u8);

impl Buffer {
    const LAYOUT: Layout = match Layout::from_size_align(PART as usize, PAGE as usize) {
        Ok(layout) => layout,
        Err(_) => panic!("a page is a power of two"),
    };

    fn new() -> Buffer {
        // SAFETY: a layout that is not empty.
        let memory = unsafe { alloc(Buffer::LAYOUT) };
        if memory.is_null() {
            handle_alloc_error(Buffer::LAYOUT);
        }
        // SAFETY: as long as it was asked for.
        unsafe { memory.write_bytes(0, PART as usize) };
        Buffer(memory)
    }

    fn first(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= PART as usize);
        // SAFETY: initialised memory of this value, so long as asserted.
        unsafe { std::slice::from_raw_parts_mut(self.0, bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: from `alloc` with this layout.
        unsafe { dealloc(self.0, Buffer::LAYOUT) }
    }
}

/// Copies all that is given out of `window` to the same places of `to`, which is zeros.
pub(crate) fn all(window: &Window, given: &Extents, to: &PlainFile) -> Result<()> {
    let mut buffer = Buffer::new();
    // Else the file lacks what is in memory alone, and holes say nothing.
    let file = window.file().filter(|_| window.is_file());
    for range in given.live() {
        for stored in window.stored(&range) {
            let mut at = stored.start;
            while let Some(part) = next_part(file, at..stored.end) {
                let bytes = buffer.first((part.end - part.start) as usize);
                window.read(part.start, bytes)?;
                write(to, part.start, bytes).map_err(|e| Error::io("cannot copy memory for a child", e))?;
                at = part.end;
            }
        }
    }
    Ok(())
}

/// The first part of a range in which the file, if one is given, may have data.
fn next_part(file: Option<&File>, range: Range<u64>) -> Option<Range<u64>> {
    if range.is_empty() {
        return None;
    }
    let start = file.map_or(range.start, |file| data_from(file, range.start)) / PAGE * PAGE;
    let start = start.max(range.start);
    (start < range.end).then(|| start..(start / PART * PART + PART).min(range.end))
}

/// Where data begins, from `at` on.
fn data_from(file: &File, at: u64) -> u64 {
    // SAFETY: the descriptor is open; no pointers.
    let found = unsafe { libc::lseek(file.as_raw_fd(), at as libc::off_t, libc::SEEK_DATA) };
    match found {
        // There is none behind it; where the file system cannot tell, all of it is.
        -1 if crate::next::errno() == libc::ENXIO => u64::MAX,
        -1 => at,
        found => found as u64,
    }
}

/// Writes what is not zeros.
fn write(to: &PlainFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
    for (number, piece) in bytes.chunks(PIECE).enumerate() {
        // SAFETY: any bytes are words; the ends that are none are looked at, too.
        let (head, words, tail) = unsafe { piece.align_to::<u64>() };
        if words.iter().all(|word| *word == 0) && head.iter().chain(tail).all(|byte| *byte == 0) {
            continue;
        }
        let at = offset + (number * PIECE) as u64;
        let past = to.direct().map(|file| file.write_all_at(piece, at));
        if !matches!(past, Some(Ok(()))) {
            to.cached().write_all_at(piece, at)?;
        }
    }
    Ok(())
}
