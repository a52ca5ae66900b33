//! The command line: one seed, many seeds, seeds with a mutation.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use forebay_tier::simulation::mutation::{self, Mutation};
use forebay_tier::simulation::{self, Coverage, Failure, Outcome, Pressure, Settings};

use crate::danger::Dangers;
use crate::{checkpoint, space};

/// A run of more points never ends.
const POINTS_MAX: u64 = 20_000_000;

/// Kills where a mutation acts, beside those that the seed has drawn, in a run that has some.
const PRESSURE_KILLS: u32 = 3;
/// Stops there.
const PRESSURE_STOPS: u32 = 2;
/// Power cuts there, in a run that has some.
const PRESSURE_CUTS: u32 = 2;

/// Orders of events that a smaller run is tried with.
const SCHEDULES: u64 = 60;
/// A failure is told in time: what checks seeds ends a simulator that takes longer than 300 s.
const SHRINK_LIMIT: Duration = Duration::from_secs(120);

const USAGE: &str = "\
usage: forebay-simulate [--seed N | --seeds N,N,…] [--count N] [--points N] [--seconds N] [--schedule N]
                        [--set KEY=NUMBER] [--shrink] [--mutation KIND@FILE:LINE:COLUMN [--harmless]]
                        [--trace] [--coverage FILE] [--collect FILE] [--checkpoints]
Runs seeds N, N+1, …, or those of --seeds, and stops at the first failure, after --count runs, --points points or
--seconds. With --seeds and --points the seeds run again with other schedules until the points are used up.
  --schedule  the order of events follows from this number, not from the seed
  --set       changes what the seed has drawn; may be given several times
  --shrink    looks for a smaller run that fails in the same way, and prints its command line
  --mutation  does one thing wrongly on purpose, and then lets other threads run, or kills or stops a process; exit
              status 1 is then the success
  --harmless  does nothing wrong there; the rest stays
  --trace     prints every point of the run to standard error
  --coverage  writes FILE:LINE:COLUMN MET SWITCHED KILLED of every place to FILE
  --checkpoints  runs programs that checkpoint, not those that share a space
  --collect   writes every mutation that would change something, how often, and the seeds of such runs to FILE";

#[derive(Clone, Default)]
struct Arguments {
    seed: u64,
    count: Option<u64>,
    points: Option<u64>,
    seconds: Option<u64>,
    schedule: Option<u64>,
    set: Vec<String>,
    shrink: bool,
    mutation: Option<Mutation>,
    harmless: bool,
    trace: bool,
    coverage: Option<String>,
    collect: Option<String>,
    seeds: Option<Vec<u64>>,
    checkpoints: bool,
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let number =
            |text: String| text.parse::<u64>().map_err(|_| format!("`{text}` is not a whole number"));
        match word.as_str() {
            "--seed" => arguments.seed = number(value()?)?,
            "--count" => arguments.count = Some(number(value()?)?),
            "--points" => arguments.points = Some(number(value()?)?),
            "--seconds" => arguments.seconds = Some(number(value()?)?),
            "--schedule" => arguments.schedule = Some(number(value()?)?),
            "--set" => arguments.set.push(value()?),
            "--shrink" => arguments.shrink = true,
            "--mutation" => arguments.mutation = Some(value()?.parse()?),
            "--harmless" => arguments.harmless = true,
            "--trace" => arguments.trace = true,
            "--checkpoints" => arguments.checkpoints = true,
            "--coverage" => arguments.coverage = Some(value()?),
            "--collect" => arguments.collect = Some(value()?),
            "--seeds" => {
                arguments.seeds =
                    Some(value()?.split(',').map(|s| number(s.into())).collect::<Result<_, _>>()?)
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    let is_open = arguments.count.is_none() && arguments.points.is_none() && arguments.seconds.is_none();
    if is_open && arguments.seeds.is_none() {
        arguments.count = Some(1);
    }
    Ok(arguments)
}

/// Runs what the command line says.
pub fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    pin_to_one_processor();
    // What fails is told with the run's own trace.
    std::panic::set_hook(Box::new(|info| eprintln!("{info}")));
    if arguments.collect.is_some() {
        mutation::collect();
    }
    let failed = run_seeds(&arguments);
    if let Some(path) = &arguments.collect {
        let lines = mutation::collected().into_iter().map(|(mutation, met)| {
            let seeds: Vec<String> = met.seeds.iter().map(u64::to_string).collect();
            format!("{mutation} {} {}\n", met.times, seeds.join(","))
        });
        std::fs::write(path, lines.collect::<String>()).expect("the file of mutations");
    }
    ExitCode::from(u8::from(failed))
}

/// One thread runs at a time: on one processor the next one is resumed without waking another processor.
fn pin_to_one_processor() {
    if let Ok(allowed) = rustix::thread::sched_getaffinity(None) {
        let of = |i: &usize| allowed.is_set(*i);
        let count = (0..rustix::thread::CpuSet::MAX_CPU).filter(of).count().max(1);
        let chosen = (0..rustix::thread::CpuSet::MAX_CPU).filter(of).nth(std::process::id() as usize % count);
        let mut one = rustix::thread::CpuSet::new();
        one.set(chosen.unwrap_or(0));
        let _ = rustix::thread::sched_setaffinity(None, &one);
    }
}

/// True: one failed.
fn run_seeds(arguments: &Arguments) -> bool {
    let begin = Instant::now();
    let mut coverage = Coverage::default();
    let mut sums =
        BTreeMap::from([("points", 0), ("switches", 0), ("kills", 0), ("faults", 0), ("mutated", 0)]);
    let (mut runs, mut failed) = (0, false);
    let mut choice = Choice::of(arguments);
    while let Some((seed, schedule)) = choice.next() {
        let enough = arguments.count.is_some_and(|count| runs >= count)
            || arguments.points.is_some_and(|points| sums["points"] >= points)
            || arguments.seconds.is_some_and(|s| begin.elapsed() >= Duration::from_secs(s));
        if enough || failed {
            break;
        }
        let arguments = &Arguments { schedule, ..arguments.clone() };
        mutation::collect_seed(seed);
        let outcome = run_one(seed, arguments);
        mutation::collect_points(seed, outcome.points);
        if outcome.mutated > 0 {
            choice.made_a_difference(seed);
        }
        runs += 1;
        for (what, count) in [
            ("points", outcome.points),
            ("switches", outcome.switches),
            ("kills", outcome.kills),
            ("faults", outcome.faults),
            ("mutated", outcome.mutated),
        ] {
            *sums.get_mut(what).expect("counted") += count;
        }
        coverage.add(&outcome.coverage);
        if let Some(failure) = outcome.failure {
            failed = true;
            let smaller = if arguments.shrink { shrunk(seed, arguments, &failure) } else { None };
            let (failure, replay) = smaller.unwrap_or_else(|| (failure, replay(seed, arguments)));
            println!("FAILED: {}\n{}\nreplay: {replay}", failure.message, failure.trace);
        }
    }
    if let Some(path) = &arguments.coverage {
        std::fs::write(path, coverage.lines().join("\n")).expect("the file of coverage");
    }
    let counts: Vec<String> = sums.iter().map(|(what, count)| format!("{what}={count}")).collect();
    let rate = sums["points"] as f64 / begin.elapsed().as_secs_f64();
    println!("runs={runs} {} points_per_s={rate:.0} failed={}", counts.join(" "), u8::from(failed));
    failed
}

/// Which run is next. The seeds of --seeds come again with other schedules where --points says how much is to run;
/// every second run then is one of a seed in which the mutation has made a difference.
struct Choice<'a> {
    arguments: &'a Arguments,
    /// Runs that were chosen.
    chosen: u64,
    /// Of these so many were the next in the list.
    listed: u64,
    /// Runs of each seed.
    runs: BTreeMap<u64, u64>,
    /// Seeds in which the mutation has made a difference.
    telling: Vec<u64>,
    told: usize,
}

impl Choice<'_> {
    fn of(arguments: &Arguments) -> Choice<'_> {
        Choice { arguments, chosen: 0, listed: 0, runs: BTreeMap::new(), telling: Vec::new(), told: 0 }
    }

    /// Seed and schedule; None: that was all.
    fn next(&mut self) -> Option<(u64, Option<u64>)> {
        let Arguments { seeds, points, schedule, seed, .. } = self.arguments;
        self.chosen += 1;
        let Some(seeds) = seeds else { return Some((seed + self.chosen - 1, *schedule)) };
        if points.is_none() {
            return Some((*seeds.get(self.chosen as usize - 1)?, *schedule));
        }
        let seed = match self.telling.len() {
            count if count > 0 && self.chosen % 2 == 0 => {
                self.told += 1;
                self.telling[self.told % count]
            }
            _ => {
                self.listed += 1;
                *seeds.get((self.listed - 1) as usize % seeds.len().max(1))?
            }
        };
        let runs = self.runs.entry(seed).or_default();
        *runs += 1;
        Some((seed, if *runs == 1 { *schedule } else { Some(*runs - 1) }))
    }

    /// The mutation has made a difference in a run of this seed.
    fn made_a_difference(&mut self, seed: u64) {
        if !self.telling.contains(&seed) {
            self.telling.push(seed);
        }
    }
}

/// The command line of one run.
fn replay(seed: u64, arguments: &Arguments) -> String {
    let schedule = arguments.schedule.map_or(String::new(), |schedule| format!(" --schedule {schedule}"));
    let set: String = arguments.set.iter().map(|set| format!(" --set {set}")).collect();
    let with = arguments.mutation.map_or(String::new(), |mutation| format!(" --mutation {mutation}"));
    let with = if arguments.harmless { with + " --harmless" } else { with };
    let kind = if arguments.checkpoints { "--checkpoints " } else { "" };
    format!("forebay-simulate {kind}--seed {seed}{schedule}{set}{with}")
}

/// What a failure is recognised by: its text up to the first path, without numbers.
fn class(failure: &Failure) -> String {
    let text = failure.message.split('/').next().unwrap_or_default();
    text.chars().filter(|c| !c.is_ascii_digit()).take(60).collect()
}

/// The smallest run that was found within [`SHRINK_LIMIT`] that fails in the same way, and how to replay it.
fn shrunk(seed: u64, arguments: &Arguments, failure: &Failure) -> Option<(Failure, String)> {
    let (mut best, mut found) = (arguments.clone(), None);
    let begin = Instant::now();
    let smaller = match arguments.checkpoints {
        true => &checkpoint::SMALLER[..],
        false => &space::SMALLER[..],
    };
    for (key, values) in smaller {
        for value in *values {
            let mut tried = best.clone();
            tried.set.push(format!("{key}={value}"));
            let mut schedules = (0..SCHEDULES).take_while(|_| begin.elapsed() < SHRINK_LIMIT);
            let fails = schedules.find_map(|schedule| {
                tried.schedule = Some(schedule);
                failure_of(seed, &tried).filter(|other| class(other) == class(failure))
            });
            if let Some(failure) = fails {
                found = Some((failure, replay(seed, &tried)));
                best = tried;
                break;
            }
        }
    }
    found
}

/// How one run fails in a process of its own: the threads of killed processes stay as long as the simulator's process,
/// which could not hold those of all tries.
fn failure_of(seed: u64, arguments: &Arguments) -> Option<Failure> {
    let program = std::env::current_exe().expect("the simulator's file");
    let command_line = replay(seed, arguments);
    let output = Command::new(program).args(command_line.split(' ').skip(1)).output().expect("the simulator");
    let text = String::from_utf8_lossy(&output.stdout);
    let (told, _) = text.strip_prefix("FAILED: ")?.split_once("\nreplay: ")?;
    let (message, trace) = told.split_once('\n')?;
    Some(Failure { message: message.into(), trace: trace.into() })
}

fn run_one(seed: u64, arguments: &Arguments) -> Outcome {
    let root = tempfile::Builder::new().prefix("forebay-simulate-").tempdir_in("/dev/shm").expect("a folder");
    std::env::set_var("FOREBAY_DIR", root.path().join("spaces"));
    let (settings, is_calm, play) = match arguments.checkpoints {
        true => of_checkpoints(seed, root.path(), arguments),
        false => of_spaces(seed, root.path(), arguments),
    };
    let mut outcome = simulation::run(settings, play);
    release(root.path());
    if is_calm && outcome.overslept > 0 && outcome.failure.is_none() {
        let message =
            format!("{} times a wake-up was missed: a process slept to its deadline", outcome.overslept);
        outcome.failure = Some(Failure { message, trace: String::new() });
    }
    outcome
}

type Play = Box<dyn FnOnce() + Send>;

/// A run of a space, and whether nothing happens to its processes.
fn of_spaces(seed: u64, root: &Path, arguments: &Arguments) -> (Settings, bool, Play) {
    let mut cast = space::Cast::new(seed, root);
    apply(arguments, |set| cast.set(set));
    let is_calm = cast.is_calm() && cast.is_awake();
    (settings(seed, arguments, &cast.dangers, &cast), is_calm, Box::new(move || space::play(cast)))
}

/// A run of a program that checkpoints.
fn of_checkpoints(seed: u64, root: &Path, arguments: &Arguments) -> (Settings, bool, Play) {
    let mut cast = checkpoint::Cast::new(seed, root);
    apply(arguments, |set| cast.set(set));
    (
        settings(seed, arguments, &cast.dangers, &cast),
        cast.is_calm(),
        Box::new(move || checkpoint::play(cast)),
    )
}

/// Changes what the seed has drawn, as the command line says.
fn apply(arguments: &Arguments, mut set: impl FnMut(&str) -> Result<(), String>) {
    for text in &arguments.set {
        if let Err(message) = set(text) {
            eprintln!("{message}");
            std::process::exit(2);
        }
    }
}

/// The settings of a run.
fn settings(seed: u64, arguments: &Arguments, dangers: &Dangers, cast: &dyn Debug) -> Settings {
    if arguments.trace {
        eprintln!("{cast:#?}");
    }
    Settings {
        seed: arguments.schedule.unwrap_or(seed),
        points_max: POINTS_MAX,
        switch_per_million: dangers.switch_per_million,
        jump_per_million: dangers.jump_per_million,
        interrupt_per_million: dangers.interrupt_per_million,
        power_cuts: dangers.cuts > 0,
        aloud: arguments.trace,
        mutation: arguments.mutation,
        is_harmless: arguments.harmless,
        pressure: Pressure {
            kills: if dangers.kills > 0 { PRESSURE_KILLS } else { 0 },
            stops: if dangers.stops > 0 { PRESSURE_STOPS } else { 0 },
            cuts: if dangers.cuts > 0 { PRESSURE_CUTS } else { 0 },
        },
    }
}

/// Abandoned threads may hold files open: their pages go when they are cut off.
fn release(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => release(&entry.path()),
            _ => drop(std::fs::File::options().write(true).open(entry.path()).map(|file| file.set_len(0))),
        }
    }
}
