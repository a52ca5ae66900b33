//! The types that options have: how a value is read from text and from JSON, and written as JSON.
//!
//! Guarantees: JSON of another type than the option's is an error, never a guess; what is written can be read again.
//! Not here: the values themselves (`value.rs`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use forebay_tier::adapter::throttle::Locality;
use forebay_tier::{Error, Horizon, Kind, Result, TierKind};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;

use crate::execution_mode::ExecutionMode;
use crate::size::parse_bytes;
use crate::value::{
    check_readers, format_readers, parse_flag, parse_horizon, parse_locality, parse_number, parse_readers,
    parse_seconds, parse_spill, parse_tier, refuse, Absent, Emulation, Mechanism, Mode, Retention, Scope,
    SpillTier, Verify, WhenFull, HORIZONS, LOCALITIES, TIERS,
};

/// What the value of an option looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A whole number below 2^32.
    Number,
    /// Any text.
    Text,
    /// Words: text with `;` between them, or a list.
    Words,
    /// True or false.
    Flag,
    /// A number of bytes, or text such as `512MiB`.
    Bytes,
    /// A time in seconds.
    Seconds,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Text of this syntax.
    Syntax(&'static str),
    /// Names of reader groups with their sizes: `analysis:3,viz:1`, or a table.
    ReaderGroups,
    /// Lower tiers: text, a table, or a list of either.
    SpillTiers,
    /// The path of a directory.
    Directory,
    /// A medium with its curves.
    Emulation,
}

impl Form {
    /// What may be said as text, for people.
    pub fn text(self) -> String {
        match self {
            Form::Number => "a whole number".into(),
            Form::Text => "text".into(),
            Form::Words => "words, with ; between several".into(),
            Form::Flag => "true | false".into(),
            Form::Bytes => "bytes, as 512MiB".into(),
            Form::Seconds => "seconds".into(),
            Form::Word(words) => words.join(" | "),
            Form::Syntax(syntax) => syntax.into(),
            Form::ReaderGroups => "NAME:SIZE, with , between several".into(),
            Form::SpillTiers => "DIRECTORY[,quota=SIZE][,tier=KIND], with ; between several".into(),
            Form::Directory => "a directory".into(),
            Form::Emulation => "a medium with its curves, as JSON".into(),
        }
    }

    /// What JSON and TOML may hold, for people.
    fn wanted(self) -> String {
        match self {
            Form::Words => format!("{}, or a list of them", self.text()),
            Form::Bytes => "a size: bytes, or text such as \"512MiB\"".into(),
            Form::ReaderGroups => format!("{}, or a table of names and sizes", self.text()),
            Form::SpillTiers => {
                format!("{}; a table of path, quota and tier; or a list of these", self.text())
            }
            _ => self.text(),
        }
    }
}

/// A type that an option can have.
pub(crate) trait Value: Sized + Serialize {
    /// What it looks like.
    const FORM: Form;

    /// Reads text. Errors: `Usage`.
    fn from_text(text: &str) -> Result<Self>;

    /// Reads JSON. Errors: `Usage`, also for JSON of another type.
    fn from_json(json: &Json) -> Result<Self> {
        Self::from_text(&text_of(Self::FORM, json)?)
    }

    /// Writes it so that [`Value::from_json`] reads it.
    fn write<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        self.serialize(to)
    }
}

/// JSON as the text that it stands for, where its type is that of the form.
fn text_of(form: Form, json: &Json) -> Result<String> {
    match (form, json) {
        (Form::Number, Json::Number(number)) if !number.is_f64() => Ok(number.to_string()),
        (Form::Bytes | Form::Seconds, Json::Number(number)) => Ok(match number.as_f64() {
            // JSON writes an exponent where a size has none.
            Some(fraction) if number.is_f64() => fraction.to_string(),
            _ => number.to_string(),
        }),
        (Form::Flag, Json::Bool(flag)) => Ok(flag.to_string()),
        (Form::Number | Form::Flag | Form::Emulation, _) => Err(wrong_type(form, json)),
        (_, Json::String(text)) => Ok(text.clone()),
        _ => Err(wrong_type(form, json)),
    }
}

#[cold]
fn wrong_type(form: Form, json: &Json) -> Error {
    let is = match json {
        Json::Null => "nothing",
        Json::Bool(_) => "a flag",
        Json::Number(_) => "a number",
        Json::String(_) => "text",
        Json::Array(_) => "a list",
        Json::Object(_) => "a table",
    };
    Error::new(Kind::Usage, format!("{json} is {is}")).hint(format!("expected {}", form.wanted()))
}

/// Types that are written as one text: their form, and what reads it.
macro_rules! texts {
    ($($type:ty: $form:expr, $read:expr;)*) => {
        $(
            impl Value for $type {
                const FORM: Form = $form;

                fn from_text(text: &str) -> Result<Self> {
                    $read(text)
                }
            }
        )*
    };
}

texts! {
    u32: Form::Number, parse_number;
    String: Form::Text, |text: &str| Ok(text.to_owned());
    bool: Form::Flag, parse_flag;
    u64: Form::Bytes, parse_bytes;
    PathBuf: Form::Directory, |text: &str| Ok(PathBuf::from(text));
    Mechanism: Form::Word(Mechanism::WORDS), str::parse;
    Mode: Form::Word(Mode::WORDS), str::parse;
    Absent: Form::Word(Absent::WORDS), str::parse;
    Verify: Form::Word(Verify::WORDS), str::parse;
    WhenFull: Form::Word(WhenFull::WORDS), str::parse;
    Scope: Form::Word(Scope::WORDS), str::parse;
    Horizon: Form::Word(HORIZONS), parse_horizon;
    Locality: Form::Word(LOCALITIES), parse_locality;
    TierKind: Form::Syntax(TIERS), parse_tier;
    Retention: Form::Syntax("released | last:K | forever"), str::parse;
    ExecutionMode: Form::Syntax("parallel | serial-per-step | serial | gated:4w8r"), str::parse;
}

impl Value for Duration {
    const FORM: Form = Form::Seconds;

    fn from_text(text: &str) -> Result<Duration> {
        parse_seconds(text)
    }

    fn write<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        self.as_secs_f64().serialize(to)
    }
}

impl Value for Vec<String> {
    const FORM: Form = Form::Words;

    fn from_text(text: &str) -> Result<Self> {
        let words = text.split(';').map(str::trim).filter(|word| !word.is_empty());
        let words: Vec<String> = words.map(str::to_owned).collect();
        match words.is_empty() {
            true => {
                Err(Error::new(Kind::Usage, "the list is empty")
                    .hint("one or more words, with ; between them"))
            }
            false => Ok(words),
        }
    }

    fn from_json(json: &Json) -> Result<Self> {
        let Json::Array(words) = json else { return Self::from_text(&text_of(Self::FORM, json)?) };
        let word = |json: &Json| json.as_str().map(str::to_owned).ok_or_else(|| wrong_type(Self::FORM, json));
        words.iter().map(word).collect()
    }
}

impl Value for Vec<(String, u32)> {
    const FORM: Form = Form::ReaderGroups;

    fn from_text(text: &str) -> Result<Self> {
        parse_readers(text)
    }

    fn from_json(json: &Json) -> Result<Self> {
        let Json::Object(_) = json else { return parse_readers(&text_of(Self::FORM, json)?) };
        let groups = BTreeMap::<String, u32>::deserialize(json)
            .map_err(|_| refuse("list of reader groups", &json.to_string(), "names with their sizes"))?;
        let groups: Vec<(String, u32)> = groups.into_iter().collect();
        check_readers(&groups)?;
        Ok(groups)
    }

    fn write<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        format_readers(self).serialize(to)
    }
}

impl Value for Vec<SpillTier> {
    const FORM: Form = Form::SpillTiers;

    fn from_text(text: &str) -> Result<Self> {
        parse_spill(text)
    }

    fn from_json(json: &Json) -> Result<Self> {
        let one = |json: &Json| match json {
            Json::String(text) => text.parse(),
            Json::Object(_) => SpillTier::deserialize(json)
                .map_err(|e| Error::new(Kind::Usage, format!("{json} is not a spill tier: {e}"))),
            _ => Err(wrong_type(Self::FORM, json)),
        };
        match json {
            Json::Array(tiers) => tiers.iter().map(one).collect(),
            Json::Object(_) => Ok(vec![one(json)?]),
            _ => parse_spill(&text_of(Self::FORM, json)?),
        }
    }
}

impl Value for Emulation {
    const FORM: Form = Form::Emulation;

    fn from_text(text: &str) -> Result<Self> {
        let json: Json = serde_json::from_str(text).map_err(|e| refuse("medium", text, &e.to_string()))?;
        Self::from_json(&json)
    }

    fn from_json(json: &Json) -> Result<Self> {
        Emulation::deserialize(json).map_err(|e| Error::new(Kind::Usage, format!("invalid medium: {e}")))
    }
}

/// An error in one line, for the readers of files, which put it behind the place.
pub(crate) fn line(error: &Error) -> String {
    match error.hint_text() {
        Some(hint) => format!("{} ({hint})", error.message()),
        None => error.message().to_owned(),
    }
}

/// A field of a table that may be missing: `#[serde(with = "crate::form::optional")]`.
pub(crate) mod optional {
    use super::{line, Deserialize, Deserializer, Json, Serializer, Value};
    use serde::de::Error;

    /// Writes it as its type is written.
    pub(crate) fn serialize<T: Value, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => value.write(to),
            None => to.serialize_none(),
        }
    }

    /// Reads it; null is None.
    pub(crate) fn deserialize<'de, T: Value, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
        match Json::deserialize(from)? {
            Json::Null => Ok(None),
            json => T::from_json(&json).map(Some).map_err(|e| D::Error::custom(line(&e))),
        }
    }
}

/// A value of a workflow file. A word that is not known is serde's `unknown_variant`, which the reader of the file
/// turns into "did you mean".
pub(crate) struct Said<T>(pub T);

impl<'de, T: Value> Deserialize<'de> for Said<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        let json = Json::deserialize(from)?;
        match (T::FORM, &json) {
            (Form::Word(words), Json::String(text)) if !words.contains(&text.as_str()) => {
                Err(D::Error::unknown_variant(text, words))
            }
            _ => T::from_json(&json).map(Said).map_err(|e| D::Error::custom(line(&e))),
        }
    }
}
