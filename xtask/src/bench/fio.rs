//! `cargo xtask bench fio`: the same job files through fio and through `forebay bench fio`, in turn.
//!
//! Every job is run three times by each program, alternately, on one file of 1 GiB that fio made; the medians are
//! compared, and beside each ratio stands what fio differs from itself. Both run their jobs as threads. Files lie in a
//! folder of TMPDIR (else of target/) that goes away. Where fio is missing everything is skipped, and counted;
//! `--install` fetches the Debian package when root. `--quick` runs a few jobs at toy size; its figures mean nothing.

use super::fio_jobs::{Bound, Job, ALL};
use super::ground::Ground;
use crate::{Outcome, Stop};
use serde_json::{json, Value};
use std::path::Path;
use std::process::{Command, Stdio};

/// Schema name of the JSON document.
const SCHEMA: &str = "forebay.bench/1";

/// Runs of each program; the median of three.
const ROUNDS: usize = 3;

/// What was asked for.
#[derive(Clone)]
struct Options {
    json: bool,
    quick: bool,
    install: bool,
    seconds: f64,
    rounds: usize,
    only: Option<String>,
}

/// Runs the comparison.
pub fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let options = read(arguments)?;
    if options.install && version().is_none() {
        eprintln!("installing the Debian package fio");
        let install =
            Command::new("apt-get").args(["install", "-y", "-qq", "fio"]).stdin(Stdio::null()).status();
        if !install.as_ref().is_ok_and(|status| status.success()) {
            return Err(Stop::Failed("apt-get could not install fio".to_string()));
        }
    }
    let wanted = |job: &&Job| options.only.as_ref().is_none_or(|only| job.name.contains(only.as_str()));
    let jobs: Vec<&Job> = ALL.iter().filter(wanted).filter(|job| !options.quick || job.quick).collect();
    if jobs.is_empty() {
        let names: Vec<&str> = ALL.iter().map(|job| job.name).collect();
        return Err(Stop::Usage(format!("bench fio --only: none of {} contains it", names.join(", "))));
    }
    let Some(version) = version() else {
        let why = "fio is not installed (--install)";
        match options.json {
            true => {
                println!("{}", json!({"schema": SCHEMA, "benchmark": "fio", "skipped": [why], "rows": []}))
            }
            false => println!("skipped  everything: {why}"),
        }
        return Ok(());
    };
    let bench = Bench::new(root, &options).map_err(Stop::Failed)?;
    let mut rows = Vec::new();
    for job in jobs {
        let row = bench.row(job, &options).map_err(Stop::Failed)?;
        if !options.json {
            print!("{}", row.text());
        }
        rows.push(row);
    }
    if options.json {
        let rows: Vec<Value> = rows.iter().flat_map(Row::json).collect();
        let document = json!({"schema": SCHEMA, "benchmark": "fio", "against": version, "rows": rows});
        println!("{}", serde_json::to_string_pretty(&document).expect("plain values"));
    }
    let missed = rows.iter().filter(|_| !options.quick).flat_map(Row::missed);
    crate::no_findings(missed.collect())
}

fn read(arguments: &[&str]) -> Result<Options, Stop> {
    let mut options =
        Options { json: false, quick: false, install: false, seconds: 3.0, rounds: ROUNDS, only: None };
    for argument in arguments {
        let number = |text: &str| text.parse::<f64>().ok().filter(|n| *n > 0.0);
        match argument.split_once('=').unwrap_or((argument, "")) {
            ("--json", "") => options.json = true,
            ("--quick", "") => (options.quick, options.seconds, options.rounds) = (true, 0.2, 1),
            ("--install", "") => options.install = true,
            ("--seconds", text) if number(text).is_some() => options.seconds = number(text).unwrap_or(3.0),
            ("--rounds", text) if number(text).is_some() => options.rounds = number(text).unwrap_or(3.0) as usize,
            ("--only", text) if !text.is_empty() => options.only = Some(text.to_string()),
            _ => {
                return Err(Stop::Usage(format!(
                    "bench fio: unknown {argument} (--json, --quick, --install, --seconds=S, --rounds=N, --only=JOB)"
                )))
            }
        }
    }
    options.rounds = options.rounds.max(1);
    Ok(options)
}

/// fio's version, where it is installed.
pub fn version() -> Option<String> {
    let output = Command::new("fio").arg("--version").stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// The two programs and a folder for their files.
struct Bench {
    ground: Ground,
}

impl Bench {
    fn new(root: &Path, options: &Options) -> Result<Bench, String> {
        let ground = Ground::new(root, "fio", &["--package", "forebay-cli", "--bin", "forebay"])?;
        let bench = Bench { ground };
        let size = if options.quick { "16m" } else { "1g" };
        let layout = format!(
            "[global]\ndirectory={}\nfilename=data\nsize={size}\n[layout]\nrw=read\ncreate_only=1\n",
            bench.ground.folder.display()
        );
        bench.call(Program::Fio, &layout)?;
        Ok(bench)
    }

    /// Runs one job file; the JSON of its first and only group.
    fn call(&self, program: Program, job_file: &str) -> Result<Value, String> {
        let path = self.ground.folder.join("job.fio");
        std::fs::write(&path, job_file).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut command = match program {
            Program::Fio => Command::new("fio"),
            Program::Forebay => {
                let mut command = Command::new(self.ground.built.join("forebay"));
                command.args(["bench", "fio"]);
                command
            }
        };
        command.args(["--output-format=json", "--eta=never"]).arg(&path);
        let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{program:?}: {e}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{program:?} ended with {}: {said}\n{job_file}", output.status));
        }
        serde_json::from_slice(&output.stdout).map_err(|e| format!("{program:?}: {e}: {said}"))
    }

    fn row(&self, job: &Job, options: &Options) -> Result<Row, String> {
        let size = if options.quick { "16m" } else { "1g" };
        let text = job.file(&self.ground.folder, size, options.seconds);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..options.rounds {
            // Each is first as often as second: what the other left on the device is nobody's advantage.
            let turns = [Program::Fio, Program::Forebay];
            for turn in 0..turns.len() {
                let program = turns[(round + turn) % turns.len()];
                self.remove_own()?;
                let measured = Measured::read(&self.call(program, &text)?)?;
                match program {
                    Program::Fio => theirs.push(measured),
                    Program::Forebay => ours.push(measured),
                }
            }
        }
        self.remove_own()?;
        Ok(Row { job: job.name, bound: job.bound, ours, theirs })
    }

    /// Removes the files that a job made for itself: writing over what the other program has written already, instead
    /// of room that was only set aside, makes a flush cheaper.
    fn remove_own(&self) -> Result<(), String> {
        for entry in std::fs::read_dir(&self.ground.folder).map_err(|e| e.to_string())?.flatten() {
            if entry.file_name().to_string_lossy().starts_with("own") {
                std::fs::remove_file(entry.path()).map_err(|e| e.to_string())?;
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Fio,
    Forebay,
}

/// What one run gave: name, value.
struct Measured(Vec<(String, f64)>);

impl Measured {
    /// Reads fio's document, or ours.
    fn read(document: &Value) -> Result<Measured, String> {
        let job = &document["jobs"][0];
        let number = |value: &Value| value.as_f64().ok_or_else(|| format!("no number in {job}"));
        let (mut all, mut ios) = (Vec::new(), 0.0);
        for name in ["read", "write"] {
            let flow = &job[name];
            if number(&flow["total_ios"])? < 1.0 {
                continue;
            }
            ios += number(&flow["total_ios"])?;
            all.push((format!("{name} IOPS"), number(&flow["iops"])?));
            for (label, percentile) in [("p50", "50.000000"), ("p99", "99.000000")] {
                all.push((format!("{name} {label}"), number(&flow["clat_ns"]["percentile"][percentile])?));
            }
        }
        let percent = number(&job["usr_cpu"])? + number(&job["sys_cpu"])?;
        let cpu_ns = percent / 100.0 * number(&job["job_runtime"])? * 1e6 / f64::max(ios, 1.0);
        all.push(("processor".to_string(), cpu_ns));
        Ok(Measured(all))
    }

    fn get(&self, name: &str) -> f64 {
        self.0.iter().find(|(key, _)| key == name).map_or(f64::NAN, |(_, value)| *value)
    }
}

/// One job by both programs.
struct Row {
    job: &'static str,
    bound: Bound,
    ours: Vec<Measured>,
    theirs: Vec<Measured>,
}

/// One figure of a row.
struct Figure {
    name: String,
    ours: f64,
    theirs: f64,
    /// What fio's runs differ from each other, as a share of their median.
    itself: f64,
    /// How far the ratio may be from 1; for processor time, how far above.
    bar: f64,
}

impl Figure {
    fn ratio(&self) -> f64 {
        self.ours / self.theirs
    }

    fn misses(&self) -> bool {
        let off = self.ratio() - 1.0;
        let off = if self.name == "processor" { off } else { off.abs() };
        off.is_nan() || off > self.bar
    }
}

impl Row {
    fn figures(&self) -> Vec<Figure> {
        let Some(first) = self.theirs.first() else { return Vec::new() };
        let figure = |name: &String| {
            let of = |runs: &[Measured]| {
                let mut values: Vec<f64> = runs.iter().map(|run| run.get(name)).collect();
                values.sort_by(f64::total_cmp);
                values
            };
            let (ours, theirs) = (of(&self.ours), of(&self.theirs));
            let median = |sorted: &[f64]| sorted[sorted.len() / 2];
            let itself = (theirs[theirs.len() - 1] - theirs[0]) / median(&theirs);
            let least = match name.split_whitespace().last() {
                Some("IOPS" | "p50" | "p99") if self.bound == Bound::Processor => f64::INFINITY,
                Some("p50" | "p99") if self.bound == Bound::Flush => f64::INFINITY,
                Some("IOPS") if self.bound == Bound::Flush => 0.10,
                Some("IOPS") => 0.05,
                Some("p50") => 0.15,
                Some("p99") => 0.25,
                _ => 0.05,
            };
            // Processor time has a plain bar, all others at least what fio differs from itself.
            let bar = if name == "processor" { least } else { least.max(itself) };
            Figure { name: name.clone(), ours: median(&ours), theirs: median(&theirs), itself, bar }
        };
        first.0.iter().map(|(name, _)| figure(name)).collect()
    }

    fn line(&self, figure: &Figure) -> String {
        let bar = match (figure.bar.is_finite(), figure.misses()) {
            (false, _) => "no bar".to_string(),
            (true, missed) => {
                format!("bar {:>5.1} %: {}", figure.bar * 100.0, if missed { "missed" } else { "met" })
            }
        };
        let unit = if figure.name.ends_with("IOPS") { "/s" } else { "ns" };
        format!(
            "{:<26} {:<11} {:>6.3}  ours {:>11.0} {unit}  fio {:>11.0} {unit}  itself {:>5.1} %  {bar}",
            self.job,
            figure.name,
            figure.ratio(),
            figure.ours,
            figure.theirs,
            figure.itself * 100.0,
        )
    }

    fn text(&self) -> String {
        self.figures().iter().map(|figure| self.line(figure) + "\n").collect()
    }

    fn missed(&self) -> Vec<String> {
        self.figures().iter().filter(|figure| figure.misses()).map(|figure| self.line(figure)).collect()
    }

    fn json(&self) -> Vec<Value> {
        let one = |figure: Figure| {
            json!({
                "job": self.job, "measure": figure.name, "ratio": figure.ratio(), "ours": figure.ours,
                "fio": figure.theirs, "fio_itself": figure.itself, "bar": figure.bar, "met": !figure.misses(),
            })
        };
        self.figures().into_iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(iops: f64, p50: u64, cpu: f64) -> Value {
        let flow = json!({"total_ios": 1000, "iops": iops,
            "clat_ns": {"percentile": {"50.000000": p50, "99.000000": 2 * p50}}});
        let none = json!({"total_ios": 0});
        json!({"jobs": [{"read": flow, "write": none, "usr_cpu": cpu, "sys_cpu": cpu, "job_runtime": 1000}]})
    }

    #[test]
    fn ratios_are_compared_with_what_fio_differs_from_itself() {
        let read = |document: Value| Measured::read(&document).unwrap();
        let theirs = vec![
            read(document(100.0, 50, 1.0)),
            read(document(110.0, 50, 1.0)),
            read(document(100.0, 50, 1.0)),
        ];
        let ours = vec![read(document(108.0, 60, 1.2))];
        let row = Row { job: "j", bound: Bound::Device, ours, theirs };
        let figures = row.figures();
        let names: Vec<&str> = figures.iter().map(|figure| figure.name.as_str()).collect();
        assert_eq!(names, ["read IOPS", "read p50", "read p99", "processor"]);
        let misses: Vec<bool> = figures.iter().map(Figure::misses).collect();
        assert_eq!(misses, [false, true, false, true]);
        // 2 per cent of a second over 1000 requests.
        assert_eq!(figures[3].theirs, 20_000.0);
        assert_eq!(row.missed().len(), 2);
        assert!(Measured::read(&json!({})).is_err());
    }

    #[test]
    fn words_are_read() {
        let options = read(&["--quick", "--only=4k"]).unwrap();
        assert!(options.quick && options.rounds == 1 && options.only.as_deref() == Some("4k"));
        assert!(read(&["--seconds=0"]).is_err() && read(&["--fast"]).is_err());
    }
}
