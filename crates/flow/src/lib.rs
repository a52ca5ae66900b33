//! Workflows: the file that describes one, the runner that carries it out, its record and its report.
//!
//! Guarantees: [`run()`] starts all ranks of all components or none; when one fails, or the runner is told to
//! end, everything ends and the spaces of the run go with it. What happened is in one directory
//! (`run.json`, traces, logs) that [`report()`] turns into one self-contained HTML file.
//! Not here: moving data (`forebay-space`), choosing how to run (a later part of this crate).

#![forbid(unsafe_code)]

pub mod clean_up;
mod conclude;
pub mod init;
pub mod launch;
pub mod npy;
pub mod progress;
pub mod record;
pub mod report;
pub mod report_plots;
pub mod run;
mod signals;
pub mod trace;
pub mod watch;
pub mod workflow;

pub use init::init;
pub use launch::exec_rank;
pub use record::{latest_run, RunRecord};
pub use report::report;
pub use run::{run, RunOptions};
pub use signals::{ignored_signals, Signals};
pub use watch::bridge;
pub use workflow::Workflow;
