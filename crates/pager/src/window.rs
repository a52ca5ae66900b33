//! A window: an address range that looks like the whole array, of which a budget's worth is in memory.
//!
//! For code that needs a plain slice or pointer. Three engines behind it, of which [`Window::statistics`] says which
//! was chosen and why:
//!
//! - *userfault*: a thread that touches a tile that is not there reads it in its own signal handler; whole tiles, a
//!   budget that is never exceeded, writes noticed by protection. Mode *handler*, threads that answer instead, only
//!   where calls of the system shall be given addresses of the window.
//! - *kernel*: a mapping of the file whose pages a thread sends away before the budget is exceeded.
//! - *direct*: a mapping of a file that lies in memory anyway.
//!
//! What is no file ([`Window::on`]) is read by threads, for those that touch it.
//!
//! Guarantees: what was stored is not lost as long as the system lives, [`Window::flush`] makes it durable; a page
//! that cannot be read is an error where it is touched, of that page alone. Touching the window in a forked child is
//! SIGSEGV. Does not: let one thread wait for another's stores; that is memory as any other.

mod ahead;
mod crew;
mod failures;
mod kernel;
mod open;
mod scratch;
mod service;
mod source;
mod stack;
mod words;

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::{AnyBitPattern, NoUninit};
use forebay_tier::process::ForkMark;
use forebay_tier::window::{self, Expect, FaultsServed, FileWindow, View};
use forebay_tier::{Error, Kind, Result};

use crate::array::Mode;
use ahead::Helpers;
use kernel::Kernel;
pub use scratch::Pinned;
use service::Service;
use source::{Fetching, Source};

/// Threads that write at once when everything is flushed.
const FLUSH_THREADS: usize = 8;

/// How a window works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowEngine {
    /// The thread that touches what is not there reads it in its own signal handler.
    Userfault,
    /// As that, but threads answer, also when the kernel touches it.
    Handler,
    /// A mapping of the file whose pages we send away.
    Kernel,
    /// A mapping of a file that lies in memory.
    Direct,
}

impl WindowEngine {
    /// As [`WindowStatistics`] and the environment spell it.
    pub fn name(self) -> &'static str {
        match self {
            WindowEngine::Userfault => "userfault",
            WindowEngine::Handler => "handler",
            WindowEngine::Kernel => "kernel",
            WindowEngine::Direct => "direct",
        }
    }
}

impl std::str::FromStr for WindowEngine {
    type Err = Error;
    fn from_str(text: &str) -> Result<WindowEngine> {
        let all =
            [WindowEngine::Userfault, WindowEngine::Handler, WindowEngine::Kernel, WindowEngine::Direct];
        all.into_iter().find(|engine| engine.name() == text).ok_or_else(|| {
            Error::new(Kind::Usage, format!("`{text}` is not a window engine"))
                .hint("userfault, handler, kernel or direct")
        })
    }
}

/// What the program will do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Advice {
    /// Runs are found out and read ahead.
    #[default]
    Normal,
    /// Nothing is read beside what is touched.
    Random,
    /// Everything is read from front to back.
    Sequential,
}

impl std::str::FromStr for Advice {
    type Err = Error;
    fn from_str(text: &str) -> Result<Advice> {
        match text {
            "normal" => Ok(Advice::Normal),
            "random" => Ok(Advice::Random),
            "sequential" => Ok(Advice::Sequential),
            _ => Err(Error::new(Kind::Usage, format!("`{text}` is not a valid advice"))
                .hint("normal, random or sequential")),
        }
    }
}

/// What becomes of who touches a page that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// It gets SIGBUS, as with every mapping: the program's own handler, or the end of the process.
    #[default]
    Signal,
    /// It sees zeros, and [`Window::check`] says so.
    Zeros,
}

/// How to open a window.
#[derive(Clone, Debug)]
pub struct WindowOptions {
    /// Most bytes of it in memory, with what is known of them.
    pub budget: u64,
    /// Bytes that come and go together, where the engine can: a power of two from 4 KiB to 2 MiB.
    pub tile_bytes: usize,
    /// What may be done.
    pub mode: Mode,
    /// None: as it fits.
    pub engine: Option<WindowEngine>,
    /// What the program will do.
    pub advice: Advice,
    /// What becomes of bad pages.
    pub on_error: OnError,
    /// Byte of the file where the data begins.
    pub origin: u64,
    /// Bytes of data; None: to the end of the file.
    pub bytes: Option<u64>,
    /// Folder for the file of what was copied on write.
    pub overlay: PathBuf,
}

impl WindowOptions {
    /// This budget, everything else as it is mostly wanted.
    pub fn new(budget: u64) -> WindowOptions {
        WindowOptions {
            budget,
            tile_bytes: 64 << 10,
            mode: Mode::ReadOnly,
            engine: None,
            advice: Advice::Normal,
            on_error: OnError::Signal,
            origin: 0,
            bytes: None,
            overlay: std::env::temp_dir(),
        }
    }
}

/// What a window is and has done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WindowStatistics {
    /// How it works.
    pub engine: WindowEngine,
    /// Why so.
    pub why: &'static str,
    /// Touches of what was not there (*kernel*: of the whole process, for which a device was read).
    pub faults: u64,
    /// Bytes that left.
    pub evicted_bytes: u64,
    /// Bytes that were read (*kernel*: as far as they were counted).
    pub read_bytes: u64,
    /// Bytes that were written back.
    pub written_bytes: u64,
    /// Bytes that are there.
    pub resident_bytes: u64,
    /// Most bytes that were there, at the times it was read.
    pub resident_peak: u64,
    /// Most bytes that may be there.
    pub budget: u64,
    /// Bytes that move together.
    pub tile_bytes: usize,
    /// Pages that could not be read.
    pub failures: u64,
}

/// The engine of a window.
enum Engine {
    Faults(Faults),
    Kernel(Kernel),
    Direct(Arc<FileWindow>),
}

/// What belongs to *userfault*, in the order in which it has to go.
struct Faults {
    served: Option<FaultsServed>,
    _answering: Option<open::Answering>,
    helpers: Option<Helpers>,
    _fetching: Option<Fetching>,
    service: Arc<Service>,
}

/// See the file's head. When it goes, what was stored is written back and made durable; errors are then only seen by
/// who calls [`Window::close`].
pub struct Window {
    view: View,
    engine: Engine,
    chosen: WindowEngine,
    why: &'static str,
    source: Source,
    options: WindowOptions,
    faults_before: u64,
    mark: ForkMark,
    poisoned: Option<String>,
    closed: bool,
}

impl Window {
    /// The bytes. Touching one that is not there brings it.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        self.view.as_slice()
    }

    /// The bytes, to store into.
    ///
    /// # Errors
    /// `PermissionDenied` where it is open to read.
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        let source = &self.source;
        self.view.as_mut_slice().ok_or_else(|| {
            Error::new(Kind::PermissionDenied, format!("the window on {} is open read-only", source.name()))
                .hint("open it in mode r+ or c")
        })
    }

    /// The data as values.
    ///
    /// # Errors
    /// `BufferMismatch` when a value would straddle its end, or begins at no multiple of its alignment.
    pub fn values<T: AnyBitPattern>(&self) -> Result<&[T]> {
        bytemuck::try_cast_slice(self.as_slice()).map_err(|e| mismatch::<T>(&e.to_string()))
    }

    /// The data as values, to store into.
    ///
    /// # Errors
    /// As [`Window::values`] and [`Window::as_mut_slice`].
    pub fn values_mut<T: AnyBitPattern + NoUninit>(&mut self) -> Result<&mut [T]> {
        bytemuck::try_cast_slice_mut(self.as_mut_slice()?).map_err(|e| mismatch::<T>(&e.to_string()))
    }

    /// Where the data begins, for those who arrange themselves who stores when.
    pub fn as_ptr(&self) -> *mut u8 {
        self.view.as_ptr()
    }

    /// Whether it may be stored into.
    pub fn is_writable(&self) -> bool {
        self.options.mode != Mode::ReadOnly
    }

    /// Bytes of data.
    pub fn bytes(&self) -> u64 {
        self.view.as_slice().len() as u64
    }

    /// The range of the file that a range of data is.
    fn in_file(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.min(self.bytes());
        self.options.origin + range.start.min(end)..self.options.origin + end
    }

    /// The tiles of a range of the file: all that it touches.
    fn tiles(&self, range: &Range<u64>) -> Range<u64> {
        let tile = self.options.tile_bytes as u64;
        range.start / tile..range.end.div_ceil(tile)
    }

    // ---- hints

    /// Begins to bring a range of the data. Only a hint.
    pub fn prefetch(&mut self, range: Range<u64>) {
        let range = self.in_file(&range);
        if range.is_empty() || self.mark.is_forked() {
            return;
        }
        let tiles = self.tiles(&range);
        match &mut self.engine {
            Engine::Faults(faults) => {
                // No more than fits beside what is in use.
                let fits = (faults.service.slots() as u64 / 2).max(1);
                faults.help();
                faults.service.streams.ask(tiles.start..tiles.end.min(tiles.start + fits));
            }
            Engine::Kernel(kernel) => kernel.prefetch(&range),
            Engine::Direct(_) => {}
        }
    }

    /// Says that a range of the data will be read from front to back. Only a hint.
    pub fn will_stream(&mut self, range: Range<u64>) {
        let range = self.in_file(&range);
        if range.is_empty() || self.mark.is_forked() {
            return;
        }
        let tiles = self.tiles(&range);
        match &mut self.engine {
            Engine::Faults(faults) => {
                faults.help();
                faults.service.streams.expect_random(false);
                faults.service.streams.will_stream(tiles);
            }
            Engine::Kernel(kernel) => kernel.will_stream(&range),
            Engine::Direct(_) => {}
        }
    }

    /// Says that a range of the data is not wanted for now: it leaves, written back where it differs. Only a hint.
    pub fn done_with(&mut self, range: Range<u64>) {
        let range = self.in_file(&range);
        if range.is_empty() || self.mark.is_forked() {
            return;
        }
        match &self.engine {
            Engine::Faults(faults) => {
                let tile = self.options.tile_bytes as u64;
                // Those that are in it as a whole, or with all that the data has of them.
                let last = range.end == self.options.origin + self.bytes();
                let end = if last { range.end.div_ceil(tile) } else { range.end / tile };
                let start = range.start.div_ceil(tile);
                faults.service.leave(start as u32..end.max(start) as u32);
            }
            Engine::Kernel(kernel) => kernel.done_with(&range),
            Engine::Direct(_) => {}
        }
    }

    /// Says what the program will do next. Only a hint.
    pub fn advise(&mut self, advice: Advice) {
        if self.mark.is_forked() {
            return;
        }
        match &mut self.engine {
            Engine::Faults(faults) => {
                faults.keep_handler();
                faults.service.streams.expect_random(advice == Advice::Random);
                if advice != Advice::Random {
                    faults.help();
                }
            }
            Engine::Kernel(kernel) => kernel.expect(expectation(advice)),
            Engine::Direct(map) => map.expect(&(0..map.bytes()), expectation(advice)),
        }
    }

    // ---- copies whose errors are errors

    /// Copies a part of the data; a page of it that cannot be read is an error and not a signal.
    ///
    /// # Errors
    /// `BoxOutsideShape`, or what the medium says.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.check_range(offset, out.len())?;
        let at = self.options.origin + offset;
        let Engine::Faults(faults) = &self.engine else { return self.read_file(at, out) };
        for (tile, bytes, part) in self.pieces(at, out.len()) {
            let (at, part) = (bytes.start, &mut out[part]);
            let held = faults.service.hold(tile, bytes, false, |memory| memory.copy_out(at, part));
            held.map_err(|errno| self.failed("read", at, os_error(errno)))?;
        }
        Ok(())
    }

    /// What a mapped file holds.
    fn read_file(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let Source::File(file) = &self.source else {
            return Err(Error::new(Kind::Internal, "only files can be mapped"));
        };
        let got = file.read(at, out).map_err(|e| self.failed("read", at, e))?;
        match got == out.len() {
            true => Ok(()),
            false => Err(self.failed("read", at + got as u64, os_error(service::ENDED_EARLY))),
        }
    }

    /// Stores a part of the data; a tile that cannot be had is an error and not a signal.
    ///
    /// # Errors
    /// `BoxOutsideShape`, `PermissionDenied`, or what the medium says.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.check_range(offset, bytes.len())?;
        self.as_mut_slice()?;
        let at = self.options.origin + offset;
        let Engine::Faults(faults) = &self.engine else {
            self.as_mut_slice()?[offset as usize..][..bytes.len()].copy_from_slice(bytes);
            return Ok(());
        };
        for (tile, stored, part) in self.pieces(at, bytes.len()) {
            let at = stored.start;
            let held = faults.service.hold(tile, stored, true, |memory| memory.copy_in(at, &bytes[part]));
            held.map_err(|errno| self.failed("write", at, os_error(errno)))?;
        }
        Ok(())
    }

    /// The tiles of `len` bytes of the file from `at` on: each with the bytes of it that are meant, and which part of
    /// the `len` those are.
    fn pieces(&self, at: u64, len: usize) -> impl Iterator<Item = (u32, Range<u64>, Range<usize>)> + use<> {
        let tile_bytes = self.options.tile_bytes as u64;
        let mut done = 0;
        std::iter::from_fn(move || {
            let from = at + done as u64;
            let part = (len - done).min((tile_bytes - from % tile_bytes) as usize);
            let piece = ((from / tile_bytes) as u32, from..from + part as u64, done..done + part);
            done += part;
            (part > 0).then_some(piece)
        })
    }

    fn check_range(&self, offset: u64, len: usize) -> Result<()> {
        self.mark.check("window")?;
        if offset.checked_add(len as u64).is_some_and(|end| end <= self.bytes()) {
            return Ok(());
        }
        Err(Error::new(Kind::BoxOutsideShape, "range out of bounds of the window")
            .with("start", offset)
            .with("bytes", len)
            .with("window", self.bytes()))
    }

    #[cold]
    fn failed(&self, doing: &str, at: u64, e: io::Error) -> Error {
        if let (Source::Backing(fetch), "read") = (&self.source, doing) {
            if let Some(why) = fetch.error_at(at) {
                return why;
            }
        }
        let name = self.source.name();
        if e.raw_os_error() == Some(service::ENDED_EARLY) {
            return Error::new(Kind::Damaged, format!("{name} is shorter than the data"))
                .with("offset", at)
                .hint("the file was truncated after it was opened");
        }
        Error::io(format!("cannot {doing} {name}"), e).with("offset", at)
    }

    // ---- the end of things

    /// The first page that could not be read since the last call.
    ///
    /// # Errors
    /// That.
    pub fn check(&self) -> Result<()> {
        match &self.engine {
            Engine::Faults(faults) => match faults.service.failures.take_first() {
                Some((at, errno)) => Err(self.failed("read", at, os_error(errno))),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    /// Writes back what was stored and makes it durable. Nothing happens where the file is not written.
    ///
    /// # Errors
    /// What could not be written: it is still there, and the next call tries again. `Poisoned` when the medium could
    /// not make it durable, now and in every later call.
    pub fn flush(&mut self) -> Result<()> {
        self.mark.check("window")?;
        if self.options.mode != Mode::ReadWrite {
            return Ok(());
        }
        if let Some(why) = &self.poisoned {
            return Err(Error::new(Kind::Poisoned, why.clone()));
        }
        let durable = match &self.engine {
            Engine::Faults(faults) => {
                faults.write_all().map_err(|errno| self.failed("write", 0, os_error(errno)))?;
                faults.service.flush_file()
            }
            Engine::Kernel(kernel) => kernel.flush(),
            Engine::Direct(map) => map.flush(),
        };
        durable.map_err(|e| {
            let why = format!("a flush of {} failed: {e}", self.source.name());
            self.poisoned = Some(why.clone());
            Error::new(Kind::Poisoned, why)
                .hint("data flushed before are intact; check the disk (kernel log), then open it again")
                .caused_by(e)
        })
    }

    /// What it is and has done.
    pub fn statistics(&self) -> WindowStatistics {
        self.statistics_within(Duration::ZERO)
    }

    /// What it is and has done. What is there may be `ago` old: counting takes milliseconds where the window is large.
    #[doc(hidden)]
    pub fn statistics_within(&self, ago: Duration) -> WindowStatistics {
        let mut found = WindowStatistics {
            engine: self.chosen,
            why: self.why,
            faults: 0,
            evicted_bytes: 0,
            read_bytes: 0,
            written_bytes: 0,
            resident_bytes: 0,
            resident_peak: 0,
            budget: self.options.budget,
            tile_bytes: self.options.tile_bytes,
            failures: 0,
        };
        match &self.engine {
            Engine::Faults(faults) => faults.count(&mut found),
            Engine::Kernel(kernel) => {
                let (evicted, written) = kernel.gone();
                found.faults = window::faults().0 - self.faults_before;
                (found.evicted_bytes, found.written_bytes) = (evicted, written);
                found.resident_bytes = kernel.resident(ago);
                found.read_bytes = evicted + found.resident_bytes;
                found.resident_peak = kernel.peak();
            }
            Engine::Direct(map) => {
                found.resident_bytes = map.cached_pages(&(0..map.bytes())).unwrap_or(0) * 4096;
                found.resident_peak = found.resident_bytes;
            }
        }
        found
    }

    /// Ends the window: as dropping it, with the errors.
    ///
    /// # Errors
    /// What could not be written or made durable; it is lost then.
    pub fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.closed, true) || self.mark.is_forked() {
            return Ok(());
        }
        self.flush()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // A caller that wants to know calls `close` or `flush` before.
        let _ = self.end();
    }
}

impl Faults {
    /// Starts the threads that read ahead, unless they are there.
    fn help(&mut self) {
        self.keep_handler();
        let service = &self.service;
        self.helpers.get_or_insert_with(|| Helpers::start(service));
    }

    /// Takes the signal back from who has put a handler of its own in front of ours meanwhile.
    fn keep_handler(&self) {
        if self.served.is_some() {
            // Only a try: without it things are as they were.
            let _ = window::keep_handler();
        }
    }

    /// Writes every dirty tile, several at once; the first error.
    fn write_all(&self) -> std::result::Result<(), i32> {
        let dirty = self.service.dirty();
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            let mut failed = Ok(());
            loop {
                let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(tile) = dirty.get(at) else { return failed };
                let cleaned = self.service.clean(*tile);
                failed = failed.and(cleaned);
            }
        };
        let threads = FLUSH_THREADS.min(dirty.len() / 4);
        std::thread::scope(|scope| {
            let others: Vec<_> = (0..threads)
                .filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok())
                .collect();
            let mine = work();
            others.into_iter().fold(mine, |sum, other| sum.and(other.join().unwrap_or(Err(5))))
        })
    }

    fn count(&self, found: &mut WindowStatistics) {
        use std::sync::atomic::Ordering::Relaxed;
        let (service, counts) = (&self.service, &self.service.counts);
        let tile = service.tile_bytes as u64;
        found.faults = counts.faults.load(Relaxed);
        found.evicted_bytes = counts.evicted.load(Relaxed) * tile;
        found.read_bytes = counts.bytes_read.load(Relaxed);
        found.written_bytes = counts.bytes_written.load(Relaxed);
        found.resident_bytes = service.resident() * tile;
        found.resident_peak = u64::from(service.used_peak.load(Relaxed)) * tile;
        found.failures = service.failures.total();
    }
}

fn expectation(advice: Advice) -> Expect {
    match advice {
        Advice::Normal => Expect::Normal,
        Advice::Random => Expect::Random,
        Advice::Sequential => Expect::Sequential,
    }
}

fn os_error(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

#[cold]
fn mismatch<T>(why: &str) -> Error {
    Error::new(
        Kind::BufferMismatch,
        format!("the window cannot be a slice of {}: {why}", std::any::type_name::<T>()),
    )
}
