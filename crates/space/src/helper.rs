//! The helper thread of a producer's lane: it prepares the next segment while this one is filled, and gives room back
//! when another rank asks for it and the producer makes no call.
//!
//! It sleeps on a word of the control segment ([`crate::control::Control::calls`]), so that its own producer and the
//! other ranks wake it in one way. What it may give back: segments of versions that everybody has read, and the
//! segment that it has prepared and nobody has taken yet.
//! Not here: which segments those are ([`crate::segments`]), and moving them ([`crate::mover`]).

use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_log::{LaneId, Ledger};
use forebay_tier::{wait, Error, Result};

use crate::attach::Attachment;
use crate::control::ROOM_ASKED;
use crate::membership::{free_run, Membership};
use crate::mover::Owner;
use crate::segments::{allocate, give_back_released, prepare_or_free, By, Place};

/// The helper is woken for everything it does; this only bounds the wait.
const HELPER_WAIT: Duration = Duration::from_secs(10);

/// The helper of one lane.
pub(crate) struct Helper {
    member: Arc<Membership>,
    spare: Arc<Spare>,
    thread: Option<JoinHandle<()>>,
}

/// The next segment.
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
    Stopped,
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
        member: Arc<Membership>,
        lane: LaneId,
        ledger: Arc<Mutex<Ledger>>,
        first: Option<Range<u64>>,
    ) -> Result<Helper> {
        let state = Mutex::new(first.map_or(SpareState::Empty, SpareState::Ready));
        let spare = Arc::new(Spare { state, changed: Condvar::new() });
        let thread = std::thread::Builder::new()
            .name("forebay-ahead".into())
            .spawn({
                let (member, spare) = (member.clone(), spare.clone());
                move || run(&member, lane, &ledger, &spare)
            })
            .map_err(|e| Error::io("starting the helper thread", e))?;
        Ok(Helper { member, spare, thread: Some(thread) })
    }

    /// Takes the segment that was prepared, waiting for one that is being prepared.
    pub(crate) fn take(&self) -> Option<Range<u64>> {
        self.spare.take()
    }

    /// Lets another segment of so many bytes be prepared, unless there is one.
    pub(crate) fn prepare(&self, bytes: u64) {
        if matches!(*self.spare.lock(), SpareState::Empty) {
            self.call(SpareState::Wanted(bytes));
        }
    }

    /// Ends the thread. Returns the segment that was prepared in vain.
    pub(crate) fn stop(&mut self) -> Option<Range<u64>> {
        let left = self.spare.take();
        self.call(SpareState::Stopped);
        if let Some(thread) = self.thread.take() {
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

    /// Frees the spare, if it is not taken yet: another rank needs the room now.
    fn give_back(&self, space: &Attachment) {
        let mut state = self.lock();
        if let SpareState::Ready(range) = &*state {
            free_run(space, (range.start / space.superblock.granule_bytes) as usize);
            *state = SpareState::Empty;
            space.control.announce_room();
        }
    }

    /// Takes the spare, waiting for one that is being prepared.
    fn take(&self) -> Option<Range<u64>> {
        let mut state = self.lock();
        while matches!(*state, SpareState::Wanted(_) | SpareState::Working) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if let SpareState::Ready(range) = &*state {
            let range = range.clone();
            *state = SpareState::Empty;
            return Some(range);
        }
        None
    }
}

fn run(member: &Arc<Membership>, lane: LaneId, ledger: &Mutex<Ledger>, spare: &Spare) {
    let space = &member.space;
    let calls = space.control.calls(member.slot);
    loop {
        let seen = calls.load(Acquire);
        if seen & ROOM_ASKED != 0 {
            calls.fetch_and(!ROOM_ASKED, AcqRel);
            // What fails here fails again, and is reported, when a put needs the room.
            if !give_back_released(space, ledger, By::Helper).unwrap_or(false) {
                spare.give_back(space);
            }
        }
        match spare.begin() {
            Next::Prepare(bytes) => {
                // Whatever fails here fails again, and is reported, when the segment is really needed.
                let owner = Owner { lane, slot: Some(member.slot) };
                let ready = allocate(space, owner, 0, bytes, Place::Spare)
                    .ok()
                    .flatten()
                    .filter(|range| prepare_or_free(space, range.clone()).is_ok());
                spare.set(ready.map_or(SpareState::Empty, SpareState::Ready));
            }
            Next::Wait => {
                wait::wait(calls, seen & !ROOM_ASKED, HELPER_WAIT);
            }
            Next::Stop => return,
        }
    }
}
