//! A 2-D array of doubles in memory, or on a tier with a part of it in memory: programs that sweep over rows do not see
//! the difference.
//!
//! Rows are read and written a band at a time. In memory a band is the memory itself; on a tier it is a copy in a
//! buffer, the next band is read ahead, and what was written goes behind the program's back.
//!
//! Guarantees: the values are the same wherever an array lies.

use std::cell::Cell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use forebay_pager::{Array, ArrayOptions, FileBacking, Mode, Policy, Pool};
use forebay_space::{Error, Kind, Result};
use forebay_tier::{plain::PlainFile, Horizon, Region};

use crate::numbers::number;

/// Where an array lies, and when writes to it become durable.
#[derive(Clone)]
pub enum Placement {
    /// In memory.
    Dram,
    /// In a file without a name in this folder, with as much in memory as the pool allows.
    Tier {
        /// The budget that it shares.
        pool: Pool,
        /// Folder of the file.
        dir: PathBuf,
        /// What moves together, in bytes.
        tile_bytes: usize,
        /// `none`: never; `epoch`: with [`Placed::persist`]; `write`: with each band.
        horizon: Horizon,
    },
    /// In a file in this folder that is mapped as memory: how much of it is in memory is up to the kernel.
    Mmap {
        /// Folder of the file, whose name goes as soon as it is mapped.
        dir: PathBuf,
    },
}

/// See the file's head.
pub struct Placed {
    rows: usize,
    columns: usize,
    data: Data,
    read: Cell<u64>,
    written: u64,
}

enum Data {
    Memory(Vec<f64>),
    Mapped(Region),
    Tier { array: Array, horizon: Horizon, buffer: Vec<f64> },
}

/// Bytes that a program has read and written, by where its arrays lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Read from memory.
    pub dram_read: u64,
    /// Written to it.
    pub dram_written: u64,
    /// Read from arrays on a tier.
    pub tier_read: u64,
    /// Written to them.
    pub tier_written: u64,
}

impl std::iter::Sum for Moved {
    fn sum<I: Iterator<Item = Moved>>(all: I) -> Moved {
        all.fold(Moved::default(), |a, b| Moved {
            dram_read: a.dram_read + b.dram_read,
            dram_written: a.dram_written + b.dram_written,
            tier_read: a.tier_read + b.tier_read,
            tier_written: a.tier_written + b.tier_written,
        })
    }
}

impl std::ops::Sub for Moved {
    type Output = Moved;

    fn sub(self, before: Moved) -> Moved {
        Moved {
            dram_read: self.dram_read - before.dram_read,
            dram_written: self.dram_written - before.dram_written,
            tier_read: self.tier_read - before.tier_read,
            tier_written: self.tier_written - before.tier_written,
        }
    }
}

/// What a band is read into, where it is not memory itself.
#[derive(Default)]
pub struct Buffer(Vec<f64>);

impl Placed {
    /// An array of zeros.
    ///
    /// # Errors
    /// `TierFull` without enough space, in memory or on the tier; what making the file says.
    pub fn new(rows: usize, columns: usize, placement: &Placement) -> Result<Placed> {
        let data = match placement {
            Placement::Dram => Data::Memory(zeros(rows * columns)?),
            Placement::Mmap { dir } => Data::Mapped(mapped(dir, rows * columns * size_of::<f64>())?),
            Placement::Tier { pool, dir, tile_bytes, horizon } => {
                let bytes = (rows * columns * size_of::<f64>()) as u64;
                let backing = FileBacking::new(PlainFile::nameless(dir, bytes)?)?;
                let mut options = ArrayOptions::new(*tile_bytes);
                // Sweeps come back to a row only when all others were there: nothing is worth keeping.
                (options.mode, options.policy, options.horizon) = (Mode::ReadWrite, Policy::None, *horizon);
                let array = Array::open(pool, Arc::new(backing), &options)?;
                Data::Tier { array, horizon: *horizon, buffer: Vec::new() }
            }
        };
        Ok(Placed { rows, columns, data, read: Cell::new(0), written: 0 })
    }

    /// How many rows it has.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How long a row is.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> u64 {
        (self.rows * self.columns * size_of::<f64>()) as u64
    }

    /// Whether it lies on a tier.
    pub fn is_paged(&self) -> bool {
        self.array().is_some()
    }

    fn array(&self) -> Option<&Array> {
        match &self.data {
            Data::Tier { array, .. } => Some(array),
            Data::Memory(_) | Data::Mapped(_) => None,
        }
    }

    /// Bytes that the program has read and written so far, wherever they were.
    pub fn moved(&self) -> Moved {
        let (read, written) = (self.read.get(), self.written);
        match self.is_paged() {
            true => Moved { tier_read: read, tier_written: written, ..Moved::default() },
            false => Moved { dram_read: read, dram_written: written, ..Moved::default() },
        }
    }

    fn byte_of(&self, row: usize) -> u64 {
        (row * self.columns * size_of::<f64>()) as u64
    }

    /// These rows; `next` are those that are wanted after them.
    ///
    /// # Errors
    /// What the read failed with.
    ///
    /// # Panics
    /// When a row lies outside.
    pub fn read<'a>(
        &'a self,
        rows: Range<usize>,
        next: Range<usize>,
        buffer: &'a mut Buffer,
    ) -> Result<&'a [f64]> {
        self.read.set(self.read.get() + (rows.len() * self.columns * size_of::<f64>()) as u64);
        match &self.data {
            Data::Memory(values) => Ok(&values[rows.start * self.columns..rows.end * self.columns]),
            Data::Mapped(region) => {
                let values: &[f64] = bytemuck::cast_slice(region.as_slice());
                Ok(&values[rows.start * self.columns..rows.end * self.columns])
            }
            Data::Tier { array, .. } => {
                buffer.0.resize(rows.len() * self.columns, 0.0);
                array.read_values((rows.start * self.columns) as u64, &mut buffer.0)?;
                array.prefetch(self.byte_of(next.start)..self.byte_of(next.end.max(next.start)));
                Ok(&buffer.0)
            }
        }
    }

    /// Lets `fill` write all values of these rows.
    ///
    /// # Errors
    /// What the write failed with.
    ///
    /// # Panics
    /// When a row lies outside.
    pub fn write(&mut self, rows: Range<usize>, fill: impl FnOnce(&mut [f64])) -> Result<()> {
        let (from, to) = (rows.start * self.columns, rows.end * self.columns);
        self.written += ((to - from) * size_of::<f64>()) as u64;
        match &mut self.data {
            Data::Memory(values) => fill(&mut values[from..to]),
            Data::Mapped(region) => fill(&mut values_of(region)?[from..to]),
            Data::Tier { array, buffer, .. } => {
                buffer.resize(to - from, 0.0);
                fill(buffer);
                array.write_values(from as u64, buffer)?;
            }
        }
        Ok(())
    }

    /// Lets `change` change the values of these rows; `next` are those that are wanted after them.
    ///
    /// # Errors
    /// What the read or the write failed with.
    ///
    /// # Panics
    /// When a row lies outside.
    pub fn update(
        &mut self,
        rows: Range<usize>,
        next: Range<usize>,
        change: impl FnOnce(&mut [f64]),
    ) -> Result<()> {
        let (from, to) = (rows.start * self.columns, rows.end * self.columns);
        let ahead = self.byte_of(next.start)..self.byte_of(next.end.max(next.start));
        let bytes = ((to - from) * size_of::<f64>()) as u64;
        self.read.set(self.read.get() + bytes);
        self.written += bytes;
        match &mut self.data {
            Data::Memory(values) => change(&mut values[from..to]),
            Data::Mapped(region) => change(&mut values_of(region)?[from..to]),
            Data::Tier { array, buffer, .. } => {
                buffer.resize(to - from, 0.0);
                array.read_values(from as u64, buffer)?;
                array.prefetch(ahead);
                change(buffer);
                array.write_values(from as u64, buffer)?;
            }
        }
        Ok(())
    }

    /// Makes durable what was written, as the horizon says. Nothing for an array in memory.
    ///
    /// # Errors
    /// What could not be written or made durable.
    pub fn persist(&self) -> Result<()> {
        match &self.data {
            Data::Tier { array, horizon, .. } if *horizon != Horizon::None => array.flush(),
            _ => Ok(()),
        }
    }
}

/// A mapped file of zeros without a name.
pub(crate) fn mapped(dir: &Path, bytes: usize) -> Result<Region> {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let name = format!(".forebay-mmap-{}-{}", std::process::id(), MADE.fetch_add(1, Relaxed));
    let path = dir.join(name);
    let region = Region::create(&path, bytes, None)?;
    std::fs::remove_file(&path)
        .map_err(|e| Error::new(Kind::Io, format!("cannot remove {}: {e}", path.display())))?;
    Ok(region)
}

fn values_of(region: &mut Region) -> Result<&mut [f64]> {
    Ok(bytemuck::cast_slice_mut(region.as_mut_slice()?))
}

/// Memory of zeros that was asked for before it is used.
fn zeros(values: usize) -> Result<Vec<f64>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(values).map_err(|_| {
        Error::new(Kind::TierFull, "there is no memory for an array")
            .with("bytes", values * size_of::<f64>())
            .hint("make the problem smaller, or place the array on a tier")
    })?;
    memory.resize(values, 0.0);
    Ok(memory)
}

/// Values of a band: `most`, or so few that of every array that shares a budget the band at work and the next one fit,
/// each once more to be written.
pub(crate) fn band_values<'a>(fields: impl IntoIterator<Item = &'a Placed>, most: usize) -> usize {
    let paged: Vec<&Array> = fields.into_iter().filter_map(Placed::array).collect();
    let least = paged.iter().map(|array| array.pool().statistics().frame_bytes as usize).min();
    let part = least.map_or(usize::MAX, |bytes| bytes / (BANDS * paged.len()) / size_of::<f64>());
    most.min(part)
}

/// Bands of an array that are in memory at once.
const BANDS: usize = 4;

/// Cuts rows into bands of about this many values each, at least one row.
pub(crate) fn bands(rows: Range<usize>, columns: usize, values: usize) -> impl Iterator<Item = Range<usize>> {
    let each = (values / columns.max(1)).max(1);
    let end = rows.end;
    rows.step_by(each).map(move |from| from..(from + each).min(end))
}

/// Sums the bits of values with their places, so that two arrays with the same sum are the same but for bad luck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// Takes up the values from the `first`-th on.
    pub fn add(&mut self, first: u64, values: &[f64]) {
        for (place, value) in (first..).zip(values) {
            self.0 = self.0.wrapping_add(number(value.to_bits(), place));
        }
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}
