//! BTIO: the field in files, every few steps, point by point in the order z, y, x, as the benchmark of that name in the
//! NAS Parallel Benchmarks leaves it.
//!
//! A dump follows the one before it in the same file. Guarantees: when [`Dumps::write`] returns, this rank's part is on
//! the medium. Not here: when all ranks' parts are.

use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_space::{Error, Kind, Result};
use forebay_tier::plain::PlainFile;

use super::{Piece, Problem, COMPONENTS};

/// How ranks share the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One file; ranks exchange the field until each has whole planes, which it writes at once.
    Full,
    /// One file; each rank writes its rows of each plane where they belong, one request for each row.
    Simple,
    /// A file for each rank, with its planes.
    Epio,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 3] = [Mode::Full, Mode::Simple, Mode::Epio];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Full => "full",
            Mode::Simple => "simple",
            Mode::Epio => "epio",
        }
    }
}

/// A rank's file.
pub(super) struct Dumps {
    mode: Mode,
    problem: Problem,
    file: PlainFile,
    /// Dumps that were written.
    written: u64,
    /// Requests that they took.
    requests: u64,
}

/// Name of the file that a rank writes to.
fn name(dir: &Path, mode: Mode, rank: usize) -> PathBuf {
    match mode {
        Mode::Full | Mode::Simple => dir.join("btio.out"),
        Mode::Epio => dir.join(format!("btio.out.{rank:04}")),
    }
}

fn failed(what: &str, file: &PlainFile, e: std::io::Error) -> Error {
    Error::io(format!("cannot {what} {}", file.path().display()), e)
}

impl Dumps {
    /// Makes this rank's file; of a shared one, rank 0 alone does so, before the others open it.
    ///
    /// # Errors
    /// What the system says.
    pub fn make(dir: &Path, mode: Mode, rank: usize) -> Result<()> {
        match (mode, rank) {
            (Mode::Full | Mode::Simple, 1..) => Ok(()),
            _ => PlainFile::create(&name(dir, mode, rank), 0).map(drop),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(dir: &Path, mode: Mode, problem: Problem, rank: usize) -> Result<Dumps> {
        let file = PlainFile::open(&name(dir, mode, rank), true)?.without_direct();
        Ok(Dumps { mode, problem, file, written: 0, requests: 0 })
    }

    /// Requests so far.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    fn put(&mut self, offset: u64, values: &[f64]) -> Result<()> {
        self.requests += 1;
        let done = self.file.write(offset, bytemuck::cast_slice(values));
        done.map_err(|e| failed("write to", &self.file, e))
    }

    /// Writes this rank's part of the field, and waits until it is on the medium.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&mut self, piece: &Piece) -> Result<()> {
        let row = (self.problem.n * COMPONENTS * size_of::<f64>()) as u64;
        let plane = row * self.problem.n as u64;
        let base = self.written * self.problem.field_bytes();
        match self.mode {
            Mode::Full => {
                let (planes, values) = piece.saved();
                self.put(base + planes.start as u64 * plane, values)?;
            }
            Mode::Simple => {
                let (rows, values) = piece.columns();
                for (at, values) in values.chunks_exact(self.problem.n * COMPONENTS).enumerate() {
                    let (k, j) = ((at / rows.len()) as u64, (rows.start + at % rows.len()) as u64);
                    self.put(base + k * plane + j * row, values)?;
                }
            }
            Mode::Epio => {
                let (planes, values) = piece.saved();
                self.put(self.written * planes.len() as u64 * plane, values)?;
            }
        }
        self.file.flush().map_err(|e| failed("flush", &self.file, e))?;
        self.written += 1;
        Ok(())
    }

    /// Lets the kernel forget what it has of the file, so that reading is from the medium.
    ///
    /// # Errors
    /// What the system says.
    pub fn forget(&self) -> Result<()> {
        self.file.drop_cached().map_err(|e| failed("drop pages of", &self.file, e))
    }

    /// Reads this rank's planes of all dumps again: for each dump and plane the sums of the squares of what they differ
    /// by from the exact solution.
    ///
    /// # Errors
    /// What the system says; `Damaged` when a file is shorter than what was written.
    pub fn read(&self, planes: Range<usize>) -> Result<Vec<[f64; COMPONENTS]>> {
        let values = self.problem.plane_values();
        let plane_bytes = (values * size_of::<f64>()) as u64;
        let mut sums = Vec::new();
        let mut all = vec![0.0; values * planes.len()];
        for dump in 0..self.written {
            let offset = match self.mode {
                Mode::Epio => dump * planes.len() as u64 * plane_bytes,
                Mode::Full | Mode::Simple => {
                    dump * self.problem.field_bytes() + planes.start as u64 * plane_bytes
                }
            };
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut all);
            let read = self.file.read(offset, bytes).map_err(|e| failed("read", &self.file, e))?;
            if read < bytes.len() {
                return Err(Error::new(Kind::Damaged, "a dump is shorter than what was written")
                    .with("file", self.file.path().display().to_string())
                    .with("dump", dump));
            }
            for (k, plane) in planes.clone().zip(all.chunks_exact(values)) {
                sums.push(self.problem.error_sums(k, plane));
            }
        }
        Ok(sums)
    }
}
