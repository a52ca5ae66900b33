//! Opening a name under which there is a space already: what a writer does with it, and whether a reader streams it.
//!
//! Guarantees: one table for both kinds of channels. [`writing`] and [`streams`] decide by the state that the caller
//! has seen and touch nothing; docs/src/guide/opening.md has the table, and a test carries out each of its cells. What
//! readers have not read goes only when the caller asks for it.
//! Not here: making and replacing spaces ([`crate::open::create`]), joining them ([`crate::open::membership`]).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::{Mutex, PoisonError};

use forebay_config::{environment, launch, Mechanism, Mode, OpenOptions};
use forebay_log::LaneId;
use forebay_tier::{process, Error, Kind, Result};
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

use crate::control::{group, head, member, ProducerState};
use crate::files;
use crate::open::attach::Attachment;
use crate::open::contents;
use crate::open::groups::{self, find_group, live_reader, registered_groups, unread_from};
use crate::open::membership::{describe, has_late_writers, owns_lane, settle_producers, Role, HOLDS_NOTHING};
use crate::place::name;
use crate::upkeep::inspect;
use crate::version_range::format_versions;

/// How the writers of a space stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writers {
    /// None ever joined.
    NeverCame,
    /// Ranks live, or one of the same launch is still to come. Whose they are is checked at joining.
    Open,
    /// All ranks ended cleanly.
    Finished,
    /// A rank died, or none lives and some never came.
    Dead,
}

/// What a writer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    /// Joins the group of writers there is, or begins the first one.
    Join,
    /// Begins the next group, behind what is complete.
    Resume,
    /// Puts an empty space in its place.
    Replace,
    /// Fails.
    Refuse(Refusal),
}

/// Why a writer fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Mode `x`, and there is a space.
    Exists,
    /// A reader, or a writer whose group has died, has it in use.
    Held,
    /// Its writers died, and versions are unread.
    Unread,
    /// Ranks ended after steps that the missing ranks, which never joined, have to complete.
    Partial,
}

/// What a writer does with a space.
pub(crate) fn writing(
    options: &OpenOptions,
    writers: Writers,
    is_held: impl FnOnce() -> bool,
    is_unread: impl FnOnce() -> bool,
    is_partial: impl FnOnce() -> bool,
) -> Writing {
    match (writers, options.mode) {
        (Writers::NeverCame | Writers::Open, _) => Writing::Join,
        (_, Mode::Exclusive) => Writing::Refuse(Refusal::Exists),
        (_, Mode::Append) => Writing::Resume,
        (_, Mode::Write) if is_held() => Writing::Refuse(Refusal::Held),
        (Writers::Dead, Mode::Write) if !options.replace && is_unread() => Writing::Refuse(Refusal::Unread),
        (Writers::Dead, Mode::Write) if !options.replace && is_partial() => Writing::Refuse(Refusal::Partial),
        (_, Mode::Write) => Writing::Replace,
    }
}

/// By what right a reader streams a space whose writers had ended before it came.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Claim {
    /// The program says so.
    pub finished: bool,
    /// The writers were of the reader's run, job or process.
    pub same_run: bool,
    /// The reader's process was started together with the writers.
    pub is_started_together: bool,
    /// Its group goes on where it stopped.
    pub has_cursor: bool,
    /// Other ranks of its group stream it.
    pub has_peers: bool,
}

/// Whether a reader streams a space, instead of waiting for writers to come.
pub(crate) fn streams(writers: Writers, claim: impl FnOnce() -> Claim) -> bool {
    match writers {
        Writers::NeverCame | Writers::Open => true,
        Writers::Finished | Writers::Dead => {
            let claim = claim();
            let is_of_it = claim.same_run || claim.is_started_together || claim.has_peers;
            claim.finished || is_of_it || claim.has_cursor
        }
    }
}

/// The error of a writer that fails. `what` is the space as messages name it.
pub(crate) fn refused(what: &str, why: Refusal, writers: Writers, detail: &str) -> Error {
    let ended = if writers == Writers::Finished { "has finished" } else { "holds data of writers that died" };
    match why {
        Refusal::Exists => Error::new(Kind::NameInUse, format!("{what} is there already and {ended}"))
            .hint("open with mode=\"w\" to replace it, or with mode=\"a\" to go on behind what is complete"),
        Refusal::Held => Error::new(Kind::NameInUse, format!("{what} is in use and cannot be replaced"))
            .with("held_by", detail)
            .hint(
                "close that handle or view first, or open with mode=\"a\" to go on behind what is complete",
            ),
        Refusal::Unread => Error::new(
            Kind::NameInUse,
            format!("{what} {ended}, and readers have not read all of it"),
        )
        .with("unread", detail)
        .hint(
            "open with mode=\"a\" to go on behind what is complete, or with mode=\"w\" and replace=true to \
                     erase it",
        ),
        Refusal::Partial => Error::new(
            Kind::NameInUse,
            format!("{what} holds steps of ranks that have ended, and other ranks of their group never joined"),
        )
        .with("missing", detail)
        .hint(
            "a rank that starts after others have ended joins them if all have the same FOREBAY_RUN or batch job; \
             to erase what they wrote, open with replace=true",
        ),
    }
}

/// The error for a version that is complete already. `what` is the channel as messages name it.
pub(crate) fn version_exists(what: &str, version: u64, due: u64) -> Error {
    Error::new(Kind::VersionExists, format!("version {version} of {what} is complete"))
        .with("first_open_version", due)
        .hint(
            "begin_step opens the first version that is not; mode=\"a\" skips what is complete, mode=\"w\" starts over \
             in a new run",
        )
}

/// What a reader says that waits for writers. `what` is the channel as messages name it.
pub(crate) fn left_behind(what: &str, writers: Writers) -> String {
    let ended = if writers == Writers::Finished { "had finished" } else { "had lost its writers" };
    format!("{what} {ended} before this reader came, in another run")
}

/// How to read what is there, for that reader.
pub(crate) const TAKE_FINISHED: &str =
    "start its writers; to read what is there, open with finished=true, or read single versions by open_version";

/// The error of a reader for which no writers came in time.
pub(crate) fn no_writers(what: &str, writers: Writers) -> Error {
    let text = format!("{}, and no writers came in time", left_behind(what, writers));
    Error::new(Kind::TimedOut, text).hint(TAKE_FINISHED)
}

/// Says at once, on standard error, that a reader waits although there is a space.
pub(crate) fn say_left_behind(what: &str, writers: Writers) {
    // Read by users of each language, so it names the option and no call.
    let left = left_behind(what, writers);
    eprintln!("forebay: {left}; waiting for writers (option finished=true reads what is there)");
}

/// Tells launches apart in the control segment. 0 where neither a run nor a job is known.
pub(crate) fn run_token() -> u64 {
    let mut hasher = FxHasher::default();
    match launch(&environment::process) {
        Some(run) => {
            run.hash(&mut hasher);
            hasher.finish() | 1
        }
        None => 0,
    }
}

// ---- spaces -----------------------------------------------------------------------------------------------

/// How the writers of a space stand, for `rank` of the launch `token`.
pub(crate) fn writers_for(space: &Attachment, rank: u32, token: u64) -> Writers {
    match settle_producers(space) {
        ProducerState::None => Writers::NeverCame,
        ProducerState::Finished | ProducerState::Withdrawn(_) => Writers::Finished,
        ProducerState::Died(_) => Writers::Dead,
        ProducerState::Open if has_writers(space) || has_late_writers(space, rank, token) => Writers::Open,
        ProducerState::Open => Writers::Dead,
    }
}

/// How the writers of a space stand, for a reader.
pub(crate) fn writers_of(space: &Attachment) -> Writers {
    match settle_producers(space) {
        ProducerState::None => Writers::NeverCame,
        ProducerState::Finished | ProducerState::Withdrawn(_) => Writers::Finished,
        ProducerState::Died(_) => Writers::Dead,
        ProducerState::Open if has_writers(space) => Writers::Open,
        ProducerState::Open => Writers::Dead,
    }
}

/// Whether a rank of the open group has joined, has not ended and is alive. The state of the producers alone does not
/// say that: it stays open when a rank is killed while it takes over a group some ranks of which never joined.
pub(crate) fn has_writers(space: &Attachment) -> bool {
    let (incarnation, size) = space.control.producers();
    (0..size).any(|rank| match space.control.lane_owner(rank) {
        (Some(slot), false) => owns_lane(space, slot, LaneId { incarnation, rank }),
        _ => false,
    })
}

/// Retained versions that some registered reader group has not read; without a group all of them.
pub(crate) fn unread(space: &Attachment) -> Range<u64> {
    let control = &space.control;
    let complete = control.complete();
    let read =
        registered_groups(control).map(|index| unread_from(space, index).unwrap_or(HOLDS_NOTHING)).min();
    let first = read.unwrap_or(0).max(control.oldest()).min(complete);
    first..complete
}

/// Ranks of the group that never joined, while others have committed steps and ended cleanly. Empty if a rank died or
/// is alive.
fn unjoined_ranks(space: &Attachment) -> Vec<u32> {
    let control = &space.control;
    let (incarnation, size) = control.producers();
    let has_committed = |rank| {
        let (of, committed) = control.progress(rank);
        of == incarnation && committed > control.base()
    };
    let has_ended = (0..size).any(|rank| control.lane_owner(rank).1 && has_committed(rank));
    if control.producer_state() != ProducerState::Open || has_writers(space) || !has_ended {
        return Vec::new();
    }
    (0..size).filter(|rank| control.lane_owner(*rank).0.is_none()).collect()
}

/// `rank 0`, or `ranks 0, 2`.
pub(crate) fn format_ranks(ranks: &[u32]) -> String {
    let all: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, all.join(", "))
}

/// A member that has the space in use, in words: a reader that holds a view or has not read what is complete, or a
/// writer that has not ended.
pub(crate) fn holder(space: &Attachment) -> Option<String> {
    let control = &space.control;
    (0..control.members_high()).find_map(|slot| {
        let role = Role::of_state(control.member(slot, member::STATE).load(Acquire))?;
        let lease = control.member(slot, member::LEASE).load(SeqCst);
        let cursor = control.member(slot, member::CURSOR).load(SeqCst);
        let rank = control.member(slot, member::RANK).load(Relaxed) >> 32;
        let what = if role == Role::Writer && control.lane_owner(rank as u32) == (Some(slot), false) {
            "lives".to_string()
        } else if lease != HOLDS_NOTHING {
            format!("holds version {lease}")
        } else if role == Role::Reader && cursor < control.complete() {
            format!("has not read version {cursor}")
        } else {
            return None;
        };
        space.is_alive(slot).then(|| format!("{} {what}", describe(space, slot)))
    })
}

/// Whether a writer that opens the space `name` with these options now would be let in. Changes nothing; without such a
/// space it would make one.
///
/// # Errors
/// `NameInUse` with the ways on, as of [`crate::Writer::open`]; those of opening the space.
pub fn check_writable(name: &str, options: &OpenOptions) -> Result<()> {
    if files::is_stream(&name::directory(name)?) {
        return files::check_writable(name, options);
    }
    let space = match inspect::attach(name) {
        Err(e) if e.kind() == Kind::PeerMissing => return Ok(()),
        space => space?,
    };
    let writers = writers_of(&space);
    if writers == Writers::Open {
        let detail = holder(&space).unwrap_or_default();
        return Err(refused(&format!("space {name}"), Refusal::Held, writers, &detail));
    }
    match decided(&space, options, writers) {
        Writing::Refuse(why) => Err(refused_space(&space, why, writers)),
        _ => Ok(()),
    }
}

/// What a writer does with a space.
pub(crate) fn decided(space: &Attachment, options: &OpenOptions, writers: Writers) -> Writing {
    let is_partial = || !unjoined_ranks(space).is_empty();
    writing(options, writers, || holder(space).is_some(), || !unread(space).is_empty(), is_partial)
}

/// The error of a writer that is refused by a space.
pub(crate) fn refused_space(space: &Attachment, why: Refusal, writers: Writers) -> Error {
    let detail = match why {
        Refusal::Held => holder(space).unwrap_or_default(),
        Refusal::Partial => format_ranks(&unjoined_ranks(space)),
        _ => {
            let unread = unread(space);
            format!("versions {}", format_versions(unread))
        }
    };
    refused(&format!("space {}", space.name), why, writers, &detail)
}

/// How programs exchange data through what has this name; None where there is nothing, or nothing of Forebay.
///
/// # Errors
/// `BadName`.
pub fn mechanism_of(name: &str) -> Result<Option<Mechanism>> {
    let dir = name::directory(name)?;
    Ok(match () {
        () if crate::files::is_stream(&dir) => Some(Mechanism::Files),
        () if contents::is_of_a_space(&dir) => Some(Mechanism::Space),
        () => None,
    })
}

/// The reader group that a reader is of.
pub(crate) fn group_of(options: &OpenOptions) -> &str {
    options.group.as_deref().or(options.component.as_deref()).unwrap_or_default()
}

/// Whether a reader streams the space.
pub(crate) fn is_streamed(space: &Attachment, options: &OpenOptions) -> bool {
    let group = group_of(options);
    let claim = || Claim {
        finished: options.finished,
        same_run: is_of_this_run(space),
        is_started_together: is_started_together(writers_lived(space)),
        // A group that has read all of it has nothing to take: what it waits for is to come.
        has_cursor: groups::stored_cursor(space, group).is_some_and(|at| at < space.control.complete()),
        has_peers: has_peers(space, group, options.rank.unwrap_or(0)),
    };
    // Asked first: it costs nothing.
    options.finished || streams(writers_of(space), claim)
}

/// Processes that began within so many nanoseconds may have been started together, by a script or by hand.
const TOGETHER_NS: u64 = 10_000_000_000;

/// Whether this process was started together with writers that have ended, as by `writer & reader` in a shell: it had
/// begun when they ended, and they began before it, or soon after. A process that lives long, such as that of a
/// notebook, is not started together with writers that come and go meanwhile.
pub(crate) fn is_started_together(writers_unix_ns: Range<u64>) -> bool {
    process::began_unix_ns().is_some_and(|began| are_together(began, writers_unix_ns))
}

/// The same, of a reader that began at one of these moments. If that is uncertain, it was not: it waits and says so,
/// instead of taking the data of an earlier run.
fn are_together(began: Range<u64>, writers: Range<u64>) -> bool {
    began.end <= writers.end && writers.start <= began.start.saturating_add(TOGETHER_NS)
}

/// Whether this process may have begun at a moment (nanoseconds since 1970; 0: never). A rank that may be of the launch
/// of others that have ended completes what they wrote.
pub(crate) fn may_have_come_before(ended_unix_ns: u64) -> bool {
    process::began_unix_ns().is_some_and(|began| began.start <= ended_unix_ns)
}

/// When the last of the writers' processes began, and when the last of them ended; nanoseconds since 1970.
fn writers_lived(space: &Attachment) -> Range<u64> {
    let control = &space.control;
    let start_ticks = |rank| control.lane_start_ticks(rank).load(Relaxed);
    let last = (0..control.producers().1).map(start_ticks).max().unwrap_or(0);
    process::ticks_unix_ns(last)..control.word(head::CLOSED).load(Acquire)
}

/// Whether the last writers were of this run or job, or of this process.
fn is_of_this_run(space: &Attachment) -> bool {
    let control = &space.control;
    let (token, own) = (control.word(head::RUN_TOKEN).load(Relaxed), run_token());
    if own != 0 && token == own {
        return true;
    }
    let pid = process::pid();
    let start_ticks = process::start_time_ticks(pid).unwrap_or(0);
    (0..control.producers().1).any(|rank| {
        control.lane_pid(rank).load(Relaxed) == u64::from(pid)
            && control.lane_start_ticks(rank).load(Relaxed) == start_ticks
    })
}

/// Whether a member slot speaks of this process.
pub(crate) fn is_own_slot(space: &Attachment, slot: u32) -> bool {
    let word = |field| space.control.member(slot, field).load(Relaxed);
    let pid = process::pid();
    word(member::PID) == u64::from(pid)
        && word(member::START_TICKS) == process::start_time_ticks(pid).unwrap_or(0)
}

/// Whether ranks of the group stream the space and await this one.
fn has_peers(space: &Attachment, name: &str, rank: u32) -> bool {
    let control = &space.control;
    let Some(index) = find_group(space, name) else { return false };
    let lives = |other: u32| other != rank && live_reader(space, index, other).is_some();
    let is_awaited = rank < control.group_size(index)
        && control.group_count(index, group::JOINED) > 0
        && groups::awaited_from(space, index).is_some()
        && groups::rank_awaited_from(space, index, rank).is_some();
    is_awaited || (0..control.group_size(index)).any(lives)
}

// ---- files ------------------------------------------------------------------------------------------------

/// Channels of files that this process has written, by UUID. A space has this in its control segment.
static WRITTEN_HERE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Notes that this process writes a channel of files.
pub(crate) fn note_written(uuid: &str) {
    WRITTEN_HERE.lock().unwrap_or_else(PoisonError::into_inner).insert(uuid.into());
}

/// Whether this process wrote a channel of files.
pub(crate) fn is_written_here(uuid: &str) -> bool {
    WRITTEN_HERE.lock().unwrap_or_else(PoisonError::into_inner).contains(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_lives_long_is_not_started_together_with_writers_that_come_and_go() {
        const S: u64 = 1_000_000_000;
        let began = 100 * S..100 * S + S / 100;
        let together = |first, last| are_together(began.clone(), first..last);
        // `writer & reader`, `reader & writer`, and a reader that takes long to start.
        assert!(together(99 * S, 101 * S));
        assert!(together(101 * S, 160 * S));
        // A writer that had ended before, or may have.
        assert!(!together(90 * S, 99 * S));
        assert!(!together(90 * S, 100 * S + S / 200));
        // A notebook that was open before.
        assert!(!together(400 * S, 700 * S));
        // Writers that have not ended are no matter of this.
        assert!(!together(99 * S, 0));
    }
}
