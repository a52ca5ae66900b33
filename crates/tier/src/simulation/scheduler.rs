//! Who runs next: one thread at a time, chosen by the seed at every point.
//!
//! Invariants: `CURRENT` names the one thread that runs; only that thread touches [`State`], so its lock is never
//! contended for long. A thread that waits or is dead is parked. The number of a thread is used once in the life of
//! the operating system's process: a thread that an earlier run abandoned is never resumed.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{self, AssertUnwindSafe, Location};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;

use super::kernel::{self, Kernel, MEMORY};
use super::mutation::{self, Mutation};
use super::process::Exit;
use super::random::Random;
use super::trace::{Coverage, Trace};

/// How a run goes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// All that is drawn follows from it.
    pub seed: u64,
    /// A run of more points has failed: something never ends.
    pub points_max: u64,
    /// How often in a million points another thread runs next.
    pub switch_per_million: u32,
    /// How often in a million points the clock jumps ahead, by up to a second.
    pub jump_per_million: u32,
    /// How often in a million system calls that a signal can interrupt one is.
    pub interrupt_per_million: u32,
    /// The power may be cut: what was flushed of each file is kept.
    pub power_cuts: bool,
    /// Every point goes to standard error.
    pub aloud: bool,
    /// What is wrong in the code on purpose.
    pub mutation: Option<Mutation>,
    /// Only its place counts: nothing is wrong there.
    pub is_harmless: bool,
    /// How often a process may be killed, and stopped, where the mutation acts, beside the kills and stops of the run.
    pub pressure: Pressure,
}

/// What happens to processes where a mutation acts: other threads run, and what is left of this.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Kills: of the thread's own process soon after, or of another one at once.
    pub kills: u32,
    /// Stops.
    pub stops: u32,
    /// Power cuts: the thread's own process is killed soon after, and the power fails with it.
    pub cuts: u32,
}

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    /// Points.
    pub points: u64,
    /// How often another thread went on.
    pub switches: u64,
    /// Processes killed.
    pub kills: u64,
    /// System calls made to fail.
    pub faults: u64,
    /// How often the mutation made a difference.
    pub mutated: u64,
    /// How often every thread waited and the one that went on first had slept on a word, or for long for another thread
    /// of its process, to the end of its time, or the word had changed meanwhile.
    pub overslept: u64,
    /// None: all was well.
    pub failure: Option<Failure>,
    /// What was interrupted.
    pub coverage: Coverage,
}

/// Why a run failed, and the last points before.
#[derive(Debug)]
pub struct Failure {
    /// What is wrong.
    pub message: String,
    /// The last points, one a line.
    pub trace: String,
}

/// A kind of point.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Load,
    Store,
    Exchange,
    Clock,
    Call(&'static str),
    Wait(&'static str),
    Wake,
    Lock,
    Start,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Load => f.pad("load"),
            What::Store => f.pad("store"),
            What::Exchange => f.pad("exchange"),
            What::Clock => f.pad("clock"),
            What::Call(name) => f.pad(name),
            What::Wait(name) => f.pad(&format!("wait for {name}")),
            What::Wake => f.pad("wake"),
            What::Lock => f.pad("lock"),
            What::Start => f.pad("start"),
        }
    }
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// A word, by device, inode and offset of its file.
    Futex(u64, u64, u64),
    /// A lock or a condition of one process, by its address.
    Address(usize),
    /// The end of a thread.
    Thread(usize),
    /// The end of a process, or of any.
    Exit(Option<u32>),
    /// Time alone.
    Sleep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Runs,
    Waits { key: Key, from_ns: u64, until_ns: u64 },
    Finished,
    Dead,
}

struct SimThread {
    process: usize,
    name: String,
    doing: Doing,
    woken: bool,
    /// Until this point of the run it goes on only where no other thread can.
    held_until: u64,
    handle: Option<Thread>,
}

pub(super) struct SimProcess {
    pub(super) name: String,
    began_ns: u64,
    pub(super) exit: Option<Exit>,
    pub(super) stopped_until_ns: u64,
    /// Points until it is killed.
    pub(super) kill_in: Option<u64>,
    /// Points until it is stopped, and for how long.
    pub(super) stop_in: Option<(u64, u64)>,
    /// How often in a million of its system calls one fails.
    pub(super) fault_per_million: u32,
    /// It may be killed and stopped where a mutation acts.
    pub(super) is_in_danger: bool,
    /// Whether it ended in order while other threads of its own were at work.
    pub(super) left_threads: bool,
    pub(super) points: u64,
}

pub(super) struct State {
    settings: Settings,
    pub(super) random: Random,
    pub(super) now_ns: u64,
    points: u64,
    switches: u64,
    pub(super) kills: u64,
    faults: u64,
    overslept: u64,
    jumps: u32,
    pub(super) pressure: Pressure,
    presses: u32,
    /// When this process has been killed the power fails.
    fuse: Option<usize>,
    first_thread: usize,
    threads: Vec<SimThread>,
    pub(super) processes: Vec<SimProcess>,
    /// The earliest time at which a waiting thread or a stopped process goes on.
    next_timer_ns: u64,
    pub(super) kernel: Kernel,
    trace: Trace,
    coverage: Coverage,
    failure: Option<Failure>,
    over: bool,
}

/// Pids of simulated processes begin here.
const FIRST_PID: u32 = 1000;
/// Virtual time of a run's first point.
const BEGIN_NS: u64 = 1_000_000_000;
/// A point takes up to so long.
const POINT_NS: u64 = 200;
/// The clock jumps by up to so much.
const JUMP_NS: u64 = 1_000_000_000;
/// Jumps of a run: with no end of them every wait for a lock would end in time-outs, and no group would get further.
const JUMPS_MAX: u32 = 100;
/// No simulated thread calls deep.
const STACK_BYTES: usize = 1 << 20;
const NO_THREAD: usize = usize::MAX;
/// A thread is held for fewer points than two to this power.
const HELD_POWER: u64 = 12;
/// Who waits so long for another thread of its process waits for one that always tells it.
const LONG_NS: u64 = 1_000_000_000;
/// So often threads are held, and processes killed or stopped, where a mutation acts.
const PRESSES_MAX: u32 = 200;

static STATE: Mutex<Option<Box<State>>> = Mutex::new(None);
static OVER: Condvar = Condvar::new();
static CURRENT: AtomicUsize = AtomicUsize::new(NO_THREAD);
static NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static ME: Cell<usize> = const { Cell::new(NO_THREAD) };
}

/// The number of the calling simulated thread.
pub(super) fn me() -> Option<usize> {
    let me = ME.try_with(Cell::get).unwrap_or(NO_THREAD);
    (me != NO_THREAD).then_some(me)
}

/// The run's state, locked.
pub(super) struct Locked(MutexGuard<'static, Option<Box<State>>>);

impl std::ops::Deref for Locked {
    type Target = State;
    fn deref(&self) -> &State {
        self.0.as_ref().expect("a simulated thread runs only within a run")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("a simulated thread runs only within a run")
    }
}

pub(super) fn state() -> Locked {
    Locked(STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs `init` as the first simulated process, until it ends or something fails. One run at a time.
pub fn run(settings: Settings, init: impl FnOnce() + Send + 'static) -> Outcome {
    mutation::set(settings.mutation, settings.is_harmless);
    let mut trace = Trace::default();
    trace.aloud = settings.aloud;
    let keeps_flushed = settings.power_cuts;
    let fresh = State {
        random: Random::new(settings.seed, 0),
        pressure: settings.pressure,
        presses: 0,
        fuse: None,
        settings,
        now_ns: BEGIN_NS,
        points: 0,
        switches: 0,
        kills: 0,
        faults: 0,
        overslept: 0,
        jumps: 0,
        first_thread: NEXT_THREAD.load(SeqCst),
        threads: Vec::new(),
        processes: Vec::new(),
        next_timer_ns: u64::MAX,
        kernel: Kernel::new(keeps_flushed),
        trace,
        coverage: Coverage::default(),
        failure: None,
        over: false,
    };
    *STATE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(fresh));
    let (_, first) = start_process("init".into(), 0, init);
    let mut guard = state();
    guard.go(first);
    let mut inner = guard.0;
    while !inner.as_ref().is_some_and(|s| s.over) {
        inner = OVER.wait(inner).unwrap_or_else(PoisonError::into_inner);
    }
    CURRENT.store(NO_THREAD, SeqCst);
    let state = inner.take().expect("a run");
    drop(inner);
    let mutated = mutation::applied();
    mutation::set(None, false);
    state.kernel.unmap_left();
    Outcome {
        points: state.points,
        switches: state.switches,
        kills: state.kills,
        faults: state.faults,
        mutated,
        overslept: state.overslept,
        failure: state.failure,
        coverage: state.coverage,
    }
}

/// Makes a process whose first thread will run `body`. Returns its pid and the thread.
pub(super) fn start_process(
    name: String,
    fault_per_million: u32,
    body: impl FnOnce() + Send + 'static,
) -> (u32, usize) {
    let mut s = state();
    let began_ns = s.now_ns;
    s.processes.push(SimProcess {
        name: name.clone(),
        began_ns,
        exit: None,
        stopped_until_ns: 0,
        kill_in: None,
        stop_in: None,
        fault_per_million,
        is_in_danger: false,
        left_threads: false,
        points: 0,
    });
    let process = s.processes.len() - 1;
    drop(s);
    let thread = start_thread(process, name, move || {
        let ended = panic::catch_unwind(AssertUnwindSafe(body));
        let exit = ended.map_or_else(|payload| Exit::Panicked(panic_text(&*payload)), |()| Exit::Done);
        state().end_process(process, exit);
    });
    (FIRST_PID + process as u32, thread)
}

/// What a panic said.
pub(super) fn panic_text(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}

/// Makes a thread of a process; it waits for its turn.
pub(super) fn start_thread(process: usize, name: String, body: impl FnOnce() + Send + 'static) -> usize {
    let mut s = state();
    let number = NEXT_THREAD.fetch_add(1, SeqCst);
    let thread = SimThread { process, name, doing: Doing::Runs, woken: false, held_until: 0, handle: None };
    s.threads.push(thread);
    let started = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        ME.set(number);
        wait_for_turn(number);
        body();
        finish(number);
    });
    let handle = started.expect("a thread").thread().clone();
    s.thread(number).handle = Some(handle);
    number
}

/// Parks until it is this thread's turn.
fn wait_for_turn(me: usize) {
    while CURRENT.load(SeqCst) != me {
        std::thread::park();
    }
}

/// The end of a thread: another one goes on.
fn finish(me: usize) {
    let guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    if guard.as_ref().is_none_or(|s| s.first_thread > me) {
        // Its run is over, and perhaps another one has begun.
        return;
    }
    let mut s = Locked(guard);
    if s.thread(me).doing == Doing::Runs {
        s.thread(me).doing = Doing::Finished;
    }
    s.wake(Key::Thread(me), usize::MAX);
    ME.set(NO_THREAD);
    if s.over {
        return;
    }
    match s.next(None) {
        Some(next) => s.go(next),
        None => s.stuck(),
    }
}

/// A point of the calling thread at `at`. Does nothing outside simulated threads.
#[inline]
pub(crate) fn point_at(what: What, at: &'static Location<'static>) {
    if let Some(me) = me() {
        step(me, what, at);
    }
}

fn step(me: usize, what: What, at: &'static Location<'static>) {
    if std::thread::panicking() {
        // Destructors of a panic run to their end; the run has failed anyway.
        return;
    }
    let mut s = state();
    let process = s.begin_point(me, what, at);
    if mutation::take_notice() {
        s.press(me, process);
    }
    if s.is_killed_here(process) {
        s.coverage.killed(at);
        s.kill(process);
        s.leave(me);
    }
    if s.may_stay(me, process) {
        return;
    }
    let next = s.next(Some(me));
    s.switch(me, next, at);
}

/// The clock of the simulated machine, in nanoseconds.
pub(crate) fn clock_ns(at: &'static Location<'static>) -> Option<u64> {
    let me = me()?;
    step(me, What::Clock, at);
    Some(state().now_ns)
}

/// When the calling thread's simulated process was started, in virtual time.
pub(crate) fn began_ns() -> Option<u64> {
    let me = me()?;
    let mut s = state();
    let process = s.thread(me).process;
    Some(s.processes[process].began_ns)
}

/// The calling thread's simulated process id.
pub(crate) fn pid() -> Option<u32> {
    let me = me()?;
    let mut s = state();
    Some(FIRST_PID + s.thread(me).process as u32)
}

/// Waits until `key` is woken, at most `timeout_ns`. True: woken.
pub(crate) fn block(
    key: Key,
    timeout_ns: Option<u64>,
    name: &'static str,
    at: &'static Location<'static>,
) -> bool {
    let Some(me) = me() else { return true };
    let mut s = state();
    let process = s.begin_point(me, What::Wait(name), at);
    if mutation::take_notice() {
        s.press(me, process);
    }
    let from_ns = s.now_ns;
    let until_ns = timeout_ns.map_or(u64::MAX, |ns| s.now_ns.saturating_add(ns));
    s.next_timer_ns = s.next_timer_ns.min(until_ns);
    let thread = s.thread(me);
    thread.doing = Doing::Waits { key, from_ns, until_ns };
    thread.woken = false;
    if s.is_killed_here(process) {
        s.coverage.killed(at);
        s.kill(process);
        s.leave(me);
    }
    let next = s.next(None);
    s.switch(me, next, at);
    state().thread(me).woken
}

/// Wakes up to `count` threads that wait for `key`, or with a mutation none.
pub(crate) fn wake(key: Key, count: usize, is_lost: bool) {
    if me().is_none() {
        return;
    }
    let mut s = state();
    if !is_lost {
        return s.wake(key, count);
    }
    if s.is_waited_for(key) {
        mutation::made_a_difference();
    }
}

/// Whether a thread waits for `key`.
pub(super) fn is_waited_for(key: Key) -> bool {
    state().is_waited_for(key)
}

/// A thread slept to the end of its time although the word had changed: no one woke it.
pub(super) fn overslept() {
    state().overslept += 1;
}

/// Draws whether a system call fails now, and counts it.
pub(super) fn draw_fault(me: usize) -> Option<u64> {
    let mut s = state();
    let process = s.thread(me).process;
    let times = s.processes[process].fault_per_million;
    if !s.random.per_million(times) {
        return None;
    }
    s.faults += 1;
    s.note(process, "a system call fails");
    Some(s.random.next())
}

/// Whether system calls are interrupted in this run.
pub(super) fn may_interrupt() -> bool {
    state().settings.interrupt_per_million > 0
}

/// Draws whether a signal interrupts a system call now.
pub(super) fn draw_interruption() -> bool {
    let mut s = state();
    let times = s.settings.interrupt_per_million;
    s.random.per_million(times)
}

/// A store that a mutation holds back.
#[derive(Clone, Copy)]
struct Late {
    address: usize,
    value: u64,
    bytes: usize,
}

thread_local! {
    /// What the thread holds back.
    static LATE: Cell<Option<Late>> = const { Cell::new(None) };
}

/// Holds a store back until the thread's next one.
pub(super) fn late_store(address: usize, value: u64, bytes: usize) {
    settle_late();
    LATE.set(Some(Late { address, value, bytes }));
}

/// The store that was held back happens.
#[inline]
pub(super) fn settle_late() {
    if let Some(Late { address, value, bytes }) = LATE.take() {
        mutation::stored(address);
        (MEMORY.get().expect("a mapping has the word").store)(address, value, bytes);
    }
}

/// The run has failed. Never returns.
pub(super) fn fail(message: String) -> ! {
    let me = me();
    let mut s = state();
    s.fail(message);
    drop(s);
    abandon(me)
}

/// Parks for ever.
fn abandon(_me: Option<usize>) -> ! {
    loop {
        std::thread::park();
    }
}

impl Locked {
    /// Lets `next` run; the caller goes on only if it is told to.
    fn go(&mut self, next: usize) {
        let handle = self.thread(next).handle.clone();
        CURRENT.store(next, SeqCst);
        if let Some(handle) = handle {
            handle.unpark();
        }
    }

    /// Hands over to `next` and waits for the calling thread's turn.
    fn switch(mut self, me: usize, next: Option<usize>, at: &'static Location<'static>) {
        match next {
            Some(next) if next == me => {}
            Some(next) => {
                self.switches += 1;
                self.coverage.switched(at);
                self.go(next);
                drop(self);
                wait_for_turn(me);
            }
            None => {
                self.stuck();
                drop(self);
                abandon(Some(me));
            }
        }
    }

    /// The calling thread is dead: lets another one run, for ever.
    fn leave(mut self, me: usize) -> ! {
        match self.next(None) {
            Some(next) => self.go(next),
            None => self.stuck(),
        }
        drop(self);
        abandon(Some(me))
    }
}

impl State {
    fn thread(&mut self, number: usize) -> &mut SimThread {
        let first = self.first_thread;
        &mut self.threads[number - first]
    }

    fn is_waited_for(&self, key: Key) -> bool {
        self.threads.iter().any(|thread| matches!(thread.doing, Doing::Waits { key: k, .. } if k == key))
    }

    /// The process of a thread.
    pub(super) fn process_of(&mut self, number: usize) -> usize {
        self.thread(number).process
    }

    /// Counts a point and moves the clock.
    fn begin_point(&mut self, me: usize, what: What, at: &'static Location<'static>) -> usize {
        self.points += 1;
        self.now_ns += self.random.below(POINT_NS);
        if self.random.per_million(self.settings.jump_per_million) {
            let jump = self.random.below(JUMP_NS);
            if self.jumps < JUMPS_MAX {
                self.jumps += 1;
                self.now_ns += jump;
            }
        }
        let process = self.thread(me).process;
        self.processes[process].points += 1;
        let (now, pid) = (self.now_ns, FIRST_PID + process as u32);
        self.trace.add(now, (pid, me), what, at);
        self.coverage.met(at);
        if self.points > self.settings.points_max {
            self.fail(format!("no end after {} points:\n{}", self.points, self.waiting()));
        }
        process
    }

    fn is_killed_here(&mut self, process: usize) -> bool {
        match &mut self.processes[process].kill_in {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    /// Something has just gone wrong in this thread by a mutation. What follows from it takes a certain order of
    /// events, most often one in which others run before the thread goes on, or in which a process ends.
    fn press(&mut self, me: usize, process: usize) {
        if self.presses == PRESSES_MAX || self.random.percent(50) {
            return;
        }
        self.presses += 1;
        let Pressure { kills, stops, cuts } = self.pressure;
        let is_in_danger = self.processes[process].is_in_danger;
        match self.random.below(8) {
            0 if kills + cuts > 0 && is_in_danger => {
                if cuts > 0 && (kills == 0 || self.random.percent(50)) {
                    self.pressure.cuts -= 1;
                    self.fuse = Some(process);
                } else {
                    self.pressure.kills -= 1;
                }
                let scale = self.random.below(8);
                self.processes[process].kill_in = Some(self.random.below(2 << scale));
            }
            1 if kills > 0 => {
                let others: Vec<usize> = (0..self.processes.len())
                    .filter(|other| *other != process && self.processes[*other].is_in_danger)
                    .filter(|other| self.processes[*other].exit.is_none())
                    .collect();
                if !others.is_empty() {
                    self.pressure.kills -= 1;
                    let other = *self.random.pick(&others);
                    self.processes[other].kill_in = Some(0);
                }
            }
            2 if stops > 0 && is_in_danger => {
                self.pressure.stops -= 1;
                self.processes[process].stop_in = Some((0, 1_000_000 << self.random.below(16)));
            }
            _ => {
                let scale = self.random.below(HELD_POWER);
                let points = self.random.below(2 << scale);
                let until = self.points + points;
                self.thread(me).held_until = until;
            }
        }
    }

    /// Whether the thread that runs may go on running, as it most often does.
    fn may_stay(&mut self, me: usize, process: usize) -> bool {
        if self.over || self.thread(me).held_until > self.points {
            return false;
        }
        if let Some((left, ns)) = self.processes[process].stop_in {
            if left == 0 {
                self.processes[process].stop_in = None;
                let until = self.now_ns.saturating_add(ns);
                self.processes[process].stopped_until_ns = until;
                self.note(process, &format!("is stopped for {ns} ns"));
                self.next_timer_ns = self.next_timer_ns.min(until);
                return false;
            }
            self.processes[process].stop_in = Some((left - 1, ns));
        }
        self.processes[process].stopped_until_ns <= self.now_ns
            && !self.random.per_million(self.settings.switch_per_million)
    }

    /// Threads whose time has come wake.
    fn fire_timers(&mut self) {
        let now = self.now_ns;
        let mut next = u64::MAX;
        for thread in &mut self.threads {
            if let Doing::Waits { until_ns, .. } = thread.doing {
                if until_ns <= now {
                    thread.doing = Doing::Runs;
                } else {
                    next = next.min(until_ns);
                }
            }
        }
        for process in &self.processes {
            if process.exit.is_none() && process.stopped_until_ns > now {
                next = next.min(process.stopped_until_ns);
            }
        }
        self.next_timer_ns = next;
    }

    /// The thread that runs next, after waiting until there is one; None when nothing will ever happen.
    fn next(&mut self, _me: Option<usize>) -> Option<usize> {
        if self.over {
            return None;
        }
        loop {
            if self.next_timer_ns <= self.now_ns {
                self.fire_timers();
            }
            for with_held in [false, true] {
                let count = self.ready(with_held).count() as u64;
                if count > 0 {
                    let chosen = self.random.below(count) as usize;
                    return self.ready(with_held).nth(chosen);
                }
            }
            self.next_timer_ns = u64::MAX;
            self.fire_timers();
            if self.next_timer_ns == u64::MAX {
                return None;
            }
            self.now_ns = self.next_timer_ns;
            let due = |thread: &SimThread| match thread.doing {
                Doing::Waits { key: Key::Futex(..), until_ns, .. } => until_ns <= self.now_ns,
                // Threads of one process look again in slices, or wait for one that always tells them.
                Doing::Waits { key: Key::Address(_), from_ns, until_ns } => {
                    until_ns <= self.now_ns && until_ns - from_ns >= LONG_NS
                }
                _ => false,
            };
            self.overslept += u64::from(self.threads.iter().any(due));
        }
    }

    /// Threads that can run.
    fn ready(&self, with_held: bool) -> impl Iterator<Item = usize> + '_ {
        let ready = move |(_, thread): &(usize, &SimThread)| {
            thread.doing == Doing::Runs
                && self.processes[thread.process].stopped_until_ns <= self.now_ns
                && (with_held || thread.held_until <= self.points)
        };
        self.threads.iter().enumerate().filter(ready).map(|(index, _)| index + self.first_thread)
    }

    pub(super) fn wake(&mut self, key: Key, count: usize) {
        let waiting =
            |thread: &&mut SimThread| matches!(thread.doing, Doing::Waits { key: k, .. } if k == key);
        for thread in self.threads.iter_mut().filter(waiting).take(count) {
            thread.doing = Doing::Runs;
            thread.woken = true;
        }
    }

    /// SIGKILL: no thread of it runs again, its locks are released, its stores stay.
    pub(super) fn kill(&mut self, process: usize) {
        if self.processes[process].exit.is_none() {
            self.kills += 1;
            self.end_process(process, Exit::Killed);
        }
    }

    /// Adds a line to the report of the run.
    pub(super) fn note(&mut self, process: usize, text: &str) {
        let (now, pid) = (self.now_ns, FIRST_PID + process as u32);
        self.trace.note(now, pid, text);
    }

    /// A process has ended: so have its threads.
    pub(super) fn end_process(&mut self, process: usize, exit: Exit) {
        let pid = FIRST_PID + process as u32;
        self.note(process, &format!("{exit:?}"));
        let threads = self.threads.iter_mut().filter(|thread| thread.process == process);
        let mut unfinished = 0;
        for thread in threads.filter(|thread| thread.doing != Doing::Finished) {
            thread.doing = Doing::Dead;
            unfinished += 1;
        }
        // The first one is at its end here.
        self.processes[process].left_threads = exit == Exit::Done && unfinished > 1;
        self.kernel.release_locks(pid);
        if let Exit::Panicked(text) = &exit {
            let name = self.processes[process].name.clone();
            self.fail(format!("process {pid} ({name}) panicked: {text}"));
        }
        self.processes[process].exit = Some(exit);
        self.processes[process].kill_in = None;
        self.wake(Key::Exit(Some(pid)), usize::MAX);
        self.wake(Key::Exit(None), usize::MAX);
        if process == 0 {
            self.end_run();
        }
    }

    fn end_run(&mut self) {
        self.over = true;
        OVER.notify_all();
    }

    pub(super) fn fail(&mut self, message: String) {
        let trace = self.trace.text();
        self.failure.get_or_insert(Failure { message, trace });
        self.end_run();
    }

    /// Nothing can happen any more.
    fn stuck(&mut self) {
        if !self.over {
            let message = format!("every thread waits for ever:\n{}", self.waiting());
            self.fail(message);
        }
    }

    /// Who waits for what.
    fn waiting(&self) -> String {
        let mut lines = BTreeMap::new();
        for (index, thread) in self.threads.iter().enumerate() {
            if matches!(thread.doing, Doing::Runs | Doing::Waits { .. }) {
                let process = &self.processes[thread.process];
                let pid = FIRST_PID + thread.process as u32;
                let line = format!(
                    "  process {pid} ({}) thread {} ({}): {:?}",
                    process.name,
                    index + self.first_thread,
                    thread.name,
                    thread.doing
                );
                lines.insert(index, line);
            }
        }
        lines.into_values().collect::<Vec<_>>().join("\n")
    }

    /// How every process ended that has, by pid.
    pub(super) fn exits(&self) -> BTreeMap<u32, Exit> {
        let ended = (FIRST_PID..).zip(&self.processes);
        ended.filter_map(|(pid, process)| Some((pid, process.exit.clone()?))).collect()
    }

    /// The processes that ended in order while other threads of theirs were at work.
    pub(super) fn that_left_threads(&self) -> BTreeSet<u32> {
        let ended = (FIRST_PID..).zip(&self.processes);
        ended.filter_map(|(pid, process)| process.left_threads.then_some(pid)).collect()
    }

    /// Whether a process has been killed with which the power fails; once.
    pub(super) fn power_fails(&mut self) -> bool {
        let exit = self.fuse.and_then(|process| self.processes[process].exit.as_ref());
        let (has_ended, fails) = (exit.is_some(), exit == Some(&Exit::Killed));
        self.fuse = self.fuse.filter(|_| !has_ended);
        fails
    }

    /// Whether the first thread of a process sleeps on a word.
    pub(super) fn first_sleeps_on_a_word(&self, process: usize) -> bool {
        let first = self.threads.iter().find(|thread| thread.process == process);
        first.is_some_and(|thread| matches!(thread.doing, Doing::Waits { key: Key::Futex(..), .. }))
    }

    /// The process with this pid.
    pub(super) fn find(&self, pid: u32) -> Option<usize> {
        let index = pid.checked_sub(FIRST_PID)? as usize;
        (index < self.processes.len()).then_some(index)
    }
}

/// Whether a simulated process with this pid runs.
pub(super) fn is_running(pid: u32) -> bool {
    let s = state();
    s.find(pid).is_some_and(|process| s.processes[process].exit.is_none())
}

/// Used by [`kernel`] under the lock of the state.
pub(super) fn with_kernel<T>(f: impl FnOnce(&mut kernel::Kernel) -> T) -> T {
    f(&mut state().kernel)
}
