//! What a version says of its variables and of itself: names of dimensions, attributes.
//!
//! Each rank that has something to say puts it at the end of its step as text into one concatenated variable,
//! [`DESCRIPTIONS`]: a JSON object a line, `{"variable":"T","dims":["y","x"],"attributes":{"units":"K"}}`; a line
//! without `variable` is about the version. A channel of files carries it as a space does.
//!
//! Guarantees: a description is as durable as its version and visible with it, never before; ranks that name the
//! dimensions of a variable differently are an error for who asks about that variable, and no other; of attributes the
//! value of the highest rank counts. Versions without descriptions hold nothing of this. Not here: attributes of a
//! whole space ([`crate::attributes`]).

use std::borrow::Cow;
use std::collections::BTreeMap;

use forebay_log::format::DIMS_MAX;
use forebay_tier::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use crate::attributes::{self, Attribute, KEY_BYTES_MAX};

/// What names of our own variables begin with; those of users do not.
const RESERVED: &str = ".forebay/";

/// The variable that holds the descriptions of a version, in the first format.
pub(crate) const DESCRIPTIONS: &str = ".forebay/descriptions/1";

/// Whether a variable is one of our own, which users do not see.
#[inline]
pub(crate) fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(RESERVED.as_bytes())
}

/// Refuses names of variables that are kept for our own. Errors: [`Kind::BadName`].
#[inline]
pub(crate) fn check_name(name: &str) -> Result<()> {
    match is_reserved(name.as_bytes()) {
        true => Err(reserved(name)),
        false => Ok(()),
    }
}

#[cold]
fn reserved(name: &str) -> Error {
    Error::new(Kind::BadName, format!("variable names that begin with {RESERVED} are reserved"))
        .with("variable", name)
        .hint("choose another name")
}

/// What is said of one variable of a version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Names of its dimensions, one each; None: they have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dims: Option<Vec<String>>,
    /// Its attributes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, Attribute>,
}

impl Description {
    /// The names of dimensions alone.
    pub fn of_dims<S: AsRef<str>>(dims: &[S]) -> Description {
        let dims = dims.iter().map(|name| name.as_ref().to_string()).collect();
        Description { dims: Some(dims), attributes: BTreeMap::new() }
    }

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.dims.is_none() && self.attributes.is_empty()
    }

    /// Checks names and sizes, as [`crate::Writer::describe`] does. Errors: [`Kind::Usage`].
    pub fn check(&self, variable: &str) -> Result<()> {
        let dims = self.dims.as_deref().unwrap_or_default();
        if dims.len() > DIMS_MAX || dims.iter().any(|name| name.is_empty() || name.len() > KEY_BYTES_MAX) {
            return Err(Error::new(
                Kind::Usage,
                format!(
                    "a variable has at most {DIMS_MAX} dimensions, with names of 1 to {KEY_BYTES_MAX} bytes"
                ),
            )
            .with("variable", variable)
            .with("dims", dims.join(", ")));
        }
        self.attributes.iter().try_for_each(|(key, value)| attributes::check(key, value))
    }

    /// Errors: [`Kind::VariableMismatch`]: it names another number of dimensions than the variable has.
    pub(crate) fn check_fits(&self, variable: &str, dimensions: usize) -> Result<()> {
        match &self.dims {
            Some(dims) if dims.len() != dimensions => Err(Error::new(
                Kind::VariableMismatch,
                format!(
                    "variable {variable} has {dimensions} dimensions, but {} names were given",
                    dims.len()
                ),
            )
            .with("dims", dims.join(", "))),
            _ => Ok(()),
        }
    }

    /// Adds what `other` says; of attributes said twice it counts. Errors: [`Kind::VariableMismatch`].
    fn add(&mut self, variable: &str, other: Description) -> Result<()> {
        if let (Some(has), Some(dims)) = (&self.dims, &other.dims) {
            if has != dims {
                return Err(named_differently(variable, has, dims));
            }
        }
        self.dims = self.dims.take().or(other.dims);
        self.attributes.extend(other.attributes);
        Ok(())
    }
}

#[cold]
fn named_differently(variable: &str, dims: &[String], other: &[String]) -> Error {
    Error::new(
        Kind::VariableMismatch,
        format!("ranks named the dimensions of {variable} differently in one version"),
    )
    .with("dims", dims.join(", "))
    .with("other_dims", other.join(", "))
    .hint("all ranks must use the same names for the dimensions of a variable")
}

/// One line.
#[derive(Serialize, Deserialize)]
struct Line<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none", borrow)]
    variable: Option<Cow<'a, str>>,
    #[serde(flatten)]
    description: Description,
}

/// The descriptions of one version.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Descriptions {
    /// Attributes of the version.
    pub version: BTreeMap<String, Attribute>,
    variables: BTreeMap<String, Description>,
    /// Variables whose dimensions ranks name differently, with what one of them says.
    disagreed: BTreeMap<String, Vec<String>>,
}

impl Descriptions {
    /// What is said of a variable of so many dimensions. Errors: [`Kind::VariableMismatch`]: ranks name them
    /// differently, or not as many as there are.
    pub(crate) fn of(&self, variable: &str, dimensions: usize) -> Result<Description> {
        let said = self.variables.get(variable).cloned().unwrap_or_default();
        if let (Some(other), Some(dims)) = (self.disagreed.get(variable), &said.dims) {
            return Err(named_differently(variable, dims, other));
        }
        said.check_fits(variable, dimensions)?;
        Ok(said)
    }

    /// Errors: [`Kind::Usage`], [`Kind::VariableMismatch`].
    pub(crate) fn describe(&mut self, variable: &str, description: Description) -> Result<()> {
        check_name(variable)?;
        description.check(variable)?;
        match self.variables.get_mut(variable) {
            Some(known) => known.add(variable, description),
            None => {
                self.variables.insert(variable.to_string(), description);
                Ok(())
            }
        }
    }

    /// Sets an attribute of the version. Errors: [`Kind::Usage`].
    pub(crate) fn set(&mut self, key: &str, value: &Attribute) -> Result<()> {
        attributes::check(key, value)?;
        self.version.insert(key.to_string(), value.clone());
        Ok(())
    }

    /// As lines; none when nothing is said.
    pub(crate) fn lines(&self) -> Result<Vec<u8>> {
        let version = Description { dims: None, attributes: self.version.clone() };
        let of_version = (!self.version.is_empty()).then_some(Line { variable: None, description: version });
        let of_variables = self.variables.iter().map(|(name, description)| Line {
            variable: Some(name.as_str().into()),
            description: description.clone(),
        });
        let mut lines = Vec::new();
        for line in of_version.into_iter().chain(of_variables) {
            serde_json::to_writer(&mut lines, &line).map_err(|e| {
                Error::new(Kind::Internal, "a description cannot be written as JSON").caused_by(e)
            })?;
            lines.push(b'\n');
        }
        Ok(lines)
    }

    /// Reads the lines of all ranks, in the order of ranks. Errors: [`Kind::Damaged`].
    pub(crate) fn read(lines: &[u8], version: u64) -> Result<Descriptions> {
        let mut all = Descriptions::default();
        // Ranks mostly say the same. From the last line on, what is said again changes nothing.
        let mut seen = rustc_hash::FxHashSet::default();
        for line in lines.rsplit(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            if !seen.insert(line) {
                continue;
            }
            let Line { variable, mut description } = serde_json::from_slice(line).map_err(|e| {
                Error::new(Kind::Damaged, format!("cannot parse a description in version {version}: {e}"))
                    .caused_by(e)
            })?;
            let Some(name) = variable else {
                description.attributes.append(&mut all.version);
                all.version = description.attributes;
                continue;
            };
            if let Some(later) = all.variables.remove(&*name) {
                let earlier = description.dims.clone();
                if description.add(&name, later.clone()).is_err() {
                    all.disagreed.insert(name.to_string(), earlier.unwrap_or_default());
                    description = later;
                }
            }
            all.variables.insert(name.into_owned(), description);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(text: &str) -> BTreeMap<String, Attribute> {
        [("units".to_string(), Attribute::Text(text.into()))].into()
    }

    #[test]
    fn read_as_written() {
        let mut said = Descriptions::default();
        assert!(said.lines().unwrap().is_empty());
        said.describe("T", Description { dims: Some(vec!["y".into(), "x".into()]), attributes: units("K") })
            .unwrap();
        said.describe("odd \"name\"\n", Description { dims: None, attributes: units("m\n") }).unwrap();
        said.describe("scalar", Description::of_dims::<&str>(&[])).unwrap();
        said.set("time", &Attribute::Float(0.1 + 0.2)).unwrap();
        let lines = said.lines().unwrap();
        assert_eq!(lines.iter().filter(|byte| **byte == b'\n').count(), 4, "one line each");
        assert_eq!(Descriptions::read(&lines, 0).unwrap(), said);
        assert_eq!(Descriptions::read(&lines.repeat(3), 0).unwrap(), said, "several ranks that say the same");
        assert_eq!(said.of("scalar", 0).unwrap().dims, Some(vec![]));
        assert_eq!(said.of("unknown", 3).unwrap(), Description::default());
    }

    /// The lines of the first format, which stay readable.
    #[test]
    fn the_format_is_this() {
        let mut said = Descriptions::default();
        said.describe("T", Description { dims: Some(vec!["y".into(), "x".into()]), attributes: units("K") })
            .unwrap();
        said.set("time", &Attribute::Float(0.5)).unwrap();
        let lines = concat!(
            "{\"attributes\":{\"time\":0.5}}\n",
            "{\"variable\":\"T\",\"dims\":[\"y\",\"x\"],\"attributes\":{\"units\":\"K\"}}\n"
        );
        assert_eq!(String::from_utf8(said.lines().unwrap()).unwrap(), lines);
        assert_eq!(DESCRIPTIONS, ".forebay/descriptions/1");
    }

    #[test]
    fn ranks_add_to_each_other_and_may_not_disagree_on_dimensions() {
        let lines = |description: Description| {
            let mut said = Descriptions::default();
            said.describe("T", description).unwrap();
            said.lines().unwrap()
        };
        let dims = lines(Description::of_dims(&["x"]));
        let [kelvin, celsius] =
            ["K", "°C"].map(|text| lines(Description { dims: None, attributes: units(text) }));
        let read = |lines: &[&[u8]]| Descriptions::read(&lines.concat(), 3).unwrap().of("T", 1).unwrap();
        let all = read(&[&dims, &kelvin, &celsius]);
        assert_eq!((all.dims, all.attributes), (Some(vec!["x".to_string()]), units("°C")));
        assert_eq!(read(&[&kelvin, &celsius, &kelvin]).attributes, units("K"), "the highest rank counts");
        let other = lines(Description::of_dims(&["y"]));
        let error = Descriptions::read(&[dims, other].concat(), 3).unwrap().of("T", 1).unwrap_err();
        assert_eq!(error.kind(), Kind::VariableMismatch);
        for line in ["{", "[]", "{\"variable\":1}", "{\"dims\":3}", "\u{1}"] {
            assert_eq!(Descriptions::read(line.as_bytes(), 3).unwrap_err().kind(), Kind::Damaged, "{line}");
        }
    }

    #[test]
    fn limits() {
        let mut said = Descriptions::default();
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        for bad in [
            Description::of_dims(&[""]),
            Description::of_dims(&[long.as_str()]),
            Description::of_dims(&["x"; DIMS_MAX + 1]),
            Description { dims: None, attributes: [(String::new(), Attribute::Int(1))].into() },
        ] {
            assert_eq!(said.describe("T", bad).unwrap_err().kind(), Kind::Usage);
        }
        assert!(said.set("", &Attribute::Int(1)).is_err());
        assert_eq!(said, Descriptions::default(), "what is refused is not said");
        assert!(Description::of_dims(&["x"]).check_fits("T", 2).is_err());
        assert!(Description::default().check_fits("T", 2).is_ok());
        assert!(check_name("forebay/x").is_ok());
        for name in [DESCRIPTIONS, ".forebay/x"] {
            assert_eq!(check_name(name).unwrap_err().kind(), Kind::BadName);
            assert_eq!(said.describe(name, Description::default()).unwrap_err().kind(), Kind::BadName);
        }
    }
}
