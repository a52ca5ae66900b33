//! Ranks that are killed at any moment: what the next run restores is one committed step, and none that was
//! acknowledged is lost, because memory and files outlive their processes.
//!
//! `CHECKPOINT_ROUNDS=200` runs more rounds than the few that belong to every test run.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_checkpoint::{drain, verify, Kind};

use crate::state::{dirs, options, Program};

const SIZE: u32 = 3;
const ROUNDS: u64 = 5;

/// What the child is told by its environment: base, memory, rank, levels.
pub const CHILD: &str = "CHECKPOINT_CHILD";

/// Saves until it is killed. Not a test of its own: started by the one below.
#[test]
#[ignore = "the child of another test"]
fn child() {
    let Ok(words) = std::env::var(CHILD) else { return };
    let words: Vec<&str> = words.split(';').collect();
    let (base, memory) = (PathBuf::from(words[0]), PathBuf::from(words[1]));
    let levels: Vec<&str> = words[3].split(' ').collect();
    let mut options = options(&levels, &memory);
    (options.rank, options.size) = (words[2].parse().unwrap(), SIZE);
    options.timeout = Duration::from_secs(60);
    let mut program = Program::open(&base, &options).unwrap();
    let first = match program.restore() {
        Ok(restored) => restored.map_or(0, |restored| restored.step + 1),
        Err(e) if e.kind() == Kind::ProducerDied => return,
        Err(e) => panic!("{e}"),
    };
    println!("\nbegins {first}");
    for step in first.. {
        let saved = program.save(step).and_then(|()| program.checkpoint.wait_level(0));
        match saved {
            Ok(_) => println!("\nsaved {step}"),
            Err(e) if e.kind() == Kind::ProducerDied => return,
            Err(e) => panic!("{e}"),
        }
    }
}

/// Carries steps down, as `forebay ckpt drain` does. Not a test of its own: started by the one below.
#[test]
#[ignore = "the child of another test"]
fn draining_child() {
    let Ok(base) = std::env::var(CHILD) else { return };
    println!("\nbegins 0");
    drain(Path::new(&base)).unwrap();
}

/// Starts a test that is a child, with these words and this environment.
pub fn child_of(name: &str, words: String, environment: &[(String, String)]) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--ignored", "--nocapture"]).env(CHILD, words);
    command.envs(environment.iter().cloned());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn start(base: &Path, memory: &Path, rank: u32, levels: &str, environment: &[(String, String)]) -> Child {
    let words = format!("{};{};{rank};{levels}", base.display(), memory.display());
    child_of("killed::child", words, environment)
}

#[test]
fn no_acknowledged_step_is_lost_by_a_kill() {
    kills("dram file", |_, _, _| {});
}

#[test]
fn what_killed_ranks_left_in_memory_is_carried_down_also_by_a_drain_that_is_killed() {
    let cut_off = AtomicU64::new(0);
    kills("dram file", |base, memory, round| {
        for attempt in 0..4 {
            let mut child = child_of("killed::draining_child", base.display().to_string(), &[]);
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            assert!(lines.any(|line| line.starts_with("begins")));
            std::thread::sleep(Duration::from_micros((round * 4 + attempt) * 3571 % 2500));
            child.kill().unwrap();
            let ended = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(!said.contains("panicked"), "round {round}: {said}");
            cut_off.fetch_add(u64::from(!ended.status.success()), Ordering::Relaxed);
        }
        drain(base).unwrap_or_else(|e| panic!("round {round}: {e}"));
        // From here on the steps are on the disk, or nowhere.
        std::fs::remove_dir_all(memory.join(".checkpoints")).unwrap();
        let faults = verify(base, None).unwrap().into_iter().filter_map(|report| report.fault);
        assert_eq!(faults.collect::<Vec<_>>(), [""; 0], "round {round}");
    });
    assert!(cut_off.into_inner() > 0, "no drain was cut off");
}

#[test]
fn no_step_whose_redundancy_was_acknowledged_is_lost_by_a_kill_and_a_lost_node() {
    kills("file+xor:3", |base, _, round| {
        let lost = base.join(format!("file/{:05}", round % u64::from(SIZE)));
        std::fs::remove_dir_all(lost).unwrap();
    });
}

#[test]
fn no_step_that_a_store_of_objects_acknowledged_is_lost_by_a_kill() {
    kills("file://BASE/store", |_, _, _| {});
}

/// Kills a rank in the middle of something, round after round, with more harm between them. `BASE` in levels is the
/// checkpoint's directory.
fn kills(levels: &str, harm: impl Fn(&Path, &Path, u64)) {
    kills_with(levels, &[], harm);
}

/// As [`kills`], of processes with this environment.
pub fn kills_with(levels: &str, environment: &[(String, String)], harm: impl Fn(&Path, &Path, u64)) {
    let rounds = std::env::var("CHECKPOINT_ROUNDS").map_or(ROUNDS, |text| text.parse().unwrap());
    let (base, memory) = dirs();
    let levels = &levels.replace("BASE", &base.path().display().to_string());
    let mut acknowledged = None;
    for round in 0..rounds {
        let mut ranks: Vec<Child> =
            (0..SIZE).map(|rank| start(base.path(), memory.path(), rank, levels, environment)).collect();
        // Some words of the victim, so many more each round, then the end in the middle of something.
        let victim = (round % u64::from(SIZE)) as usize;
        let mut lines = BufReader::new(ranks[victim].stdout.take().unwrap()).lines().map_while(Result::ok);
        let begins = lines.find_map(|line| line.strip_prefix("begins ")?.parse::<u64>().ok());
        let begins = begins.unwrap_or_else(|| panic!("round {round}: {:?}", ended(&mut ranks)));
        let least = acknowledged.map_or(0, |step: u64| step + 1);
        assert!(begins >= least, "round {round} begins at {begins}, {acknowledged:?} had been acknowledged");
        let saved = |line: String| line.strip_prefix("saved ")?.parse::<u64>().ok();
        let wanted = 1 + (round * 7 % 5) as usize;
        for step in lines.by_ref().filter_map(saved).take(wanted) {
            acknowledged = Some(step);
        }
        std::thread::sleep(Duration::from_micros(round * 7919 % 5000));
        ranks[victim].kill().unwrap();
        // What it said before it died counts too.
        for step in lines.filter_map(saved) {
            acknowledged = Some(step);
        }
        let said = ended(&mut ranks);
        assert!(!said.contains("panicked"), "round {round}: {said}");
        harm(base.path(), memory.path(), round);
    }
    assert!(acknowledged.is_some());
}

/// Kills the rest, as a job manager does, and gives what they said in the end.
fn ended(ranks: &mut [Child]) -> String {
    let mut said = String::new();
    for rank in ranks {
        let _ = rank.kill();
        rank.wait().unwrap();
        if let Some(mut errors) = rank.stderr.take() {
            std::io::Read::read_to_string(&mut errors, &mut said).unwrap();
        }
    }
    said
}
