//! Attributes of a space: small named values beside the data, such as units, grid spacing or a run's title.
//!
//! They stand in `attributes.json` in the directory of the space, one JSON document
//! `{"schema":"forebay.attributes/1","attributes":{…}}` that people can read.
//!
//! Guarantees: a set attribute is visible to every reader at once; readers take no lock and see the file
//! before or after a change, never between; numbers come back bit for bit, NaN and the infinities too (JSON
//! has no word for them, so they are written as `{"float":"NaN"}`). With `durable` a set attribute survives a
//! crash of the system. Not here: versions. An attribute has one value for the whole space, the last one set.

use crate::place::whole_file;
use forebay_tier::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Schema of the file.
pub const SCHEMA: &str = "forebay.attributes/1";

/// What every version of the schema begins with.
const SCHEMA_FAMILY: &str = "forebay.attributes/";

/// Longest key.
pub const KEY_BYTES_MAX: usize = 1 << 10;

/// Largest value: text in bytes, numbers 8 bytes each. Arrays beyond this are variables.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// A value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub enum Attribute {
    /// Text.
    Text(String),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Whole numbers.
    Ints(Vec<i64>),
    /// Numbers.
    Floats(Vec<f64>),
    /// Yes or no.
    Flag(bool),
    /// Several texts.
    Texts(Vec<String>),
}

/// A value as JSON shows it: plain where JSON can say it, else an object.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    Text(String),
    Int(i64),
    Float(f64),
    Ints(Vec<i64>),
    Floats(Vec<f64>),
    Flag(bool),
    Texts(Vec<String>),
    SpecialFloat { float: Number },
    SpecialFloats { floats: Vec<Number> },
    NoTexts { texts: Vec<String> },
}

/// A number, or the word for one that JSON lacks.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Word(String),
}

impl From<f64> for Number {
    fn from(value: f64) -> Number {
        if value.is_finite() {
            return Number::Finite(value);
        }
        // The bits of a NaN other than the usual one would not survive its name.
        let word = if value.is_nan() && value.to_bits() != f64::NAN.to_bits() {
            format!("NaN:{:016x}", value.to_bits())
        } else {
            value.to_string()
        };
        Number::Word(word)
    }
}

impl TryFrom<Number> for f64 {
    type Error = String;

    fn try_from(number: Number) -> std::result::Result<f64, String> {
        match number {
            Number::Finite(value) => Ok(value),
            Number::Word(word) => {
                let special = match word.strip_prefix("NaN:") {
                    Some(bits) => {
                        u64::from_str_radix(bits, 16).ok().map(f64::from_bits).filter(|v| v.is_nan())
                    }
                    None => word.parse::<f64>().ok().filter(|v| !v.is_finite()),
                };
                special.ok_or_else(|| format!("`{word}` is not a number"))
            }
        }
    }
}

impl From<Attribute> for Stored {
    fn from(value: Attribute) -> Stored {
        match value {
            Attribute::Text(text) => Stored::Text(text),
            Attribute::Int(number) => Stored::Int(number),
            Attribute::Flag(flag) => Stored::Flag(flag),
            Attribute::Ints(numbers) => Stored::Ints(numbers),
            Attribute::Float(number) if number.is_finite() => Stored::Float(number),
            Attribute::Float(number) => Stored::SpecialFloat { float: number.into() },
            // An empty list would be read as whole numbers.
            Attribute::Texts(texts) if texts.is_empty() => Stored::NoTexts { texts },
            Attribute::Texts(texts) => Stored::Texts(texts),
            Attribute::Floats(numbers) if !numbers.is_empty() && numbers.iter().all(|n| n.is_finite()) => {
                Stored::Floats(numbers)
            }
            Attribute::Floats(numbers) => {
                Stored::SpecialFloats { floats: numbers.into_iter().map(Number::from).collect() }
            }
        }
    }
}

impl TryFrom<Stored> for Attribute {
    type Error = String;

    fn try_from(stored: Stored) -> std::result::Result<Attribute, String> {
        Ok(match stored {
            Stored::Text(text) => Attribute::Text(text),
            Stored::Int(number) => Attribute::Int(number),
            Stored::Float(number) => Attribute::Float(number),
            Stored::Ints(numbers) => Attribute::Ints(numbers),
            Stored::Floats(numbers) => Attribute::Floats(numbers),
            Stored::Flag(flag) => Attribute::Flag(flag),
            Stored::Texts(texts) | Stored::NoTexts { texts } => Attribute::Texts(texts),
            Stored::SpecialFloat { float } => Attribute::Float(float.try_into()?),
            Stored::SpecialFloats { floats } => Attribute::Floats(
                floats.into_iter().map(f64::try_from).collect::<std::result::Result<_, _>>()?,
            ),
        })
    }
}

/// Text as it is, everything else as in Python or JSON.
impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Text(text) => f.write_str(text),
            Attribute::Int(number) => write!(f, "{number}"),
            Attribute::Float(number) => write!(f, "{number:?}"),
            Attribute::Ints(numbers) => write!(f, "{numbers:?}"),
            Attribute::Floats(numbers) => write!(f, "{numbers:?}"),
            Attribute::Flag(flag) => write!(f, "{flag}"),
            Attribute::Texts(texts) => write!(f, "{texts:?}"),
        }
    }
}

impl Attribute {
    /// Bytes that count against [`VALUE_BYTES_MAX`].
    fn bytes(&self) -> usize {
        match self {
            Attribute::Text(text) => text.len(),
            Attribute::Ints(numbers) => numbers.len() * 8,
            Attribute::Floats(numbers) => numbers.len() * 8,
            Attribute::Texts(texts) => texts.iter().map(|text| text.len() + 8).sum(),
            Attribute::Int(_) | Attribute::Float(_) | Attribute::Flag(_) => 8,
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Document {
    schema: String,
    attributes: BTreeMap<String, Attribute>,
}

/// Runs what it is given under the lock that all writers of the space take for this, and returns its result.
pub type UnderLock<'a> = &'a dyn Fn(&mut dyn FnMut() -> Result<()>) -> Result<()>;

/// The attributes of the space in `directory`; none when nothing was ever set. Takes no lock, does not block.
///
/// # Errors
/// [`Kind::Damaged`]: the file makes no sense; [`Kind::UnknownFormat`]: another Forebay wrote it;
/// those of the operating system.
pub fn read(directory: &Path) -> Result<BTreeMap<String, Attribute>> {
    let path = file_in(directory);
    let content = match whole_file::read(&path) {
        Ok(content) => content,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(e) => return Err(Error::io(format!("read {}", path.display()), e)),
    };
    let damaged = |e: serde_json::Error| {
        Error::new(Kind::Damaged, format!("cannot parse {}: {e}", path.display())).caused_by(e)
    };
    // The schema first: what follows it may mean something else in another version.
    let raw: serde_json::Value = serde_json::from_slice(&content).map_err(damaged)?;
    match raw.get("schema").and_then(|s| s.as_str()) {
        Some(SCHEMA) => {}
        Some(other) if other.starts_with(SCHEMA_FAMILY) => {
            return Err(Error::new(
                Kind::UnknownFormat,
                format!("{} has the schema {other}", path.display()),
            )
            .with("known", SCHEMA)
            .hint("written by a newer release of Forebay: use that release or a newer one"));
        }
        _ => {
            return Err(Error::new(Kind::Damaged, format!("{} has no schema of attributes", path.display())))
        }
    }
    Ok(serde_json::from_slice::<Document>(&content).map_err(damaged)?.attributes)
}

/// Sets one attribute of the space in `directory`. Blocks for the lock as long as `under_lock` does.
///
/// # Errors
/// [`Kind::Usage`]: an empty or too long key, too large a value; those of [`read`], of the lock and of the
/// operating system. The old attributes are then untouched.
pub fn set(
    directory: &Path,
    key: &str,
    value: &Attribute,
    durable: bool,
    under_lock: UnderLock<'_>,
) -> Result<()> {
    check(key, value)?;
    under_lock(&mut || {
        let mut attributes = read(directory)?;
        if attributes.get(key) == Some(value) {
            return Ok(());
        }
        attributes.insert(key.to_string(), value.clone());
        let document = Document { schema: SCHEMA.into(), attributes };
        let mut content = serde_json::to_vec_pretty(&document)
            .map_err(|e| Error::new(Kind::Internal, "attributes cannot be written as JSON").caused_by(e))?;
        content.push(b'\n');
        whole_file::replace(&file_in(directory), &content, durable)
    })
}

/// Name of the file in the directory of a space or of a channel of files.
pub(crate) const ATTRIBUTES_FILE: &str = "attributes.json";

/// The file of the attributes.
pub fn file_in(directory: &Path) -> PathBuf {
    directory.join(ATTRIBUTES_FILE)
}

/// Errors: [`Kind::Usage`]: an empty or too long key, too large a value.
pub(crate) fn check(key: &str, value: &Attribute) -> Result<()> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(
            Error::new(Kind::Usage, "the key of an attribute has 1 to 1024 bytes").with("bytes", key.len())
        );
    }
    if value.bytes() > VALUE_BYTES_MAX {
        return Err(Error::new(Kind::Usage, format!("the value of attribute `{key}` is too large"))
            .with("bytes", value.bytes())
            .with("bytes_max", VALUE_BYTES_MAX)
            .hint("put it as a variable"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_tier::host::fs;
    use std::sync::Mutex;

    fn no_lock(f: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        f()
    }

    fn samples() -> Vec<(&'static str, Attribute)> {
        vec![
            ("title", Attribute::Text("Gray–Scott \"F=0.04\"\n".into())),
            ("number-like", Attribute::Text("1".into())),
            ("steps", Attribute::Int(-3)),
            ("big", Attribute::Int(i64::MIN)),
            ("dt", Attribute::Float(1.0)),
            ("pi", Attribute::Float(0.1 + 0.2)),
            ("tiny", Attribute::Float(5e-324)),
            ("minus", Attribute::Float(-0.0)),
            ("shape", Attribute::Ints(vec![1, -2, 3])),
            ("none", Attribute::Ints(vec![])),
            ("spacing", Attribute::Floats(vec![1.0, 2.0])),
            ("nothing", Attribute::Floats(vec![])),
            ("holes", Attribute::Floats(vec![f64::INFINITY, 1.0, f64::NEG_INFINITY])),
            ("infinite", Attribute::Float(f64::NEG_INFINITY)),
            ("periodic", Attribute::Flag(true)),
            ("regions", Attribute::Texts(vec!["north".into(), String::new()])),
            ("no regions", Attribute::Texts(vec![])),
        ]
    }

    #[test]
    fn everything_comes_back_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path()).unwrap().is_empty());
        for (key, value) in samples() {
            set(dir.path(), key, &value, false, &no_lock).unwrap();
        }
        set(dir.path(), "steps", &Attribute::Text("changed".into()), true, &no_lock).unwrap();
        let got = read(dir.path()).unwrap();
        assert_eq!(got.len(), samples().len());
        for (key, value) in samples().iter().filter(|(key, _)| *key != "steps") {
            assert_eq!(&got[*key], value, "{key}");
        }
        assert!(matches!(got["minus"], Attribute::Float(z) if z.is_sign_negative()));
        assert_eq!(got["steps"], Attribute::Text("changed".into()));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "one file, nothing beside it");
    }

    #[test]
    fn every_nan_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        for value in [f64::NAN, f64::from_bits(0xfff8_0000_0000_1234)] {
            set(dir.path(), "fill", &Attribute::Float(value), false, &no_lock).unwrap();
            let Attribute::Float(got) = read(dir.path()).unwrap()["fill"] else { panic!("not a number") };
            assert_eq!(got.to_bits(), value.to_bits());
        }
    }

    #[test]
    fn damaged_and_unknown_files_are_errors_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        for (content, kind) in [
            ("", Kind::Damaged),
            ("{", Kind::Damaged),
            ("[]", Kind::Damaged),
            (r#"{"attributes":{}}"#, Kind::Damaged),
            (r#"{"schema":"other/1","attributes":{}}"#, Kind::Damaged),
            (r#"{"schema":"forebay.attributes/1"}"#, Kind::Damaged),
            (r#"{"schema":"forebay.attributes/1","attributes":{"a":{"float":"one"}}}"#, Kind::Damaged),
            (r#"{"schema":"forebay.attributes/1","attributes":{"a":null}}"#, Kind::Damaged),
            (r#"{"schema":"forebay.attributes/2","columns":[]}"#, Kind::UnknownFormat),
        ] {
            fs::write(file_in(dir.path()), content).unwrap();
            assert_eq!(read(dir.path()).unwrap_err().kind(), kind, "{content}");
            let error = set(dir.path(), "a", &Attribute::Int(1), false, &no_lock).unwrap_err();
            assert_eq!(error.kind(), kind, "{content}");
            assert_eq!(fs::read_to_string(file_in(dir.path())).unwrap(), content);
        }
    }

    #[test]
    fn limits() {
        let dir = tempfile::tempdir().unwrap();
        let set = |key: &str, value: Attribute| set(dir.path(), key, &value, false, &no_lock);
        set(&"k".repeat(KEY_BYTES_MAX), Attribute::Int(1)).unwrap();
        set("v", Attribute::Text("v".repeat(VALUE_BYTES_MAX))).unwrap();
        for (key, value) in [
            (String::new(), Attribute::Int(1)),
            ("k".repeat(KEY_BYTES_MAX + 1), Attribute::Int(1)),
            ("v".into(), Attribute::Text("v".repeat(VALUE_BYTES_MAX + 1))),
            ("v".into(), Attribute::Floats(vec![0.0; VALUE_BYTES_MAX / 8 + 1])),
        ] {
            assert_eq!(set(&key, value).unwrap_err().kind(), Kind::Usage);
        }
    }

    #[test]
    fn writers_under_a_lock_lose_nothing_and_readers_see_whole_files() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Mutex::new(());
        std::thread::scope(|scope| {
            for rank in 0..4 {
                let (lock, dir) = (&lock, dir.path());
                scope.spawn(move || {
                    for step in 0..20 {
                        set(dir, &format!("{rank}.{step}"), &Attribute::Int(step), false, &|f| {
                            let _held = lock.lock().unwrap();
                            f()
                        })
                        .unwrap();
                    }
                });
            }
            for _ in 0..200 {
                read(dir.path()).unwrap();
            }
        });
        assert_eq!(read(dir.path()).unwrap().len(), 80);
    }
}
