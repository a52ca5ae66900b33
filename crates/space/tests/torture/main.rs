//! Real processes killed with SIGKILL at any moment, round after round.
//!
//! A round is one space from its making to its end: up to three writer ranks, up to two reader groups, observers,
//! drains and cleaners beside them; its first pool is in memory or in a file, and it has up to two lower pools. Each
//! life of a process may carry its own death: at a place in its code (opening, beginning a step, inside it, ending it,
//! closing), at one in the moving of a segment or in the removal of the space, and a few nanoseconds to milliseconds
//! after it. Processes are stopped (SIGSTOP) for longer than a tick. In some rounds all are killed at once. Processes
//! that were killed, or were told of a death, are started again until the stream has come to its end; or the space is
//! abandoned, and drains and cleaners are killed one after another. What holds all the time:
//! - a version that every rank acknowledged stays complete, and is read, whole, by every reader that was not killed
//!   itself, in order and without a gap, wherever it is moved; a view stays as it was until it is dropped;
//! - a survivor gets data, or an error whose kind a killed peer explains, before its deadline;
//! - a space that a process has open is not removed; while no writer lives, `verify` finds no damage;
//! - when every reader has let everything go, all space is free again; at the end no file is left.
//!
//! SPACE_TEST_ROUNDS sets the number of rounds, SPACE_TEST_SEED their seed; with SPACE_TEST_ROUND only that round runs.
//! Who dies where follows from the seed; how the processes interleave does not.

mod board;
mod caretakers;
mod cast;
mod children;
mod death;
mod roles;
mod round;
mod tally;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn child() {
    if std::env::var_os(children::ROLE).is_some() {
        children::play();
    }
}

#[test]
fn rounds() {
    let seed = number("SPACE_TEST_SEED").unwrap_or(0x00f0_7eba);
    let rounds = match number("SPACE_TEST_ROUND") {
        Some(one) => one..one + 1,
        None => 0..number("SPACE_TEST_ROUNDS").unwrap_or(200),
    };
    println!("seed {seed}, rounds {rounds:?}");
    let next = AtomicU64::new(rounds.start);
    let tally = tally::Tally::default();
    let work = || {
        let mut failed = Vec::new();
        loop {
            let round = next.fetch_add(1, Relaxed);
            if round >= rounds.end || !failed.is_empty() {
                return failed;
            }
            if let Err(why) = round::play_round(seed, round, &tally) {
                failed.push(format!("SPACE_TEST_SEED={seed} SPACE_TEST_ROUND={round}: {why}"));
            }
        }
    };
    // Two at a time: the processes of one get into the way of those of the other.
    let failed: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    println!("{tally}");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    if number("SPACE_TEST_ROUND").is_none() && rounds.end >= 200 {
        let missing = tally.missing(rounds.end);
        assert!(missing.is_empty(), "in {rounds:?} there was no {}: {tally}", missing.join(", no "));
    }
}
