//! Platforms: profiles typed in from publications, shipped with Forebay.
//!
//! Guarantees: every number in them names its publication, and the table or figure where it stands; a figure without
//! printed values is absent. They are files of the profile's own format, in the folder beside this file.

use forebay_terms::spelling::did_you_mean;
use forebay_terms::{Error, Kind, Result};

use super::Profile;

/// Name and text of each platform.
const FILES: &[(&str, &str)] = &[
    ("optane-gen1", include_str!("platforms/optane-gen1.toml")),
    ("optane-gen3", include_str!("platforms/optane-gen3.toml")),
    ("ddr4-2666", include_str!("platforms/ddr4-2666.toml")),
    ("ddr5-4800", include_str!("platforms/ddr5-4800.toml")),
    ("cxl-cz120", include_str!("platforms/cxl-cz120.toml")),
    ("p4800x", include_str!("platforms/p4800x.toml")),
    ("p3700", include_str!("platforms/p3700.toml")),
    ("hgst-sn100", include_str!("platforms/hgst-sn100.toml")),
    ("sata-ssd-c", include_str!("platforms/sata-ssd-c.toml")),
];

/// The names, in the order of speed.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

/// Whether a platform has this name.
pub fn is_platform(name: &str) -> bool {
    names().any(|n| n == name)
}

/// The platform of this name.
///
/// # Errors
/// [`Kind::UnknownComponent`]: there is none.
pub fn platform(name: &str) -> Result<Profile> {
    let Some((_, text)) = FILES.iter().find(|(n, _)| *n == name) else {
        let error = Error::new(Kind::UnknownComponent, format!("unknown platform {name}"));
        return Err(match did_you_mean(name, names()) {
            Some(close) => error.hint(format!("did you mean {close}?")),
            None => error.hint(format!("platforms: {}", names().collect::<Vec<_>>().join(", "))),
        });
    };
    Profile::parse(name, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Provenance;

    #[test]
    fn every_platform_is_whole_named_as_its_file_and_published() {
        for name in names() {
            let profile = platform(name).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(profile.name, name);
            assert!(profile.title.is_some() && !profile.notes.is_empty(), "{name}");
            assert!(profile.sources.values().all(|s| s.kind == Provenance::Published), "{name}");
            let text = profile.text().unwrap();
            assert_eq!(Profile::parse(name, &text).unwrap(), profile);
        }
    }

    #[test]
    fn an_unknown_one_names_the_nearest() {
        assert!(platform("optane-gen2").unwrap_err().hint_text().unwrap().contains("optane-gen"));
        assert!(platform("floppy").unwrap_err().hint_text().unwrap().contains("sata-ssd-c"));
    }
}
