//! The control segment: the shared, soft state of a space.
//!
//! A file of 64-bit words in shared memory that every member maps: who produces, who reads, how far each rank
//! has committed, which granule belongs to which lane. It is *soft*: everything in it that matters is rebuilt
//! from the lanes and the members' kernel locks at any time ([`crate::control::shared_state`]). It holds no lock; each
//! change is one atomic store or exchange, or redoable under a lock that the kernel releases when its holder dies.
//! Not here: where which word stands (`layout.rs`), and the protocols over several of them (`protocol.rs`).

use forebay_config::{ExecutionMode, GATE_PLACES_MAX};
use forebay_tier::host::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use forebay_log::{LaneId, Superblock};
use forebay_tier::{wait, Error, Kind, Result, SharedWords};

use super::cursors::Cursor;
use super::layout::*;
use super::ownership::{FileId, Misfit, INSTANCES};
use super::protocol;

/// State of the producers, in the low byte of `state`; above it the slot of the member that left, and the incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProducerState {
    /// No producer has come yet.
    None,
    /// Ranks are joining or producing.
    Open,
    /// All ranks ended cleanly.
    Finished,
    /// A rank died; its member slot, if known.
    Died(Option<u32>),
    /// All ranks of a group ended cleanly, and a rank of a later group left before any of them began a version: for
    /// readers the stream is finished as before. The member slot of that rank, if known.
    Withdrawn(Option<u32>),
}

impl ProducerState {
    /// Whether readers are at the end of the stream when they have read all that is complete.
    pub(crate) fn is_finished(self) -> bool {
        matches!(self, ProducerState::Finished | ProducerState::Withdrawn(_))
    }
}

/// Codes in the word `state`.
const STATE_NONE: u64 = 0;
const STATE_OPEN: u64 = 1;
const STATE_FINISHED: u64 = 2;
const STATE_DIED: u64 = 3;
/// Open, after a group that had finished, and no rank has begun a version.
const STATE_REOPENED: u64 = 4;
const STATE_WITHDRAWN: u64 = 5;

/// What occupies a run of granules, in the `owner` word of its first granule. The words of its other granules say
/// `Free`: one store takes a run, and one frees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GranuleState {
    /// Free, or inside the run that begins further down.
    Free,
    /// Of a superblock.
    Superblock,
    /// First granule of a segment.
    Segment {
        /// Its lane.
        lane: LaneId,
        /// Member slot of the owner, or none after a rebuild.
        slot: Option<u32>,
    },
    /// First granule of the old place of a segment that was moved; readers that came before may still read it.
    Leaving {
        /// Its lane.
        lane: LaneId,
        /// Member slot of the process that moved it.
        slot: Option<u32>,
    },
    /// First granule of a run that its owner prepares for a segment.
    Spare {
        /// Lane it is meant for.
        lane: LaneId,
        /// Member slot of the owner.
        slot: Option<u32>,
    },
}

const SLOT_NONE: u64 = 0xffff;

/// Looks at the words of a run that changes hands. A run that holds what a reader holds does not.
const LOOKS_MAX: usize = 16;

/// A run of granules, or one that is free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// First granule.
    pub first: usize,
    /// Its length; of a free granule 1.
    pub granules: usize,
    /// Whose it is.
    pub state: GranuleState,
    /// Newest version in it.
    pub last: u64,
    /// Bytes of a segment's header and records, up to the last version that its lane has sealed.
    pub filled_bytes: u64,
}

/// A segment as the table of granules has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundSegment {
    /// First granule.
    pub granule: usize,
    /// Sequence in its lane.
    pub sequence: u64,
}

/// Bits of the word `execution_mode` that hold it; above stands the incarnation of the producers that said it.
const MODE_BITS: u32 = 40;
const MODE_MASK: u64 = (1 << MODE_BITS) - 1;
/// The highest of them, which no gate needs: the execution mode was changed since the producers said one.
const STEERED: u64 = 1 << (MODE_BITS - 1);
/// Six bits of the word `execution_mode` that no execution mode uses: a sum of the others.
const MODE_SUM_AT: u32 = 2;
const MODE_SUM: u64 = 0x3f << MODE_SUM_AT;

/// A word `execution_mode` with its sum: each flipped bit makes the two differ.
fn with_mode_sum(word: u64) -> u64 {
    let word = word & !MODE_SUM;
    let sum = (0..64).step_by(6).fold(0, |sum, at| sum ^ (word >> at & 0x3f));
    word | sum << MODE_SUM_AT
}

/// In the word `calls` of a producer: another one asks it to release space. The rest counts its own calls.
pub(crate) const FREE_SPACE_ASKED: u32 = 1;

/// Why a member waits, in its `waiting` word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It does not.
    No,
    /// A reader: for this version to be complete.
    Version(u64),
    /// A producer: for free space for this version.
    FreeSpace(u64),
    /// A producer: until the readers have released every version before this one.
    Turn(u64),
    /// Either: for a place inside the gate.
    Gate,
}

impl Waiting {
    pub(crate) fn word(self) -> u64 {
        match self {
            Waiting::No => 0,
            Waiting::Version(v) => 1 << 56 | v,
            Waiting::FreeSpace(v) => 2 << 56 | v,
            Waiting::Turn(v) => 3 << 56 | v,
            Waiting::Gate => 4 << 56,
        }
    }

    pub(crate) fn of_word(word: u64) -> Waiting {
        let version = word & ((1 << 56) - 1);
        match word >> 56 {
            1 => Waiting::Version(version),
            2 => Waiting::FreeSpace(version),
            3 => Waiting::Turn(version),
            4 => Waiting::Gate,
            _ => Waiting::No,
        }
    }
}

/// The mapped control segment. Cheap to read; every accessor is one or a few loads.
pub struct Control {
    words: SharedWords,
    granules: usize,
}

impl Control {
    /// Bytes of the file for a pool with that many granules.
    pub fn file_bytes(granules: usize) -> usize {
        GRANULES_AT + granules * granule::BYTES
    }

    /// All zero, for a pool of so many granules.
    fn of_granules(path: &Path, granules: usize) -> Result<Control> {
        Ok(Control { words: SharedWords::create(path, Self::file_bytes(granules) as u64)?, granules })
    }

    /// A new, empty segment at `path`, for this pool file.
    pub(crate) fn create(
        path: &Path,
        superblock: &Superblock,
        boot_id: &[u8; 16],
        instance: u64,
        pool: FileId,
    ) -> Result<Control> {
        let granules = (superblock.capacity_bytes / superblock.granule_bytes) as usize;
        let control = Self::of_granules(path, granules)?;
        control.set_pair(head::UUID, &superblock.uuid);
        control.set_pair(head::BOOT, boot_id);
        control.word(head::GRANULES).store(granules as u64, Relaxed);
        control.word(head::VERSION).store(CONTROL_VERSION, Relaxed);
        control.word(head::INSTANCE).store(instance, Relaxed);
        control.word(head::POOL_DEVICE).store(pool.device, Relaxed);
        control.word(head::POOL_INODE).store(pool.inode, Relaxed);
        // The superblock's granule is never given away.
        control.word(GRANULES_AT + granule::OWNER).store(1, Relaxed);
        control.word(head::MAGIC).store(CONTROL_MAGIC, Release);
        Ok(control)
    }

    /// The existing segment, or why it cannot be used for this pool file in this boot. `pool_incarnation` is the
    /// newest start of the producers that the pool has noted, if any: they are noted there before they are here.
    pub(crate) fn open(
        path: &Path,
        superblock: &Superblock,
        boot_id: &[u8; 16],
        pool: FileId,
        pool_incarnation: Option<u32>,
    ) -> Result<std::result::Result<Control, Misfit>> {
        let granules = (superblock.capacity_bytes / superblock.granule_bytes) as usize;
        let bytes = match forebay_tier::host::fs::metadata(path) {
            Ok(m) => m.len(),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Err(Misfit::Missing)),
            Err(e) => return Err(Error::io("cannot stat the control segment", e)),
        };
        if bytes < head::BYTES as u64 {
            return Ok(Err(Misfit::Foreign));
        }
        let control = Control { words: SharedWords::open(path, bytes)?, granules };
        if control.word(head::MAGIC).load(Acquire) != CONTROL_MAGIC {
            return Ok(Err(Misfit::Foreign));
        }
        let version = control.word(head::VERSION).load(Relaxed);
        if version != CONTROL_VERSION {
            return Ok(Err(Misfit::Version(version)));
        }
        let fits = bytes == Self::file_bytes(granules) as u64
            && control.pair(head::UUID) == superblock.uuid
            && control.pair(head::BOOT) == *boot_id
            && control.word(head::GRANULES).load(Relaxed) == granules as u64
            && INSTANCES.contains(&control.instance());
        if !fits {
            return Ok(Err(Misfit::Foreign));
        }
        let (device, inode) = (control.word(head::POOL_DEVICE), control.word(head::POOL_INODE));
        if (FileId { device: device.load(Relaxed), inode: inode.load(Relaxed) }) != pool {
            return Ok(Err(Misfit::PoolFile));
        }
        if pool_incarnation.is_some_and(|noted| noted < control.producers().0) {
            return Ok(Err(Misfit::OlderPool));
        }
        Ok(Ok(control))
    }

    /// The random number of this segment.
    pub(crate) fn instance(&self) -> u64 {
        self.word(head::INSTANCE).load(Relaxed)
    }

    /// Whether the segment is the one that all members share. Errors: `Io` once its file was cut off or its memory
    /// failed; what is read here from then on is this process's own.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        self.words.check()
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        self.words.u64(offset as u64)
    }

    fn half(&self, offset: usize) -> &AtomicU32 {
        self.words.u32(offset as u64)
    }

    fn set_pair(&self, offset: usize, bytes: &[u8; 16]) {
        for (i, part) in bytes.chunks_exact(WORD).enumerate() {
            let value = u64::from_le_bytes(part.try_into().expect("eight bytes"));
            self.word(offset + i * WORD).store(value, Relaxed);
        }
    }

    fn pair(&self, offset: usize) -> [u8; 16] {
        let mut out = [0; 16];
        for (i, part) in out.chunks_exact_mut(WORD).enumerate() {
            part.copy_from_slice(&self.word(offset + i * WORD).load(Relaxed).to_le_bytes());
        }
        out
    }

    pub(crate) fn set_name(&self, offset: usize, name: &str) {
        self.set_text(offset, NAME_BYTES, name);
    }

    pub(crate) fn name(&self, offset: usize) -> String {
        self.text(offset, NAME_BYTES)
    }

    /// As much of `text` as fits, and zeros.
    fn set_text(&self, offset: usize, bytes: usize, text: &str) {
        let mut end = text.len().min(bytes);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut padded = text.as_bytes()[..end].to_vec();
        padded.resize(bytes, 0);
        for (i, part) in padded.chunks_exact(WORD).enumerate() {
            let value = u64::from_le_bytes(part.try_into().expect("eight bytes"));
            self.word(offset + i * WORD).store(value, Relaxed);
        }
    }

    fn text(&self, offset: usize, bytes: usize) -> String {
        let bytes: Vec<u8> = (0..bytes / WORD)
            .flat_map(|i| self.word(offset + i * WORD).load(Relaxed).to_le_bytes())
            .collect();
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    // ---- events -------------------------------------------------------------------------------------------

    /// Counts up whenever a version may have become visible or a producer's state changed.
    pub fn events(&self) -> &AtomicU32 {
        self.half(head::EVENTS)
    }

    /// Counts up whenever space may have become free.
    pub fn free_space(&self) -> &AtomicU32 {
        self.half(head::FREE_SPACE)
    }

    /// Tells the processes that wait for a version. The system call is made only if one sleeps.
    pub fn announce(&self) {
        let events = self.events();
        protocol::announce(events, self.half(head::EVENT_WAITERS), || wait::wake_all(events));
    }

    /// Tells the processes that wait for free space.
    pub fn announce_space(&self) {
        let free_space = self.free_space();
        protocol::announce(free_space, self.half(head::FREE_SPACE_WAITERS), || wait::wake_all(free_space));
    }

    /// Spins for `spin_ns`, then sleeps for at most `timeout`, while [`Control::events`] is `seen`.
    pub(crate) fn wait_events(&self, seen: u32, spin_ns: u64, timeout: Duration) {
        // Who spins is no waiter yet: the producer then needs no system call to wake it.
        if !wait::spin(self.events(), seen, spin_ns) {
            protocol::sleep(self.half(head::EVENT_WAITERS), || wait::wait(self.events(), seen, timeout));
        }
    }

    /// Sleeps while [`Control::free_space`] is `seen`; at most `timeout`.
    pub(crate) fn wait_free_space(&self, seen: u32, timeout: Duration) {
        protocol::sleep(self.half(head::FREE_SPACE_WAITERS), || wait::wait(self.free_space(), seen, timeout));
    }

    /// Counts up whenever a place inside the gate may have become free.
    pub(crate) fn gate(&self) -> &AtomicU32 {
        self.half(head::GATE)
    }

    /// Tells the ranks that wait for a place inside the gate.
    pub(crate) fn announce_gate(&self) {
        let gate = self.gate();
        protocol::announce(gate, self.half(head::GATE_WAITERS), || wait::wake_all(gate));
    }

    /// Sleeps while [`Control::gate`] is `seen`; at most `timeout`.
    pub(crate) fn wait_gate(&self, seen: u32, timeout: Duration) {
        protocol::sleep(self.half(head::GATE_WAITERS), || wait::wait(self.gate(), seen, timeout));
    }

    /// A place inside the gate: 0, or the token of who is there. Those of the writers come first.
    pub(crate) fn gate_place(&self, place: usize) -> &AtomicU64 {
        assert!(place < 2 * GATE_PLACES_MAX as usize);
        self.word(head::PLACES + place * WORD)
    }

    /// Who may be at work when.
    pub fn execution_mode(&self) -> ExecutionMode {
        execution_mode_of(self.word(head::EXECUTION_MODE).load(Acquire) & MODE_MASK & !STEERED & !MODE_SUM)
    }

    /// Whether the execution mode is what was stored.
    pub(crate) fn is_mode_whole(&self) -> bool {
        let word = self.word(head::EXECUTION_MODE).load(Acquire);
        with_mode_sum(word) == word
    }

    /// Whether the execution mode that the producers said was changed.
    pub(crate) fn is_steered(&self) -> bool {
        self.word(head::EXECUTION_MODE).load(Acquire) & STEERED != 0
    }

    /// Changes the execution mode of the present incarnation of the producers; wakes the ranks that wait by the old
    /// one.
    pub(crate) fn steer(&self, execution_mode: ExecutionMode) {
        let word = self.word(head::EXECUTION_MODE);
        let mut seen = word.load(Acquire);
        // A restarted group of producers that says its own execution mode meanwhile wins.
        while let Err(now) = word.compare_exchange(
            seen,
            with_mode_sum((seen & !MODE_MASK) | mode_word(execution_mode) | STEERED),
            AcqRel,
            Acquire,
        ) {
            if now & !MODE_MASK != seen & !MODE_MASK {
                return;
            }
            seen = now;
        }
        self.announce_gate();
        self.announce_space();
    }

    /// Under the setup lock: says the execution mode for an incarnation of the producers. Returns the one that holds,
    /// which is what the first of its ranks said.
    pub(crate) fn settle_execution_mode(
        &self,
        incarnation: u32,
        execution_mode: ExecutionMode,
    ) -> ExecutionMode {
        let word = self.word(head::EXECUTION_MODE);
        let tag = u64::from(incarnation & 0xff_ffff) << MODE_BITS;
        if word.load(Acquire) & !MODE_MASK != tag {
            word.store(with_mode_sum(tag | mode_word(execution_mode)), Release);
            self.announce_gate();
        }
        self.execution_mode()
    }

    // ---- producers ----------------------------------------------------------------------------------------

    /// Incarnation and size of the producer group; (0, 0) before any came.
    pub fn producers(&self) -> (u32, u32) {
        protocol::group_of(self.word(head::GROUP).load(Acquire))
    }

    pub(crate) fn set_producers(&self, incarnation: u32, size: u32) {
        self.word(head::GROUP).store(u64::from(incarnation) << 32 | u64::from(size), Release);
    }

    /// First version of the current incarnation.
    pub fn base(&self) -> u64 {
        self.word(head::BASE).load(Acquire)
    }

    /// State of the producers.
    pub fn producer_state(&self) -> ProducerState {
        self.state_of_incarnation().0
    }

    /// State of the producers, and the incarnation that it is of.
    pub(crate) fn state_of_incarnation(&self) -> (ProducerState, u32) {
        let word = self.word(head::STATE).load(Acquire);
        let slot = Self::slot_of(word >> 8 & 0xffff);
        let state = match word & 0xff {
            STATE_NONE => ProducerState::None,
            STATE_OPEN | STATE_REOPENED => ProducerState::Open,
            STATE_FINISHED => ProducerState::Finished,
            STATE_WITHDRAWN => ProducerState::Withdrawn(slot),
            _ => ProducerState::Died(slot),
        };
        (state, (word >> 32) as u32)
    }

    /// Whether the word of the state is one that is ever stored: a process that changes it compares all of it.
    pub(crate) fn is_state_plain(&self) -> bool {
        let word = self.word(head::STATE).load(Acquire);
        let (code, slot) = (word & 0xff, Self::slot_of(word >> 8 & 0xffff));
        let incarnation = (word >> 32) as u32;
        // Who takes a group over opens its lanes before it says so here, and may be killed in between, more than once.
        if incarnation > self.producers().0 {
            return false;
        }
        match code {
            STATE_NONE => word == 0,
            STATE_OPEN | STATE_FINISHED | STATE_REOPENED => word == Self::state_word(code, None, incarnation),
            STATE_DIED | STATE_WITHDRAWN => word == Self::state_word(code, slot, incarnation),
            _ => false,
        }
    }

    fn state_word(code: u64, slot: Option<u32>, incarnation: u32) -> u64 {
        code | slot.map_or(SLOT_NONE, u64::from) << 8 | u64::from(incarnation) << 32
    }

    /// Under the setup lock, when its first rank owns its lane: opens the group of an incarnation.
    pub(crate) fn open_producers(&self, incarnation: u32) {
        #[cfg(test)]
        kills::pass();
        // As an earlier release leaves it of a joiner that was killed when it owned no lane yet.
        let is_reopened = self.word(head::STATE).load(Acquire) & 0xff == STATE_REOPENED;
        let is_finished = is_reopened || self.producer_state().is_finished();
        let code = if is_finished { STATE_REOPENED } else { STATE_OPEN };
        self.word(head::STATE).store(Self::state_word(code, None, incarnation), Release);
    }

    /// After recovery: the last group is over.
    pub(crate) fn close_producers(&self, incarnation: u32, has_finished: bool) {
        let code = if has_finished { STATE_FINISHED } else { STATE_DIED };
        self.word(head::STATE).store(Self::state_word(code, None, incarnation), Release);
    }

    /// Changes the state of an incarnation; false when it was not in the first one, or is no longer the current one.
    fn change_state(&self, incarnation: u32, from: u64, to: u64, slot: Option<u32>) -> bool {
        #[cfg(test)]
        kills::pass();
        let (from, to) = (Self::state_word(from, None, incarnation), Self::state_word(to, slot, incarnation));
        self.word(head::STATE).compare_exchange(from, to, AcqRel, Acquire).is_ok()
    }

    /// Says that a rank begins a version: from here on a rank that leaves takes the group with it. False when the group
    /// is not open any more.
    pub(crate) fn note_begun(&self, incarnation: u32) -> bool {
        self.change_state(incarnation, STATE_REOPENED, STATE_OPEN, None)
            || self.word(head::STATE).load(Acquire) == Self::state_word(STATE_OPEN, None, incarnation)
    }

    /// Under the setup lock: finishes a group in which no version was begun when all ranks that joined have ended, but
    /// for `leaving`, which is about to say that it has ended, or that it was never opened whole. A kill before that
    /// leaves a finished group.
    pub(crate) fn settle_reopened(&self, incarnation: u32, size: u32, leaving: Option<u32>) {
        let is_absent = |rank| self.lane_owner(rank).0.is_none();
        let is_over = |rank| Some(rank) == leaving || self.lane_owner(rank).1 || is_absent(rank);
        if (0..size).all(is_over) {
            self.change_state(incarnation, STATE_REOPENED, STATE_FINISHED, None);
        }
    }

    /// Finishes an open group all ranks of which have ended, for one that was killed before it said so. No lock is
    /// needed: a lane that has ended stays so as long as its incarnation is the current one.
    pub(crate) fn settle_all_ended(&self, incarnation: u32, size: u32) {
        if size > 0 && (0..size).all(|rank| self.lane_owner(rank).1) {
            self.change_state(incarnation, STATE_OPEN, STATE_FINISHED, None);
        }
    }

    /// A member slot as some word says it; None where there is no such slot.
    fn slot_of(number: u64) -> Option<u32> {
        (number < MEMBERS_MAX as u64).then_some(number as u32)
    }

    /// Marks the open group of an incarnation as dead: the rank in `slot` has left. Returns whether this call did it.
    pub fn mark_died(&self, slot: u32, incarnation: u32) -> bool {
        // Between the two it may be begun, never the other way round.
        let done = self.change_state(incarnation, STATE_REOPENED, STATE_WITHDRAWN, Some(slot))
            || self.change_state(incarnation, STATE_OPEN, STATE_DIED, Some(slot));
        if done {
            self.announce();
            self.announce_space();
        }
        done
    }

    /// A word of a rank's lane. Ranks that a damaged word names share the last lane.
    fn lane(&self, rank: u32, field: usize) -> &AtomicU64 {
        self.word(LANES_AT + (rank as usize).min(LANES_MAX - 1) * lane::BYTES + field)
    }

    /// Says why the rank in `slot` leaves, before it does. Only the first rank of an incarnation that leaves can.
    pub(crate) fn give_reason(&self, slot: u32, incarnation: u32, text: &str) {
        let claim = self.word(REASON_AT + reason::CLAIM);
        let seen = claim.load(Relaxed);
        let is_older = seen >> 32 < u64::from(incarnation);
        let mine = Self::reason_claim(slot, incarnation);
        if is_older && claim.compare_exchange(seen, mine, Relaxed, Relaxed).is_ok() {
            self.set_text(REASON_AT + reason::TEXT, reason::BYTES - reason::TEXT, text);
        }
    }

    /// Why the rank in `slot` left, if it said so. For who has seen the state that names this slot.
    pub(crate) fn reason_of(&self, slot: u32) -> Option<String> {
        let mine = Self::reason_claim(slot, self.producers().0);
        (self.word(REASON_AT + reason::CLAIM).load(Relaxed) == mine)
            .then(|| self.text(REASON_AT + reason::TEXT, reason::BYTES - reason::TEXT))
    }

    fn reason_claim(slot: u32, incarnation: u32) -> u64 {
        u64::from(incarnation) << 32 | u64::from(slot + 1)
    }

    fn progress_word(&self, rank: u32) -> &AtomicU64 {
        self.lane(rank, lane::PROGRESS)
    }

    /// Incarnation and commit count of a rank's lane.
    pub fn progress(&self, rank: u32) -> (u32, u64) {
        protocol::progress_of(self.progress_word(rank).load(Acquire))
    }

    pub(crate) fn set_progress(&self, rank: u32, incarnation: u32, committed: u64) {
        self.progress_word(rank).store(protocol::progress_word(incarnation, committed), Release);
        self.copy_progress(rank, incarnation, committed);
    }

    fn progress_copy_word(&self, rank: u32) -> &AtomicU64 {
        self.lane(rank, lane::COPY)
    }

    fn copy_progress(&self, rank: u32, incarnation: u32, committed: u64) {
        self.progress_copy_word(rank).store(protocol::progress_word(incarnation, committed), Release);
    }

    /// A second copy of [`Control::progress`], stored after it: of one incarnation it is never ahead. For verification.
    pub(crate) fn progress_copy(&self, rank: u32) -> (u32, u64) {
        protocol::progress_of(self.progress_copy_word(rank).load(Acquire))
    }

    /// From here on no commit of an incarnation before this one succeeds, whose group has at most `ranks` ranks;
    /// what is complete stays so. Returns the number of complete versions that are known without the lanes.
    pub(crate) fn close_lanes(&self, incarnation: u32, ranks: u32) -> u64 {
        let (group, base) = (self.word(head::GROUP), self.word(head::BASE));
        protocol::close_lanes(group, base, |rank| self.progress_word(rank), incarnation, ranks)
    }

    /// Lets the ranks of an incarnation commit, from version `first` on.
    pub(crate) fn open_lanes(&self, incarnation: u32, size: u32, first: u64) {
        let (group, base) = (self.word(head::GROUP), self.word(head::BASE));
        protocol::open_lanes(group, base, |rank| self.progress_word(rank), incarnation, size, first);
    }

    /// Counts one more version of a rank as committed, unless a newer incarnation took over (false).
    pub fn advance(&self, rank: u32, incarnation: u32, version: u64) -> bool {
        let advanced = protocol::advance(self.progress_word(rank), incarnation, version);
        if advanced {
            self.copy_progress(rank, incarnation, version + 1);
        }
        advanced
    }

    /// Member slot of a rank's producer (None before it joined) and whether it ended cleanly.
    pub fn lane_owner(&self, rank: u32) -> (Option<u32>, bool) {
        let word = self.lane(rank, lane::OWNER).load(Acquire);
        match word & 0xff {
            0 => (None, false),
            state => (Self::slot_of(word >> 8), state == 2),
        }
    }

    /// Process id of the rank's producer, for messages.
    pub(crate) fn lane_pid(&self, rank: u32) -> &AtomicU64 {
        self.lane(rank, lane::PID)
    }

    /// Start of the process that was the rank's producer last. With its id it is that process's own.
    pub(crate) fn lane_start_ticks(&self, rank: u32) -> &AtomicU64 {
        self.lane(rank, lane::START_TICKS)
    }

    pub(crate) fn set_lane_owner(&self, rank: u32, owner: Option<u32>, ended: bool) {
        #[cfg(test)]
        kills::pass();
        let word = owner.map_or(0, |slot| u64::from(slot) << 8 | if ended { 2 } else { 1 });
        self.lane(rank, lane::OWNER).store(word, Release);
    }

    /// One more than the newest version that every rank has committed: the number of complete versions.
    pub fn complete(&self) -> u64 {
        protocol::complete(self.word(head::GROUP), self.word(head::BASE), |rank| self.progress_word(rank))
    }

    /// First version that was not dropped.
    pub fn oldest(&self) -> u64 {
        self.oldest_word().load(Acquire)
    }

    /// What [`Control::oldest`] is to become: raised before it, so that it is never below.
    pub(crate) fn oldest_announced(&self) -> u64 {
        self.announced_word().load(Acquire)
    }

    fn announced_word(&self) -> &AtomicU64 {
        self.word(head::OLDEST_ANNOUNCED)
    }

    /// As [`protocol::drop_below`].
    pub(crate) fn drop_below(&self, floor: impl FnMut() -> u64) -> u64 {
        protocol::drop_below(self.oldest_word(), self.announced_word(), floor)
    }

    /// As [`protocol::first_kept`].
    pub(crate) fn first_kept(&self) -> u64 {
        protocol::first_kept(self.oldest_word(), self.announced_word())
    }

    /// Of a segment that no other process knows yet, and whose space has no version: the first one has this number.
    pub(crate) fn begin_at(&self, version: u64) {
        self.word(head::BASE).store(version, Release);
        self.set_oldest(version);
    }

    /// Sets the first retained version of a segment that no other process knows yet.
    pub(crate) fn set_oldest(&self, oldest: u64) {
        self.announced_word().store(oldest, Release);
        self.oldest_word().store(oldest, Release);
    }

    /// The word of [`Control::oldest`].
    pub(crate) fn oldest_word(&self) -> &AtomicU64 {
        self.word(head::OLDEST)
    }

    /// The words of an entry of the history: the first version, and the group.
    fn history(&self, index: u64) -> (&AtomicU64, &AtomicU64) {
        let at = head::HISTORY + (index as usize % HISTORY_MAX) * 16;
        (self.word(at), self.word(at + 8))
    }

    /// Remembers an incarnation: versions from `base` on are its own. One that begins where the newest remembered one
    /// began takes its entry: that one completed no version.
    pub(crate) fn remember(&self, incarnation: u32, size: u32, base: u64) {
        let length = self.word(head::HISTORY_LENGTH).load(Relaxed);
        let group = u64::from(incarnation) << 32 | u64::from(size);
        if length > 0 {
            let (first, newest) = self.history(length - 1);
            if first.load(Relaxed) == base {
                newest.store(group, Release);
                return;
            }
        }
        let (first, newest) = self.history(length);
        first.store(base, Relaxed);
        // A reader that finds this group in a reused entry also finds its first version.
        newest.store(group, Release);
        self.word(head::HISTORY_LENGTH).store(length.wrapping_add(1), Release);
    }

    /// Incarnation and size of the group that produced `version`; None where its start is not remembered any more.
    pub(crate) fn remembered_producers_of(&self, version: u64) -> Option<(u32, u32)> {
        let length = self.word(head::HISTORY_LENGTH).load(Acquire);
        let oldest = length.saturating_sub(HISTORY_MAX as u64);
        (oldest..length).rev().find_map(|index| {
            let (first, group) = self.history(index);
            let group = group.load(Acquire);
            (first.load(Relaxed) <= version).then_some(protocol::group_of(group))
        })
    }

    // ---- members and groups -------------------------------------------------------------------------------

    /// A word of a member slot.
    pub(crate) fn member(&self, slot: u32, field: usize) -> &AtomicU64 {
        self.word(MEMBERS_AT + slot as usize * member::BYTES + field)
    }

    /// The word on which the helper thread of a producer sleeps.
    pub(crate) fn calls(&self, slot: u32) -> &AtomicU32 {
        self.half(MEMBERS_AT + slot as usize * member::BYTES + member::CALLS)
    }

    /// Wakes the helper of a member of this process.
    pub(crate) fn call_helper(&self, slot: u32) {
        self.calls(slot).fetch_add(2 * FREE_SPACE_ASKED, Release);
        wait::wake_all(self.calls(slot));
    }

    /// Asks a producer, which may be waiting for something else, to free what was released of its lane.
    pub(crate) fn ask_for_free_space(&self, slot: u32) {
        self.calls(slot).fetch_or(FREE_SPACE_ASKED, Release);
        wait::wake_all(self.calls(slot));
    }

    pub(crate) fn member_name(&self, slot: u32) -> String {
        self.name(MEMBERS_AT + slot as usize * member::BYTES + member::NAME)
    }

    pub(crate) fn set_member_name(&self, slot: u32, name: &str) {
        self.set_name(MEMBERS_AT + slot as usize * member::BYTES + member::NAME, name);
    }

    /// Slots that were ever used lie below this.
    pub(crate) fn members_high(&self) -> u32 {
        self.word(head::MEMBERS_HIGH).load(Acquire).min(MEMBERS_MAX as u64) as u32
    }

    /// Places of reader groups that were ever used lie below this.
    pub(crate) fn groups_high(&self) -> usize {
        // Before a group's state: who sees no group here has looked before it was registered.
        self.word(head::GROUPS_HIGH).load(SeqCst).min(GROUPS_MAX as u64) as usize
    }

    /// No registered group lies beyond [`Control::groups_high`] then, whatever became of that word.
    pub(crate) fn mend_groups_high(&self) {
        let is_registered = |index: &usize| self.group(*index, group::STATE).load(SeqCst) != 0;
        let high = (0..GROUPS_MAX).rev().find(is_registered).map_or(0, |index| index as u64 + 1);
        self.word(head::GROUPS_HIGH).fetch_max(high, SeqCst);
    }

    /// A reader group is registered, all of it being there.
    pub(crate) fn register_group(&self, index: usize) {
        self.word(head::GROUPS_HIGH).fetch_max(index as u64 + 1, SeqCst);
        self.group(index, group::STATE).store(1, SeqCst);
    }

    /// Ranks of a reader group.
    pub(crate) fn group_size(&self, index: usize) -> u32 {
        self.group(index, group::SIZE).load(Relaxed).min(u64::from(GROUP_RANKS_MAX)) as u32
    }

    /// A word of a reader group.
    pub(crate) fn group(&self, index: usize, field: usize) -> &AtomicU64 {
        self.word(GROUPS_AT + index * group::BYTES + field)
    }

    /// What the sum of a reader group is, of what does not change after its registration.
    fn group_sum(&self, index: usize) -> u64 {
        let name = (0..NAME_BYTES / WORD).map(|i| self.group(index, group::NAME + i * WORD).load(Relaxed));
        let words =
            [group::SIZE, group::START, group::CURSORS].map(|field| self.group(index, field).load(Relaxed));
        let bytes: Vec<u8> = words.into_iter().chain(name).flat_map(u64::to_le_bytes).collect();
        // Of no group it is 0, as its sum.
        1 << 32 | u64::from(forebay_tier::checksum::crc32c(&bytes))
    }

    /// Under the setup lock, after size, name, start or cursors of a group were set.
    pub(crate) fn sum_group(&self, index: usize) {
        self.group(index, group::SUM).store(self.group_sum(index), Release);
    }

    /// Whether a reader group is what was registered; also where there is none.
    pub(crate) fn is_group_whole(&self, index: usize) -> bool {
        let (state, sum) = (self.group(index, group::STATE), self.group(index, group::SUM));
        match (state.load(Acquire), sum.load(Acquire)) {
            (0, 0) => true,
            // Who registers a group sums it before it says that it is there, and may be killed in between.
            (0, sum) => sum == self.group_sum(index) && self.group_count(index, group::JOINED) == 0,
            // Its size is being changed, or the process that did so was killed: the next one does it again.
            (1, 0) => true,
            (1, sum) => {
                let is_sane = |place| !matches!(self.cursor(place), Cursor::Free | Cursor::Damaged);
                sum == self.group_sum(index)
                    && self.group(index, group::POLICY).load(Acquire) <= 3
                    && self.group_cursors(index).all(is_sane)
            }
            _ => false,
        }
    }

    /// The places of a group's cursors in their table. One word, so that it changes at once.
    pub(crate) fn group_cursors(&self, index: usize) -> Range<usize> {
        let word = self.group(index, group::CURSORS).load(SeqCst);
        let first = ((word >> 32) as usize).min(CURSORS_MAX);
        first..(first + word as u32 as usize).min(CURSORS_MAX)
    }

    pub(crate) fn set_group_cursors(&self, index: usize, places: &Range<usize>) {
        let word = (places.start as u64) << 32 | places.len() as u64;
        self.group(index, group::CURSORS).store(word, SeqCst);
    }

    fn cursor_word(&self, place: usize) -> &AtomicU64 {
        self.word(CURSORS_AT + place * cursor::BYTES + cursor::CURSOR)
    }

    /// How far the rank whose cursor is at `place` has got.
    pub(crate) fn cursor(&self, place: usize) -> Cursor {
        Cursor::of_word(place, self.cursor_word(place).load(SeqCst))
    }

    /// As [`Control::set_cursor`]; one that makes no sense stays so, for who needs it to say so.
    pub(crate) fn set_cursor_as_found(&self, place: usize, cursor: Cursor) {
        match cursor {
            Cursor::Damaged => self.cursor_word(place).store(1, SeqCst),
            cursor => self.set_cursor(place, cursor),
        }
    }

    pub(crate) fn set_cursor(&self, place: usize, cursor: Cursor) {
        self.cursor_word(place).store(cursor.word(place), SeqCst);
    }

    pub(crate) fn group_name(&self, index: usize) -> String {
        self.name(GROUPS_AT + index * group::BYTES + group::NAME)
    }

    pub(crate) fn set_group_name(&self, index: usize, name: &str) {
        self.set_name(GROUPS_AT + index * group::BYTES + group::NAME, name);
    }

    /// Whether bit `rank` of a group's mask is set.
    pub(crate) fn group_bit(&self, index: usize, mask: usize, rank: u32) -> bool {
        self.group(index, mask + rank as usize / 64 * WORD).load(SeqCst) >> (rank % 64) & 1 == 1
    }

    pub(crate) fn set_group_bit(&self, index: usize, mask: usize, rank: u32) {
        self.group(index, mask + rank as usize / 64 * WORD).fetch_or(1 << (rank % 64), SeqCst);
    }

    pub(crate) fn clear_group_bit(&self, index: usize, mask: usize, rank: u32) {
        self.group(index, mask + rank as usize / 64 * WORD).fetch_and(!(1 << (rank % 64)), SeqCst);
    }

    pub(crate) fn clear_group_bits(&self, index: usize, mask: usize) {
        for i in 0..GROUP_RANKS_MAX as usize / 64 {
            self.group(index, mask + i * WORD).store(0, SeqCst);
        }
    }

    pub(crate) fn group_count(&self, index: usize, mask: usize) -> u32 {
        (0..GROUP_RANKS_MAX as usize / 64)
            .map(|i| self.group(index, mask + i * WORD).load(SeqCst).count_ones())
            .sum()
    }

    // ---- granules -----------------------------------------------------------------------------------------

    /// Number of granules, the superblock's included.
    pub fn granules(&self) -> usize {
        self.granules
    }

    fn granule(&self, index: usize, field: usize) -> &AtomicU64 {
        self.word(GRANULES_AT + index * granule::BYTES + field)
    }

    /// What granule `index` is used for.
    pub fn granule_state(&self, index: usize) -> GranuleState {
        Self::state_of(protocol::look_at(self.granule(index, granule::OWNER)))
    }

    fn state_of(word: u64) -> GranuleState {
        let slot = Self::slot_of(word >> 48);
        let lane =
            LaneId { rank: (word >> 4 & 0xf_ffff) as u32, incarnation: (word >> 24 & 0xff_ffff) as u32 };
        match word & 0xf {
            0 => GranuleState::Free,
            1 => GranuleState::Superblock,
            2 => GranuleState::Segment { lane, slot },
            3 => GranuleState::Spare { lane, slot },
            _ => GranuleState::Leaving { lane, slot },
        }
    }

    pub(crate) fn set_granule_state(&self, index: usize, state: GranuleState) {
        #[cfg(test)]
        kills::pass();
        protocol::hand_over(self.granule(index, granule::OWNER), Self::owner_word(state));
    }

    /// A segment of `lane` was copied from the run that begins at granule `old` to that at `new`. The old one is left
    /// by the member in `slot`.
    pub(crate) fn publish_move(&self, old: usize, new: usize, lane: LaneId, slot: Option<u32>) {
        let owner = |index, state| (self.granule(index, granule::OWNER), Self::owner_word(state));
        let segment = owner(new, GranuleState::Segment { lane, slot });
        protocol::publish_move(segment, owner(old, GranuleState::Leaving { lane, slot }));
    }

    fn owner_word(state: GranuleState) -> u64 {
        let pack = |kind: u64, lane: LaneId, slot: Option<u32>| {
            debug_assert!(lane.rank < 1 << 20 && lane.incarnation < 1 << 24);
            let slot = slot.map_or(SLOT_NONE, u64::from);
            kind | u64::from(lane.rank) << 4 | u64::from(lane.incarnation) << 24 | slot << 48
        };
        match state {
            GranuleState::Free => 0,
            GranuleState::Superblock => 1,
            GranuleState::Segment { lane, slot } => pack(2, lane, slot),
            GranuleState::Spare { lane, slot } => pack(3, lane, slot),
            GranuleState::Leaving { lane, slot } => pack(4, lane, slot),
        }
    }

    /// Sequence in its lane and length in granules of the segment that begins at granule `index`.
    pub fn granule_segment(&self, index: usize) -> (u64, usize) {
        let word = self.granule(index, granule::SEGMENT).load(Acquire);
        (word >> 32, (word as u32 as usize).min(self.granules - index))
    }

    fn run_words(&self, index: usize) -> protocol::RunWords<'_, AtomicU64> {
        let word = |field| self.granule(index, field);
        (word(granule::OWNER), word(granule::SEGMENT), word(granule::LAST))
    }

    /// Says which segment lies in the run that begins at granule `index`, its length in granules and the newest version
    /// in it, before the run is published. Of its bytes none are filled yet.
    pub(crate) fn describe_run(&self, index: usize, sequence: u64, granules: usize, last: u64) {
        #[cfg(test)]
        kills::pass();
        self.set_filled(index, 0);
        protocol::describe_run(self.run_words(index), (sequence << 32 | granules as u64, last));
    }

    /// Newest version in the segment that begins at granule `index`.
    pub fn granule_last(&self, index: usize) -> u64 {
        self.granule(index, granule::LAST).load(Acquire)
    }

    pub(crate) fn set_granule_last(&self, index: usize, version: u64) {
        self.granule(index, granule::LAST).store(version, Release);
    }

    /// Bytes of header and records in the segment that begins at granule `index`: for people, nothing rests on it.
    pub(crate) fn set_filled(&self, index: usize, bytes: u64) {
        self.granule(index, granule::FILLED).store(bytes, Relaxed);
    }

    /// The runs and free granules of a pool, in order. Under the allocation lock no run is missed and none begins
    /// inside another; without it they are those of a moment each.
    pub(crate) fn runs(&self, pool: Range<usize>) -> impl Iterator<Item = Run> + '_ {
        let mut first = pool.start;
        std::iter::from_fn(move || {
            let run = (first < pool.end).then(|| self.run(first, pool.end))?;
            first += run.granules;
            Some(run)
        })
    }

    fn run(&self, first: usize, end: usize) -> Run {
        // A run that changes hands at every look is none that the caller holds; it counts as taken.
        let (owner, segment, last) =
            self.look_at_run(first).unwrap_or((Self::owner_word(GranuleState::Superblock), 1, 0));
        let state = Self::state_of(owner);
        let granules = match state {
            GranuleState::Free => 1,
            _ => (segment as u32 as usize).clamp(1, end - first),
        };
        let filled_bytes = self.granule(first, granule::FILLED).load(Relaxed);
        Run { first, granules, state, last, filled_bytes }
    }

    /// The lane's first segment that fits, by sequence and newest version. What holds a version that the caller holds
    /// is found; its place is checked by the header there.
    pub(crate) fn find_segment(&self, lane: LaneId, fits: impl Fn(u64, u64) -> bool) -> Option<FoundSegment> {
        let mut best: Option<FoundSegment> = None;
        for index in 1..self.granules {
            // Most granules are of other lanes, which one word tells.
            if !self.is_segment_of(index, lane) {
                continue;
            }
            let Some((owner, segment, last)) = self.look_at_run(index) else { continue };
            let (is_of_lane, sequence) = (Self::is_owned_by(owner, lane), segment >> 32);
            if is_of_lane && best.is_none_or(|best| sequence < best.sequence) && fits(sequence, last) {
                best = Some(FoundSegment { granule: index, sequence });
            }
        }
        best
    }

    /// The words of a run, all of one owner. None when the run changes hands at each of several looks: then it does
    /// not hold anything that the caller holds.
    fn look_at_run(&self, index: usize) -> Option<(u64, u64, u64)> {
        (0..LOOKS_MAX).find_map(|_| protocol::look_at_run(self.run_words(index)))
    }

    /// Whether a segment of `lane` begins at granule `index`.
    pub(crate) fn is_segment_of(&self, index: usize, lane: LaneId) -> bool {
        Self::is_owned_by(protocol::look_at(self.granule(index, granule::OWNER)), lane)
    }

    fn is_owned_by(owner: u64, lane: LaneId) -> bool {
        matches!(Self::state_of(owner), GranuleState::Segment { lane: found, .. } if found == lane)
    }

    // ---- variables ----------------------------------------------------------------------------------------

    /// Notes dtype and shape (as `signature`) of a variable in a version (as `key`, a well-mixed hash of both).
    /// False when another rank noted a different one. The table forgets; it never invents: two keys share an
    /// entry's 52 bits once in 10^15.
    pub fn agree(&self, key: u64, signature: u64) -> bool {
        let (slot, tag) = self.variable(key);
        let wanted = tag | (signature >> 40).max(1);
        let found = slot.load(Acquire);
        if found == wanted {
            return true;
        }
        if found >> 24 << 24 == tag && found != 0 {
            return false;
        }
        // Lost races only lose an entry, except against another rank with the same variable: look again.
        match slot.compare_exchange(found, wanted, AcqRel, Acquire) {
            Ok(_) => true,
            Err(now) => now == wanted || now >> 24 << 24 != tag,
        }
    }

    /// Forgets what ranks noted of a variable in a version: a rank that noted it drops what it put there.
    pub(crate) fn forget(&self, key: u64) {
        let (slot, tag) = self.variable(key);
        let found = slot.load(Acquire);
        if found >> 24 << 24 == tag {
            let _ = slot.compare_exchange(found, 0, AcqRel, Relaxed);
        }
    }

    /// The entry of a key, and the bits by which it is known there.
    fn variable(&self, key: u64) -> (&AtomicU64, u64) {
        let at = VARIABLES_AT + (key as usize % VARIABLES_MAX) * variable::BYTES + variable::SIGNATURE;
        (self.word(at), key >> 24 << 24)
    }

    /// The error of a handle whose space was removed under it.
    pub(crate) fn is_removed(&self) -> bool {
        self.word(head::REMOVED).load(Acquire) == REMOVED_MARK
    }
}

/// The error for more of something than a table or a number may hold.
pub(crate) fn too_many(what: &str, max: usize) -> Error {
    Error::new(Kind::TooMany, format!("too many {what}")).with("most", max)
}

/// Kills of a thread before one of its changes to the table of granules, or to the words of the producers: a panic,
/// which releases its locks as the kernel does.
#[cfg(test)]
pub(crate) mod kills {
    use std::cell::Cell;
    use std::panic::{catch_unwind, AssertUnwindSafe};

    thread_local! { static LEFT: Cell<Option<u32>> = const { Cell::new(None) } }

    pub(super) fn pass() {
        LEFT.with(|left| match left.get() {
            Some(0) => {
                left.set(None);
                std::panic::resume_unwind(Box::new("killed"));
            }
            Some(n) => left.set(Some(n - 1)),
            None => {}
        });
    }

    /// Runs `f`, killed after `changes` changes. Whether it was killed.
    pub(crate) fn after(changes: u32, f: impl FnOnce()) -> bool {
        LEFT.set(Some(changes));
        let was_killed = catch_unwind(AssertUnwindSafe(f)).is_err();
        LEFT.set(None);
        was_killed
    }
}

/// An execution mode as the control segment holds it.
fn mode_word(execution_mode: ExecutionMode) -> u64 {
    match execution_mode {
        ExecutionMode::Parallel => 0,
        ExecutionMode::SerialPerStep => 1,
        ExecutionMode::Serial => 2,
        ExecutionMode::Gated { writers, readers } => 3 | u64::from(writers) << 8 | u64::from(readers) << 24,
    }
}

/// What a word of the control segment says; no word is wrong, because the segment is soft state.
fn execution_mode_of(word: u64) -> ExecutionMode {
    let places = |shift: u32| ((word >> shift & 0xffff) as u32).clamp(1, GATE_PLACES_MAX);
    match word & 0xff {
        1 => ExecutionMode::SerialPerStep,
        2 => ExecutionMode::Serial,
        3 => ExecutionMode::Gated { writers: places(8), readers: places(24) },
        _ => ExecutionMode::Parallel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_their_fields() {
        for l in control_layouts() {
            assert!(l.size % WORD == 0, "{}", l.name);
            assert!(l.fields.windows(2).all(|w| w[0].1 < w[1].1), "{}", l.name);
        }
    }

    /// A run is taken again and again by one lane while another thread looks its segments up: sequence and newest
    /// version that come back belong together.
    #[test]
    fn a_look_at_a_run_that_changes_hands_is_of_one_owner() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let control = Control::of_granules(&dir.path().join("control"), 3).unwrap();
        let lane = LaneId { incarnation: 1, rank: 0 };
        let segment = GranuleState::Segment { lane, slot: Some(3) };
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for sequence in 1..2_000_000 {
                    // No two words of a run are the same, as in a space.
                    control.describe_run(1, 0, sequence as usize, 0);
                    control.set_granule_state(1, GranuleState::Spare { lane, slot: Some(3) });
                    control.describe_run(1, sequence, 1, 10 * sequence);
                    control.set_granule_state(1, segment);
                    control.set_granule_state(1, GranuleState::Free);
                }
                is_over.store(true, Release);
            });
            while !is_over.load(Acquire) {
                control.find_segment(lane, |sequence, last| {
                    assert_eq!(last, 10 * sequence, "of segment {sequence}");
                    true
                });
            }
        });
    }

    /// A rank of incarnation 1 is found dead while incarnation 2 opens.
    #[test]
    fn a_death_is_of_its_incarnation() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let control = Control::of_granules(&dir.path().join("control"), 1).unwrap();
        control.open_producers(1);
        control.open_producers(2);
        assert!(!control.mark_died(7, 1));
        assert_eq!(control.producer_state(), ProducerState::Open);
        assert!(control.mark_died(8, 2));
        assert_eq!(control.producer_state(), ProducerState::Died(Some(8)));
    }

    #[test]
    fn modes_are_read_as_stored() {
        let gated = ExecutionMode::Gated { writers: 4, readers: 64 };
        for execution_mode in
            [ExecutionMode::Parallel, ExecutionMode::SerialPerStep, ExecutionMode::Serial, gated]
        {
            assert_eq!(execution_mode_of(mode_word(execution_mode)), execution_mode);
        }
        let gate = ExecutionMode::Gated { writers: 1, readers: 1 };
        assert_eq!(execution_mode_of(3), gate, "a damaged word is no gate of none");
        assert_eq!(execution_mode_of(77), ExecutionMode::Parallel);
    }

    #[test]
    fn waiting_words_round_trip() {
        for w in
            [Waiting::No, Waiting::Version(7), Waiting::FreeSpace(1 << 40), Waiting::Turn(3), Waiting::Gate]
        {
            assert_eq!(Waiting::of_word(w.word()), w);
        }
    }
}
