//! The schema names of every document that the lab prints with `--json`; `lab/bench/json.md` describes each.

/// How a mini-application ended.
pub const APP: &str = "forebay.app/1";
/// The STREAM kernels.
pub const BENCH_STREAM: &str = "forebay.bench-stream/1";
/// A file per thread, through system calls and through memory.
pub const BENCH_IOR: &str = "forebay.bench-ior/1";
/// Random accesses over threads.
pub const BENCH_LRIOT: &str = "forebay.bench-lriot/1";
/// Response times of writers and readers over ranks, sizes and tiers.
pub const BENCH_STAGING: &str = "forebay.bench-staging/1";
/// Sorting more keys than memory holds.
pub const BENCH_SORT: &str = "forebay.bench-sort/1";
/// Breadth-first searches of a graph larger than memory.
pub const BENCH_BFS: &str = "forebay.bench-bfs/1";
/// The workflows of a study, predicted.
pub const BENCH_WORKFLOWS: &str = "forebay.bench-workflows/1";
/// Matrices that do not fit memory, by interface and block.
pub const BENCH_MADBENCH: &str = "forebay.bench-madbench/1";
/// A program run with its arrays in memory and on a tier.
pub const BENCH_PLACING: &str = "forebay.bench-placing/1";
/// Kernels in memory and on tiles.
pub const BENCH_POLYBENCH: &str = "forebay.bench-polybench/1";
/// Multigrid and Fourier transforms in memory and on tiles.
pub const BENCH_NPB: &str = "forebay.bench-npb/1";
/// Navier-Stokes equations by alternating directions, by threads and ranks.
pub const BENCH_BT: &str = "forebay.bench-bt/1";
/// Their field dumped every few steps.
pub const BENCH_BTIO: &str = "forebay.bench-btio/1";
/// The same solver with a checkpoint after each step, and after a crash.
pub const BENCH_CHECKPOINT: &str = "forebay.bench-checkpoint/1";
/// Workflows that were run on an emulated platform.
pub const BENCH_WORKFLOWS_RUN: &str = "forebay.bench-workflows-run/1";

/// All of them.
pub const ALL: &[&str] = &[
    APP,
    BENCH_STREAM,
    BENCH_IOR,
    BENCH_LRIOT,
    BENCH_STAGING,
    BENCH_SORT,
    BENCH_BFS,
    BENCH_WORKFLOWS,
    BENCH_MADBENCH,
    BENCH_PLACING,
    BENCH_POLYBENCH,
    BENCH_NPB,
    BENCH_BT,
    BENCH_BTIO,
    BENCH_CHECKPOINT,
    BENCH_WORKFLOWS_RUN,
];
