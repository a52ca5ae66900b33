//! The helper thread of a producer's lane: it prepares the next segment while this one is filled, and releases space
//! when another rank asks for it and the producer makes no call.
//!
//! It sleeps on a word of the control segment ([`crate::control::Control::calls`]), so that its own producer and the
//! other ranks wake it in one way. What it may release: segments of versions that every reader has read, and the
//! segment that it has prepared and that is not taken yet.
//! Not here: which segments those are ([`crate::lane::segments`]), and moving them ([`crate::lane::mover`]).

use forebay_tier::host::sync::{Condvar, Mutex, MutexGuard};
use forebay_tier::host::thread::JoinHandle;
use forebay_tier::host::time::Instant;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use forebay_log::{LaneId, Ledger};
use forebay_tier::{wait, Error, Kind, Result};

use crate::control::FREE_SPACE_ASKED;
use crate::lane::granules::{allocate, free_released, prepare_or_free, By, Owner, Place, LOCK_TIMEOUT};
use crate::open::attach::Attachment;
use crate::open::read_to_end::Member;
use crate::open::runs::free_run;

/// The helper is woken for everything it does; this only bounds the wait.
const HELPER_WAIT: Duration = Duration::from_secs(10);

/// The helper of one lane.
pub(crate) struct Helper {
    member: Arc<Member>,
    spare: Arc<Spare>,
    thread: Option<JoinHandle<()>>,
}

/// The next segment.
#[derive(Default)]
struct Spare {
    state: Mutex<SpareState>,
    /// For the producer, who may wait for what the helper does.
    changed: Condvar,
}

#[derive(Default)]
enum SpareState {
    #[default]
    Empty,
    /// Of so many bytes.
    Wanted(u64),
    Working,
    Ready(Range<u64>),
    /// The thread is to end.
    Stopped,
    /// The thread has ended.
    Ended,
}

/// What the helper does next.
enum Next {
    Prepare(u64),
    Wait,
    Stop,
}

impl Helper {
    /// Starts the thread. `first` is the segment that is taken first, prepared already. Errors: `Io` when there
    /// can be no thread.
    pub(crate) fn start(
        member: Arc<Member>,
        lane: LaneId,
        ledger: Arc<Mutex<Ledger>>,
        first: Option<Range<u64>>,
    ) -> Result<Helper> {
        let spare = Arc::new(Spare::default());
        spare.set(first.map_or(SpareState::Empty, SpareState::Ready));
        let thread = forebay_tier::host::thread::Builder::new()
            .name("forebay-ahead".into())
            .spawn({
                let (member, spare) = (member.clone(), spare.clone());
                move || run(&member, lane, &ledger, &spare)
            })
            .map_err(|e| Error::io("starting the helper thread", e))?;
        Ok(Helper { member, spare, thread: Some(thread) })
    }

    /// Takes the segment that was prepared, waiting for one that is being prepared. Errors: [`Kind::TimedOut`].
    pub(crate) fn take(&self, deadline: Instant) -> Result<Option<Range<u64>>> {
        self.spare.take(deadline).map_err(|e| e.with("space", &self.member.space.name))
    }

    /// Lets another segment of so many bytes be prepared, unless there is one.
    pub(crate) fn prepare(&self, bytes: u64) {
        if matches!(*self.spare.lock(), SpareState::Empty) {
            self.call(SpareState::Wanted(bytes));
        }
    }

    /// Ends the thread. Returns the segment that was prepared in vain. A thread that is at work past the deadline
    /// ends by itself and frees what it prepares.
    pub(crate) fn stop(&mut self, deadline: Instant) -> Option<Range<u64>> {
        let left = self.spare.take(deadline).unwrap_or(None);
        self.call(SpareState::Stopped);
        if let Some(thread) = self.thread.take().filter(|_| self.spare.has_ended(deadline)) {
            // A panic of the helper has been printed; there is nothing to add here.
            let _ = thread.join();
        }
        left
    }

    fn call(&self, state: SpareState) {
        self.spare.set(state);
        self.member.space.control.call_helper(self.member.slot);
    }
}

impl Spare {
    fn lock(&self) -> MutexGuard<'_, SpareState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, state: SpareState) {
        *self.lock() = state;
        self.changed.notify_all();
    }

    /// What the helper does next.
    fn begin(&self) -> Next {
        let mut state = self.lock();
        match *state {
            SpareState::Wanted(bytes) => {
                *state = SpareState::Working;
                Next::Prepare(bytes)
            }
            SpareState::Stopped => Next::Stop,
            _ => Next::Wait,
        }
    }

    /// Frees the spare, if it is not taken yet: another rank needs the space now.
    fn release(&self, space: &Attachment) {
        let mut state = self.lock();
        if let SpareState::Ready(range) = &*state {
            free_run(space, (range.start / space.superblock.granule_bytes) as usize);
            *state = SpareState::Empty;
            space.control.announce_space();
        }
    }

    /// Takes the spare, waiting for one that is being prepared. Errors: [`Kind::TimedOut`].
    fn take(&self, deadline: Instant) -> Result<Option<Range<u64>>> {
        let is_busy = |state: &SpareState| matches!(state, SpareState::Wanted(_) | SpareState::Working);
        let mut state = self.wait_while(deadline, is_busy);
        if is_busy(&state) {
            return Err(Error::new(Kind::TimedOut, "the next segment was not prepared before the deadline")
                .hint("its pages are being allocated; the memory or the disk below may be overloaded"));
        }
        if let SpareState::Ready(range) = &*state {
            let range = range.clone();
            *state = SpareState::Empty;
            return Ok(Some(range));
        }
        Ok(None)
    }

    /// Hands over what was prepared, if anything. False: the thread was stopped meanwhile and the segment is not
    /// wanted.
    fn finish(&self, ready: Option<Range<u64>>) -> bool {
        let mut state = self.lock();
        if matches!(*state, SpareState::Stopped) {
            return false;
        }
        *state = ready.map_or(SpareState::Empty, SpareState::Ready);
        self.changed.notify_all();
        true
    }

    /// Waits until the thread has ended; false at the deadline.
    fn has_ended(&self, deadline: Instant) -> bool {
        let has_not = |state: &SpareState| !matches!(state, SpareState::Ended);
        !has_not(&self.wait_while(deadline, has_not))
    }

    fn wait_while(
        &self,
        deadline: Instant,
        goes_on: impl Fn(&SpareState) -> bool,
    ) -> MutexGuard<'_, SpareState> {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, |state| goes_on(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Says that the thread has ended, also by a panic: the producer then prepares its segments itself.
struct Ending<'a>(&'a Spare);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.set(SpareState::Ended);
    }
}

fn run(member: &Arc<Member>, lane: LaneId, ledger: &Mutex<Ledger>, spare: &Spare) {
    let space = &member.space;
    let calls = space.control.calls(member.slot);
    let _ending = Ending(spare);
    loop {
        let seen = calls.load(Acquire);
        if seen & FREE_SPACE_ASKED != 0 {
            calls.fetch_and(!FREE_SPACE_ASKED, AcqRel);
            // What fails here fails again, and is reported, when a put needs the space.
            if !free_released(space, ledger, By::Helper).unwrap_or(false) {
                spare.release(space);
            }
        }
        match spare.begin() {
            Next::Prepare(bytes) => {
                // Whatever fails here fails again, and is reported, when the segment is really needed.
                let owner = Owner { lane, slot: Some(member.slot) };
                let ready = allocate(space, owner, 0, bytes, Place::Spare, LOCK_TIMEOUT)
                    .ok()
                    .flatten()
                    .filter(|range| prepare_or_free(space, range.clone()).is_ok());
                if !spare.finish(ready.clone()) {
                    if let Some(range) = ready {
                        free_run(space, (range.start / space.superblock.granule_bytes) as usize);
                        space.control.announce_space();
                    }
                }
            }
            Next::Wait => {
                wait::wait(calls, seen & !FREE_SPACE_ASKED, HELPER_WAIT);
            }
            Next::Stop => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The helper allocates pages that the kernel does not have, or its disk does not answer.
    #[test]
    fn a_producer_waits_for_its_helper_until_the_deadline() {
        let spare = Arc::new(Spare::default());
        spare.set(SpareState::Working);
        let (told, tells) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            told.send(spare.take(Instant::now() + Duration::from_millis(20))).expect("it is waited for");
            // Late, and not wanted any more.
            spare.set(SpareState::Stopped);
            assert!(!spare.finish(Some(0..1)));
        });
        let taken = tells.recv_timeout(Duration::from_secs(60)).expect("a wait without an end");
        assert_eq!(taken.unwrap_err().kind(), Kind::TimedOut);
    }

    #[test]
    fn a_producer_does_not_wait_for_a_helper_that_panicked() {
        let spare = Spare::default();
        spare.set(SpareState::Working);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ending = Ending(&spare);
            std::panic::resume_unwind(Box::new("as planned"));
        }));
        assert!(panicked.is_err());
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(spare.take(deadline).unwrap().is_none() && spare.has_ended(deadline));
    }
}
