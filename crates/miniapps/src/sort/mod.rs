//! Sorting more keys than memory holds: an external merge sort on tiles, and beside it the plain in-place sort, of a
//! window and of the mapped file that both are compared with.
//!
//! Keys are uniformly random 64-bit numbers of a seed ([`keys`]). Both sorts begin with the same file, and what they
//! leave is checked by order and by a hash that every permutation of the keys has and hardly anything else.

mod external;
pub mod keys;
mod mapped;
mod merge;
mod plan;

use std::path::Path;

use serde::{Deserialize, Serialize};

pub use external::external;
pub use keys::{Checked, Permutation};
pub use mapped::{mapped, windowed};

/// What is sorted, and within what.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Task {
    /// Keys of 8 bytes.
    pub keys: u64,
    /// Their seed.
    pub seed: u64,
    /// Most memory for keys and for what is known of them.
    pub budget: u64,
    /// Length of a tile; a power of two.
    pub tile_bytes: usize,
    /// Threads.
    pub threads: usize,
}

/// How a sort went. Times are measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sorted {
    /// From the first read to everything being durable.
    pub seconds: f64,
    /// Of that, of an external sort: sorting runs, and merging them.
    pub phases: Option<[f64; 2]>,
    /// Sorted runs that were merged.
    pub runs: Option<usize>,
    /// Bytes that the pager read and wrote.
    pub moved_bytes: Option<[u64; 2]>,
    /// How its file was reached: `direct`, `cached`, `mmap`, or the engine of a window.
    pub method: String,
}

/// Whether an external sort has enough memory.
///
/// # Errors
/// `Usage`, with what is wanted.
pub fn check_budget(task: &Task) -> forebay_space::Result<()> {
    plan::Plan::of(task).map(drop)
}

/// Where an external sort leaves the sorted keys of a file.
pub fn sorted_name(keys: &Path) -> std::path::PathBuf {
    let mut name = keys.as_os_str().to_owned();
    name.push(".sorted");
    name.into()
}
