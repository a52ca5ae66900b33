//! `fb_options`: how to open a space or a checkpoint, as pairs of text.
//!
//! Guarantees: every key and value is checked when it is set, an unknown key names the nearest one, and what
//! was set before an error stays set. Whether the options agree with a space that exists is only known when
//! it is opened.

use crate::memory::{give, handle, lock, out, take, text};
use crate::status::guard;
use crate::FB_OK;
use forebay_checkpoint::{Options, When};
use forebay_space::environment::{self, did_you_mean, parse_number};
use forebay_space::options::{
    parse_flag, parse_horizon, parse_readers, parse_seconds, parse_spill, parse_tier, TIMEOUT_SECONDS_MAX,
};
use forebay_space::{parse_bytes, Error, Kind, OpenOptions, Result};
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

/// Every key; the order is the one of the documentation.
const KEYS: [&str; 28] = [
    "rank",
    "size",
    "component",
    "scope",
    "channel",
    "tier",
    "quota",
    "spill",
    "when_full",
    "segment",
    "horizon",
    "retention",
    "checksum",
    "batch",
    "readers",
    "group",
    "absent",
    "timeout",
    "mode",
    "replace",
    "verify",
    "latest",
    "finished",
    "observer",
    "levels",
    "when",
    "program",
    "memory",
];

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
///
/// Who this is: "rank", "size" (else the environment: FOREBAY_RANK and FOREBAY_SIZE, srun, flux, mpiexec;
/// else 0 of 1), "component" (a name for messages; of a reader: its group; else FOREBAY_COMPONENT, else the
/// program's name), "scope" ("job", or "node": serve only the ranks of this node).
///
/// How the space is made, by the first writer that opens it (later ones must agree): "channel" ("space", or
/// "files": one file an object, the baseline), "tier" ("dram", "numa:N", "numa:N+M", "file", "direct", "pmem"), "quota"
/// and "segment" (bytes, as "512MiB"), "spill" (lower tiers, as "/scratch/me,quota=20GiB"; several with ";" between
/// them), "when_full" ("block", "spill", "drop_oldest", "error"), "horizon" ("none", "epoch", "write": when stores
/// are made persistent), "retention"
/// ("released": until every registered reader released the version; "last:K"; "forever"), "checksum" ("true",
/// "false"), "readers" ("analysis:3,viz:1": reader groups that will come, with their size; they keep a cursor).
///
/// Which versions a reader gets: "group" (the reader group that this rank reads for, which keeps a cursor: opened
/// again, also after a kill, it goes on behind the last version that all its ranks ended; else the component, which
/// keeps one if a writer's "readers" names it), "absent" (what such a group means to the writers while it is away:
/// "hold": versions from its cursor on are kept, and a writer that finds the quota full waits and names the group;
/// "drop": they go without it, and fb_missed says how many; "error": the next step of a writer fails with
/// FB_PEER_MISSING).
///
/// What becomes of a space that is there: "mode" (of a writer: "w" starts over, the default; "a" goes on behind what is
/// complete, and fb_begin_version skips what is; "x" refuses), "replace" ("true", with "w": also a space whose writers
/// died and that holds versions no reader has read), "finished" ("true": a reader streams a space whose writers had
/// ended before, in another run; without it fb_begin_read waits for writers of this one).
///
/// How this handle behaves: "timeout" (seconds that a call may wait, default 60), "batch" (of a writer: small
/// objects of a step are gathered in memory to so many bytes, as "1MiB", which the tier gets with one write; not at
/// horizon "write"), "verify" (checksums when
/// reading: "first" time, "always", "never"), "latest" ("true": begin with the newest version), "observer" ("true":
/// look without being a registered reader; versions are not kept for it, except those it holds a view of).
///
/// Of a checkpoint, beside "rank", "size", "scope" and "timeout": "levels" (where steps go, the fastest first, with
/// ";" between them: "dram; file,keep=3"; else "file"; of a level "keep=N" newest steps stay, "every=N" keeps each
/// N-th for good, "best=K" or "best=K:largest" the K best by fb_checkpoint_save_metric), "when" (what
/// fb_checkpoint_need goes by: "steps:N", "seconds:S", "optimum" or "optimum:MTBF", "signal", with ";" between them;
/// else "optimum"), "program" (a directory that another program saves into is refused), "memory" (most bytes that
/// steps may take in a level of memory, as "4GiB").
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
    let Set { space: options, checkpoint } = set;
    match key {
        "levels" => checkpoint.levels = words(value)?,
        "when" => {
            let rules = words(value)?;
            rules.iter().try_for_each(|rule| rule.parse::<When>().map(drop))?;
            checkpoint.when = rules;
        }
        "program" => checkpoint.program = value.to_owned(),
        "memory" => checkpoint.memory_bytes_max = Some(parse_bytes(value)?),
        "rank" => options.rank = Some(parse_number(value)?),
        "size" => options.size = Some(parse_number(value)?),
        "component" => options.component = Some(value.to_owned()),
        "scope" => options.scope = value.parse()?,
        "channel" => options.channel = value.parse()?,
        "tier" => options.tier = Some(parse_tier(value)?),
        "quota" => options.quota_bytes = Some(parse_bytes(value)?),
        "spill" => options.spill = parse_spill(value)?,
        "when_full" => options.when_full = Some(value.parse()?),
        "segment" => options.segment_bytes = Some(parse_bytes(value)?),
        "horizon" => options.horizon = Some(parse_horizon(value)?),
        "retention" => options.retention = Some(value.parse()?),
        "checksum" => options.checksum = Some(parse_flag(value)?),
        "batch" => options.batch_bytes = Some(parse_bytes(value)?),
        "readers" => options.readers = parse_readers(value)?,
        "group" => options.group = Some(value.to_owned()),
        "absent" => options.absent = Some(value.parse()?),
        "timeout" => options.timeout = parse_seconds(value)?,
        "mode" => options.mode = value.parse()?,
        "replace" => options.replace = parse_flag(value)?,
        "verify" => options.verify = value.parse()?,
        "latest" => options.latest = parse_flag(value)?,
        "finished" => options.finished = parse_flag(value)?,
        "observer" => options.observer = parse_flag(value)?,
        _ => return Err(unknown(key)),
    }
    Ok(())
}

/// What stands between semicolons; at least one word.
fn words(text: &str) -> Result<Vec<String>> {
    let words = text.split(';').map(str::trim).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(str::to_owned).collect();
    match words.is_empty() {
        true => {
            Err(Error::new(Kind::Usage, "nothing was said").hint("one or more words with ; between them"))
        }
        false => Ok(words),
    }
}

fn unknown(key: &str) -> Error {
    let error = Error::new(Kind::UnknownKey, format!("there is no option `{key}`"));
    match did_you_mean(key, KEYS) {
        Some(name) => error.hint(format!("did you mean `{name}`?")),
        None => error.hint(format!("the options are {}", KEYS.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_can_be_set() {
        let mut options = Set::default();
        for (key, value) in [
            ("rank", "1"),
            ("size", "2"),
            ("component", "heat"),
            ("channel", "files"),
            ("tier", "file"),
            ("quota", "512MiB"),
            ("spill", "/scratch,quota=1GiB"),
            ("when_full", "spill"),
            ("segment", "1MiB"),
            ("horizon", "epoch"),
            ("retention", "last:3"),
            ("checksum", "true"),
            ("batch", "1MiB"),
            ("mode", "a"),
            ("replace", "false"),
            ("verify", "always"),
            ("timeout", "0.5"),
            ("latest", "yes"),
            ("finished", "true"),
            ("scope", "node"),
            ("readers", "analysis:3, viz:1"),
            ("group", "viz"),
            ("absent", "drop"),
            ("observer", "false"),
            ("levels", "dram; file,keep=3;"),
            ("when", "steps:10;signal"),
            ("program", "heat"),
            ("memory", "4GiB"),
        ] {
            set(&mut options, key, value).unwrap_or_else(|e| panic!("{key}: {e}"));
            let wrong = set(&mut options, key, "a:0").err().map(|e| e.kind());
            // Any text is a name, and any text is the path of a directory; levels are read where they are opened.
            let is_free = ["component", "group", "spill", "levels", "program"].contains(&key);
            assert_eq!(wrong, if is_free { None } else { Some(Kind::Usage) }, "{key}");
        }
        let Set { space: options, checkpoint } = options;
        assert_eq!(checkpoint.levels, ["a:0"], "the last word counts");
        assert_eq!((checkpoint.when.len(), checkpoint.memory_bytes_max), (2, Some(4 << 30)));
        assert_eq!((options.rank, options.size), (Some(1), Some(2)));
        assert_eq!(options.quota_bytes, Some(512 << 20));
        assert_eq!(options.timeout, Duration::from_millis(500));
        assert_eq!(options.readers, [("analysis".to_owned(), 3), ("viz".to_owned(), 1)]);
        assert!(options.latest && !options.observer);
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let error = set(&mut Set::default(), "quotta", "1").expect_err("unknown");
        assert_eq!(error.kind(), Kind::UnknownKey);
        assert_eq!(error.hint_text(), Some("did you mean `quota`?"));
        let error = set(&mut Set::default(), "colour", "red").expect_err("unknown");
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
