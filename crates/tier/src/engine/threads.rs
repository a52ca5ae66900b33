//! The engine `threads`: each request is a plain system call; for several, threads are started for the transfer.
//!
//! They are scoped threads: nothing outlives the call, nothing is left for a forked child, and borrowed memory needs
//! no unsafe code. Starting one takes some 20 µs, a request of 512 KiB some 200. The calling thread works too, so a
//! transfer goes on, with less in flight, where no thread can be started.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::sync::mpsc::{channel, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use super::aligned::Aligned;
use super::{pieces, read_exact_at, Meanwhile, Part, DEPTH, REQUEST_BYTES};
use crate::sys;

/// Frames of a transfer. Two for each of the threads that a disk needs to be busy.
const FRAMES: usize = 8;

/// The first error of a transfer.
#[derive(Default)]
struct Failed(Mutex<Option<io::Error>>);

impl Failed {
    fn note(&self, result: io::Result<()>) {
        if let Err(e) = result {
            lock(&self.0).get_or_insert(e);
        }
    }

    fn is_set(&self) -> bool {
        lock(&self.0).is_some()
    }

    fn result(self) -> io::Result<()> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work` for each request, on this thread (after `first`) and as many more as make sense.
fn spread<R: Send>(
    requests: Vec<R>,
    first: impl FnOnce(),
    work: impl Fn(R) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let helpers = (requests.len() - 1).min(DEPTH);
    let (requests, failed) = (Mutex::new(requests.into_iter()), Failed::default());
    let run = || {
        while !failed.is_set() {
            let Some(request) = lock(&requests).next() else { break };
            failed.note(work(request));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..helpers {
            if Builder::new().spawn_scoped(scope, run).is_err() {
                break;
            }
        }
        first();
        run();
    });
    failed.result()
}

pub(super) fn write_all(
    file: &File,
    requests: Vec<(u64, &[u8])>,
    meanwhile: Meanwhile<'_>,
) -> io::Result<()> {
    let parts: Vec<&[u8]> = requests.iter().map(|(_, bytes)| *bytes).collect();
    let sum = || {
        if let Some(meanwhile) = meanwhile {
            parts.into_iter().for_each(meanwhile);
        }
    };
    spread(requests, sum, |(offset, bytes)| sys::write_all_at(file, bytes, offset))
}

pub(super) fn read_exact(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    let requests = (offset..).step_by(REQUEST_BYTES).zip(out.chunks_mut(REQUEST_BYTES)).collect();
    spread(requests, || {}, |(offset, bytes)| read_exact_at(file, offset, bytes))
}

thread_local! {
    /// The frame for streams of one request, as large as the largest so far.
    static ONE: RefCell<Aligned> = RefCell::new(Aligned::new(0));
}

/// Runs `work` with a frame of at least `len` bytes.
fn with_frame<T>(len: usize, work: impl FnOnce(&mut Aligned) -> T) -> T {
    ONE.with(|cell| match cell.try_borrow_mut() {
        Ok(mut frame) => {
            if frame.len() < len {
                *frame = Aligned::new(len.next_power_of_two());
            }
            work(&mut frame)
        }
        // In use further up the stack.
        Err(_) => work(&mut Aligned::new(len)),
    })
}

/// A stream of one request.
pub(super) fn write_one(file: &File, offset: u64, len: usize, fill: Part<'_>) -> io::Result<()> {
    with_frame(len, |frame| {
        fill(0, frame.part(len));
        sys::write_all_at(file, frame.part(len), offset)
    })
}

/// A stream of one request.
pub(super) fn read_one(file: &File, offset: u64, len: usize, take: Part<'_>) -> io::Result<()> {
    with_frame(len, |frame| {
        read_exact_at(file, offset, frame.part(len))?;
        take(0, frame.part(len));
        Ok(())
    })
}

/// A frame on its way to or from a helper: position, length.
type Loaded = (usize, usize, Aligned);

/// Helpers that run `work` on frames that come in, and send them out when done.
fn helper(incoming: &Mutex<Receiver<Loaded>>, outgoing: &Sender<Loaded>, work: impl Fn(&mut Loaded)) {
    loop {
        let received = lock(incoming).recv();
        let Ok(mut loaded) = received else { return };
        work(&mut loaded);
        if outgoing.send(loaded).is_err() {
            return;
        }
    }
}

pub(super) fn write_stream(file: &File, offset: u64, len: usize, fill: Part<'_>) -> io::Result<()> {
    let write =
        |(at, len, frame): &mut Loaded| sys::write_all_at(file, frame.part(*len), offset + *at as u64);
    stream(len, write, &mut |at, bytes, is_loaded| {
        if !is_loaded {
            fill(at, bytes);
        }
    })
}

pub(super) fn read_stream(file: &File, offset: u64, len: usize, take: Part<'_>) -> io::Result<()> {
    let read = |(at, len, frame): &mut Loaded| read_exact_at(file, offset + *at as u64, frame.part(*len));
    stream(len, read, &mut |at, bytes, is_loaded| {
        if is_loaded {
            take(at, bytes);
        }
    })
}

/// Sends frames through helpers that `work` on them; `visit` sees each before (false) and after (true), in this
/// thread. Without any helper this thread works.
fn stream(
    len: usize,
    work: impl Fn(&mut Loaded) -> io::Result<()> + Sync,
    visit: &mut dyn FnMut(usize, &mut [u8], bool),
) -> io::Result<()> {
    let failed = Failed::default();
    let (to_helpers, incoming) = channel::<Loaded>();
    let (outgoing, from_helpers) = channel::<Loaded>();
    let incoming = Mutex::new(incoming);
    let run = |loaded: &mut Loaded| failed.note(work(loaded));
    std::thread::scope(|scope| {
        let (incoming, run) = (&incoming, &run);
        let start = |outgoing: Sender<Loaded>| {
            Builder::new().spawn_scoped(scope, move || helper(incoming, &outgoing, run)).is_ok()
        };
        let helpers =
            (0..FRAMES.min(len.div_ceil(REQUEST_BYTES))).take_while(|_| start(outgoing.clone())).count();
        let mut free: Vec<Aligned> =
            (0..helpers.max(1)).map(|_| Aligned::new(REQUEST_BYTES.min(len))).collect();
        let (mut next, mut under_way) = (pieces(len), 0);
        loop {
            let piece = if failed.is_set() || free.is_empty() { None } else { next.next() };
            let loaded = match piece {
                Some((at, len)) => {
                    let mut frame = free.pop().expect("looked above");
                    visit(at, frame.part(len), false);
                    let mut loaded = (at, len, frame);
                    if helpers > 0 {
                        to_helpers.send(loaded).expect("the receiver lives in this frame");
                        under_way += 1;
                        continue;
                    }
                    run(&mut loaded);
                    loaded
                }
                None if under_way == 0 => break,
                None => {
                    under_way -= 1;
                    from_helpers.recv().expect("helpers send back what they got")
                }
            };
            let (at, len, mut frame) = loaded;
            if !failed.is_set() {
                visit(at, frame.part(len), true);
            }
            free.push(frame);
        }
        drop(to_helpers);
    });
    failed.result()
}
