//! The drain: a thread that carries what the first level holds down to the others, step by step and level by level.
//!
//! Guarantees: steps arrive in each level in the order they were saved; what a step held when it was saved is what
//! arrives, because the first level's copy is not given up before. A failure is kept and told: to the next `save`, to
//! `wait` and to `close`; the steps behind it are still carried. Nothing is skipped in silence. The redundancy of a
//! step is written here too, in each level that has it, as soon as all ranks have committed the step there.
//!
//! Not here: who waits for it, and which copies are given up afterwards.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use forebay_tier::host::sync::{Condvar, Mutex, MutexGuard};
use forebay_tier::host::thread::{self, JoinHandle};
use forebay_tier::host::time::Instant;
use forebay_tier::{Error, Kind, Result};

use crate::format::{damaged, Manifest, StepId, Stored};
use crate::level::load::read_piece;
use crate::level::packing::Pin;
use crate::level::{arrange, Level, Piece};
use crate::place::Written;
use crate::redundancy::Owed;
use crate::run::Run;
use crate::when::statistics::follow;

/// A step to be carried down.
pub(crate) struct Job {
    pub(crate) manifest: Manifest,
    /// The first level's copy, where it can be read as memory.
    pub(crate) written: Option<Written>,
    /// Keeps the first level's copy there, where it has to be read from files.
    pub(crate) _pin: Option<Pin>,
    /// The value of the step, where one was given.
    pub(crate) metric: Option<f64>,
}

/// What the drain is doing.
#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// The step that is being carried.
    busy: Option<StepId>,
    /// The newest step whose piece each level has, the first level included.
    reached: Vec<Option<StepId>>,
    failed: Option<Error>,
    /// Seconds that a step takes to the last level, of late.
    carried_s: f64,
    closing: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the file's head.
pub(crate) struct Drain {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Drain {
    /// Starts the thread, where there is more than one level, or redundancy to be written.
    ///
    /// # Errors
    /// `TooMany` when no thread can be started.
    pub(crate) fn start(levels: &[Level], run: &Arc<Run>, rank: u32) -> Result<Drain> {
        let state = State { reached: vec![None; levels.len()], ..State::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        if levels.len() < 2 && levels[0].guard.is_none() {
            return Ok(Drain { shared, thread: None });
        }
        let (own, levels, run) = (shared.clone(), levels.to_vec(), run.clone());
        let named = thread::Builder::new().name("forebay-drain".into());
        let thread = named.spawn(move || work(&own, &levels, &run, rank));
        let thread =
            thread.map_err(|e| Error::new(Kind::TooMany, "cannot start the drain's thread").caused_by(e))?;
        Ok(Drain { shared, thread: Some(thread) })
    }

    /// Hands over a step that the first level holds now.
    pub(crate) fn push(&self, job: Job) {
        let mut state = self.shared.lock();
        state.reached[0] = Some(job.manifest.id);
        if self.thread.is_some() {
            state.queue.push_back(job);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Keeps a failure that takes nothing away from what the caller has done: the next call says it.
    pub(crate) fn note(&self, result: Result<()>) {
        fail(&self.shared, result);
    }

    /// The failure that was not reported yet.
    pub(crate) fn take_failure(&self) -> Option<Error> {
        self.shared.lock().failed.take()
    }

    /// The newest step whose piece a level has.
    pub(crate) fn reached(&self, level: usize) -> Option<StepId> {
        self.shared.lock().reached[level]
    }

    /// Waits until something has changed, at most until the deadline; false when it has passed.
    fn wait_change<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        deadline: Instant,
    ) -> Option<MutexGuard<'a, State>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let slice = left.min(Duration::from_millis(50));
        Some(self.shared.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Waits until the thread has carried a step to `level` or has failed; whether it got there.
    ///
    /// # Errors
    /// The drain's failure; `TimedOut`.
    pub(crate) fn wait_reached(&self, level: usize, id: StepId, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        loop {
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            if state.reached[level].is_some_and(|reached| reached >= id) {
                return Ok(());
            }
            let waiting = state.queue.len();
            state = self.wait_change(state, deadline).ok_or_else(|| behind(waiting, timeout))?;
        }
    }

    /// Seconds that a step takes to the last level, of late; 0 before the first.
    pub(crate) fn carried_s(&self) -> f64 {
        self.shared.lock().carried_s
    }

    /// Whether nothing is being carried and nothing waits for it.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.shared.lock();
        state.busy.is_none() && state.queue.is_empty()
    }

    /// Waits until the step that is carried now is done, or until there is none.
    ///
    /// # Errors
    /// The drain's failure; `TimedOut`.
    pub(crate) fn wait_one(&self, timeout: Duration) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        let before = state.busy;
        while state.failed.is_none() && state.busy == before && (before.is_some() || !state.queue.is_empty())
        {
            let waiting = state.queue.len();
            state = self.wait_change(state, deadline).ok_or_else(|| behind(waiting, timeout))?;
        }
        state.failed.take().map_or(Ok(()), Err)
    }

    /// Waits for all steps, then ends the thread.
    ///
    /// # Errors
    /// The drain's failure.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| Error::new(Kind::Internal, "the drain's thread panicked"))?;
        }
        self.take_failure().map_or(Ok(()), Err)
    }
}

#[cold]
fn behind(waiting: usize, timeout: Duration) -> Error {
    Error::new(Kind::TimedOut, "timeout while waiting for the lower levels")
        .with("steps_waiting", waiting)
        .with("seconds", timeout.as_secs_f64())
        .hint("save less often, or allow more time")
}

/// What the thread does next.
enum Next {
    Carry(Job),
    /// Something is owed that could not be done before.
    Look,
    End,
}

/// How long the thread leaves alone what could not be done: other ranks have not saved the step.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

fn next(shared: &Shared, owed: &Owed) -> Next {
    let mut state = shared.lock();
    loop {
        if let Some(job) = state.queue.pop_front() {
            state.busy = Some(job.manifest.id);
            return Next::Carry(job);
        }
        if !owed.is_empty() {
            let waited = shared.changed.wait_timeout(state, LOOK_AGAIN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.queue.is_empty() {
                return Next::Look;
            }
        } else if state.closing {
            return Next::End;
        } else {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The thread.
fn work(shared: &Shared, levels: &[Level], run: &Run, rank: u32) {
    let mut owed = Owed::default();
    let mut closing_since = None;
    loop {
        match next(shared, &owed) {
            Next::End => return,
            Next::Look => {
                let attempted = owed.attempt(levels, rank);
                fail(shared, attempted);
                if shared.lock().closing {
                    owed.forget_failed();
                    let since = *closing_since.get_or_insert_with(Instant::now);
                    let given_up = give_up(&mut owed, levels, run, since);
                    fail(shared, given_up);
                }
            }
            Next::Carry(job) => {
                let id = job.manifest.id;
                let begin = Instant::now();
                owed.push(levels, 0, id);
                let protected = owed.attempt(levels, rank);
                fail(shared, protected);
                let carried = carry(shared, levels, run, rank, &job, &mut owed);
                // The first level may give its copy up from here on.
                drop(job);
                let protected = owed.attempt(levels, rank);
                let mut state = shared.lock();
                state.busy = None;
                if carried.is_ok() {
                    state.carried_s = follow(state.carried_s, begin.elapsed().as_secs_f64());
                }
                drop(state);
                fail(shared, carried.map_err(|error| error.with("step", id.step)));
                fail(shared, protected);
            }
        }
        shared.changed.notify_all();
    }
}

/// Keeps the first failure that was not reported yet.
fn fail(shared: &Shared, result: Result<()>) {
    if let Err(error) = result {
        shared.lock().failed.get_or_insert(error);
    }
}

/// At the end: gives up what other ranks will not commit any more, or have not in time.
fn give_up(owed: &mut Owed, levels: &[Level], run: &Run, since: Instant) -> Result<()> {
    // Not saved by all: the step does not count, and needs no redundancy.
    let hopeless = run.gone_ranks().and_then(|gone| owed.forget_hopeless(levels, &gone));
    if owed.is_empty() || (hopeless.is_ok() && since.elapsed() < run.timeout()) {
        return Ok(());
    }
    owed.clear();
    hopeless?;
    Err(Error::new(Kind::TimedOut, "redundancy is not complete: other ranks have not saved the step")
        .with("seconds", run.timeout().as_secs_f64())
        .hint("check that all ranks call save for the same steps"))
}

/// Carries one step down all levels.
fn carry(shared: &Shared, levels: &[Level], run: &Run, rank: u32, job: &Job, owed: &mut Owed) -> Result<()> {
    if levels.len() < 2 {
        return Ok(());
    }
    let manifest = &job.manifest;
    let variables = manifest.described();
    let mut read = Vec::new();
    if job.written.is_none() {
        read = read_piece(&levels[0], manifest)?;
    }
    let bytes_of = |(at, stored): (usize, &Stored)| match &job.written {
        Some(device) => device.bytes(stored.offset..stored.offset + stored.bytes),
        None => read[at].as_slice(),
    };
    let sources: Vec<&[u8]> = manifest.variables.iter().enumerate().map(bytes_of).collect();
    let data_bytes = arrange(manifest.variables.iter().map(|stored| stored.bytes)).1;
    for (at, level) in levels.iter().enumerate().skip(1) {
        let piece = Piece::of(manifest, &variables, &sources, job.metric);
        run.check()?;
        run.wait("a lower level has no free space before other ranks have saved the last step", || {
            let below = &levels[at + 1..];
            // A step without redundancy may be what keeps an older one from going.
            fail(shared, owed.attempt(levels, rank));
            if level.reclaim(data_bytes, rank, run.incarnation, below)? {
                return Ok(Some(()));
            }
            level.commit_whole((rank, manifest.size), run.incarnation, &|| run.check())?;
            Ok(level.reclaim(data_bytes, rank, run.incarnation, below)?.then_some(()))
        })?;
        let (copy, _) = level.write(&piece)?;
        // What arrived is what was saved, or it is not committed here.
        let is_same =
            |(there, here): (&Stored, &Stored)| there.variable == here.variable && there.crcs == here.crcs;
        if !copy.variables.iter().zip(&manifest.variables).all(is_same) {
            level.drop_step(manifest.id, Some(rank))?;
            return Err(damaged("the first level's copy", "it changed after it was saved"));
        }
        if level.commit(manifest.id, rank, manifest.size, &|| run.check())? {
            fail(shared, run.acknowledge(at, manifest.id));
            level.prune(level.keep.last, rank, run.incarnation)?;
        }
        owed.push(levels, at, manifest.id);
        shared.lock().reached[at] = Some(manifest.id);
        shared.changed.notify_all();
    }
    Ok(())
}
