//! Optuna as a way to choose: with a number of trials it searches among the plans that were run, each trial giving the
//! time that was measured. It is used where a Python with it is there.

use std::io::Write;
use std::process::{Command, Stdio};

/// What came of it.
pub(crate) enum Trials {
    /// Of each workflow the time that it ends with, relative to the best, as a mean over seeds.
    Done(Vec<f64>),
    /// Why not.
    Skipped(String),
}

const SCRIPT: &str = "\
import json, sys
import optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
asked = json.load(sys.stdin)
def one(times, seed):
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    of = lambda trial: times[trial.suggest_categorical('plan', list(range(len(times))))]
    study.optimize(of, n_trials=asked['trials'])
    return study.best_value
seeds = range(20)
print(json.dumps([sum(one(t, s) for s in seeds) / len(seeds) for t in asked['times']]))
";

/// Lets it search among the `times` of each workflow's plans.
pub(crate) fn choose(times: &[Vec<f64>], trials: usize) -> Trials {
    match ask(times, trials) {
        Ok(chosen) if chosen.len() == times.len() => Trials::Done(chosen),
        Ok(_) => Trials::Skipped("it answered for other workflows".into()),
        Err(why) => Trials::Skipped(why),
    }
}

fn ask(times: &[Vec<f64>], trials: usize) -> Result<Vec<f64>, String> {
    let asked = serde_json::json!({ "times": times, "trials": trials }).to_string();
    let mut python = Command::new("python3")
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("no python3: {e}"))?;
    if let Some(mut input) = python.stdin.take() {
        // Without the package it has gone before it reads.
        let _ = input.write_all(asked.as_bytes());
    }
    let output = python.wait_with_output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        // A traceback says in its last line what is missing.
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("python3: {}", said.trim().lines().last().unwrap_or("it failed without a word")));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("it answered no numbers: {e}"))
}
