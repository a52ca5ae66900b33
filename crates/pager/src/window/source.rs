//! Where the tiles of a window come from: a file that the faulting thread reads itself, or a backing that threads read
//! for those who fault, as a signal handler may do no more than wait.
//!
//! Guarantees: each request gets an answer as long as the crew lives, also where the backing panics; the errors of
//! the last reads are kept.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_tier::plain::PlainFile;
use forebay_tier::window::{self, Faulted};
use forebay_tier::Error;

use super::crew::Crew;
use super::words::SLICE_MS;
use crate::array::Kept;
use crate::backing::Backing;

/// Threads that read: as many as keep a device of today busy with longer tiles.
const THREADS: usize = 8;

/// Slices of sleep without work: nothing is missed, since the thread that brings work wakes it.
const IDLE_MS: u32 = 20 * SLICE_MS;

/// Errors that are kept; older ones are only a number.
const ERRORS_MAX: usize = 128;

/// See the file's head.
#[derive(Clone)]
pub(crate) enum Source {
    File(Arc<PlainFile>),
    Backing(Arc<Fetch>),
}

impl Source {
    /// For messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Source::File(file) => file.path().display().to_string(),
            Source::Backing(fetch) => fetch.backing.name(),
        }
    }

    /// Bytes that are there.
    pub(crate) fn bytes(&self) -> forebay_tier::Result<u64> {
        match self {
            Source::File(file) => file.bytes(),
            Source::Backing(fetch) => Ok(fetch.backing.bytes()),
        }
    }

    /// Makes durable what was written. A backing is never written.
    pub(crate) fn flush(&self) -> io::Result<()> {
        match self {
            Source::File(file) => file.flush(),
            Source::Backing(_) => Ok(()),
        }
    }
}

/// No request is for this buffer.
const IDLE: u32 = 0;
/// It shall be filled.
const ASKED: u32 = 1;
/// A thread fills it.
const TAKEN: u32 = 2;
/// It is full, or could not be filled.
const DONE: u32 = 3;

/// What a buffer shall be filled with. Who owns the buffer changes it while `IDLE` or `DONE`, the thread that took it
/// while `TAKEN`.
#[derive(Default)]
struct Request {
    state: AtomicU32,
    offset: AtomicU64,
    bytes: AtomicU64,
    /// 0: it went well.
    errno: AtomicI32,
}

/// Reads of a backing that are asked for where nothing may be allocated or locked.
pub(crate) struct Fetch {
    backing: Arc<dyn Backing>,
    /// One for each buffer.
    requests: Box<[Request]>,
    /// Changes with every request.
    asked: AtomicU32,
    stop: AtomicBool,
    /// Where reads failed, and what with; the newest last.
    errors: Mutex<VecDeque<(Range<u64>, Kept)>>,
}

impl Fetch {
    pub(crate) fn new(backing: Arc<dyn Backing>, buffers: usize) -> Fetch {
        Fetch {
            backing,
            requests: (0..buffers).map(|_| Request::default()).collect(),
            asked: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            errors: Mutex::default(),
        }
    }

    /// Fills a buffer that the caller alone uses with `bytes` from `offset` on. May run in a signal handler.
    pub(crate) fn read(&self, buffer: u32, offset: u64, bytes: usize) -> Result<(), i32> {
        let request = &self.requests[buffer as usize];
        request.offset.store(offset, Relaxed);
        request.bytes.store(bytes as u64, Relaxed);
        request.state.store(ASKED, Release);
        self.asked.fetch_add(1, Release);
        window::wake_one_in_handler(&self.asked);
        loop {
            match request.state.load(Acquire) {
                DONE => break,
                state => drop(window::wait_in_handler(&request.state, state, SLICE_MS)),
            }
        }
        request.state.store(IDLE, Relaxed);
        match request.errno.load(Relaxed) {
            0 => Ok(()),
            errno => Err(errno),
        }
    }

    /// What reading the byte at `at` failed with last.
    pub(crate) fn error_at(&self, at: u64) -> Option<Error> {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.iter().rev().find(|(range, _)| range.contains(&at)).map(|(_, kept)| kept.error())
    }

    fn keep(&self, range: Range<u64>, error: &Error) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.retain(|(other, _)| *other != range);
        if errors.len() == ERRORS_MAX {
            errors.pop_front();
        }
        errors.push_back((range, Kept::new(error)));
    }

    /// Fills buffers until it shall stop.
    fn work(&self, memory: &Faulted) {
        while !self.stop.load(Acquire) {
            let asked = self.asked.load(Acquire);
            let mut found = false;
            for (buffer, request) in self.requests.iter().enumerate() {
                if request.state.compare_exchange(ASKED, TAKEN, Acquire, Relaxed).is_ok() {
                    found = true;
                    self.fill(memory, buffer, request);
                }
            }
            if !found {
                window::wait_in_handler(&self.asked, asked, IDLE_MS);
            }
        }
    }

    fn fill(&self, memory: &Faulted, buffer: usize, request: &Request) {
        let (offset, bytes) = (request.offset.load(Relaxed), request.bytes.load(Relaxed));
        let read = || memory.fill(buffer, bytes as usize, |out| self.backing.read(offset, out));
        // A waiting thread is not to wait for a thread that is gone.
        let errno = match catch_unwind(AssertUnwindSafe(read)) {
            Ok(Ok(())) => 0,
            Ok(Err(e)) => {
                self.keep(offset..offset + bytes, &e);
                EIO
            }
            Err(_) => EIO,
        };
        request.errno.store(errno, Relaxed);
        request.state.store(DONE, Release);
        window::wake_in_handler(&request.state);
    }
}

const EIO: i32 = 5;

/// The threads that read for a window; they end with it.
pub(crate) struct Fetching {
    fetch: Arc<Fetch>,
    crew: Crew,
}

impl Fetching {
    pub(crate) fn start(fetch: &Arc<Fetch>, memory: &Arc<Faulted>) -> io::Result<Fetching> {
        // Made first, so that those that have begun end when one cannot.
        let mut made = Fetching { fetch: fetch.clone(), crew: Crew::new() };
        for number in 0..THREADS {
            let (fetch, memory) = (fetch.clone(), memory.clone());
            made.crew.start(format!("forebay-fetch-{number}"), move || fetch.work(&memory))?;
        }
        Ok(made)
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.fetch.stop.store(true, Release);
        if self.crew.is_here() {
            self.fetch.asked.fetch_add(1, Release);
            window::wake_in_handler(&self.fetch.asked);
        }
    }
}
