//! The values that options have, and how each is written as text.
//!
//! Guarantees: a text that cannot be read is `Usage` with what may be said; what is printed can be read again. Not
//! here: which option has which value (`table.rs`).

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use forebay_terms::spelling::did_you_mean;
use forebay_tier::adapter::throttle::{Curves, Locality};
use forebay_tier::{Error, Horizon, Kind, Result, TierKind};
use serde::{Deserialize, Serialize};

use crate::size::parse_bytes;

/// How long `open` and every other blocking call wait when nothing else is said.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// Longest wait that can be asked for (about 31 years): keeps sums of times far from overflow.
pub const TIMEOUT_SECONDS_MAX: f64 = 1e9;

/// What `batch` may be: less holds no two objects, more would wait in memory for nothing.
pub const BATCH_BYTES: RangeInclusive<u64> = 4096..=64 << 20;

/// Longest name of a component or reader group, in bytes: what the control segment has for one.
pub const NAME_BYTES: usize = 64;

/// What may be said of a space's tier.
pub(crate) const TIERS: &str = "dram | numa:N | numa:N+M | file | direct | pmem";

/// Words of [`Horizon`].
pub(crate) const HORIZONS: &[&str] = &["none", "epoch", "write"];

/// Words of [`Locality`].
pub(crate) const LOCALITIES: &[&str] = &["local", "remote", "interleaved"];

/// An error for a text that is not what it should be.
pub(crate) fn refuse(what: &str, text: &str, wanted: &str) -> Error {
    Error::new(Kind::Usage, format!("`{text}` is not a {what}")).hint(format!("{what}: {wanted}"))
}

/// An error for a word that is none of these.
fn refuse_word(what: &str, text: &str, words: &[&str]) -> Error {
    let error = refuse(what, text, &words.join(" | "));
    match did_you_mean(text, words.iter().copied()) {
        Some(near) => error.hint(format!("did you mean {near}?")),
        None => error,
    }
}

/// For serde's `try_from` and `into`: a type is read and written as its text.
macro_rules! as_text {
    ($type:ty) => {
        impl TryFrom<String> for $type {
            type Error = Error;

            fn try_from(text: String) -> Result<$type> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> String {
                value.to_string()
            }
        }
    };
}

pub(crate) use as_text;

/// An enum that is written as one word; gives Display, FromStr and serde.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal {
        $($(#[$vdoc:meta])* $variant:ident = $word:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// Every word that can be said here.
            pub const WORDS: &'static [&'static str] = &[$($word,)*];

            /// The word.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(text: &str) -> Result<$name> {
                match text {
                    $($word => Ok($name::$variant),)*
                    _ => Err(refuse_word($what, text, Self::WORDS)),
                }
            }
        }

        as_text!($name);
    };
}

words! {
    /// What carries the data of a channel.
    Mechanism, "channel kind" {
        /// A shared space: pools, lanes, zero copy.
        #[default]
        Space = "space",
        /// One file per object: the baseline that comparisons use, with the same interface.
        Files = "files",
    }
}

words! {
    /// What a writer does with a space that is there already (the guide's page on opening has the whole table).
    Mode, "mode" {
        /// Starts over: replaces a space that has finished, and a dead one of which nothing retained is unread.
        #[default]
        Write = "w",
        /// Goes on behind what is complete. A version that is complete already is not put again: `begin_version`
        /// returns false and the puts of the step are dropped.
        Append = "a",
        /// Refuses a space that is there.
        Exclusive = "x",
    }
}

words! {
    /// What a reader group that keeps a cursor means to the writers while none of its processes has the space open.
    Absent, "policy for an absent reader group" {
        /// Versions from its cursor on are kept; when the quota is full the writer waits, and the error names the
        /// group.
        #[default]
        Hold = "hold",
        /// Versions go without it; it learns how many it missed.
        Drop = "drop",
        /// As `hold`, and the next step of a writer fails.
        Error = "error",
    }
}

words! {
    /// When the checksum of what is read is compared.
    Verify, "time of checksum comparison" {
        /// Once per record and process.
        #[default]
        First = "first",
        /// At every read.
        Always = "always",
        /// Never.
        Never = "never",
    }
}

words! {
    /// What happens when the first tier of a space has no free space for what is put.
    WhenFull, "answer to a full quota" {
        /// The producer waits, until its deadline.
        #[default]
        Block = "block",
        /// Older data move to the next tier; when that is full too, the producer waits.
        Spill = "spill",
        /// The oldest complete versions that no reader holds go, read or not.
        DropOldest = "drop_oldest",
        /// The put fails at once.
        Error = "error",
    }
}

/// A lower tier of a space: where its data go when the tier above is full.
///
/// Text: `DIRECTORY[,quota=SIZE][,tier=KIND]`, as in `/scratch/me,quota=20GiB,tier=direct`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpillTier {
    /// An existing directory; the pool is a file in it that goes with the space.
    pub path: PathBuf,
    /// Most bytes the pool may hold. None: a quarter of what the tier has free.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::form::optional")]
    pub quota: Option<u64>,
    /// Kind of tier. None: what the directory is on, `direct` where a `file` tier can do direct I/O.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierKind>,
}

impl FromStr for SpillTier {
    type Err = Error;

    fn from_str(text: &str) -> Result<SpillTier> {
        let unreadable = || refuse("spill tier", text, "DIRECTORY[,quota=SIZE][,tier=KIND]");
        let mut parts = text.split(',');
        let path = parts.next().map(str::trim).filter(|path| !path.is_empty()).ok_or_else(unreadable)?;
        let mut tier = SpillTier { path: path.into(), quota: None, tier: None };
        for part in parts {
            match part.trim().split_once('=') {
                Some(("quota", size)) => tier.quota = Some(parse_bytes(size)?),
                Some(("tier", kind)) => tier.tier = Some(parse_tier(kind)?),
                _ => return Err(unreadable()),
            }
        }
        Ok(tier)
    }
}

/// Reads spill tiers, the faster first: [`SpillTier`]s in their text form with `;` between them.
///
/// # Errors
/// [`Kind::Usage`].
pub fn parse_spill(text: &str) -> Result<Vec<SpillTier>> {
    text.split(';').map(str::trim).filter(|part| !part.is_empty()).map(str::parse).collect()
}

words! {
    /// What rank and size count in a job of several nodes.
    Scope, "scope" {
        /// The whole job; a job of several nodes is refused.
        #[default]
        Job = "job",
        /// This node: node-local rank and size.
        Node = "node",
    }
}

/// When a complete version goes. Text: `released`, `last:K`, `forever`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Retention {
    /// When every registered reader has released it.
    #[default]
    Released,
    /// As soon as this many newer ones are complete, released or not. At least 1.
    Last(u64),
    /// Never.
    Forever,
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Retention::Released => f.write_str("released"),
            Retention::Last(count) => write!(f, "last:{count}"),
            Retention::Forever => f.write_str("forever"),
        }
    }
}

impl FromStr for Retention {
    type Err = Error;

    fn from_str(text: &str) -> Result<Retention> {
        match text {
            "released" => Ok(Retention::Released),
            "forever" => Ok(Retention::Forever),
            _ => text
                .strip_prefix("last:")
                .and_then(|count| count.parse().ok())
                .filter(|count| *count > 0)
                .map(Retention::Last)
                .ok_or_else(|| refuse("retention", text, "released | last:K with K > 0 | forever")),
        }
    }
}

as_text!(Retention);

/// A medium to emulate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Emulation {
    /// What it is, for people: `optane-gen1:pmem`.
    pub of: String,
    /// By how much it is slower than that.
    pub k: f64,
    /// Its curves, divided by k already.
    pub curves: Curves,
}

/// Reads a tier.
///
/// # Errors
/// [`Kind::Usage`].
pub fn parse_tier(text: &str) -> Result<TierKind> {
    text.parse().map_err(|_| refuse("tier", text, TIERS))
}

/// Reads a horizon.
///
/// # Errors
/// [`Kind::Usage`].
pub fn parse_horizon(text: &str) -> Result<Horizon> {
    text.parse().map_err(|_| refuse_word("horizon", text, HORIZONS))
}

/// Reads a flag: `1 true yes on` or `0 false no off`.
///
/// # Errors
/// [`Kind::Usage`].
pub fn parse_flag(text: &str) -> Result<bool> {
    match text {
        "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        _ => Err(refuse("flag", text, "true | false")),
    }
}

/// Reads a time in seconds, as in `60` or `0.5`.
///
/// # Errors
/// [`Kind::Usage`]: not a number, negative, or above [`TIMEOUT_SECONDS_MAX`].
pub fn parse_seconds(text: &str) -> Result<Duration> {
    text.trim()
        .parse::<f64>()
        .ok()
        .and_then(duration)
        .ok_or_else(|| refuse("time", text, "seconds, as in 60 or 0.5"))
}

/// A time of this many seconds, when that is a sensible number.
fn duration(seconds: f64) -> Option<Duration> {
    // Written so that a NaN is refused too.
    (0.0..=TIMEOUT_SECONDS_MAX).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

/// Reads reader groups: `analysis:3,viz:1`; a missing size is 1, an empty text is no group.
///
/// # Errors
/// [`Kind::Usage`]: an empty or repeated name, a size that is no number or 0.
pub fn parse_readers(text: &str) -> Result<Vec<(String, u32)>> {
    let mut groups: Vec<(String, u32)> = Vec::new();
    for part in text.split(',').map(str::trim).filter(|_| !text.trim().is_empty()) {
        let (name, size) = part.rsplit_once(':').unwrap_or((part, "1"));
        let size = size.trim().parse::<u32>().ok().filter(|size| *size > 0);
        let name = name.trim();
        match size {
            Some(size) if !name.is_empty() && groups.iter().all(|(other, _)| other != name) => {
                groups.push((name.into(), size));
            }
            _ => {
                return Err(refuse("list of reader groups", text, "name:size,name:size with different names"))
            }
        }
    }
    Ok(groups)
}

/// Writes reader groups as [`parse_readers`] reads them.
pub fn format_readers(groups: &[(String, u32)]) -> String {
    groups.iter().map(|(name, size)| format!("{name}:{size}")).collect::<Vec<_>>().join(",")
}

/// The name of a component or a reader group: not empty, and no longer than the control segment holds. `what` it is the
/// name of.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    match name.len() {
        1..=NAME_BYTES if !name.contains('\0') => Ok(()),
        _ => Err(refuse(&format!("name of a {what}"), name, "a name of 1 to 64 bytes, without NUL")),
    }
}

/// Groups as [`parse_readers`] lets them through, and no longer names than there is space for.
pub(crate) fn check_readers(groups: &[(String, u32)]) -> Result<()> {
    let mut names = BTreeSet::new();
    for (name, size) in groups {
        if *size == 0 || name.is_empty() {
            return Err(Error::new(Kind::Usage, format!("reader group \"{name}\" has {size} ranks"))
                .hint("a reader group has a name and at least one rank; omit groups without ranks"));
        }
        if !names.insert(name) {
            return Err(Error::new(Kind::Usage, format!("reader group \"{name}\" is listed twice"))
                .hint("list each group once, with the number of its ranks"));
        }
        check_name("reader group", name)?;
    }
    Ok(())
}

/// Reads a whole number below 2^32.
///
/// # Errors
/// [`Kind::Usage`].
pub fn parse_number(text: &str) -> Result<u32> {
    text.trim().parse().map_err(|_| refuse("number", text, "a whole number, 0 or more"))
}

/// Reads where a process stands: `local`, `remote`, or `interleaved` (half of the bytes beside it, half across).
///
/// # Errors
/// [`Kind::Usage`].
pub fn parse_locality(text: &str) -> Result<Locality> {
    match text {
        "local" => Ok(Locality::Local),
        "remote" => Ok(Locality::Remote),
        "interleaved" => Ok(Locality::Interleaved),
        _ => Err(refuse_word("locality", text, LOCALITIES)),
    }
}
