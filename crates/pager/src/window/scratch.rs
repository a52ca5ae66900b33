//! A window that is memory: zeros at first, kept in a file without a name, which no other process has.
//!
//! What a program may ask of memory and not of a file: [`Window::forget`] makes a part zeros again without writing it,
//! [`Window::set_budget`] changes how much of it may be there while it is used, and [`Window::pin`] keeps a part there
//! while the system itself reads or changes it. What was never written to the file is never read from it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use forebay_tier::plain::PlainFile;
use forebay_tier::{Error, Kind, Result};

use super::open::Shares;
use super::service::Service;
use super::source::Source;
use super::words::PAYLOAD_MAX;
use super::{Engine, Window, WindowEngine, WindowOptions};
use crate::array::Mode;

/// Transfers that may be under way at once, and the part of the budget that their buffers may be.
const BUFFERS_MAX: u64 = 16;
const BUFFERS_PART: u64 = 32;

/// Least tiles that make progress: one that is used, one that comes, one that leaves, and one to spare.
const SLOTS_MIN: u32 = 4;

/// A part of a window that stays where it is until this is dropped.
#[must_use]
pub struct Pinned<'a> {
    service: Option<&'a Service>,
    tiles: Range<u32>,
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        if let Some(service) = self.service {
            self.tiles.clone().for_each(|tile| service.unpin(tile));
        }
    }
}

impl Window {
    /// `bytes` of zeros that may be stored into, kept in a file without a name in `folder`; of `options` the budget,
    /// the tile, the engine (userfault or kernel) and the advice count.
    ///
    /// # Errors
    /// As [`Window::new`]; `Usage` where the folder lies in memory.
    pub fn scratch(folder: &Path, bytes: u64, options: &WindowOptions) -> Result<Window> {
        Window::scratch_on(PlainFile::nameless(folder, bytes)?, options, &[])
    }

    /// As [`Window::scratch`], on a file without a name that no other process has: zeros, but for the ranges `stored`.
    ///
    /// # Errors
    /// As there.
    pub fn scratch_on(file: PlainFile, options: &WindowOptions, stored: &[Range<u64>]) -> Result<Window> {
        let folder = file.path();
        if file.is_memory().unwrap_or(false) {
            return Err(Error::new(
                Kind::Usage,
                format!("{} is on a file system in memory", folder.display()),
            )
            .hint("choose a directory on a disk"));
        }
        let options = WindowOptions { mode: Mode::ReadWrite, origin: 0, bytes: None, ..options.clone() };
        let made = Window::over(Source::File(Arc::new(file)), &options, true)?;
        match &made.engine {
            Engine::Faults(faults) => {
                stored.iter().for_each(|range| faults.service.is_stored(made.tiles(range)));
            }
            Engine::Kernel(kernel) => stored.iter().for_each(|range| kernel.is_stored(range)),
            Engine::Direct(_) => {}
        }
        Ok(made)
    }

    /// The parts of a range that may differ from zeros.
    pub fn stored(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let tile = self.options.tile_bytes as u64;
        match &self.engine {
            Engine::Faults(faults) => {
                let there = self.tiles(range).filter(|at| !faults.service.is_blank(*at as u32));
                there.map(|at| (at * tile).max(range.start)..((at + 1) * tile).min(range.end)).collect()
            }
            _ => vec![range.clone()],
        }
    }

    /// What is there now, and the budget.
    pub fn level(&self) -> (u64, u64) {
        match &self.engine {
            Engine::Kernel(kernel) => kernel.level(),
            _ => (self.statistics().resident_bytes, self.options.budget),
        }
    }

    /// Whether the file holds at any time what the window shows.
    pub fn is_file(&self) -> bool {
        !matches!(self.engine, Engine::Faults(_))
    }

    /// The file in which it is kept.
    pub fn file(&self) -> Option<&std::fs::File> {
        match &self.source {
            Source::File(file) => Some(file.cached()),
            Source::Backing(_) => None,
        }
    }

    /// Makes a range zeros again; nothing of it is written, and what it took in memory and in the file is free. The
    /// range is of whole tiles, and no thread touches it meanwhile.
    ///
    /// # Errors
    /// What the system says.
    pub fn forget(&self, range: &Range<u64>) -> Result<()> {
        let failed = |e| Error::io("cannot free memory", e);
        match &self.engine {
            Engine::Faults(faults) => {
                let tile = self.options.tile_bytes as u64;
                (range.start / tile..range.end / tile).for_each(|tile| faults.service.forget(tile as u32));
                // Where the file system cannot, its blocks stay taken until the window goes: no byte of it is read.
                if let Source::File(file) = &self.source {
                    let _ = file.punch(range);
                }
                Ok(())
            }
            Engine::Kernel(kernel) => kernel.forget(range).map_err(failed),
            Engine::Direct(map) => map.forget(range).map_err(failed),
        }
    }

    /// From now on no more than this may be there (and no more than it began with): what is above leaves now.
    pub fn set_budget(&self, bytes: u64) {
        match &self.engine {
            Engine::Faults(faults) => {
                let beside = self.beside();
                let slots = bytes.saturating_sub(beside) / self.options.tile_bytes as u64;
                faults.service.set_limit((slots as u32).max(SLOTS_MIN));
            }
            Engine::Kernel(kernel) => kernel.set_budget(bytes),
            Engine::Direct(_) => {}
        }
    }

    /// Bytes of the budget that are not data: buffers and tables, as far as they are used.
    pub fn beside(&self) -> u64 {
        match &self.engine {
            Engine::Faults(faults) => faults.service.buffer_bytes(),
            _ => 0,
        }
    }

    /// Least budget that makes progress: none where the kernel brings pages, which it does whatever is there.
    pub fn budget_min(&self) -> u64 {
        match &self.engine {
            Engine::Faults(_) => self.beside() + u64::from(SLOTS_MIN) * self.options.tile_bytes as u64,
            Engine::Kernel(_) | Engine::Direct(_) => 0,
        }
    }

    /// What the first write failed with that ever did. From then on nothing is evicted, but the file system may have
    /// dropped pages by itself: what they held is lost.
    pub fn failed_write(&self) -> Option<std::io::Error> {
        match &self.engine {
            Engine::Kernel(kernel) => kernel.failed_write().map(super::os_error),
            _ => None,
        }
    }

    /// What is beyond this byte is not used: no search goes there.
    pub fn set_used_end(&self, end: u64) {
        if let Engine::Kernel(kernel) = &self.engine {
            kernel.set_used_end(end);
        }
    }

    /// Whether calls of the system may be given addresses in it as they are.
    pub fn serves_system(&self) -> bool {
        !matches!(self.chosen, WindowEngine::Userfault)
    }

    /// Brings a range, which stays until the result is dropped, so that the system may read it, or change it with
    /// `write`. Takes no part that is longer than a quarter of the budget.
    ///
    /// # Errors
    /// What the medium says.
    pub fn pin(&self, range: &Range<u64>, write: bool) -> Result<Pinned<'_>> {
        let Engine::Faults(faults) = &self.engine else {
            return Ok(Pinned { service: None, tiles: 0..0 });
        };
        let tile = self.options.tile_bytes as u64;
        let tiles = (range.start / tile) as u32..range.end.div_ceil(tile) as u32;
        let mut pinned = Pinned { service: Some(&faults.service), tiles: tiles.start..tiles.start };
        for tile in tiles {
            let brought = faults.service.pin(tile, write);
            brought.map_err(|errno| self.failed("read", range.start, super::os_error(errno)))?;
            pinned.tiles.end = tile + 1;
        }
        Ok(pinned)
    }

    /// Most bytes that may be pinned by one call.
    pub fn pin_max(&self) -> u64 {
        match &self.engine {
            Engine::Faults(faults) => faults.service.pins_at_once() * self.options.tile_bytes as u64,
            _ => u64::MAX,
        }
    }
}

impl Shares {
    /// Of a scratch window, whose budget many processes may share: few buffers, and tables that grow as they are used.
    pub(super) fn of_scratch(options: &WindowOptions, bytes: u64) -> Shares {
        let tile = options.tile_bytes as u64;
        let buffers = (options.budget / BUFFERS_PART / tile).clamp(2, BUFFERS_MAX);
        let slots = (options.budget / tile).clamp(u64::from(SLOTS_MIN), bytes.div_ceil(tile).max(4));
        Shares { slots: slots.min(u64::from(PAYLOAD_MAX)) as u32, buffers: buffers as u32 }
    }
}
