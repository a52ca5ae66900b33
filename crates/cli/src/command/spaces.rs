//! Finds spaces by the names a user types, and says what was meant when there is none.
//!
//! Looks only: no space is joined, made or changed.

use std::time::Duration;

use forebay_config::did_you_mean;
use forebay_space::{Error, Kind, Result, SpaceInfo};

/// Everything known about a space without joining it.
///
/// # Errors
/// [`Kind::PeerMissing`] with the names there are, when there is no such space; whatever `inspect` finds
/// wrong.
pub fn look_up(name: &str) -> Result<SpaceInfo> {
    forebay_space::inspect(name).map_err(|e| with_suggestion(e, name))
}

/// A space without its versions.
///
/// # Errors
/// As [`look_up`].
pub fn glance(name: &str) -> Result<SpaceInfo> {
    forebay_space::glance(name).map_err(|e| with_suggestion(e, name))
}

/// Seconds between two looks, as an option's value: `0.5`, `15`.
pub fn seconds(text: &str) -> std::result::Result<Duration, String> {
    // More than ten times a second is too fast to read; slower than once a day is a cron job.
    let range = 0.1..=86_400.0;
    match text.parse::<f64>() {
        Ok(seconds) if range.contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected seconds, 0.1 to 86400".into()),
    }
}

/// Adds to an error that there is no such space what may have been meant.
pub fn with_suggestion(error: Error, name: &str) -> Error {
    match error.kind() {
        Kind::PeerMissing => suggest(name),
        _ => error,
    }
}

/// Names of the spaces below the root, or those given.
pub fn names_or_all(names: &[String]) -> Result<Vec<String>> {
    if !names.is_empty() {
        return Ok(names.to_vec());
    }
    Ok(forebay_space::list()?.into_iter().map(|space| space.name).collect())
}

fn suggest(name: &str) -> Error {
    let error = Error::new(Kind::PeerMissing, format!("space {name} does not exist"));
    let names: Vec<String> = match forebay_space::list() {
        Ok(spaces) => spaces.into_iter().map(|space| space.name).collect(),
        Err(_) => Vec::new(),
    };
    match did_you_mean(name, names.iter().map(String::as_str)) {
        Some(near) => error.hint(format!("did you mean {near}?")),
        None if name.contains('/') => error.hint("there is no space at this path"),
        None if names.is_empty() => error.hint("there is no space; short names are looked up in FOREBAY_DIR"),
        None => error.hint("`forebay ls` lists the existing spaces; a name with a / is a path"),
    }
}
