//! Threads that run together: each pinned to a processor, all begun at the same moment.
//!
//! Guarantees: no thread starts before all are there; where the kernel refuses to pin, threads run unpinned and
//! [`pinned`] says so. Waiting is by spinning, with the processor given away where there are more threads than
//! processors, so that a barrier costs next to nothing beside a kernel of milliseconds.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use forebay_tier::{Error, Kind, Result};
use rustix::thread::{sched_getaffinity, sched_setaffinity, CpuSet};

/// Turns of a waiting thread before it gives its processor away.
const SPINS: u32 = 2000;

/// What the others say when one has failed.
const ABANDONED: &str = "another thread of the measurement has failed";

/// The processors that this process may use, in order.
pub fn processors() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Pins the calling thread to one processor; whether the kernel let us.
pub fn pinned(processor: usize) -> bool {
    let mut set = CpuSet::new();
    if processor >= CpuSet::MAX_CPU {
        return false;
    }
    set.set(processor);
    sched_setaffinity(None, &set).is_ok()
}

/// Where a number of threads meet, again and again.
pub struct Meeting {
    members: usize,
    arrived: AtomicUsize,
    /// How often all threads have arrived.
    rounds: AtomicUsize,
    crowded: bool,
    /// A member that failed never comes: the others must not wait for it.
    broken: AtomicBool,
}

impl Meeting {
    /// A meeting of `members` threads on `processors` processors.
    pub fn new(members: usize, processors: usize) -> Meeting {
        Meeting {
            members,
            arrived: AtomicUsize::new(0),
            rounds: AtomicUsize::new(0),
            crowded: members > processors,
            broken: AtomicBool::new(false),
        }
    }

    /// Waits for all threads.
    ///
    /// # Errors
    /// When another member has failed.
    pub fn wait(&self) -> Result<()> {
        let round = self.rounds.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.members {
            self.arrived.store(0, Ordering::Relaxed);
            self.rounds.store(round + 1, Ordering::Release);
            return Ok(());
        }
        let mut turns = 0u32;
        while self.rounds.load(Ordering::Acquire) == round {
            if self.broken.load(Ordering::Relaxed) {
                return Err(Error::new(Kind::Internal, ABANDONED));
            }
            turns = turns.saturating_add(1);
            match self.crowded || turns > SPINS {
                true => std::thread::yield_now(),
                false => std::hint::spin_loop(),
            }
        }
        Ok(())
    }
}

/// Breaks the meeting unless its member came to a good end.
struct Attendance<'a> {
    meeting: &'a Meeting,
    well: bool,
}

impl Drop for Attendance<'_> {
    fn drop(&mut self) {
        if !self.well {
            self.meeting.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs `work` once for each part, each in a thread of its own on the next of `processors` (round about), and gives
/// what they returned, in order. The meeting has as many members as there are parts.
///
/// # Errors
/// `Io` when a thread cannot be started; the first error of a part.
pub fn run<P: Send, R: Send>(
    processors: &[usize],
    parts: Vec<P>,
    work: impl Fn(usize, P, &Meeting) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let meeting = Meeting::new(parts.len(), processors.len().max(1));
    let (meeting, work) = (&meeting, &work);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, part) in parts.into_iter().enumerate() {
            let body = move || {
                let mut attendance = Attendance { meeting, well: false };
                if let Some(processor) = processors.get(index % processors.len().max(1)) {
                    pinned(*processor);
                }
                let outcome = work(index, part, meeting);
                attendance.well = outcome.is_ok();
                outcome
            };
            match std::thread::Builder::new().spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(e) => {
                    meeting.broken.store(true, Ordering::Relaxed);
                    return Err(Error::io(format!("cannot start thread {index}"), e));
                }
            }
        }
        let joined = threads.into_iter().map(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        all_or_first_error(joined.collect())
    })
}

/// Every result, or the error that made the others give up.
fn all_or_first_error<R>(results: Vec<Result<R>>) -> Result<Vec<R>> {
    let is_cause = |r: &Result<R>| r.as_ref().is_err_and(|e| e.message() != ABANDONED);
    match results.iter().position(is_cause) {
        Some(cause) => results.into_iter().nth(cause).into_iter().collect(),
        None => results.into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn no_thread_passes_before_all_are_there() {
        let here = AtomicU32::new(0);
        let seen = run(&processors(), vec![(); 5], |_, (), meeting| {
            let mut seen = Vec::new();
            for round in 1..=50 {
                here.fetch_add(1, Ordering::SeqCst);
                meeting.wait()?;
                seen.push(here.load(Ordering::SeqCst) >= 5 * round);
                meeting.wait()?;
            }
            Ok(seen)
        });
        assert!(seen.unwrap().into_iter().flatten().all(|enough| enough));
        assert_eq!(here.into_inner(), 250);
    }

    #[test]
    fn results_come_in_order_and_errors_come_through() {
        let doubled = run(&processors(), vec![1, 2, 3], |index, part, _| Ok((index, part * 2))).unwrap();
        assert_eq!(doubled, [(0, 2), (1, 4), (2, 6)]);
        // The first waits for one that never comes.
        let failed = run(&processors(), vec![1, 2], |_, part, meeting| match part {
            2 => Err(Error::new(Kind::Io, "two")),
            _ => meeting.wait(),
        });
        assert_eq!(failed.unwrap_err().message(), "two");
    }

    #[test]
    fn a_thread_runs_where_it_was_pinned() {
        let all = processors();
        assert!(!all.is_empty());
        let last = *all.last().unwrap();
        let where_it_ran = std::thread::spawn(move || (pinned(last), processors())).join().unwrap();
        if where_it_ran.0 {
            assert_eq!(where_it_ran.1, [last]);
        }
        assert!(!pinned(usize::MAX));
    }
}
