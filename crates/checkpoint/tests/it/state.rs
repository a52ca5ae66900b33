//! What tests save: arrays whose every byte follows from step and position, so that a mix of steps shows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_checkpoint::{Checkpoint, Dtype, NdBox, Options, Restored, Result};

/// Rows of the variable `u`, which ranks share.
pub const ROWS: u64 = 60;
/// Columns of it: a row of doubles is 8 KiB, so that chunks and rows do not end together.
pub const COLUMNS: u64 = 1000;

/// Options with memory in a directory of the test's own.
pub fn options(levels: &[&str], memory: &Path) -> Options {
    Options {
        levels: levels.iter().map(|level| level.to_string()).collect(),
        memory_root: Some(memory.to_path_buf()),
        timeout: Duration::from_secs(20),
        ..Options::default()
    }
}

/// A directory for the checkpoint and one for levels of memory, which go with the test. Both lie in memory, where
/// nothing waits for a disk.
pub fn dirs() -> (tempfile::TempDir, tempfile::TempDir) {
    (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir_in("/dev/shm").unwrap())
}

/// As [`dirs`], the first of them on a disk.
pub fn disk() -> (tempfile::TempDir, tempfile::TempDir) {
    (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap())
}

/// Rows of a rank.
pub fn rows(rank: u32, size: u32) -> NdBox {
    let cut = |n: u32| ROWS * u64::from(n) / u64::from(size);
    NdBox::new(&[cut(rank), 0], &[cut(rank + 1) - cut(rank), COLUMNS]).unwrap()
}

/// The bytes of some rows of `u` at a step.
pub fn u(step: u64, part: &NdBox) -> Vec<u8> {
    let mut out = Vec::new();
    for row in part.start[0]..part.end(0) {
        for column in part.start[1]..part.end(1) {
            out.extend((step as f64 * 1e6 + (row * COLUMNS + column) as f64).to_le_bytes());
        }
    }
    out
}

/// A rank of a program that saves `u` and its own number of steps.
pub struct Program {
    pub checkpoint: Checkpoint,
    pub part: NdBox,
    pub u: Vec<u8>,
    pub count: Vec<u8>,
}

impl Program {
    pub fn open(base: &Path, options: &Options) -> Result<Program> {
        let part = rows(options.rank, options.size);
        let mut checkpoint = Checkpoint::open(base, options)?;
        checkpoint.protect("u", Dtype::F64, &[ROWS, COLUMNS], &part)?;
        checkpoint.protect("count", Dtype::U64, &[], &NdBox::whole(&[]))?;
        let bytes = part.bytes(8).unwrap();
        Ok(Program { checkpoint, part, u: vec![0; bytes], count: vec![0; 8] })
    }

    pub fn save(&mut self, step: u64) -> Result<()> {
        self.save_with(step, None)
    }

    pub fn save_with(&mut self, step: u64, metric: Option<f64>) -> Result<()> {
        self.u = u(step, &self.part);
        self.count = step.to_le_bytes().to_vec();
        self.checkpoint.save_with(step, &[&self.u, &self.count], metric)
    }

    /// Restores, and checks that everything is of one step.
    pub fn restore(&mut self) -> Result<Option<Restored>> {
        self.u.fill(0xA5);
        let restored = self.checkpoint.restore_latest(&mut [&mut self.u, &mut self.count])?;
        if let Some(restored) = &restored {
            self.check(restored.step);
        }
        Ok(restored)
    }

    pub fn check(&self, step: u64) {
        assert_eq!(self.count, step.to_le_bytes());
        assert!(self.u == u(step, &self.part), "u is not that of step {step}");
    }
}

/// Every file below a directory.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found.sort();
    found
}

/// The file of a step in a level.
pub fn file_of(level: &Path, step: u64, name: &str) -> PathBuf {
    let step = format!("/s{step:010}-");
    let is = |path: &&PathBuf| path.display().to_string().contains(&step) && path.ends_with(name);
    let all = files(level);
    all.iter().find(is).unwrap_or_else(|| panic!("no {name} of {step} in {all:?}")).clone()
}

/// Changes one byte of a file.
pub fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x40;
    std::fs::write(path, bytes).unwrap();
}
