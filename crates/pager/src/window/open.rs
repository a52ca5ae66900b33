//! Opening a window: which engine, and why.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::sync::Arc;

use forebay_tier::plain::PlainFile;
use forebay_tier::process::ForkMark;
use forebay_tier::window::{self, Faulted, FileWindow, Serve, UserfaultAbility, View};
use forebay_tier::{Error, Kind, Result};

use super::ahead::Helpers;
use super::crew::Crew;
use super::kernel::Kernel;
use super::service::{Parts, Service};
use super::source::{Fetch, Fetching, Source};
use super::words::PAYLOAD_MAX;
use super::{Advice, Engine, Faults, OnError, Window, WindowEngine, WindowOptions};
use crate::array::Mode;
use crate::backing::Backing;
use crate::pool::{TILE_BYTES_MAX, UNIT_BYTES};

/// Below this the kernel's own pages are as good as tiles, and cost less.
const KERNEL_TILE_MAX: usize = 16 << 10;

/// Below this budget what the kernel brings between two looks is more than a part of it.
const KERNEL_BUDGET_MIN: u64 = 64 << 20;

/// Most tiles on their way in at once.
const BUFFERS_MAX: u64 = 64;

/// Most memory for those of long tiles.
const BUFFERS_BYTES_MAX: u64 = 16 << 20;

/// Bytes that are known of each slot.
const SLOT_BYTES: u64 = 8;

/// Threads that answer faults, in mode *handler*.
const ANSWERING: usize = 4;

/// How long they sleep, at most, before they look whether they shall end.
const ANSWER_MS: i32 = 100;

impl Window {
    /// A window on a file that exists.
    ///
    /// # Errors
    /// What the system says, and as [`Window::new`].
    pub fn open(path: &Path, options: &WindowOptions) -> Result<Window> {
        Window::new(PlainFile::open(path, options.mode == Mode::ReadWrite)?, options)
    }

    /// A window on a file, which may not become shorter meanwhile.
    ///
    /// # Errors
    /// `Usage` for tiles or a budget that are not possible, `Damaged` when the file ends before the data,
    /// `NotPossibleHere` when the engine that was asked for cannot be had.
    pub fn new(file: PlainFile, options: &WindowOptions) -> Result<Window> {
        Window::over(Source::File(Arc::new(file)), options, false)
    }

    /// A window on what else lies below an array: a version of a space, a file in stripes. Threads read it for those
    /// who touch what is not there; what is stored (copy-on-write) stays with the window.
    ///
    /// # Errors
    /// As [`Window::new`]; `NotPossibleHere` where userfaultfd is refused, for every engine that maps a file, and for
    /// mode read-write.
    pub fn on(backing: Arc<dyn Backing>, options: &WindowOptions) -> Result<Window> {
        if options.mode == Mode::ReadWrite {
            let what = format!("a window on {} cannot be written back", backing.name());
            return Err(Error::new(Kind::NotPossibleHere, what).hint("use mode \"r\" or \"c\""));
        }
        let fetch = Fetch::new(backing, BUFFERS_MAX as usize);
        Window::over(Source::Backing(Arc::new(fetch)), options, false)
    }

    /// As [`Window::new`]; `scratch`: of a file that began empty and that no other process has.
    pub(super) fn over(source: Source, options: &WindowOptions, scratch: bool) -> Result<Window> {
        let there = source.bytes()?;
        let bytes = options.bytes.unwrap_or(there.saturating_sub(options.origin));
        let end = options.origin.checked_add(bytes).filter(|end| *end <= there).ok_or_else(|| {
            Error::new(Kind::Damaged, format!("{} is too short", source.name()))
                .with("bytes", there)
                .with("wanted", options.origin.saturating_add(bytes))
                .hint("the shape or dtype is wrong, or the file was truncated")
        })?;
        if bytes == 0 {
            return Err(Error::new(Kind::Usage, format!("{} has no data to show", source.name())));
        }
        if !options.tile_bytes.is_power_of_two()
            || !(UNIT_BYTES..=TILE_BYTES_MAX).contains(&options.tile_bytes)
        {
            return Err(Error::new(Kind::Usage, format!("invalid tile size: {} bytes", options.tile_bytes))
                .hint("a power of two from 4 KiB to 2 MiB"));
        }
        if let Source::File(file) = &source {
            if options.mode == Mode::ReadWrite && !file.is_writable() {
                let what = format!("{} is open read-only", source.name());
                return Err(Error::new(Kind::PermissionDenied, what));
            }
        }
        let (chosen, why) = match &source {
            Source::File(_) if scratch => choose_for_scratch(options)?,
            Source::File(file) => choose(file, options)?,
            Source::Backing(_) => choose_for_backing(&source.name(), options)?,
        };
        let data = options.origin..end;
        let (view, engine) = match (chosen, &source) {
            (WindowEngine::Kernel | WindowEngine::Direct, Source::File(file)) => {
                map(file, options, &data, chosen, scratch)?
            }
            _ => {
                let faults = faults(&source, options, end, chosen == WindowEngine::Userfault, scratch)?;
                (faults.service.memory.view(&data), Engine::Faults(faults))
            }
        };
        let faults_before = window::faults().0;
        let mut made = Window {
            view,
            engine,
            chosen,
            why,
            source,
            options: options.clone(),
            faults_before,
            mark: ForkMark::here(),
            poisoned: None,
            closed: false,
        };
        made.advise(options.advice);
        if options.advice == Advice::Sequential {
            made.will_stream(0..bytes);
        }
        Ok(made)
    }
}

/// An engine that maps the file.
fn map(
    file: &PlainFile,
    options: &WindowOptions,
    data: &Range<u64>,
    chosen: WindowEngine,
    scratch: bool,
) -> Result<(View, Engine)> {
    let writable = options.mode == Mode::ReadWrite;
    let failed = |e| Error::io(format!("cannot map {}", file.path().display()), e);
    let own = file.cached().try_clone().map_err(failed)?;
    let map = Arc::new(FileWindow::new(own, data.end, writable).map_err(failed)?);
    let view = map.view(data);
    let engine = match chosen {
        WindowEngine::Direct => Engine::Direct(map),
        _ => Engine::Kernel(Kernel::start(map, writable, options.budget, scratch).map_err(failed)?),
    };
    Ok((view, engine))
}

/// What is known of faults that user code may answer; `writes`: also of stores.
fn able(writes: bool) -> Result<UserfaultAbility> {
    window::userfault().and_then(|can| match can.signals && (can.write_protect || !writes) {
        true => Ok(can),
        false => {
            Err(Error::new(Kind::NotPossibleHere, "this kernel's userfaultfd lacks what a window needs")
                .hint("Linux 5.7 for windows that are written; or engine kernel"))
        }
    })
}

/// The engine of memory, and why it is that one.
fn choose_for_scratch(options: &WindowOptions) -> Result<(WindowEngine, &'static str)> {
    match options.engine {
        Some(WindowEngine::Userfault) => able(true).map(|_| (WindowEngine::Userfault, "asked for")),
        Some(WindowEngine::Kernel) => Ok((WindowEngine::Kernel, "asked for")),
        Some(other) => Err(Error::new(
            Kind::Usage,
            format!("engine {} is not available for anonymous memory", other.name()),
        )
        .hint("userfault or kernel")),
        None => Ok((WindowEngine::Kernel, "every call of the system may be given its addresses")),
    }
}

/// The engine of what is no file, and why it is that one.
fn choose_for_backing(name: &str, options: &WindowOptions) -> Result<(WindowEngine, &'static str)> {
    let able = able(options.mode != Mode::ReadOnly);
    match options.engine {
        Some(engine @ (WindowEngine::Kernel | WindowEngine::Direct)) => {
            Err(Error::new(Kind::NotPossibleHere, format!("engine {} maps a file", engine.name()))
                .with("window", name)
                .hint("engine userfault"))
        }
        Some(WindowEngine::Handler) => {
            answers_kernel(able.as_ref().ok()).map(|()| (WindowEngine::Handler, "asked for"))
        }
        Some(WindowEngine::Userfault) => {
            able.map(|_| (WindowEngine::Userfault, "asked for")).map_err(unfaulted)
        }
        None => able.map(|_| (WindowEngine::Userfault, "there is no file to map")).map_err(unfaulted),
    }
}

/// What needs no userfaultfd, where it is refused.
fn unfaulted(error: Error) -> Error {
    error.hint("tiles, gather and indexing of the array need no userfaultfd")
}

/// Whether faults of the kernel may be answered.
fn answers_kernel(able: Option<&UserfaultAbility>) -> Result<()> {
    match able.is_some_and(|can| can.kernel_faults) {
        true => Ok(()),
        false => Err(Error::new(Kind::NotPossibleHere, "this user may not handle faults of the kernel")
            .hint("sysctl vm.unprivileged_userfaultfd=1, or engine userfault")),
    }
}

/// The engine, and why it is that one.
fn choose(file: &PlainFile, options: &WindowOptions) -> Result<(WindowEngine, &'static str)> {
    let writes = options.mode != Mode::ReadOnly;
    let able = able(writes);
    let in_memory = file.is_memory().unwrap_or(false);
    let copies = options.mode == Mode::CopyOnWrite;
    match options.engine {
        Some(engine @ (WindowEngine::Kernel | WindowEngine::Direct)) if copies => {
            let what = format!("engine {} does not support copy on write", engine.name());
            Err(Error::new(Kind::NotPossibleHere, what)
                .hint("engine userfault, or mode read-write on a copy of the file"))
        }
        Some(WindowEngine::Direct) if !in_memory => {
            Err(Error::new(Kind::NotPossibleHere, "engine direct requires a file on tmpfs")
                .hint("engine kernel"))
        }
        Some(WindowEngine::Handler) => {
            answers_kernel(able.as_ref().ok()).map(|()| (WindowEngine::Handler, "asked for"))
        }
        Some(WindowEngine::Userfault) => able.map(|_| (WindowEngine::Userfault, "asked for")),
        Some(engine) => Ok((engine, "asked for")),
        None if in_memory && !copies => Ok((WindowEngine::Direct, "the file is in memory (tmpfs)")),
        None if copies => able.map(|_| (WindowEngine::Userfault, "copies on write are kept by tiles")),
        None if able.is_err() => Ok((WindowEngine::Kernel, "userfaultfd is refused")),
        None if options.on_error == OnError::Zeros => {
            Ok((WindowEngine::Userfault, "bad pages shall show zeros"))
        }
        None if options.budget < KERNEL_BUDGET_MIN => {
            Ok((WindowEngine::Userfault, "the budget is small, and is to be kept exactly"))
        }
        None if options.tile_bytes > KERNEL_TILE_MAX => {
            Ok((WindowEngine::Userfault, "tiles are longer than the kernel's pages"))
        }
        None => Ok((WindowEngine::Kernel, "tiles are about as long as the kernel's pages")),
    }
}

/// Slots and buffers that a budget holds.
pub(super) struct Shares {
    pub(super) slots: u32,
    pub(super) buffers: u32,
}

fn shares(options: &WindowOptions, end: u64) -> Result<Shares> {
    let tile = options.tile_bytes as u64;
    let tiles = end.div_ceil(tile);
    let left = options.budget.saturating_sub(tiles * 4);
    let buffers = (left / tile / 8).min(BUFFERS_BYTES_MAX / tile).clamp(1, BUFFERS_MAX);
    let slots = (left.saturating_sub(buffers * tile) / (tile + SLOT_BYTES)).min(tiles.max(2));
    if slots < 2 || tiles > u64::from(u32::MAX - 1) || slots > u64::from(PAYLOAD_MAX) {
        return Err(Error::new(Kind::Usage, "the budget does not match the tile size")
            .with("budget", options.budget)
            .with("tile", tile)
            .with("tiles", tiles)
            .hint("a budget must hold three tiles, and four bytes for each tile of the window; 16 million tiles at \
                   most"));
    }
    Ok(Shares { slots: slots as u32, buffers: buffers as u32 })
}

fn faults(
    source: &Source,
    options: &WindowOptions,
    end: u64,
    by_signal: bool,
    scratch: bool,
) -> Result<Faults> {
    let writable = options.mode != Mode::ReadOnly;
    let Shares { slots, buffers } = match scratch {
        true => Shares::of_scratch(options, end),
        false => shares(options, end)?,
    };
    let tile = options.tile_bytes;
    let overlay = match options.mode {
        Mode::CopyOnWrite => Some(PlainFile::nameless(&options.overlay, end)?),
        _ => None,
    };
    let failed = |e| Error::io(format!("cannot create a window on {}", source.name()), e);
    let len = end.next_multiple_of(tile as u64) as usize;
    let memory = Faulted::new(len, writable, (buffers as usize, tile), by_signal).map_err(failed)?;
    let service = Arc::new(Service::new(Parts {
        memory: Arc::new(memory),
        tile_bytes: tile,
        origin: options.origin,
        file_bytes: end,
        writable,
        slots,
        buffers,
        source: source.clone(),
        overlay,
        // A thread that sleeps in a fault cannot be sent a signal by who answers: it sees zeros.
        blank: scratch,
        zeros: options.on_error == OnError::Zeros || !by_signal,
    }));
    let fetching = match source {
        Source::Backing(fetch) => Some(Fetching::start(fetch, &service.memory).map_err(failed)?),
        Source::File(_) => None,
    };
    let helpers = (writable || options.advice != Advice::Random).then(|| Helpers::start(&service));
    let served = match by_signal {
        true => Some(service.memory.serve_by(service.clone()).map_err(failed)?),
        false => None,
    };
    let answering = (!by_signal).then(|| Answering::start(&service)).transpose().map_err(failed)?;
    Ok(Faults { served, _answering: answering, helpers, _fetching: fetching, service })
}

/// Threads that answer the faults of a window, also the kernel's.
pub(super) struct Answering {
    stop: Arc<AtomicBool>,
    crew: Crew,
}

impl Answering {
    fn start(service: &Arc<Service>) -> std::io::Result<Answering> {
        // Made first, so that those that have begun end when one cannot.
        let mut made = Answering { stop: Arc::default(), crew: Crew::new() };
        for number in 0..ANSWERING {
            let (service, stop) = (service.clone(), made.stop.clone());
            made.crew.start(format!("forebay-fault-{number}"), move || {
                while !stop.load(Acquire) {
                    answer(&service);
                }
            })?;
        }
        Ok(made)
    }
}

/// Answers one fault, or waits for one.
fn answer(service: &Service) {
    if let Ok(Some((offset, write))) = service.memory.next_fault(ANSWER_MS) {
        service.serve(offset, Some(write));
        // Also when another thread had brought it: who asked may sleep still.
        let page = offset / UNIT_BYTES as u64 * UNIT_BYTES as u64;
        service.memory.wake(&(page..page + UNIT_BYTES as u64));
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.stop.store(true, Release);
    }
}
