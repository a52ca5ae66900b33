//! `cargo xtask bench pager`: arrays larger than memory beside fio and numpy.memmap, as ratios.
//!
//! One file of 1 GiB that fio wrote, in a folder of TMPDIR (else of target/) that goes away; the pager's budget is a
//! quarter of it. Every row is measured in turn with what it stands beside; the median of the ratios is printed with
//! its spread. Windows stand beside a plain mapping in a memory-limited cgroup (windows.rs), and so do rows from Python
//! beside numpy.memmap. fio, and a Python with the package installed, are skipped and counted where they are missing.
//! `--quick` runs everything once at toy size; its figures mean nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::cage::Cage;
use super::ground::Ground;
use super::rows::{Row, Table};
use super::windows;
use crate::{Outcome, Stop};

/// Pairs of runs.
const REPETITIONS: usize = 5;
/// Bytes of a row of the array that Python reads at random.
const ROW_BYTES: u64 = 4096;
/// What a Python needs beside the budget.
const PYTHON_BYTES: u64 = 128 << 20;

/// What is measured once.
struct Bench {
    root: PathBuf,
    ground: Ground,
    size: &'static str,
    seconds: f64,
}

/// Runs the comparison.
pub fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let (mut as_json, mut quick) = (false, false);
    for argument in arguments {
        match *argument {
            "--json" => as_json = true,
            "--quick" => quick = true,
            other => return Err(Stop::Usage(format!("bench pager: unknown {other} (--json, --quick)"))),
        }
    }
    if super::fio::version().is_none() {
        println!("skipped  everything: fio is not installed");
        return Ok(());
    }
    let bench = Bench::new(root, quick).map_err(Stop::Failed)?;
    let python = bench.python();
    let skipped = python.as_ref().err().map(|why| format!("rows from Python: {why}"));
    let mut table = Table::new(if quick { 1 } else { REPETITIONS }, skipped.into_iter().collect());
    bench.rows(&mut table, python.ok().as_deref(), quick).map_err(Stop::Failed)?;
    match as_json {
        true => println!("{}", table.json("pager")),
        false => print!("{}", table.text()),
    }
    let missed = table.rows.iter().filter(|row| !quick && row.misses());
    crate::no_findings(missed.map(Row::line).collect())
}

impl Bench {
    fn new(root: &Path, quick: bool) -> Result<Bench, String> {
        let ground = Ground::new(root, "pager", &[])?;
        let (size, seconds) = if quick { ("32m", 0.2) } else { ("1g", 3.0) };
        let bench = Bench { root: root.to_owned(), ground, size, seconds };
        // Written by fio, so that no block is a hole or was never written.
        bench.fio("write", "1m", 16, "")?;
        Ok(bench)
    }

    fn example(&self, name: &str) -> PathBuf {
        self.ground.built.join("examples").join(name)
    }

    fn file(&self) -> PathBuf {
        self.ground.folder.join("data")
    }

    /// One job of fio on the file: nanoseconds a request.
    fn fio(&self, rw: &str, block: &str, depth: u32, timed: &str) -> Result<f64, String> {
        let text = format!(
            "[job]\nfilename={}\nsize={}\nrw={rw}\nbs={block}\niodepth={depth}\nioengine=io_uring\ndirect=1\n\
             thread=1\nrandrepeat=0\nnorandommap=1\n{timed}",
            self.file().display(),
            self.size
        );
        let path = self.ground.folder.join("job.fio");
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        let said = output(Command::new("fio").args(["--output-format=json", "--eta=never"]).arg(&path))?;
        let document: Value = serde_json::from_str(&said).map_err(|e| format!("fio: {e}: {said}"))?;
        let flow = &document["jobs"][0][if rw.contains("read") { "read" } else { "write" }];
        let per_second = flow["iops"].as_f64().filter(|n| *n > 0.0);
        per_second.map(|n| 1e9 / n).ok_or_else(|| format!("fio gave no requests per second: {flow}"))
    }

    /// One run of ours with this budget, else a quarter of the file: nanoseconds for `block` bytes.
    fn ours(&self, what: &str, block: u64, budget: Option<u64>) -> Result<f64, String> {
        let mut command = Command::new(self.example("measure_pager"));
        command.arg(self.file()).args([what, &self.seconds.to_string()]);
        command.args(budget.map(|bytes| bytes.to_string()));
        let said = output(&mut command)?;
        let per_second: f64 = said.trim().parse().map_err(|e| format!("measure: {e}: {said}"))?;
        Ok(block as f64 * 1e9 / per_second)
    }

    /// A Python that has the package.
    fn python(&self) -> Result<PathBuf, String> {
        let python = crate::python::python(&self.root);
        output(Command::new(&python).args(["-c", "from forebay import array"]))
            .map(|_| python)
            .map_err(|_| "the package is not installed in .venv (cargo xtask wheel)".to_string())
    }

    /// Random rows in a Python of its own: nanoseconds a row.
    fn rows_of(&self, python: &Path, cage: &Cage, how: &str, batch: u32) -> Result<f64, String> {
        let mut command = cage.command(python);
        command.arg(self.root.join("lab/peers/rows.py")).arg(self.file());
        command.args([ROW_BYTES.to_string(), batch.to_string(), self.seconds.to_string()]).arg(how);
        let said = output(&mut command)?;
        said.trim().parse::<f64>().map(|s| s * 1e9).map_err(|e| format!("rows.py: {e}: {said}"))
    }

    fn rows(&self, table: &mut Table, python: Option<&Path>, quick: bool) -> Result<(), String> {
        let timed = format!("time_based=1\nruntime={}\n", self.seconds);
        let mut gather = Row::new("gather, 1 thread", 4096, false, "fio, randread, 64").with_bar(0.95);
        // fio reads into the same 256 KiB again and again: beside it what the frames cost that no cache holds.
        let mut cached = Row::new("gather, 8 MiB budget", 4096, false, "fio, randread, 64");
        for _ in table.turns("gather") {
            let theirs = self.fio("randread", "4k", 64, &timed)?;
            gather.add(self.ours("gather", 4096, None)?, theirs);
            cached.add(self.ours("gather", 4096, Some(8 << 20))?, theirs);
        }
        table.push(gather);
        table.push(cached);
        let mut scan = Row::new("scan by tiles", 1 << 20, false, "fio, read, 16").with_bar(0.95);
        for _ in table.turns("scan") {
            let theirs = self.fio("read", "1m", 16, &timed)?;
            scan.add(self.ours("scan", 1 << 20, None)?, theirs);
        }
        table.push(scan);
        self.windows(table, &timed)?;
        python.map_or(Ok(()), |python| self.python_rows(table, python, quick))
    }

    /// Random rows by several Pythons, each in a cgroup of the budget and what a Python with NumPy needs beside.
    fn python_rows(&self, table: &mut Table, python: &Path, quick: bool) -> Result<(), String> {
        let bytes = std::fs::metadata(self.file()).map_err(|e| e.to_string())?.len();
        let cage = match Cage::new(bytes / 4 + PYTHON_BYTES) {
            Ok(cage) => cage,
            Err(why) => {
                table.skip(format!("random rows from Python: {why}"));
                return Ok(());
            }
        };
        let batch = if quick { 100 } else { 2000 };
        let row = |against| Row::new("random rows, Python", ROW_BYTES, false, against);
        let mut written = row("numpy.memmap").with_bar(10.0);
        let mut told = row("memmap, MADV_RANDOM");
        for _ in table.turns("rows") {
            let ours = self.rows_of(python, &cage, "forebay", batch)?;
            written.add(ours, self.rows_of(python, &cage, "memmap", batch)?);
            told.add(ours, self.rows_of(python, &cage, "memmap-random", batch)?);
        }
        table.push(written);
        table.push(told);
        Ok(())
    }
}

impl Bench {
    /// Loads and scans through a window.
    fn windows(&self, table: &mut Table, timed: &str) -> Result<(), String> {
        let file = self.file();
        let bytes = std::fs::metadata(&file).map_err(|e| e.to_string())?.len();
        let run = |cage: Option<&Cage>, how: (&str, &str, u32), block| {
            windows::run(&self.example("window"), &file, cage, how, self.seconds, block)
        };
        let mut scan = Row::new("scan by window", 1 << 20, false, "fio, read, 16").with_bar(0.85);
        for _ in table.turns("scan by window") {
            let theirs = self.fio("read", "1m", 16, timed)?;
            scan.add(run(None, ("auto", "scan", 1), 1 << 20)?, theirs);
        }
        table.push(scan);
        let limited = match windows::quarter(bytes) {
            Ok(limited) => limited,
            Err(why) => {
                table.skip(format!("loads by window: {why}"));
                return Ok(());
            }
        };
        for (threads, bars) in windows::LOADS {
            let row = |engine: &str, bar: Option<f64>| {
                let made =
                    Row::new(&format!("loads, {threads} thr, {engine}"), 4096, false, "mmap, MADV_RANDOM");
                bar.map_or(made.clone(), |bar| made.with_bar(bar))
            };
            let mut chosen = row("auto", bars.map(|bars| bars.0));
            let mut forced = row("userfault", bars.map(|bars| bars.1));
            for _ in table.turns("loads") {
                let theirs = run(Some(&limited), ("mmap", "loads", threads), 4096)?;
                chosen.add(run(None, ("auto", "loads", threads), 4096)?, theirs);
                forced.add(run(None, ("userfault", "loads", threads), 4096)?, theirs);
            }
            table.push(chosen);
            table.push(forced);
        }
        Ok(())
    }
}

/// What a program that succeeds says.
pub fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let ran = command.stdin(Stdio::null()).output().map_err(|e| format!("{program}: {e}"))?;
    if !ran.status.success() {
        return Err(format!("{program} ended with {}: {}", ran.status, String::from_utf8_lossy(&ran.stderr)));
    }
    Ok(String::from_utf8_lossy(&ran.stdout).into_owned())
}
