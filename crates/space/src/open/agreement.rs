//! Options that say how a space is made, against the space that is there: a writer that joins it or goes on in it asks
//! for the same, or leaves them out.
//!
//! Not here: what each start of the writers chooses anew (execution mode, mode, declared readers).

use forebay_config::{durable_one_by_one, Emulation, OpenOptions, SpillTier};
use forebay_tier::host::fs;
use forebay_tier::{Error, Horizon, Kind, Result};

use crate::format_bytes;
use crate::open::attach::Attachment;
use crate::open::create::segment_in_granules;
use crate::place::emulated;
use crate::place::pool::retention_of;
use crate::place::tiers::LowerPool;

/// Fails where an option that is given differs from what a space was made with.
///
/// # Errors
/// `OptionMismatch` with both values; `Usage` for batches where each put is durable; `Io`.
pub(crate) fn check_space(space: &Attachment, options: &OpenOptions) -> Result<()> {
    let sb = &space.superblock;
    if options.batch_bytes.is_some() && sb.horizon == Horizon::Write {
        return Err(durable_one_by_one().with("space", &space.name));
    }
    let of = &format!("space {}", space.name);
    if let Some(wanted) = &options.emulate {
        let is = emulated::read(&space.dir)?;
        let words = |e: &Emulation| format!("{} divided by k = {}", e.of, e.k);
        agree(of, "emulated tier", is.as_ref() == Some(wanted), || {
            (words(wanted), is.as_ref().map_or("none".into(), words))
        })?;
    }
    agree_on(of, "tier", options.tier, sb.tier)?;
    agree_on(of, "horizon", options.horizon, sb.horizon)?;
    agree_on(of, "retention", options.retention, retention_of(sb.retention))?;
    agree_on(of, "checksum", options.checksum, sb.checksum)?;
    agree_on(of, "when_full", options.when_full, space.tiers.when_full)?;
    if let Some(wanted) = options.quota_bytes {
        let is = space.first_bytes();
        let fits = wanted / sb.granule_bytes == is / sb.granule_bytes;
        agree(of, "quota", fits, || sizes_in_words(wanted, is))?;
    }
    if let Some(wanted) = options.segment_bytes {
        let fits = segment_in_granules(wanted, sb.granule_bytes) == sb.segment_bytes;
        agree(of, "segment", fits, || sizes_in_words(wanted, sb.segment_bytes))?;
    }
    agree_on_spill(of, space, &options.spill)
}

/// Two sizes that differ, in bytes where rounding hides the difference.
pub(crate) fn sizes_in_words(wanted: u64, is: u64) -> (String, String) {
    let rounded = (format_bytes(wanted), format_bytes(is));
    match rounded.0 == rounded.1 {
        true => (format!("{wanted} bytes"), format!("{is} bytes")),
        false => rounded,
    }
}

pub(crate) fn agree_on<T: PartialEq + ToString>(
    of: &str,
    what: &'static str,
    wanted: Option<T>,
    is: T,
) -> Result<()> {
    match wanted {
        Some(wanted) => agree(of, what, wanted == is, || (wanted.to_string(), is.to_string())),
        None => Ok(()),
    }
}

fn agree_on_spill(of: &str, space: &Attachment, wanted: &[SpillTier]) -> Result<()> {
    let lower = &space.tiers.lower;
    if wanted.is_empty() {
        return Ok(());
    }
    let granule = space.superblock.granule_bytes;
    let mut fits = wanted.len() == lower.len();
    for (wanted, is) in wanted.iter().zip(lower) {
        fits = fits && is_made_by(wanted, is, granule)?;
    }
    agree(of, "spill", fits, || {
        let wanted: Vec<String> = wanted.iter().map(in_words).collect();
        let is: Vec<String> = lower.iter().map(|pool| in_words(&made_for(pool, granule))).collect();
        (wanted.join("; "), if is.is_empty() { "none".into() } else { is.join("; ") })
    })
}

/// Whether this spill tier is the one that the pool was made for.
fn is_made_by(wanted: &SpillTier, is: &LowerPool, granule: u64) -> Result<bool> {
    let dir = fs::canonicalize(&wanted.path)
        .map_err(|e| Error::io(format!("cannot access the spill directory {}", wanted.path.display()), e))?;
    Ok(is.path.parent() == Some(&dir)
        && wanted.tier.is_none_or(|tier| tier == is.tier)
        && wanted.quota.is_none_or(|quota| quota.div_ceil(granule) == is.capacity_bytes / granule - 1))
}

/// The spill tier that a lower pool was made for.
fn made_for(pool: &LowerPool, granule: u64) -> SpillTier {
    let path = pool.path.parent().unwrap_or(&pool.path).to_path_buf();
    // The granule of the superblock is none of the quota.
    SpillTier { path, quota: Some(pool.capacity_bytes.saturating_sub(granule)), tier: Some(pool.tier) }
}

/// A spill tier as the option names it.
fn in_words(spill: &SpillTier) -> String {
    let quota = spill.quota.map_or(String::new(), |bytes| format!(",quota={}", format_bytes(bytes)));
    let tier = spill.tier.map_or(String::new(), |tier| format!(",tier={tier}"));
    format!("{}{quota}{tier}", spill.path.display())
}

/// `asked_for` and `is`, for the error.
pub(crate) fn agree(
    of: &str,
    what: &'static str,
    fits: bool,
    words: impl FnOnce() -> (String, String),
) -> Result<()> {
    if fits {
        return Ok(());
    }
    let (wanted, is) = words();
    Err(Error::new(Kind::OptionMismatch, format!("{of} exists with a different {what}"))
        .with("asked_for", wanted)
        .with("is", is)
        .hint(
            "omit the option, or use the existing value; all ranks must pass the same options. mode=\"w\" replaces a \
             finished space, `forebay clean` removes an unused one",
        ))
}
