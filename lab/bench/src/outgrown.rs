//! Where the arrays of a kernel lie that may outgrow their memory: what the verbs that compare these places share.
//!
//! Guarantees: no more than half of what is free on a tier is taken; files have no name.

use std::path::Path;

use forebay_pager::{Pool, PoolOptions};
use forebay_programs::placed::Placement;
use forebay_tier::{capacity, Error, Horizon, Kind, Result, TierKind};
use serde::Serialize;

/// A place for all arrays of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In memory, all of them.
    Dram,
    /// On the tier, with as much in memory as the budget says.
    Tiles,
    /// In mapped files on the tier, with as much in memory as the kernel likes.
    Mmap,
}

impl Place {
    /// Its word on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Place::Dram => "dram",
            Place::Tiles => "tiles",
            Place::Mmap => "mmap",
        }
    }

    /// Whether `bytes` of arrays of `kernel` fit there; `hint` is what the user can do else.
    ///
    /// # Errors
    /// `TierFull`.
    pub fn require_space(
        self,
        dir: &Path,
        tier: TierKind,
        kernel: &str,
        bytes: u64,
        hint: &str,
    ) -> Result<()> {
        let free = match self {
            Place::Dram => capacity::memory(),
            Place::Tiles | Place::Mmap => {
                let free = capacity::headroom(dir, tier)?;
                capacity::Headroom { bytes: free.bytes / 2, ..free }
            }
        };
        if bytes <= free.bytes {
            return Ok(());
        }
        Err(Error::new(Kind::TierFull, format!("not enough free space for the arrays of {kernel}"))
            .with("wanted_bytes", bytes)
            .with("free_bytes", free.bytes)
            .with("limited_by", free.limited_by)
            .hint(format!("{hint}; on the tier at most half of what is free is taken")))
    }

    /// The placement, with its pool where there is one, of `budget` bytes of memory and tiles of `tile`.
    ///
    /// # Errors
    /// Those of the pool.
    pub fn placement(self, dir: &Path, budget: u64, tile: u64) -> Result<(Placement, Option<Pool>)> {
        match self {
            Place::Dram => Ok((Placement::Dram, None)),
            Place::Mmap => Ok((Placement::Mmap { dir: dir.to_owned() }, None)),
            Place::Tiles => {
                let tile_bytes = tile as usize;
                let pool = Pool::new(PoolOptions { tile_max: tile_bytes, ..PoolOptions::new(budget) })?;
                let (dir, horizon) = (dir.to_owned(), Horizon::None);
                Ok((Placement::Tier { pool: pool.clone(), dir, tile_bytes, horizon }, Some(pool)))
            }
        }
    }
}
