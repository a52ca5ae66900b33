//! Finds the profile that a user asks for.

use forebay_profile::{saved::Saved, Profile};
use forebay_tier::{Error, Kind, Result};

/// The profile that was asked for, else the newest saved one.
pub fn chosen(saved: &Saved, word: Option<&str>) -> Result<Profile> {
    if let Some(word) = word {
        return saved.find(word);
    }
    saved.newest()?.ok_or_else(|| {
        Error::new(Kind::UnknownComponent, "no profile of this machine is saved")
            .with("folder", saved.dir().display())
            .hint(
                "measure this machine with `forebay probe`, in about a minute, or name a platform: `forebay probe ls` \
                 lists them",
            )
    })
}
