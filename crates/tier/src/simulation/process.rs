//! What a program of simulations does with its processes: starts, stops, kills and waits for them.
//!
//! Called from simulated threads only, most of them from the first process.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::Location;

use super::scheduler::{self, block, state, Key, Pressure};
use super::Random;

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Its first thread returned.
    Done,
    /// It was killed.
    Killed,
    /// It panicked, which fails the run.
    Panicked(String),
}

/// Starts a process; `fault_per_million` of its system calls fail. Returns its pid.
pub fn start(name: &str, fault_per_million: u32, body: impl FnOnce() + Send + 'static) -> u32 {
    scheduler::start_process(name.to_owned(), fault_per_million, body).0
}

/// The calling process's pid.
pub fn own() -> u32 {
    scheduler::pid().expect("a simulated thread")
}

/// Kills a process after so many of its points.
pub fn kill_after(pid: u32, points: u64) {
    with(pid, |process| process.kill_in = Some(points));
}

/// Stops a process after so many of its points, for so long (SIGSTOP, SIGCONT).
pub fn stop_after(pid: u32, points: u64, ns: u64) {
    with(pid, |process| process.stop_in = Some((points, ns)));
}

/// The process may be killed and stopped where a mutation acts.
pub fn in_danger(pid: u32) {
    with(pid, |process| process.is_in_danger = true);
}

/// How often that may still happen.
pub fn pressure() -> Pressure {
    state().pressure
}

/// Whether the power fails where a mutation acts: the process that carries that has been killed. Says so once.
pub fn power_fails() -> bool {
    state().power_fails()
}

/// Kills a process now. Not the caller's own.
pub fn kill(pid: u32) {
    assert_ne!(pid, own(), "a process kills itself by `kill_after`");
    let mut s = state();
    if let Some(process) = s.find(pid) {
        s.kill(process);
    }
}

/// From now on so many of a million system calls of the process fail.
pub fn set_faults(pid: u32, fault_per_million: u32) {
    with(pid, |process| process.fault_per_million = fault_per_million);
}

/// How a process ended; None while it runs.
pub fn exit(pid: u32) -> Option<Exit> {
    let s = state();
    s.find(pid).and_then(|process| s.processes[process].exit.clone())
}

/// Whether the first thread of a process sleeps on a word that processes share.
pub fn sleeps_on_a_word(pid: u32) -> bool {
    let s = state();
    s.find(pid).is_some_and(|process| s.first_sleeps_on_a_word(process))
}

/// How every process ended that has.
pub fn exits() -> BTreeMap<u32, Exit> {
    state().exits()
}

/// The processes that ended in order while other threads of theirs were at work: what these hold stays as a kill leaves
/// it.
pub fn that_left_threads() -> BTreeSet<u32> {
    state().that_left_threads()
}

/// Points that a process has come to.
pub fn points(pid: u32) -> u64 {
    let s = state();
    s.find(pid).map_or(0, |process| s.processes[process].points)
}

/// Waits until a process ends.
#[track_caller]
pub fn wait(pid: u32) -> Exit {
    loop {
        if let Some(exit) = exit(pid) {
            return exit;
        }
        block(Key::Exit(Some(pid)), None, "exit", Location::caller());
    }
}

/// Waits until any process ends, at most `timeout_ns`.
#[track_caller]
pub fn wait_any(timeout_ns: u64) {
    block(Key::Exit(None), Some(timeout_ns), "an exit", Location::caller());
}

/// Virtual nanoseconds.
pub fn now_ns() -> u64 {
    state().now_ns
}

/// Moves the clock ahead.
pub fn pass_ns(ns: u64) {
    state().now_ns += ns;
}

/// Adds a line to the report of the run, which a failure prints whole.
pub fn note(text: impl AsRef<str>) {
    let me = scheduler::me().expect("a simulated thread");
    let mut s = state();
    let process = s.process_of(me);
    s.note(process, text.as_ref());
}

/// Fails the run. Never returns.
pub fn fail(message: impl Into<String>) -> ! {
    scheduler::fail(message.into())
}

/// A generator that follows from the run's own.
pub fn random() -> Random {
    let mut s = state();
    Random::new(s.random.next(), 1)
}

fn with(pid: u32, change: impl FnOnce(&mut scheduler::SimProcess)) {
    let mut s = state();
    let process = s.find(pid).expect("a process of this run");
    change(&mut s.processes[process]);
}
