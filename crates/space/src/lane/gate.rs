//! The gate of a space: at most so many writers, and so many readers, inside a call that moves data.
//!
//! A side's places are words of the control segment; who is inside has its token in one of them. The token names the
//! member's slot, so that a waiting process can ask the kernel whether that member lives: a dead one's place is taken
//! over, nothing has to be cleaned up. A token also holds a part of the time at which its member joined, so that a
//! slot that was given to another member does not speak for the dead.
//!
//! Guarantees: never more live ranks inside than the execution mode says; every wait has a deadline and names who is
//! inside. Not here: who is first. A rank that waits may be overtaken.

use forebay_config::{ExecutionMode, GATE_PLACES_MAX};
use forebay_tier::host::atomic::AtomicU64;
use forebay_tier::host::time::Instant;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::Arc;
use std::time::Duration;

use forebay_tier::{clock, Error, Kind, Result};

use crate::control::{member, Waiting, MEMBERS_MAX};
use crate::lane::granules::WAIT_SLICE;
use crate::lane::segments::check_group;
use crate::open::member::{describe, Role};
use crate::open::membership::Membership;
use crate::open::read_to_end::Member;

/// Bits of a token that hold the slot.
const SLOT_BITS: u32 = 16;

/// One member's way in and out.
pub(crate) struct Gate {
    member: Arc<Member>,
    /// How many may be inside; None: as many as like. As it was when the step began.
    places: Option<u32>,
    /// The place that this member has, and how often it went in.
    held: Option<usize>,
    depth: u32,
    /// Time spent waiting for a place, in all.
    pub wait_ns: u64,
}

impl Gate {
    pub(crate) fn new(member: Arc<Member>) -> Gate {
        Gate { member, places: None, held: None, depth: 0, wait_ns: 0 }
    }

    /// Looks up the execution mode for a step that begins.
    pub(crate) fn begin_step(&mut self, execution_mode: ExecutionMode) {
        self.places = match (execution_mode, self.member.role) {
            (ExecutionMode::Gated { writers, .. }, Role::Writer) => Some(writers),
            (ExecutionMode::Gated { readers, .. }, Role::Reader) => Some(readers),
            _ => None,
        };
    }

    /// Goes in; waits for a place until `timeout` has passed. Must be left as often as it was entered.
    ///
    /// # Errors
    /// `TimedOut` naming who is inside; of a writer also those of [`check_group`].
    #[inline]
    pub(crate) fn enter(&mut self, timeout: Duration) -> Result<()> {
        match self.places {
            None => Ok(()),
            Some(_) if self.held.is_some() => {
                self.depth += 1;
                Ok(())
            }
            Some(places) => self.take(places, timeout),
        }
    }

    /// Comes out of what was entered last.
    #[inline]
    pub(crate) fn leave(&mut self) {
        if self.held.is_some() {
            self.depth -= 1;
            if self.depth == 0 {
                self.give();
            }
        }
    }

    /// Comes out altogether, as at the end of a step.
    pub(crate) fn leave_all(&mut self) {
        if self.held.is_some() {
            self.depth = 0;
            self.give();
        }
    }

    /// Lets others in while this member waits for something that they may have to bring about. Returns what
    /// [`Gate::come_back`] takes.
    pub(crate) fn step_aside(&mut self) -> u32 {
        let depth = if self.held.is_some() { self.depth } else { 0 };
        self.leave_all();
        depth
    }

    /// Goes in again as deep as before [`Gate::step_aside`].
    pub(crate) fn come_back(&mut self, depth: u32, timeout: Duration) -> Result<()> {
        if depth > 0 {
            self.enter(timeout)?;
            self.depth = depth;
        }
        Ok(())
    }

    fn side(&self) -> usize {
        usize::from(self.member.role == Role::Reader)
    }

    fn word(&self, place: usize) -> &AtomicU64 {
        self.member.space.control.gate_place(self.side() * GATE_PLACES_MAX as usize + place)
    }

    fn token(&self) -> u64 {
        token(&self.member, self.member.slot)
    }

    #[cold]
    fn take(&mut self, places: u32, timeout: Duration) -> Result<()> {
        if self.try_take(places, false) {
            return Ok(());
        }
        let deadline = Instant::now() + timeout;
        let began = clock::now_ns();
        let member = self.member.clone();
        member.set_waiting(Waiting::Gate);
        let result = loop {
            let seen = member.space.control.gate().load(Acquire);
            if self.try_take(places, false) || self.try_take(places, true) {
                break Ok(());
            }
            if member.role == Role::Writer {
                if let Err(e) = check_group(&member) {
                    break Err(e);
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Err(self.full(places));
            }
            member.space.control.wait_gate(seen, left.min(WAIT_SLICE));
        };
        member.set_waiting(Waiting::No);
        self.wait_ns += clock::now_ns() - began;
        result
    }

    /// One look for a free place, or for one whose member is dead.
    fn try_take(&mut self, places: u32, of_the_dead: bool) -> bool {
        let mine = self.token();
        for place in 0..places as usize {
            let word = self.word(place);
            let holder = word.load(Relaxed);
            let is_free = holder == 0 || (of_the_dead && !self.is_inside(holder));
            if is_free && word.compare_exchange(holder, mine, AcqRel, Relaxed).is_ok() {
                (self.held, self.depth) = (Some(place), 1);
                return true;
            }
        }
        false
    }

    /// Whether the member that a token names lives, and is the one that the token was made for.
    fn is_inside(&self, holder: u64) -> bool {
        slot_of(holder)
            .is_some_and(|slot| token(&self.member, slot) == holder && self.member.space.is_alive(slot))
    }

    fn give(&mut self) {
        let Some(place) = self.held.take() else { return };
        // A place that was taken over, because this process seemed dead, is another's now.
        let _ = self.word(place).compare_exchange(self.token(), 0, AcqRel, Relaxed);
        self.member.space.control.announce_gate();
    }

    #[cold]
    fn full(&self, places: u32) -> Error {
        let space = &self.member.space;
        let inside: Vec<String> = (0..places as usize)
            .filter_map(|place| slot_of(self.word(place).load(Relaxed)))
            .map(|slot| describe(space, slot))
            .collect();
        Error::new(
            Kind::TimedOut,
            format!("timeout while waiting for admission (mode gated) in space {}", space.name),
        )
        .with("execution_mode", space.control.execution_mode())
        .with("inside", inside.join("; "))
        .hint("a rank occupies a slot from reserve to commit; raise the admission limit or the timeout")
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // In a forked child the place is the parent's.
        if self.member.check_fork().is_ok() {
            self.leave_all();
        }
    }
}

/// The slot that a token names; None for a free place, or a word that no member wrote.
fn slot_of(token: u64) -> Option<u32> {
    let slot = ((token & ((1 << SLOT_BITS) - 1)) as u32).checked_sub(1)?;
    (slot < MEMBERS_MAX as u32).then_some(slot)
}

/// What a member leaves in its place: its slot, and as much of the time at which it joined as fits.
fn token(member: &Membership, slot: u32) -> u64 {
    let since = member.space.control.member(slot, member::SINCE).load(Relaxed);
    since << SLOT_BITS | u64::from(slot + 1)
}
