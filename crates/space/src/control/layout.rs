//! The layout of the control segment: its tables, their fields, how long they are, and the words by which it is known.
//!
//! Checked against docs/src/formats/control.md by `cargo xtask formats`: a head of one page, then the tables of lanes,
//! members, reader groups, granules and variables. Sizes of the tables are constants except the granules', of which
//! there are as many as the pool has.
//! Not here: what a word means, and who changes it (`words.rs`).

use forebay_config::GATE_PLACES_MAX;
use forebay_log::format::Layout;

use super::protocol;

/// "REMOVED!", in the word `removed`. No other value there means anything: data must not go for a damaged word.
pub(crate) const REMOVED_MARK: u64 = u64::from_le_bytes(*b"REMOVED!");
/// The last reader group was removed by request. No other value says so: data must not go for a damaged word.
pub(crate) const READERS_REMOVED_MARK: u64 = u64::from_le_bytes(*b"NOGROUP!");
/// "FOREBAYC", the first word.
pub const CONTROL_MAGIC: u64 = u64::from_le_bytes(*b"FOREBAYC");
/// Version of this layout. Control segments do not outlive a boot, so one of another version is rebuilt, unless a live
/// process uses it.
pub const CONTROL_VERSION: u64 = 8;
/// Most producer ranks of one space; a node has fewer cores.
pub const LANES_MAX: usize = protocol::RANKS_MAX as usize;
/// Most processes that have a space open at once, ranks and observers.
pub const MEMBERS_MAX: usize = if cfg!(forebay_simulated) { 24 } else { 2048 };
/// Most reader groups.
pub const GROUPS_MAX: usize = if cfg!(forebay_simulated) { 6 } else { 64 };
/// Most ranks of a reader group: the bits of its masks.
pub const GROUP_RANKS_MAX: u32 = 1024;
/// Cursors of the ranks of all reader groups: more than there can be processes.
pub const CURSORS_MAX: usize = 4 * MEMBERS_MAX;
/// Incarnations remembered, to find the lane of an old version; older ones are found by the headers of their segments.
pub const HISTORY_MAX: usize = if cfg!(forebay_simulated) { 3 } else { 128 };
/// Entries of the table that finds ranks disagreeing on a variable. It is lossy: what it misses, readers find.
pub const VARIABLES_MAX: usize = if cfg!(forebay_simulated) { 8 } else { 4096 };

/// Bytes of a name kept in a member or group.
pub use forebay_config::NAME_BYTES;

pub(super) const WORD: usize = 8;

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
        FREE_SPACE "room" = 128;
        FREE_SPACE_WAITERS "room_waiters" = 132;
        GROUP "group" = 192;
        BASE "base" = 200;
        STATE "state" = 208;
        RUN_TOKEN "run_token" = 216;
        OLDEST "oldest" = 224;
        MEMBERS_HIGH "members_high" = 232;
        HISTORY_LENGTH "history_length" = 240;
        OLDEST_ANNOUNCED "oldest_announced" = 248;
        PRODUCER "producer" = 256;
        SPILLED "spilled_bytes" = 384;
        PROMOTED "promoted_bytes" = 392;
        MOVES_FAILED "moves_failed" = 400;
        DROPPED "dropped_versions" = 408;
        EXECUTION_MODE "execution_mode" = 416;
        GATE "gate" = 448;
        GATE_WAITERS "gate_waiters" = 452;
        INSTANCE "instance" = 512;
        POOL_DEVICE "pool_device" = 520;
        POOL_INODE "pool_inode" = 528;
        CLOSED "closed_unix_ns" = 536;
        READERS_REMOVED "readers_removed" = 544;
        GROUPS_HIGH "groups_high" = 552;
        HISTORY "history" = 1024;
        PLACES "gate_places" = 3072;
    }
}
pub(crate) mod lane {
    use super::*;
    words! { "ControlLane", 64;
        PROGRESS "progress" = 0;
        OWNER "owner" = 8;
        COPY "progress_copy" = 16;
        PID "pid" = 24;
        START_TICKS "start_ticks" = 32;
        RESERVED "reserved" = 40;
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
        POLICY "policy" = 24;
        CURSORS "cursors" = 32;
        CAME "came" = 40;
        NAME "name" = 64;
        JOINED "joined" = 128;
        ENDED "ended" = 256;
        SUM "sum" = 384;
        RESERVED "reserved" = 392;
    }
}
pub(crate) mod cursor {
    use super::*;
    words! { "ControlCursor", 8;
        CURSOR "cursor" = 0;
    }
}
pub(crate) mod granule {
    use super::*;
    words! { "ControlGranule", 32;
        OWNER "owner" = 0;
        SEGMENT "segment" = 8;
        LAST "last_version" = 16;
        FILLED "filled_bytes" = 24;
    }
}
pub(crate) mod reason {
    use super::*;
    words! { "ControlReason", 512;
        CLAIM "claim" = 0;
        TEXT "text" = 8;
    }
}
pub(super) mod variable {
    use super::*;
    words! { "ControlVariable", 8;
        SIGNATURE "signature" = 0;
    }
}

const _: () = assert!(head::HISTORY + HISTORY_MAX * 16 <= head::PLACES);
const _: () = assert!(head::PLACES + 2 * GATE_PLACES_MAX as usize * WORD <= head::BYTES);
const _: () = assert!(group::JOINED + GROUP_RANKS_MAX as usize / 8 <= group::ENDED);
const _: () = assert!(group::ENDED + GROUP_RANKS_MAX as usize / 8 <= group::SUM);
const _: () = assert!(member::NAME + NAME_BYTES <= member::RESERVED);

pub(super) const LANES_AT: usize = head::BYTES;
pub(super) const MEMBERS_AT: usize = LANES_AT + LANES_MAX * lane::BYTES;
pub(super) const GROUPS_AT: usize = MEMBERS_AT + MEMBERS_MAX * member::BYTES;
pub(super) const CURSORS_AT: usize = GROUPS_AT + GROUPS_MAX * group::BYTES;
pub(super) const VARIABLES_AT: usize = CURSORS_AT + CURSORS_MAX * cursor::BYTES;
pub(super) const REASON_AT: usize = VARIABLES_AT + VARIABLES_MAX * variable::BYTES;
pub(super) const GRANULES_AT: usize = REASON_AT + reason::BYTES;

/// Every table of the control segment, for `cargo xtask formats`.
pub fn control_layouts() -> Vec<Layout> {
    vec![
        head::layout(),
        lane::layout(),
        member::layout(),
        group::layout(),
        cursor::layout(),
        variable::layout(),
        reason::layout(),
        granule::layout(),
    ]
}
