//! `cargo xtask simulate`: spaces and checkpoints under simulated processes (`simulation/`), seed after seed, and with
//! one thing wrong on purpose.
//!
//! Builds the simulator into target/simulated with `--cfg forebay_simulated`. Seeds run in child processes of some
//! hundred runs each, because a run abandons the threads and mappings of the processes it killed. The arguments of runs
//! that once failed stand in `simulation/seeds.txt` and run first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::packages::{cargo, target_folder};
use crate::stages::run;
use crate::{no_findings, Outcome, Stop};

const USAGE: &str = "\
usage: cargo xtask simulate [--minutes N | --points N] [--seed N] [--jobs N]
       cargo xtask simulate --mutations | --pressure [--points N] [--only TEXT]
       cargo xtask simulate --shipped
       cargo xtask simulate -- ARGUMENTS OF forebay-simulate";

/// Runs of one child process.
const RUNS: u64 = 400;
/// Every so many children one runs programs that checkpoint, the others spaces.
const CHECKPOINTS_EVERY: u64 = 4;
/// Seeds of a mutation begin here: the same on every machine.
const MUTATION_SEED: u64 = 1_000_000;
/// Within so many points a mutation has to be noticed.
const MUTATION_POINTS: u64 = 1_000_000;
/// Nothing happens to any process.
const CALM: [&str; 10] =
    ["--set", "kills=0", "--set", "stops=0", "--set", "faults=0", "--set", "jumps=0", "--set", "cuts=0"];
/// Nor was any killed before a run.
const NO_LEFTOVERS: [&str; 2] = ["--set", "leftovers=0"];
/// Mutations that need not be noticed, with the reason.
const SURVIVORS: &str = "simulation/survivors.txt";
/// Runs that look for places of mutations: one child has file descriptors, and time, for so many.
const COLLECT_RUNS: u64 = 600;
/// What users get.
const SHIPPED: [&str; 4] = ["forebay", "forebay-lab", "libforebay.so", "libforebay_mem.so"];
/// Modules of which nothing ships: in an ordinary build the boundary is the standard library, or empty and inlined.
const SIMULATED: [&str; 2] = ["forebay_tier::simulation::", "forebay_tier::host::"];
const BUILD_LIMIT: Duration = Duration::from_secs(1200);
/// A child that takes longer hangs where there are no points.
const CHILD_LIMIT: Duration = Duration::from_secs(300);
/// Sources whose mutations count.
const SOURCES: [&str; 3] = ["crates/space/src/", "crates/log/src/", "crates/checkpoint/src/"];
/// Those below them, of which only flushes count.
const FLUSHING: &str = "crates/tier/src/";
/// Files of them that decide nothing: what people look at.
const REPORTS: [&str; 4] = ["channels.rs", "inspect.rs", "steer.rs", "trace.rs"];

/// How much is run.
#[derive(Clone, Copy)]
enum Amount {
    Time(Duration),
    Points(u64),
}

/// The task.
pub fn run_task(root: &Path, arguments: &[&str]) -> Outcome {
    if let ["--", rest @ ..] = arguments {
        let program = build(root)?;
        let status = Command::new(program).args(rest).status();
        return match status {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(Stop::Findings(Vec::new())),
            Err(e) => Err(Stop::Failed(e.to_string())),
        };
    }
    if arguments == ["--shipped"] {
        return ships_nothing(root);
    }
    let (mut amount, mut seed, mut jobs, mut places, mut only) = (None, None, None, None, "");
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let usage = || Stop::Usage(USAGE.to_string());
        let mut value = || words.next().ok_or_else(usage);
        let mut number = || value()?.parse::<u64>().map_err(|_| usage());
        match *word {
            "--minutes" => amount = Some(Amount::Time(Duration::from_secs(60 * number()?))),
            "--points" => amount = Some(Amount::Points(number()?)),
            "--seed" => seed = Some(number()?),
            "--jobs" => jobs = Some(number()?),
            "--mutations" => places = Some(At::Wrong),
            "--pressure" => places = Some(At::Harmless),
            "--only" => only = value()?,
            _ => return Err(usage()),
        }
    }
    let program = build(root)?;
    if let Some(at) = places {
        let points = match amount {
            Some(Amount::Points(points)) => points,
            _ => MUTATION_POINTS,
        };
        let places = Places::collect(root, &program, only)?;
        return match at {
            At::Wrong => mutate(root, &program, &places, points),
            At::Harmless => press(&program, &places, points),
        };
    }
    kept_seeds(root, &program)?;
    let amount = amount.unwrap_or(Amount::Time(Duration::from_secs(60)));
    new_seeds(&program, amount, seed.unwrap_or_else(fresh_seed), jobs.unwrap_or_else(processors))
}

/// What CI runs: the kept seeds, then those of the commit for some minutes.
pub fn check(root: &Path, minutes: u64) -> Outcome {
    let program = build(root)?;
    kept_seeds(root, &program)?;
    let seed = seed_of_commit(root).unwrap_or_else(fresh_seed);
    new_seeds(&program, Amount::Time(Duration::from_secs(60 * minutes)), seed, processors())
}

/// What ships and has been built has no function of the simulator, nor one of the boundary that calls it.
pub fn ships_nothing(root: &Path) -> Outcome {
    let simulator = build(root)?;
    if Command::new("nm").arg("--version").output().is_err() {
        return Err(Stop::Skipped("nm (binutils) is not installed".to_string()));
    }
    if simulated_functions(&simulator).map_err(Stop::Failed)? == 0 {
        return Err(Stop::Failed(
            "nm finds no function of the simulator in the simulator itself".to_string(),
        ));
    }
    let folder = target_folder(root).join("release");
    let shipped = SHIPPED.map(|name| folder.join(name));
    let mut findings = Vec::new();
    for file in shipped.iter().filter(|file| file.exists()) {
        match simulated_functions(file).map_err(Stop::Failed)? {
            0 => println!("ok       no function of the simulator in {}", file.display()),
            found => findings.push(format!("{}: {found} functions of the simulator", file.display())),
        }
    }
    no_findings(findings)
}

/// Functions of the simulator, and of the boundary below which it takes the system's place, in a program or library.
fn simulated_functions(file: &Path) -> Result<usize, String> {
    let output = Command::new("nm").args(["--demangle", "--defined-only"]).arg(file).output();
    let output = output.map_err(|e| format!("cannot run nm: {e}"))?;
    if !output.status.success() {
        return Err(format!("nm {}: {}", file.display(), String::from_utf8_lossy(&output.stderr)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let is_one = |line: &&str| SIMULATED.iter().any(|module| line.contains(module));
    Ok(text.lines().filter(is_one).count())
}

fn processors() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

/// New seeds for each commit, the same ones wherever it is checked, so that a run before CI tries the seeds of CI.
fn seed_of_commit(root: &Path) -> Option<u64> {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    u64::from_str_radix(text.get(..8)?, 16).ok().map(|number| number << 20)
}

/// Other seeds at each call; which they were is printed.
fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()) << 20
}

/// Builds the program in the simulated configuration.
fn build(root: &Path) -> Result<PathBuf, Stop> {
    let target = target_folder(root).join("simulated");
    let mut command = Command::new(cargo());
    command.args(["build", "--release", "--quiet", "--package", "forebay-simulation"]).current_dir(root);
    command.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "--cfg forebay_simulated");
    match run(&mut command, BUILD_LIMIT).failure {
        None => Ok(target.join("release/forebay-simulate")),
        Some(why) => Err(Stop::Failed(format!("building the simulator: {why}"))),
    }
}

/// Runs a child to its end, or kills it at the limit.
fn child(command: &mut Command) -> Result<Output, Stop> {
    let limit = Instant::now() + CHILD_LIMIT;
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = spawned.map_err(|e| Stop::Failed(format!("the simulator: {e}")))?;
    let id = child.id();
    let killer = {
        let done = std::sync::Arc::new(AtomicU64::new(0));
        let thread = std::thread::spawn({
            let done = done.clone();
            move || {
                while done.load(SeqCst) == 0 && Instant::now() < limit {
                    std::thread::sleep(Duration::from_millis(20));
                }
                if done.load(SeqCst) == 0 {
                    let _ = Command::new("kill").args(["-KILL", &id.to_string()]).status();
                }
            }
        });
        (done, thread)
    };
    let mut text = Vec::new();
    if let Some(mut out) = child.stdout.take() {
        let _ = std::io::Read::read_to_end(&mut out, &mut text);
    }
    let status = child.wait().map_err(|e| Stop::Failed(format!("the simulator: {e}")))?;
    killer.0.store(1, SeqCst);
    let _ = killer.1.join();
    Ok(Output { status, stdout: text, stderr: Vec::new() })
}

/// `NAME=NUMBER` of a child's last line.
fn counts(output: &Output) -> BTreeMap<String, u64> {
    let text = String::from_utf8_lossy(&output.stdout);
    let pairs = text.lines().last().unwrap_or_default().split(' ').filter_map(|pair| pair.split_once('='));
    pairs.filter_map(|(name, value)| Some((name.to_string(), value.parse().ok()?))).collect()
}

/// The command that repeats the run, which a summary of one line keeps; then the output from the line FAILED on,
/// without the points before it.
fn failure(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    let replay = text.lines().find(|line| line.starts_with("replay: ")).unwrap_or("no command repeats it");
    match text.find("FAILED") {
        Some(at) => format!("{replay}\n{}", &text[at..]),
        None => format!("the simulator ended with {}", output.status),
    }
}

/// The runs that failed once.
fn kept_seeds(root: &Path, program: &Path) -> Outcome {
    let path = root.join("simulation/seeds.txt");
    let text =
        std::fs::read_to_string(&path).map_err(|e| Stop::Failed(format!("{}: {e}", path.display())))?;
    let kept = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let mut count = 0;
    for line in kept {
        let output = child(Command::new(program).args(line.split_whitespace()))?;
        if !output.status.success() {
            return Err(Stop::Failed(format!("the kept run `{line}` fails again\n{}", failure(&output))));
        }
        count += 1;
    }
    println!("   {count} kept runs passed");
    Ok(())
}

/// New seeds, until enough of them have run or one fails.
fn new_seeds(program: &Path, amount: Amount, seed: u64, jobs: u64) -> Outcome {
    let begin = Instant::now();
    let (next, sums) = (AtomicU64::new(seed), Mutex::new(BTreeMap::<String, u64>::new()));
    let (failed, coverage) = (Mutex::new(None::<String>), Mutex::new(Coverage::default()));
    let scratch = std::env::temp_dir().join(format!("forebay-simulate-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(|e| Stop::Failed(format!("{}: {e}", scratch.display())))?;
    let enough = || match amount {
        Amount::Time(time) => begin.elapsed() >= time,
        Amount::Points(points) => {
            sums.lock().expect("no panic").get("points").is_some_and(|sum| *sum >= points)
        }
    };
    let work = |job: u64| -> Outcome {
        let covered = scratch.join(job.to_string());
        while !enough() && failed.lock().expect("no panic").is_none() {
            let from = next.fetch_add(RUNS, SeqCst);
            let mut command = Command::new(program);
            // Runs of checkpoints have some tenth of the points of runs of spaces.
            if (from - seed) / RUNS % CHECKPOINTS_EVERY == CHECKPOINTS_EVERY - 1 {
                command.arg("--checkpoints");
            }
            command.args([
                "--seed",
                &from.to_string(),
                "--count",
                &RUNS.to_string(),
                "--shrink",
                "--coverage",
            ]);
            let output = child(command.arg(&covered))?;
            for (name, count) in counts(&output) {
                *sums.lock().expect("no panic").entry(name).or_default() += count;
            }
            coverage.lock().expect("no panic").read(&covered);
            if !output.status.success() {
                failed.lock().expect("no panic").get_or_insert(failure(&output));
            }
        }
        Ok(())
    };
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs).map(|job| scope.spawn(move || work(job))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let _ = std::fs::remove_dir_all(&scratch);
    outcomes.into_iter().collect::<Outcome>()?;
    let sums = sums.into_inner().expect("no panic");
    let of = |name: &str| sums.get(name).copied().unwrap_or(0);
    coverage.into_inner().expect("no panic").print();
    println!(
        "   seeds from {seed}: {} runs, {} points ({:.0} a second), {} switches, {} kills, {} failed calls",
        of("runs"),
        of("points"),
        of("points") as f64 / begin.elapsed().as_secs_f64(),
        of("switches"),
        of("kills"),
        of("faults")
    );
    match failed.into_inner().expect("no panic") {
        None => Ok(()),
        Some(failure) => Err(Stop::Failed(failure)),
    }
}

/// How often each place in the source was a point, the end of a thread's turn, and the end of a process.
#[derive(Default)]
struct Coverage(BTreeMap<String, [u64; 3]>);

impl Coverage {
    fn read(&mut self, path: &Path) {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let place = words.next().unwrap_or_default().to_string();
            let mine = self.0.entry(place).or_default();
            for (sum, word) in mine.iter_mut().zip(words) {
                *sum += word.parse::<u64>().unwrap_or(0);
            }
        }
    }

    /// One line a source file, then the places that were never interrupted.
    fn print(&self) {
        let mut files: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
        let product = |place: &&String| place.starts_with("crates/");
        for place in self.0.keys().filter(product) {
            let file = place.split(':').next().unwrap_or_default();
            let counts = self.0[place];
            let sums = files.entry(file).or_default();
            sums[0] += 1;
            sums[1] += usize::from(counts[1] > 0);
            sums[2] += usize::from(counts[2] > 0);
        }
        println!("   places in the source: met, another thread ran there, a process was killed there");
        for (file, [met, switched, killed]) in files {
            println!("   {file}: {met} {switched} {killed}");
        }
        for (place, counts) in self.0.iter().filter(|(place, _)| product(place)) {
            if counts[1] == 0 && counts[2] == 0 {
                println!("   never interrupted: {place} (met {} times)", counts[0]);
            }
        }
    }
}

/// How often the mutation of a child's runs made a difference.
fn differences_of(output: &Output) -> u64 {
    counts(output).get("mutated").copied().unwrap_or(0)
}

/// A mutation that need not be noticed: `KIND FILE | LINE OF THE SOURCE | REASON`.
struct Explained {
    kind: String,
    file: String,
    line: String,
}

impl Explained {
    fn all(root: &Path) -> Result<Vec<Explained>, Stop> {
        let path = root.join(SURVIVORS);
        let text =
            std::fs::read_to_string(&path).map_err(|e| Stop::Failed(format!("{}: {e}", path.display())))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
        lines
            .map(|line| Explained::of(line).ok_or_else(|| Stop::Failed(format!("{SURVIVORS}: {line}"))))
            .collect()
    }

    fn of(line: &str) -> Option<Explained> {
        let (place, rest) = line.split_once(" | ")?;
        // A closure of the source may hold bars; the reason holds none.
        let (line, reason) = rest.rsplit_once(" | ")?;
        let (kind, file) = place.split_once(' ')?;
        let explained = Explained { kind: kind.into(), file: file.into(), line: line.trim().into() };
        (!reason.trim().is_empty()).then_some(explained)
    }

    /// Whether this is the place of a mutation `KIND@FILE:LINE:COLUMN`.
    fn is_of(&self, root: &Path, mutation: &str) -> bool {
        let is_it = || {
            let (kind, place) = mutation.split_once('@')?;
            let mut parts = place.splitn(3, ':');
            let (file, number) = (parts.next()?, parts.next()?.parse::<usize>().ok()?);
            let is_there = self.lines(root).contains(&number);
            Some((kind, file) == (self.kind.as_str(), self.file.as_str()) && is_there)
        };
        is_it().unwrap_or(false)
    }

    /// The lines of the source that it names, by their text, or by that of the line before and their own.
    fn lines(&self, root: &Path) -> Vec<usize> {
        let source = std::fs::read_to_string(root.join(&self.file)).unwrap_or_default();
        let mut before = "";
        let mut found = Vec::new();
        for (number, line) in (1..).zip(source.lines().map(str::trim)) {
            if line == self.line || format!("{before} {line}") == self.line {
                found.push(number);
            }
            before = line;
        }
        found
    }
}

/// What happens at the places of mutations.
enum At {
    /// Something goes wrong, which has to be noticed.
    Wrong,
    /// Nothing goes wrong: threads are held and processes killed and stopped there.
    Harmless,
}

/// A mutation and seeds of runs that meet its place, by the kind of runs.
#[derive(Default)]
struct Seeds {
    spaces: Option<String>,
    checkpoints: Option<String>,
}

impl Seeds {
    /// The options of the runs of each kind, and those of the same without dangers.
    fn kinds(&self) -> impl Iterator<Item = (Vec<&str>, Vec<&str>)> {
        let spaces = self.spaces.as_deref().map(|seeds| vec!["--seeds", seeds]);
        let spaces = spaces.map(|drawn| (drawn, [&CALM[..], &NO_LEFTOVERS].concat()));
        let checkpoints = self.checkpoints.as_deref().map(|seeds| vec!["--seeds", seeds, "--checkpoints"]);
        spaces.into_iter().chain(checkpoints.map(|drawn| (drawn, CALM.to_vec())))
    }
}

/// Every place at which some run can apply a mutation that counts.
struct Places(Vec<(String, Seeds)>);

impl Places {
    /// Runs both kinds without mutations. `only`: those whose name has this in it.
    fn collect(root: &Path, program: &Path, only: &str) -> Result<Places, Stop> {
        let mut places = BTreeMap::<String, Seeds>::new();
        for is_checkpoint in [false, true] {
            let file = target_folder(root).join("simulated/mutations");
            let mut collect = Command::new(program);
            collect.args(["--seed", &MUTATION_SEED.to_string(), "--count", &COLLECT_RUNS.to_string()]);
            collect.args(is_checkpoint.then_some("--checkpoints")).arg("--collect").arg(&file);
            let output = child(&mut collect)?;
            if !output.status.success() {
                return Err(Stop::Failed(failure(&output)));
            }
            let text = std::fs::read_to_string(&file).map_err(|e| Stop::Failed(e.to_string()))?;
            for line in text.lines().filter(|line| counts_as_mutation(line) && line.contains(only)) {
                let mut words = line.split(' ');
                let (Some(mutation), Some(seeds)) = (words.next(), words.nth(1)) else { continue };
                let place = places.entry(mutation.to_string()).or_default();
                let kind = if is_checkpoint { &mut place.checkpoints } else { &mut place.spaces };
                *kind = Some(seeds.to_string());
            }
        }
        Ok(Places(places.into_iter().collect()))
    }

    /// Does this for each of them, on all processors.
    fn each(&self, work: impl Fn(&str, &Seeds) -> Outcome + Sync) -> Outcome {
        let next = AtomicU64::new(0);
        let all = || -> Outcome {
            while let Some((mutation, seeds)) = self.0.get(next.fetch_add(1, SeqCst) as usize) {
                work(mutation, seeds)?;
            }
            Ok(())
        };
        let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..processors()).map(|_| scope.spawn(all)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        outcomes.into_iter().collect()
    }
}

/// Whether a line of the places is one of a mutation that counts.
fn counts_as_mutation(line: &str) -> bool {
    let is_flush = line.starts_with("lost-flush@") && line.contains(FLUSHING);
    let is_source = SOURCES.iter().any(|source| line.contains(source));
    (is_source || is_flush) && !REPORTS.iter().any(|report| line.contains(report))
}

/// Every mutation, one after the other; those that nothing notices and no entry of `simulation/survivors.txt` explains
/// are the findings, and entries that match no place.
fn mutate(root: &Path, program: &Path, places: &Places, points: u64) -> Outcome {
    let explained = Explained::all(root)?;
    let tried = Tried::default();
    places.each(|mutation, seeds| {
        try_mutation(program, (mutation, seeds), points / 2, &tried, |mutation| {
            explained.iter().any(|explained| explained.is_of(root, mutation))
        })
    })?;
    // A place that these runs did not meet may still be one.
    let is_lost = |entry: &&Explained| entry.lines(root).is_empty();
    let lost = explained.iter().filter(is_lost);
    let lost = lost
        .map(|entry| format!("{SURVIVORS}: no such place: {} {} | {}", entry.kind, entry.file, entry.line));
    let mut findings = tried.survivors();
    findings.extend(lost);
    tried.print(points);
    no_findings(findings)
}

/// Runs without a defect in which threads are held and processes killed and stopped at one place, for each of them.
/// Failures are the findings.
fn press(program: &Path, places: &Places, points: u64) -> Outcome {
    let (found, pressed) = (Mutex::new(Vec::new()), AtomicU64::new(0));
    places.each(|mutation, seeds| {
        for (kind, _) in seeds.kinds() {
            let mut command = Command::new(program);
            command.args(["--mutation", mutation, "--harmless", "--points", &points.to_string()]).args(kind);
            let output = child(&mut command)?;
            pressed.fetch_add(counts(&output).get("points").copied().unwrap_or(0), SeqCst);
            if !output.status.success() {
                println!("   FAILED at {mutation}: {}", failure(&output));
                found.lock().expect("no panic").push(mutation.to_string());
            }
        }
        Ok(())
    })?;
    println!("{} places, {} points", places.0.len(), pressed.load(SeqCst));
    let found = found.into_inner().expect("no panic").into_iter();
    no_findings(found.map(|place| format!("runs fail under pressure at {place}")).collect())
}

/// What became of the mutations that were tried.
#[derive(Default)]
struct Tried {
    caught: AtomicU64,
    explained: AtomicU64,
    idle: AtomicU64,
    survivors: Mutex<Vec<String>>,
}

impl Tried {
    fn survivors(&self) -> Vec<String> {
        let mut survivors = self.survivors.lock().expect("no panic").clone();
        survivors.sort();
        survivors.into_iter().map(|mutation| format!("{mutation}: nothing fails")).collect()
    }

    fn print(&self, points: u64) {
        let (caught, explained) = (self.caught.load(SeqCst), self.explained.load(SeqCst));
        let survivors = self.survivors.lock().expect("no panic").len() as u64;
        let wanted = caught + survivors;
        let rate = 100.0 * caught as f64 / wanted.max(1) as f64;
        println!("{} mutations made a difference", wanted + explained);
        println!("{caught} were caught, {explained} are explained, {survivors} were not caught");
        println!("{caught} of {wanted}, {rate:.1} %, of those that are to be caught");
        let idle = self.idle.load(SeqCst);
        println!("{idle} more made none within {points} points: no thread of these runs saw their effect");
    }
}

/// One mutation: runs as the seeds draw them, then calm ones.
fn try_mutation(
    program: &Path,
    (mutation, seeds): (&str, &Seeds),
    points: u64,
    tried: &Tried,
    is_explained: impl Fn(&str) -> bool,
) -> Outcome {
    let run = |kind: &[&str], options: &[&str]| {
        let mut command = Command::new(program);
        command.args(kind).args(["--points", &points.to_string(), "--mutation", mutation]);
        child(command.args(options))
    };
    let (mut differences, mut caught) = (0, None);
    for (kind, calm) in seeds.kinds() {
        // The same runs without kills, stops and failing calls notice what is merely late.
        for options in [&[][..], &calm] {
            let output = run(&kind, options)?;
            differences += differences_of(&output);
            if !output.status.success() {
                caught = Some(output);
                break;
            }
        }
        if caught.is_some() {
            break;
        }
    }
    if let Some(output) = caught {
        let told = failure(&output);
        println!("   caught: {mutation}: {}", told.lines().next().unwrap_or_default());
        tried.caught.fetch_add(1, SeqCst);
    } else if differences == 0 {
        println!("   no difference: {mutation}");
        tried.idle.fetch_add(1, SeqCst);
    } else if is_explained(mutation) {
        println!("   explained: {mutation}, made a difference {differences} times");
        tried.explained.fetch_add(1, SeqCst);
    } else {
        println!("   NOT caught: {mutation}, made a difference {differences} times");
        tried.survivors.lock().expect("no panic").push(mutation.to_string());
    }
    Ok(())
}
