//! The options, one entry each: the place where one adds an option.
//!
//! An entry makes the field, the variable, the key, the option of C, the keyword of Python and the line of the
//! reference ([`crate::row`] says how). What the option does stands where it is done; what it may not be said beside,
//! in `open.rs`.

use std::path::PathBuf;
use std::time::Duration;

use forebay_tier::adapter::throttle::Locality;
use forebay_tier::{Horizon, TierKind};
use serde::de::MapAccess;
use serde::{Deserialize, Serialize};

use crate::form::{Said, Value};
use crate::pace::Pace;
use crate::row::{fill, held, options, row, unsaid, Role, Row};
use crate::value::{
    Absent, Emulation, Mechanism, Mode, Retention, Scope, SpillTier, Verify, WhenFull, TIMEOUT_DEFAULT,
};

options! {
    process {
        /// Rank of this process in its group.
        /// Together with `size`, or neither of them: then a launcher says both (srun, flux, mpiexec).
        rank: u32; { variable: Some("FOREBAY_RANK"), default: "what the launcher says, else 0", see: "mpi.md" }

        /// Number of processes of the group.
        size: u32; { variable: Some("FOREBAY_SIZE"), default: "what the launcher says, else 1", see: "mpi.md" }

        /// Name of the component; of a reader: its reader group.
        component: String; {
            variable: Some("FOREBAY_COMPONENT"), range: "1 to 64 bytes", default: "the name of the program",
        }

        /// The reader group that this rank reads for, which keeps a cursor.
        /// Opened again, also after a kill or a reboot, it goes on behind the last version that all its ranks ended.
        /// Without it: the component, which keeps a cursor if a writer's `readers` names it.
        group: String; {
            role: Role::Reader, range: "1 to 64 bytes", default: "the component",
            see: "python.md#a-reader-that-comes-again",
        }

        /// Looks without being a registered reader.
        /// It holds no cursor and no process waits for it; versions are not kept for it, except those that it holds a
        /// view of.
        observer: bool = false; { role: Role::Reader, default: "false" }
    }
    channel {
        /// What carries the data.
        /// `files` is the baseline to compare with: one file per object, the same interface.
        channel, kind: Mechanism = Mechanism::default(); {
            name: "channel", role: Role::Creation, variable: Some("FOREBAY_CHANNEL_KIND"), file: true, default: "space",
        }

        /// Folder of the space when it is not in shared memory.
        path, path: PathBuf; { role: Role::Creation, file: true, program: false, default: "below FOREBAY_DIR" }

        /// Tier of a new space.
        /// `dram` is shared memory, `numa:N` that of one node of the machine, `numa:N+M` its pages in turn on several;
        /// `file` the page cache of a file system, `direct` the disk past it, `pmem` a directly mapped file system.
        tier, tier: TierKind; {
            role: Role::Creation, variable: Some("FOREBAY_TIER"), file: true,
            default: "what the folder is on, else dram", see: "persistent-memory.md",
        }

        /// Most bytes that a new space may hold.
        /// A hard limit: a writer that is ahead waits for its readers, or does what `when_full` says.
        quota_bytes, quota: u64; {
            role: Role::Creation, variable: Some("FOREBAY_QUOTA"), file: true,
            default: "a quarter of what is free when the space is made",
        }

        /// Lower tiers of a new space, the faster first.
        /// They take what does not fit into the first: `/scratch/me,quota=20GiB`, with `;` between several.
        spill, spill: Vec<SpillTier> = Vec::new(); {
            role: Role::Creation, variable: Some("FOREBAY_SPILL"), file: true, default: "none", see: "spilling.md",
        }

        /// What a full new space leads to.
        /// With `block` writers wait until their deadline; with `spill` older data move down; with `drop_oldest` the
        /// oldest complete versions that no reader holds go, read or not; with `error` the put fails at once.
        when_full, when_full: WhenFull; {
            role: Role::Creation, variable: Some("FOREBAY_WHEN_FULL"), file: true,
            default: "spill with lower tiers, else block", see: "spilling.md",
        }

        /// Bytes that a writer allocates at once.
        /// Without it as much as it holds already, from 256 KiB to 64 MiB or a quarter of its share of the quota.
        segment_bytes, segment: u64; {
            role: Role::Creation, variable: Some("FOREBAY_SEGMENT"), file: true, default: "grows with the lane",
        }

        /// When stores are made persistent.
        /// `none`: never by us; `epoch`: once per version, before it is complete; `write`: with every store.
        horizon, horizon: Horizon; {
            role: Role::Creation, variable: Some("FOREBAY_HORIZON"), file: true, default: "none", see: "durability.md",
        }

        /// When a complete version goes.
        /// `released`: when every registered reader has released it; `last:K`: as soon as K newer ones are complete;
        /// `forever`: never.
        retention, retention: Retention; {
            role: Role::Creation, variable: Some("FOREBAY_RETENTION"), file: true, default: "released",
        }

        /// CRC-32C of every payload.
        /// It can be turned off at horizon `none` only.
        checksum, checksum: bool; {
            role: Role::Creation, variable: Some("FOREBAY_CHECKSUM"), file: true, default: "true",
        }

        /// Bytes to which writers gather small objects of a step.
        /// They are gathered in memory, and the tier gets them with one write. A step's data count when it ends, as
        /// without. Not at horizon `write`, nor in files.
        batch_bytes, batch: u64; {
            role: Role::Writer, variable: Some("FOREBAY_BATCH"), file: true, range: "4KiB to 64MiB", default: "none",
            see: "plans.md#batches",
        }

        /// Who may be at work on the channel when.
        /// A plan says it: programs also open spaces that no plan knows of. The first rank of the writers says it for
        /// all.
        pace, pace: Pace; { role: Role::Writer, program: false, default: "parallel", see: "plans.md" }

        /// A medium that the first pool takes as long as.
        /// For studies of a tier that is not there; a process that opens the space finds it emulated. A workflow file
        /// says it as text.
        emulate, emulate: Emulation; {
            role: Role::Creation, program: false, default: "none", see: "probe.md#a-tier-that-is-not-there",
        }

        /// Where this process stands, seen from an emulated tier.
        /// With `interleaved` half of the bytes lie beside it, half across.
        locality, locality: Locality; {
            role: Role::Both, variable: Some("FOREBAY_LOCALITY"), program: false, default: "local",
            see: "probe.md#a-tier-that-is-not-there",
        }

        /// What becomes of a space that is there already.
        /// `w` starts over, `a` goes on behind what is complete, `x` refuses.
        mode, mode: Mode = Mode::default(); { role: Role::Writer, file: true, default: "w", see: "opening.md" }

        /// With mode `w`, also a space goes whose writers died.
        /// It goes although it holds versions that no reader has read.
        replace, replace: bool = false; { role: Role::Writer, file: true, default: "false", see: "opening.md" }

        /// When the checksums of what is read are compared.
        /// `first`: once per record and process.
        verify, verify: Verify = Verify::default(); { role: Role::Reader, default: "first" }

        /// Seconds until a blocking call gives up.
        /// The error names who is missing. Of calls that are given a time of their own it does not count.
        timeout, timeout: Duration = TIMEOUT_DEFAULT; {
            role: Role::Both, variable: Some("FOREBAY_TIMEOUT"), default: "60",
        }

        /// Starts at the newest complete version, and skips to the newest at each step.
        latest, latest: bool = false; { role: Role::Reader, default: "false" }

        /// Streams a space also when its writers had ended before, in another run.
        /// Without it the first step waits for writers of this one.
        finished, finished: bool = false; { role: Role::Reader, default: "false", see: "opening.md" }

        /// What rank and size count in a job of several nodes.
        /// With `job` such a job is refused; with `node` only the ranks of this node are served.
        scope, scope: Scope = Scope::default(); {
            role: Role::Both, variable: Some("FOREBAY_SCOPE"), default: "job", see: "mpi.md",
        }

        /// Reader groups that will come, with their sizes.
        /// Versions wait for them, and they keep a cursor.
        readers, readers: Vec<(String, u32)> = Vec::new(); {
            role: Role::Writer, variable: Some("FOREBAY_READERS"), default: "none",
            see: "python.md#a-reader-that-comes-again",
        }

        /// What a reader group that keeps a cursor means to the writers while it is away.
        /// With `hold` versions from its cursor on are kept, and a writer that finds the quota full waits and names the
        /// group; with `drop` they go without it, and it learns how many it missed; with `error` the next step of a
        /// writer fails. A reader says it of its group, a writer of those in `readers`.
        absent, absent: Absent; {
            role: Role::Both, file: true, default: "as it was said before, else hold",
            see: "python.md#a-reader-that-comes-again",
        }
    }
}
