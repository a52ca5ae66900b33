//! Finds spaces by the names a user types, and says what was meant when there is none.
//!
//! Looks only: no space is joined, made or changed.

use forebay_space::environment::did_you_mean;
use forebay_space::{Error, Kind, Result, SpaceInfo};

/// Everything known about a space without joining it.
///
/// # Errors
/// [`Kind::PeerMissing`] with the names there are, when there is no such space; whatever `inspect` finds
/// wrong.
pub fn look_up(name: &str) -> Result<SpaceInfo> {
    forebay_space::inspect(name).map_err(|e| with_suggestion(e, name))
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
    let error = Error::new(Kind::PeerMissing, format!("there is no space {name}"));
    let names: Vec<String> = match forebay_space::list() {
        Ok(spaces) => spaces.into_iter().map(|space| space.name).collect(),
        Err(_) => Vec::new(),
    };
    match did_you_mean(name, names.iter().map(String::as_str)) {
        Some(near) => error.hint(format!("did you mean {near}?")),
        None if names.is_empty() => {
            error.hint("there is none at all; FOREBAY_DIR says where short names are looked up")
        }
        None => error.hint("forebay ls lists those there are; a name with a / is a path"),
    }
}
