//! A number with its error bar, and where it comes from.
//!
//! Invariants (checked when a profile is read): value and error are finite, the error is not below 0.

use std::fmt;

use schemars::{json_schema, JsonSchema, Schema, SchemaGenerator};
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number, and by how much it may be off in either direction. In the file a plain number, or `[value, error]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The number.
    pub value: f64,
    /// Half of the error bar, in the number's unit; what it means is said by the source's [`Spread`].
    pub error: Option<f64>,
}

/// A point of a curve: where, and the number there. In the file `[x, value]` or `[x, value, error]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Threads, depth, bytes or percent of reads, as the curve's axis says.
    pub x: f64,
    /// The number at x.
    pub y: Estimate,
}

/// Where a number comes from: the key of a source of the file, and the place in it. In the file one text, the key
/// first: `"study-d Table 3"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Citation {
    /// Key of [`Profile::sources`](super::Profile::sources).
    pub key: String,
    /// Table, figure, section; empty for the source as a whole.
    pub place: String,
}

/// A number of bytes with its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quantity {
    /// Bytes.
    pub bytes: u64,
    /// Where the number comes from.
    pub source: Citation,
}

/// Who stands for a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Provenance {
    /// Taken on the node that the profile describes.
    Measured,
    /// Typed in from a publication.
    Published,
    /// Taken on a tier that was made slower to behave like another.
    Emulated,
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Provenance::Measured => "measured",
            Provenance::Published => "published",
            Provenance::Emulated => "emulated",
        })
    }
}

/// What half of an error bar is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// The largest distance of a repetition from the number, which is their median.
    Range,
    /// The standard deviation of the repetitions.
    Deviation,
    /// The standard deviation of samples over the time of one repetition.
    OverTime,
    /// Half a unit of the last digit that the source prints. The real spread is not known and may be larger.
    Rounding,
    /// The source says nothing of it.
    #[default]
    Unknown,
}

/// A source of numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Measured, published or emulated.
    pub kind: Provenance,
    /// The publication; needed when published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub citation: Option<String>,
    /// How the numbers were taken; needed when measured or emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// How often each number was taken; needed when measured or emulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repetitions: Option<u32>,
    /// What the error bars are.
    #[serde(default)]
    pub spread: Spread,
    /// What a reader must know of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Estimate {
    /// A number whose spread is unknown.
    pub fn bare(value: f64) -> Estimate {
        Estimate { value, error: None }
    }

    /// A number with half of its error bar.
    pub fn new(value: f64, error: f64) -> Estimate {
        Estimate { value, error: Some(error) }
    }

    /// Of repetitions: their median, and the largest distance of one from it ([`Spread::Range`]). `None` without any.
    pub fn of_repetitions(values: &[f64]) -> Option<Estimate> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (first, last) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
            _ => sorted[middle],
        };
        Some(Estimate::new(median, (last - median).max(median - first)))
    }

    /// The same in another unit.
    pub fn scaled(self, factor: f64) -> Estimate {
        Estimate { value: self.value * factor, error: self.error.map(|e| e * factor.abs()) }
    }

    /// Lowest and highest of the error bar; both the number itself without one.
    pub fn bounds(self) -> (f64, f64) {
        let error = self.error.unwrap_or(0.0);
        (self.value - error, self.value + error)
    }
}

impl Point {
    /// A point.
    pub fn new(x: f64, y: Estimate) -> Point {
        Point { x, y }
    }
}

impl Citation {
    /// The source as a whole.
    pub fn of(key: impl Into<String>) -> Citation {
        Citation { key: key.into(), place: String::new() }
    }
}

impl fmt::Display for Citation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.is_empty() {
            true => f.write_str(&self.key),
            false => write!(f, "{} {}", self.key, self.place),
        }
    }
}

impl From<&str> for Citation {
    fn from(text: &str) -> Citation {
        let (key, place) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        Citation { key: key.to_owned(), place: place.trim().to_owned() }
    }
}

impl Serialize for Citation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Citation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Citation, D::Error> {
        String::deserialize(deserializer).map(|text| Citation::from(text.as_str()))
    }
}

impl JsonSchema for Citation {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Citation".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Key of a [source.KEY] table, then, after a blank, the place in it: \"study-d Table 3\"."
        })
    }
}

/// A number as a file shows it best: whole ones without a point.
#[derive(Clone, Copy)]
struct Number(f64);

/// Below this every whole number is one that a float holds exactly.
const WHOLE_MAX: f64 = 9e15;

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.fract() == 0.0 && self.0.abs() < WHOLE_MAX {
            true => serializer.serialize_i64(self.0 as i64),
            false => serializer.serialize_f64(self.0),
        }
    }
}

/// Writes a number that may be missing.
pub(super) fn whole_or_not<S: Serializer>(number: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    number.map(Number).serialize(serializer)
}

fn sequence<S: Serializer>(serializer: S, numbers: &[f64]) -> Result<S::Ok, S::Error> {
    let mut seq = serializer.serialize_seq(Some(numbers.len()))?;
    numbers.iter().try_for_each(|n| seq.serialize_element(&Number(*n)))?;
    seq.end()
}

impl Serialize for Estimate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.error {
            None => Number(self.value).serialize(serializer),
            Some(error) => sequence(serializer, &[self.value, error]),
        }
    }
}

impl Serialize for Point {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.y.error {
            None => sequence(serializer, &[self.x, self.y.value]),
            Some(error) => sequence(serializer, &[self.x, self.y.value, error]),
        }
    }
}

/// Reads a number or a list of numbers.
struct Numbers {
    expecting: &'static str,
}

impl<'de> Visitor<'de> for Numbers {
    type Value = Vec<f64>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }
    fn visit_i64<E>(self, value: i64) -> Result<Vec<f64>, E> {
        Ok(vec![value as f64])
    }
    fn visit_u64<E>(self, value: u64) -> Result<Vec<f64>, E> {
        Ok(vec![value as f64])
    }
    fn visit_f64<E>(self, value: f64) -> Result<Vec<f64>, E> {
        Ok(vec![value])
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<f64>, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = seq.next_element::<f64>()? {
            numbers.push(number);
        }
        Ok(numbers)
    }
}

const ESTIMATE: &str = "a number, or [value, error]";
const POINT: &str = "a point: [x, value] or [x, value, error]";

impl<'de> Deserialize<'de> for Estimate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Estimate, D::Error> {
        match deserializer.deserialize_any(Numbers { expecting: ESTIMATE })?[..] {
            [value] => Ok(Estimate::bare(value)),
            [value, error] => Ok(Estimate::new(value, error)),
            ref other => Err(D::Error::invalid_length(other.len(), &ESTIMATE)),
        }
    }
}

impl<'de> Deserialize<'de> for Point {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Point, D::Error> {
        match deserializer.deserialize_any(Numbers { expecting: POINT })?[..] {
            [x, value] => Ok(Point::new(x, Estimate::bare(value))),
            [x, value, error] => Ok(Point::new(x, Estimate::new(value, error))),
            ref other => Err(D::Error::invalid_length(other.len(), &POINT)),
        }
    }
}

impl JsonSchema for Estimate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Estimate".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number, or [value, error]: half of its error bar, in the number's unit.",
            "anyOf": [
                { "type": "number" },
                { "type": "array", "items": { "type": "number" }, "minItems": 2, "maxItems": 2 }
            ]
        })
    }
}

impl JsonSchema for Point {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Point".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A point of a curve: [x, value] or [x, value, error].",
            "type": "array",
            "items": { "type": "number" },
            "minItems": 2,
            "maxItems": 3
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_give_median_and_range() {
        assert_eq!(Estimate::of_repetitions(&[]), None);
        assert_eq!(Estimate::of_repetitions(&[3.0]), Some(Estimate::new(3.0, 0.0)));
        assert_eq!(Estimate::of_repetitions(&[5.0, 1.0, 3.0]), Some(Estimate::new(3.0, 2.0)));
        assert_eq!(Estimate::of_repetitions(&[4.0, 1.0]), Some(Estimate::new(2.5, 1.5)));
    }

    #[test]
    fn citations_are_a_key_and_a_place() {
        let citation = Citation::from("study-d Table 3, all in DRAM");
        assert_eq!((citation.key.as_str(), citation.place.as_str()), ("study-d", "Table 3, all in DRAM"));
        assert_eq!(citation.to_string(), "study-d Table 3, all in DRAM");
        assert_eq!(Citation::from("probe"), Citation::of("probe"));
    }

    #[test]
    fn numbers_read_as_they_are_written() {
        for text in ["136", "39.4", "[136,0.5]", "[1e-5,0]"] {
            let estimate: Estimate = serde_json::from_str(text).unwrap();
            let back = serde_json::to_string(&estimate).unwrap();
            assert_eq!(serde_json::from_str::<Estimate>(&back).unwrap(), estimate, "{text}");
        }
        assert_eq!(serde_json::to_string(&Estimate::new(136.0, 0.5)).unwrap(), "[136,0.5]");
        assert_eq!(serde_json::to_string(&Point::new(8.0, Estimate::bare(1.25))).unwrap(), "[8,1.25]");
        let wrong = serde_json::from_str::<Point>("[1]").unwrap_err().to_string();
        assert!(wrong.contains("[x, value, error]"), "{wrong}");
        assert!(serde_json::from_str::<Estimate>("\"fast\"").is_err());
    }
}
