//! `cargo xtask bench stream`: the STREAM kernels of `forebay bench stream` beside a plain C STREAM, in turn.
//!
//! The C program is `lab/peers/stream_plain.c`, compiled with `-O3 -march=native -fopenmp`; both use as many threads
//! as there are processors, arrays of the same length and stores of the same kind: those of the compiled loops go
//! through the cache, one vector of the processor's greatest width at a time; for the loop that copies, the compiler
//! calls `memcpy`, which stores past the cache from some length on, and so do we. Ratios of the best rounds; the bar is
//! 0.97.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{json, Value};

use super::rows::median;
use crate::packages::build;
use crate::{Outcome, Stop};

/// How much of the plain program's bandwidth each kernel has to reach.
const BAR: f64 = 0.97;
/// Pairs; the middle of their ratios counts.
const REPETITIONS: usize = 7;
/// Elements of an array: 1 GiB, more than four times the largest caches.
const ELEMENTS: usize = 128 << 20;
/// Elements with `--quick`, whose figures mean nothing.
const ELEMENTS_QUICK: usize = 1 << 20;
const KERNELS: [&str; 4] = ["copy", "scale", "add", "triad"];

/// Runs the comparison.
pub fn run(root: &Path, arguments: &[&str]) -> Outcome {
    let (mut as_json, mut quick) = (false, false);
    for argument in arguments {
        match *argument {
            "--json" => as_json = true,
            "--quick" => quick = true,
            other => return Err(Stop::Usage(format!("bench stream: unknown {other} (--json, --quick)"))),
        }
    }
    let elements = if quick { ELEMENTS_QUICK } else { ELEMENTS };
    let plain = plain(root, elements).map_err(Stop::Failed)?;
    let ours = ours(root).map_err(Stop::Failed)?;
    let mut ratios: [Vec<f64>; 4] = Default::default();
    let mut best = [[0.0f64; 2]; 4];
    for _ in 0..if quick { 1 } else { REPETITIONS } {
        let mine = ours_once(&ours, elements).map_err(Stop::Failed)?;
        let theirs = plain_once(&plain).map_err(Stop::Failed)?;
        for kernel in 0..4 {
            ratios[kernel].push(mine[kernel] / theirs[kernel]);
            best[kernel] = [best[kernel][0].max(mine[kernel]), best[kernel][1].max(theirs[kernel])];
        }
    }
    ratios.iter_mut().for_each(|r| r.sort_by(f64::total_cmp));
    if as_json {
        println!("{}", document(elements, &ratios, &best));
    } else {
        print!("{}", table(elements, &ratios, &best));
    }
    let missed = (0..4).filter(|k| !quick && median(&ratios[*k]) < BAR);
    crate::no_findings(missed.map(|k| format!("{}: below {BAR} of a plain STREAM", KERNELS[k])).collect())
}

fn table(elements: usize, ratios: &[Vec<f64>; 4], best: &[[f64; 2]; 4]) -> String {
    let mut text = format!(
        "measured here, each pair {} times in turn, arrays of {} MiB; ratio = ours / plain C, median and spread\n\n\
         {:<8} {:>7} {:^16} {:>12} {:>12}\n",
        ratios[0].len(),
        (elements * 8) >> 20,
        "kernel",
        "ratio",
        "spread",
        "ours GB/s",
        "plain GB/s"
    );
    for (kernel, name) in KERNELS.iter().enumerate() {
        let own = &ratios[kernel];
        let met = if median(own) < BAR { "missed" } else { "met" };
        text += &format!(
            "{name:<8} {:>7.3} {:>7.3}..{:<7.3} {:>12.2} {:>12.2}  bar {BAR}: {met}\n",
            median(own),
            own.first().copied().unwrap_or(f64::NAN),
            own.last().copied().unwrap_or(f64::NAN),
            best[kernel][0] / 1e9,
            best[kernel][1] / 1e9,
        );
    }
    text
}

fn document(elements: usize, ratios: &[Vec<f64>; 4], best: &[[f64; 2]; 4]) -> String {
    let row = |(kernel, name): (usize, &&str)| {
        json!({
            "measure": name, "against": "plain C STREAM", "ratio": median(&ratios[kernel]),
            "spread": [ratios[kernel].first(), ratios[kernel].last()], "repetitions": ratios[kernel].len(),
            "ours_bytes_per_s": best[kernel][0], "theirs_bytes_per_s": best[kernel][1], "bar": BAR,
        })
    };
    let rows: Vec<Value> = KERNELS.iter().enumerate().map(row).collect();
    json!({"schema": "forebay.bench/1", "benchmark": "stream", "elements": elements, "rows": rows})
        .to_string()
}

/// Compiles the plain program.
fn plain(root: &Path, elements: usize) -> Result<PathBuf, String> {
    let program = root.join("target/peers/stream_plain");
    std::fs::create_dir_all(root.join("target/peers")).map_err(|e| e.to_string())?;
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O3", "-march=native", "-fopenmp", "-mcmodel=large"])
        .arg(format!("-DELEMENTS={elements}"));
    compiler.arg("-o").arg(&program).arg(root.join("lab/peers/stream_plain.c"));
    let output = compiler.output().map_err(|e| format!("cc: {e}"))?;
    match output.status.success() {
        true => Ok(program),
        false => Err(format!("cc: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn plain_once(program: &Path) -> Result<[f64; 4], String> {
    let mut command = Command::new(program);
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
    command.env("OMP_NUM_THREADS", processors.to_string()).env("OMP_PROC_BIND", "true");
    let value = said(&mut command)?;
    let rates = KERNELS.map(|kernel| value[kernel].as_f64());
    match rates {
        [Some(copy), Some(scale), Some(add), Some(triad)] => Ok([copy, scale, add, triad]),
        _ => Err(format!("the plain STREAM said {value}")),
    }
}

/// Builds the command and says where it is.
fn ours(root: &Path) -> Result<PathBuf, String> {
    build(root, &["--bin", "forebay-lab"]).map(|folder| folder.join("forebay-lab"))
}

fn ours_once(program: &Path, elements: usize) -> Result<[f64; 4], String> {
    let mut command = Command::new(program);
    command.args(["bench", "stream", "--json", "--elements", &elements.to_string()]);
    let value = said(&mut command)?;
    let rate = |kernel: usize| value["kernels"][kernel]["best_bytes_per_s"].as_f64();
    match [rate(0), rate(1), rate(2), rate(3)] {
        [Some(copy), Some(scale), Some(add), Some(triad)] => Ok([copy, scale, add, triad]),
        _ => Err(format!("forebay bench stream said {value}")),
    }
}

fn said(command: &mut Command) -> Result<Value, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    match serde_json::from_str(text.trim()) {
        Ok(value) if output.status.success() => Ok(value),
        _ => {
            Err(format!("{:?} said {text}{}", command.get_program(), String::from_utf8_lossy(&output.stderr)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_below_the_bar_is_missed() {
        let ratios = [vec![0.99, 1.0, 1.1], vec![0.9, 0.96, 1.2], vec![1.0], vec![1.0]];
        let text = table(1 << 20, &ratios, &[[2e9, 1e9]; 4]);
        assert!(text.contains("arrays of 8 MiB"), "{text}");
        assert_eq!(text.matches("missed").count(), 1, "{text}");
        let value: Value = serde_json::from_str(&document(1, &ratios, &[[2e9, 1e9]; 4])).expect("JSON");
        assert_eq!(
            (&value["rows"][1]["measure"], &value["rows"][1]["ratio"]),
            (&json!("scale"), &json!(0.96))
        );
    }
}
