//! Workflows: the file that describes one, plans, the runner that carries them out, its record and its report.
//!
//! Guarantees: [`run()`] starts all ranks of all components or none; when one fails, or the runner is told to
//! end, everything ends and the spaces of the run go with it. What happened is in one directory
//! (`run.json`, traces, logs) that [`report()`] turns into one self-contained HTML file.
//! Not here: moving data (`forebay-space`), choosing how to run (a later part of this crate).

#![forbid(unsafe_code)]

pub mod advise;
pub mod alone;
mod channel;
pub mod characterise;
pub mod choices;
pub mod clean_up;
mod commands;
mod conclude;
mod course;
pub mod emit;
pub mod emulate;
pub mod history;
pub mod init;
pub mod inputs;
pub mod launch;
pub mod names;
pub mod nodes;
pub mod npy;
pub mod pin;
pub mod place;
pub mod plan;
pub mod progress;
pub mod record;
pub mod run;
pub mod seats;
mod signals;
mod supervise;
mod tee;
pub mod topology;
pub mod trace;
pub mod trials;
pub mod watch;
pub mod workflow;

pub use init::init;
pub use launch::exec_rank;
pub use pin::exec_planned;
pub use plan::PlanFile;
pub use record::{latest_run, RunRecord};
pub use run::run;
pub use signals::Signals;
pub use supervise::RunOptions;
pub use topology::Topology;
pub use watch::bridge;
pub use workflow::Workflow;
