//! Options of `open`, as a program, the environment and a workflow's channel table give them.
//!
//! Guarantees: one order of precedence for all of them, applied by [`OpenOptions::resolved`]: what the
//! program says, then `FOREBAY_CHANNEL_<NAME>` (the workflow's channel table as JSON), then the single
//! `FOREBAY_*` variables, then the defaults. A text that cannot be read is an error, never a default. A field
//! that has no "not given" (`channel`, `mode`, `replace`, `verify`, `timeout`, `latest`, `finished`, `scope`,
//! `readers`) yields to the environment when the program leaves it at its default. Not here: what an option does; and
//! no variable is read but through the given look-up.

use crate::byte_size::parse_bytes;
use crate::control::NAME_BYTES;
use crate::emulated::{parse_locality, Emulation};
use crate::environment::{self, did_you_mean, Lookup};
use crate::identity;
use crate::pace::Pace;
use forebay_tier::adapter::throttle::Locality;
use forebay_tier::{Error, Horizon, Kind, Result, TierKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How long `open` and every other blocking call wait when nothing else is said.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// Longest wait that can be asked for (about 31 years): keeps sums of times far from overflow.
pub const TIMEOUT_SECONDS_MAX: f64 = 1e9;

/// An error for a text that is not what it should be.
pub(crate) fn refuse(what: &str, text: &str, wanted: &str) -> Error {
    Error::new(Kind::Usage, format!("`{text}` is not a {what}")).hint(format!("{what}: {wanted}"))
}

/// An enum that is written as one word; gives Display, FromStr and serde.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $what:literal {
        $($(#[$vdoc:meta])* $variant:ident = $word:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "&'static str")]
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
                    _ => Err(refuse($what, text, &Self::WORDS.join(" | "))),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<$name> {
                text.parse()
            }
        }

        impl From<$name> for &'static str {
            fn from(value: $name) -> &'static str {
                value.word()
            }
        }
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
    /// What a writer does with a space that is there already ([`crate::opening`] has the whole table).
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
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "size_text")]
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

impl TryFrom<String> for Retention {
    type Error = Error;

    fn try_from(text: String) -> Result<Retention> {
        text.parse()
    }
}

impl From<Retention> for String {
    fn from(value: Retention) -> String {
        value.to_string()
    }
}

/// How to open a space, for writing or reading. `OpenOptions::default()` is right for most programs.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenOptions {
    /// This process's rank in its group; with `size`, or neither. Else the environment (see `identity`).
    pub rank: Option<u32>,
    /// Number of processes in the group.
    pub size: Option<u32>,
    /// Name of the component; for readers the name of the group. Else `FOREBAY_COMPONENT`, else the program's
    /// name.
    pub component: Option<String>,
    /// What carries the data.
    pub channel: Mechanism,
    /// Directory of the space, when a short name stands for one outside the root of short names.
    pub path: Option<PathBuf>,
    /// Tier of the pools. Creation only: when the space exists it must agree.
    pub tier: Option<TierKind>,
    /// Most bytes the space may hold. Creation only.
    pub quota_bytes: Option<u64>,
    /// Lower tiers, the faster first, that take what does not fit into the first. Creation only.
    pub spill: Vec<SpillTier>,
    /// What happens when the first tier is full. Creation only. None: `spill` with lower tiers, else `block`.
    pub when_full: Option<WhenFull>,
    /// Size of a pool's segments. Creation only.
    pub segment_bytes: Option<u64>,
    /// When stores are made persistent. Creation only.
    pub horizon: Option<Horizon>,
    /// When versions go. Creation only.
    pub retention: Option<Retention>,
    /// Payload checksums. Creation only; can be turned off only at horizon `none`.
    pub checksum: Option<bool>,
    /// Writers: who may be at work when. Their first rank says it for all; None: `parallel`.
    pub pace: Option<Pace>,
    /// Writers: small objects of a step are gathered in memory to so many bytes, which the tier gets with one write. A
    /// step's data count when it ends, as without. [`BATCH_BYTES`]; not at horizon `write`, nor in files.
    pub batch_bytes: Option<u64>,
    /// A medium that the first pool takes as long as, for studies of a tier that is not there. Creation only; a process
    /// that opens the space finds it emulated.
    pub emulate: Option<Emulation>,
    /// Where this process stands, seen from an emulated medium. None: beside it.
    pub locality: Option<Locality>,
    /// Writers: what becomes of a space that is there already.
    pub mode: Mode,
    /// Writers, with mode `w`: also a dead space goes that holds versions no reader has read.
    pub replace: bool,
    /// When checksums are compared.
    pub verify: Verify,
    /// Deadline of blocking calls that are given none.
    pub timeout: Duration,
    /// Readers: start at the newest complete version, and skip to the newest at each step.
    pub latest: bool,
    /// Readers: stream a space also when its writers had ended before, in another run.
    pub finished: bool,
    /// Whole job or this node.
    pub scope: Scope,
    /// Reader groups (name, size) that must have released a version before it goes, declared ahead.
    pub readers: Vec<(String, u32)>,
    /// Readers: the group that this rank reads for, which keeps a cursor: it goes on where it stopped, also after a
    /// kill or a reboot. None: the component, which keeps one if the writers declare it in `readers`.
    pub group: Option<String>,
    /// Readers: what their group means to the writers while it is absent; writers: what the groups in `readers` do.
    /// None: as it was said before, else `hold`.
    pub absent: Option<Absent>,
    /// Readers: look without taking part. Holds leases only, never a cursor; no process waits for it.
    pub observer: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            rank: None,
            size: None,
            component: None,
            channel: Mechanism::default(),
            path: None,
            tier: None,
            quota_bytes: None,
            spill: Vec::new(),
            when_full: None,
            segment_bytes: None,
            horizon: None,
            retention: None,
            checksum: None,
            pace: None,
            batch_bytes: None,
            emulate: None,
            locality: None,
            mode: Mode::default(),
            replace: false,
            verify: Verify::default(),
            timeout: TIMEOUT_DEFAULT,
            latest: false,
            finished: false,
            scope: Scope::default(),
            readers: Vec::new(),
            group: None,
            absent: None,
            observer: false,
        }
    }
}

impl OpenOptions {
    /// These options with everything filled in that the environment says, for the space `name`: rank, size
    /// and component are always given in the result.
    ///
    /// `lookup` gives the value of an environment variable; programs use [`environment::process`].
    ///
    /// # Errors
    /// [`Kind::UnknownEnvironment`]: a variable with a value that cannot be read; [`Kind::UnknownKey`]: an
    /// unknown key in `FOREBAY_CHANNEL_<NAME>`; [`Kind::Usage`]: half a pair of rank and size, rank not below
    /// size; [`Kind::SeveralNodes`]: see `identity`.
    pub fn resolved(&self, name: &str, lookup: Lookup<'_>) -> Result<OpenOptions> {
        let table = ChannelOptions::from_environment(name, lookup)?;
        let single = ChannelOptions::from_single_variables(lookup)?;
        let mut result = self.clone();
        // Nearest first: what the first of them fills in, the second leaves alone.
        table.fill(&mut result);
        single.fill(&mut result);
        if let (Some(emulation), Mechanism::Files) = (&result.emulate, result.channel) {
            return Err(Error::new(Kind::Usage, "a channel of files cannot be emulated")
                .with("space", name)
                .with("emulate", &emulation.of)
                .hint("emulated tiers carry spaces only: leave `emulate` out, or use kind = \"space\""));
        }
        if result.replace && result.mode != Mode::Write {
            return Err(Error::new(Kind::Usage, format!("mode \"{}\" replaces nothing", result.mode))
                .with("space", name)
                .hint("replace goes with mode=\"w\""));
        }
        check_batch(&result).map_err(|e| e.with("space", name))?;
        check_readers(&result.readers).map_err(|e| e.with("space", name))?;
        check_group(&result).map_err(|e| e.with("space", name))?;
        if result.component.is_none() {
            result.component =
                Some(environment::value("FOREBAY_COMPONENT", lookup).unwrap_or_else(program_name));
        }
        if result.observer && result.rank.is_none() && result.size.is_none() {
            // An observer belongs to no group, wherever it was started.
            (result.rank, result.size) = (Some(0), Some(1));
        } else {
            let me = identity::identify(result.rank, result.size, result.scope, lookup)?;
            (result.rank, result.size) = (Some(me.rank), Some(me.size));
        }
        Ok(result)
    }
}

impl OpenOptions {
    /// What `name` stands for: its directory where one is given, else itself.
    pub(crate) fn place(&self, name: &str) -> String {
        match &self.path {
            None => name.to_string(),
            // A word without a `/` would be a short name again.
            Some(path) if path.components().count() == 1 => format!("./{}", path.display()),
            Some(path) => path.display().to_string(),
        }
    }
}

/// The file name of the running program: the component's name when none is given.
fn program_name() -> String {
    let file = std::env::args_os().next().map(std::path::PathBuf::from);
    file.as_deref().and_then(|p| p.file_name()).map_or("program".into(), |n| n.to_string_lossy().into_owned())
}

/// The options of one channel, as a workflow's channel table or the environment gives them; each may be
/// missing.
///
/// Written as JSON into `FOREBAY_CHANNEL_<NAME>` (see [`environment::channel_variable`]) by the process that starts the
/// ranks. Sizes are read as text with a unit or as a number of bytes, timeouts as seconds, readers as
/// `"analysis:3,viz:1"` or as a table `{"analysis": 3, "viz": 1}`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelOptions {
    /// See [`OpenOptions::channel`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Mechanism>,
    /// See [`OpenOptions::path`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// See [`OpenOptions::tier`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<TierKind>,
    /// See [`OpenOptions::quota_bytes`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "size_text")]
    pub quota: Option<u64>,
    /// See [`OpenOptions::spill`]. A text, a table, or a list of them.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "spill_tiers")]
    pub spill: Option<Vec<SpillTier>>,
    /// See [`OpenOptions::when_full`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_full: Option<WhenFull>,
    /// See [`OpenOptions::segment_bytes`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "size_text")]
    pub segment: Option<u64>,
    /// See [`OpenOptions::horizon`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizon: Option<Horizon>,
    /// See [`OpenOptions::retention`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// See [`OpenOptions::checksum`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<bool>,
    /// See [`OpenOptions::pace`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pace: Option<Pace>,
    /// See [`OpenOptions::batch_bytes`].
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "size_text")]
    pub batch: Option<u64>,
    /// See [`OpenOptions::emulate`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emulate: Option<Emulation>,
    /// See [`OpenOptions::locality`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<Locality>,
    /// See [`OpenOptions::mode`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// See [`OpenOptions::replace`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replace: Option<bool>,
    /// See [`OpenOptions::verify`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// See [`OpenOptions::timeout`].
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "seconds",
        serialize_with = "write_seconds"
    )]
    pub timeout: Option<Duration>,
    /// See [`OpenOptions::latest`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest: Option<bool>,
    /// See [`OpenOptions::finished`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<bool>,
    /// See [`OpenOptions::scope`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// See [`OpenOptions::readers`].
    #[serde(
        skip_serializing_if = "Option::is_none",
        deserialize_with = "reader_groups",
        serialize_with = "write_reader_groups"
    )]
    pub readers: Option<Vec<(String, u32)>>,
    /// See [`OpenOptions::absent`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<Absent>,
}

impl ChannelOptions {
    /// Every key, for "did you mean".
    pub const KEYS: &'static [&'static str] = &[
        "kind",
        "path",
        "tier",
        "quota",
        "spill",
        "when_full",
        "segment",
        "horizon",
        "retention",
        "checksum",
        "pace",
        "batch",
        "emulate",
        "locality",
        "mode",
        "replace",
        "verify",
        "timeout",
        "latest",
        "finished",
        "scope",
        "readers",
        "absent",
    ];

    /// Reads the JSON of one channel table; `place` says in errors where it stands.
    ///
    /// # Errors
    /// [`Kind::UnknownKey`] with "did you mean", [`Kind::UnknownEnvironment`] for everything else.
    pub fn from_json(place: &str, text: &str) -> Result<ChannelOptions> {
        let unreadable = |e: serde_json::Error| {
            Error::new(Kind::UnknownEnvironment, format!("{place} cannot be read: {e}")).caused_by(e)
        };
        let table: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).map_err(unreadable)?;
        for key in table.keys() {
            if !Self::KEYS.contains(&key.as_str()) {
                let error = Error::new(Kind::UnknownKey, format!("{place} has no key `{key}`"));
                return Err(match did_you_mean(key, Self::KEYS.iter().copied()) {
                    Some(near) => error.hint(format!("did you mean `{near}`?")),
                    None => error.hint(format!("the keys are {}", Self::KEYS.join(", "))),
                });
            }
        }
        serde_json::from_value(table.into()).map_err(unreadable)
    }

    /// What `FOREBAY_CHANNEL_<NAME>` says about the space `name`; nothing when it is not set.
    ///
    /// # Errors
    /// See [`ChannelOptions::from_json`].
    pub fn from_environment(name: &str, lookup: Lookup<'_>) -> Result<ChannelOptions> {
        let variable = environment::channel_variable(name);
        match environment::value(&variable, lookup) {
            // A word, not a table: FOREBAY_CHANNEL_KIND said to all channels, and this one is called `kind`.
            Some(text) if variable != "FOREBAY_CHANNEL_KIND" || environment::is_table(&text) => {
                Self::from_json(&variable, &text)
            }
            _ => Ok(ChannelOptions::default()),
        }
    }

    /// What the single variables say to all channels.
    ///
    /// # Errors
    /// [`Kind::UnknownEnvironment`] for a value that cannot be read.
    pub fn from_single_variables(lookup: Lookup<'_>) -> Result<ChannelOptions> {
        let kind =
            environment::value("FOREBAY_CHANNEL_KIND", lookup).filter(|text| !environment::is_table(text));
        Ok(ChannelOptions {
            kind: kind.map(|t| environment::readable("FOREBAY_CHANNEL_KIND", &t, t.parse())).transpose()?,
            path: None,
            tier: environment::parsed("FOREBAY_TIER", lookup, parse_tier)?,
            quota: environment::parsed("FOREBAY_QUOTA", lookup, parse_bytes)?,
            spill: environment::parsed("FOREBAY_SPILL", lookup, parse_spill)?,
            when_full: environment::parsed("FOREBAY_WHEN_FULL", lookup, WhenFull::from_str)?,
            segment: environment::parsed("FOREBAY_SEGMENT", lookup, parse_bytes)?,
            horizon: environment::parsed("FOREBAY_HORIZON", lookup, parse_horizon)?,
            retention: environment::parsed("FOREBAY_RETENTION", lookup, Retention::from_str)?,
            checksum: environment::parsed("FOREBAY_CHECKSUM", lookup, parse_flag)?,
            timeout: environment::parsed("FOREBAY_TIMEOUT", lookup, parse_seconds)?,
            scope: environment::parsed("FOREBAY_SCOPE", lookup, Scope::from_str)?,
            readers: environment::parsed("FOREBAY_READERS", lookup, parse_readers)?,
            absent: None,
            // A pace is one channel's: programs also open spaces that no plan knows of.
            pace: None,
            batch: environment::parsed("FOREBAY_BATCH", lookup, parse_bytes)?,
            locality: environment::parsed("FOREBAY_LOCALITY", lookup, parse_locality)?,
            emulate: None,
            mode: None,
            replace: None,
            verify: None,
            latest: None,
            finished: None,
        })
    }

    /// Fills in what `options` does not say.
    fn fill(self, options: &mut OpenOptions) {
        options.path = options.path.take().or(self.path);
        options.tier = options.tier.or(self.tier);
        options.quota_bytes = options.quota_bytes.or(self.quota);
        options.segment_bytes = options.segment_bytes.or(self.segment);
        options.when_full = options.when_full.or(self.when_full);
        options.horizon = options.horizon.or(self.horizon);
        options.retention = options.retention.or(self.retention);
        options.checksum = options.checksum.or(self.checksum);
        options.pace = options.pace.or(self.pace);
        options.batch_bytes = options.batch_bytes.or(self.batch);
        options.emulate = options.emulate.take().or(self.emulate);
        options.locality = options.locality.or(self.locality);
        options.absent = options.absent.or(self.absent);
        let defaults = OpenOptions::default();
        fill_default(&mut options.channel, self.kind, &defaults.channel);
        fill_default(&mut options.mode, self.mode, &defaults.mode);
        fill_default(&mut options.replace, self.replace, &defaults.replace);
        fill_default(&mut options.verify, self.verify, &defaults.verify);
        fill_default(&mut options.timeout, self.timeout, &defaults.timeout);
        fill_default(&mut options.latest, self.latest, &defaults.latest);
        fill_default(&mut options.finished, self.finished, &defaults.finished);
        fill_default(&mut options.scope, self.scope, &defaults.scope);
        fill_default(&mut options.readers, self.readers, &defaults.readers);
        fill_default(&mut options.spill, self.spill, &defaults.spill);
    }
}

/// Sets a field that was left at its default.
fn fill_default<T: PartialEq>(field: &mut T, value: Option<T>, default: &T) {
    if let Some(value) = value {
        if field == default {
            *field = value;
        }
    }
}

/// What a group and its policy may be said beside.
fn check_group(options: &OpenOptions) -> Result<()> {
    if options.group.is_none() && options.absent.is_none() {
        return Ok(());
    }
    if options.channel == Mechanism::Files {
        return Err(Error::new(Kind::NotPossibleHere, "a channel of files has no `group` and no `absent`")
            .hint("name the reader's component in the writers' `readers`, or use kind = \"space\""));
    }
    if options.observer && options.group.is_some() {
        return Err(Error::new(Kind::Usage, "an observer belongs to no reader group")
            .hint("leave `group` out, or `observer`"));
    }
    match &options.group {
        Some(group) if group.is_empty() || group.len() > NAME_BYTES => {
            Err(refuse("reader group", group, "a name of 1 to 64 bytes"))
        }
        _ => Ok(()),
    }
}

/// Groups as [`parse_readers`] lets them through, for those that were not given as text.
fn check_readers(groups: &[(String, u32)]) -> Result<()> {
    let wrong = |(name, size): &&(String, u32)| *size == 0 || name.is_empty();
    match groups.iter().find(wrong) {
        Some((name, size)) => {
            Err(Error::new(Kind::Usage, format!("reader group \"{name}\" has {size} ranks"))
                .hint("a reader group has a name and 1 rank or more; leave out a group that does not come"))
        }
        None => Ok(()),
    }
}

/// What `batch` may be: less holds no two objects, more would wait in memory for nothing.
pub const BATCH_BYTES: RangeInclusive<u64> = 4096..=64 << 20;

/// Whether objects can be gathered at all, as far as the options alone say.
fn check_batch(options: &OpenOptions) -> Result<()> {
    let Some(bytes) = options.batch_bytes else { return Ok(()) };
    if !BATCH_BYTES.contains(&bytes) {
        return Err(refuse("batch", &bytes.to_string(), "bytes from 4KiB to 64MiB"));
    }
    if options.channel == Mechanism::Files {
        return Err(Error::new(Kind::Usage, "a channel of files gathers nothing: each object is a file")
            .hint("leave `batch` out, or use kind = \"space\""));
    }
    if options.horizon == Some(Horizon::Write) {
        return Err(durable_one_by_one());
    }
    Ok(())
}

/// Why nothing is gathered at horizon `write`.
pub(crate) fn durable_one_by_one() -> Error {
    Error::new(Kind::Usage, "at horizon write every object is durable by itself: there is nothing to gather")
        .hint("leave `batch` out, or make the space with horizon none or epoch")
}

/// Reads a tier.
///
/// # Errors
/// [`Kind::Usage`].
pub fn parse_tier(text: &str) -> Result<TierKind> {
    text.parse().map_err(|_| refuse("tier", text, "dram | numa:N | numa:N+M | pmem | devdax | file | direct"))
}

/// Reads a horizon.
///
/// # Errors
/// [`Kind::Usage`].
pub fn parse_horizon(text: &str) -> Result<Horizon> {
    text.parse().map_err(|_| refuse("horizon", text, "none | epoch | write"))
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

/// A value that is a text in one file and a number in another.
#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrNumber {
    Whole(u64),
    Fraction(f64),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    Text(String),
    One(SpillTier),
    More(Vec<TextOrTier>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrTier {
    Text(String),
    Tier(SpillTier),
}

/// Reads spill tiers as workflow files and JSON give them: a text, a table, or a list of either.
///
/// # Errors
/// Those of the format.
pub fn spill_tiers<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<Vec<SpillTier>>, D::Error> {
    let tiers = match Option::<OneOrMore>::deserialize(from)? {
        None => return Ok(None),
        Some(OneOrMore::Text(text)) => parse_spill(&text),
        Some(OneOrMore::One(tier)) => Ok(vec![tier]),
        Some(OneOrMore::More(tiers)) => tiers
            .into_iter()
            .map(|tier| match tier {
                TextOrTier::Text(text) => text.parse(),
                TextOrTier::Tier(tier) => Ok(tier),
            })
            .collect(),
    };
    tiers.map(Some).map_err(serde::de::Error::custom)
}

fn size_text<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<u64>, D::Error> {
    let bytes = match Option::<TextOrNumber>::deserialize(from)? {
        None => return Ok(None),
        Some(TextOrNumber::Whole(bytes)) => Ok(bytes),
        Some(TextOrNumber::Text(text)) => parse_bytes(&text),
        Some(TextOrNumber::Fraction(number)) => parse_bytes(&number.to_string()),
    };
    bytes.map(Some).map_err(serde::de::Error::custom)
}

fn seconds<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Option<Duration>, D::Error> {
    let time = match Option::<TextOrNumber>::deserialize(from)? {
        None => return Ok(None),
        Some(TextOrNumber::Whole(seconds)) => parse_seconds(&seconds.to_string()),
        Some(TextOrNumber::Text(text)) => parse_seconds(&text),
        Some(TextOrNumber::Fraction(number)) => parse_seconds(&number.to_string()),
    };
    time.map(Some).map_err(serde::de::Error::custom)
}

fn write_seconds<S: Serializer>(time: &Option<Duration>, to: S) -> std::result::Result<S::Ok, S::Error> {
    time.map(|t| t.as_secs_f64()).serialize(to)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrTable {
    Text(String),
    Table(std::collections::BTreeMap<String, u32>),
}

fn reader_groups<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<Vec<(String, u32)>>, D::Error> {
    let text = match Option::<TextOrTable>::deserialize(from)? {
        None => return Ok(None),
        Some(TextOrTable::Text(text)) => text,
        Some(TextOrTable::Table(table)) => format_readers(&table.into_iter().collect::<Vec<_>>()),
    };
    parse_readers(&text).map(Some).map_err(serde::de::Error::custom)
}

fn write_reader_groups<S: Serializer>(
    groups: &Option<Vec<(String, u32)>>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    groups.as_ref().map(|g| format_readers(g)).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn resolve(options: &OpenOptions, variables: &[(&str, &str)]) -> Result<OpenOptions> {
        let map: HashMap<String, String> =
            variables.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        options.resolved("heat-2d", &|name| map.get(name).cloned())
    }

    #[test]
    fn words_are_read_as_written() {
        for word in Mechanism::WORDS {
            assert_eq!(word.parse::<Mechanism>().unwrap().to_string(), *word);
        }
        for text in ["released", "last:3", "forever"] {
            assert_eq!(text.parse::<Retention>().unwrap().to_string(), text);
            let json = format!("\"{text}\"");
            assert_eq!(
                serde_json::to_string(&serde_json::from_str::<Retention>(&json).unwrap()).unwrap(),
                json
            );
        }
        for text in ["last", "last:0", "last:-1", "Forever", ""] {
            assert_eq!(text.parse::<Retention>().unwrap_err().kind(), Kind::Usage, "{text}");
        }
        assert_eq!("sometimes".parse::<Verify>().unwrap_err().kind(), Kind::Usage);
        assert_eq!(serde_json::to_string(&Scope::Node).unwrap(), "\"node\"");
        assert!(serde_json::from_str::<Mode>("\"overwrite\"").is_err());
    }

    #[test]
    fn nothing_said_gives_the_defaults_and_rank_0_of_1() {
        let got = resolve(&OpenOptions::default(), &[]).unwrap();
        assert_eq!((got.rank, got.size), (Some(0), Some(1)));
        assert!(!got.component.clone().unwrap().is_empty());
        let expected = OpenOptions {
            rank: Some(0),
            size: Some(1),
            component: got.component.clone(),
            ..Default::default()
        };
        assert_eq!(got, expected);
    }

    #[test]
    fn the_program_wins_over_the_channel_over_the_variables() {
        let table =
            r#"{"quota": "2GiB", "tier": "file", "timeout": 5, "readers": {"viz": 1}, "kind": "files"}"#;
        let variables = [
            ("FOREBAY_CHANNEL_HEAT_2D", table),
            ("FOREBAY_QUOTA", "1GiB"),
            ("FOREBAY_TIER", "pmem"),
            ("FOREBAY_SEGMENT", "16MiB"),
            ("FOREBAY_HORIZON", "epoch"),
            ("FOREBAY_RETENTION", "last:2"),
            ("FOREBAY_CHECKSUM", "off"),
            ("FOREBAY_TIMEOUT", "9"),
            ("FOREBAY_READERS", "a:1"),
            ("FOREBAY_COMPONENT", "sim"),
            ("FOREBAY_RANK", "2"),
            ("FOREBAY_SIZE", "4"),
        ];
        let said = OpenOptions { tier: Some(TierKind::Dram), ..Default::default() };
        let got = resolve(&said, &variables).unwrap();
        assert_eq!(got.tier, Some(TierKind::Dram));
        assert_eq!(got.quota_bytes, Some(2 << 30));
        assert_eq!(got.segment_bytes, Some(16 << 20));
        assert_eq!(got.horizon, Some(Horizon::Epoch));
        assert_eq!(got.retention, Some(Retention::Last(2)));
        assert_eq!(got.checksum, Some(false));
        assert_eq!(got.timeout, Duration::from_secs(5));
        assert_eq!(got.readers, vec![("viz".to_string(), 1)]);
        assert_eq!(got.channel, Mechanism::Files);
        assert_eq!((got.rank, got.size, got.component.as_deref()), (Some(2), Some(4), Some("sim")));
        let short = OpenOptions { timeout: Duration::from_millis(1), ..Default::default() };
        assert_eq!(resolve(&short, &variables).unwrap().timeout, Duration::from_millis(1));
    }

    #[test]
    fn unreadable_values_and_unknown_keys_are_errors() {
        let fail = |name: &str, value: &str| resolve(&OpenOptions::default(), &[(name, value)]).unwrap_err();
        assert_eq!(fail("FOREBAY_TIER", "floppy").kind(), Kind::UnknownEnvironment);
        assert_eq!(fail("FOREBAY_TIMEOUT", "NaN").kind(), Kind::UnknownEnvironment);
        assert_eq!(fail("FOREBAY_TIMEOUT", "-1").kind(), Kind::UnknownEnvironment);
        assert_eq!(fail("FOREBAY_CHANNEL_HEAT_2D", "quota").kind(), Kind::UnknownEnvironment);
        assert_eq!(fail("FOREBAY_CHANNEL_HEAT_2D", r#"{"tier": 7}"#).kind(), Kind::UnknownEnvironment);
        let error = fail("FOREBAY_CHANNEL_HEAT_2D", r#"{"qouta": "1GiB"}"#);
        assert_eq!(error.kind(), Kind::UnknownKey);
        assert_eq!(error.hint_text(), Some("did you mean `quota`?"));
    }

    #[test]
    fn a_channel_called_kind_has_a_table_too() {
        let kind = |value: &str| {
            OpenOptions::default()
                .resolved("kind", &|n| (n == "FOREBAY_CHANNEL_KIND").then(|| value.to_string()))
        };
        assert_eq!(kind("files").unwrap().channel, Mechanism::Files);
        assert_eq!(kind(r#"{"quota": 4096}"#).unwrap().quota_bytes, Some(4096));
        let other = resolve(&OpenOptions::default(), &[("FOREBAY_CHANNEL_KIND", r#"{"quota": 1}"#)]).unwrap();
        assert_eq!(other.quota_bytes, None);
    }

    #[test]
    fn channel_options_survive_json() {
        let options = ChannelOptions {
            kind: Some(Mechanism::Files),
            quota: Some(3 << 30),
            retention: Some(Retention::Last(4)),
            pace: Some(Pace::Gated { writers: 4, readers: 8 }),
            timeout: Some(Duration::from_millis(1500)),
            readers: Some(vec![("analysis".into(), 3), ("viz".into(), 1)]),
            latest: Some(true),
            ..Default::default()
        };
        let text = serde_json::to_string(&options).unwrap();
        assert_eq!(ChannelOptions::from_json("test", &text).unwrap(), options, "{text}");
        // The list of keys is the list of fields.
        let all = r#"{"kind":null,"tier":null,"quota":null,"segment":null,"horizon":null,"retention":null,
            "checksum":null,"pace":null,"mode":null,"replace":null,"verify":null,"timeout":null,"latest":null,
            "finished":null,"scope":null,"readers":null,"absent":null,"emulate":null,"locality":null,"batch":null,
            "spill":null,"path":null,"when_full":null}"#;
        assert_eq!(ChannelOptions::from_json("test", all).unwrap(), ChannelOptions::default());
    }

    #[test]
    fn reader_groups_are_read_as_written() {
        let groups = parse_readers("analysis:3, viz").unwrap();
        assert_eq!(groups, vec![("analysis".to_string(), 3), ("viz".to_string(), 1)]);
        assert_eq!(parse_readers(&format_readers(&groups)).unwrap(), groups);
        assert!(parse_readers("").unwrap().is_empty());
        for text in ["a:0", "a:x", ":3", "a:1,a:2", "a:1,"] {
            assert_eq!(parse_readers(text).unwrap_err().kind(), Kind::Usage, "{text}");
        }
    }

    #[test]
    fn an_observer_has_no_rank_of_the_job() {
        let options = OpenOptions { observer: true, ..Default::default() };
        let got = resolve(&options, &[("FOREBAY_RANK", "3"), ("FOREBAY_SIZE", "4")]).unwrap();
        assert_eq!((got.rank, got.size), (Some(0), Some(1)));
    }
}
