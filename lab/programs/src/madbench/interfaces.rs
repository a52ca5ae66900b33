//! Ways to reach the matrices: system calls on a file, a mapped file, tiles of an array under a budget.

use std::path::Path;
use std::sync::Arc;

use forebay_pager::{Array, ArrayOptions, FileBacking, Mode, Policy, Pool};
use forebay_space::{Error, Result};
use forebay_tier::plain::PlainFile;
use forebay_tier::{Horizon, Region, TierKind};

use super::Storage;
use crate::placed::mapped;

/// One system call for each block, through the page cache.
pub struct Calls(PlainFile);

impl Calls {
    /// Over a file without a name in this folder.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(dir: &Path, bytes: u64) -> Result<Calls> {
        Ok(Calls(PlainFile::nameless(dir, bytes)?.without_direct()))
    }
}

impl Storage for Calls {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write(offset, bytes).map_err(|e| Error::io("cannot write a block", e))
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read(offset, out).map(|_| ()).map_err(|e| Error::io("cannot read a block", e))
    }

    /// The kernel reads ahead by itself.
    fn ahead(&mut self, _: u64, _: u64) {}

    fn flush(&mut self) -> Result<()> {
        self.0.flush().map_err(|e| Error::io("cannot flush the matrices", e))
    }
}

/// A copy into mapped memory for each block: persisted with the block on persistent memory, else at the end of a phase.
pub struct Mapped(Region);

impl Mapped {
    /// Over a file without a name in this folder.
    ///
    /// # Errors
    /// As [`Region::create`].
    pub fn new(dir: &Path, bytes: u64) -> Result<Mapped> {
        mapped(dir, bytes as usize).map(Mapped)
    }
}

impl Storage for Mapped {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = offset as usize;
        if self.0.tier() == TierKind::Pmem {
            return self.0.copy_persist(at, bytes);
        }
        self.0.as_mut_slice()?[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(&self.0.as_slice()[offset as usize..][..out.len()]);
        Ok(())
    }

    fn ahead(&mut self, _: u64, _: u64) {}

    fn flush(&mut self) -> Result<()> {
        self.0.persist_all()
    }
}

/// Tiles under a budget, past the page cache.
pub struct Tiles(Array);

impl Tiles {
    /// Over a file without a name in this folder.
    ///
    /// # Errors
    /// What making the file says, and as [`Array::open`].
    pub fn new(pool: &Pool, dir: &Path, bytes: u64, tile_bytes: usize) -> Result<Tiles> {
        let backing = FileBacking::new(PlainFile::nameless(dir, bytes)?)?;
        let mut options = ArrayOptions::new(tile_bytes);
        (options.mode, options.policy, options.horizon) = (Mode::ReadWrite, Policy::None, Horizon::None);
        Array::open(pool, Arc::new(backing), &options).map(Tiles)
    }
}

impl Storage for Tiles {
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write(offset, bytes)
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read(offset, out)
    }

    fn ahead(&mut self, offset: u64, bytes: u64) {
        self.0.prefetch(offset..offset + bytes);
    }

    fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::madbench::{compute, Case};
    use forebay_pager::PoolOptions;

    #[test]
    fn the_same_result_by_every_way() {
        let dir = tempfile::tempdir().expect("a folder");
        let case = Case { pixels: 64, bins: 4, block: 3000, busy: None, seed: 5 };
        let bytes = case.bytes();
        let pool = Pool::new(PoolOptions { tile_max: 4096, ..PoolOptions::new(64 << 10) }).expect("a pool");
        let mut calls = Calls::new(dir.path(), bytes).expect("a file");
        let mut mapped = Mapped::new(dir.path(), bytes).expect("a mapping");
        let mut tiles = Tiles::new(&pool, dir.path(), bytes, 4096).expect("an array");
        let fisher = compute(&case, &mut calls, |_| ()).expect("calls").fisher;
        assert_eq!(compute(&case, &mut mapped, |_| ()).expect("mapped").fisher, fisher);
        assert_eq!(compute(&case, &mut tiles, |_| ()).expect("tiles").fisher, fisher);
        assert!(pool.statistics().loaded > 0);
        assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 0);
    }
}
