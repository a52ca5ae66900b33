//! `cargo xtask`: the tasks of the project, so that a person and CI run exactly the same thing.
//!
//! Each task is a file of this folder. A task prints what it found and ends with status 1 when something is
//! wrong, 2 when it was called wrongly. None of them changes a file, except `tidy --bless`, which only lowers the
//! lengths in `xtask/long-functions.txt`.

#![forbid(unsafe_code)]

mod arch;
mod bench;
mod blank;
mod ci;
mod crash;
mod dax_machine;
mod formats;
mod fuzz;
mod mem_matrix;
mod miri;
mod nodes;
mod packages;
mod privilege;
mod python;
mod readme;
mod sanitize;
mod simulate;
mod stages;
mod summary;
mod tidy;
mod tree;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask TASK

  ci [--all | --long]         make test; --all: make test-all, what takes longer; --long: make soak, with many more
                              rounds, sanitizers, Miri and libFuzzer
  tidy [--bless]              rules on the source tree; --bless lowers xtask/long-functions.txt
  arch                        crates, folders and their arrows against the tables in ARCHITECTURE.md
  formats                     the durable layouts of the code against docs/src/formats
  readme                      runs the programs and commands that README.md and the guide show
  wheel                       the Python package, built into target/wheels and installed into .venv
  crash [--long | --replay PATH]
                              recovery on every image that a crash of the log may leave; each flush and fence left out
  simulate [--minutes N | --points N] [--seed N] [--jobs N]
                              spaces under simulated processes that are switched, stopped and killed between any two
                              accesses to shared words and any two system calls, seed after seed
  simulate --mutations | --pressure [--points N] [--only TEXT]
                              the same with one store, load, wake-up, lock or flush done wrongly, which must be noticed;
                              --pressure: no defect, but threads are held, stopped and killed at the same places
  simulate -- ARGUMENTS       one run, as the line that a failure prints says
  dax-machine [OPTIONS] -- COMMAND
                              runs a command in an emulated machine with persistent memory and two sockets
  dax-machine --tests [--only suites|plans|names|cuts] [--cuts N]
                              the tests that need such a machine, with N losses of power
  mem-matrix [--small] [--only NAME] [--user root|nobody|both] [--kills N]
                              real programs plain and under `forebay mem`: output and files must be the same, no more
                              in memory than budget and 32 MiB; --kills: runs that are killed leave nothing
  nodes N [--delay TIME] [--loss PERCENT] [--rate BITS] [--veth] -- COMMAND
                              a command on N nodes that are namespaces of this machine; --tests: tests of the test bed
  sanitize [address | thread] the tests of tier, log and space under the compiler's sanitizers
  miri                        the parts of the crates that compute only, under Miri
  fuzz [--seconds N] [TARGET ...]
                              libFuzzer on the formats that are read, N seconds each (60)
  bench put [--json] [--quick] [--install]
                              put against libpmem, the coupled stream against ADIOS2 SST and a file per object
  bench stream [--json] [--quick]
                              the STREAM kernels against a plain C STREAM
  bench checkpoint [--json] [--quick]
                              checkpoints against a copy of memory and fio
  bench pager [--json] [--quick]
                              arrays larger than memory against fio and numpy.memmap
  bench expansion [--json] [--quick] [--only KERNEL]
                              kernels on tiles against swap and mmap in a memory cgroup";

fn main() -> ExitCode {
    // Some build scripts depend on these variables. With those of this package cargo would compile again what a
    // cargo without them has compiled, and the other way round.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            std::env::remove_var(&name);
        }
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = tree::root();
    let outcome = match words.as_slice() {
        ["ci", rest @ ..] => ci::run_task(&root, rest),
        ["tidy", rest @ ..] => tidy::run(&root, rest),
        ["arch"] => arch::run(&root),
        ["formats"] => formats::run(&root),
        ["readme"] => readme::programs(&root)
            .and_then(|()| readme::mapped_memory(&root))
            .and_then(|()| readme::five_minutes(&root)),
        ["wheel"] => python::wheel_task(&root),
        ["dax-machine", rest @ ..] => dax_machine::run(&root, rest),
        ["crash", rest @ ..] => crash::run_task(&root, rest),
        ["simulate", rest @ ..] => simulate::run_task(&root, rest),
        ["sanitize", rest @ ..] => sanitize::run_task(&root, rest),
        ["nodes", rest @ ..] => nodes::run_task(&root, rest),
        ["mem-matrix", rest @ ..] => mem_matrix::run(&root, rest),
        ["miri"] => miri::run_task(&root),
        ["fuzz", rest @ ..] => fuzz::run_task(&root, rest),
        ["bench", "expansion", rest @ ..] => bench::expansion::run(&root, rest),
        ["bench", "checkpoint", rest @ ..] => bench::checkpoint::run(&root, rest),
        ["bench", "pager", rest @ ..] => bench::pager::run(&root, rest),
        ["bench", "put", rest @ ..] => bench::run(&root, rest),
        ["bench", "stream", rest @ ..] => bench::stream::run(&root, rest),
        _ => Err(Stop::Usage(USAGE.to_string())),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Usage(text)) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
        Err(Stop::Findings(findings)) => {
            for finding in &findings {
                eprintln!("{finding}");
            }
            // None: the task has said itself what is wrong, and its last line stays the last one.
            if !findings.is_empty() {
                eprintln!("{} finding(s)", findings.len());
            }
            ExitCode::from(1)
        }
        Err(Stop::Failed(text)) => {
            eprintln!("{text}");
            ExitCode::from(1)
        }
        Err(Stop::Skipped(why)) => {
            println!("skipped: {why}");
            ExitCode::SUCCESS
        }
    }
}

/// Why a task ended without success.
#[derive(Debug, PartialEq)]
pub enum Stop {
    /// It was called wrongly.
    Usage(String),
    /// It worked and found these things, one line each.
    Findings(Vec<String>),
    /// It could not do its work, or a part of it failed; the text says why.
    Failed(String),
    /// It cannot be done here, for this reason.
    Skipped(String),
}

/// What every task returns.
pub type Outcome = Result<(), Stop>;

/// Success when there is nothing to tell.
pub fn no_findings(findings: Vec<String>) -> Outcome {
    if findings.is_empty() {
        Ok(())
    } else {
        Err(Stop::Findings(findings))
    }
}
