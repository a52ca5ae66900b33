//! Crash simulation of the log: production code on a simulated device whose power fails at every fence.
//!
//! `cargo xtask crash` runs it, and runs it again on copies of the log with one flush or fence taken out. It prints
//! how many distinct images recovery was tried on; it ends with status 1 at the first image that recovery does not
//! bring back as it should, and says how to see that image again. docs/src/design/crash-simulation.md has the idea.

mod explore;
mod life;
mod model;
mod pool;
mod workload;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;

use explore::{parse, Counts, Failure, Run, Seen};
use forebay_tier::adapter::sim::Flaw;
use workload::workloads;

const USAGE: &str = "\
usage: crash [--images N] [--flaw NAME] [--replay PATH]
  --images N     goes on with new seeds until so many distinct images were tried (default 100000)
  --flaw NAME    on a device that breaks its contract in that way; --flaw list lists them
  --replay PATH  only the run and the image of an earlier failure";

struct Options {
    images: u64,
    flaw: Option<Flaw>,
    replay: Option<String>,
}

fn options() -> Option<Options> {
    let mut options = Options { images: 100_000, flaw: None, replay: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next()?;
        match word.as_str() {
            "--images" => options.images = value.parse().ok()?,
            "--replay" => options.replay = Some(value),
            "--flaw" if value == "list" => {
                println!("{}", Flaw::ALL.map(|flaw| format!("{flaw:?}")).join("\n"));
                std::process::exit(0);
            }
            "--flaw" => options.flaw = Some(Flaw::ALL.into_iter().find(|f| format!("{f:?}") == value)?),
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let outcome = match &options.replay {
        Some(path) => replay(path, options.flaw),
        None => search(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            print!("{}", failure.seen);
            println!("FAILED {}: {}", failure.path, failure.what);
            println!(
                "  at a {} in {}; see it again with --replay '{}'",
                failure.point, failure.operation, failure.path
            );
            ExitCode::from(1)
        }
    }
}

fn replay(path: &str, flaw: Option<Flaw>) -> Result<(), Failure> {
    let Some((name, seed, stops)) = parse(path) else {
        eprintln!("no such path: {path}");
        std::process::exit(2);
    };
    let all = workloads();
    let Some(workload) = all.iter().find(|workload| workload.name == name) else {
        eprintln!("no such workload: {name}");
        std::process::exit(2);
    };
    let seen = Seen::new();
    let mut run = Run { workload, flaw, seen: &seen, counts: Counts::new(), crashes: 0, only: Some(&stops) };
    run.whole(seed)?;
    println!("{} images, nothing wrong", seen.distinct.load(Ordering::Relaxed));
    Ok(())
}

/// What all threads have found.
#[derive(Default)]
struct Found {
    counts: Counts,
    crashes: u64,
    failure: Option<Failure>,
}

/// All workloads with seed 0, then 1, and so on, until enough images were tried.
fn search(options: &Options) -> Result<(), Failure> {
    let all = workloads();
    let seen = Seen::new();
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let found = Mutex::new(Found::default());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let (seed, workload) = (n / all.len() as u64, &all[n as usize % all.len()]);
                let enough = seed > 0 && seen.distinct.load(Ordering::Relaxed) >= options.images;
                if enough || stop.load(Ordering::Relaxed) {
                    return;
                }
                let mut run = Run {
                    workload,
                    flaw: options.flaw,
                    seen: &seen,
                    counts: Counts::new(),
                    crashes: 0,
                    only: None,
                };
                let outcome = run.whole(seed);
                let mut found = found.lock().expect("no thread panics with it");
                found.crashes += run.crashes;
                for (key, count) in run.counts {
                    *found.counts.entry(key).or_default() += count;
                }
                if let Err(failure) = outcome {
                    stop.store(true, Ordering::Relaxed);
                    found.failure.get_or_insert(failure);
                }
            });
        }
    });
    let found = found.into_inner().expect("no thread panics with it");
    print(&found);
    found.failure.map_or(Ok(()), Err)
}

fn print(found: &Found) {
    let mut by_workload = BTreeMap::<&str, u64>::new();
    let mut by_fence = BTreeMap::<(&str, &str), u64>::new();
    for ((workload, operation, point), count) in &found.counts {
        *by_workload.entry(workload).or_default() += count;
        *by_fence.entry((operation, point)).or_default() += count;
    }
    for (workload, count) in &by_workload {
        println!("{count:>10}  workload {workload}");
    }
    for ((operation, point), count) in &by_fence {
        println!("{count:>10}  {operation}, {point}");
    }
    println!("{} crashes", found.crashes);
    println!("{} images", by_workload.values().sum::<u64>());
}
