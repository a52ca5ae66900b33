//! The control segment: the shared, soft state of a space.
//!
//! A file of 64-bit words in shared memory that every member maps: who produces, who reads, how far each rank
//! has committed, which granule belongs to which lane. It is *soft*: everything in it that matters is rebuilt
//! from the lanes and the members' kernel locks at any time ([`crate::attach`]). It holds no lock; each change is
//! one atomic store or exchange, or redoable under a lock that the kernel releases when its holder dies.
//!
//! Layout, checked against docs/src/formats/control.md by `cargo xtask formats`: a head of one page, then the
//! tables of lanes, members, reader groups, granules and variables. Sizes of the tables are constants except the
//! granules', of which there are as many as the pool has.

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

use forebay_log::format::Layout;
use forebay_log::{LaneId, Superblock};
use forebay_tier::{wait, Error, Kind, Result, SharedWords};

use crate::pace::{Pace, GATE_PLACES_MAX};
use crate::protocol;

/// "REMOVED!", in the word `removed`. No other value there means anything: data must not go for a damaged word.
pub(crate) const REMOVED_MARK: u64 = u64::from_le_bytes(*b"REMOVED!");
/// "FOREBAYC", the first word.
pub const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"FOREBAYC");
/// Version of this layout. Control segments do not outlive a boot, so an unknown one is rebuilt, not refused.
pub const CONTROL_VERSION: u64 = 3;
/// Most producer ranks of one space; a node has fewer cores.
pub const LANES_MAX: usize = protocol::RANKS_MAX as usize;
/// Most processes that have a space open at once, ranks and observers.
pub const MEMBERS_MAX: usize = 2048;
/// Most reader groups.
pub const GROUPS_MAX: usize = 64;
/// Most ranks of a reader group: the bits of its masks.
pub const GROUP_RANKS_MAX: u32 = 1024;
/// Incarnations remembered, to find the lane of an old version; older ones are found by recovery.
pub const HISTORY_MAX: usize = 128;
/// Entries of the table that finds ranks disagreeing on a variable. It is lossy: what it misses, readers find.
pub const VARIABLES_MAX: usize = 4096;

/// Bytes of a name kept in a member or group.
pub const NAME_BYTES: usize = 64;

const WORD: usize = 8;

macro_rules! words {
    ($table:literal, $size:literal; $($field:ident $name:literal = $at:literal;)*) => {
        // Reserved fields are named for the document only.
        $(#[allow(dead_code)] pub(crate) const $field: usize = $at;)*
        pub(crate) fn layout() -> Layout {
            let mut fields = vec![$(($name, $at, 0)),*];
            // A field reaches to the next one; the last one to the end.
            for i in 0..fields.len() {
                let end = fields.get(i + 1).map_or($size, |f| f.1);
                fields[i].2 = end - fields[i].1;
            }
            Layout { name: $table, size: $size, fields }
        }
        pub(crate) const BYTES: usize = $size;
    };
}

pub(crate) mod head {
    use super::*;
    words! { "ControlHead", 4096;
        MAGIC "magic" = 0;
        VERSION "version" = 8;
        UUID "uuid" = 16;
        BOOT "boot" = 32;
        GRANULES "granules" = 48;
        REMOVED "removed" = 56;
        EVENTS "events" = 64;
        EVENT_WAITERS "event_waiters" = 68;
        ROOM "room" = 128;
        ROOM_WAITERS "room_waiters" = 132;
        GROUP "group" = 192;
        BASE "base" = 200;
        STATE "state" = 208;
        RUN_TOKEN "run_token" = 216;
        OLDEST "oldest" = 224;
        MEMBERS_HIGH "members_high" = 232;
        HISTORY_LENGTH "history_length" = 240;
        PRODUCER "producer" = 256;
        SPILLED "spilled_bytes" = 384;
        PROMOTED "promoted_bytes" = 392;
        MOVES_FAILED "moves_failed" = 400;
        DROPPED "dropped_versions" = 408;
        PACE "pace" = 416;
        GATE "gate" = 448;
        GATE_WAITERS "gate_waiters" = 452;
        HISTORY "history" = 1024;
        PLACES "gate_places" = 3072;
    }
}
pub(crate) mod lane {
    use super::*;
    words! { "ControlLane", 64;
        PROGRESS "progress" = 0;
        OWNER "owner" = 8;
        RESERVED "reserved" = 16;
    }
}
pub(crate) mod member {
    use super::*;
    words! { "ControlMember", 256;
        STATE "state" = 0;
        RANK "rank" = 8;
        PID "pid" = 16;
        SINCE "since_unix_ns" = 24;
        INCARNATION "incarnation" = 32;
        GROUP "group" = 40;
        CURSOR "cursor" = 48;
        LEASE "lease" = 56;
        WAITING "waiting" = 64;
        WAITING_SINCE "waiting_since_unix_ns" = 72;
        STEPS "steps" = 80;
        BYTES_MOVED "bytes" = 88;
        OP_NS "op_ns" = 96;
        WAIT_NS "wait_ns" = 104;
        START_TICKS "start_ticks" = 112;
        LEASE_NEWEST "lease_newest" = 120;
        NAME "name" = 128;
        CALLS "calls" = 192;
        RESERVED "reserved" = 200;
    }
}
pub(crate) mod group {
    use super::*;
    words! { "ControlGroup", 512;
        STATE "state" = 0;
        SIZE "size" = 8;
        START "start" = 16;
        NAME "name" = 64;
        JOINED "joined" = 128;
        ENDED "ended" = 256;
        RESERVED "reserved" = 384;
    }
}
pub(crate) mod granule {
    use super::*;
    words! { "ControlGranule", 24;
        OWNER "owner" = 0;
        SEGMENT "segment" = 8;
        LAST "last_version" = 16;
    }
}
mod variable {
    use super::*;
    words! { "ControlVariable", 8;
        SIGNATURE "signature" = 0;
    }
}

const _: () = assert!(head::HISTORY + HISTORY_MAX * 16 <= head::PLACES);
const _: () = assert!(head::PLACES + 2 * GATE_PLACES_MAX as usize * WORD <= head::BYTES);
const _: () = assert!(group::JOINED + GROUP_RANKS_MAX as usize / 8 <= group::ENDED);
const _: () = assert!(group::ENDED + GROUP_RANKS_MAX as usize / 8 <= group::RESERVED);
const _: () = assert!(member::NAME + NAME_BYTES <= member::RESERVED);

const LANES_AT: usize = head::BYTES;
const MEMBERS_AT: usize = LANES_AT + LANES_MAX * lane::BYTES;
const GROUPS_AT: usize = MEMBERS_AT + MEMBERS_MAX * member::BYTES;
const VARIABLES_AT: usize = GROUPS_AT + GROUPS_MAX * group::BYTES;
const GRANULES_AT: usize = VARIABLES_AT + VARIABLES_MAX * variable::BYTES;

/// Every table of the control segment, for `cargo xtask formats`.
pub fn control_layouts() -> Vec<Layout> {
    vec![
        head::layout(),
        lane::layout(),
        member::layout(),
        group::layout(),
        variable::layout(),
        granule::layout(),
    ]
}

/// State of the producers, in the low byte of `state`; the high bytes name the member that died.
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
}

/// What occupies a run of granules, in the `owner` word of its first granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GranuleState {
    /// Free.
    Free,
    /// Belongs to the run that begins further down.
    Inside,
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
        /// Member slot of whoever moved it.
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

/// Bits of the word `pace` that hold it; above stands the incarnation of the producers that said it.
const PACE_BITS: u32 = 40;
const PACE_MASK: u64 = (1 << PACE_BITS) - 1;
/// The highest of them, which no gate needs: the pace was changed since the producers said one.
const STEERED: u64 = 1 << (PACE_BITS - 1);

/// In the word `calls` of a producer: another one asks it to give room back. The rest counts its own calls.
pub(crate) const ROOM_ASKED: u32 = 1;

/// Why a member waits, in its `waiting` word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// It does not.
    No,
    /// A reader: for this version to be complete.
    Version(u64),
    /// A producer: for room for this version.
    Room(u64),
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
            Waiting::Room(v) => 2 << 56 | v,
            Waiting::Turn(v) => 3 << 56 | v,
            Waiting::Gate => 4 << 56,
        }
    }

    pub(crate) fn of_word(word: u64) -> Waiting {
        let version = word & ((1 << 56) - 1);
        match word >> 56 {
            1 => Waiting::Version(version),
            2 => Waiting::Room(version),
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

    /// A new, empty segment at `path`.
    pub fn create(path: &Path, superblock: &Superblock, boot_id: &[u8; 16]) -> Result<Control> {
        let granules = (superblock.capacity_bytes / superblock.granule_bytes) as usize;
        let words = SharedWords::create(path, Self::file_bytes(granules) as u64)?;
        let control = Control { words, granules };
        control.set_pair(head::UUID, &superblock.uuid);
        control.set_pair(head::BOOT, boot_id);
        control.word(head::GRANULES).store(granules as u64, Relaxed);
        control.word(head::VERSION).store(CONTROL_VERSION, Relaxed);
        // The superblock's granule is never given away.
        control.word(GRANULES_AT + granule::OWNER).store(1, Relaxed);
        control.word(head::MAGIC).store(CONTROL_MAGIC, Release);
        Ok(control)
    }

    /// The existing segment, or None if it is not one of this pool, boot and version and has to be rebuilt.
    pub fn open(path: &Path, superblock: &Superblock, boot_id: &[u8; 16]) -> Result<Option<Control>> {
        let granules = (superblock.capacity_bytes / superblock.granule_bytes) as usize;
        let bytes = Self::file_bytes(granules);
        match std::fs::metadata(path) {
            Ok(m) if m.len() == bytes as u64 => {}
            Ok(_) => return Ok(None),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("looking at the control segment", e)),
        }
        let control = Control { words: SharedWords::open(path, bytes as u64)?, granules };
        let fits = control.word(head::MAGIC).load(Acquire) == CONTROL_MAGIC
            && control.word(head::VERSION).load(Relaxed) == CONTROL_VERSION
            && control.pair(head::UUID) == superblock.uuid
            && control.pair(head::BOOT) == *boot_id
            && control.word(head::GRANULES).load(Relaxed) == granules as u64;
        Ok(fits.then_some(control))
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
        let mut bytes = [0u8; NAME_BYTES];
        let mut end = name.len().min(NAME_BYTES);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        for (i, part) in bytes.chunks_exact(WORD).enumerate() {
            let value = u64::from_le_bytes(part.try_into().expect("eight bytes"));
            self.word(offset + i * WORD).store(value, Relaxed);
        }
    }

    pub(crate) fn name(&self, offset: usize) -> String {
        let bytes: Vec<u8> = (0..NAME_BYTES / WORD)
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

    /// Counts up whenever room may have become free.
    pub fn room(&self) -> &AtomicU32 {
        self.half(head::ROOM)
    }

    /// Tells whoever waits for a version. The system call is made only if somebody sleeps.
    pub fn announce(&self) {
        let events = self.events();
        protocol::announce(events, self.half(head::EVENT_WAITERS), || wait::wake_all(events));
    }

    /// Tells whoever waits for room.
    pub fn announce_room(&self) {
        let room = self.room();
        protocol::announce(room, self.half(head::ROOM_WAITERS), || wait::wake_all(room));
    }

    /// Spins for `spin_ns`, then sleeps for at most `timeout`, while [`Control::events`] is `seen`.
    pub(crate) fn wait_events(&self, seen: u32, spin_ns: u64, timeout: Duration) {
        // Who spins is no waiter yet: the producer then needs no system call to wake it.
        if !wait::spin(self.events(), seen, spin_ns) {
            protocol::sleep(self.half(head::EVENT_WAITERS), || wait::wait(self.events(), seen, timeout));
        }
    }

    /// Sleeps while [`Control::room`] is `seen`; at most `timeout`.
    pub(crate) fn wait_room(&self, seen: u32, timeout: Duration) {
        protocol::sleep(self.half(head::ROOM_WAITERS), || wait::wait(self.room(), seen, timeout));
    }

    /// Counts up whenever a place inside the gate may have become free.
    pub(crate) fn gate(&self) -> &AtomicU32 {
        self.half(head::GATE)
    }

    /// Tells whoever waits for a place inside the gate.
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
    pub fn pace(&self) -> Pace {
        Pace::of_word(self.word(head::PACE).load(Acquire) & PACE_MASK & !STEERED)
    }

    /// Whether somebody has changed the pace that the producers said.
    pub(crate) fn is_steered(&self) -> bool {
        self.word(head::PACE).load(Acquire) & STEERED != 0
    }

    /// Changes the pace of the present incarnation of the producers; wakes whoever waits by the old one.
    pub(crate) fn steer(&self, pace: Pace) {
        let word = self.word(head::PACE);
        let mut seen = word.load(Acquire);
        // A restarted group of producers that says its own pace meanwhile wins.
        while let Err(now) =
            word.compare_exchange(seen, (seen & !PACE_MASK) | pace.word() | STEERED, AcqRel, Acquire)
        {
            if now & !PACE_MASK != seen & !PACE_MASK {
                return;
            }
            seen = now;
        }
        self.announce_gate();
        self.announce_room();
    }

    /// Under the setup lock: says the pace for an incarnation of the producers. Returns the one that holds, which is
    /// what the first of its ranks said.
    pub(crate) fn settle_pace(&self, incarnation: u32, pace: Pace) -> Pace {
        let word = self.word(head::PACE);
        let tag = u64::from(incarnation & 0xff_ffff) << PACE_BITS;
        if word.load(Acquire) & !PACE_MASK != tag {
            word.store(tag | pace.word(), Release);
            self.announce_gate();
        }
        self.pace()
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
        let word = self.word(head::STATE).load(Acquire);
        match word & 0xff {
            0 => ProducerState::None,
            1 => ProducerState::Open,
            2 => ProducerState::Finished,
            _ => ProducerState::Died(Self::slot_of(word >> 8)),
        }
    }

    pub(crate) fn set_producer_state(&self, state: ProducerState) {
        self.word(head::STATE).store(Self::state_word(state), Release);
    }

    /// A member slot as some word says it; None where there is no such slot.
    fn slot_of(number: u64) -> Option<u32> {
        (number < MEMBERS_MAX as u64).then_some(number as u32)
    }

    fn state_word(state: ProducerState) -> u64 {
        match state {
            ProducerState::None => 0,
            ProducerState::Open => 1,
            ProducerState::Finished => 2,
            ProducerState::Died(slot) => 3 | slot.map_or(SLOT_NONE, u64::from) << 8,
        }
    }

    /// Marks the open producer group as dead. Returns whether this call did it.
    pub fn mark_died(&self, slot: u32) -> bool {
        let open = Self::state_word(ProducerState::Open);
        let died = Self::state_word(ProducerState::Died(Some(slot)));
        let done = self.word(head::STATE).compare_exchange(open, died, AcqRel, Acquire).is_ok();
        if done {
            self.announce();
            self.announce_room();
        }
        done
    }

    fn progress_word(&self, rank: u32) -> &AtomicU64 {
        self.word(LANES_AT + rank as usize * lane::BYTES + lane::PROGRESS)
    }

    /// Incarnation and commit count of a rank's lane.
    pub fn progress(&self, rank: u32) -> (u32, u64) {
        protocol::progress_of(self.progress_word(rank).load(Acquire))
    }

    pub(crate) fn set_progress(&self, rank: u32, incarnation: u32, committed: u64) {
        self.progress_word(rank).store(protocol::progress_word(incarnation, committed), Release);
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
        protocol::advance(self.progress_word(rank), incarnation, version)
    }

    /// Member slot of a rank's producer (None before it joined) and whether it ended cleanly.
    pub fn lane_owner(&self, rank: u32) -> (Option<u32>, bool) {
        let word = self.word(LANES_AT + rank as usize * lane::BYTES + lane::OWNER).load(Acquire);
        match word & 0xff {
            0 => (None, false),
            state => (Self::slot_of(word >> 8), state == 2),
        }
    }

    pub(crate) fn set_lane_owner(&self, rank: u32, owner: Option<u32>, ended: bool) {
        let word = owner.map_or(0, |slot| u64::from(slot) << 8 | if ended { 2 } else { 1 });
        self.word(LANES_AT + rank as usize * lane::BYTES + lane::OWNER).store(word, Release);
    }

    /// One more than the newest version that every rank has committed: the number of complete versions.
    pub fn complete(&self) -> u64 {
        protocol::complete(self.word(head::GROUP), self.word(head::BASE), |rank| self.progress_word(rank))
    }

    /// First version that was not dropped.
    pub fn oldest(&self) -> u64 {
        self.oldest_word().load(Acquire)
    }

    /// The word of [`Control::oldest`].
    pub(crate) fn oldest_word(&self) -> &AtomicU64 {
        self.word(head::OLDEST)
    }

    /// Remembers an incarnation: versions from `base` on are its own.
    pub(crate) fn remember(&self, incarnation: u32, size: u32, base: u64) {
        let length = self.word(head::HISTORY_LENGTH).load(Relaxed);
        let at = head::HISTORY + (length as usize % HISTORY_MAX) * 16;
        self.word(at).store(base, Relaxed);
        self.word(at + 8).store(u64::from(incarnation) << 32 | u64::from(size), Relaxed);
        self.word(head::HISTORY_LENGTH).store(length + 1, Release);
    }

    /// Incarnation and size of the group that produced `version`.
    pub fn producers_of(&self, version: u64) -> Option<(u32, u32)> {
        let length = self.word(head::HISTORY_LENGTH).load(Acquire);
        let first = length.saturating_sub(HISTORY_MAX as u64);
        (first..length).rev().find_map(|i| {
            let at = head::HISTORY + (i as usize % HISTORY_MAX) * 16;
            let packed = self.word(at + 8).load(Relaxed);
            (self.word(at).load(Relaxed) <= version).then_some(protocol::group_of(packed))
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
        self.calls(slot).fetch_add(2 * ROOM_ASKED, Release);
        wait::wake_all(self.calls(slot));
    }

    /// Asks a producer, which may be waiting for something else, to give back what was released of its lane.
    pub(crate) fn ask_for_room(&self, slot: u32) {
        self.calls(slot).fetch_or(ROOM_ASKED, Release);
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

    /// Ranks of a reader group.
    pub(crate) fn group_size(&self, index: usize) -> u32 {
        self.group(index, group::SIZE).load(Relaxed).min(u64::from(GROUP_RANKS_MAX)) as u32
    }

    /// A word of a reader group.
    pub(crate) fn group(&self, index: usize, field: usize) -> &AtomicU64 {
        self.word(GROUPS_AT + index * group::BYTES + field)
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
        let word = protocol::look_at(self.granule(index, granule::OWNER));
        let slot = Self::slot_of(word >> 48);
        let lane =
            LaneId { rank: (word >> 4 & 0xf_ffff) as u32, incarnation: (word >> 24 & 0xff_ffff) as u32 };
        match word & 0xf {
            0 => GranuleState::Free,
            1 => GranuleState::Inside,
            2 => GranuleState::Segment { lane, slot },
            3 => GranuleState::Spare { lane, slot },
            _ => GranuleState::Leaving { lane, slot },
        }
    }

    pub(crate) fn set_granule_state(&self, index: usize, state: GranuleState) {
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
            GranuleState::Inside => 1,
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

    pub(crate) fn set_granule_segment(&self, index: usize, sequence: u64, granules: usize) {
        self.granule(index, granule::SEGMENT).store(sequence << 32 | granules as u64, Release);
    }

    /// Newest version in the segment that begins at granule `index`.
    pub fn granule_last(&self, index: usize) -> u64 {
        self.granule(index, granule::LAST).load(Acquire)
    }

    pub(crate) fn set_granule_last(&self, index: usize, version: u64) {
        self.granule(index, granule::LAST).store(version, Release);
    }

    /// First granule of the lane's first segment that fits: `fits(sequence, last version)`.
    pub fn find_segment(&self, lane: LaneId, fits: impl Fn(u64, u64) -> bool) -> Option<usize> {
        let mut best: Option<(u64, usize)> = None;
        for index in 1..self.granules {
            if let GranuleState::Segment { lane: found, .. } = self.granule_state(index) {
                let (sequence, _) = self.granule_segment(index);
                if found == lane
                    && best.is_none_or(|(s, _)| sequence < s)
                    && fits(sequence, self.granule_last(index))
                {
                    best = Some((sequence, index));
                }
            }
        }
        best.map(|(_, index)| index)
    }

    // ---- variables ----------------------------------------------------------------------------------------

    /// Notes dtype and shape (as `signature`) of a variable in a version (as `key`, a well-mixed hash of both).
    /// False when another rank noted a different one. The table forgets; it never invents: two keys share an
    /// entry's 52 bits once in 10^15.
    pub fn agree(&self, key: u64, signature: u64) -> bool {
        let slot =
            self.word(VARIABLES_AT + (key as usize % VARIABLES_MAX) * variable::BYTES + variable::SIGNATURE);
        let tag = key >> 24 << 24;
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

    /// The error of a handle whose space was removed under it.
    pub(crate) fn is_removed(&self) -> bool {
        self.word(head::REMOVED).load(Acquire) == REMOVED_MARK
    }
}

/// The error for a table that has no free place.
pub(crate) fn too_many(what: &str, max: usize) -> Error {
    Error::new(Kind::TooMany, format!("no free place for another {what}")).with("most", max)
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

    #[test]
    fn waiting_words_round_trip() {
        for w in [Waiting::No, Waiting::Version(7), Waiting::Room(1 << 40), Waiting::Turn(3), Waiting::Gate] {
            assert_eq!(Waiting::of_word(w.word()), w);
        }
    }
}
