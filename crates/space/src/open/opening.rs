//! Opening a name under which there is a space already: what a writer does with it, and whether a reader streams it.
//!
//! Guarantees: one table for both kinds of channels. [`writing`] and [`streams`] decide by the state that the caller
//! has seen and touch nothing; docs/src/guide/opening.md has the table, and a test carries out each of its cells. What
//! readers have not read goes only when the caller asks for it.
//! Not here: the state of a space ([`crate::open::existing`]), making and replacing spaces ([`crate::open::create`]),
//! joining them ([`crate::open::membership`]).

use std::ops::Range;

use forebay_config::{environment, launch, Mode, OpenOptions};
use forebay_tier::{process, Error, Kind};
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

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
        Refusal::Exists => Error::new(Kind::NameInUse, format!("{what} already exists and {ended}"))
            .hint("open with mode=\"w\" to replace it, or with mode=\"a\" to continue after the complete versions"),
        Refusal::Held => Error::new(Kind::NameInUse, format!("{what} is in use and cannot be replaced"))
            .with("held_by", detail)
            .hint(
                "close that handle or view first, or open with mode=\"a\" to continue after the complete versions",
            ),
        Refusal::Unread => Error::new(
            Kind::NameInUse,
            format!("{what} {ended}, and readers have not read all of it"),
        )
        .with("unread", detail)
        .hint(
            "open with mode=\"a\" to continue after the complete versions, or with mode=\"w\" and replace=true to \
             erase them",
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
            "begin_step opens the first incomplete version; mode=\"a\" skips complete versions, mode=\"w\" starts \
             over in a new run",
        )
}

/// The error for a rank of an earlier incarnation.
pub(crate) fn fenced(what: &str, rank: u32, incarnation: u32, current: u32) -> Error {
    Error::new(Kind::Fenced, format!("a newer incarnation of the writers has taken over {what}"))
        .with("rank", rank)
        .with("incarnation", incarnation)
        .with("current", current)
        .hint("this process belongs to an older incarnation: end it")
}

/// What is said of every loss of a writer.
pub(crate) fn after_loss(error: Error, complete: u64) -> Error {
    error.with("complete_versions", complete).hint(
        "complete versions stay readable; restart all ranks with mode=\"a\" to continue after the last one",
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
    eprintln!("forebay: {left}; waiting for writers (option finished=true reads the finished space)");
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

/// `rank 0`, or `ranks 0, 2`.
pub(crate) fn format_ranks(ranks: &[u32]) -> String {
    let all: Vec<String> = ranks.iter().map(u32::to_string).collect();
    format!("{} {}", if ranks.len() == 1 { "rank" } else { "ranks" }, all.join(", "))
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
pub(crate) fn are_together(began: Range<u64>, writers: Range<u64>) -> bool {
    began.end <= writers.end && writers.start <= began.start.saturating_add(TOGETHER_NS)
}

/// Whether this process may have begun at a moment (nanoseconds since 1970; 0: never). A rank that may be of the launch
/// of others that have ended completes what they wrote.
pub(crate) fn may_have_come_before(ended_unix_ns: u64) -> bool {
    process::began_unix_ns().is_some_and(|began| began.start <= ended_unix_ns)
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
