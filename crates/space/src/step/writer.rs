//! The steps of a writer: which version comes next, what is put into the open one, its end.
//!
//! Guarantees: versions are consecutive; what is complete already is an error, or is skipped in mode `append`; a name
//! has one type and shape in a step; a put that fails says nothing of its name; a reservation belongs to the step that
//! it was made in. Not here: where the bytes go and what makes a version durable and complete ([`VersionSink`]).

use forebay_config::{ExecutionMode, Mode};
use forebay_log::{Dtype, Piece};
use forebay_tier::{clock, Error, Kind, Result};
use std::collections::BTreeMap;

use super::{leave, step_open, Account, Channel, Deadline};
use crate::attributes::{self, Attribute};
use crate::declared::{disagreement, Declared, First};
use crate::many::at_object;
use crate::open::opening;
use crate::stats::{CallTimer, Counters, Stats};
use crate::trace::Trace;

/// The writer's side of one kind of channel.
pub(crate) trait VersionSink: Channel {
    /// Memory of a piece that the program fills in place.
    type Memory: Memory;

    /// [`Kind::Fenced`] when a newer incarnation took over, [`Kind::ProducerDied`] when a rank of this one died.
    fn check_group(&mut self) -> Result<()>;

    /// The first version that this rank has not put. Errors: as [`VersionSink::check_group`].
    fn due(&self) -> Result<u64>;

    /// [`Kind::PeerMissing`] where readers are absent without whom nothing is written.
    fn check_readers(&self) -> Result<()> {
        Ok(())
    }

    /// Who may be at work when.
    fn execution_mode(&self) -> ExecutionMode;

    /// Whether the readers have released every version before this one. `again`: in a wait for it, where the answer is
    /// also yes when the sides do not take turns any more.
    fn is_turn(&mut self, version: u64, again: bool) -> Result<bool>;

    /// Who has not released a version, in words.
    fn holders(&self, version: u64) -> Vec<String>;

    /// Begins a version, waiting for space where that is done here.
    fn begin(&mut self, version: u64, execution_mode: ExecutionMode) -> Result<()>;

    /// Whether all ranks that put this name, given by its hash, say the same of it.
    #[inline]
    fn agrees(&self, _version: u64, _name: u64, _dtype: Dtype, _shape: &[u64]) -> bool {
        true
    }

    /// Whether a piece would only be kept back in memory of this process.
    #[inline]
    fn keeps_back(&self, _piece: &Piece<'_>, _bytes: u64) -> bool {
        false
    }

    /// Starts the deadline of a call that moves data. Returns the time spent waiting in such calls so far.
    #[inline]
    fn begin_call(&mut self) -> u64 {
        self.waited_ns()
    }

    /// Time spent waiting for space, in all.
    fn waited_ns(&self) -> u64;

    /// Adds a piece to the open version. Returns the bytes that were copied for it.
    fn append(&mut self, piece: &Piece<'_>, data: &[u8]) -> Result<u64>;

    /// Memory for a piece of the open version.
    fn reserve(&mut self, piece: &Piece<'_>) -> Result<Self::Memory>;

    /// Adds what was reserved and filled. Returns the bytes that were copied for it.
    fn fill(&mut self, memory: Self::Memory) -> Result<u64>;

    /// Makes what was put as durable as the horizon says.
    fn seal(&mut self, version: u64) -> Result<()>;

    /// Acknowledges a sealed version; or why what this rank puts no longer counts.
    fn complete(&mut self, version: u64) -> Result<Option<Error>>;

    /// Gives the open version up.
    fn abort(&mut self, version: u64, declared: &Declared);

    /// Shows how far this rank is, for lists.
    fn publish(&mut self, next: u64, done: Counters);

    /// Frees what readers have released.
    fn reclaim(&mut self) {}

    /// Why the last call of the step failed, for readers, should this rank leave now.
    fn note_failed(&mut self, _error: &Error) {}

    fn set_attribute(&mut self, key: &str, value: &Attribute) -> Result<()>;

    /// Ends cleanly, no step being open.
    fn close(&mut self, done: Counters) -> Result<()>;

    /// Ends as a rank that died.
    fn abandon(&mut self);
}

/// Memory of a piece.
pub(crate) trait Memory {
    fn as_mut_slice(&mut self) -> &mut [u8];

    /// Name, type and global shape of its variable.
    fn variable(&self) -> (&str, Dtype, &[u64]);
}

/// Memory of a piece, and the step that it was reserved in.
pub(crate) struct Reserved<M> {
    nth_step: u64,
    version: u64,
    pub(crate) memory: M,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    None,
    Open(u64),
    /// The version is complete already: what is put is dropped.
    Skipping(u64),
}

/// One rank that writes a channel.
pub(crate) struct StepWriter<S: VersionSink> {
    pub(crate) sink: S,
    /// Next version this rank will put.
    next: u64,
    step: Step,
    /// Steps that were begun: a version that is begun again is another step.
    begun: u64,
    /// What was put in the open step.
    declared: Declared,
    account: Account,
    closed: bool,
}

impl<S: VersionSink> StepWriter<S> {
    /// A rank that has joined the channel and goes on at version `next`.
    pub(crate) fn new(sink: S, next: u64, trace: Option<Trace>) -> StepWriter<S> {
        let (step, begun, declared) = (Step::None, 0, Declared::default());
        let account = Account { trace, ..Account::default() };
        StepWriter { sink, next, step, begun, declared, account, closed: false }
    }

    /// Fails unless a step is open, or skipped.
    pub(crate) fn check_in_step(&self, what: &str) -> Result<()> {
        match self.step {
            Step::None => Err(self.no_step(what)),
            _ => Ok(()),
        }
    }

    pub(crate) fn next_version(&self) -> u64 {
        match self.step {
            Step::Open(v) | Step::Skipping(v) => v + 1,
            Step::None => self.next,
        }
    }

    fn check(&self) -> Result<()> {
        match self.closed {
            true => Err(self.sink.handle().closed()),
            false => self.sink.handle().check_fork(),
        }
    }

    fn check_between_steps(&self) -> Result<()> {
        self.check()?;
        match self.step {
            Step::None => Ok(()),
            _ => Err(step_open("call end_step or abort_step first")),
        }
    }

    #[cold]
    fn no_step(&self, what: &str) -> Error {
        match self.closed {
            true => self.sink.handle().closed(),
            false => {
                Error::new(Kind::StepState, "no step is open").with("in", what).hint("call begin_step first")
            }
        }
    }

    pub(crate) fn resume(&mut self) -> Result<u64> {
        self.check_between_steps()?;
        self.next = self.next.max(self.sink.due()?);
        Ok(self.next)
    }

    pub(crate) fn begin_version(&mut self, version: u64) -> Result<bool> {
        self.check_between_steps()?;
        self.account.begin();
        self.sink.check_group()?;
        let due = self.sink.due()?;
        if version < due && self.sink.handle().options.mode == Mode::Append {
            self.step = Step::Skipping(version);
            self.account.times.ready_ns = clock::now_ns();
            return Ok(false);
        }
        if version < due {
            return Err(opening::version_exists(&self.sink.handle().what(), version, due)
                .with("rank", self.sink.handle().rank()));
        }
        if version > due {
            return Err(Error::new(
                Kind::VersionOutOfOrder,
                format!("version {version} of {} is not the next one", self.sink.handle().what()),
            )
            .with("due", due)
            .hint(format!("versions are consecutive: the next one is {due}")));
        }
        self.sink.check_readers()?;
        let execution_mode = self.sink.execution_mode();
        if execution_mode == ExecutionMode::SerialPerStep {
            self.wait_turn(version).inspect_err(|e| self.account.note_late(e))?;
        }
        let waited = self.sink.waited_ns();
        self.sink.begin(version, execution_mode)?;
        self.account.note_wait(self.sink.waited_ns() - waited);
        self.declared.clear();
        self.begun += 1;
        self.step = Step::Open(version);
        self.account.times.ready_ns = clock::now_ns();
        Ok(true)
    }

    /// Waits until the readers have released every version before this one.
    fn wait_turn(&mut self, version: u64) -> Result<()> {
        if self.sink.is_turn(version, false)? {
            return Ok(());
        }
        let mut until = Deadline::new(self.sink.handle().options.timeout);
        let look = |sink: &mut S, _: &mut Deadline| match sink.is_turn(version, true)? {
            true => Ok(Some(())),
            false => sink.check_group().map(|()| None),
        };
        self.account.wait(&mut self.sink, version, &mut until, look, |sink| not_its_turn(sink, version))
    }

    /// Notes what is put: a name has one type and shape in a step, on all ranks. Of ranks that disagree the one that
    /// comes second is told, where ranks can ask one another; of one rank the second put.
    #[inline]
    fn declare(&mut self, version: u64, name: &str, dtype: Dtype, shape: &[u64]) -> Result<Option<First>> {
        let Some(first) = self.declared.note(name, dtype, shape) else {
            return Err(disagreement("this rank", version, self.sink.handle().rank(), name, dtype, shape));
        };
        if let Some(first) = first {
            if !self.sink.agrees(version, self.declared.name(first), dtype, shape) {
                self.declared.take_back(first);
                return Err(disagreement(
                    "another rank",
                    version,
                    self.sink.handle().rank(),
                    name,
                    dtype,
                    shape,
                ));
            }
        }
        Ok(first)
    }

    /// The put failed that was the first of its name.
    #[cold]
    fn take_back(&mut self, first: Option<First>) {
        first.into_iter().for_each(|first| self.declared.take_back(first));
    }

    #[inline]
    pub(crate) fn put(&mut self, piece: &Piece<'_>, data: &[u8]) -> Result<()> {
        self.account.calls += 1;
        self.sink.handle().check_fork()?;
        // Where only memory of this process is touched, no rank has to leave a place inside.
        let stays_outside = self.sink.keeps_back(piece, data.len() as u64);
        if !stays_outside {
            self.account.go_in(&mut self.sink)?;
        }
        let timer = CallTimer::start(data.len(), self.account.calls);
        let waited = self.sink.begin_call();
        let before = self.account.stats.bytes_put;
        let put = self.append(piece, data);
        if !stays_outside {
            leave(&mut self.sink);
        }
        if let Err(e) = put {
            self.note_failed(waited, &e);
            return Err(e);
        }
        self.note_call(timer, waited, self.account.stats.bytes_put - before);
        Ok(())
    }

    /// One piece into the open step; nothing into a step that is skipped.
    #[inline]
    fn append(&mut self, piece: &Piece<'_>, data: &[u8]) -> Result<()> {
        let version = match self.step {
            Step::Open(version) => version,
            Step::Skipping(_) => return piece.check_data(data).map(drop),
            Step::None => return Err(self.no_step(piece.name)),
        };
        let first = self.declare(version, piece.name, piece.dtype, piece.shape)?;
        let copied = match self.sink.append(piece, data) {
            Ok(copied) => copied,
            Err(e) => {
                self.take_back(first);
                return Err(e);
            }
        };
        self.account.stats.puts += 1;
        self.account.times.objects += 1;
        self.account.stats.bytes_put += data.len() as u64;
        self.account.stats.bytes_copied += copied;
        Ok(())
    }

    /// See [`crate::Writer::put_each`].
    pub(crate) fn put_each<'a>(
        &mut self,
        objects: impl Iterator<Item = (Piece<'a>, &'a [u8])>,
        done: &mut usize,
    ) -> Result<()> {
        self.sink.handle().check_fork()?;
        self.account.go_in(&mut self.sink)?;
        let timer = CallTimer::start(usize::MAX, 0);
        let waited = self.sink.begin_call();
        let before = self.account.stats.bytes_put;
        let mut result = Ok(());
        for (piece, data) in objects {
            result = self.append(&piece, data).map_err(|e| at_object(e, *done, piece.name));
            if result.is_err() {
                break;
            }
            *done += 1;
        }
        leave(&mut self.sink);
        if let Err(e) = &result {
            self.note_failed(self.sink.waited_ns(), e);
        }
        self.note_call(timer, waited, self.account.stats.bytes_put - before);
        result
    }

    /// Counts a call that began when `waited_before` had been waited.
    #[inline]
    fn note_call(&mut self, timer: CallTimer, waited_before: u64, bytes: u64) {
        let wait_ns = self.sink.waited_ns() - waited_before;
        let op_ns = timer.stop().saturating_sub(wait_ns);
        self.account.note_wait(wait_ns);
        self.account.stats.put_ns += op_ns;
        self.account.times.op_ns += op_ns;
        self.account.times.bytes += bytes;
        self.account.times.calls += 1;
    }

    /// A call that failed has waited all the same; its caller may try again.
    #[cold]
    fn note_failed(&mut self, waited_before: u64, error: &Error) {
        self.sink.note_failed(error);
        self.account.note_wait(self.sink.waited_ns() - waited_before);
    }

    /// None: the step is skipped, and the piece will be dropped.
    pub(crate) fn reserve(&mut self, piece: &Piece<'_>) -> Result<Option<Reserved<S::Memory>>> {
        self.sink.handle().check_fork()?;
        self.account.calls += 1;
        let version = match self.step {
            Step::Open(version) => version,
            Step::Skipping(_) => return piece.payload_bytes().map(|_| None),
            Step::None => return Err(self.no_step(piece.name)),
        };
        // Not noted for this rank before the commit: a reservation may be dropped.
        let first = self.declare(version, piece.name, piece.dtype, piece.shape)?;
        self.take_back(first);
        // Until the commit: in between the program writes where the data lie.
        self.account.go_in(&mut self.sink)?;
        let timer = CallTimer::start(usize::MAX, self.account.calls);
        let waited = self.sink.begin_call();
        let memory = self.sink.reserve(piece).inspect_err(|e| {
            leave(&mut self.sink);
            self.note_failed(waited, e);
        })?;
        self.note_call(timer, waited, 0);
        Ok(Some(Reserved { nth_step: self.begun, version, memory }))
    }

    pub(crate) fn commit(&mut self, mut reserved: Reserved<S::Memory>) -> Result<()> {
        self.sink.handle().check_fork()?;
        let timer = CallTimer::start(usize::MAX, self.account.calls);
        let waited = self.sink.waited_ns();
        let bytes = reserved.memory.as_mut_slice().len() as u64;
        let filled = self.fill(reserved);
        leave(&mut self.sink);
        self.account.stats.bytes_copied += filled?;
        self.account.stats.reserves += 1;
        self.account.times.objects += 1;
        self.account.stats.bytes_put += bytes;
        self.note_call(timer, waited, bytes);
        Ok(())
    }

    fn fill(&mut self, reserved: Reserved<S::Memory>) -> Result<u64> {
        let Reserved { nth_step, version, memory } = reserved;
        let (name, dtype, shape) = memory.variable();
        if self.step != Step::Open(version) || nth_step != self.begun {
            return Err(Error::new(Kind::StepState, "the step of this reservation has ended")
                .with("variable", name)
                .with("version", version)
                .hint("commit a reservation before the step ends"));
        }
        let first = self.declare(version, name, dtype, shape)?;
        self.sink.fill(memory).inspect_err(|_| self.take_back(first))
    }

    pub(crate) fn end_step(&mut self) -> Result<()> {
        self.check()?;
        match self.step {
            Step::None => return Err(self.no_step("end_step")),
            Step::Skipping(version) => {
                self.next = version + 1;
                self.account.stats.skipped += 1;
            }
            Step::Open(version) => {
                self.account.go_in(&mut self.sink)?;
                let timer = CallTimer::start(usize::MAX, 0);
                let waited = self.sink.begin_call();
                let sealed = self.sink.seal(version);
                // Inside stays only who has a reservation to commit, for which the step was refused.
                leave(&mut self.sink);
                sealed.inspect_err(|e| self.note_failed(waited, e))?;
                if let Some(refused) = self.sink.complete(version)? {
                    self.step = Step::None;
                    return Err(refused);
                }
                self.next = version + 1;
                self.account.stats.steps += 1;
                self.note_call(timer, waited, 0);
            }
        }
        self.step = Step::None;
        self.sink.publish(self.next, self.account.stats.put());
        if self.sink.execution_mode() == ExecutionMode::SerialPerStep {
            // What the program does before it begins the next step belongs to the writers' turn. The step is
            // acknowledged; a turn that does not come is an error of the next one.
            let _ = self.wait_turn(self.next);
        }
        self.account.end(self.next - 1);
        // The step is acknowledged, whatever comes of releasing space: what fails there fails again, and is
        // reported, when a put needs the space.
        self.sink.reclaim();
        Ok(())
    }

    pub(crate) fn abort_step(&mut self) -> Result<()> {
        self.check()?;
        self.give_up();
        Ok(())
    }

    fn give_up(&mut self) {
        if let Step::Open(version) = std::mem::replace(&mut self.step, Step::None) {
            self.sink.abort(version, &self.declared);
        }
    }

    pub(crate) fn set_attribute(&mut self, key: &str, value: &Attribute) -> Result<()> {
        self.check()?;
        self.sink.set_attribute(key, value)
    }

    pub(crate) fn attributes(&self) -> Result<BTreeMap<String, Attribute>> {
        self.check()?;
        attributes::read(&self.sink.handle().dir)
    }

    /// See [`crate::Writer::check_peers`].
    pub(crate) fn check_peers(&mut self) -> Result<()> {
        self.check()?;
        self.sink.check_group()
    }

    pub(crate) fn stats(&self) -> Stats {
        self.account.stats.clone()
    }

    /// Ends cleanly: this rank puts nothing more.
    pub(crate) fn close(&mut self) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        self.sink.handle().check_fork()?;
        self.closed = true;
        self.give_up();
        let ended = self.sink.close(self.account.stats.put());
        // Dropping it writes what is left.
        self.account.trace = None;
        ended
    }

    /// Ends without a clean end: readers and the other ranks see that this producer is gone.
    pub(crate) fn abandon(&mut self) {
        if !self.closed && self.sink.handle().check_fork().is_ok() {
            self.closed = true;
            self.sink.abandon();
            self.account.trace = None;
        }
    }
}

#[cold]
fn not_its_turn(sink: &impl VersionSink, version: u64) -> Error {
    Error::new(
        Kind::TimedOut,
        format!("timeout while waiting for the readers of {} (mode serial-per-step)", sink.handle().what()),
    )
    .with("execution_mode", sink.execution_mode())
    .with("version", version)
    .with("held_by", sink.holders(version.saturating_sub(1)).join("; "))
    .hint("in mode serial-per-step a writer continues when all readers have released the previous version")
}

impl<S: VersionSink> Drop for StepWriter<S> {
    fn drop(&mut self) {
        // An open step means that the program failed: a clean end would truncate the stream without an error.
        if std::thread::panicking() || matches!(self.step, Step::Open(_)) {
            self.abandon();
        } else if let Err(e) = self.close() {
            if e.kind() != Kind::ForkedHandle {
                eprintln!("forebay: closing the writer: {e}");
            }
        }
    }
}
