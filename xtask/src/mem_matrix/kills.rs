//! Runs that are killed at any time: nothing is left on the tier, no process stays, and nothing hangs.
//!
//! Killed is in turn the command, the program below it, or the whole group. When, is drawn from a seed that is told.

use std::time::{Duration, Instant};

use super::watch::{self, Memory, Places, Running};
use super::{Matrix, User, MIB, NUMBER};
use crate::summary::Summary;
use std::sync::atomic::Ordering::Relaxed;

/// Latest kill: some runs end before.
const LATEST_MS: u64 = 1500;

/// How long a killed run may take to be gone.
const LIMIT: Duration = Duration::from_secs(30);

/// Programs that are killed, and whether they have children that outlive them when they are killed alone.
const PROGRAMS: [(&str, bool); 4] = [("gemver", false), ("rush", false), ("fork", true), ("threads", false)];

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Target {
    Command,
    Program,
    Group,
}

/// Kills `times` runs, and counts each.
pub fn run(matrix: &Matrix, times: u64, seed: Option<u64>, users: &[User], summary: &mut Summary) {
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("killing {times} runs: --kills {times} --seed {seed}");
    let mut numbers = fastrand::Rng::with_seed(seed);
    let mut alive = 0;
    for number in 0..times {
        let (program, forks) = PROGRAMS[numbers.usize(..PROGRAMS.len())];
        let target = match numbers.u32(..3) {
            _ if forks => Target::Group,
            0 => Target::Command,
            1 => Target::Program,
            _ => Target::Group,
        };
        let user = users[numbers.usize(..users.len())];
        let after = Duration::from_millis(numbers.u64(..LATEST_MS));
        let what = format!("{program} as {}, {target:?} killed after {} ms", user.name(), after.as_millis());
        match one(matrix, program, user, target, after) {
            Ok(killed) => alive += u64::from(killed),
            Err(why) => {
                println!("run {number}: {what}: {why}");
                summary.fail(format!("run {number}: {what}: {why}"));
                continue;
            }
        }
        summary.passed += 1;
    }
    println!("{alive} of {times} were running when they were killed");
}

/// One run that is killed; whether it was running then.
fn one(matrix: &Matrix, program: &str, user: User, target: Target, after: Duration) -> Result<bool, String> {
    let mut words = matrix.mem(8 * MIB);
    words.push("--".to_string());
    match program {
        "fork" | "threads" => {
            words.push(matrix.ground.find(&["python3"])?.display().to_string());
            words.push(matrix.ground.program("interpreter.py").display().to_string());
            words.push(program.to_string());
        }
        _ => {
            let kernels = matrix.ground.compile("kernels", "kernels.c", &["cc", "-O2", "-pthread"])?;
            words.extend([kernels.display().to_string(), program.to_string(), "48".to_string()]);
        }
    }
    let mut command = matrix.command(&words, user)?;
    let (tier, printed) = (matrix.folder("tier"), matrix.folder("printed"));
    let places = Places { tier: &tier, printed: &printed };
    let mut running = Running::start(&mut command, &places, NUMBER.fetch_add(1, Relaxed))?;
    let begin = Instant::now();
    let ended = running.wait(after);
    if ended.is_none() {
        match target {
            Target::Command => watch::kill(&[running.id()]),
            Target::Program => watch::kill(&running.others()),
            Target::Group => watch::kill_group(running.id()),
        }
    }
    let status = running.wait(begin.elapsed() + LIMIT);
    let hangs = status.is_none();
    let gone = running.end(status, Memory::default());
    let kept = std::fs::read_dir(&tier).into_iter().flatten().count();
    match (hangs, gone.left.is_empty(), kept) {
        (true, ..) => Err("it hangs".to_string()),
        (_, false, _) => Err(format!("processes are left: {}", gone.left.join(", "))),
        (.., 1..) => Err(format!("{kept} files are left on the tier")),
        _ => Ok(ended.is_none()),
    }
}
