//! `fb_options`: how to open a space or a checkpoint, as pairs of text.
//!
//! Guarantees: every key and value is checked when it is set, an unknown key names the nearest one, and what
//! was set before an error stays set. Whether the options agree with a space that exists is only known when
//! it is opened.

use crate::memory::{give, handle, lock, out, take, text};
use crate::status::guard;
use crate::FB_OK;
use forebay_checkpoint::Options;
use forebay_config::{
    did_you_mean, environment, said_elsewhere, CHECKPOINT_OPTIONS, OPTIONS, TIMEOUT_SECONDS_MAX,
};
use forebay_space::{Error, Kind, OpenOptions, Result};
use forebay_tier::adapter::fault::FaultPlan;
use std::ffi::{c_char, c_int};
use std::sync::Mutex;
use std::time::Duration;

/// How to open a space or a checkpoint: made by fb_options_new, filled by fb_options_set, ended by
/// fb_options_free. One set of options may open any number of writers, readers and checkpoints.
pub struct fb_options {
    state: Mutex<Set>,
}

/// What was set. Rank, size, scope and timeout are the space's and the checkpoint's.
#[derive(Clone, Default)]
struct Set {
    space: OpenOptions,
    checkpoint: Options,
}

/// Every key, the space's first.
fn keys() -> impl Iterator<Item = &'static str> {
    let of_space = OPTIONS.iter().filter(|row| row.program).map(|row| row.name);
    of_space.chain(CHECKPOINT_OPTIONS.iter().map(|row| row.name))
}

/// Makes options that hold the defaults and stores them in `*options`. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_options_new(options: *mut *mut fb_options) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for outputs.
        let place = unsafe { out(options, "options")? };
        give(fb_options { state: Mutex::new(Set::default()) }, place);
        Ok(FB_OK)
    })
}

/// Sets one option; both key and value are texts. Does not block.
// options: begin
///
/// Process:
/// - "rank" (a whole number; default: from the launcher, else 0; FOREBAY_RANK): Rank of this process in its
///   group. Must be given together with "size"; without them a launcher provides both (srun, flux, mpiexec).
/// - "size" (a whole number; default: from the launcher, else 1; FOREBAY_SIZE): Number of processes of the
///   group.
/// - "component" (1 to 64 bytes; default: the name of the program; FOREBAY_COMPONENT): Name of the component;
///   of a reader: its reader group.
///
/// Creation of a space (set by the first writer; later writers must agree):
/// - "channel" ("space", "files"; default: space; FOREBAY_CHANNEL_KIND): How the data are stored. "files": one
///   file per object, the baseline for comparisons, with the same interface.
/// - "tier" ("dram", "numa:N", "numa:N+M", "file", "direct", "pmem"; default: that of the directory, else dram;
///   FOREBAY_TIER): Tier of a new space. "dram": shared memory; "numa:N": memory of node N; "numa:N+M": pages
///   interleaved over several nodes; "file": the page cache of a file system; "direct": direct I/O; "pmem": a
///   directly mapped file system.
/// - "quota" (bytes, as 512MiB; default: a quarter of the free space when the space is created; FOREBAY_QUOTA):
///   Limit of the bytes of a new space. A hard limit: a writer that is ahead waits for its readers, or does
///   what "when_full" says.
/// - "spill" (DIRECTORY[,quota=SIZE][,tier=KIND], with ; between several; default: none; FOREBAY_SPILL): Lower
///   tiers of a new space, the faster first. They take the data that exceed the first:
///   "/scratch/me,quota=20GiB", several separated by ";".
/// - "when_full" ("block", "spill", "drop_oldest", "error"; default: spill with lower tiers, else block;
///   FOREBAY_WHEN_FULL): What happens when a new space is full. "block": writers wait until their deadline;
///   "spill": older data are moved to a lower tier; "drop_oldest": complete versions are dropped, oldest first,
///   read or not, up to the first that a reader holds (an open step, a view), and beyond that writers wait;
///   "error": the put fails at once.
/// - "segment" (bytes, as 512MiB; default: grows with the lane; FOREBAY_SEGMENT): Bytes that a writer allocates
///   at once. Without it: as much as it already has, from 256 KiB to 64 MiB or a quarter of its share of the
///   quota.
/// - "horizon" ("none", "epoch", "write"; default: none; FOREBAY_HORIZON): When stores are made persistent.
///   "none": not by Forebay; "epoch": once per version, before it is complete; "write": with every store.
/// - "retention" ("released", "last:K", "forever"; default: released; FOREBAY_RETENTION): When a complete
///   version is dropped. "released": when all registered readers have released it; "last:K": when K newer
///   versions are complete and no reader holds it or an older one; "forever": never.
/// - "checksum" ("true", "false"; default: true; FOREBAY_CHECKSUM): CRC-32C of every payload. Can be turned off
///   at horizon "none" only.
///
/// Writer:
/// - "batch" (4KiB to 64MiB; default: none; FOREBAY_BATCH): Size of the batches in which writers collect small
///   objects of a step. A batch is collected in memory and written to the tier with one operation. Durability
///   does not change: data of a step are acknowledged when the step ends. Invalid at horizon "write" and in
///   channels of files.
/// - "mode" ("w", "a", "x"; default: w): What happens to an existing space. "w": start over; "a": continue
///   after the complete versions; "x": fail.
/// - "replace" ("true", "false"; default: false): With mode "w": also replace a space whose writers died. It is
///   replaced although it has versions that no reader has read.
/// - "readers" (NAME:SIZE, with , between several; default: none; FOREBAY_READERS): Reader groups that will
///   join, with their sizes. Versions are kept for them, and they keep a cursor.
///
/// Reader:
/// - "group" (1 to 64 bytes; default: the component): Reader group of this rank; the group keeps a cursor. A
///   group that is opened again, also after a kill or a reboot, continues after the last version that all its
///   ranks ended. Without "group": the component, which keeps a cursor if a writer's "readers" names it.
/// - "observer" ("true", "false"; default: false): Open without registering as a reader. An observer has no
///   cursor; no writer waits for it, and no version is kept for it, except those of which it holds a view.
/// - "verify" ("first", "always", "never"; default: first): When checksums are verified on read. "first": once
///   per record and process.
/// - "latest" ("true", "false"; default: false): Start at the newest complete version, and skip to the newest
///   at each step.
/// - "finished" ("true", "false"; default: false): Stream a space also when its writers ended before, in
///   another run. Without it the first step waits for new writers.
///
/// Writer and reader:
/// - "timeout" (seconds; default: 60; FOREBAY_TIMEOUT): Timeout of blocking calls in seconds. The error names
///   the missing process. Calls with a timeout argument ignore it.
/// - "scope" ("job", "node"; default: job; FOREBAY_SCOPE): What rank and size refer to in a job of several
///   nodes. "job": all ranks, which needs an agent on each node; "node": the ranks of this node are coupled.
/// - "absent" ("hold", "drop", "error"; default: the previous value, else hold): What writers do while a reader
///   group that keeps a cursor is away. "hold": versions from its cursor on are kept, and a writer that finds
///   the quota full waits and names the group; "drop": versions are dropped, and the group learns how many it
///   missed; "error": the next step of a writer fails. A reader sets it for its group, a writer for those in
///   "readers".
///
/// Checkpoint:
/// - "levels" (a level with its options, as in file,keep=3; with ; between several; default: file): Levels of
///   the checkpoint, the fastest first. A level is a tier ("dram", "numa:N", "file", "direct", "pmem"), a
///   directory or "s3://BUCKET/PREFIX", optionally "+partner", "+xor:N" or "+rs:K+M" (redundancy between
///   nodes), then options, as in "file,keep=3": "keep=N" retains the N newest steps, "every=N" each N-th
///   permanently, "best=K" or "best=K:largest" the K best by the metric of the save.
/// - "when" (steps:N, seconds:S, optimum, optimum:MTBF, signal; with ; between several; default: optimum): When
///   "need" returns true. After a number of steps, after a number of seconds, at the optimum for a mean time
///   between failures in seconds, or when the job is about to end (SIGTERM, SIGUSR1). One rule that applies is
///   enough.
/// - "incremental" (a whole number; default: 0): Interval of full steps; the steps between them contain changes
///   only. 0: all steps are full. For levels that are not in memory and do not set it themselves.
/// - "compress" (none, zstd, zstd:LEVEL; default: none): Compression of chunks. For levels that are not in
///   memory and do not set it themselves.
/// - "memory" (bytes, as 512MiB; default: two steps): Limit of the memory of this process's part in a level in
///   memory.
/// - "program" (text; default: none): Name of the program: a directory into which another program saves is
///   refused.
// options: end
///
/// A checkpoint takes "rank", "size", "scope" and "timeout" of these, and its own.
///
/// FB_UNKNOWN_KEY with the nearest key in the hint, FB_USAGE when the value cannot be read.
#[no_mangle]
pub unsafe extern "C" fn fb_options_set(
    options: *mut fb_options,
    key: *const c_char,
    value: *const c_char,
) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles and texts.
        let (options, key, value) =
            unsafe { (handle(options, "options")?, text(key, "key")?, text(value, "value")?) };
        set(&mut *lock(&options.state, "options")?, key, value).map_err(|e| e.with("option", key))?;
        Ok(FB_OK)
    })
}

/// Ends the options and sets `*options` to NULL. Handles that were opened with them are not touched. Does not
/// block.
#[no_mangle]
pub unsafe extern "C" fn fb_options_free(options: *mut *mut fb_options) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for handles given by address.
        drop(unsafe { take(options, "options")? });
        Ok(FB_OK)
    })
}

/// The options behind a pointer of the caller; NULL is the defaults.
///
/// # Safety
/// NULL or live options.
pub(crate) unsafe fn options_or_default(options: *const fb_options) -> Result<OpenOptions> {
    if options.is_null() {
        return Ok(OpenOptions::default());
    }
    // SAFETY: the caller's contract.
    let options = unsafe { handle(options, "options")? };
    Ok(lock(&options.state, "options")?.space.clone())
}

/// How to open a checkpoint: what was set, and what the environment adds.
///
/// # Safety
/// NULL or live options.
pub(crate) unsafe fn checkpoint_options(options: *const fb_options, path: &str) -> Result<Options> {
    let set = match options.is_null() {
        true => Set::default(),
        // SAFETY: the caller's contract.
        false => lock(&unsafe { handle(options, "options")? }.state, "options")?.clone(),
    };
    let known = set.space.resolved(path, &environment::process)?;
    Ok(Options {
        rank: known.rank.unwrap_or(0),
        size: known.size.unwrap_or(1),
        timeout: known.timeout,
        node: environment::value("FOREBAY_NODE", &environment::process),
        memory_root: Some(forebay_space::make_root()?),
        launch: forebay_space::launch_id(),
        faults: environment::parsed("FOREBAY_FAULT", &environment::process, FaultPlan::parse)?,
        ..set.checkpoint
    })
}

/// A timeout of the header's form: None is the handle's own.
pub(crate) fn timeout_of(seconds: f64) -> Result<Option<Duration>> {
    if seconds.is_nan() {
        return Err(Error::new(Kind::Usage, "the timeout is not a number"));
    }
    Ok((seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(TIMEOUT_SECONDS_MAX))))
}

fn set(set: &mut Set, key: &str, value: &str) -> Result<()> {
    let value = value.trim();
    if let Some(row) = OPTIONS.iter().find(|row| row.program && row.name == key) {
        return (row.set)(&mut set.space, value);
    }
    let row = CHECKPOINT_OPTIONS.iter().find(|row| row.name == key).ok_or_else(|| unknown(key))?;
    let mut wanted = set.checkpoint.clone();
    (row.set)(&mut wanted, value)?;
    forebay_checkpoint::check(&wanted)?;
    set.checkpoint = wanted;
    Ok(())
}

fn unknown(key: &str) -> Error {
    let error = Error::new(Kind::UnknownKey, format!("unknown option `{key}`"));
    let near = did_you_mean(key, keys()).map(|name| format!("did you mean `{name}`?"));
    match said_elsewhere(key).or(near) {
        Some(hint) => error.hint(hint),
        None => error.hint(format!("the options are {}", keys().collect::<Vec<_>>().join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::Form;

    /// Text that an option of this form can be.
    fn some(form: Form) -> &'static str {
        match form {
            Form::Number => "1",
            Form::Text | Form::Directory | Form::Words => "heat",
            Form::Flag => "true",
            Form::Bytes => "1MiB",
            Form::Seconds => "0.5",
            Form::Word(words) => words[words.len() - 1],
            Form::Syntax(syntax) => syntax.split(" | ").next().expect("a first word"),
            Form::ReaderGroups => "analysis:3, viz:1",
            Form::SpillTiers => "/scratch,quota=1GiB",
            Form::Emulation => "no program says it",
        }
    }

    #[test]
    fn every_key_can_be_set() {
        let of_space = OPTIONS.iter().filter(|row| row.program).map(|row| (row.name, some(row.form)));
        let of_checkpoint = [
            ("levels", "dram; file,keep=3;"),
            ("when", "steps:10;signal"),
            ("incremental", "10"),
            ("compress", "zstd:1"),
            ("memory", "4GiB"),
            ("program", "heat"),
        ];
        let values: Vec<(&str, &str)> = of_space.chain(of_checkpoint).collect();
        assert_eq!(values.iter().map(|(key, _)| *key).collect::<Vec<_>>(), keys().collect::<Vec<_>>());
        let mut options = Set::default();
        for (key, value) in values {
            set(&mut options, key, value).unwrap_or_else(|e| panic!("{key}: {e}"));
            let wrong = set(&mut options, key, "a:0").err().map(|e| e.kind());
            // Any text is a name, and any text is the path of a directory; levels are read where they are opened.
            let is_free = ["component", "group", "spill", "levels", "program"].contains(&key);
            assert_eq!(wrong, if is_free { None } else { Some(Kind::Usage) }, "{key}");
        }
        let Set { space: options, checkpoint } = options;
        assert_eq!(checkpoint.levels, ["a:0"], "the last word counts");
        assert_eq!((checkpoint.when.len(), checkpoint.memory_bytes_max), (2, Some(4 << 30)));
        assert_eq!((checkpoint.incremental, &*checkpoint.compress), (10, "zstd:1"));
        assert_eq!((options.rank, options.size), (Some(1), Some(1)));
        assert_eq!((options.quota_bytes, options.batch_bytes), (Some(1 << 20), Some(1 << 20)));
        assert_eq!(options.timeout, Duration::from_millis(500));
        assert_eq!(options.readers, [("analysis".to_owned(), 3), ("viz".to_owned(), 1)]);
        assert!(options.latest && options.observer);
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let error = set(&mut Set::default(), "quotta", "1").expect_err("unknown");
        assert_eq!(error.kind(), Kind::UnknownKey);
        assert_eq!(error.hint_text(), Some("did you mean `quota`?"));
        for (key, hint) in [
            ("kind", "did you mean `channel`?"),
            ("execution_mode", "`execution_mode` is set by the plan of a workflow"),
            ("path", "`path` is set in the table of the channel in a workflow file"),
            ("locality", "`locality` is set by the environment variable FOREBAY_LOCALITY"),
        ] {
            let error = set(&mut Set::default(), key, "1").expect_err("unknown");
            assert_eq!(error.hint_text(), Some(hint));
        }
        let error = set(&mut Set::default(), "xyzzy", "red").expect_err("unknown");
        assert!(error.hint_text().is_some_and(|h| h.starts_with("the options are rank, size")));
    }

    #[test]
    fn timeouts() {
        assert_eq!(timeout_of(-1.0).expect("own"), None);
        assert_eq!(timeout_of(0.25).expect("given"), Some(Duration::from_millis(250)));
        assert!(timeout_of(f64::INFINITY).expect("capped").is_some());
        assert!(timeout_of(f64::NAN).is_err());
    }
}
