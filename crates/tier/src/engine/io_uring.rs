//! The engine `io_uring`: one ring per thread, requests handed over in batches, up to the ring's depth under way.
//!
//! A ring belongs to the thread that made it and to the process: a forked child makes its own. Where no ring can be
//! had for one thread (descriptors used up, a filter installed late), that transfer goes by `threads`.

use std::cell::RefCell;
use std::fs::File;
use std::io;

use super::{ended_early, pieces, threads, took_nothing, Meanwhile, Part, REQUEST_BYTES};
use crate::sys::ring::{Batch, Buffer, Direction, Ring, Transfer};

thread_local! {
    static RING: RefCell<Option<Ring>> = const { RefCell::new(None) };
}

/// Whether rings can be had here.
pub(super) fn trial() -> io::Result<()> {
    Ring::new().map(drop)
}

/// Runs `work` with this thread's ring; None when none is available (or it is in use further up the stack).
fn with_ring<T>(frames: bool, work: impl FnOnce(&mut Ring) -> T) -> Option<T> {
    RING.with(|cell| {
        let mut held = cell.try_borrow_mut().ok()?;
        if held.as_ref().is_some_and(Ring::is_unusable) {
            *held = None;
        }
        if held.is_none() {
            *held = Some(Ring::new().ok()?);
        }
        let ring = held.as_mut()?;
        if frames {
            ring.need_frames().ok()?;
        }
        Some(work(ring))
    })
}

/// How many bytes of this thread's frames the kernel has registered.
#[cfg(test)]
pub(crate) fn registered_bytes() -> Option<usize> {
    with_ring(true, |ring| ring.registered_bytes())
}

pub(super) fn write_all(
    file: &File,
    requests: Vec<(u64, &[u8])>,
    mut meanwhile: Meanwhile<'_>,
) -> io::Result<()> {
    let eager = meanwhile.is_some();
    let mut next = requests.iter();
    let mut under_way: Option<&[u8]> = None;
    let done = with_ring(false, |ring| {
        ring.scope(file, |batch| {
            let source = &mut |_: &mut Batch<'_, '_>| {
                if let (Some(bytes), Some(meanwhile)) = (under_way.take(), &mut meanwhile) {
                    meanwhile(bytes);
                }
                let (offset, bytes) = *next.next()?;
                under_way = Some(bytes);
                Some(Transfer { offset, buffer: Buffer::Out(bytes) })
            };
            pump(batch, eager, source, &mut |_, _| {})
        })
    });
    done.unwrap_or_else(|| threads::write_all(file, requests, meanwhile))
}

pub(super) fn read_exact(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    let done = with_ring(false, |ring| {
        ring.scope(file, |batch| {
            let mut next = (offset..).step_by(REQUEST_BYTES).zip(out.chunks_mut(REQUEST_BYTES));
            let source = &mut |_: &mut Batch<'_, '_>| {
                next.next().map(|(offset, bytes)| Transfer { offset, buffer: Buffer::In(bytes) })
            };
            pump(batch, false, source, &mut |_, _| {})
        })
    });
    done.unwrap_or_else(|| threads::read_exact(file, offset, out))
}

pub(super) fn write_stream(file: &File, offset: u64, len: usize, fill: Part<'_>) -> io::Result<()> {
    let done = with_ring(true, |ring| {
        ring.scope(file, |batch| {
            let mut next = pieces(len);
            pump(
                batch,
                true,
                &mut |batch| {
                    let (at, len) = next.next()?;
                    let mut frame = batch.take_frame(len).expect("a frame for each request");
                    fill(at, frame.part());
                    Some(Transfer {
                        offset: offset + at as u64,
                        buffer: Buffer::Frame(frame, Direction::Write),
                    })
                },
                &mut |_, _| {},
            )
        })
    });
    done.unwrap_or_else(|| threads::write_stream(file, offset, len, fill))
}

pub(super) fn read_stream(file: &File, offset: u64, len: usize, take: Part<'_>) -> io::Result<()> {
    let done = with_ring(true, |ring| {
        ring.scope(file, |batch| {
            let mut next = pieces(len);
            pump(
                batch,
                false,
                &mut |batch| {
                    let (at, len) = next.next()?;
                    let frame = batch.take_frame(len).expect("a frame for each request");
                    Some(Transfer {
                        offset: offset + at as u64,
                        buffer: Buffer::Frame(frame, Direction::Read),
                    })
                },
                &mut |at, bytes| take((at - offset) as usize, bytes),
            )
        })
    });
    done.unwrap_or_else(|| threads::read_stream(file, offset, len, take))
}

/// Keeps requests under way until `source` has no more, then waits for the rest. `eager` hands each over at once,
/// because the source takes its time for the next; otherwise as many as fit go together. What a frame got from the
/// file is shown to `arrived` with its offset. After the first error nothing new begins.
fn pump<'ring, 'env>(
    batch: &mut Batch<'ring, 'env>,
    eager: bool,
    source: &mut dyn FnMut(&mut Batch<'ring, 'env>) -> Option<Transfer<'ring, 'env>>,
    arrived: &mut dyn FnMut(u64, &mut [u8]),
) -> io::Result<()> {
    let (mut more, mut failed) = (true, None);
    loop {
        while more && failed.is_none() && batch.has_capacity() {
            match source(batch) {
                Some(transfer) => batch.push(transfer),
                None => more = false,
            }
            if eager {
                batch.submit()?;
                take_completions(batch, &mut failed, arrived, false)?;
            }
        }
        if batch.is_idle() {
            return failed.map_or(Ok(()), Err);
        }
        take_completions(batch, &mut failed, arrived, true)?;
    }
}

/// Handles every completion that is there, waiting for the first if asked.
fn take_completions<'ring, 'env>(
    batch: &mut Batch<'ring, 'env>,
    failed: &mut Option<io::Error>,
    arrived: &mut dyn FnMut(u64, &mut [u8]),
    wait: bool,
) -> io::Result<()> {
    let mut done = if wait { Some(batch.wait()?) } else { batch.completed() };
    while let Some((transfer, moved)) = done {
        match moved.and_then(|moved| advance(batch, transfer, moved, arrived)) {
            Ok(Some(rest)) => batch.push(rest),
            Ok(None) => {}
            Err(e) => {
                failed.get_or_insert(e);
            }
        }
        done = batch.completed();
    }
    Ok(())
}

/// What is left of a request of which `moved` bytes are done; None when that was all.
fn advance<'ring, 'env>(
    batch: &mut Batch<'ring, 'env>,
    transfer: Transfer<'ring, 'env>,
    moved: usize,
    arrived: &mut dyn FnMut(u64, &mut [u8]),
) -> io::Result<Option<Transfer<'ring, 'env>>> {
    let offset = transfer.offset + moved as u64;
    let rest = |buffer| Ok(Some(Transfer { offset, buffer }));
    match transfer.buffer {
        Buffer::Out(_) if moved == 0 => Err(took_nothing()),
        Buffer::In(_) if moved == 0 => Err(ended_early()),
        Buffer::Out(bytes) if moved < bytes.len() => rest(Buffer::Out(&bytes[moved..])),
        Buffer::In(bytes) if moved < bytes.len() => rest(Buffer::In(&mut bytes[moved..])),
        Buffer::Out(_) | Buffer::In(_) => Ok(None),
        Buffer::Frame(frame, Direction::Write) if moved == 0 => {
            batch.give_frame(frame);
            Err(took_nothing())
        }
        Buffer::Frame(frame, Direction::Read) if moved == 0 => {
            batch.give_frame(frame);
            Err(ended_early())
        }
        Buffer::Frame(mut frame, direction) => {
            if direction == Direction::Read {
                arrived(transfer.offset, &mut frame.part()[..moved]);
            }
            frame.from += moved;
            if frame.from < frame.to {
                return rest(Buffer::Frame(frame, direction));
            }
            batch.give_frame(frame);
            Ok(None)
        }
    }
}
