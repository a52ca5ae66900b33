//! Reading and writing profiles as text.
//!
//! Guarantees: what [`Profile::parse`] returns has passed every check of `check`; an error names file and line, and the
//! nearest known word when a key is not known; [`Profile::text`] is read back as the same profile.

use std::path::Path;

use forebay_terms::spelling::{self, Unknown};
use forebay_terms::{Error, Kind, Result};

use super::{layout, Profile, FORMAT};

/// Largest file that is taken for a profile: a full probe with all histograms has a few MiB.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

impl Profile {
    /// Reads and checks a profile file, TOML or JSON.
    ///
    /// # Errors
    /// [`Kind::UnknownComponent`]: no such file. [`Kind::UnknownKey`]: a key that does not exist.
    /// [`Kind::UnknownFormat`]: no profile, or another version than 1. [`Kind::Damaged`]: everything else that makes no
    /// profile: not TOML, a number without a source, points that do not rise. Those of reading files.
    pub fn read(file: &Path) -> Result<Profile> {
        let origin = file.display().to_string();
        let meta = std::fs::metadata(file).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::new(Kind::UnknownComponent, format!("profile file {origin} does not exist"))
                    .hint("forebay probe ls lists saved profiles and platforms")
            }
            _ => Error::io(format!("reading {origin}"), e),
        })?;
        if !meta.is_file() || meta.len() > FILE_BYTES_MAX {
            return Err(Error::new(Kind::UnknownFormat, format!("{origin} is not a profile"))
                .with("bytes", meta.len())
                .hint("a profile is a text file that begins with forebay_profile = 1"));
        }
        let bytes = std::fs::read(file).map_err(|e| Error::io(format!("reading {origin}"), e))?;
        let text = String::from_utf8(bytes).map_err(|e| {
            Error::new(Kind::UnknownFormat, format!("{origin} is not a profile"))
                .with("byte", e.utf8_error().valid_up_to())
                .hint("a profile is UTF-8 text that begins with forebay_profile = 1")
        })?;
        Profile::parse(&origin, &text)
    }

    /// As [`Profile::read`], from text; `origin` is what errors call it.
    pub fn parse(origin: &str, text: &str) -> Result<Profile> {
        let source = Text { origin, text };
        let profile = match text.trim_start().starts_with('{') {
            true => source.json()?,
            false => source.toml()?,
        };
        profile.check().map_err(|e| e.with("file", origin))?;
        Ok(profile)
    }

    /// The profile as TOML.
    pub fn text(&self) -> Result<String> {
        let value = toml::Value::try_from(self)
            .map_err(|e| Error::new(Kind::Internal, format!("the profile is not valid TOML: {e}")))?;
        Ok(layout::toml(&value))
    }

    /// The profile as JSON.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map(|text| text + "\n")
            .map_err(|e| Error::new(Kind::Internal, format!("the profile is not valid JSON: {e}")))
    }
}

/// A text and where it came from, to say where in it something is wrong.
struct Text<'a> {
    origin: &'a str,
    text: &'a str,
}

/// The version alone, whatever else there is.
#[derive(serde::Deserialize)]
struct Version {
    forebay_profile: i64,
}

impl Text<'_> {
    fn error(&self, kind: Kind, line: usize, message: impl Into<String>) -> Error {
        Error::new(kind, message).with("at", format!("{}:{line}", self.origin))
    }

    fn toml(&self) -> Result<Profile> {
        let line_of = |e: &toml::de::Error| {
            let offset = e.span().map_or(0, |span| span.start).min(self.text.len());
            1 + self.text.as_bytes()[..offset].iter().filter(|b| **b == b'\n').count()
        };
        // Not TOML at all is another mistake than TOML that is no profile.
        let table: toml::Table =
            self.text.parse().map_err(|e: toml::de::Error| self.broken(line_of(&e), e.message()))?;
        self.version(Version::deserialize_table(table))?;
        toml::from_str(self.text).map_err(|e| self.unreadable(line_of(&e), e.message()))
    }

    fn json(&self) -> Result<Profile> {
        let value: serde_json::Value =
            serde_json::from_str(self.text).map_err(|e| self.broken(e.line(), &e.to_string()))?;
        self.version(serde_json::from_value::<Version>(value).ok())?;
        serde_json::from_str(self.text).map_err(|e| self.unreadable(e.line(), &e.to_string()))
    }

    fn broken(&self, line: usize, message: &str) -> Error {
        self.error(Kind::Damaged, line, format!("cannot read the profile: {}", one_line(message)))
    }

    /// Another version may have other keys: it is told first.
    fn version(&self, version: Option<Version>) -> Result<()> {
        match version.map(|v| v.forebay_profile) {
            Some(version) if version == i64::from(FORMAT) => Ok(()),
            Some(version) => Err(self
                .error(Kind::UnknownFormat, 1, "a profile of an unknown version")
                .with("version", version)
                .hint(format!("this build reads forebay_profile = {FORMAT}"))),
            None => Err(self
                .error(Kind::UnknownFormat, 1, "not a profile, or one without its version")
                .hint(format!("a profile must begin with forebay_profile = {FORMAT}"))),
        }
    }

    /// Turns the reader's complaint into a kind with a hint.
    fn unreadable(&self, line: usize, message: &str) -> Error {
        let message = message.trim();
        if let Some(Unknown { is_key, word, hint }) = spelling::unknown(message) {
            let (kind, what) = if is_key { (Kind::UnknownKey, "key") } else { (Kind::Damaged, "word") };
            return self.error(kind, line, format!("unknown {what} {word}")).hint(hint);
        }
        self.broken(line, message)
    }
}

impl Version {
    fn deserialize_table(table: toml::Table) -> Option<Version> {
        toml::Value::Table(table).try_into().ok()
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
