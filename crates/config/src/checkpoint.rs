//! The options of a checkpoint, one entry each: the place where one adds one.
//!
//! As `table.rs` for `open`. How levels and rules are read stands where they are used, in `forebay-checkpoint`.

use std::path::PathBuf;
use std::time::Duration;

use forebay_tier::adapter::fault::FaultPlan;

use crate::form::Value;
use crate::row::{held, own_options, row, unsaid, Role, Row};
use crate::value::TIMEOUT_DEFAULT;

own_options! {
    /// How to open a checkpoint.
    CheckpointOptions, CHECKPOINT_OPTIONS, Role::Checkpoint;
    options {
        /// Levels of the checkpoint, the fastest first.
        /// A level is a tier (`dram`, `numa:N`, `file`, `direct`, `pmem`), a directory or `s3://BUCKET/PREFIX`,
        /// optionally `+partner`, `+xor:N` or `+rs:K+M` (redundancy between nodes), then options, as in `file,keep=3`:
        /// `keep=N` retains the N newest steps, `every=N` each N-th permanently, `best=K` or `best=K:largest` the K
        /// best by the metric of the save.
        levels, levels: Vec<String> = vec!["file".into()]; {
            range: "a level with its options, as in file,keep=3; with ; between several",
            default: "file", see: "checkpoint.md",
        }

        /// When `need` returns true.
        /// After a number of steps, after a number of seconds, at the optimum for a mean time between failures in
        /// seconds, or when the job is about to end (SIGTERM, SIGUSR1). One rule that applies is enough.
        when, when: Vec<String> = vec!["optimum".into()]; {
            range: "steps:N, seconds:S, optimum, optimum:MTBF, signal; with ; between several",
            default: "optimum", see: "checkpoint.md",
        }

        /// Interval of full steps; the steps between them contain changes only. 0: all steps are full.
        /// For levels that are not in memory and do not set it themselves.
        incremental, incremental: u32 = 0; { default: "0", see: "checkpoint.md" }

        /// Compression of chunks.
        /// For levels that are not in memory and do not set it themselves.
        compress, compress: String = "none".into(); {
            range: "none, zstd, zstd:LEVEL", default: "none", see: "checkpoint.md",
        }

        /// Limit of the memory of this process's part in a level in memory.
        memory_bytes_max, memory: u64; { default: "two steps" }

        /// Name of the program: a directory into which another program saves is refused.
        program, program: String = String::new(); { default: "none" }
    }
    beside {
        /// Rank of this process, below `size`.
        rank: u32 = 0;
        /// Number of processes that save together.
        size: u32 = 1;
        /// How long to wait for other ranks and for lower levels.
        timeout: Duration = TIMEOUT_DEFAULT;
        /// What tells launches of the program apart, as the number of the batch job: a rank does not join a run of
        /// another launch, whose ranks may have closed. Empty: not said.
        launch: String = String::new();
        /// The name of the node that this rank runs on, for levels with a directory for each node; None: a number
        /// that follows from the rank and the level's `ranks_per_node`.
        node: Option<String> = None;
        /// Where levels of memory lie; needed for `dram` and `numa:N`.
        memory_root: Option<PathBuf> = None;
        /// Fault injection: errors of data files in directories.
        faults: Option<FaultPlan> = None;
    }
}
