//! Steps, once for every kind of channel: what may be called when, what a step counts, how long a call waits.
//!
//! [`reader::StepReader`] and [`writer::StepWriter`] are the handles of a rank. They own the state of the step and its
//! errors; a kind of channel adds only the primitive operations, as a [`reader::VersionSource`] and a
//! [`writer::VersionSink`]: look at a version, hold it, release it; begin a version, append to it, complete it. Calls
//! are resolved at compile time.
//!
//! Guarantees: the same wrong call is the same error on every kind of channel, but for the name. No call waits longer
//! than its deadline. Not here, because the kinds have nothing in common there: how processes find, join and leave a
//! channel; where a reader group stands, which the process that opens a handle learns when it joins; what makes a
//! version complete or lets it go; how space for a version is found.

pub(crate) mod reader;
pub(crate) mod writer;

use forebay_config::OpenOptions;
use forebay_tier::host::time::Instant;
use forebay_tier::process::ForkMark;
use forebay_tier::{clock, Error, Kind, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::lane::gate::Gate;
use crate::stats::Stats;
use crate::trace::{Trace, TraceStep};

/// What a handle was opened as.
#[derive(Clone)]
pub(crate) struct Handle {
    /// Side and kind of channel as messages name them.
    words: (&'static str, &'static str),
    pub(crate) name: String,
    pub(crate) dir: PathBuf,
    /// Resolved.
    pub(crate) options: OpenOptions,
    mark: ForkMark,
}

impl Handle {
    /// `words`: `reader`, `space`. `name` is what the caller calls the channel.
    pub(crate) fn new(
        words: (&'static str, &'static str),
        name: &str,
        dir: &Path,
        options: OpenOptions,
    ) -> Handle {
        Handle { words, name: options.place(name), dir: dir.into(), options, mark: ForkMark::here() }
    }

    /// The channel as messages name it: `space heat`.
    pub(crate) fn what(&self) -> String {
        format!("{} {}", self.words.1, self.name)
    }

    pub(crate) fn rank(&self) -> u32 {
        self.options.rank.unwrap_or(0)
    }

    pub(crate) fn size(&self) -> u32 {
        self.options.size.unwrap_or(1)
    }

    /// [`Kind::ForkedHandle`] in a forked child.
    #[inline]
    pub(crate) fn check_fork(&self) -> Result<()> {
        match self.mark.is_forked() {
            true => self.mark.check(&format!("{} of {}", self.words.0, self.what())),
            false => Ok(()),
        }
    }

    #[cold]
    fn closed(&self) -> Error {
        Error::new(Kind::Closed, format!("the {} is closed", self.words.0))
    }
}

/// What both sides of a channel have.
pub(crate) trait Channel {
    fn handle(&self) -> &Handle;

    /// A wait for a version, or for its turn, begins; None: it is over.
    fn note_waiting(&mut self, version: Option<u64>) -> Result<()>;

    /// Sleeps until something may have changed since the last look, at most `left`.
    fn pause(&mut self, left: Duration);

    /// The admission limit for calls that move data.
    #[inline]
    fn gate(&mut self) -> Option<&mut Gate> {
        None
    }
}

/// Until when a call waits.
pub(crate) struct Deadline {
    pub(crate) at: Instant,
    timeout: Duration,
}

impl Deadline {
    pub(crate) fn new(timeout: Duration) -> Deadline {
        Deadline { at: Instant::now() + timeout, timeout }
    }

    pub(crate) fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// The deadline is for one version: writers that go on are not late.
    pub(crate) fn extend(&mut self) {
        self.at = Instant::now() + self.timeout;
    }
}

/// What a handle counts.
#[derive(Default)]
struct Account {
    calls: u64,
    stats: Stats,
    trace: Option<Trace>,
    times: TraceStep,
    timed_out: bool,
}

impl Account {
    /// A step begins. A wait that timed out and is taken up again is one wait, as a user who looks at the trace sees
    /// it.
    fn begin(&mut self) {
        if !std::mem::take(&mut self.timed_out) {
            self.times = TraceStep { begin_ns: clock::now_ns(), ..TraceStep::default() };
        }
    }

    /// It could not begin.
    #[cold]
    fn note_late(&mut self, error: &Error) {
        self.timed_out = error.kind() == Kind::TimedOut;
    }

    fn note_wait(&mut self, ns: u64) {
        self.stats.wait_ns += ns;
        self.times.wait_ns += ns;
    }

    /// It has ended.
    fn end(&mut self, version: u64) {
        self.times.end_ns = clock::now_ns();
        if let Some(trace) = &mut self.trace {
            trace.step(&TraceStep { version, ..self.times });
        }
    }

    /// Goes inside the admission limit, for a call that moves data. Must be left as often as it was entered.
    #[inline]
    fn go_in(&mut self, channel: &mut impl Channel) -> Result<()> {
        let timeout = channel.handle().options.timeout;
        let Some(gate) = channel.gate() else { return Ok(()) };
        let before = gate.wait_ns;
        let result = gate.enter(timeout);
        let waited = gate.wait_ns - before;
        if waited > 0 {
            self.note_wait(waited);
        }
        result
    }

    /// Looks again and again until there is an answer. `late` is the error when there is none in time.
    fn wait<C: Channel, T>(
        &mut self,
        channel: &mut C,
        version: u64,
        until: &mut Deadline,
        mut look: impl FnMut(&mut C, &mut Deadline) -> Result<Option<T>>,
        late: impl FnOnce(&C) -> Error,
    ) -> Result<T> {
        let began = clock::now_ns();
        channel.note_waiting(Some(version))?;
        let result = loop {
            match look(channel, until) {
                Ok(None) => {}
                Ok(Some(seen)) => break Ok(seen),
                Err(e) => break Err(e),
            }
            let left = until.left();
            if left.is_zero() {
                break Err(late(channel));
            }
            channel.pause(left);
        };
        channel.note_waiting(None)?;
        self.note_wait(clock::now_ns() - began);
        result
    }
}

#[inline]
fn leave(channel: &mut impl Channel) {
    if let Some(gate) = channel.gate() {
        gate.leave();
    }
}

fn step_open(hint: &str) -> Error {
    Error::new(Kind::StepState, "a step is open").hint(hint)
}
