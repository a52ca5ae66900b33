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

use crate::execution_mode::ExecutionMode;
use crate::form::{Said, Value};
use crate::row::{fill, held, options, row, unsaid, Role, Row};
use crate::value::{
    Absent, Emulation, Mechanism, Mode, Retention, Scope, SpillTier, Verify, WhenFull, TIMEOUT_DEFAULT,
};

options! {
    process {
        /// Rank of this process in its group.
        /// Must be given together with `size`; without them a launcher provides both (srun, flux, mpiexec).
        rank: u32; { variable: Some("FOREBAY_RANK"), default: "from the launcher, else 0", see: "mpi.md" }

        /// Number of processes of the group.
        size: u32; { variable: Some("FOREBAY_SIZE"), default: "from the launcher, else 1", see: "mpi.md" }

        /// Name of the component; of a reader: its reader group.
        component: String; {
            variable: Some("FOREBAY_COMPONENT"), range: "1 to 64 bytes", default: "the name of the program",
        }

        /// Reader group of this rank; the group keeps a cursor.
        /// A group that is opened again, also after a kill or a reboot, continues after the last version that all its
        /// ranks ended. Without `group`: the component, which keeps a cursor if a writer's `readers` names it.
        group: String; {
            role: Role::Reader, range: "1 to 64 bytes", default: "the component",
            see: "python.md#a-reader-that-comes-again",
        }

        /// Open without registering as a reader.
        /// An observer has no cursor; no writer waits for it, and no version is kept for it, except those of which it
        /// holds a view.
        observer: bool = false; { role: Role::Reader, default: "false" }
    }
    channel {
        /// How the data are stored.
        /// `files`: one file per object, the baseline for comparisons, with the same interface.
        channel, kind: Mechanism = Mechanism::default(); {
            name: "channel", role: Role::Creation, variable: Some("FOREBAY_CHANNEL_KIND"), file: true, default: "space",
        }

        /// Directory of the space, when it is not in shared memory.
        path, path: PathBuf; { role: Role::Creation, file: true, program: false, default: "below FOREBAY_DIR" }

        /// Tier of a new space.
        /// `dram`: shared memory; `numa:N`: memory of node N; `numa:N+M`: pages interleaved over several nodes; `file`:
        /// the page cache of a file system; `direct`: direct I/O; `pmem`: a directly mapped file system.
        tier, tier: TierKind; {
            role: Role::Creation, variable: Some("FOREBAY_TIER"), file: true,
            default: "that of the directory, else dram", see: "persistent-memory.md",
        }

        /// Limit of the bytes of a new space.
        /// A hard limit: a writer that is ahead waits for its readers, or does what `when_full` says.
        quota_bytes, quota: u64; {
            role: Role::Creation, variable: Some("FOREBAY_QUOTA"), file: true,
            default: "a quarter of the free space when the space is created",
        }

        /// Lower tiers of a new space, the faster first.
        /// They take the data that exceed the first: `/scratch/me,quota=20GiB`, several separated by `;`.
        spill, spill: Vec<SpillTier> = Vec::new(); {
            role: Role::Creation, variable: Some("FOREBAY_SPILL"), file: true, default: "none", see: "spilling.md",
        }

        /// What happens when a new space is full.
        /// `block`: writers wait until their deadline; `spill`: older data are moved to a lower tier; `drop_oldest`:
        /// complete versions are dropped, oldest first, read or not, up to the first that a reader holds (an open step,
        /// a view), and beyond that writers wait; `error`: the put fails at once.
        when_full, when_full: WhenFull; {
            role: Role::Creation, variable: Some("FOREBAY_WHEN_FULL"), file: true,
            default: "spill with lower tiers, else block", see: "spilling.md",
        }

        /// Bytes that a writer allocates at once.
        /// Without it: as much as it already has, from 256 KiB to 64 MiB or a quarter of its share of the quota.
        segment_bytes, segment: u64; {
            role: Role::Creation, variable: Some("FOREBAY_SEGMENT"), file: true, default: "grows with the lane",
        }

        /// When stores are made persistent.
        /// `none`: not by Forebay; `epoch`: once per version, before it is complete; `write`: with every store.
        horizon, horizon: Horizon; {
            role: Role::Creation, variable: Some("FOREBAY_HORIZON"), file: true, default: "none", see: "durability.md",
        }

        /// When a complete version is dropped.
        /// `released`: when all registered readers have released it; `last:K`: when K newer versions are complete and
        /// no reader holds it or an older one; `forever`: never.
        retention, retention: Retention; {
            role: Role::Creation, variable: Some("FOREBAY_RETENTION"), file: true, default: "released",
        }

        /// CRC-32C of every payload.
        /// Can be turned off at horizon `none` only.
        checksum, checksum: bool; {
            role: Role::Creation, variable: Some("FOREBAY_CHECKSUM"), file: true, default: "true",
        }

        /// Size of the batches in which writers collect small objects of a step.
        /// A batch is collected in memory and written to the tier with one operation. Durability does not change: data
        /// of a step are acknowledged when the step ends. Invalid at horizon `write` and in channels of files.
        batch_bytes, batch: u64; {
            role: Role::Writer, variable: Some("FOREBAY_BATCH"), file: true, range: "4KiB to 64MiB", default: "none",
            see: "plans.md#batches",
        }

        /// Execution mode of the channel: which side may access it at what time.
        /// Set by plans: programs also open spaces without a plan. The first writer rank sets it for all.
        execution_mode, execution_mode: ExecutionMode; {
            role: Role::Writer, program: false, default: "parallel", see: "plans.md" }

        /// Medium whose timing the first pool emulates, to study a tier that is not available.
        /// All processes that open the space use it. Text in a workflow file.
        emulate, emulate: Emulation; {
            role: Role::Creation, program: false, default: "none", see: "probe.md#a-tier-that-is-not-there",
        }

        /// Locality of this process to an emulated tier.
        /// `interleaved`: half of the bytes are local, half remote.
        locality, locality: Locality; {
            role: Role::Both, variable: Some("FOREBAY_LOCALITY"), program: false, default: "local",
            see: "probe.md#a-tier-that-is-not-there",
        }

        /// What happens to an existing space.
        /// `w`: start over; `a`: continue after the complete versions; `x`: fail.
        mode, mode: Mode = Mode::default(); { role: Role::Writer, file: true, default: "w", see: "opening.md" }

        /// With mode `w`: also replace a space whose writers died.
        /// It is replaced although it has versions that no reader has read.
        replace, replace: bool = false; { role: Role::Writer, file: true, default: "false", see: "opening.md" }

        /// When checksums are verified on read.
        /// `first`: once per record and process.
        verify, verify: Verify = Verify::default(); { role: Role::Reader, default: "first" }

        /// Timeout of blocking calls in seconds.
        /// The error names the missing process. Calls with a timeout argument ignore it.
        timeout, timeout: Duration = TIMEOUT_DEFAULT; {
            role: Role::Both, variable: Some("FOREBAY_TIMEOUT"), default: "60",
        }

        /// Start at the newest complete version, and skip to the newest at each step.
        latest, latest: bool = false; { role: Role::Reader, default: "false" }

        /// Stream a space also when its writers ended before, in another run.
        /// Without it the first step waits for new writers.
        finished, finished: bool = false; { role: Role::Reader, default: "false", see: "opening.md" }

        /// What rank and size refer to in a job of several nodes.
        /// `job`: all ranks, which needs an agent on each node; `node`: the ranks of this node are coupled.
        scope, scope: Scope = Scope::default(); {
            role: Role::Both, variable: Some("FOREBAY_SCOPE"), default: "job", see: "mpi.md",
        }

        /// Reader groups that will join, with their sizes.
        /// Versions are kept for them, and they keep a cursor.
        readers, readers: Vec<(String, u32)> = Vec::new(); {
            role: Role::Writer, variable: Some("FOREBAY_READERS"), default: "none",
            see: "python.md#a-reader-that-comes-again",
        }

        /// What writers do while a reader group that keeps a cursor is away.
        /// `hold`: versions from its cursor on are kept, and a writer that finds the quota full waits and names the
        /// group; `drop`: versions are dropped, and the group learns how many it missed; `error`: the next step of a
        /// writer fails. A reader sets it for its group, a writer for those in `readers`.
        absent, absent: Absent; {
            role: Role::Both, file: true, default: "the previous value, else hold",
            see: "python.md#a-reader-that-comes-again",
        }
    }
}
