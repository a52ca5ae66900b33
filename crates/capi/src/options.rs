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
/// Who this process is:
/// - "rank" (a whole number; default: what the launcher says, else 0; FOREBAY_RANK): Rank of this process in
///   its group. Together with "size", or neither of them: then a launcher says both (srun, flux, mpiexec).
/// - "size" (a whole number; default: what the launcher says, else 1; FOREBAY_SIZE): Number of processes of the
///   group.
/// - "component" (1 to 64 bytes; default: the name of the program; FOREBAY_COMPONENT): Name of the component;
///   of a reader: its reader group.
///
/// How the space is made, by the first writer that opens it; later ones must agree:
/// - "channel" ("space", "files"; default: space; FOREBAY_CHANNEL_KIND): What carries the data. "files" is the
///   baseline to compare with: one file per object, the same interface.
/// - "tier" ("dram", "numa:N", "numa:N+M", "file", "direct", "pmem"; default: what the folder is on, else dram;
///   FOREBAY_TIER): Tier of a new space. "dram" is shared memory, "numa:N" that of one node of the machine,
///   "numa:N+M" its pages in turn on several; "file" the page cache of a file system, "direct" the disk past
///   it, "pmem" a directly mapped file system.
/// - "quota" (bytes, as 512MiB; default: a quarter of what is free when the space is made; FOREBAY_QUOTA): Most
///   bytes that a new space may hold. A hard limit: a writer that is ahead waits for its readers, or does what
///   "when_full" says.
/// - "spill" (DIRECTORY[,quota=SIZE][,tier=KIND], with ; between several; default: none; FOREBAY_SPILL): Lower
///   tiers of a new space, the faster first. They take what does not fit into the first:
///   "/scratch/me,quota=20GiB", with ";" between several.
/// - "when_full" ("block", "spill", "drop_oldest", "error"; default: spill with lower tiers, else block;
///   FOREBAY_WHEN_FULL): What a full new space leads to. With "block" writers wait until their deadline; with
///   "spill" older data move down; with "drop_oldest" the oldest complete versions that no reader holds go,
///   read or not; with "error" the put fails at once.
/// - "segment" (bytes, as 512MiB; default: grows with the lane; FOREBAY_SEGMENT): Bytes that a writer allocates
///   at once. Without it as much as it holds already, from 256 KiB to 64 MiB or a quarter of its share of the
///   quota.
/// - "horizon" ("none", "epoch", "write"; default: none; FOREBAY_HORIZON): When stores are made persistent.
///   "none": never by us; "epoch": once per version, before it is complete; "write": with every store.
/// - "retention" ("released", "last:K", "forever"; default: released; FOREBAY_RETENTION): When a complete
///   version goes. "released": when every registered reader has released it; "last:K": as soon as K newer ones
///   are complete; "forever": never.
/// - "checksum" ("true", "false"; default: true; FOREBAY_CHECKSUM): CRC-32C of every payload. It can be turned
///   off at horizon "none" only.
///
/// Of a writer:
/// - "batch" (4KiB to 64MiB; default: none; FOREBAY_BATCH): Bytes to which writers gather small objects of a
///   step. They are gathered in memory, and the tier gets them with one write. A step's data count when it
///   ends, as without. Not at horizon "write", nor in files.
/// - "mode" ("w", "a", "x"; default: w): What becomes of a space that is there already. "w" starts over, "a"
///   goes on behind what is complete, "x" refuses.
/// - "replace" ("true", "false"; default: false): With mode "w", also a space goes whose writers died. It goes
///   although it holds versions that no reader has read.
/// - "readers" (NAME:SIZE, with , between several; default: none; FOREBAY_READERS): Reader groups that will
///   come, with their sizes. Versions wait for them, and they keep a cursor.
///
/// Of a reader:
/// - "group" (1 to 64 bytes; default: the component): The reader group that this rank reads for, which keeps a
///   cursor. Opened again, also after a kill or a reboot, it goes on behind the last version that all its ranks
///   ended. Without it: the component, which keeps a cursor if a writer's "readers" names it.
/// - "observer" ("true", "false"; default: false): Looks without being a registered reader. It holds no cursor
///   and no process waits for it; versions are not kept for it, except those that it holds a view of.
/// - "verify" ("first", "always", "never"; default: first): When the checksums of what is read are compared.
///   "first": once per record and process.
/// - "latest" ("true", "false"; default: false): Starts at the newest complete version, and skips to the newest
///   at each step.
/// - "finished" ("true", "false"; default: false): Streams a space also when its writers had ended before, in
///   another run. Without it the first step waits for writers of this one.
///
/// Of writers and readers:
/// - "timeout" (seconds; default: 60; FOREBAY_TIMEOUT): Seconds until a blocking call gives up. The error names
///   who is missing. Of calls that are given a time of their own it does not count.
/// - "scope" ("job", "node"; default: job; FOREBAY_SCOPE): What rank and size count in a job of several nodes.
///   With "job" such a job is refused; with "node" only the ranks of this node are served.
/// - "absent" ("hold", "drop", "error"; default: as it was said before, else hold): What a reader group that
///   keeps a cursor means to the writers while it is away. With "hold" versions from its cursor on are kept,
///   and a writer that finds the quota full waits and names the group; with "drop" they go without it, and it
///   learns how many it missed; with "error" the next step of a writer fails. A reader says it of its group, a
///   writer of those in "readers".
///
/// Of a checkpoint:
/// - "levels" (a place with its options, as file,keep=3; with ; between several; default: file): Where steps
///   go, the fastest first. A tier ("dram", "numa:N", "file", "direct", "pmem"), a directory, or
///   "s3://BUCKET/PREFIX"; behind it what goes for this level alone, as in "file,keep=3": "keep=N" newest steps
///   stay, "every=N" keeps each N-th for good, "best=K" or "best=K:largest" the K best by the metric of the
///   save; "+partner", "+xor:N" or "+rs:K+M" right behind the place is redundancy between nodes.
/// - "when" (steps:N, seconds:S, optimum, optimum:MTBF, signal; with ; between several; default: optimum): When
///   "need" says yes. After so many steps, so many seconds, at the optimum for a mean time between failures in
///   seconds, or when the job is about to end (SIGTERM, SIGUSR1); any of them.
/// - "incremental" (a whole number; default: 0): Every so many steps a full one, and between them what has
///   changed; 0: all are full. Of levels that are no memory and do not say it themselves.
/// - "compress" (none, zstd, zstd:LEVEL; default: none): How chunks are compressed. Of levels that are no
///   memory and do not say it themselves.
/// - "memory" (bytes, as 512MiB; default: two steps): Most bytes of memory that this process's part may take in
///   a level of memory.
/// - "program" (text; default: none): The program: a directory that another one saves into is refused.
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
    let error = Error::new(Kind::UnknownKey, format!("there is no option `{key}`"));
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
            ("pace", "`pace` is set by the plan of a workflow"),
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
