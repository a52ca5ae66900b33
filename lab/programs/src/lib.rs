//! The programs of the studies, written on Forebay's public API only: load and benchmarks.
//!
//! The workflow suite, whose components can be combined:
//!
//! * [`objects`]: a writer and a reader of objects of any size, which checks every byte;
//! * [`particles`]: a particle-in-cell simulation, few large arrays;
//! * [`amr`]: an adaptive stencil simulation, many small objects;
//! * [`analytics`]: reading all of what they write, or multiplying the matrices in it.
//!
//! And the programs that need more memory than there is:
//!
//! * [`sort`]: an external merge sort on tiles, beside the in-place sort of a mapped file;
//! * [`bfs`]: breadth-first search of a graph whose edges lie in a file.
//!
//! And programs whose arrays may lie on a tier ([`placed`]): [`sharpen`], [`cfd`], [`polybench`], [`madbench`],
//! [`npb`].
//!
//! And the solver whose checkpoints the studies timed, after the NAS Parallel Benchmarks: [`bt`].
//!
//! The crate starts no processes and parses no command line: the command mounts the `…Args` of each program as
//! `forebay app NAME`.
#![forbid(unsafe_code)]

mod account;
pub mod amr;
pub mod analytics;
pub mod bfs;
pub mod bt;
pub mod cfd;
pub mod compute;
pub mod madbench;
pub mod npb;
mod numbers;
pub mod objects;
pub mod particles;
pub mod placed;
pub mod polybench;
pub mod sharpen;
pub mod sort;

pub use account::Account;
pub use amr::AmrArgs;
pub use analytics::{MultiplyArgs, ReadOnlyArgs};
pub use bt::BtArgs;
pub use objects::{ReaderArgs, WriterArgs};
pub use particles::ParticlesArgs;

/// "1 rank", "4 ranks".
fn ranks(n: usize) -> String {
    format!("{n} rank{}", if n == 1 { "" } else { "s" })
}
