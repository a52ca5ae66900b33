//! `cargo xtask bench checkpoint`: checkpoints beside a plain copy of memory and beside fio, as ratios.
//!
//! `save, memory`: how long `save` keeps a program waiting with memory as its first level, against a plain copy of the
//! same arrays on as many threads. `durable`: a save to a disk past the page cache until it is committed, against fio's
//! sequential write of as many bytes (1 MiB, 16 in flight, flushed at the end): on new files, and on files that are
//! written over. `restore`: loading and comparing, against fio's sequential read. `incremental`: a save with one
//! changed chunk in a hundred until it is committed, against a full save to the same disk (files written over), past
//! the page cache, in turns. The median of the ratios is printed with its spread. Files lie in TMPDIR, else in target/.
//! `--quick` runs everything once at toy size; its figures mean nothing.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::ground::Ground;
use super::pager::output;
use super::rows::{Row, Table};
use crate::{Outcome, Stop};

/// Pairs of runs.
const REPETITIONS: usize = 5;
const MIB: u64 = 1 << 20;

/// Runs the comparison.
pub fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let (mut as_json, mut quick) = (false, false);
    for argument in arguments {
        match *argument {
            "--json" => as_json = true,
            "--quick" => quick = true,
            other => return Err(Stop::Usage(format!("bench checkpoint: unknown {other} (--json, --quick)"))),
        }
    }
    let mut table = Table::new(if quick { 1 } else { REPETITIONS }, Vec::new());
    let ground = Ground::new(root, "checkpoint", &[]).map_err(Stop::Failed)?;
    rows(&ground, &mut table, quick).map_err(Stop::Failed)?;
    match as_json {
        true => println!("{}", table.json("checkpoint")),
        false => print!("{}", table.text()),
    }
    let missed = table.rows.iter().filter(|row| !quick && row.misses());
    crate::no_findings(missed.map(Row::line).collect())
}

fn rows(ground: &Ground, table: &mut Table, quick: bool) -> Result<(), String> {
    let (memory, disk) = if quick { (16 * MIB, 8 * MIB) } else { (2048 * MIB, 1024 * MIB) };
    // A ratio is ours to theirs in time, turned into speed: 1.2 times as long is 0.83 of the speed.
    let mut blocked = Row::new("save, memory", memory, true, "copy of memory").with_bar(1.0 / 1.2);
    for _ in table.turns("save") {
        let times = measure(ground, Path::new("/dev/shm"), memory, "blocked")?;
        blocked.add(times[0], times[1]);
    }
    table.push(blocked);
    let mut incremental = Row::new("incremental, 1 % changed", memory, true, "full save").with_bar(5.0);
    for _ in table.turns("incremental") {
        let times = measure(ground, &ground.folder, memory, "incremental")?;
        incremental.add(times[1], times[0]);
    }
    table.push(incremental);
    if super::fio::version().is_none() {
        table.skip("rows beside fio: fio is not installed".into());
        return Ok(());
    }
    let mut new = Row::new("durable, new files", disk, true, "fio, write").with_bar(0.9);
    let mut over = Row::new("durable, written over", disk, true, "fio, write again").with_bar(0.9);
    let mut restore = Row::new("restore", disk, true, "fio, read").with_bar(0.9);
    for _ in table.turns("durable") {
        let _ = std::fs::remove_file(ground.folder.join("fio"));
        let written = fio(ground, "write", disk)?;
        let written_over = fio(ground, "write", disk)?;
        let read = fio(ground, "read", disk)?;
        let _ = std::fs::remove_file(ground.folder.join("fio"));
        let ours = measure(ground, &ground.folder, disk, "durable")?;
        new.add(ours[0], written);
        over.add(ours[1], written_over);
        restore.add(measure(ground, &ground.folder, disk, "restore")?[0], read);
    }
    [new, over, restore].into_iter().for_each(|row| table.push(row));
    Ok(())
}

/// What the example prints, in nanoseconds. Its directory goes with the call.
fn measure(ground: &Ground, above: &Path, bytes: u64, what: &str) -> Result<Vec<f64>, String> {
    let dir: PathBuf = above.join(format!("forebay-measure-{}", std::process::id()));
    let mut command = Command::new(ground.built.join("examples/measure_checkpoint"));
    let said = output(command.arg(&dir).args([&bytes.to_string(), what]));
    let _ = std::fs::remove_dir_all(&dir);
    let said = said?;
    let numbers: Result<Vec<f64>, _> = said.split_whitespace().map(str::parse).collect();
    numbers.map_err(|e| format!("measure {what}: {e}: {said}"))
}

/// One sequential job of fio over a whole file: nanoseconds.
fn fio(ground: &Ground, rw: &str, bytes: u64) -> Result<f64, String> {
    let text = format!(
        "[job]\nfilename={}\nsize={bytes}\nrw={rw}\nbs=1m\niodepth=16\nioengine=io_uring\ndirect=1\nthread=1\n\
         end_fsync=1\n",
        ground.folder.join("fio").display(),
    );
    let path = ground.folder.join("job.fio");
    std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    let said = output(Command::new("fio").args(["--output-format=json", "--eta=never"]).arg(&path))?;
    let document: Value = serde_json::from_str(&said).map_err(|e| format!("fio: {e}: {said}"))?;
    let flow = &document["jobs"][0][if rw == "read" { "read" } else { "write" }];
    let per_second = flow["bw_bytes"].as_f64().filter(|n| *n > 0.0);
    per_second.map(|n| bytes as f64 * 1e9 / n).ok_or_else(|| format!("fio gave no rate: {flow}"))
}
