//! `fb_options`: how to open a space, as pairs of text.
//!
//! Guarantees: every key and value is checked when it is set, an unknown key names the nearest one, and what
//! was set before an error stays set. Whether the options agree with a space that exists is only known when
//! it is opened.

use crate::memory::{give, handle, lock, out, take, text};
use crate::status::guard;
use crate::FB_OK;
use forebay_space::environment::{did_you_mean, parse_number};
use forebay_space::options::{
    parse_flag, parse_horizon, parse_readers, parse_seconds, parse_spill, parse_tier, TIMEOUT_SECONDS_MAX,
};
use forebay_space::{parse_bytes, Error, Kind, OpenOptions, Result};
use std::ffi::{c_char, c_int};
use std::sync::Mutex;
use std::time::Duration;

/// How to open a space: made by fb_options_new, filled by fb_options_set, ended by fb_options_free. One set
/// of options may open any number of writers and readers.
pub struct fb_options {
    state: Mutex<OpenOptions>,
}

/// Every key; the order is the one of the documentation.
const KEYS: [&str; 19] = [
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
    "readers",
    "timeout",
    "on_existing",
    "verify",
    "latest",
    "observer",
];

/// Makes options that hold the defaults and stores them in `*options`. Does not block.
#[no_mangle]
pub unsafe extern "C" fn fb_options_new(options: *mut *mut fb_options) -> c_int {
    guard(|| {
        // SAFETY: the header's contract for outputs.
        let place = unsafe { out(options, "options")? };
        give(fb_options { state: Mutex::new(OpenOptions::default()) }, place);
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
/// "files": one file an object, the baseline), "tier" ("dram", "numa:N", "file", "direct", "pmem"), "quota" and
/// "segment" (bytes, as "512MiB"), "spill" (lower tiers, as "/scratch/me,quota=20GiB"; several with ";" between
/// them), "when_full" ("block", "spill", "drop_oldest", "error"), "horizon" ("none", "epoch", "write": when stores
/// are made persistent), "retention"
/// ("released": until every registered reader released the version; "last:K"; "forever"), "checksum" ("true",
/// "false"), "readers" ("analysis:3,viz:1": reader groups that will come, with their size).
///
/// How this handle behaves: "timeout" (seconds that a call may wait, default 60), "on_existing" (begin a
/// version that is complete: "error", "skip"), "verify" (checksums when reading: "first" time, "always",
/// "never"), "latest" ("true": begin with the newest version), "observer" ("true": look without being a
/// registered reader; versions are not kept for it, except those it holds a view of).
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
    Ok(lock(&options.state, "options")?.clone())
}

/// A timeout of the header's form: None is the handle's own.
pub(crate) fn timeout_of(seconds: f64) -> Result<Option<Duration>> {
    if seconds.is_nan() {
        return Err(Error::new(Kind::Usage, "the timeout is not a number"));
    }
    Ok((seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(TIMEOUT_SECONDS_MAX))))
}

fn set(options: &mut OpenOptions, key: &str, value: &str) -> Result<()> {
    let value = value.trim();
    match key {
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
        "readers" => options.readers = parse_readers(value)?,
        "timeout" => options.timeout = parse_seconds(value)?,
        "on_existing" => options.on_existing = value.parse()?,
        "verify" => options.verify = value.parse()?,
        "latest" => options.latest = parse_flag(value)?,
        "observer" => options.observer = parse_flag(value)?,
        _ => return Err(unknown(key)),
    }
    Ok(())
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
        let mut options = OpenOptions::default();
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
            ("on_existing", "skip"),
            ("verify", "always"),
            ("timeout", "0.5"),
            ("latest", "yes"),
            ("scope", "node"),
            ("readers", "analysis:3, viz:1"),
            ("observer", "false"),
        ] {
            set(&mut options, key, value).unwrap_or_else(|e| panic!("{key}: {e}"));
            let wrong = set(&mut options, key, "a:0").err().map(|e| e.kind());
            // Any text is a name, and any text is the path of a directory.
            let is_free = ["component", "spill"].contains(&key);
            assert_eq!(wrong, if is_free { None } else { Some(Kind::Usage) }, "{key}");
        }
        assert_eq!((options.rank, options.size), (Some(1), Some(2)));
        assert_eq!(options.quota_bytes, Some(512 << 20));
        assert_eq!(options.timeout, Duration::from_millis(500));
        assert_eq!(options.readers, [("analysis".to_owned(), 3), ("viz".to_owned(), 1)]);
        assert!(options.latest && !options.observer);
    }

    #[test]
    fn an_unknown_key_names_the_nearest() {
        let error = set(&mut OpenOptions::default(), "quotta", "1").expect_err("unknown");
        assert_eq!(error.kind(), Kind::UnknownKey);
        assert_eq!(error.hint_text(), Some("did you mean `quota`?"));
        let error = set(&mut OpenOptions::default(), "colour", "red").expect_err("unknown");
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
