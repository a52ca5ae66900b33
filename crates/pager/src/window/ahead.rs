//! Reading ahead in a window, and writing behind: threads that bring tiles before they are touched, and write those
//! that are to leave next.
//!
//! A fault says where a reader is; one that follows another makes a stream, whose width doubles from fault to fault.
//! A reader that finds everything there says nothing, so that the next fault comes behind what was brought, and
//! widens it. What signal handlers change is atomics; the queue of ranges that the program asks for has a lock that
//! no handler takes.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_tier::window;

use super::crew::Crew;
use super::service::Service;
use super::words::SLICE_MS;

/// Streams that are followed at once.
const STREAMS: usize = 8;

/// Bytes ahead of a reader: what keeps a fast device busy.
const AHEAD_BYTES: u64 = 16 << 20;

/// Threads of a window: with one request each they fill a device of today with longer tiles.
const THREADS: usize = 8;

/// Slices of sleep without work: nothing is missed, since the thread that brings work wakes it.
const IDLE_MS: u32 = 20 * SLICE_MS;

/// A run of faults, one after the other.
#[derive(Default)]
struct Stream {
    /// The tile after the last that was touched.
    next: AtomicU64,
    /// Up to where tiles were handed to threads, and up to where they shall be.
    issued: AtomicU64,
    limit: AtomicU64,
    width: AtomicU64,
}

/// See the file's head.
pub(crate) struct Streams {
    streams: [Stream; STREAMS],
    newest: AtomicU32,
    tiles: u64,
    width_max: u64,
    /// Nothing is read ahead of faults.
    random: AtomicBool,
    /// Threads are there.
    served: AtomicBool,
    work: AtomicU32,
    /// Dirty tiles leave: those that are next shall be written before.
    sweeps: AtomicBool,
    asked: Mutex<VecDeque<Range<u64>>>,
    stop: AtomicBool,
}

impl Streams {
    pub(crate) fn new(tiles: u64, tile_bytes: usize, slots: u32) -> Streams {
        let width_max = (AHEAD_BYTES / tile_bytes as u64).min(u64::from(slots) / 4);
        Streams {
            streams: Default::default(),
            newest: AtomicU32::new(0),
            tiles,
            width_max,
            random: AtomicBool::new(false),
            served: AtomicBool::new(false),
            work: AtomicU32::new(0),
            sweeps: AtomicBool::new(false),
            asked: Mutex::default(),
            stop: AtomicBool::new(false),
        }
    }

    pub(crate) fn expect_random(&self, random: bool) {
        self.random.store(random, Relaxed);
    }

    /// A fault in this tile. May run in a signal handler.
    pub(crate) fn touched(&self, tile: u32) {
        if self.random.load(Relaxed) || self.width_max == 0 || !self.served.load(Relaxed) {
            return;
        }
        let tile = u64::from(tile);
        for stream in &self.streams {
            let (next, issued) = (stream.next.load(Relaxed), stream.issued.load(Relaxed));
            if next > 0 && tile >= next && tile <= issued.max(next) {
                let width = (stream.width.load(Relaxed) * 2).max(2).min(self.width_max);
                stream.width.store(width, Relaxed);
                self.widen(stream, tile, width);
                return;
            }
        }
        // Where there was none, one may begin: with nothing ahead before it goes on.
        let at = self.newest.fetch_add(1, Relaxed) as usize % STREAMS;
        let stream = &self.streams[at];
        stream.width.store(0, Relaxed);
        stream.limit.store(tile + 1, Relaxed);
        stream.issued.store(tile + 1, Relaxed);
        stream.next.store(tile + 1, Relaxed);
    }

    fn widen(&self, stream: &Stream, tile: u64, width: u64) {
        stream.next.store(tile + 1, Relaxed);
        stream.issued.fetch_max(tile + 1, Relaxed);
        stream.limit.store((tile + 1 + width).min(self.tiles), Relaxed);
        self.wake();
    }

    /// The program will read these tiles in order.
    pub(crate) fn will_stream(&self, tiles: Range<u64>) {
        let at = self.newest.fetch_add(1, Relaxed) as usize % STREAMS;
        let stream = &self.streams[at];
        stream.width.store(self.width_max / 2, Relaxed);
        stream.issued.store(tiles.start, Relaxed);
        stream.next.store(tiles.start.max(1), Relaxed);
        stream.limit.store((tiles.start + self.width_max).min(tiles.end), Relaxed);
        self.wake();
    }

    /// The program will want these tiles.
    pub(crate) fn ask(&self, tiles: Range<u64>) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push_back(tiles);
        self.wake();
    }

    /// A dirty tile has to leave. May run in a signal handler.
    pub(crate) fn sweep(&self) {
        if self.served.load(Relaxed) && !self.sweeps.swap(true, AcqRel) {
            self.wake();
        }
    }

    fn wake(&self) {
        self.work.fetch_add(1, Release);
        window::wake_in_handler(&self.work);
    }

    /// The next tile to bring.
    fn next(&self) -> Option<u32> {
        for stream in &self.streams {
            if stream.issued.load(Relaxed) < stream.limit.load(Relaxed) {
                let tile = stream.issued.fetch_add(1, Relaxed);
                if tile < stream.limit.load(Relaxed) {
                    return u32::try_from(tile).ok();
                }
            }
        }
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let range = asked.front_mut()?;
        let tile = range.start;
        range.start += 1;
        if range.is_empty() {
            asked.pop_front();
        }
        u32::try_from(tile).ok()
    }
}

/// The threads of a window that read ahead.
pub(crate) struct Helpers {
    service: Arc<Service>,
    _crew: Crew,
}

impl Helpers {
    /// Fewer than wanted where the system gives no more; none is no error: nothing is read ahead then.
    pub(crate) fn start(service: &Arc<Service>) -> Helpers {
        let mut crew = Crew::new();
        for number in 0..THREADS {
            let own = service.clone();
            if crew.start(format!("forebay-window-{number}"), move || serve(&own)).is_err() {
                break;
            }
        }
        service.streams.served.store(!crew.is_empty(), Relaxed);
        Helpers { service: service.clone(), _crew: crew }
    }
}

fn serve(service: &Service) {
    let streams = &service.streams;
    while !streams.stop.load(Acquire) {
        let seen = streams.work.load(Acquire);
        match streams.next() {
            Some(tile) => service.bring_ahead(tile),
            None if streams.sweeps.load(Acquire) => {
                if !service.sweep() {
                    streams.sweeps.store(false, Release);
                }
            }
            None => {
                window::wait_in_handler(&streams.work, seen, IDLE_MS);
            }
        }
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        let streams = &self.service.streams;
        streams.served.store(false, Relaxed);
        streams.stop.store(true, Release);
        streams.wake();
    }
}
