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
        /// Where steps go, the fastest first.
        /// A tier (`dram`, `numa:N`, `file`, `direct`, `pmem`), a directory, or `s3://BUCKET/PREFIX`; behind it what
        /// goes for this level alone, as in `file,keep=3`: `keep=N` newest steps stay, `every=N` keeps each N-th for
        /// good, `best=K` or `best=K:largest` the K best by the metric of the save; `+partner`, `+xor:N` or `+rs:K+M`
        /// right behind the place is redundancy between nodes.
        levels, levels: Vec<String> = vec!["file".into()]; {
            range: "a place with its options, as file,keep=3; with ; between several",
            default: "file", see: "checkpoint.md",
        }

        /// When `need` says yes.
        /// After so many steps, so many seconds, at the optimum for a mean time between failures in seconds, or when
        /// the job is about to end (SIGTERM, SIGUSR1); any of them.
        when, when: Vec<String> = vec!["optimum".into()]; {
            range: "steps:N, seconds:S, optimum, optimum:MTBF, signal; with ; between several",
            default: "optimum", see: "checkpoint.md",
        }

        /// Every so many steps a full one, and between them what has changed; 0: all are full.
        /// Of levels that are no memory and do not say it themselves.
        incremental, incremental: u32 = 0; { default: "0", see: "checkpoint.md" }

        /// How chunks are compressed.
        /// Of levels that are no memory and do not say it themselves.
        compress, compress: String = "none".into(); {
            range: "none, zstd, zstd:LEVEL", default: "none", see: "checkpoint.md",
        }

        /// Most bytes of memory that this process's part may take in a level of memory.
        memory_bytes_max, memory: u64; { default: "two steps" }

        /// The program: a directory that another one saves into is refused.
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
        /// For trials: what shall go wrong with data files in directories.
        faults: Option<FaultPlan> = None;
    }
}
